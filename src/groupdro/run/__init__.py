"""The contract of a solver, and the driver that owns the only loop."""
