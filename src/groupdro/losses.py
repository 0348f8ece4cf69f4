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
from functools import reduce
from typing import ClassVar

import numpy as np

from groupdro.kernels import losses as kernels
from groupdro.kernels import softmax as softmax_kernels
from groupdro.utils.arguments import check_number, check_whole, short_repr
from groupdro.utils.types import Array, Floats, Indices, KernelLoss

__all__ = [
    "Gamma",
    "Huber",
    "Logistic",
    "Loss",
    "Poisson",
    "Quantile",
    "Softmax",
    "Squared",
    "SquaredHinge",
    "Tweedie",
]

_LARGEST_OFFSET = 300.0  # the exponentials of offsets are multiplied with each other
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
        return 1

    def with_outputs(self, n_outputs: int) -> "Loss":
        """Return the loss with its number of outputs fixed, regardless of the labels seen later."""
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

    def summed_curvature(self, u: Floats, slopes: Floats, y: Array, row_weights: Floats) -> Floats:
        """Return the weighted sum of l''(u) over the rows, for several outputs: a matrix.

        `slopes` are those at u, from which some losses know their curvature.
        """
        times = self.curvature_product(u, y)
        return np.stack([row_weights @ times(np.broadcast_to(unit, u.shape)) for unit in np.eye(u.shape[1])])

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
        return 0.0

    @property
    def has_kink(self) -> bool:
        """Whether the slope jumps, so that `solve` uses `smoothed` losses."""
        return False

    def smoothed(self, width: float) -> "Loss":
        """Return a loss with curvature that is smaller by at most a multiple of `width`; by default the loss itself."""
        return self

    def __repr__(self) -> str:
        # Checkpoints identify a loss by its repr, which must show every parameter.
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def unattained(self, y: Array) -> str | None:
        """Return why a free intercept has no finite optimum for these labels, or None if it has one."""
        return None

    def separates(self, u: Floats, y: Array) -> bool:
        """Return whether the loss tends to zero, without reaching it, as these outputs are scaled up."""
        return False

    def vanishes(self, y: Array) -> bool:
        """Return whether a constant output is certain to bring the loss to zero, or arbitrarily close."""
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
        return 1.0 + reach


class ResidualLoss(VanishesAtEqualLabels):
    """A loss of the residual u - y."""

    of_residual = True

    def encode(self, y: Array) -> Floats:
        return y.astype(np.float64)

    def typical_outputs(self, y: Array, n_outputs: int) -> Floats:
        """Return the labels, near which the loss is curved."""
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


class LogLinkLoss(VanishesAtEqualLabels):
    """Half the unit deviance of a label y whose mean is exp(u). Its curvature has no bound."""

    smoothness = np.inf
    #: Whether labels must be positive.
    positive: bool

    def encode(self, y: Array) -> Floats:
        """Check that the labels can have such a mean, and return them."""
        labels = y.astype(np.float64)
        wrong = ~(labels > 0) if self.positive else ~(labels >= 0)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            kind = "positive" if self.positive else "at least 0"
            raise ValueError(f"y must be {kind} for the {self.name} loss; got {labels[row]:g} in row {row}.")
        return labels

    def typical_outputs(self, y: Array, n_outputs: int) -> Floats:
        """Return the logarithms of the labels."""
        return np.log(np.maximum(y, 1e-3))

    def mean(self, u: Floats) -> Floats:
        """Return exp(u)."""
        return np.exp(u)

    def output(self, mean: Floats) -> Floats:
        """Return ln(mean)."""
        if not (mean > 0).all():
            raise ValueError(f"the {self.name} loss requires positive predictions, got {mean.min():.3g}.")
        return np.log(mean)

    def central_output(self, y: Array, offsets: Floats, row_weights: Floats, total: Total = alone) -> float:
        """Return the logarithm of the sum of the labels over that of the exposures, whose logarithms are offsets.

        If all labels are 0, as if half a row had the label 1.
        """
        if offsets.size and float(np.abs(offsets).max()) > _LARGEST_OFFSET:
            row = int(np.abs(offsets).argmax())
            size = "large" if offsets[row] > 0 else "small"
            raise ValueError(f"offset is {offsets[row]:.3g} in row {row}, whose exponential is too {size}.")
        exposures = np.exp(offsets) if offsets.size else np.ones(len(y))
        sums = np.array([row_weights @ y, row_weights @ exposures, row_weights.sum(), len(y)])
        labels, exposure, mass, n_rows = total(sums)
        labels = labels if labels > 0 else 0.5 * mass / n_rows
        return float(np.log(labels / exposure)) if exposure > 0 else 0.0

    def unattained(self, y: Array) -> str | None:
        """Report if all labels are 0: the loss then decreases forever as the intercept falls."""
        return None if (y > 0).any() else "all labels are 0, so the loss decreases forever as the intercept falls"

    def balance(self, duals: Floats, y: Array, row_weights: Floats, total: Total = alone) -> Floats:
        """Change the outputs behind the duals by one number."""
        # Where large duals cancel, the first result leaves their rounding.
        return self._balanced(self._balanced(duals, y, row_weights, total), y, row_weights, total)

    @abstractmethod
    def _balanced(self, duals: Floats, y: Array, row_weights: Floats, total: Total) -> Floats:
        """Return duals in the domain whose weighted sum is zero up to the rounding of the given ones."""


