"""Readers of arguments with one value per row or per group: labels, targets, weights."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.utils import assert_all_finite

from groupdro.utils.arguments import error_prefix
from groupdro.utils.types import Array, Floats, Indices, Mask

__all__ = [
    "LARGEST",
    "class_codes",
    "is_missing",
    "read_by_group",
    "read_finite",
    "read_offset",
    "read_target",
    "read_vector",
    "refuse_masked",
    "series_values",
]

LARGEST = 1e150  # squares of numbers up to this are finite


def refuse_masked(values: Any, argument: str) -> None:
    """Refuse masked entries, which NumPy would silently treat as numbers."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise ValueError(f"{argument} has masked entries; fill them or drop the rows.")


def read_vector(values: Any, argument: str, n_rows: int) -> Array:
    """Return one value per row as an array.

    Parameters
    ----------
    values : array-like or Series
        The values. A table with a single column works too.
    argument : str
        Name of the argument in errors.
    n_rows : int
        The number of rows of X.

    Returns
    -------
    ndarray of shape (n_rows,)
        The values, with their dtype unchanged.
    """
    refuse_masked(values, argument)
    # Skip narwhals for arrays: asking it takes longer than everything else here.
    plain = isinstance(values, np.ndarray)
    native = values if plain else nw.from_native(values, pass_through=True, allow_series=True)
    with error_prefix(argument):
        array: Array = series_values(native) if isinstance(native, nw.Series) else np.asarray(values)
    if array.dtype.kind == "T":  # NumPy's text of any length
        array = array.astype(object)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (n_rows,):
        raise ValueError(f"{argument} must have one value per row of X ({n_rows}), got shape {array.shape}.")
    return array


def series_values(series: "nw.Series[Any]") -> Array:
    """Return the values of a series as an array; of objects if its library has no conversion for their type."""
    try:
        return series.to_numpy()
    except Exception:  # each library has errors of its own
        return np.array([*series.to_list(), None], dtype=object)[:-1]


def read_finite(values: Any, argument: str, n_rows: int) -> Array:
    """Return one finite number per row as an array, with its dtype unchanged."""
    array = read_vector(values, argument, n_rows)
    if array.dtype == object:
        array = _of_numbers(array)
    if array.dtype == object and any(map(is_missing, array)):
        raise ValueError(f"{argument} has missing values.")
    if array.dtype.kind not in "fiub":
        hint = " Pass groups by keyword, as groups=." if argument == "sample_weight" else ""
        raise ValueError(f"{argument} must be numeric, got dtype {array.dtype}.{hint}")
    if not np.isfinite(array).all():
        raise ValueError(f"{argument} has NaN or infinite values.")
    return array


def _of_numbers(values: Array) -> Array:
    """Return objects that are all numbers or all truth values as an array of those; any others unchanged."""
    if all(isinstance(value, Real | np.bool_) for value in values):
        found = np.array(values.tolist())
        return found if found.ndim == 1 else values
    return values


def read_offset(values: Any, n_rows: int) -> Floats:
    """Return the offsets: one number per row, or one per row and output.

    Parameters
    ----------
    values : array-like, Series or DataFrame
        The offsets.
    n_rows : int
        The number of rows of X.

    Returns
    -------
    ndarray of shape (n_rows,) or (n_rows, n_outputs)
        Finite numbers in float64.
    """
    refuse_masked(values, "offset")
    with error_prefix("offset"):
        array = np.asarray(values)
    if array.ndim != 2 or array.shape[1] < 2:
        array = read_finite(values, "offset", n_rows)
    if array.shape[0] != n_rows:
        raise ValueError(f"offset must have one row per row of X ({n_rows}), got shape {array.shape}.")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"offset must be numeric, got dtype {array.dtype}.")
    array = array.astype(np.float64, copy=False)
    if not (np.abs(array) <= LARGEST).all():
        raise ValueError(f"offset has NaN or values beyond {LARGEST:g}.")
    return array


