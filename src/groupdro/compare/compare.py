"""Fit plain, balanced, robust and other models, and evaluate them on held-out data."""

from contextlib import nullcontext
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from groupdro.compare.comparison import Comparison
from groupdro.compare.contenders import (
    check_models,
    check_names,
    efforts_of,
    fit_given,
    fit_own,
    is_fitted,
    place_of_model,
)
from groupdro.compare.judging import Terms, judge
from groupdro.data.given import GivenRows, read_given
from groupdro.discovery import FoundGroups
from groupdro.estimators import GroupBy, GroupDROClassifier, GroupDRORegressor
from groupdro.estimators.defaults import estimator_for
from groupdro.evaluation.folds import divide
from groupdro.evaluation.judgement import Resampling
from groupdro.evaluation.metrics import Metric, read_metrics
from groupdro.evaluation.models import take_columns
from groupdro.evaluation.predictions import Answers, Predictions, answered
from groupdro.store import GroupedStore
from groupdro.utils.arguments import check_number, check_whole, error_prefix, number_of_rows, short_repr
from groupdro.utils.progress import Steps, shows_progress
from groupdro.utils.types import Floats, Indices
from groupdro.utils.vectors import read_target

__all__ = ["compare"]


@shows_progress
def compare(
    X: Any = None,
    y: Any = None,
    groups: Any = None,
    *,
    estimator: Any = "auto",
    models: Any = None,
    baseline: Any = None,
    metrics: Any = None,
    mean_budget: float | None = None,
    floor: float | dict[str, float] | None = None,
    sample_weight: Any = None,
    cluster: Any = None,
    offset: Any = None,
    held_out: Any = None,
    loss: Any = "auto",
    cv: int | None = 5,
    n_splits: int = 4,
    min_rows: int = 30,
    n_bootstrap: int = 500,
    confidence: float = 0.95,
    n_jobs: int | None = None,
    verbose: bool = False,
    random_state: int = 0,
) -> Comparison:
    """Compare plain, balanced and robust linear models, and any models of yours, on held-out data.

    The linear models are fitted here: ERM, which minimises the average risk; ERM with equal weight for every group; a
    blend of average and worst risk; GDRO, which minimises the worst risk; MERO, which minimises the worst excess risk;
    and a model whose robustness `GroupDROClassifierCV` or `GroupDRORegressorCV` chooses on the training data alone. All
    use the penalty of `estimator`. Without cross-validation (`cv=None`), three blends are tried instead of one.

    Parameters
    ----------
    X, y, groups : array-like
        Training data, labels and groups; if nothing is to be fitted and `held_out` is None, the rows to compare the
        models on, which they have not seen. X is None for predictions. Groups may be None if the estimator is a
        `GroupBy`, which takes them from X. Groups may also be what `find_groups` returned, if X has the columns that
        describe them. Rows on which they were found are then used for training only: they would show a gain where there
        is none. A `GroupedStore` as X has its own labels and groups; then models of yours must be fitted already.
    estimator : estimator, optional
        A `GroupDROClassifier` or `GroupDRORegressor` with the parameters to use, a pipeline that ends in one, or a
        `GroupBy` around either. The default is a classifier if y is text, boolean or has at most ten distinct integers,
        and a regressor otherwise. If its robustness is below 1, the blend uses it; otherwise the blend uses 0.5, or
        with ``cv=None`` 0.1, 0.5 and 0.9 are tried. None compares your models only, on columns of any kind.
    models : dict of str to estimator or Predictions, optional
        Other models to include, such as boosted trees. Unfitted ones are fitted here on X as it is, with groups,
        weights, clusters and offsets if they accept them. Fitted ones are used as they are; beside models that are
        fitted here, they require `held_out`. `Predictions` are compared among themselves, without X.
    baseline : str or estimator, optional
        The model in production, which another model must beat to be recommended: the name of one of `models` or of a
        linear model, such as "GDRO"; or a model, which is then added under the name "baseline". The default is "ERM",
        or the first of `models` without linear models.
    metrics : str, callable, or sequence or dict of these, optional
        Metrics of the table, as in `group_report`. The first one decides which model is recommended. The default is the
        risk, followed by the accuracy or the RMSE. A one-sided rate ("recall", "precision", "false_positive_rate" or
        "false_negative_rate") decides nothing alone, because a useless model has the best value: see `floor`.
    mean_budget : float, optional
        By how much a model with a better worst group may be worse over all rows, in proportion to the baseline; or, for
        metrics of which larger values are better, in their own units. Of the models within this budget, the one whose
        worst group gains most is recommended. The default is by as much as the worst group gains. It is about the first
        metric, and so does not guard a one-sided rate: a model that always predicts the positive class has a better
        recall over all rows, too.
    floor : float or dict of str to float, optional
        What the worst group must reach: a value of the first metric, such as an accuracy of 0.6, or values by the name
        of the metric, such as ``{"precision": 0.3}``; ceilings for metrics of which smaller values are better. Models
        that reach the floor of the first metric come first. Models that miss that of another metric, which is added to
        the table, are not recommended. With a one-sided rate as the first metric, other models than the baseline are
        recommended only with such a floor (of precision or the false positive rate for recall and the false negative
        rate, and the reverse; or of any other metric), or if `metrics` has another one after it that is not one-sided,
        such as "log_loss": models that are significantly worse by that, over all rows or in the worst group, are then
        not recommended.
    sample_weight : array-like of shape (n_rows,), optional
        Weights of the rows, in training and in evaluation.
    cluster : array-like of shape (n_rows,), optional
        Labels of patients, users or sites whose rows are dependent. They are kept together in splits and resamples.
    offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
        Offsets of the rows, for the models that take them.
    held_out : tuple (X, y, groups), dict or GroupedStore, optional
        Held-out data on which to compare; groups as above. A dict has these three by name, and `sample_weight`,
        `cluster` and `offset` if used, since those of the training rows do not apply here. The verdict says so if they
        are the training rows in the same order. By default one fold of the training data is held out, stratified by
        group and class, except for rows whose class the training part would lack.
    loss : str or callable
        Loss behind all risks, as in `group_report`. The default is that of the estimator. Classifiers of other kinds
        can be compared by default only if it is the logistic loss.
    cv : int or None
        Number of folds for choosing the robustness; None leaves that model out.
    n_splits : int
        One fold of `n_splits` is held out if `held_out` is None.
    min_rows : int
        Effective number of held-out rows a group needs to count as a candidate for the worst. Smaller groups are too
        noisy to compare.
    n_bootstrap : int
        Number of bootstrap resamples for the confidence intervals.
    confidence : float
        Level of the confidence intervals.
    n_jobs : int, optional
        Number of folds of the cross-validation that are fitted in parallel with joblib.
    verbose : bool
        Whether to print each model as it is fitted, and after five seconds how long it may still take.
    random_state : int
        Seed for the split, the fits and the resamples.

    Returns
    -------
    Comparison
        What to use, in a sentence and a table; with `summary(details=True)` also the evidence.

    Notes
    -----
    A model is supported by the data if its worst group is significantly better than that of the baseline, and it costs
    no more over all rows than `mean_budget` allows; or if it is significantly better over all rows, and neither its
    worst group nor any other is significantly worse. Of the supported models, whoever made them, the one with the
    largest net gain is recommended: the relative gain of the worst group minus the relative cost over all rows; with
    `mean_budget`, that with the largest gain of the worst group. If there is none and the baseline is "ERM", the choice
    of cross-validation is recommended if it left plain training on the training rows and the held-out rows do not
    contradict it. A model that predicts the same, or almost the same, for every held-out row is never recommended: the
    same class, for a metric of classes; or numbers, probabilities or scores whose standard deviation is below a
    thousandth of their size and of the standard deviation of what they predict. Nor, for a metric of classes, is a
    classifier whose mean recall over the classes is within three standard errors of that of a guess.

    The confidence intervals are simultaneous over all models: rows, or clusters of rows, are resampled for all models
    together, and the largest studentised deviation over the models determines their width. The bootstrap fails for a
    maximum of nearly tied means, so the interval of a gain is built from paired differences: from the smallest
    improvement among the groups that may be the worst under the model, to the largest improvement among those that may
    be the worst under the baseline. The more groups may be the worst, the wider the interval.
    """
    resampling = Resampling(n_bootstrap, confidence, min_rows, random_state).check(least=20)
    if cv is not None:
        check_whole(cv, "cv", least=2)
    if mean_budget is not None:
        check_number(mean_budget, "mean_budget")
    _check_floor(floor)
    check_names(models)
    if baseline is not None and not isinstance(baseline, str):
        if "baseline" in (models or {}):
            raise ValueError('baseline must be the name of one of models if one of them is called "baseline".')
        models, baseline = {**(models or {}), "baseline": baseline}, "baseline"
    models, X = _answered(models, X, y)
    linear = None if X is None or _all_answered(models) else estimator
    stored = isinstance(X, GroupedStore)
    if isinstance(linear, str) and linear == "auto":
        linear = _default_estimator(X, y)
    nothing_to_fit = linear is None and all(map(is_fitted, (models or {}).values()))
    known = held_out is not None or nothing_to_fit
    others = check_models(models, held_out=known)
    if linear is None and not others:
        raise ValueError("models must have at least one model if estimator is None.")
    if stored and not known:
        raise ValueError(
            "held_out is required if X is a store: write both with GroupedStore.write(..., test_size=0.2)."
        )
    wrapper = linear if isinstance(linear, GroupBy) else None
    inner = linear if wrapper is None else wrapper.estimator
    if linear is not None:
        place_of_model(inner)
    classes = is_classifier(next(iter(others.values())) if linear is None else linear)
    train = read_given(
        X,
        y,
        groups if stored else _groups_of(wrapper, X, groups, "groups"),
        sample_weight=sample_weight,
        cluster=cluster,
        offset=offset,
        numeric=not classes,
        missing="own" if nothing_to_fit and held_out is None else "error",
    )
    if not stored:
        train.check_weight_of_groups()
        train = train.with_weight()
    if held_out is not None:
        test = _read_held_out(held_out, wrapper, numeric=not classes)
    elif nothing_to_fit:
        test = train
    else:
        first, rest = _divide(train, groups, n_splits=n_splits, seed=random_state, classes=classes)
        train, test = train.take(first), train.take(rest)
    metrics = ("risk", "accuracy" if classes else "rmse") if metrics is None else metrics
    _read_floors(floor, metrics, train.weights)  # what is wrong with them is said before anything is fitted
    wanted, floors = _read_floors(floor, metrics, test.weights)
    selecting = {"min_rows": min_rows, "n_bootstrap": n_bootstrap, "confidence": confidence, "n_jobs": n_jobs}
    rows = X if stored else train
    own = () if linear is None else fit_own(inner, wrapper, rows, cv=cv, seed=random_state, **selecting)
    fitted, seconds = {}, {}
    efforts = efforts_of(inner, cv) if linear is not None else {}
    steps = Steps("fitting", sum(efforts.values()) + sum(not is_fitted(model) for model in others.values()))
    for name, model, spent in (*own, *fit_given(others, rows)):
        fitted[name], seconds[name] = model, spent
        if verbose:
            print(f"{name}: {'given' if np.isnan(spent) else f'fitted in {spent:.1f} s'}", flush=True)
        if not np.isnan(spent):
            steps.done(efforts.get(name, 1.0))
    if baseline is not None and baseline not in fitted:
        raise ValueError(f"baseline must be one of {list(fitted)}, or a model; got {baseline!r}.")
    terms = Terms(
        metrics=wanted,
        baseline=next(iter(fitted)) if baseline is None else baseline,
        loss=loss,
        mean_budget=mean_budget,
        floors=floors,
        resampling=resampling,
    )
    with error_prefix("held_out") if held_out is not None else nullcontext():
        return judge(fitted, seconds, test, terms)


