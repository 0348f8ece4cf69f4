"""Evaluation of fitted models on the same held-out rows."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.preprocessing import FunctionTransformer

from groupdro.compare.comparison import Change, Comparison
from groupdro.compare.contenders import CHOSEN, ERM, IN_WORDS, MERO
from groupdro.compare.verdict import Choice, Price, Rule, evidence_of, recommend, verdict_on
from groupdro.data.given import GivenRows
from groupdro.data.grouping import Grouping
from groupdro.data.mapping import nameless
from groupdro.estimators import GroupDROClassifier, GroupDROClassifierCV, GroupDRORegressor, GroupDRORegressorCV
from groupdro.evaluation.headroom import Headroom, headroom
from groupdro.evaluation.inference import Intervals, falls_of_worst, simultaneous_intervals
from groupdro.evaluation.judgement import Judgement, Resampling
from groupdro.evaluation.metrics import Metric
from groupdro.evaluation.models import final_estimator, layers, linear_columns, own_loss, takes_offset
from groupdro.evaluation.outputs import SAME_AS_OURS, Outputs
from groupdro.evaluation.report import Fit, GroupReport, report_on, with_risk
from groupdro.evaluation.resampling import Resampled
from groupdro.run.result import relative_gap
from groupdro.utils.arguments import error_prefix
from groupdro.utils.text import metric_name
from groupdro.utils.types import Array, Mask

__all__ = ["Terms", "judge"]

_ALL = np.ones(1, dtype=bool)  # the one group of all rows


@dataclass(frozen=True)
class Terms:
    """How models are compared.

    Attributes
    ----------
    metrics : tuple of Metric
        The metrics; the first one decides.
    baseline : str
        The model that the others are compared with.
    loss : str or callable
        The loss behind "risk".
    mean_budget : float or None
        As in `compare`.
    floors : dict of str to float
        Values that the worst group must reach, by the name of the metric.
    resampling : Resampling
        As in `compare`.
    """

    metrics: tuple[Metric, ...]
    baseline: str
    loss: Any
    mean_budget: float | None
    floors: dict[str, float]
    resampling: Resampling

    @property
    def guards(self) -> list[Metric]:
        """Metrics by which no recommended model may be significantly worse, if the first one is a one-sided rate."""
        first, *others = self.metrics
        return [one for one in others if first.won_by and one.ranks and not one.won_by and one.name not in self.floors]

    @property
    def rule(self) -> Rule:
        """What makes a model better than the baseline."""
        first, *others = self.metrics
        guarded = self.guards or any(one.guards(first) for one in others if one.name in self.floors)
        alone = bool(first.won_by) and not guarded
        return Rule(first, self.baseline, self.mean_budget, self.floors.get(first.name), alone)


@dataclass(frozen=True, eq=False)
class _ByMetric:
    """What a metric says of all models.

    Attributes
    ----------
    judged : ndarray of bool of shape (n_groups,)
        Groups that are judged; those shown, if none has enough rows.
    some : bool
        Whether any group has enough rows.
    differences : dict of str to Intervals
        How much worse each group is under a model than under the baseline.
    changes : dict of str to Change
        Changes of each model relative to the baseline.
    """

    judged: Mask
    some: bool
    differences: dict[str, Intervals]
    changes: dict[str, Change]

    def worsens(self, name: str) -> bool:
        """Return whether a model is significantly worse, over all rows or in the worst group, or cannot be judged."""
        change = self.changes[name]
        return not self.some or bool(change.note) or change.worse or change.cost[1] > 0


def judge(models: dict[str, Any], seconds: dict[str, float], rows: GivenRows, terms: Terms) -> Comparison:
    """Evaluate fitted models on held-out data.

    Parameters
    ----------
    models : dict of str to estimator
        The models, plain training first.
    seconds : dict of str to float
        Their fitting times.
    rows : GivenRows
        The held-out rows.
    terms : Terms
        How to compare them.

    Returns
    -------
    Comparison
        The comparison.
    """
    metric, *others = terms.metrics
    names = list(models)
    place = names.index(terms.baseline)
    outputs = {}
    usual = _usual_loss(models, terms)
    for name, model in models.items():
        with error_prefix(f"models[{name!r}]"):
            loss = _loss_of(model, models[ERM], name, terms.loss) if ERM in models else usual
            offset = rows.offset if takes_offset(model) else None
            outputs[name] = Outputs.of_model(model, rows.X, rows.y, loss=loss, offset=offset)
    compared = [metric, *terms.guards]
    judgement = Judgement(rows, outputs, with_risk(terms.metrics), terms.resampling, compared=compared)
    first, *guards = (_by_metric(one, judgement, terms) for one in compared)
    reports = {
        name: report_on(judgement, name, terms.metrics, Fit.of_model(model, rows, in_groups=True))
        for name, model in models.items()
    }
    columns = _columns(models, seconds, reports, first, judgement, terms)
    objections = _objections(outputs, columns, guards, terms)
    changes = {name: replace(change, objection=objections.get(name, "")) for name, change in first.changes.items()}
    search = _search_in(models[CHOSEN]) if CHOSEN in models else None
    choice = None if search is None else Choice(search.robustness_, search.message_)
    rule = terms.rule
    worst, mean, worst_group = (
        dict(zip(names, columns[key], strict=True))
        for key in (f"worst_{metric.name}", f"mean_{metric.name}", "worst_group")
    )
    if first.some:
        recommended = recommend(changes, worst, rule, choice)
        room = _headroom(models[recommended], models.get(ERM), rows, first.judged, terms)
        verdict = verdict_on(
            changes,
            recommended,
            rule,
            worst=worst,
            mean=mean,
            worst_group=worst_group,
            word=_in_words(metric, outputs[recommended]),
            prices=[
                Price(
                    _in_words(one, outputs[recommended]),
                    *((columns[key][place], columns[key][names.index(recommended)]) for key in _columns_of(one)),
                )
                for one in others
            ],
            room=room,
            by_choice=recommended != terms.baseline and not rule.supports(changes[recommended]),
        )
    else:
        recommended, room = terms.baseline, None
        kept = IN_WORDS.get(terms.baseline, terms.baseline)
        verdict = f"Keep {kept}: in no group are there enough held-out rows to judge its {_words(metric)}."
    if any(report.in_sample for report in reports.values()):
        verdict += (
            " But these are the training rows, on which every model looks better than it is: compare on "
            "rows that no model was fitted on."
        )
    left_out = [name for name, kept in zip(rows.groups.names, first.judged & first.some, strict=True) if not kept]
    confidence = terms.resampling.confidence
    return Comparison(
        columns=columns,
        verdict=" ".join([verdict, *reports[recommended].remarks]),
        evidence=evidence_of(changes, recommended, confidence=confidence, choice=choice, room=room, left_out=left_out),
        recommended=recommended,
        baseline=terms.baseline,
        metrics=tuple(metric.name for metric in terms.metrics),
        changes=changes,
        differences=_table_of(first.differences, rows.groups, first.judged, metric),
        models=models,
        reports=reports,
        left_out=left_out,
        confidence=confidence,
        headroom=room,
    )


def _by_metric(metric: Metric, judgement: Judgement, terms: Terms) -> _ByMetric:
    """Compare all models by one metric."""
    names = list(judgement.outputs)
    place = names.index(terms.baseline)
    found, overall = judgement.compared(metric)
    # A group with hardly any errors under the baseline is not judged; under another model, that speaks for the model.
    notes = [
        judgement.why_not(name, metric, count_errors=name == terms.baseline)[judgement.resampled_groups]
        for name in names
    ]
    judged = (notes[place] == "") & ~np.isnan(found.means[:, place])
    some = bool(judged.any())
    judged |= not some  # if no group has enough rows, the table still shows some
    differences = {}
    everywhere = np.zeros(len(judgement.sizes), dtype=bool)
    everywhere[judgement.resampled_groups] = True
    for k in (k for k in range(len(names)) if k != place):
        defined = judged & np.isfinite(found.means[:, [k, place]]).all(axis=1)
        apart = simultaneous_intervals(found, terms.resampling.confidence, kind=k, against=place, groups=defined)
        differences[names[k]] = apart.spread(everywhere)
    changes = _changes(metric, names, found, overall, judged, notes, place, terms, known=some)
    for name, apart in differences.items():
        harmed = [judgement.rows.groups.names[i] for i in np.flatnonzero(apart.low > 0)]
        changes[name] = replace(changes[name], harmed=harmed)
    everywhere[judgement.resampled_groups] = judged
    return _ByMetric(everywhere, some, differences, changes)


def _objections(
    outputs: dict[str, Outputs], columns: dict[str, list[Any]], guards: list[_ByMetric], terms: Terms
) -> dict[str, str]:
    """Return what speaks against each model other than the baseline, beside the first metric."""
    first, *others = terms.metrics
    objections = {}
    for k, (name, own) in enumerate(outputs.items()):
        same = own.sameness(of_scores=first.of_scores)
        against = [f"it predicts {same} for every row"] if same else []
        if not against and first.task == "classification" and not first.of_scores and own.is_guessing:
            against.append("its predictions are no better than guesses that ignore the features")
        for metric in others:
            worst, floor = columns[f"worst_{metric.name}"][k], terms.floors.get(metric.name)
            if floor is not None and not metric.reaches(worst, floor):
                side = "below" if metric.larger_is_better else "above"
                unknown = f"no group of it can be judged by {_words(metric)}"
                against.append(
                    unknown if np.isnan(worst) else f"its worst {_words(metric)} is {worst:.3g}, {side} {floor:g}"
                )
        against += [
            f"its {_words(metric)} is significantly worse, or cannot be judged"
            for metric, guard in zip(terms.guards, guards, strict=True)
            if guard.worsens(name)
        ]
        if against and name != terms.baseline:
            objections[name] = ", and ".join(against)
    return objections


def _words(metric: Metric) -> str:
    return metric_name(metric.name)


def _columns_of(metric: Metric) -> tuple[str, str]:
    return f"mean_{metric.name}", f"worst_{metric.name}"


def _usual_loss(models: dict[str, Any], terms: Terms) -> Any:
    """Return the loss of a comparison without plain training: one that all models have."""
    if not (isinstance(terms.loss, str) and terms.loss == "auto"):
        return terms.loss
    if all(map(is_classifier, models.values())):
        return "log" if all(hasattr(model, "predict_proba") for model in models.values()) else "zero_one"
    return own_loss(models[terms.baseline]) or "squared"


def _loss_of(model: Any, plain: Any, name: str, loss: Any) -> Any:
    """Return the loss by which to evaluate a model like plain training."""
    if not (isinstance(loss, str) and loss == "auto"):
        return loss
    inner = final_estimator(model)
    own = final_estimator(plain).loss
    if isinstance(inner, GroupDROClassifier | GroupDRORegressor) and repr(inner.loss) == repr(own):
        return "auto"
    if own not in SAME_AS_OURS and is_regressor(model):
        return final_estimator(plain)._own_loss()
    if own not in SAME_AS_OURS:
        raise ValueError(f"models[{name!r}] cannot be evaluated by the loss {own!r}; choose another with loss=.")
    if SAME_AS_OURS[own] == "log" and not hasattr(model, "predict_proba"):
        raise ValueError(f"models[{name!r}] has no predict_proba, which log loss requires; choose another loss=.")
    return SAME_AS_OURS[own]


def _search_in(model: Any) -> Any:
    """Return the cross-validated estimator inside wrappers and pipelines."""
    searches = GroupDROClassifierCV | GroupDRORegressorCV
    return next(layer.model for layer in layers(model) if isinstance(layer.model, searches))


def _in_words(metric: Metric, outputs: Outputs) -> str:
    """Return what the metric is called in a sentence."""
    return outputs.loss.words if metric.name == "risk" else _words(metric)


def _changes(
    metric: Metric,
    names: list[str],
    found: Resampled,
    overall: Resampled,
    judged: Mask,
    notes: list[Array],
    place: int,
    terms: Terms,
    *,
    known: bool,
) -> dict[str, Change]:
    """Return the changes of each model. Intervals of the worst group are NaN if no group has enough rows."""
    # Models without a value in one of the groups, such as a precision where the class is never predicted, are left out.
    defined = np.isfinite(found.means[judged]).all(axis=0) & np.isfinite(overall.means[0])
    worst, mean = (
        _falls(one, terms.resampling.confidence, place, groups, defined)
        for one, groups in ((found, judged), (overall, _ALL))
    )
    if not known:
        others = np.arange(len(names)) != place
        worst.low[others] = worst.high[others] = np.nan
    before = float(found.means[judged, place].max()), float(overall.means[0, place])
    scales = [1.0 if metric.larger_is_better else abs(value) or 1.0 for value in before]
    changes = {}
    for k, name in enumerate(names):
        note = "" if defined[k] else f"cannot be judged: {metric.name} is undefined in a group"
        if not note and (notes[k][judged] != "").any():
            note = "cannot be judged: a few rows have most of its loss"
        gain = float(worst.estimates[k]), float(worst.low[k]), float(worst.high[k])
        cost = 0.0 - float(mean.estimates[k]), 0.0 - float(mean.high[k]), 0.0 - float(mean.low[k])
        changes[name] = Change(
            gain, cost, gain[0] / scales[0], cost[0] / scales[1], [], note if k != place and known else ""
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
            for key, value in zip(
                table, (name, grouping.names[i], *(float(value) + 0.0 for value in values)), strict=True
            ):
                table[key].append(value)
    return table


def _columns(
    models: dict[str, Any],
    seconds: dict[str, float],
    reports: dict[str, GroupReport],
    first: _ByMetric,
    judgement: Judgement,
    terms: Terms,
) -> dict[str, list[Any]]:
    """Return the table of the models. Excess risks are NaN if risks and group minima use different losses."""
    metric = terms.metrics[0]
    minima = {}
    if MERO in models and isinstance(terms.loss, str) and terms.loss == "auto":
        inner = final_estimator(models[MERO])
        minima = dict(zip(inner.groups_.tolist(), inner.group_minima_, strict=True))
    groups = [name for name, kept in zip(judgement.rows.groups.names, first.judged, strict=True) if kept]
    table = []
    for name, model in models.items():
        report, change = reports[name].by_group, first.changes[name]
        row: dict[str, Any] = {"model": name}
        for one in terms.metrics:
            values = [report[group][one.name] for group in groups]
            if one is not metric:  # has an interval where it can be judged
                values = [own[one.name] for own in report.values() if not np.isnan(own[f"{one.name}_low"])]
            values = [value for value in values if not np.isnan(value)]
            mean, worst = _columns_of(one)
            row[mean] = reports[name].overall[one.name]
            row[worst] = (min if one.larger_is_better else max)(values, default=np.nan)
        known = [group for group in groups if not np.isnan(report[group][metric.name])]
        best_last = min if metric.larger_is_better else max
        regrets = [report[group]["risk"] - minima[group] for group in groups if group in minima]
        fitted = final_estimator(model)
        certified = hasattr(fitted, "upper_bound_")
        row |= {
            "worst_group": best_last(known, key=lambda group: report[group][metric.name], default=None),
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


def _headroom(model: Any, plain: Any, rows: GivenRows, judged: Mask, terms: Terms) -> Headroom | None:
    """Return how much a model's worst group could gain from a linear model of the columns of plain training.

    None for losses, labels and models without such a bound.
    """
    if plain is None or rows.offset is not None:
        return None
    own = final_estimator(plain)
    if not (isinstance(terms.loss, str) and terms.loss == "auto") or terms.metrics[0].name != "risk":
        return None
    if is_classifier(own):
        bounded = SAME_AS_OURS.get(own.loss) == "log" and len(np.unique(rows.y)) > 1
        if not bounded or not hasattr(model, "predict_proba"):
            return None
    loss = None if is_classifier(own) else own._own_loss()
    large = rows.groups.only(np.flatnonzero(judged))
    members = np.unique(large.members)
    # A copy of rows from a file may not fit in memory.
    part = rows if len(members) == len(rows.y) else rows.take(members)
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
