"""solver="auto": begin with what is cheap for certain, measure how the gap falls, and hand over where that pays.

The work of each way to the tolerance is counted in numbers of X that are read, never by a clock, so that the same data
give the same run:

    newton      about 5 epochs, and one for every second digit; each a pass, and a product of p x p numbers a row,
                which run many times faster than those of a pass
    lbfgs       about 4 epochs for each digit, and 4 more; each a pass, and products of the groups' gradients
    aleg        two passes an epoch, about 5 epochs for each digit; no more memory than a few vectors

for p parameters. How many epochs L-BFGS takes depends on the data, so the fall of its certified gap is measured: where
Newton would need less from where it stands, or ALEG where no Hessian can be formed, that takes over. SQP keeps every
group's gradient, which must fit in memory; ALEG takes every domain and every set of weights.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from groupdro.problem import GroupRisk
from groupdro.run.result import TraceRow, relative_gap
from groupdro.run.solver import Solver
from groupdro.run.stages import Preparation
from groupdro.solvers.aleg import ALEG
from groupdro.solvers.sqp import GroupSQP
from groupdro.utils.arguments import check_flag

__all__ = ["MOST_GRADIENT_VALUES", "Auto", "Choice", "choose"]


MOST_GRADIENT_VALUES = 5e7  # numbers of all groups' gradients that may be kept
_NEWTON_LIMIT = 2000  # parameters beyond which no Hessian is formed
_NEWTON_EPOCHS = 4.5, 0.6  # in all, and for each digit
_LBFGS_EPOCHS = 4.0, 3.7
_ALEG_EPOCHS = 5.0, 5.0
_NEWTON_OVERHEAD, _LBFGS_OVERHEAD = 3e5, 1e6  # of an epoch, in numbers of X that could be read in the meantime
_LOOK_BACK = 5  # epochs over which the fall of a gap is measured
_PATIENCE = 1.5  # times the work of another solver that the one at work may be expected to need
_TRIAL = 0.5  # of another's work from the start, before which nothing is handed over: beginnings are slow
_NO_TOLERANCE = 1e-9  # relative, where only an absolute one was given


@dataclass(frozen=True)
class Choice:
    """What was picked.

    Attributes
    ----------
    stages : tuple of Solver
        The solvers, each of which hands over to the next where that pays.
    reason : str
        Why, as a sentence.
    """

    stages: tuple[Solver, ...]
    reason: str


def choose(problem: GroupRisk, tol: float, *, precondition: bool = True) -> Choice:
    """Pick the solver to begin with, and those that it may hand over to.

    Parameters
    ----------
    problem : GroupRisk
        The problem.
    tol : float
        Relative tolerance.
    precondition : bool
        Whether ALEG's steps follow the scale of each column.

    Returns
    -------
    Choice
        The solvers and the reason.
    """
    p, m = problem.model.size, problem.n_groups
    size = f"{problem.n_rows} rows, {p} parameters, {m} groups, tolerance {tol:.0e}"
    aleg = ALEG(scale_columns=precondition)
    if not GroupSQP().fits(problem):
        return Choice((aleg,), f"aleg: it takes every domain and set of weights ({size})")
    if m * p > MOST_GRADIENT_VALUES:
        return Choice((aleg,), f"aleg: the groups' gradients would not fit in memory ({size})")
    if problem.domain.ball is None:
        return Choice((GroupSQP(),), f"sqp on faces: penalties and bounds are of each coefficient ({size})")
    newton, lbfgs = _newton_epoch(problem), _lbfgs_epoch(problem)
    digits = float(np.clip(-np.log10(max(tol, 1e-16)), 1.0, 12.0))
    exact = GroupSQP("newton")
    if _epochs(_NEWTON_EPOCHS, digits) * newton <= _epochs(_LBFGS_EPOCHS, digits) * lbfgs:
        return Choice((exact,), f"sqp with the exact Hessian: it is cheap ({size})")
    reason = f"sqp with L-BFGS: a Hessian is dear ({size})"
    if p <= _NEWTON_LIMIT:
        return Choice((_LbfgsUntilSlow(tol=tol, other="newton", epoch_work=newton / lbfgs), exact), reason)
    sampled = _AlegUntilSlow(scale_columns=precondition)
    return Choice((_LbfgsUntilSlow(tol=tol, other="aleg", epoch_work=2.0), sampled, GroupSQP("lbfgs")), reason)


def _epochs(needed: tuple[float, float], digits: float) -> float:
    return needed[0] + needed[1] * digits


def _pass(problem: GroupRisk) -> float:
    """Return the work of a pass."""
    return problem.n_rows * problem.data.rows.n_entries * problem.model.n_outputs


def _newton_epoch(problem: GroupRisk) -> float:
    """Return the work of an epoch with the exact Hessian, infinite where none is formed."""
    p = problem.model.size
    if p > _NEWTON_LIMIT:
        return np.inf
    # A row's share of the Hessian, in multiples of its share of a pass; then the factorisations.
    formed = _pass(problem) * (1.0 + problem.data.rows.gram_cost * p)
    return formed + 0.03 * p**3 + _NEWTON_OVERHEAD


def _lbfgs_epoch(problem: GroupRisk) -> float:
    """Return the work of an epoch with L-BFGS."""
    vectors = problem.n_groups + 2 * GroupSQP().memory
    return _pass(problem) + 0.03 * min(vectors, 400) * vectors * problem.model.size + _LBFGS_OVERHEAD


def _fall(trace: Sequence[TraceRow]) -> float:
    """Return the fall of the certified gap over the last epochs, as the logarithm of its factor for each pass."""
    first, last = (relative_gap(row.gap, row.upper) for row in (trace[-1 - _LOOK_BACK], trace[-1]))
    if not 0.0 < last < np.inf:
        return np.inf
    return float(np.log(first / last)) / max(trace[-1].passes - trace[-1 - _LOOK_BACK].passes, 1e-9)


@dataclass(frozen=True)
class _LbfgsUntilSlow(GroupSQP):
    """SQP with L-BFGS, until another solver would need less work from where it stands.

    Parameters
    ----------
    tol : float
        Relative tolerance.
    other : {"newton", "aleg"}
        The other solver.
    epoch_work : float
        Work of an epoch of it, in passes.
    """

    hessian: Any = "lbfgs"
    _: KW_ONLY
    tol: float = 1e-4
    other: str = "newton"
    epoch_work: float = 1.0

    def hand_over(self, problem: GroupRisk, state: Any, trace: Sequence[TraceRow]) -> str:
        """Compare what is left at the rate of the last epochs with the other's work."""
        del problem
        if state.stalled:
            return f"sqp found no way on; {self.other} takes over"
        needed = _NEWTON_EPOCHS if self.other == "newton" else _ALEG_EPOCHS
        whole = _epochs(needed, max(-np.log10(self.tol), 0.0)) * self.epoch_work
        if len(trace) <= _LOOK_BACK or trace[-1].passes - trace[0].passes < _TRIAL * whole:
            return ""
        fall, gap = _fall(trace), relative_gap(trace[-1].gap, trace[-1].upper)
        digits = max(float(np.log10(gap / self.tol)), 0.0) if np.isfinite(gap) else 1.0
        work = _PATIENCE * _epochs(needed, digits) * self.epoch_work
        if fall > 0.0 and np.log(10.0) * digits <= fall * work:
            return ""
        return f"the gap fell by a factor of {np.exp(fall):.2f} a pass; {self.other} takes over"


