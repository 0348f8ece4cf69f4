"""Metrics by name, of scikit-learn or of the user: what reports, comparisons and scorers compute for each group."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

import numpy as np
from scipy.special import xlogy
from sklearn.metrics import get_scorer, get_scorer_names, precision_score, recall_score

from groupdro.evaluation.explained import ExplainedPinball
from groupdro.evaluation.heterogeneity import Scale as ScaleOfGroups
from groupdro.evaluation.inference import Scale
from groupdro.evaluation.outputs import Outputs
from groupdro.evaluation.recalibration import CalibrationInTheLarge, CalibrationSlope
from groupdro.evaluation.statistics import (
    AnyFunction,
    AreaUnderROC,
    Average,
    AveragePrecision,
    FunctionOfMeans,
    Median,
    Statistic,
)
from groupdro.losses import LogLinkLoss, Loss, Quantile, deviance_power
from groupdro.utils.arguments import short_repr
from groupdro.utils.types import Array, Floats, Mask

__all__ = ["METRICS", "Meaning", "Metric", "read_metrics"]

# What wins a one-sided rate.
_ALWAYS, _NEVER = "always predicts the positive class", "never predicts the positive class"
_RARELY = "predicts the positive class only where it is surest"


@dataclass(frozen=True)
class Meaning:
    """How values of a metric are to be read.

    Attributes
    ----------
    better : str
        "larger" or "smaller", whichever is better; empty if neither is.
    scale : {"plain", "logit", "log"}
        The scale on which values of groups are best compared: log-odds for shares, logarithms for positive numbers.
    target : float or None
        The value that a metric should have of which neither larger nor smaller values are better, such as 1 for a
        ratio.
    """

    better: str
    scale: ScaleOfGroups
    target: float | None = None


@dataclass(frozen=True)
class Metric:
    """A number for the rows of a group.

    Attributes
    ----------
    name : str
        Its name in tables.
    larger_is_better : bool
        Whether larger values are better.
    statistic : callable
        Returns the statistic for the outputs of a model.
    task : {"classification", "regression"} or None
        The task that it requires.
    scale : {"plain", "logit", "log", "square root"}
        Confidence intervals are computed for the statistic itself, for its log-odds, for its logarithm, or for the
        logarithm of the statistic, of which the metric is the square root.
    bounds : tuple of float
        Smallest and largest value that it can have.
    ranks : bool
        Whether one value is better than another, as it is not for shares that should equal a level.
    won_by : str
        What a useless model does to get the best value of a one-sided rate, such as a recall of 1; empty for metrics
        that can rank models alone.
    of_scores : bool
        Whether scores or probabilities of a classifier count, not only the predicted classes.
    target : float or None
        The value of a right model, if neither larger nor smaller values are better and it is the same for all models.
    """

    name: str
    larger_is_better: bool
    statistic: Callable[[Outputs], Statistic]
    task: str | None = None
    scale: Scale = "plain"
    bounds: tuple[float, float] = (-np.inf, np.inf)
    ranks: bool = True
    won_by: str = ""
    of_scores: bool = False
    target: float | None = None

    def meaning(self, loss: Loss | None = None) -> Meaning:
        """Return how its values are to be read; `loss` is that of predicted numbers, if it is known."""
        scale: ScaleOfGroups = "logit" if self.is_share else "log" if self.is_positive else "plain"
        target = loss.level if self.name == "share_below" and isinstance(loss, Quantile) else self.target
        better = ("larger" if self.larger_is_better else "smaller") if self.ranks else ""
        return Meaning(better, scale, target)

    @property
    def is_share(self) -> bool:
        """Whether the values are shares or probabilities, whose differences are best seen as log-odds."""
        return self.scale == "logit" or self.name in _SHARES

    @property
    def is_positive(self) -> bool:
        """Whether the values are positive, and their differences best seen as ratios."""
        return self.scale in ("log", "square root") or self.name in _POSITIVE

    def guards(self, other: "Metric") -> bool:
        """Return whether a useless model that wins another, one-sided metric does not win this one too."""
        return self.ranks and (not self.won_by or (self.won_by == _ALWAYS) != (other.won_by == _ALWAYS))

    def reaches(self, value: float, floor: float) -> bool:
        """Return whether a value is at least as good as a floor; not if it is undefined."""
        return value >= floor if self.larger_is_better else value <= floor

    def of(self, outputs: Outputs) -> Statistic:
        """Return the statistic for the outputs of a model, or raise if it has no such metric."""
        task = "classification" if outputs.classifies else "regression"
        if self.task not in (None, task):
            raise ValueError(f"metric {self.name!r} requires {self.task}, but the model is for {task}.")
        if self.name == "risk":  # whose errors name the loss
            return self.statistic(outputs)
        try:
            return self.statistic(outputs)
        except (TypeError, ValueError) as error:
            raise type(error)(f"metric {self.name!r} cannot be computed: {error}.") from None


def _mean(values: Array, counted: Mask | None = None) -> Average:
    """Return the mean of numbers, or the share of rows that are true."""
    counted = np.ones(len(values), dtype=bool) if counted is None else counted
    return Average(values.astype(np.float64), counted, is_proportion=values.dtype == bool)


def _risk(outputs: Outputs) -> Average:
    found = _mean(outputs.risk)
    if isinstance(loss := outputs.loss.loss, Quantile):
        return replace(found, steep_share=min(loss.level, 1.0 - loss.level))
    # That all losses are 0 says nothing about how large they can be.
    return replace(found, is_proportion=bool(np.isin(found.values, (0, 1)).all() and found.values.any()))


def _brier(outputs: Outputs) -> Average:
    if outputs.indicators.shape[1] == 2:
        return _mean((outputs.probabilities[:, 1] - outputs.positive) ** 2)
    return _mean(((outputs.probabilities - outputs.indicators) ** 2).sum(axis=1))


def _balanced_accuracy(outputs: Outputs) -> FunctionOfMeans:
    kinds = outputs.indicators
    n_classes = kinds.shape[1]
    columns = np.hstack([kinds, kinds & outputs.right[:, None]]).astype(np.float64)

    def function(means: Floats) -> tuple[Floats, Floats]:
        shares, hits = means[:, :n_classes], means[:, n_classes:]
        slopes = np.hstack([-hits / shares**2, 1.0 / shares]) / n_classes
        return (hits / shares).mean(axis=1), slopes

    return FunctionOfMeans(columns, function, kinds)


def _f1(outputs: Outputs) -> FunctionOfMeans:
    positive = outputs.positive
    chosen = outputs.chosen
    columns = np.column_stack([2.0 * (positive & chosen), 1.0 * positive + chosen])

    def function(means: Floats) -> tuple[Floats, Floats]:
        hits, total = means.T
        return hits / total, np.column_stack([1.0 / total, -hits / total**2])

    return FunctionOfMeans(columns, function, (positive | chosen)[:, None])


def _explained_squares(outputs: Outputs) -> FunctionOfMeans:
    target = outputs.y.astype(np.float64) - np.mean(outputs.y)
    columns = np.column_stack([outputs.residual**2, target, target**2])

    def function(means: Floats) -> tuple[Floats, Floats]:
        errors, mean, squares = means.T
        spread = squares - mean**2
        spread = np.where(spread > 1e-12 * squares, spread, np.nan)  # all targets are equal
        share = errors / spread
        return 1.0 - share, np.column_stack([-1.0 / spread, -2.0 * share * mean / spread, share / spread])

    return FunctionOfMeans(columns, function, np.ones((len(target), 1), dtype=bool), outputs.residual**2)


def _explained_log_loss(outputs: Outputs) -> FunctionOfMeans:
    kinds = outputs.indicators
    columns = np.column_stack([outputs.log_losses, kinds])

    def function(means: Floats) -> tuple[Floats, Floats]:
        loss, shares = means[:, 0], means[:, 1:]
        logs = np.log(np.maximum(shares, 1e-300))
        null = -(shares * logs).sum(axis=1)
        null = np.where(null > 1e-12, null, np.nan)  # one class only
        share = loss / null
        return 1.0 - share, np.column_stack([-1.0 / null, -(share / null)[:, None] * (logs + 1.0)])

    return FunctionOfMeans(columns, function, kinds, columns[:, 0])


def _explained_deviance(outputs: Outputs, loss: LogLinkLoss) -> FunctionOfMeans:
    """Return one minus the deviance over that of the mean label, which a function of the label's mean leaves."""
    y = outputs.y.astype(np.float64)
    power = deviance_power(loss)
    deviances = loss.value(np.log(outputs.predicted.astype(np.float64)), y)
    scale = 1.0 if power in (1, 2) else -1.0 / ((2.0 - power) * (power - 1.0))

    def of(mean: Floats) -> tuple[Floats, Floats]:
        """Return the part of the deviance that depends on the labels alone, and its derivative."""
        if power == 1:
            return xlogy(mean, mean), np.log(np.maximum(mean, 1e-300)) + 1.0
        if power == 2:
            return -np.log(mean), -1.0 / mean
        return scale * mean ** (2.0 - power), (2.0 - power) * scale * np.maximum(mean, 1e-300) ** (1.0 - power)

    def function(means: Floats) -> tuple[Floats, Floats]:
        deviance, label, each = means.T
        of_label, slope = of(label)
        null = each - of_label
        null = np.where(null > 1e-12 * np.abs(each), null, np.nan)  # all labels are equal
        share = deviance / null
        return 1.0 - share, np.column_stack([-1.0 / null, -share / null * slope, share / null])

    columns = np.column_stack([deviances, y, of(y)[0]])
    return FunctionOfMeans(columns, function, np.ones((len(y), 1), dtype=bool), deviances)


