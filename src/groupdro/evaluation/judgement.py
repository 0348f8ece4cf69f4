"""A judgement: what several models predict for the same rows, in every group, with resamples drawn once for all."""

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real

import numpy as np
from sklearn.utils.validation import check_scalar

from groupdro.data.given import GivenRows
from groupdro.data.grouping import Grouping
from groupdro.evaluation.enough import why_not_judged
from groupdro.evaluation.inference import Intervals, simultaneous_intervals
from groupdro.evaluation.metrics import Metric
from groupdro.evaluation.outputs import Outputs
from groupdro.evaluation.resampling import Resampled, effective_sizes, resample
from groupdro.evaluation.statistics import Average, Median, Statistic
from groupdro.utils.arguments import error_prefix
from groupdro.utils.types import Array, Floats, Indices, Mask

__all__ = ["Judgement", "MetricByGroup", "Resampling", "values_by_group"]

_LEAST_RESAMPLED = 10  # rows; with fewer, the bootstrap is far too optimistic
_MOST_AT_ONCE = 1 << 26  # numbers of resamples, groups and statistics that are in memory together


@dataclass(frozen=True)
class Resampling:
    """How many resamples are drawn, and what is concluded from them.

    Attributes
    ----------
    n_bootstrap : int
        Number of bootstrap resamples; 0 for no intervals.
    confidence : float
        Level of the confidence intervals.
    min_rows : int
        Effective number of rows that a group needs to be judged.
    seed : int
        Seed of the resamples.
    """

    n_bootstrap: int = 1000
    confidence: float = 0.95
    min_rows: int = 30
    seed: int = 0

    def check(self, *, least: int = 0) -> "Resampling":
        """Raise if a value is impossible; `least` is the smallest number of resamples."""
        check_scalar(self.confidence, "confidence", Real)
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must be between 0 and 1, got {self.confidence!r}.")
        for name, value in {"min_rows": self.min_rows, "random_state": self.seed}.items():
            check_scalar(value, name, Integral, min_val=0)
        check_scalar(self.n_bootstrap, "n_bootstrap", Integral, min_val=least)
        if self.n_bootstrap and self.n_bootstrap * (1.0 - self.confidence) < 1.0 - 1e-9:
            raise ValueError(
                f"n_bootstrap={self.n_bootstrap} is too small for a confidence of {self.confidence!r}: use at least "
                f"{math.ceil(1.0 / (1.0 - self.confidence) - 1e-6)}."
            )
        return self


@dataclass(frozen=True, eq=False)
class MetricByGroup:
    """A metric of one model in every group.

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
    errors : ndarray of shape (n_groups,)
        Standard errors of the judged groups; NaN for the others, for medians, and without resamples.
    notes : ndarray of str of shape (n_groups,)
        Why a group is not judged; empty if it is.
    required : ndarray of bool of shape (n_rows, n_kinds)
        Kinds of rows that the metric counts, as in `Statistic`.
    """

    metric: Metric
    values: Floats
    overall: float
    intervals: Intervals
    errors: Floats
    notes: Array
    required: Mask

    @property
    def judged(self) -> Mask:
        """Groups with enough rows to judge the metric."""
        return np.asarray(self.notes == "")

    @property
    def losses(self) -> Floats:
        """The values, or their negatives if larger ones are better."""
        return -self.values if self.metric.larger_is_better else self.values


