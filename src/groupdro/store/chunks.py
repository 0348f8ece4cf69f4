"""Rows on the way to their places: chunks, files that hold those of a range of places, and their order at last."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse as sp

from groupdro.store.files import naming_file, read_array, write_array
from groupdro.store.layout import index_dtype
from groupdro.utils.types import Array, Floats, Indices

__all__ = ["Chunk", "ChunkFormat", "Sorter"]


_HEADER = np.dtype("<i8")
_WHOLE, _REAL = np.dtype("<i8"), np.dtype("<f8")


@dataclass(frozen=True)
class ChunkFormat:
    """What all chunks of a store have in common.

    Attributes
    ----------
    dtype : dtype
        Type of the entries of X.
    y_dtype : dtype
        Type of the targets.
    n_features : int
        Number of columns of X.
    weighted : bool
        Whether rows have weights.
    sparse : bool
        Whether rows are sparse.
    """

    dtype: np.dtype[Any]
    y_dtype: np.dtype[Any]
    n_features: int
    weighted: bool
    sparse: bool

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """Type of column numbers in chunks; that of the store also depends on the number of entries."""
        return index_dtype(self.n_features, nnz=0)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, without its entries where it is sparse."""
        labels = 24 + 8 * self.weighted
        return labels + (8 if self.sparse else self.n_features * self.dtype.itemsize)


@dataclass(frozen=True)
class Chunk:
    """Some rows, with the places that they go to.

    Attributes
    ----------
    places, source : ndarray of shape (n_rows,)
        Row of the store, and row of the input.
    y : ndarray of shape (n_rows,)
        Targets.
    weights : ndarray of shape (n_rows,) or None
        Weights.
    X : ndarray or csr_array of shape (n_rows, n_features)
        Features.
    """

    places: Indices
    source: Indices
    y: Array
    weights: Floats | None
    X: Any

    @property
    def n_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (self.X.data, self.X.indices, self.X.indptr) if sp.issparse(self.X) else (self.X,)
        return sum(array.nbytes for array in (*self._columns(), *arrays))

    def select(self, rows: Any) -> "Chunk":
        """Return the given rows.

        Parameters
        ----------
        rows : ndarray of int or slice
            Which.

        Returns
        -------
        Chunk
            These rows; views of them where a slice allows it.
        """
        weights = None if self.weights is None else self.weights[rows]
        return Chunk(self.places[rows], self.source[rows], self.y[rows], weights, self.X[rows])

    def write(self, file: BinaryIO, form: ChunkFormat) -> None:
        """Append the chunk to a file.

        Parameters
        ----------
        file : binary file
            Where to.
        form : ChunkFormat
            What all chunks have in common.
        """
        write_array(file, np.array([len(self.places), self.X.nnz if form.sparse else 0], _HEADER))
        for column in self._columns():
            write_array(file, column)
        if form.sparse:
            # SciPy chooses the types of indices anew whenever it takes rows.
            write_array(file, self.X.indptr.astype(_WHOLE, copy=False))
            write_array(file, self.X.indices.astype(form.index_dtype, copy=False))
            write_array(file, self.X.data)
        else:
            write_array(file, self.X)

    @classmethod
    def read_all(cls, path: Path, form: ChunkFormat) -> Iterator["Chunk"]:
        """Read the chunks of a file one after the other.

        Parameters
        ----------
        path : Path
            The file.
        form : ChunkFormat
            What they have in common.

        Yields
        ------
        Chunk
            In the order in which they were written.
        """
        left = os.path.getsize(path)
        with path.open("rb") as file, naming_file(path):
            while file.tell() < left:
                n_rows, nnz = read_array(file, _HEADER, (2,)).tolist()
                places, source = (read_array(file, _WHOLE, (n_rows,)) for _ in range(2))
                y = read_array(file, form.y_dtype, (n_rows,))
                weights = read_array(file, _REAL, (n_rows,)) if form.weighted else None
                if form.sparse:
                    indptr = read_array(file, _WHOLE, (n_rows + 1,))
                    indices = read_array(file, form.index_dtype, (nnz,))
                    data = read_array(file, form.dtype, (nnz,))
                    X = _csr(data, indices, indptr, form.n_features)
                else:
                    X = read_array(file, form.dtype, (n_rows, form.n_features))
                yield cls(places, source, y, weights, X)

    def _columns(self) -> Iterator[Array]:
        yield from (self.places, self.source, self.y)
        if self.weights is not None:
            yield self.weights