def _d2(outputs: Outputs) -> Statistic:
    if outputs.classifies:
        return _explained_log_loss(outputs)
    loss = outputs.own_loss
    if isinstance(loss, Quantile):
        return ExplainedPinball(outputs.y.astype(np.float64), outputs.predicted.astype(np.float64), loss.level)
    return _explained_deviance(outputs, loss) if isinstance(loss, LogLinkLoss) else _explained_squares(outputs)


def _actual_over_expected(outputs: Outputs) -> FunctionOfMeans:
    if outputs.classifies:
        chances = outputs.probabilities[:, 1]
        kinds = np.column_stack([outputs.positive, ~outputs.positive])
        return FunctionOfMeans(np.column_stack([outputs.positive, chances]), _ratio_of_sums, kinds, chances=chances)
    columns = np.column_stack([outputs.y, outputs.predicted]).astype(np.float64)
    negative = (columns < 0).any(axis=1)
    if negative.any():  # sums of numbers of both signs may cancel, so that their ratio means nothing
        columns = np.column_stack([columns, negative])
    return FunctionOfMeans(columns, _ratio_of_sums, np.ones((len(columns), 1), dtype=bool), np.abs(columns[:, 0]))


def _ratio_of_sums(means: Floats) -> tuple[Floats, Floats]:
    """Return the first of several means over the second, and its derivatives.

    It is NaN where a mean is negative or the second one zero; or where there is a third mean, the share of rows with a
    negative number, which is not zero.
    """
    actual, expected = means[:, 0], means[:, 1]
    defined = (actual >= 0) & (expected > 0) & ~means[:, 2:].any(axis=1)
    ratio = np.divide(actual, expected, out=np.full(len(means), np.nan), where=defined)
    slopes = np.zeros_like(means)
    slopes[:, 0], slopes[:, 1] = 1.0 / expected, -ratio / expected
    return ratio, slopes


