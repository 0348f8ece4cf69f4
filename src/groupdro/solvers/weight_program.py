"""The small program of SQP in the weights of some groups, with the others fixed."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from groupdro.problem.weight_sets import Moving
from groupdro.solvers.simplex_qp import nearby_weights, solve_simplex_qp
from groupdro.utils.types import Floats, Indices, Mask

__all__ = [
    "WORKING_SET",
    "NearbyProgram",
    "Program",
    "WeightProgram",
    "first_working_set",
    "next_working_set",
    "solve_for_groups",
]

WORKING_SET = 400  # most groups that enter the program at once, worst first
_ENTRIES = 20  # most rounds in which groups enter the program


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
    """

    caps: Floats
    begin: Floats | None

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
        total = 1.0 - float(fixed.sum())
        q_fixed = moving.mixed(fixed)
        slope, value = (q_fixed @ gradients, float(q_fixed @ values)) if q_fixed.any() else (0.0, 0.0)
        share = moving.share * total
        caps = moving.caps
        begin = None
        if known.sum() > 0.5 * total and (not caps.size or abs(known.sum() - total) <= 1e-9 * total):
            begin = known / known.sum()
        rows = gradients if len(working) == len(gradients) else gradients[working]
        common = slope + penalty
        if share != 1.0 or np.any(common):  # otherwise without a copy, which may take hundreds of megabytes
            rows = share * rows
            rows += common
        return cls(
            rows=rows,
            values=share * values[working] + value,
            total=total,
            caps=caps[working] / total if caps.size else caps,
            begin=begin,
        )

    def solve(self, M: Floats, values: Floats) -> Floats:
        """Return the best shares, and multipliers of rows beyond those of the groups."""
        return solve_simplex_qp(M, values, len(self.values), self.begin, self.caps)


@dataclass(frozen=True, eq=False, kw_only=True)
class NearbyProgram(Program):
    """The same in the moving weights of all groups, without caps, and with a price on the distance from known weights.

    Attributes
    ----------
    known : ndarray of shape (n,)
        The known weights.
    price : float
        Price of the relative entropy with respect to them.
    """

    known: Floats
    price: float

    def solve(self, M: Floats, values: Floats) -> Floats:
        """Return the best weights."""
        return nearby_weights(M, values, self.price, self.known)


def solve_for_groups(
    moving: Moving,
    values: Floats,
    gradients: Floats,
    penalty: Floats,
    known: Floats,
    rounding: float,
    solve: Callable[[WeightProgram], tuple[Floats, Floats]],
) -> tuple[Floats, Floats, Floats]:
    """Return the step that minimises the groups' models under the worst weights, these weights, and the values there.

    Weights are q = least + share * s. The program contains the s of the worst groups; all others are zero or at their
    caps. Groups enter if the step would make them worse than any group with room left, or better than any with weight
    while at their cap; then it is solved again. With thousands of groups of about the same value, a step that
    considers only some of them makes no progress.

    Parameters
    ----------
    moving : Moving
        The set of weights.
    values, gradients : ndarray of shape (n_groups,), (n_groups, p)
        The groups' models.
    penalty : ndarray of shape (p,)
        Slope of the penalty.
    known : ndarray of shape (n_groups,)
        Weights s near the solution, or zeros.
    rounding : float
        Differences of values that mean nothing.
    solve : callable
        Returns the step of a program, in any shape, and the s of its groups.

    Returns
    -------
    step : ndarray
        The step.
    s : ndarray of shape (n_groups,)
        The weights.
    expected : ndarray of shape (n_groups,)
        The models' values after the step.
    """
    caps = moving.caps if moving.caps.size else np.full(len(values), np.inf)
    inside = first_working_set(moving, np.argsort(-values))
    known = known.copy()
    if moving.share > 0.0:
        known[~inside] = moving.fill(values)[~inside]
    for _ in range(_ENTRIES):
        working = np.flatnonzero(inside)
        fixed = np.where(inside, 0.0, known)
        step, s_working = solve(WeightProgram.of(moving, working, fixed, known[working], gradients, values, penalty))
        expected = values + gradients @ step.ravel()
        known = fixed
        known[working] = s_working
        full = known >= (1.0 - 1e-12) * caps
        level = np.max(expected[inside & ~full], initial=-np.inf)
        wrong = ~inside & ~full & (expected > level + rounding)
        lowest = np.min(expected[inside & (known > 0)], initial=np.inf)
        wrong |= ~inside & (known > 0) & (expected < lowest - rounding)
        if not wrong.any() or moving.share == 0.0:
            break
        inside = next_working_set(moving, known, expected, wrong, level)
    return step, known, expected
