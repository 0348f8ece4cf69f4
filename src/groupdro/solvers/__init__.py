"""Solvers: one algorithm a file, and the driver that owns the only loop."""

from groupdro.solvers.aleg import ALEG
from groupdro.solvers.aleg_theory import ALEGTheory
from groupdro.solvers.alem import ALEM
from groupdro.solvers.base import SOLVERS, Requirement, Run, Solver, State
from groupdro.solvers.choose import Auto
from groupdro.solvers.driver import solve
from groupdro.solvers.group_sqp import GroupSQP
from groupdro.solvers.quadratic import Quadratic
from groupdro.solvers.result import OutputPair, Progress, Result, Status, TraceRow

__all__ = [
    "ALEG",
    "ALEM",
    "SOLVERS",
    "ALEGTheory",
    "Auto",
    "GroupSQP",
    "OutputPair",
    "Progress",
    "Quadratic",
    "Requirement",
    "Result",
    "Run",
    "Solver",
    "State",
    "Status",
    "TraceRow",
    "solve",
]
