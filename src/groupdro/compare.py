"""The price of robustness: plain, balanced and robust models side by side on held-out rows."""

import html
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from groupdro.data.grouping import Grouping, indexable_groups, read_groups
from groupdro.estimators import GroupBy, GroupDROClassifier, GroupDRORegressor
from groupdro.estimators.defaults import estimator_for
from groupdro.evaluation.folds import GroupStratifiedKFold, keep_classes
from groupdro.evaluation.headroom import Headroom, headroom
from groupdro.evaluation.metrics import final_estimator, row_losses, take_columns
from groupdro.evaluation.report import GroupReport, check_resampling, group_report, middle_of
from groupdro.run.result import relative_gap
from groupdro.utils.arguments import error_prefix, number_of_rows, printable, short_repr
from groupdro.utils.text import group_name, table_html, table_text
from groupdro.utils.types import Array, Floats

__all__ = ["Comparison", "compare"]


ERM, BALANCED, GDRO, MERO = "ERM", "balanced ERM", "GDRO", "MERO"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Four models on the same held-out rows, and whether robustness was worth it.

    Attributes
    ----------
    columns : dict of str to list
        One row per model: `mean_risk` over all rows, `worst_risk` and `worst_group`, `worst_regret` against the least
        training risk that any such model reaches in a group, `accuracy` and `worst_accuracy` (or `rmse` and
        `worst_rmse`), `gap`, the certified relative gap of the fit, and `seconds`.
    verdict : str
        What robustness bought here, and at what price.
    worth_it : bool
        Whether GDRO's worst held-out group is better off than under ERM beyond chance.
    gain : tuple of float
        Fall of the worst held-out risk from ERM to GDRO: estimate, and both ends of its interval.
    models : dict of str to estimator
        The fitted models.
    reports : dict of str to GroupReport
        Their reports on the held-out rows.
    left_out : list
        Groups with too few held-out rows to be judged as the worst.
    headroom : Headroom or None
        What ERM's worst held-out group could gain from any linear model at most; None for other losses than the
        logarithmic and the squared one.
    """

    columns: dict[str, list[Any]]
    verdict: str
    worth_it: bool
    gain: tuple[float, float, float]
    models: dict[str, Any]
    reports: dict[str, GroupReport]
    left_out: list[Any]
    headroom: Headroom | None = None

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            One row per model.
        """
        import pandas as pd

        return pd.DataFrame(self.columns)

    def to_polars(self) -> Any:
        """Return the table as a polars DataFrame.

        Returns
        -------
        polars.DataFrame
            One row per model.
        """
        import polars as pl

        return pl.DataFrame({**self.columns, "worst_group": [group_name(g) for g in self.columns["worst_group"]]})

    def __repr__(self) -> str:
        return f"{table_text('Held-out rows', self.columns)}\n{printable(self.verdict)}"

    def _repr_html_(self) -> str:
        return f"{table_html('Held-out rows', self.columns)}<p>{html.escape(self.verdict)}</p>"


