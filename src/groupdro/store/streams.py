"""Sources that hand their rows over as a stream of Arrow, which some can do only once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from groupdro.utils.arguments import error_prefix
from groupdro.utils.files import filename_in_errors
from groupdro.utils.optional import import_extra

__all__ = ["SpooledStream", "is_stream", "open_stream"]


def is_stream(source: Any) -> bool:
    """Return whether a source has rows to stream: by the PyCapsule interface of Arrow, or as a pyarrow Scanner."""
    return not isinstance(source, type) and (_exports(source) or hasattr(source, "to_reader"))


def open_stream(source: Any) -> Any:
    """Return a pyarrow RecordBatchReader of the rows of a source."""
    pa = import_extra("pyarrow", extra="store")
    with error_prefix("source"):
        return pa.RecordBatchReader.from_stream(source) if _exports(source) else source.to_reader()


def _exports(source: Any) -> bool:
    return hasattr(source, "__arrow_c_stream__")


class SpooledStream:
    """Reads a stream twice that can be read only once: the first time, the rows are written to a temporary file.

    Parameters
    ----------
    reader : pyarrow.RecordBatchReader
        The stream.

    Attributes
    ----------
    path : Path
        The temporary file, to be set before rows are read. It is removed after the second time.
    columns : list of str
        Columns that are kept, to be set before rows are read.
    memory : int
        Bytes of rows that are kept as one batch, to be set before rows are read.
    """

    path: Path
    columns: list[str]
    memory: int

    def __init__(self, reader: Any):
        self._pa = import_extra("pyarrow", extra="store")
        self._ipc = import_extra("pyarrow.ipc", extra="store")
        self._reader = reader

    def __call__(self, columns: list[str], n_rows: int) -> Iterator[Any]:
        """Yield batches of at most the given number of rows, with all columns that are kept."""
        return self._again() if self._reader is None else self._first(n_rows)

    def _first(self, n_rows: int) -> Iterator[Any]:
        reader, self._reader = self._reader, None
        schema = self._pa.schema([reader.schema.field(name) for name in self.columns])
        empty = True
        # The stream format takes dictionaries that change from batch to batch, unlike the file format.
        with self._ipc.new_stream(self.path, schema) as spool:
            for batch in _batches(reader):
                kept = batch.select(self.columns)
                step = max(1, min(n_rows, self.memory * len(kept) // max(kept.nbytes, 1)))
                for start in range(0, len(kept), step):
                    part = kept.slice(start, step)
                    with filename_in_errors(self.path):
                        spool.write_batch(part)
                    yield part
                    empty = False
        if empty:
            raise ValueError(
                "source has no rows; if it is a reader, its rows may have been read before: open it again."
            )

    def _again(self) -> Iterator[Any]:
        with self._pa.OSFile(str(self.path)) as file, self._ipc.open_stream(file) as spool:
            yield from spool
        self.path.unlink()


def _batches(reader: Any) -> Iterator[Any]:
    """Yield the batches of a stream, with its errors as errors of the source."""
    while True:
        with error_prefix("source"):
            batch = next(reader, None)
        if batch is None:
            return
        yield batch
