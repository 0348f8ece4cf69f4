"""The interface of a domain: the set of feasible coefficients, and their penalty."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from groupdro.geometry import Ball, Geometry
from groupdro.problem.linear_model import LinearModel
from groupdro.utils.types import Floats

__all__ = ["Domain", "Separable", "penalty_room"]


class Separable(NamedTuple):
    """Separate penalties and bounds for each coefficient: all that the face solver knows of a domain.

    ``low`` and ``high``, which enclose zero if there is an L1 penalty, apply to all coefficients or are given per
    feature.
    """

    l1: float
    l2: float
    low: Floats
    high: Floats

    def ends(self, ndim: int) -> tuple[Floats, Floats]:
        """Return both bounds, shaped to broadcast against coefficients of `ndim` dimensions."""
        low, high = (end[:, None] if ndim == 2 and end.ndim == 1 else end for end in (self.low, self.high))
        return low, high


class Domain(ABC):
    """The feasible set of w, the minimising player.

    A domain concerns only the coefficients; an intercept is unrestricted. The domain must be convex and closed, and its
    penalty convex and nonnegative. `support` turns a linearisation into a lower bound: if it is too large, bounds are
    wrong.
    """

    #: Ball and penalty for kernels and quadratic programs; None if the domain is anything else.
    ball: Ball | None = None
    #: Separate penalties and bounds of each coefficient, if they describe the domain completely.
    separable: Separable | None = None
    #: If nothing bounds the coefficients: root mean square of the outputs up to which bounds hold.
    output_limit: float = np.inf

    def check(self, model: LinearModel) -> None:
        """Refuse a model whose coefficients do not fit the domain."""

    def penalty_at(self, coef: Floats) -> float:
        """Return the penalty at coef."""
        return 0.0

    @abstractmethod
    def support(self, gradient: Floats) -> float:
        """Return min over the domain of <gradient, coef> + penalty, or minus infinity if unbounded below."""

    @abstractmethod
    def reach(self, gradient: Floats) -> float:
        """Return an upper bound on the norm of the coefficients that attain `support`; it scales rounding errors."""

    def reach_near(self, gradient: Floats, error: float) -> float:
        """Return an upper bound on `reach` for all gradients within a distance of this one.

        If a gradient may be wrong by e, `support` is too high by at most |e| times this bound. The default is that of a
        reach that grows with the length of the gradient only.
        """
        length = float(np.linalg.norm(gradient))
        unit = gradient / length if length > 0.0 else np.full(gradient.shape, 1.0 / np.sqrt(max(gradient.size, 1)))
        return max(self.reach(gradient), self.reach((length + error) * unit))

    @abstractmethod
    def contains(self, coef: Floats) -> bool:
        """Return whether coef lies in the domain."""

    @abstractmethod
    def feasible(self, coef: Floats) -> Floats:
        """Return coef if it lies in the domain, otherwise a nearby point of the domain."""

    @abstractmethod
    def start(self, shape: tuple[int, ...]) -> Floats:
        """Return the centre, where solvers start."""

    @abstractmethod
    def geometry(self, n_features: int) -> Geometry:
        """Return the geometry of w, whose first n_features entries or rows are the coefficients; the rest are free."""

    def within(self, value: float) -> "Domain":
        """Return a smaller domain that still contains every w whose penalty is at most `value`."""
        return self

    def no_further_than(self, reach: float) -> "Domain":
        """Return the part of the domain within `reach` of its centre, or a larger part."""
        return self


def penalty_room(upper: float, least: float, largest: float) -> float:
    """Return how large a penalty can be if it is at most `upper` when a value of at least `least` is added to it.

    Both are rounded numbers of this size or up to `largest`, and the penalty may be smaller than their rounding.
    """
    return upper - least + 32.0 * float(np.finfo(np.float64).eps) * (abs(upper) + abs(least) + abs(largest))