def compare(
    X: Any,
    y: Any,
    groups: Any = None,
    *,
    estimator: Any = None,
    held_out: tuple[Any, Any, Any] | None = None,
    n_splits: int = 4,
    min_rows: int = 30,
    n_bootstrap: int = 500,
    confidence: float = 0.95,
    random_state: int = 0,
) -> Comparison:
    """Fit ERM, group-balanced ERM, GDRO and MERO, and judge them on held-out rows.

    Where the estimator has a robustness below 1, that blend is a fifth model; GDRO and MERO have 1.

    Parameters
    ----------
    X, y, groups : array-like
        Training rows, labels and groups. Groups may be None where the estimator is a `GroupBy`, which takes them from
        X.
    estimator : estimator, optional
        A `GroupDROClassifier` or `GroupDRORegressor` with the parameters to use, a pipeline that ends in one, or a
        `GroupBy` around either. By default a classifier where y is text, truth values or up to ten different whole
        numbers, otherwise a regressor.
    held_out : tuple (X, y, groups), optional
        The rows to judge on; groups as above. By default one fold of the training rows, stratified on group and class,
        is held out, but for rows of classes that training would lack.
    n_splits : int
        One over the share that is held out.
    min_rows : int
        Held-out rows that a group needs to be judged as the worst.
    n_bootstrap : int
        Resamples behind the verdict.
    confidence : float
        Level of the verdict's interval.
    random_state : int
        Seed of the split, the fits and the resamples.

    Returns
    -------
    Comparison
        The table, the verdict, the models and their reports.
    """
    check_resampling(n_bootstrap, confidence, min_rows, random_state, least=1)
    if held_out is not None and not (isinstance(held_out, tuple | list) and len(held_out) == 3):
        raise ValueError(f"held_out must be a triple of X, y and groups, got {short_repr(held_out)}.")
    number_of_rows(X, "X")
    number_of_rows(y, "y")
    estimator = estimator_for(y) if estimator is None else estimator
    wrapper = estimator if isinstance(estimator, GroupBy) else None
    inner = estimator if wrapper is None else wrapper.estimator
    path = _place_of_model(inner)
    groups = _groups_of(wrapper, X, groups, "groups")
    given = held_out is not None
    if held_out is None:
        groups = indexable_groups(groups)
        folds = GroupStratifiedKFold(n_splits, random_state=random_state)
        train, test = next(folds.split(X, y, groups))
        if is_classifier(estimator):
            train, test = keep_classes(train, test, np.asarray(y))
        held_out = tuple(_safe_indexing(part, test) for part in (X, y, groups))
        X, y, groups = (_safe_indexing(part, train) for part in (X, y, groups))
    else:
        held_out = held_out[0], held_out[1], _groups_of(wrapper, held_out[0], held_out[2], "held_out")
    features = X if wrapper is None else wrapper._without_groups(X)
    n_rows = len(np.asarray(y))
    models, seconds = {}, []
    blend = float(final_estimator(inner).robustness)
    for name, fit_groups, weight, objective, robustness in _ways(groups, n_rows, blend):
        changed = {"objective": objective, "random_state": random_state, "robustness": robustness}
        changed |= {"reference_risks": None} if objective == "risk" else {}
        model = clone(inner).set_params(**{path + key: value for key, value in changed.items()})
        more = {"groups": fit_groups} if weight is None else {"groups": fit_groups, "sample_weight": weight}
        begun = time.perf_counter()
        with config_context(enable_metadata_routing=False):  # the names of steps lead the way here
            model.fit(features, y, **{path + key: value for key, value in more.items()})
        models[name] = model if wrapper is None else wrapper._holding(model)
        if final_estimator(model)._interrupted:
            raise KeyboardInterrupt  # which ended this fit alone, and there is nothing to compare yet
        seconds.append(time.perf_counter() - begun)
    with error_prefix("held_out") if given else nullcontext():
        return _judge(models, seconds, held_out, min_rows, n_bootstrap, confidence, random_state)


def _groups_of(wrapper: GroupBy | None, X: Any, groups: Any, argument: str) -> Any:
    """Return the groups that were given, or those in the columns that a `GroupBy` names."""
    if groups is not None:
        return groups
    if wrapper is None:
        raise ValueError(f"{argument} must have the groups of the rows, unless estimator is a GroupBy.")
    with error_prefix(argument):
        return take_columns(X, wrapper.group_by)[0]


def _place_of_model(estimator: Any) -> str:
    """Return the prefix by which the parameters of the model at the end of pipelines are known."""
    path = ""
    while isinstance(estimator, Pipeline):
        name, estimator = estimator.steps[-1]
        path += f"{name}__"
    if not isinstance(estimator, GroupDROClassifier | GroupDRORegressor):
        raise TypeError(
            "estimator must be a GroupDROClassifier or GroupDRORegressor, a pipeline that ends in one, or a GroupBy "
            f"around either; got {type(estimator).__name__}."
        )
    return path


def _ways(groups: Any, n_rows: int, blend: float) -> list[tuple[str, Any, Any, str, float]]:
    """Return name, groups, weights, objective and robustness of each model."""
    one = np.zeros(n_rows, dtype=np.int64)
    grouping = read_groups(groups, n_rows, missing="own")
    balance = np.zeros(n_rows)
    for i, size in enumerate(grouping.sizes):
        balance[grouping.rows_of(i)] += 1.0 / size
    return [
        (ERM, one, None, "risk", 1.0),
        (BALANCED, one, balance, "risk", 1.0),
        *([(f"blend {blend:g}", groups, None, "risk", blend)] if blend < 1.0 else []),
        (GDRO, groups, None, "risk", 1.0),
        (MERO, groups, None, "excess_risk", 1.0),
    ]


