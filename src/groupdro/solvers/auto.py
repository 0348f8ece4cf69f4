"""solver="auto": start with a cheap solver, measure how fast the gap shrinks, and switch if that pays off.

The cost of reaching the tolerance with each solver is estimated as the number of entries of X read, never by a clock,
so that the same data give the same run:

    newton      about 5 epochs, plus one for every second digit; each is a pass plus the products of each row's entries
                with each other, which are many times faster than in a pass
    lbfgs       about 4 epochs per digit, plus 4; each is a pass plus products of the groups' gradients
    aleg        two passes per epoch, about 5 epochs per digit; memory for a few vectors only
    dual ascent about 35 passes per digit at several times the cost, more if the penalty is small for so few rows; the
                number of groups does not matter

for p parameters. How many epochs L-BFGS takes depends on the data, so the decrease of its certified gap is measured. If
Newton would need less work from the current point, or ALEG if no Hessian can be formed, that solver takes over. With
several outputs ALEG takes over only if SQP stalls, because a hand-over there costs more passes than it saves. SQP
stores every group's gradient, which must fit in memory; otherwise, with an L2 penalty and one output, it stores
sketches of them. Dual ascent requires sparse rows and such a penalty. ALEG supports every domain and every set of
weights.

Some problems have a solver of their own, without estimates: an interior-point method if every row is a group; SQP with
an active set if penalties or bounds apply to each coefficient; and SQP that starts from the solution of the problem of
second moments if the loss is quadratic and these moments are small compared to the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from groupdro.oracle.dual_sweep import shortening
from groupdro.problem import Problem
from groupdro.run.result import TraceRow, relative_gap
from groupdro.run.solver import Solver, State
from groupdro.run.stages import Preparation, Stage
from groupdro.solvers.aleg import ALEG
from groupdro.solvers.compression import Compression, compression_pays
from groupdro.solvers.dual_ascent import DualAscent
from groupdro.solvers.sketched_sqp import MOST_APART, SketchedSQP
from groupdro.solvers.sqp import GroupSQP, ball_of
from groupdro.solvers.tail import TailNewton

__all__ = ["MOST_GRADIENT_VALUES", "Auto", "Choice", "choose", "weights_are_costly"]


MOST_GRADIENT_VALUES = 5e7  # largest number of entries of all groups' gradients
_NEWTON_LIMIT = 2000  # parameters beyond which no Hessian is formed
_NEWTON_EPOCHS = 4.5, 0.6  # fixed, and per digit
_LBFGS_EPOCHS = 4.0, 3.7
_ALEG_EPOCHS = 5.0, 5.0
_DUAL_PASSES, _DUAL_ENTRY = 35.0, 6.0  # per digit, and the cost of an entry there relative to one in a plain pass
_HOPELESS = 600.0  # passes after which another solver may as well be tried, without knowing what it needs
_TAIL_GROUPS = 300  # rows as groups from which the program of the weights takes longer than passes
_DUAL_GROUPS = 100  # below which the program of the weights is cheap
_NEWTON_OVERHEAD, _LBFGS_OVERHEAD = 3e5, 1e6  # per epoch, in entries of X that could be read in the same time
_LOOK_BACK = 5  # epochs over which the decrease of the gap is measured
_PATIENCE = 1.5  # switch if the current solver is expected to need this multiple of another's work
_TRIAL = 0.5  # share of another's work before which there is no switch: early epochs are slow
_NO_TOLERANCE = 1e-9  # relative tolerance assumed if only an absolute one was given


@dataclass(frozen=True)
class Choice:
    """The chosen solvers.

    Attributes
    ----------
    stages : tuple of Preparation, Stage or Solver
        The solvers, each of which hands over to the next if that pays off, after preparations.
    reason : str
        The reason, as a sentence.
    """

    stages: tuple[Preparation | Stage | Solver, ...]
    reason: str


def choose(problem: Problem, tol: float) -> Choice:
    """Pick the first solver, and those to which it may hand over.

    Parameters
    ----------
    problem : Problem
        The problem.
    tol : float
        Relative tolerance; 0 if only an absolute one is in force.

    Returns
    -------
    Choice
        The solvers and the reason.
    """
    p = problem.model.size
    m = problem.n_groups
    goal = f"tolerance {tol:.0e}" if tol > 0 else "an absolute tolerance"
    size = f"{problem.n_rows} rows, {p} parameters, {m} groups, {goal}"
    tol = tol if tol > 0 else _NO_TOLERANCE
    aleg = ALEG()
    if m >= _TAIL_GROUPS and TailNewton().fits(problem):
        reason = f"interior point: every row is a group, and the subproblem in q would dominate ({size})"
        return Choice((TailNewton(), GroupSQP()), reason)
    if not GroupSQP().fits(problem):
        return Choice((aleg,), f"aleg: it supports every domain and set of weights ({size})")
    if m * p > MOST_GRADIENT_VALUES:
        why = f"the groups' gradients would not fit in memory ({size})"
        sketched = SketchedSQP()
        if m > MOST_APART and DualAscent().fits(problem):
            hopeless = AscentIsSlow(tol, passes=_dual_passes(problem), other=_HOPELESS, successor=sketched.name)
            return Choice((Stage(DualAscent(), until=hopeless), sketched, aleg), f"dual ascent: {why}")
        if sketched.fits(problem):
            return Choice((sketched, aleg), f"sketched sqp: {why}")
        return Choice((aleg,), f"aleg: {why}")
    if problem.domain.ball is None:
        return Choice((GroupSQP(),), f"sqp with an active set: penalties and bounds apply to each coefficient ({size})")
    if p <= _NEWTON_LIMIT and compression_pays(problem):
        exact = GroupSQP("newton")
        return Choice((Compression(exact), exact), f"sqp on second moments: the loss is quadratic ({size})")
    newton = _newton_epoch(problem)
    lbfgs = _lbfgs_epoch(problem)
    digits = _digits(tol)
    exact = GroupSQP("newton")
    dual = _dual_passes(problem)
    if weights_are_costly(problem, tol):
        other = _sqp_work(problem, digits) / (_DUAL_ENTRY * _pass(problem))
        reason = f"dual ascent: there are many groups, and the subproblem in q would dominate ({size})"
        slow = AscentIsSlow(tol, passes=dual, other=other, successor="sqp")
        return Choice((Stage(DualAscent(), until=slow), GroupSQP()), reason)
    if _epochs(_NEWTON_EPOCHS, digits) * newton <= _epochs(_LBFGS_EPOCHS, digits) * lbfgs:
        return Choice((exact,), f"sqp with the exact Hessian: it is cheap ({size})")
    reason = f"sqp with L-BFGS: the Hessian is expensive ({size})"
    learned = GroupSQP("lbfgs")
    if p <= _NEWTON_LIMIT:
        dearer = LbfgsIsDearer(tol, than="newton", epochs=_NEWTON_EPOCHS, epoch_work=newton / lbfgs)
        return Choice((Stage(learned, until=dearer), exact), reason)
    if problem.model.n_outputs > 1:
        return Choice((Stage(learned, until=_sqp_stalls), Stage(aleg, until=_aleg_is_slow), learned), reason)
    dearer = LbfgsIsDearer(tol, than="aleg", epochs=_ALEG_EPOCHS, epoch_work=2.0)
    return Choice((Stage(learned, until=dearer), Stage(aleg, until=_aleg_is_slow), learned), reason)


def weights_are_costly(problem: Problem, tol: float) -> bool:
    """Return whether the program of the group weights costs SQP more than dual ascent needs for everything."""
    return _digits(tol) * _dual_passes(problem) * _DUAL_ENTRY * _pass(problem) < _sqp_work(problem, _digits(tol))


def _digits(tol: float) -> float:
    return float(np.clip(-np.log10(max(tol, 1e-16)), 1.0, 12.0))


def _sqp_work(problem: Problem, digits: float) -> float:
    """Return the cost of SQP with the cheaper curvature."""
    newton = _epochs(_NEWTON_EPOCHS, digits)
    lbfgs = _epochs(_LBFGS_EPOCHS, digits)
    return min(newton * _newton_epoch(problem), lbfgs * _lbfgs_epoch(problem))


def _epochs(needed: tuple[float, float], digits: float) -> float:
    return needed[0] + needed[1] * digits


def _pass(problem: Problem) -> float:
    """Return the cost of a pass."""
    return problem.n_rows * problem.data.mean_entries * problem.model.n_outputs


def _newton_epoch(problem: Problem) -> float:
    """Return the cost of an epoch with the exact Hessian; infinite if none is formed."""
    p = problem.model.size
    if p > _NEWTON_LIMIT:
        return np.inf
    # Each entry of a row is multiplied by all others, then the factorisations.
    products = problem.data.rows.gram_cost * problem.data.mean_entries * problem.model.n_outputs
    formed = _pass(problem) * (1.0 + products)
    return formed + 0.03 * p**3 + _NEWTON_OVERHEAD


def _lbfgs_epoch(problem: Problem) -> float:
    """Return the cost of an epoch with L-BFGS."""
    vectors = problem.n_groups + 2 * GroupSQP().memory
    return _pass(problem) + 0.03 * min(vectors, 400) * vectors * problem.model.size + _LBFGS_OVERHEAD


def _dual_passes(problem: Problem) -> float:
    """Return the passes of dual ascent for each digit; infinite if it is not considered.

    It needs as many steps as there are rows or, if that is more, as a row's curvature is greater than the penalty's.
    """
    if problem.n_groups < _DUAL_GROUPS or not DualAscent().fits(problem):
        return np.inf
    curvature = problem.curvature * problem.data.mean_square_norm / ball_of(problem).penalty
    return shortening(problem) * _DUAL_PASSES * max(1.0, curvature / problem.n_rows)


def _gap_decrease(trace: Sequence[TraceRow], epochs: int = 0) -> float:
    """Return the decrease of the certified gap over the last epochs, as the logarithm of its factor per pass."""
    before = trace[-1 - (epochs or _LOOK_BACK)]
    first, last = (relative_gap(row.gap, row.upper) for row in (before, trace[-1]))
    if not 0.0 < last < np.inf:
        return np.inf
    return float(np.log(first / last)) / max(trace[-1].passes - before.passes, 1e-9)


@dataclass(frozen=True)
class LbfgsIsDearer:
    """Whether another solver would need less work from the current point than SQP with L-BFGS.

    Parameters
    ----------
    tol : float
        Relative tolerance.
    than : str
        Name of the other solver.
    epochs : tuple of float
        Its epochs: a fixed number, and those for each digit.
    epoch_work : float
        Cost of one of its epochs, in passes.
    """

    tol: float
    than: str
    epochs: tuple[float, float]
    epoch_work: float

    def __call__(self, state: State, trace: Sequence[TraceRow]) -> str:
        """Compare the remaining cost at the rate of the last epochs with the other solver's."""
        if state.stalled:
            return f"sqp stalled; {self.than} takes over"
        whole = _epochs(self.epochs, max(-np.log10(self.tol), 0.0)) * self.epoch_work
        if len(trace) <= _LOOK_BACK or trace[-1].passes - trace[0].passes < _TRIAL * whole:
            return ""
        fall = _gap_decrease(trace)
        gap = relative_gap(trace[-1].gap, trace[-1].upper)
        digits = max(float(np.log10(gap / self.tol)), 0.0) if np.isfinite(gap) else 1.0
        work = _PATIENCE * _epochs(self.epochs, digits) * self.epoch_work
        if fall > 0.0 and np.log(10.0) * digits <= fall * work:
            return ""
        return f"the gap fell by a factor of {np.exp(fall):.2f} per pass; {self.than} takes over"


