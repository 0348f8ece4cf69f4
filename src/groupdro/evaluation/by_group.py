"""A metric in every group, with simultaneous confidence intervals."""

from dataclasses import dataclass, replace

import numpy as np

from groupdro.data.given import GivenRows
from groupdro.evaluation.inference import (
    Intervals,
    few_carry,
    has_enough,
    resample,
    resample_statistics,
    simultaneous_intervals,
)
from groupdro.evaluation.metrics import Metric, Outputs
from groupdro.evaluation.statistics import Average, Median, Statistic
from groupdro.utils.types import Array, Floats, Indices, Mask

__all__ = ["MetricByGroup", "metric_by_group", "why_not_judged"]


@dataclass(frozen=True, eq=False)
class MetricByGroup:
    """A metric in every group.

    Attributes
    ----------
    metric : Metric
        The metric.
    values : ndarray of shape (n_groups,)
        Its values; NaN where it is undefined, like an area under the ROC curve of a group with one class.
    overall : float
        Its value over all rows.
    intervals : Intervals
        Simultaneous confidence intervals of the judged groups; NaN for the others.
    notes : ndarray of str of shape (n_groups,)
        Why a group is not judged; empty if it is.
    """

    metric: Metric
    values: Floats
    overall: float
    intervals: Intervals
    notes: Array

    @property
    def judged(self) -> Mask:
        """Groups with enough rows to judge the metric."""
        return np.asarray(self.notes == "")

    @property
    def losses(self) -> Floats:
        """The values, or their negatives if larger ones are better."""
        return -self.values if self.metric.larger_is_better else self.values


def metric_by_group(
    metric: Metric, outputs: Outputs, given: GivenRows, large: Mask, *, n_bootstrap: int, confidence: float, seed: int
) -> MetricByGroup:
    """Compute a metric in every group.

    Parameters
    ----------
    metric : Metric
        The metric.
    outputs : Outputs
        What the model predicts for the rows.
    given : GivenRows
        The rows, with groups, weights and clusters.
    large : ndarray of bool of shape (n_groups,)
        Groups with enough rows to judge anything.
    n_bootstrap, confidence, seed : object
        Number of resamples, confidence level of the intervals, and seed.

    Returns
    -------
    MetricByGroup
        Values and intervals.
    """
    statistic = metric.of(outputs)
    grouping = given.groups
    weights = given.row_weights
    rows = [*map(grouping.rows_of, range(len(grouping.names))), np.arange(len(given.y))]
    found = np.array([statistic(own, weights[own][None])[0][0] for own in rows])
    if metric.scale == "square root":
        found = np.sqrt(found)
    notes = why_not_judged(statistic, outputs, given, large)
    notes[np.isnan(found[:-1])] = "undefined"
    intervals = Intervals.nothing(len(notes), confidence)
    if n_bootstrap and (notes == "").any():
        judged = notes == ""
        intervals = _intervals(metric, statistic, given, judged, n_bootstrap, confidence, seed).spread(judged)
        intervals = intervals.within(*_bounds(metric, statistic))
        # Resampling rows that are all equal says nothing about values that were not observed.
        notes[judged & np.isnan(intervals.low)] = "equal values"
    return MetricByGroup(metric, found[:-1], float(found[-1]), intervals, notes)


def _bounds(metric: Metric, statistic: Statistic) -> tuple[float, float]:
    """Return the smallest and the largest possible value of a metric."""
    least, most = metric.bounds
    nonnegative = isinstance(statistic, Average) and statistic.values.min() >= 0  # as all losses of ours are
    return max(least, 0.0) if nonnegative else least, most


def why_not_judged(
    statistic: Statistic, outputs: Outputs, given: GivenRows, large: Mask, *, count_errors: bool = True
) -> Array:
    """Return why each group has too few rows to judge a statistic; empty text if it has enough.

    Parameters
    ----------
    statistic : Statistic
        The statistic.
    outputs : Outputs
        What the model predicts for the rows.
    given : GivenRows
        The rows, with groups, weights and clusters.
    large : ndarray of bool of shape (n_groups,)
        Groups with enough rows to judge anything.
    count_errors : bool
        Whether a classifier must be wrong on some rows of a group.

    Returns
    -------
    ndarray of str of shape (n_groups,)
        The reasons.
    """
    of = given.groups, given.clusters, given.weights
    notes = np.full(len(large), "", dtype=object)
    if statistic.sizes is not None:
        errors = ~outputs.right if outputs.classifies and count_errors else None
        notes[few_carry(statistic.sizes, *of, classes=outputs.classifies, errors=errors)] = "few errors"
    notes[~has_enough(statistic, *of)] = "few rows"
    notes[~large] = "small"
    return notes


def _intervals(
    metric: Metric,
    statistic: Statistic,
    given: GivenRows,
    judged: Mask,
    n_bootstrap: int,
    confidence: float,
    seed: int,
) -> Intervals:
    """Return simultaneous intervals for the judged groups."""
    grouping = given.groups.only(np.flatnonzero(judged))
    clusters = given.clusters
    weights = given.weights
    if isinstance(statistic, Median):
        return _median_intervals(statistic, replace(given, groups=grouping), confidence)
    if not isinstance(statistic, Average):
        found = resample_statistics(
            [statistic], grouping, n_bootstrap=n_bootstrap, seed=seed, clusters=clusters, weights=weights
        )
        return simultaneous_intervals(found, confidence, scale=metric.scale)
    values = statistic.values
    if not statistic.counted.all():
        counted = np.flatnonzero(statistic.counted)
        grouping, values = grouping.restrict(counted), values[counted]
        clusters = None if clusters is None else clusters[counted]
        weights = None if weights is None else weights[counted]
    exact = statistic.is_proportion
    found = resample(
        values[:, None],
        grouping,
        n_bootstrap=0 if exact else n_bootstrap,
        seed=seed,
        clusters=clusters,
        weights=weights,
    )
    found = replace(found, binary=np.array([exact]))
    return simultaneous_intervals(found, confidence, scale=metric.scale)


def _median_intervals(statistic: Median, given: GivenRows, confidence: float) -> Intervals:
    """Return intervals for medians: quantiles at the ends of intervals for the share of rows below (Woodruff, 1952)."""
    grouping = given.groups
    m = len(grouping.names)
    weights = given.row_weights
    ends = np.empty((m, 3))
    for i in range(m):
        rows = grouping.rows_of(i)

        def quantile(share: float, rows: Indices = rows) -> float:
            return float(statistic.quantiles(rows, weights[rows][None], np.array([np.clip(share, 0.0, 1.0)]))[0])

        median = quantile(0.5)
        below = (statistic.values <= median).astype(np.float64)
        found = resample(
            below[:, None],
            grouping.only(np.array([i])),
            n_bootstrap=0,
            seed=0,
            clusters=given.clusters,
            weights=given.weights,
        )
        found = replace(found, binary=np.ones(1, dtype=bool))
        shares = simultaneous_intervals(found, 1.0 - (1.0 - confidence) / m)
        # The observed share of rows up to the median differs from a half by up to a row.
        low, high = (quantile(0.5 + float(end[0] - shares.estimates[0])) for end in (shares.low, shares.high))
        ends[i] = median, low, high
    medians, lows, highs = ends.T
    return Intervals(medians, lows, highs, float(highs.max()), float(lows.max()), float(lows.min()), confidence)
