"""Losses of a linear model's output.

A loss is convex in the output u of a row (a number, or one number per class), at least 0, and provides

    value and slope      l(u), l'(u)
    conjugate            l*(a) = sup_u a.u - l(u), used for lower bounds; infinite outside its domain, a convex set
                         that contains 0 (because l >= 0), so that duals may be averaged and scaled down
    balanced duals       duals whose weighted sum is exactly zero, required for an unbounded intercept
    constants            how fast l and l' change with u, from which step sizes are derived
    curvature            l''(u), or its product with a change of several outputs, for second-order steps
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from groupdro.kernels import losses as kernels
from groupdro.utils.arguments import check_number
from groupdro.utils.types import Array, Floats, KernelLoss

__all__ = ["Huber", "Logistic", "Loss", "ScalarLoss", "Squared", "SquaredHinge"]


_TINY = float(np.finfo(np.float64).tiny)
_NEXT_TO_ONE = float(np.nextafter(1.0, 0.0))

#: Turns sums over local rows into sums over all rows.
Total = Callable[[Floats], Floats]
#: Multiplies a change of the outputs by the second derivative of a loss.
Product = Callable[[Floats], Floats]


def alone(sums: Floats) -> Floats:
    """Return sums as they are: there are no other workers."""
    return sums


class Loss(ABC):
    """Base class of losses. Shapes: (n_rows,) for one output, or (n_rows, n_outputs).

    ``duals`` generalise slopes: any values in the domain of the conjugate give a valid lower bound, and the slopes at a
    point give that of its linearisation.
    """

    name: str

    @abstractmethod
    def encode(self, y: Array) -> Array:
        """Check labels and return them in the loss's encoding."""

    def n_outputs(self, y: Array) -> int:
        """Return the number of outputs of the model, given encoded labels."""
        del y
        return 1

    def with_outputs(self, n_outputs: int) -> "Loss":
        """Return the loss with its number of outputs fixed, regardless of the labels seen later."""
        del n_outputs
        return self

    @abstractmethod
    def value_and_slope(self, u: Floats, y: Array) -> tuple[Floats, Floats]:
        """Return l(u) and l'(u) for each row."""

    @abstractmethod
    def value(self, u: Floats, y: Array) -> Floats:
        """Return l(u) for each row."""

    def curvature(self, u: Floats, y: Array) -> Floats:
        """Return l''(u) for each row of one output, or a generalised second derivative if l' has a kink."""
        raise NotImplementedError(f"{type(self).__name__} has no curvature.")

    def curvature_product(self, u: Floats, y: Array) -> Product:
        """Return the function that multiplies a change of the outputs, shaped as u, by l''(u) row by row.

        A loss with several outputs implements this instead of `curvature`: its second derivative is a matrix per row.
        """
        if u.ndim > 1:
            raise NotImplementedError(
                f"{type(self).__name__} has several outputs and must implement curvature_product, or use solver='aleg'."
            )
        curvature = self.curvature(u, y)
        return lambda along: curvature * along

    def typical_outputs(self, y: Array, n_outputs: int) -> Floats:
        """Return outputs near which `check_loss` may evaluate the loss without overflow: by default zero."""
        return np.zeros(len(y) if n_outputs == 1 else (len(y), n_outputs))

    @abstractmethod
    def conjugate(self, duals: Floats, y: Array) -> Floats:
        """Return l*(duals) for each row."""

    @abstractmethod
    def balance(self, duals: Floats, y: Array, row_weights: Floats, total: Total = alone) -> Floats:
        """Return duals near the given ones, in the conjugate's domain, whose weighted sum is zero.

        `total` adds local sums over rows to those of other workers.
        """

    @abstractmethod
    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound |l'| for each row over outputs |u| <= reach."""

    #: Upper bound on l'' over all outputs and labels; infinite if there is none.
    smoothness: float

    #: Whether `kernels.spectral` implements the loss, which then has several outputs.
    in_blocks: ClassVar[bool] = False

    @property
    def kernel(self) -> KernelLoss | None:
        """Code and parameters of the loss in kernels for one output; None if they do not implement it."""
        return None

    #: Whether l depends only on output minus label, so that a free intercept absorbs a shift of the labels.
    of_residual: ClassVar[bool] = False

    def mean(self, u: Floats) -> Floats:
        """Return predictions in the units of the labels, given outputs: by default the outputs."""
        return u

    def output(self, mean: Floats) -> Floats:
        """Return outputs, given predictions in the units of the labels."""
        return mean

    def central_output(self, y: Array, offsets: Floats, row_weights: Floats, total: Total = alone) -> float:
        """Return an intercept from which to start, given the offsets of the rows or an empty array: by default 0."""
        del y, offsets, row_weights, total
        return 0.0

    @property
    def has_kink(self) -> bool:
        """Whether the slope jumps, so that `solve` uses `smoothed` losses."""
        return False

    def smoothed(self, width: float) -> "Loss":
        """Return a loss with curvature that is smaller by at most a multiple of `width`; by default the loss itself."""
        del width
        return self

    def __repr__(self) -> str:
        # Checkpoints identify a loss by its repr, which must show every parameter.
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def unattained(self, y: Array) -> str | None:
        """Return why a free intercept has no finite optimum for these labels, or None if it has one."""
        del y
        return None

    def separates(self, u: Floats, y: Array) -> bool:
        """Return whether the loss tends to zero, without reaching it, as these outputs are scaled up."""
        del u, y
        return False

    def vanishes(self, y: Array) -> bool:
        """Return whether a constant output is certain to bring the loss to zero, or arbitrarily close."""
        del y
        return False