def _sqp_stalls(state: State, _: Sequence[TraceRow]) -> str:
    """Return that SQP stalled, if it did. With several outputs a slow decrease of the gap is no reason to switch."""
    return "sqp stalled; aleg takes over" if state.stalled else ""


def _aleg_is_slow(state: State, trace: Sequence[TraceRow]) -> str:
    """Return that the gap of ALEG took more passes per factor of ten than expected in the last epochs, if it did."""
    if state.stalled:
        return "it stalled"
    if len(trace) <= _LOOK_BACK or _gap_decrease(trace) * _PATIENCE * 2.0 * _ALEG_EPOCHS[1] > np.log(10.0):
        return ""
    return f"the gap fell by a factor of {np.exp(_gap_decrease(trace)):.2f} per pass; sqp takes over"


@dataclass(frozen=True)
class AscentIsSlow:
    """Whether dual ascent is expected to need more work for the rest than another solver for everything.

    Parameters
    ----------
    tol : float
        Relative tolerance.
    passes : float
        Passes expected for each digit.
    other : float
        Work of the other solver, in passes of dual ascent.
    successor : str
        Its name.
    """

    tol: float
    passes: float
    other: float
    successor: str

    def __call__(self, state: State, trace: Sequence[TraceRow]) -> str:
        """Extrapolate the rate of the later half of the epochs, after as many passes as two digits should take.

        Over a few of them the gap may not fall at all, because the bounds of single epochs vary.
        """
        if state.stalled:
            return "it stalled"
        if len(trace) <= _LOOK_BACK or trace[-1].passes - trace[0].passes < 2.0 * self.passes:
            return ""
        fall = _gap_decrease(trace, max(_LOOK_BACK, len(trace) // 2))
        gap = relative_gap(trace[-1].gap, trace[-1].upper)
        left = max(float(np.log(gap / self.tol)), 0.0) if np.isfinite(gap) else np.log(10.0)
        if fall > 0.0 and left <= fall * _PATIENCE * self.other:
            return ""
        return f"the gap fell by a factor of {np.exp(fall):.3f} per pass; {self.successor} takes over"


@dataclass(frozen=True)
class Auto(Solver):
    """Start with the solver that a cost model finds cheapest, and switch to another if that pays off."""

    name = "auto"

    def _choice(self, problem: Problem, tol: float) -> Choice:
        return choose(problem, tol)

    def stages(self, problem: Problem, tol: float) -> Sequence[Preparation | Stage | Solver]:
        """Return the stages of the chosen solvers."""
        return self._choice(problem, tol).stages

    def describe(self, problem: Problem, tol: float) -> str:
        """Describe which solver was chosen, and why."""
        return f"auto: {self._choice(problem, tol).reason}"
