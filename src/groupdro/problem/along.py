"""Passes along a direction: how outputs, group values and the gradient change there."""

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
    """Return the change of the gradient of sum_i q_i R_i, for one output, given that of the outputs, in one pass."""
    change = problem.data.row_weights(at.q) * problem.loss.curvature(at.margins, problem.data.y) * along
    out = np.zeros(problem.shape)
    for place, block in problem.data.rows.blocks():
        out += problem.model.gradient(block, change[place])
    problem.data.add_up(out)
    problem.count_columns(problem.data.n_features)
    return out


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