class ScalarLoss(Loss):
    """A loss of one output, computed by a kernel selected by its code."""

    code: ClassVar[int]

    @property
    def _parameters(self) -> tuple[float, float]:
        return 0.0, 0.0

    @property
    def kernel(self) -> KernelLoss:
        """Code and parameters of the loss in kernels."""
        return self.code, self._parameters

    def value_and_slope(self, u: Floats, y: Array) -> tuple[Floats, Floats]:
        """Return loss and slope from the kernel."""
        losses = np.empty_like(u)
        slopes = np.empty_like(u)
        kernels.losses_and_slopes(self.code, self._parameters, u, y, losses, slopes)
        return losses, slopes

    def value(self, u: Floats, y: Array) -> Floats:
        """Return the loss from the kernel."""
        losses = np.empty_like(u)
        kernels.values_only(self.code, self._parameters, u, y, losses)
        return losses

    def curvature(self, u: Floats, y: Array) -> Floats:
        """Return the curvature from the kernel."""
        out = np.empty_like(u)
        kernels.curvatures(self.code, self._parameters, u, y, out)
        return out

    def conjugate(self, duals: Floats, y: Array) -> Floats:
        """Return the conjugate from the kernel."""
        out = np.empty_like(duals)
        kernels.conjugates(self.code, self._parameters, duals, y, out)
        return out

    def balance(self, duals: Floats, y: Array, row_weights: Floats, total: Total = alone) -> Floats:
        """Scale down the duals of the heavier sign."""
        # This keeps every dual between zero and its old value, hence in the domain.
        del y
        mass = row_weights * duals
        up, down = total(np.array([mass[mass > 0].sum(), -mass[mass < 0].sum()]))
        if up > down:
            return np.where(duals > 0, duals * (down / up), duals)
        if down > up:
            return np.where(duals < 0, duals * (up / down), duals)
        return duals


class VanishesAtEqualLabels(ScalarLoss):
    """A loss that a constant output brings to zero, or arbitrarily close, if all labels are equal."""

    def vanishes(self, y: Array) -> bool:
        """Return whether all labels are equal."""
        return bool((y == y[0]).all())


class _TwoClassLoss(VanishesAtEqualLabels):
    """A loss of the margin y u with labels -1 and +1."""

    def encode(self, y: Array) -> Floats:
        high = y == 1
        if (high | (y == -1)).all():
            return y.astype(np.float64)
        if (high | (y == 0)).all():
            return 2.0 * y.astype(np.float64) - 1.0
        labels = np.unique(y)[:5].tolist()
        raise ValueError(f"y must be -1 and +1, or 0 and 1, for the {self.name} loss; got {labels}.")


