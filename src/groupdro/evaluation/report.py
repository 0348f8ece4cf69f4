"""Group reports: the performance of a fitted model on each group, as a table."""

import html
import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_scalar

from groupdro.data.given import GivenRows, RowSource, read_given
from groupdro.data.grouping import MERGED, Grouping
from groupdro.evaluation.by_group import MetricByGroup, metric_by_group
from groupdro.evaluation.calibration import calibration
from groupdro.evaluation.headroom import Headroom, headroom
from groupdro.evaluation.inference import effective_sizes
from groupdro.evaluation.metrics import METRICS, Outputs, read_metrics
from groupdro.evaluation.models import call_inner, check_model, final_estimator, own_groups
from groupdro.utils.arguments import printable
from groupdro.utils.optional import import_extra
from groupdro.utils.text import group_name, percent, records, table_html, table_text
from groupdro.utils.types import Floats, Indices

__all__ = ["GroupReport", "check_resampling", "group_report"]


_LEAST_RESAMPLED = 10  # rows; with fewer, the bootstrap is far too optimistic
_MOST_SHOWN = 50  # groups of a printed table


@dataclass(frozen=True, eq=False)
class GroupReport:
    """One row per group, worst first.

    Prints as text and shows as HTML in notebooks: a sentence about the worst group, and the metrics of each group.
    `summary(details=True)` adds intervals and everything else; `to_frame` converts the whole table. Of more than 50
    groups, the printed table has the 50 worst of those with enough rows to judge.

    Attributes
    ----------
    columns : dict of str to list
        The table. `group`, `n`; `effective_n`, the effective number of independent rows, if weights or clusters were
        given; each metric, with a confidence interval from `<metric>_low` to `<metric>_high` (simultaneous over all
        judged groups; others have none); `risk`, the average loss, likewise; `regret`, the excess risk, if the model
        has `group_minima_`; for classifiers with probabilities `overconfidence`, the mean probability of the predicted
        class minus the accuracy, and `ece`, the expected calibration error over ten bins; for regressors `bias`, the
        mean residual; `weight`, the group's weight q in the certificate; and `note`, why the group is not judged by the
        first metric: "small" (too few rows), "few rows" (too few of the kind that the metric requires, such as positive
        ones), "few errors" (too few rows carry the loss), "equal values" or "undefined"; and "unseen" (not a group of
        the fit), "merged" (merged with other small groups in the fit), "absent" (a group of the fit without rows here).
    overall : dict of str to float
        The same quantities over all rows.
    metrics : tuple of str
        The metrics. The first one decides which group is the worst.
    larger_is_better : bool
        Whether that is so for the first metric.
    judged : list of bool
        Whether each group has enough rows to be judged by the first metric.
    confidence : float
        Level of the confidence intervals.
    worst_value : tuple of float
        The first metric of the worst judged group, and a confidence interval that accounts for the selection of that
        group.
    limit : float
        With the stated confidence, no judged group is worse than this; NaN if no group could be judged.
    resampled : bool
        Whether there are intervals.
    title : str
        The line above the table.
    in_sample : bool or None
        True if these are exactly the training data, in the same order; the results are then optimistic for new data.
        False if they are not, although some rows may be. None if the model cannot know.
    headroom : Headroom or None
        Upper bound on what the worst group could gain from a linear model, if requested.
    """

    columns: dict[str, list[Any]]
    overall: dict[str, Any]
    metrics: tuple[str, ...]
    larger_is_better: bool
    judged: list[bool]
    confidence: float
    worst_value: tuple[float, float, float] = (np.nan, np.nan, np.nan)
    limit: float = np.nan
    resampled: bool = False
    title: str = ""
    in_sample: bool | None = None
    headroom: Headroom | None = None

    @property
    def worst_group(self) -> Any:
        """The worst group by the first metric among those that can be judged; None if there are none."""
        return self.columns["group"][self.judged.index(True)] if True in self.judged else None

    @property
    def worst_row(self) -> dict[str, Any]:
        """The row of the worst group; if no group has enough rows to judge, the first row of the table."""
        place = self.judged.index(True) if True in self.judged else 0
        return {key: values[place] for key, values in self.columns.items()}

    @property
    def by_group(self) -> dict[Any, dict[str, Any]]:
        """The rows of the table, by group."""
        return {row["group"]: row for row in records(self.columns)}

    @property
    def message(self) -> str:
        """The worst group, and what holds for all of them, as sentences."""
        there = [k for k, n in enumerate(self.columns["n"]) if n]
        left = sum(not self.judged[k] for k in there)
        if left == len(there):
            return "No group can be judged: all have too few rows, or too few errors."
        metric, worst = self.metrics[0], self.worst_row
        text = f"Worst group: {group_name(worst['group'])}, with {_words(metric)} {worst[metric]:.3g}"
        text += f" ({self.overall[metric]:.3g} over all rows)." if len(there) > 1 else "."
        if self.in_sample:
            text += " These are the training data: expect worse results on new data."
        elif self.resampled:
            side = "at least" if self.larger_is_better else "at most"
            where = "" if len(there) == 1 else " in every group"
            where += " with enough rows" if left else ""
            text += f" With {percent(self.confidence)} confidence it is {side} {self.limit:.3g}{where}."
        if left:
            groups = "1 group has" if left == 1 else f"{left} groups have"
            text += f" {groups} too few rows or errors to say; see the column note."
        return text

    def summary(self, *, details: bool = False) -> str:
        """Return the report as text.

        Parameters
        ----------
        details : bool
            Whether to add the intervals of all metrics, calibration, group weights and the headroom.

        Returns
        -------
        str
            Several lines.
        """
        text = f"{printable(self.message)}\n{table_text(self.title, *self._table(self._main))}"
        if self._omitted:
            text += f"\n{self._omitted}"
        if not details:
            return text
        more = self._table([key for key in self.columns if key not in self._main[1:]])
        headroom = "" if self.headroom is None else f"\n{printable(self.headroom.message)}"
        return f"{text}\n\n{table_text('Details', *more)}{headroom}"

    @property
    def main_columns(self) -> dict[str, list[Any]]:
        """The columns of the short table: rows, metrics and notes."""
        return {name: self.columns[name] for name in self._main}

    @property
    def _main(self) -> list[str]:
        first = [name for name in ("group", "n", "effective_n", *self.metrics) if name in self.columns]
        return [*first, *(["note"] if any(self.columns["note"]) else [])]

    @property
    def _kept(self) -> list[int]:
        """The rows that are printed."""
        n_groups = len(self.columns["group"])
        if n_groups <= _MOST_SHOWN:
            return list(range(n_groups))
        return [k for k, judged in enumerate(self.judged) if judged][:_MOST_SHOWN] or list(range(_MOST_SHOWN))

    def _table(self, names: list[str]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """Return some columns of the printed rows, and the row of all rows."""
        columns = {name: [self.columns[name][k] for k in self._kept] for name in names}
        return columns, {"group": "(all rows)", **self.overall}

    @property
    def _omitted(self) -> str:
        n_groups = len(self.columns["group"])
        if len(self._kept) == n_groups:
            return ""
        which = "the worst with enough rows to judge" if any(self.judged) else "the worst, none of which can be judged"
        return f"{len(self._kept)} of {n_groups} groups are shown, {which}; to_frame() returns all."

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            One row per group. Groups of several columns are text here, and tuples in `columns`.
        """
        pd = import_extra("pandas", "plot")

        groups = self.columns["group"]
        kinds = {type(group) for group in groups}
        if len(kinds) > 1 or tuple in kinds:  # a column of a frame has one type
            groups = [group_name(group) for group in groups]
        return pd.DataFrame({**self.columns, "group": groups})

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        headroom = "" if self.headroom is None else f"<p>{html.escape(self.headroom.message)}</p>"
        omitted = f"<p>{html.escape(self._omitted)}</p>" if self._omitted else ""
        more = self._table([key for key in self.columns if key not in self._main[1:]])
        return (
            f"<p>{html.escape(self.message)}</p>{table_html(self.title, *self._table(self._main))}{omitted}"
            f"<details><summary>Intervals and details</summary>{table_html('', *more)}{headroom}</details>"
        )


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def group_report(
    model: Any,
    X: Any,
    y: Any = None,
    groups: Any = None,
    *,
    metrics: Any = None,
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
    X, y : array-like, or GroupedStore and None
        Rows and labels, preferably held-out data. If they are the training data in the same order, the report says so.
        A store has its own labels, groups, weights and offsets, and its rows are read in parts.
    groups : array-like, Series, DataFrame, boolean or sparse matrix, optional
        Groups of the rows, as in `fit`. Missing labels get a row of their own. The default is the columns of a
        `GroupBy` model; for other models, all rows form one group.
    metrics : str, callable, or sequence or dict of these, optional
        What to report for each group; the first one decides which group is the worst. Classification: "accuracy",
        "balanced_accuracy", "recall", "precision", "f1", "roc_auc", "average_precision", "brier", "log_loss", "d2", and
        the rates "selection_rate", "false_positive_rate" and "false_negative_rate", where the second class is the
        positive one. Regression: "rmse", "mae", "median_error", "d2" (of the deviance, for losses of counts and
        amounts), "actual_over_expected" and "share_below" (of targets below the prediction, for quantiles). Also
        "risk", the average loss; the name of any scorer of scikit-learn; a scorer made by ``make_scorer``; and
        functions ``f(y_true, y_pred, sample_weight=...)`` whose larger values are better. A dict gives them names. The
        default is the risk, followed by the accuracy or the RMSE.
    sample_weight : array-like of shape (n_rows,), optional
        Weights of the rows, such as survey weights. By default all rows have equal weight, whatever their weights in
        the fit.
    cluster : array-like of shape (n_rows,), optional
        Labels of patients, users or sites whose rows are dependent. Intervals then resample whole clusters; without it
        they would be too narrow.
    offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
        Offsets of the rows, if the model was fitted with them.
    loss : {"auto", "log", "zero_one", "squared", "absolute"} or callable
        Loss behind `risk`. "auto" is the model's own loss for an estimator of this package; otherwise the log loss for
        classifiers with probabilities, zero-one for other classifiers, and half the squared residual for regressors. A
        callable takes labels and predictions, and returns a loss per row.
    n_bootstrap : int
        Number of bootstrap resamples for the confidence intervals; 0 for no intervals.
    confidence : float
        Level of the confidence intervals.
    min_rows : int
        Effective number of rows below which a group is marked as small and not judged. Metrics of smaller groups are
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
    its standard error, determines how wide intervals must be to hold for all groups simultaneously. Proportions, such
    as recall, have Clopper-Pearson intervals with Bonferroni correction instead, and medians have quantiles at the ends
    of such intervals. Areas under curves are resampled as log-odds, and the RMSE as a logarithm. Functions are called
    once per resample and group.

    A group is not judged by an average loss if too few rows carry it: fewer than ten effective rows of a regression, or
    five of a classification, in proportion to how concentrated the losses of all groups are; or, in classification, if
    the model is wrong on fewer than three effective rows.
    """
    check_resampling(n_bootstrap, confidence, min_rows, random_state)
    check_model(model, "model")
    stored = isinstance(X, RowSource)
    groups = own_groups(model, X) if groups is None and not stored else groups
    classes = is_classifier(model)
    whole = read_given(
        X, y, groups, sample_weight=sample_weight, cluster=cluster, offset=offset, numeric=not classes, missing="own"
    )
    given = whole.with_weight()
    wanted = read_metrics(("risk", "accuracy" if classes else "rmse") if metrics is None else metrics, given.weights)
    own = (*wanted, *(() if any(metric.name == "risk" for metric in wanted) else (METRICS["risk"],)))
    outputs = Outputs(model, given.X, given.y, loss=loss, offset=given.offset)
    sizes = effective_sizes(given.groups, given.clusters, given.weights)
    large = sizes >= min_rows - 1e-9
    found = [
        metric_by_group(
            metric,
            outputs,
            given,
            large & (sizes >= _LEAST_RESAMPLED),
            n_bootstrap=n_bootstrap,
            confidence=confidence,
            seed=random_state,
        )
        for metric in own
    ]
    table = _Table(
        final_estimator(model), given, fitted_in_groups=groups is not None or stored, own_loss=_is_auto(loss)
    )
    order = _worst_first(found[0])
    columns = table.columns(found, calibration(outputs, given.weights, given.groups), sizes, order)
    everything = Grouping.of_all(len(given.y))
    overall = {"n": len(given.y), **{each.metric.name: each.overall for each in found}}
    overall |= {key: float(v[0]) for key, v in calibration(outputs, given.weights, everything).items()}
    in_sample = call_inner(model, whole.X, "_are_training_rows", whole.y)
    first = found[0]
    return GroupReport(
        columns=columns,
        overall=overall,
        metrics=tuple(metric.name for metric in wanted),
        larger_is_better=first.metric.larger_is_better,
        judged=[*first.judged[order].tolist(), *[False] * (len(columns["group"]) - len(order))],
        confidence=confidence,
        worst_value=_worst(first),
        limit=first.intervals.none_below if first.metric.larger_is_better else first.intervals.most,
        resampled=n_bootstrap > 0,
        title=f"{type(table.inner if table.known else model).__name__} on {len(whole.y)} rows",
        in_sample=in_sample,
        headroom=_headroom(model, given, linear, min_rows),
    )


def _is_auto(loss: Any) -> bool:
    return isinstance(loss, str) and loss == "auto"


def _worst_first(found: MetricByGroup) -> Indices:
    """Return the groups in the order of the table: by descending loss, undefined ones last."""
    losses = np.where(np.isnan(found.losses), -np.inf, found.losses)
    return np.argsort(-losses, kind="stable")


class _Table:
    """The table of a report, with what the fit knows of its groups.

    Parameters
    ----------
    inner : fitted estimator
        The model inside pipelines and searches.
    given : GivenRows
        The rows.
    fitted_in_groups : bool
        Whether the rows have groups.
    own_loss : bool
        Whether risks are averages of the loss of the fit.
    """

    def __init__(self, inner: Any, given: GivenRows, *, fitted_in_groups: bool, own_loss: bool):
        self.inner = inner
        self.given = given
        known = {name: k for k, name in enumerate(getattr(inner, "groups_", np.array([])).tolist())}
        # A fit without groups knows none that others could be compared with.
        self.known = known if fitted_in_groups and len(known) > 1 else {}
        self.minima = getattr(inner, "group_minima_", None) if own_loss else None

    def columns(
        self, found: list[MetricByGroup], more: dict[str, Floats], sizes: Floats, order: Indices
    ) -> dict[str, list[Any]]:
        """Return the columns of the table, the groups in the given order."""
        names = self.given.groups.names
        place = [self.known.get(name) for name in names]
        columns: dict[str, Any] = {"group": list(names), "n": self.given.groups.sizes.tolist()}
        if self.given.weights is not None or self.given.clusters is not None:
            columns["effective_n"] = sizes.tolist()
        for each in found:
            name = each.metric.name
            own = {"": each.values, "_low": each.intervals.low, "_high": each.intervals.high}
            columns |= {f"{name}{end}": values.tolist() for end, values in own.items()}
        if self.minima is not None:
            risk = columns["risk"]
            columns["regret"] = [np.nan if k is None else risk[i] - float(self.minima[k]) for i, k in enumerate(place)]
        columns |= {key: values.tolist() for key, values in more.items()}
        columns["weight"] = [np.nan if k is None else float(self.inner.group_weights_[k]) for k in place]
        columns["note"] = [self._note(name, found[0].notes[i]) for i, name in enumerate(names)]
        columns = {key: [values[i] for i in order] for key, values in columns.items()}
        for name in [name for name in self.known if name not in {*names, MERGED}]:
            absent = {"group": name, "n": 0, "weight": float(self.inner.group_weights_[self.known[name]])}
            absent["note"] = "absent"
            for key, values in columns.items():
                values.append(absent.get(key, np.nan))
        return columns

    def _note(self, name: Any, note: str) -> str:
        unseen = ""
        if self.known and name not in self.known:
            unseen = "merged" if name in getattr(self.inner, "merged_groups_", ()) else "unseen"
        return ", ".join(part for part in (note, unseen) if part)


def _worst(found: MetricByGroup) -> tuple[float, float, float]:
    """Return the worst value of a judged group, and a confidence interval for it."""
    known = found.judged & ~np.isnan(found.intervals.low)
    if not known.any():
        return np.nan, np.nan, np.nan
    ends = found.values, found.intervals.low, found.intervals.high
    estimate, low, high = (
        float(end[known].min() if found.metric.larger_is_better else end[known].max()) for end in ends
    )
    return estimate, low, high


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
