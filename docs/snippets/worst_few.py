"""The average of the worst few groups: a set of group weights in one file."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from groupdro.geometry import Entropy
from groupdro.weight_sets import WeightSet

Floats = NDArray[np.float64]

_ROUNDING = 1e-12  # of a weight, and of the sum of all


@dataclass(frozen=True)
class WorstFew(WeightSet):
    """Distributions q <= 1 / count.

    The objective is the average of the `count` largest group values: the conditional
    value at risk over groups. One outlying group cannot decide alone.

    Parameters
    ----------
    count : float
        Number of groups to average, from 1 to the number of groups; 2.5 counts the
        third worst group by half.
    """

    count: float

    def __post_init__(self) -> None:
        if not 1.0 <= self.count < np.inf:
            raise ValueError(
                f"count must be at least 1 and finite, got {self.count!r}."
            )

    def check(self, n_groups: int) -> None:
        """Refuse too few groups: their weights could not sum to one."""
        if self.count > n_groups:
            raise ValueError(f"count is {self.count}, but there are {n_groups} groups.")

    def maximiser(self, values: Floats) -> Floats:
        """Give 1 / count to each group, from the worst on, until nothing is left."""
        q, cap = np.empty(len(values)), 1.0 / self.count
        q[np.argsort(-values)] = np.clip(1.0 - cap * np.arange(len(values)), 0.0, cap)
        return q

    def contains(self, q: Floats) -> bool:
        """Check both ends and the sum."""
        ends = q.min() >= 0.0 and q.max() <= 1.0 / self.count + _ROUNDING
        return bool(ends) and abs(float(q.sum()) - 1.0) <= _ROUNDING

    def start(self, n_groups: int) -> Floats:
        """Return equal weights."""
        return np.full(n_groups, 1.0 / n_groups)

    def geometry(self, n_groups: int) -> "CappedEntropy":
        """Return entropic steps that stop at the cap."""
        return CappedEntropy(n_groups, self.count)


@dataclass(frozen=True)
class CappedEntropy(Entropy):
    """The negative entropy on the part of the simplex where q <= 1 / count.

    Mirror coordinates are any logits: `point` finds the weights of the set nearest to
    them, and `step` returns the logits of such weights. It minimises
    step * <gradient, q> + KL(q || centre) over the set, for which one shift of all
    logits and a clip at the cap are enough.
    """

    count: float

    def _capped(self, logits: Floats) -> Floats:
        """Return the logarithms of the weights that logits stand for."""
        cap, most = -np.log(self.count), int(np.ceil(self.count))
        ordered = np.sort(logits)[::-1]
        # With the j largest at the cap, the others share what is left: take the least j
        # that leaves none above the cap.
        rest = np.logaddexp.accumulate(ordered[::-1])[::-1][:most]
        shifts = np.log1p(-np.arange(most) / self.count) - rest
        fits = ordered[:most] + shifts <= cap
        fits[-1] = True  # what is left then is at most the cap itself
        return np.minimum(logits + shifts[np.argmax(fits)], cap)

    def point(self, mirror: Floats) -> Floats:
        """Return the weights."""
        return np.exp(self._capped(mirror))

    def step(self, centre: Floats, step: Any, gradient: Floats) -> Floats:
        """Move the logits against the gradient, and return to the set."""
        return self._capped(centre - step * gradient)
