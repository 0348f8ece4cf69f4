"""The optimal intercept for given row weights, computed from the margins without reading X."""

from typing import Any

import numpy as np

from groupdro.losses import Loss, Total, alone
from groupdro.utils.types import Array, Floats

__all__ = ["best_shift"]


def best_shift(loss: Loss, margins: Floats, y: Array, row_weights: Floats, total: Total = alone) -> Any:
    """Return the shift of all margins (a number, or one per class) that nearly minimises the weighted loss.

    `total` adds local sums over rows to those of other workers.
    """
    if margins.ndim == 1:
        return _one_output(loss, margins, y, row_weights, total)
    return _many_outputs(loss, margins, y, row_weights, total)


def _one_output(loss: Loss, margins: Floats, y: Array, row_weights: Floats, total: Total) -> float:
    """Apply Newton's method, safeguarded by a bracket of the root of the slope."""
    low = -np.inf
    high = np.inf
    shift = 0.0
    stride = 1.0
    for _ in range(60):
        slopes = loss.value_and_slope(margins + shift, y)[1]
        bend = loss.curvature(margins + shift, y)
        sums = total(np.array([row_weights @ slopes, row_weights @ np.abs(slopes), row_weights @ bend]))
        slope, size, curvature = (float(value) for value in sums)
        if abs(slope) <= 1e-12 * size:
            break
        low, high = (shift, high) if slope < 0 else (low, shift)
        newton = shift - slope / curvature if curvature > 0 else np.inf
        if low < newton < high and abs(newton - shift) <= stride:
            shift = newton
        elif np.isinf(low) or np.isinf(high):
            shift = shift - np.sign(slope) * stride
            stride = 2.0 * stride
        else:
            shift = 0.5 * (low + high)
    return shift


def _many_outputs(loss: Loss, margins: Floats, y: Array, row_weights: Floats, total: Total) -> Floats:
    """Apply damped Newton's method to one intercept per class."""
    shifts = np.zeros(margins.shape[1])

    def value_at(shifts: Floats) -> float:
        return float(total(np.array([row_weights @ loss.value(margins + shifts, y)]))[0])

    value = value_at(shifts)
    for _ in range(10):
        times = loss.curvature_product(margins + shifts, y)
        slope = total(row_weights @ loss.value_and_slope(margins + shifts, y)[1])
        if np.abs(slope).max() <= 1e-12:
            break
        hessian = total(np.stack([row_weights @ times(np.broadcast_to(e, margins.shape)) for e in np.eye(len(shifts))]))
        # Equal shifts of all classes have no curvature and no slope; a small ridge makes the system regular.
        hessian[np.diag_indices_from(hessian)] += 1e-10 + 1e-10 * np.trace(hessian)
        step = np.linalg.solve(hessian, slope)
        for _ in range(20):
            trial = value_at(shifts - step)
            if trial <= value:
                break
            step *= 0.5
        else:
            break
        shifts = shifts - step
        value = trial
    return shifts
