"""Queries of models inside pipelines, searches and wrappers: predictions, own losses, group columns."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.base import is_classifier
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline

from groupdro.data.mapping import mapping_of, nameless
from groupdro.data.rows import rows_within
from groupdro.losses import Loss, Quantile
from groupdro.utils.arguments import number_of_rows, short_repr
from groupdro.utils.types import Array

__all__ = [
    "call_inner",
    "check_model",
    "final_estimator",
    "in_pieces",
    "inner_with",
    "layers",
    "linear_columns",
    "name_of",
    "own_groups",
    "own_loss",
    "pinball_loss",
    "predictions_of",
    "take_columns",
    "takes_offset",
    "unknown_labels",
]


_AT_ONCE = 1 << 26  # bytes of mapped rows that are passed to a model at once
_MOST_LAYERS = 20  # of models inside each other; a model that holds itself would have no end


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


@dataclass(frozen=True)
class Layer:
    """A model inside pipelines, searches and wrappers.

    Attributes
    ----------
    model : object
        The model.
    steps : tuple of callable
        What turns the rows of the outermost model into those that this one takes.
    same : bool
        Whether it predicts what the outermost model does, as one inside a wrapper that moves thresholds does not.
    """

    model: Any
    steps: tuple[Callable[[Any], Any], ...] = ()
    same: bool = True

    def rows(self, X: Any) -> Any:
        """Return rows of the outermost model in the form that this one takes."""
        for step in self.steps:
            X = step(X)
        return X


def layers(model: Any, *, calibrated: bool = False) -> Iterator[Layer]:
    """Yield a model and those inside it, from the outermost to the innermost; `calibrated` looks inside calibration."""
    layer = Layer(model)
    for _ in range(_MOST_LAYERS):
        yield layer
        model = layer.model
        if isinstance(model, Pipeline):
            step = (model[:-1].transform,) if len(model) > 1 else ()
            layer = replace(layer, model=model[-1], steps=(*layer.steps, *step))
        elif hasattr(model, "_without_groups"):
            if not hasattr(model, "estimator_"):
                return
            layer = replace(layer, model=model.estimator_, steps=(*layer.steps, model._without_groups))
        elif hasattr(model, "best_estimator_"):
            layer = replace(layer, model=model.best_estimator_)
        elif hasattr(model, "estimator_"):
            layer = replace(layer, model=model.estimator_, same=False)
        elif calibrated and hasattr(model, "calibrated_classifiers_"):
            layer = replace(layer, model=model.calibrated_classifiers_[0].estimator, same=False)
        else:
            return


def final_estimator(model: Any) -> Any:
    """Return the estimator inside pipelines, searches and wrappers."""
    return [layer.model for layer in layers(model)][-1]


def name_of(model: Any) -> str:
    """Return what to call a model: the name given to predictions, or its class."""
    return str(getattr(model, "_name", type(model).__name__))


def inner_with(model: Any, method: str) -> Layer | None:
    """Return the outermost model that has a method and predicts the same as the whole; None if there is none."""
    return next((layer for layer in layers(model) if layer.same and hasattr(layer.model, method)), None)


def call_inner(model: Any, X: Any, method: str, *more: Any) -> Any:
    """Call a method of the outermost model that has it and predicts the same as the whole; None if there is none."""
    layer = inner_with(model, method)
    return None if layer is None else getattr(layer.model, method)(layer.rows(X), *more)


def own_groups(model: Any, X: Any) -> Any:
    """Return the groups that a `GroupBy` takes from X, inside pipelines, searches and calibration; None without one."""
    for layer in layers(model, calibrated=True):
        if hasattr(layer.model, "_own_groups"):
            return layer.model._own_groups(layer.rows(X))
    return None


def linear_columns(model: Any, X: Any) -> Any:
    """Return the columns that reach the innermost model."""
    return [*layers(model)][-1].rows(X)


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
    if offset is None:
        return in_pieces(X, lambda part, _: np.asarray(getattr(model, method)(part)))
    if not takes_offset(model):
        raise TypeError(
            f"offset requires a model fitted with one, but {type(final_estimator(model)).__name__} takes none."
        )
    while isinstance(model, BaseSearchCV):
        model = model.best_estimator_
    return in_pieces(X, lambda part, place: np.asarray(getattr(model, method)(part, offset=offset[place])))


def takes_offset(model: Any) -> bool:
    """Return whether a model predicts with offsets. Do not just try: some accept any keyword and ignore it."""
    return "offset" in signature(final_estimator(model).predict).parameters


def in_pieces(X: Any, compute: Callable[[Any, slice], Array]) -> Array:
    """Compute an array with an entry per row from X and the place of its rows, or from parts of a mapped file."""
    places = _pieces(X)
    if len(places) <= 1:
        return compute(X, slice(None))
    with nameless(X):
        return np.concatenate([compute(np.array(X[place]), place) for place in places])


def _pieces(X: Any) -> list[slice]:
    """Return the parts in which rows are passed to a model: a copy of a mapped file may not fit in memory."""
    n_rows = number_of_rows(X, "X")
    mapped = isinstance(X, np.ndarray) and mapping_of(X) is not None
    step = rows_within(_AT_ONCE, X.shape[1]) if mapped else max(n_rows, 1)
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


def unknown_labels(classes: Any, y: Any) -> list[Any]:
    """Return the labels that are none of a model's classes; raise if all are unknown."""
    known = dict.fromkeys(np.asarray(classes).tolist())
    labels = list(dict.fromkeys(np.asarray(y).tolist()))
    unknown = [label for label in labels if label not in known]
    if labels and len(unknown) == len(labels):
        raise ValueError(
            f"y has the labels {short_repr(labels)}, and the model knows none of them: its classes are "
            f"{short_repr([*known])}. Code y as it was in the fit."
        )
    return unknown


def own_loss(model: Any) -> Loss | None:
    """Return the loss of a regressor of this package, or of a quantile regressor of another; None for other models."""
    inner = final_estimator(model)
    if is_classifier(model):
        return None
    return inner._own_loss() if hasattr(inner, "_own_loss") else pinball_loss(model)


def pinball_loss(model: Any) -> Quantile | None:
    """Return the loss of a quantile regressor of another package, recognised by its parameters; None for others.

    Parameters
    ----------
    model : fitted estimator
        The model, such as ``HistGradientBoostingRegressor(loss="quantile", quantile=0.9)``.

    Returns
    -------
    Quantile or None
        The pinball loss of its level.
    """
    inner = final_estimator(model)
    given = inner.get_params(deep=False) if hasattr(inner, "get_params") else {}
    if is_classifier(inner) or not (
        "quantile" in (given.get("loss"), given.get("objective")) or type(inner).__name__ == "QuantileRegressor"
    ):
        return None
    level = given.get("quantile", given.get("alpha"))  # scikit-learn's gradient boosting and LightGBM have an alpha
    return Quantile(level) if isinstance(level, int | float) and 0 < level < 1 else None
