"""Losses of rows, and what a model says about its groups."""

from inspect import signature
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.base import is_classifier
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline

from groupdro.data import GroupedData
from groupdro.data.grouping import Grouping
from groupdro.utils.arguments import check_choice, short_repr
from groupdro.utils.types import Floats
from groupdro.utils.vectors import class_codes

__all__ = ["answers", "ask", "check_model", "final_estimator", "means_by_group", "row_losses", "take_columns"]


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


def ask(model: Any, X: Any, method: str, *more: Any) -> Any:
    """Call a method of a model, or of the first one inside pipelines and searches that has it.

    Parameters
    ----------
    model : fitted estimator
        Where to look.
    X : array-like
        Rows as `model` takes them; the method gets them as they reach its model.
    method : str
        Name of the method.
    *more
        What else the method takes.

    Returns
    -------
    object
        What the method returns; None where no model has it.
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


def answers(model: Any, method: str, X: Any, offset: Any = None) -> Any:
    """Return what a model predicts, with the offsets of the rows where these are given.

    Parameters
    ----------
    model : fitted estimator
        The model; one inside pipelines and searches may be what takes offsets.
    method : str
        Name of the method, such as "predict".
    X : array-like
        Rows.
    offset : array-like, optional
        Their offsets.

    Returns
    -------
    ndarray
        The predictions.
    """
    if offset is None:
        return np.asarray(getattr(model, method)(X))
    inner = final_estimator(model)
    # Not by trying: some models take any keyword, and leave it unread.
    if "offset" not in signature(inner.predict).parameters:
        raise TypeError(f"offset is for models that were fitted with one, and {type(inner).__name__} takes none.")
    while isinstance(model, BaseSearchCV):
        model = model.best_estimator_
    return np.asarray(getattr(model, method)(X, offset=offset))


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
        Weights, relative within each group.

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
        Any classifier or regressor of scikit-learn's kind.
    X, y : array-like
        Rows and labels.
    loss : {"auto", "log", "zero_one", "squared", "absolute"} or callable
        "auto" is the model's own loss for an estimator of this package, alone or inside pipelines and searches;
        otherwise the logarithmic loss for classifiers with probabilities (clipped below at machine epsilon),
        zero-one for other classifiers, and half the squared residual for regressors. A callable takes y and the
        predictions.
    offset : array-like, optional
        Offsets of the rows, where the model was fitted with them.

    Returns
    -------
    ndarray of shape (n_rows,)
        The losses.
    """
    if not callable(loss):
        check_choice(loss, "loss", ("auto", "log", "zero_one", "squared", "absolute"))
    if isinstance(loss, str) and loss == "auto":
        own = ask(model, X, "_row_losses", y, *([] if offset is None else [offset]))
        if own is not None:
            return np.asarray(own)
        loss = ("log" if hasattr(model, "predict_proba") else "zero_one") if is_classifier(model) else "squared"
    labels = np.asarray(y)
    if callable(loss):
        losses = np.asarray(loss(labels, answers(model, "predict", X, offset)), dtype=np.float64)
        if losses.shape != (len(labels),):
            raise ValueError(f"loss must return one number per row, got shape {losses.shape}.")
        if not np.isfinite(losses).all():
            raise ValueError("loss returned NaN or infinite values.")
        return losses
    if loss == "log":
        if not hasattr(model, "predict_proba"):
            raise TypeError(f"loss='log' needs predict_proba, which {type(model).__name__} does not have.")
        probability = answers(model, "predict_proba", X, offset)
        codes, known = class_codes(labels, np.asarray(model.classes_))
        of_label = np.where(known, probability[np.arange(len(labels)), codes], 0.0)
        return -np.log(np.maximum(of_label, np.finfo(np.result_type(probability, np.float32)).eps))
    predicted = answers(model, "predict", X, offset)
    if loss == "zero_one":
        return (predicted != labels).astype(np.float64)
    if loss == "squared":
        return np.asarray(0.5 * (predicted - labels.astype(np.float64)) ** 2)
    return np.abs(predicted - labels.astype(np.float64))
