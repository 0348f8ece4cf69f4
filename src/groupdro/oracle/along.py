"""Passes along a direction: how outputs, group values and the gradient change there."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from groupdro.data.sketch import Sketch
from groupdro.oracle.evaluation import Evaluation
from groupdro.oracle.oracle import Oracle
from groupdro.problem import Problem
from groupdro.utils.types import Array, Floats

__all__ = [
    "curvature_between",
    "evaluate_along",
    "group_sketches",
    "outputs_along",
    "slope_and_curvature",
    "values_along",
]

_STRETCH = 1 << 15  # rows


def outputs_along(oracle: Oracle, direction: Floats) -> Floats:
    """Return the change of the stored rows' outputs along a direction, or along several for one output, in one pass."""
    problem = oracle.problem
    out = np.empty((problem.data.n_rows, *direction.shape[1:]))
    for place, block in problem.data.rows.blocks():
        out[place] = problem.model.outputs(block, direction)
    oracle.count_columns(problem.data.n_features)
    return out


def evaluate_along(oracle: Oracle, w: Floats, q: Floats, along: Array) -> tuple[Evaluation, Floats]:
    """Evaluate a point, for one output, and return how the gradient of sum_i q_i R_i changes along some directions.

    This takes one pass if a kernel can read the rows, and otherwise two.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the problem.
    w, q : ndarray
        The point.
    along : ndarray of shape (n_rows, k)
        Change of the outputs along each direction.

    Returns
    -------
    Evaluation
        That of `Oracle.evaluate`.
    ndarray of shape (n_parameters, k)
        Changes of the gradient.
    """
    problem = oracle.problem
    data = problem.data
    flat = problem.flat_here
    weights = problem.data.row_weights(q)
    if flat is not None and not oracle.single_precision:
        margins = np.empty(data.n_rows)
        losses = np.empty(data.n_rows)
        done = data.rows.fused_curvature(flat, w, weights, problem.row_norms, along, margins, losses)
        if done is not None:
            gradient, changes, mass = done
            means = data.partial_means(losses)
            masses = np.array([mass])
            data.add_up(means, gradient, changes, masses)
            oracle.count_pass()
            return Evaluation(w, q, margins, means, gradient, float(masses[0])), changes
    there = oracle.evaluate(w, q)
    bent = along * (weights * problem.loss.curvature(there.margins, data.y))[:, None]
    model = replace(problem.model, n_outputs=along.shape[1])
    bent = bent.reshape(-1, *model.shape[1:])
    changes = np.zeros(model.shape)
    for place, block in data.rows.blocks():
        changes += model.gradient(block, bent[place])
    data.add_up(changes)
    oracle.count_columns(data.n_features)
    return there, changes.reshape(len(changes), -1)


def curvature_between(problem: Problem, weights: Floats, margins: Floats, along: Floats) -> float:
    """Return the second derivative of the weighted sum of losses along a change of the outputs."""
    loss = problem.loss
    y = problem.data.y
    sums = np.zeros(1)
    for place in _stretches(len(margins)):
        sums[0] += weights[place] @ (loss.curvature(margins[place], y[place]) * along[place] ** 2)
    problem.data.add_up(sums)
    return float(sums[0])


def slope_and_curvature(problem: Problem, weights: Floats, margins: Floats, shift: float) -> tuple[float, float]:
    """Return both derivatives of the weighted sum of losses as all outputs grow, at a shift of the outputs."""
    loss = problem.loss
    y = problem.data.y
    sums = np.zeros(2)
    for place in _stretches(len(margins)):
        outputs = margins[place] + shift
        sums[0] += weights[place] @ loss.value_and_slope(outputs, y[place])[1]
        sums[1] += weights[place] @ loss.curvature(outputs, y[place])
    problem.data.add_up(sums)
    return float(sums[0]), float(sums[1])


def values_along(problem: Problem, margins: Floats, moved: Floats) -> Floats:
    """Return the groups' values at margins + moved."""
    losses = np.empty(len(margins))
    for place in _stretches(len(margins)):
        losses[place] = problem.loss.value(margins[place] + moved[place], problem.data.y[place])
    return problem.group_values(problem.data.group_means(losses))


def _stretches(n_rows: int) -> Iterator[slice]:
    """Yield ranges of rows, so that what is computed of each stays in the cache and takes little memory."""
    for start in range(0, n_rows, _STRETCH):
        yield slice(start, min(start + _STRETCH, n_rows))


def group_sketches(oracle: Oracle, margins: Floats, sketch: Sketch, shares: Any = None) -> Floats:
    """Return the sketch of every group's gradient, for one output, in one pass.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the problem.
    margins : ndarray of shape (n_rows,)
        Outputs of the stored rows.
    sketch : Sketch
        The sketch.
    shares : sparse array of shape (k, n_groups), optional
        Weights of the groups in k sums of their gradients, whose sketches are returned instead.

    Returns
    -------
    ndarray of shape (n_groups, n_buckets) or (k, n_buckets)
        The sketches.
    """
    problem = oracle.problem
    data = problem.data
    out = np.zeros((problem.n_groups if shares is None else shares.shape[0], sketch.n_buckets))
    slopes = problem.loss.value_and_slope(margins, data.y)[1]
    for place, block in data.rows.blocks():
        of_groups = data.shares(place)
        block.sketch_by_group(of_groups if shares is None else of_groups.summed(shares), slopes[place], sketch, out)
    if problem.fit_intercept:
        free = data.partial_means(slopes)
        free = free if shares is None else shares @ free
        for i in range(len(out)):
            sketch.add(free[i : i + 1], data.n_features, out[i])
    data.add_up(out)
    oracle.count_pass()
    return out
