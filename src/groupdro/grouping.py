"""From what a user calls groups to integer codes or a membership matrix."""

from dataclasses import dataclass
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

__all__ = ["Grouping", "read_groups"]


@dataclass(frozen=True)
class Grouping:
    """Who belongs to which group.

    Attributes
    ----------
    offsets : ndarray of shape (n_groups + 1,)
        Group i has the members ``offsets[i]:offsets[i + 1]``.
    members : ndarray of shape (n_members,)
        Row of each member, in the user's order of rows.
    names : tuple
        Name of each group; a tuple of values where groups are intersections of columns.
    overlapping : bool
        Whether a row may belong to several groups.
    """

    offsets: NDArray[np.int64]
    members: NDArray[np.int64]
    names: tuple[Any, ...]
    overlapping: bool


def read_groups(groups: Any, n_rows: int) -> Grouping:
    """Read group labels or a membership matrix.

    Parameters
    ----------
    groups : array-like, Series, DataFrame, sparse matrix or None
        One-dimensional: a label a row, of any kind that compares equal to itself. Two-dimensional: several label
        columns, whose combinations that occur are the groups. Two-dimensional and boolean, or sparse: membership,
        one column a group, where groups may overlap. None: one group of all rows.
    n_rows : int
        The number of rows of X.

    Returns
    -------
    Grouping
        Groups sorted by name (by column for a membership matrix), members in the order of rows within a group.
    """
    if groups is None:
        return Grouping(np.array([0, n_rows]), np.arange(n_rows), ("all",), overlapping=False)
    if sp.issparse(groups):
        if groups.ndim != 2:
            raise ValueError(f"groups must have a column a group where it is sparse, got shape {groups.shape}.")
        return _read_membership(groups, None, n_rows)

    native = nw.from_native(groups, pass_through=True, allow_series=True)
    if isinstance(native, nw.LazyFrame):
        native = native.collect()
    if isinstance(native, nw.DataFrame):
        _check_length(len(native), n_rows)
        columns = [native.get_column(name) for name in native.columns]
        if not columns:
            raise ValueError("groups has no column.")
        if all(column.dtype == nw.Boolean for column in columns):
            for column in columns:
                _refuse_missing(column)
            member = np.column_stack([column.to_numpy().astype(bool) for column in columns])
            return _read_membership(sp.coo_array(member), tuple(native.columns), n_rows)
        return _from_columns([_read_series(column) for column in columns])
    if isinstance(native, nw.Series):
        _check_length(len(native), n_rows)
        return _from_columns([_read_series(native)])

    if isinstance(groups, np.ma.MaskedArray) and groups.mask.any():
        raise ValueError("groups has missing values (masked): name them or drop the rows.")
    array = np.asarray(groups)
    if not isinstance(groups, np.ndarray) and array.dtype.kind in "US":
        # NumPy turns a list of text and anything else into text: 1 would join "1", and NaN become a group.
        array = np.asarray(groups, dtype=object)
    if array.ndim not in (1, 2):
        raise ValueError(f"groups must have one or two dimensions, got shape {array.shape}.")
    _check_length(len(array), n_rows)
    if array.ndim == 1:
        return _from_columns([_read_array(array)])
    if array.dtype == bool:
        return _read_membership(sp.coo_array(array), None, n_rows)
    if array.shape[1] == 0:
        raise ValueError("groups has no column.")
    if array.shape[1] > 1 and array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all():
        raise ValueError(
            "groups is a matrix of zeros and ones, which could mean overlapping groups (one column a group) or "
            "intersections of two-valued columns: pass groups.astype(bool) for the first, "
            "groups.astype(str) or a DataFrame for the second."
        )
    return _from_columns([_read_array(column) for column in array.T])


def _check_length(length: int, n_rows: int) -> None:
    if length != n_rows:
        raise ValueError(f"groups has {length} rows but X has {n_rows}.")


def _refuse_missing(series: "nw.Series[Any]") -> None:
    if series.is_null().any():
        raise ValueError(f"groups has missing values (column {series.name!r}): name them or drop the rows.")


