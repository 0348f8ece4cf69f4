"""Plain, balanced, robust and any other models, fitted and judged on held-out rows."""

from contextlib import nullcontext
from typing import Any

from sklearn.base import is_classifier

from groupdro.compare.comparison import Comparison
from groupdro.compare.contenders import Rows, check_models, fit_given, fit_own, place_of_model
from groupdro.compare.judging import judge
from groupdro.data.grouping import indexable_groups
from groupdro.estimators import GroupBy
from groupdro.estimators.defaults import estimator_for
from groupdro.evaluation.folds import divide
from groupdro.evaluation.inference import read_clusters, read_weights
from groupdro.evaluation.metrics import take_columns
from groupdro.evaluation.report import check_resampling
from groupdro.utils.arguments import check_whole, error_prefix, number_of_rows, short_repr

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
    """Fit plain, balanced and robust linear models, with any others next to them, and judge them on held-out rows.

    The linear models are ERM, which minimises the average risk; ERM with every group of the same weight; a blend of
    average and worst; GDRO, the worst risk; MERO, the worst regret; and the robustness that `GroupDROClassifierCV` or
    `GroupDRORegressorCV` chooses on the training rows alone. All have the penalty of `estimator`.

    Parameters
    ----------
    X, y, groups : array-like
        Training rows, labels and groups. Groups may be None where the estimator is a `GroupBy`, which takes them from
        X.
    estimator : estimator, optional
        A `GroupDROClassifier` or `GroupDRORegressor` with the parameters to use, a pipeline that ends in one, or a
        `GroupBy` around either. By default a classifier where y is text, truth values or up to ten different whole
        numbers, otherwise a regressor. Its robustness, where below 1, is that of the blend, which is 0.5 otherwise.
    models : dict of str to estimator, optional
        Other models, such as boosted trees. Those that are not fitted are fitted here on X as it is, with groups,
        weights and clusters where they take them; fitted ones are judged as they are and need `held_out`.
    sample_weight : array-like of shape (n_rows,), optional
        Weights of the rows, in training and in judging.
    cluster : array-like of shape (n_rows,), optional
        Patients, users or sites whose rows belong together: in one part of every split, and in the resamples.
    held_out : tuple (X, y, groups), optional
        The rows to judge on; groups as above, and after them sample_weight and cluster where there are any. By default
        one fold of the training rows, stratified on group and class, is held out, but for rows of classes that
        training would lack.
    loss : str or callable
        The loss behind all risks, as of `group_report`. By default that of the estimator, by which other models can be
        judged where it is the logarithmic or the squared one.
    cv : int or None
        Folds by which the robustness is chosen; None leaves that model out.
    n_splits : int
        One over the share that is held out.
    min_rows : int
        Effective number of held-out rows that a group needs to be judged as the worst.
    n_bootstrap : int
        Resamples behind the intervals.
    confidence : float
        Level of the intervals.
    random_state : int
        Seed of the split, the fits and the resamples.

    Returns
    -------
    Comparison
        The table, the verdict, the models and their reports.

    Notes
    -----
    Robustness is said to help only where the worst group's risk falls beyond chance, and by a larger share than the
    average rises. The intervals hold for all models together: rows, or clusters of them, are resampled for all models
    alike, and the largest studentised deviation over the models says how wide the intervals must be.
    """
    check_resampling(n_bootstrap, confidence, min_rows, random_state, least=20)
    if cv is not None:
        check_whole(cv, "cv", least=2)
    if held_out is not None and not (isinstance(held_out, tuple | list) and 3 <= len(held_out) <= 5):
        raise ValueError(f"held_out must be a triple of X, y and groups, got {short_repr(held_out)}.")
    others = check_models(models, held_out=held_out is not None)
    n_rows = number_of_rows(X, "X")
    number_of_rows(y, "y")
    estimator = estimator_for(y) if estimator is None else estimator
    wrapper = estimator if isinstance(estimator, GroupBy) else None
    inner = estimator if wrapper is None else wrapper.estimator
    place_of_model(inner)
    read_weights(sample_weight, n_rows)
    clusters = read_clusters(cluster, n_rows)
    train = Rows(X, y, _groups_of(wrapper, X, groups, "groups"), sample_weight, cluster)
    given = held_out is not None
    if held_out is None:
        folds = divide(
            X, y, indexable_groups(train.groups), n_splits=n_splits, seed=random_state, clusters=clusters,
            classes=is_classifier(estimator),
        )  # fmt: skip
        rows, test_rows = next(folds)
        train, test = train.take(rows), train.take(test_rows)
    else:
        X_test, y_test, test_groups, *more = held_out
        test = Rows(X_test, y_test, _groups_of(wrapper, X_test, test_groups, "held_out"), *more)
    selecting = {"min_rows": min_rows, "n_bootstrap": n_bootstrap, "confidence": confidence}
    fitted, seconds = {}, {}
    for name, model, spent in (
        *fit_own(inner, wrapper, train, cv=cv, seed=random_state, **selecting),
        *fit_given(others, train),
    ):
        fitted[name], seconds[name] = model, spent
    with error_prefix("held_out") if given else nullcontext():
        return judge(
            fitted, seconds, set(others), test, loss=loss, min_rows=min_rows, n_bootstrap=n_bootstrap,
            confidence=confidence, seed=random_state,
        )  # fmt: skip


def _groups_of(wrapper: GroupBy | None, X: Any, groups: Any, argument: str) -> Any:
    """Return the groups that were given, or those in the columns that a `GroupBy` names."""
    if groups is not None:
        return groups
    if wrapper is None:
        raise ValueError(f"{argument} must have the groups of the rows, unless estimator is a GroupBy.")
    with error_prefix(argument):
        return take_columns(X, wrapper.group_by)[0]
