"""Where the coefficients may lie, and what they cost there.

A domain turns a linearisation into a bound: ``lower(g)`` is the minimum of <g, w> plus the penalty over the domain. It
concerns the coefficients only; an intercept is free of radius and penalty.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from groupdro.utils.arguments import check_flag, check_number
from groupdro.utils.types import Floats

__all__ = ["Domain", "L2Domain", "SimplexDomain"]


class Domain(ABC):
    """What a problem and its certificate need of a domain."""

    @abstractmethod
    def penalty_at(self, coef: Floats) -> float:
        """Return the penalty at coef."""

    @abstractmethod
    def lower(self, gradient: Floats) -> float:
        """Return min over the domain of <gradient, coef> + penalty, minus infinity where there is none."""

    @abstractmethod
    def reach(self, gradient: Floats) -> float:
        """Return the norm of the coefficients at which `lower` is attained."""

    @abstractmethod
    def within(self, value: float) -> "Domain":
        """Return a smaller domain that still holds every w whose penalty is at most `value`."""

    @abstractmethod
    def feasible(self, coef: Floats) -> Floats:
        """Return coef where it lies in the domain, and a point of the domain near it otherwise."""

    @abstractmethod
    def start(self, shape: tuple[int, ...]) -> Floats:
        """Return the centre, where solvers begin."""


@dataclass(frozen=True)
class L2Domain(Domain):
    """A Euclidean ball, an L2 penalty, or both.

    Minimises over ``norm(coef) <= radius`` with ``penalty / 2 * norm(coef)**2`` added to the objective.

    Parameters
    ----------
    radius : float
        Radius of the ball; infinite by default.
    penalty : float
        Weight of the penalty; 0 by default. One of the two must bound the coefficients.
    stand_in : bool
        Whether the ball stands for all of space, because the user set no bound. Solvers stay within it; bounds hold for
        all models whose outputs are at most 1e-5 of the radius (`OutputBall`), and are claimed only where the
        outputs of the best model found are far less.
    """

    radius: float = np.inf
    penalty: float = 0.0
    stand_in: bool = False

    def __post_init__(self) -> None:
        check_number(self.radius, "radius", positive=True, finite=False)
        check_number(self.penalty, "penalty")
        check_flag(self.stand_in, "stand_in")
        if np.isinf(self.radius) and self.penalty == 0:
            raise ValueError(
                "radius or penalty must bound the coefficients: without either, a separable group has no minimiser "
                "and no lower bound can be proved."
            )

    def penalty_at(self, coef: Floats) -> float:
        """Return penalty / 2 times the squared norm."""
        return 0.5 * self.penalty * float(np.vdot(coef, coef)) if self.penalty else 0.0

    def lower(self, gradient: Floats) -> float:
        """Return the minimum, attained at -t gradient for the t of `reach`."""
        t = float(np.linalg.norm(gradient))
        if self.penalty == 0 or t > self.penalty * self.radius:
            return -self.radius * (t - 0.5 * self.penalty * self.radius)
        return -0.5 * t * (t / self.penalty)

    def reach(self, gradient: Floats) -> float:
        """Return the radius, or less where the penalty holds the minimiser inside."""
        if self.penalty == 0:
            return self.radius
        return min(self.radius, float(np.linalg.norm(gradient)) / self.penalty)

    def within(self, value: float) -> "L2Domain":
        """Shrink the radius to where the penalty reaches `value`."""
        if self.penalty == 0:
            return self
        # A little wider, so that rounding cannot cut the minimiser off.
        radius = float(np.sqrt(2.0 * max(value, 0.0) / self.penalty)) * (1.0 + 1e-12)
        return replace(self, radius=min(self.radius, radius)) if radius > 0 else self

    def feasible(self, coef: Floats) -> Floats:
        """Shorten coef to the radius."""
        norm = float(np.linalg.norm(coef))
        return coef if norm <= self.radius else coef * (self.radius / norm)

    def start(self, shape: tuple[int, ...]) -> Floats:
        """Return zero."""
        return np.zeros(shape)


@dataclass(frozen=True)
class SimplexDomain(Domain):
    """The probability simplex: coefficients are the weights of an ensemble, one column of X a model."""

    def penalty_at(self, coef: Floats) -> float:
        """Return 0."""
        del coef
        return 0.0

    def lower(self, gradient: Floats) -> float:
        """Return the least entry: all weight on the best model."""
        return float(gradient.min())

    def reach(self, gradient: Floats) -> float:
        """Return 1, the norm of a vertex."""
        del gradient
        return 1.0

    def within(self, value: float) -> "SimplexDomain":
        """Return the simplex."""
        del value
        return self

    def feasible(self, coef: Floats) -> Floats:
        """Cut off negative weights, and let the rest sum to one."""
        kept = np.maximum(coef, 0.0)
        return kept / kept.sum() if kept.sum() > 0 else self.start(coef.shape)

    def start(self, shape: tuple[int, ...]) -> Floats:
        """Return equal weights."""
        return np.full(shape, 1.0 / shape[0])
