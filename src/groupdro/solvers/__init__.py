"""Solvers: one algorithm a file, and the driver that owns the only loop."""

from groupdro.solvers.al_svre import ALSVRE
from groupdro.solvers.aleg import ALEG
from groupdro.solvers.aleg_theory import ALEGTheory
from groupdro.solvers.alem import ALEM
from groupdro.solvers.base import SOLVERS, Requirement, Run, Solver, State
from groupdro.solvers.choose import Auto
from groupdro.solvers.driver import solve
from groupdro.solvers.ermeg import ERMEG
from groupdro.solvers.group_sqp import GroupSQP
from groupdro.solvers.mpvr import MPVR
from groupdro.solvers.quadratic import Quadratic
from groupdro.solvers.result import OutputPair, Progress, Result, Status, TraceRow
from groupdro.solvers.smd import SMD
from groupdro.solvers.tsa import TSA

__all__ = [
    "ALEG",
    "ALEM",
    "ALSVRE",
    "ERMEG",
    "MPVR",
    "SMD",
    "SOLVERS",
    "TSA",
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
