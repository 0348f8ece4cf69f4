"""Evaluation of models on held-out data: risks, gains and prices, with confidence intervals."""

from typing import Any

import numpy as np
from sklearn.base import is_classifier

from groupdro.compare.comparison import Change, Comparison
from groupdro.compare.contenders import CHOSEN, ERM, MERO
from groupdro.compare.verdict import Choice, recommend, verdict_on
from groupdro.data.given import GivenRows
from groupdro.data.grouping import Grouping
from groupdro.estimators import GroupDROClassifier, GroupDROClassifierCV, GroupDRORegressor, GroupDRORegressorCV
from groupdro.evaluation.headroom import Headroom, headroom
from groupdro.evaluation.inference import (
    Resampled,
    falls_of_worst,
    has_few,
    resample,
    simultaneous_intervals,
)
from groupdro.evaluation.metrics import final_estimator, row_losses
from groupdro.evaluation.report import GroupReport, group_report
from groupdro.run.result import relative_gap
from groupdro.utils.types import Floats, Mask

__all__ = ["judge"]

_SAME_AS_OURS = {"logistic": "log", "squared": "squared"}  # losses that models of other kinds can be evaluated with


def judge(
    models: dict[str, Any],
    seconds: dict[str, float],
    given: set[str],
    rows: GivenRows,
    *,
    loss: Any,
    min_rows: int,
    n_bootstrap: int,
    confidence: float,
    seed: int,
) -> Comparison:
    """Evaluate fitted models on held-out data.

    Parameters
    ----------
    models : dict of str to estimator
        The models, plain training first.
    seconds : dict of str to float
        Their fitting times.
    given : set of str
        Names of the user's models.
    rows : GivenRows
        The held-out rows.
    loss : str or callable
        Loss behind all risks.
    min_rows, n_bootstrap, confidence, seed : object
        As in `compare`.

    Returns
    -------
    Comparison
        The comparison.
    """
    grouping, weights, clusters = rows.groups, rows.weights, rows.clusters
    losses = _losses(models, rows, loss)
    names = list(models)
    options: dict[str, Any] = {"n_bootstrap": n_bootstrap, "seed": seed, "clusters": clusters, "weights": weights}
    found = resample(losses, grouping, **options)
    judged = found.judged(min_rows)
    if is_classifier(models[ERM]) and not found.binary.all():
        judged &= ~has_few(models[ERM].predict(rows.X) != rows.y, grouping, clusters, weights)
    left_out = [name for name, enough in zip(grouping.names, judged, strict=True) if not enough]
    some = bool(judged.any())
    judged |= not some  # if no group has enough rows, the table still shows all of them
    overall = resample(losses, _of_all(len(rows.y)), **options)
    changes = _changes(names, found, overall, judged, confidence, known=some)
    reports = {
        name: group_report(
            model, rows.X, rows.y, rows.groups, sample_weight=weights, cluster=clusters,
            loss=_loss_of(model, models[ERM], name, loss), min_rows=min_rows, n_bootstrap=n_bootstrap,
            confidence=confidence, random_state=seed,
        )
        for name, model in models.items()
    }  # fmt: skip
    own_loss = isinstance(loss, str) and loss == "auto"
    room = _headroom(models[ERM], rows, grouping, judged) if own_loss and some else None
    linear = {name: change for name, change in changes.items() if name not in given}
    search = _inside(models[CHOSEN]) if CHOSEN in models else None
    choice = None if search is None else Choice(search.robustness_, search.message_)
    recommended = recommend(linear, choice) if some else ERM
    verdict = verdict_on(
        linear,
        recommended,
        confidence=confidence,
        choice=choice,
        better=_better(names, given, found, overall, judged, recommended, confidence) if some else {},
        left_out=left_out,
        judged=some,
    )
    if room is not None:
        verdict += f" The headroom of ERM: {room.message}"
    return Comparison(
        columns=_columns(models, seconds, reports, changes, found, grouping, judged, with_regrets=own_loss),
        verdict=verdict,
        recommended=recommended,
        changes=changes,
        differences=_differences(names, found, grouping, judged, confidence),
        models=models,
        reports=reports,
        left_out=left_out,
        confidence=confidence,
        headroom=room,
    )


def _of_all(n_rows: int) -> Grouping:
    return Grouping(np.array([0, n_rows]), np.arange(n_rows), ("all",), overlapping=False)


def _losses(models: dict[str, Any], rows: GivenRows, loss: Any) -> Floats:
    columns = [
        row_losses(model, rows.X, rows.y, _loss_of(model, models[ERM], name, loss)) for name, model in models.items()
    ]
    return np.stack(columns, axis=1)


