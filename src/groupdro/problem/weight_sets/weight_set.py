"""The contract of a set of group weights: what the player q, which maximises, may choose from."""

from abc import ABC, abstractmethod
from typing import ClassVar

from groupdro.geometry import Geometry
from groupdro.problem.weight_sets.moving import Moving
from groupdro.utils.types import Floats

__all__ = ["WeightSet"]


class WeightSet(ABC):
    """The set of the player q, which maximises.

    It must be a convex, closed part of the simplex. The objective is ``support(group values)``; any q of the set proves
    a lower bound. If `support` is too small or `contains` too generous, bounds are false.
    """

    #: Whether the set is the whole simplex without a price, as some baselines have it.
    is_simplex: ClassVar[bool] = False

    def check(self, n_groups: int) -> None:
        """Refuse a number of groups that does not fit."""
        del n_groups

    def support(self, values: Floats) -> float:
        """Return max over the set of <q, values> - price(q)."""
        q = self.maximiser(values)
        return float(q @ values) - self.price(q)

    def price(self, q: Floats) -> float:
        """Return what weights cost the player, a convex function of at least 0 that is 0 somewhere; 0 by default."""
        del q
        return 0.0

    @property
    def priced(self) -> bool:
        """Whether weights may cost something."""
        return type(self).price is not WeightSet.price

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

    def moving(self, n_groups: int) -> Moving | None:
        """Return the set as compiled steps and quadratic programs know it; None where they do not."""
        del n_groups
        return None
