"""Coordinate ascent on the dual, for many groups of few sparse rows.

With an L2 penalty of mu, the problem min_w max_q sum_i q_i R_i(w) + mu/2 |w|^2 has the dual

    max over q and s of  - sum_i q_i mean_i loss*(s) - 1/(2 mu) |sum_i q_i mean_i s x|^2,

with one slope s of the loss for each row of each group. Given all others, the best slope of a row solves an equation in
one variable. Given the slopes, the objective is quadratic along the line on which a group gains weight and all others
lose it in proportion, so that the best step is known too. Both cost only the entries of the rows, however many features
and groups there are: the factor on all other weights, and so on w, is kept apart. No step sizes are needed.

A free intercept adds the constraint that the weighted slopes sum to zero. Each sweep replaces it by a quadratic price
around the intercept so far (the method of multipliers). A price far above that of the columns, |x|^2 / mu, would let
the slopes move only in small steps along the constraint; a low one lets the intercept move slowly.

Several workers sweep at the same time, each over its own groups; see `oracle.dual_sweep`.

Rows: Shalev-Shwartz and Zhang (2013), "Stochastic dual coordinate ascent". Weights: the line of block-coordinate
Frank-Wolfe, Lacoste-Julien et al. (2013), here with over-relaxed steps.
"""

from dataclasses import dataclass

import numpy as np

from groupdro.kernels.arguments import DUAL_FEATURE, CsrData, DualPoint, records
from groupdro.oracle import Oracle
from groupdro.oracle.dual_sweep import sweep
from groupdro.problem import Problem
from groupdro.run.solver import BOUNDED_CURVATURE, SIMPLEX, Requirement, Solver, State
from groupdro.solvers.sketched_sqp import PENALISED
from groupdro.solvers.sqp import ball_of
from groupdro.utils.types import Floats

__all__ = ["DualAscent", "DualState"]

_RELAXATION = 1.7  # length of the steps of group weights, relative to the best one
# The intercept's price, at first: relative to that of the columns, and its bounds times the loss's largest curvature.
_AS_COLUMNS = 0.1
_PRICES = (1.0, 100.0)
_STAYS, _FASTER = 0.95, 3.0  # share of a violation that counts as all of it; factor on the intercept's moves then
_STILL, _RISEN = 1e-12, 1e-15  # relative changes of the model and of the dual objective that count as none
_MOST_STILL = 3

SPARSE = Requirement(
    what="sparse rows in memory, and a loss of this package",
    holds=lambda problem: isinstance(problem.flat_here, CsrData) and problem.data.in_memory,
    remedy="others are solved by 'auto', 'sqp', 'sketched-sqp' and 'aleg'",
)
UNDIVIDED = Requirement(
    what="no group to be divided among workers",
    holds=lambda problem: problem.data.one_worker_per_group,
    remedy="fewer workers may hold every group whole, and 'auto' chooses another solver",
)


@dataclass
class DualState(State):
    """State of DualAscent; after an epoch, the evaluation is at the model and the weights of the dual point.

    Attributes
    ----------
    slopes : ndarray of shape (n_members,)
        Slope of the loss for each member of a group that is stored here.
    heights : ndarray of shape (n_groups,)
        Each group's mean of minus the conjugates of its slopes, plus the constant in its value.
    seed : int
        Seed of the order in which groups are visited.
    settled : bool
        Whether the slopes are worth moving group weights by; at first they are all zero.
    price : float
        How far the intercept moves at first for each unit by which the constraint is violated; 0 without one.
    proximal : float
        How far it moves now.
    objective : float
        Dual objective of the last sweep.
    still : int
        Consecutive sweeps that changed neither it nor the model.
    violation : float
        By how much the last sweep violated the constraint.
    """

    slopes: Floats
    heights: Floats
    seed: int
    settled: bool
    price: float
    proximal: float
    objective: float = -np.inf
    still: int = 0
    violation: float = 0.0


@dataclass(frozen=True)
class DualAscent(Solver):
    """Ascent on the dual over rows and group weights, for many groups of few sparse rows.

    An epoch visits every group once, in random order, and evaluates the model, which takes three passes, one more with
    a free intercept and one more over several workers. The first one leaves the group weights as they are. There is
    nothing to tune. It needs many epochs if the penalty is tiny for so few rows, or if the columns' scales are very
    different.
    """

    name = "dual-ascent"

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """A penalty, one output, bounded curvature, all weights, sparse rows, and groups of one worker each."""
        return (PENALISED, BOUNDED_CURVATURE, SIMPLEX, SPARSE, UNDIVIDED)

    def init(self, oracle: Oracle, w: Floats, q: Floats, seed: int) -> DualState:
        """Start at the loss's slopes at w, or at slopes of zero if w is zero, because that is their model."""
        problem = oracle.problem
        data = problem.data
        loss = problem.loss
        at = oracle.evaluate(w, q)
        price = _price(problem) if problem.fit_intercept else 0.0
        if not w.any():
            return DualState(
                at, np.zeros(len(data.member_weights)), np.zeros(problem.n_groups), seed, False, price, price
            )
        losses, slopes = loss.value_and_slope(at.margins, data.y)
        products = at.margins - data.row_offsets if data.row_offsets.size else at.margins
        heights = data.group_means(losses - slopes * products) + problem.group_values(np.zeros(problem.n_groups))
        # The model of these slopes and weights, at which the dual is as high as they allow.
        w = at.w.copy()
        problem.coef(w)[...] = problem.coef(at.gradient) / -ball_of(problem).penalty
        by_member = slopes[data.members] if data.members.size else slopes
        return DualState(oracle.evaluate(w, at.q), by_member, heights, seed, True, price, price)

    def epoch(self, oracle: Oracle, state: DualState) -> None:
        """Sweep over all groups, and evaluate where that leads."""
        problem = oracle.problem
        at = state.evaluation
        settled = state.settled
        w = at.w.copy() if settled else np.zeros(problem.shape)
        state.settled = True
        features = records(DUAL_FEATURE, problem.data.n_features)
        free = problem.intercept(w)
        q = at.q.copy()
        features["w"] = problem.coef(w)
        order = np.random.default_rng([state.seed, state.epoch]).permutation(problem.n_groups)
        point = DualPoint(state.slopes, state.heights, q, features, np.empty(0), float(free.sum()))
        objective, violation = sweep(oracle, order, point, state.proximal, _RELAXATION if settled else 0.0)
        free += state.proximal * violation
        problem.coef(w)[...] = features["w"]
        # Near its maximum the objective rises by no more than rounding while the model still moves.
        same = abs(objective - state.objective) <= _RISEN * abs(objective)
        same = same and bool(np.linalg.norm(w - at.w) <= _STILL * np.linalg.norm(w))
        state.evaluation = oracle.evaluate(w, q / q.sum())
        state.still = state.still + 1 if same else 0
        state.stalled = state.still >= _MOST_STILL
        # A violation that stays shows that the intercept is far from where it belongs.
        stays = violation * state.violation > _STAYS * state.violation**2
        state.proximal = _FASTER * state.proximal if stays else state.price
        state.objective = objective
        state.violation = violation


def _price(problem: Problem) -> float:
    """Return how far the intercept moves at first for each unit of violation."""
    of_columns = problem.data.mean_square_norm / ball_of(problem).penalty
    return float(np.clip(_AS_COLUMNS * of_columns * problem.curvature, *_PRICES)) / problem.curvature
