"""Simultaneous confidence intervals for the risks of all groups, and for differences between models.

The worst of many groups is selected after the fact, so a separate interval per group would be too narrow. Rows (or
clusters of rows) are resampled with Poisson weights, and the largest studentised deviation over all groups gives
intervals that hold simultaneously with the stated confidence.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from scipy.special import expit, logit
from scipy.stats import beta, poisson

from groupdro.data.grouping import Grouping
from groupdro.evaluation.statistics import Statistic
from groupdro.utils.types import Floats, Indices, Mask

__all__ = [
    "LEAST_ERROR",
    "Intervals",
    "Resampled",
    "draw_units",
    "effective_sizes",
    "falls_of_worst",
    "few_carry",
    "has_enough",
    "resample",
    "resample_statistics",
    "simultaneous_intervals",
]

Scale = Literal["plain", "logit", "square root"]

_DRAWN_AT_ONCE = 1 << 23  # Poisson numbers
# Poisson numbers of mean 1 from the quantiles of 16 random bits, which is ten times as fast as sampling them. They are
# searched for, because `poisson.ppf` of as many values takes as long as the import of the package's own modules.
_POISSON = np.searchsorted(poisson.cdf(np.arange(20), 1.0), (np.arange(2**16) + 0.5) / 2**16).astype(np.float64)
_MOST_UNITS = 1 << 17  # rows or clusters drawn separately; beyond that, random ones share a draw
_SHARE_OF_RANKING = 0.2  # of the allowed error, spent on which group is the worst
LEAST_ERROR = 0.25  # smallest standard error of a resample relative to the sample's; smaller ones mean nothing
_MOST_PAIRED = 40  # candidates for the worst up to which all pairs are compared
# Effective rows with an error, and effective rows that carry the loss, which a group needs for an interval of another
# loss than zero-one, of a classifier and of a regressor (benchmarks/held_out/reports.py has the coverage).
_FEWEST_ERRORS = 3.0
_FEWEST_OF_CLASSES = 5.0
_FEWEST_CARRYING = 10.0
# Clusters with an error at which its estimated variance is doubled: few of them say little of how errors cluster.
_ERRING_CLUSTERS = 10.0
_NO_SPREAD = 1e-12  # standard error relative to the mean below which all rows count as equal
# Effective rows of every required kind, such as positive ones, below which a group's metric is not judged.
_FEWEST_OF_KIND = 10.0
_EDGE = 1e-12  # distance from 0 and 1 at which log-odds are cut off


@dataclass(frozen=True, eq=False)
class Resampled:
    """Means of several quantities in every group, with their standard errors, on the sample and on resamples.

    Attributes
    ----------
    means, errors : ndarray of shape (n_groups, n_quantities)
        Values on the sample.
    least_errors : ndarray of shape (n_groups, n_quantities)
        Standard errors if weights were independent of the quantity; 0 without weights. Rows of large weight are few,
        and a sample may have missed large values on them, which makes its own standard error too small.
    resampled_means, resampled_errors : ndarray of shape (n_bootstrap, n_groups, n_quantities)
        Values on the resamples.
    sizes : ndarray of shape (n_groups,)
        Effective number of independent units (rows or clusters) per group; smaller if weights differ.
    rows : ndarray of shape (n_groups,)
        Effective number of rows per group; smaller than their number if weights differ.
    mixed : ndarray of shape (n_groups, n_quantities)
        Effective number of units in which the quantity is not 0 on all rows, or if fewer, not 1 on all of them.
    binary : ndarray of bool of shape (n_quantities,)
        Quantities that are 0 or 1 on every row and not all 0, such as prediction errors.
    """

    means: Floats
    errors: Floats
    least_errors: Floats
    resampled_means: Floats
    resampled_errors: Floats
    sizes: Floats
    rows: Floats
    mixed: Floats
    binary: Mask

    def judged(self, min_rows: int) -> Mask:
        """Return which groups have at least `min_rows` effective rows, up to rounding."""
        return self.sizes >= min_rows - 1e-9

    def only(self, kinds: Indices) -> "Resampled":
        """Return some of the quantities."""
        return replace(
            self,
            means=self.means[:, kinds],
            errors=self.errors[:, kinds],
            least_errors=self.least_errors[:, kinds],
            resampled_means=self.resampled_means[..., kinds],
            resampled_errors=self.resampled_errors[..., kinds],
            mixed=self.mixed[:, kinds],
            binary=self.binary[kinds],
        )


@dataclass(frozen=True, eq=False)
class Intervals:
    """Simultaneous confidence intervals.

    Attributes
    ----------
    estimates, low, high : ndarray of shape (n,)
        Means, and both ends of simultaneous intervals.
    most, least : float
        No mean exceeds `most`, and the largest is at least `least`, each individually with the stated confidence.
    none_below : float
        No mean is smaller, with the stated confidence.
    confidence : float
        Confidence level.
    """

    estimates: Floats
    low: Floats
    high: Floats
    most: float
    least: float
    none_below: float
    confidence: float

    @classmethod
    def nothing(cls, n: int, confidence: float) -> "Intervals":
        """Return what is known without any resample."""
        estimates, low, high = np.full((3, n), np.nan)
        return cls(estimates, low, high, np.nan, np.nan, np.nan, confidence)

    def within(self, least: float, most: float) -> "Intervals":
        """Return the same intervals without impossible values."""
        low, high = (np.clip(end, least, most) for end in (self.low, self.high))
        highest, largest, none_below = np.clip([self.most, self.least, self.none_below], least, most).tolist()
        return Intervals(self.estimates, low, high, highest, largest, none_below, self.confidence)

    def spread(self, chosen: Mask) -> "Intervals":
        """Return the same intervals in the places of the chosen groups; NaN elsewhere."""
        wide = np.full((3, len(chosen)), np.nan)
        wide[:, chosen] = self.estimates, self.low, self.high
        return replace(self, estimates=wide[0], low=wide[1], high=wide[2])


def effective_sizes(
    grouping: Grouping,
    clusters: Indices | None = None,
    weights: Floats | None = None,
    counted: Mask | None = None,
) -> Floats:
    """Return the effective number of independent units (rows or clusters) per group; smaller if weights differ.

    Parameters
    ----------
    grouping : Grouping
        The groups.
    clusters : ndarray of shape (n_rows,), optional
        Cluster of each row.
    weights : ndarray of shape (n_rows,), optional
        Weights of the rows.
    counted : ndarray of bool of shape (n_rows,), optional
        Rows to count; by default all.

    Returns
    -------
    ndarray of shape (n_groups,)
        The squared sum of the units' weights over the sum of their squares.
    """
    if counted is not None:
        weights = counted.astype(np.float64) if weights is None else counted * weights
    group, mass, _ = _units(grouping, clusters, weights)
    m = len(grouping.names)
    total, squares = (np.bincount(group, weights=each, minlength=m) for each in (mass, np.square(mass)))
    return np.divide(np.square(total), squares, out=np.zeros(m), where=squares > 0)


def has_enough(
    statistic: Statistic, grouping: Grouping, clusters: Indices | None = None, weights: Floats | None = None
) -> Mask:
    """Return which groups have enough effective rows of every kind that a statistic requires, to judge it.

    Parameters
    ----------
    statistic : Statistic
        The statistic.
    grouping, clusters, weights : object
        As for `effective_sizes`.

    Returns
    -------
    ndarray of bool of shape (n_groups,)
        Groups with ten effective rows (or clusters of rows) of every kind.
    """
    enough = np.ones(len(grouping.names), dtype=bool)
    for kind in statistic.required.T:
        enough &= effective_sizes(grouping, clusters, weights, kind) >= _FEWEST_OF_KIND - 1e-9
    return enough


def _units(
    grouping: Grouping, clusters: Indices | None, weights: Floats | None, counted: Mask | None = None
) -> tuple[Indices, Floats, Floats]:
    """Return the group of each unit, its weight, and whether any of its rows is among the counted ones."""
    group = grouping.group_of_members
    rows = grouping.members
    mass = np.ones(len(rows)) if weights is None else weights[rows] / (weights.max() or 1.0)  # no square overflows
    inside = np.zeros(len(rows)) if counted is None else counted.astype(np.float64)
    if clusters is not None:
        n_units = int(clusters.max()) + 1
        units, place = np.unique(group * n_units + clusters[rows], return_inverse=True)
        mass, inside = (np.bincount(place, weights=each).astype(np.float64) for each in (mass, inside))
        group, inside = units // n_units, (inside > 0).astype(np.float64)
    return group, mass, inside


def few_carry(
    sizes: Floats,
    grouping: Grouping,
    clusters: Indices | None = None,
    weights: Floats | None = None,
    *,
    classes: bool = False,
    errors: Mask | None = None,
) -> Mask:
    """Return the groups in which too few rows carry an average loss to judge it by.

    A sample in which a few rows have most of the loss shows neither how large such losses are nor how many there are,
    and another sample of the same size may have none of them. So this is decided for all groups together: groups
    without such rows may just not have met them. Losses are taken relative to the mean of their group, or as they are
    if that leaves more rows: what is rare in an easy group may be common in a hard one.

    Parameters
    ----------
    sizes : ndarray of shape (n_rows,)
        Nonnegative losses.
    grouping : Grouping
        The groups.
    clusters : ndarray of shape (n_rows,), optional
        Cluster of each row.
    weights : ndarray of shape (n_rows,), optional
        Weights of the rows.
    classes : bool
        Whether the losses are those of a classifier.
    errors : ndarray of bool of shape (n_rows,), optional
        The rows that a classifier gets wrong.

    Returns
    -------
    ndarray of bool of shape (n_groups,)
        The groups in which the losses are those of fewer than ten effective rows (or clusters of rows); for a
        classifier, of fewer than five, or with fewer than three effective errors.
    """
    n = effective_sizes(grouping, clusters, weights)
    largest = float(sizes.max(initial=0.0))
    if not largest > 0:
        return np.zeros(len(n), dtype=bool)
    mass = sizes / largest * (1.0 if weights is None else weights)
    own = effective_sizes(grouping, clusters, mass) / np.maximum(n, 1.0)  # the squared mean over the mean square
    each = grouping.group_of_members
    total = np.bincount(each, weights=None if weights is None else weights[grouping.members], minlength=len(n))
    means = np.bincount(each, weights=mass[grouping.members], minlength=len(n)) / np.where(total > 0, total, 1.0)
    some = own > 0
    share = np.maximum(1.0 / np.mean(1.0 / own[some]), means**2 / np.max(means[some] ** 2 / own[some]))
    few = n * share < (_FEWEST_OF_CLASSES if classes else _FEWEST_CARRYING)
    if errors is not None:
        group, _, hit = _units(grouping, clusters, weights, errors[grouping.members])
        wrong = np.bincount(group, weights=hit, minlength=len(n)) / np.bincount(group, minlength=len(n))
        few |= n * wrong < _FEWEST_ERRORS
    return np.asarray(few)


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
        Values to average: one column per model, such as its losses.
    grouping : Grouping
        The groups.
    n_bootstrap : int
        Number of resamples.
    seed : int
        Seed of the resamples.
    clusters : ndarray of shape (n_rows,), optional
        Cluster of each row; rows of a cluster are resampled together. By default every row is its own cluster.
    weights : ndarray of shape (n_rows,), optional
        Weights of the rows.

    Returns
    -------
    Resampled
        Means and standard errors. All quantities of a row are resampled together, so differences are paired.
    """
    n_rows, n_kinds = quantities.shape
    m = len(grouping.names)
    units, draws = draw_units(n_rows, clusters, n_bootstrap, seed)
    row_weights = np.ones(n_rows) if weights is None else weights / weights.max()  # so that no square overflows
    # For each group: sums of weights and of weighted quantities, per unit.
    groups = [_unit_sums(quantities, row_weights, units, grouping.rows_of(i)) for i in range(m)]
    means, errors, mixed, sizes = *(np.empty((m, n_kinds)) for _ in range(3)), np.empty(m)
    resampled_means, resampled_errors = (np.empty((n_bootstrap, m, n_kinds)) for _ in range(2))
    for i, (_, mass, sums) in enumerate(groups):
        means[i] = sums.sum(axis=0) / mass.sum()
        hits = np.minimum((sums > 0).mean(axis=0), (sums < mass[:, None]).mean(axis=0))
        sums -= means[i] * mass[:, None]  # deviations, to avoid cancellation later
        errors[i] = _deviation(np.ones((1, len(mass))), mass, sums)[1][0]
        sizes[i] = mass.sum() ** 2 / np.square(mass).sum()
        mixed[i] = sizes[i] * hits
    effective_rows = effective_sizes(grouping, weights=weights)
    least_errors = np.zeros_like(errors)
    if weights is not None:
        spread = np.array([quantities[grouping.rows_of(i)].std(axis=0) for i in range(m)])
        least_errors = spread / np.sqrt(effective_rows)[:, None]
    for place, drawn in draws:
        for i, (own, mass, sums) in enumerate(groups):
            strayed, resampled_errors[place, i] = _deviation(drawn[:, own], mass, sums)
            resampled_means[place, i] = means[i] + strayed
    # If all values are 0, larger losses may simply not have been observed.
    binary = ((quantities == 0) | (quantities == 1)).all(axis=0) & quantities.any(axis=0)
    return Resampled(
        means, errors, least_errors, resampled_means, resampled_errors, sizes, effective_rows, mixed, binary
    )


