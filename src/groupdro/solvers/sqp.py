"""Sequential quadratic programming on all groups at once, for high accuracy if passes are cheap."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from groupdro.data import Draw
from groupdro.geometry import Ball
from groupdro.oracle import Oracle
from groupdro.oracle.first_curvature import FirstCurvature, column_curvature, outstanding_directions
from groupdro.oracle.groups import GroupEvaluation, evaluate_groups
from groupdro.problem import Problem
from groupdro.run.solver import BALL_OR_SEPARABLE, KNOWN_WEIGHTS, Requirement, Solver, State
from groupdro.solvers.active_set import ActiveSetModel, separable_of
from groupdro.solvers.resting_weights import weights_at_rest
from groupdro.solvers.step_models import LEAST_RIDGE, ExactModel, LearnedModel, StepModel
from groupdro.solvers.weight_program import Program, WeightProgram, solve_for_groups
from groupdro.utils.arguments import check_choice, check_whole
from groupdro.utils.types import Array, Floats

__all__ = ["GroupSQP", "Point", "SqpState", "ball_of", "between"]


class Settings(NamedTuple):
    """Numbers of the solver. ``tests/house/passes.py`` counts the passes that they lead to on small problems."""

    newton_size: int = 600  # parameters up to which the Hessian is formed and factored
    sufficient: float = 1e-4  # share of the promised decrease that a step must keep
    near: float = 0.01  # promised decrease, relative to the objective, from which a failed step is worth a correction
    halvings: int = 12  # of a step
    shortest: float = 1e-12  # share of a step after which overflows are no longer its fault
    least_damping: float = 1e-28  # relative to each parameter's largest curvature
    largest_damping: float = 1e50  # makes steps of next to nothing, and leaves room for products
    most_multipliers: int = 30  # of the ball to try
    edge: float = 1e-3  # distance from the ball's edge, relative to the step, at which a multiplier is good enough
    most_failures: int = 8  # consecutive line searches after which rounding must be the cause
    rounding: float = 1e-15  # relative to the objective
    noise: float = 1e-13  # the same if outputs cancel: a step that promises nothing may still level the gradient
    sampled_epochs: tuple[int, ...] = (0, 2, 5, 10, 20, 40)  # at which the curvature is sampled
    sampled_rows: int = 2000


SETTINGS = Settings()


Point = tuple[Floats, Array, Floats]  # parameters, outputs of the rows, group risks


@dataclass
class SqpState(State):
    """State of GroupSQP; the evaluation is at the iterate and the latest group weights.

    Attributes
    ----------
    groups : GroupEvaluation
        The pass at the iterate.
    diagonal, directions : ndarray of shape (n_features,), (n_features, r)
        Initial L-BFGS matrix, as in `FirstCurvature`; empty with the exact Hessian.
    steps, changes : list of ndarray
        L-BFGS pairs: changes of w, and of the weighted gradient without the penalty, flattened.
    multiplier : float
        The ball's multiplier in the last quadratic program, which adds curvature to the Lagrangian.
    failures : int
        Consecutive line searches without descent.
    damping : float
        Damping added to the exact Hessian, relative to each parameter's largest curvature. A failed search raises it,
        which turns and shortens the step; full steps lower it again.
    """

    groups: GroupEvaluation
    diagonal: Floats = field(default_factory=lambda: np.empty(0))
    directions: Floats = field(default_factory=lambda: np.empty((0, 0)))
    steps: list[Floats] = field(default_factory=list)
    changes: list[Floats] = field(default_factory=list)
    multiplier: float = 0.0
    failures: int = 0
    damping: float = SETTINGS.least_damping


@dataclass(frozen=True)
class GroupSQP(Solver):
    """Newton-like steps for the worst group.

    A pass gives every group's value and gradient. The step minimises the worst of the groups' linear models plus a
    common quadratic, the Hessian of the Lagrangian. Its dual is a quadratic program with one variable per group, whose
    solution is the next q and gives a certificate. With one group this is Newton's method or L-BFGS on the ball, used
    as the oracle for a group's own minimum.

    Parameters
    ----------
    hessian : {"auto", "newton", "lbfgs"}
        Exact Hessian ("newton"), or an approximation from past gradients ("lbfgs"). "auto" is exact up to 600
        parameters.
    memory : int
        Number of L-BFGS pairs to keep. More pairs give better steps but use more memory.
    """

    name = "sqp"
    has_short_epochs = True

    hessian: Literal["auto", "newton", "lbfgs"] = "auto"
    _: KW_ONLY
    memory: int = 20

    def __post_init__(self) -> None:
        check_choice(self.hessian, "hessian", ("auto", "newton", "lbfgs"))
        check_whole(self.memory, "memory", least=1)

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """A domain and bounds of group weights that the quadratic program supports."""
        return (BALL_OR_SEPARABLE, KNOWN_WEIGHTS)

    @staticmethod
    def _may_learn_curvature(problem: Problem) -> bool:
        """Return whether the curvature may be learned; active-set steps form it along the parameters that move."""
        return problem.domain.ball is not None

    def _forms_hessian(self, problem: Problem) -> bool:
        if not self._may_learn_curvature(problem):
            return problem.model.size <= SETTINGS.newton_size
        return self.hessian == "newton" or (self.hessian == "auto" and problem.model.size <= SETTINGS.newton_size)

    def init(self, oracle: Oracle, w: Floats, q: Floats, seed: int) -> SqpState:
        """Evaluate the start."""
        groups = evaluate_groups(oracle, w, q, hessian=self._forms_hessian(oracle.problem))
        state = SqpState(groups.at(q), groups)
        self._reset_curvature(oracle.problem, state)
        return state

    @staticmethod
    def _evaluate(oracle: Oracle, state: SqpState, w: Floats, q: Floats) -> GroupEvaluation:
        """Make a pass elsewhere, with the Hessian if the state has it."""
        return evaluate_groups(oracle, w, q, hessian=state.groups.hessian is not None)

    def _learns_curvature(self, problem: Problem, state: SqpState) -> bool:
        return self._may_learn_curvature(problem) and state.groups.hessian is None

    def _reset_curvature(self, problem: Problem, state: SqpState) -> None:
        """Reset the approximation to the curvature of the columns."""
        state.steps.clear()
        state.changes.clear()
        if self._learns_curvature(problem, state):
            state.diagonal = column_curvature(problem)
            state.directions = np.empty((problem.data.n_features, 0))

    def refresh(self, oracle: Oracle, state: SqpState) -> None:
        """Repeat the pass at the iterate, with the Hessian of the same weights."""
        at = state.groups
        assert at.hessian_q is not None  # a pass of this solver has it
        state.groups = self._evaluate(oracle, state, at.w, at.hessian_q)
        state.evaluation = state.groups.at(state.evaluation.q)

    def epoch(self, oracle: Oracle, state: SqpState) -> None:
        """Solve the quadratic model, search along its step, and make a pass at the new point."""
        problem = oracle.problem
        here = state.groups
        w = here.w
        values = problem.group_values(here.group_risks)
        learns = self._learns_curvature(problem, state)
        if learns:
            self._sample_curvature(oracle, state)

        # 1. The dual of the quadratic model: group weights, and the step.
        step, q, promised = self._solve_model(oracle, state, values)

        # 2. A step that decreases the worst value by a share of what the model promises.
        there = self._search(oracle, state, step, q, promised)
        if there is None:
            # Neither the model's curvature nor rounding allows descent along this step.
            self._reset_curvature(problem, state)
            state.evaluation = here.at(self._at_rest(problem, state, q))
            state.damping = min(max(100.0 * state.damping, 1e-6), SETTINGS.largest_damping)
            self._note_failure(state)
            return
        length = float(np.linalg.norm(there.w - w)) / max(float(np.linalg.norm(step)), 1e-300)
        if length > 0.9:
            state.damping = max(0.1 * state.damping, SETTINGS.least_damping)
        elif length < 0.2:
            state.damping = min(max(10.0 * state.damping, LEAST_RIDGE), SETTINGS.largest_damping)
        # Whether this was a step, but only one within rounding.
        rests = promised <= SETTINGS.rounding * abs(problem.weight_set.support(values))

        # 3. Update of the curvature from the step.
        if learns:
            moved = (there.w - w).ravel()
            change = (np.tensordot(q, there.gradients, axes=1) - np.tensordot(q, here.gradients, axes=1)).ravel()
            if self._shows_curvature(problem, moved, change):
                state.steps.append(moved)
                state.changes.append(change)
                del state.steps[: -self.memory], state.changes[: -self.memory]
        state.groups = there
        state.evaluation = there.at(q)
        if rests:
            state.evaluation = there.at(self._at_rest(problem, state, q))
            self._note_failure(state)
        else:
            state.failures = 0

    @staticmethod
    def _at_rest(problem: Problem, state: SqpState, q: Floats) -> Floats:
        """Return the weights that prove the best bound if no step is left; an active set's differ from the model's."""
        here = state.groups
        if problem.domain.ball is not None or state.failures:
            return q
        rest = weights_at_rest(problem, here, problem.group_values(here.group_risks), problem.moving)
        return q if rest is None else rest

    @staticmethod
    def _sample_curvature(oracle: Oracle, state: SqpState) -> None:
        """Search for outstanding directions, less and less often, as long as there are any."""
        problem = oracle.problem
        age = state.epoch - state.begun
        due = age in SETTINGS.sampled_epochs and (age == 0 or state.directions.size > 0)
        if not (due and problem.data.rows.combinable and problem.data.can_draw):
            return
        # Draw groups by their weights: groups without weight add no curvature to the Lagrangian.
        q = state.evaluation.q
        n = min(SETTINGS.sampled_rows, problem.n_rows)
        groups = np.searchsorted(np.cumsum(q) / q.sum(), (np.arange(n) + 0.5) / n).clip(0, len(q) - 1)
        members = problem.data.draw_members(groups, 1, np.random.default_rng([1 << 20, age]))[0]
        draw = Draw(members, groups, 1.0 / (n * q[groups]))
        found = outstanding_directions(oracle, draw, state.evaluation)
        if found is not None:
            state.diagonal, state.directions = found

    def _solve_model(self, oracle: Oracle, state: SqpState, values: Floats) -> tuple[Floats, Floats, float]:
        """Return the step of the groups' models under the worst weights, these weights, and the decrease."""
        problem = oracle.problem
        here = state.groups
        m = problem.n_groups
        moving = problem.moving
        ball = problem.domain.ball
        gradients = here.gradients.reshape(m, here.w.size)
        pull = np.zeros_like(here.w)
        problem.coef(pull)[...] = problem.coef(here.w)
        active = self._active_set_model(oracle, state) if ball is None else None
        penalty = separable_of(problem).l2 if ball is None else ball.penalty
        known = moving.moved(state.evaluation.q) if state.epoch else np.zeros(m)  # the last solution is usually near

        def solve(program: WeightProgram) -> tuple[Floats, Floats]:
            if active is None:
                return self._step_in_ball(problem, state, program, pull)
            flat, x = active.solve(program)
            return flat.reshape(here.w.shape), program.total * x

        rounding = SETTINGS.rounding * abs(problem.weight_set.support(values))
        found = solve_for_groups(moving, values, gradients, penalty * pull.ravel(), known, rounding, solve)
        step, known, expected = found
        fall = problem.weight_set.support(values) - problem.weight_set.support(expected)
        if active is None:
            rise = penalty * float(pull.ravel() @ step.ravel())
        else:
            there = problem.domain.penalty_at(problem.coef(here.w + step))
            rise = there - problem.domain.penalty_at(problem.coef(here.w))
        return step, moving.mixed(known), fall - rise

    def _active_set_model(self, oracle: Oracle, state: SqpState) -> ActiveSetModel:
        """Return the model of a step if penalties and bounds apply to each coefficient."""
        here = state.groups
        largest = self._largest_curvature(oracle.problem)
        return ActiveSetModel(oracle, state, here.margins, here.hessian, largest, state.damping)

    def _step_in_ball(self, problem: Problem, state: SqpState, program: Program, pull: Floats) -> tuple[Floats, Floats]:
        """Minimise the model over the ball exactly, by finding the multiplier at which the step ends on the boundary.

        Each trial costs a factorisation but no pass. A tangent plane in place of the ball would let flat directions run
        far outside, and the line search would cut them short again and again.
        """
        w = state.groups.w
        radius = ball_of(problem).radius

        step_model = self._step_model(problem, state, program, pull.ravel())

        def model(multiplier: float) -> tuple[Floats, Floats, float]:
            flat, x = step_model.solve(multiplier)
            step = flat.reshape(w.shape)
            return step, program.total * x, float(np.linalg.norm(problem.coef(w + step))) / radius

        before = state.multiplier
        state.multiplier = 0.0
        step, x, reach = model(0.0)
        if reach <= 1.0:
            return step, x
        # The reach decreases as the multiplier grows. Between a multiplier that is too small and one that is large
        # enough, interpolate the logarithms. An end that stays twice has its value halved, so that both ends move
        # (Illinois rule).
        high = before or 1e-8 * float(np.abs(program.rows).max()) / radius
        low = 1e-3 * high
        outside = float(np.log(reach))
        inner = -np.inf
        found: tuple[Floats, Floats] | None = None
        trial = high
        stayed = 0
        for _ in range(SETTINGS.most_multipliers):
            step, x, reach = model(trial)
            if reach <= 1.0:
                found = (step, x)
                high = trial
                inner = float(np.log(reach))
                stayed = max(stayed, 0) + 1
                outside *= 0.5 if stayed > 1 else 1.0
                if 1.0 - reach <= SETTINGS.edge * min(1.0, float(np.linalg.norm(step)) / radius):
                    break
            else:
                low = trial
                outside = float(np.log(reach))
                stayed = min(stayed, 0) - 1
                inner *= 0.5 if stayed < -1 else 1.0
            if found is None:
                trial = 10.0 * low
            elif low >= (1.0 - 1e-14) * high:
                break
            else:
                share = np.clip(outside / (outside - inner), 0.02, 0.98)
                trial = low * (high / low) ** float(share)
        state.multiplier = high if found is not None else low
        return found if found is not None else (step, x)

    @staticmethod
    def _note_failure(state: SqpState) -> None:
        state.failures += 1
        state.stalled = state.failures > (2 if state.diagonal.size else SETTINGS.most_failures)

    def _merit(self, problem: Problem, state: SqpState, w: Floats, group_risks: Floats) -> float:
        """Return the merit function that every step must decrease: the objective."""
        return problem.weight_set.support(problem.group_values(group_risks)) + problem.domain.penalty_at(
            problem.coef(w)
        )

    def _search(
        self, oracle: Oracle, state: SqpState, step: Floats, q: Floats, promised: float
    ) -> GroupEvaluation | None:
        """Halve the step until the objective decreases; usually the full step is taken."""
        problem = oracle.problem
        here = state.groups
        first: Point = (here.w, here.margins, here.group_risks)
        longest: Point | None = None  # the first step whose outputs are finite: those of shorter ones follow from them
        old = self._merit(problem, state, here.w, here.group_risks)
        reach = t = 1.0
        rounding = SETTINGS.rounding * abs(old)
        allowed = rounding if promised > rounding else SETTINGS.noise * abs(old)
        halvings = 0

        def decreases(value: float, t: float) -> bool:
            return bool(np.isfinite(value)) and value <= old - SETTINGS.sufficient * t * promised + allowed

        while halvings < SETTINGS.halvings and t > SETTINGS.shortest:
            with np.errstate(over="ignore", invalid="ignore"):  # exponentials of outputs
                if longest is None:
                    there = self._evaluate(oracle, state, problem.within_domain(here.w + t * step), q)
                    point: Point = (there.w, there.margins, there.group_risks)
                else:
                    point = between(problem, first, longest, t / reach)
            new = self._merit(problem, state, point[0], point[2])
            if decreases(new, t):
                return there if longest is None else self._evaluate(oracle, state, point[0], q)
            if promised <= rounding:
                return None
            if t == 1.0 and np.isfinite(new) and promised <= SETTINGS.near * abs(old):
                corrected = self._evaluate(oracle, state, self._corrected(oracle, state, step, point[2]), q)
                if decreases(self._merit(problem, state, corrected.w, corrected.group_risks), 1.0):
                    return corrected
            if longest is None and np.isfinite(point[1]).all():
                longest = point
                reach = t
            halvings += int(np.isfinite(new))  # exponentials of outputs may overflow far from the iterate
            t *= 0.5
        return None

    def _corrected(self, oracle: Oracle, state: SqpState, step: Floats, risks: Floats) -> Floats:
        """Return where the step leads that accounts for how the groups' values bend along the full one.

        Near the solution the full step may raise the worst value by terms of second order, which differ between groups,
        and steps would be halved again and again.
        """
        problem = oracle.problem
        here = state.groups
        moved = here.gradients.reshape(problem.n_groups, step.size) @ step.ravel()
        corrected = self._solve_model(oracle, state, problem.group_values(risks) - moved)[0]
        return problem.within_domain(here.w + corrected)

    def _step_model(self, problem: Problem, state: SqpState, program: Program, pull: Floats) -> StepModel:
        """Return the model of a step, with the exact Hessian if there is one."""
        ball = ball_of(problem)
        hessian = state.groups.hessian
        size = problem.model.size
        if hessian is not None:
            bound = (np.arange(size) < problem.coef(state.groups.w).size).astype(np.float64)
            largest = self._largest_curvature(problem)
            return ExactModel(program, pull, hessian, ball.penalty * bound, bound, largest, state.damping)
        first = FirstCurvature(
            problem.model, state.diagonal, state.directions, problem.data.column_means, problem.curvature
        )
        steps, changes = (np.array(part).reshape(-1, size) for part in (state.steps, state.changes))
        bounded = bool(np.isfinite(ball.radius))
        return LearnedModel(program, pull, first, steps, changes, ball.penalty, bounded=bounded)

    @staticmethod
    def _largest_curvature(problem: Problem) -> Floats:
        """Bound the curvature along each parameter, flattened like w."""
        squares = np.append(problem.data.column_squares, np.ones(int(problem.fit_intercept)))
        bounds = problem.curvature * np.where(squares > 0, squares, 1.0)
        return np.repeat(bounds, problem.model.n_outputs)

    @staticmethod
    def _shows_curvature(problem: Problem, step: Floats, change: Floats) -> bool:
        """Return whether the gradient's change along a step shows enough curvature for an approximation."""
        n_bound = problem.data.n_features * problem.model.n_outputs
        bent = step @ change + ball_of(problem).penalty * (step[:n_bound] @ step[:n_bound])
        return bool(bent > 1e-12 * (step @ step))


def between(problem: Problem, start: Point, end: Point, t: float) -> Point:
    """Return a point on the segment between two others, whose outputs need no pass over the data."""
    w, margins = ((1.0 - t) * a + t * b for a, b in zip(start[:2], end[:2], strict=True))
    return w, margins, problem.data.group_means(problem.loss.value(margins, problem.data.y))


def ball_of(problem: Problem) -> Ball:
    """Return the ball of a problem that the solver supports."""
    assert problem.domain.ball is not None  # the solver requires it
    return problem.domain.ball
