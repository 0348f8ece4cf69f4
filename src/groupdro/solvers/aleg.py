"""ALEG with measured step sizes, the default stochastic solver.

The algorithm is that of `aleg_theory`, but what the theorem derives from worst-case constants is measured here. An
epoch whose measurements violate the inequality of the proof, or whose gap grew, is rejected and repeated with smaller
steps.
"""

from dataclasses import KW_ONLY, dataclass, field

import numpy as np

from groupdro.data import BatchPlan, Draw
from groupdro.geometry import Ball, Geometry, Spectral
from groupdro.oracle import Evaluation, Oracle
from groupdro.oracle.curvature import curvature_centre, curvature_product, feature_curvature, leading_curvature
from groupdro.problem import Problem
from groupdro.run.solver import Solver, State
from groupdro.solvers.steps import BATCHES, InnerLoop, make_steps, steps_of
from groupdro.utils.arguments import check_flag, check_whole
from groupdro.utils.types import Floats

__all__ = ["ALEG", "AlegState"]


_TARGET = 4.0  # target ratio for the step sizes
_REFUSED = 15.0  # ratio at which an epoch is rejected
_RISE = 1.3  # growth of the gap at which an epoch is rejected
_GROWTH = 3.0  # largest growth of the step sizes per epoch
_CAREFUL_GROWTH = 1.5  # the same after an epoch was rejected
_PRICE = 8.0  # initial step of the logits relative to that of w in units of the curvature, times ln m
_CURVATURE_ROWS = 2000
_CURVATURE_FLOOR = 0.05  # curvature below which directions are treated alike, relative to the mean
_FLAT = 1e-200  # curvature that counts as zero
_FEWEST_STEPS = 20  # per epoch, for small data
_FEWEST_SHARED_STEPS = 100  # the same if larger batches would save messages between workers
_LEADING_DIRECTIONS = 64
_ROTATED_FEATURES = 256  # up to this many features, the metric uses the full Hessian


@dataclass
class AlegState(State):
    """State of ALEG; the evaluation is the pass at the snapshot.

    Attributes
    ----------
    w, logits : ndarray
        Mirror coordinates of the iterate.
    w_centre, logit_centre : ndarray
        Mean mirror coordinates of the epoch that led to the snapshot.
    metric : ndarray or float
        Step scale of each entry of w, in the rotated coordinates.
    rotation : ndarray of shape (n_features, n_features) or (0, 0)
        Coordinates along which the curvature was measured; empty for the original features.
    shift : ndarray of shape (n_features,) or (0,)
        Point in feature space at which the loop takes a free intercept; empty for the origin.
    spectral : Spectral or None
        The metric along a few leading directions, for many features and several outputs.
    w_step, q_step : float
        Step sizes of both players.
    target, growth : float
        Target ratio, and largest growth of the step sizes per epoch. Both are lowered when an epoch is rejected.
    rejected : int
        Number of rejected epochs.
    capped : int
        How often the largest curvature was measured.
    direction : ndarray
        Direction of largest curvature so far, the start of the next search.
    seed : int
        Seed.
    """

    w: Floats
    logits: Floats
    w_centre: Floats
    logit_centre: Floats
    metric: Floats | float
    w_step: float
    direction: Floats
    seed: int
    rotation: Floats = field(default_factory=lambda: np.empty((0, 0)))
    shift: Floats = field(default_factory=lambda: np.empty(0))
    spectral: Spectral | None = None
    q_step: float = 1.0
    target: float = _TARGET
    growth: float = _GROWTH
    rejected: int = 0
    capped: int = 0


