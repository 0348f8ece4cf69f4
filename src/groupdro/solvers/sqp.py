"""Sequential quadratic programming on all groups at once: high accuracy where a pass is cheap."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from groupdro.geometry import Ball
from groupdro.problem import GroupRisk
from groupdro.problem.group_pass import GroupEvaluation, evaluate_groups
from groupdro.problem.weight_sets import Moving
from groupdro.run.solver import BALL, KNOWN_WEIGHTS, Requirement, Solver, State
from groupdro.solvers.inverse_lbfgs import InverseLbfgs
from groupdro.solvers.weight_program import Program, WeightProgram, first_working_set, next_working_set
from groupdro.utils.arguments import check_choice, check_whole
from groupdro.utils.bundle import check, is_finite_array
from groupdro.utils.types import Floats

__all__ = ["GroupSQP", "SqpState", "ball_of"]


_NEWTON_SIZE = 600  # parameters up to which the Hessian is formed and factored
_ENTRIES = 20  # times that others enter it
_SUFFICIENT = 1e-4
_HALVINGS = 12
_LEAST_CURVATURE = 1e-28  # of a parameter, relative to its largest
_LEAST_RIDGE = 1e-10  # of the curvature, relative to that of each parameter
_LEAST_DAMPING = 1e-28  # the same, relative to that of each parameter at its largest
_TRIALS = 30  # multipliers of the ball that are tried
_EDGE = 1e-3  # distance from the ball's edge, relative to the step, at which a multiplier is good enough
_MOST_FAILURES = 8  # line searches in a row after which rounding must be what stops them
_ROUNDING = 1e-15  # of the objective
_NOISE = 1e-13  # the same where outputs cancel: a step that promises nothing may still bring the gradient to zero


@dataclass
class SqpState(State):
    """State of GroupSQP; the evaluation is at the iterate and the latest group weights.

    Attributes
    ----------
    groups : GroupEvaluation
        The pass at the iterate.
    steps, changes : list of ndarray
        Pairs (change of w, change of the Lagrangian's gradient) of the L-BFGS matrix, flattened.
    multiplier : float
        The ball's multiplier in the last quadratic program, which bends the Lagrangian.
    failures : int
        Line searches in a row that found no descent.
    damping : float
        What is added to the exact Hessian, relative to each parameter's largest curvature. A search that fails raises
        it, which turns and shortens the step; whole steps lower it again.
    """

    grows: ClassVar[tuple[str, ...]] = ("steps", "changes")

    groups: GroupEvaluation
    steps: list[Floats] = field(default_factory=list)
    changes: list[Floats] = field(default_factory=list)
    multiplier: float = 0.0
    failures: int = 0
    damping: float = _LEAST_DAMPING


@dataclass(frozen=True)
class GroupSQP(Solver):
    """Newton-like steps for the worst group.

    A pass gives every group's value and gradient. The step minimises the worst of the groups' linear models plus a
    common quadratic, the Hessian of the Lagrangian, whose dual is a quadratic program in as many variables as there
    are groups; its solution is the next q, and so a certificate. With one group this is Newton's method or L-BFGS on
    the ball: the oracle for a group's own minimum.

    Parameters
    ----------
    hessian : {"auto", "newton", "lbfgs"}
        The exact Hessian, or an approximation from the gradients seen; by default exact up to 600 parameters.
    memory : int
        Pairs that the approximation keeps.
    """

    name = "sqp"

    hessian: Literal["auto", "newton", "lbfgs"] = "auto"
    _: KW_ONLY
    memory: int = 20

    def __post_init__(self) -> None:
        check_choice(self.hessian, "hessian", ("auto", "newton", "lbfgs"))
        check_whole(self.memory, "memory", least=1)

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """A ball and bounds of group weights, for which the quadratic program is made."""
        priced = Requirement(
            what="an exact Hessian or no radius where weights have a price",
            holds=lambda p: not p.weight_set.priced or self._newton(p) or not np.isfinite(ball_of(p).radius),
            remedy="use solver='aleg'",
        )
        return (BALL, KNOWN_WEIGHTS, priced)

    def _newton(self, problem: GroupRisk) -> bool:
        return self.hessian == "newton" or (self.hessian == "auto" and problem.model.size <= _NEWTON_SIZE)

    def _evaluate(self, problem: GroupRisk, w: Floats, q: Floats) -> GroupEvaluation:
        return evaluate_groups(problem, w, q if self._newton(problem) else None)

    def init(self, problem: GroupRisk, seed: int) -> SqpState:
        """Evaluate the start."""
        del seed
        w, q = problem.start(), problem.start_weights()
        groups = self._evaluate(problem, w, q)
        return SqpState(groups.at(q), groups)

    def restore_state(self, problem: GroupRisk, state: SqpState) -> None:
        """Check the pairs, and pass over the data at the iterate, with the Hessian of the same weights."""
        pairs = state.steps, state.changes
        fits = all(isinstance(part, list) and len(part) == len(pairs[0]) for part in pairs)
        size = (problem.model.size,)
        fits = fits and all(is_finite_array(v, size) for part in pairs for v in part)
        with np.errstate(over="ignore", invalid="ignore"):
            check(fits and all(map(_bends_up, *pairs)), "its L-BFGS pairs do not fit")
        # A ridge that is not positive would be raised for ever.
        check(_LEAST_DAMPING <= state.damping < np.inf and 0.0 <= state.multiplier < np.inf, "its damping does not fit")
        at = state.groups
        state.groups = evaluate_groups(problem, at.w, at.hessian_q)
        state.evaluation = state.groups.at(state.evaluation.q)

    def epoch(self, problem: GroupRisk, state: SqpState) -> None:
        """Solve the quadratic model, search along its step, and pass over the data at the new point."""
        here = state.groups
        w = here.w
        values = problem.group_values(here.group_risks)

        # 1. The dual of the quadratic model: group weights, and the step.
        step, q, promised = self._solve_model(problem, state, values)

        # 2. A step that lowers the worst value by a share of what the model promises.
        there = self._search(problem, state, step, q, promised)
        if there is None:
            # Neither the model's curvature nor rounding allows descent along this step: forget what was learned.
            state.steps.clear()
            state.changes.clear()
            state.evaluation = here.at(q)
            state.damping = max(100.0 * state.damping, 1e-6)
            self._note_failure(state)
            return
        length = float(np.linalg.norm(there.w - w)) / max(float(np.linalg.norm(step)), 1e-300)
        if length > 0.9:
            state.damping = max(0.1 * state.damping, _LEAST_DAMPING)
        elif length < 0.2:
            state.damping = max(10.0 * state.damping, _LEAST_RIDGE)
        if promised <= _ROUNDING * abs(problem.weight_set.support(values)):
            self._note_failure(state)  # a step, but only within rounding
        else:
            state.failures = 0

        # 3. What the step taught about the curvature.
        if not self._newton(problem):
            moved = there.w - w
            change = np.tensordot(q, there.gradients - here.gradients, axes=1)
            problem.coef(change)[...] += (ball_of(problem).penalty + state.multiplier) * problem.coef(moved)
            moved, change = moved.ravel(), change.ravel()
            if _bends_up(moved, change):
                state.steps.append(moved)
                state.changes.append(change)
                del state.steps[: -self.memory], state.changes[: -self.memory]
        state.groups, state.evaluation = there, there.at(q)

    def _solve_model(self, problem: GroupRisk, state: SqpState, values: Floats) -> tuple[Floats, Floats, float]:
        """Return the step that minimises the groups' models under the worst weights, these weights, and the fall.

        Weights are q = least + share * s. The program has the s of the worst groups; all others are zero or at their
        caps. Those that its step would make worse than any group with room left enter it, those at a cap that it would
        make better than any with weight too, and it is solved again: with thousands of groups of about the same value,
        a step that looks at a part of them leads nowhere.
        """
        penalty, here = ball_of(problem).penalty, state.groups
        m, size = problem.n_groups, here.w.size
        moving = _moving(problem)
        gradients = here.gradients.reshape(m, size)
        pull = np.zeros_like(here.w)
        problem.coef(pull)[...] = problem.coef(here.w)
        solve = self._step_in_ball if self._newton(problem) else self._step_at_tangent
        rounding = _ROUNDING * abs(problem.weight_set.support(values))
        caps = moving.caps if moving.caps.size else np.full(m, np.inf)
        order = np.argsort(-values)
        inside = first_working_set(moving, order)
        known = moving.moved(state.evaluation.q) if state.epoch else np.zeros(m)  # the last solution is most often near
        if moving.share > 0.0:
            known[~inside] = moving.fill(values)[~inside]
        for _ in range(_ENTRIES):
            working, fixed = np.flatnonzero(inside), np.where(inside, 0.0, known)
            program = WeightProgram.of(
                moving, working, fixed, known[working], gradients, values, penalty * pull.ravel()
            )
            step, s_working = solve(problem, state, program, pull)
            expected = values + gradients @ step.ravel()
            known = fixed
            known[working] = s_working
            full = known >= (1.0 - 1e-12) * caps
            level = np.max(expected[inside & ~full], initial=-np.inf)
            wrong = ~inside & ~full & (expected > level + rounding)
            lowest = np.min(expected[inside & (known > 0)], initial=np.inf)
            wrong |= ~inside & (known > 0) & (expected < lowest - rounding)
            if not wrong.any() or moving.share == 0.0:
                break
            inside = next_working_set(moving, known, expected, wrong, level)
        fall = problem.weight_set.support(values) - problem.weight_set.support(expected)
        return step, moving.mixed(known), fall - penalty * float(pull.ravel() @ step.ravel())

    def _step_in_ball(
        self, problem: GroupRisk, state: SqpState, program: Program, pull: Floats
    ) -> tuple[Floats, Floats]:
        """Minimise the model over the ball exactly: find the multiplier at which its step ends on the edge.

        Each trial costs a factorisation but no pass. A tangent in place of the ball would let flat directions run far
        outside, and the search along the step would cut them short again and again.
        """
        w, radius = state.groups.w, ball_of(problem).radius

        def model(multiplier: float) -> tuple[Floats, Floats, float]:
            pulled = program.rows + multiplier * program.share * pull.ravel()
            solved = self._inverse(problem, state, multiplier)(pulled)
            x = program.solve(pulled @ solved.T, program.values)
            step = -(x @ solved).reshape(w.shape)
            return step, program.total * x, float(np.linalg.norm(problem.coef(w + step))) / radius

        before, state.multiplier = state.multiplier, 0.0
        step, x, reach = model(0.0)
        if reach <= 1.0:
            return step, x
        # The reach falls as the multiplier grows. Between one that is too small and one that is large enough, the
        # logarithms are interpolated; an end that stays twice loses half its value, so that both ends move.
        high = before or 1e-8 * float(np.abs(program.rows).max()) / radius
        low, outside, inner = 1e-3 * high, float(np.log(reach)), -np.inf
        found: tuple[Floats, Floats] | None = None
        trial, stayed = high, 0
        for _ in range(_TRIALS):
            step, x, reach = model(trial)
            if reach <= 1.0:
                found, high, inner, stayed = (step, x), trial, float(np.log(reach)), max(stayed, 0) + 1
                outside *= 0.5 if stayed > 1 else 1.0
                if 1.0 - reach <= _EDGE * min(1.0, float(np.linalg.norm(step)) / radius):
                    break
            else:
                low, outside, stayed = trial, float(np.log(reach)), min(stayed, 0) - 1
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

    def _step_at_tangent(
        self, problem: GroupRisk, state: SqpState, program: Program, pull: Floats
    ) -> tuple[Floats, Floats]:
        """Minimise the model with the ball's tangent as one more constraint where the step would leave the ball."""
        w, radius, rows, values = state.groups.w, ball_of(problem).radius, program.rows, program.values
        n, solve = len(values), self._inverse(problem, state, 0.0)
        solved = solve(rows)
        x = program.solve(rows @ solved.T, values)
        step = -(x @ solved).reshape(w.shape)
        state.multiplier = 0.0
        if np.linalg.norm(problem.coef(w + step)) > radius:
            slack = 0.5 * (float(np.vdot(pull, pull)) - radius**2)
            rows, values = np.vstack([rows, pull.ravel()]), np.append(values, slack)
            solved = np.vstack([solved, solve(pull.reshape(1, -1))])
            x = program.solve(rows @ solved.T, values)
            step = -(x @ solved).reshape(w.shape)
            state.multiplier = float(x[-1])
        return step, program.total * x[:n]

    @staticmethod
    def _note_failure(state: SqpState) -> None:
        state.failures += 1
        state.stalled = state.failures > (_MOST_FAILURES if state.groups.hessian is not None else 2)

    def _merit(self, problem: GroupRisk, state: SqpState, w: Floats, group_risks: Floats) -> float:
        """Return what every step has to lower: the objective."""
        del state
        return problem.weight_set.support(problem.group_values(group_risks)) + problem.domain.penalty_at(
            problem.coef(w)
        )

    def _search(
        self, problem: GroupRisk, state: SqpState, step: Floats, q: Floats, promised: float
    ) -> GroupEvaluation | None:
        """Halve the step until the objective falls; most often the whole step is taken."""
        here = state.groups
        old = self._merit(problem, state, here.w, here.group_risks)
        t, rounding = 1.0, _ROUNDING * abs(old)
        for _ in range(_HALVINGS):
            w = problem.within_domain(here.w + t * step)
            # Only the whole step is evaluated in full at once: shorter ones are tried by their risks alone.
            there = self._evaluate(problem, w, q) if t == 1.0 else None
            risks = problem.risks(w) if there is None else there.group_risks
            new = self._merit(problem, state, w, risks)
            allowed = rounding if promised > rounding else _NOISE * abs(old)
            if np.isfinite(new) and new <= old - _SUFFICIENT * t * promised + allowed:
                return self._evaluate(problem, w, q) if there is None else there
            if promised <= rounding:
                return None
            t *= 0.5
        return None

    def _inverse(self, problem: GroupRisk, state: SqpState, multiplier: float) -> Any:
        """Return the function that multiplies rows by the inverse of the model's curvature.

        The exact Hessian is bent by the ball's multiplier; the approximation has learned of it from the gradients.
        """
        hessian = state.groups.hessian
        if hessian is None:
            return InverseLbfgs(state.steps, state.changes, self._first_scale(problem)).apply
        curvature = hessian.copy()
        n_bound = problem.coef(state.groups.w).size
        diagonal = np.diag_indices_from(curvature)
        bend = np.where(np.arange(len(curvature)) < n_bound, ball_of(problem).penalty + multiplier, 0.0)
        curvature[diagonal] += bend
        # In units of each parameter's own curvature no column's scale drowns another's. Directions along which no row
        # differs are flat: a ridge keeps the step from wandering off along them. It is relative to the parameter's
        # largest curvature, and least where that is the work of one outlying cell whose loss is flat by now. Where all
        # is flat (all residuals on the linear part of a loss) it is that of a plain gradient step.
        largest, own = self._largest_curvature(problem) + bend, np.diag(curvature)
        mean = float((own / largest).mean())
        unit = np.sqrt(np.maximum(own, _LEAST_CURVATURE * largest))
        curvature /= np.outer(unit, unit)
        damping = state.damping * mean if mean > 1e-14 else max(state.damping, 1e-2)
        ridge = _LEAST_RIDGE + damping * largest / unit**2
        while True:
            try:
                regular = curvature.copy()
                regular[diagonal] += ridge
                factor = cho_factor(regular, check_finite=False)
                break
            except np.linalg.LinAlgError:
                ridge *= 100.0
        return lambda rows: cho_solve(factor, (rows / unit).T, check_finite=False).T / unit

    @staticmethod
    def _largest_curvature(problem: GroupRisk) -> Floats:
        """Bound the curvature along each parameter, flattened as w is."""
        squares = np.append(problem.data.column_squares, np.ones(int(problem.fit_intercept)))
        bounds = problem.loss.smoothness * np.where(squares > 0, squares, 1.0)
        return np.repeat(bounds, problem.model.n_outputs)

    @staticmethod
    def _first_scale(problem: GroupRisk) -> float:
        # Rows of zeros leave the intercept alone, whose column is one.
        return 1.0 / (problem.loss.smoothness * (problem.data.mean_square_norm or 1.0))


def ball_of(problem: GroupRisk) -> Ball:
    """Return the ball of a problem that the solver takes."""
    assert problem.domain.ball is not None  # the solver requires it
    return problem.domain.ball


def _moving(problem: GroupRisk) -> Moving:
    moving = problem.weight_set.moving(problem.n_groups)
    assert moving is not None  # the solver requires it
    return moving


def _bends_up(step: Floats, change: Floats) -> bool:
    """Return whether the gradient's change along a step shows enough curvature for an approximation."""
    return bool(step @ change > 1e-12 * (step @ step))
