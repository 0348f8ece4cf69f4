"""Queries of models inside pipelines, searches and wrappers: predictions, losses, group columns."""

from inspect import signature
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.base import is_classifier
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline

from groupdro.data import GroupedData
from groupdro.data.grouping import Grouping
from groupdro.data.mapping import mapping_of, nameless
from groupdro.data.rows import piece_rows
from groupdro.losses import Loss
from groupdro.utils.arguments import check_choice, number_of_rows, short_repr
from groupdro.utils.types import Floats
from groupdro.utils.vectors import class_codes

__all__ = [
    "call_inner",
    "check_model",
    "final_estimator",
    "means_by_group",
    "own_groups",
    "predictions_of",
    "row_losses",
    "take_columns",
]


_AT_ONCE = 1 << 26  # bytes of mapped rows that are passed to a model at once


def take_columns(X: Any, names: str | list[str]) -> tuple[Any, Any]:
    """Split a DataFrame into the named columns and the rest.

    Parameters
    ----------
    X : DataFrame
        A pandas or polars DataFrame, or any other that narwhals supports.
    names : str or list of str
        Columns to take.

    Returns
    -------
    taken, rest : Series or DataFrame or ndarray, DataFrame
        A Series for a single name. Boolean columns are returned as an array of tuples, because their combinations are
        the groups; a boolean frame would be read as a membership matrix.
    """
    wanted = [names] if isinstance(names, str) else names
    if not (isinstance(wanted, list | tuple) and wanted and all(isinstance(name, str) for name in wanted)):
        raise TypeError(f"group_by must be the name of a column or a list of names, got {short_repr(names)}.")
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
        elif hasattr(model, "best_estimator_") or hasattr(model, "estimator_"):
            model = model.best_estimator_ if hasattr(model, "best_estimator_") else model.estimator_
        else:
            break
    return model


def call_inner(model: Any, X: Any, method: str, *more: Any) -> Any:
    """Call a method of a model, or of the first model inside pipelines and searches that has it.

    Parameters
    ----------
    model : fitted estimator
        The model to query.
    X : array-like
        Rows in the form that `model` takes. The method receives them as transformed on the way to its model.
    method : str
        Name of the method.
    *more
        Further arguments of the method.

    Returns
    -------
    object
        The method's return value; None if no model has the method.
    """
    steps = []
    while not hasattr(model, method):
        if isinstance(model, Pipeline):
            steps += [model[:-1].transform] if len(model) > 1 else []
            model = model[-1]
        elif hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        else:
            return None
    for step in steps:
        X = step(X)
    return getattr(model, method)(X, *more)


def own_groups(model: Any, X: Any) -> Any:
    """Return the groups that a `GroupBy` takes from X, inside pipelines, searches and calibration; None without one."""
    for _ in range(20):
        if hasattr(model, "_own_groups"):
            return model._own_groups(X)
        if isinstance(model, Pipeline):
            X, model = model[:-1].transform(X) if len(model) > 1 else X, model[-1]
        elif hasattr(model, "calibrated_classifiers_"):
            model = model.calibrated_classifiers_[0].estimator
        else:
            model = getattr(model, "best_estimator_", getattr(model, "estimator_", None))
    return None


def predictions_of(model: Any, method: str, X: Any, offset: Any = None) -> Any:
    """Return a model's predictions, with offsets of the rows if given.

    Parameters
    ----------
    model : fitted estimator
        The model. A model inside pipelines and searches may be the one that takes offsets.
    method : str
        Name of the method, such as "predict".
    X : array-like
        Rows.
    offset : array-like, optional
        Offsets of the rows.

    Returns
    -------
    ndarray
        The predictions.
    """
    places = _pieces(X)
    if len(places) > 1:
        with nameless(X):
            return np.concatenate(
                [
                    predictions_of(model, method, np.array(X[place]), None if offset is None else offset[place])
                    for place in places
                ]
            )
    if offset is None:
        return np.asarray(getattr(model, method)(X))
    inner = final_estimator(model)
    # Do not just try: some models accept any keyword and ignore it.
    if "offset" not in signature(inner.predict).parameters:
        raise TypeError(f"offset requires a model fitted with one, but {type(inner).__name__} takes none.")
    while isinstance(model, BaseSearchCV):
        model = model.best_estimator_
    return np.asarray(getattr(model, method)(X, offset=offset))


