"""Losses of counts, amounts and quantiles: half the deviance with a log link, and the pinball loss."""

from abc import abstractmethod

import numpy as np

from groupdro.kernels import losses as kernels
from groupdro.problem.losses import Loss, ResidualLoss, Total, VanishesAtEqualLabels, alone
from groupdro.utils.arguments import check_number, short_repr
from groupdro.utils.types import Array, Floats

__all__ = ["Gamma", "LogLinkLoss", "Poisson", "Quantile", "Tweedie", "deviance_power"]

_LARGEST_OFFSET = 300.0  # the exponentials of offsets are multiplied with each other


def deviance_power(loss: Loss) -> float:
    """Return the power of the mean to which the variance is proportional: 0 unless the loss is half a deviance."""
    powers: dict[type, float] = {Poisson: 1.0, Gamma: 2.0}
    return loss.power if isinstance(loss, Tweedie) else powers.get(type(loss), 0.0)


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
        del n_outputs
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
        """Return the logarithm of the sum of the labels over that of the exposures, whose logarithms are offsets."""
        if offsets.size and float(np.abs(offsets).max()) > _LARGEST_OFFSET:
            row = int(np.abs(offsets).argmax())
            raise ValueError(f"offset is {offsets[row]:.3g} in row {row}, whose exponential is too large.")
        exposures = np.exp(offsets) if offsets.size else np.ones(len(y))
        labels, exposure = total(np.array([row_weights @ y, row_weights @ exposures]))
        return float(np.log(labels / exposure)) if labels > 0 and exposure > 0 else 0.0

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
        del y
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

    def __repr__(self) -> str:
        return f"Quantile(level={self.level!r}" + (f", width={self.width!r})" if self.width else ")")

    @property
    def _parameters(self) -> tuple[float, float]:
        return self.level, self.width

    def lipschitz(self, y: Array, reach: Floats) -> Floats:
        """Bound |l'| by the steeper side."""
        del y
        return np.full_like(reach, max(self.level, 1.0 - self.level))

    @property
    def has_kink(self) -> bool:
        """Whether the width is 0."""
        return self.width == 0

    def smoothed(self, width: float) -> "Quantile":
        """Return the loss with another width."""
        return Quantile(self.level, width)
