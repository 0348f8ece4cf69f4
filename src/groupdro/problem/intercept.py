"""The intercept that is best for given weights of the rows, found from their margins without reading X."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from groupdro.problem.losses import Loss

__all__ = ["best_shift"]

Floats = NDArray[np.float64]


def best_shift(loss: Loss, margins: Floats, y: NDArray[Any], row_weights: Floats) -> Any:
    """Return what to add to all margins (a number, or one a class) to minimise the weighted loss, nearly."""
    if margins.ndim == 1:
        return _one_output(loss, margins, y, row_weights)
    return _many_outputs(loss, margins, y, row_weights)


def _one_output(loss: Loss, margins: Floats, y: NDArray[Any], row_weights: Floats) -> float:
    """Newton's method, held in a bracket of the root of the slope."""
    low, high, shift, stride = -np.inf, np.inf, 0.0, 1.0
    for _ in range(60):
        slopes = loss.value_and_slope(margins + shift, y)[1]
        slope = float(row_weights @ slopes)
        if abs(slope) <= 1e-12 * float(row_weights @ np.abs(slopes)):
            break
        low, high = (shift, high) if slope < 0 else (low, shift)
        curvature = float(row_weights @ loss.curvature(margins + shift, y))
        newton = shift - slope / curvature if curvature > 0 else np.inf
        if low < newton < high and abs(newton - shift) <= stride:
            shift = newton
        elif np.isinf(low) or np.isinf(high):
            shift, stride = shift - np.sign(slope) * stride, 2.0 * stride
        else:
            shift = 0.5 * (low + high)
    return shift


def _many_outputs(loss: Loss, margins: Floats, y: NDArray[Any], row_weights: Floats) -> Floats:
    """Damped Newton's method on one intercept a class."""
    shifts = np.zeros(margins.shape[1])
    value = float(row_weights @ loss.value(margins, y))
    for _ in range(10):
        p = loss.curvature(margins + shifts, y)
        slope = row_weights @ loss.value_and_slope(margins + shifts, y)[1]
        if np.abs(slope).max() <= 1e-12:
            break
        hessian = np.diag(row_weights @ p) - (p * row_weights[:, None]).T @ p
        # The direction of equal shifts has no curvature and no slope; a small ridge makes the system regular.
        hessian[np.diag_indices_from(hessian)] += 1e-10 + 1e-10 * np.trace(hessian)
        step = np.linalg.solve(hessian, slope)
        for _ in range(20):
            trial = float(row_weights @ loss.value(margins + shifts - step, y))
            if trial <= value:
                break
            step *= 0.5
        else:
            break
        shifts, value = shifts - step, trial
    return shifts