def draw_units(
    n_rows: int, clusters: Indices | None, n_bootstrap: int, seed: int
) -> tuple[Indices, Iterator[tuple[slice, Floats]]]:
    """Return the unit that each row is resampled with, and how often each unit is drawn, for some resamples at once."""
    rng = np.random.default_rng(seed)
    units = np.arange(n_rows) if clusters is None else clusters
    n_units = int(units.max()) + 1
    if n_units > _MOST_UNITS:
        units = (rng.permutation(n_units) % _MOST_UNITS)[units]
        n_units = _MOST_UNITS
    at_once = max(1, _DRAWN_AT_ONCE // n_units)

    def draws() -> Iterator[tuple[slice, Floats]]:
        for start in range(0, n_bootstrap, at_once):
            place = slice(start, min(start + at_once, n_bootstrap))
            yield place, _POISSON[rng.integers(0, len(_POISSON), (place.stop - start, n_units), dtype=np.uint16)]

    return units, draws()


def resample_statistics(
    statistics: Sequence[Statistic],
    grouping: Grouping,
    *,
    n_bootstrap: int,
    seed: int,
    clusters: Indices | None = None,
    weights: Floats | None = None,
) -> Resampled:
    """Resample rows, or clusters of rows, and compute statistics of every group.

    Parameters
    ----------
    statistics : sequence of Statistic
        The statistics, such as a metric of several models.
    grouping, n_bootstrap, seed, clusters, weights : object
        As for `resample`.

    Returns
    -------
    Resampled
        The statistics in place of means. Standard errors follow from the influence of rows; if it is unknown, all
        resamples share that of the statistic over the resamples.
    """
    m = len(grouping.names)
    n_kinds = len(statistics)
    n_rows = len(statistics[0].required)
    units, draws = draw_units(n_rows, clusters, n_bootstrap, seed)
    row_weights = np.ones(n_rows) if weights is None else weights / weights.max()
    values, errors = np.full((2, m, n_kinds), np.nan)
    again, errors_again = np.full((2, n_bootstrap, m, n_kinds), np.nan)
    groups = [_GroupUnits.of(units, rows, row_weights) for rows in map(grouping.rows_of, range(m))]
    for i, group in enumerate(groups):
        for k, statistic in enumerate(statistics):
            (values[i, k],), (errors[i, k],) = group.evaluate(statistic, np.ones((1, len(group.units))))
    for place, drawn in draws:
        for i, group in enumerate(groups):
            for k, statistic in enumerate(statistics):
                again[place, i, k], errors_again[place, i, k] = group.evaluate(statistic, drawn[:, group.units])
    # A resample without any row of a required kind says nothing.
    again = np.where(np.isnan(again), values, again)
    if n_bootstrap:
        errors = np.where(np.isnan(errors), again.std(axis=0), errors)
    errors_again = np.where(np.isnan(errors_again), errors, errors_again)
    nothing = np.zeros_like(values)
    return Resampled(
        values,
        errors,
        nothing,
        again,
        errors_again,
        effective_sizes(grouping, clusters, weights),
        effective_sizes(grouping, weights=weights),
        nothing,
        np.zeros(n_kinds, dtype=bool),
    )


@dataclass(frozen=True, eq=False)
class _GroupUnits:
    """The rows of a group, and the units in which they are resampled.

    Attributes
    ----------
    rows, weights : ndarray of shape (n,)
        The rows, and their weights.
    units : ndarray of shape (n_units,)
        The units.
    place : ndarray of shape (n,)
        Index of each row's unit.
    """

    rows: Indices
    weights: Floats
    units: Indices
    place: Indices

    @classmethod
    def of(cls, units: Indices, rows: Indices, weights: Floats) -> "_GroupUnits":
        own, place = np.unique(units[rows], return_inverse=True)
        return cls(rows, weights[rows], own, place)

    def evaluate(self, statistic: Statistic, drawn: Floats) -> tuple[Floats, Floats]:
        """Return a statistic on resamples that have each unit so often, and its standard errors; NaN if unknown."""
        values, influence = statistic(self.rows, drawn[:, self.place] * self.weights)
        if influence is None:
            return values, np.full_like(values, np.nan)
        if len(self.units) < len(self.rows):
            shape = len(self.units), len(self.rows)
            summing = sp.csr_array((np.ones(len(self.rows)), (self.place, np.arange(len(self.rows)))), shape=shape)
            influence = (summing @ influence.T).T
        else:
            influence = influence[:, np.argsort(self.place)]
        # The copies of a unit in a resample count as independent.
        variance = np.divide(np.square(influence), drawn, out=np.zeros_like(drawn), where=drawn > 0).sum(axis=1)
        return values, np.sqrt(variance)


def _unit_sums(quantities: Floats, weights: Floats, units: Indices, rows: Indices) -> tuple[Indices, Floats, Floats]:
    """Return the units of some rows, their weights, and their weighted sums of every quantity."""
    own, place = np.unique(units[rows], return_inverse=True)
    mass: Floats = np.bincount(place, weights=weights[rows], minlength=len(own)).astype(np.float64)
    if len(own) == len(rows):
        order = np.argsort(place)
        return own, mass, (weights[rows, None] * quantities[rows])[order]
    columns = [np.bincount(place, weights=weights[rows] * column[rows]) for column in quantities.T]
    return own, mass, np.stack(columns, axis=1).astype(np.float64)


def _deviation(drawn: Floats, mass: Floats, deviations: Floats) -> tuple[Floats, Floats]:
    """Return the deviation of the mean in each draw, a ratio of sums, and its standard error by the delta method."""
    mass = mass[:, None]
    # One product with all columns reads the draws once.
    sums = drawn @ np.hstack([mass, np.square(mass), deviations, deviations * mass, np.square(deviations)])
    total, masses = np.maximum(sums[:, :1], 1e-300), sums[:, 1:2]
    first, mixed, second = np.split(sums[:, 2:], 3, axis=1)
    strayed = first / total
    # The variance of sum(drawn * (deviations - strayed * mass)), whose terms are independent.
    squares = second - 2.0 * strayed * mixed + np.square(strayed) * masses
    return strayed, np.sqrt(np.maximum(squares, 0.0)) / total


def simultaneous_intervals(
    found: Resampled,
    confidence: float,
    *,
    kind: int = 0,
    against: int | None = None,
    groups: Mask | None = None,
    scale: Scale = "plain",
) -> Intervals:
    """Return simultaneous confidence intervals for the means of all groups.

    Parameters
    ----------
    found : Resampled
        Means and their resamples.
    confidence : float
        Confidence level.
    kind : int
        Index of the quantity.
    against : int, optional
        Index of a quantity to subtract; by default none.
    groups : ndarray of bool, optional
        Groups to include; by default all. The others have NaN, as do groups whose rows are all equal: resampling says
        nothing about values that were not observed.
    scale : {"plain", "logit", "square root"}
        Whether to compute intervals for the means themselves; for their log-odds; or for their logarithms, and return
        square roots.

    Returns
    -------
    Intervals
        The intervals, from the largest studentised deviation over the included groups. All are NaN if there are none.
        For zeros and ones, of which one kind may be rare, they are Clopper-Pearson intervals (at the effective number
        of rows) with Bonferroni correction.
    """
    m = len(found.means)
    counted = np.ones(m, dtype=bool) if groups is None else groups.copy()
    if against is None and found.binary[kind] and counted.any():
        return _binomial_intervals(found, confidence, kind, counted)
    estimates, resampled = found.means[:, kind], found.resampled_means[:, :, kind]
    errors = np.maximum(found.errors[:, kind], found.least_errors[:, kind])
    spread = found.resampled_errors[:, :, kind]
    if against is not None:
        estimates, resampled = estimates - found.means[:, against], resampled - found.resampled_means[:, :, against]
        errors = _spread_of(resampled, counted)
        spread = np.broadcast_to(errors, resampled.shape)
    if against is None:
        counted &= errors > _NO_SPREAD * np.maximum(np.abs(estimates), 1e-300)
    if not counted.any():
        return Intervals.nothing(m, confidence)
    estimates, errors = _to_scale(scale, estimates, errors)
    resampled, spread = _to_scale(scale, resampled, spread)
    floor = _NO_SPREAD * np.maximum(np.abs(estimates), 1e-300)
    deviations = (resampled - estimates) / np.maximum(np.maximum(spread, floor), LEAST_ERROR * errors)
    highest, lowest = deviations[:, counted].max(axis=1), deviations[:, counted].min(axis=1)
    tail = 0.5 * (1.0 - confidence)
    # A resample above the mean means that the sample may lie above the truth: its quantile sets the lower end.
    below, above = np.quantile(highest, 1.0 - tail), -np.quantile(lowest, tail)
    low, high = estimates - below * errors, estimates + above * errors
    once_below, once_above = np.quantile(highest, confidence), -np.quantile(lowest, 1.0 - confidence)
    ends = estimates, low, high, estimates + once_above * errors, estimates - once_below * errors
    estimates, low, high, highest, lowest = (np.where(counted, _BACK[scale](end), np.nan) for end in ends)
    return Intervals(
        estimates,
        low,
        high,
        most=float(np.nanmax(highest)),
        least=float(np.nanmax(lowest)),
        none_below=float(np.nanmin(lowest)),
        confidence=confidence,
    )


_BACK: dict[str, Callable[[Floats], Floats]] = {
    "plain": lambda values: values,
    "logit": expit,
    "square root": lambda logarithms: np.exp(0.5 * logarithms),
}


def _to_scale(scale: Scale, values: Floats, errors: Floats) -> tuple[Floats, Floats]:
    """Return values on another scale, with their standard errors."""
    if scale == "plain":
        return values, errors
    if scale == "logit":
        values = np.clip(values, _EDGE, 1.0 - _EDGE)
        return logit(values), errors / (values * (1.0 - values))
    values = np.maximum(values, 1e-300)
    return np.log(values), errors / values


def _binomial_intervals(found: Resampled, confidence: float, kind: int, counted: Mask) -> Intervals:
    """Return intervals for proportions."""
    shares, errors = found.means[:, kind], found.errors[:, kind]
    # The number of independent rows with the same standard error, but not more than there are: clusters whose errors
    # happen to balance, or errors that happen to be on light rows, do not make rows more informative. Few erring
    # clusters say little of that standard error, so it is increased, up to where a cluster counts as one row.
    rows = found.sizes.copy()
    np.divide(shares * (1.0 - shares), np.square(errors), out=rows, where=errors > 0)
    clustered = found.rows > found.sizes * (1.0 + 1e-9)
    careful = rows / (1.0 + _ERRING_CLUSTERS / np.maximum(found.mixed[:, kind], 1e-9))
    rows = np.where(clustered, np.maximum(careful, np.minimum(rows, found.sizes)), rows)
    rows = np.minimum(rows, found.rows)
    ones = shares * rows
    tail = (1.0 - confidence) / int(counted.sum())

    def upper(error: float) -> Floats:
        return np.where(shares >= 1.0, 1.0, beta.ppf(1.0 - error, ones + 1.0, np.maximum(rows - ones, 1e-12)))

    def lower(error: float) -> Floats:
        return np.where(shares <= 0.0, 0.0, beta.ppf(error, np.maximum(ones, 1e-12), rows - ones + 1.0))

    low, high = (np.where(counted, end(0.5 * tail), np.nan) for end in (lower, upper))
    most, least = (float(end(tail)[counted].max()) for end in (upper, lower))
    none_below = float(lower(tail)[counted].min())
    return Intervals(np.where(counted, shares, np.nan), low, high, most, least, none_below, confidence)


def falls_of_worst(found: Resampled, confidence: float, *, against: int, groups: Mask) -> Intervals:
    """Return simultaneous intervals for the decrease of the worst group's mean relative to one quantity.

    The bootstrap fails for the largest of several means if two of them nearly tie. So the interval is built from
    differences of means, for which it is valid. Whichever group j is the worst for a quantity, the decrease is at least
    the mean of any group i under `against` minus that of j under the quantity. So it is at least the minimum, over all
    j that may be the worst, of the maximum over i of such differences. The upper end is analogous.

    Parameters
    ----------
    found : Resampled
        Means and their resamples.
    confidence : float
        Simultaneous confidence level over all quantities.
    against : int
        Index of the quantity that the others are compared with.
    groups : ndarray of bool
        Groups to include.

    Returns
    -------
    Intervals
        One decrease per quantity, positive if it is better; that of `against` itself is 0.
    """
    means, again = found.means[groups], found.resampled_means[:, groups]
    error, n_bootstrap = 1.0 - confidence, len(again)
    contenders = _may_be_worst(means, again, _SHARE_OF_RANKING * error)
    first = contenders[:, against]
    highest, lowest = np.zeros(n_bootstrap), np.zeros(n_bootstrap)
    pairs = []
    for k in range(means.shape[1]):
        both = np.flatnonzero(first | contenders[:, k])
        # Differences between all pairs of groups; if there are many, only of each group with itself.
        i, j = np.ix_(both, both) if len(both) <= _MOST_PAIRED else (both[None], both[None])
        falls = means[i, against] - means[j, k]
        strayed = again[:, i, against] - again[:, j, k] - falls
        spread = strayed.std(axis=0)
        spread[spread <= _NO_SPREAD * np.abs(means[j, k])] = 0.0
        deviations = np.divide(strayed, spread, out=np.zeros_like(strayed), where=spread > 0)
        highest = np.maximum(highest, deviations.max(axis=(1, 2)))
        lowest = np.minimum(lowest, deviations.min(axis=(1, 2)))
        pairs.append((falls, spread, first[both], contenders[both, k]))
    tail = 0.5 * (1.0 - _SHARE_OF_RANKING) * error
    below, above = np.quantile(highest, 1.0 - tail), -np.quantile(lowest, tail)
    worst = means.max(axis=0)
    estimates = worst[against] - worst
    low = np.array([(falls - below * spread).max(axis=0)[after].min() for falls, spread, _, after in pairs])
    high = np.array([_least_of_each(falls + above * spread)[before].max() for falls, spread, before, _ in pairs])
    same = np.abs(found.resampled_means - found.resampled_means[:, :, [against]]).max(axis=(0, 1)) <= (
        _NO_SPREAD * np.abs(worst)
    )
    for values in (estimates, low, high):
        values[same] = 0.0
    return Intervals(estimates, low, high, float(high.max()), float(low.max()), float(low.min()), confidence)


def _least_of_each(ends: Floats) -> Floats:
    """Return the minimum of each row; for a single row, its entries, which compare groups with themselves."""
    return ends.min(axis=1) if len(ends) > 1 else ends[0]


def _may_be_worst(means: Floats, again: Floats, error: float) -> Mask:
    """Return which groups may have the largest mean of each quantity, with the given probability of missing one."""
    out = np.zeros(means.shape, dtype=bool)
    for k in range(means.shape[1]):
        top = int(means[:, k].argmax())
        behind = means[top, k] - means[:, k]
        distances = again[:, [top], k] - again[:, :, k] - behind
        spread = distances.std(axis=0)
        others = spread > _NO_SPREAD * abs(means[top, k])
        deviations = distances[:, others] / spread[others]
        reach = np.quantile(deviations.max(axis=1, initial=0.0), 1.0 - error / means.shape[1])
        out[:, k] = behind <= reach * np.where(others, spread, 0.0)
    return out


def _spread_of(resampled: Floats, counted: Any) -> Floats:
    """Return the standard deviation of each group's resamples; 0 for groups that are not included."""
    return np.where(counted, resampled.std(axis=0), 0.0)
