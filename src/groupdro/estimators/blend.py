"""The average and the worst of an estimator's objective, as weights of groups."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from groupdro.data import GroupedData
from groupdro.problem import Box, Cap, Floor, Simplex, WeightSet
from groupdro.utils.types import Floats

__all__ = ["ALL_ROWS", "Blend", "row_shares"]

#: Name of the group of all rows, which represents the average if groups overlap.
ALL_ROWS = "(all rows)"


@dataclass(frozen=True, eq=False)
class Blend:
    """The average and the worst of the groups' values, which `robustness` blends.

    Attributes
    ----------
    n_groups : int
        Number of groups, not counting the group of all rows.
    base : ndarray of shape (n_groups,) or None
        Weights of the average; None if it is represented by the group of all rows.
    caps : ndarray of shape (n_groups,) or None
        Upper bounds on the weights in the worst; None if the worst is one group.
    over_all : bool
        Whether groups overlap and rows are averaged; values then end with that of the group of all rows.
    """

    n_groups: int
    base: Floats | None
    caps: Floats | None = None
    over_all: bool = False

    @classmethod
    def of(
        cls,
        shares: Floats | None,
        n_groups: int,
        *,
        average: str,
        worst_share: float | None,
    ) -> "Blend":
        """Read an estimator's parameters.

        Parameters
        ----------
        shares : ndarray of shape (n_groups,) or None
            Each group's share of the weighted rows; None if groups overlap.
        n_groups : int
            Number of groups.
        average : {"rows", "groups"}
            Whether rows or groups have equal weight.
        worst_share : float or None
            Share of the rows, or of the groups, to average as the worst.

        Returns
        -------
        Blend
            Weights of the average and of the worst.
        """
        base = np.full(n_groups, 1.0 / n_groups) if average == "groups" else shares
        caps = None
        if worst_share is not None:
            if base is None:
                raise ValueError(
                    "worst_share requires each group's share of the rows, which overlapping groups do not have: use "
                    "average='groups'."
                )
            caps = np.minimum(base / worst_share, 1.0)
        return cls(n_groups, base, caps, over_all=base is None)

    def weight_set(self, robustness: float) -> WeightSet:
        """Return the weight set whose objective is (1 - robustness) * average + robustness * worst."""
        caps = self.caps
        base = self.base
        if robustness == 1.0:
            return Simplex() if caps is None else Cap(tuple(caps.tolist()))
        if base is not None and caps is None and not self.over_all:
            return Floor(robustness, tuple(base.tolist()))
        if self.over_all:  # the last group has the average's share and no more
            caps = np.append(np.ones(self.n_groups) if caps is None else caps, 0.0)
            base = np.append(np.zeros(self.n_groups), 1.0)
        assert base is not None
        assert caps is not None
        least = (1.0 - robustness) * base
        return Box(tuple(least.tolist()), tuple((least + robustness * caps).tolist()))

    def mean(self, values: Floats) -> float:
        """Return the average."""
        return float(values[-1]) if self.base is None else float(self.base @ values)

    def worst(self, values: Floats) -> float:
        """Return the worst."""
        return self.weight_set(1.0).support(values[:-1] if self.over_all else values)


def row_shares(data: GroupedData, sample_weight: Any = None) -> Floats | None:
    """Return each group's share of the (weighted) rows over all workers; None if groups overlap."""
    if data.is_whole and data.members.size and len(np.unique(data.members)) < len(data.members):
        return None
    sizes = data.all_sizes.astype(np.float64)
    if sample_weight is not None:
        weights = np.asarray(sample_weight, dtype=np.float64).ravel()
        weights = weights[data.source[data.rows_of(np.arange(data.offsets[-1]))]]
        sizes = np.add.reduceat(weights / weights.max(), data.offsets[:-1])
    return np.asarray(sizes / sizes.sum())
