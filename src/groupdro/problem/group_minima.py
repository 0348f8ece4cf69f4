"""Bounds on each group's own minimum, relative to which excess risks are measured."""

from dataclasses import dataclass
from typing import Any, Self

from groupdro.utils.types import Floats

__all__ = ["GroupMinima"]


@dataclass(frozen=True, eq=False)
class GroupMinima:
    """Bounds on each group's own minimum, ``lower[i] <= min_w R_i(w) + penalty(w) <= upper[i]``.

    Lower bounds on the objective subtract `upper` from the risks, upper bounds subtract `lower`, so both stay valid
    however roughly the minima are known.

    Attributes
    ----------
    upper, lower : ndarray of shape (n_groups,)
        The bounds.
    centre : ndarray of shape (n_groups,)
        Values that solvers subtract from the risks, on which no bound depends; by default the upper bounds.
    models : ndarray or None
        Models that attain the upper bounds, one w per group, if a solver needs them.
    """

    upper: Floats
    lower: Floats
    centre: Any = None
    models: Floats | None = None

    def __post_init__(self) -> None:
        if self.centre is None:
            object.__setattr__(self, "centre", self.upper)

    @classmethod
    def exact(cls, values: Floats) -> Self:
        """Return minima that are known exactly, such as those that a user gives."""
        return cls(values, values)

    def minus(self, offsets: Floats) -> "GroupMinima":
        """Return the bounds minus a number per group."""
        return GroupMinima(self.upper - offsets, self.lower - offsets, self.centre - offsets)

    def of_first(self, n_groups: int) -> "GroupMinima":
        """Return the bounds of the first groups."""
        return GroupMinima(self.upper[:n_groups], self.lower[:n_groups], self.centre[:n_groups])

    @property
    def bounds(self) -> dict[str, Floats]:
        """The numbers per group, by what they are."""
        return {"upper": self.upper, "lower": self.lower, "central": self.centre}

    def width_at(self, q: Floats) -> float:
        """Return the contribution of the bounds' width to the gap at group weights q."""
        return float(q @ (self.upper - self.lower))
