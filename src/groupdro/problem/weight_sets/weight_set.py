"""The interface of a set of group weights: the feasible set of q, the maximising player."""

from abc import ABC, abstractmethod
from typing import ClassVar

from groupdro.geometry import Geometry
from groupdro.problem.weight_sets.moving import Moving
from groupdro.utils.types import Floats

__all__ = ["WeightSet"]


class WeightSet(ABC):
    """The feasible set of q, the maximising player.

    It must be a closed, convex subset of the simplex. The objective is ``support(group values)``; any q in the set
    proves a lower bound. If `support` is too small or `contains` too permissive, bounds are wrong.
    """

    #: Whether the set is the whole simplex, as some solvers require.
    is_simplex: ClassVar[bool] = False

    def check(self, n_groups: int) -> None:
        """Raise if the set does not fit the number of groups."""

    def support(self, values: Floats) -> float:
        """Return max over the set of <q, values>."""
        return float(self.maximiser(values) @ values)

    @abstractmethod
    def maximiser(self, values: Floats) -> Floats:
        """Return the q at which `support` is attained."""

    @abstractmethod
    def contains(self, q: Floats) -> bool:
        """Return whether q lies in the set, up to rounding."""

    @abstractmethod
    def start(self, n_groups: int) -> Floats:
        """Return the centre, where solvers start."""

    @abstractmethod
    def geometry(self, n_groups: int) -> Geometry:
        """Return the geometry of q."""

    def moving(self, n_groups: int) -> Moving | None:
        """Return the set in the form of compiled steps and quadratic programs; None if it has none."""
        return None
