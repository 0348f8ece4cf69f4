"""The contract of a set of group weights: what the player q, which maximises, may choose from."""

from abc import ABC, abstractmethod
from typing import ClassVar

from groupdro.geometry import Geometry
from groupdro.utils.types import Floats

__all__ = ["WeightSet"]


class WeightSet(ABC):
    """The set of the player q, which maximises.

    It must be a convex, closed part of the simplex. The objective is ``support(group values)``; any q of the set proves
    a lower bound. If `support` is too small or `contains` too generous, bounds are false.
    """

    #: Whether the set is the whole simplex, as compiled steps and quadratic programs have it.
    is_simplex: ClassVar[bool] = False

    def check(self, n_groups: int) -> None:
        """Refuse a number of groups that does not fit."""
        del n_groups

    def support(self, values: Floats) -> float:
        """Return max over the set of <q, values>."""
        return float(self.maximiser(values) @ values)

    @abstractmethod
    def maximiser(self, values: Floats) -> Floats:
        """Return the q at which `support` is attained."""

    @abstractmethod
    def contains(self, q: Floats) -> bool:
        """Return whether q lies in the set, but for rounding."""

    @abstractmethod
    def start(self, n_groups: int) -> Floats:
        """Return the centre, where solvers begin."""

    @abstractmethod
    def geometry(self, n_groups: int) -> Geometry:
        """Return how q moves."""
