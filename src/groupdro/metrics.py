"""Losses of rows, and scores of the worst group."""

from collections.abc import Mapping
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils.metadata_routing import UNUSED

from groupdro.arguments import check_choice, check_whole, naming, number_of_rows, shown
from groupdro.data import GroupedData
from groupdro.grouping import Grouping, read_groups

__all__ = [
    "WorstGroupScorer",
    "check_model",
    "final_estimator",
    "means_by_group",
    "read_labels",
    "row_losses",
    "take_columns",
    "worst_group_scorer",
]

Floats = NDArray[np.float64]


def take_columns(X: Any, names: str | list[str]) -> tuple[Any, Any]:
    """Divide a DataFrame into the columns that are named and the rest.

    Parameters
    ----------
    X : DataFrame
        A pandas or polars frame, or any that narwhals knows.
    names : str or list of str
        Columns to take.

    Returns
    -------
    taken, rest : Series or DataFrame or ndarray, DataFrame
        A Series for a single name. Columns of truth values come as an array of tuples: their combinations are the
        groups, while a frame of them would be read as a membership matrix.
    """
    wanted = [names] if isinstance(names, str) else names
    if not (isinstance(wanted, list | tuple) and wanted and all(isinstance(name, str) for name in wanted)):
        raise TypeError(f"group_by must be the name of a column or a list of names, got {shown(names)}.")
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        raise TypeError(f"group_by={names!r} names a column, so X must be a DataFrame; got {type(X).__name__}.")
    absent = [name for name in wanted if name not in frame.columns]
    if absent:
        raise ValueError(f"group_by names columns that X does not have: {absent}.")
    rest = nw.to_native(frame.drop(wanted))
    if isinstance(names, str):
        return nw.to_native(frame.get_column(names)), rest
    if all(frame.schema[name] == nw.Boolean for name in wanted):
        tuples = np.empty(len(frame), dtype=object)
        tuples[:] = list(zip(*(frame.get_column(name).to_list() for name in wanted), strict=True))
        return tuples, rest
    return nw.to_native(frame.select(wanted)), rest


def final_estimator(model: Any) -> Any:
    """Return the estimator inside pipelines, searches and wrappers."""
    for _ in range(20):
        if isinstance(model, Pipeline):
            model = model[-1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif hasattr(model, "estimator_"):
            model = model.estimator_
        else:
            break
    return model


def check_model(model: Any, name: str) -> None:
    """Refuse what cannot predict, such as the class in place of an object.

    Parameters
    ----------
    model : object
        What was given.
    name : str
        Name of the argument.
    """
    if isinstance(model, type) or not callable(getattr(model, "predict", None)):
        raise TypeError(f"{name} must be a fitted estimator, got {shown(model)}.")


def read_labels(y: Any, X: Any, *, numeric: bool) -> NDArray[Any]:
    """Return y as an array with one value a row of X.

    Parameters
    ----------
    y : array-like
        Labels or numbers.
    X : array-like
        The rows.
    numeric : bool
        Whether y must be finite numbers.

    Returns
    -------
    ndarray of shape (n_rows,)
        The labels.
    """
    n_rows = number_of_rows(X, "X")
    if isinstance(y, np.ma.MaskedArray) and y.mask.any():
        raise ValueError("y has masked entries: fill them or drop the rows.")
    with naming("y"):
        labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (n_rows,):
        raise ValueError(f"y must have one value a row of X ({n_rows}), got shape {labels.shape}.")
    if not len(labels):
        raise ValueError("X and y have no rows.")
    if numeric:
        try:
            if labels.dtype.kind in "mMc":
                raise TypeError
            labels = labels.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"y must be numbers for a regressor, got dtype {labels.dtype}.") from None
        if not np.isfinite(labels).all():
            raise ValueError("y has NaN or infinite values.")
    return labels


