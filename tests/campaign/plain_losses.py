"""Losses by plain formulas, for any floating type: what the judge of real data computes with.

Each has ``value(u, y)``, ``slopes(u, y)`` with first and second derivatives, and ``majorant(u, y)``, a curvature that
never lets a quadratic at u fall below the loss. `u` has the residual's place in regressions: y is subtracted by the
caller, who knows how to do that without losing digits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "Expectile",
    "GammaLoss",
    "HuberLoss",
    "LogisticLoss",
    "Pinball",
    "PoissonLoss",
    "SoftmaxLoss",
    "SquaredHingeLoss",
    "SquaredLoss",
    "TweedieLoss",
]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SquaredLoss:
    """Half the square of the residual, times a factor."""

    factor: float = 1.0
    regression = True

    def value(self, r: Array, y: Array) -> Array:
        return r * r * (r.dtype.type(self.factor) / 2)

    def slopes(self, r: Array, y: Array) -> tuple[Array, Array]:
        return r * r.dtype.type(self.factor), np.full_like(r, self.factor)

    def majorant(self, r: Array, y: Array) -> Array:
        return np.full_like(r, self.factor)


@dataclass(frozen=True)
class HuberLoss:
    """Quadratic up to delta, linear beyond."""

    delta: float = 1.35
    regression = True

    def value(self, r: Array, y: Array) -> Array:
        size, delta = np.abs(r), r.dtype.type(self.delta)
        return np.where(size <= delta, size * size / 2, delta * (size - delta / 2))

    def slopes(self, r: Array, y: Array) -> tuple[Array, Array]:
        return np.clip(r, -self.delta, self.delta), (np.abs(r) <= self.delta).astype(r.dtype)

    def majorant(self, r: Array, y: Array) -> Array:
        return self.delta / np.maximum(np.abs(r), self.delta)


@dataclass(frozen=True)
class Expectile:
    """Half the square of the residual, times tau below the target and 1 - tau above it."""

    tau: float = 0.5
    regression = True

    def _price(self, r: Array) -> Array:
        return np.where(r < 0, r.dtype.type(self.tau), 1 - r.dtype.type(self.tau))

    def value(self, r: Array, y: Array) -> Array:
        return self._price(r) * r * r / 2

    def slopes(self, r: Array, y: Array) -> tuple[Array, Array]:
        return self._price(r) * r, self._price(r)

    def majorant(self, r: Array, y: Array) -> Array:
        return np.full_like(r, max(self.tau, 1 - self.tau))


@dataclass(frozen=True)
class LogisticLoss:
    """ln(1 + exp(-y u)); smoothed, a share of every label is the other class's; scaled and shifted on request."""

    smoothing: float = 0.0
    factor: float = 1.0
    constant: float = 0.0
    regression = False

    def value(self, u: Array, y: Array) -> Array:
        wrong = np.maximum(-y * u, 0) + np.log1p(np.exp(-np.abs(u)))
        smoothed = wrong + u.dtype.type(self.smoothing) * y * u
        return u.dtype.type(self.factor) * smoothed + u.dtype.type(self.constant)

    def slopes(self, u: Array, y: Array) -> tuple[Array, Array]:
        e = np.exp(-np.abs(u))
        wrong = np.where(y * u > 0, e, 1) / (1 + e)
        return self.factor * y * (u.dtype.type(self.smoothing) - wrong), self.factor * e / (1 + e) ** 2

    def majorant(self, u: Array, y: Array) -> Array:
        size = np.maximum(np.abs(u), 1e-4)
        return self.factor * np.tanh(size / 2) / (2 * size)


@dataclass(frozen=True)
class SquaredHingeLoss:
    """Half the square of what the margin is short of one."""

    regression = False

    def value(self, u: Array, y: Array) -> Array:
        return np.maximum(1 - y * u, 0) ** 2 / 2

    def slopes(self, u: Array, y: Array) -> tuple[Array, Array]:
        short = np.maximum(1 - y * u, 0)
        return -y * short, (short > 0).astype(u.dtype)

    def majorant(self, u: Array, y: Array) -> Array:
        return np.ones_like(u)


