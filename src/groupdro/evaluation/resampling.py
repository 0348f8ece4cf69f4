"""Numbers of every group on the sample and on bootstrap resamples of its rows, drawn once for all of them.

Rows, or clusters of rows, are resampled with Poisson weights. All numbers of a row are resampled together, so that
their differences are paired.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, pairwise
from warnings import catch_warnings, simplefilter

import numpy as np
import scipy.sparse as sp
from scipy.stats import poisson

from groupdro.data.grouping import Grouping
from groupdro.evaluation.statistics import Average, FunctionOfMeans, Statistic
from groupdro.utils.progress import Steps
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["LEAST_ERROR", "Resampled", "draw_units", "effective_sizes", "resample", "units_of_groups"]

LEAST_ERROR = 0.25  # smallest standard error of a resample relative to the sample's; smaller ones mean nothing

_DRAWN_AT_ONCE = 1 << 23  # Poisson numbers
# Poisson numbers of mean 1 from the quantiles of 16 random bits, which is ten times as fast as sampling them. They are
# searched for, because `poisson.ppf` of as many values takes as long as the import of the package's own modules.
_POISSON = np.searchsorted(poisson.cdf(np.arange(20), 1.0), (np.arange(2**16) + 0.5) / 2**16).astype(np.float64)
_MOST_UNITS = 1 << 17  # rows or clusters drawn separately; beyond that, random ones share a draw
_MOST_COLUMNS = 6  # of a function of means whose variance is computed from the products of all pairs of columns
# Resamples of a group that are resampled again, and how often, where the influence of rows is unknown: 500 values.
_RESAMPLED_AGAIN, _INNER = 20, 25
_CANCELLED = 1e-13  # of a sum of terms relative to the largest: nothing is left but rounding
_EDGE = 1e-12  # least relative standard error whose logarithm is taken


@dataclass(frozen=True, eq=False)
class Resampled:
    """Several numbers of every group, such as means, with their standard errors, on the sample and on resamples.

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

    def of_groups(self, groups: Indices | slice) -> "Resampled":
        """Return some of the groups."""
        return replace(
            self,
            means=self.means[groups],
            errors=self.errors[groups],
            least_errors=self.least_errors[groups],
            resampled_means=self.resampled_means[:, groups],
            resampled_errors=self.resampled_errors[:, groups],
            sizes=self.sizes[groups],
            rows=self.rows[groups],
            mixed=self.mixed[groups],
        )

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
    group, mass, _ = units_of_groups(grouping, clusters, weights)
    m = len(grouping.names)
    total, squares = (np.bincount(group, weights=each, minlength=m) for each in (mass, np.square(mass)))
    return np.divide(np.square(total), squares, out=np.zeros(m), where=squares > 0)


