"""A sweep of ascent on the dual, counted."""

import numpy as np

from groupdro.kernels.arguments import DualPoint
from groupdro.kernels.dual import dual_sums, dual_sweep
from groupdro.problem.group_risk import GroupRisk
from groupdro.utils.types import Indices

__all__ = ["sweep"]

_CALL_MEMBERS = 1 << 19  # an interrupt can arrive only between calls


def sweep(
    problem: GroupRisk, order: Indices, point: DualPoint, proximal: float, relaxation: float
) -> tuple[float, float]:
    """Visit all groups in order, which reads their rows twice; see `kernels.dual`.

    Returns
    -------
    objective, violation : float
        The dual objective, without the intercept's part, and minus the weighted sum of the slopes.
    """
    data, levels = problem.data, problem.group_values(np.zeros(problem.n_groups))
    members, penalty = (data.offsets, data.members, data.member_weights), problem.domain.ball.penalty  # type: ignore[union-attr]
    sums = dual_sums(data.offsets, data.member_weights, point)
    calls = np.cumsum(data.group_sizes[order]) // _CALL_MEMBERS
    for part in np.split(order, np.flatnonzero(np.diff(calls)) + 1):
        dual_sweep(problem.flat, members, part, levels, point, sums, penalty, proximal, relaxation)
    problem.count_pass()
    problem.count_columns(data.n_features)
    height, square, total = sums.tolist()
    return height - 0.5 * penalty * square, total
