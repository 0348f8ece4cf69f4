"""solver="auto": a cost model picks a solver, and says why.

The model counts the work of each way to the tolerance in multiples of one pass over the data:

    quadratic   squared loss on dense rows: two passes, and one product of p x p a row
    newton      about 6 passes and one for each digit, each with a product of p x p per row, whose multiplications run
                100 times faster
    lbfgs       about 100 passes for each digit: columns of real data are seldom well conditioned
    aleg        about 10 passes, then 8 for each digit, up to three digits; more where groups are many, because the
                weights of thousands of groups have far to go

for p parameters. SQP keeps every group's gradient, which must fit in memory; ALEG needs no more than a few vectors and
takes the simplex too. How many passes ALEG needs depends on the data: where its gap falls so slowly that SQP would take
fewer from where it stands, SQP takes over.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

import numpy as np

from groupdro.problem import GroupRisk
from groupdro.run.solver import Solver
from groupdro.run.stages import Preparation
from groupdro.solvers.aleg import ALEG, AlegState
from groupdro.solvers.quadratic import Quadratic
from groupdro.solvers.sqp import GroupSQP
from groupdro.utils.arguments import check_flag
from groupdro.utils.types import Floats

__all__ = ["MOST_GRADIENT_VALUES", "Auto", "Choice", "choose"]


MOST_GRADIENT_VALUES = 5e7  # numbers of all groups' gradients that may be kept
_NEWTON_LIMIT = 2000  # parameters beyond which no Hessian is formed
_NEWTON_PASSES = 6.0  # and one for each digit
_HANDOVER = 1e-2  # relative gap at which ALEG hands over to SQP
_MOST_EPOCHS = 20  # of ALEG before that
_LOOK_BACK = 4  # epochs over which the fall of a gap is measured
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
    """Pick the solver that the cost model finds cheapest.

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
        The solver and the reason.
    """
    p, m = problem.model.size, problem.n_groups
    digits = float(np.clip(-np.log10(max(tol, 1e-16)), 1.0, 12.0))
    size = f"{problem.n_rows} rows, {p} parameters, {m} groups, tolerance {tol:.0e}"
    aleg = ALEG(scale_columns=precondition)
    if not GroupSQP().fits(problem):
        return Choice((aleg,), f"aleg: it takes every domain and set of weights ({size})")
    if m * p > MOST_GRADIENT_VALUES:
        return Choice((aleg,), f"aleg: the groups' gradients would not fit in memory ({size})")
    few = problem.n_rows >= 2 * m * (p + 1) and p <= _NEWTON_LIMIT
    if few and problem.data.rows.copyable and Quadratic().fits(problem):
        return Choice((Quadratic(),), f"quadratic: squared loss, compressed by QR ({size})")
    # A row's share of the Hessian, in multiples of its share of a pass.
    newton_pass = 1.0 + problem.data.rows.gram_cost * p
    newton = (_NEWTON_PASSES + digits) * newton_pass if p <= _NEWTON_LIMIT else np.inf
    lbfgs = 100.0 * digits
    variance_reduced = (10.0 + 8.0 * digits) * max(1.0, np.sqrt(m / 100.0)) if digits <= 3.0 else np.inf
    if newton <= min(lbfgs, variance_reduced):
        return Choice((GroupSQP("newton"),), f"sqp with the exact Hessian: it is cheap ({size})")
    if variance_reduced < lbfgs:
        other = GroupSQP("newton" if newton < lbfgs else "lbfgs")
        first = _UntilSlow(scale_columns=precondition, tol=tol, cost=min(newton, lbfgs))
        return Choice((first, other), f"aleg: few digits are asked for ({size})")
    first = _UntilSlow(scale_columns=precondition, tol=tol, cost=lbfgs, near=_HANDOVER)
    return Choice((first, GroupSQP("lbfgs")), f"aleg to two digits, then sqp with L-BFGS ({size})")


@dataclass
class _UntilSlowState(AlegState):
    """State of ALEG, with its latest relative gaps, the last one last; 0 where there was none yet."""

    gaps: Floats = field(default_factory=lambda: np.zeros(_LOOK_BACK + 1))


@dataclass(frozen=True)
class _UntilSlow(ALEG):
    """ALEG, until another solver would take fewer passes from where it stands.

    Parameters
    ----------
    tol : float
        Relative tolerance.
    cost : float
        Work of the other to the tolerance, in passes.
    near : float
        Relative gap at which it hands over in any case.
    """

    _: KW_ONLY
    tol: float = 1e-4
    cost: float = np.inf
    near: float = 0.0

    def init(self, problem: GroupRisk, seed: int) -> _UntilSlowState:
        """Begin as ALEG does."""
        state = _UntilSlowState(**vars(super().init(problem, seed)))
        self._note_gap(problem, state)
        return state

    def epoch(self, problem: GroupRisk, state: AlegState) -> None:
        """Advance, and note the gap."""
        super().epoch(problem, state)
        self._note_gap(problem, state)

    def _note_gap(self, problem: GroupRisk, state: AlegState) -> None:
        assert isinstance(state, _UntilSlowState)
        at = state.evaluation
        value = problem.objective(at.w, at.group_risks)
        state.gaps = np.append(state.gaps[1:], sum(self.halves(problem, at)) / max(abs(value), 1e-300))

    def is_done(self, problem: GroupRisk, state: AlegState) -> bool:
        """Compare what is left at the rate of the last epochs, at two passes each, with the other's work."""
        del problem
        assert isinstance(state, _UntilSlowState)
        gaps = state.gaps
        if self.near and (gaps[-1] <= self.near or state.epoch >= _MOST_EPOCHS):
            return True
        if not (gaps.min() > 0 and gaps[-1] > self.tol):
            return False
        fall = np.log(gaps[0] / gaps[-1]) / _LOOK_BACK
        return bool(fall <= 0 or 2.0 * np.log(gaps[-1] / self.tol) / fall > self.cost)


@dataclass(frozen=True)
class Auto(Solver):
    """Pick a solver by a cost model, and hand over to another where that pays.

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
        return [stage for solver in self._choice(problem, tol).stages for stage in solver.stages(problem, tol)]

    def describe(self, problem: GroupRisk, tol: float) -> str:
        """Say what was chosen and why."""
        return f"auto: {self._choice(problem, tol).reason}"