class Judgement:
    """Metrics of several models in every group of the same rows.

    Everything is computed when first needed, and once.

    Parameters
    ----------
    rows : GivenRows
        The rows, each with a weight.
    outputs : dict of str to Outputs
        What each model predicts for them.
    metrics : iterable of Metric
        The metrics.
    how : Resampling
        How to resample the rows.
    compared : iterable of Metric
        Those of the metrics whose differences between the models are needed.
    """

    def __init__(
        self,
        rows: GivenRows,
        outputs: dict[str, Outputs],
        metrics: Iterable[Metric],
        how: Resampling,
        *,
        compared: Iterable[Metric] = (),
    ):
        self.rows = rows
        self.outputs = outputs
        self.metrics = tuple(metrics)
        self.how = how
        self._compared = tuple(compared)
        self.statistics: dict[tuple[str, str], Statistic] = {}
        for name, own in outputs.items():
            with error_prefix(f"models[{name!r}]") if len(outputs) > 1 else nullcontext():
                own.check_labels()
                for metric in self.metrics:
                    self.statistics[name, metric.name] = metric.of(own)

    @cached_property
    def sizes(self) -> Floats:
        """Effective number of rows, or of clusters, of each group."""
        return effective_sizes(self.rows.groups, self.rows.clusters, self.rows.weights)

    @cached_property
    def large(self) -> Mask:
        """Groups with enough rows to judge anything."""
        return np.asarray(self.sizes >= max(self.how.min_rows, _LEAST_RESAMPLED) - 1e-9)

    def why_not(self, name: str, metric: Metric, *, count_errors: bool = True) -> Array:
        """Return why each group has too few rows to judge a metric of a model; empty text if it has enough."""
        statistic = self.statistics[name, metric.name]
        return why_not_judged(statistic, self.outputs[name], self.rows, self.large, count_errors=count_errors)

    @cached_property
    def _found(self) -> dict[tuple[str, str], tuple[Floats, float, Array]]:
        """Values in every group and over all rows, and why groups are not judged, of each model and metric."""
        found = {}
        for name, metric in ((name, metric) for name in self.outputs for metric in self.metrics):
            statistic = self.statistics[name, metric.name]
            values = values_by_group(metric, statistic, self.rows)
            notes = self.why_not(name, metric)
            notes[np.isnan(values[:-1])] = "undefined"
            found[name, metric.name] = values[:-1], float(values[-1]), notes
        return found

    def by_group(self, name: str, metric: Metric) -> MetricByGroup:
        """Return a metric of a model in every group."""
        statistic = self.statistics[name, metric.name]
        values, overall, notes = self._found[name, metric.name]
        notes = notes.copy()
        judged = notes == ""
        intervals, errors = Intervals.nothing(len(notes), self.how.confidence), np.full(len(notes), np.nan)
        if self.how.n_bootstrap and judged.any():
            intervals, errors[judged] = self._intervals(name, metric, judged)
            intervals = intervals.spread(judged).within(*_bounds(metric, statistic))
            # Resampling rows that are all equal says nothing about values that were not observed.
            notes[judged & np.isnan(intervals.low)] = "equal values"
        if metric.scale == "square root":
            errors = np.divide(errors, 2.0 * values, out=np.zeros_like(errors), where=values > 0)
        return MetricByGroup(metric, values, overall, intervals, errors, notes, statistic.required)

    def _intervals(self, name: str, metric: Metric, judged: Mask) -> tuple[Intervals, Floats]:
        """Return simultaneous intervals for the judged groups, and the standard errors of the statistic."""
        statistic = self.statistics[name, metric.name]
        part = replace(self.rows, groups=self.rows.groups.only(np.flatnonzero(judged)))
        if isinstance(statistic, Median):
            return _median_intervals(statistic, part, self.how.confidence), np.full(judged.sum(), np.nan)
        if self.is_proportion(name, metric):
            assert isinstance(statistic, Average)
            found = _proportions(statistic, part)
            return simultaneous_intervals(found, self.how.confidence), found.errors[:, 0]
        found, kind = self._resampled[name, metric.name]
        inside = judged[self.resampled_groups]
        own = found.of_groups(np.flatnonzero(inside)).only(np.array([kind]))
        own = replace(own, binary=np.zeros(1, dtype=bool))  # values that just happen to be zeros and ones
        errors = np.maximum(own.errors, own.least_errors)[:, 0]
        return simultaneous_intervals(own, self.how.confidence, scale=metric.scale), errors

    def is_proportion(self, name: str, metric: Metric) -> bool:
        """Return whether a metric of a model is a proportion of rows, whose intervals need no resamples."""
        statistic = self.statistics[name, metric.name]
        return isinstance(statistic, Average) and statistic.is_proportion

    def proportions(self, name: str, metric: Metric, groups: Indices) -> Resampled:
        """Return a proportion in some groups."""
        statistic = self.statistics[name, metric.name]
        assert isinstance(statistic, Average)
        return _proportions(statistic, replace(self.rows, groups=self.rows.groups.only(groups)))

    def resampled(self, name: str, metric: Metric) -> Resampled:
        """Return a metric of a model in the resampled groups, and on their resamples."""
        key = name, metric.name
        known = self._resampled
        if key not in known:  # of medians, whose intervals need none
            known = self._resample([metric], self.rows.groups.only(self.resampled_groups))
        found, kind = known[key]
        return found.of_groups(slice(len(self.resampled_groups))).only(np.array([kind]))

    def compared(self, metric: Metric) -> tuple[Resampled, Resampled]:
        """Return a metric of all models in the resampled groups, and over all rows, negated if larger is better."""
        kinds = [self._resampled[name, metric.name] for name in self.outputs]
        found = kinds[0][0].only(np.array([kind for _, kind in kinds]))
        means, again = found.means, found.resampled_means
        if metric.scale == "square root":
            means, again = np.sqrt(means), np.sqrt(np.maximum(again, 0.0))
        if metric.larger_is_better:
            means, again = -means, -again
        found = replace(found, means=means, resampled_means=again)
        return found.of_groups(slice(None, -1)), found.of_groups(slice(-1, None))

    @cached_property
    def resampled_groups(self) -> Indices:
        """The groups that some metric of some model is judged by, or all if there are none: they are resampled."""
        some = np.any([notes == "" for _, _, notes in self._found.values()], axis=0)
        return np.flatnonzero(some if some.any() else ~some)

    @cached_property
    def _resampled(self) -> dict[tuple[str, str], tuple[Resampled, int]]:
        """The resamples, and the place in them, of each metric of a model that needs any.

        The last group of metrics that are compared is that of all rows.
        """
        own = self.rows.groups.only(self.resampled_groups)
        apart = [metric for metric in self.metrics if metric not in self._compared]
        needed = [metric for metric in apart if any(map(_is_resampled, self._statistics_of(metric)))]
        return self._resample(self._compared, own.and_all(len(self.rows.y))) | self._resample(needed, own)

    def _statistics_of(self, metric: Metric) -> list[Statistic]:
        return [self.statistics[name, metric.name] for name in self.outputs]

    def _resample(self, metrics: Sequence[Metric], grouping: Grouping) -> dict[tuple[str, str], tuple[Resampled, int]]:
        """Resample metrics of all models together, as many as fit into memory."""
        at_once = _MOST_AT_ONCE // max(self.how.n_bootstrap * len(grouping.names) * len(self.outputs), 1)
        found: dict[tuple[str, str], tuple[Resampled, int]] = {}
        for start in range(0, len(metrics), max(at_once, 1)):
            some = metrics[start : start + max(at_once, 1)]
            part = resample(
                [one for metric in some for one in self._statistics_of(metric)],
                grouping,
                n_bootstrap=self.how.n_bootstrap,
                seed=self.how.seed,
                clusters=self.rows.clusters,
                weights=self.rows.weights,
            )
            keys = [(name, metric.name) for metric in some for name in self.outputs]
            found |= {key: (part, kind) for kind, key in enumerate(keys)}
        return found