class Logistic(_TwoClassLoss):
    """Logistic loss ln(1 + exp(-y u)) of labels -1 and +1.

    |l'| <= 1, l'' <= 1/4. With a = -y p, p in [0, 1]: l*(a) = p ln p + (1 - p) ln(1 - p).
    """

    name = "logistic"
    code = kernels.LOGISTIC
    smoothness = 0.25

    # NumPy's exponentials and logarithms of arrays take a fraction of the time that those of the kernels take.

    def value_and_slope(self, u: Floats, y: Array) -> tuple[Floats, Floats]:
        """Return the loss, and minus y times the probability of the other label."""
        t = y * u
        e = np.exp(-np.abs(t))  # at most 1
        other = np.where(t >= 0.0, e, 1.0) / (1.0 + e)
        return np.log1p(e) + np.maximum(-t, 0.0), -y * other

    def value(self, u: Floats, y: Array) -> Floats:
        """Return the loss."""
        t = y * u
        return np.log1p(np.exp(-np.abs(t))) + np.maximum(-t, 0.0)

    def curvature(self, u: Floats, y: Array) -> Floats:
        """Return the product of the labels' probabilities."""
        del y
        e = np.exp(-np.abs(u))
        return e / np.square(1.0 + e)

    def conjugate(self, duals: Floats, y: Array) -> Floats:
        """Return the negative entropy of p = -y duals."""
        p = -y * duals
        inside = (p >= -kernels.ROUNDING) & (p <= 1.0 + kernels.ROUNDING)
        low, high = np.maximum(p, 0.0), np.maximum(1.0 - p, 0.0)
        # x ln x is 0 at 0, where only the logarithm of a positive number is finite.
        entropy = low * np.log(np.maximum(p, _TINY)) + high * np.log1p(-np.minimum(p, _NEXT_TO_ONE))
        return np.where(inside, entropy, np.inf)

    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound |l'| by 1."""
        del y
        return np.ones_like(reach)

    def separates(self, u: Floats, y: Array) -> bool:
        """Return whether every output has the sign of its label."""
        return bool((y * u > 0).all())

    def unattained(self, y: Array) -> str | None:
        """Report if only one class is present: the loss then decreases forever with the intercept."""
        if (y == y[0]).all():
            return "all labels are the same, so the loss decreases forever as the intercept grows"
        return None


class SquaredHinge(_TwoClassLoss):
    """Squared hinge loss max(0, 1 - y u)^2 / 2 of labels -1 and +1.

    |l'| <= 1 + |u|, l'' <= 1. With a = -y p, p >= 0: l*(a) = p^2 / 2 - p.
    """

    name = "squared_hinge"
    code = kernels.SQUARED_HINGE
    smoothness = 1.0

    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound |l'| by 1 + |u|."""
        del y
        return 1.0 + reach


class ResidualLoss(VanishesAtEqualLabels):
    """A loss of the residual u - y."""

    of_residual = True

    def encode(self, y: Array) -> Floats:
        return y.astype(np.float64)

    def typical_outputs(self, y: Array, n_outputs: int) -> Floats:
        """Return the labels, near which the loss is curved."""
        del n_outputs
        return y.astype(np.float64)


class Squared(ResidualLoss):
    """Squared loss (u - y)^2 / 2.

    |l'| <= |u| + |y|, l'' = 1, l*(a) = a^2 / 2 + a y.
    """

    name = "squared"
    code = kernels.SQUARED
    smoothness = 1.0

    def balance(self, duals: Floats, y: Array, row_weights: Floats, total: Total = alone) -> Floats:
        """Subtract the weighted mean: the domain is the whole real line."""
        del y
        moment, mass = total(np.array([(row_weights * duals).sum(), row_weights.sum()]))
        return duals - moment / mass

    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound |l'| by |u| + |y|."""
        return reach + np.abs(y)


class Huber(ResidualLoss):
    """Huber loss: r^2 / 2 up to |r| = delta, delta (|r| - delta / 2) beyond, r = u - y.

    |l'| <= delta, l'' <= 1, l*(a) = a^2 / 2 + a y for |a| <= delta.

    Parameters
    ----------
    delta : float
        Residual at which the loss changes from quadratic to linear, in the units of y.
    """

    name = "huber"
    code = kernels.HUBER
    smoothness = 1.0

    def __init__(self, delta: float = 1.35):
        check_number(delta, "delta", positive=True)
        self.delta = float(delta)

    @property
    def _parameters(self) -> tuple[float, float]:
        return self.delta, 0.0

    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound |l'| by delta, or by the largest residual if that is smaller."""
        return np.minimum(self.delta, reach + np.abs(y))
