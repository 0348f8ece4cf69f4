"""Fit plain, balanced, robust and other models, and evaluate them on held-out data."""

from contextlib import nullcontext
from typing import Any

from sklearn.base import is_classifier

from groupdro.compare.comparison import Comparison
from groupdro.compare.contenders import check_models, fit_given, fit_own, place_of_model
from groupdro.compare.judging import judge
from groupdro.data.given import read_given
from groupdro.estimators import GroupBy
from groupdro.estimators.defaults import estimator_for
from groupdro.evaluation.folds import divide
from groupdro.evaluation.metrics import take_columns
from groupdro.evaluation.report import check_resampling
from groupdro.utils.arguments import check_whole, error_prefix, number_of_rows, short_repr
from groupdro.utils.vectors import read_target

__all__ = ["compare"]


def compare(
    X: Any,
    y: Any,
    groups: Any = None,
    *,
    estimator: Any = None,
    models: Any = None,
    sample_weight: Any = None,
    cluster: Any = None,
    held_out: tuple[Any, ...] | None = None,
    loss: Any = "auto",
    cv: int | None = 5,
    n_splits: int = 4,
    min_rows: int = 30,
    n_bootstrap: int = 500,
    confidence: float = 0.95,
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
    estimator : estimator, optional
        A `GroupDROClassifier` or `GroupDRORegressor` with the parameters to use, a pipeline that ends in one, or a
        `GroupBy` around either. The default is a classifier if y is text, boolean or has at most ten distinct integers,
        and a regressor otherwise. If its robustness is below 1, the blend uses it; otherwise the blend uses 0.5.
    models : dict of str to estimator, optional
        Other models to include, such as boosted trees. Unfitted ones are fitted here on X as it is, with groups,
        weights and clusters if they accept them. Fitted ones are used as they are and require `held_out`.
    sample_weight : array-like of shape (n_rows,), optional
        Weights of the rows, in training and in evaluation.
    cluster : array-like of shape (n_rows,), optional
        Labels of patients, users or sites whose rows are dependent. They are kept together in splits and resamples.
    held_out : tuple (X, y, groups), optional
        Held-out data on which to compare; groups as above, followed by sample_weight and cluster if used, since those
        of the training rows do not apply here. By default one fold of the training data is held out, stratified by
        group and class, except for rows whose class the training part would lack.
    loss : str or callable
        Loss behind all risks, as in `group_report`. The default is that of the estimator. Models of other kinds can be
        compared by default only if it is the logistic or the squared loss.
    cv : int or None
        Number of folds for choosing the robustness; None leaves that model out.
    n_splits : int
        One fold of `n_splits` is held out if `held_out` is None.
    min_rows : int
        Effective number of held-out rows a group needs to count as a candidate for the worst. Smaller groups have risks
        too noisy to compare.
    n_bootstrap : int
        Number of bootstrap resamples for the confidence intervals.
    confidence : float
        Level of the confidence intervals.
    random_state : int
        Seed for the split, the fits and the resamples.

    Returns
    -------
    Comparison
        The table, the verdict, the models and their reports.

    Notes
    -----
    Robustness is reported to help only if the worst group's risk falls significantly, and by a larger percentage than
    the average rises. The confidence intervals are simultaneous over all models: rows, or clusters of rows, are
    resampled for all models together, and the largest studentised deviation over the models determines their width. The
    bootstrap fails for a maximum of nearly tied means, so the interval of a gain is built from paired differences: from
    the smallest improvement among the groups that may be the worst under the model, to the largest improvement among
    those that may be the worst under ERM. The more groups may be the worst, the wider the interval.
    """
    check_resampling(n_bootstrap, confidence, min_rows, random_state, least=20)
    if cv is not None:
        check_whole(cv, "cv", least=2)
    if held_out is not None and not (isinstance(held_out, tuple | list) and 3 <= len(held_out) <= 5):
        raise ValueError(f"held_out must be a triple of X, y and groups, got {short_repr(held_out)}.")
    others = check_models(models, held_out=held_out is not None)
    if estimator is None:
        estimator = estimator_for(read_target(y, number_of_rows(X, "X"), numeric=False))
    wrapper = estimator if isinstance(estimator, GroupBy) else None
    inner = estimator if wrapper is None else wrapper.estimator
    place_of_model(inner)
    classes = is_classifier(estimator)
    train = read_given(
        X,
        y,
        _groups_of(wrapper, X, groups, "groups"),
        sample_weight=sample_weight,
        cluster=cluster,
        numeric=not classes,
    )
    train.check_weight_of_groups()
    train = train.with_weight()
    if held_out is None:
        rows, test_rows = next(divide(train, n_splits=n_splits, seed=random_state, classes=classes))
        train, test = train.take(rows), train.take(test_rows)
    else:
        X_test, y_test, test_groups, *more = held_out
        weight, clusters = (*more, None, None)[:2]
        with error_prefix("held_out"):
            test = read_given(
                X_test,
                y_test,
                _groups_of(wrapper, X_test, test_groups, "held_out"),
                sample_weight=weight,
                cluster=clusters,
                numeric=not classes,
                missing="own",
            ).with_weight()
    selecting = {"min_rows": min_rows, "n_bootstrap": n_bootstrap, "confidence": confidence}
    fitted, seconds = {}, {}
    for name, model, spent in (
        *fit_own(inner, wrapper, train, cv=cv, seed=random_state, **selecting),
        *fit_given(others, train),
    ):
        fitted[name], seconds[name] = model, spent
    with error_prefix("held_out") if held_out is not None else nullcontext():
        return judge(
            fitted, seconds, set(others), test, loss=loss, min_rows=min_rows, n_bootstrap=n_bootstrap,
            confidence=confidence, seed=random_state,
        )  # fmt: skip


def _groups_of(wrapper: GroupBy | None, X: Any, groups: Any, argument: str) -> Any:
    """Return the given groups, or those in the columns that a `GroupBy` names."""
    if groups is not None:
        return groups
    if wrapper is None:
        raise ValueError(f"{argument} must have the groups of the rows, unless estimator is a GroupBy.")
    with error_prefix(argument):
        return take_columns(X, wrapper.group_by)[0]
