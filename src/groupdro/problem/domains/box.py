"""A box: every coefficient between two bounds."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from groupdro.geometry import Round
from groupdro.problem.domains.domain import Domain, Separable
from groupdro.problem.sealed import refuse_subclass
from groupdro.utils.arguments import short_repr
from groupdro.utils.types import Floats

__all__ = ["BoxDomain"]


@dataclass(frozen=True)
class BoxDomain(Domain):
    """Coefficients between `low` and `high`, for known signs or limits on the size of effects.

    Parameters
    ----------
    low, high : float
        Lower and upper bound of every coefficient.
    """

    low: float = -1.0
    high: float = 1.0

    __init_subclass__ = refuse_subclass

    def __post_init__(self) -> None:
        for name, end in (("low", self.low), ("high", self.high)):
            if isinstance(end, bool) or not isinstance(end, int | float) or not np.isfinite(end):
                raise ValueError(f"{name} must be a finite number, got {short_repr(end)}.")
        if not self.low < self.high:
            raise ValueError(f"low must be less than high, got {self.low!r} and {self.high!r}.")

    @property
    def separable(self) -> Separable:  # type: ignore[override]
        """The bounds."""
        return Separable(0.0, 0.0, np.asarray(self.low), np.asarray(self.high))

    def support(self, gradient: Floats) -> float:
        """Return the sum over entries of the smaller product with either end."""
        return float(np.minimum(self.low * gradient, self.high * gradient).sum())

    def reach(self, gradient: Floats) -> float:
        """Return the norm of the farthest corner."""
        return float(np.sqrt(gradient.size)) * max(abs(self.low), abs(self.high))

    def contains(self, coef: Floats) -> bool:
        """Compare every entry with both ends."""
        return bool(((coef >= self.low) & (coef <= self.high)).all())

    def feasible(self, coef: Floats) -> Floats:
        """Clip every entry."""
        return np.clip(coef, self.low, self.high)

    def start(self, shape: tuple[int, ...]) -> Floats:
        """Return zero, or the bound nearest to it."""
        return self.feasible(np.zeros(shape))

    def geometry(self, n_features: int) -> "_BoxGeometry":
        """Return the geometry of clipped Euclidean steps."""
        return _BoxGeometry(self, n_features)


@dataclass(frozen=True)
class _BoxGeometry(Round):
    """psi(w) = |w|^2 / 2. Entries step independently, so clipping is exact for any diagonal metric."""

    box: BoxDomain
    n_bound: int
    diagonal = True

    @property
    def radius(self) -> float:  # type: ignore[override]
        """Norm of the farthest corner, for one output."""
        return self.box.reach(np.empty(self.n_bound))

    def step(self, centre: Floats, step: Any, gradient: Floats) -> Floats:
        """Descend and clip."""
        w = centre - step * gradient
        w[: self.n_bound] = self.box.feasible(w[: self.n_bound])
        return np.asarray(w)
