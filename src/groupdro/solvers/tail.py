"""A primal-dual interior-point method for the average of the worst rows, where every row is a group.

The weights of groups are q = least + share * s, with 0 <= s <= caps and sum(s) = 1. At the solution there are a
threshold t and multipliers a, b >= 0 of both bounds with

    grad F(w, q) = 0,   sum(s) = 1,   V_i(w) - t = a_i - b_i,   a_i (c_i - s_i) = b_i s_i = 0.

The products on the right are relaxed to a small positive number, Newton's method takes a step for all equations
together that keeps s, a and b inside their bounds, and the number falls (Mehrotra, 1992). The step of every s_i depends
on the change of its own value only, so eliminating them leaves a system of the size of w. Unlike in a quadratic program
of the weights, an epoch takes a few passes over the rows, however many groups there are.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import brentq

from groupdro.oracle import Oracle
from groupdro.oracle.along import outputs_along
from groupdro.oracle.groups import gram_and_moments
from groupdro.run.solver import BOUNDED_CURVATURE, KNOWN_WEIGHTS, Requirement, Solver, State
from groupdro.solvers.sqp import ball_of
from groupdro.utils.types import Floats

__all__ = ["TailNewton"]

_MOST_PARAMETERS = 2000  # of which a Hessian is formed
_GOALS = 0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8  # of the products, relative to the present ones
_PER_GOAL = 0.1  # length of a step that a goal of 0 is worth more than one of 1
_SPREAD = 0.3  # of the values at the start, relative to their mean, if they are equal
_CLOSEST = 1e-9  # distance of the first weights from their bounds, relative to their caps
_INSIDE = 0.99  # share of the way to the bounds
_ROUNDING = 1e-14  # products relative to the values at which nothing changes but rounding
_RIDGE = 1e-13  # relative to the largest curvature
_QUARTERINGS = 10  # of a step at which losses overflow

PENALTY = Requirement(
    what="an L2 penalty without a radius (L2Domain(penalty=...)), one output and at most 2,000 parameters",
    holds=lambda problem: (
        (ball := problem.domain.ball) is not None
        and ball.penalty > 0
        and not np.isfinite(ball.radius)
        and problem.model.n_outputs == 1
        and problem.model.size <= _MOST_PARAMETERS
    ),
)
ROWS_AS_GROUPS = Requirement(
    what="every row to be a group, with capped weights (worst_share below 1)",
    holds=lambda problem: (
        problem.data.n_workers == 1
        and int(problem.data.group_sizes.max()) == 1
        and problem.weights_known
        and (moving := problem.moving).share > 0
        and moving.caps.size > 0
        and float(moving.caps.min()) > 0
        and float(moving.caps.sum()) > 1.0 + 1e-9
    ),
)


@dataclass
class TailState(State):
    """State of TailNewton; the evaluation is at the iterate and its weights.

    Attributes
    ----------
    s, above, below : ndarray of shape (n_groups,)
        Moving part of the weights, and the multipliers of its caps and of zero.
    threshold : float
        The threshold t.
    """

    s: Floats
    above: Floats
    below: Floats
    threshold: float


@dataclass(frozen=True)
class TailNewton(Solver):
    """A primal-dual interior-point method for problems in which every row is a group.

    This is the problem of conditional value at risk: `worst_share` of the estimators with one group per row.
    """

    name = "tail"

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """A smooth penalty, bounded curvature, and one group per row."""
        return (PENALTY, BOUNDED_CURVATURE, KNOWN_WEIGHTS, ROWS_AS_GROUPS)

    def init(self, oracle: Oracle, w: Floats, q: Floats, seed: int) -> TailState:
        """Evaluate the start, with equal products for all groups."""
        problem = oracle.problem
        moving = problem.moving
        values = problem.group_values(oracle.risks(w))
        product = max(float(values.std()), _SPREAD * abs(float(values.mean())), 1e-300) / len(values)
        s, threshold = _central(values, moving.caps, product)
        at = oracle.evaluate(w, moving.mixed(s))
        return TailState(at, s, product / (moving.caps - s), product / s, threshold)

    def epoch(self, oracle: Oracle, state: TailState) -> None:
        """Take one step of Newton's method, and evaluate the new point."""
        problem, at = oracle.problem, state.evaluation
        data, moving = problem.data, problem.moving
        s, room = state.s, moving.caps - state.s
        values = problem.group_values(at.group_risks)
        product = float(state.above @ room + state.below @ s) / (2 * len(s))
        if product * len(s) <= _ROUNDING * max(float(np.abs(values).max()), 1e-300):
            state.stalled = True
            return

        # 1. The system for w, after elimination of the weights and the threshold. Steps are linear in the goal of the
        #    products: one with goal zero, and one per unit of the goal.
        soft = 1.0 / (state.above / room + state.below / s)  # change of each s_i per unit of its value
        away = np.column_stack([values - state.threshold, 1.0 / s - 1.0 / room])
        missing = np.array([1.0 - float(s.sum()), 0.0]) - soft @ away
        slopes = problem.loss.value_and_slope(at.margins, data.y)[1]
        of_rows = data.row_weights(soft) * slopes
        curvature = problem.loss.curvature(at.margins, data.y) * data.row_weights(at.q)
        curvature += moving.share * of_rows * slopes
        weighted = [data.row_weights(soft * part) * slopes for part in away.T]
        hessian, moments = gram_and_moments(oracle, curvature, np.column_stack([of_rows, *weighted]))
        total = float(soft.sum())
        centre = moments[:, 0] / total
        pull = moving.share * (moments[:, 1:] + np.outer(centre, missing))
        penalty = ball_of(problem).penalty
        pull[:, 0] += at.gradient
        problem.coef(pull)[:, 0] += penalty * problem.coef(at.w)
        hessian -= moving.share * total * np.outer(centre, centre)
        ridge = np.full(len(hessian), _RIDGE * float(np.diagonal(hessian).max()))
        ridge[: data.n_features] += penalty
        hessian[np.diag_indices_from(hessian)] += ridge
        try:
            steps = -cho_solve(cho_factor(hessian), pull)
        except LinAlgError:
            state.stalled = True
            return

        # 2. The steps of the threshold, the weights and their multipliers that follow.
        moved = np.column_stack([data.group_means(slopes * part) for part in outputs_along(oracle, steps).T])
        rises = centre @ steps - missing / total
        changes = soft[:, None] * (moved - rises + away)

        # 3. The goal with the longest step inside all bounds; a smaller goal if steps are nearly as long.
        best = None
        for share in _GOALS:
            goal = share * product
            both = np.array([1.0, goal])
            change = changes @ both
            above = (goal + state.above * change) / room - state.above
            below = (goal - state.below * change) / s - state.below
            pairs = ((s, change), (room, -change), (state.above, above), (state.below, below))
            length = min(_longest(*pair) for pair in pairs)
            worth = length - _PER_GOAL * share
            if best is None or worth > best[0]:
                best = worth, length, steps @ both, float(rises @ both), change, above, below
        assert best is not None
        _, length, step, rise, change, above, below = best
        for _ in range(_QUARTERINGS):
            weights = s + length * change
            new = oracle.evaluate(at.w + length * step, moving.mixed(weights / weights.sum()))
            if np.isfinite(new.group_risks).all():
                break
            length *= 0.25
        state.evaluation = new
        state.s = weights / weights.sum()
        state.above = state.above + length * above
        state.below = state.below + length * below
        state.threshold += length * rise


