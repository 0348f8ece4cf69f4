"""How well predictions are calibrated in each group."""

import numpy as np

from groupdro.data.grouping import Grouping
from groupdro.evaluation.metrics import Outputs
from groupdro.utils.types import Floats

__all__ = ["calibration"]

_BINS = 10  # of the expected calibration error


def calibration(outputs: Outputs, weights: Floats | None, grouping: Grouping) -> dict[str, Floats]:
    """Return the calibration of a model in each group.

    Parameters
    ----------
    outputs : Outputs
        What the model predicts.
    weights : ndarray of shape (n_rows,) or None
        Weights of the rows.
    grouping : Grouping
        The groups.

    Returns
    -------
    dict of str to ndarray of shape (n_groups,)
        "bias" of a regressor; "overconfidence" and "ece" of a classifier with probabilities.
    """
    m, rows = len(grouping.names), grouping.members
    group = grouping.group_of_members
    each = np.ones(len(rows)) if weights is None else weights[rows]
    total = np.bincount(group, weights=each, minlength=m)
    if not outputs.classifies:
        return {"bias": np.bincount(group, weights=each * outputs.residual[rows], minlength=m) / total}
    if not outputs.has_probabilities:
        return {}
    sure = outputs.probabilities[rows].max(axis=1)
    apart = sure - outputs.right[rows]
    bins = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(group * _BINS + bins, weights=each * apart, minlength=m * _BINS)
    return {
        "overconfidence": np.bincount(group, weights=each * apart, minlength=m) / total,
        "ece": np.abs(gaps).reshape(m, _BINS).sum(axis=1) / total,
    }
