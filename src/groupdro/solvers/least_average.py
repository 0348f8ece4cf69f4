"""The smallest average among models with a nearly optimal worst value: how the slack of a tolerance is used.

At a given tolerance, many models are as good as the best on the worst group, and nothing constrains the groups that do
not bind. Among all models with a worst value of at most a level, this finds the one with the smallest average A, by SQP
on

    minimise A(w)   subject to   V_i(w) + penalty(w) <= level  for every group i.

With multipliers lam_i >= 0 whose sum is Lam, the weights q = (base + lam) / (1 + Lam) are a distribution, and every
lower bound L on min_w F(w, q) proves

    A(w)  >=  (1 + Lam) L - Lam level    for every model within the level.
"""

from dataclasses import KW_ONLY, dataclass, field

import numpy as np

from groupdro.certificate import balance, linearise
from groupdro.problem import GroupRisk
from groupdro.problem.centring import recentre
from groupdro.problem.domains import penalty_room
from groupdro.run.clock import Clock
from groupdro.solvers.auto import MOST_GRADIENT_VALUES
from groupdro.solvers.simplex_qp import solve_simplex_qp
from groupdro.solvers.sqp import GroupSQP, SqpState, ball_of
from groupdro.solvers.weight_program import WORKING_SET, Program
from groupdro.utils.threads import one_blas_thread
from groupdro.utils.types import Floats

__all__ = ["LeastAverage", "find_least_average"]

_KEPT = 1e-3  # share of the slack left unused, so that the last step ends within the level
_LEAST_FALL = 0.9  # factor of the interval per step, above which the step counts as idle
_MOST_IDLE = 8
_NEARLY = 10.0  # times the tolerance: a bound is worth a pass only if a step promises less than this
_MOST_DAMPING = 1e4  # relative to each parameter's largest curvature
_ENTRIES = 20  # most rounds in which groups enter the program


@dataclass(frozen=True, eq=False)
class LeastAverage:
    """A model within the level, and bounds on its average.

    Attributes
    ----------
    w, q : ndarray
        The model, and the group weights that prove the bound on its average.
    group_risks : ndarray of shape (n_groups,)
        Average loss of each group.
    worst, mean : float
        Its worst value and its average, with the penalty.
    mean_lower : float
        Proven lower bound: no model within the level has a smaller average.
    passes, seconds : float
        Passes over the data, and time.
    interrupted : bool
        Whether Ctrl-C ended the search.
    """

    w: Floats
    q: Floats
    group_risks: Floats
    worst: float
    mean: float
    mean_lower: float
    passes: float
    seconds: float
    interrupted: bool


@dataclass(frozen=True, eq=False)
class _Level:
    """The average, and the level of the first `n_bound` groups. Values are upper bounds, with the penalty."""

    base: Floats
    level: float
    n_bound: int

    def mean(self, problem: GroupRisk, w: Floats, group_risks: Floats) -> float:
        values = group_risks - problem.baseline.lower
        return float(self.base @ values) + problem.domain.penalty_at(problem.coef(w))

    def excess(self, problem: GroupRisk, w: Floats, group_risks: Floats) -> Floats:
        values = (group_risks - problem.baseline.lower)[: self.n_bound]
        return np.asarray(values + problem.domain.penalty_at(problem.coef(w)) - self.level)


@dataclass
class _State(SqpState):
    """State of SQP, with the multipliers of the groups.

    `scale` is one plus their sum, the factor by which the curvature of the Lagrangian exceeds that of its mixture.
    `promised` is the decrease that the last step predicted; `price` is the penalty for exceeding the level.
    """

    multipliers: Floats = field(kw_only=True)
    scale: float = field(default=1.0, kw_only=True)
    promised: float = field(default=np.inf, kw_only=True)
    price: float = field(default=1.0, kw_only=True)


class _LevelProgram(Program):
    """The dual of the quadratic model: weight one for the average, and a multiplier for every working group."""

    def solve(self, M: Floats, values: Floats) -> Floats:
        return solve_simplex_qp(M, values, 1)