class Sorter:
    """Takes rows in any order and gives them back in that of their places, with bounded memory.

    What fits the memory is kept there. What does not goes to files, one for each range of places that fits, which are
    then sorted one after the other. Sparse rows are of unknown size: a range that has become too large is divided
    again.

    Parameters
    ----------
    directory : Path
        Where files may be made.
    form : ChunkFormat
        What all chunks have in common.
    n_rows : int
        Number of rows that will come, to the places 0 .. n_rows - 1.
    memory : int
        Bytes of rows to hold.
    """

    def __init__(self, directory: Path, form: ChunkFormat, n_rows: int, memory: int):
        self._directory, self._form, self._n_rows, self._memory = directory, form, n_rows, memory
        self._held: list[Chunk] = []
        self._held_bytes = self._held_rows = 0
        self._files: _RangeFiles | None = None
        if not form.sparse and n_rows * form.row_bytes > memory:
            self._files = _RangeFiles(directory, form, 0, n_rows, max(1, memory // form.row_bytes))

    def add(self, chunk: Chunk) -> None:
        """Take some rows.

        Parameters
        ----------
        chunk : Chunk
            The rows.
        """
        if self._files is not None:
            self._files.add(chunk)
            return
        self._held.append(chunk)
        self._held_bytes += chunk.n_bytes
        self._held_rows += len(chunk.places)
        if self._form.sparse and self._held_bytes > self._memory // 2:
            # Half of the memory, for ranges with more entries than others.
            step = max(1, self._held_rows * (self._memory // 2) // self._held_bytes)
            self._files = _RangeFiles(self._directory, self._form, 0, self._n_rows, step)
            while self._held:
                self._files.add(self._held.pop())

    def ordered(self) -> Iterator[Chunk]:
        """Give all rows back.

        Yields
        ------
        Chunk
            Rows in order, each chunk going on where the last ended. What is given back is forgotten.
        """
        if self._files is None:
            yield _in_order(_emptying(self._held), 0, self._n_rows, self._form)
        else:
            yield from self._from_files(self._files)

    def _from_files(self, files: "_RangeFiles") -> Iterator[Chunk]:
        for first, stop, path in files.ranges():
            size = os.path.getsize(path)
            if self._form.sparse and size > self._memory and stop - first > 1:
                step = max(1, (stop - first) * self._memory // (2 * size))
                parts = _RangeFiles(self._directory, self._form, first, stop, step)
                for chunk in Chunk.read_all(path, self._form):
                    parts.add(chunk)
                path.unlink()
                yield from self._from_files(parts)
                continue
            yield self._load(first, stop, path)  # without a name here, which would keep it while the next is loaded

    def _load(self, first: int, stop: int, path: Path) -> Chunk:
        rows = _in_order(Chunk.read_all(path, self._form), first, stop, self._form)
        path.unlink()
        return rows


class _RangeFiles:
    """Files with the chunks of consecutive ranges of places."""

    def __init__(self, directory: Path, form: ChunkFormat, first: int, stop: int, step: int):
        self._directory, self._form = directory, form
        self._first, self._stop, self._step = first, stop, step

    def add(self, chunk: Chunk) -> None:
        """Divide a chunk among the files."""
        owner = (chunk.places - self._first) // self._step
        if self._stop - self._first < self._step * 2**16:
            owner = owner.astype(np.uint16)  # of which NumPy sorts many at once
        order = np.argsort(owner, kind="stable")
        chunk, owner = chunk.select(order), owner[order]
        starts = np.flatnonzero(np.diff(owner, prepend=owner[:1] + 1))
        for start, stop in zip(starts, [*starts[1:], len(owner)], strict=True):
            path = self._path(self._first + int(owner[start]) * self._step)
            # Opened each time: a process may not have as many files open as there are ranges.
            with naming_file(path), path.open("ab") as file:
                chunk.select(slice(start, stop)).write(file, self._form)

    def ranges(self) -> Iterator[tuple[int, int, Path]]:
        """Yield every range of places with its file."""
        for first in range(self._first, self._stop, self._step):
            yield first, min(first + self._step, self._stop), self._path(first)

    def _path(self, first: int) -> Path:
        return self._directory / f"range-{first}-{self._step}.tmp"


def _in_order(chunks: Iterator[Chunk], first: int, stop: int, form: ChunkFormat) -> Chunk:
    """Put rows of the places first .. stop - 1 in their order."""
    n_rows = stop - first
    source, y = np.empty(n_rows, _WHOLE), np.empty(n_rows, form.y_dtype)
    weights = np.empty(n_rows, _REAL) if form.weighted else None
    X = None if form.sparse else np.empty((n_rows, form.n_features), form.dtype)
    sparse_parts = []
    for chunk in chunks:
        own = chunk.places - first
        source[own], y[own] = chunk.source, chunk.y
        if weights is not None:
            weights[own] = chunk.weights
        if X is not None:
            X[own] = chunk.X
        else:
            sparse_parts.append((own, chunk.X))
    if form.sparse:
        X = _gather(sparse_parts, n_rows, form)
    return Chunk(np.arange(first, stop), source, y, weights, X)


def _gather(parts: Iterable[tuple[Indices, Any]], n_rows: int, form: ChunkFormat) -> Any:
    """Return sparse rows in one array, each at its own place."""
    parts = list(parts)
    indptr = np.zeros(n_rows + 1, _WHOLE)
    for own, X in parts:
        indptr[own + 1] = np.diff(X.indptr)
    np.cumsum(indptr, out=indptr)
    data, indices = np.empty(indptr[-1], form.dtype), np.empty(indptr[-1], form.index_dtype)
    while parts:
        own, X = parts.pop()
        at = np.repeat(indptr[own] - X.indptr[:-1], np.diff(X.indptr)) + np.arange(X.nnz)
        data[at], indices[at] = X.data, X.indices
    return _csr(data, indices, indptr, form.n_features)


def _csr(data: Array, indices: Array, indptr: Array, n_features: int) -> Any:
    matrix = sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, n_features), copy=False)
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix


def _emptying(chunks: list[Chunk]) -> Iterator[Chunk]:
    """Give out chunks without keeping them."""
    while chunks:
        yield chunks.pop()