@dataclass(frozen=True)
class SoftmaxLoss:
    """ln sum exp(u) - u_y of labels from 0, one output per class; second derivatives as the probabilities."""

    n_classes: int = 3
    regression = False

    def value(self, u: Array, y: Array) -> Array:
        top = u.max(axis=1)
        return np.log(np.exp(u - top[:, None]).sum(axis=1)) + (top - u[np.arange(len(u)), y])

    def slopes(self, u: Array, y: Array) -> tuple[Array, Array]:
        e = np.exp(u - u.max(axis=1, keepdims=True))
        probability = e / e.sum(axis=1, keepdims=True)
        slope = probability.copy()
        slope[np.arange(len(u)), y] = 0
        slope[np.arange(len(u)), y] = -slope.sum(axis=1)
        return slope, probability

    def majorant(self, u: Array, y: Array) -> Array:
        return np.full_like(u, 1.0 / self.n_classes)  # probabilities that are all alike: as curved as it gets


@dataclass(frozen=True)
class PoissonLoss:
    """Half the Poisson deviance of a mean exp(u), above which no quadratic is: the curvature stands for it."""

    regression = False

    def value(self, u: Array, y: Array) -> Array:
        # With e = u - ln y: y (exp(e) - 1 - e), which loses nothing where u is near ln y.
        e = u - np.log(np.where(y > 0, y, 1))
        return np.where(y > 0, y * (np.expm1(e) - e), np.exp(u))

    def slopes(self, u: Array, y: Array) -> tuple[Array, Array]:
        return np.exp(u) - y, np.exp(u)

    def majorant(self, u: Array, y: Array) -> Array:
        return np.exp(u)


@dataclass(frozen=True)
class GammaLoss:
    """Half the gamma deviance of a mean exp(u)."""

    regression = False

    def value(self, u: Array, y: Array) -> Array:
        e = np.log(y) - u
        return np.expm1(e) - e

    def slopes(self, u: Array, y: Array) -> tuple[Array, Array]:
        ratio = np.exp(np.log(y) - u)
        return 1 - ratio, ratio

    def majorant(self, u: Array, y: Array) -> Array:
        return self.slopes(u, y)[1]


@dataclass(frozen=True)
class TweedieLoss:
    """Half the Tweedie deviance of a mean exp(u), of a power between 1 and 2."""

    power: float = 1.5
    regression = False

    def value(self, u: Array, y: Array) -> Array:
        # With e = u - ln y: y^(2 - p) (expm1((2 - p) e) / (2 - p) + expm1((1 - p) e) / (p - 1)).
        a, b = u.dtype.type(2) - u.dtype.type(self.power), u.dtype.type(self.power) - 1
        e = u - np.log(np.where(y > 0, y, 1))
        positive = np.where(y > 0, y, 1) ** a * (np.expm1(a * e) / a + np.expm1(-b * e) / b)
        return np.where(y > 0, positive, np.exp(a * u) / a)

    def slopes(self, u: Array, y: Array) -> tuple[Array, Array]:
        a, b = 2 - self.power, self.power - 1
        rise, fall = np.exp(a * u), y * np.exp(-b * u)
        return rise - fall, a * rise + b * fall

    def majorant(self, u: Array, y: Array) -> Array:
        return self.slopes(u, y)[1]


@dataclass(frozen=True)
class Pinball:
    """(1 - level) r or -level r, whichever is larger; with a width, its smooth upper approximation."""

    level: float = 0.5
    width: float = 0.0
    regression = True

    def value(self, r: Array, y: Array) -> Array:
        below = np.maximum(-r, 0)
        if self.width:
            below = below + self.width * np.log1p(np.exp(-np.abs(r) / self.width))
        return (1 - r.dtype.type(self.level)) * r + below

    def slopes(self, r: Array, y: Array) -> tuple[Array, Array]:
        if not self.width:
            return np.where(r > 0, 1 - self.level, -self.level).astype(r.dtype), np.zeros_like(r)
        e = np.exp(-np.abs(r) / self.width)
        below = np.where(r < 0, 1, e) / (1 + e)
        return 1 - self.level - below, e / (1 + e) ** 2 / self.width

    def majorant(self, r: Array, y: Array) -> Array:
        width = max(self.width, 1e-300)
        size = np.maximum(np.abs(r) / width, 1e-4)
        return np.tanh(size / 2) / (2 * size * width)
