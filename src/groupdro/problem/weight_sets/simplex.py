"""All distributions over groups: the objective is the worst group."""

from dataclasses import dataclass

import numpy as np

from groupdro.problem.weight_sets.moving import Moving, MovingEntropy
from groupdro.problem.weight_sets.weight_set import WeightSet
from groupdro.utils.types import Floats

__all__ = ["Simplex"]

_ROUNDED = 1e-9  # allowed deviation of the sum of the weights from 1


@dataclass(frozen=True)
class Simplex(WeightSet):
    """All distributions over groups. The objective is the largest of the groups' values."""

    is_simplex = True

    def support(self, values: Floats) -> float:
        """Return the largest value."""
        return float(values.max())

    def maximiser(self, values: Floats) -> Floats:
        """Put all weight on the largest value."""
        return self.moving(len(values)).fill(values)

    def contains(self, q: Floats) -> bool:
        """Check signs and sum."""
        return bool((q >= 0).all()) and abs(float(q.sum()) - 1.0) <= _ROUNDED

    def start(self, n_groups: int) -> Floats:
        """Return equal weights."""
        return np.full(n_groups, 1.0 / n_groups)

    def geometry(self, n_groups: int) -> MovingEntropy:
        """Return the entropic geometry."""
        return MovingEntropy(self.moving(n_groups))

    def moving(self, n_groups: int) -> Moving:
        """Let all weight move."""
        return Moving(np.zeros(n_groups))