def _answered(models: Any, X: Any, y: Any) -> tuple[Any, Any]:
    """Return models and rows; of predictions, models that look them up by the number of the row."""
    if not isinstance(models, dict) or not any(isinstance(model, Predictions) for model in models.values()):
        return models, X
    if not all(isinstance(model, Predictions) for model in models.values()):
        raise TypeError("models has predictions and models, which take different rows: pass the predictions of all.")
    found = {}
    for name, model in models.items():
        with error_prefix(f"models[{name!r}]"):
            found[name], numbers = answered(model, X, y)
    return found, numbers


def _all_answered(models: Any) -> bool:
    return isinstance(models, dict) and any(isinstance(model, Answers) for model in models.values())


def _default_estimator(X: Any, y: Any) -> Any:
    """Return an estimator for the kind of labels."""
    if isinstance(X, GroupedStore):
        return GroupDRORegressor() if X.classes is None else GroupDROClassifier()
    return estimator_for(read_target(y, number_of_rows(X, "X"), numeric=False))


def _read_held_out(held_out: Any, wrapper: GroupBy | None, *, numeric: bool) -> GivenRows:
    """Return the rows to judge the models on."""
    if isinstance(held_out, GroupedStore):
        return held_out.given()
    if isinstance(held_out, tuple | list) and len(held_out) == 3:
        held_out = dict(zip(("X", "y", "groups"), held_out, strict=True))
    allowed = {"X", "y", "groups", "sample_weight", "cluster", "offset"}
    if not (isinstance(held_out, dict) and {"X", "y"} <= {*held_out} <= allowed):
        raise ValueError(
            "held_out must be a triple of X, y and groups, or a dict of these and sample_weight, cluster or offset, "
            f"got {short_repr(held_out)}."
        )
    groups = held_out.get("groups")
    with error_prefix("held_out"):
        if isinstance(groups, FoundGroups) and (seen := len(groups.seen(held_out["X"]))):
            raise ValueError(f"groups were found on {seen} of these rows, which cannot show if a repair helps.")
        own = _groups_of(wrapper, held_out["X"], groups, "held_out")
        return read_given(**{**held_out, "groups": own}, numeric=numeric, missing="own").with_weight()


