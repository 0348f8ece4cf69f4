"""The sampled steps between two snapshots: one implementation per file, and a table of all."""

from groupdro.solvers.steps.inner_loop import InnerLoop, Steps
from groupdro.solvers.steps.table import BATCHES, make_steps, steps_of

__all__ = ["BATCHES", "InnerLoop", "Steps", "make_steps", "steps_of"]
