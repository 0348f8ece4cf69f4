"""Many groups as few: those that matter stand for themselves, and the others together for one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from groupdro.utils.types import Floats, Indices

__all__ = ["MergedGroups"]


@dataclass(frozen=True, eq=False)
class MergedGroups:
    """Groups apart, followed by one of all the others, in which these keep the proportions of their weights.

    A program in the weights of thousands of groups is too large. Few of these weights have to move much at once: those
    of the worst groups, and those that a step of multiplicative weights would move most.

    Attributes
    ----------
    apart, others : ndarray of int
        The groups of both kinds; without others, there is no merged group.
    proportions : ndarray of shape (n_others,)
        Of the others in the merged group.
    """

    apart: Indices
    others: Indices
    proportions: Floats

    @classmethod
    def of(cls, weights: Floats, values: Floats, most: int) -> "MergedGroups":
        """Leave at most so many groups apart: half for how their weights move, the rest the worst of the others."""
        n = len(weights)
        if n <= most:
            return cls(np.arange(n), np.arange(0), np.empty(0))
        inside = np.zeros(n, dtype=bool)
        moving = weights * np.abs(values - weights @ values)
        inside[np.argsort(-moving, kind="stable")[: most // 2]] = True
        worst = np.argsort(-values, kind="stable")
        inside[worst[~inside[worst]][: most - most // 2]] = True
        others = np.flatnonzero(~inside)
        mass = float(weights[others].sum())
        proportions = weights[others] / mass if mass > 0.0 else np.full(len(others), 1.0 / len(others))
        return cls(np.flatnonzero(inside), others, proportions)

    @property
    def matrix(self) -> Any:
        """The groups from which each of the merged ones is made, as a sparse matrix."""
        k = len(self.apart)
        m = len(self.apart) + len(self.others)
        entries = np.concatenate([np.ones(k), self.proportions])
        ends = np.append(np.arange(k + 1), k + len(self.others)) if len(self.others) else np.arange(k + 1)
        return sp.csr_array((entries, np.concatenate([self.apart, self.others]), ends), shape=(len(ends) - 1, m))

    def join(self, weights: Floats) -> Floats:
        """Return the weights of the merged groups."""
        if not len(self.others):
            return weights
        return np.append(weights[self.apart], weights[self.others].sum())

    def divide(self, merged: Floats) -> Floats:
        """Return the weights of all groups from those of the merged ones."""
        return np.asarray(self.matrix.T @ merged)
