"""All distributions, with a price for deviating from the average: tilted losses."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, rel_entr

from groupdro.problem.sealed import refuse_subclass
from groupdro.problem.weight_sets.bounded import read_base
from groupdro.problem.weight_sets.moving import Moving, MovingEntropy
from groupdro.problem.weight_sets.simplex import Simplex
from groupdro.problem.weight_sets.weight_set import WeightSet
from groupdro.utils.arguments import check_number
from groupdro.utils.types import Floats

__all__ = ["Tilted"]


@dataclass(frozen=True)
class Tilted(WeightSet):
    """All distributions q over groups, at a price of ``temperature`` times their relative entropy to `base`.

    The objective is ``temperature * log(sum(base * exp(values / temperature)))``, a soft maximum: near the average for
    high temperatures, near the worst group for low ones.

    Parameters
    ----------
    temperature : float
        Price of moving weight, in the units of the loss.
    base : sequence of float, optional
        The weights of the average; by default all groups have equal weight.
    """

    temperature: float
    base: Sequence[float] | None = None

    __init_subclass__ = refuse_subclass

    def __post_init__(self) -> None:
        check_number(self.temperature, "temperature", positive=True)
        base = read_base(self.base)
        if base is not None and min(base) <= 0:
            raise ValueError("base must be positive: a group with base 0 could never get any weight.")
        object.__setattr__(self, "base", base)

    def check(self, n_groups: int) -> None:
        """Refuse a base of the wrong length."""
        if self.base is not None and len(self.base) != n_groups:
            raise ValueError(f"base has {len(self.base)} entries, but there are {n_groups} groups.")

    def _base(self, n_groups: int) -> Floats:
        return np.full(n_groups, 1.0 / n_groups) if self.base is None else np.array(self.base)

    def support(self, values: Floats) -> float:
        """Return the soft maximum.

        If the temperature is far above the values, only their spread enters the logarithm; otherwise the temperature's
        rounding would swamp them.
        """
        base, top = self._base(len(values)), float(values.max())
        below = (values - top) / self.temperature
        if below.min() > -0.5:
            return top + self.temperature * float(np.log1p(base @ np.expm1(below) / base.sum()))
        return top + self.temperature * float(logsumexp(below, b=base))

    def price(self, q: Floats) -> float:
        """Return the relative entropy times the temperature.

        Its terms are ``q log(q / base) - q + base``, all nonnegative, so nothing cancels near the base.
        """
        base = self._base(len(q))
        ratio = q / base - 1.0
        near = np.abs(ratio) < 0.5
        small = np.where(near, ratio, 0.0)
        terms = np.where(near, base * ((1.0 + small) * np.log1p(small) - small), rel_entr(q, base) - q + base)
        return self.temperature * max(float(terms.sum()), 0.0)

    def maximiser(self, values: Floats) -> Floats:
        """Weight groups by the exponentials of their values."""
        weights = self._base(len(values)) * np.exp((values - values.max()) / self.temperature)
        return np.asarray(weights / weights.sum())

    def contains(self, q: Floats) -> bool:
        """Check signs and sum."""
        return Simplex().contains(q)

    def start(self, n_groups: int) -> Floats:
        """Return the base, which costs nothing."""
        return self._base(n_groups)

    def geometry(self, n_groups: int) -> MovingEntropy:
        """Return the entropic geometry, treating the price exactly."""
        return MovingEntropy(self.moving(n_groups))

    def moving(self, n_groups: int) -> Moving:
        """Let all weight move, at a price."""
        return Moving(np.zeros(n_groups), price=float(self.temperature), log_base=np.log(self._base(n_groups)))
