"""The same problem without absent classes."""

import numpy as np

from groupdro.problem.attainment import weighted_labels
from groupdro.problem.group_risk import GroupRisk
from groupdro.problem.softmax import Softmax
from groupdro.utils.types import Indices

__all__ = ["with_present_classes"]


def with_present_classes(problem: GroupRisk) -> tuple[GroupRisk, Indices]:
    """Return a problem with the same infimum, restricted to the classes of rows with positive weight.

    A free intercept can take the output of an absent class to minus infinity, where it contributes nothing to any loss,
    and that class's coefficients are then optimal at zero. So no w attains the infimum, while the problem with only the
    present classes has a minimum that can be certified.

    Parameters
    ----------
    problem : GroupRisk
        The problem of risks.

    Returns
    -------
    problem : GroupRisk
        The problem, unchanged if no class is absent.
    present : ndarray of shape (n_present,)
        The columns of w that it keeps; empty if it keeps all.
    """
    everything = np.empty(0, np.int64)
    if not (problem.fit_intercept and isinstance(problem.loss.plain, Softmax)):
        return problem, everything
    present = np.unique(weighted_labels(problem))
    if not 1 < len(present) < problem.shape[1]:
        return problem, everything
    # Rows without weight may have any class: map them to the nearest.
    y = problem.data.y
    labels = np.searchsorted(present, problem.loss.labels(y)).clip(max=len(present) - 1)
    if y.ndim > 1:
        labels = np.column_stack([labels, y[:, 1 + present]])
    data = problem.data.with_labels(labels, encoded=True)
    return problem.with_data(data, problem.loss.with_outputs(len(present))), present
