"""Evaluation of fitted models on the same held-out rows."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.preprocessing import FunctionTransformer

from groupdro.compare.comparison import Change, Comparison
from groupdro.compare.contenders import CHOSEN, ERM, IN_WORDS, MERO
from groupdro.compare.verdict import Choice, Rule, evidence_of, recommend, verdict_on
from groupdro.data.given import GivenRows
from groupdro.data.grouping import Grouping
from groupdro.data.mapping import nameless
from groupdro.estimators import GroupDROClassifier, GroupDROClassifierCV, GroupDRORegressor, GroupDRORegressorCV
from groupdro.evaluation.by_group import why_not_judged
from groupdro.evaluation.headroom import Headroom, headroom, linear_columns
from groupdro.evaluation.inference import (
    Intervals,
    Resampled,
    effective_sizes,
    falls_of_worst,
    resample,
    resample_statistics,
    simultaneous_intervals,
)
from groupdro.evaluation.metrics import Metric, Outputs
from groupdro.evaluation.models import final_estimator
from groupdro.evaluation.report import GroupReport, group_report
from groupdro.evaluation.statistics import Average, Statistic
from groupdro.run.result import relative_gap
from groupdro.utils.arguments import error_prefix
from groupdro.utils.types import Array, Mask

__all__ = ["Judging", "judge"]

_ALL = np.ones(1, dtype=bool)  # the one group of all rows

# Losses that models of other kinds can be evaluated with.
_SAME_AS_OURS = {"logistic": "log", "log_loss": "log", "squared": "squared", "squared_error": "squared"}


@dataclass(frozen=True)
class Judging:
    """How models are compared.

    Attributes
    ----------
    metrics : tuple of Metric
        The metrics; the first one decides.
    baseline : str
        The model that the others are compared with.
    loss : str or callable
        The loss behind "risk".
    mean_budget, floor : float or None
        As in `compare`.
    min_rows, n_bootstrap, confidence, seed : int, int, float, int
        As in `compare`.
    """

    metrics: tuple[Metric, ...]
    baseline: str
    loss: Any
    mean_budget: float | None
    floor: float | None
    min_rows: int
    n_bootstrap: int
    confidence: float
    seed: int


def judge(models: dict[str, Any], seconds: dict[str, float], rows: GivenRows, how: Judging) -> Comparison:
    """Evaluate fitted models on held-out data.

    Parameters
    ----------
    models : dict of str to estimator
        The models, plain training first.
    seconds : dict of str to float
        Their fitting times.
    rows : GivenRows
        The held-out rows.
    how : Judging
        How to compare them.

    Returns
    -------
    Comparison
        The comparison.
    """
    metric = how.metrics[0]
    names = list(models)
    place = names.index(how.baseline)
    losses = {name: _loss_of(model, models[ERM], name, how.loss) for name, model in models.items()}
    outputs = {
        name: Outputs(model, rows.X, rows.y, loss=losses[name], offset=rows.offset) for name, model in models.items()
    }
    statistics = []
    for name in names:
        with error_prefix(f"models[{name!r}]"):
            statistics.append(metric.of(outputs[name]))
    found = _resample(metric, statistics, rows, rows.groups, how)
    overall = _resample(metric, statistics, rows, Grouping.of_all(len(rows.y)), how)
    large = effective_sizes(rows.groups, rows.clusters, rows.weights) >= how.min_rows - 1e-9
    # A group with hardly any errors under the baseline is not judged; under another model, that speaks for the model.
    notes = [
        why_not_judged(statistic, outputs[name], rows, large, count_errors=name == how.baseline)
        for statistic, name in zip(statistics, names, strict=True)
    ]
    judged = (notes[place] == "") & ~np.isnan(found.means[:, place])
    left_out = [name for name, enough in zip(rows.groups.names, judged, strict=True) if not enough]
    some = bool(judged.any())
    judged |= not some  # if no group has enough rows, the table still shows all of them
    reports = {
        name: group_report(
            model,
            rows.X,
            rows.y,
            rows.groups,
            metrics=how.metrics,
            sample_weight=rows.weights,
            cluster=rows.clusters,
            offset=rows.offset,
            loss=losses[name],
            min_rows=how.min_rows,
            n_bootstrap=how.n_bootstrap,
            confidence=how.confidence,
            random_state=how.seed,
        )
        for name, model in models.items()
    }
    differences = {name: _differences(found, k, place, judged, how) for k, name in enumerate(names) if k != place}
    changes = _changes(names, found, overall, judged, differences, notes, rows.groups, place, how, known=some)
    columns = _columns(models, seconds, reports, changes, found, rows.groups, judged, how)
    search = _inside(models[CHOSEN]) if CHOSEN in models else None
    choice = None if search is None else Choice(search.robustness_, search.message_)
    rule = Rule(metric, how.baseline, how.mean_budget, how.floor)
    worst, mean, worst_group = (
        dict(zip(names, columns[key], strict=True))
        for key in (f"worst_{metric.name}", f"mean_{metric.name}", "worst_group")
    )
    if some:
        recommended = recommend(changes, worst, rule, choice)
        room = _headroom(models[recommended], models[ERM], rows, judged, how)
        verdict = verdict_on(
            changes,
            recommended,
            rule,
            worst=worst,
            mean=mean,
            worst_group=worst_group,
            word=_in_words(metric, outputs[recommended], losses[recommended]),
            room=room,
            by_choice=recommended != how.baseline and not rule.supports(changes[recommended]),
        )
    else:
        recommended, room = how.baseline, None
        word = metric.name.replace("_", " ")
        kept = IN_WORDS.get(how.baseline, how.baseline)
        verdict = f"Keep {kept}: in no group are there enough held-out rows to judge its {word}."
    return Comparison(
        columns=columns,
        verdict=verdict,
        evidence=evidence_of(
            changes, recommended, confidence=how.confidence, choice=choice, room=room, left_out=left_out
        ),
        recommended=recommended,
        baseline=how.baseline,
        metrics=tuple(metric.name for metric in how.metrics),
        changes=changes,
        differences=_table_of(differences, rows.groups, judged, metric),
        models=models,
        reports=reports,
        left_out=left_out,
        confidence=how.confidence,
        headroom=room,
    )


def _resample(
    metric: Metric, statistics: list[Statistic], rows: GivenRows, grouping: Grouping, how: Judging
) -> Resampled:
    """Resample the metric of all models, negated if larger values are better."""
    options: dict[str, Any] = {"n_bootstrap": how.n_bootstrap, "seed": how.seed}
    options |= {"clusters": rows.clusters, "weights": rows.weights}
    averages = [each for each in statistics if isinstance(each, Average) and each.counted.all()]
    if len(averages) == len(statistics):
        found = resample(np.stack([each.values for each in averages], axis=1), grouping, **options)
    else:
        found = resample_statistics(statistics, grouping, **options)
    means, again = found.means, found.resampled_means
    if metric.scale == "square root":
        means, again = np.sqrt(means), np.sqrt(np.maximum(again, 0.0))
    if metric.larger_is_better:
        means, again = -means, -again
    return replace(found, means=means, resampled_means=again)


def _loss_of(model: Any, plain: Any, name: str, loss: Any) -> Any:
    """Return the loss by which to evaluate a model like plain training."""
    if not (isinstance(loss, str) and loss == "auto"):
        return loss
    inner = final_estimator(model)
    own = final_estimator(plain).loss
    if isinstance(inner, GroupDROClassifier | GroupDRORegressor) and repr(inner.loss) == repr(own):
        return "auto"
    if own not in _SAME_AS_OURS and is_regressor(model):
        return final_estimator(plain)._own_loss()
    if own not in _SAME_AS_OURS:
        raise ValueError(f"models[{name!r}] cannot be evaluated by the loss {own!r}; choose another with loss=.")
    if _SAME_AS_OURS[own] == "log" and not hasattr(model, "predict_proba"):
        raise ValueError(f"models[{name!r}] has no predict_proba, which log loss requires; choose another loss=.")
    return _SAME_AS_OURS[own]


def _inside(model: Any) -> Any:
    """Return the cross-validated estimator inside wrappers and pipelines."""
    while not isinstance(model, GroupDROClassifierCV | GroupDRORegressorCV):
        model = model.estimator_ if hasattr(model, "estimator_") else model[-1]
    return model


def _in_words(metric: Metric, outputs: Outputs, loss: Any) -> str:
    """Return what the metric is called in a sentence."""
    if metric.name != "risk":
        return metric.name.replace("_", " ")
    own = getattr(final_estimator(outputs.model), "loss", None) if isinstance(loss, str) and loss == "auto" else loss
    known = {"log": "log loss", "squared": "half mean squared error", "zero_one": "error rate"}
    return known.get(_SAME_AS_OURS.get(own, own), "average loss") if isinstance(own, str) else "average loss"


def _differences(found: Resampled, k: int, place: int, judged: Mask, how: Judging) -> Intervals:
    """Return intervals for how much worse each group is under a model than under the baseline."""
    groups = judged & np.isfinite(found.means[:, [k, place]]).all(axis=1)
    return simultaneous_intervals(found, how.confidence, kind=k, against=place, groups=groups)


def _changes(
    names: list[str],
    found: Resampled,
    overall: Resampled,
    judged: Mask,
    differences: dict[str, Intervals],
    notes: list[Array],
    grouping: Grouping,
    place: int,
    how: Judging,
    *,
    known: bool,
) -> dict[str, Change]:
    """Return the changes of each model. Intervals of the worst group are NaN if no group has enough rows."""
    # Models without a value in one of the groups, such as a precision where the class is never predicted, are left out.
    defined = np.isfinite(found.means[judged]).all(axis=0) & np.isfinite(overall.means[0])
    worst, mean = (
        _falls(one, how.confidence, place, groups, defined) for one, groups in ((found, judged), (overall, _ALL))
    )
    if not known:
        others = np.arange(len(names)) != place
        worst.low[others] = worst.high[others] = np.nan
    before = float(found.means[judged, place].max()), float(overall.means[0, place])
    metric = how.metrics[0]
    scales = [1.0 if metric.larger_is_better else abs(value) or 1.0 for value in before]
    changes = {}
    for k, name in enumerate(names):
        apart = differences.get(name)
        harmed = [] if apart is None else [grouping.names[i] for i in np.flatnonzero(apart.low > 0)]
        note = "" if defined[k] else f"cannot be judged: {metric.name} is undefined in a group"
        if not note and (notes[k][judged] != "").any():
            note = "cannot be judged: a few rows have most of its loss"
        gain = float(worst.estimates[k]), float(worst.low[k]), float(worst.high[k])
        cost = 0.0 - float(mean.estimates[k]), 0.0 - float(mean.high[k]), 0.0 - float(mean.low[k])
        changes[name] = Change(
            gain,
            cost,
            gain[0] / scales[0],
            cost[0] / scales[1],
            harmed,
            note if k != place and known else "",
        )
    return changes


def _falls(found: Resampled, confidence: float, place: int, groups: Mask, defined: Mask) -> Intervals:
    """Return the falls of the worst group of models that have a value in all groups; NaN for the others."""
    if not defined[place]:
        nothing = Intervals.nothing(len(defined), confidence)
        for values in (nothing.estimates, nothing.low, nothing.high):
            values[place] = 0.0
        return nothing
    kept = np.flatnonzero(defined)
    against = int(np.searchsorted(kept, place))
    return falls_of_worst(found.only(kept), confidence, against=against, groups=groups).spread(defined)


def _table_of(
    differences: dict[str, Intervals], grouping: Grouping, judged: Mask, metric: Metric
) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {"model": [], "group": [], "difference": [], "low": [], "high": []}
    for name, apart in differences.items():
        for i in np.flatnonzero(judged):
            values = apart.estimates[i], apart.low[i], apart.high[i]
            if metric.larger_is_better:
                values = -values[0], -values[2], -values[1]
            for key, value in zip(table, (name, grouping.names[i], *map(float, values)), strict=True):
                table[key].append(value)
    return table


def _columns(
    models: dict[str, Any],
    seconds: dict[str, float],
    reports: dict[str, GroupReport],
    changes: dict[str, Change],
    found: Resampled,
    grouping: Grouping,
    judged: Mask,
    how: Judging,
) -> dict[str, list[Any]]:
    """Return the table of the models. Excess risks are NaN if risks and group minima use different losses."""
    inner = final_estimator(models[MERO])
    auto = isinstance(how.loss, str) and how.loss == "auto"
    minima = dict(zip(inner.groups_.tolist(), inner.group_minima_, strict=True)) if auto else {}
    groups = [name for name, enough in zip(grouping.names, judged, strict=True) if enough]
    table = []
    for k, (name, model) in enumerate(models.items()):
        report, change = reports[name], changes[name]
        row: dict[str, Any] = {"model": name}
        for metric in how.metrics:
            values = np.array([report.by_group[group][metric.name] for group in groups])
            row[f"mean_{metric.name}"] = report.overall[metric.name]
            some = values[~np.isnan(values)]
            worst = (min if metric.larger_is_better else max)(some.tolist(), default=np.nan)
            row[f"worst_{metric.name}"] = worst
        own = np.where(np.isnan(found.means[judged, k]), -np.inf, found.means[judged, k])
        regrets = [report.by_group[group]["risk"] - minima[group] for group in groups if group in minima]
        fitted = final_estimator(model)
        certified = hasattr(fitted, "upper_bound_")
        row |= {
            "worst_group": groups[int(own.argmax())] if np.isfinite(own).any() else None,
            "gain": change.gain[0],
            "gain_low": change.gain[1],
            "gain_high": change.gain[2],
            "cost": change.cost[0],
            "worst_regret": float(max(regrets, default=np.nan)),
            "gap": relative_gap(fitted.gap_, fitted.upper_bound_) if certified else np.nan,
            "seconds": seconds[name],
        }
        table.append(row)
    return {key: [row[key] for row in table] for key in table[0]}


def _headroom(model: Any, plain: Any, rows: GivenRows, judged: Mask, how: Judging) -> Headroom | None:
    """Return how much a model's worst group could gain from a linear model of the columns of plain training.

    None for losses, labels and models without such a bound.
    """
    own = final_estimator(plain)
    if not (isinstance(how.loss, str) and how.loss == "auto") or how.metrics[0].name != "risk":
        return None
    if is_classifier(own):
        bounded = _SAME_AS_OURS.get(own.loss) == "log" and len(np.unique(rows.y)) > 1
        if not bounded or not hasattr(model, "predict_proba"):
            return None
    loss = None if is_classifier(own) else own._own_loss()
    large = rows.groups.only(np.flatnonzero(judged))
    members = np.unique(large.members)
    part = rows.take(members)
    columns = FunctionTransformer(lambda X: linear_columns(plain, X))
    with nameless(rows.X):  # also of those taken from a file
        return headroom(
            model,
            part.X,
            part.y,
            large.restrict(members),
            linear=columns,
            loss=loss,
            sample_weight=part.weights,
            offset=part.offset,
        )
