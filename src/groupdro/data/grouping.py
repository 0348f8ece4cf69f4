"""Conversion of the user's groups to integer codes or a membership matrix."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import narwhals.stable.v1 as nw
import numpy as np
import scipy.sparse as sp

from groupdro.utils.arguments import as_table, error_prefix
from groupdro.utils.types import Array, Floats, Indices, Mask
from groupdro.utils.vectors import series_values

__all__ = [
    "ALL_ROWS",
    "MERGED",
    "MISSING",
    "GroupRules",
    "Grouping",
    "merge_small_groups",
    "names_array",
    "read_groups",
    "read_labels",
]

_LARGEST_TEXT = 1 << 24  # bytes of an array of names above which it must not waste space

#: Names of the group of unlabelled rows, of the group into which small groups are merged, and of all rows as a group.
MISSING = "(missing)"
MERGED = "(merged)"
ALL_ROWS = "(all rows)"


@dataclass(frozen=True)
class Grouping:
    """Assignment of rows to groups.

    Attributes
    ----------
    offsets : ndarray of shape (n_groups + 1,)
        Group i has the members ``offsets[i]:offsets[i + 1]``.
    members : ndarray of shape (n_members,)
        Row of each member, in the user's order of rows.
    names : tuple
        Name of each group; a tuple of values if groups are combinations of columns.
    overlapping : bool
        Whether a row may belong to several groups.
    by : tuple of str
        Names of the columns whose values are the names of the groups, if they have any.
    """

    offsets: Indices
    members: Indices
    names: tuple[Any, ...]
    overlapping: bool
    by: tuple[str, ...] = ()

    @classmethod
    def of_all(cls, n_rows: int) -> "Grouping":
        """Return one group of all rows."""
        return cls(np.array([0, n_rows]), np.arange(n_rows), ("all",), overlapping=False)

    @classmethod
    def of_codes(cls, codes: Indices, names: Sequence[Any], by: Iterable[str] = ()) -> "Grouping":
        """Return the groups of rows, given the number of each row's group."""
        offsets = np.append(0, np.cumsum(np.bincount(codes, minlength=len(names))))
        return cls(offsets, np.argsort(codes, kind="stable"), tuple(names), overlapping=False, by=tuple(by))

    @property
    def sizes(self) -> Indices:
        """Number of members of each group."""
        return np.diff(self.offsets)

    def rows_of(self, i: int) -> Indices:
        """Return the rows of group i."""
        return self.members[self.offsets[i] : self.offsets[i + 1]]

    def only(self, groups: Indices) -> "Grouping":
        """Return some of the groups, of the same rows."""
        members = [self.rows_of(int(i)) for i in groups]
        offsets = np.append(0, np.cumsum([len(part) for part in members]))
        names = tuple(self.names[i] for i in groups)
        return Grouping(offsets, np.concatenate(members), names, self.overlapping, self.by)

    def restrict(self, rows: Indices) -> "Grouping":
        """Return the groups of only these rows, given in ascending order and renumbered."""
        place = np.searchsorted(rows, self.members)
        kept = rows[np.minimum(place, len(rows) - 1)] == self.members
        offsets = np.append(0, np.cumsum(kept))[self.offsets]
        return Grouping(offsets, place[kept], self.names, self.overlapping, self.by)

    @property
    def group_of_members(self) -> Indices:
        """Number of the group of each member."""
        return np.repeat(np.arange(len(self.names)), self.sizes)

    def sums(self, values: Array) -> Floats:
        """Return the sum of a value of the rows over each group."""
        sums = np.bincount(self.group_of_members, values[self.members], minlength=len(self.names))
        return sums.astype(np.float64)

    def means(self, values: Floats, weights: Floats | None = None) -> Floats:
        """Return the weighted mean of a value of the rows over each group."""
        if weights is None:
            return self.sums(values) / self.sizes
        return self.sums(weights * values) / self.sums(weights)

    def and_all(self, n_rows: int) -> "Grouping":
        """Return these groups, and one more of all rows."""
        offsets = np.append(self.offsets, self.offsets[-1] + n_rows)
        return Grouping(offsets, np.append(self.members, np.arange(n_rows)), (*self.names, ALL_ROWS), overlapping=True)

    def codes(self, n_rows: int) -> Indices:
        """Return the number of each row's group, if groups do not overlap; 0 for rows without a group."""
        codes = np.zeros(n_rows, np.int64)
        codes[self.members] = self.group_of_members
        return codes

    def labels(self, n_rows: int) -> Any:
        """Return the group of each row as an array of names, or a sparse membership matrix if groups overlap."""
        if self.overlapping:
            shape = n_rows, len(self.names)
            ones = np.ones(len(self.members), dtype=bool)
            return sp.csr_array((ones, (self.members, self.group_of_members)), shape=shape)
        return names_array(self.names)[self.codes(n_rows)]

    def present_in(self, rows: Indices) -> "Grouping":
        """Return the groups that have some of these rows, restricted to them."""
        part = self.restrict(rows)
        return part if part.sizes.all() else part.only(np.flatnonzero(part.sizes))


