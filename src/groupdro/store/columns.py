"""How columns of a table become the rows of X: numbers, vectors, lists of indices and values, or hashed values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import murmurhash3_32

from groupdro.store.rounding import Rounding
from groupdro.store.sources import refuse, refuse_not_finite
from groupdro.store.tables import NUMERIC, Table, to_numpy
from groupdro.utils.arguments import check_whole
from groupdro.utils.types import Array, Floats, Indices

__all__ = ["Layout", "choose_layout"]

_LIST_ROWS = 2048  # lists have unknown lengths, so read few at a time
_LIST_BYTES = 2**12  # assumed for a row of lists
_ENTRY_BYTES = 48  # of a hashed entry of a block, with its copies


@dataclass(frozen=True)
class Layout:
    """How columns become the rows of X.

    Attributes
    ----------
    n_features : int
        Number of columns of X.
    rows : callable
        Returns the rows of a batch, given the batch and the source row of its first row.
    row_bytes : int
        Approximate size of a row.
    describe : callable
        Describes a column of X for an error.
    feature_names : tuple of str or None
        Names of the columns of X, if they have any.
    most_rows : int
        Largest number of rows to read at once.
    """

    n_features: int
    rows: Callable[[Any, int], Any]
    row_bytes: int
    describe: Callable[[int], str]
    feature_names: tuple[str, ...] | None = None
    most_rows: int = 2**16


def choose_layout(
    table: Table, names: list[str], n_features: int | None, rounding: Rounding, *, sparse: bool, hashed: bool
) -> Layout:
    """Determine how columns make up X.

    Parameters
    ----------
    table : Table
        The table.
    names : list of str
        Columns of the features.
    n_features : int or None
        Number of features, for lists of indices and for hashed columns.
    rounding : Rounding
        The type of the store.
    sparse, hashed : bool
        Whether rows are stored as CSR, and whether columns are hashed.

    Returns
    -------
    Layout
        The layout.
    """
    if n_features is not None:
        check_whole(n_features, "n_features", least=1, most=2**31 if hashed else 2**48)
        n_features = int(n_features)
    if hashed:
        if n_features is None or not sparse:
            raise ValueError("hashed=True requires sparse=True and n_features.")
        return _hashed(table, names, n_features, ones=rounding.dtype.kind == "b")
    types = [table.type(name) for name in names]
    arrow = table.pa.types
    if len(types) == 1 and arrow.is_fixed_size_list(types[0]) and not arrow.is_struct(types[0].value_type):
        layout = _vectors(table, names[0])
    elif any(map(table.is_list, types)):
        return _index_lists(table, names, n_features, sparse=sparse)
    else:
        layout = _numbers(table, names, rounding)
    if n_features not in (None, layout.n_features):
        raise ValueError(f"n_features is {n_features}, but features have {layout.n_features}.")
    return layout


def _numbers(table: Table, names: list[str], rounding: Rounding) -> Layout:
    """Return the layout of numeric columns, each of which is a feature."""
    text = [name for name in names if table.kind(table.type(name)) not in NUMERIC]
    if text:
        raise ValueError(f"features has columns that are not numeric: {text[:10]}.")

    def rows(batch: Any, row: int) -> Array:
        columns = [table.numbers(batch, "features", name, row) for name in names]
        safe = all(rounding.is_safe(column.dtype) for column in columns)
        return np.stack(columns, axis=1, dtype=rounding.dtype if safe else np.dtype(np.float64), casting="unsafe")

    return Layout(len(names), rows, 8 * len(names), lambda j: f"features column {names[j]!r}", tuple(names))


def _vectors(table: Table, name: str) -> Layout:
    """Return the layout of a column of fixed-size lists of numbers, which are the rows."""
    type_ = table.type(name)
    n_features = type_.list_size
    if table.kind(type_.value_type) not in NUMERIC:
        raise ValueError(f"features has columns that are not numeric: {[name]}.")
    if not n_features:
        raise ValueError(f"features column {name!r} has empty lists.")

    def rows(batch: Any, row: int) -> Array:
        flat = table.present(batch, "features", name, row).flatten()
        missing = to_numpy(flat.is_null()).reshape(len(batch), n_features)
        refuse(f"features column {name!r}", "a missing value", np.logical_or.reduce(missing, 1), row)
        return to_numpy(flat).reshape(len(batch), n_features)

    return Layout(n_features, rows, 8 * n_features, lambda j: f"features column {name!r}, feature {j},")


def _index_lists(table: Table, names: list[str], n_features: int | None, *, sparse: bool) -> Layout:
    """Return the layout of a column of lists of (index, value), or of one of lists of indices and one of values."""
    types = [table.type(name) for name in names]
    got = ", ".join(f"{name!r} of type {kind}" for name, kind in zip(names, types, strict=True))
    if not sparse:
        raise ValueError(
            "features of a dense store must be numeric columns, or one column of fixed-size lists of numbers: cast "
            f"lists of numbers to fixed-size lists, or pass sparse=True for lists of indices and values; got {got}."
        )
    values = [kind.value_type for kind in types if table.is_list(kind)]
    if len(types) == 1 and table.pa.types.is_struct(values[0]):
        values = [values[0].field(j).type for j in range(values[0].num_fields)]
    found = [table.kind(value) for value in values]
    if len(types) > 2 or len(found) != 2 or found[0] != "integer" or found[1] not in NUMERIC:
        raise ValueError(
            "features of a sparse store must be numeric columns, one column of lists of (index, value), or a "
            f"column of lists of indices and one of lists of values; got {got}."
        )
    if n_features is None:
        raise ValueError("n_features must be given if features are lists of indices and values.")

    def rows(batch: Any, row: int) -> Any:
        columns = [table.present(batch, "features", name, row) for name in names]
        lengths = [to_numpy(column.value_lengths()) for column in columns]
        refuse("features", "lists of different lengths", lengths[0] != lengths[-1], row)
        flat = [column.flatten() for column in columns]
        parts = flat if len(flat) == 2 else [flat[0].field(0), flat[0].field(1)]
        missing = np.logical_or.reduce([to_numpy(part.is_null()) for part in (*flat, *parts)])
        indptr = np.concatenate([[0], np.cumsum(lengths[0], dtype=np.int64)])
        owner = np.repeat(np.arange(len(batch)), lengths[0])
        indices = to_numpy(parts[0])
        outside = (indices < 0) | (indices > n_features - 1)
        for fault, bad in {
            "a missing entry": missing,
            f"an index outside 0 to n_features - 1 = {n_features - 1}": outside,
        }.items():
            refuse(f"features column {names[0]!r}", fault, np.bincount(owner, bad, len(batch)) > 0, row)
        entries = to_numpy(parts[1]).astype(np.float64)
        return sp.csr_array((entries, indices.astype(np.int64), indptr), shape=(len(batch), n_features))

    return Layout(
        n_features, rows, _LIST_BYTES, lambda j: f"features column {names[-1]!r}, feature {j},", most_rows=_LIST_ROWS
    )


def _hashed(table: Table, names: list[str], n_features: int, *, ones: bool) -> Layout:
    """Return the layout of columns that are hashed as by scikit-learn's `FeatureHasher`.

    A value v of a text, integer or boolean column c, and every item v of a column c of lists, is the feature hashed
    from the text "c=v", with value one or, depending on the hash, minus one; booleans are True and False. A
    floating-point column c is the feature hashed from "c", with the column's values or their negatives. Features that
    fall on each other within a row are added up. With `ones`, there are no signs, and such features count once.
    """
    lists = [name for name in names if table.is_list(table.type(name))]
    kinds = {name: _kind_of_items(table, table.type(name)) for name in names}
    for name, kind in kinds.items():
        if kind is None or (name in lists and kind == "floating"):
            raise ValueError(
                f"features column {name!r} has type {table.type(name)}, which cannot be hashed; text, numbers, "
                "booleans and lists of text, integers or booleans can."
            )

    def rows(batch: Any, row: int) -> Any:
        parts = []
        for name, kind in kinds.items():
            column = table.present(batch, "features", name, row)
            if _kind_of_items(table, column.type) != kind:  # the same values would become other features
                raise ValueError(
                    f"features column {name!r} changes its type from row {row} on: {column.type} is not "
                    f"{table.type(name)}."
                )
            owner = np.arange(len(column))
            if name in lists:
                owner = np.repeat(owner, to_numpy(column.value_lengths()))
                column = column.flatten()
                missing = np.bincount(owner, to_numpy(column.is_null()), minlength=1) > 0
                refuse(f"features column {name!r}", "a missing item", missing, row)
            texts, codes, values = _entries(table, column, name, row)
            hashes = np.fromiter(map(murmurhash3_32, texts), np.int64, len(texts))[codes]
            if ones:
                other = (values != 0) & (values != 1)
                refuse(f"features column {name!r}", 'a value that dtype="bool" would replace by one', other, row)
            else:
                values = np.where(hashes < 0, -values, values)
            parts.append((owner, np.abs(hashes) % n_features, values))
        rows, columns, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        matrix = sp.coo_array((values, (rows, columns)), shape=(len(batch), n_features)).tocsr()
        if ones:
            matrix.data = (matrix.data != 0).astype(np.float64)
        return matrix

    def describe(column: int) -> str:
        return f"features, hashed feature {column},"

    if lists:
        return Layout(n_features, rows, _LIST_BYTES, describe, most_rows=_LIST_ROWS)
    return Layout(n_features, rows, _ENTRY_BYTES * len(names), describe)


def _kind_of_items(table: Table, type_: Any) -> str | None:
    return table.kind(type_.value_type if table.is_list(type_) else type_)


def _entries(table: Table, column: Any, name: str, row: int) -> tuple[list[str], Indices, Floats]:
    """Return the distinct texts that the entries of a column are hashed from, the text of each, and its value."""
    if table.kind(column.type) == "floating":
        values = to_numpy(column).astype(np.float64)
        refuse_not_finite(f"features column {name!r}", values, row)
        return [name], np.zeros(len(values), np.int64), values
    encoded = column.dictionary_encode()
    words = encoded.dictionary.cast(table.pa.large_string()).to_pylist()
    if table.kind(column.type) == "boolean":  # as Python writes them, so that a prediction can too
        words = [word.capitalize() for word in words]
    return [f"{name}={word}" for word in words], to_numpy(encoded.indices), np.ones(len(column))
