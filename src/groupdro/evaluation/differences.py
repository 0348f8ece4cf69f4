"""Differences and ratios between groups, with intervals that hold for all of them at once."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from groupdro.evaluation.inference import simultaneous_intervals
from groupdro.evaluation.judgement import Judgement
from groupdro.evaluation.metrics import Metric
from groupdro.evaluation.resampling import LEAST_ERROR
from groupdro.utils.arguments import short_repr
from groupdro.utils.optional import import_extra
from groupdro.utils.text import group_name, metric_name, percent, records, table_text
from groupdro.utils.types import Floats, Indices

__all__ = ["GroupDifferences", "differences_between"]

_MOST_PAIRS = 20_000  # pairs of 200 groups; with 1,000 resamples they take a quarter of a gigabyte


@dataclass(frozen=True, eq=False)
class GroupDifferences:
    """How much a metric differs between groups, with simultaneous confidence intervals.

    Attributes
    ----------
    columns : dict of str to list
        One row per comparison: `group` and `against`, both groups; `difference`, the value of the first minus that of
        the second, or `ratio`; and its confidence interval from `low` to `high`.
    metric : str
        The metric.
    ratio : bool
        Whether these are ratios.
    confidence : float
        Level of the intervals, which hold for all rows of the table at once: any of them may be picked.
    left_out : list
        Groups that cannot be judged by the metric.
    """

    columns: dict[str, list[Any]]
    metric: str
    ratio: bool
    confidence: float
    left_out: list[Any]

    @property
    def kind(self) -> str:
        """What is in the table: "ratio" or "difference"."""
        return "ratio" if self.ratio else "difference"

    @property
    def message(self) -> str:
        """How many comparisons are clear, and the largest of these, as sentences."""
        rows = records(self.columns)
        none = 1.0 if self.ratio else 0.0
        clear = [row for row in rows if row["low"] > none or row["high"] < none]
        text = f"{len(clear)} of {len(rows)} {self.kind}s of the {metric_name(self.metric)} between groups "
        text += (
            f"{'is' if len(clear) == 1 else 'are'} clear with {percent(self.confidence)} confidence for all at once."
        )
        if clear:
            # The clearest is that whose interval is farthest from equality.
            best = max(clear, key=lambda row: self._distance(row["low"], row["high"]))
            text += (
                f" The clearest: {group_name(best['group'])} against {group_name(best['against'])}, "
                f"{best[self.kind]:.3g} ({best['low']:.3g} to {best['high']:.3g})."
            )
        if self.left_out:
            groups = "1 group" if len(self.left_out) == 1 else f"{len(self.left_out)} groups"
            text += f" {groups} cannot be judged."
        return text

    def _distance(self, low: float, high: float) -> float:
        if self.ratio:
            with np.errstate(divide="ignore"):
                low, high = np.log([low, high]).tolist()
        return max(low, -high)

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame; groups of several columns are text."""
        pd = import_extra("pandas", "plot")

        return pd.DataFrame(self._table)

    @property
    def _table(self) -> dict[str, list[Any]]:
        both = {key: self.columns[key] for key in ("group", "against")}
        return self.columns | {
            key: [group_name(name) if isinstance(name, tuple) else name for name in names]
            for key, names in both.items()
        }

    def __str__(self) -> str:
        return f"{self.message}\n{table_text(f'{self.kind}s of {metric_name(self.metric)}', self._table)}"

    __repr__ = __str__


def differences_between(
    judgement: Judgement, name: str, metric: Metric, order: list[Any], *, against: Any, ratio: bool
) -> GroupDifferences:
    """Return the differences or ratios of a metric between groups.

    Parameters
    ----------
    judgement : Judgement
        The judgement of the metric.
    name : str
        The model.
    metric : Metric
        The metric.
    order : list
        Names of the groups, in the order of the table.
    against : object
        The group that others are compared with; None for every pair of groups.
    ratio : bool
        Whether to return ratios.

    Returns
    -------
    GroupDifferences
        The table.
    """
    found = judgement.by_group(name, metric)
    names = judgement.rows.groups.names
    place = {group: k for k, group in enumerate(names)}
    judged = [group for group in order if group in place and found.notes[place[group]] == ""]
    if ratio and not (metric.is_share or metric.is_positive):
        raise ValueError(f"metric {metric.name!r} can be 0 or negative, so ratios of it mean nothing.")
    if against is not None and against not in judged:
        raise ValueError(f"against must be a group that can be judged, one of {short_repr(judged)}; got {against!r}.")
    if len(judged) < 2:
        raise ValueError("fewer than two groups can be judged, so there is nothing to compare.")
    if against is not None:
        pairs = [(group, against) for group in judged if group != against]
    else:
        pairs = list(combinations(judged, 2))
    if len(pairs) > _MOST_PAIRS:
        raise ValueError(f"there are {len(pairs)} pairs of groups: name one to compare with by against=.")
    first, second = (np.array([place[pair[k]] for pair in pairs]) for k in (0, 1))
    compare = _of_shares if judgement.is_proportion(name, metric) else _of_resamples
    values, low, high = compare(judgement, name, metric, first, second, ratio=ratio)
    columns: dict[str, list[Any]] = {
        "group": [pair[0] for pair in pairs],
        "against": [pair[1] for pair in pairs],
        "ratio" if ratio else "difference": values.tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
    }
    left_out = [group for group in names if group not in judged]
    return GroupDifferences(columns, metric.name, ratio, judgement.how.confidence, left_out)