def read_target(y: Any, n_rows: int, *, numeric: bool) -> Array:
    """Return labels or targets; raise if any is missing.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        Labels or targets.
    n_rows : int
        The number of rows of X.
    numeric : bool
        Whether y must be numbers.

    Returns
    -------
    ndarray of shape (n_rows,)
        Labels, or finite numbers in float64.
    """
    if y is None:
        raise ValueError("y is missing: this estimator requires y to be passed, but the target y is None.")
    if not n_rows:
        raise ValueError("X and y have no rows.")
    if not numeric and any(map(is_missing, _objects_in(y))):
        raise ValueError("y has missing labels; give them a name or drop the rows. Input contains NaN or None.")
    target = read_vector(y, "y", n_rows)
    target = _of_numbers(target) if target.dtype == object else target
    if target.dtype == object and any(map(is_missing, target)):
        raise ValueError("y has missing values, such as pandas.NA; drop the rows or fill them in.")
    if not numeric and target.dtype.kind in "mM" and np.isnat(target).any():
        raise ValueError("y has missing labels; give them a name or drop the rows.")
    if not numeric and target.dtype == object and len({str if isinstance(y, str) else float for y in target}) > 1:
        raise ValueError("y has labels that are text and others that are not; convert all to text.")
    if target.dtype.kind in ("cmM" if numeric else "c"):
        raise ValueError(f"y must be {'numbers' if numeric else 'labels'}, got dtype {target.dtype}.")
    with error_prefix("y"):
        target = target.astype(np.float64, copy=False) if numeric else target
        assert_all_finite(target, input_name="y")
    if numeric and (np.abs(target) > LARGEST).any():
        raise ValueError(f"y has values that are too large: beyond {LARGEST:g} their squares are not finite.")
    return target


def read_by_group(values: Any, names: Sequence[Any], argument: str) -> Floats:
    """Return one finite number per group.

    Parameters
    ----------
    values : mapping or array-like
        Numbers by group, or in the order of the groups.
    names : sequence
        Names of the groups.
    argument : str
        Name of the argument in errors.

    Returns
    -------
    ndarray of shape (n_groups,)
        The numbers.
    """
    if isinstance(values, Mapping):
        lacking = [name for name in names if name not in values]
        if lacking:
            raise ValueError(f"{argument} has no value for {len(lacking)} groups, such as {lacking[0]!r}.")
        values = [values[name] for name in names]
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{argument} must be numbers, one per group, or a mapping from group to number.") from None
    if array.shape != (len(names),):
        raise ValueError(f"{argument} must have one value per group ({len(names)}), got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{argument} has NaN or infinite values.")
    return array


def class_codes(y: Any, classes: Array) -> tuple[Indices, Mask]:
    """Look up labels among classes.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        Labels.
    classes : ndarray of shape (n_classes,)
        Classes, in any order.

    Returns
    -------
    codes : ndarray of shape (n_rows,)
        Index of each label among the classes; arbitrary for an unknown label.
        known : ndarray of bool of shape (n_rows,)
        Whether each label is one of the classes.
    """
    order = np.argsort(classes, kind="stable")
    with error_prefix("y"):
        codes = order[np.searchsorted(classes, y, sorter=order).clip(0, len(classes) - 1)]
    return codes, np.asarray(classes[codes] == y)


def _objects_in(y: Any) -> list[Any]:
    """Return the labels of a container of objects, or an empty list if its type cannot hold missing values."""
    if isinstance(y, list | tuple):
        return list(y)
    if isinstance(y, np.ndarray):
        return y.ravel().tolist() if y.dtype.kind in "OT" else []
    native = nw.from_native(y, pass_through=True, allow_series=True)
    if type(y).__module__.startswith("pyarrow") and hasattr(y, "null_count"):
        return [None] if y.null_count else []
    if isinstance(native, nw.Series):
        return native.to_list() if native.is_null().any() or native.dtype == nw.Object else []
    return []


def is_missing(label: Any) -> bool:
    """Return whether a label is None, NaN, NaT or pandas.NA."""
    if label is None:
        return True
    try:
        return bool(label != label)  # NaN and NaT differ from themselves
    except (TypeError, ValueError):
        return type(label).__name__ == "NAType"
