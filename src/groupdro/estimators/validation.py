"""Checks of user arguments, with errors that name the argument."""

from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from groupdro.data.mapping import nameless
from groupdro.utils.arguments import error_prefix
from groupdro.utils.types import Floats
from groupdro.utils.vectors import LARGEST, refuse_masked

__all__ = ["check_outputs_offset", "read_features", "read_init", "read_seed"]


_NOT_NUMBERS = (nw.String, nw.Categorical, nw.Enum, nw.Datetime, nw.Date, nw.Duration)


def read_features(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Validate X as scikit-learn does, and refuse data that would silently be treated as numbers.

    Parameters
    ----------
    estimator : estimator
        The estimator that is fitted or predicts.
    X : array-like, DataFrame or sparse matrix
        Rows.
    reset : bool
        Whether this is a fit, which sets the number and names of the features.

    Returns
    -------
    ndarray or CSR matrix
        The rows, numeric and finite.
    """
    refuse_masked(X, "X")
    dtype = getattr(X, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "mM":
        raise ValueError(f"X must be numeric, got dtype {dtype}.")
    with error_prefix("X"):  # which names duplicate columns
        frame = nw.from_native(X, pass_through=True)
    if isinstance(frame, nw.LazyFrame):
        raise TypeError("X is a lazy frame; collect it first.")
    if isinstance(frame, nw.DataFrame):
        odd = [name for name, kind in frame.schema.items() if isinstance(kind, _NOT_NUMBERS)]
        if odd:
            raise ValueError(f"X has columns that are not numeric: {odd}. Encode them first.")
    half = dtype == np.float16  # which becomes float64 elsewhere, as in a data frame or a sparse matrix
    with error_prefix("X"), nameless(X):
        return validate_data(
            estimator,
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32, *([np.float16] if half else [])],
            reset=reset,
        )


def read_seed(random_state: Any) -> int:
    """Draw a seed from a scikit-learn random state."""
    with error_prefix("random_state"):
        return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def read_init(values: Any, argument: str, size: int) -> Floats:
    """Read initial coefficients or intercepts, flattened."""
    with error_prefix(argument):
        array = np.asarray(values, dtype=np.float64).ravel()
    if array.size != size:
        raise ValueError(f"{argument} must have {size} entries, got {array.size}.")
    if not (np.abs(array) <= LARGEST).all():
        raise ValueError(f"{argument} has NaN or values beyond {LARGEST:g}.")
    return array


def check_outputs_offset(offset: Floats, n_rows: int, n_outputs: int) -> None:
    """Raise unless there is one offset per row, or one per row and class if there are more than two."""
    shape = (n_rows,) if n_outputs == 1 else (n_rows, n_outputs)
    if offset.shape != shape:
        per = "one number per row" if n_outputs == 1 else "one number per row and class"
        raise ValueError(f"offset must be {per}, of shape {shape}; got shape {offset.shape}.")
