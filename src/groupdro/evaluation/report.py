"""Group reports: the performance of a fitted model on each group, as a table."""

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from groupdro.data.given import GivenRows, RowSource, read_given
from groupdro.data.grouping import ALL_ROWS, MERGED, Grouping
from groupdro.evaluation.calibration import calibration
from groupdro.evaluation.differences import GroupDifferences, differences_between
from groupdro.evaluation.headroom import Headroom, headroom
from groupdro.evaluation.heterogeneity import Heterogeneity, heterogeneity, to_scale
from groupdro.evaluation.judgement import Judgement, MetricByGroup, Resampling
from groupdro.evaluation.metrics import METRICS, Meaning, Metric, read_metrics
from groupdro.evaluation.models import call_inner, check_model, final_estimator, name_of, own_groups
from groupdro.evaluation.outputs import Outputs
from groupdro.evaluation.page import page, report_sections, write_page
from groupdro.evaluation.predictions import Predictions, answered
from groupdro.losses import Quantile
from groupdro.utils.arguments import printable, short_repr
from groupdro.utils.optional import import_extra
from groupdro.utils.progress import shows_progress
from groupdro.utils.text import group_name, metric_name, percent, records, table_html, table_text
from groupdro.utils.types import Array, Indices

__all__ = ["Fit", "GroupReport", "group_report", "report_on", "with_risk"]


_MOST_SHOWN = 50  # groups of a printed table
_EXACT = 1e-9  # relative residual up to which a prediction is right
_LEAST_SUSPICIOUS, _HARDLY = 100, 0.01  # rows, and share of errors, that look like a leak