#: Columns of reports beside the metrics.
_OTHER_COLUMNS = {
    *("group", "n", "effective_n", "actual", "expected", "regret", "bias", "overconfidence", "ece", "weight", "note"),
}

_SHARES = {
    *("accuracy", "balanced_accuracy", "recall", "precision", "f1", "selection_rate", "false_positive_rate"),
    *("false_negative_rate", "share_below"),
}
_POSITIVE = {"risk", "log_loss", "brier", "mae"}

_of_classes = partial(Metric, task="classification")
_of_numbers = partial(Metric, task="regression")

METRICS = {
    metric.name: metric
    for metric in (
        Metric("risk", larger_is_better=False, statistic=_risk, of_scores=True),
        _of_classes("accuracy", larger_is_better=True, statistic=lambda out: _mean(out.right)),
        _of_classes("balanced_accuracy", larger_is_better=True, statistic=_balanced_accuracy, bounds=(0.0, 1.0)),
        _of_classes(
            "recall", larger_is_better=True, statistic=lambda out: _mean(out.chosen, out.positive), won_by=_ALWAYS
        ),
        _of_classes(
            "precision", larger_is_better=True, statistic=lambda out: _mean(out.positive, out.chosen), won_by=_RARELY
        ),
        _of_classes("f1", larger_is_better=True, statistic=_f1, bounds=(0.0, 1.0)),
        _of_classes("selection_rate", larger_is_better=True, statistic=lambda out: _mean(out.chosen), ranks=False),
        _of_classes(
            "false_positive_rate",
            larger_is_better=False,
            statistic=lambda out: _mean(out.chosen, ~out.positive),
            won_by=_NEVER,
        ),
        _of_classes(
            "false_negative_rate",
            larger_is_better=False,
            statistic=lambda out: _mean(~out.chosen, out.positive),
            won_by=_ALWAYS,
        ),
        _of_classes(
            "roc_auc",
            larger_is_better=True,
            statistic=lambda out: AreaUnderROC(out.positive, out.scores()),
            scale="logit",
            of_scores=True,
        ),
        _of_classes(
            "average_precision",
            larger_is_better=True,
            statistic=lambda out: AveragePrecision(out.positive, out.scores()),
            scale="logit",
            of_scores=True,
        ),
        _of_classes("brier", larger_is_better=False, statistic=_brier, of_scores=True),
        _of_classes("log_loss", larger_is_better=False, statistic=lambda out: _mean(out.log_losses), of_scores=True),
        _of_numbers("rmse", larger_is_better=False, statistic=lambda out: _mean(out.residual**2), scale="square root"),
        _of_numbers("mae", larger_is_better=False, statistic=lambda out: _mean(np.abs(out.residual))),
        _of_numbers("median_error", larger_is_better=False, statistic=lambda out: Median(np.abs(out.residual))),
        Metric("d2", larger_is_better=True, statistic=_d2, bounds=(-np.inf, 1.0), of_scores=True),
        Metric(
            "actual_over_expected",
            larger_is_better=False,
            statistic=_actual_over_expected,
            scale="log",
            ranks=False,
            target=1.0,
        ),
        _of_classes(
            "calibration_intercept",
            larger_is_better=False,
            statistic=lambda out: CalibrationInTheLarge(out.positive, out.probabilities[:, 1]),
            ranks=False,
            target=0.0,
        ),
        _of_classes(
            "calibration_slope",
            larger_is_better=False,
            statistic=lambda out: CalibrationSlope(out.positive, out.probabilities[:, 1]),
            ranks=False,
            target=1.0,
        ),
        _of_numbers(
            "share_below", larger_is_better=False, statistic=lambda out: _mean(out.y <= out.predicted), ranks=False
        ),
    )
}


