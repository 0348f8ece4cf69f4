"""Intervals for the risks of all groups at once, and for differences between models.

The worst of many groups is picked after the fact, so that a separate interval per group promises too much. Rows (or
clusters of rows) are resampled with Poisson weights, and the largest studentised deviation over all groups gives
intervals that hold for all of them together, with the stated confidence.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import poisson

from groupdro.data.grouping import Grouping
from groupdro.utils.types import Floats, Indices, Mask
from groupdro.utils.vectors import read_finite, read_vector

__all__ = [
    "Intervals",
    "Resampled",
    "falls_of_worst",
    "read_clusters",
    "read_weights",
    "resample",
    "simultaneous_intervals",
]

_DRAWN_AT_ONCE = 1 << 23  # Poisson numbers
# Poisson numbers of mean 1 by the quantiles of 16 random bits, which are drawn ten times as fast.
_POISSON = poisson.ppf((np.arange(2**16) + 0.5) / 2**16, 1.0)
_MOST_UNITS = 1 << 17  # rows or clusters that are drawn apart; of more, random ones are drawn together
_NO_SPREAD = 1e-12  # of a standard error relative to the mean, below which all rows are alike


@dataclass(frozen=True, eq=False)
class Resampled:
    """Means of several quantities in every group, with their standard errors, on the sample and on resamples.

    Attributes
    ----------
    means, errors : ndarray of shape (n_groups, n_quantities)
        On the sample.
    resampled_means, resampled_errors : ndarray of shape (n_bootstrap, n_groups, n_quantities)
        On the resamples.
    sizes : ndarray of shape (n_groups,)
        Effective number of independent units per group: rows, or clusters, less where weights differ.
    """

    means: Floats
    errors: Floats
    resampled_means: Floats
    resampled_errors: Floats
    sizes: Floats


@dataclass(frozen=True, eq=False)
class Intervals:
    """Simultaneous intervals.

    Attributes
    ----------
    estimates, low, high : ndarray of shape (n,)
        Means, and both ends of intervals that hold for all of them together.
    most, least : float
        No mean exceeds `most`, and the largest is at least `least`: each alone with the stated confidence.
    confidence : float
        The level.
    """

    estimates: Floats
    low: Floats
    high: Floats
    most: float
    least: float
    confidence: float


def read_clusters(cluster: Any, n_rows: int) -> Indices | None:
    """Return the number of the cluster of each row; None stays None.

    Parameters
    ----------
    cluster : array-like of shape (n_rows,) or None
        Label of each row's patient, user or site.
    n_rows : int
        Number of rows.

    Returns
    -------
    ndarray of shape (n_rows,) or None
        Numbers from 0.
    """
    if cluster is None:
        return None
    labels = read_vector(cluster, "cluster", n_rows)
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("cluster has NaN or infinite labels.")
    return np.unique(labels.astype(str) if labels.dtype == object else labels, return_inverse=True)[1].astype(np.int64)


def read_weights(sample_weight: Any, n_rows: int) -> Floats | None:
    """Return the weights of the rows as numbers; None stays None."""
    if sample_weight is None:
        return None
    weights = read_finite(sample_weight, "sample_weight", n_rows).astype(np.float64)
    if (weights < 0).any():
        raise ValueError("sample_weight has negative values.")
    if not weights.any():
        raise ValueError("sample_weight is zero on all rows.")
    return weights


def resample(
    quantities: Floats,
    grouping: Grouping,
    *,
    n_bootstrap: int,
    seed: int,
    clusters: Indices | None = None,
    weights: Floats | None = None,
) -> Resampled:
    """Resample rows, or clusters of rows, and average quantities over every group.

    Parameters
    ----------
    quantities : ndarray of shape (n_rows, n_quantities)
        What is averaged: one column per model, such as its losses.
    grouping : Grouping
        The groups.
    n_bootstrap : int
        Number of resamples.
    seed : int
        Seed of the resamples.
    clusters : ndarray of shape (n_rows,), optional
        Cluster of each row; those of one cluster are kept or left together. By default every row is its own.
    weights : ndarray of shape (n_rows,), optional
        Weights of the rows.

    Returns
    -------
    Resampled
        Means and standard errors. All quantities of a row are resampled together, so that differences are paired.
    """
    rng = np.random.default_rng(seed)
    n_rows, n_kinds = quantities.shape
    m = len(grouping.names)
    units = np.arange(n_rows) if clusters is None else clusters
    n_units = int(units.max()) + 1
    if n_units > _MOST_UNITS:
        units = (rng.permutation(n_units) % _MOST_UNITS)[units]
        n_units = _MOST_UNITS
    row_weights = np.ones(n_rows) if weights is None else np.asarray(weights, dtype=np.float64)
    # Of each group: the sums over its units of weights, and of weighted quantities.
    groups = [_unit_sums(quantities, row_weights, units, grouping.rows_of(i)) for i in range(m)]
    means, errors, sizes = np.empty((m, n_kinds)), np.empty((m, n_kinds)), np.empty(m)
    resampled_means, resampled_errors = (np.empty((n_bootstrap, m, n_kinds)) for _ in range(2))
    at_once = max(1, _DRAWN_AT_ONCE // n_units)
    for i, (_, mass, sums) in enumerate(groups):
        means[i], errors[i] = (part[0] for part in _ratio(np.ones((1, len(mass))), mass, sums))
        sizes[i] = mass.sum() ** 2 / np.square(mass).sum()
    for start in range(0, n_bootstrap, at_once):
        place = slice(start, min(start + at_once, n_bootstrap))
        drawn = _POISSON[rng.integers(0, len(_POISSON), size=(place.stop - start, n_units), dtype=np.uint16)]
        for i, (own, mass, sums) in enumerate(groups):
            resampled_means[place, i], resampled_errors[place, i] = _ratio(drawn[:, own], mass, sums)
    return Resampled(means, errors, resampled_means, resampled_errors, sizes)


def _unit_sums(quantities: Floats, weights: Floats, units: Indices, rows: Indices) -> tuple[Indices, Floats, Floats]:
    """Return the units of some rows, their weights, and their weighted sums of every quantity."""
    own, place = np.unique(units[rows], return_inverse=True)
    mass: Floats = np.bincount(place, weights=weights[rows], minlength=len(own)).astype(np.float64)
    if len(own) == len(rows):
        order = np.argsort(place)
        return own, mass, (weights[rows, None] * quantities[rows])[order]
    columns = [np.bincount(place, weights=weights[rows] * column[rows]) for column in quantities.T]
    return own, mass, np.stack(columns, axis=1).astype(np.float64)


def _ratio(drawn: Floats, mass: Floats, sums: Floats) -> tuple[Floats, Floats]:
    """Return the mean of each draw of units, a ratio of sums, and its standard error by the delta method."""
    total = np.maximum(drawn @ mass, 1e-300)
    means = (drawn @ sums) / total[:, None]
    # The variance of sum(drawn * (sums - mean * mass)), whose terms are independent.
    squares = drawn @ np.square(sums) - 2.0 * means * (drawn @ (sums * mass[:, None]))
    squares += np.square(means) * (drawn @ np.square(mass))[:, None]
    return means, np.sqrt(np.maximum(squares, 0.0)) / total[:, None]


def simultaneous_intervals(
    found: Resampled, confidence: float, *, kind: int = 0, against: int | None = None, groups: Mask | None = None
) -> Intervals:
    """Return intervals for the means of all groups together.

    Parameters
    ----------
    found : Resampled
        Means and their resamples.
    confidence : float
        Level.
    kind : int
        Which quantity.
    against : int, optional
        Quantity that is subtracted; by default none.
    groups : ndarray of bool, optional
        Groups that count; by default all. The others have NaN, as have those whose rows are all alike: resampling
        says nothing of what it has not seen.

    Returns
    -------
    Intervals
        The intervals, by the largest studentised deviation over the groups that count. All are NaN if none does.
    """
    m = len(found.means)
    counted = np.ones(m, dtype=bool) if groups is None else groups.copy()
    estimates, resampled = found.means[:, kind], found.resampled_means[:, :, kind]
    errors, spread = found.errors[:, kind], found.resampled_errors[:, :, kind]
    if against is not None:
        estimates, resampled = estimates - found.means[:, against], resampled - found.resampled_means[:, :, against]
        errors = _spread_of(resampled, counted)
        spread = np.broadcast_to(errors, resampled.shape)
    floor = _NO_SPREAD * np.maximum(np.abs(estimates), 1e-300)
    if against is None:
        counted &= errors > floor
    if not counted.any():
        nothing = np.full(m, np.nan)
        return Intervals(nothing, nothing, nothing, np.nan, np.nan, confidence)
    deviations = (resampled - estimates) / np.maximum(np.maximum(spread, floor), 1e-3 * errors)
    highest, lowest = deviations[:, counted].max(axis=1), deviations[:, counted].min(axis=1)
    tail = 0.5 * (1.0 - confidence)
    # A resample above the mean says that the sample may lie above the truth: its quantile moves the lower end.
    below, above = np.quantile(highest, 1.0 - tail), -np.quantile(lowest, tail)
    low, high = estimates - below * errors, estimates + above * errors
    once_below, once_above = np.quantile(highest, confidence), -np.quantile(lowest, 1.0 - confidence)
    return Intervals(
        estimates=np.where(counted, estimates, np.nan),
        low=np.where(counted, low, np.nan),
        high=np.where(counted, high, np.nan),
        most=float((estimates + once_above * errors)[counted].max()),
        least=float((estimates - once_below * errors)[counted].max()),
        confidence=confidence,
    )


def falls_of_worst(found: Resampled, confidence: float, *, against: int, groups: Mask) -> Intervals:
    """Return how much smaller the worst group's mean is than that of one quantity, for all quantities together.

    Parameters
    ----------
    found : Resampled
        Means and their resamples.
    confidence : float
        Level of the intervals, which hold for all quantities together.
    against : int
        The quantity that the others are compared with.
    groups : ndarray of bool
        Groups that count.

    Returns
    -------
    Intervals
        One fall per quantity, positive where it is better; that of `against` itself is 0.
    """
    worst, again = found.means[groups].max(axis=0), found.resampled_means[:, groups].max(axis=1)
    estimates, falls = worst[against] - worst, again[:, [against]] - again
    rounding = _NO_SPREAD * np.abs(worst)
    estimates[np.abs(estimates) <= rounding] = 0.0
    spread = falls.std(axis=0)
    moving = spread > rounding
    spread[~moving] = 0.0
    below = above = 0.0
    if moving.any():
        # Deviations from the resamples' own mean: the worst of groups that tie is biased upward in every sample, which
        # is no gain of the model where they do not.
        deviations = (falls - falls.mean(axis=0))[:, moving] / spread[moving]
        tail = 0.5 * (1.0 - confidence)
        below, above = np.quantile(deviations.max(axis=1), 1.0 - tail), -np.quantile(deviations.min(axis=1), tail)
    low, high = estimates - below * spread, estimates + above * spread
    return Intervals(estimates, low, high, float(high.max()), float(low.max()), confidence)


def _spread_of(resampled: Floats, counted: Any) -> Floats:
    """Return the standard deviation of each group's resamples; 0 for groups that do not count."""
    return np.where(counted, resampled.std(axis=0), 0.0)
