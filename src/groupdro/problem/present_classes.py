"""The same problem without absent classes."""

from dataclasses import replace

import numpy as np

from groupdro.losses import Softmax
from groupdro.problem.attainment import weighted_labels
from groupdro.problem.problem import Problem
from groupdro.utils.types import Indices

__all__ = ["with_present_classes"]


def with_present_classes(problem: Problem) -> tuple[Problem, Indices]:
    """Return a problem with the same infimum, restricted to the classes of rows with positive weight.

    A free intercept can take the output of an absent class to minus infinity, where it contributes nothing to any loss,
    and that class's coefficients are then optimal at zero. So no w attains the infimum, while the problem with only the
    present classes has a minimum that can be certified.

    Parameters
    ----------
    problem : Problem
        The problem of risks.

    Returns
    -------
    problem : Problem
        The problem, unchanged if no class is absent.
    present : ndarray of shape (n_present,)
        The columns of w that it keeps; empty if it keeps all.
    """
    everything = np.empty(0, np.int64)
    if not (problem.fit_intercept and isinstance(problem.loss, Softmax)):
        return problem, everything
    present = np.unique(weighted_labels(problem))
    if not 1 < len(present) < problem.shape[1]:
        return problem, everything
    # Rows without weight may have any class: map them to the nearest.
    labels = np.searchsorted(present, problem.data.y).clip(max=len(present) - 1)
    data = problem.data.with_labels(labels, encoded=True)
    if data.row_offsets.size:
        data = replace(data, row_offsets=data.row_offsets[:, present])
    return problem.with_rows(data, problem.loss.with_outputs(len(present)), len(present)), present
