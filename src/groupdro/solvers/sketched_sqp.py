"""SQP for many groups of many features, whose gradients together would not fit in memory.

SQP needs every group's gradient only to choose the group weights: the dual of its quadratic model is a program in
inner products of gradients. Here these come from sketches of the gradients. The step itself follows from the exact
gradient under the chosen weights. Sketching is linear, so the weights of the solution, under which the gradient is
zero, stay those of the solution; only how fast they are found depends on the sketch.
"""

from dataclasses import KW_ONLY, dataclass, field, replace

import numpy as np
import scipy.sparse as sp
from scipy.linalg.blas import daxpy

from groupdro.data.sketch import Sketch
from groupdro.oracle import Oracle
from groupdro.oracle.along import (
    curvature_between,
    evaluate_along,
    group_sketches,
    outputs_along,
    slope_and_curvature,
    values_along,
)
from groupdro.oracle.first_curvature import FirstCurvature, column_curvature
from groupdro.oracle.intercept import zero_of_slope
from groupdro.problem import Problem
from groupdro.problem.linear_model import LinearModel
from groupdro.run.solver import KNOWN_WEIGHTS, Requirement, Solver, State
from groupdro.solvers.merged_groups import MergedGroups
from groupdro.solvers.sqp import ball_of
from groupdro.solvers.step_models import LearnedModel
from groupdro.solvers.weight_program import NearbyProgram, Program, solve_for_groups
from groupdro.utils.arguments import check_whole
from groupdro.utils.types import Array, Floats

__all__ = ["MOST_APART", "SketchedSQP", "SketchedState"]

_MOST_BUCKETS = 1 << 14  # a group's sketch stays in the processor's cache
MOST_APART = 1 << 10  # groups: a program of more takes seconds, and needs more buckets to tell them apart
_MOST_CAPPED = 1 << 12  # groups whose weights have upper bounds, which keeps all of them apart
_LEAST_LEFT = 1e-6  # of the values, as the gain of moving all weights
_LEAST_COSINE = 1e-2  # between a step and its change, below which the pair is left out of a program
_PRICE = 0.1  # of moving weights, relative to what moving all to the worst group would gain
_SUFFICIENT = 1e-4
_HALVINGS = 12
_INTERCEPT_EVALS = 5
_SMALL_SLOPE = 1e-3  # along the intercept, relative to that before its steps
_FLAT = 1e-6  # curvature along the intercept, relative to the largest, that counts as this much
_MOST_FAILURES = 2

PENALISED = Requirement(
    what="an L2 penalty without a radius (L2Domain), and one output",
    holds=lambda problem: (
        problem.model.n_outputs == 1
        and problem.domain.ball is not None
        and problem.domain.ball.penalty > 0.0
        and np.isinf(problem.domain.ball.radius)
    ),
    remedy="others are solved by 'auto', 'sqp' and 'aleg'",
)
FEW_GROUPS = Requirement(
    what=f"at most {_MOST_CAPPED:,} groups for weights with upper bounds",
    holds=lambda problem: problem.n_groups <= _MOST_CAPPED or (problem.weights_known and not problem.moving.caps.size),
    remedy="more are solved by 'aleg', and by 'sqp' if all gradients fit in memory",
)


@dataclass
class SketchedState(State):
    """State of SketchedSQP; the evaluation is at the iterate and the latest group weights.

    Attributes
    ----------
    steps, changes : list of ndarray
        L-BFGS pairs: changes of w, and of the weighted gradient with the penalty's.
    sketches : list of ndarray of shape (2, n_buckets)
        Sketches of each pair.
    failures : int
        Consecutive line searches without descent.
    """

    steps: list[Floats] = field(default_factory=list)
    changes: list[Floats] = field(default_factory=list)
    sketches: list[Floats] = field(default_factory=list)
    failures: int = 0


