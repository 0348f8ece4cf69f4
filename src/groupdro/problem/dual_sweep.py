"""A sweep of ascent on the dual, counted."""

import numpy as np

from groupdro.kernels.arguments import DualPoint
from groupdro.kernels.dual import dual_sweep
from groupdro.problem.group_risk import GroupRisk
from groupdro.utils.types import Indices

__all__ = ["sweep"]


def sweep(
    problem: GroupRisk, order: Indices, point: DualPoint, proximal: float, relaxation: float
) -> tuple[float, float]:
    """Visit all groups in order, which reads their rows twice; see `kernels.dual`."""
    data, levels = problem.data, problem.group_values(np.zeros(problem.n_groups))
    members, penalty = (data.offsets, data.members, data.member_weights), problem.domain.ball.penalty  # type: ignore[union-attr]
    found = dual_sweep(problem.flat, members, order, levels, point, penalty, proximal, relaxation)
    problem.count_pass()
    problem.count_columns(data.n_features)
    return found
