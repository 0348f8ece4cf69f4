"""Find groups of rows in which a model fails, and report those that are not chance."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.base import clone, is_classifier
from sklearn.utils.validation import has_fit_parameter

from groupdro.data.given import GivenRows, read_clusters, read_given, read_weights, refuse_other_order
from groupdro.discovery.bounds import Group, Judged, Quantity, Sampling, judge
from groupdro.discovery.conditions import Columns, Rule, encode
from groupdro.discovery.found import FoundGroups, note_on
from groupdro.discovery.search import search, unexplained_by
from groupdro.evaluation.folds import divide
from groupdro.evaluation.headroom import headroom
from groupdro.evaluation.judgement import Resampling
from groupdro.evaluation.metrics import METRICS, Metric, read_metrics
from groupdro.evaluation.models import call_inner, check_model
from groupdro.evaluation.outputs import Outputs
from groupdro.evaluation.predictions import Predictions, answered
from groupdro.evaluation.statistics import Average
from groupdro.utils.arguments import check_number, check_whole, number_of_rows
from groupdro.utils.progress import Steps, shows_progress
from groupdro.utils.types import Indices, Mask
from groupdro.utils.vectors import read_finite

__all__ = ["find_groups"]

MISCALIBRATION = "miscalibration"
_LEAST_ROWS, _LEAST_SHARE = 50, 0.01  # default of min_rows: in the half of the rows that is searched, and in the other
_POWER = float(norm.ppf(0.8))
_EXAMPLE = 0.1  # share of the rows for which the detectable difference is computed


@shows_progress
def find_groups(
    model: Any = None,
    X: Any = None,
    y: Any = None,
    *,
    columns: Any = None,
    losses: Any = None,
    loss: Any = "auto",
    metrics: Any = None,
    cv: int | None = None,
    max_conditions: int = 3,
    min_rows: int | None = None,
    n_groups: int = 5,
    sample_weight: Any = None,
    cluster: Any = None,
    offset: Any = None,
    level: float = 0.95,
    n_bootstrap: int = 1000,
    linear: Any = None,
    verbose: bool = False,
    random_state: int = 0,
) -> FoundGroups:
    """Find groups of rows in which a model fails, and report those that are not chance.

    One random half of the rows is searched for conditions on describing columns, such as "age > 62 & region = north",
    under which the average loss is large. The other half judges the few best candidates. Reported are those that are
    worse than the other rows with the confidence `level`, which holds for all of them at once: on data without any such
    group, something is reported with a probability of at most ``1 - level``.

    Parameters
    ----------
    model : estimator or Predictions, optional
        Any classifier or regressor: fitted on other rows, or an estimator to be fitted if `cv` is a number; or what a
        model predicted, without `X` and with `columns`. Not needed if `losses` are given.
    X, y : array-like, optional
        Rows that the model was not fitted on, and their labels.
    columns : DataFrame or array-like of shape (n_rows, n_columns), optional
        Columns that describe the rows: numbers, text, booleans, dates, in any library that narwhals supports. They need
        not be features of the model. The default is X. The label is not among them unless you put it there.
    losses : array-like of shape (n_rows,), optional
        The loss of each row, in place of `model`, `X` and `y`. `columns` is then required.
    loss : {"auto", "log", "zero_one", "squared", "absolute"} or callable
        The loss of a row under the model, as in `group_report`.
    metrics : str, callable, or sequence or dict of these, optional
        Metrics to search by in place of the loss, as in `group_report`: those that are averages over rows, such as
        "recall" (finds missed positives), "false_positive_rate", "accuracy", "precision", "brier" or "mae". Also
        "miscalibration": what happened minus what was predicted, in both directions, compared with 0 and not with other
        rows. It finds groups whose probabilities or numbers are too low or too high, where the loss finds those that
        are hard to predict. With
        several metrics, the confidence holds for all of them together.
    cv : int, optional
        Number of folds: every row is then judged by a copy of `model` that was fitted without its fold.
    max_conditions : int
        Largest number of conditions of a group.
    min_rows : int, optional
        Effective number of rows (or clusters) that a group needs in either half. The default is 50, or 1% of the half
        if that is more.
    n_groups : int
        Largest number of groups per metric.
    sample_weight : array-like of shape (n_rows,), optional
        Weights of the rows.
    cluster : array-like of shape (n_rows,), optional
        Labels of patients, users or sites whose rows are dependent. They are not divided between the halves or folds,
        and are resampled as a whole.
    offset : array-like, optional
        Offsets of the rows, if the model was fitted with them.
    level : float
        Probability with which all lower bounds hold.
    n_bootstrap : int
        Number of bootstrap resamples.
    linear : bool, Pipeline or transformer, optional
        Linear models with which to compare the groups, by `headroom`: True for the default columns of `headroom`, or
        what computes the columns. A group whose loss no linear model can lower noticeably is hard, not neglected.
    verbose : bool
        Whether to print the progress, and after five seconds how long it may still take.
    random_state : int
        Seed of the halves, the folds and the resamples.

    Returns
    -------
    FoundGroups
        The groups, worst first; possibly none.

    Notes
    -----
    The search keeps the 20 best conjunctions of each length, by the studentised difference of the mean loss inside and
    outside. Losses other than zero-one are clipped at their 99% quantile for it. Numbers are compared with up to 63
    quantiles. Each of the 200 most frequent categories is a condition of its own, and so is a missing value. A group
    has at most half of the rows. After the first group, each further one is searched for in the losses that the groups
    before it do not explain: those minus their mean over the rows that are in the same groups. Two groups overlap by at
    most half. What the search half shows is optimistic and never reported.

    The lower bounds use the bootstrap of the largest studentised deviation: rows of the other half, or clusters of
    them, are resampled with Poisson weights, and each resample is studentised by its own standard error. A group that
    was found after others must pass a second test of the same kind: it must be worse than those others explain.

    A few rows of very small loss inside, or of very large loss outside, can be missing from a sample, which then shows
    too large a difference. So the bound is half as far again below the difference where fewer than ten effective rows
    (or clusters) carry the variance on these sides: the squared sum of the squared deviations over the sum of their
    squares. For the inside it is their share among all rows, times the rows inside, because a group that lacks such
    rows does not show it.
    """
    check_number(level, "level", positive=True)
    if level >= 1:
        raise ValueError(f"level must be below 1, got {level!r}.")
    Resampling(n_bootstrap, level, 0, random_state).check(least=20)
    check_whole(max_conditions, "max_conditions", least=1)
    check_whole(n_groups, "n_groups", least=1)
    if min_rows is not None:
        check_whole(min_rows, "min_rows", least=20)
    if isinstance(model, Predictions):
        if columns is None:
            raise ValueError("columns must be given with predictions: they describe the rows.")
        if cv is not None or linear is not None:
            raise ValueError("cv and linear need a model and X, not predictions.")
        refuse_other_order(y, called="y", columns=columns)
    if losses is None:
        more = {"sample_weight": sample_weight, "cluster": cluster, "offset": offset}
        refuse_other_order(X, columns=columns)
        given, quantities, in_sample = _of_model(model, X, y, loss, metrics, cv, seed=random_state, **more)
        sampling, n_rows = Sampling(given.clusters, given.weights), len(given.y)
        described = Columns(given.X if columns is None else columns, "X" if columns is None else "columns")
    else:
        _refuse(model=model, X=X, y=y, metrics=metrics, cv=cv, linear=linear)
        refuse_other_order(columns, called="columns", losses=losses, sample_weight=sample_weight, cluster=cluster)
        n_rows = number_of_rows(losses, "losses")
        given, in_sample = None, None
        values = read_finite(losses, "losses", n_rows).astype(np.float64)
        quantities = [Quantity("loss", values, np.ones(n_rows, dtype=bool))]
        sampling = Sampling(read_clusters(cluster, n_rows), read_weights(sample_weight, n_rows))
        if columns is None:
            raise ValueError("columns must be given with losses: they describe the rows.")
        described = Columns(columns)
    if described.n_rows != n_rows:
        raise ValueError(f"columns has {described.n_rows} rows, but there are {n_rows}.")
    # Seeds of their own: with the given one, the draws would repeat the random numbers of data simulated with it.
    split_seed, draw_seed = np.random.SeedSequence(random_state).generate_state(2).tolist()
    quantities = [quantity.scaled() for quantity in quantities]
    searched, judging = _halves(n_rows, sampling, split_seed)
    least = max(_LEAST_ROWS, math.ceil(_LEAST_SHARE * len(searched))) if min_rows is None else int(min_rows)
    encoded = encode(described, searched, least)
    _say(verbose, f"{len(encoded.conditions)} conditions on {len(described.names)} columns")
    found = []
    for quantity in quantities:
        rows = searched[quantity.counted[searched]]
        some = len(encoded.conditions) > 0 and len(rows) >= 2 * least
        options: dict[str, Any] = {"least": least, "depth": max_conditions, "n_groups": n_groups}
        found.append(search(encoded, rows, quantity.losses, sampling, **options) if some else [])
    _say(verbose, f"{sum(map(len, found))} candidates in {len(searched)} rows")
    rules = [Rule(tuple(encoded.conditions[c] for c in one.rule)) for those in found for one in those]
    groups = [
        Group(quantity.take(judging), encoded.holds(one.rule, judging))
        for quantity, those in zip(quantities, found, strict=True)
        for one in those
    ]
    there = sampling.take(judging)
    judged, reported = _judge(groups, there, least=least, level=level, n_bootstrap=n_bootstrap, seed=draw_seed)
    table = [_figures(rules[k], groups[k], judged, k, there) for k in reported]
    names = [name for name in _TABLE if name != "metric" or len(quantities) > 1]
    if linear is None or linear is False:
        names.remove("headroom")
    else:
        for row, k in zip(table, reported, strict=True):
            row["headroom"] = _headroom(model, given, rules[k].holds(described), linear)
            row["note"] = note_on(row["headroom"])
    # Without any bound, such as where there is no candidate, that of independent normal numbers.
    critical = float(norm.ppf(level ** (1.0 / n_groups))) if np.isnan(judged.critical) else judged.critical
    limit = max(critical, found[0][0].score if found[0] else 0.0)
    return FoundGroups(
        columns={name: [row[name] for row in table] for name in names},
        rules=tuple(rules[k] for k in reported),
        level=level,
        metrics=tuple(each.name for each in quantities),
        searched=tuple(described.names),
        n_conditions=len(encoded.conditions),
        n_rows=(len(searched), len(judging)),
        detectable=(_EXAMPLE, _detectable(quantities[0].take(judging), there, limit, least)),
        in_sample=in_sample,
        _seen=encoded.keys[np.concatenate([searched, judging])],
    )


_TABLE = "group", "metric", "rows", "share", "inside", "outside", "difference", "at_least", "headroom", "note"


def _judge(groups: list[Group], sampling: Sampling, **options: Any) -> tuple[Judged, list[int]]:
    """Return the bounds of all groups, and the numbers of those to report, worst first.

    A group that was found after others must also be worse than those others explain.
    """
    judged = judge(groups, sampling, **options)
    rest: dict[int, Group] = {}
    for k in np.flatnonzero(judged.low > 0).tolist():
        quantity = groups[k].quantity
        before = [one.inside for one in groups[:k] if one.quantity.name == quantity.name]
        if before:
            losses = unexplained_by(before, quantity.losses, sampling.mass(quantity.counted))
            rest[k] = Group(replace(quantity, losses=losses), groups[k].inside)
    # That they are worse than the other rows was decided above, with the care that few rows with the variance need.
    further = judge([*rest.values()], sampling, **options, careful=False).low
    explained = {k for k, low in zip(rest, further, strict=True) if not low > 0}
    return judged, [
        k for k in np.argsort(-judged.low, kind="stable").tolist() if judged.low[k] > 0 and k not in explained
    ]


def _figures(rule: Rule, group: Group, judged: Judged, k: int, sampling: Sampling) -> dict[str, Any]:
    """Return the figures of a group in the table, all of them from the rows that it was judged on."""
    quantity, inside = group.quantity, group.inside & group.quantity.counted
    mass = sampling.mass(quantity.counted)
    return {
        "group": str(rule),
        "metric": quantity.name,
        "rows": int(inside.sum()),
        "share": float(mass[inside].sum() / mass.sum()),
        "inside": quantity.sign * quantity.unit * float(judged.inside[k]) + 0.0,
        "outside": quantity.sign * quantity.unit * float(judged.outside[k]) + 0.0,
        "difference": quantity.unit * float(judged.difference[k]),
        "at_least": quantity.unit * float(judged.low[k]),
        "note": "",
    }


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"{name} must not be given together with losses.")


def _say(verbose: bool, text: str) -> None:
    if verbose:
        print(text, flush=True)


def _of_model(
    model: Any, X: Any, y: Any, loss: Any, metrics: Any, cv: int | None, *, offset: Any, seed: int, **more: Any
) -> tuple[GivenRows, list[Quantity], bool | None]:
    """Return the rows, what is compared on them, and whether the model was fitted on them."""
    model, X = answered(model, X, y)
    if model is None or X is None:
        raise ValueError("model, X and y must be given, or losses and columns.")
    check_model(model, "model")
    classes = is_classifier(model)
    given = read_given(X, y, None, offset=offset, numeric=not classes, **more)
    given_names = [metrics] if isinstance(metrics, str) else metrics
    apart = isinstance(given_names, list | tuple) and MISCALIBRATION in given_names
    if apart:
        metrics = [name for name in given_names if name != MISCALIBRATION]
    wanted = () if apart and not metrics else read_metrics("risk" if metrics is None else metrics)
    if cv is None:
        outputs = Outputs.of_model(model, given.X, given.y, loss=loss, offset=given.offset)
        return (
            given,
            _quantities(wanted, outputs, miscalibration=apart),
            call_inner(model, given.X, "_are_training_rows", given.y),
        )
    check_whole(cv, "cv", least=2)
    if offset is not None:
        raise ValueError("offset requires a fitted model, not cv.")
    shape = len(wanted) + 2 * apart, len(given.y)
    losses, counted = np.zeros(shape), np.zeros(shape, dtype=bool)
    steps = Steps(f"fitting {cv} folds", cv)
    for train, test in divide(given, n_splits=cv, seed=seed, classes=classes):
        part, rest = given.take(train), given.take(test)
        fits = part.weights is not None and has_fit_parameter(model, "sample_weight")
        own = clone(model).fit(part.X, part.y, **({"sample_weight": part.weights} if fits else {}))
        outputs = Outputs.of_model(own, rest.X, rest.y, loss=loss)
        found = _quantities(wanted, outputs, miscalibration=apart)
        steps.done()
        losses[:, test], counted[:, test] = [one.losses for one in found], [one.counted for one in found]
    return given, [replace(one, losses=losses[k], counted=counted[k]) for k, one in enumerate(found)], False


def _quantities(metrics: tuple[Metric, ...], outputs: Outputs, *, miscalibration: bool) -> list[Quantity]:
    """Return what is compared: metrics, and what happened minus what was predicted, in both directions."""
    found = [_quantity(metric, outputs) for metric in metrics]
    if miscalibration:
        outputs.check_labels()
        above = outputs.positive - outputs.probabilities[:, 1] if outputs.classifies else -outputs.residual
        counted = np.ones(len(above), dtype=bool)
        named = {"predicted too low": above, "predicted too high": -above}
        found += [Quantity(name, losses, counted, absolute=True) for name, losses in named.items()]
    return found


def _quantity(metric: Metric, outputs: Outputs) -> Quantity:
    outputs.check_labels()
    statistic = metric.of(outputs)
    if not (isinstance(statistic, Average) and metric.scale == "plain"):
        averages = [name for name, one in METRICS.items() if one.task in (None, metric.task) and name in _AVERAGES]
        raise ValueError(
            f"metric {metric.name!r} is not an average over rows, by which groups could be found; use {averages}, or "
            "loss= for a function of labels and predictions."
        )
    name = "loss" if metric is METRICS["risk"] else metric.name
    sign = -1.0 if metric.larger_is_better else 1.0
    return Quantity(name, sign * statistic.values, statistic.counted, sign)


_AVERAGES = (
    *("risk", "accuracy", "recall", "precision", "false_positive_rate", "false_negative_rate"),
    *("brier", "log_loss", "mae"),
)


def _halves(n_rows: int, sampling: Sampling, seed: int) -> tuple[Indices, Indices]:
    """Return the rows to search and those to judge on: random halves of the rows or clusters with a weight."""
    rows = np.arange(n_rows) if sampling.weights is None else np.flatnonzero(sampling.weights)
    units = rows if sampling.clusters is None else sampling.clusters[rows]
    known = np.unique(units)
    chosen = np.random.default_rng(seed).permutation(known)[: len(known) // 2]
    first = np.isin(units, chosen)
    return rows[first], rows[~first]


def _detectable(quantity: Quantity, sampling: Sampling, limit: float, least: int) -> float:
    """Return how much worse a group must be to be found with a probability of 80%, approximately.

    It must exceed the best score that chance gave in the search, and the lower bound must exceed zero: the limit is the
    larger of both. NaN if a group of that share would have too few rows.
    """
    n = sampling.effective_size(quantity.counted)
    if n * _EXAMPLE < least:
        return np.nan
    spread = float(np.std(quantity.losses[quantity.counted]))
    return float(quantity.unit * (limit + _POWER) * spread / np.sqrt(n * _EXAMPLE * (1.0 - _EXAMPLE)))


def _headroom(model: Any, given: GivenRows | None, inside: Mask, linear: Any) -> float:
    """Return the largest share of a group's loss that any linear model could gain on its rows; NaN without classes."""
    assert given is not None  # losses without a model are refused before
    own = given.take(np.flatnonzero(inside))
    if is_classifier(model) and len(np.unique(own.y)) < 2:
        return np.nan
    return headroom(
        model,
        own.X,
        own.y,
        None,
        linear=None if linear is True else linear,
        sample_weight=own.weights,
        offset=own.offset,
    ).headroom