def means_by_group(values: Floats, grouping: Grouping, sample_weight: Any = None) -> Floats:
    """Average a quantity of the rows over each group.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        The quantity.
    grouping : Grouping
        The groups.
    sample_weight : array-like of shape (n_rows,), optional
        Weights, relative within each group.

    Returns
    -------
    ndarray of shape (n_groups,)
        The means.
    """
    column = np.asarray(values, dtype=np.float64)
    data = GroupedData.from_arrays(np.zeros((len(column), 1)), column, grouping, sample_weight)
    return data.group_means(data.y)


def row_losses(model: Any, X: Any, y: Any, loss: Any = "auto") -> Floats:
    """Return the loss of each row.

    Parameters
    ----------
    model : fitted estimator
        Any classifier or regressor of scikit-learn's kind.
    X, y : array-like
        Rows and labels.
    loss : {"auto", "log", "zero_one", "squared", "absolute"} or callable
        "auto" is the model's own loss for an estimator of this package, alone or inside pipelines and searches;
        otherwise the logarithmic loss for classifiers with probabilities (of which none counts as less than the
        rounding of a number), zero-one for other classifiers, and half the squared residual for regressors. A callable
        takes y and the predictions.

    Returns
    -------
    ndarray of shape (n_rows,)
        The losses.
    """
    if not callable(loss):
        check_choice(loss, "loss", ("auto", "log", "zero_one", "squared", "absolute"))
    if isinstance(loss, str) and loss == "auto":
        if hasattr(model, "_row_losses"):
            return np.asarray(model._row_losses(X, y))
        if hasattr(model, "best_estimator_"):
            return row_losses(model.best_estimator_, X, y)
        if isinstance(model, Pipeline):
            return row_losses(model[-1], model[:-1].transform(X) if len(model) > 1 else X, y)
        loss = ("log" if hasattr(model, "predict_proba") else "zero_one") if is_classifier(model) else "squared"
    labels = np.asarray(y)
    if callable(loss):
        losses = np.asarray(loss(labels, np.asarray(model.predict(X))), dtype=np.float64)
        if losses.shape != (len(labels),):
            raise ValueError(f"loss must return one number a row, got shape {losses.shape}.")
        if not np.isfinite(losses).all():
            raise ValueError("loss returned NaN or infinite values.")
        return losses
    if loss == "log":
        probability = np.asarray(model.predict_proba(X))
        with naming("y"):
            codes = np.searchsorted(model.classes_, labels).clip(0, len(model.classes_) - 1)
        known = np.asarray(model.classes_)[codes] == labels
        own = np.where(known, probability[np.arange(len(labels)), codes], 0.0)
        return -np.log(np.maximum(own, np.finfo(np.result_type(probability, np.float32)).eps))
    predicted = np.asarray(model.predict(X))
    if loss == "zero_one":
        return (predicted != labels).astype(np.float64)
    if loss == "squared":
        return np.asarray(0.5 * (predicted - labels.astype(np.float64)) ** 2)
    return np.abs(predicted - labels.astype(np.float64))


