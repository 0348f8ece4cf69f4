"""Fit plain, balanced, robust and other models, and evaluate them on held-out data."""

from contextlib import nullcontext
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from groupdro.compare.comparison import Comparison
from groupdro.compare.contenders import ERM, check_models, fit_given, fit_own, place_of_model
from groupdro.compare.judging import Judging, judge
from groupdro.data.given import GivenRows, read_given
from groupdro.discovery import FoundGroups
from groupdro.estimators import GroupBy, GroupDROClassifier, GroupDRORegressor
from groupdro.estimators.defaults import estimator_for
from groupdro.evaluation.folds import divide
from groupdro.evaluation.metrics import read_metrics
from groupdro.evaluation.models import take_columns
from groupdro.evaluation.report import check_resampling
from groupdro.store import GroupedStore
from groupdro.utils.arguments import check_flag, check_number, check_whole, error_prefix, number_of_rows, short_repr
from groupdro.utils.types import Indices
from groupdro.utils.vectors import read_target

__all__ = ["compare"]


def compare(
    X: Any,
    y: Any = None,
    groups: Any = None,
    *,
    estimator: Any = None,
    models: Any = None,
    baseline: Any = None,
    metrics: Any = None,
    mean_budget: float | None = None,
    floor: float | None = None,
    sample_weight: Any = None,
    cluster: Any = None,
    held_out: tuple[Any, ...] | GroupedStore | None = None,
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
    """Fit plain, balanced and robust linear models, and compare them, and any models of yours, on held-out data.

    The linear models are ERM, which minimises the average risk; ERM with equal weight for every group; a blend of
    average and worst risk; GDRO, which minimises the worst risk; MERO, which minimises the worst excess risk; and a
    model whose robustness `GroupDROClassifierCV` or `GroupDRORegressorCV` chooses on the training data alone. All use
    the penalty of `estimator`.

    Parameters
    ----------
    X, y, groups : array-like
        Training data, labels and groups. Groups may be None if the estimator is a `GroupBy`, which takes them from X.
        Groups may also be what `find_groups` returned, if X has the columns that describe them. Rows on which they were
        found are then used for training only: they would show a gain where there is none.
        A `GroupedStore` as X has its own labels and groups; then models of yours must be fitted already.
    estimator : estimator, optional
        A `GroupDROClassifier` or `GroupDRORegressor` with the parameters to use, a pipeline that ends in one, or a
        `GroupBy` around either. The default is a classifier if y is text, boolean or has at most ten distinct integers,
        and a regressor otherwise. If its robustness is below 1, the blend uses it; otherwise the blend uses 0.5.
    models : dict of str to estimator, optional
        Other models to include, such as boosted trees. Unfitted ones are fitted here on X as it is, with groups,
        weights and clusters if they accept them. Fitted ones are used as they are and require `held_out`.
    baseline : str or estimator, optional
        The model in production, which another model must beat to be recommended: the name of one of `models` or of a
        linear model, such as "GDRO"; or a model, which is then added under the name "baseline". The default is "ERM".
    metrics : str, callable, or sequence or dict of these, optional
        Metrics of the table, as in `group_report`. The first one decides which model is recommended. The default is the
        risk, followed by the accuracy or the RMSE.
    mean_budget : float, optional
        By how much a model with a better worst group may be worse over all rows, in proportion to the baseline; or, for
        metrics of which larger values are better, in their own units. The default is by as much as the worst group
        gains.
    floor : float, optional
        Value of the first metric that the worst group must reach, such as an accuracy of 0.6. Models that reach it come
        first.
    sample_weight : array-like of shape (n_rows,), optional
        Weights of the rows, in training and in evaluation.
    cluster : array-like of shape (n_rows,), optional
        Labels of patients, users or sites whose rows are dependent. They are kept together in splits and resamples.
    held_out : tuple (X, y, groups) or GroupedStore, optional
        Held-out data on which to compare; groups as above, followed by sample_weight and cluster if used, since those
        of the training rows do not apply here. By default one fold of the training data is held out, stratified by
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
        Whether to print each model as it is fitted.
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
    largest net gain is recommended: the relative gain of the worst group minus the relative cost over all rows. If
    there is none and the baseline is "ERM", the choice of cross-validation is recommended if it left plain training on
    the training rows and the held-out rows do not contradict it.

    The confidence intervals are simultaneous over all models: rows, or clusters of rows, are resampled for all models
    together, and the largest studentised deviation over the models determines their width. The bootstrap fails for a
    maximum of nearly tied means, so the interval of a gain is built from paired differences: from the smallest
    improvement among the groups that may be the worst under the model, to the largest improvement among those that may
    be the worst under the baseline. The more groups may be the worst, the wider the interval.
    """
    check_resampling(n_bootstrap, confidence, min_rows, random_state, least=20)
    check_flag(verbose, "verbose")
    if cv is not None:
        check_whole(cv, "cv", least=2)
    if mean_budget is not None:
        check_number(mean_budget, "mean_budget")
    if floor is not None:
        check_number(abs(floor) if isinstance(floor, int | float) else floor, "floor")  # it may be negative
    listed = isinstance(held_out, tuple | list) and 3 <= len(held_out) <= 5
    if held_out is not None and not (listed or isinstance(held_out, GroupedStore)):
        raise ValueError(f"held_out must be a triple of X, y and groups, got {short_repr(held_out)}.")
    others = check_models(models, held_out=held_out is not None)
    if baseline is not None and not isinstance(baseline, str):
        if "baseline" in others:
            raise ValueError('baseline must be the name of one of models if one of them is called "baseline".')
        others |= check_models({"baseline": baseline}, held_out=held_out is not None)
        baseline = "baseline"
    stored = isinstance(X, GroupedStore)
    if stored and held_out is None:
        raise ValueError(
            "held_out is required if X is a store: write both with GroupedStore.write(..., test_size=0.2)."
        )
    if estimator is None and stored:
        estimator = GroupDRORegressor() if X.classes is None else GroupDROClassifier()
    elif estimator is None:
        estimator = estimator_for(read_target(y, number_of_rows(X, "X"), numeric=False))
    wrapper = estimator if isinstance(estimator, GroupBy) else None
    inner = estimator if wrapper is None else wrapper.estimator
    place_of_model(inner)
    classes = is_classifier(estimator)
    train = read_given(
        X,
        y,
        groups if stored else _groups_of(wrapper, X, groups, "groups"),
        sample_weight=sample_weight,
        cluster=cluster,
        numeric=not classes,
    )
    if not stored:
        train.check_weight_of_groups()
        train = train.with_weight()
    metrics = ("risk", "accuracy" if classes else "rmse") if metrics is None else metrics
    wanted = read_metrics(metrics, train.weights)
    if held_out is None:
        rows, test_rows = _divide(train, groups, n_splits=n_splits, seed=random_state, classes=classes)
        train, test = train.take(rows), train.take(test_rows)
    elif isinstance(held_out, GroupedStore):
        test = held_out.given()
    else:
        X_test, y_test, test_groups, *more = held_out
        weight, clusters = (*more, None, None)[:2]
        with error_prefix("held_out"):
            if isinstance(test_groups, FoundGroups) and (seen := len(test_groups.seen(X_test))):
                raise ValueError(f"groups were found on {seen} of these rows, which cannot show if a repair helps.")
            test = read_given(
                X_test,
                y_test,
                _groups_of(wrapper, X_test, test_groups, "held_out"),
                sample_weight=weight,
                cluster=clusters,
                numeric=not classes,
                missing="own",
            ).with_weight()
    wanted = wanted if test.weights is None else read_metrics(metrics, test.weights)
    selecting = {"min_rows": min_rows, "n_bootstrap": n_bootstrap, "confidence": confidence, "n_jobs": n_jobs}
    fitted, seconds = {}, {}
    for name, model, spent in (
        *fit_own(inner, wrapper, X if stored else train, cv=cv, seed=random_state, **selecting),
        *fit_given(others, X if stored else train),
    ):
        fitted[name], seconds[name] = model, spent
        if verbose:
            print(f"{name}: {'given' if np.isnan(spent) else f'fitted in {spent:.1f} s'}", flush=True)
    if baseline is not None and baseline not in fitted:
        raise ValueError(f"baseline must be one of {list(fitted)}, or a model; got {baseline!r}.")
    how = Judging(
        metrics=wanted,
        baseline=ERM if baseline is None else baseline,
        loss=loss,
        mean_budget=mean_budget,
        floor=floor,
        min_rows=min_rows,
        n_bootstrap=n_bootstrap,
        confidence=confidence,
        seed=random_state,
    )
    with error_prefix("held_out") if held_out is not None else nullcontext():
        return judge(fitted, seconds, test, how)


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