class GroupRules(ABC):
    """Rules that assign rows to groups by their columns."""

    @abstractmethod
    def grouping(self, X: Any) -> Grouping:
        """Return the groups of rows, which may overlap."""

    @abstractmethod
    def partition(self, X: Any) -> Array:
        """Return one label per row."""


def read_groups(groups: Any, n_rows: int, *, missing: Literal["error", "own"] = "error") -> Grouping:
    """Read group labels or a membership matrix.

    Parameters
    ----------
    groups : array-like, Series, DataFrame, sparse matrix, Grouping or None
        One-dimensional: one label per row, of any type that compares equal to itself. Two-dimensional: several label
        columns; each combination that occurs is a group. Two-dimensional boolean, or sparse: a membership matrix with
        one column per group, where groups may overlap. None: one group of all rows. A `Grouping` is returned unchanged.
    n_rows : int
        The number of rows of X.
    missing : {"error", "own"}
        Whether missing labels raise an error, or form a group of their own, the last one. Does not apply to a
        membership matrix.

    Returns
    -------
    Grouping
        Groups sorted by name (by column for a membership matrix), members in the order of rows within a group.
    """
    if groups is None:
        return Grouping.of_all(n_rows)
    if isinstance(groups, Grouping):
        _check_length(len(np.unique(groups.members) if groups.overlapping else groups.members), n_rows)
        return groups
    if isinstance(groups, GroupRules):
        raise TypeError("groups must be the groups of these rows: pass groups.partition(columns).")
    if isinstance(groups, str):
        raise TypeError(
            f"groups must be an array with one label per row, such as X[{groups!r}]; to name a column of X, use "
            f"GroupBy(estimator, {groups!r})."
        )
    if sp.issparse(groups):
        if groups.ndim != 2:
            raise ValueError(f"groups must have one column per group if it is sparse, got shape {groups.shape}.")
        return _read_membership(groups, None, n_rows)

    with error_prefix("groups"):  # which names duplicate columns
        native = nw.from_native(as_table(groups), pass_through=True, allow_series=True)
    if isinstance(native, nw.LazyFrame):
        native = native.collect()
    if isinstance(native, nw.DataFrame):
        _check_length(len(native), n_rows)
        columns = [native.get_column(name) for name in native.columns]
        if not columns:
            raise ValueError("groups has no column.")
        if all(column.dtype == nw.Boolean or column.to_numpy().dtype == bool for column in columns):
            for column in columns:
                if column.is_null().any():
                    raise ValueError(f"groups has missing values in the membership column {column.name!r}.")
            member = np.column_stack([column.to_numpy().astype(bool) for column in columns])
            return _read_membership(sp.coo_array(member), tuple(native.columns), n_rows)
        _refuse_dummies(columns)
        return _from_columns([_read_series(column) for column in columns], missing, native.columns)
    if isinstance(native, nw.Series):
        _check_length(len(native), n_rows)
        return _from_columns([_read_series(native)], missing, [native.name] if native.name else None)

    if isinstance(groups, np.ma.MaskedArray) and groups.mask.any():
        groups = np.array(groups.tolist(), dtype=object)  # with None where masked
    try:
        array = np.asarray(groups)
    except ValueError as error:
        raise ValueError(f"groups must be an array of labels: {error}") from None
    if not isinstance(groups, np.ndarray) and array.dtype.kind in "US":
        # NumPy turns a list that contains text into text: 1 would become "1", and NaN a group.
        array = np.asarray(groups, dtype=object)
    if array.ndim not in (1, 2):
        raise ValueError(f"groups must have one or two dimensions, got shape {array.shape}.")
    _check_length(len(array), n_rows)
    if array.ndim == 1:
        return _from_columns([_read_array(array)], missing)
    if array.dtype == object and array.size and all(isinstance(entry, bool | np.bool_) for entry in array.flat):
        array = array.astype(bool)
    if array.dtype == bool:
        return _read_membership(sp.coo_array(array), None, n_rows)
    if array.shape[1] == 0:
        raise ValueError("groups has no column.")
    if array.shape[1] > 1 and array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all():
        raise ValueError(
            "groups is a matrix of zeros and ones, which could mean overlapping groups (one column per group) or "
            "combinations of binary columns: pass groups.astype(bool) for the former, "
            "groups.astype(str) or a DataFrame for the latter."
        )
    return _from_columns([_read_array(column) for column in array.T], missing)