def _pieces(X: Any) -> list[slice]:
    """Return the parts in which rows are passed to a model: a copy of a mapped file may not fit in memory."""
    n_rows = number_of_rows(X, "X")
    mapped = isinstance(X, np.ndarray) and mapping_of(X) is not None
    step = piece_rows(_AT_ONCE, X.shape[1]) if mapped else max(n_rows, 1)
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def check_model(model: Any, name: str) -> None:
    """Raise unless a model can predict. Catches a class passed in place of an instance.

    Parameters
    ----------
    model : object
        The argument.
    name : str
        Name of the argument.
    """
    if isinstance(model, type) or not callable(getattr(model, "predict", None)):
        raise TypeError(f"{name} must be a fitted estimator, got {short_repr(model)}.")


def means_by_group(values: Floats, grouping: Grouping, sample_weight: Any = None) -> Floats:
    """Average a quantity of the rows over each group.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        The quantity.
    grouping : Grouping
        The groups.
    sample_weight : array-like of shape (n_rows,), optional
        Weights of the rows, relative to the total of their group.

    Returns
    -------
    ndarray of shape (n_groups,)
        The means.
    """
    column = np.asarray(values, dtype=np.float64)
    data = GroupedData.from_arrays(np.zeros((len(column), 1)), column, grouping, sample_weight)
    return data.group_means(data.y)


def row_losses(model: Any, X: Any, y: Any, loss: Any = "auto", *, offset: Any = None) -> Floats:
    """Return the loss of each row.

    Parameters
    ----------
    model : fitted estimator
        Any classifier or regressor with the scikit-learn interface.
    X, y : array-like
        Rows and labels.
    loss : {"auto", "log", "zero_one", "squared", "absolute"}, Loss or callable
        "auto" means the model's own loss for an estimator of this package, alone or inside pipelines and searches.
        Otherwise it is the log loss for classifiers with probabilities (clipped below at machine epsilon), zero-one for
        other classifiers, and half the squared residual for regressors. A `Loss`, such as ``Poisson()``, is that of the
        predictions of a regressor. A callable takes y and the predictions.
    offset : array-like, optional
        Offsets of the rows, if the model was fitted with them.

    Returns
    -------
    ndarray of shape (n_rows,)
        The losses.
    """
    places = _pieces(X)
    if len(places) > 1:
        with nameless(X):
            return np.concatenate(
                [
                    row_losses(
                        model, np.array(X[place]), y[place], loss, offset=None if offset is None else offset[place]
                    )
                    for place in places
                ]
            )
    if isinstance(loss, Loss):
        predicted = predictions_of(model, "predict", X, offset).astype(np.float64)
        return loss.value(loss.output(np.ascontiguousarray(predicted)), loss.encode(np.asarray(y)))
    if not callable(loss):
        check_choice(loss, "loss", ("auto", "log", "zero_one", "squared", "absolute"))
    if isinstance(loss, str) and loss == "auto":
        own = call_inner(model, X, "_row_losses", y, *([] if offset is None else [offset]))
        if own is not None:
            return np.asarray(own)
        loss = ("log" if hasattr(model, "predict_proba") else "zero_one") if is_classifier(model) else "squared"
    labels = np.asarray(y)
    if callable(loss):
        losses = np.asarray(loss(labels, predictions_of(model, "predict", X, offset)), dtype=np.float64)
        if losses.shape != (len(labels),):
            raise ValueError(f"loss must return one number per row, got shape {losses.shape}.")
        if not np.isfinite(losses).all():
            raise ValueError("loss returned NaN or infinite values.")
        return losses
    if loss == "log":
        if not hasattr(model, "predict_proba"):
            raise TypeError(f"loss='log' requires predict_proba, which {type(model).__name__} does not have.")
        probability = predictions_of(model, "predict_proba", X, offset)
        codes, known = class_codes(labels, np.asarray(model.classes_))
        of_label = np.where(known, probability[np.arange(len(labels)), codes], 0.0)
        return -np.log(np.maximum(of_label, np.finfo(np.result_type(probability, np.float32)).eps))
    predicted = predictions_of(model, "predict", X, offset)
    if loss == "zero_one":
        return (predicted != labels).astype(np.float64)
    if loss == "squared":
        return np.asarray(0.5 * (predicted - labels.astype(np.float64)) ** 2)
    return np.abs(predicted - labels.astype(np.float64))
