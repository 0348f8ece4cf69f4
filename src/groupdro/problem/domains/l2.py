"""A Euclidean ball, an L2 penalty, or both."""

from dataclasses import dataclass, replace

import numpy as np

from groupdro.geometry import Ball, Euclidean
from groupdro.problem.domains.domain import Domain
from groupdro.utils.arguments import check_flag, check_number
from groupdro.utils.types import Floats

__all__ = ["L2Domain"]

_OUTPUTS = 1e-5  # largest outputs for which bounds hold, relative to the radius of a proxy for the whole space


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
    proxy_for_unbounded : bool
        Whether the ball is a proxy for the whole space, because the user set no bound. Solvers stay within it. Bounds
        hold for all models whose outputs are at most 1e-5 of the radius (`OutputBall`), and are claimed only if the
        outputs of the best model found are far smaller.
    """

    radius: float = np.inf
    penalty: float = 0.0
    proxy_for_unbounded: bool = False

    def __post_init__(self) -> None:
        check_number(self.radius, "radius", positive=True, finite=False)
        check_number(self.penalty, "penalty")
        check_flag(self.proxy_for_unbounded, "proxy_for_unbounded")
        if np.isinf(self.radius) and self.penalty == 0:
            raise ValueError(
                "radius or penalty must bound the coefficients: without either, a separable group has no "
                "minimiser and no lower bound can be proved."
            )

    def penalty_at(self, coef: Floats) -> float:
        """Return penalty / 2 times the squared norm."""
        return 0.5 * self.penalty * float(np.vdot(coef, coef)) if self.penalty else 0.0

    def support(self, gradient: Floats) -> float:
        """Return the minimum, attained at -t gradient for the t of `reach`."""
        t = float(np.linalg.norm(gradient))
        if self.penalty == 0 or t > self.penalty * self.radius:
            return -self.radius * (t - 0.5 * self.penalty * self.radius)
        return -0.5 * t * (t / self.penalty)

    def reach(self, gradient: Floats) -> float:
        """Return the radius, or less if the penalty keeps the minimiser inside."""
        return self.reach_near(gradient, 0.0)

    def reach_near(self, gradient: Floats, error: float) -> float:
        """Do so for the longest gradient."""
        if self.penalty == 0:
            return self.radius
        return min(self.radius, (float(np.linalg.norm(gradient)) + error) / self.penalty)

    def within(self, value: float) -> "L2Domain":
        """Shrink the radius to where the penalty reaches `value`."""
        if self.penalty == 0:
            return self
        # Slightly wider, so that rounding cannot cut the minimiser off.
        radius = float(np.sqrt(2.0 * max(value, 0.0) / self.penalty)) * (1.0 + 1e-12)
        return replace(self, radius=min(self.radius, radius)) if radius > 0 else self

    def feasible(self, coef: Floats) -> Floats:
        """Shorten coef to the radius."""
        norm = float(np.linalg.norm(coef))
        return coef if norm <= self.radius else coef * (self.radius / norm)

    def start(self, shape: tuple[int, ...]) -> Floats:
        """Return zero."""
        return np.zeros(shape)

    def contains(self, coef: Floats) -> bool:
        """Compare the norm with the radius."""
        return float(np.linalg.norm(coef)) <= self.radius

    def no_further_than(self, reach: float) -> "L2Domain":
        """Shrink the radius to `reach`."""
        return L2Domain(reach, self.penalty) if 0 < reach < self.radius else self

    @property
    def ball(self) -> Ball:  # type: ignore[override]
        """The ball and the penalty."""
        return Ball(self.radius, self.penalty)

    @property
    def output_limit(self) -> float:  # type: ignore[override]
        """A share of the radius if the ball is a proxy for the whole space."""
        return _OUTPUTS * self.radius if self.proxy_for_unbounded else np.inf

    def geometry(self, n_features: int) -> Euclidean:
        """Return the Euclidean geometry."""
        return Euclidean(self.radius, self.penalty, n_features)