def _check_floor(floor: Any) -> None:
    values = floor.values() if isinstance(floor, dict) else [] if floor is None else [floor]
    for value in values:
        check_number(abs(value) if isinstance(value, int | float) else value, "floor")  # it may be negative
    if isinstance(floor, dict) and not all(isinstance(name, str) for name in floor):
        raise TypeError(f"floor must be a number, or a dict from names of metrics to numbers; got {short_repr(floor)}.")


def _read_floors(floor: Any, metrics: Any, weights: Floats | None) -> tuple[tuple[Metric, ...], dict[str, float]]:
    """Return the metrics, with those that only have a floor at the end, and the floors by name."""
    wanted = read_metrics(metrics, weights)
    if not isinstance(floor, dict):
        return wanted, {} if floor is None else {wanted[0].name: float(floor)}
    names = {metric.name for metric in wanted}
    with error_prefix("floor"):
        wanted = read_metrics([*wanted, *(name for name in floor if name not in names)], weights)
    for metric in wanted:
        if metric.name in floor and not metric.ranks:
            raise ValueError(f"floor has {metric.name!r}, of which neither large nor small values are better.")
    return wanted, {name: float(value) for name, value in floor.items()}


def _divide(rows: GivenRows, groups: Any, *, n_splits: int, seed: int, classes: bool) -> tuple[Indices, Indices]:
    """Return training and held-out rows. Rows on which groups were found are never held out."""
    seen = groups.seen(rows.X) if isinstance(groups, FoundGroups) else np.empty(0, np.int64)
    others = np.setdiff1d(np.arange(len(rows.y)), seen)
    if not len(others):
        raise ValueError("groups were found on all rows of X: pass held_out, rows that the search has not seen.")
    train, test = next(divide(rows.take(others), n_splits=n_splits, seed=seed, classes=classes))
    return np.sort(np.concatenate([seen, others[train]])), others[test]


def _groups_of(wrapper: GroupBy | None, X: Any, groups: Any, argument: str) -> Any:
    """Return the given groups, or those in the columns that a `GroupBy` names."""
    if groups is not None:
        return groups
    if wrapper is None:
        raise ValueError(f"{argument} must have the groups of the rows, unless estimator is a GroupBy.")
    with error_prefix(argument):
        return take_columns(X, wrapper.group_by)[0]
