"""Weights that leave every group a share: a mixture of the average and the worst group."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from groupdro.geometry import Entropy, Geometry
from groupdro.problem.sealed import refuse_subclass
from groupdro.problem.weight_sets.simplex import Simplex
from groupdro.problem.weight_sets.weight_set import WeightSet
from groupdro.utils.arguments import check_number, error_prefix
from groupdro.utils.types import Floats

__all__ = ["Floor"]

_ROUNDED = 1e-12  # of a weight, and of the sum of all


@dataclass(frozen=True)
class Floor(WeightSet):
    """Distributions q >= (1 - robustness) * base.

    The objective is ``(1 - robustness) * average + robustness * largest value``, the average being that of `base`.

    Parameters
    ----------
    robustness : float
        Share of the weight that the adversary may move, in (0, 1].
    base : sequence of float, optional
        The distribution of the average, such as the groups' shares of the rows; by default every group counts alike.
    """

    robustness: float
    base: Sequence[float] | None = None

    __init_subclass__ = refuse_subclass

    def __post_init__(self) -> None:
        check_number(self.robustness, "robustness", positive=True)
        if self.robustness > 1:
            raise ValueError(f"robustness must be at most 1, got {self.robustness!r}.")
        if self.base is not None:
            with error_prefix("base"):
                base = np.asarray(self.base, dtype=np.float64)
            if base.ndim != 1 or not Simplex().contains(base):
                raise ValueError("base must be a distribution: entries of at least 0 that sum to one.")
            object.__setattr__(self, "base", tuple((base / base.sum()).tolist()))

    def check(self, n_groups: int) -> None:
        """Refuse a base of another length."""
        if self.base is not None and len(self.base) != n_groups:
            raise ValueError(f"base has {len(self.base)} entries, but there are {n_groups} groups.")

    def least(self, n_groups: int) -> Floats:
        """Return the least weight of every group."""
        base = np.full(n_groups, 1.0 / n_groups) if self.base is None else np.array(self.base)
        return (1.0 - self.robustness) * base

    def maximiser(self, values: Floats) -> Floats:
        """Put all weight that may move on the largest value."""
        q = self.least(len(values))
        q[np.argmax(values)] += self.robustness
        return q

    def contains(self, q: Floats) -> bool:
        """Check the least weights and the sum."""
        return bool((q >= self.least(len(q)) - _ROUNDED).all()) and abs(float(q.sum()) - 1.0) <= _ROUNDED

    def start(self, n_groups: int) -> Floats:
        """Let the part that may move be equal for all groups."""
        return self.least(n_groups) + self.robustness / n_groups

    def geometry(self, n_groups: int) -> "_FloorGeometry":
        """Return entropic steps of the part that may move."""
        return _FloorGeometry(self.robustness, self.least(n_groups))


@dataclass(frozen=True, eq=False)
class _FloorGeometry(Geometry):
    """q = least + t s with s in the simplex; mirror coordinates are the logits of s, with t times the gradient."""

    t: float
    least: Floats
    dual_order = np.inf
    radius = 1.0

    @property
    def _whole(self) -> Entropy:
        return Entropy(len(self.least))

    @property
    def squared_diameter(self) -> float:  # type: ignore[override]
        """Logarithm of the number of groups, as for s."""
        return self._whole.squared_diameter

    def _moved(self, q: Floats) -> Floats:
        return np.maximum(q - self.least, 0.0) / self.t

    def mirror(self, point: Floats) -> Floats:
        """Return the logits of s."""
        return self._whole.mirror(self._moved(point))

    def point(self, mirror: Floats) -> Floats:
        """Return q."""
        return self.least + self.t * self._whole.point(mirror)

    def interior(self, point: Floats) -> Floats:
        """Lift the parts of s that are nearly zero."""
        return self.least + self.t * self._whole.interior(self._moved(point))

    def step(self, centre: Floats, step: Any, gradient: Floats) -> Floats:
        """Step s against its own gradient."""
        return self._whole.step(centre, step, self.t * gradient)

    def squared_gradient(self, step: Any, difference: Floats, point: Floats) -> float:
        """Measure the difference of the gradients of s."""
        return self._whole.squared_gradient(step, self.t * difference, self._moved(point))

    def squared_distance(self, step: Any, a: Floats, b: Floats) -> float:
        """Measure the distance of s."""
        return self._whole.squared_distance(step, self._moved(a), self._moved(b))
