"""Group reports: the performance of a fitted model on each group, as a table."""

import html
import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_scalar

from groupdro.data.given import GivenRows, read_given
from groupdro.data.grouping import MERGED, Grouping
from groupdro.evaluation.headroom import Headroom, headroom
from groupdro.evaluation.inference import (
    Intervals,
    effective_sizes,
    has_few,
    resample,
    simultaneous_intervals,
)
from groupdro.evaluation.metrics import call_inner, check_model, final_estimator
from groupdro.evaluation.summaries import measure, summarise
from groupdro.utils.text import group_name, percent, records, table_html, table_text
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["GroupReport", "check_resampling", "group_report"]


_LEAST_RESAMPLED = 10  # rows; with fewer, the bootstrap is far too optimistic
_NOT_JUDGED = "small", "few errors", "absent"  # notes on groups that cannot be the worst
_MOST_SHOWN = 50  # groups of a printed table


@dataclass(frozen=True, eq=False)
class GroupReport:
    """One row per group, worst first.

    Prints as text, shows as HTML in notebooks, and converts to a DataFrame. Of more than 50 groups, the printed table
    has the 50 worst of those with enough rows to judge; the data frames have all.

    Attributes
    ----------
    columns : dict of str to list
        The table. `group`, `n`; `effective_n`, the effective number of independent rows, if weights or clusters were
        given; `risk`, the average loss, with a confidence interval from `risk_low` to `risk_high` (simultaneous over
        all judged groups; others have none); `regret`, the excess risk, if the model has `group_minima_`; `accuracy` or
        `rmse`; for classifiers with probabilities `overconfidence`, the mean probability of the predicted class minus
        the accuracy, and `ece`, the expected calibration error over ten bins; for regressors `bias`, the mean residual;
        `weight`, the group's weight q in the certificate; `note`: "small" (too few rows to judge), "few errors" (of a
        classifier: too few wrong predictions to judge a loss other than zero-one by), "unseen" (not a group of the
        fit), "merged" (merged with other small groups in the fit), "absent" (a group of the fit without rows here).
    overall : dict of str to float
        The same quantities over all rows.
    confidence : float
        Level of the confidence intervals.
    worst_risk : tuple of float
        The largest risk of a group with an interval, and a confidence interval for it that accounts for the selection
        of the worst group.
    risk_at_most : float
        With the stated confidence, no judged group's risk is larger; NaN if no group could be judged.
    resampled : bool
        Whether there are intervals.
    title : str
        The line above the table.
    in_sample : bool or None
        True if these are exactly the training data, in the same order; the risks are then optimistic for new data.
        False if they are not, although some rows may be. None if the model cannot know.
    headroom : Headroom or None
        Upper bound on what the worst group could gain from a linear model, if requested.
    """

    columns: dict[str, list[Any]]
    overall: dict[str, Any]
    confidence: float
    worst_risk: tuple[float, float, float] = (np.nan, np.nan, np.nan)
    risk_at_most: float = np.nan
    resampled: bool = False
    title: str = ""
    in_sample: bool | None = None
    headroom: Headroom | None = None

    @property
    def worst_group(self) -> Any:
        """The group with the largest risk among those that can be judged; None if there are none."""
        return self.columns["group"][self.judged.index(True)] if True in self.judged else None

    @property
    def worst_row(self) -> dict[str, Any]:
        """The row of the worst group; if no group has enough rows to judge, of that with the largest risk."""
        place = self.judged.index(True) if True in self.judged else 0
        return {key: values[place] for key, values in self.columns.items()}

    @property
    def judged(self) -> list[bool]:
        """Whether each group has enough rows to be judged."""
        return [not any(word in note for word in _NOT_JUDGED) for note in self.columns["note"]]

    @property
    def by_group(self) -> dict[Any, dict[str, Any]]:
        """The rows of the table, by group."""
        return {row["group"]: row for row in records(self.columns)}

    @property
    def message(self) -> str:
        """The conclusion about all groups, as a sentence; empty if nothing was resampled."""
        if not self.resampled:
            return ""
        if self.in_sample:
            return "These are the training data: expect larger risks on new data."
        there = [k for k, n in enumerate(self.columns["n"]) if n]
        left = sum(np.isnan(self.columns["risk_low"][k]) for k in there)
        if left == len(there):
            return "No group can be judged: all have too few rows, too few errors, or equal losses."
        whose = "the risk does not exceed" if len(there) == 1 else "no judged group's risk exceeds"
        text = f"With {percent(self.confidence)} confidence {whose} {self.risk_at_most:.4g}."
        if left:
            groups = "1 group" if left == 1 else f"{left} groups"
            text += f" {groups} cannot be judged: too few rows, too few errors, or equal losses."
        return text

    @property
    def _shown(self) -> dict[str, list[Any]]:
        """The rows of the table that are printed."""
        n_groups = len(self.columns["group"])
        if n_groups <= _MOST_SHOWN:
            return dict(self.columns)
        first = [k for k, judged in enumerate(self.judged) if judged][:_MOST_SHOWN]
        kept = first or range(_MOST_SHOWN)
        return {key: [values[k] for k in kept] for key, values in self.columns.items()}

    @property
    def _below(self) -> list[str]:
        """The sentences below the table."""
        n_groups, n_shown = len(self.columns["group"]), len(self._shown["group"])
        shown = ""
        if n_shown < n_groups:
            which = (
                "the worst with enough rows to judge" if any(self.judged) else "the worst, none of which can be judged"
            )
            shown = f"{n_shown} of {n_groups} groups are shown, {which}; to_pandas() and to_polars() return all."
        headroom = "" if self.headroom is None else self.headroom.message
        return [text for text in (shown, self.message, headroom) if text]

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            One row per group. Groups of several columns are text here, and tuples in `columns`.
        """
        import pandas as pd

        return pd.DataFrame(self._with_text_groups())

    def to_polars(self) -> Any:
        """Return the table as a polars DataFrame.

        Returns
        -------
        polars.DataFrame
            One row per group. Groups of several columns are text here, and tuples in `columns`.
        """
        import polars as pl

        return pl.DataFrame(self._with_text_groups(), strict=False)

    def _with_text_groups(self) -> dict[str, list[Any]]:
        """Convert groups of mixed types, or of several columns, to text: data frames have one type per column."""
        groups = self.columns["group"]
        kinds = {type(group) for group in groups}
        if len(kinds) == 1 and not kinds & {tuple}:
            return dict(self.columns)
        return {**self.columns, "group": [group_name(group) for group in groups]}

    def __repr__(self) -> str:
        text = table_text(self.title, self._shown, {"group": "(all rows)", **self.overall})
        return "\n".join([text, *self._below])

    def _repr_html_(self) -> str:
        table = table_html(self.title, self._shown, {"group": "(all rows)", **self.overall})
        return "".join([table, *(f"<p>{html.escape(text)}</p>" for text in self._below)])


def group_report(
    model: Any,
    X: Any,
    y: Any,
    groups: Any = None,
    *,
    sample_weight: Any = None,
    cluster: Any = None,
    offset: Any = None,
    loss: Any = "auto",
    n_bootstrap: int = 1000,
    confidence: float = 0.95,
    min_rows: int = 30,
    random_state: int = 0,
    linear: Any = None,
) -> GroupReport:
    """Report the performance of a fitted model on each group.

    Parameters
    ----------
    model : fitted estimator
        An estimator of this package, a pipeline or search around one, or any other classifier or regressor.
    X, y : array-like
        Rows and labels, preferably held-out data. If they are the training data, the report says so.
    groups : array-like, Series, DataFrame, boolean or sparse matrix, optional
        Groups of the rows, as in `fit`. Missing labels get a row of their own. The default is the columns of a
        `GroupBy` model; for other models, all rows form one group.
    sample_weight : array-like of shape (n_rows,), optional
        Weights of the rows, such as survey weights. By default all rows have equal weight, whatever their weights in
        the fit.
    cluster : array-like of shape (n_rows,), optional
        Labels of patients, users or sites whose rows are dependent. Intervals then resample whole clusters; without it
        they would be too narrow.
    offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
        Offsets of the rows, if the model was fitted with them.
    loss : str or callable
        Loss behind `risk`, as in `groupdro.evaluation.metrics.row_losses`.
    n_bootstrap : int
        Number of bootstrap resamples for the confidence intervals; 0 for no intervals.
    confidence : float
        Level of the confidence intervals.
    min_rows : int
        Effective number of rows below which a group is marked as small and not judged. Risks of smaller groups are
        mostly noise.
    random_state : int
        Seed for the resamples.
    linear : bool, Pipeline or transformer, optional
        Linear models with which to compare the worst group, by `headroom`: True for the default columns of `headroom`,
        or a transformer or pipeline that computes the columns. Groups of fewer than `min_rows` rows are left out.

    Returns
    -------
    GroupReport
        The table, worst group first.

    Notes
    -----
    Confidence intervals use the bootstrap of the largest studentised deviation. Rows, or clusters of rows, are
    resampled with Poisson weights. The distribution of the largest deviation over the judged groups, each in units of
    its standard error, determines how wide intervals must be to hold for all groups simultaneously. If all losses are 0
    or 1, Clopper-Pearson intervals with Bonferroni correction are used instead. For other losses of a classifier, a
    group with fewer than three effective errors is not judged (note "few errors").
    """
    check_resampling(n_bootstrap, confidence, min_rows, random_state)
    check_model(model, "model")
    groups = call_inner(model, X, "_own_groups") if groups is None else groups
    classes = is_classifier(model)
    whole = read_given(
        X, y, groups, sample_weight=sample_weight, cluster=cluster, offset=offset, numeric=not classes, missing="own"
    )
    given = whole.with_weight()
    grouping, weights, clusters = given.groups, given.weights, given.clusters
    measured = measure(model, given.X, given.y, loss, given.offset)
    sizes = effective_sizes(grouping, clusters, weights)
    large = sizes >= min_rows - 1e-9
    few_errors = np.zeros_like(large)
    zero_one = classes and np.array_equal(measured["risk"], 1.0 - measured["right"])
    if classes and not zero_one:
        few_errors = large & has_few(measured["right"] == 0, grouping, clusters, weights)
    intervals = _intervals(
        measured["risk"], grouping, large & ~few_errors & (sizes >= _LEAST_RESAMPLED), n_bootstrap, confidence,
        random_state, clusters, weights, zero_one=zero_one,
    )  # fmt: skip
    summaries = summarise(measured, weights, grouping)
    inner = final_estimator(model)
    known = {name: k for k, name in enumerate(getattr(inner, "groups_", np.array([])).tolist())}
    if groups is None or len(known) < 2:
        known = {}  # fitted without groups, so no group counts as unseen
    minima = getattr(inner, "group_minima_", None) if isinstance(loss, str) and loss == "auto" else None
    merged = set(getattr(inner, "merged_groups_", ()))

    rows, counts = [], grouping.sizes
    for i, name in enumerate(grouping.names):
        k = known.get(name)
        row: dict[str, Any] = {"group": name, "n": int(counts[i])}
        if weights is not None or clusters is not None:
            row["effective_n"] = float(sizes[i])
        row["risk"] = float(summaries["risk"][i])
        ends = (np.nan if np.isnan(end[i]) else float(end[i]) for end in (intervals.low, intervals.high))
        row |= dict(zip(("risk_low", "risk_high"), ends, strict=True))
        if minima is not None:
            row["regret"] = np.nan if k is None else row["risk"] - float(minima[k])
        row |= {key: float(values[i]) for key, values in summaries.items() if key != "risk"}
        row["weight"] = np.nan if k is None else float(inner.group_weights_[k])
        notes = [note for note, applies in (("small", not large[i]), ("few errors", few_errors[i])) if applies]
        if known and k is None:
            notes.append("merged" if name in merged else "unseen")
        row["note"] = ", ".join(notes)
        rows.append(row)
    rows.sort(key=lambda row: -row["risk"])
    here = {*grouping.names, MERGED}
    for name in [name for name in known if name not in here]:
        weight = float(inner.group_weights_[known[name]])
        rows.append({**dict.fromkeys(rows[0], np.nan), "group": name, "n": 0, "weight": weight, "note": "absent"})

    n_rows = len(measured["risk"])
    everything = Grouping(np.array([0, n_rows]), np.arange(n_rows), ("all",), overlapping=False)
    overall = {"n": n_rows, **{key: float(v[0]) for key, v in summarise(measured, weights, everything).items()}}
    in_sample = call_inner(model, X, "_are_training_rows", whole.y)
    rows_named = f"{len(whole.y)} {'training rows (in-sample)' if in_sample else 'rows'}"
    return GroupReport(
        columns={key: [row[key] for row in rows] for key in rows[0]},
        overall=overall,
        confidence=confidence,
        worst_risk=_worst(intervals, summaries["risk"]),
        risk_at_most=intervals.most,
        resampled=n_bootstrap > 0,
        title=f"{type(inner if hasattr(inner, 'groups_') else model).__name__} on {rows_named}",
        in_sample=in_sample,
        headroom=_headroom(model, given, linear, min_rows),
    )


def _headroom(model: Any, given: GivenRows, linear: Any, min_rows: int) -> Headroom | None:
    if linear is None or linear is False:
        return None
    return headroom(
        model,
        given.X,
        given.y,
        given.groups,
        linear=None if linear is True else linear,
        sample_weight=given.weights,
        offset=given.offset,
        min_rows=max(1, min_rows) if (given.groups.sizes >= min_rows).any() else 1,
    )


def check_resampling(n_bootstrap: int, confidence: float, min_rows: int, random_state: int, *, least: int = 0) -> None:
    """Check the parameters of the bootstrap; `least` is the smallest number of resamples."""
    check_scalar(confidence, "confidence", Real)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}.")
    for name, value in {"min_rows": min_rows, "random_state": random_state}.items():
        check_scalar(value, name, Integral, min_val=0)
    check_scalar(n_bootstrap, "n_bootstrap", Integral, min_val=least)
    if n_bootstrap and n_bootstrap * (1.0 - confidence) < 1.0 - 1e-9:
        raise ValueError(
            f"n_bootstrap={n_bootstrap} is too small for a confidence of {confidence!r}: use at least "
            f"{math.ceil(1.0 / (1.0 - confidence) - 1e-6)}."
        )


def _intervals(
    losses: Floats, grouping: Grouping, chosen: Mask, n_bootstrap: int, confidence: float, seed: int,
    clusters: Indices | None, weights: Floats | None, *, zero_one: bool,
) -> Intervals:  # fmt: skip
    """Return simultaneous intervals for the chosen groups, which alone are resampled; NaN for the others."""
    estimates, low, high = (np.full(len(chosen), np.nan) for _ in range(3))
    if not n_bootstrap or not chosen.any():
        return Intervals(estimates, low, high, np.nan, np.nan, confidence)
    found = resample(
        losses[:, None],
        grouping.only(np.flatnonzero(chosen)),
        n_bootstrap=0 if zero_one else n_bootstrap,  # their intervals are exact
        seed=seed,
        clusters=clusters,
        weights=weights,
    )
    if zero_one:
        found = replace(found, binary=np.ones(1, dtype=bool))  # also where no error was observed
    own = simultaneous_intervals(found, confidence)
    estimates[chosen], low[chosen], high[chosen] = own.estimates, own.low, own.high
    return replace(own, estimates=estimates, low=low, high=high)


def _worst(intervals: Intervals, risks: Floats) -> tuple[float, float, float]:
    """Return the largest risk of the groups with an interval, and a confidence interval for it."""
    known = ~np.isnan(intervals.low)
    if not known.any():
        return np.nan, np.nan, np.nan
    estimate, low, high = (float(each[known].max()) for each in (risks, intervals.low, intervals.high))
    return estimate, low, high