@dataclass(frozen=True, eq=False)
class _LevelSQP(GroupSQP):
    """SQP for the average under a level; rows and values are divided by the scale instead of scaling the curvature."""

    _: KW_ONLY
    within: _Level

    def _solve_model(self, problem: GroupRisk, state: SqpState, values: Floats) -> tuple[Floats, Floats, float]:
        assert isinstance(state, _State)
        within, here, penalty = self.within, state.groups, ball_of(problem).penalty
        n, gradients = within.n_bound, here.gradients.reshape(problem.n_groups, here.w.size)
        pull = np.zeros_like(here.w)
        problem.coef(pull)[...] = problem.coef(here.w)
        excess, average = within.excess(problem, here.w, here.group_risks), within.base @ gradients
        share = 1.0 / state.scale
        inside = state.multipliers > 0
        inside[np.argsort(-excess)[:WORKING_SET]] = True  # of groups that tie, some
        for _ in range(_ENTRIES):
            working = np.flatnonzero(inside)
            rows = np.vstack([average, gradients[working]]) + penalty * pull.ravel()
            values = share * np.append(0.0, excess[working])
            program = _LevelProgram(rows=share * rows, values=values, share=share)
            step, x = self._step_in_ball(problem, state, program, pull)
            along = penalty * float(pull.ravel() @ step.ravel())
            expected = excess + gradients[:n] @ step.ravel() + along
            late = np.flatnonzero(~inside & (expected > max(float(expected[working].max()), 0.0)))
            if not late.size:
                break
            if len(working) > 2 * WORKING_SET:
                inside[working[x[1:] == 0.0]] = False  # the program stays small
            inside[late[np.argsort(-expected[late])[:WORKING_SET]]] = True
        fall, slack = -float(average @ step.ravel()) - along, -float(excess.max())
        most = within.mean(problem, here.w, here.group_risks) + float(within.base @ problem.baseline.upper)
        if fall > most and here.hessian is not None and state.damping < _MOST_DAMPING:
            # The model promises more than the average can fall, as for piecewise linear losses: trust it less.
            state.damping = max(100.0 * state.damping, 1e-8)
            return self._solve_model(problem, state, values)
        first = 1.0 + float(np.sqrt(max(fall, 0.0) / (2.0 * slack))) if slack > 0.0 else 1.0
        if state.scale == 1.0 < first:
            # Estimate the size of the multipliers: along the best step of length s the average falls by s * fall, and
            # the worst value rises by s^2 * fall / 2, which the slack allows up to s = sqrt(2 * slack / fall).
            state.scale = first
            return self._solve_model(problem, state, values)
        state.multipliers = np.zeros(n)
        state.multipliers[working] = x[1:]
        state.scale = float(x.sum())
        state.price = max(state.price, 2.0 * float(x[1:].sum()))
        q = within.base.copy()
        q[:n] += state.multipliers
        fall += state.price * (max(float(excess.max()), 0.0) - max(float(expected.max()), 0.0))
        state.promised = fall
        return step, q / q.sum(), fall

    def _merit(self, problem: GroupRisk, state: SqpState, w: Floats, group_risks: Floats) -> float:
        """Return the average plus a price for exceeding the level."""
        assert isinstance(state, _State)
        over = max(float(self.within.excess(problem, w, group_risks).max()), 0.0)
        return self.within.mean(problem, w, group_risks) + state.price * over


@one_blas_thread()
def find_least_average(
    problem: GroupRisk,
    base: Floats,
    level: float,
    lower: float,
    start: tuple[Floats, Floats],
    *,
    tol: float,
    max_passes: float = np.inf,
    max_time: float = np.inf,
    n_bound: int | None = None,
) -> LeastAverage | None:
    """Return the model of smallest average whose worst value is at most the level, within a budget.

    Parameters
    ----------
    problem : GroupRisk
        The problem, with the whole simplex as its weight set.
    base : ndarray of shape (n_groups,)
        Weights of the average.
    level : float
        Largest allowed worst value, with the penalty.
    lower : float
        Lower bound on the worst value of any model.
    start : pair of ndarray
        A model within the level, and group weights.
    tol : float
        Relative width of the interval of the average at which to stop.
    max_passes, max_time : float
        Limits on passes over the data and on seconds.
    n_bound : int, optional
        The level applies to the first `n_bound` groups; by default to all.

    Returns
    -------
    LeastAverage or None
        The model with its interval; None if SQP does not support the problem or no model was found within the level.
    """
    n = problem.n_groups if n_bound is None else n_bound
    fits = problem.domain.ball is not None and GroupSQP().fits(problem)
    if not fits or problem.n_groups * problem.model.size > MOST_GRADIENT_VALUES:
        return None
    clock = Clock(problem)
    problem, centring = recentre(problem.starting_at(*start))
    problem.single_precision = False  # the level must be met to full accuracy
    solver = _LevelSQP(within=_Level(base, level - _KEPT * (level - lower), n))
    search = _Search(problem, solver, level)
    interrupted = False
    try:
        while not search.is_done(tol) and clock.passes < max_passes and not search.is_late(clock.seconds, max_time):
            search.advance(tol)
    except KeyboardInterrupt:
        if not problem.data.is_whole:
            raise  # other workers are elsewhere
        interrupted = True
    if search.best is None:
        return None
    if not interrupted and search.state.epoch and search.mean_lower == -np.inf:
        search.bound()  # a rough bound, if the search ended early
    # The reported values are those of the model in the user's units.
    w = centring.outward(search.best)
    inner = centring.inward(w)
    with problem.uncounted():
        risks = problem.risks(inner)
    worst = float(solver.within.excess(problem, inner, risks).max()) + solver.within.level
    if not worst <= level:
        return None
    mean = solver.within.mean(problem, inner, risks)
    # A bound that exceeds the attained value by more than rounding proves nothing.
    sound = search.mean_lower <= mean + 1e-9 * max(abs(mean), float(np.abs(risks).max()))
    mean_lower = min(search.mean_lower, mean) if sound else -np.inf
    return LeastAverage(w, search.q, risks, worst, mean, mean_lower, clock.passes, clock.seconds, interrupted)