def merge_small_groups(grouping: Grouping, small: Indices) -> Grouping:
    """Merge some groups into one, placed last.

    Parameters
    ----------
    grouping : Grouping
        The groups.
    small : ndarray of int
        Numbers of the groups to merge.

    Returns
    -------
    Grouping
        The other groups, followed by one of the merged groups, if any. It may be small itself.
    """
    if not len(small):
        return grouping
    kept = np.setdiff1d(np.arange(len(grouping.names)), small).tolist()
    if MERGED in [grouping.names[i] for i in kept]:
        raise ValueError(f"groups has a group named {MERGED!r}, the name used for merged small groups; rename it.")
    rest = np.unique(np.concatenate([grouping.rows_of(int(i)) for i in small]))
    parts = [*(grouping.rows_of(i) for i in kept), rest]
    return Grouping(
        offsets=np.append(0, np.cumsum([len(part) for part in parts])),
        members=np.concatenate(parts),
        names=(*(grouping.names[i] for i in kept), MERGED),
        overlapping=grouping.overlapping,
        by=grouping.by,
    )


def names_array(names: Any) -> Array:
    """Return labels as an array; of objects if they are tuples, of mixed types, or of very different lengths."""
    names = list(names)
    kinds = {type(name) for name in names}
    # Arrays of text drop trailing null characters, and give every name the space of the longest.
    odd = kinds == {str} and ("\0" in "".join(names) or _is_wasteful(names))
    if len(kinds) == 1 and kinds <= {str, int, float, bool} and not odd:
        try:
            found = np.array(names)
        except OverflowError:
            pass  # integers of more than 64 bits stay objects
        else:
            if int not in kinds or found.dtype.kind in "iu":  # NumPy makes some large integers floats
                return found
    array = np.empty(len(names), dtype=object)
    array[:] = names
    return array


def _is_wasteful(names: list[str]) -> bool:
    """Return whether an array of names would be large, and much larger than the names."""
    return 4 * len(names) * max(map(len, names)) > max(_LARGEST_TEXT, 64 * len("".join(names)))


def _check_length(length: int, n_rows: int) -> None:
    if length != n_rows:
        raise ValueError(f"groups has {length} rows but X has {n_rows}.")


def _refuse_dummies(columns: "list[nw.Series[Any]]") -> None:
    """Refuse a data frame that looks like one-hot encoded labels, as from `get_dummies`."""
    if len(columns) < 2 or not all(column.dtype.is_numeric() and column.is_in((0, 1)).all() for column in columns):
        return
    matrix = np.column_stack([column.to_numpy() for column in columns])
    ones = matrix.sum(axis=1)
    # Each row has one 1 per encoded column. With binary columns that happens by chance only if all rows are alike.
    if ones[0] > 0 and (ones == ones[0]).all() and (matrix != matrix[0]).any():
        raise ValueError(
            "groups is a DataFrame of zeros and ones with the same number of ones in every row, as from get_dummies. "
            "This could mean membership (one group per column) or combinations of columns: pass "
            "groups.astype(bool) for the former (polars: groups.cast(pl.Boolean)), and the labels themselves or "
            "groups.astype(str) for the latter."
        )


def read_labels(labels: "nw.Series[Any] | Array") -> tuple[Indices, list[Any]]:
    """Return integer codes, -1 for a missing value, and the sorted distinct values."""
    return _read_series(labels) if isinstance(labels, nw.Series) else _read_array(labels)


def _read_series(series: "nw.Series[Any]") -> tuple[Indices, list[Any]]:
    absent = series.is_null().to_numpy().astype(bool)
    if not absent.any():
        return _read_array(series_values(series))
    return _read_present(series_values(series.filter(~series.is_null())), absent)


