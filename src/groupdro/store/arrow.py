"""Columns of tables as sources of rows."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from groupdro.store.rounding import Rounding
from groupdro.store.sources import Coded, LabelBlock, as_csr, has_classes, refuse
from groupdro.store.tables import import_pyarrow, open_table
from groupdro.utils.arguments import check_whole, short_repr
from groupdro.utils.types import Array, Indices, Mask

__all__ = ["ArrowSource"]

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # a row's number or id, which is no feature
_LABEL_BYTES = 64  # of a row's labels, about
_LIST_ROWS = 2048  # sparse rows are of unknown length: few at a time


class ArrowSource:
    """Columns of tables that pyarrow reads in batches.

    Parameters
    ----------
    source : path, list of paths, Dataset, Table or callable
        As `GroupedStore.write` takes it.
    target, weight : str
        Columns; weight may be None.
    groups, features : str or sequence of str
        Columns; features may be None.
    n_features : int or None
        Number of features that lists of indices refer to.
    dtype : dtype
        Type of the entries of the store.
    sparse : bool
        Whether rows are given out as CSR.
    task : {"auto", "classes", "regression"}
        What the targets are.
    """

    def __init__(
        self,
        source: Any,
        *,
        target: str,
        groups: str | Sequence[str],
        features: Sequence[str] | None,
        weight: str | None,
        n_features: int | None,
        dtype: np.dtype[Any],
        sparse: bool,
        task: str,
    ):
        self._pa = import_pyarrow("pyarrow")
        self._schema, self._read = open_table(source)
        self.rounding, self.sparse = Rounding(dtype, self), sparse
        self.target_name = self._column(target, "target")
        given = list(groups) if isinstance(groups, list | tuple) else [groups]
        if not given:
            raise ValueError("groups has no column.")
        self.group_names = tuple(self._column(name, "groups") for name in given)
        self._weight = None if weight is None else self._column(weight, "weight")
        self.weighted = weight is not None
        self._label_types = {
            name: self._label_type(name, argument)
            for argument, names in (("target", (target,)), ("groups", self.group_names))
            for name in names
        }
        self.has_classes = has_classes(self._kind(target), task, f"target column {target!r}")
        self._features = self._choose_features(features)
        self._layout = self._feature_layout(n_features)
        named = self._layout == "columns"
        self.feature_names = tuple(self._features) if named else None

    # ------------------------------------------------------------------ reading

    def label_blocks(self, memory: int) -> Iterator[LabelBlock]:
        """Read the columns of labels."""
        row = 0
        for batch in self._batches(self._label_columns(), max(1, min(2**16, memory // _LABEL_BYTES))):
            yield self._labels(batch, row)
            row += len(batch)

    def row_blocks(self, memory: int) -> Iterator[tuple[LabelBlock, Any]]:
        """Read all columns that the store needs."""
        row_bytes = 8 * self.n_features + _LABEL_BYTES
        n_rows = max(1, min(2**16, memory // row_bytes))
        if self._layout in ("pairs", "two lists"):
            n_rows = max(1, min(_LIST_ROWS, memory // 2**12))
        row = 0
        for batch in self._batches(list(dict.fromkeys([*self._label_columns(), *self._features])), n_rows):
            yield self._labels(batch, row), self._rows(batch, row)
            row += len(batch)

    def feature(self, column: int) -> str:
        """Describe a column of X for an error."""
        if self._layout == "columns":
            return f"features column {self._features[column]!r}"
        return f"features column {self._features[-1]!r}, feature {column},"

    def _batches(self, columns: list[str], n_rows: int) -> Iterator[Any]:
        for batch in self._read(columns, n_rows):
            for start in range(0, len(batch), n_rows):
                yield batch.slice(start, n_rows)

    def _labels(self, batch: Any, row: int) -> LabelBlock:
        target = self._label(batch, "target", self.target_name, row)
        weight = None
        if self._weight is not None:
            weight = self._numbers(batch, "weight", self._weight, row).astype(np.float64)
            fault = "a value that is NaN, infinite or negative"
            refuse(f"weight column {self._weight!r}", fault, ~(np.isfinite(weight) & (weight >= 0)), row)
        return LabelBlock(
            target=_coded(target) if self.has_classes else _to_numpy(target).astype(np.float64),
            groups=_combined([_coded(self._label(batch, "groups", name, row)) for name in self.group_names]),
            weight=weight,
        )

    def _label(self, batch: Any, argument: str, name: str, row: int) -> Any:
        """Return a column of labels in the type that the first batch had."""
        column, wanted = self._present(batch, argument, name, row), self._label_types[name]
        try:
            if not self._keeps_apart(column.type, wanted):
                raise self._pa.ArrowTypeError(f"{column.type} is not {wanted}")
            column = column.cast(wanted)
        except self._pa.ArrowException as error:
            raise ValueError(f"{argument} column {name!r} changes its type from row {row} on: {error}.") from None
        if self._pa.types.is_floating(column.type):
            fault = "a value that is NaN or infinite"
            refuse(f"{argument} column {name!r}", fault, ~np.isfinite(_to_numpy(column)), row)
        return column

    def _keeps_apart(self, given: Any, wanted: Any) -> bool:
        """Tell whether a cast of labels takes different ones to different ones, or fails."""
        types = self._pa.types
        given = given.value_type if types.is_dictionary(given) else given
        if types.is_boolean(wanted) or types.is_boolean(given):
            return bool(given == wanted)
        number = types.is_integer(given) or types.is_floating(given)
        return number or not (types.is_integer(wanted) or types.is_floating(wanted))

    def _rows(self, batch: Any, row: int) -> Any:
        if self._layout in ("pairs", "two lists"):
            return self._sparse_rows(batch, row)
        if self._layout == "vector":
            column = self._present(batch, "features", self._features[0], row)
            flat = column.flatten()
            missing = flat.is_null().to_numpy(zero_copy_only=False).reshape(len(batch), self.n_features)
            refuse(f"features column {self._features[0]!r}", "a missing value", missing.any(axis=1), row)
            block = _to_numpy(flat).reshape(len(batch), self.n_features)
        else:
            columns = [self._numbers(batch, "features", name, row) for name in self._features]
            safe = all(self.rounding.is_safe(column.dtype) for column in columns)
            block = np.empty((len(batch), self.n_features), self.rounding.dtype if safe else np.float64)
            for j, column in enumerate(columns):
                block[:, j] = column
        return as_csr(block, self.rounding, row) if self.sparse else self.rounding.convert(block, row)

    def _sparse_rows(self, batch: Any, row: int) -> Any:
        columns = [self._present(batch, "features", name, row) for name in self._features]
        lengths = [column.value_lengths().to_numpy(zero_copy_only=False) for column in columns]
        refuse("features", "lists of different lengths", lengths[0] != lengths[-1], row)
        if len(columns) == 1:
            both = columns[0].flatten()
            parts = [both.field(0), both.field(1)]
            missing = both.is_null().to_numpy(zero_copy_only=False)
        else:
            parts = [column.flatten() for column in columns]
            missing = np.zeros(len(parts[0]), bool)
        for part in parts:
            missing = missing | part.is_null().to_numpy(zero_copy_only=False)
        indptr = np.concatenate([[0], np.cumsum(lengths[0], dtype=np.int64)])
        owner = np.repeat(np.arange(len(batch)), lengths[0])

        def refuse_entry(fault: str, bad: Mask) -> None:
            of_row = np.zeros(len(batch), bool)
            of_row[owner[bad]] = True
            refuse(f"features column {self._features[0]!r}", fault, of_row, row)

        refuse_entry("a missing entry", missing)
        indices = _to_numpy(parts[0])
        refuse_entry(f"an index outside 0 to n_features - 1 = {self.n_features - 1}",
                     (indices < 0) | (indices > self.n_features - 1))  # fmt: skip
        values = _to_numpy(parts[1]).astype(np.float64)
        matrix = sp.csr_array((values, indices.astype(np.int64), indptr), shape=(len(batch), self.n_features))
        return as_csr(matrix, self.rounding, row)

    def _numbers(self, batch: Any, argument: str, name: str, row: int) -> Array:
        column = self._present(batch, argument, name, row)
        if not _is_numeric(self._pa, column.type):
            raise ValueError(f"{argument} column {name!r} is of {column.type} from row {row} on, which is not numeric.")
        return _to_numpy(column)

    def _present(self, batch: Any, argument: str, name: str, row: int) -> Any:
        """Return a column without missing values, of the type in which its values are stored."""
        place = batch.schema.get_field_index(name)
        if place < 0:
            raise ValueError(f"{argument} names the column {name!r}, which is missing from row {row} on.")
        column = _plain(self._pa, batch.column(place))
        if column.null_count:
            bad = column.is_null().to_numpy(zero_copy_only=False)
            refuse(f"{argument} column {name!r}", "a missing value", bad, row)
        return column

    # ------------------------------------------------------------------ columns

    def _label_columns(self) -> list[str]:
        names = [self.target_name, *self.group_names, *([self._weight] if self._weight else [])]
        return list(dict.fromkeys(names))

    def _column(self, name: Any, argument: str) -> str:
        if not isinstance(name, str):
            raise ValueError(f"{argument} must be the name of a column, got {name!r}.")
        n_found = len(self._schema.get_all_field_indices(name))
        if n_found != 1:
            which = "is not in source" if not n_found else "is in source more than once"
            raise ValueError(f"{argument} names the column {name!r}, which {which}; it has {self._listed()}.")
        return name

    def _listed(self) -> str:
        names = self._schema.names
        return f"{names[:10]}{' and more' if len(names) > 10 else ''}"

    def _type(self, name: str) -> Any:
        """Return the type of a column's values: that of the dictionary, or what an extension is stored as."""
        kind = self._schema.field(name).type
        if isinstance(kind, self._pa.BaseExtensionType):
            kind = kind.storage_type
        return kind.value_type if self._pa.types.is_dictionary(kind) else kind

    def _label_type(self, name: str, argument: str) -> Any:
        kind, types = self._type(name), self._pa.types
        if types.is_floating(kind):
            return self._pa.float64()
        if types.is_boolean(kind) or types.is_integer(kind):
            return kind
        if types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
            return self._pa.large_string()
        raise ValueError(f"{argument} column {name!r} is of {kind}: use text, numbers or booleans.")

    def _kind(self, name: str) -> str:
        kind, types = self._label_types[name], self._pa.types
        if types.is_floating(kind):
            return "float"
        return "bool" if types.is_boolean(kind) else "int" if types.is_integer(kind) else "str"

    def _choose_features(self, features: Sequence[str] | None) -> list[str]:
        if features is None:
            taken = {self.target_name, *self.group_names, self._weight}
            chosen = [name for name in self._schema.names if name not in taken and not _PANDAS_INDEX.fullmatch(name)]
        else:
            if not isinstance(features, str | Sequence):
                raise ValueError(f"features must be a list of names of columns, got {short_repr(features)}.")
            chosen = [features] if isinstance(features, str) else list(features)
        if not chosen:
            raise ValueError("features has no column.")
        chosen = [self._column(name, "features") for name in chosen]
        if len(set(chosen)) < len(chosen):
            raise ValueError("features names a column twice.")
        if self.target_name in chosen:
            raise ValueError(f"features has the target column {self.target_name!r}.")
        return chosen

    def _feature_layout(self, n_features: int | None) -> str:
        """Find out how columns make up X, and set the number of features."""
        if n_features is not None:
            check_whole(n_features, "n_features", least=1)
        types = [self._type(name) for name in self._features]
        lists = [self._pa.types.is_list(kind) or self._pa.types.is_large_list(kind) for kind in types]
        vector = len(types) == 1 and self._pa.types.is_fixed_size_list(types[0])
        if any(lists):
            if not self.sparse:
                raise ValueError(
                    "features are lists of no fixed length: cast them to lists of fixed size, or pass sparse=True."
                )
            if n_features is None:
                raise ValueError("n_features must be given where features are lists of indices and values.")
            self.n_features = int(n_features)
            values = [kind.value_type if listed else kind for kind, listed in zip(types, lists, strict=True)]
            layout = "two lists"
            if len(values) == 1 and self._pa.types.is_struct(values[0]) and values[0].num_fields == 2:
                layout, values = "pairs", [values[0].field(0).type, values[0].field(1).type]
            fits = all(lists) and len(values) == 2 and self._pa.types.is_integer(values[0])
            if not fits or not _is_numeric(self._pa, values[1]):
                raise ValueError(
                    "features of a sparse store must be numeric columns, one column of lists of (index, value), or a "
                    f"column of lists of indices and one of lists of values; got {[str(kind) for kind in types]}."
                )
            return layout
        text = [
            n for n, kind in zip(self._features, types, strict=True) if not vector and not _is_numeric(self._pa, kind)
        ]
        if text or (vector and not _is_numeric(self._pa, types[0].value_type)):
            raise ValueError(f"features has columns that are not numeric: {(text or self._features)[:10]}.")
        self.n_features = types[0].list_size if vector else len(types)
        if n_features not in (None, self.n_features):
            raise ValueError(f"n_features is {n_features}, but features have {self.n_features}.")
        if not self.n_features:
            raise ValueError(f"features column {self._features[0]!r} has lists of no entries.")
        return "vector" if vector else "columns"


def _plain(pa: Any, column: Any) -> Any:
    """Return a column as what it is stored as, without dictionary and extension type."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_numeric(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _to_numpy(column: Any) -> Array:
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _coded(column: Any) -> Coded:
    encoded = column.dictionary_encode()
    return Coded(_to_numpy(encoded.indices).astype(np.int64), encoded.dictionary.to_pylist())


def _combined(columns: list[Coded]) -> Coded:
    """Make one label of each combination of several columns' values that occurs."""
    if len(columns) == 1:
        return columns[0]
    codes: Indices = columns[0].codes
    values: list[Any] = [(value,) for value in columns[0].values]
    for more in columns[1:]:
        pairs, codes = np.unique(codes * len(more.values) + more.codes, return_inverse=True)
        codes = codes.ravel()
        n_more = len(more.values)
        values = [(*values[pair // n_more], more.values[pair % n_more]) for pair in pairs.tolist()]
    return Coded(codes, values)
