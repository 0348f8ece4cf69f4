"""Group weights between bounds, for blends with the average, averages of the worst groups, or both."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from groupdro.problem.weight_sets.moving import Moving, MovingEntropy
from groupdro.problem.weight_sets.simplex import Simplex
from groupdro.problem.weight_sets.weight_set import WeightSet
from groupdro.utils.arguments import check_number, error_prefix
from groupdro.utils.types import Floats

__all__ = ["Box", "Cap", "Floor", "read_base"]

_ROUNDED = 1e-12  # allowed deviation of the sum of the weights


class _Bounded(WeightSet):
    """All distributions between a smallest and a largest weight of every group."""

    @abstractmethod
    def moving(self, n_groups: int) -> Moving:
        """Return the bounds as a fixed part, a moving share, and caps on it."""

    def maximiser(self, values: Floats) -> Floats:
        """Put the moving share on the largest values, each group up to its cap."""
        moving = self.moving(len(values))
        return moving.mixed(moving.fill(values))

    def contains(self, q: Floats) -> bool:
        """Check both bounds and the sum."""
        moving = self.moving(len(q))
        n = len(q)
        room = _ROUNDED * np.maximum(q, 1.0 / n)  # so that their sum is off by no more than rounding
        inside = bool((q >= moving.least - room).all()) and abs(float(q.sum()) - 1.0) <= _ROUNDED
        return inside and bool((q <= moving.mixed(moving.caps) + room).all() if moving.caps.size else True)

    def start(self, n_groups: int) -> Floats:
        """Spread the moving share as evenly as the caps allow."""
        moving = self.moving(n_groups)
        return moving.mixed(moving.spread())

    def geometry(self, n_groups: int) -> MovingEntropy:
        """Return the entropic geometry of the moving share."""
        return MovingEntropy(self.moving(n_groups))


@dataclass(frozen=True)
class Floor(_Bounded):
    """Distributions q >= (1 - robustness) * base.

    The objective is ``(1 - robustness) * average + robustness * largest value``, where `base` gives the weights of the
    average.

    Parameters
    ----------
    robustness : float
        Share of the weight that may move to the worst group, in [0, 1]: 0 is the plain average, 1 the worst group.
    base : sequence of float, optional
        The distribution of the average, such as the groups' shares of the rows; by default all groups have equal
        weight.
    """

    robustness: float
    base: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_number(self.robustness, "robustness")
        if self.robustness > 1:
            raise ValueError(f"robustness must be at most 1, got {self.robustness!r}.")
        object.__setattr__(self, "base", read_base(self.base))

    def check(self, n_groups: int) -> None:
        """Refuse a base of the wrong length."""
        _check_length(self.base, "base", n_groups)

    def moving(self, n_groups: int) -> Moving:
        """Fix the average's share of the weight."""
        base = np.full(n_groups, 1.0 / n_groups) if self.base is None else np.array(self.base)
        return Moving((1.0 - self.robustness) * base, float(self.robustness))


@dataclass(frozen=True)
class Cap(_Bounded):
    """Distributions q <= most.

    The objective is an average over the worst groups: over the k worst with ``most=1/k``, or over the worst share b of
    all rows, the conditional value at risk, with ``most=shares_of_rows / b``.

    Parameters
    ----------
    most : float or sequence of float
        Largest weight of a group, as one number or one per group. Over all groups they must sum to at least one.
    """

    most: float | Sequence[float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "most", _read_bounds(self.most, "most"))

    def check(self, n_groups: int) -> None:
        """Refuse caps of the wrong length, or with a sum below one."""
        _check_length(self.most, "most", n_groups)
        _check_room(np.broadcast_to(self.most, n_groups))

    def moving(self, n_groups: int) -> Moving:
        """Let all weight move below the caps."""
        return Moving(np.zeros(n_groups), 1.0, _fitted_caps(np.broadcast_to(np.array(self.most), n_groups)))


@dataclass(frozen=True)
class Box(_Bounded):
    """Distributions with least <= q <= most.

    Parameters
    ----------
    least, most : float or sequence of float
        Smallest and largest weight of a group, as one number or one per group. The smallest must sum to at most one,
        the largest to at least one.
    """

    least: float | Sequence[float]
    most: float | Sequence[float]

    def __post_init__(self) -> None:
        for name in ("least", "most"):
            object.__setattr__(self, name, _read_bounds(getattr(self, name), name))

    def check(self, n_groups: int) -> None:
        """Refuse bounds of the wrong length, or that no distribution satisfies."""
        for name in ("least", "most"):
            _check_length(getattr(self, name), name, n_groups)
        least = np.broadcast_to(self.least, n_groups)
        most = np.broadcast_to(self.most, n_groups)
        if (least > most).any():
            raise ValueError(f"least exceeds most in group {int(np.argmax(least > most))}.")
        if least.sum() > 1.0 + _ROUNDED:
            raise ValueError(f"least sums to {least.sum():g}, but weights sum to one.")
        _check_room(most)

    def moving(self, n_groups: int) -> Moving:
        """Fix the smallest weights, and cap the moving share."""
        least = np.broadcast_to(np.array(self.least), n_groups).copy()
        share = 1.0 - float(least.sum())
        if share <= _ROUNDED:
            return Moving(least / least.sum(), 0.0)
        return Moving(least, share, _fitted_caps((np.broadcast_to(np.array(self.most), n_groups) - least) / share))


def read_base(base: Any) -> tuple[float, ...] | None:
    """Return a distribution over groups as a tuple; None stays None."""
    if base is None:
        return None
    with error_prefix("base"):
        found = np.asarray(base, dtype=np.float64)
    if found.ndim != 1 or not Simplex().contains(found):
        raise ValueError("base must be a distribution: nonnegative entries that sum to one.")
    return tuple((found / found.sum()).tolist())


def _read_bounds(bounds: Any, name: str) -> float | tuple[float, ...]:
    with error_prefix(name):
        found = np.asarray(bounds, dtype=np.float64)
    if found.ndim > 1 or not (found >= 0).all():
        raise ValueError(f"{name} must be a nonnegative number, or one per group, got {bounds!r}.")
    found = np.minimum(found, 1.0)
    return float(found) if found.ndim == 0 else tuple(found.tolist())


def _check_length(bounds: Any, name: str, n_groups: int) -> None:
    if isinstance(bounds, tuple) and len(bounds) != n_groups:
        raise ValueError(f"{name} has {len(bounds)} entries, but there are {n_groups} groups.")


def _check_room(most: Floats) -> None:
    if most.sum() < 1.0 - _ROUNDED:
        raise ValueError(f"most sums to {most.sum():g}, but weights sum to one.")


def _fitted_caps(caps: Floats) -> Floats:
    """Return caps that sum to at least one, which k caps of 1/k may miss by rounding."""
    return caps / min(1.0, float(caps.sum()))