def units_of_groups(
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


def resample(
    statistics: Sequence[Statistic] | Floats,
    grouping: Grouping,
    *,
    n_bootstrap: int,
    seed: int,
    clusters: Indices | None = None,
    weights: Floats | None = None,
    studentised: bool = True,
) -> Resampled:
    """Resample rows, or clusters of rows, and compute statistics of every group.

    Parameters
    ----------
    statistics : sequence of Statistic, or ndarray of shape (n_rows, n_quantities)
        The statistics, such as metrics of several models; or values to average, such as the losses of several models.
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
    studentised : bool
        Whether the standard errors of the resamples are needed, as they are not for differences between statistics.

    Returns
    -------
    Resampled
        The statistics and their standard errors, from the influence of the rows. If it is unknown, the sample's
        standard error is that of the statistic over the resamples, and those of the resamples are predicted: some of
        them are resampled again, which shows how the standard error changes with the value.
    """
    if isinstance(statistics, np.ndarray):
        counted = np.ones(len(statistics), dtype=bool)
        statistics = [Average(column, counted) for column in statistics.T]
    m, n_kinds = len(grouping.names), len(statistics)
    n_rows = len(statistics[0].required)
    units, draws = draw_units(n_rows, clusters, n_bootstrap, seed)
    row_weights = np.ones(n_rows) if weights is None else weights / weights.max()  # so that no square overflows
    groups = [_GroupUnits.of(units, rows, row_weights) for rows in map(grouping.rows_of, range(m))]
    smooth = [k for k, one in enumerate(statistics) if _is_smooth(one)]
    others = [k for k in range(n_kinds) if k not in smooth]
    sums = [_GroupMeans.of(group, [statistics[k] for k in smooth]) for group in groups] if smooth else []
    values, errors = np.full((2, m, n_kinds), np.nan)
    again, errors_again = np.full((2, n_bootstrap, m, n_kinds), np.nan)

    def evaluate(i: int, drawn: Floats, values: Floats, errors: Floats, *, studentised: bool = True) -> None:
        if smooth:
            values[:, smooth], errors[:, smooth] = sums[i].evaluate(drawn, studentised=studentised)
        for k in others:
            values[:, k], errors[:, k] = groups[i].evaluate(statistics[k], drawn)

    for i, group in enumerate(groups):
        evaluate(i, np.ones((1, len(group.units))), values[None, i], errors[None, i])
    steps = Steps(f"{n_bootstrap} resamples of {m} groups", n_bootstrap * sum(len(group.rows) for group in groups))
    for place, drawn in draws:
        for i, group in enumerate(groups):
            evaluate(i, group.of_units(drawn), again[place, i], errors_again[place, i], studentised=studentised)
            steps.done(len(drawn) * len(group.rows))
    # A resample without any row of a required kind says nothing.
    again = np.where(np.isnan(again), values, again)
    if n_bootstrap:
        unknown = np.isnan(errors)
        errors = np.where(unknown, again.std(axis=0), errors)
        for k in np.flatnonzero(unknown.any(axis=0) & studentised).tolist():
            predicted = _predicted_errors(statistics[k], groups, values[:, k], errors[:, k], again[:, :, k], seed)
            errors_again[:, :, k] = np.where(np.isnan(errors_again[:, :, k]), predicted, errors_again[:, :, k])
    errors_again = np.where(np.isnan(errors_again), errors, errors_again)
    rows = effective_sizes(grouping, weights=weights)
    sizes = effective_sizes(grouping, clusters, weights)
    least, mixed, binary = np.zeros_like(values), np.zeros_like(values), np.zeros(n_kinds, dtype=bool)
    for k, statistic in enumerate(statistics):
        if isinstance(statistic, Average) and statistic.counted.all():
            own = statistic.values
            # If all values are 0, larger losses may simply not have been observed.
            binary[k] = bool(np.isin(own, (0, 1)).all() and own.any())
            mixed[:, k] = sizes * [group.mixed(own) for group in groups]
            if weights is not None:
                least[:, k] = [own[group.rows].std() for group in groups] / np.sqrt(rows)
    return Resampled(values, errors, least, again, errors_again, sizes, rows, mixed, binary)


def _is_smooth(statistic: Statistic) -> bool:
    """Return whether a statistic is a function of so few means that one product per draw gives its variance."""
    form = statistic.of_means
    return form is not None and form.columns.shape[1] <= _MOST_COLUMNS


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


def _predicted_errors(
    statistic: Statistic, groups: "list[_GroupUnits]", values: Floats, errors: Floats, again: Floats, seed: int
) -> Floats:
    """Predict the standard error of a statistic on each resample of each group, from its value there.

    A skewed statistic varies more where it is large: with one standard error for all resamples, its intervals end too
    low. A few resamples of each group are resampled themselves. Their standard errors, relative to the group's, are a
    straight line in the deviation of the value, common to all groups, with lognormal deviations from it.

    Parameters
    ----------
    statistic : Statistic
        The statistic.
    groups : list of _GroupUnits
        The groups.
    values, errors : ndarray of shape (n_groups,)
        The statistic on the sample, and its standard error.
    again : ndarray of shape (n_bootstrap, n_groups)
        The statistic on the resamples.
    seed : int
        Seed of the resamples.

    Returns
    -------
    ndarray of shape (n_bootstrap, n_groups)
        The standard errors; those of the sample where nothing can be predicted.
    """
    rng = np.random.default_rng([seed, 1])
    deviations = np.divide(again - values, errors, out=np.zeros_like(again), where=errors > 0)
    lines = []
    for i in np.flatnonzero(np.isfinite(values) & (errors > 0)):
        drawn = rng.poisson(1.0, (_RESAMPLED_AGAIN, len(groups[i].units))).astype(np.float64)
        centres = groups[i].evaluate(statistic, drawn)[0]
        inner = rng.poisson(np.repeat(drawn, _INNER, axis=0)).astype(np.float64)
        with catch_warnings():
            simplefilter("ignore", RuntimeWarning)  # of resamples without a value
            found = groups[i].evaluate(statistic, inner)[0].reshape(_RESAMPLED_AGAIN, _INNER)
            spread = np.nanstd(found, axis=1, ddof=1)
        kept = np.isfinite(centres) & np.isfinite(spread)
        lines.append(np.column_stack([(centres - values[i]) / errors[i], spread / errors[i]])[kept])
    if sum(map(len, lines)) < _RESAMPLED_AGAIN // 2:
        return np.broadcast_to(errors, again.shape)
    at, relative = np.concatenate(lines).T
    centred = at - at.mean()
    slope = float(centred @ relative / max(centred @ centred, 1e-300))
    level = float(relative.mean() - slope * at.mean())
    predicted = np.maximum(level + slope * at, LEAST_ERROR)
    # The deviations from the line are partly those of standard errors of few values.
    noise = np.var(np.log(np.maximum(relative, _EDGE) / predicted)) - 0.5 / (_INNER - 1)
    spread = np.sqrt(max(float(noise), 0.0))
    factors = np.exp(spread * rng.standard_normal(again.shape) - 0.5 * spread**2)
    return np.asarray(errors * np.maximum(level + slope * deviations, LEAST_ERROR) * factors)


@dataclass(frozen=True, eq=False)
class _GroupUnits:
    """The rows of a group, and the units in which they are resampled.

    Attributes
    ----------
    rows, weights : ndarray of shape (n,)
        The rows, and their weights.
    units : ndarray of shape (n_units,)
        The units, in ascending order.
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

    def of_units(self, drawn: Floats) -> Floats:
        """Return how often each of the group's units is drawn."""
        first, last = int(self.units[0]), int(self.units[-1])
        # Units in a row need no copy of their draws.
        return drawn[:, first : last + 1] if last - first + 1 == len(self.units) else drawn[:, self.units]

    def sum(self, columns: Floats) -> Floats:
        """Sum columns, whose last axis is the rows of the group, over the rows of each unit."""
        if len(self.units) == len(self.rows):
            return columns[..., np.argsort(self.place)]
        shape = len(self.units), len(self.rows)
        summing = sp.csr_array((np.ones(len(self.rows)), (self.place, np.arange(len(self.rows)))), shape=shape)
        return np.asarray((summing @ columns.T).T)

    def mixed(self, values: Floats) -> float:
        """Return the share of units on whose rows a value is not always 0 or, if there are fewer, not always 1."""
        mass, sums = self.sum(np.stack([self.weights, self.weights * values[self.rows]]))
        return float(min((sums > 0).mean(), (sums < mass).mean()))

    def evaluate(self, statistic: Statistic, drawn: Floats) -> tuple[Floats, Floats]:
        """Return a statistic on resamples that have each unit so often, and its standard errors; NaN if unknown."""
        values, influence = statistic(self.rows, drawn[:, self.place] * self.weights)
        if influence is None:
            return values, np.full_like(values, np.nan)
        # The copies of a unit in a resample count as independent.
        squares = np.square(self.sum(influence))
        variance = np.divide(squares, drawn, out=np.zeros_like(drawn), where=drawn > 0).sum(axis=1)
        return values, np.sqrt(variance)


@dataclass(frozen=True, eq=False)
class _GroupMeans:
    """Functions of the weighted means of columns over a group, whose draws are evaluated by one product.

    Attributes
    ----------
    forms : list of FunctionOfMeans
        The functions.
    places : list of slice
        The columns of each.
    mass : ndarray of shape (n_units,)
        Weight of each unit.
    means : ndarray of shape (n_columns,)
        Means of the columns on the sample.
    deviations : ndarray of shape (n_units, n_columns)
        Weighted sums of the columns over each unit, minus what the means would give: later differences do not cancel.
    """

    forms: list[FunctionOfMeans]
    places: list[slice]
    mass: Floats
    means: Floats
    deviations: Floats

    @classmethod
    def of(cls, group: _GroupUnits, statistics: Sequence[Statistic]) -> "_GroupMeans":
        forms = [one.of_means for one in statistics if one.of_means is not None]
        ends = np.cumsum([0, *(one.columns.shape[1] for one in forms)]).tolist()
        columns = np.concatenate([one.columns[group.rows] for one in forms], axis=1)
        mass, *sums = group.sum(np.vstack([group.weights, (group.weights[:, None] * columns).T]))
        totals = np.stack(sums, axis=1)
        means = totals.sum(axis=0) / mass.sum()
        places = [slice(*pair) for pair in pairwise(ends)]
        return cls(forms, places, mass, means, totals - means * mass[:, None])

    def evaluate(self, drawn: Floats, *, studentised: bool) -> tuple[Floats, Floats]:
        """Return the functions on resamples that have each unit so often, and their standard errors; NaN if not asked.

        To first order, a function deviates by the sum over units of ``drawn * (deviations - strayed * mass) @ slopes``,
        divided by the total weight. The terms are independent, so the variance is the sum of their squares.
        """
        n, own, mass = self.deviations.shape[1], self.deviations, self.mass[:, None]
        pairs = [pair for place in self.places for pair in combinations_with_replacement(range(n)[place], 2)]
        first, second = np.array(pairs).T
        parts = [mass, own]
        if studentised:
            parts += [np.square(mass), own * mass, own[:, first] * own[:, second]]
        sums = drawn @ np.hstack(parts)  # one product with all columns reads the draws once
        total = np.maximum(sums[:, :1], 1e-300)
        strayed = sums[:, 1 : n + 1] / total
        means = self.means + strayed
        values, squares = np.full((2, len(drawn), len(self.forms)), np.nan)
        masses, mixed, products = sums[:, n + 1 : n + 2], sums[:, n + 2 : 2 * n + 2], sums[:, 2 * n + 2 :]
        single = [k for k, form in enumerate(self.forms) if form.function is None]
        column = [self.places[k].start for k in single]
        values[:, single] = means[:, column]
        if studentised:
            drift, squared = strayed[:, column], products[:, [pairs.index((c, c)) for c in column]]
            squares[:, single] = squared - 2.0 * drift * mixed[:, column] + np.square(drift) * masses
        for k, (form, place) in enumerate(zip(self.forms, self.places, strict=True)):
            if form.function is None:
                continue
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # where a mean is zero
                values[:, k], slopes = form.function(means[:, place])
                if not studentised:
                    continue
                along, across = ((slopes * part[:, place]).sum(axis=1) for part in (strayed, mixed))
                terms = [along**2 * masses[:, 0], -2.0 * along * across]
                for a, b in combinations_with_replacement(range(n)[place], 2):
                    both = slopes[:, a - place.start] * slopes[:, b - place.start] * products[:, pairs.index((a, b))]
                    terms.append(both if a == b else 2.0 * both)
                squares[:, k] = np.sum(terms, axis=0)
                squares[np.abs(squares[:, k]) <= _CANCELLED * np.abs(terms).max(axis=0), k] = 0.0
        return values, np.sqrt(np.maximum(squares, 0.0)) / total