def _of_resamples(
    judgement: Judgement, name: str, metric: Metric, first: Indices, second: Indices, *, ratio: bool
) -> tuple[Floats, Floats, Floats]:
    """Return differences and intervals from the largest studentised deviation of all of them."""
    found = judgement.resampled(name, metric)
    places = np.full(len(judgement.rows.groups.names), -1)
    places[judgement.resampled_groups] = np.arange(len(judgement.resampled_groups))
    i, j = places[first], places[second]
    means, errors = found.means[:, 0], np.maximum(found.errors, found.least_errors)[:, 0]
    again, spread = found.resampled_means[..., 0], found.resampled_errors[..., 0]
    means, errors = _on_scale(metric, means, errors, ratio=ratio)
    again, spread = _on_scale(metric, again, spread, ratio=ratio)
    apart, error = means[i] - means[j], np.hypot(errors[i], errors[j])
    units = np.maximum(np.hypot(spread[:, i], spread[:, j]), LEAST_ERROR * error)
    deviations = (again[:, i] - again[:, j] - apart) / units
    tail = 0.5 * (1.0 - judgement.how.confidence)
    below = np.quantile(deviations.max(axis=1), 1.0 - tail)
    above = -np.quantile(deviations.min(axis=1), tail)
    ends = apart, apart - below * error, apart + above * error
    values, low, high = (np.exp(end) if ratio else end for end in ends)
    return values, low, high


def _on_scale(metric: Metric, values: Floats, errors: Floats, *, ratio: bool) -> tuple[Floats, Floats]:
    """Return values, or logarithms for ratios, with standard errors; of squares for metrics that are their roots."""
    if metric.scale == "square root":
        roots = np.sqrt(np.maximum(values, 1e-300))
        values, errors = roots, errors / (2.0 * roots)
    if not ratio:
        return values, errors
    values = np.maximum(values, 1e-300)
    return np.log(values), errors / values


def _of_shares(
    judgement: Judgement, name: str, metric: Metric, first: Indices, second: Indices, *, ratio: bool
) -> tuple[Floats, Floats, Floats]:
    """Return differences and intervals of proportions, from the Clopper-Pearson intervals of both.

    Resamples say nothing of a group whose rows are all right. The intervals of the two groups have the level that
    Bonferroni's correction for all differences demands; they are combined as if the groups were independent.
    """
    groups = np.unique(np.concatenate([first, second]))
    # `simultaneous_intervals` divides the error by the number of groups; here it is by that of differences.
    error = (1.0 - judgement.how.confidence) * len(groups) / len(first)
    found = judgement.proportions(name, metric, groups)
    own = simultaneous_intervals(found, 1.0 - min(error, 1.0 - 1e-9))
    i, j = np.searchsorted(groups, first), np.searchsorted(groups, second)
    p, low, high = own.estimates, own.low, own.high
    if not ratio:
        apart = p[i] - p[j]
        down, up = np.hypot(p[i] - low[i], high[j] - p[j]), np.hypot(high[i] - p[i], p[j] - low[j])
        return apart, np.maximum(apart - down, -1.0), np.minimum(apart + up, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios, none = p[i] / p[j], (p[i] == 0) | (p[j] == 0)
        down = np.hypot(np.log(p[i] / low[i]), np.log(high[j] / p[j]))
        up = np.hypot(np.log(high[i] / p[i]), np.log(p[j] / low[j]))
        # The logarithm of 0 has no such distance: the ends of both intervals are divided.
        least = np.where(none, low[i] / high[j], ratios * np.exp(-down))
        most = np.where(none, high[i] / low[j], ratios * np.exp(up))
    return ratios, least, most
