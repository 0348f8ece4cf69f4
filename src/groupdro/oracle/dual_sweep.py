"""A sweep of ascent on the dual, counted; see `kernels.dual`.

Several workers sweep at the same time, each over its own groups, in rounds. During a round a worker keeps the total of
its groups' weights, and sees the others' part of the model as it was before. After it, the changes of the model are
added up, and weight moves between the workers: each one's best step along the line on which it gains weight and all
others lose it in proportion is known, and the mean of these steps is made.

The changes of several workers may add up to more than the best change, above all in columns that most rows have. So a
worker looks at what its changes would lead to if all others made the same: then the objective rises for any data (Ma et
al., 2015, "Adding vs. averaging in distributed primal-dual optimization").
"""

from typing import Any

import numpy as np

from groupdro.kernels.arguments import DUAL_FEATURE, DUAL_SUMS, DualPoint, record, records
from groupdro.kernels.dual import add_dual_sums, dual_sweep
from groupdro.oracle.oracle import Oracle
from groupdro.problem import Problem
from groupdro.utils.types import Floats, Indices

__all__ = ["shortening", "sweep"]

_CALL_MEMBERS = 1 << 19  # an interrupt can arrive only between calls
_ROUNDS = 16  # of a sweep: with fewer, changes of common columns work against each other; each costs two messages
_LEAST_TOTAL = 1e-12  # of a worker's weights: with none at all, their proportions would be lost
_MOST = 0.5  # share of all weight that a step may move to a worker


def shortening(problem: Problem) -> int:
    """Return by what factor steps are shorter than those of one process, and sweeps about more."""
    return problem.data.n_workers


def sweep(oracle: Oracle, order: Indices, point: DualPoint, proximal: float, relaxation: float) -> tuple[float, float]:
    """Visit all groups, which reads their rows twice, or three times if there are several workers.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the problem.
    order : ndarray of int
        All groups, in the order in which to visit them.
    point : DualPoint
        The point (changed), with the slopes of the members stored here.
    proximal, relaxation : float
        See `kernels.dual.dual_sweep`.

    Returns
    -------
    objective, violation : float
        The dual objective, without the intercept's part, and minus the weighted sum of the slopes.
    """
    problem = oracle.problem
    penalty = problem.domain.ball.penalty  # type: ignore[union-attr]
    oracle.count_pass()
    oracle.count_columns(problem.data.n_features)
    if not problem.data.is_whole:
        return _sweep_together(oracle, order, point, penalty, proximal, relaxation)
    sums = record(DUAL_SUMS)
    add_dual_sums(problem.data.offsets, problem.data.member_weights, point, sums)
    _visit(problem, order, point, sums, penalty, proximal, relaxation)
    return float(sums["height"] - 0.5 * penalty * sums["square"]), float(sums["t"])


def _visit(
    problem: Problem,
    order: Indices,
    point: DualPoint,
    sums: Any,
    penalty: float,
    proximal: float,
    relaxation: float,
) -> None:
    """Visit groups that are stored here."""
    data = problem.data
    levels = problem.group_values(np.zeros(problem.n_groups))
    members = data.offsets, data.members, data.member_weights
    calls = np.cumsum(data.group_sizes[order]) // _CALL_MEMBERS
    for part in np.split(order, np.flatnonzero(np.diff(calls)) + 1):
        dual_sweep(problem.flat_here, members, part, levels, point, sums, penalty, proximal, relaxation)


def _sweep_together(
    oracle: Oracle, order: Indices, point: DualPoint, penalty: float, proximal: float, relaxation: float
) -> tuple[float, float]:
    """Visit all groups, each worker its own, in rounds."""
    problem = oracle.problem
    data = problem.data
    (slopes, heights, q, features, _, centre) = point
    here = data.group_sizes > 0
    model = features["w"].copy()
    part = records(DUAL_FEATURE, len(features))  # of the model, of these groups
    rest = np.zeros(len(features))
    q *= here
    heights *= here
    if q.sum() < _LEAST_TOTAL:
        q[here] = _LEAST_TOTAL / here.sum()
    (totals,) = _of_each(problem, float(q.sum()))
    totals /= totals.sum()
    q /= q.sum()
    own = data.rows.rmatvec(data.row_weights(q) * slopes) / -penalty  # the model, if these groups had all weight
    oracle.count_columns(data.n_features)
    sums = record(DUAL_SUMS)
    add_dual_sums(data.offsets, data.member_weights, DualPoint(slopes, heights, q, part, rest, 0.0), sums)
    levels, frees = _of_each(problem, sums["height"], sums["t"])
    for groups in np.array_split(order[here[order]], _ROUNDS):
        total = totals[data.rank]
        free = float(totals @ frees)
        larger = data.n_workers * total
        np.multiply(own, larger, out=part["w"])
        np.subtract(model, part["w"], out=rest)
        sums["square"], sums["on_rest"] = part["w"] @ part["w"], part["w"] @ rest
        local = DualPoint(slopes, heights, q, part, rest, centre + proximal * (free - larger * frees[data.rank]))
        _visit(problem, groups, local, sums, penalty / larger, proximal * larger, relaxation)
        changes = part["w"] / data.n_workers - total * own
        own = part["w"] / larger
        data.add_up(changes)
        model += changes
        on_model = penalty * float(own @ model)
        apart = penalty * float(((own - model) ** 2).sum())
        levels, frees, on_models, bends = _of_each(problem, sums["height"], sums["t"], on_model, apart)
        if relaxation > 0.0:
            free = float(totals @ frees)
            gains = levels - on_models - (centre + proximal * free) * frees
            totals = _moved(totals, gains - totals @ gains, bends + proximal * (frees - free) ** 2)
            np.multiply(own, totals[data.rank], out=model)
            data.add_up(model)
    features["w"] = model
    q *= totals[data.rank]
    data.add_up(q, heights)
    return float(totals @ levels - 0.5 * penalty * (model @ model)), float(totals @ frees)


def _of_each(problem: Problem, *numbers: float) -> Floats:
    """Return some numbers of every worker, each as an array of shape (n_workers,)."""
    table = np.zeros((len(numbers), problem.data.n_workers))
    table[:, problem.data.rank] = numbers
    problem.data.add_up(table)
    return table


def _moved(totals: Floats, gains: Floats, bends: Floats) -> Floats:
    """Return the mean of the workers' best steps along their lines, given the derivatives of the objective there."""
    most = np.where(gains > 0.0, _MOST, -_MOST)
    best = np.divide(gains, bends, out=most, where=bends > 0.0)
    steps = np.clip(best, -totals / np.maximum(1.0 - totals, _LEAST_TOTAL), _MOST)
    moved = np.maximum(totals * (1.0 - steps.mean()) + steps / len(steps), _LEAST_TOTAL)
    return np.asarray(moved / moved.sum())
