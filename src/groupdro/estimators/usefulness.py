"""Whether a fitted model is better than a constant on the rows that determine it."""

import numpy as np
from scipy.optimize import minimize

from groupdro.data import GroupedData
from groupdro.losses import Loss
from groupdro.utils.types import Floats

__all__ = ["least_of_constants"]


def least_of_constants(data: GroupedData, loss: Loss, q: Floats, *, free: bool) -> float:
    """Return the least weighted loss of a model without features.

    Parameters
    ----------
    data : GroupedData
        The rows, with encoded labels.
    loss : Loss
        The loss.
    q : ndarray of shape (n_groups,)
        Weights of the groups.
    free : bool
        Whether the model has an intercept. Otherwise it is 0.

    Returns
    -------
    float
        The loss.
    """
    weights = data.row_weights(q)
    kept = np.flatnonzero(weights)
    weights = weights[kept]
    y = loss.encode(data.y[kept])
    n_outputs = loss.n_outputs(loss.encode(data.y))
    shape = (len(y),) if n_outputs == 1 else (len(y), n_outputs)
    fixed = data.row_offsets[kept] if data.row_offsets.size else np.zeros(shape)
    start = np.full(n_outputs, weights @ (y - fixed) / weights.sum() if loss.of_residual else 0.0)
    if not free:
        return float(weights @ loss.value(fixed, y))

    def value_and_slope(constant: Floats) -> tuple[float, Floats]:
        losses, slopes = loss.value_and_slope(fixed + (constant if n_outputs > 1 else constant[0]), y)
        return float(weights @ losses), np.atleast_1d(weights @ slopes)

    return float(minimize(value_and_slope, start, jac=True, method="L-BFGS-B").fun)
