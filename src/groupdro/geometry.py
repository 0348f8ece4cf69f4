"""Mirror steps: how a player moves, in coordinates where averaging and stepping are linear.

A geometry keeps its player in mirror coordinates: w itself in the Euclidean case, logits in the entropic one. A step
starts from a centre in these coordinates, follows a gradient and returns mirror coordinates again; `point` converts
them to the player. With the potential psi (half the squared norm, or the negative entropy), a step is exactly

    argmin over the domain of  step * (<gradient, z> + penalty(z)) + B(z, centre),    B the Bregman distance of psi.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from groupdro.kernels.mirror import descend
from groupdro.utils.types import Floats

__all__ = ["Ball", "Entropy", "Euclidean", "Geometry", "Round", "Spectral", "softmax"]


def softmax(logits: Floats) -> Floats:
    """Return weights proportional to exp(logits), with the largest exponent at 0 so that none overflows."""
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    return weights


class Ball(NamedTuple):
    """A Euclidean ball and an L2 penalty: all that compiled steps and quadratic programs need to know of a domain."""

    radius: float
    penalty: float


class Geometry(ABC):
    """One player's mirror step.

    Attributes
    ----------
    dual_order : float
        Order of the norm that measures gradients: 2, or infinity for entropy.
    radius : float
        Bound on the player in the geometry's own norm (2 or 1); infinite if unbounded.
    squared_diameter : float
        D^2, the range of psi over the domain.
    ball : Ball or None
        Ball to project onto and penalty to shrink by, if compiled loops can apply them; otherwise None.
    diagonal : bool
        Whether each entry may have its own step size.
    """

    dual_order: float
    radius: float
    squared_diameter: float
    ball: Ball | None = None
    diagonal: bool = False

    @abstractmethod
    def mirror(self, point: Floats) -> Floats:
        """Return the mirror coordinates of a point inside the domain."""

    @abstractmethod
    def point(self, mirror: Floats) -> Floats:
        """Return the point with the given mirror coordinates."""

    @abstractmethod
    def step(self, centre: Floats, step: Any, gradient: Floats) -> Floats:
        """Return the mirror coordinates after a step against the gradient."""

    def interior(self, point: Floats) -> Floats:
        """Return a point near the given one from which steps can reach the whole domain."""
        return point

    def moved(self, point: Floats) -> Floats:
        """Return the part of a point that steps can move: all of it unless the set fixes a part."""
        return point

    def mixed(self, moved: Floats) -> Floats:
        """Return the point with the given moving part."""
        return moved

    @abstractmethod
    def squared_gradient(self, step: Any, difference: Floats, point: Floats) -> float:
        """Return the step times the squared size of a gradient difference, in the dual local norm at a point."""

    @abstractmethod
    def squared_distance(self, step: Any, a: Floats, b: Floats) -> float:
        """Return the squared distance of two points in the local norm, divided by the step."""


class Round(Geometry):
    """psi(w) = |w|^2 / 2, whose mirror coordinates are w itself."""

    dual_order = 2.0

    @property
    def squared_diameter(self) -> float:  # type: ignore[override]
        """Half the squared radius."""
        return self.radius * self.radius / 2.0

    def mirror(self, point: Floats) -> Floats:
        """Return the point."""
        return point

    def point(self, mirror: Floats) -> Floats:
        """Return the point."""
        return mirror

    def squared_gradient(self, step: Any, difference: Floats, point: Floats) -> float:
        """Return the squares weighted by the steps; the norm is the same everywhere."""
        return float((step * difference * difference).sum())

    def squared_distance(self, step: Any, a: Floats, b: Floats) -> float:
        """Return the squares weighted by the inverse steps."""
        return float(((a - b) ** 2 / step).sum())


@dataclass(frozen=True)
class Euclidean(Round):
    """psi(w) = |w|^2 / 2, with a ball and a penalty on the first `n_bound` entries or rows; the rest are free.

    A step may be one number, or one per entry of w (a diagonal metric).
    """

    radius: float
    penalty: float
    n_bound: int
    diagonal = True

    @property
    def ball(self) -> Ball:  # type: ignore[override]
        """The ball and the penalty."""
        return Ball(self.radius, self.penalty)

    def step(self, centre: Floats, step: Any, gradient: Floats) -> Floats:
        """Descend, shrink by the penalty, project onto the ball. This order is exact for an isotropic quadratic."""
        if isinstance(step, np.ndarray):
            w = np.empty_like(centre)
            n_bound = self.n_bound * (centre.size // len(centre))
            flat = (array.ravel() for array in (centre, gradient, step))
            descend(*flat, self.penalty, self.radius, n_bound, w.ravel())
            return w
        w = centre - step * gradient
        bound = w[: self.n_bound]
        if self.penalty:
            bound /= 1.0 + step * self.penalty
        norm = float(np.linalg.norm(bound))
        if norm > self.radius:
            bound *= self.radius / norm
        return w


@dataclass(frozen=True, eq=False)
class Spectral(Round):
    """The Euclidean ball and penalty, with separate step sizes along a few leading directions of the features.

    The metric is rest * I + V diag(scales - rest) V' on the bound rows, and `free_scale` on the others. Ball and
    penalty are isotropic, so a step needs only the components along V and the norm of the remainder. The ball's
    multiplier solves sum_i |a_i|^2 / (1 + s_i nu)^2 + |rest|^2 / (1 + s_0 nu)^2 = radius^2.

    Attributes
    ----------
    directions : ndarray of shape (n_bound, r)
        Orthonormal columns V.
    scales, rest, free_scale : ndarray of shape (r,), float, float
        Step scale along each direction, along all other directions, and for the free rows.
    """

    radius: float
    penalty: float
    n_bound: int
    directions: Floats
    scales: Floats
    rest: float
    free_scale: float

    def step(self, centre: Floats, step: Any, gradient: Floats) -> Floats:
        """Descend in the metric, shrink by the penalty, project onto the ball."""
        w = np.empty_like(centre)
        w[self.n_bound :] = centre[self.n_bound :] - step * self.free_scale * gradient[self.n_bound :]
        bound = w[: self.n_bound]
        V = self.directions
        s = step * self.scales
        s0 = step * self.rest
        np.multiply(gradient[: self.n_bound], -s0, out=bound)
        bound += centre[: self.n_bound]
        # Components along V: those of the point, and the metric's extra contribution beyond the rest scale.
        along = V.T @ centre[: self.n_bound]
        descent = V.T @ gradient[: self.n_bound]
        shape = (-1,) + (1,) * (along.ndim - 1)
        wanted = along - s.reshape(shape) * descent
        have = along - s0 * descent
        across = max(float(np.vdot(bound, bound)) - float(np.vdot(have, have)), 0.0)
        shrink, shrink0 = self.shrinkage(wanted, across, s, s0)
        if shrink0 != 1.0:
            bound /= shrink0
        bound += V @ (wanted / shrink.reshape(shape) - have / shrink0)
        return w

    def shrinkage(self, wanted: Floats, across: float, s: Floats, s0: float) -> tuple[Floats, float]:
        """Return the divisors that penalty and ball apply to a point, along each direction and along all others.

        Parameters
        ----------
        wanted : ndarray of shape (r, ...)
            Components of the point along the directions, after the descent.
        across : float
            Squared norm of its remainder.
        s, s0 : ndarray of shape (r,), float
            Step sizes along each direction, and along all others.

        Returns
        -------
        tuple of ndarray and float
            The divisors.
        """
        squares = (wanted**2).reshape(len(s), -1).sum(axis=1)
        bend = self.penalty + self._multiplier(squares, across, s, s0)
        return 1.0 + s * bend, 1.0 + s0 * bend

    def _multiplier(self, squares: Floats, across: float, s: Floats, s0: float) -> float:
        nu = 0.0
        for _ in range(50):
            along = 1.0 + s * (self.penalty + nu)
            rest = 1.0 + s0 * (self.penalty + nu)
            parts = squares / along**2
            part = across / rest**2
            square = float(parts.sum()) + part
            norm = np.sqrt(square)
            if norm <= self.radius * (1.0 + 1e-13):
                break
            slope = float((parts * s / along).sum()) + part * s0 / rest
            nu += float((norm / self.radius - 1.0) * square / slope)
        return nu

    def squared_gradient(self, step: Any, difference: Floats, point: Floats) -> float:
        """Return the squares weighted by the metric times the step."""
        return step * self._weighted(difference, self.scales, self.rest, self.free_scale)

    def squared_distance(self, step: Any, a: Floats, b: Floats) -> float:
        """Return the squares weighted by the inverse metric, divided by the step."""
        return self._weighted(a - b, 1.0 / self.scales, 1.0 / self.rest, 1.0 / self.free_scale) / step

    def _weighted(self, x: Floats, scales: Floats, rest: float, free: float) -> float:
        bound = x[: self.n_bound]
        others = x[self.n_bound :]
        along = self.directions.T @ bound
        squares = (along**2).reshape(len(scales), -1).sum(axis=1)
        total = rest * float(np.vdot(bound, bound)) + float((scales - rest) @ squares)
        return total + free * float(np.vdot(others, others))


@dataclass(frozen=True)
class Entropy(Geometry):
    """psi(q) = sum q ln q on the simplex of n points; mirror coordinates are logits up to a constant."""

    n: int
    dual_order = np.inf
    radius = 1.0

    @property
    def squared_diameter(self) -> float:  # type: ignore[override]
        """Logarithm of the number of points."""
        return float(np.log(self.n))

    def mirror(self, point: Floats) -> Floats:
        """Return logarithms, kept finite for weights that underflowed to zero."""
        return np.log(np.maximum(point, np.finfo(np.float64).tiny))

    def interior(self, point: Floats) -> Floats:
        """Raise weights that are nearly zero: steps are multiplicative and could never bring them back."""
        least = 1e-2 / self.n
        return point if point.min() >= least else (1.0 - 1e-2) * point + least

    def point(self, mirror: Floats) -> Floats:
        """Return the weights."""
        return softmax(mirror)

    def step(self, centre: Floats, step: Any, gradient: Floats) -> Floats:
        """Move the logits against the gradient, with the largest kept at zero so that they cannot drift."""
        logits = centre - step * gradient
        logits -= logits.max()
        return logits

    def squared_gradient(self, step: Any, difference: Floats, point: Floats) -> float:
        """Return the variance under the point, the local norm. The largest entry would be far too pessimistic."""
        mean = float(point @ difference)
        return float(step * (point @ (difference - mean) ** 2))

    def squared_distance(self, step: Any, a: Floats, b: Floats) -> float:
        """Return the squares divided by the larger of the two points."""
        return float(((a - b) ** 2 / np.maximum(np.maximum(a, b), 1e-30)).sum() / step)