def _is_resampled(statistic: Statistic) -> bool:
    """Return whether intervals of a statistic need resamples: those of proportions and medians are exact."""
    return not (isinstance(statistic, Median) or (isinstance(statistic, Average) and statistic.is_proportion))


def values_by_group(metric: Metric, statistic: Statistic, rows: GivenRows) -> Floats:
    """Return the value of a metric in every group, and over all rows at the end."""
    weights = rows.row_weights
    places = [*map(rows.groups.rows_of, range(len(rows.groups.names))), np.arange(len(rows.y))]
    values = np.array([statistic(own, weights[own][None])[0][0] for own in places])
    return np.sqrt(values) if metric.scale == "square root" else values


def _bounds(metric: Metric, statistic: Statistic) -> tuple[float, float]:
    """Return the smallest and the largest possible value of a metric."""
    least, most = metric.bounds
    nonnegative = isinstance(statistic, Average) and statistic.values.min() >= 0  # as all losses of ours are
    return max(least, 0.0) if nonnegative else least, most


def _proportions(statistic: Average, given: GivenRows) -> Resampled:
    """Return proportions of the rows that count, whose intervals need no resamples."""
    grouping, values, clusters, weights = given.groups, statistic.values, given.clusters, given.weights
    if not statistic.counted.all():
        counted = np.flatnonzero(statistic.counted)
        grouping, values = grouping.restrict(counted), values[counted]
        clusters = None if clusters is None else clusters[counted]
        weights = None if weights is None else weights[counted]
    counting = Average(values, np.ones(len(values), dtype=bool), is_proportion=True)
    found = resample([counting], grouping, n_bootstrap=0, seed=0, clusters=clusters, weights=weights)
    return replace(found, binary=np.array([True]))


def _median_intervals(statistic: Median, given: GivenRows, confidence: float) -> Intervals:
    """Return intervals for medians: quantiles at the ends of intervals for the share of rows below (Woodruff, 1952)."""
    grouping = given.groups
    m = len(grouping.names)
    weights = given.row_weights
    everything = np.ones(len(weights), dtype=bool)
    ends = np.empty((m, 3))
    for i in range(m):
        rows = grouping.rows_of(i)

        def quantile(share: float, rows: Indices = rows) -> float:
            return float(statistic.quantiles(rows, weights[rows][None], np.array([np.clip(share, 0.0, 1.0)]))[0])

        median = quantile(0.5)
        below = Average((statistic.values <= median).astype(np.float64), everything, is_proportion=True)
        own = replace(given, groups=grouping.only(np.array([i])))
        shares = simultaneous_intervals(_proportions(below, own), 1.0 - (1.0 - confidence) / m)
        # The observed share of rows up to the median differs from a half by up to a row.
        low, high = (quantile(0.5 + float(end[0] - shares.estimates[0])) for end in (shares.low, shares.high))
        ends[i] = median, low, high
    medians, lows, highs = ends.T
    return Intervals(medians, lows, highs, float(highs.max()), float(lows.max()), float(lows.min()), confidence)
