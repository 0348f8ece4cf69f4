"""Checks of what users pass in, with errors that name the argument."""

from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import validate_data

from groupdro.store import GroupedStore
from groupdro.utils.arguments import error_prefix
from groupdro.utils.types import Array, Floats

__all__ = ["read_features", "read_init", "read_seed", "read_target"]


_FLOATS = [np.float64, np.float32]
_LARGEST = 1e150  # number whose square is still finite


def _refuse_masked(values: Any, argument: str) -> None:
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise ValueError(f"{argument} has masked entries: fill them or drop the rows.")


def _is_time(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "mM"


def read_features(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Validate X as scikit-learn does, and refuse what would be taken for numbers silently.

    Parameters
    ----------
    estimator : estimator
        The one that is fitted or predicts.
    X : array-like, DataFrame or sparse matrix
        Rows.
    reset : bool
        Whether this is a fit, which sets the number and names of the features.

    Returns
    -------
    ndarray or CSR matrix
        Numeric and finite.
    """
    if isinstance(X, GroupedStore):
        raise TypeError("X is a store, which only fit takes; store.X are its rows.")
    _refuse_masked(X, "X")
    if _is_time(getattr(X, "dtype", None)):
        raise ValueError(f"X must be numeric, got dtype {X.dtype}.")
    frame = nw.from_native(X, pass_through=True)
    if isinstance(frame, nw.LazyFrame):
        raise TypeError("X is a lazy frame, which has no rows yet: collect it first.")
    if isinstance(frame, nw.DataFrame):
        odd = [name for name, dtype in frame.schema.items() if _cannot_be_a_number(dtype)]
        if odd:
            raise ValueError(f"X has columns that are not numeric: {odd}. Encode them first.")
    with error_prefix("X"):
        return validate_data(estimator, X, accept_sparse="csr", dtype=_FLOATS, reset=reset)


def _cannot_be_a_number(dtype: Any) -> bool:
    return isinstance(dtype, nw.String | nw.Categorical | nw.Enum | nw.Datetime | nw.Date | nw.Duration)


def read_target(estimator: Any, y: Any, X: Any, *, numeric: bool) -> Array:
    """Validate y as scikit-learn does.

    Parameters
    ----------
    estimator : estimator
        The one that is fitted.
    y : array-like of shape (n_rows,)
        Labels or targets.
    X : ndarray or CSR matrix
        The rows it belongs to.
    numeric : bool
        Whether y must be numbers.

    Returns
    -------
    ndarray of shape (n_rows,)
        One value a row, none missing.
    """
    if y is None:
        name = type(estimator).__name__
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None.")
    _refuse_masked(y, "y")
    if not numeric and any(_is_missing(label) for label in _objects_in(y)):
        raise ValueError("y has missing labels: name them or drop the rows. Input contains NaN or None.")
    with error_prefix("y"):
        target = column_or_1d(y, warn=True)
        if target.dtype.kind in "cmM" and (numeric or target.dtype.kind == "c"):
            raise ValueError(f"y must be {'numbers' if numeric else 'labels'}, got dtype {target.dtype}.")
        assert_all_finite(target, input_name="y")
        if numeric:
            target = target.astype(np.float64, copy=False)
            assert_all_finite(target, input_name="y")
        check_consistent_length(X, target)
    if numeric and (np.abs(target) > _LARGEST).any():
        raise ValueError(f"y has values that are too large: beyond {_LARGEST:g} their squares are not finite.")
    return target


def _objects_in(y: Any) -> list[Any]:
    """Return the labels of a container of objects, or none where the type leaves no room for a missing one."""
    if isinstance(y, list | tuple):
        return list(y)
    native = nw.from_native(y, pass_through=True, allow_series=True)
    if isinstance(native, nw.Series):
        return native.to_list() if native.is_null().any() or native.dtype == nw.Object else []
    return y.ravel().tolist() if isinstance(y, np.ndarray) and y.dtype == object else []


def _is_missing(label: Any) -> bool:
    if label is None:
        return True
    try:
        return bool(label != label)  # NaN and NaT differ from themselves
    except (TypeError, ValueError):
        return type(label).__name__ == "NAType"


def read_seed(random_state: Any) -> int:
    """Draw a seed from what scikit-learn takes for a random state."""
    with error_prefix("random_state"):
        return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def read_init(values: Any, argument: str, size: int) -> Floats:
    """Read coefficients or intercepts to begin with, flattened."""
    with error_prefix(argument):
        array = np.asarray(values, dtype=np.float64).ravel()
    if array.size != size:
        raise ValueError(f"{argument} must have {size} entries, got {array.size}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{argument} has NaN or infinite values.")
    if (np.abs(array) > _LARGEST).any():
        raise ValueError(f"{argument} has values beyond {_LARGEST:g}.")
    return array