@dataclass(frozen=True)
class SketchedSQP(Solver):
    """Newton-like steps for the worst group, with memory for a sketch of each group's gradient.

    An epoch makes three passes: along the step, for the sketches, and for the gradient under the new weights together
    with the curvature along the step. Dense rows need a fourth one for the latter. Workers exchange these two, and the
    sketches.

    Parameters
    ----------
    memory : int
        Number of L-BFGS pairs to keep.
    """

    name = "sketched-sqp"

    _: KW_ONLY
    memory: int = 10

    def __post_init__(self) -> None:
        check_whole(self.memory, "memory", least=1)

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """A penalty, one output, and weights that the program supports."""
        return (PENALISED, KNOWN_WEIGHTS, FEW_GROUPS)

    def init(self, oracle: Oracle, w: Floats, q: Floats, seed: int) -> SketchedState:
        """Evaluate the start."""
        return SketchedState(oracle.evaluate(w, q))

    def epoch(self, oracle: Oracle, state: SketchedState) -> None:
        """Search along the step of the current weights, choose new weights there, and make a pass."""
        problem = oracle.problem
        at = state.evaluation
        curvature = _diagonal(problem)
        found = _search(oracle, state, curvature)
        pairs = state.steps, state.changes, state.sketches
        if found is None:  # neither the learned curvature nor rounding allows descent: only move the weights
            for part in pairs:
                part.clear()
            state.failures += 1
            state.stalled = state.failures > _MOST_FAILURES
            found = np.zeros(problem.shape), _both(problem, 0.0), problem.group_values(at.group_risks)
        else:
            state.failures = 0
        step, along, values = found
        w = at.w + step
        sketch = Sketch.of(curvature, _MOST_BUCKETS)
        q = self._weights(oracle, state, sketch, w, at.margins + along[:, 0], values)
        there, bent = evaluate_along(oracle, w, q, along)
        state.evaluation = replace(there, bend=bent[:, 1:]) if problem.fit_intercept else there
        change = bent[:, 0] + _pull(problem, step)
        if _shows_curvature(step, change):
            state.steps.append(step)
            state.changes.append(change)
            state.sketches.append(np.array([sketch.step(step), sketch.gradient(change)]))
        for part in pairs:
            del part[: -self.memory]

    @staticmethod
    def _weights(
        oracle: Oracle, state: SketchedState, sketch: Sketch, w: Floats, margins: Floats, values: Floats
    ) -> Floats:
        """Return the weights of the dual of the quadratic model at a new point, in the space of the sketches."""
        problem = oracle.problem
        moving = problem.moving
        q = state.evaluation.q
        if not moving.share:
            return q  # no other weights are allowed
        K = sketch.n_buckets
        penalty = sketch.gradient(_pull(problem, w))
        known = moving.moved(q)
        bent = [pair for pair in state.sketches if _cosine(*pair) > _LEAST_COSINE]
        kept = np.array(bent).reshape(-1, 2, K)
        flat = FirstCurvature(LinearModel(K, 1, False), np.ones(K), np.empty((K, 0)), np.zeros(K), 1.0)

        def solve(program: Program) -> tuple[Floats, Floats]:
            model = LearnedModel(program, np.zeros(K), flat, kept[:, 0], kept[:, 1], 0.0, bounded=False)
            step, x = model.solve(0.0)
            return step, program.total * x

        left = problem.weight_set.support(values) - float(q @ values)
        merged = MergedGroups.of(known, values, MOST_APART)
        if moving.caps.size or (left <= 0.0 and not merged.others.size):
            gradients = group_sketches(oracle, margins, sketch)
            return moving.mixed(solve_for_groups(moving, values, gradients, penalty, known, 0.0, solve)[1])
        gradients, fixed = _merged_sketches(oracle, margins, sketch, merged, moving.least)
        gradients *= moving.share
        gradients += fixed + penalty
        shifted = moving.share * (merged.matrix @ values) + float(moving.least @ values)
        price = _PRICE * max(left, _LEAST_LEFT * float(np.abs(values).max()))
        x = solve(NearbyProgram(rows=gradients, values=shifted, known=merged.join(known), price=price))[1]
        return moving.mixed(merged.divide(x))


def _merged_sketches(
    oracle: Oracle, margins: Floats, sketch: Sketch, merged: MergedGroups, least: Floats
) -> tuple[Floats, Floats]:
    """Return the sketches of the merged groups' gradients, and that of the gradient under the least weights."""
    if not merged.others.size:
        gradients = group_sketches(oracle, margins, sketch)
        return gradients, least @ gradients
    shares = sp.vstack([merged.matrix, sp.csr_array(least[None])], format="csr")
    gradients = group_sketches(oracle, margins, sketch, shares)
    return gradients[:-1], gradients[-1]


