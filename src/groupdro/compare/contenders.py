"""The models in a comparison, and how each is fitted."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from groupdro.data.given import GivenRows
from groupdro.estimators import (
    GroupBy,
    GroupDROClassifier,
    GroupDROClassifierCV,
    GroupDRORegressor,
    GroupDRORegressorCV,
)
from groupdro.evaluation.models import check_model, final_estimator
from groupdro.evaluation.predictions import Answers
from groupdro.store import GroupedStore
from groupdro.utils.arguments import error_prefix, short_repr

__all__ = [
    "BALANCED",
    "CHOSEN",
    "ERM",
    "GDRO",
    "IN_WORDS",
    "MEANINGS",
    "MERO",
    "check_models",
    "check_names",
    "efforts_of",
    "fit_given",
    "fit_own",
    "is_fitted",
    "place_of_model",
]

ERM, BALANCED, GDRO, MERO, CHOSEN = "ERM", "balanced ERM", "GDRO", "MERO", "CV choice"
_OWN = {ERM, BALANCED, GDRO, MERO, CHOSEN}
_FITS_OF_FOLD = 3  # time of a fold of the search in fits: its fits are less accurate, and start near their solutions
_BLENDS = 0.1, 0.5, 0.9  # little, half and much: each more costs a fit, and width of all intervals
#: What a sentence calls them: it has room for more than a column of a table.
IN_WORDS = {
    ERM: "plain training (ERM)",
    BALANCED: "groups balanced (ERM)",
    GDRO: "worst risk (GDRO)",
    MERO: "worst excess risk (MERO)",
    CHOSEN: "the choice of cross-validation",
}
#: What they are, for readers who do not know these names. That of a blend is followed by its robustness.
MEANINGS = {
    ERM: "plain training: minimises the average loss of all rows",
    BALANCED: "minimises the average loss with equal weight for every group",
    "blend ": "minimises a mixture of the average and the worst group's loss; the number is the share of the worst",
    GDRO: "minimises the loss of the worst group",
    MERO: "minimises the largest distance of a group's loss from the best that is possible for that group alone",
    CHOSEN: "a mixture whose share of the worst group was chosen by cross-validation on the training rows",
}


def place_of_model(estimator: Any) -> str:
    """Return the parameter prefix of the model at the end of a pipeline."""
    path = _path(estimator)
    inner = final_estimator(estimator)
    if not isinstance(inner, GroupDROClassifier | GroupDRORegressor):
        raise TypeError(
            "estimator must be a GroupDROClassifier or GroupDRORegressor, a pipeline that ends in one, or a GroupBy "
            f"around either; got {type(inner).__name__}. Pass other models as models=."
        )
    return path


def _path(estimator: Any) -> str:
    path = ""
    while isinstance(estimator, Pipeline):
        name, estimator = estimator.steps[-1]
        path += f"{name}__"
    return path


def fit_own(
    inner: Any, wrapper: GroupBy | None, rows: GivenRows | GroupedStore, *, cv: int | None, seed: int, **selecting: Any
) -> Iterator[tuple[str, Any, float]]:
    """Fit plain, balanced and robust models with the parameters of one estimator.

    Parameters
    ----------
    inner : estimator
        An estimator of this package, or a pipeline that ends in one.
    wrapper : GroupBy or None
        The `GroupBy` around it, if any.
    rows : GivenRows or GroupedStore
        Training rows.
    cv : int or None
        Folds for choosing the robustness by cross-validation; None to skip that model.
    seed : int
        Seed of the fits.
    **selecting
        Further parameters of the cross-validated estimator.

    Yields
    ------
    name, model, seconds : str, estimator, float
        Each fitted model, its name and its fitting time.
    """
    path = place_of_model(inner)
    own = final_estimator(inner)
    for name, changed in _contenders(own, cv, seed, selecting):
        model = clone(inner)
        if isinstance(changed, dict):
            model.set_params(**{path + key: value for key, value in changed.items()})
        else:
            model = _with_last(model, path, changed)
        begun = time.perf_counter()
        if isinstance(rows, GroupedStore):
            model.fit(rows)
        else:
            X = rows.X if wrapper is None else wrapper._without_groups(rows.X)
            more: dict[str, Any] = {"groups": rows.groups, "sample_weight": rows.weights}
            more |= {"offset": rows.offset, "cluster": rows.clusters if name == CHOSEN else None}
            _fit(model, path, X, rows.y, {key: value for key, value in more.items() if value is not None})
        fitted = final_estimator(model)
        if fitted._interrupted:
            raise KeyboardInterrupt  # it ended only this fit; there is nothing to compare yet
        yield name, model if wrapper is None else wrapper._holding(model), time.perf_counter() - begun


def efforts_of(inner: Any, cv: int | None) -> dict[str, float]:
    """Return how long each model that is fitted here may take, relative to one fit.

    A search fits its values of the robustness in every fold, each starting from its neighbour.
    """
    names = [name for name, _ in _contenders(final_estimator(inner), cv, 0, {})]
    return {name: float(_FITS_OF_FOLD * (cv or 0) if name == CHOSEN else 1) for name in names}


def _contenders(own: Any, cv: int | None, seed: int, selecting: Any) -> Iterator[tuple[str, Any]]:
    """Yield names, and what differs: parameters, or the estimator itself."""
    # Without cross-validation nothing else looks for a good robustness.
    tried = _BLENDS if cv is None else _BLENDS[1:2]
    blends = (float(own.robustness),) if own.robustness < 1.0 else tried
    risk = {"objective": "risk", "random_state": seed}
    yield ERM, {**risk, "robustness": 0.0, "average": "rows"}
    yield BALANCED, {**risk, "robustness": 0.0, "average": "groups"}
    for blend in blends:
        yield f"blend {blend:g}", {**risk, "robustness": blend}
    yield GDRO, {**risk, "robustness": 1.0}
    yield MERO, {"objective": "excess_risk", "random_state": seed, "robustness": 1.0}
    if cv is not None:
        search = GroupDROClassifierCV if isinstance(own, GroupDROClassifier) else GroupDRORegressorCV
        # Use the same penalty as all others: a gain from a better penalty is not a gain from robustness.
        same = clone(own).set_params(**risk)
        yield CHOSEN, search(same, alphas=[own.alpha], cv=cv, random_state=seed, **selecting)


def _with_last(model: Any, path: str, last: Any) -> Any:
    """Return a pipeline with its last model replaced."""
    return model.set_params(**{path.removesuffix("__"): last}) if path else last


def _fit(model: Any, path: str, X: Any, y: Any, more: dict[str, Any]) -> None:
    with config_context(enable_metadata_routing=False):  # parameters are addressed by step names here
        model.fit(X, y, **{path + key: value for key, value in more.items()})


def check_names(models: Any) -> None:
    """Raise unless the user's models are a mapping from names, or None.

    Parameters
    ----------
    models : mapping of str to estimator, or None
        The argument.
    """
    if models is None or (isinstance(models, Mapping) and all(isinstance(name, str) for name in models)):
        return
    raise TypeError(
        'models must be a dict from names to estimators or Predictions, such as {"new": model}, got '
        f"{short_repr(models)}."
    )


def check_models(models: Any, *, held_out: bool) -> dict[str, Any]:
    """Return the user's models, or raise if any cannot be compared.

    Parameters
    ----------
    models : mapping of str to estimator, or None
        The argument.
    held_out : bool
        Whether held-out data were given.

    Returns
    -------
    dict of str to estimator
        The models by name.
    """
    if models is None:
        return {}
    check_names(models)
    for name, model in models.items():
        check_model(model, f"models[{name!r}]")
        if name in _OWN or name.startswith("blend "):
            raise ValueError(f"models[{name!r}] has the name of a model that is fitted here; choose another name.")
        if is_fitted(model) and not held_out:
            raise ValueError(
                f"models[{name!r}] is already fitted, possibly on rows that would be held out here: pass held_out, "
                "data that it has not seen, or an unfitted model."
            )
    return dict(models)


def is_fitted(model: Any) -> bool:
    """Return whether a model is fitted."""
    if isinstance(model, Answers):
        return True
    try:
        check_is_fitted(model)
    except NotFittedError:
        return False
    return True


def fit_given(models: dict[str, Any], rows: GivenRows | GroupedStore) -> Iterator[tuple[str, Any, float]]:
    """Yield name, model and seconds of the user's models, fitting those that are not fitted yet.

    Groups, weights, clusters and offsets are passed to models that accept them.
    """
    for name, given in models.items():
        if is_fitted(given):
            yield name, given, float("nan")
            continue
        if isinstance(rows, GroupedStore):
            raise ValueError(f"models[{name!r}] is not fitted, and only linear models can be fitted on a store.")
        model, path = clone(given), _path(given)
        last = final_estimator(model)
        known = {
            "groups": rows.groups.labels(len(rows.y)),
            "sample_weight": rows.weights,
            "cluster": rows.clusters,
            "offset": rows.offset,
        }
        more = {key: part for key, part in known.items() if part is not None and has_fit_parameter(last, key)}
        begun = time.perf_counter()
        with error_prefix(f"models[{name!r}]"):
            _fit(model, path, rows.X, rows.y, more)
        yield name, model, time.perf_counter() - begun