def _read_array(values: Array) -> tuple[Indices, list[Any]]:
    """Return integer codes, -1 for a missing value, and the sorted distinct values."""
    if values.dtype.kind in "OT":  # objects, and NumPy's text of any length
        return _read_objects(values.tolist())
    absent = _missing(values)
    if absent.any():
        return _read_present(values[~absent], absent)
    distinct, codes = np.unique(values, return_inverse=True)
    names = distinct.tolist()
    if values.dtype.kind in "mM" and isinstance(names[0], int):
        # Times finer than a microsecond, which Python's datetime cannot represent, would become plain numbers.
        coarse = distinct.astype(f"{values.dtype.kind}8[us]")
        names = coarse.tolist() if (coarse == distinct).all() else list(distinct)
    return codes.astype(np.int64, copy=False).ravel(), names


def _read_present(values: Array, absent: Mask) -> tuple[Indices, list[Any]]:
    codes = np.full(len(absent), -1)
    codes[~absent], distinct = _read_array(values)
    return codes, distinct


def _missing(values: Array) -> Mask:
    if values.dtype.kind in "fc":
        return np.isnan(values)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    return np.zeros(len(values), dtype=bool)


def _read_objects(values: list[Any]) -> tuple[Indices, list[Any]]:
    try:
        code_of = {value: code for code, value in enumerate(dict.fromkeys(values))}
    except TypeError as error:
        raise ValueError(f"groups has labels that cannot be compared: {error}.") from None
    # Only a missing value differs from itself; `is True` also handles the three-valued pandas NA.
    absent = [value is None or ((value == value) is not True and not _truth(value == value)) for value in code_of]
    codes = np.fromiter(map(code_of.__getitem__, values), np.int64, len(values))
    if any(absent):
        # Every NaN is a separate key, so missing values are found by their codes.
        gone = np.array(absent)[codes]
        return _read_present(np.array([*values, None], dtype=object)[:-1][~gone], gone)
    distinct = list(code_of)
    try:
        order = sorted(range(len(distinct)), key=distinct.__getitem__)
    except TypeError:
        return codes, distinct  # labels of mixed types cannot be sorted: keep the order of first appearance
    rank = np.empty(len(distinct), np.int64)
    rank[order] = np.arange(len(distinct))
    return rank[codes], [distinct[k] for k in order]


def _truth(value: Any) -> bool:
    try:
        return bool(value)
    except TypeError:
        return False


def _from_columns(
    columns: list[tuple[Indices, list[Any]]], missing: str, column_names: list[str] | None = None
) -> Grouping:
    """Make one group per combination of the columns' values that occurs."""
    for k, (codes, values) in enumerate(columns):
        absent = codes < 0
        if not absent.any():
            continue
        if missing != "own":
            where = f"column {column_names[k]!r}, " if column_names and len(columns) > 1 else ""
            raise ValueError(
                f"groups has missing values ({where}first in row {int(np.argmax(absent))}): drop these rows, or "
                "fill in a label of their own, as groups.fillna('unknown') does in pandas."
            )
        if MISSING in values:
            raise ValueError(f"groups has both missing values and a group named {MISSING!r}: rename it.")
        columns[k] = np.where(absent, len(values), codes), [*values, MISSING]
    codes, values = columns[0]
    names: list[Any] = values if len(columns) == 1 else [(value,) for value in values]
    for more, more_values in columns[1:]:
        # Only the pairs that occur get a code, so that the product of many columns cannot overflow.
        pairs, codes = np.unique(codes * len(more_values) + more, return_inverse=True)
        codes = codes.ravel()
        names = [(*names[p // len(more_values)], more_values[p % len(more_values)]) for p in pairs.tolist()]
    return Grouping.of_codes(codes, names, map(str, column_names or ()))


def _read_membership(matrix: Any, names: tuple[Any, ...] | None, n_rows: int) -> Grouping:
    _check_length(matrix.shape[0], n_rows)
    matrix = matrix.tocoo()
    if not np.isin(matrix.data, (0, 1)).all():
        raise ValueError("groups is a membership matrix with entries other than 0 and 1.")
    # Duplicate entries count as one membership.
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
            "that is True everywhere."
        )
    return Grouping(
        offsets=matrix.indptr.astype(np.int64),
        members=matrix.indices.astype(np.int64),
        names=names,
        overlapping=True,
    )
