"""The contract of a domain: where the coefficients may lie, and what they cost there."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from groupdro.geometry import Ball, Geometry
from groupdro.problem.linear_model import LinearModel
from groupdro.utils.types import Floats

__all__ = ["Domain", "Separable"]


class Separable(NamedTuple):
    """Penalties and bounds of each coefficient apart: what a program on faces knows of a domain.

    ``low`` and ``high``, which enclose zero where there is an L1 penalty, are of all coefficients or of each feature.
    """

    l1: float
    l2: float
    low: Floats
    high: Floats

    def ends(self, ndim: int) -> tuple[Floats, Floats]:
        """Return both ends, as they are compared with coefficients of so many dimensions."""
        low, high = (end[:, None] if ndim == 2 and end.ndim == 1 else end for end in (self.low, self.high))
        return low, high


class Domain(ABC):
    """The set of the player w, which minimises.

    A domain concerns the coefficients alone; an intercept is free of it. It must be convex and closed, and its penalty
    convex and at least 0. `support` turns a linearisation into a lower bound: if it is too large, bounds are false.
    """

    #: Ball and penalty by which kernels and quadratic programs know the domain; None where it is anything else.
    ball: Ball | None = None
    #: Penalties and bounds of each coefficient apart, where that is all there is to the domain.
    separable: Separable | None = None
    #: Root mean square of the outputs up to which bounds hold, where nothing bounds the coefficients.
    output_limit: float = np.inf

    def check(self, model: LinearModel) -> None:
        """Refuse a model whose coefficients the domain cannot hold."""
        del model

    def penalty_at(self, coef: Floats) -> float:
        """Return the penalty at coef."""
        del coef
        return 0.0

    @abstractmethod
    def support(self, gradient: Floats) -> float:
        """Return min over the domain of <gradient, coef> + penalty, minus infinity where there is none."""

    @abstractmethod
    def reach(self, gradient: Floats) -> float:
        """Return at least the norm of the coefficients at which `support` is attained: it scales rounding."""

    @abstractmethod
    def contains(self, coef: Floats) -> bool:
        """Return whether coef lies in the domain."""

    @abstractmethod
    def feasible(self, coef: Floats) -> Floats:
        """Return coef where it lies in the domain, and a point of the domain near it otherwise."""

    @abstractmethod
    def start(self, shape: tuple[int, ...]) -> Floats:
        """Return the centre, where solvers begin."""

    @abstractmethod
    def geometry(self, n_features: int) -> Geometry:
        """Return how w moves: its first n_features entries or rows are the coefficients, the rest is free."""

    def within(self, value: float) -> "Domain":
        """Return a smaller domain that still holds every w whose penalty is at most `value`."""
        del value
        return self

    def no_further_than(self, reach: float) -> "Domain":
        """Return the part of the domain no further from its centre than `reach`, or more of it."""
        del reach
        return self
