"""A sort of rows by their positions in the store, with bounded memory.

Rows are sorted in chunks that fit in memory. If there are several, they are appended to a file. The rows of a range of
positions are then consecutive in each chunk, from where they are read and merged.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.utils.files import filename_in_errors
from groupdro.utils.types import Array

__all__ = ["Sorter"]


class Sorter:
    """Sorts rows by their positions 0 .. n_rows - 1.

    Parameters
    ----------
    folder : Path
        Folder for temporary files.
    n_rows : int
        Number of rows to expect.
    row_fields, entry_fields : list
        Fields of the records of rows and of the entries of sparse rows, as for `numpy.dtype`.
    memory : int
        Bytes of rows to hold in memory.

    Attributes
    ----------
    row_dtype : dtype
        Type of a row's record: its "place", its number of entries "n_entries", a "stop" for the sorter, its fields.
    entry_dtype : dtype
        Type of an entry's record.
    row_fields : list
        The argument.
    n_entries : int
        Number of entries of all rows that were added.
    """

    def __init__(self, folder: Path, n_rows: int, row_fields: list[Any], entry_fields: list[Any], memory: int):
        self.row_dtype = np.dtype([("place", "<i8"), ("n_entries", "<i8"), ("stop", "<i8"), *row_fields])
        self.row_fields = row_fields
        self.entry_dtype = np.dtype(entry_fields)
        self.n_entries = 0
        self._n_rows = n_rows
        self._memory = memory
        self._rows_path = folder / "rows.tmp"
        self._entries_path = folder / "entries.tmp"
        self._held: list[tuple[Array, Array]] = []
        self._held_bytes = 0
        self._n_written = [0]  # rows in the file after each chunk

    def add(self, rows: Array, entries: Array) -> None:
        """Add some rows, and their entries row by row."""
        self.n_entries += len(entries)
        self._held.append((rows, entries))
        self._held_bytes += rows.nbytes + entries.nbytes
        if self._held_bytes > self._memory // 2:
            self._spill()

    def ordered(self) -> Iterator[tuple[Array, Array]]:
        """Yield all rows in order, and their entries, in parts of which each continues where the last ended."""
        if len(self._n_written) == 1:
            yield _merged(self._held)
            return
        self._spill()
        with self._rows_path.open("rb", buffering=0) as file:

            def head(row: int) -> Array:
                """Return place, number of entries and stop of a row; a mapped file would be read into memory."""
                file.seek(row * self.row_dtype.itemsize)
                return np.frombuffer(file.read(24), "<i8")

            yield from self._ranges(head)
        self._rows_path.unlink()
        self._entries_path.unlink()

    def _ranges(self, head: Callable[[int], Array]) -> Iterator[tuple[Array, Array]]:
        """Yield the rows of one range of positions after the other."""
        begins = self._n_written[:-1]
        row_bytes = self.row_dtype.itemsize + self.entry_dtype.itemsize * self.n_entries / self._n_rows
        every_row = range(self._n_rows)
        place = 0
        while place < self._n_rows:
            step = max(1, int(self._memory // 2 / row_bytes))
            while True:
                limits = zip(begins, self._n_written[1:], strict=True)
                ends = [bisect_left(every_row, place + step, *span, key=lambda row: head(row)[0]) for span in limits]
                spans = [span for span in zip(begins, ends, strict=True) if span[0] < span[1]]
                entries = [(head(first)[2] - head(first)[1], head(end - 1)[2]) for first, end in spans]
                n_entries = sum(stop - start for start, stop in entries)
                if step == 1 or n_entries * self.entry_dtype.itemsize <= self._memory:
                    break
                step //= 2  # these rows have many more entries than others
            yield _merged(
                [
                    (_read(self._rows_path, self.row_dtype, *rows), _read(self._entries_path, self.entry_dtype, *own))
                    for rows, own in zip(spans, entries, strict=True)
                ]
            )
            begins = ends
            place += step

    def _spill(self) -> None:
        """Append the rows in memory to the files, in order."""
        if not self._held:
            return
        n_before = self.n_entries - sum(len(entries) for _, entries in self._held)
        rows, entries = _merged(self._held)
        self._held_bytes = 0
        rows["stop"] = n_before + np.cumsum(rows["n_entries"])
        for path, array in ((self._rows_path, rows), (self._entries_path, entries)):
            with filename_in_errors(path), path.open("ab") as file:
                file.write(array.view(np.uint8).data)
        self._n_written.append(self._n_written[-1] + len(rows))


def _read(path: Path, dtype: np.dtype[Any], start: int, stop: int) -> Array:
    with filename_in_errors(path):
        return np.fromfile(path, dtype, stop - start, offset=start * dtype.itemsize)


def _merged(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Join parts with their rows sorted by position, and release them."""
    rows, entries = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    parts.clear()
    order = np.argsort(rows["place"])
    counts = rows["n_entries"]
    rows = rows[order]
    ends = np.cumsum(rows["n_entries"])
    # The entry of each place is as far from the beginning of its row as before.
    moved = (np.cumsum(counts) - counts)[order] - (ends - rows["n_entries"])
    return rows, entries[np.arange(len(entries)) + np.repeat(moved, rows["n_entries"])]
