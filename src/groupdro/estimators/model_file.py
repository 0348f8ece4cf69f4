"""Saved models, as bundles of JSON and arrays."""

import datetime
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from groupdro.data.grouping import _is_wasteful, names_array
from groupdro.run.result import met_tolerance
from groupdro.solvers import Solver, Status, TraceRow
from groupdro.utils.bundle import BundleError, check, check_version, dump_bundle, parse_bundle, write_content
from groupdro.utils.types import Array

__all__ = ["ModelFileError", "as_model_error", "build_model", "model_document", "write_model"]

_FORMAT, _VERSION = "groupdro-model", 1
_ARRAYS = ("coef_", "intercept_", "group_risks_", "group_weights_", "reference_risks_", "trace_")
_NUMBERS = ("upper_bound_", "lower_bound_", "gap_", "bound_radius_", "n_passes_", "_atol", "mean_risk_", "worst_risk_",
            "mean_lower_bound_", "worst_lower_bound_")  # fmt: skip
_LATER_NUMBERS = ("mean_risk_", "worst_risk_", "mean_lower_bound_", "worst_lower_bound_")
_LATER_PARAMS = {"robustness", "average", "n_worst", "worst_share"}  # missing from the earliest files
_NEWER_PARAMS = {"l1_ratio", "positive", "lower_bounds", "upper_bounds"}  # missing from earlier files
_TEXTS = ("status_", "message_", "solver_")
_LABELS = ("classes_", "groups_", "merged_groups_", "feature_names_in_")
_DIGEST = "training_digest_"
_OFFSET = "uses_offset_"  # written only if true, so that earlier versions refuse models they would predict wrongly with
_TRACE = ("epoch", "passes", "grad_evals", "grad_evals_paper", "seconds", "upper", "lower")
_WHOLE = ("epoch", "grad_evals", "grad_evals_paper")
_CLASS_KINDS = ("object", "bool", "str", *(f"{k}{n}" for k in ("int", "uint") for n in (8, 16, 32, 64)),
                "float16", "float32", "float64")  # fmt: skip


_STATUSES = tuple(status.name.lower() for status in Status)
_LARGEST = 1e150  # largest number in a trace; its square must not overflow
_ROUNDING = 1e-8  # of bounds, relative to the risks they are computed from


class ModelFileError(ValueError):
    """A file is not a groupdro model, is damaged, or contains something unknown."""


# ---------------------------------------------------------------------- writing


def write_model(
    path: str | os.PathLike[str],
    document: Mapping[str, Any],
    arrays: Mapping[str, Array],
    build: Callable[[dict[str, Any], dict[str, Array]], Any],
) -> None:
    """Write the file of a model, completely or not at all, after checking that it can be read again.

    Parameters
    ----------
    path : str or path-like
        The file, replaced if it exists.
    document, arrays : mapping
        Content of the file.
    build : callable
        Rebuilds a model from both, as when the file is read.
    """
    content = dump_bundle(document, arrays)
    with as_model_error("The model cannot be saved, because its file could not be loaded again"):
        build(*parse_bundle(content))
    write_content(path, content)