class Poisson(LogLinkLoss):
    """Half the Poisson deviance exp(u) - y u + y ln y - y of counts or rates y >= 0, whose mean is exp(u).

    l' = exp(u) - y, l'' = exp(u). For a >= -y: l*(a) = (a + y) ln((a + y) / y) - a.
    """

    name = "poisson"
    code = kernels.POISSON
    positive = False

    def _balanced(self, duals: Floats, y: Array, row_weights: Floats, total: Total) -> Floats:
        """Scale the means a + y so that their sum is that of the labels."""
        duals = np.maximum(duals, -y)
        means = duals + y
        excess, fitted = total(np.array([row_weights @ duals, row_weights @ means]))
        return duals - (excess / fitted) * means if fitted > 0 else np.zeros_like(duals)

    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound |l'| by exp(|u|) + y."""
        with np.errstate(over="ignore"):
            return np.exp(reach) + y


class Gamma(LogLinkLoss):
    """Half the gamma deviance y exp(-u) + u - ln y - 1 of amounts y > 0, whose mean is exp(u).

    l' = 1 - y exp(-u), l'' = y exp(-u). For a <= 1: l*(a) = (1 - a) ln(1 - a) + a (1 + ln y).
    """

    name = "gamma"
    code = kernels.GAMMA
    positive = True

    def _balanced(self, duals: Floats, y: Array, row_weights: Floats, total: Total) -> Floats:
        """Scale the ratios 1 - a so that their mean is 1."""
        duals = np.minimum(duals, 1.0)
        excess, ratios = total(np.array([row_weights @ duals, row_weights @ (1.0 - duals)]))
        return duals - (excess / ratios) * (1.0 - duals) if ratios > 0 else np.zeros_like(duals)

    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound |l'| by 1 + y exp(|u|)."""
        with np.errstate(over="ignore"):
            return 1.0 + y * np.exp(reach)


class Tweedie(LogLinkLoss):
    """Half the Tweedie deviance of amounts y >= 0, many of which are 0, whose mean is exp(u).

    With power p: l' = exp((2 - p) u) - y exp((1 - p) u). The conjugate is found by a root.

    Parameters
    ----------
    power : float
        Power p of the mean to which the variance is proportional, between 1 (`Poisson`) and 2 (`Gamma`).
    """

    name = "tweedie"
    code = kernels.TWEEDIE
    positive = False

    def __init__(self, power: float = 1.5):
        check_number(power, "power")
        if not 1 < power < 2:
            raise ValueError(
                f"power must be between 1 and 2, got {short_repr(power)}; use Poisson or Gamma at the ends."
            )
        self.power = float(power)

    @property
    def _parameters(self) -> tuple[float, float]:
        return self.power, 0.0

    def _balanced(self, duals: Floats, y: Array, row_weights: Floats, total: Total) -> Floats:
        """Shift the outputs that have these slopes by one number, which multiplies both terms of all slopes."""
        duals = np.where((y == 0) & (duals < 0), 0.0, duals)
        u = np.empty_like(duals)
        kernels.outputs_of_duals(self.power, duals, y, u)
        rise = np.exp((2.0 - self.power) * u)  # the slope minus its falling term
        excess, risen = total(np.array([row_weights @ duals, row_weights @ rise]))
        if not risen > 0 or not excess < risen:
            return np.zeros_like(duals)
        share = excess / risen
        return (1.0 - share) ** (1.0 - self.power) * (duals - share * rise)

    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound |l'| by both of its terms."""
        with np.errstate(over="ignore"):
            return np.exp((2.0 - self.power) * reach) + y * np.exp((self.power - 1.0) * reach)


