"""An elastic net: an L1 and an L2 penalty, with bounds on each coefficient."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from groupdro.geometry import Round
from groupdro.problem.domains.domain import Domain, Separable
from groupdro.problem.linear_model import LinearModel
from groupdro.utils.arguments import check_number, error_prefix
from groupdro.utils.types import Floats
from groupdro.utils.vectors import LARGEST

__all__ = ["ElasticNetDomain"]


@dataclass(frozen=True)
class ElasticNetDomain(Domain):
    """Penalties ``l1 * sum(abs(coef)) + l2 / 2 * sum(coef**2)``, with every coefficient between `low` and `high`.

    Coefficients that do not pay for their penalty are exactly zero.

    Parameters
    ----------
    l1, l2 : float
        Weights of the penalties.
    low, high : float or sequence of float
        Lower and upper bounds of the coefficients, for all or per feature. `low` must be at most 0, `high` at least 0.
    total, radius : float
        Known upper bounds on the solution's sum of absolute values and on its norm.
    """

    l1: float = 0.0
    l2: float = 0.0
    low: Any = -np.inf
    high: Any = np.inf
    total: float = np.inf
    radius: float = np.inf

    def __post_init__(self) -> None:
        check_number(self.l1, "l1")
        check_number(self.l2, "l2")
        for name, sign in (("low", -1.0), ("high", 1.0)):
            with error_prefix(name):
                ends = np.asarray(getattr(self, name), dtype=np.float64)
            if ends.ndim > 1 or not (sign * ends >= 0).all():
                kind = "at most" if sign < 0 else "at least"
                raise ValueError(f"{name} must be one number, or one per feature, {kind} 0.")
            if (np.isfinite(ends) & (np.abs(ends) > LARGEST)).any():
                raise ValueError(f"{name} has finite values beyond {LARGEST:g}, whose squares are not; use infinity.")
            object.__setattr__(self, name, float(ends) if ends.ndim == 0 else tuple(ends.tolist()))
        if not (self.l1 or self.l2 or self._is_box):
            raise ValueError("l1, l2, or finite low and high must bound the coefficients.")

    @property
    def _is_box(self) -> bool:
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def check(self, model: LinearModel) -> None:
        """Check that the number of bounds matches the number of features."""
        for name in ("low", "high"):
            ends = getattr(self, name)
            if isinstance(ends, tuple) and len(ends) != model.n_features:
                raise ValueError(f"{name} has {len(ends)} bounds, but there are {model.n_features} features.")

    @cached_property
    def separable(self) -> Separable:  # type: ignore[override]
        """The penalties and the bounds."""
        return Separable(self.l1, self.l2, np.asarray(self.low), np.asarray(self.high))

    def penalty_at(self, coef: Floats) -> float:
        """Return both penalties."""
        return self.l1 * float(np.abs(coef).sum()) + 0.5 * self.l2 * float(np.vdot(coef, coef))

    def _attained(self, gradient: Floats) -> tuple[float, float]:
        """Return a lower bound on a linear function plus the penalties, and a norm within which it is attained.

        Entries are minimised one by one. If the sum of absolute values is bounded and this gives a better bound, that
        sum is instead allotted to the entries with the steepest slopes, each up to its bound, ignoring the L2 penalty.
        """
        low, high = self.separable.ends(gradient.ndim)
        with np.errstate(invalid="ignore", over="ignore"):
            beyond = np.sign(gradient) * np.maximum(np.abs(gradient) - self.l1, 0.0)
            w = np.clip(-beyond / self.l2 if self.l2 else np.where(beyond == 0.0, 0.0, -np.inf * beyond), low, high)
            falls = beyond * w  # (gradient + l1 sign(w)) w where w is not zero
            if self.l2:
                falls += 0.5 * self.l2 * w * w
        least = float(np.where(w == 0.0, 0.0, falls).sum())
        if np.isfinite(self.total):
            steep = np.flatnonzero(beyond)
            ends = np.abs(np.broadcast_to(np.where(beyond > 0, low, high), beyond.shape)).ravel()[steep]
            slopes = np.abs(beyond).ravel()[steep]
            order = np.argsort(-slopes)
            given = np.diff(np.minimum(np.cumsum(ends[order]), self.total), prepend=0.0)
            bounded = -float(slopes[order] @ given)
            if not least > bounded:
                return bounded, float(np.linalg.norm(given))
        return least, float(np.linalg.norm(w))

    def support(self, gradient: Floats) -> float:
        """Minimise entry by entry."""
        return self._attained(gradient)[0]

    def reach(self, gradient: Floats) -> float:
        """Return the norm of the minimiser of `support`."""
        return self._attained(gradient)[1]

    def reach_near(self, gradient: Floats, error: float) -> float:
        """Bound how far the minimiser moves: by the L2 penalty, the bounds, or what the penalties allow in all.

        Without an L2 penalty, an entry whose slope equals the L1 penalty may move from zero to its bound.
        """
        low, high = self.separable.ends(gradient.ndim)
        corner = float(np.linalg.norm(np.broadcast_to(np.maximum(np.abs(low), np.abs(high)), gradient.shape)))
        moved = self.reach(gradient) + error / self.l2 if self.l2 else np.inf
        return min(self.radius, corner, moved)

    def within(self, value: float) -> "ElasticNetDomain":
        """Record the sums and norms that the penalties allow."""
        value = max(value, 0.0) * (1.0 + 1e-12)  # so that rounding cannot cut the minimiser off
        total = value / self.l1 if self.l1 else np.inf
        radius = min(total, float(np.sqrt(2.0 * value / self.l2)) if self.l2 else np.inf)
        return replace(self, total=min(self.total, total), radius=min(self.radius, radius))

    def contains(self, coef: Floats) -> bool:
        """Compare every entry with both ends."""
        low, high = self.separable.ends(coef.ndim)
        return bool(((coef >= low) & (coef <= high)).all())

    def feasible(self, coef: Floats) -> Floats:
        """Clip every entry."""
        return np.clip(coef, *self.separable.ends(coef.ndim))

    def start(self, shape: tuple[int, ...]) -> Floats:
        """Return zero."""
        return np.zeros(shape)

    def geometry(self, n_features: int) -> "_ProximalGeometry":
        """Return the geometry of Euclidean steps with soft thresholding."""
        return _ProximalGeometry(self, n_features)


@dataclass(frozen=True)
class _ProximalGeometry(Round):
    """psi(w) = |w|^2 / 2. Entries step independently, so thresholding is exact for any diagonal metric."""

    domain: ElasticNetDomain
    n_bound: int
    diagonal = True

    @property
    def radius(self) -> float:  # type: ignore[override]
        """Known upper bound on the norm of the solution."""
        low, high = (np.broadcast_to(end, self.n_bound) for end in self.domain.separable.ends(1))
        return min(self.domain.radius, float(np.linalg.norm(np.maximum(-low, high))))

    def step(self, centre: Floats, step: Any, gradient: Floats) -> Floats:
        """Descend, shrink towards zero, clip. This order is exact because zero lies within the bounds."""
        w = np.asarray(centre - step * gradient)
        domain = self.domain
        own = step[: self.n_bound] if isinstance(step, np.ndarray) else step
        bound = w[: self.n_bound]
        shrunk = np.sign(bound) * np.maximum(np.abs(bound) - own * domain.l1, 0.0) / (1.0 + own * domain.l2)
        w[: self.n_bound] = domain.feasible(shrunk)
        return w
