"""Weights between bounds: mixtures with the average, averages of the worst groups, and both."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from groupdro.problem.sealed import refuse_subclass
from groupdro.problem.weight_sets.moving import Moving, MovingEntropy
from groupdro.problem.weight_sets.simplex import Simplex
from groupdro.problem.weight_sets.weight_set import WeightSet
from groupdro.utils.arguments import check_number, error_prefix
from groupdro.utils.types import Floats

__all__ = ["Box", "Cap", "Floor", "read_base"]

_ROUNDED = 1e-12  # of all weights together


class _Bounded(WeightSet):
    """All distributions between a least and a most weight of every group."""

    @abstractmethod
    def moving(self, n_groups: int) -> Moving:
        """Return the bounds as what is fixed, what moves, and caps of that."""

    def maximiser(self, values: Floats) -> Floats:
        """Put what may move on the largest values, each group up to its most."""
        moving = self.moving(len(values))
        return moving.mixed(moving.fill(values))

    def contains(self, q: Floats) -> bool:
        """Check both bounds and the sum."""
        moving, n = self.moving(len(q)), len(q)
        room = _ROUNDED * np.maximum(q, 1.0 / n)  # so that all together are off by no more than rounding
        inside = bool((q >= moving.least - room).all()) and abs(float(q.sum()) - 1.0) <= _ROUNDED
        return inside and bool((q <= moving.mixed(moving.caps) + room).all() if moving.caps.size else True)

    def start(self, n_groups: int) -> Floats:
        """Let the part that may move be as equal as caps allow."""
        moving = self.moving(n_groups)
        return moving.mixed(moving.spread())

    def geometry(self, n_groups: int) -> MovingEntropy:
        """Return entropic steps of the part that may move."""
        return MovingEntropy(self.moving(n_groups))


@dataclass(frozen=True)
class Floor(_Bounded):
    """Distributions q >= (1 - robustness) * base.

    The objective is ``(1 - robustness) * average + robustness * largest value``, the average being that of `base`.

    Parameters
    ----------
    robustness : float
        Share of the weight that the adversary may move, in [0, 1]: 0 is the plain average, 1 the worst group.
    base : sequence of float, optional
        The distribution of the average, such as the groups' shares of the rows; by default every group counts alike.
    """

    robustness: float
    base: Sequence[float] | None = None

    __init_subclass__ = refuse_subclass

    def __post_init__(self) -> None:
        check_number(self.robustness, "robustness")
        if self.robustness > 1:
            raise ValueError(f"robustness must be at most 1, got {self.robustness!r}.")
        object.__setattr__(self, "base", read_base(self.base))

    def check(self, n_groups: int) -> None:
        """Refuse a base of another length."""
        _check_length(self.base, "base", n_groups)

    def moving(self, n_groups: int) -> Moving:
        """Fix the share of the average."""
        base = np.full(n_groups, 1.0 / n_groups) if self.base is None else np.array(self.base)
        return Moving((1.0 - self.robustness) * base, float(self.robustness))


@dataclass(frozen=True)
class Cap(_Bounded):
    """Distributions q <= most.

    The objective is an average over the worst groups: of the k worst with ``most=1/k``; of the worst share b of all
    rows, the conditional value at risk, with ``most=shares_of_rows / b``.

    Parameters
    ----------
    most : float or sequence of float
        Largest weight of every group, or of each; at least one in all.
    """

    most: float | Sequence[float]

    __init_subclass__ = refuse_subclass

    def __post_init__(self) -> None:
        object.__setattr__(self, "most", _read_bounds(self.most, "most"))

    def check(self, n_groups: int) -> None:
        """Refuse caps of another length, or that leave weight over."""
        _check_length(self.most, "most", n_groups)
        _check_room(np.broadcast_to(self.most, n_groups))

    def moving(self, n_groups: int) -> Moving:
        """Let all move below the caps."""
        return Moving(np.zeros(n_groups), 1.0, _fitted_caps(np.broadcast_to(np.array(self.most), n_groups)))


@dataclass(frozen=True)
class Box(_Bounded):
    """Distributions with least <= q <= most.

    Parameters
    ----------
    least, most : float or sequence of float
        Smallest and largest weight of every group, or of each. The smallest sum to at most one, the largest to at
        least one.
    """

    least: float | Sequence[float]
    most: float | Sequence[float]

    __init_subclass__ = refuse_subclass

    def __post_init__(self) -> None:
        for name in ("least", "most"):
            object.__setattr__(self, name, _read_bounds(getattr(self, name), name))

    def check(self, n_groups: int) -> None:
        """Refuse bounds of another length, or that no distribution keeps."""
        for name in ("least", "most"):
            _check_length(getattr(self, name), name, n_groups)
        least, most = np.broadcast_to(self.least, n_groups), np.broadcast_to(self.most, n_groups)
        if (least > most).any():
            raise ValueError(f"least exceeds most in group {int(np.argmax(least > most))}.")
        if least.sum() > 1.0 + _ROUNDED:
            raise ValueError(f"least sums to {least.sum():g}, but weights sum to one.")
        _check_room(most)

    def moving(self, n_groups: int) -> Moving:
        """Fix the least weights, and cap what moves."""
        least = np.broadcast_to(np.array(self.least), n_groups).copy()
        share = 1.0 - float(least.sum())
        if share <= _ROUNDED:
            return Moving(least / least.sum(), 0.0)
        return Moving(least, share, _fitted_caps((np.broadcast_to(np.array(self.most), n_groups) - least) / share))


def read_base(base: Any) -> tuple[float, ...] | None:
    """Return a distribution over groups as the package keeps it; None stays None."""
    if base is None:
        return None
    with error_prefix("base"):
        found = np.asarray(base, dtype=np.float64)
    if found.ndim != 1 or not Simplex().contains(found):
        raise ValueError("base must be a distribution: entries of at least 0 that sum to one.")
    return tuple((found / found.sum()).tolist())


def _read_bounds(bounds: Any, name: str) -> float | tuple[float, ...]:
    with error_prefix(name):
        found = np.asarray(bounds, dtype=np.float64)
    if found.ndim > 1 or not (found >= 0).all():
        raise ValueError(f"{name} must be a number of at least 0, or one for each group, got {bounds!r}.")
    found = np.minimum(found, 1.0)
    return float(found) if found.ndim == 0 else tuple(found.tolist())


def _check_length(bounds: Any, name: str, n_groups: int) -> None:
    if isinstance(bounds, tuple) and len(bounds) != n_groups:
        raise ValueError(f"{name} has {len(bounds)} entries, but there are {n_groups} groups.")


def _check_room(most: Floats) -> None:
    if most.sum() < 1.0 - _ROUNDED:
        raise ValueError(f"most sums to {most.sum():g}, but weights sum to one.")


def _fitted_caps(caps: Floats) -> Floats:
    """Return caps that leave no weight over, as those of k groups with 1/k each may by rounding."""
    return caps / min(1.0, float(caps.sum()))