def _judge(
    models: dict[str, Any],
    seconds: list[float],
    held_out: tuple[Any, Any, Any],
    min_rows: int,
    n_bootstrap: int,
    confidence: float,
    seed: int,
) -> Comparison:
    X, y, groups = held_out
    grouping = read_groups(groups, len(np.asarray(y)), missing="own")
    judged = grouping.sizes >= min_rows
    left_out = [name for name, enough in zip(grouping.names, judged, strict=True) if not enough]
    if not judged.any():
        judged[:], left_out = True, []
    reports = {name: group_report(model, X, y, groups, random_state=seed) for name, model in models.items()}
    room = None
    if _has_headroom(models[ERM], y):
        least = int(grouping.sizes[judged].min())
        room = headroom(models[ERM], X, y, grouping, min_rows=least)
    inner = final_estimator(models[MERO])
    reference = dict(zip(inner.groups_.tolist(), inner.reference_risks_, strict=True))
    measure = "accuracy" if is_classifier(models[ERM]) else "rmse"
    names = [name for name, enough in zip(grouping.names, judged, strict=True) if enough]
    rows = {}
    for (name, report), spent in zip(reports.items(), seconds, strict=True):
        by_group = report.by_group
        risk, measured = ({group: by_group[group][key] for group in names} for key in ("risk", measure))
        regrets = [risk[group] - reference[group] for group in names if group in reference]
        worst = max(risk, key=lambda group: risk[group])
        fitted = final_estimator(models[name])
        rows[name] = {
            "model": name,
            "mean_risk": report.overall["risk"],
            "worst_risk": risk[worst],
            "worst_group": worst,
            "worst_regret": max(regrets, default=np.nan),
            measure: report.overall[measure],
            f"worst_{measure}": (min if measure == "accuracy" else max)(measured.values()),
            "gap": relative_gap(fitted.gap_, fitted.upper_bound_),
            "seconds": spent,
        }
    before, after = (row_losses(models[name], X, y) for name in (ERM, GDRO))
    gain = _gain(before, after, grouping, judged, n_bootstrap, confidence, seed)
    columns = {key: [row[key] for row in rows.values()] for key in rows[ERM]}
    verdict = _verdict(rows, gain, measure, confidence, left_out)
    if room is not None:
        verdict += f" The headroom of ERM: {room.message}"
    return Comparison(columns, verdict, gain[1] > 0, gain, models, reports, left_out, room)


def _has_headroom(model: Any, y: Any) -> bool:
    """Return whether a model's loss is that of a headroom, and the rows have classes to tell apart."""
    loss = final_estimator(model).loss
    return loss == "squared" or (loss == "logistic" and len(np.unique(np.asarray(y))) > 1)


def _gain(
    before: Floats, after: Floats, grouping: Grouping, judged: Array, n: int, confidence: float, seed: int
) -> tuple[float, float, float]:
    """Return the fall of the worst risk and its interval, resampling the rows of each group for both models alike."""
    rng = np.random.default_rng(seed)
    worst, point = np.full((2, n), -np.inf), np.full(2, -np.inf)
    for i in np.flatnonzero(judged):
        own = grouping.rows_of(int(i))
        pair = np.stack([before[own], after[own]])
        point = np.maximum(point, pair.mean(axis=1))
        for k in range(n):
            worst[:, k] = np.maximum(worst[:, k], pair[:, rng.integers(0, len(own), len(own))].mean(axis=1))
    return float(point[0] - point[1]), *middle_of(worst[0] - worst[1], confidence)


def _verdict(
    rows: dict[str, dict[str, Any]],
    gain: tuple[float, float, float],
    measure: str,
    confidence: float,
    left_out: list[Any],
) -> str:
    _, low, high = gain
    before, after = rows[ERM]["worst_risk"], rows[GDRO]["worst_risk"]
    price = rows[GDRO]["mean_risk"] - rows[ERM]["mean_risk"]
    interval = f"{confidence:.0%} confidence interval of the improvement {low:.2g} to {high:.2g}"
    shown = f"{before:.4g} under ERM, {after:.4g} under GDRO ({interval})"
    if low > 0:
        text = (
            f"Robustness helps: the worst held-out group's risk is {shown}. The average risk changes by {price:+.2g}."
        )
    elif high < 0:
        text = f"Robustness harms here: the worst held-out group's risk is {shown}. Prefer ERM, or more data."
    else:
        text = (
            f"Robustness buys nothing here that the held-out rows can show: the worst group's risk is {shown}, "
            f"and the average risk changes by {price:+.2g}."
        )
    key = f"worst_{measure}"
    text += f" Worst-group {measure}: {rows[ERM][key]:.4g} under ERM, {rows[GDRO][key]:.4g} under GDRO."
    least = min(rows.values(), key=lambda row: row["worst_risk"])
    if least["model"] not in (ERM, GDRO) and least["worst_risk"] < min(before, after):
        text += f" {least['model']} has the least worst-group risk, {least['worst_risk']:.4g}."
    if left_out:
        groups = "1 group has" if len(left_out) == 1 else f"{len(left_out)} groups have"
        text += f" {groups} too few held-out rows to be judged."
    return text
