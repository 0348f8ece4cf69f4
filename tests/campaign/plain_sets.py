"""Sets of group weights by plain formulas in extended precision, and how they are drawn."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import groupdro as gd
from groupdro.problem import WeightSet

__all__ = ["KINDS", "PlainSet", "draw_set"]

Long = np.longdouble
KINDS = ("simplex", "floor", "cap", "box")


@dataclass(frozen=True, eq=False)
class PlainSet:
    """Weights between bounds: all q with least <= q <= most."""

    least: np.ndarray
    most: np.ndarray

    def value(self, values: np.ndarray) -> Any:
        """Return the largest q.values.

        By duality: the least over t of least.values + (1 - sum(least)) t plus the sum of
        (most - least) max(values - t, 0), which is piecewise linear with bends at the values.
        """
        values = values.astype(Long)
        least, room = self.least.astype(Long), self.most.astype(Long) - self.least.astype(Long)
        over = np.maximum(values[None, :] - values[:, None], 0) @ room
        return least @ values + ((1 - least.sum()) * values + over).min()

    def outside(self, q: np.ndarray) -> float:
        """Return by how much q leaves the bounds or the sum."""
        return float(max((self.least - q).max(), (q - self.most).max(), abs(q.sum() - 1.0), 0.0))

    def mixed(self, moving: np.ndarray) -> np.ndarray:
        """Return q of the part that moves, of which a dual solution is known up to its size."""
        q = self.least + (1.0 - self.least.sum()) * moving
        return np.clip(q, self.least, self.most)


def draw_set(kind: str, m: int, rng: np.random.Generator) -> tuple[WeightSet, PlainSet | None]:
    """Draw a set of the package, and the same by plain formulas; None stands for the simplex."""
    if kind == "simplex":
        return gd.weight_sets.Simplex(), None
    base, zeros, ones = rng.dirichlet(np.ones(m)), np.zeros(m), np.ones(m)
    if rng.random() < 0.5:
        base = np.full(m, 1.0 / m)
    if kind == "floor":
        robustness = float(rng.choice((0.0, 0.01, 0.1, 0.5, 0.9, 1.0)))
        return gd.weight_sets.Floor(robustness, base), PlainSet((1.0 - robustness) * base, ones)
    if kind == "cap":
        most = np.full(m, 1.0 / rng.integers(1, m + 1))
        if rng.random() < 0.5:  # of the worst share of all, with some groups that have no say
            most = np.minimum(base / rng.choice((1.0, 0.7, 0.3, 0.05)), 1.0) * (rng.random(m) < 0.8)
            most = ones if not most.any() else most / min(1.0, most.sum())
        return gd.weight_sets.Cap(most), PlainSet(zeros, most)
    least = base * float(rng.choice((0.0, 0.3, 0.9, 1.0)))
    most = np.minimum(np.maximum(least, base) * rng.choice((1.0, 1.5, 10.0), m), 1.0)
    return gd.weight_sets.Box(least, most), PlainSet(least, most)