@dataclass(frozen=True, eq=False)
class GroupReport:
    """One row per group: those that can be judged first, worst first, then the others.

    Prints as text and shows as HTML in notebooks: a sentence about the worst group, and the metrics of each group.
    `summary(details=True)` adds intervals and everything else; `to_frame` converts the whole table. Of more than 50
    groups, the printed table has the 50 worst of those with enough rows to judge.

    Attributes
    ----------
    columns : dict of str to list
        The table. `group`, `n`; `effective_n`, the effective number of independent rows, if weights or clusters were
        given; each metric, with a confidence interval from `<metric>_low` to `<metric>_high` (simultaneous over all
        judged groups; others have none), and `n_<metric>`, the number of rows that it counts, if not all of them: the
        positive ones for recall, the negative ones for the false positive rate, those of the rarest class for ROC AUC;
        `actual` and `expected`, the weighted sums of targets and predictions, for "actual_over_expected"; `risk`, the
        average loss, likewise; `regret`, the excess risk, if the model has `group_minima_`; for classifiers with
        probabilities `overconfidence`, the mean probability of the predicted class minus the accuracy, and `ece`, the
        expected calibration error over ten bins; for regressors `bias`, the mean residual; `weight`, the group's weight
        q in the certificate, if the fit had groups; and `note`, why the group is not judged by the first metric:
        "small" (too few rows), "few rows" (too few of the kind that the metric requires, such as positive ones), "few
        errors" (too few rows carry the loss), "few beyond" (too few rows are expected beyond a quantile), "few events"
        (probabilities promise too few of them), "equal values" or "undefined"; and "unseen" (not a group of the fit),
        "merged" (merged with other small groups in the fit), "absent" (a group of the fit without rows here).
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
    remarks : list of str
        What to check before you trust the report, as sentences, such as labels that the model does not know.
    group_columns : tuple of str
        Names of the columns whose values are the groups, if they have any.
    meanings : dict of str to Meaning
        For each metric whether larger or smaller values are better, and the value that it should have, if any.
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
    remarks: list[str] = field(default_factory=list)
    group_columns: tuple[str, ...] = ()
    meanings: dict[str, Meaning] = field(default_factory=dict, repr=False)
    _errors: dict[str, list[float]] = field(default_factory=dict)
    _judged_by: tuple[Judgement, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what is saved: the numbers, without the rows and predictions behind them."""
        return {**self.__dict__, "_judged_by": None}

    def differences(self, metric: str | None = None, *, against: Any = None, ratio: bool = False) -> GroupDifferences:
        """Return how much a metric differs between groups, with intervals that hold for all differences at once.

        Parameters
        ----------
        metric : str, optional
            The metric. The default is the first one.
        against : object, optional
            A group with which all others are compared. By default every pair of groups is compared, so that any pair
            may be picked afterwards; a group that is named beforehand gives narrower intervals.
        ratio : bool
            Whether to return ratios, such as of selection rates, instead of differences.

        Returns
        -------
        GroupDifferences
            One row per comparison. Groups that cannot be judged are left out.

        Notes
        -----
        The intervals are from the resamples of the report: the largest studentised deviation over all differences
        determines how wide they are; those of ratios are computed for logarithms. Intervals of proportions are combined
        from the Clopper-Pearson intervals of both groups, by the method of Zou and Donner, with Bonferroni correction.
        """
        name = self.metrics[0] if metric is None else metric
        if name not in self.meanings:
            raise ValueError(f"metric must be one of {sorted(self.meanings)}, got {short_repr(metric)}.")
        if self._judged_by is None:
            raise ValueError("a report that was saved has no resamples left: compute it again.")
        if not self.resampled:
            raise ValueError("differences need resamples: n_bootstrap must not be 0.")
        judgement, model = self._judged_by
        found = next(one for one in judgement.metrics if one.name == name)
        return differences_between(judgement, model, found, self.columns["group"], against=against, ratio=ratio)

    def heterogeneity(self, metric: str | None = None) -> Heterogeneity:
        """Return how much the true values of the groups differ beyond chance, and what to expect of a new group.

        Parameters
        ----------
        metric : str, optional
            The metric. The default is the first one.

        Returns
        -------
        Heterogeneity
            The spread between groups with its interval, and a prediction interval for the true value of a group that
            is not among these, such as a new hospital. It assumes that groups do not overlap.
        """
        name = self.metrics[0] if metric is None else metric
        if name not in self._errors:
            raise ValueError(f"metric must be one of {sorted(self._errors)}, got {short_repr(metric)}.")
        values, errors = (np.array(each, dtype=np.float64) for each in (self.columns[name], self._errors[name]))
        scale = self.meanings[name].scale
        there = np.array(self.columns["n"]) > 0
        estimates, spread = to_scale(values[there], errors[there], scale)
        return heterogeneity(estimates, spread, scale=scale, confidence=self.confidence)

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
            return " ".join([f"No group can be judged: {self._why_none}.", *self._advice])
        metric, worst = self.metrics[0], self.worst_row
        first = "Worst group" if len(there) - left != 1 or not left else "The only group that can be judged"
        text = f"{first}: {group_name(worst['group'])}, with {metric_name(metric)} {worst[metric]:.3g}"
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
        return " ".join([text, *self._advice])

    @property
    def _why_none(self) -> str:
        """Why no group can be judged, if it is so."""
        notes = [note for note, n in zip(self.columns["note"], self.columns["n"], strict=True) if n]
        if all("few beyond" in note for note in notes):
            return "in all groups too few rows are expected beyond the quantile"
        name = metric_name(self.metrics[0])
        if all("equal values" in note for note in notes):
            return f"within each of them, the {name} of all rows is equal, which does not show how it varies"
        if all("undefined" in note for note in notes):
            return f"the {name} is undefined in all of them"
        return "all have too few rows, or too few errors"

    @property
    def _advice(self) -> list[str]:
        """The remarks, and what to do about groups with too few rows beyond a quantile."""
        if not any("few beyond" in note for note in self.columns["note"]):
            return self.remarks
        how = "" if "share_below" in self.metrics else ' (metrics=["risk", "share_below"])'
        return [
            f"Where too few rows are expected beyond the quantile to judge the loss, look at the share below it{how}: "
            "its intervals are exact.",
            *self.remarks,
        ]

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
        # How many rows of its kind the first metric has explains the note.
        about_them = any("few rows" in note or "undefined" in note for note in self.columns["note"])
        counted = [f"n_{self.metrics[0]}"] if about_them else []
        first = [name for name in ("group", "n", "effective_n", *counted, *self.metrics) if name in self.columns]
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
        return columns, {"group": ALL_ROWS, **self.overall}

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
            One row per group. Groups of several columns are the index, with one level per column, and text in the
            column `group`.
        """
        pd = import_extra("pandas", "plot")

        groups = self.columns["group"]
        kinds = {type(group) for group in groups}
        names = groups
        if len(kinds) > 1 or tuple in kinds:  # a column of a frame has one type
            names = [group_name(group) for group in groups]
        frame = pd.DataFrame({**self.columns, "group": names})
        if tuple in kinds:
            depth = max(len(group) for group in groups if isinstance(group, tuple))
            # Small groups that the fit merged have one name.
            levels = [group if isinstance(group, tuple) else (group, *[""] * (depth - 1)) for group in groups]
            columns = self.group_columns if len(self.group_columns) == depth else None
            frame.index = pd.MultiIndex.from_tuples(levels, names=columns)
        return frame

    def plot(self, *, metric: str | None = None, ax: Any = None) -> Any:
        """Draw a metric of each group with its confidence interval.

        Parameters
        ----------
        metric : str, optional
            The metric. The default is the first one.
        ax : matplotlib Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        GroupMetricDisplay
            The display.
        """
        from groupdro.evaluation.plots import GroupMetricDisplay  # which draws reports

        return GroupMetricDisplay.from_reports(self, metric=metric, ax=ax)

    def to_html(self, path: str | Path, *, title: str = "", about: str = "") -> Path:
        """Write the report as a page that can be handed on: one file, readable on any screen and on paper.

        It begins with the sentence about the worst group, and explains its words. It has the numbers of rows behind
        each metric, a figure, the date, and no scripts.

        Parameters
        ----------
        path : str or path-like
            The file.
        title : str
            What was judged, in your words.
        about : str
            The model, the data and the purpose, in your words.

        Returns
        -------
        Path
            The file.
        """
        lines = [about, self.title, "" if self.headroom is None else self.headroom.message]
        subtitle = " ".join(f"{line.rstrip('.')}." for line in lines if line)
        return write_page(path, page(title or "Performance per group", subtitle, self.message, report_sections(self)))

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


@shows_progress
def group_report(
    model: Any,
    X: Any = None,
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
    verbose: bool = False,  # noqa: ARG001, read by the decorator
) -> GroupReport:
    """Report the performance of a fitted model, or of predictions, on each group.

    Parameters
    ----------
    model : fitted estimator or Predictions
        An estimator of this package, a pipeline or search around one, or any other classifier or regressor; or what a
        model predicted, as `Predictions`.
    X, y : array-like, or GroupedStore and None
        Rows and labels, preferably held-out data. If they are the training data in the same order, the report says so.
        A store has its own labels, groups, weights and offsets, and its rows are read in parts. `X` is None for
        predictions.
    groups : array-like, Series, DataFrame, boolean or sparse matrix, optional
        Groups of the rows, as in `fit`. Missing labels get a row of their own. The default is the columns of a
        `GroupBy` model; for other models, all rows form one group.
    metrics : str, callable, or sequence or dict of these, optional
        What to report for each group; the first one decides which group is the worst. Classification: "accuracy",
        "balanced_accuracy", "recall", "precision", "f1", "roc_auc", "average_precision", "brier", "log_loss", "d2", and
        the rates "selection_rate", "false_positive_rate" and "false_negative_rate", where the second class is the
        positive one. Regression: "rmse", "mae", "median_error", "d2" (of the deviance, for losses of counts and
        amounts; of the pinball loss for quantiles), "actual_over_expected" (undefined for groups with a negative target
        or prediction) and "share_below" (of targets below the prediction, for quantiles). Also "risk", the average
        loss; the name of any scorer of scikit-learn; a scorer made by ``make_scorer``; and functions
        ``f(y_true, y_pred, sample_weight=...)`` whose larger values are better. A dict gives them names. The default is
        the risk, followed by the accuracy or the RMSE.
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
        classifiers with probabilities, zero-one for other classifiers, the pinball loss for regressors whose parameters
        say that they predict a quantile, which the title of the report then names, and half the squared residual for
        other regressors. A callable takes labels and predictions, and returns a loss per row.
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
    verbose : bool
        Whether to print after five seconds how long it may still take.

    Returns
    -------
    GroupReport
        The table: the groups that can be judged by the first metric, worst first; then those that cannot, and at the
        end groups of the fit without rows here.

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
    the model is wrong on fewer than three effective rows. A pinball loss has most of its variance from the rows on the
    rarer side of the quantile, and n effective rows are expected to have n * min(level, 1 - level) of them: with fewer
    than 15 the group is not judged. The metric "share_below" is: its intervals are exact.
    """
    how = Resampling(n_bootstrap, confidence, min_rows, random_state).check()
    if isinstance(model, Predictions) and linear is not None and linear is not False:
        raise ValueError("linear requires a model and X: headroom is about linear models of its columns.")
    model, X = answered(model, X, y)
    check_model(model, "model")
    stored = isinstance(X, RowSource)
    groups = own_groups(model, X) if groups is None and not stored else groups
    classes = is_classifier(model)
    whole = read_given(
        X, y, groups, sample_weight=sample_weight, cluster=cluster, offset=offset, numeric=not classes, missing="own"
    )
    given = whole.with_weight()
    metrics = read_metrics(("risk", "accuracy" if classes else "rmse") if metrics is None else metrics, given.weights)
    outputs = Outputs.of_model(model, given.X, given.y, loss=loss, offset=given.offset)
    fit = Fit.of_model(model, whole, in_groups=groups is not None or stored)
    judgement = Judgement(given, {"model": outputs}, with_risk(metrics), how)
    return report_on(judgement, "model", metrics, fit, headroom=_headroom(model, given, linear, min_rows))


@dataclass(frozen=True, eq=False)
class Fit:
    """What a model's fit knows of the rows and groups that it is judged on.

    Attributes
    ----------
    title : str
        Kind of the model, and the number of rows that were given.
    weights : dict
        Weight of each group of the fit in its certificate, by name.
    minima : dict
        Smallest risk of each group of the fit, if known.
    merged : tuple
        Small groups that the fit merged.
    in_sample : bool or None
        Whether the given rows are the training rows; None if the model cannot know.
    """

    title: str
    weights: dict[Any, float] = field(default_factory=dict)
    minima: dict[Any, float] = field(default_factory=dict)
    merged: tuple[Any, ...] = ()
    in_sample: bool | None = None

    @classmethod
    def of_model(cls, model: Any, rows: GivenRows, *, in_groups: bool) -> "Fit":
        """Ask a fitted model; `in_groups` says whether the rows have groups that can be compared with its own."""
        inner = final_estimator(model)
        names = getattr(inner, "groups_", np.array([])).tolist()
        known = in_groups and len(names) > 1  # a fit without groups knows none that others could be compared with
        minima = getattr(inner, "group_minima_", None)
        return cls(
            title=f"{name_of(inner if known else model)} on {len(rows.y)} rows",
            weights=dict(zip(names, map(float, inner.group_weights_), strict=True)) if known else {},
            minima={} if minima is None or not known else dict(zip(names, map(float, minima), strict=True)),
            merged=tuple(getattr(inner, "merged_groups_", ())),
            in_sample=call_inner(model, rows.X, "_are_training_rows", rows.y),
        )


def with_risk(metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
    """Return metrics and, if it is not one of them, the risk."""
    return metrics if METRICS["risk"] in metrics else (*metrics, METRICS["risk"])


def report_on(
    judgement: Judgement, name: str, metrics: tuple[Metric, ...], fit: Fit, *, headroom: Headroom | None = None
) -> GroupReport:
    """Return the report on one of the models of a judgement.

    Parameters
    ----------
    judgement : Judgement
        The judgement of these metrics and of the risk.
    name : str
        The model in it.
    metrics : tuple of Metric
        The metrics; the first one decides which group is the worst.
    fit : Fit
        What the model's fit knows.
    headroom : Headroom, optional
        What the worst group could gain from a linear model.

    Returns
    -------
    GroupReport
        The report.
    """
    given, outputs = judgement.rows, judgement.outputs[name]
    found = [judgement.by_group(name, metric) for metric in judgement.metrics]
    first = found[0]
    order = _worst_first(first)
    more, over_all = (
        _denominators(found, outputs, given, grouping) | calibration(outputs, given.weights, grouping)
        for grouping in (given.groups, Grouping.of_all(len(given.y)))
    )
    columns = _columns(found, more, judgement, fit, order, own_loss=outputs.loss.is_own)
    overall = {"n": len(given.y), **{each.metric.name: each.overall for each in found}}
    overall |= {key: values[0].item() for key, values in over_all.items()}
    errors = {each.metric.name: [*each.errors[order].tolist()] for each in found}
    n_absent = len(columns["group"]) - len(order)
    loss = outputs.loss.loss
    level = f"; the risk is the pinball loss at {loss.level:g}" if isinstance(loss, Quantile) else ""
    return GroupReport(
        columns=columns,
        overall=overall,
        metrics=tuple(metric.name for metric in metrics),
        larger_is_better=first.metric.larger_is_better,
        judged=[*first.judged[order].tolist(), *[False] * n_absent],
        confidence=judgement.how.confidence,
        worst_value=_worst(first),
        limit=first.intervals.none_below if first.metric.larger_is_better else first.intervals.most,
        resampled=judgement.how.n_bootstrap > 0,
        title=fit.title + (level if outputs.loss.is_recognised else ""),
        in_sample=fit.in_sample,
        headroom=headroom,
        group_columns=given.groups.by,
        _judged_by=(judgement, name),
        meanings={each.metric.name: each.metric.meaning(loss) for each in found},
        _errors={name: [*own, *[np.nan] * n_absent] for name, own in errors.items()},
        remarks=_remarks(outputs, given, any_judged=bool(first.judged.any()), in_sample=bool(fit.in_sample)),
    )


def _remarks(outputs: Outputs, given: GivenRows, *, any_judged: bool, in_sample: bool) -> list[str]:
    """Return what to check before the report is trusted."""
    remarks = []
    if outputs.unknown_labels:
        remarks.append(f"The model does not know the labels {short_repr(outputs.unknown_labels)}.")
    if same := outputs.sameness(of_scores=True):
        remarks.append(f"The model predicts {same} for every row.")
    n = len(given.y)
    errors = int(
        np.sum(~outputs.right if outputs.classifies else np.abs(outputs.residual) > _EXACT * np.abs(given.y).max())
    )
    if n >= _LEAST_SUSPICIOUS and not in_sample and (not errors or (not any_judged and errors < _HARDLY * n)):
        remarks.append(
            f"The model makes {'hardly any' if errors else 'no'} errors ({errors} errors in {n} rows): look for a "
            "target leak among the columns, or rows that the model was trained on."
        )
    if outputs.classifies and _one_class_each(given):
        remarks.append(
            "Each group has rows of one class only, as if groups were made from y: metrics that need both classes, "
            "such as the ROC AUC, are undefined in every group."
        )
    return remarks


def _one_class_each(given: GivenRows) -> bool:
    """Return whether no group has rows of two classes, although there are several groups and classes."""
    codes = np.unique(given.y, return_inverse=True)[1][given.groups.members]
    first, end = given.groups.offsets[:-1], given.groups.offsets[1:]
    several = len(first) > 1 and codes.max() > 0
    # The classes of a group change nowhere between its first and its last row.
    changes = np.append(0, np.cumsum(np.diff(codes) != 0))
    return bool(several and (changes[end - 1] == changes[first]).all())


def _denominators(
    found: list[MetricByGroup], outputs: Outputs, given: GivenRows, grouping: Grouping
) -> dict[str, Array]:
    """Return the number of rows that each metric counts in each group; of several kinds, that of the rarest."""
    columns = {}
    for each in found:
        if not each.required.all():
            counts = np.min([grouping.sums(kind) for kind in each.required.T], axis=0)
            columns[f"n_{each.metric.name}"] = counts.astype(np.int64)
        if each.metric.statistic is METRICS["actual_over_expected"].statistic:
            actual, expected = outputs.y, outputs.predicted
            if outputs.classifies:
                actual, expected = outputs.positive, outputs.probabilities[:, 1]
            columns["actual"] = grouping.sums(given.row_weights * actual)
            columns["expected"] = grouping.sums(given.row_weights * expected)
    return columns


def _worst_first(found: MetricByGroup) -> Indices:
    """Return the groups in the order of the table: judged ones first, by descending loss, undefined ones last."""
    losses = np.where(np.isnan(found.losses), -np.inf, found.losses)
    return np.lexsort([-losses, ~found.judged])


def _columns(
    found: list[MetricByGroup],
    more: dict[str, Array],
    judgement: Judgement,
    fit: Fit,
    order: Indices,
    *,
    own_loss: bool,
) -> dict[str, list[Any]]:
    """Return the columns of the table, the groups in the given order, followed by groups of the fit without rows."""
    given = judgement.rows
    names = given.groups.names
    columns: dict[str, Any] = {"group": list(names), "n": given.groups.sizes.tolist()}
    if given.weights is not None or given.clusters is not None:
        columns["effective_n"] = judgement.sizes.tolist()
    for each in found:
        own = {"": each.values, "_low": each.intervals.low, "_high": each.intervals.high}
        columns |= {f"{each.metric.name}{end}": values.tolist() for end, values in own.items()}
    if own_loss and fit.minima:
        pairs = zip(columns["risk"], names, strict=True)
        columns["regret"] = [risk - fit.minima.get(name, np.nan) for risk, name in pairs]
    columns |= {key: values.tolist() for key, values in more.items()}
    if fit.weights:
        columns["weight"] = [fit.weights.get(name, np.nan) for name in names]
    columns["note"] = [_note(name, note, fit) for name, note in zip(names, found[0].notes, strict=True)]
    columns = {key: [values[i] for i in order] for key, values in columns.items()}
    for name in [name for name in fit.weights if name not in {*names, MERGED}]:
        absent = {"group": name, "n": 0, "weight": fit.weights[name], "note": "absent"}
        for key, values in columns.items():
            values.append(absent.get(key, np.nan))
    return columns


def _note(name: Any, note: str, fit: Fit) -> str:
    unseen = ""
    if fit.weights and name not in fit.weights:
        unseen = "merged" if name in fit.merged else "unseen"
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