def _diagonal(problem: Problem) -> Floats:
    """Return a bound on the curvature along each parameter, with the penalty's."""
    columns = column_curvature(problem) + ball_of(problem).penalty
    return np.append(columns, np.full(int(problem.fit_intercept), problem.curvature))


def _pull(problem: Problem, w: Floats) -> Floats:
    """Return the gradient of the penalty."""
    out = ball_of(problem).penalty * w
    problem.intercept(out)[...] = 0.0
    return out


def _shows_curvature(step: Floats, change: Floats) -> bool:
    """Return whether the gradient's change along a step is large enough to divide by."""
    return bool(step @ change > 1e-12 * (step @ step))


def _cosine(step: Floats, change: Floats) -> float:
    """Return the cosine of the angle between two vectors; NaN if one is zero."""
    with np.errstate(invalid="ignore"):
        return float(step @ change / np.sqrt((step @ step) * (change @ change)))


def _times_inverse(gradient: Floats, curvature: Floats, steps: list[Floats], changes: list[Floats]) -> Floats:
    """Return the inverse of the L-BFGS matrix times a gradient, by the two-loop recursion."""
    out = gradient.copy()
    lengths = []
    for s, y in zip(reversed(steps), reversed(changes), strict=True):
        lengths.append(float(s @ out) / float(s @ y))
        out = daxpy(y, out, a=-lengths[-1])  # in place
    out /= curvature
    if steps:
        out *= float(steps[-1] @ changes[-1]) / float(changes[-1] @ (changes[-1] / curvature))
    for s, y, length in zip(steps, changes, reversed(lengths), strict=True):
        out = daxpy(s, out, a=length - float(y @ out) / float(s @ y))
    return out


def _search(oracle: Oracle, state: SketchedState, curvature: Floats) -> tuple[Floats, Array, Floats] | None:
    """Return a step of L-BFGS that decreases F(., q), the change of the outputs, and the groups' values there.

    The outputs are linear along the direction, so trials read no row of X. At each of them, the intercept is optimal.
    Their change is rounded to float32 and, with a free intercept, followed by that along the intercept: L-BFGS learns
    from the gradient's change along the first, and the certificate uses that along the second.
    """
    problem = oracle.problem
    at = state.evaluation
    slope = at.gradient + _pull(problem, at.w)
    direction = -_times_inverse(slope, curvature, state.steps, state.changes)
    along = outputs_along(oracle, direction)
    weights = problem.data.row_weights(at.q)
    first = float(at.q @ problem.group_values(at.group_risks)) + problem.domain.penalty_at(problem.coef(at.w))
    downhill = float(slope @ direction)
    bent = curvature_between(problem, weights, at.margins, along) + float(direction @ _pull(problem, direction))
    best = -downhill / max(bent, 1e-300)
    length = 1.0 if best > 0.5 else best
    for _ in range(_HALVINGS):
        moved = length * along
        shift = _best_shift(problem, weights, at.margins + moved) if problem.fit_intercept else 0.0
        moved += shift
        step = length * direction
        problem.intercept(step)[...] += shift
        values = values_along(problem, at.margins, moved)
        there = float(at.q @ values) + problem.domain.penalty_at(problem.coef(at.w + step))
        if there <= first + _SUFFICIENT * length * downhill and there < first:
            return step, _both(problem, moved), values
        length *= 0.5
    return None


def _both(problem: Problem, moved: Floats | float) -> Array:
    """Return a change of the outputs, and that along a free intercept."""
    both = np.ones((problem.data.n_rows, 2 if problem.fit_intercept else 1), dtype=np.float32)
    both[:, 0] = moved
    return both


def _best_shift(problem: Problem, weights: Floats, margins: Floats) -> float:
    """Return a change of the intercept under which the weighted slope is much smaller, for a few evaluations."""
    first, curvature = slope_and_curvature(problem, weights, margins, 0.0)

    def derivatives(shift: float) -> tuple[float, float, float]:
        slopes = slope_and_curvature(problem, weights, margins, shift) if shift else (first, curvature)
        return *slopes, _SMALL_SLOPE * abs(first)

    # The first step is as long as the units of y require.
    stride = abs(first) / max(curvature, _FLAT * problem.curvature)
    return zero_of_slope(derivatives, stride, _INTERCEPT_EVALS)[0]
