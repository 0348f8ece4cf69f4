"""Coefficients in an L1 ball: a domain in one file."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groupdro.domains import Domain
from groupdro.geometry import Geometry

Floats = NDArray[np.float64]

_ROUNDING = 1e-12  # relative to the radius


@dataclass(frozen=True)
class L1Ball(Domain):
    """Coefficients whose absolute values sum to at most `radius`.

    At the optimum many of them are zero.

    Parameters
    ----------
    radius : float
        Largest sum of absolute values.
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.radius < np.inf:
            raise ValueError(
                f"radius must be positive and finite, got {self.radius!r}."
            )

    def support(self, gradient: Floats) -> float:
        """Return the minimum: all of the radius on the entry with the largest slope."""
        return -self.radius * float(np.abs(gradient).max())

    def reach(self, gradient: Floats) -> float:
        """Return the norm of a corner."""
        return self.radius

    def contains(self, coef: Floats) -> bool:
        """Compare the sum of absolute values with the radius."""
        return float(np.abs(coef).sum()) <= self.radius * (1.0 + _ROUNDING)

    def feasible(self, coef: Floats) -> Floats:
        """Return the nearest point: shrink all entries by the same amount."""
        sizes = np.abs(coef)
        if sizes.sum() <= self.radius:
            return coef
        # From the largest, entries stay as long as they exceed what each must give up.
        ordered = np.sort(sizes, axis=None)[::-1]
        excess = (np.cumsum(ordered) - self.radius) / np.arange(1, ordered.size + 1)
        k = np.flatnonzero(ordered > excess)[-1]
        return np.sign(coef) * np.maximum(sizes - excess[k], 0.0)

    def start(self, shape: tuple[int, ...]) -> Floats:
        """Return zero."""
        return np.zeros(shape)

    def geometry(self, n_features: int) -> "L1Steps":
        """Return Euclidean steps, projected on the ball."""
        return L1Steps(self, n_features)


@dataclass(frozen=True)
class L1Steps(Geometry):
    """psi(w) = |w|^2 / 2, whose mirror coordinates are w itself.

    Entries after the first n_bound, the intercept, are free.
    """

    domain: L1Ball
    n_bound: int
    dual_order = 2.0

    @property
    def radius(self) -> float:  # type: ignore[override]
        """The Euclidean norm is at most the sum of absolute values."""
        return self.domain.radius

    @property
    def squared_diameter(self) -> float:  # type: ignore[override]
        """Half the squared radius: the range of psi."""
        return 0.5 * self.radius**2

    def mirror(self, point: Floats) -> Floats:
        """Return the point."""
        return point

    def point(self, mirror: Floats) -> Floats:
        """Return the point."""
        return mirror

    def step(self, centre: Floats, step: Any, gradient: Floats) -> Floats:
        """Minimise step * <gradient, w> + |w - centre|^2 / 2 over the ball."""
        w = centre - step * gradient
        w[: self.n_bound] = self.domain.feasible(w[: self.n_bound])
        return w

    def squared_gradient(self, step: Any, difference: Floats, point: Floats) -> float:
        """Return the step times the squared norm, which is the same at every point."""
        return float(step * np.vdot(difference, difference))

    def squared_distance(self, step: Any, a: Floats, b: Floats) -> float:
        """Return the squared distance over the step."""
        return float(np.vdot(a - b, a - b) / step)