@dataclass(frozen=True)
class _AlegUntilSlow(ALEG):
    """ALEG, until its gap falls more slowly than a factor of ten in so many passes as it is expected to need."""

    def hand_over(self, problem: GroupRisk, state: Any, trace: Sequence[TraceRow]) -> str:
        """Look at the rate of the last epochs."""
        del problem, state
        if len(trace) <= _LOOK_BACK or _fall(trace) * _PATIENCE * 2.0 * _ALEG_EPOCHS[1] > np.log(10.0):
            return ""
        return f"the gap fell by a factor of {np.exp(_fall(trace)):.2f} a pass; sqp takes over"


@dataclass(frozen=True)
class Auto(Solver):
    """Begin with a solver that a count of the work finds cheapest, and hand over to another where that pays.

    Parameters
    ----------
    precondition : bool
        Whether ALEG's steps follow the scale of each column. The objective stays the same.
    """

    name = "auto"

    _: KW_ONLY
    precondition: bool = True

    def __post_init__(self) -> None:
        check_flag(self.precondition, "precondition")

    def _choice(self, problem: GroupRisk, tol: float) -> Choice:
        return choose(problem, tol if tol > 0 else _NO_TOLERANCE, precondition=self.precondition)

    def stages(self, problem: GroupRisk, tol: float) -> Sequence[Preparation | Solver]:
        """Return the stages of what was picked."""
        return self._choice(problem, tol).stages

    def describe(self, problem: GroupRisk, tol: float) -> str:
        """Say what was chosen and why."""
        return f"auto: {self._choice(problem, tol).reason}"
