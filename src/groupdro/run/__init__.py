"""The interface of a solver, and the driver that owns the main loop."""
