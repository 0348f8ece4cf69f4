"""Reading X in any accepted container."""

from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
import scipy.sparse as sp

from groupdro.data.csr_rows import CsrRows
from groupdro.data.dense_rows import DenseRows, dense_rows
from groupdro.data.mapping import mapping_of
from groupdro.utils.arguments import error_prefix

__all__ = ["read_rows", "wrap_rows"]


def wrap_rows(X: Any) -> DenseRows | CsrRows:
    """Return the rows of an array of floats, mapped or not, or of a CSR matrix, without copying or checking them."""
    return CsrRows(X) if sp.issparse(X) else dense_rows(X)


def read_rows(X: Any) -> tuple[DenseRows | CsrRows, tuple[str, ...] | None]:
    """Read X in any accepted container.

    Parameters
    ----------
    X : ndarray, memmap, DataFrame, or CSR/CSC matrix or array
        Two-dimensional and numeric. Floating-point ndarrays in C order, memmaps and CSR are not copied.

    Returns
    -------
    rows : DenseRows or CsrRows
        The rows.
    feature_names : tuple of str or None
        Names of the columns, if X has them.
    """
    if sp.issparse(X):
        if X.ndim != 2:
            raise ValueError(f"X must have two dimensions, got shape {X.shape}.")
        matrix = sp.csr_array(X)
        if matrix.dtype.kind not in "fiub":
            raise ValueError(f"X must be numeric, got a sparse matrix of {matrix.dtype}.")
        if matrix.dtype not in (np.float32, np.float64):
            matrix = matrix.astype(np.float64)
        if not matrix.has_sorted_indices or not matrix.has_canonical_format:
            matrix = matrix.copy()  # summing duplicates works in place and must not change the user's X
            matrix.sum_duplicates()
        return wrap_rows(matrix), None

    if isinstance(X, np.ma.MaskedArray) and X.mask.any():
        raise ValueError("X has masked entries; fill them or drop the rows.")
    with error_prefix("X"):  # which names duplicate columns
        native = X if isinstance(X, np.ndarray) else nw.from_native(X, pass_through=True)
    if isinstance(native, nw.LazyFrame):
        native = native.collect()
    names: tuple[str, ...] | None = None
    if isinstance(native, nw.DataFrame):
        names = tuple(str(name) for name in native.columns)
        text = [name for name, dtype in native.schema.items() if not (dtype.is_numeric() or dtype == nw.Boolean)]
        if text:
            raise ValueError(f"X has columns that are not numeric: {text}. Encode them first.")
        flags = [name for name, dtype in native.schema.items() if dtype == nw.Boolean]
        array = native.with_columns(nw.col(*flags).cast(nw.Float64)).to_numpy() if flags else native.to_numpy()
    else:
        with error_prefix("X"):
            array = X if isinstance(X, np.ndarray) else np.asarray(X)
    if array.ndim != 2:
        raise ValueError(f"X must have two dimensions, got shape {array.shape}.")
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"X must be numeric, got dtype {array.dtype}.") from None
    if array.dtype.kind not in "fiub":
        raise ValueError(f"X must be numeric, got dtype {array.dtype}.")
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if mapping_of(array) is None:
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return wrap_rows(array), names