class _Search:
    """One search, with the best model within the level and the best bound so far."""

    def __init__(self, problem: GroupRisk, solver: _LevelSQP, level: float):
        self.problem, self.solver, self.level = problem, solver, level
        begun = GroupSQP().init(problem, 0)
        self.state = _State(**vars(begun), multipliers=np.zeros(solver.within.n_bound))
        self.best: Floats | None = None
        self.idle = 0  # steps in a row that hardly narrowed the interval
        self.mean, self.mean_lower, self.q = np.inf, -np.inf, begun.evaluation.q
        self._keep_if_better()

    def advance(self, tol: float) -> None:
        """Make a step, and update the best model and bound."""
        before = self.mean - self.mean_lower
        self.solver.epoch(self.problem, self.state)
        self.state.epoch += 1
        self._keep_if_better()
        if self.state.promised <= _NEARLY * tol * abs(self.mean):
            self.bound()
        fell = not before < np.inf or self.mean - self.mean_lower < _LEAST_FALL * before
        self.idle = 0 if fell else self.idle + 1

    def is_done(self, tol: float) -> bool:
        """Return whether the interval is narrow enough, or there is no more progress."""
        still = self.state.stalled or self.idle >= _MOST_IDLE
        # The unused slack is worth this much of the average, and so is the uncertainty of the references: no search can
        # gain them.
        kept = 2.0 * float(self.state.multipliers.sum()) * (self.level - self.solver.within.level)
        unknown = 2.0 * self.state.scale * self.problem.baseline.width_at(self.state.evaluation.q)
        return still or self.mean - self.mean_lower <= tol * abs(self.mean) + kept + unknown

    def is_late(self, seconds: float, most: float) -> bool:
        """Return whether the time limit of any worker is reached."""
        return bool(self.problem.data.largest(np.array([float(seconds >= most)]))[0])

    def _keep_if_better(self) -> None:
        """Keep the model if it is within the level and better than the best."""
        problem, within, here = self.problem, self.solver.within, self.state.groups
        worst = float(within.excess(problem, here.w, here.group_risks).max()) + within.level
        mean = within.mean(problem, here.w, here.group_risks)
        if worst <= self.level and mean < self.mean:
            self.best, self.mean = here.w.copy(), mean

    def bound(self) -> None:
        """Compute the bound that the last multipliers prove."""
        problem, at, n = self.problem, self.state.evaluation, self.solver.within.n_bound
        cut = balance(problem, at) if problem.fit_intercept else linearise(problem, at)
        if cut is None:
            return
        # For models within the level, the penalty is at most the level minus their values.
        least = float((-problem.baseline.upper[:n]).max())
        room = penalty_room(self.level, least, float(np.abs(problem.baseline.upper).max()))
        domain = problem.output_ball if problem.unbounded else problem.domain.within(room)
        total = float(self.state.multipliers.sum())
        bound = (1.0 + total) * cut.bound(problem, domain) - total * self.level
        if bound > self.mean_lower:
            self.mean_lower, self.q = bound, at.q.copy()
