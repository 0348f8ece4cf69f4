"""Chunks of rows with their positions in the store, and an external sort with bounded memory."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.store.files import read_array, write_array
from groupdro.utils.bundle import filename_in_errors
from groupdro.utils.types import Array, Indices

__all__ = ["Chunk", "Sorter"]


@dataclass(frozen=True)
class Chunk:
    """Some rows, with their positions in the store.

    Attributes
    ----------
    rows : structured array of shape (n_rows,)
        One record per row: its "place" in the store, its number of entries "n_entries", and its fields.
    entries : structured array of shape (n_entries,)
        One record per entry of the sparse rows, row by row; none for dense rows.
    """

    rows: Array
    entries: Array

    def take(self, which: Indices) -> "Chunk":
        """Return a copy of the given rows, in the given order."""
        rows = self.rows.take(which)
        counts, taken = self.rows["n_entries"], rows["n_entries"]
        entry = np.repeat((np.cumsum(counts) - counts)[which] - (np.cumsum(taken) - taken), taken)
        entry += np.arange(len(entry))
        return Chunk(rows, self.entries.take(entry))


class Sorter:
    """Sorts rows by their positions, with bounded memory.

    Rows that fit in memory are kept there. Otherwise they go to files, one for each range of positions that fits half
    of the memory, which are then sorted one after the other. Sparse rows have unknown size: a range that has become too
    large is divided again.

    Parameters
    ----------
    directory : Path
        Directory for temporary files.
    n_rows : int
        Number of rows to expect, with the positions 0 .. n_rows - 1.
    memory : int
        Bytes of rows to hold in memory.
    """

    def __init__(self, directory: Path, n_rows: int, memory: int):
        self._directory, self._n_rows, self._memory = directory, n_rows, memory
        self._held: list[Chunk] = []
        self._held_rows = self._held_bytes = 0
        self._files: _RangeFiles | None = None

    def add(self, chunk: Chunk) -> None:
        """Add some rows.

        Parameters
        ----------
        chunk : Chunk
            The rows.
        """
        self._held.append(chunk)
        if self._files is None:
            self._held_rows += len(chunk.rows)
            self._held_bytes += chunk.rows.nbytes + chunk.entries.nbytes
            if self._held_bytes > self._memory:
                step = self._held_rows * (self._memory // 2) // self._held_bytes
                self._files = _RangeFiles(self._directory, 0, self._n_rows, step)
        while self._files is not None and self._held:
            self._files.add(self._held.pop())

    def ordered(self) -> Iterator[Chunk]:
        """Return all rows in order.

        Yields
        ------
        Chunk
            Rows in order, each chunk continuing where the last ended. Yielded rows are released.
        """
        if self._files is None:
            yield _in_order(self._held)
        else:
            yield from self._from_files(self._files)

    def _from_files(self, files: "_RangeFiles") -> Iterator[Chunk]:
        for first, stop, path in files.ranges():
            size = os.path.getsize(path)
            if size > self._memory * 3 // 4 and stop - first > 1:
                parts = _RangeFiles(self._directory, first, stop, (stop - first) * self._memory // (2 * size))
                for chunk in files.read(path):
                    parts.add(chunk)
                path.unlink()
                yield from self._from_files(parts)
            else:
                yield _in_order(list(files.read(path)))  # unnamed, so that it is freed before the next is loaded
                path.unlink()


class _RangeFiles:
    """Files with the chunks of consecutive ranges of `step` positions each."""

    def __init__(self, directory: Path, first: int, stop: int, step: int):
        self._directory, self._first, self._stop, self._step = directory, first, stop, max(1, step)
        self._dtypes: tuple[np.dtype[Any], ...] = ()

    def add(self, chunk: Chunk) -> None:
        """Distribute a chunk among the files."""
        self._dtypes = chunk.rows.dtype, chunk.entries.dtype
        owner = (chunk.rows["place"] - self._first) // self._step
        if self._stop - self._first < self._step * 2**16:
            owner = owner.astype(np.uint16)  # NumPy sorts this much faster
        order = np.argsort(owner, kind="stable")
        chunk, owner = chunk.take(order), owner[order]
        ends = np.append(0, np.cumsum(chunk.rows["n_entries"]))
        starts = np.flatnonzero(np.diff(owner, prepend=owner[:1] + 1))
        for start, stop in zip(starts, [*starts[1:], len(owner)], strict=True):
            path = self._path(self._first + int(owner[start]) * self._step)
            rows, entries = chunk.rows[start:stop], chunk.entries[ends[start] : ends[stop]]
            # Open the file each time: the limit on open files may be lower than the number of ranges.
            with filename_in_errors(path), path.open("ab") as file:
                for array in (np.array([len(rows), len(entries)], np.int64), rows, entries):
                    write_array(file, array)

    def ranges(self) -> Iterator[tuple[int, int, Path]]:
        """Yield every range of positions with its file."""
        for first in range(self._first, self._stop, self._step):
            yield first, min(first + self._step, self._stop), self._path(first)

    def read(self, path: Path) -> Iterator[Chunk]:
        """Yield the chunks of a file one after the other."""
        size = os.path.getsize(path)
        with filename_in_errors(path), path.open("rb") as file:
            while file.tell() < size:
                lengths = read_array(file, np.dtype(np.int64), 2)
                yield Chunk(*(read_array(file, dtype, n) for dtype, n in zip(self._dtypes, lengths, strict=True)))

    def _path(self, first: int) -> Path:
        return self._directory / f"range-{first}-{self._step}.tmp"


def _in_order(chunks: list[Chunk]) -> Chunk:
    """Join chunks with their rows sorted by position, and release them."""
    rows, entries = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("rows", "entries"))
    chunks.clear()
    return Chunk(rows, entries).take(np.argsort(rows["place"]))
