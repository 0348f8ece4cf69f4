"""The small program of SQP in the weights of some groups, with the others fixed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from groupdro.problem.weight_sets import Moving
from groupdro.solvers.simplex_qp import solve_priced_program, solve_simplex_qp
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["WORKING_SET", "Program", "WeightProgram", "first_working_set", "next_working_set"]

WORKING_SET = 400  # most groups that enter the program at once, worst first


@dataclass(frozen=True, eq=False, kw_only=True)
class Program(ABC):
    """A small program in multipliers x of rows, used by the steps of SQP.

    Attributes
    ----------
    rows, values : ndarray of shape (n, w.size), (n,)
        Slope and value of the model of each multiplier.
    total : float
        Total weight that a multiplier of one represents.
    share : float
        Share of a pull on w that applies to every row.
    """

    rows: Floats
    values: Floats
    total: float = 1.0
    share: float = 1.0

    @abstractmethod
    def solve(self, M: Floats, values: Floats) -> Floats:
        """Return the optimal multipliers of rows with inner products M, possibly more rows than those here."""


def first_working_set(moving: Moving, order: Indices) -> Mask:
    """Return which groups enter the program first: those likely to get weight, given their order, worst first."""
    inside = np.zeros(len(order), dtype=bool)
    if moving.share == 0.0:
        inside[0] = True  # any group will do
    elif moving.price:
        inside[:] = True  # all have weight
    else:
        if moving.caps.size:
            order = order[moving.caps[order] > 0]  # the others never get weight
        n_full = int((np.cumsum(moving.caps[order]) < 1.0).sum()) if moving.caps.size else 0
        start = max(0, min(n_full - WORKING_SET // 2, len(order) - WORKING_SET))
        inside[order[start : start + WORKING_SET]] = True
    return inside


def next_working_set(moving: Moving, s: Floats, expected: Floats, wrong: Mask, level: float) -> Mask:
    """Return the groups of the next program, given those whose values after the step contradict their s.

    Groups without weight, and groups at their caps, leave, so that the program stays small. With caps, some of both
    stay: weight moves from the best of the capped groups to the worst of the empty ones.
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
    """The dual of the quadratic model in the moving weights s of some groups, as shares x of their total.

    Attributes
    ----------
    caps : ndarray of shape (n,) or (0,)
        Upper bound on each share.
    begin : ndarray of shape (n,) or None
        Starting point.
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
        """Make the program of the working groups, with the others fixed; all slopes include the penalty's."""
        total, q_fixed = 1.0 - float(fixed.sum()), moving.mixed(fixed)
        slope, value = (q_fixed @ gradients, float(q_fixed @ values)) if q_fixed.any() else (0.0, 0.0)
        share, caps, begin = moving.share * total, moving.caps, None
        if known.sum() > 0.5 * total and (not caps.size or abs(known.sum() - total) <= 1e-9 * total):
            begin = known / known.sum()
        rows, common = gradients if len(working) == len(gradients) else gradients[working], slope + penalty
        if share != 1.0 or np.any(
            common
        ):  # otherwise use the gradients without a copy, which may take hundreds of megabytes
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
