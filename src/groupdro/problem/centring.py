"""The same problem with targets and columns near zero, where an intercept is free to take up the difference.

An intercept absorbs what is subtracted from every target, and from a column of X:

    x.coef + b - y  =  (x - columns).coef + (b + columns.coef - target) - (y - target).

So offsets need not cost digits. With targets near 1e8, sums of squares have none left for residuals near 1.
"""

from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from groupdro.data import GroupedData
from groupdro.problem.group_risk import GroupRisk
from groupdro.rows import DenseRows

__all__ = ["Centring", "recentre", "typical_sizes", "typical_target"]

Floats = NDArray[np.float64]

_FAR = 1e3  # distance of a column from zero, relative to its spread, that is worth a copy of the rows
_UNIT = 100.0  # size up to which a constant column, such as one of ones, stays as it is
_TRIMMED = 3.0  # mean deviations beyond which a target does not count for the centre
_ROUNDS = 50


@dataclass(frozen=True, eq=False)
class Centring:
    """What was subtracted.

    Attributes
    ----------
    target : float
        From the targets.
    columns : ndarray of shape (n_features,) or (0,)
        From the columns of X; empty for nothing.
    """

    target: float = 0.0
    columns: Floats = field(default_factory=lambda: np.empty(0))

    def inward(self, w: Floats) -> Floats:
        """Return the parameters of the centred problem that predict the same."""
        return self._move(w, 1)

    def outward(self, w: Floats) -> Floats:
        """Return the parameters of the problem that was given."""
        return self._move(w, -1)

    def _move(self, w: Floats, sign: int) -> Floats:
        if not (self.target or self.columns.size):
            return w
        # In extended precision where there is any: the terms nearly cancel.
        out, intercept = w.copy(), w[-1].astype(np.longdouble)
        if self.columns.size:
            intercept = intercept + sign * (self.columns.astype(np.longdouble) @ w[:-1].astype(np.longdouble))
        out[-1] = intercept - sign * np.longdouble(self.target)
        return out


def recentre(problem: GroupRisk) -> tuple[GroupRisk, Centring]:
    """Return the problem with its offsets subtracted, counted together with this one, and what was subtracted.

    Targets are centred for losses of a residual. Columns are where they lie far from zero and can be copied: dense, in
    memory. Without an intercept nothing is.
    """
    if not problem.fit_intercept:
        return problem, Centring()
    target = _centre_of_targets(problem.data)[0] if problem.loss.of_residual else 0.0
    centring = Centring(target, _far_columns(problem.data))
    if not (centring.target or centring.columns.size):
        return problem, centring
    data = problem.data
    if centring.columns.size:
        data = data.with_shifted_columns(centring.columns)
    if centring.target:
        data = data.with_labels(data.y - centring.target, encoded=True)
    w, q = problem.given_start
    return problem.on(data, start=(None if w is None else centring.inward(w), q)), centring


def typical_target(data: GroupedData, *, centred: bool) -> float:
    """Return the size of most targets, or of their distances from their centre, as a power of two."""
    centre, spread = _centre_of_targets(data)
    return _power_of_two(spread if centred else spread + abs(centre))


def typical_sizes(data: GroupedData, *, centred: bool) -> Floats:
    """Return the size of most entries of each column, as powers of two, by a pass over the rows.

    The geometric mean of the entries that are not zero: one sentinel among thousands of entries hardly moves it, where
    a root mean square would hide all others. With `centred`, of the distances from the mean in columns that lie far
    from zero.
    """
    centre = _far_columns(data) if centred else np.empty(0)
    logs, counts = np.zeros(data.n_features), np.zeros(data.n_features)
    with np.errstate(divide="ignore"):
        for _, block in data.rows.blocks():
            sizes = abs(block - centre) if centre.size else abs(block)
            if sp.issparse(sizes):
                sizes = sp.csr_array(sizes)
                sizes.eliminate_zeros()
                entries, column = np.log2(sizes.data), sizes.indices
                logs += np.bincount(column, weights=entries, minlength=data.n_features)
                counts += np.bincount(column, minlength=data.n_features)
            else:
                there = sizes > 0
                logs += np.where(there, np.log2(sizes), 0.0).sum(axis=0)
                counts += there.sum(axis=0)
    data.add_up(logs, counts)
    return np.asarray(2.0 ** np.round(logs / np.maximum(counts, 1.0)))


def _power_of_two(size: float) -> float:
    return float(2.0 ** np.round(np.log2(size))) if size > 0 else 1.0


def _centre_of_targets(data: GroupedData) -> tuple[float, float]:
    """Return a number near most targets that count, and their mean distance from it.

    Means of what is not far from the last mean: one sentinel among the targets would move an ordinary one anywhere.
    Rounded to a multiple of several spreads, so that usual targets stay as they are, and rounding does not change it
    with the number of workers.
    """
    weights, y = data.row_weights(np.full(data.n_groups, 1.0 / data.n_groups)), data.y
    kept, centre, spread, last = weights > 0, 0.0, 0.0, -1.0
    for _ in range(_ROUNDS):
        sums = np.array([weights[kept].sum(), (weights[kept] * y[kept]).sum(), float(kept.sum())])
        data.add_up(sums)
        if sums[2] == last:
            break
        last, centre = sums[2], float(sums[1] / sums[0])
        deviations = np.abs(y - centre)
        total = np.array([(weights[kept] * deviations[kept]).sum()])
        data.add_up(total)
        spread = float(total[0] / sums[0])
        # A little wider than rounding, so that equal targets stay.
        kept = (weights > 0) & (deviations <= _TRIMMED * spread + 1e-14 * abs(centre))
    if spread <= 1e-13 * abs(centre):  # one number, of which the mean is the rounded one
        return float(data.largest(np.array([y[kept].max(initial=-np.inf)]))[0]), 0.0
    step = 8.0 * 2.0 ** np.floor(np.log2(spread))
    return float(np.round(centre / step) * step), spread


def _far_columns(data: GroupedData) -> Floats:
    """Return the means of the columns that lie far from zero, and 0 for the others; empty where there are none."""
    rows = data.rows
    if not isinstance(rows, DenseRows) or rows.mapped:
        return np.empty(0)
    means, squares = data.column_means, data.column_squares
    far = np.square(means) >= (1.0 - _FAR**-2) * squares
    far &= (np.abs(means) > _UNIT) | (squares - np.square(means) > 1e-14 * squares)
    return np.where(far, means, 0.0) if far.any() else np.empty(0)
