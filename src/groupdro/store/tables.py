"""Parquet, CSV and Arrow tables, read in batches by pyarrow, which is imported on first use."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from groupdro.store.locations import find_files
from groupdro.store.sources import refuse
from groupdro.store.streams import SpooledStream, is_stream, open_stream
from groupdro.utils.arguments import error_prefix
from groupdro.utils.optional import import_extra
from groupdro.utils.types import Array

__all__ = ["NUMERIC", "Reader", "Table", "open_table", "to_numpy"]

#: Reads the named columns in batches of at most about the given number of rows.
Reader = Callable[[list[str], int], Iterator[Any]]

NUMERIC = ("boolean", "integer", "floating")  # pyarrow's names of numeric types

_FORMATS = {"parquet": "parquet", "pq": "parquet", "csv": "csv", "feather": "ipc", "arrow": "ipc", "ipc": "ipc"}
_LOCAL_BUFFER = 2**16  # bytes of a column that are read at once from a disk; larger ones take memory and save no time
_READ_BUFFERS = 2**25  # bytes that Parquet reads at once over all columns; otherwise it reads whole row groups

_import_pyarrow = partial(import_extra, extra="store")


class Table:
    """A source of record batches, with access to its columns by name and kind.

    Parameters
    ----------
    source, filesystem
        As in `GroupedStore.write`.

    Attributes
    ----------
    pa : module
        pyarrow.
    schema : pyarrow.Schema
        The columns.
    read : callable
        Reads columns in batches. It can be called twice.
    """

    def __init__(self, source: Any, filesystem: Any = None):
        self.pa = _import_pyarrow("pyarrow")
        self.schema, self.read = open_table(source, filesystem)

    def column(self, name: Any, argument: str) -> str:
        """Return the name of a column after checking that the table has it once."""
        if not isinstance(name, str):
            raise ValueError(f"{argument} must be the name of a column, got {name!r}.")
        n_found = len(self.schema.get_all_field_indices(name))
        if n_found != 1:
            which = "is not in source" if not n_found else "is in source more than once"
            names = self.schema.names
            listed = f"{names[:10]}{' and more' if len(names) > 10 else ''}"
            raise ValueError(f"{argument} names the column {name!r}, which {which}; it has {listed}.")
        return name

    def type(self, name: str) -> Any:
        """Return the type of a column's values: that of a dictionary's values, or the storage type of an extension."""
        found = self.schema.field(name).type
        if isinstance(found, self.pa.BaseExtensionType):
            found = found.storage_type
        return found.value_type if self.pa.types.is_dictionary(found) else found

    def kind(self, type_: Any) -> str | None:
        """Return "text" or one of `NUMERIC` for a type; None for any other."""
        types = self.pa.types
        if types.is_string(type_) or types.is_large_string(type_) or str(type_) == "string_view":
            return "text"
        return next((name for name in NUMERIC if getattr(types, f"is_{name}")(type_)), None)

    def is_list(self, type_: Any) -> bool:
        """Return whether a type is one of lists, of any or of a fixed size."""
        types = self.pa.types
        return bool(types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_))

    def present(self, batch: Any, argument: str, name: str, row: int) -> Any:
        """Return a column of a batch without missing values, in the type of its stored values.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            The batch.
        argument : str
            Argument that names the column, for errors.
        name : str
            The column.
        row : int
            Source row of the first row of the batch.

        Returns
        -------
        pyarrow.Array
            The column.
        """
        place = batch.schema.get_field_index(name)
        if place < 0:
            raise ValueError(f"{argument} names the column {name!r}, which is missing from row {row} on.")
        column = batch.column(place)
        if isinstance(column, self.pa.ExtensionArray):
            column = column.storage
        if self.pa.types.is_dictionary(column.type):
            if str(column.type.value_type) == "string_view":  # of Polars, which pyarrow cannot look up
                words = column.dictionary.cast(self.pa.large_string())
                column = self.pa.DictionaryArray.from_arrays(column.indices, words)
            column = column.dictionary_decode()
        if column.null_count:
            refuse(f"{argument} column {name!r}", "a missing value", to_numpy(column.is_null()), row)
        return column

    def numbers(self, batch: Any, argument: str, name: str, row: int) -> Array:
        """Return a numeric column of a batch; the arguments are those of `present`."""
        column = self.present(batch, argument, name, row)
        if self.kind(column.type) not in NUMERIC:
            raise ValueError(f"{argument} column {name!r} has type {column.type} from row {row} on, not a number.")
        return to_numpy(column)


def to_numpy(column: Any) -> Array:
    """Return an Arrow array as a NumPy array."""
    return np.asarray(column.to_numpy(zero_copy_only=False))


def open_table(source: Any, filesystem: Any = None) -> tuple[Any, Reader]:
    """Open any source of record batches.

    Parameters
    ----------
    source, filesystem
        As in `GroupedStore.write`.

    Returns
    -------
    schema : pyarrow.Schema
        Its columns.
    reader : callable
        Reads columns in batches. It can be called twice.
    """
    pa = _import_pyarrow("pyarrow")
    dataset = _import_pyarrow("pyarrow.dataset")
    if isinstance(source, str | os.PathLike | list | tuple):
        return _open_files(dataset, source if isinstance(source, list | tuple) else [source], filesystem)
    if filesystem is not None:
        raise ValueError("filesystem is for a source of paths, and must be None for any other.")
    if isinstance(source, pa.Table | pa.RecordBatch):
        source = dataset.dataset(source)
    if isinstance(source, dataset.Dataset):
        return source.schema, partial(_scan, source)
    if is_stream(source):
        reader = open_stream(source)
        if hasattr(source, "__len__"):  # a table, which can be streamed again, unlike a reader
            return reader.schema, _reader_of_callable(partial(open_stream, source), reader)
        return reader.schema, SpooledStream(reader)
    if callable(source):
        return _open_callable(pa, source)
    raise ValueError(
        "source must be a path, a list of paths, a table or reader that streams Arrow (of pyarrow, Polars or DuckDB, "
        f"for instance), a pyarrow Dataset, or a function that returns record batches; got {type(source).__name__}."
    )


def _open_files(dataset: Any, given: Sequence[Any], filesystem: Any) -> tuple[Any, Reader]:
    filesystem, paths, folder = find_files(given, filesystem)
    formats = {"parquet"} if folder else {_format(path) for path in paths}
    if len(formats) > 1 or not formats <= set(_FORMATS.values()):
        raise ValueError(
            f"source must be files of one format, with one of the suffixes {list(_FORMATS)}; got {sorted(formats)}."
        )
    form: Any = formats.pop()
    read = _read_parquet if form == "parquet" else _scan
    if form == "csv":
        # An empty cell of text is missing, as for numbers.
        convert = _import_pyarrow("pyarrow.csv").ConvertOptions(strings_can_be_null=True)
        form = dataset.CsvFileFormat(convert_options=convert)
    partitioning = "hive" if folder else None
    found = dataset.dataset(
        paths[0] if folder else paths, filesystem=filesystem, format=form, partitioning=partitioning
    )
    if not found.files:
        raise ValueError(f"source {paths[0]!r} contains no Parquet files.")
    return found.schema, partial(read, found)


def _format(path: str) -> str:
    suffix = PurePosixPath(path).suffix
    return _FORMATS.get(suffix[1:].lower(), suffix)


def _scan(found: Any, columns: list[str], n_rows: int) -> Iterator[Any]:
    # Read one batch ahead: by default the scanner prefetches gigabytes.
    ahead = {"batch_readahead": 1, "fragment_readahead": 1}
    yield from found.to_batches(columns=columns, batch_size=n_rows, use_threads=False, **ahead)


def _read_parquet(found: Any, columns: list[str], n_rows: int) -> Iterator[Any]:
    """Read Parquet page by page; the scanner of a dataset would hold a whole decoded row group."""
    dataset, parquet, pa = (_import_pyarrow(name) for name in ("pyarrow.dataset", "pyarrow.parquet", "pyarrow"))
    largest = _LOCAL_BUFFER if found.filesystem.type_name == "local" else _READ_BUFFERS
    buffer_size = max(2**12, min(largest, _READ_BUFFERS // len(columns)))
    for fragment in found.get_fragments():
        of_directory = dataset.get_partition_keys(fragment.partition_expression)
        own = [name for name in columns if name not in of_directory]
        with error_prefix(f"source {fragment.path!r}"), fragment.filesystem.open_input_file(fragment.path) as opened:
            file = parquet.ParquetFile(opened, pre_buffer=False, buffer_size=buffer_size)
            for batch in file.iter_batches(batch_size=n_rows, columns=own, use_threads=False):
                for name in set(columns) - set(own):
                    value = pa.scalar(of_directory[name], found.schema.field(name).type)
                    batch = batch.append_column(name, pa.repeat(value, len(batch)))
                yield batch


def _open_callable(pa: Any, source: Callable[[], Iterable[Any]]) -> tuple[Any, Reader]:
    with error_prefix("source"):
        opened = iter(source())
    first = next(opened, None)
    if first is None:
        raise ValueError("source has no rows.")
    if not isinstance(first, pa.RecordBatch):
        raise ValueError(f"source must return pyarrow record batches, got {type(first).__name__}.")
    return first.schema, _reader_of_callable(source, itertools.chain([first], opened))


def _reader_of_callable(source: Callable[[], Iterable[Any]], opened: Iterator[Any]) -> Reader:
    """Return a reader of what was opened for its schema, and then of what the function returns."""
    begun = [opened]

    def read(columns: list[str], n_rows: int) -> Iterator[Any]:
        del columns, n_rows
        return iter(begun.pop() if begun else source())

    return read
