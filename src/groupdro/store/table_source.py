"""Tables as a source of rows."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.store.columns import choose_layout
from groupdro.store.sources import Coded, LabelBlock, Source, has_classes, refuse, refuse_not_finite
from groupdro.store.streams import SpooledStream
from groupdro.store.tables import NUMERIC, Table, to_numpy
from groupdro.utils.arguments import check_flag, short_repr
from groupdro.utils.types import Floats, Indices
from groupdro.utils.vectors import LARGEST

__all__ = ["TableSource"]

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # a row's number or id, not a feature
_LABEL_BYTES = 64  # approximate size of a row's labels
_MOST_LABELS = 2**16  # rows whose labels are read at once


class TableSource(Source):
    """Columns of tables that pyarrow reads in batches.

    Parameters
    ----------
    source, filesystem
        As in `GroupedStore.write`.
    target, weight : str
        Columns; weight may be None.
    groups, features, drop, offset : str or sequence of str
        Columns; features, drop and offset may be None.
    n_features : int or None
        Number of features, for lists of indices and for hashed columns.
    dtype : str, type or dtype
        Type of the entries of the store.
    sparse, hashed : bool
        Whether rows are returned as CSR, and whether columns are hashed.
    task : {"auto", "classes", "regression"}
        Kind of target.
    """

    target_name: str
    group_names: tuple[str, ...]

    def __init__(
        self,
        source: Any,
        *,
        target: str,
        groups: str | Sequence[str],
        features: Sequence[str] | None,
        drop: str | Sequence[str] | None,
        weight: str | None,
        offset: str | Sequence[str] | None,
        n_features: int | None,
        dtype: Any,
        sparse: bool,
        hashed: bool,
        task: str,
        filesystem: Any,
    ):
        super().__init__(dtype, sparse)
        check_flag(hashed, "hashed")
        self._table = Table(source, filesystem)
        self.target_name = self._table.column(target, "target")
        self.group_names = tuple(self._columns(groups, "groups"))
        self._weight = None if weight is None else self._table.column(weight, "weight")
        self.weighted = weight is not None
        self._offset = [] if offset is None else self._columns(offset, "offset")
        if offset is not None:
            self.offset_shape = () if len(self._offset) == 1 else (len(self._offset),)
        self._label_types = {name: self._label_type(name, "groups") for name in self.group_names}
        self._label_types[target] = self._label_type(target, "target")
        kind = self._table.kind(self._label_types[target])
        self.has_classes = has_classes(kind, task, f"target column {target!r}")
        self._features = self._choose_features(features, drop)
        self._layout = choose_layout(
            self._table, self._features, n_features, self.rounding, sparse=sparse, hashed=hashed
        )
        self.n_features = self._layout.n_features
        self.feature_names = self._layout.feature_names

    def prepare(self, folder: Path, memory: int) -> None:
        """Set where and how the rows of a stream that can be read only once are kept until they are read again."""
        if isinstance(self._table.read, SpooledStream):
            self._table.read.path = folder / "source.tmp"
            self._table.read.memory = memory
            self._table.read.columns = list(dict.fromkeys([*self._label_columns(), *self._features]))

    def blocks(self, memory: int, *, labels_only: bool = False) -> Iterator[tuple[LabelBlock, Any]]:
        """Read the columns of labels, and those of features."""
        columns = self._label_columns()
        n_rows = min(_MOST_LABELS, memory // _LABEL_BYTES)
        if not labels_only:
            columns += self._features
            n_rows = min(self._layout.most_rows, memory // (self._layout.row_bytes + _LABEL_BYTES))
        n_rows = max(1, n_rows)
        row = 0
        for given in self._table.read(list(dict.fromkeys(columns)), n_rows):
            for start in range(0, len(given), n_rows):
                batch = given.slice(start, n_rows)
                X = None if labels_only else self.stored(self._layout.rows(batch, row), row)
                yield self._labels(batch, row), X
                row += len(batch)

    def feature(self, column: int) -> str:
        """Describe a column of X for an error."""
        return self._layout.describe(column)

    # ------------------------------------------------------------------ labels

    def _label_columns(self) -> list[str]:
        weight = [] if self._weight is None else [self._weight]
        return [self.target_name, *self.group_names, *self._offset, *weight]

    def _labels(self, batch: Any, row: int) -> LabelBlock:
        target = self._label(batch, "target", self.target_name, row)
        weight = None
        if self._weight is not None:
            weight = self._table.numbers(batch, "weight", self._weight, row).astype(np.float64)
            refuse_not_finite(f"weight column {self._weight!r}", weight, row, nor_negative=True)
        return LabelBlock(
            target=_coded(target) if self.has_classes else to_numpy(target).astype(np.float64),
            groups=_combined([_coded(self._label(batch, "groups", name, row)) for name in self.group_names]),
            weight=weight,
            offset=self._offsets(batch, row) if self._offset else None,
        )

    def _offsets(self, batch: Any, row: int) -> Floats:
        columns = []
        for name in self._offset:
            values = self._table.numbers(batch, "offset", name, row).astype(np.float64)
            refuse(f"offset column {name!r}", f"NaN or a value beyond {LARGEST:g}", ~(np.abs(values) <= LARGEST), row)
            columns.append(values)
        return columns[0] if len(columns) == 1 else np.column_stack(columns)

    def _label(self, batch: Any, argument: str, name: str, row: int) -> Any:
        """Return a column of labels in the type of the first batch."""
        column = self._table.present(batch, argument, name, row)
        wanted = self._label_types[name]
        kind = self._table.kind(wanted)
        pa = self._table.pa
        try:
            if not _keeps_labels_distinct(self._table.kind(column.type), kind):
                raise pa.ArrowTypeError(f"{column.type} is not {wanted}")
            column = column.cast(wanted)
        except pa.ArrowException as error:
            raise ValueError(f"{argument} column {name!r} changes its type from row {row} on: {error}.") from None
        if kind == "floating":
            refuse_not_finite(f"{argument} column {name!r}", to_numpy(column), row)
        return column

    def _label_type(self, name: str, argument: str) -> Any:
        given = self._table.type(name)
        kind = self._table.kind(given)
        if kind is None:
            raise ValueError(f"{argument} column {name!r} has type {given}: use text, numbers or booleans.")
        return {"floating": self._table.pa.float64(), "text": self._table.pa.large_string()}.get(kind, given)

    # ------------------------------------------------------------------ columns

    def _columns(self, given: Any, argument: str) -> list[str]:
        names = list(given) if isinstance(given, list | tuple) else [given]
        if not names:
            raise ValueError(f"{argument} has no column.")
        return [self._table.column(name, argument) for name in names]

    def _choose_features(self, features: Sequence[str] | None, drop: str | Sequence[str] | None) -> list[str]:
        dropped = set() if drop is None or drop in ([], ()) else set(self._columns(drop, "drop"))
        given: Any = features
        if features is None:
            taken = {*self._label_columns(), *dropped}
            names = self._table.schema.names
            given = [name for name in names if name not in taken and not _PANDAS_INDEX.fullmatch(name)]
            if not given:
                raise ValueError("source has no columns left for the features: all are labels, or dropped.")
        elif not isinstance(features, str | Sequence):
            raise ValueError(f"features must be a list of names of columns, got {short_repr(features)}.")
        chosen = self._columns(given if isinstance(given, str) else list(given), "features")
        if len(set(chosen)) < len(chosen):
            raise ValueError("features names a column twice.")
        if self.target_name in chosen:
            raise ValueError(f"features has the target column {self.target_name!r}.")
        kept = [name for name in chosen if name not in dropped]
        if not kept:
            raise ValueError("drop leaves out all features.")
        return kept


def _keeps_labels_distinct(given: str | None, wanted: str | None) -> bool:
    """Return whether a cast between types keeps distinct labels distinct, or fails."""
    if "boolean" in (given, wanted):
        return given == wanted
    return given in NUMERIC or wanted == "text"


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
