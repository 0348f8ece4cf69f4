"""Passes along a direction: how outputs, group values and the gradient change there."""

from dataclasses import replace

import numpy as np

from groupdro.data.sketch import Sketch
from groupdro.problem.group_risk import GroupRisk
from groupdro.problem.records import Evaluation
from groupdro.utils.types import Floats

__all__ = ["curvature_along", "group_sketches", "outputs_along"]


def outputs_along(problem: GroupRisk, direction: Floats) -> Floats:
    """Return the change of the stored rows' outputs along a direction, in one pass."""
    out = np.empty((problem.data.n_rows, *problem.shape[1:]))
    for place, block in problem.data.rows.blocks():
        out[place] = problem.model.outputs(block, direction)
    problem.count_columns(problem.data.n_features)
    return out


def curvature_along(problem: GroupRisk, at: Evaluation, along: Floats) -> Floats:
    """Return the change of the gradient of sum_i q_i R_i, for one output, along several directions, in one pass.

    Parameters
    ----------
    problem : GroupRisk
        The problem.
    at : Evaluation
        The point.
    along : ndarray of shape (n_rows, k)
        Change of the outputs along each direction.

    Returns
    -------
    ndarray of shape (n_parameters, k)
        Changes of the gradient.
    """
    change = along * (problem.data.row_weights(at.q) * problem.loss.curvature(at.margins, problem.data.y))[:, None]
    model = replace(problem.model, n_outputs=along.shape[1])
    change, out = change.reshape(-1, *model.shape[1:]), np.zeros(model.shape)
    for place, block in problem.data.rows.blocks():
        out += model.gradient(block, change[place])
    problem.data.add_up(out)
    problem.count_columns(problem.data.n_features)
    return out.reshape(len(out), -1)


def group_sketches(problem: GroupRisk, margins: Floats, sketch: Sketch) -> Floats:
    """Return the sketch of every group's gradient, for one output, in one pass."""
    data, out = problem.data, np.zeros((problem.n_groups, sketch.n_buckets))
    slopes = problem.loss.value_and_slope(margins, data.y)[1]
    for place, block in data.rows.blocks():
        block.sketch_by_group(data.shares(place), slopes[place], sketch, out)
    if problem.fit_intercept:
        free = data.partial_means(slopes)
        for i in range(problem.n_groups):
            sketch.add(free[i : i + 1], data.n_features, out[i])
    data.add_up(out)
    problem.count_pass()
    return out
