"""Solvers: one algorithm per file."""

from groupdro.run.driver import solve
from groupdro.run.result import OutputPair, Progress, Result, Status, TraceRow
from groupdro.run.solver import Answer, Requirement, Solver, State
from groupdro.run.stages import Budget, Preparation, Prepared, Refinement, Stage
from groupdro.solvers.aleg import ALEG
from groupdro.solvers.aleg_theory import ALEGTheory
from groupdro.solvers.alem import ALEM
from groupdro.solvers.auto import Auto
from groupdro.solvers.dual_ascent import DualAscent
from groupdro.solvers.sketched_sqp import SketchedSQP
from groupdro.solvers.sqp import GroupSQP
from groupdro.solvers.tail import TailNewton

__all__ = [
    "ALEG",
    "ALEM",
    "ALEGTheory",
    "Answer",
    "Auto",
    "Budget",
    "DualAscent",
    "GroupSQP",
    "OutputPair",
    "Preparation",
    "Prepared",
    "Progress",
    "Refinement",
    "Requirement",
    "Result",
    "SketchedSQP",
    "Solver",
    "Stage",
    "State",
    "Status",
    "TailNewton",
    "TraceRow",
    "solve",
]
