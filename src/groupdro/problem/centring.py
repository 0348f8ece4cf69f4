"""Centring: the same problem with targets and columns near zero, if a free intercept can absorb the shift.

An intercept absorbs what is subtracted from every target, and from a column of X:

    x.coef + b - y  =  (x - columns).coef + (b + columns.coef - target) - (y - target).

So offsets need not cost accuracy. With targets near 1e8, sums of squares have no digits left for residuals near 1.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from groupdro.data import GroupedData
from groupdro.problem.problem import Problem
from groupdro.utils.types import Floats, Indices

__all__ = ["Centring", "recentre", "resolution", "size_of_targets", "typical_sizes"]


_FAR = 30.0  # mean of a column relative to its spread from which a shifted copy of the rows pays off
_UNIT = 100.0  # constant columns up to this size, such as ones, are not shifted
_TRIMMED = 3.0  # mean deviations beyond which a target is ignored when computing the centre
_ROUNDS = 50
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Centring:
    """The shifts that were subtracted.

    Attributes
    ----------
    target : float
        Subtracted from the targets.
    columns : ndarray of shape (n_features,) or (0,)
        Subtracted from the columns of X; empty if nothing was.
    """

    target: float = 0.0
    columns: Floats = field(default_factory=lambda: np.empty(0))

    def inward(self, w: Floats) -> Floats:
        """Return the parameters of the centred problem that give the same predictions."""
        return self._move(w, 1)

    def outward(self, w: Floats) -> Floats:
        """Return the parameters of the original problem."""
        return self._move(w, -1)

    def _move(self, w: Floats, sign: int) -> Floats:
        if not (self.target or self.columns.size):
            return w
        # Use extended precision if available: the terms nearly cancel.
        out = w.copy()
        intercept = w[-1].astype(np.longdouble)
        if self.columns.size:
            intercept = intercept + sign * (self.columns.astype(np.longdouble) @ w[:-1].astype(np.longdouble))
        out[-1] = intercept - sign * np.longdouble(self.target)
        return out


def recentre(problem: Problem) -> tuple[Problem, Centring]:
    """Return the problem with its offsets subtracted, and what was subtracted.

    Targets are centred for losses of a residual. Columns are centred if they lie far from zero and can be copied, that
    is, are dense and in memory. Without an intercept nothing is centred.
    """
    if not problem.fit_intercept:
        return problem, Centring()
    target = _centre_of_targets(problem.data) if problem.loss.of_residual else 0.0
    centring = Centring(target, _far_columns(problem.data))
    if not (centring.target or centring.columns.size):
        return problem, centring
    data = problem.data
    if centring.columns.size:
        data = data.with_shifted_columns(centring.columns)
    if centring.target:
        data = data.with_labels(data.y - centring.target, encoded=True)
    return problem.with_rows(data), centring


def resolution(problem: Problem, centring: Centring) -> float:
    """Return the loss of residuals that are pure rounding, below which the data cannot distinguish two models.

    The residuals are a thousand units of rounding of a typical target, as a well-conditioned exact fit leaves them, or
    half a unit of the subtracted offset, if that is still negligible.
    """
    targets = np.abs(problem.data.y) if problem.loss.of_residual else np.ones(1)
    size = float(_geometric_means(problem.data, [(targets, np.zeros(len(targets), np.int64))], 1)[0])
    residual = max(1e3 * _EPS * size, min(0.5 * _EPS * abs(centring.target), 1e-6 * size))
    if not problem.loss.of_residual:
        return 0.5 * problem.curvature * residual**2
    return float(problem.loss.value(np.array([residual]), np.zeros(1))[0])


def size_of_targets(data: GroupedData, *, centred: bool) -> float:
    """Return the root mean square of the targets, or of their deviations from the centre; 1 if that is 0."""
    weights = data.balanced_weights()
    total = np.array([(weights * np.square(data.y - (_centre_of_targets(data) if centred else 0.0))).sum()])
    data.add_up(total)
    return float(np.sqrt(total[0])) or 1.0


def typical_sizes(data: GroupedData, *, centred: bool) -> Floats:
    """Return the typical size of the nonzero entries of each column, as powers of two, in one pass over the rows.

    With `centred`, columns far from zero use the deviations from their mean.
    """
    centre = _far_columns(data) if centred else np.empty(0)

    def sizes() -> Iterator[tuple[Floats, Indices]]:
        for _, block in data.rows.blocks():
            values, columns = block.entries()
            yield np.abs(values - centre[columns] if centre.size else values), columns

    return _geometric_means(data, sizes(), data.n_features)


def _geometric_means(data: GroupedData, blocks: Iterable[tuple[Floats, Indices]], n_columns: int) -> Floats:
    """Return the geometric mean of the positive entries of each column, as a power of two; 1 if there are none.

    One sentinel value among thousands of entries hardly changes it, but would dominate a root mean square.
    """
    logs = np.zeros(n_columns)
    counts = np.zeros(n_columns)
    for entries, column in blocks:
        there = entries > 0
        logs += np.bincount(column[there], weights=np.log2(entries[there]), minlength=n_columns)
        counts += np.bincount(column[there], minlength=n_columns)
    data.add_up(logs, counts)
    return np.asarray(2.0 ** np.round(logs / np.maximum(counts, 1.0)))


def _centre_of_targets(data: GroupedData) -> float:
    """Return a number near most targets that have weight.

    It is an iterated mean of the targets not far from the previous mean, since one sentinel value could move an
    ordinary mean anywhere. It is rounded to a multiple of several spreads, so that ordinary targets are not shifted and
    rounding does not make it depend on the number of workers.
    """
    weights = data.balanced_weights()
    y = data.y
    kept = weights > 0
    centre = 0.0
    spread = 0.0
    last = -1.0
    for _ in range(_ROUNDS):
        sums = np.array([weights[kept].sum(), (weights[kept] * y[kept]).sum(), float(kept.sum())])
        data.add_up(sums)
        if sums[2] == last:
            break
        last = sums[2]
        centre = float(sums[1] / sums[0])
        deviations = np.abs(y - centre)
        total = np.array([(weights[kept] * deviations[kept]).sum()])
        data.add_up(total)
        spread = float(total[0] / sums[0])
        # Slightly wider than rounding, so that equal targets are kept.
        kept = (weights > 0) & (deviations <= _TRIMMED * spread + 1e-14 * abs(centre))
    if spread <= 1e-13 * abs(centre):  # all targets are equal, and their mean is rounded
        return float(data.largest(np.array([y[kept].max(initial=-np.inf)]))[0])
    step = 8.0 * 2.0 ** np.floor(np.log2(spread))
    return float(np.round(centre / step) * step)


def _far_columns(data: GroupedData) -> Floats:
    """Return the centres of the columns that lie far from zero, and 0 for the others; empty if there are none."""
    rows = data.rows
    if not (rows.combinable and rows.copyable):
        return np.empty(0)
    means = data.column_means
    squares = data.column_squares
    far = np.square(means) >= (1.0 - _FAR**-2) * squares
    far &= (np.abs(means) > _UNIT) | (squares - np.square(means) > 1e-14 * squares)
    if not far.any():
        return np.empty(0)
    # The mean of a constant is rounded, and its residue would look like a feature. An entry leaves no residue.
    constant = squares - np.square(means) <= 1e-12 * squares
    first = rows.take(slice(0, 1)).dense().astype(np.float64)
    entry = data.largest(first[0] if rows.n_rows else np.full(rows.n_features, -np.inf))
    return np.where(far, np.where(constant, entry, means), 0.0)
