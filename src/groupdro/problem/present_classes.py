"""The same problem without classes that no row has."""

import numpy as np

from groupdro.problem.attainment import weighted_labels
from groupdro.problem.group_risk import GroupRisk
from groupdro.problem.softmax import Softmax
from groupdro.utils.types import Indices

__all__ = ["with_present_classes"]


def with_present_classes(problem: GroupRisk) -> tuple[GroupRisk, Indices]:
    """Return a problem of the same infimum that has only the classes which rows of positive weight have.

    A free intercept can take the output of an absent class to minus infinity, where it adds nothing to any loss, and
    the coefficients of that class are then best at zero. So no w attains the infimum, while the problem of the present
    classes has a minimum, which can be certified.

    Parameters
    ----------
    problem : GroupRisk
        The problem of risks.

    Returns
    -------
    problem : GroupRisk
        The problem, the same one where nothing is absent.
    present : ndarray of shape (n_present,)
        The columns of w that it has; empty where it has all of them.
    """
    everything = np.empty(0, np.int64)
    if not (problem.fit_intercept and isinstance(problem.loss.plain, Softmax)):
        return problem, everything
    present = np.unique(weighted_labels(problem))
    if not 1 < len(present) < problem.shape[1]:
        return problem, everything
    # Rows without weight may have any class: they take the nearest.
    y = problem.data.y
    labels = np.searchsorted(present, problem.loss.labels(y)).clip(max=len(present) - 1)
    if y.ndim > 1:
        labels = np.column_stack([labels, y[:, 1 + present]])
    data = problem.data.with_labels(labels, encoded=True)
    return problem.with_data(data, problem.loss.with_outputs(len(present))), present
