"""The slack of the tolerance: among the models that meet it on the worst group, the one with the smallest average.

At a given tolerance, many models are as good as the best on the worst group, and nothing constrains the groups that do
not bind. Among all models with a worst value of at most a level, this stage looks for the one with the smallest average
A, by SQP on

    minimise A(w)   subject to   V_i(w) + penalty(w) <= level  for every group i.

With multipliers lam_i >= 0 whose sum is Lam, the weights q = (base + lam) / (1 + Lam) are a distribution, and every
lower bound L on min_w F(w, q) proves

    A(w)  >=  (1 + Lam) L - Lam level    for every model within the level.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import NamedTuple

import numpy as np

from groupdro.certificate import balance, linearise
from groupdro.losses import Quantile
from groupdro.oracle import Oracle
from groupdro.oracle.groups import GroupEvaluation, evaluate_groups
from groupdro.problem import Problem
from groupdro.problem.domains import penalty_room
from groupdro.run.solver import Answer, Solver, State
from groupdro.run.stages import Preparation, Stage
from groupdro.solvers.auto import MOST_GRADIENT_VALUES, weights_are_costly
from groupdro.solvers.simplex_qp import solve_simplex_qp
from groupdro.solvers.sqp import GroupSQP, Point, SqpState, ball_of, between
from groupdro.solvers.step_models import StepModel
from groupdro.solvers.weight_program import WORKING_SET, Program
from groupdro.utils.types import Floats

__all__ = ["LeastAverage", "SlackStage"]

_ALL_ROWS = "(all rows)"


class Settings(NamedTuple):
    """Numbers of the stage. ``python -m benchmarks.default_fit slack`` measures what they cost and gain together."""

    least_slack: float = 1e-9  # relative tolerance below which the slack is mere rounding
    gap_share: float = 0.15  # of the slack: a larger gap is made smaller first, because the level depends on its bound
    most_sharpening: int = 8  # epochs for that; L-BFGS takes about four per digit
    falling: float = 0.9  # largest ratio of successive gaps for which another one is worth its pass
    unused: float = 1e-3  # share of the slack that is left, so that rounding does not lead beyond the level
    worthwhile: float = 0.05  # promised decrease of the average, relative to that so far, below which the stage ends
    negligible: float = 0.01  # the same relative to the tolerance times the average, before there is any decrease
    most_steps: int = 12
    segment_tries: int = 4  # evaluations of losses on a segment, which take no pass
    most_damping: float = 1e4  # relative to each parameter's largest curvature
    most_entries: int = 20  # rounds in which groups enter the program of a step
    most_programs: int = 8  # for one step, until multipliers and curvature agree
    same_scale: float = 0.2  # relative change of the curvature's scale that needs no further program
    sufficient: float = 1e-4  # share of the promised decrease that a step must keep
    halvings: int = 12  # of a step


SETTINGS = Settings()


@dataclass(frozen=True, eq=False)
class LeastAverage(Solver):
    """A solver for the worst group, followed by a stage that spends the slack of the tolerance on the average.

    Parameters
    ----------
    solver : Solver
        The solver of the problem, whose weight set is the whole simplex.
    base : ndarray of shape (n_groups,) or None
        Weights of the groups in the average; None for the average over rows of overlapping groups.
    row_weights : ndarray of shape (n_rows,), optional
        Weights of the stored rows in the average over rows.
    """

    solver: Solver
    base: Floats | None = None
    _: KW_ONLY
    row_weights: Floats | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "finds_minima", self.solver.finds_minima)

    def check(self, problem: Problem) -> None:
        """Raise if a problem lacks something that the solver requires."""
        self.solver.check(problem)

    def stages(self, problem: Problem, tol: float) -> Sequence[Preparation | Stage | Solver]:
        """Return the stages of the solver, and the one that uses the slack if there is any."""
        stages = self.solver.stages(problem, tol)
        excess = problem.group_minima is not None or self.solver.finds_minima
        if not _has_slack(problem, tol) or (self.base is None and excess):
            return stages
        slack = SlackStage(tol=tol, base=self.base, row_weights=self.row_weights)
        return [*stages, Stage(slack, begin=slack.begin, within_tolerance=True)]

    def describe(self, problem: Problem, tol: float) -> str:
        """Describe the solver."""
        return self.solver.describe(problem, tol)


def _has_slack(problem: Problem, tol: float) -> bool:
    """Return whether a tolerance leaves slack, and whether the stage supports the problem and is worth its time."""
    if problem.n_groups == 1 or not problem.weight_set.is_simplex or tol < SETTINGS.least_slack:
        return False
    if isinstance(problem.loss, Quantile):
        return False  # the tolerance of a smoothed problem is not that of the true one
    # If nothing bounds the coefficients, the average may have no minimiser, and bounds hold for only some models.
    known = problem.domain.ball is not None and GroupSQP().fits(problem) and not problem.unbounded
    if not known or problem.n_groups * problem.model.size > MOST_GRADIENT_VALUES:
        return False
    # The stage solves programs like those of SQP, in whose time dual ascent does everything else.
    return not weights_are_costly(problem, tol)


@dataclass
class SlackState(SqpState):
    """State of SQP for the average under a level.

    Attributes
    ----------
    whole : Oracle
        The oracle of the problem, with a group of all rows if that represents the average.
    sharpened : int
        Epochs of ordinary SQP that raised the lower bound further.
    last_gap : float
        The gap before the last of them.
    level : float
        Largest worst value, with the penalty, that the stage aims at; infinite before it spends the slack.
    first, best : tuple of ndarray
        The model at which the stage began, and the feasible one with the smallest average: parameters, outputs and
        group risks.
    first_mean, best_mean : float
        Average of the first and of the best model.
    multipliers : ndarray of shape (n_groups,)
        Of the groups' constraints, in the last program.
    scale : float
        One plus the sum of the multipliers, the factor by which the Lagrangian's curvature exceeds that of its mixture.
    price : float
        Penalty of the merit function for exceeding the level.
    steps_taken : int
        Steps of the stage.
    finished : bool
        Whether another step would not be worth its pass.
    """

    whole: Oracle = field(kw_only=True)
    sharpened: int = field(default=0, kw_only=True)
    last_gap: float = field(default=np.inf, kw_only=True)
    level: float = field(default=np.inf, kw_only=True)
    first: Point = field(kw_only=True)
    best: Point = field(kw_only=True)
    first_mean: float = field(default=np.inf, kw_only=True)
    best_mean: float = field(default=np.inf, kw_only=True)
    multipliers: Floats = field(kw_only=True)
    scale: float = field(default=1.0, kw_only=True)
    price: float = field(default=1.0, kw_only=True)
    steps_taken: int = field(default=0, kw_only=True)
    finished: bool = field(default=False, kw_only=True)


class _LevelProgram(Program):
    """The dual of the quadratic model: weight one for the average, and a multiplier for every working group."""

    def solve(self, M: Floats, values: Floats) -> Floats:
        return solve_simplex_qp(M, values, 1)


class _Continued(GroupSQP):
    """SQP that keeps the curvature which the solver before has learned."""

    @staticmethod
    def _sample_curvature(oracle: Oracle, state: SqpState) -> None:
        """Sample nothing."""


@dataclass(frozen=True, eq=False)
class SlackStage(_Continued):
    """Decreases the average within the tolerance, from where another solver has met it.

    After every step, the answer of the state is the feasible model with the smallest average so far.

    Parameters
    ----------
    tol : float
        Relative tolerance of the run.
    base, row_weights : ndarray or None
        As in `LeastAverage`.
    """

    _: KW_ONLY
    tol: float = 1e-4
    base: Floats | None = None
    row_weights: Floats | None = None

    def init(self, oracle: Oracle, w: Floats, q: Floats, seed: int) -> SlackState:
        """Evaluate a model that meets the tolerance."""
        return self._continued(oracle, super().init(oracle, w, q, seed))

    def begin(self, oracle: Oracle, state: State, w: Floats, q: Floats, seed: int) -> SlackState:
        """Continue from the last pass of SQP, with the curvature that it has learned, if that pass was at w."""
        if isinstance(state, SqpState) and np.array_equal(state.groups.w, w) and state.groups.single is None:
            return self._continued(oracle, state)
        return self.init(oracle, w, q, seed)

    def _continued(self, oracle: Oracle, state: SqpState) -> SlackState:
        """Return the first state of this stage, from one of SQP."""
        groups = state.groups
        known = {name: value for name, value in vars(state).items() if name in SqpState.__dataclass_fields__}
        known["stalled"] = False
        best = groups.w, groups.margins, groups.group_risks
        return SlackState(
            **known,
            whole=self._with_average(oracle),
            first=best,
            best=best,
            multipliers=np.zeros(oracle.problem.n_groups),
        )

    def epoch(self, oracle: Oracle, state: SqpState) -> None:
        """Raise the lower bound if it takes much of the slack; otherwise make a step towards a smaller average."""
        problem = oracle.problem
        assert isinstance(state, SlackState)
        if state.level == np.inf:
            gap = state.bounds[1] - state.bounds[0]
            slack = state.allowed - state.bounds[0]
            unknown = 2.0 * problem.baseline.width_at(state.evaluation.q)  # no gap of excess risks can be smaller
            falls = gap <= SETTINGS.falling * state.last_gap
            if gap > max(SETTINGS.gap_share * slack, unknown) and falls and state.sharpened < SETTINGS.most_sharpening:
                state.last_gap = gap
                _Continued(memory=self.memory).epoch(oracle, state)
                state.sharpened = SETTINGS.most_sharpening if state.stalled else state.sharpened + 1
                state.stalled = False
                return
            self._begin(state)
            if state.stalled:
                return
        observed = state.evaluation
        super().epoch(state.whole, state)
        state.evaluation = observed  # the mixture of the average and the worst says little about the worst alone
        state.steps_taken += 1
        state.stalled |= state.finished or state.steps_taken >= SETTINGS.most_steps
        if state.stalled:
            # The first model is farthest below the level: little of it makes the last one feasible.
            here = state.groups
            self._keep_feasible(state.whole.problem, state, state.first, (here.w, here.margins, here.group_risks))
        state.answer = Answer(state.best[0], self._mean_lower(state) if state.stalled else -np.inf)

    def _begin(self, state: SlackState) -> None:
        """Set the level, and start from the current model."""
        lower = state.bounds[0]
        whole = state.whole.problem
        state.level = lower + (1.0 - SETTINGS.unused) * (state.allowed - lower)
        if self.base is None:
            self._see_average(state)
        here = state.groups
        if self._excess(whole, state, here.w, here.group_risks).max() > 0.0:  # by rounding
            state.stalled = True
            state.level = np.inf
            return
        state.first = state.best = here.w, here.margins, here.group_risks
        state.first_mean = state.best_mean = self._mean(whole, here.w, here.group_risks)

    def _see_average(self, state: SlackState) -> None:
        """Repeat the pass, with the curvature of the average too; that of the worst groups says little about others."""
        average = self._weights(state.whole.problem)
        worst = np.zeros(len(average))
        worst[: len(state.evaluation.q)] = state.evaluation.q
        state.groups = self._evaluate_apart(state.whole, state, state.groups.w, 0.5 * (average + worst))

    def _with_average(self, oracle: Oracle) -> Oracle:
        """Return the oracle of the problem with a group of all rows, if that represents the average."""
        if self.base is not None:
            return oracle
        return oracle.on(oracle.problem.with_group_of_all(_ALL_ROWS, self.row_weights))

    def _weights(self, problem: Problem) -> Floats:
        """Return the weights of the average."""
        return np.eye(problem.n_groups)[-1] if self.base is None else self.base

    def _mean(self, problem: Problem, w: Floats, group_risks: Floats) -> float:
        """Return the average of the values, with the penalty."""
        values = group_risks - problem.baseline.lower
        return float(self._weights(problem) @ values) + problem.domain.penalty_at(problem.coef(w))

    def _excess(self, problem: Problem, state: SlackState, w: Floats, group_risks: Floats) -> Floats:
        """Return by how much each group's value, with the penalty, exceeds the level."""
        values = (group_risks - problem.baseline.lower)[: len(state.multipliers)]
        return np.asarray(values + problem.domain.penalty_at(problem.coef(w)) - state.level)

    # ------------------------------------------------------------------ a step

    def _evaluate_apart(self, oracle: Oracle, state: SqpState, w: Floats, q: Floats) -> GroupEvaluation:
        """Make a pass, with the Hessian of the average apart from that of the other weights."""
        problem = oracle.problem
        if state.groups.hessian is None:
            return self._evaluate(oracle, state, w, q)
        base = self._weights(problem)
        share = _share_of(base, q)
        found = evaluate_groups(oracle, w, np.maximum(q - share * base, 0.0), apart_q=base)
        assert found.hessian is not None
        assert found.apart is not None
        hessian = found.hessian + share * found.apart
        bend = hessian[:, -problem.model.n_outputs :] if problem.fit_intercept else None
        return replace(found, hessian=hessian, bend=bend, hessian_q=q)

    def _step_model(self, problem: Problem, state: SqpState, program: Program, pull: Floats) -> StepModel:
        """Return the model of a step, with the Hessian of the Lagrangian at the present scale, divided by it."""
        assert isinstance(state, SlackState)
        hessian = self._hessian_at(problem, state.groups, state.scale)
        if hessian is not None:
            state = replace(state, groups=replace(state.groups, hessian=hessian))
        return super()._step_model(problem, state, program, pull)

    def _hessian_at(self, problem: Problem, here: GroupEvaluation, scale: float) -> Floats | None:
        """Return the Hessian of the average plus that of the constraints, divided by the scale; None if unknown."""
        if here.hessian is None or here.apart is None or here.hessian_q is None:
            return None
        share = _share_of(self._weights(problem), here.hessian_q)
        if share == 1.0:
            return here.hessian
        constraints = (here.hessian - share * here.apart) / (1.0 - share)
        return np.asarray((here.apart + (scale - 1.0) * constraints) / scale)

    def _solve_model(self, oracle: Oracle, state: SqpState, values: Floats) -> tuple[Floats, Floats, float]:
        """Return the step of the level's program, its group weights, and the decrease of the merit function.

        The curvature of the Lagrangian grows with the multipliers, which the program determines: it is solved until
        both agree, which takes no pass.
        """
        assert isinstance(state, SlackState)
        problem = oracle.problem
        here = state.groups
        base = self._weights(problem)
        n = len(state.multipliers)
        excess = self._excess(problem, state, here.w, here.group_risks)
        slack = -float(excess.max())
        most = self._mean(problem, here.w, here.group_risks) + float(base @ problem.baseline.upper)
        estimated = False
        for _ in range(SETTINGS.most_programs):
            step, multipliers, fall, expected = self._solve_program(problem, state, excess)
            first = 1.0 + float(np.sqrt(max(fall, 0.0) / (2.0 * slack))) if slack > 0.0 else 1.0
            scale = 1.0 + float(multipliers.sum())
            if fall > most and here.hessian is not None and here.apart is None:
                self._see_average(state)
                here = state.groups
            elif fall > most and here.hessian is not None and state.damping < SETTINGS.most_damping:
                # The model promises more than the average can fall, as for piecewise linear losses: trust it less.
                state.damping = max(100.0 * state.damping, 1e-8)
            elif state.scale == 1.0 < first:
                # Estimate the size of the multipliers: along the best step of length s the average falls by s * fall,
                # and the worst value rises by s^2 * fall / 2, which the slack allows up to s = sqrt(2 * slack / fall).
                state.scale = first
                estimated = True
            elif estimated or abs(scale - state.scale) <= SETTINGS.same_scale * state.scale:
                break
            else:
                state.scale = scale
        if estimated:  # the constraints are not active yet: expect those of the groups that bind
            worst = np.zeros(n)
            worst[: len(state.evaluation.q)] = state.evaluation.q
            multipliers += max(state.scale - scale, 0.0) * worst
        state.multipliers = multipliers
        state.price = 1.0 + 2.0 * float(multipliers.sum())
        q = base.copy()
        q[:n] += multipliers
        fall += state.price * (max(-slack, 0.0) - max(float(expected.max()), 0.0))
        return step, q / q.sum(), fall

    def _solve_program(
        self, problem: Problem, state: SlackState, excess: Floats
    ) -> tuple[Floats, Floats, float, Floats]:
        """Return the step for the state's scale, the multipliers, and how average and excess change along it.

        Rows and values are divided by the scale instead of multiplying the curvature.
        """
        here = state.groups
        penalty = ball_of(problem).penalty
        n = len(state.multipliers)
        gradients = here.gradients.reshape(problem.n_groups, here.w.size)
        average = self._weights(problem) @ gradients
        pull = np.zeros_like(here.w)
        problem.coef(pull)[...] = problem.coef(here.w)
        share = 1.0 / state.scale
        inside = state.multipliers > 0
        inside[np.argsort(-excess)[:WORKING_SET]] = True  # of groups that tie, some
        for _ in range(SETTINGS.most_entries):
            working = np.flatnonzero(inside)
            rows = np.vstack([average, gradients[working]]) + penalty * pull.ravel()
            program = _LevelProgram(rows=share * rows, values=share * np.append(0.0, excess[working]), share=share)
            step, x = self._step_in_ball(problem, state, program, pull)
            along = penalty * float(pull.ravel() @ step.ravel())
            expected = excess + gradients[:n] @ step.ravel() + along
            late = np.flatnonzero(~inside & (expected > max(float(expected[working].max()), 0.0)))
            if not late.size:
                break
            if len(working) > 2 * WORKING_SET:
                inside[working[x[1:] == 0.0]] = False  # the program stays small
            inside[late[np.argsort(-expected[late])[:WORKING_SET]]] = True
        multipliers = np.zeros(n)
        multipliers[working] = x[1:]
        return step, multipliers, -float(average @ step.ravel()) - along, expected

    def _merit(self, problem: Problem, state: SqpState, w: Floats, group_risks: Floats) -> float:
        """Return the average plus a price for exceeding the level."""
        assert isinstance(state, SlackState)
        over = max(float(self._excess(problem, state, w, group_risks).max()), 0.0)
        return self._mean(problem, w, group_risks) + state.price * over

    def _search(
        self, oracle: Oracle, state: SqpState, step: Floats, q: Floats, promised: float
    ) -> GroupEvaluation | None:
        """Make the full step by one pass, or a shorter one by another pass if that does not decrease the merit.

        The stage ends without a pass if the step promises little. Wherever it leads, the losses on the segment from the
        best feasible model follow from the outputs at both ends.
        """
        problem = oracle.problem
        assert isinstance(state, SlackState)
        here = state.groups
        before = self._merit(problem, state, here.w, here.group_risks)
        left = state.best_mean - (before - promised)
        gained = state.first_mean - state.best_mean
        if left <= max(SETTINGS.worthwhile * gained, SETTINGS.negligible * self.tol * state.best_mean):
            state.finished = True
            return None
        evaluate = self._evaluate if here.apart is None else self._evaluate_apart
        there = evaluate(oracle, state, problem.within_domain(here.w + step), q)
        full: Point = (there.w, there.margins, there.group_risks)
        self._keep_feasible(problem, state, state.best, full)
        # Curvature is learned at the end of a step even if it misses the level: the best feasible model is kept anyway.
        if self._merit(problem, state, there.w, there.group_risks) <= before + promised:  # false for NaN
            return there
        first: Point = (here.w, here.margins, here.group_risks)
        t = 1.0
        for _ in range(SETTINGS.halvings):
            t *= 0.5
            w, _, risks = between(problem, first, full, t)
            if self._merit(problem, state, w, risks) <= before - SETTINGS.sufficient * t * promised:
                shorter = evaluate(oracle, state, w, q)
                self._keep_feasible(problem, state, state.best, (w, shorter.margins, shorter.group_risks))
                return shorter
        return None

    def _keep_feasible(self, problem: Problem, state: SlackState, start: Point, there: Point) -> None:
        """Keep the best feasible model on the segment from a feasible one to another one.

        The excess over the level is convex along the segment, so a secant from a feasible point to an infeasible one
        crosses zero at a feasible point. It may do so near its start, where halves make faster progress.
        """
        low, high = 0.0, 1.0
        below, above = (float(self._excess(problem, state, w, risks).max()) for w, _, risks in (start, there))
        found = [there] if above <= 0.0 else []
        halve = False
        for _ in range(0 if found or below > 0.0 or not np.isfinite(above) else SETTINGS.segment_tries):
            t = low + (high - low) * (0.5 if halve else below / (below - above))
            point = between(problem, start, there, t)
            excess = float(self._excess(problem, state, point[0], point[2]).max())
            halve = not halve and 2.0 * t < low + high
            if excess <= 0.0:
                found.append(point)
                low, below = t, excess
            else:
                high, above = t, excess
        for point in found:
            mean = self._mean(problem, point[0], point[2])
            if mean < state.best_mean:
                state.best = point
                state.best_mean = mean

    # ------------------------------------------------------------------ bound

    def _mean_lower(self, state: SlackState) -> float:
        """Return the bound on the average that the multipliers of the last program prove."""
        problem = state.whole.problem
        here = state.groups
        q = self._weights(problem).copy()
        q[: len(state.multipliers)] += state.multipliers
        scale = float(q.sum())
        at = here.at(q / scale)
        hessian = self._hessian_at(problem, here, scale)
        if hessian is not None and problem.fit_intercept:
            at = replace(at, bend=hessian[:, -problem.model.n_outputs :])
        cut = balance(state.whole, at) if problem.fit_intercept else linearise(state.whole, at)
        if cut is None:
            return -np.inf
        # For models within the tolerance, the penalty is at most what is allowed minus their values.
        least = float((-problem.baseline.upper[: len(state.multipliers)]).max())
        room = penalty_room(state.allowed, least, float(np.abs(problem.baseline.upper).max()))
        return scale * cut.bound(problem, problem.domain.within(room)) - (scale - 1.0) * state.allowed


def _share_of(base: Floats, q: Floats) -> float:
    """Return the largest share that one distribution can have in another."""
    return float(np.min(q[base > 0.0] / base[base > 0.0]))