class Quantile(ResidualLoss):
    """Pinball loss max((1 - level) r, -level r), r = u - y, which is smallest at a quantile of y.

    |l'| <= 1; for -level <= a <= 1 - level: l*(a) = a y. A level of 0.5 gives half the absolute error.

    Parameters
    ----------
    level : float
        Share of the labels below the quantile.
    width : float
        Strength of a barrier that keeps slopes inside their interval, which makes the loss smooth: it becomes the
        largest a r + width B(a), B(a) = level ln(1 + a / level) + (1 - level) ln(1 - a / (1 - level)) <= 0. `solve`
        decreases it by itself, and its bounds are those of the pinball loss.
    """

    name = "quantile"
    code = kernels.QUANTILE

    def __init__(self, level: float = 0.5, width: float = 0.0):
        check_number(level, "level", positive=True)
        if level >= 1:
            raise ValueError(f"level must be between 0 and 1, got {short_repr(level)}.")
        check_number(width, "width")
        self.level = float(level)
        self.width = float(width)
        self.smoothness = self.level * (1.0 - self.level) / self.width if self.width > 0 else np.inf

    def central_output(self, y: Array, offsets: Floats, row_weights: Floats, total: Total = alone) -> float:
        """Return the mean of the labels, above the offsets."""
        above = y - offsets if offsets.size else y
        found, mass = total(np.array([row_weights @ above, row_weights.sum()]))
        return float(found / mass)

    def __repr__(self) -> str:
        return f"Quantile(level={self.level!r}" + (f", width={self.width!r})" if self.width else ")")

    @property
    def _parameters(self) -> tuple[float, float]:
        return self.level, self.width

    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound |l'| by the steeper side."""
        return np.full_like(reach, max(self.level, 1.0 - self.level))

    @property
    def has_kink(self) -> bool:
        """Whether the width is 0."""
        return self.width == 0

    def smoothed(self, width: float) -> "Quantile":
        """Return the loss with another width."""
        return Quantile(self.level, width)


def deviance_power(loss: Loss) -> float:
    """Return the power of the mean to which the variance is proportional: 0 unless the loss is half a deviance."""
    powers: dict[type, float] = {Poisson: 1.0, Gamma: 2.0}
    return loss.power if isinstance(loss, Tweedie) else powers.get(type(loss), 0.0)