def model_document(model: Any, **more: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return a fitted model as JSON-compatible values and arrays.

    Parameters
    ----------
    model : fitted GroupDROClassifier or GroupDRORegressor
        The model. Callbacks and random states are left out, since they are code; of a solver object only the name is
        kept.
    **more
        JSON-compatible values about a wrapper around the model, for `build_model`.

    Returns
    -------
    document : dict
        Parameters and fitted values.
    arrays : dict of str to ndarray
        Fitted arrays.
    """
    arrays = {n: np.asarray(getattr(model, n), np.float64) for n in _ARRAYS[:-1] if hasattr(model, n)}
    arrays["trace_"] = np.array([[getattr(row, key) for key in _TRACE] for row in model.trace_], dtype=np.float64)
    fitted: dict[str, Any] = {name: float(getattr(model, name)) for name in _NUMBERS}
    fitted |= {name: getattr(model, name) for name in (*_TEXTS, "criterion_")}
    fitted |= {name: [_to_json(v, name) for v in getattr(model, name)] for name in _LABELS if hasattr(model, name)}
    fitted |= {"worst_group_": _to_json(model.worst_group_, "worst_group_"), "n_features_in_": model.n_features_in_}
    if getattr(model, _DIGEST, None) is not None:
        fitted[_DIGEST] = model.training_digest_
    if model.uses_offset_:
        fitted[_OFFSET] = True
    if hasattr(model, "classes_"):
        dtype = model.classes_.dtype
        fitted["class_kind"] = dtype.name if dtype.kind in "iufb" else "str" if dtype.kind == "U" else "object"
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "class": type(model).__name__,
        "params": {name: _param_to_json(name, value) for name, value in model.get_params(deep=False).items()},
        "fitted": fitted,
        **more,
    }
    return document, arrays


def _to_json(label: Any, where: str) -> Any:
    if isinstance(label, np.generic) and not isinstance(label, np.datetime64 | np.timedelta64):
        label = label.item()
    if label is None or isinstance(label, str | bool | int | float):
        return label
    if isinstance(label, tuple):
        return {"tuple": [_to_json(part, where) for part in label]}
    if isinstance(label, datetime.date) and not getattr(label, "nanosecond", 0):  # pandas timestamps may have these
        return {"datetime" if isinstance(label, datetime.datetime) else "date": label.isoformat()}
    raise ValueError(f"{where} has a label that cannot be written to a file: {label!r}. Use text or a number instead.")


def _param_to_json(name: str, value: Any) -> Any:
    if name in ("callbacks", "random_state") and not isinstance(value, int | np.integer):
        return None
    if isinstance(value, Solver):
        return value.name
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "to_dict") and not isinstance(value, Mapping):
        value = list(value)  # a Series is read by position
    if isinstance(value, Mapping):
        return {"mapping": [[_to_json(key, name), float(number)] for key, number in value.items()]}
    if isinstance(value, np.ndarray | list | tuple):
        return [float(number) for number in value]
    return _to_json(value, name)


# ---------------------------------------------------------------------- reading


@contextmanager
def as_model_error(what: str) -> Iterator[None]:
    """Turn any error caused by a malformed file into a ModelFileError that begins with `what`."""
    try:
        yield
    except OSError:
        raise
    except BundleError as error:
        raise ModelFileError(f"{what}: {error}") from None
    except Exception as error:  # values of the wrong type can make the code below raise anything
        raise ModelFileError(f"{what}: {type(error).__name__}: {error}") from None


def build_model(manifest: dict[str, Any], arrays: dict[str, Array]) -> Any:
    """Return the model described by a document and arrays, or raise.

    Parameters
    ----------
    manifest, arrays : dict
        As returned by `model_document`.

    Returns
    -------
    GroupDROClassifier, GroupDRORegressor or GroupBy
        The fitted model.
    """
    from groupdro.estimators.classifier import GroupDROClassifier  # imported here because they import this module
    from groupdro.estimators.group_by import GroupBy
    from groupdro.estimators.regressor import GroupDRORegressor

    manifest = dict(manifest)
    around = manifest.pop("group_by", None)
    model = _build(manifest, dict(arrays), {cls.__name__: cls for cls in (GroupDROClassifier, GroupDRORegressor)})
    return model if around is None else GroupBy._around(model, around)


def _build(manifest: dict[str, Any], arrays: dict[str, Array], classes: Mapping[str, type]) -> Any:
    check(manifest.get("format") == _FORMAT, f"its format is {manifest.get('format')!r}, not {_FORMAT!r}")
    check_version(manifest.get("version"), _VERSION)
    keys = {"format", "version", "class", "params", "fitted"}
    check(set(manifest) == keys, f"its manifest has keys {sorted(map(str, manifest))}")
    check(manifest["class"] in classes, f"its class {manifest['class']!r} is unknown")
    check(set(arrays) <= set(_ARRAYS), f"it has an unknown array: {sorted(set(arrays) - set(_ARRAYS))}")
    check(all(array.dtype == np.float64 for array in arrays.values()), "an array is not float64")

    cls = classes[manifest["class"]]
    params, fitted = manifest["params"], manifest["fitted"]
    model = cls()
    known = set(model.get_params(deep=False))
    later = known - _NEWER_PARAMS
    early = set(params) == later - _LATER_PARAMS and not set(fitted) & set(_LATER_NUMBERS)
    newer = sorted(set(params) - known)
    check(
        not newer, f"it has parameters that are not known here, {newer}; if a newer groupdro wrote it, update groupdro"
    )
    check(set(params) in (known, later) or early, f"its parameters are {sorted(params)}")
    fitted = _of_the_worst_group(fitted) if early else fitted
    check(params["callbacks"] is None, "it has callbacks, which are code and never written")
    check(params["random_state"] is None or isinstance(params["random_state"], int), "its random state is not a number")
    model.set_params(**{name: _param_from_json(value) for name, value in params.items()})
    model._check_parameters()
    _check_fitted(fitted, arrays, classifier=hasattr(model, "decision_function"))
    _check_claims(model, fitted, arrays)

    for name in (*_NUMBERS, *_TEXTS, "criterion_", "n_features_in_"):
        setattr(model, name, fitted[name])
    model.training_digest_, model.uses_offset_ = fitted.get(_DIGEST), _OFFSET in fitted
    for name in _LABELS:
        if name in fitted:
            labels = [_from_json(value) for value in fitted[name]]
            setattr(model, name, tuple(labels) if name == "merged_groups_" else names_array(labels))
    if "classes_" in fitted:
        labels, text = fitted["classes_"], fitted["class_kind"] == "str"
        check(not text or all(isinstance(label, str) for label in labels), "its classes are not text")
        if not (text and _is_wasteful(labels)):  # such labels stay objects
            model.classes_ = model.classes_.astype(fitted["class_kind"])
    if "feature_names_in_" in fitted:
        model.feature_names_in_ = model.feature_names_in_.astype(object)
    model.worst_group_ = _from_json(fitted["worst_group_"])
    trace = [dict(zip(_TRACE, row, strict=True)) for row in arrays.pop("trace_").tolist()]
    model.trace_ = tuple(TraceRow(**{k: int(v) if k in _WHOLE else v for k, v in row.items()}) for row in trace)
    for name, array in arrays.items():
        setattr(model, name, array if array.ndim else float(array))
    return model


def _of_the_worst_group(fitted: dict[str, Any]) -> dict[str, Any]:
    """Return average and worst for a file written before `robustness` existed, which knew only the worst group."""
    upper, lower = (fitted.get(name) for name in ("upper_bound_", "lower_bound_"))
    return fitted | dict(zip(_LATER_NUMBERS, (np.nan, upper, -np.inf, lower), strict=True))


def _check_fitted(fitted: Any, arrays: dict[str, Array], *, classifier: bool) -> None:
    """Refuse a file whose parts are inconsistent."""
    optional = {"feature_names_in_", _DIGEST, _OFFSET}
    must = {*_NUMBERS, *_TEXTS, "criterion_", "groups_", "merged_groups_", "worst_group_", "n_features_in_"}
    must |= {"classes_", "class_kind"} if classifier else set()
    check(must <= set(fitted) <= must | optional, f"its fitted values are {sorted(fitted)}")
    d = fitted["n_features_in_"]
    check(isinstance(d, int) and not isinstance(d, bool) and d > 0, "its number of features is not a positive integer")
    check(all(isinstance(fitted[name], float) for name in _NUMBERS), "a bound is not a number")
    check(all(isinstance(fitted[name], str) for name in _TEXTS), "its status, message or solver is not text")
    check(fitted["criterion_"] in ("tol", "atol", None), "its criterion is unknown")
    check(isinstance(fitted.get(_DIGEST, ""), str), "its digest of the training rows is not text")
    check(fitted.get(_OFFSET, True) is True, "it does not say whether it was fitted with an offset")
    check(all(isinstance(fitted[n], list) for n in _LABELS if n in fitted), "its labels are not a list")
    if classifier:
        check(fitted["class_kind"] in _CLASS_KINDS, "its classes are of an unknown type")
        classes = [_from_json(value) for value in fitted["classes_"]]
        rising = all(a < b for a, b in itertools.pairwise(classes))
        check(len(classes) >= 2 and rising, "its classes are not two or more in ascending order")
    names = fitted.get("feature_names_in_")
    check(names is None or (len(names) == d and all(isinstance(n, str) for n in names)), "feature names do not fit")
    m, k = len(fitted["groups_"]), len(fitted.get("classes_", ()))
    outputs: tuple[int, ...] = (k if k > 2 else 1,) if classifier else ()
    shapes = {"coef_": (*outputs, d), "intercept_": outputs}
    shapes |= {"group_risks_": (m,), "group_weights_": (m,), "trace_": (len(arrays["trace_"]), len(_TRACE))}
    if "reference_risks_" in arrays:
        shapes["reference_risks_"] = (m,)
    check({name: array.shape for name, array in arrays.items()} == shapes, "its arrays do not have the stated shapes")
    check(all(np.isfinite(arrays[name]).all() for name in ("coef_", "intercept_")), "its coefficients are not finite")


def _check_claims(model: Any, fitted: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Refuse claims that contradict each other, or the parameters."""
    regret = model.objective == "excess_risk"
    given = "its parameter objective is {!r}, but its fitted values are those of the other objective"
    check(("reference_risks_" in arrays) == regret, given.format(model.objective))
    upper, lower, gap, radius, passes, atol, mean, worst, mean_lower, worst_lower = (fitted[name] for name in _NUMBERS)
    status, risks, q = fitted["status_"], arrays["group_risks_"], arrays["group_weights_"]
    check(status in _STATUSES, f"its status is {status[:40]!r}, which is unknown")
    check(bool(np.isfinite(risks).all()) and bool(np.isfinite(q).all()), "its risks or weights are not finite")
    # If groups overlap, the rest belongs to the group of all rows.
    total, blended = float(q.sum()), model.robustness < 1.0 and model.average == "rows"
    shares = bool((q >= 0).all()) and total <= 1.0 + 1e-3 and (total >= 1.0 - 1e-3 or blended)
    check(shares, "its group weights are not a distribution")
    references = arrays.get("reference_risks_", np.zeros(1))
    check(bool(np.isfinite(references).all()), "its reference risks are not finite")
    fine = np.isfinite(upper) and lower < np.inf and gap >= 0 and 0 <= passes < np.inf and 0 <= atol < np.inf
    check(bool(fine) and radius > 0, "its bounds, gap, passes, tolerance or radius are out of range")
    if status != "numerical_failure":  # the status of contradicting bounds
        scale = max(abs(upper), np.abs(risks).max(), np.abs(references).max(), float(model.small_group_adjustment))
        check(lower <= upper + _ROUNDING * scale, f"its lower bound {lower:g} is above its upper bound {upper:g}")
        check(gap >= upper - lower - _ROUNDING * scale, f"its gap {gap:g} is less than the distance between its bounds")
        for name, value, least in (("mean", mean, mean_lower), ("worst", worst, worst_lower)):
            # An unknown average is NaN, and no comparison with it holds.
            fits = not (least > value + _ROUNDING * scale or value == np.inf or least == np.inf)
            check(fits, f"its {name}_lower_bound_ {least:g} is above its {name}_risk_ {value:g}")
        blend = (1.0 - model.robustness) * mean + model.robustness * worst if model.robustness < 1.0 else worst
        check(abs(blend - upper) <= 1e3 * _ROUNDING * scale, "its upper bound does not match its mean and worst risk")
    criterion = met_tolerance(gap, upper, float(model.tol), atol) if status == "converged" else None
    unmet = status == "converged" and criterion is None
    check(not unmet, f"its status is 'converged', but its gap {gap:g} is above its tolerance")
    check(fitted["criterion_"] == criterion, f"its gap {gap:g} does not match its criterion")
    trace = arrays["trace_"]
    counts = trace[:, [_TRACE.index(name) for name in _WHOLE]]
    whole = (counts >= 0).all() and (counts < 2**63).all() and (counts == np.floor(counts)).all()
    times, bounds = trace[:, [1, 4]], trace[:, 5:]
    sizes = (times >= 0).all() and (times <= _LARGEST).all() and ((np.abs(bounds) <= _LARGEST) | np.isinf(bounds)).all()
    check(bool(whole and sizes), "its trace has a number that is out of range")


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        check(not isinstance(value, list), "a label is a list")
        return value
    check(len(value) == 1, "a label is of an unknown type")
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(_from_json(part) for part in content)
    if kind == "datetime":
        return datetime.datetime.fromisoformat(content)
    check(kind == "date", f"a label is of the unknown type {kind!r}")
    return datetime.date.fromisoformat(content)


def _param_from_json(value: Any) -> Any:
    if isinstance(value, dict):
        check(set(value) == {"mapping"}, "a parameter is of an unknown type")
        return {_from_json(key): float(number) for key, number in value["mapping"]}
    return [float(number) for number in value] if isinstance(value, list) else value