@dataclass(frozen=True)
class ALEG(Solver):
    """Variance-reduced mirror prox with self-tuned step sizes.

    There is nothing to tune. Each epoch draws about as many rows as there are, in mini-batches with members of every
    group, and ends with a pass at the mean of its iterates. The step sizes of w and of the group weights follow the
    epoch's measurements: how much gradients differ between the half points and the snapshot, and how the gap divides
    between the players.

    Parameters
    ----------
    rows_per_step : int, optional
        Rows drawn per step. The default is the smallest batch that uses the processor well: one row per group if there
        are many groups.
    scale_columns : bool
        Whether step sizes adapt to the scale of each column. This does not change the objective.
    replacement : bool
        Whether draws are independent, as in the theory. Without replacement, each epoch visits the rows of a group in
        random order, which is faster to a rough solution and slower to an accurate one.
    """

    name = "aleg"

    _: KW_ONLY
    rows_per_step: int | None = None
    scale_columns: bool = True
    replacement: bool = True

    def __post_init__(self) -> None:
        if self.rows_per_step is not None:
            check_whole(self.rows_per_step, "rows_per_step", least=1)
        check_flag(self.scale_columns, "scale_columns")
        check_flag(self.replacement, "replacement")

    def plan(self, problem: Problem) -> BatchPlan:
        """Return how an epoch is divided into steps."""
        rows = self.rows_per_step
        if rows is None:
            d = problem.data.n_features
            rotated = self._measures(problem) and d <= _ROTATED_FEATURES
            some = int(np.clip(problem.n_rows // 2000, 16, 64))  # larger batches cost less per row, but more passes
            rows = 512 if problem.model.n_outputs > 1 else max(16, d) if rotated else some
            shared = problem.data.rows_worth_sharing(problem.model.size + problem.n_groups, problem.model.n_outputs)
            rows = max(rows, min(shared, problem.n_rows // _FEWEST_SHARED_STEPS))
            rows = min(rows, problem.n_rows // _FEWEST_STEPS)
        return BatchPlan.of(problem.data, max(1, rows))

    def warm_up(self, oracle: Oracle) -> None:
        """Compile the steps without taking any."""
        problem = oracle.problem
        geometry = problem.geometry()
        weighting = problem.weight_geometry()
        plan = self.plan(problem)
        w = problem.centre()
        q = weighting.interior(problem.central_weights())
        nothing = np.zeros((problem.data.n_rows, *problem.shape[1:])), np.zeros(problem.n_groups), np.zeros_like(w)
        at = Evaluation(w, q, *nothing, 0.0)
        mirrors = (geometry.mirror(w), weighting.mirror(q))
        steps = np.ones(problem.shape)
        loop = InnerLoop(oracle, at, geometry, steps, 1.0, 0.5, mirrors[0], mirrors[0], mirrors[1], mirrors[1])
        steps_of(loop, BATCHES).run(plan, np.empty((0, len(plan.groups)), dtype=np.int64))

    def init(self, oracle: Oracle, w: Floats, q: Floats, seed: int) -> AlegState:
        """Evaluate the start, and find step sizes by short trials from there."""
        problem = oracle.problem
        geometry = problem.geometry()
        weighting = problem.weight_geometry()
        at = oracle.evaluate(w, weighting.interior(q))
        mirror = geometry.mirror(at.w)
        logits = weighting.mirror(at.q)
        state = AlegState(
            evaluation=at,
            w=mirror,
            logits=logits,
            w_centre=mirror,
            logit_centre=logits,
            metric=self._metric(problem, geometry),
            w_step=1.0 / problem.shape[0],
            direction=np.random.default_rng([seed, 1 << 20]).standard_normal(problem.shape),
            seed=seed,
        )
        self._measure_curvature(oracle, state)
        self._find_first_steps(oracle, state)
        return state

    def _metric(self, problem: Problem, geometry: Geometry) -> Floats | float:
        """Return one over the largest curvature along each column, or one value if the columns hardly differ."""
        squares = np.append(problem.data.column_squares, np.ones(int(problem.fit_intercept)))
        mean = float(squares.mean())
        if mean == 0.0 or not geometry.diagonal:
            return 1.0
        smoothness = problem.curvature
        d = problem.data.n_features
        scale = 1.0 / (smoothness * np.maximum(squares, 1e-3 * mean))
        if not problem.data.rows.combinable:
            # Steps on sparse rows at the cost of their entries need one scale for all features.
            scale[:d] = 1.0 / (smoothness * (float(problem.data.column_squares.mean()) or 1.0))  # any value if X is 0
        elif not self.scale_columns or scale.max() <= 4.0 * scale.min():
            return 1.0 / (smoothness * mean)
        return _per_entry(problem, scale)

    def _measures(self, problem: Problem) -> bool:
        """Return whether the metric uses a sampled Hessian."""
        return self.scale_columns and problem.domain.ball is not None and problem.data.rows.combinable

    def _measure_curvature(self, oracle: Oracle, state: AlegState) -> None:
        """Set the coordinates of the loop from a sampled Hessian, for few features.

        Ball and penalty are invariant under rotations, so any rotation may be used.
        """
        problem = oracle.problem
        d = problem.data.n_features
        ball = problem.domain.ball
        if not self._measures(problem) or ball is None:
            return
        if d > _ROTATED_FEATURES:
            if problem.model.n_outputs > 1:
                self._measure_leading_curvature(oracle, state, ball)
            elif problem.fit_intercept:
                draw = self._sample(problem, state, _CURVATURE_ROWS)
                state.shift = curvature_centre(oracle, draw, state.evaluation)
            return
        draw = self._sample(problem, state, max(_CURVATURE_ROWS, 200 * d))
        hessian = feature_curvature(oracle, draw, state.evaluation)
        if not np.isfinite(hessian).all():
            return
        bent = hessian[:d, :d]
        if problem.fit_intercept and hessian[d, d] > 0:
            # Measure along the coefficients with the intercept following, which decouples the two.
            state.shift = hessian[d, :d] / hessian[d, d]
            bent = bent - np.outer(hessian[d, :d], state.shift)
        values, directions = np.linalg.eigh(bent)
        # Steps along directions with hardly any sampled curvature would be pure noise.
        floor = _CURVATURE_FLOOR * float(values.mean())
        if floor < _FLAT:
            return
        state.rotation = np.ascontiguousarray(directions)
        scale = 1.0 / (np.maximum(values, 0.0) + floor + ball.penalty)
        if problem.fit_intercept:
            scale = np.append(scale, 1.0 / (hessian[d, d] + floor))
        state.metric = _per_entry(problem, scale)

    def _measure_leading_curvature(self, oracle: Oracle, state: AlegState, ball: Ball) -> None:
        """Set the metric along the leading directions of a sample, for many features."""
        problem = oracle.problem
        draw = self._sample(problem, state, _CURVATURE_ROWS)
        values, directions, left, shift = leading_curvature(oracle, draw, state.evaluation, _LEADING_DIRECTIONS)
        floor = max(float(values[-1]), left)
        if not floor >= _FLAT:
            return
        state.shift = shift
        state.spectral = Spectral(
            radius=ball.radius,
            penalty=ball.penalty,
            n_bound=problem.data.n_features,
            directions=directions,
            scales=1.0 / (values + floor + ball.penalty),
            rest=1.0 / (floor + ball.penalty),
            free_scale=1.0 / max(float(values[0]), floor),
        )

    def _sample(self, problem: Problem, state: AlegState, n_rows: int) -> Draw:
        """Draw members of every group, about `n_rows` in total."""
        plan = self.plan(problem)
        times = max(1, min(n_rows // len(plan.groups), plan.steps))
        rng = np.random.default_rng([state.seed, (1 << 22) + state.epoch])
        members = plan.draw(problem.data, times, rng)
        return Draw(members.ravel(), np.tile(plan.groups, times), np.tile(plan.weights, times) / times)

    def _find_first_steps(self, oracle: Oracle, state: AlegState) -> None:
        """Increase the step sizes in short trials until the ratio is near the target."""
        problem = oracle.problem
        plan = self.plan(problem)
        log_m = float(np.log(problem.n_groups))
        length = max(4, plan.steps // 25)
        for trial in range(4):
            state.q_step = _PRICE * log_m * state.w_step if log_m > 0 else 1.0
            loop = self.inner_loop(oracle, state, plan)
            make_steps(loop, plan, length, np.random.default_rng([state.seed, (1 << 21) + trial]))
            ratio = loop.ratio
            if not np.isfinite(ratio):
                state.w_step *= 1e-2
                continue
            factor = np.sqrt(0.25 * state.target / max(ratio, 1e-12))
            state.w_step *= float(np.clip(factor, 1e-2, 1e2))
            if 0.5 < factor < 2.0:
                break
        state.q_step = _PRICE * log_m * state.w_step if log_m > 0 else 1.0

    def inner_loop(self, oracle: Oracle, state: AlegState, plan: BatchPlan) -> InnerLoop:
        """Return the inner loop of an epoch from the current state."""
        problem = oracle.problem
        return InnerLoop(
            oracle=oracle,
            at=state.evaluation,
            geometry=state.spectral if state.spectral is not None else problem.geometry(),
            w_steps=state.w_step if state.spectral is not None else state.w_step * state.metric,
            rotation=state.rotation,
            shift=state.shift,
            q_step=state.q_step,
            alpha=1.0 / plan.steps,
            w=state.w,
            w_centre=state.w_centre,
            logits=state.logits,
            logit_centre=state.logit_centre,
        )

    def epoch(self, oracle: Oracle, state: AlegState) -> None:
        """Make an epoch's steps, make a pass at their mean, and choose the next step sizes."""
        problem = oracle.problem
        plan = self.plan(problem)
        at = state.evaluation
        loop = self.inner_loop(oracle, state, plan)
        rng = np.random.default_rng([state.seed, state.epoch])
        make_steps(loop, plan, plan.steps, rng, replacement=self.replacement)
        ratio = loop.ratio
        fresh = None
        if np.isfinite(ratio) and ratio <= _REFUSED:
            fresh = oracle.evaluate(loop.mean_point(), loop.mean_weights())
        before = self.halves(problem, at, shift=state.shift)
        with np.errstate(over="ignore", invalid="ignore"):  # squares of a huge gradient: such an epoch is rejected
            after = self.halves(problem, fresh, shift=state.shift) if fresh is not None else (np.inf, np.inf)
        if fresh is None or not np.isfinite(sum(after)) or sum(after) > _RISE * sum(before):
            self._reject_epoch(problem, state, ratio)
            return
        self._set_steps(problem, state, fresh, ratio, fell=sum(after) < sum(before))
        state.w = loop.iterate()
        state.logits = loop.logits
        state.w_centre = loop.mean_mirror()
        state.logit_centre = loop.logit_total / loop.n_steps
        state.evaluation = fresh
        if (state.epoch + 2) & (state.epoch + 1) == 0:  # after epochs 1, 3, 7, 15, ..., less and less often
            self._measure_curvature(oracle, state)
        if state.rejected:
            self._cap(oracle, state)

    def _reject_epoch(self, problem: Problem, state: AlegState, ratio: float) -> None:
        """Reset iterate and centre to the snapshot, with smaller step sizes."""
        at = state.evaluation
        # The last iterate is worse than the snapshot: continuing from it would make every repetition fail too.
        state.w = state.w_centre = problem.geometry().mirror(at.w)
        state.logits = state.logit_centre = problem.weight_geometry().mirror(at.q)
        shorter = float(np.clip(np.sqrt(state.target / max(ratio, 1e-300)), 0.1, 0.5)) if np.isfinite(ratio) else 1e-2
        state.w_step = state.w_step * shorter
        state.q_step = state.q_step * shorter
        state.growth = min(state.growth, _CAREFUL_GROWTH)
        if ratio <= _REFUSED:  # the ratio did not detect it: trust it less
            state.target = max(0.3, 0.7 * state.target)
        state.rejected += 1

    def _set_steps(self, problem: Problem, state: AlegState, fresh: Evaluation, ratio: float, *, fell: bool) -> None:
        """Choose the next step sizes: their size by the ratio, their balance by the players' halves of the gap."""
        factor = float(np.clip(np.sqrt(state.target / max(ratio, 1e-300)), 0.5, state.growth))
        balance = 1.0
        # A large half of w after too long a step must shorten the step, so balancing waits until the gap falls. The
        # radius is that of the current w, because a ball that does not bind must not matter.
        if fell:
            reach = float(np.linalg.norm(problem.coef(fresh.w)))
            q_half, w_half = self.halves(problem, state.evaluation, reach, state.shift)
            balance = float(np.clip((max(q_half, 1e-14) / max(w_half, 1e-14)) ** 0.2, 0.5, 2.0))
        state.w_step *= min(factor / balance, state.growth)
        state.q_step *= min(factor * balance, state.growth)
        # Weights with tiny steps could not follow once w has converged.
        state.q_step = max(state.q_step, 0.25 * _PRICE * float(np.log(problem.n_groups)) * state.w_step)

    def _cap(self, oracle: Oracle, state: AlegState) -> None:
        """Keep the step size of w below one over the largest curvature.

        An inner step multiplies errors by about 1 - alpha - step * curvature. If step * curvature exceeds 2 they
        explode within an epoch. The ratio cannot detect this in time, because it is measured along the path, which has
        no component left in that direction.
        """
        problem = oracle.problem
        if state.rotation.size or state.spectral is not None:
            state.w_step = min(state.w_step, 1.0)  # the metric is the inverse curvature
            return
        draw = self._sample(problem, state, _CURVATURE_ROWS)
        v = state.direction
        for _ in range(10 if state.capped == 0 else 3):
            size = float((v * v / state.metric).sum())
            if not (np.isfinite(size) and size > 0):
                return
            v = v / np.sqrt(size)
            bent = curvature_product(oracle, draw, state.evaluation, v)
            largest = float((v * bent).sum())
            v = state.metric * bent
            if not np.isfinite(largest) or largest <= 0:
                return
        state.direction = v
        state.capped = state.capped + 1
        state.w_step = min(state.w_step, 1.0 / largest)

    def halves(
        self, problem: Problem, at: Evaluation, reach: float = np.inf, shift: Floats | None = None
    ) -> tuple[float, float]:
        """Return both players' shares of the gap at an evaluation, for w within `reach`.

        A free intercept will be set to its optimum; `shift` gives the resulting change of the coefficients' slope.
        """
        values = problem.group_values(at.group_risks)
        q_half = problem.weight_set.support(values) - float(at.q @ values)
        domain = problem.domain.no_further_than(reach)
        coef = problem.coef(at.w)
        slope = problem.coef(at.gradient)
        if domain.ball is None:  # it bounds w by itself; a penalty alone may not bound the gain along a slope
            domain = domain.within(problem.objective(at.w, at.group_risks) - problem.least_value)
        if shift is not None and shift.size:
            slope = slope - np.multiply.outer(shift, at.gradient[-1])
        w_half = domain.penalty_at(coef) + float(np.vdot(slope, coef)) - domain.support(slope)
        # A free intercept is unbounded: use the gain of a step of about one over its curvature.
        w_half += float((problem.intercept(at.gradient) ** 2).sum())
        return q_half, w_half


def _per_entry(problem: Problem, scale: Floats) -> Floats:
    """Expand a scale per feature, and one for the intercept, to every entry of w."""
    full = scale if problem.model.n_outputs == 1 else scale[:, None]
    return np.ascontiguousarray(np.broadcast_to(full, problem.shape))
