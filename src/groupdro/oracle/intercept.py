"""The optimal intercept for given row weights, computed from the margins without reading X."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from groupdro.losses import Loss, Total, alone
from groupdro.utils.types import Array, Floats

__all__ = ["best_shift", "zero_of_slope"]

_MOST_EVALS = 60  # of one output: halving alone then leaves no digit
_MOST_STEPS = 10
_BALANCED = 1e-9  # imbalance relative to the slopes at which Newton's method stops; `Loss.balance` removes the rest
_ROUNDING = 1e-12  # of a sum of losses, by which steps near the optimum may seem to increase it
_BLOCK = 1 << 16  # outputs that are processed together, so that they stay in a cache
_LEAST_ROWS = 1 << 10  # so that a product of a block with itself outweighs adding its result


def best_shift(
    loss: Loss, margins: Floats, y: Array, row_weights: Floats, total: Total = alone
) -> tuple[Any, Floats, int]:
    """Find the shift of all margins that nearly minimises the weighted loss.

    Parameters
    ----------
    loss : Loss
        The loss.
    margins : ndarray of shape (n_rows,) or (n_rows, n_outputs)
        Outputs of the rows.
    y, row_weights : ndarray of shape (n_rows,)
        Labels and weights.
    total : callable
        Adds local sums over rows to those of other workers.

    Returns
    -------
    shift : float or ndarray of shape (n_outputs,)
        The shift.
    slopes : ndarray, shaped as margins
        Slopes of the losses at the shifted margins, in float64; rows without weight may have zeros.
    n_evals : int
        Number of shifts at which all rows were evaluated.
    """
    if margins.ndim == 1:
        return _one_output(loss, margins, y, row_weights, total)
    return _many_outputs(loss, margins, y, row_weights, total)


def _one_output(loss: Loss, margins: Floats, y: Array, row_weights: Floats, total: Total) -> tuple[float, Floats, int]:
    """Find where the weighted slope is zero."""
    slopes = np.empty(0)

    def derivatives(shift: float) -> tuple[float, float, float]:
        nonlocal slopes
        slopes = loss.value_and_slope(margins + shift, y)[1]
        bend = loss.curvature(margins + shift, y)
        sums = total(np.array([row_weights @ slopes, row_weights @ bend, 1e-12 * (row_weights @ np.abs(slopes))]))
        return float(sums[0]), float(sums[1]), float(sums[2])

    shift, n_evals = zero_of_slope(derivatives)
    return shift, slopes, n_evals


def zero_of_slope(
    derivatives: Callable[[float], tuple[float, float, float]], stride: float = 1.0, most: int = _MOST_EVALS
) -> tuple[float, int]:
    """Find where a slope that never falls is zero, by Newton's method safeguarded by a bracket.

    Parameters
    ----------
    derivatives : callable
        Returns the slope at a shift, its derivative, and the size up to which a slope there counts as zero.
    stride : float
        Length of the first step up to which Newton's method is trusted; it doubles as long as the zero is not enclosed.
    most : int
        Largest number of evaluations.

    Returns
    -------
    float, int
        The last shift that was evaluated, and the number of evaluations.
    """
    low, high = -np.inf, np.inf
    following = 0.0
    n_evals = 0
    while True:
        shift = following
        slope, curvature, negligible = derivatives(shift)
        n_evals += 1
        if abs(slope) <= negligible or n_evals == most:
            return shift, n_evals
        low, high = (shift, high) if slope < 0 else (low, shift)
        newton = shift - slope / curvature if curvature > 0 else np.inf
        if low < newton < high and abs(newton - shift) <= stride:
            following = newton
        elif np.isinf(low) or np.isinf(high):
            following = shift - float(np.sign(slope)) * stride
            stride = 2.0 * stride
        else:
            following = 0.5 * (low + high)


def _many_outputs(
    loss: Loss, margins: Floats, y: Array, row_weights: Floats, total: Total
) -> tuple[Floats, Floats, int]:
    """Apply damped Newton's method to one intercept per class.

    Each step evaluates all rows once and forms the Hessian from the slopes found there.
    """
    C = margins.shape[1]
    shift = np.zeros(C)
    value, slope, size, slopes = _sums_at(loss, margins, shift, y, row_weights, total)
    n_evals = 1
    for _ in range(_MOST_STEPS):
        if (np.abs(slope) <= _BALANCED * size).all():
            break
        hessian = np.zeros((C, C))
        for rows in _blocks(row_weights, C):
            hessian += loss.summed_curvature(margins[rows] + shift, slopes[rows], y[rows], row_weights[rows])
        hessian = total(hessian)
        # Equal shifts of all classes have no curvature and no slope; a small ridge makes the system regular.
        hessian[np.diag_indices(C)] += 1e-10 + 1e-10 * np.trace(hessian)
        step = np.linalg.solve(hessian, slope)
        for _ in range(20):
            trial = _sums_at(loss, margins, shift - step, y, row_weights, total)
            n_evals += 1
            if trial[0] <= value + _ROUNDING * abs(value):
                break
            step *= 0.5
        else:
            break
        shift = shift - step
        value, slope, size, slopes = trial
    return shift, slopes, n_evals


def _sums_at(
    loss: Loss, margins: Floats, shift: Floats, y: Array, row_weights: Floats, total: Total
) -> tuple[float, Floats, Floats, Floats]:
    """Return the weighted sums of the losses, of their slopes and of the slopes' absolute values, and the slopes."""
    slopes = np.zeros(margins.shape)  # of rows without weight too, for which any dual will do
    sums = np.zeros((2, margins.shape[1]))
    value = np.zeros(1)
    for rows in _blocks(row_weights, margins.shape[1]):
        losses, slopes[rows] = loss.value_and_slope(margins[rows] + shift, y[rows])
        value += row_weights[rows] @ losses
        sums += row_weights[rows] @ slopes[rows], row_weights[rows] @ np.abs(slopes[rows])
    found = total(np.concatenate([value, sums.ravel()]))
    slope, size = found[1:].reshape(sums.shape)
    return float(found[0]), slope, size, slopes


def _blocks(row_weights: Floats, n_outputs: int) -> Iterator[slice]:
    """Return the ranges of rows to process together, without those in which no row has weight."""
    size = max(_LEAST_ROWS, _BLOCK // n_outputs)
    ranges = (slice(start, start + size) for start in range(0, len(row_weights), size))
    return (rows for rows in ranges if row_weights[rows].any())