class WorstGroupScorer(BaseEstimator):
    """Score a model by its worst group; larger is better.

    Use it wherever scikit-learn takes `scoring`. Groups come by metadata routing, which it requests by itself, or from
    a column of X where `group_by` names one. Make one for each use: scorers that share a request disturb each other.

    Parameters
    ----------
    metric : {"risk", "accuracy", "regret"}, default="risk"
        Minus the largest average loss of a group; the least accuracy; or minus the largest regret, the average loss
        less the group's reference.
    loss : str or callable, default="auto"
        The loss of "risk" and "regret", as in `row_losses`.
    references : mapping, default=None
        Reference risk of each group for "regret"; by default those that the model was fitted with. These contain its
        penalty: to choose `alpha`, pass the same references for all candidates.
    group_by : str or list of str, default=None
        Columns of X that hold the groups, where no groups are passed.
    min_group_size : int, default=1
        Groups with fewer rows are left out: their scores are mostly noise.
    """

    __metadata_request__score = {"groups": True, "estimator": UNUSED}  # noqa: RUF012

    def __init__(
        self,
        metric: str = "risk",
        *,
        loss: Any = "auto",
        references: Mapping[Any, float] | None = None,
        group_by: str | list[str] | None = None,
        min_group_size: int = 1,
    ):
        self.metric = metric
        self.loss = loss
        self.references = references
        self.group_by = group_by
        self.min_group_size = min_group_size

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> float:
        """Score a fitted estimator; see `score`."""
        return self.score(estimator, X, y, sample_weight, groups=groups)

    def score(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> float:
        """Score a fitted estimator.

        Parameters
        ----------
        estimator : fitted estimator
            The model.
        X, y : array-like
            Rows and labels.
        sample_weight : array-like, optional
            Weights, relative within each group.
        groups : array-like, optional
            Groups of the rows.

        Returns
        -------
        float
            The score of the worst group.
        """
        check_choice(self.metric, "metric", ("risk", "accuracy", "regret"))
        check_whole(self.min_group_size, "min_group_size")
        check_model(estimator, "estimator")
        if groups is None:
            if self.group_by is None:
                raise ValueError(
                    "groups did not reach the scorer: turn on metadata routing "
                    "(sklearn.set_config(enable_metadata_routing=True)), or name a column of X by group_by."
                )
            groups, _ = take_columns(X, self.group_by)
        y = read_labels(y, X, numeric=not is_classifier(estimator))
        grouping = read_groups(groups, len(y), missing="own")
        judged = grouping.sizes >= self.min_group_size
        if not judged.any():
            raise ValueError(f"min_group_size={self.min_group_size} leaves no group to score.")
        if self.metric == "accuracy":
            if not is_classifier(estimator):
                raise ValueError("metric 'accuracy' needs a classifier; use 'risk' for a regressor.")
            right = (np.asarray(estimator.predict(X)) == y).astype(np.float64)
            return float(means_by_group(right, grouping, sample_weight)[judged].min())
        risks = means_by_group(row_losses(estimator, X, y, self.loss), grouping, sample_weight)
        if self.metric == "regret":
            names = [name for name, enough in zip(grouping.names, judged, strict=True) if enough]
            return -float((risks[judged] - self._references_of(estimator, names)).max())
        return -float(risks[judged].max())

    def _references_of(self, estimator: Any, names: list[Any]) -> Floats:
        known = self.references
        if known is None:
            if not (isinstance(self.loss, str) and self.loss == "auto"):
                raise ValueError("references must be given for regrets of another loss than the model's own.")
            inner = final_estimator(estimator)
            if not hasattr(inner, "reference_risks_"):
                raise ValueError("references must be given to score regrets of a model that was fitted without any.")
            known = dict(zip(inner.groups_.tolist(), inner.reference_risks_, strict=True))
        if not isinstance(known, Mapping):
            raise TypeError(f"references must be a mapping from group to number, got {shown(known)}.")
        lacking = [name for name in names if name not in known]
        if lacking:
            raise ValueError(f"references has no value for the group {lacking[0]!r}.")
        with naming("references"):
            values = np.array([known[name] for name in names], dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("references has NaN or infinite values.")
        return values


def worst_group_scorer(
    metric: str = "risk",
    *,
    loss: Any = "auto",
    references: Mapping[Any, float] | None = None,
    group_by: str | list[str] | None = None,
    min_group_size: int = 1,
) -> WorstGroupScorer:
    """Make a scorer of the worst group; see `WorstGroupScorer` for the parameters.

    Parameters
    ----------
    metric : {"risk", "accuracy", "regret"}
        What is scored.
    loss : str or callable
        The loss of "risk" and "regret".
    references : mapping, optional
        Reference risk of each group.
    group_by : str or list of str, optional
        Columns of X that hold the groups.
    min_group_size : int
        Rows that a group needs to be judged.

    Returns
    -------
    WorstGroupScorer
        A new scorer, with a metadata request of its own.
    """
    return WorstGroupScorer(metric, loss=loss, references=references, group_by=group_by, min_group_size=min_group_size)