def _loss_of(model: Any, plain: Any, name: str, loss: Any) -> Any:
    """Return the loss by which to evaluate a model like plain training."""
    if not (isinstance(loss, str) and loss == "auto"):
        return loss
    inner, own = final_estimator(model), final_estimator(plain).loss
    if isinstance(inner, GroupDROClassifier | GroupDRORegressor) and repr(inner.loss) == repr(own):
        return "auto"
    if own not in _SAME_AS_OURS:
        raise ValueError(f"models[{name!r}] cannot be evaluated by the loss {own!r}; choose another with loss=.")
    if own == "logistic" and not hasattr(model, "predict_proba"):
        raise ValueError(f"models[{name!r}] has no predict_proba, which log loss requires; choose another loss=.")
    return _SAME_AS_OURS[own]


def _inside(model: Any) -> Any:
    """Return the cross-validated estimator inside wrappers and pipelines."""
    while not isinstance(model, GroupDROClassifierCV | GroupDRORegressorCV):
        model = model.estimator_ if hasattr(model, "estimator_") else model[-1]
    return model


def _changes(
    names: list[str], found: Resampled, overall: Resampled, judged: Mask, confidence: float, *, known: bool
) -> dict[str, Change]:
    """Return the changes of each model. The interval of the worst is NaN if no group has enough rows."""
    worst = falls_of_worst(found, confidence, against=0, groups=judged)
    if not known:
        worst.low[1:] = worst.high[1:] = np.nan
    mean = falls_of_worst(overall, confidence, against=0, groups=np.ones(1, dtype=bool))
    before = float(found.means[judged, 0].max()), float(overall.means[0, 0])
    return {
        name: Change(
            (float(worst.estimates[k]), float(worst.low[k]), float(worst.high[k])),
            (0.0 - float(mean.estimates[k]), 0.0 - float(mean.high[k]), 0.0 - float(mean.low[k])),
            *before,
        )
        for k, name in enumerate(names)
    }


def _better(
    names: list[str],
    given: set[str],
    found: Resampled,
    overall: Resampled,
    judged: Mask,
    recommended: str,
    confidence: float,
) -> dict[str, tuple[float, float]]:
    """Return worst and average risk of the user's models that are better on the worst group, best first."""
    falls = falls_of_worst(found, confidence, against=names.index(recommended), groups=judged)
    better = {
        name: (float(found.means[judged, k].max()), float(overall.means[0, k]))
        for k, name in enumerate(names)
        if name in given and falls.low[k] > 0
    }
    return dict(sorted(better.items(), key=lambda item: item[1]))


def _differences(
    names: list[str], found: Resampled, grouping: Grouping, judged: Mask, confidence: float
) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {"model": [], "group": [], "difference": [], "low": [], "high": []}
    for k, name in enumerate(names[1:], start=1):
        intervals = simultaneous_intervals(found, confidence, kind=k, against=0, groups=judged)
        for i in np.flatnonzero(judged):
            ends = intervals.estimates[i], intervals.low[i], intervals.high[i]
            for key, value in zip(table, (name, grouping.names[i], *map(float, ends)), strict=True):
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
    *,
    with_regrets: bool,
) -> dict[str, list[Any]]:
    """Return the table of the models. Excess risks are NaN if risks and group minima use different losses."""
    inner = final_estimator(models[MERO])
    minima = dict(zip(inner.groups_.tolist(), inner.group_minima_, strict=True)) if with_regrets else {}
    measure = "accuracy" if is_classifier(models[ERM]) else "rmse"
    groups = [name for name, enough in zip(grouping.names, judged, strict=True) if enough]
    table = []
    for k, (name, model) in enumerate(models.items()):
        report, change, risks = reports[name], changes[name], found.means[judged, k]
        measured = [report.by_group[group][measure] for group in groups]
        regrets = [risk - minima[group] for risk, group in zip(risks, groups, strict=True) if group in minima]
        fitted = final_estimator(model)
        certified = hasattr(fitted, "upper_bound_")
        table.append(
            {
                "model": name,
                "mean_risk": report.overall["risk"],
                "worst_risk": float(risks.max()),
                "worst_group": groups[int(risks.argmax())],
                "gain": change.fall[0],
                "gain_low": change.fall[1],
                "gain_high": change.fall[2],
                "price": change.rise[0],
                "worst_regret": float(max(regrets, default=np.nan)),
                measure: report.overall[measure],
                f"worst_{measure}": (min if measure == "accuracy" else max)(measured),
                "gap": relative_gap(fitted.gap_, fitted.upper_bound_) if certified else np.nan,
                "seconds": seconds[name],
            }
        )
    return {key: [row[key] for row in table] for key in table[0]}


def _headroom(plain: Any, rows: GivenRows, grouping: Grouping, judged: Mask) -> Headroom | None:
    """Return how much plain training's worst group could gain; None for losses and labels without such a bound."""
    loss = final_estimator(plain).loss
    if loss != "squared" and not (loss == "logistic" and len(np.unique(rows.y)) > 1):
        return None
    large = grouping.only(np.flatnonzero(judged))
    members = np.unique(large.members)
    part = rows.take(members)
    return headroom(plain, part.X, part.y, large.restrict(members), sample_weight=part.weights)
