"""Table columns as a source of rows."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from groupdro.store.sources import Coded, LabelBlock, Source, has_classes, refuse, refuse_not_finite
from groupdro.store.tables import import_pyarrow, open_table
from groupdro.utils.arguments import check_whole, short_repr
from groupdro.utils.types import Array, Indices

__all__ = ["NUMERIC", "ArrowSource", "to_numpy"]

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # a row's number or id, not a feature
NUMERIC = ("boolean", "integer", "floating")  # pyarrow's names of numeric types
_LABEL_BYTES = 64  # approximate size of a row's labels
_LIST_ROWS = 2048  # sparse rows have unknown length, so read few at a time


class ArrowSource(Source):
    """Columns of tables that pyarrow reads in batches.

    Parameters
    ----------
    source : path, list of paths, Dataset, Table or callable
        As in `GroupedStore.write`.
    target, weight : str
        Columns; weight may be None.
    groups, features : str or sequence of str
        Columns; features may be None.
    n_features : int or None
        Number of features, for lists of indices.
    dtype : str, type or dtype
        Type of the entries of the store.
    sparse : bool
        Whether rows are returned as CSR.
    task : {"auto", "classes", "regression"}
        Kind of target.
    """

    target_name: str
    group_names: tuple[str, ...]
    _row_bytes: int
    _lists: bool

    def __init__(
        self,
        source: Any,
        *,
        target: str,
        groups: str | Sequence[str],
        features: Sequence[str] | None,
        weight: str | None,
        n_features: int | None,
        dtype: Any,
        sparse: bool,
        task: str,
    ):
        super().__init__(dtype, sparse)
        self._pa = import_pyarrow("pyarrow")
        self._schema, self._read = open_table(source)
        self.target_name = self._column(target, "target")
        given = list(groups) if isinstance(groups, list | tuple) else [groups]
        if not given:
            raise ValueError("groups has no column.")
        self.group_names = tuple(self._column(name, "groups") for name in given)
        self._weight = None if weight is None else self._column(weight, "weight")
        self.weighted = weight is not None
        self._label_types = {name: self._label_type(name, "groups") for name in self.group_names}
        self._label_types[target] = self._label_type(target, "target")
        self.has_classes = has_classes(self._kind(self._label_types[target]), task, f"target column {target!r}")
        self._features = self._choose_features(features)
        self._read_layout(n_features)

    # ------------------------------------------------------------------ reading

    def blocks(self, memory: int, *, labels_only: bool = False) -> Iterator[tuple[LabelBlock, Any]]:
        """Read the columns of labels, and those of features."""
        columns = [self.target_name, *self.group_names, *([self._weight] if self._weight else [])]
        n_rows = memory // _LABEL_BYTES
        if not labels_only:
            columns += self._features
            n_rows = min(_LIST_ROWS, memory // 2**12) if self._lists else memory // (self._row_bytes + _LABEL_BYTES)
        n_rows = max(1, min(2**16, n_rows))
        row = 0
        for given in self._read(list(dict.fromkeys(columns)), n_rows):
            for start in range(0, len(given), n_rows):
                batch = given.slice(start, n_rows)
                yield self._labels(batch, row), None if labels_only else self._rows(batch, row)
                row += len(batch)

    def feature(self, column: int) -> str:
        """Describe a column of X for an error."""
        if self.feature_names is not None:
            return f"features column {self._features[column]!r}"
        return f"features column {self._features[-1]!r}, feature {column},"

    def _labels(self, batch: Any, row: int) -> LabelBlock:
        target = self._label(batch, "target", self.target_name, row)
        weight = None
        if self._weight is not None:
            weight = self._numbers(batch, "weight", self._weight, row).astype(np.float64)
            refuse_not_finite(f"weight column {self._weight!r}", weight, row, nor_negative=True)
        return LabelBlock(
            target=_coded(target) if self.has_classes else to_numpy(target).astype(np.float64),
            groups=_combined([_coded(self._label(batch, "groups", name, row)) for name in self.group_names]),
            weight=weight,
        )

    def _label(self, batch: Any, argument: str, name: str, row: int) -> Any:
        """Return a column of labels in the type of the first batch."""
        column, wanted = self._present(batch, argument, name, row), self._label_types[name]
        try:
            if not self._keeps_labels_distinct(self._kind(column.type), self._kind(wanted)):
                raise self._pa.ArrowTypeError(f"{column.type} is not {wanted}")
            column = column.cast(wanted)
        except self._pa.ArrowException as error:
            raise ValueError(f"{argument} column {name!r} changes its type from row {row} on: {error}.") from None
        if self._kind(wanted) == "floating":
            refuse_not_finite(f"{argument} column {name!r}", to_numpy(column), row)
        return column

    @staticmethod
    def _keeps_labels_distinct(given: str | None, wanted: str | None) -> bool:
        """Return whether a cast between types keeps distinct labels distinct, or fails."""
        if "boolean" in (given, wanted):
            return given == wanted
        return given in NUMERIC or wanted == "text"

    def _rows(self, batch: Any, row: int) -> Any:
        if self._lists:
            return self.stored(self._sparse_rows(batch, row), row)
        if self._vector:
            flat = self._present(batch, "features", self._features[0], row).flatten()
            missing = to_numpy(flat.is_null()).reshape(len(batch), self.n_features)
            refuse(f"features column {self._features[0]!r}", "a missing value", np.logical_or.reduce(missing, 1), row)
            return self.stored(to_numpy(flat).reshape(len(batch), self.n_features), row)
        columns = [self._numbers(batch, "features", name, row) for name in self._features]
        safe = all(self.rounding.is_safe(column.dtype) for column in columns)
        dtype = self.rounding.dtype if safe else np.dtype(np.float64)
        return self.stored(np.stack(columns, axis=1, dtype=dtype, casting="unsafe"), row)

    def _sparse_rows(self, batch: Any, row: int) -> Any:
        columns = [self._present(batch, "features", name, row) for name in self._features]
        lengths = [to_numpy(column.value_lengths()) for column in columns]
        refuse("features", "lists of different lengths", lengths[0] != lengths[-1], row)
        flat = [column.flatten() for column in columns]
        parts = flat if len(flat) == 2 else [flat[0].field(0), flat[0].field(1)]
        missing = np.logical_or.reduce([to_numpy(part.is_null()) for part in (*flat, *parts)])
        indptr = np.concatenate([[0], np.cumsum(lengths[0], dtype=np.int64)])
        owner = np.repeat(np.arange(len(batch)), lengths[0])
        indices = to_numpy(parts[0])
        outside = (indices < 0) | (indices > self.n_features - 1)
        for fault, bad in {
            "a missing entry": missing,
            f"an index outside 0 to n_features - 1 = {self.n_features - 1}": outside,
        }.items():
            refuse(f"features column {self._features[0]!r}", fault, np.bincount(owner, bad, len(batch)) > 0, row)
        values = to_numpy(parts[1]).astype(np.float64)
        return sp.csr_array((values, indices.astype(np.int64), indptr), shape=(len(batch), self.n_features))

    def _numbers(self, batch: Any, argument: str, name: str, row: int) -> Array:
        column = self._present(batch, argument, name, row)
        if self._kind(column.type) not in NUMERIC:
            raise ValueError(f"{argument} column {name!r} has type {column.type} from row {row} on, not a number.")
        return to_numpy(column)

    def _present(self, batch: Any, argument: str, name: str, row: int) -> Any:
        """Return a column without missing values, in the type of its stored values."""
        place = batch.schema.get_field_index(name)
        if place < 0:
            raise ValueError(f"{argument} names the column {name!r}, which is missing from row {row} on.")
        column = batch.column(place)
        if isinstance(column, self._pa.ExtensionArray):
            column = column.storage
        if self._pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if column.null_count:
            refuse(f"{argument} column {name!r}", "a missing value", to_numpy(column.is_null()), row)
        return column

    # ------------------------------------------------------------------ columns

    def _column(self, name: Any, argument: str) -> str:
        if not isinstance(name, str):
            raise ValueError(f"{argument} must be the name of a column, got {name!r}.")
        n_found = len(self._schema.get_all_field_indices(name))
        if n_found != 1:
            which = "is not in source" if not n_found else "is in source more than once"
            names = self._schema.names
            listed = f"{names[:10]}{' and more' if len(names) > 10 else ''}"
            raise ValueError(f"{argument} names the column {name!r}, which {which}; it has {listed}.")
        return name

    def _type(self, name: str) -> Any:
        """Return the type of a column's values: that of a dictionary's values, or the storage type of an extension."""
        kind = self._schema.field(name).type
        if isinstance(kind, self._pa.BaseExtensionType):
            kind = kind.storage_type
        return kind.value_type if self._pa.types.is_dictionary(kind) else kind

    def _kind(self, kind: Any) -> str | None:
        """Return the kind of a type, if supported."""
        types = self._pa.types
        if types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
            return "text"
        return next((name for name in NUMERIC if getattr(types, f"is_{name}")(kind)), None)

    def _label_type(self, name: str, argument: str) -> Any:
        given = self._type(name)
        kind = self._kind(given)
        if kind is None:
            raise ValueError(f"{argument} column {name!r} has type {given}: use text, numbers or booleans.")
        return {"floating": self._pa.float64(), "text": self._pa.large_string()}.get(kind, given)

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

    def _read_layout(self, n_features: int | None) -> None:
        """Determine how columns make up X: numbers, vectors of one length, or lists of indices and values."""
        if n_features is not None:
            check_whole(n_features, "n_features", least=1)
        self.feature_names = None
        kinds = [self._type(name) for name in self._features]
        types = self._pa.types
        self._vector = (
            len(kinds) == 1 and types.is_fixed_size_list(kinds[0]) and not types.is_struct(kinds[0].value_type)
        )
        self._lists = not self._vector and any(map(self._is_list, kinds))
        if self._lists:
            self._check_lists(kinds)
            if n_features is None:
                raise ValueError("n_features must be given if features are lists of indices and values.")
            self.n_features = int(n_features)
            return
        values = [kinds[0].value_type] if self._vector else kinds
        text = [name for name, kind in zip(self._features, values, strict=True) if self._kind(kind) not in NUMERIC]
        if text:
            raise ValueError(f"features has columns that are not numeric: {text[:10]}.")
        self.n_features = kinds[0].list_size if self._vector else len(kinds)
        self._row_bytes = 8 * self.n_features
        if n_features not in (None, self.n_features):
            raise ValueError(f"n_features is {n_features}, but features have {self.n_features}.")
        if not self.n_features:
            raise ValueError(f"features column {self._features[0]!r} has empty lists.")
        if not self._vector:
            self.feature_names = tuple(self._features)

    def _check_lists(self, kinds: list[Any]) -> None:
        """Raise unless features are one column of lists of pairs, or two columns of lists of indices and values."""
        got = ", ".join(f"{name!r} of type {kind}" for name, kind in zip(self._features, kinds, strict=True))
        if not self.sparse:
            raise ValueError(
                "features of a dense store must be numeric columns, or one column of fixed-size lists of numbers: cast "
                f"lists of numbers to fixed-size lists, or pass sparse=True for lists of indices and values; got {got}."
            )
        values = [kind.value_type for kind in kinds if self._is_list(kind)]
        if len(kinds) == 1 and self._pa.types.is_struct(values[0]):
            values = [values[0].field(j).type for j in range(values[0].num_fields)]
        found = [self._kind(value) for value in values]
        if len(kinds) > 2 or len(found) != 2 or found[0] != "integer" or found[1] not in NUMERIC:
            raise ValueError(
                "features of a sparse store must be numeric columns, one column of lists of (index, value), or a "
                f"column of lists of indices and one of lists of values; got {got}."
            )

    def _is_list(self, kind: Any) -> bool:
        types = self._pa.types
        return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def to_numpy(column: Any) -> Array:
    """Return an Arrow array as a NumPy array."""
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _coded(column: Any) -> Coded:
    encoded = column.dictionary_encode()
    return Coded(to_numpy(encoded.indices).astype(np.int64), encoded.dictionary.to_pylist())


def _combined(columns: list[Coded]) -> Coded:
    """Make one label per combination of the columns' values that occurs."""
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
