"""Losses, domains and problems that a user may write, right and wrong ones, and what each of them means.

Every entry of `PARTS` makes a part from a generator of random numbers. The right outcome of a run is a true certificate
for the formula that stands beside it, or a refusal that names the part.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import groupdro as gd
from groupdro.geometry import Geometry
from groupdro.losses import Loss, ScalarLoss
from groupdro.problem import Domain
from tests.campaign.plain_losses import Expectile, LogisticLoss

__all__ = ["PARTS", "Part"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the user's and its plain formula; `formula` has options of `Posed`, or a factor of alpha."""

    formula: dict[str, Any]
    loss: Any = None  # of the package's kind; None is the logistic loss
    domain: Any = None
    regression: bool = False
    meaningless: bool = False  # whether there is nothing but to refuse it
    contradictory: bool = False  # whether it breaks the contract, so that bounds may be seen to contradict each other


class SmoothedLogistic(Loss):
    """Logistic loss of labels of which a share is taken for the other class: its least value is above zero."""

    name = "smoothed logistic"
    smoothness = 0.25

    def __init__(self, share: float = 0.1, factor: float = 1.0, constant: float = 0.0):
        self.share, self.factor, self.constant = share, factor, constant

    def encode(self, y: Array) -> Array:
        return y.astype(np.float64)

    def value(self, u: Array, y: Array) -> Array:
        plain = np.maximum(-y * u, 0.0) + np.log1p(np.exp(-np.abs(u)))
        return self.factor * (plain + self.share * y * u) + self.constant

    def value_and_slope(self, u: Array, y: Array) -> tuple[Array, Array]:
        e = np.exp(-np.abs(u))
        wrong = np.where(y * u > 0, e, 1.0) / (1.0 + e)
        return self.value(u, y), self.factor * y * (self.share - wrong)

    def curvature(self, u: Array, y: Array) -> Array:
        e = np.exp(-np.abs(u))
        return self.factor * e / (1.0 + e) ** 2

    def conjugate(self, duals: Array, y: Array) -> Array:
        p = self.share - y * duals / self.factor
        inside = (p >= -1e-15) & (p <= 1 + 1e-15)
        p = np.clip(p, 0.0, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = np.where(p > 0, p * np.log(p), 0.0) + np.where(p < 1, (1 - p) * np.log1p(-p), 0.0)
        return np.where(inside, self.factor * entropy - self.constant, np.inf)

    def balance(self, duals: Array, y: Array, row_weights: Array, total: Any = lambda sums: sums) -> Array:
        mass = row_weights * duals
        up, down = total(np.array([mass[mass > 0].sum(), -mass[mass < 0].sum()]))
        if up > down:
            return np.where(duals > 0, duals * (down / up), duals)
        return np.where(duals < 0, duals * (up / down), duals) if down > up else duals

    def lipschitz(self, y: Array, reach: Array) -> Array:
        return np.full_like(reach, self.factor)


class WrongConjugate(SmoothedLogistic):
    """A conjugate that is too small, so that bounds are too high."""

    def conjugate(self, duals: Array, y: Array) -> Array:
        return super().conjugate(duals, y) - 0.2


class DearerLogistic(gd.losses.Logistic):
    """Twice the logistic loss, by a subclass that leaves everything else as it was."""

    def value(self, u: Array, y: Array) -> Array:
        return 2.0 * super().value(u, y)

    def value_and_slope(self, u: Array, y: Array) -> tuple[Array, Array]:
        value, slope = super().value_and_slope(u, y)
        return 2.0 * value, 2.0 * slope


class WholeDearerLogistic(DearerLogistic):
    """Twice the logistic loss, with all that belongs to it."""

    smoothness = 0.5

    def conjugate(self, duals: Array, y: Array) -> Array:
        return 2.0 * super().conjugate(duals / 2.0, y)

    def curvature(self, u: Array, y: Array) -> Array:
        return 2.0 * super().curvature(u, y)

    def lipschitz(self, y: Array, reach: Array) -> Array:
        return 2.0 * super().lipschitz(y, reach)


class UnknownCode(ScalarLoss):
    """A loss by a kernel that does not exist."""

    name, code, smoothness = "unknown", 17, 1.0

    def encode(self, y: Array) -> Array:
        return y.astype(np.float64)

    def curvature(self, u: Array, y: Array) -> Array:
        return np.ones_like(u)

    def lipschitz(self, y: Array, reach: Array) -> Array:
        return np.ones_like(reach)


class UnknownCodeWithFormulas(SmoothedLogistic, ScalarLoss):
    """The smoothed logistic loss as one of those that have kernels."""

    code = 17


@dataclass(frozen=True)
class Box(Domain):
    """Coefficients of at most `size` each."""

    size: float

    def support(self, gradient: Array) -> float:
        return -self.size * float(np.abs(gradient).sum())

    def reach(self, gradient: Array) -> float:
        return self.size * float(np.sqrt(np.count_nonzero(gradient)))

    def contains(self, coef: Array) -> bool:
        return bool((np.abs(coef) <= self.size).all())

    def feasible(self, coef: Array) -> Array:
        return np.clip(coef, -self.size, self.size)

    def start(self, shape: tuple[int, ...]) -> Array:
        return np.zeros(shape)

    def geometry(self, n_features: int) -> Geometry:
        return gd.domains.ElasticNetDomain(low=-self.size, high=self.size).geometry(n_features)


@dataclass(frozen=True)
class DearerL2(Domain):
    """Three times an L2 penalty."""

    penalty: float

    @property
    def _inner(self) -> gd.domains.L2Domain:
        return gd.domains.L2Domain(penalty=3.0 * self.penalty)

    def penalty_at(self, coef: Array) -> float:
        return self._inner.penalty_at(coef)

    def support(self, gradient: Array) -> float:
        return self._inner.support(gradient)

    def reach(self, gradient: Array) -> float:
        return self._inner.reach(gradient)

    def within(self, value: float) -> Domain:
        return self._inner.within(value)

    def contains(self, coef: Array) -> bool:
        return True

    def feasible(self, coef: Array) -> Array:
        return coef

    def start(self, shape: tuple[int, ...]) -> Array:
        return np.zeros(shape)

    def geometry(self, n_features: int) -> Geometry:
        return self._inner.geometry(n_features)


def _expectile(rng: np.random.Generator) -> Part:
    path = Path(__file__).parents[2] / "docs" / "snippets" / "expectile.py"
    spec = importlib.util.spec_from_file_location("expectile", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tau = float(rng.choice([0.2, 0.5, 0.9]))
    return Part({"loss": Expectile(tau)}, loss=module.Expectile(tau), regression=True)


#: Each kind of part, made from random numbers.
PARTS: dict[str, Callable[[np.random.Generator], Part]] = {
    "smoothed logistic": lambda rng: Part({"loss": LogisticLoss(0.1)}, loss=SmoothedLogistic()),
    "box": lambda rng: Part({"alpha": 0.0, "box": 0.1}, domain=Box(0.1)),
    "expectile": _expectile,
    "logistic, value overridden": lambda rng: Part(
        {"loss": LogisticLoss(factor=2.0)}, loss=DearerLogistic(), contradictory=True
    ),
    "logistic, all overridden": lambda rng: Part({"loss": LogisticLoss(factor=2.0)}, loss=WholeDearerLogistic()),
    "unknown code": lambda rng: Part({}, loss=UnknownCode(), meaningless=True),
    "unknown code with formulas": lambda rng: Part({"loss": LogisticLoss(0.1)}, loss=UnknownCodeWithFormulas()),
    "wrong conjugate": lambda rng: Part({"loss": LogisticLoss(0.1)}, loss=WrongConjugate(), contradictory=True),
    "negative loss": lambda rng: Part(
        {"loss": LogisticLoss(constant=-0.5)}, loss=SmoothedLogistic(share=0.0, constant=-0.5), contradictory=True
    ),
    "L2, penalty overridden": lambda rng: Part({"factor": 3.0}, domain=DearerL2(penalty=1e-2)),
}