def _read_series(series: "nw.Series[Any]") -> tuple[NDArray[np.int64], list[Any]]:
    _refuse_missing(series)
    return _read_array(series.to_numpy())


def _read_array(values: NDArray[Any]) -> tuple[NDArray[np.int64], list[Any]]:
    """Return integer codes and the sorted distinct values they stand for."""
    if values.dtype.kind in "fc" and np.isnan(values).any():
        raise ValueError("groups has missing values (NaN): name them or drop the rows.")
    if values.dtype.kind in "mM" and np.isnat(values).any():
        raise ValueError("groups has missing values (NaT): name them or drop the rows.")
    if values.dtype.kind == "O":
        return _read_objects(values.tolist())
    distinct, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64, copy=False).ravel(), distinct.tolist()


def _read_objects(values: list[Any]) -> tuple[NDArray[np.int64], list[Any]]:
    try:
        code_of = {value: code for code, value in enumerate(dict.fromkeys(values))}
    except TypeError as error:
        raise ValueError(f"groups has labels that cannot be told apart: {error}.") from None
    # Only a missing value differs from itself; asking `is True` also catches the three-valued pandas NA.
    if any(value is None or ((value == value) is not True and not _truth(value == value)) for value in code_of):
        raise ValueError("groups has missing values: name them or drop the rows.")
    codes = np.fromiter((code_of[value] for value in values), np.int64, len(values))
    distinct = list(code_of)
    try:
        order = sorted(range(len(distinct)), key=distinct.__getitem__)
    except TypeError:
        return codes, distinct  # labels of mixed kinds have no order: keep that of first appearance
    rank = np.empty(len(distinct), np.int64)
    rank[order] = np.arange(len(distinct))
    return rank[codes], [distinct[k] for k in order]


def _truth(value: Any) -> bool:
    try:
        return bool(value)
    except TypeError:
        return False


def _from_columns(columns: list[tuple[NDArray[np.int64], list[Any]]]) -> Grouping:
    """Make a group of each combination of the columns' values that occurs."""
    codes, values = columns[0]
    names: list[Any] = values if len(columns) == 1 else [(value,) for value in values]
    for more, more_values in columns[1:]:
        # Only the pairs that occur get a code, so that the product of many columns cannot overflow.
        pairs, codes = np.unique(codes * len(more_values) + more, return_inverse=True)
        codes = codes.ravel()
        names = [(*names[p // len(more_values)], more_values[p % len(more_values)]) for p in pairs.tolist()]
    sizes = np.bincount(codes, minlength=len(names))
    return Grouping(
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        members=np.argsort(codes, kind="stable"),
        names=tuple(names),
        overlapping=False,
    )


def _read_membership(matrix: Any, names: tuple[Any, ...] | None, n_rows: int) -> Grouping:
    _check_length(matrix.shape[0], n_rows)
    matrix = matrix.tocoo()
    if not np.isin(matrix.data, (0, 1)).all():
        raise ValueError("groups is a membership matrix with entries other than 0 and 1.")
    # Entries that are given twice are one membership: booleans do not add up.
    matrix = sp.csc_array((matrix.data.astype(bool), (matrix.row, matrix.col)), shape=matrix.shape)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    sizes = np.diff(matrix.indptr)
    if names is None:
        names = tuple(range(len(sizes)))
    if not len(sizes):
        raise ValueError("groups has no column.")
    if not sizes.all():
        raise ValueError(f"groups has a group without a row: {names[int(np.argmin(sizes))]!r}.")
    alone = n_rows - len(np.unique(matrix.indices))
    if alone:
        raise ValueError(
            f"groups leaves {alone} rows in no group, which would be ignored: drop these rows, or add a column "
            "that is true everywhere."
        )
    return Grouping(
        offsets=matrix.indptr.astype(np.int64),
        members=matrix.indices.astype(np.int64),
        names=names,
        overlapping=True,
    )
