"""solver="auto": a cost model picks a solver, and says why.

The model counts the work of each way to the tolerance in multiples of one pass over the data:

    quadratic   squared loss on dense rows: two passes, and one product of p x p a row
    newton      about 12 passes, each with a product of p x p per row, whose multiplications run 100 times faster
    lbfgs       about 100 passes for each digit: columns of real data are seldom well conditioned
    aleg        about 10 passes, then 8 for each digit, up to three digits; more where groups are many, because the
                weights of thousands of groups have far to go

for p parameters. SQP keeps every group's gradient, which must fit in memory; ALEG needs no more than a few vectors and
takes the simplex too. How many passes ALEG needs depends on the data: where its gap falls so slowly that SQP would take
fewer from where it stands, SQP takes over.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from groupdro.data.rows import DenseRows
from groupdro.problem import GroupRisk, L2Domain, Squared
from groupdro.run.packing import Arrays, restore
from groupdro.run.solver import Run, Solver, State
from groupdro.solvers.aleg import ALEG
from groupdro.solvers.quadratic import Quadratic
from groupdro.solvers.sqp import GroupSQP
from groupdro.utils.arguments import check_flag
from groupdro.utils.bundle import check
from groupdro.utils.types import Floats

__all__ = ["Auto", "Choice", "choose"]


_GRADIENT_VALUES = 5e7  # numbers of all groups' gradients that may be kept
_NEWTON_LIMIT = 2000  # parameters beyond which no Hessian is formed
_NEWTON_PASSES = 12.0
_FAST_PRODUCT = 0.01  # time of a multiplication in a product of matrices, relative to one in a pass (0.004 on Adult)
_SPARSE_PRODUCT = 0.1  # the same for sparse rows
_HANDOVER = 1e-2  # relative gap at which ALEG hands over to SQP
_LOOK_BACK = 4  # epochs over which the fall of a gap is measured


@dataclass(frozen=True)
class Choice:
    """What was picked.

    Attributes
    ----------
    first : Solver
        The solver to begin with.
    polish : bool
        Whether the other takes over once the gap is small.
    reason : str
        Why, as a sentence.
    other : GroupSQP or None
        What takes over where the gap of the first falls too slowly; None where nothing can.
    cost : float
        Work of the other to the tolerance, in passes.
    """

    first: Solver
    polish: bool
    reason: str
    other: GroupSQP | None = None
    cost: float = np.inf


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
    p, m = int(np.prod(problem.shape)), problem.n_groups
    outputs = p // problem.shape[0]
    digits = float(np.clip(-np.log10(max(tol, 1e-16)), 1.0, 12.0))
    size = f"{problem.n_rows} rows, {p} parameters, {m} groups, tolerance {tol:.0e}"
    aleg = ALEG(scale_columns=precondition)
    if not isinstance(problem.domain, L2Domain):
        return Choice(aleg, False, f"aleg: the simplex ({size})")
    if m * p > _GRADIENT_VALUES:
        return Choice(aleg, False, f"aleg: the groups' gradients would not fit in memory ({size})")
    dense = isinstance(problem.data.rows, DenseRows)
    # A row's share of the Hessian, in multiples of its share of a pass.
    newton_pass = 1.0 + (_FAST_PRODUCT if dense else _SPARSE_PRODUCT) * problem.shape[0] * outputs
    if (
        isinstance(problem.loss, Squared)
        and dense
        and problem.data.n_workers == 1
        and not problem.fit_intercept
        and not problem.data.rows.mapped
        and problem.n_rows >= 2 * m * (p + 1)
        and p <= _NEWTON_LIMIT
    ):
        return Choice(Quadratic(), False, f"quadratic: squared loss, compressed by QR ({size})")
    newton = _NEWTON_PASSES * newton_pass if p <= _NEWTON_LIMIT else np.inf
    lbfgs = 100.0 * digits
    variance_reduced = (10.0 + 8.0 * digits) * max(1.0, np.sqrt(m / 100.0)) if digits <= 3.0 else np.inf
    if newton <= min(lbfgs, variance_reduced):
        return Choice(GroupSQP("newton"), False, f"sqp with the exact Hessian: it is cheap ({size})")
    if newton < lbfgs:
        other, cost = GroupSQP("newton"), newton
    else:
        other, cost = GroupSQP("lbfgs"), lbfgs
    if variance_reduced < lbfgs:
        return Choice(aleg, False, f"aleg: few digits are asked for ({size})", other, cost)
    return Choice(aleg, True, f"aleg to two digits, then sqp with L-BFGS ({size})", GroupSQP("lbfgs"), lbfgs)


@dataclass
class AutoState(State):
    """The state of the solver that runs.

    Attributes
    ----------
    inner : State
        Its own state.
    solver : Solver
        The solver.
    polishing : bool
        Whether that is SQP after ALEG.
    gaps : ndarray of shape (_LOOK_BACK + 1,)
        The latest relative gaps, the last one last; 0 where there was none yet.
    """

    inner: State
    solver: Solver
    polishing: bool = False
    gaps: Floats = field(default_factory=lambda: np.zeros(_LOOK_BACK + 1))


class Auto(Solver):
    """Pick a solver by a cost model, and hand over to another where that pays.

    Parameters
    ----------
    precondition : bool
        Whether ALEG's steps follow the scale of each column. The objective stays the same.
    """

    name = "auto"

    def __init__(self, *, precondition: bool = True) -> None:
        check_flag(precondition, "precondition")
        self.precondition = precondition
        self.choice: Choice | None = None
        self._tol = 0.0

    def prepare(self, problem: GroupRisk, run: Run, seed: int) -> GroupRisk:
        """Choose, and let the choice prepare."""
        self._choose(problem, run.tol if run.tol > 0 else 1e-9)
        assert self.choice is not None
        return self.choice.first.prepare(problem, run, seed)

    def _choose(self, problem: GroupRisk, tol: float) -> None:
        self._tol = tol
        self.choice = choose(problem, tol, precondition=self.precondition)
        self.choice.first.check(problem)

    def prepared(self) -> dict[str, Any]:
        """Return what the choice prepared, and the tolerance it was made for."""
        assert self.choice is not None
        return {**self.choice.first.prepared(), "tol": self._tol}

    def resume(self, problem: GroupRisk, run: Run, prepared: dict[str, Any]) -> GroupRisk:
        """Choose as before."""
        problem = super().resume(problem, run, prepared)
        tol: Any = prepared.get("tol")
        check(isinstance(tol, float | int) and 0 < tol <= 1e300, "its tolerance is no positive number")
        self._choose(problem, float(tol))
        assert self.choice is not None
        return self.choice.first.resume(problem, run, {**prepared, "references": None})

    def load(self, problem: GroupRisk, seed: int, packed: Any, arrays: Arrays) -> AutoState:
        """Load the state of the solver that ran."""
        state = self.init(problem, seed)
        whole = restore(None, packed, arrays)
        if isinstance(whole, dict) and whole.get("polishing") is True:
            self._hand_over(problem, state)
        state = restore(state, packed, arrays)
        state.solver.revive(problem, state.inner)
        state.evaluation = state.inner.evaluation
        return state

    def describe(self) -> str:
        """Say what was chosen and why."""
        return f"auto: {self.choice.reason}" if self.choice is not None else "auto"

    def init(self, problem: GroupRisk, seed: int) -> AutoState:
        """Begin with the first solver."""
        assert self.choice is not None
        inner = self.choice.first.init(problem, seed)
        return AutoState(inner.evaluation, inner, self.choice.first)

    def epoch(self, problem: GroupRisk, state: AutoState) -> None:
        """Advance the solver that runs; hand over once its gap is small."""
        assert self.choice is not None
        if self.choice.other is not None and isinstance(state.solver, ALEG):
            gap = sum(state.solver.halves(problem, state.evaluation))
            value = problem.objective(state.evaluation.w, state.evaluation.group_risks)
            state.gaps = np.append(state.gaps[1:], gap / max(abs(value), 1e-300))
            near = self.choice.polish and (state.gaps[-1] <= _HANDOVER or state.epoch >= 20)
            if near or self._passes_needed(state.gaps) > self.choice.cost:
                self._hand_over(problem, state)
                return
        state.inner.epoch = state.epoch
        state.solver.epoch(problem, state.inner)
        state.evaluation, state.stalled = state.inner.evaluation, state.inner.stalled

    def _passes_needed(self, gaps: Floats) -> float:
        """Return the passes that ALEG still needs if its gap keeps falling at this rate, at two passes per epoch."""
        if not (gaps.min() > 0 and gaps[-1] > self._tol):
            return 0.0
        fall = np.log(gaps[0] / gaps[-1]) / _LOOK_BACK
        return float(2.0 * np.log(gaps[-1] / self._tol) / fall) if fall > 0 else np.inf

    def _hand_over(self, problem: GroupRisk, state: AutoState) -> None:
        assert self.choice is not None
        assert self.choice.other is not None
        state.solver = self.choice.other
        state.inner = state.solver.init(problem.starting_at(state.evaluation.w, state.evaluation.q), 0)
        state.evaluation, state.polishing = state.inner.evaluation, True

    def point(self, state: AutoState) -> Any:
        """Return what the solver that runs wants evaluated."""
        return state.solver.point(state.inner)

    def average(self, state: AutoState) -> Any:
        """Return the average of the solver that runs."""
        return state.solver.average(state.inner)
