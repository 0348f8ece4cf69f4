"""Checks of custom losses: a wrong slope or conjugate would give bounds that look right but are wrong."""

import numpy as np

from groupdro.kernels import losses as kernels
from groupdro.losses import Loss, ScalarLoss, Softmax
from groupdro.utils.types import Array, Floats

__all__ = ["check_loss"]


_ROWS = 50  # rows whose labels are tried
_SCALES = (0.1, 1.0, 10.0)  # scales of the outputs to try
_CLOSE = 1e-6
_SMOOTH_SHARE = 0.9  # of outputs at which the curvature must be the derivative of the slope


def check_loss(loss: Loss, y: Array, n_outputs: int, *, fit_intercept: bool) -> None:
    """Refuse a loss whose parts contradict each other on some rows of the data.

    The package's own losses are covered by its tests. For others, several outputs are tried for each of several labels.
    Losses must be finite and nonnegative, slopes their derivatives, conjugates equal to slope times output minus loss
    at the slopes and no smaller elsewhere, curvatures the derivatives of slopes, and balanced duals must sum to zero.

    Parameters
    ----------
    loss : Loss
        The loss.
    y : ndarray of shape (n_rows,)
        Encoded labels.
    n_outputs : int
        Outputs of the model.
    fit_intercept : bool
        Whether the duals will be balanced.
    """
    if type(loss).__module__ == "groupdro.losses" or not len(y):
        return
    name = type(loss).__name__
    if isinstance(loss, Softmax):
        raise ValueError(f"loss {name} extends Softmax, but cannot change its compiled steps; extend Loss instead.")
    y = y[np.unique(np.linspace(0, len(y) - 1, _ROWS).astype(int))]
    rng = np.random.default_rng(0)
    shape = (len(y),) if n_outputs == 1 else (len(y), n_outputs)
    centre = loss.typical_outputs(y, n_outputs)
    # Overflows and invalid operations show in the returned values.
    with np.errstate(all="ignore"):
        for scale in _SCALES:
            u = centre + scale * rng.normal(size=shape)
            fault = _fault(loss, u, scale, y, rng, fit_intercept=fit_intercept)
            if fault:
                raise ValueError(f"loss {name} cannot be certified: {fault}.")


def _fault(
    loss: Loss, u: Floats, scale: float, y: Array, rng: np.random.Generator, *, fit_intercept: bool
) -> str | None:
    """Return what is wrong with a loss at the given outputs, which differ by about `scale`, or None."""
    if isinstance(loss, ScalarLoss) and not _is_of_its_kernel(loss, u, y):
        return (
            "compiled code computes something else for its code; extend Loss, not ScalarLoss or a loss of the package"
        )
    values, slopes = loss.value_and_slope(u.copy(), y)
    if not np.isfinite(values).all() or not np.isfinite(slopes).all() or slopes.shape != u.shape:
        return "its values or slopes are not finite, or not one per output"
    size = 1.0 + np.abs(values).max()
    if values.min() < 0 or loss.conjugate(np.zeros_like(u), y).max() > _CLOSE * size:
        return "it may be negative (add a constant that depends on the label)"
    if not np.allclose(loss.value(u.copy(), y), values, rtol=_CLOSE, atol=_CLOSE * size):
        return "value and value_and_slope give different losses"
    direction = rng.normal(size=u.shape)
    step = 1e-3 * scale
    rise = loss.value(u + step * direction, y) - loss.value(u - step * direction, y)
    along = _dot(slopes, direction)
    rounding = 1e-15 * (size + (1.0 + np.abs(u).max()) * (1.0 + np.abs(slopes).max())) / step
    if not np.allclose(rise / (2.0 * step), along, rtol=0.0, atol=1e-2 * (1.0 + np.abs(along).max()) + rounding):
        return "its slope is not the derivative of its value"
    reach = 1.0 + np.abs(_dot(slopes, u)) + values
    if not (np.abs(values + loss.conjugate(slopes, y) - _dot(slopes, u)) <= _CLOSE * reach).all():
        return "its conjugate at a slope is not slope times output minus value"
    others = loss.value_and_slope(u + direction, y)[1]
    if (values + loss.conjugate(others, y) < _dot(others, u) - _CLOSE * reach).any():
        return "its conjugate is too small, or it is not convex"
    if fit_intercept:
        weights = rng.random(len(y)) + 0.1
        balanced = loss.balance(slopes.copy(), y, weights)
        left = np.abs(np.tensordot(weights, balanced, axes=1)).max()
        if not left <= 1e-9 * (weights.sum() * np.abs(slopes).max() + 1e-300):
            return "balanced duals do not sum to zero"
    product = loss.curvature_product(u.copy(), y)(direction.copy())
    bent = (loss.value_and_slope(u + step * direction, y)[1] - loss.value_and_slope(u - step * direction, y)[1]) / step
    if product.shape != u.shape or not np.isfinite(product).all():
        return "its curvature is not finite, or not one number per output"
    # A few rows may lie at a kink of the slope, where any value between those on both sides is right.
    near = np.abs(0.5 * bent - product) <= 1e-2 * (1.0 + np.abs(product)) + rounding / step
    if near.mean() < _SMOOTH_SHARE:
        return "its curvature is not the derivative of its slope"
    return None


def _dot(a: Floats, b: Floats) -> Floats:
    return np.asarray(a * b if a.ndim == 1 else (a * b).sum(axis=1))


def _is_of_its_kernel(loss: ScalarLoss, u: Floats, y: Array) -> bool:
    """Return whether a loss agrees with the kernel for its code."""
    code, parameter = loss.kernel
    if code not in range(kernels.N_LOSSES):
        return False
    values = np.empty_like(u)
    slopes = np.empty_like(u)
    conjugates = np.empty_like(u)
    kernels.losses_and_slopes(code, parameter, u, y, values, slopes)
    kernels.conjugates(code, parameter, slopes, y, conjugates)
    ours = *loss.value_and_slope(u, y), loss.conjugate(slopes, y)
    return all(np.array_equal(a, b) for a, b in zip(ours, (values, slopes, conjugates), strict=True))