def read_metrics(metrics: Any, weights: Floats | None = None) -> tuple[Metric, ...]:
    """Return metrics, given by name or as functions.

    Parameters
    ----------
    metrics : str, callable, or sequence or mapping of these
        A name of `METRICS` or of a scikit-learn scorer; a scorer made by ``make_scorer``; or a function of labels,
        predictions and, if it has such a parameter, `sample_weight`, of which larger values are better. A mapping gives
        them names.
    weights : ndarray, optional
        Weights of the rows, if they have any: functions must then take `sample_weight`.

    Returns
    -------
    tuple of Metric
        The metrics.
    """
    if isinstance(metrics, str) or callable(metrics):
        metrics = [metrics]
    if isinstance(metrics, dict):
        given = list(metrics.items())
    else:
        try:
            given = [(None, metric) for metric in metrics]
        except TypeError:
            raise TypeError(f"metrics must be names or functions, got {short_repr(metrics)}.") from None
    found = [_read_metric(metric, name, weighted=weights is not None) for name, metric in given]
    names = [metric.name for metric in found]
    if not found:
        raise ValueError("metrics must have at least one metric, got none.")
    if not found[0].ranks:
        raise ValueError(
            f"metrics must begin with one whose values are better or worse, and {names[0]!r} is neither: put it after "
            "another one."
        )
    if any(metric.name == "risk" and metric != METRICS["risk"] for metric in found):
        raise ValueError("metrics calls another metric 'risk', which is the average loss; choose another name.")
    if len(set(names)) < len(names):
        raise ValueError(f"metrics has the same name twice: {names}. Pass a mapping from names to functions.")
    ends = {f"{name}_{end}" for name in ("risk", *names) for end in ("low", "high")} | {f"n_{name}" for name in names}
    if taken := (_OTHER_COLUMNS | ends) & set(names):
        raise ValueError(f"metrics has the name {sorted(taken)[0]!r}, which another column of reports has.")
    return tuple(found)


