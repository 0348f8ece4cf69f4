"""Parquet, CSV and Arrow tables as batches. Requires pyarrow, which is imported on first use."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from groupdro.utils.arguments import check_path, error_prefix
from groupdro.utils.optional import import_extra

__all__ = ["Reader", "import_pyarrow", "open_table"]

#: Reads the named columns in batches of at most about the given number of rows.
Reader = Callable[[list[str], int], Iterator[Any]]

_FORMATS = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".feather": "ipc", ".arrow": "ipc", ".ipc": "ipc"
}  # fmt: skip
_READ_BUFFERS = 2**25  # bytes that Parquet reads at once over all columns; otherwise it reads whole row groups

import_pyarrow = partial(import_extra, extra="store")


def open_table(source: Any) -> tuple[Any, Reader]:
    """Open any source of record batches.

    Parameters
    ----------
    source : path, list of paths, Dataset, Table or callable
        As in `GroupedStore.write`.

    Returns
    -------
    schema : pyarrow.Schema
        Its columns.
    reader : callable
        Reads columns in batches. It can be called twice.
    """
    pa = import_pyarrow("pyarrow")
    if isinstance(source, pa.Table):
        return source.schema, lambda columns, n_rows: source.select(columns).to_batches(max_chunksize=n_rows)
    if callable(source):
        return _open_callable(pa, source)
    if isinstance(source, str | os.PathLike | list | tuple):
        return _open_paths(source if isinstance(source, list | tuple) else [source])
    if isinstance(source, import_pyarrow("pyarrow.dataset").Dataset):
        return source.schema, partial(_scan, source)
    raise ValueError(
        "source must be a path, a list of paths, a pyarrow Dataset or Table, or a function that returns record "
        f"batches; got {type(source).__name__}."
    )


def _open_paths(given: Sequence[Any]) -> tuple[Any, Reader]:
    paths = [check_path(path, "source") for path in given]
    if not paths:
        raise ValueError("source is an empty list.")
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"source {os.fspath(path)!r} does not exist.")
    dataset = import_pyarrow("pyarrow.dataset")
    if len(paths) == 1 and paths[0].is_dir():
        found = dataset.dataset(paths[0], format="parquet", partitioning="hive")
        if not found.files:
            raise ValueError(f"source {os.fspath(paths[0])!r} contains no Parquet files.")
        return found.schema, partial(_read_parquet, found)
    formats = {_FORMATS.get(path.suffix.lower(), path.suffix) for path in paths}
    if len(formats) > 1 or not formats <= set(_FORMATS.values()):
        raise ValueError(
            f"source must be files of one format, with one of the suffixes {list(_FORMATS)}; got {sorted(formats)}."
        )
    (one,) = formats
    form: Any = one
    if one == "csv":
        # An empty cell of text is missing, as for numbers.
        convert = import_pyarrow("pyarrow.csv").ConvertOptions(strings_can_be_null=True)
        form = dataset.CsvFileFormat(convert_options=convert)
    found = dataset.dataset([os.fspath(path) for path in paths], format=form)
    return found.schema, partial(_read_parquet if one == "parquet" else _scan, found)


def _scan(found: Any, columns: list[str], n_rows: int) -> Iterator[Any]:
    # Read one batch ahead: by default the scanner prefetches gigabytes.
    ahead = {"batch_readahead": 1, "fragment_readahead": 1}
    yield from found.to_batches(columns=columns, batch_size=n_rows, use_threads=False, **ahead)


def _read_parquet(found: Any, columns: list[str], n_rows: int) -> Iterator[Any]:
    """Read Parquet page by page; the scanner of a dataset would hold a whole decoded row group."""
    dataset, parquet, pa = (import_pyarrow(name) for name in ("pyarrow.dataset", "pyarrow.parquet", "pyarrow"))
    buffer_size = max(2**12, min(2**16, _READ_BUFFERS // len(columns)))
    for fragment in found.get_fragments():
        of_directory = dataset.get_partition_keys(fragment.partition_expression)
        own = [name for name in columns if name not in of_directory]
        with _filename_in_errors(fragment.path), fragment.filesystem.open_input_file(fragment.path) as opened:
            file = parquet.ParquetFile(opened, pre_buffer=False, buffer_size=buffer_size)
            for batch in file.iter_batches(batch_size=n_rows, columns=own, use_threads=False):
                for name in set(columns) - set(own):
                    value = pa.scalar(of_directory[name], found.schema.field(name).type)
                    batch = batch.append_column(name, pa.repeat(value, len(batch)))
                yield batch


@contextmanager
def _filename_in_errors(path: str) -> Iterator[None]:
    """Add the file name to pyarrow's errors."""
    try:
        yield
    except (OSError, ValueError) as error:  # includes all errors of pyarrow
        if path in str(error):
            raise
        raise ValueError(f"source {path!r} cannot be read as Parquet: {error}") from error


def _open_callable(pa: Any, source: Callable[[], Iterable[Any]]) -> tuple[Any, Reader]:
    with error_prefix("source"):
        opened = iter(source())
    first = next(opened, None)
    if first is None:
        raise ValueError("source has no rows.")
    if not isinstance(first, pa.RecordBatch):
        raise ValueError(f"source must return pyarrow record batches, got {type(first).__name__}.")
    begun = [itertools.chain([first], opened)]  # the first pass includes the batch read for the schema

    def read(columns: list[str], n_rows: int) -> Iterator[Any]:
        del columns, n_rows
        return iter(begun.pop() if begun else source())

    return first.schema, read
