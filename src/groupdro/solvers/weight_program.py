"""The small program of SQP in the weights of some groups, the others being fixed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from groupdro.problem.weight_sets import Moving
from groupdro.solvers.simplex_qp import solve_priced_program, solve_simplex_qp
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["WORKING_SET", "Program", "WeightProgram", "first_working_set", "next_working_set"]

WORKING_SET = 400  # groups that enter the program at once, the worst first


@dataclass(frozen=True, eq=False, kw_only=True)
class Program(ABC):
    """A small program in multipliers x of rows, as SQP's steps take it.

    Attributes
    ----------
    rows, values : ndarray of shape (n, w.size), (n,)
        Slope and value of the model that belongs to each multiplier.
    total : float
        What a multiplier of one stands for.
    share : float
        Share of a pull on w that belongs to every row.
    """

    rows: Floats
    values: Floats
    total: float = 1.0
    share: float = 1.0

    @abstractmethod
    def solve(self, M: Floats, values: Floats) -> Floats:
        """Return the best multipliers of rows whose products are M, which may be more than those here."""


def first_working_set(moving: Moving, order: Indices) -> Mask:
    """Return which groups enter the program first, given their order from the worst down: those about to get weight."""
    inside = np.zeros(len(order), dtype=bool)
    if moving.share == 0.0:
        inside[0] = True  # any will do
    elif moving.price:
        inside[:] = True  # all have weight
    else:
        if moving.caps.size:
            order = order[moving.caps[order] > 0]  # the others never get any
        n_full = int((np.cumsum(moving.caps[order]) < 1.0).sum()) if moving.caps.size else 0
        start = max(0, min(n_full - WORKING_SET // 2, len(order) - WORKING_SET))
        inside[order[start : start + WORKING_SET]] = True
    return inside


def next_working_set(moving: Moving, s: Floats, expected: Floats, wrong: Mask, level: float) -> Mask:
    """Return which groups enter the program next, given those whose values after the step contradict their s.

    Those without weight, and those that are full, leave, so that the program stays small. Below caps, some of both
    stay: weight comes from the best of the full, and goes to the worst of the empty.
    """
    full = s >= (1.0 - 1e-12) * moving.caps if moving.caps.size else np.zeros(len(s), dtype=bool)
    inside = (s > 0) & ~full
    inside[np.flatnonzero(wrong)[np.argsort(-np.abs(expected[wrong] - level))[:WORKING_SET]]] = True
    if moving.caps.size:
        for index, order in ((np.flatnonzero(full & (s > 0)), expected), (np.flatnonzero(~full & (s == 0)), -expected)):
            inside[index[np.argsort(order[index])[: max(1, WORKING_SET // 2)]]] = True
    return inside


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightProgram(Program):
    """The dual of the quadratic model in the moving weights s of some groups, as shares x of what they have in all.

    Attributes
    ----------
    caps : ndarray of shape (n,) or (0,)
        Most of each share.
    begin : ndarray of shape (n,) or None
        Where to begin.
    price, log_base : float, ndarray
        As in `Moving`.
    """

    caps: Floats
    begin: Floats | None
    price: float
    log_base: Floats

    @classmethod
    def of(
        cls,
        moving: Moving,
        working: Indices,
        fixed: Floats,
        known: Floats,
        gradients: Floats,
        values: Floats,
        penalty: Floats,
    ) -> "WeightProgram":
        """Make the program of the working groups, the others being fixed; all slopes have the penalty's."""
        total, q_fixed = 1.0 - float(fixed.sum()), moving.mixed(fixed)
        slope, value = (q_fixed @ gradients, float(q_fixed @ values)) if q_fixed.any() else (0.0, 0.0)
        share, caps, begin = moving.share * total, moving.caps, None
        if known.sum() > 0.5 * total and (not caps.size or abs(known.sum() - total) <= 1e-9 * total):
            begin = known / known.sum()
        rows, common = gradients if len(working) == len(gradients) else gradients[working], slope + penalty
        if share != 1.0 or np.any(common):  # otherwise the gradients themselves, which may be hundreds of megabytes
            rows = share * rows
            rows += common
        return cls(
            rows=rows,
            values=share * values[working] + value,
            total=total,
            caps=caps[working] / total if caps.size else caps,
            begin=begin,
            price=moving.price,
            log_base=moving.log_base,
        )

    def solve(self, M: Floats, values: Floats) -> Floats:
        """Return the best shares, and multipliers of rows beyond those of the groups."""
        if self.price:
            return solve_priced_program(M, values, self.price, self.log_base)
        return solve_simplex_qp(M, values, len(self.values), self.begin, self.caps)