class Softmax(Loss):
    """Multi-class logistic loss lse(u) - u_y of labels 0 .. C-1, with one output per class.

    |l'| <= sqrt 2, l'' <= 1/2 (Euclidean). With a = p - e_y, p in the simplex: l*(a) = sum_c p_c ln p_c.

    Parameters
    ----------
    n_classes : int, optional
        Number of classes; by default the largest label plus one.
    """

    name = "softmax"
    smoothness = 0.5
    in_blocks = True

    def __init__(self, n_classes: int | None = None):
        if n_classes is not None:
            check_whole(n_classes, "n_classes", least=2)
        self.n_classes = n_classes

    def encode(self, y: Array) -> Indices:
        """Check that labels are integers from 0."""
        if (y != np.floor(y)).any() or (y < 0).any():
            raise ValueError("y must be integers from 0 for the softmax loss. Encode labels first.")
        codes = y.astype(np.int64)
        if self.n_classes is not None and codes.max(initial=0) >= self.n_classes:
            raise ValueError(f"y has label {int(codes.max())}, but n_classes is {self.n_classes}.")
        return codes

    def n_outputs(self, y: Array) -> int:
        """Return the number of classes."""
        return self.n_classes if self.n_classes is not None else max(2, int(y.max()) + 1)

    def with_outputs(self, n_outputs: int) -> "Softmax":
        """Return the loss of this many classes."""
        return Softmax(n_outputs)

    def value_and_slope(self, u: Floats, y: Array) -> tuple[Floats, Floats]:
        """Return the loss and p - e_y."""
        losses, p = self._losses_and_probabilities(u, y)
        softmax_kernels.slopes_of(p, y)
        return losses, p

    def value(self, u: Floats, y: Array) -> Floats:
        """Return the loss."""
        return self._losses_and_probabilities(u, y)[0]

    def curvature_product(self, u: Floats, y: Array) -> Product:
        """Return the product with diag(p) - p p'."""
        p = self._losses_and_probabilities(u, y)[1]

        def times(along: Floats) -> Floats:
            out = np.empty_like(p)
            softmax_kernels.softmax_curvature(p, along, out)
            return out

        return times

    def summed_curvature(self, u: Floats, slopes: Floats, y: Array, row_weights: Floats) -> Floats:
        """Return the weighted sum of diag(p) - p p', where p = slopes + e_y, from one product of matrices."""
        p = slopes.copy()
        p[np.arange(len(y)), y] += 1.0
        means = row_weights @ p
        p *= np.sqrt(row_weights)[:, None]
        return np.diag(means) - p.T @ p

    @staticmethod
    def _losses_and_probabilities(u: Floats, y: Array) -> tuple[Floats, Floats]:
        p, own, totals = np.empty(u.shape), np.empty(len(y)), np.empty(len(y))
        softmax_kernels.below_largest(u, y, p, own)
        np.exp(p, out=p)  # faster than in a kernel
        softmax_kernels.divide_by_sums(p, totals)
        return np.log(totals) - own, p

    def conjugate(self, duals: Floats, y: Array) -> Floats:
        """Return the negative entropy of p = duals + e_y, which must be a distribution up to rounding."""
        p = duals.copy()
        p[np.arange(len(y)), y] += 1.0
        ones = np.ones(p.shape[1])  # with them products are faster sums over few columns
        inside = (reduce(np.minimum, p.T) >= -1e-14) & (np.abs(p @ ones - 1.0) <= 1e-12)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = np.where(p > 0, p * np.log(p), 0.0) @ ones
        return np.where(inside, entropy, np.inf)

    def balance(self, duals: Floats, y: Array, row_weights: Floats, total: Total = alone) -> Floats:
        """Mix every p with one vector s so that the weighted mean of p becomes that of the labels."""
        C = duals.shape[1]
        # Use NumPy's pairwise sums, one class at a time: running sums over many rows lose digits that the bound needs.
        of_class = [(row_weights[y == c].sum(), (row_weights * duals[:, c]).sum()) for c in range(C)]
        sums = total(np.array(of_class).T.copy())
        mass = sums[0].sum()
        E = sums[0] / mass
        excess = sums[1] / mass  # P - E, since duals = p - e_y
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where(excess > 0, excess / E, 0.0).max()  # t / (1 - t)
        if ratio == 0.0:
            return duals
        if not np.isfinite(ratio):  # for a class without weight, only p = e_y has the right mean
            return np.zeros_like(duals)
        t = ratio / (1.0 + ratio)
        s = np.maximum(ratio * E - excess, 0.0)  # times the ratio, by which a division could overflow
        if not s.any():  # the excesses are rounding errors of one sign
            return duals
        s /= s.sum()
        # duals = p - e_y, so the mixture (1 - t) p + t s has the duals (1 - t) (p - e_y) + t (s - e_y).
        mixed = (1.0 - t) * duals + t * s
        mixed[np.arange(len(y)), y] -= t
        return mixed

    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound |l'| by sqrt 2."""
        return np.full_like(reach, np.sqrt(2.0))

    def vanishes(self, y: Array) -> bool:
        """Return whether all labels are equal."""
        return bool((y == y[0]).all())

    def separates(self, u: Floats, y: Array) -> bool:
        """Return whether every row's own class has the largest output."""
        own = u[np.arange(len(y)), y]
        others = u.copy()
        others[np.arange(len(y)), y] = -np.inf
        return bool((own > others.max(axis=1)).all())

    def unattained(self, y: Array) -> str | None:
        """Report classes without rows, whose intercept decreases forever."""
        missing = np.flatnonzero(np.bincount(y, minlength=self.n_outputs(y)) == 0)
        if len(missing):
            return f"no row has label {int(missing[0])}, whose intercept would decrease forever"
        return None
