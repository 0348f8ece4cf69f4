"""The weights of rows in groups: a sparse matrix, stored more cheaply if groups are consecutive rows."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from groupdro.utils.types import Array, Floats, Indices

__all__ = ["Shares", "relative_weights"]


@dataclass(frozen=True, eq=False)
class Shares:
    """A matrix of shape (n_groups, n_rows), stored by group. For consecutive rows, only their groups are listed.

    Attributes
    ----------
    offsets : ndarray of shape (n_listed + 1,)
        Where the members of each listed group begin and end.
    rows : ndarray of shape (n_members,), or empty
        Row of each member; empty if member e is row e.
    weights : ndarray of shape (n_members,)
        Weight of each member.
    n_rows : int
        Number of rows.
    first : int
        First listed group; the others follow consecutively.
    """

    offsets: Indices
    rows: Indices
    weights: Floats
    n_rows: int
    first: int = 0

    @property
    def listed(self) -> slice:
        """Position of the listed groups among all."""
        return slice(self.first, self.first + len(self.offsets) - 1)

    @cached_property
    def matrix(self) -> Any:
        """The listed groups' part as a sparse matrix."""
        rows = self.rows if self.rows.size else np.arange(self.n_rows)
        return sp.csr_array((self.weights, rows, self.offsets), shape=(len(self.offsets) - 1, self.n_rows))

    @cached_property
    def groups(self) -> list[tuple[int, slice]]:
        """The groups that have members, each with its slice of members."""
        there = np.flatnonzero(np.diff(self.offsets))
        return [(self.first + i, slice(self.offsets[i], self.offsets[i + 1])) for i in there.tolist()]

    def summed(self, weights: Any) -> "Shares":
        """Return the shares of some sums of groups, given the groups' weights in each as a sparse matrix."""
        part = weights[:, self.listed] @ self.matrix
        return Shares(part.indptr, part.indices, part.data, self.n_rows)

    def add_sums(self, values: Floats, out: Floats) -> None:
        """Add the weighted sum of values of the rows over each group."""
        values = values[self.rows] if self.rows.size else values
        # Pairwise sums: a running sum over many rows would lose digits that the rounding bound does not count.
        weighted = values * (self.weights if values.ndim == 1 else self.weights[:, None])
        for i, place in self.groups:
            out[i] += weighted[place].sum(axis=0)


def relative_weights(weight: Array, offsets: Indices, names: tuple[Any, ...]) -> Floats:
    """Return the weight of each member relative to its group's total.

    Parameters
    ----------
    weight : ndarray of shape (n_members,)
        Weights of the members, in the order of groups.
    offsets : ndarray of shape (n_groups + 1,)
        Where each group's members begin and end.
    names : tuple
        Names of the groups.

    Returns
    -------
    ndarray of shape (n_members,)
        The weights, which sum to one in each group.
    """
    if (weight < 0).any():
        raise ValueError("sample_weight has negative values.")
    weight = np.asarray(weight, dtype=np.float64)
    starts = offsets[:-1]
    sizes = np.diff(offsets)
    largest = np.maximum.reduceat(weight, starts)
    if not largest.all():
        raise ValueError(f"sample_weight is zero on all of group {names[int(np.argmin(largest))]!r}.")
    scaled = weight / np.repeat(largest, sizes)  # first, so that no sum overflows
    return scaled / np.repeat(np.add.reduceat(scaled, starts), sizes)
