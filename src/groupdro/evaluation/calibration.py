"""How well predictions are calibrated in each group."""

import numpy as np

from groupdro.data.grouping import Grouping
from groupdro.evaluation.outputs import Outputs
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
    if not outputs.classifies:
        return {"bias": grouping.means(outputs.residual, weights)}
    if not outputs.has_probabilities:
        return {}
    m = len(grouping.names)
    each = np.ones(len(outputs.y)) if weights is None else weights
    sure = outputs.probabilities.max(axis=1)
    apart = sure - outputs.right
    bins = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
    rows, group = grouping.members, grouping.group_of_members
    gaps = np.bincount(group * _BINS + bins[rows], weights=(each * apart)[rows], minlength=m * _BINS)
    return {
        "overconfidence": grouping.means(apart, weights),
        "ece": np.abs(gaps).reshape(m, _BINS).sum(axis=1) / grouping.sums(each),
    }