def _read_metric(metric: Any, name: str | None, *, weighted: bool) -> Metric:
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str) and metric in METRICS:
        return METRICS[metric] if name is None else Metric(**{**vars(METRICS[metric]), "name": name})
    if isinstance(metric, str) and metric in get_scorer_names():
        name, metric = name or metric, get_scorer(metric)
    if not callable(metric):
        raise ValueError(
            f"metrics has {short_repr(metric)}, which is not a function, nor one of {sorted(METRICS)}, nor the name of "
            "a scikit-learn scorer."
        )
    function = getattr(metric, "_score_func", metric)
    label = name or str(getattr(function, "__name__", type(metric).__name__))
    argument = signature(function).parameters.get("sample_weight")
    if weighted and argument is None:
        raise ValueError(f"metric {label!r} takes no sample_weight, but rows have weights.")
    takes_weights = argument is not None and (weighted or argument.default is Parameter.empty)
    sign = getattr(metric, "_sign", 1)
    more = getattr(metric, "_kwargs", {})
    method = getattr(metric, "_response_method", "predict")

    def statistic(outputs: Outputs) -> AnyFunction:
        def signed(*args: Any, **weights: Any) -> float:
            value = sign * float(function(*args, **more, **weights))
            if np.isinf(value):
                raise ValueError("the function returned an infinite value")
            return value + 0.0  # and not -0

        predicted = outputs.scores(method, more.get("pos_label"))
        # For all rows it must have a value: later, an error means that it has none for some of the rows.
        signed(outputs.y, predicted, **({"sample_weight": np.ones(len(predicted))} if takes_weights else {}))
        return AnyFunction(signed, outputs.y, predicted, takes_weights)

    won_by = ""
    if more.get("average", "binary") == "binary":
        won_by = _ALWAYS if function is recall_score else _RARELY if function is precision_score else ""
    return Metric(
        label,
        larger_is_better=True,
        statistic=statistic,
        won_by=won_by,
        of_scores=method not in ("predict", ["predict"]),
    )