def _central(values: Floats, caps: Floats, product: float) -> tuple[Floats, float]:
    """Return weights that sum to one, and a threshold, for which all equations of the weights hold with this product.

    At a threshold t, each weight solves V - t = product / (c - s) - product / s, a quadratic equation.
    """

    def weights(threshold: float) -> Floats:
        away = (values - threshold) / product
        b = away * caps - 2.0
        root = np.sqrt(b * b + 4.0 * away * caps)
        with np.errstate(divide="ignore", invalid="ignore"):
            s = np.where(b >= 0.0, (b + root) / (2.0 * away), 2.0 * caps / (root - b))
        return np.clip(s, _CLOSEST * caps, (1.0 - _CLOSEST) * caps)

    reach = 2.0 * product * len(caps) / min(1.0, float(caps.sum()) - 1.0) + product / float(caps.min())
    threshold = brentq(
        lambda t: float(weights(t).sum()) - 1.0, float(values.min()) - reach, float(values.max()) + reach, xtol=1e-300
    )
    s = weights(threshold)
    return s / s.sum(), threshold


def _longest(values: Floats, change: Floats) -> float:
    """Return the longest step, at most 1, that stays within a share of the way to zero."""
    falling = change < 0
    return min(1.0, _INSIDE * float(np.min(-values[falling] / change[falling], initial=np.inf)))
