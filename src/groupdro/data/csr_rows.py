"""Rows of a compressed sparse row matrix."""

import itertools
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from groupdro.data.rows import Rows, as_writable, rows_within
from groupdro.data.shares import Shares
from groupdro.data.sketch import Sketch
from groupdro.kernels.arguments import CsrData
from groupdro.kernels.csr import (
    CHANGES,
    DERIVATIVE,
    PARAMETER,
    SHORT,
    SQUARES,
    VALUES,
    add_csr_by_group,
    add_csr_gram,
    add_csr_products,
    csr_moments,
    csr_outputs,
    csr_pass,
)
from groupdro.kernels.sketch import add_csr_sketches
from groupdro.utils.threads import map_threads
from groupdro.utils.types import Array, Floats, Indices, KernelLoss

__all__ = ["CsrRows", "csr_of"]

_ENTRY = 6.0  # cost of an entry relative to one of a dense row
_PART_ENTRIES = 1 << 22  # worth a thread of its own
_MOST_PARTS = 4  # each has a table of some numbers per feature
_MOST_TABLES = 1 << 25  # numbers in the tables of all pieces
_LINE = 8  # numbers in a cache line
_CALL_ENTRIES = 1 << 24  # an interrupt can arrive only between calls


def csr_of(data: Array, indices: Indices, indptr: Indices, n_features: int) -> Any:
    """Return a matrix with the given arrays, as they are: SciPy's constructor would read and convert the indices."""
    matrix = sp.csr_array((len(indptr) - 1, n_features), dtype=data.dtype)
    matrix.data = data
    matrix.indices = indices
    matrix.indptr = indptr
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix


class CsrRows(Rows):
    """Rows of a compressed sparse row matrix.

    If all entries have the same value, as in one-hot rows, `X.data` may be a broadcast array, which takes no memory.
    """

    sparse = True
    combinable = False
    gram_cost = 0.01

    def __init__(self, X: Any):
        self.X = X
        self.n_rows, self.n_features = X.shape

    # ------------------------------------------------------------------ products

    def matvec(self, w: Floats) -> Floats:
        """Return X w, in float64."""
        w = np.ascontiguousarray(w, dtype=np.float64)
        out = np.empty((self.n_rows, *w.shape[1:]))
        csr_outputs(*self._memory, _columns(w), _columns(out))
        return out

    def rmatvec(self, v: Floats) -> Floats:
        """Return X' v, compensated."""
        columns = _columns(np.ascontiguousarray(v, dtype=np.float64))
        n = 2 * columns.shape[1]
        sums = line_table(self.n_features, n)
        add_csr_products(*self._memory, columns, sums)
        return _totals(sums[:, :n]).reshape(self.n_features, *v.shape[1:])

    def matvec_sizes(self, w: Floats) -> Floats:
        """Multiply in the precision of the rows, or better."""
        return np.asarray(abs(self.X) @ np.abs(w))

    def gram(self, weights: Floats) -> Floats:
        """Multiply the transpose by the weighted rows."""
        half = np.zeros((self.n_features, self.n_features))
        add_csr_gram(*self._memory, np.ascontiguousarray(weights, dtype=np.float64), half)
        return half + half.T

    def rmatvec_by_group(self, shares: Shares, v: Floats, out: Floats) -> None:
        """Add up the entries of each group's rows."""
        members = np.asarray(shares.rows, dtype=np.int64)
        offsets = np.asarray(shares.offsets, np.int64)
        out = out[shares.listed]
        v, out = (v, out) if v.ndim == 2 else (v[:, None], out[:, :, None])
        many = np.diff(offsets).max(initial=0) > SHORT
        sums = np.empty((self.n_features if many else 0, 2 * v.shape[1]))
        add_csr_by_group(self._memory, offsets, members, shares.weights, v, sums, out)

    def sketch_by_group(self, shares: Shares, v: Floats, sketch: Sketch, out: Floats) -> None:
        """Add each entry to its bucket."""
        members = np.asarray(shares.rows, dtype=np.int64)
        offsets = np.asarray(shares.offsets, np.int64)
        add_csr_sketches(
            self._memory, offsets, members, shares.weights, v, sketch.factors, sketch.shift, out[shares.listed]
        )

    # ------------------------------------------------------------------ parts

    def ranges(self, n_bytes: int | None = None, *, dense: bool = False) -> Iterator[slice]:
        """Cut the rows by their entries: twelve bytes each, and as many again for a copy.

        By default, ranges have many entries, because a dense gradient of each must cost less than they do.
        """
        n_entries = max(_CALL_ENTRIES, 8 * self.n_features) if n_bytes is None else max(n_bytes // 24, 1)
        n_rows = self.n_rows if n_bytes is None else rows_within(n_bytes, self.n_features if dense else 0)
        for place in self._cut(slice(0, self.n_rows), n_entries):
            for start in range(place.start, place.stop, n_rows):
                yield slice(start, min(start + n_rows, place.stop))

    def _cut(self, place: slice, n_entries: int) -> Iterator[slice]:
        """Cut consecutive rows into ranges of about n_entries each."""
        indptr = self.X.indptr
        inner = np.arange(indptr[place.start], indptr[place.stop], n_entries)[1:]
        for start, stop in itertools.pairwise([place.start, *self._rows_at(inner).tolist(), place.stop]):
            if start < stop:
                yield slice(start, stop)

    def parts(self, n_sums: int = 1) -> list[slice]:
        """Divide the entries evenly."""
        d = self.n_features + 1
        most = min(_MOST_PARTS, _MOST_TABLES // (1 + 2 * n_sums) // d)
        n_parts = max(1, min(most, self.X.nnz // max(_PART_ENTRIES, 8 * d)))
        inner = self._rows_at(np.linspace(0, self.X.nnz, n_parts + 1)[1:-1])
        return [slice(start, stop) for start, stop in itertools.pairwise([0, *inner.tolist(), self.n_rows])]

    def wide(self, place: slice) -> "CsrRows":
        """Return the rows as they are stored."""
        return self if place.stop - place.start == self.n_rows else self.take(place)

    def take(self, rows: Indices | slice) -> "CsrRows":
        """Select rows, without a copy of the entries if they are consecutive."""
        data = self.X.data
        indices = self.X.indices
        indptr = self.X.indptr
        if isinstance(rows, slice) and rows.step in (None, 1):
            start, stop, _ = rows.indices(self.n_rows)
            begin = int(indptr[start])
            end = int(indptr[max(stop, start)])
            indptr = indptr[start : max(stop, start) + 1] - indptr[start]
            return CsrRows(csr_of(data[begin:end], indices[begin:end], indptr, self.n_features))
        rows = np.arange(self.n_rows)[rows]
        lengths = np.asarray(indptr[rows + 1] - indptr[rows])
        ends = np.append(np.zeros(1, indptr.dtype), np.cumsum(lengths, dtype=indptr.dtype))
        entries = np.arange(ends[-1]) + np.repeat(indptr[rows] - ends[:-1], lengths)
        chosen = np.broadcast_to(data[:1], entries.shape) if self._repeats and entries.size else data[entries]
        return CsrRows(csr_of(chosen, indices[entries], ends, self.n_features))

    def dense(self) -> Array:
        """Return a dense array."""
        return np.asarray(self.X.toarray())

    def stored(self, *, dense: bool) -> Any:
        """Return the matrix, or a dense array."""
        return self.X.toarray() if dense else self.X

    def columns(self, features: Indices) -> "CsrRows":
        """Select columns."""
        chosen = self._by_column[:, features].tocsr()
        return CsrRows(chosen if chosen.dtype == np.float64 else chosen.astype(np.float64))

    @cached_property
    def _by_column(self) -> Any:
        return self.X.tocsc()

    def scaled(self, factors: Floats) -> "CsrRows":
        """Scale columns."""
        return CsrRows(csr_of(self.X.data * factors[self.X.indices], self.X.indices, self.X.indptr, self.n_features))

    # ------------------------------------------------------------------ properties

    @property
    def n_entries(self) -> float:
        """Stored entries, scaled by their cost: scattered entries take longer."""
        return _ENTRY * self.X.nnz / max(self.n_rows, 1)

    def longest_sum(self) -> int:
        """Return the entries of the longest row, plus the rows of a sum that is not compensated, plus the blocks."""
        longest = max((int(np.diff(part).max(initial=0)) for part in self._pointers()), default=0)
        return longest + min(self.n_rows, SHORT) + int(self.X.nnz // _CALL_ENTRIES) + _MOST_PARTS

    def _pointers(self) -> Iterator[Indices]:
        for start in range(0, self.n_rows, _CALL_ENTRIES):
            yield self.X.indptr[start : start + _CALL_ENTRIES + 1]

    def moments(self, row_weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Compute row norms, column squares and column sums."""
        squares = np.empty(self.n_rows)
        sums = line_table(self.n_features, 4)
        with np.errstate(over="ignore", invalid="ignore"):
            csr_moments(*self._memory, np.ascontiguousarray(row_weights, dtype=np.float64), squares, sums)
            return np.sqrt(squares), _totals(sums[:, SQUARES:VALUES])[:, 0], _totals(sums[:, VALUES:])[:, 0]

    def largest(self) -> Floats:
        """Compute the maximum norm of each row."""
        out = np.zeros(self.n_rows)
        filled = np.diff(self.X.indptr) > 0
        if filled.any():
            sizes = np.abs(self.X.data[:1] if self._repeats else self.X.data).astype(np.float64)
            out[filled] = sizes if self._repeats else np.maximum.reduceat(sizes, self.X.indptr[:-1][filled])
        return out

    def entries(self) -> tuple[Floats, Indices]:
        """Return the stored entries."""
        return self.X.data.astype(np.float64, copy=False), self.X.indices

    def update_digest(self, update: Callable[[Any], object]) -> None:
        """Add types, shape and entries to the digest."""
        update(f"csr{self.X.shape}".encode())
        for array in (self.X.data[:1] if self._repeats else self.X.data, self.X.indices, self.X.indptr):
            update(f"{array.dtype.str}{array.shape}".encode())
            update(np.ascontiguousarray(array).data)

    # ------------------------------------------------------------------ compiled code

    @property
    def _repeats(self) -> bool:
        """Whether one value stands for all entries."""
        return bool(self.X.data.size) and self.X.data.strides == (0,)

    @cached_property
    def _memory(self) -> tuple[Array, ...]:
        indices: tuple[Any, ...] = (self.X.indices, self.X.indptr)
        if max(self.n_features, self.X.nnz) <= np.iinfo(np.int32).max:
            # int32, so that one kernel is compiled instead of two.
            indices = tuple(np.asarray(index, dtype=np.int32) for index in indices)
        return tuple(map(as_writable, (self.X.data[:1].copy() if self._repeats else self.X.data, *indices)))

    def flat(self, y: Array, offset: Floats, loss: KernelLoss, *, intercept: bool) -> CsrData:
        """Return the arrays with labels, offsets and loss."""
        data, indices, indptr = self._memory
        return CsrData(data, indices, indptr, y, offset, *loss, intercept)

    def fused_pass(
        self, flat: Any, w: Floats, row_weights: Floats, norms: Floats, margins: Floats, losses: Floats
    ) -> tuple[Floats, float]:
        """Run the pass along no direction."""
        none = np.empty((self.n_rows, 0), dtype=np.float32)
        gradient, _, mass = self.fused_curvature(flat, w, row_weights, norms, none, margins, losses)
        return gradient, mass

    def fused_curvature(
        self, flat: Any, w: Floats, row_weights: Floats, norms: Floats, along: Array, margins: Floats, losses: Floats
    ) -> tuple[Floats, Floats, float]:
        """Run the kernel on each part."""
        n_sums = 1 + along.shape[1]
        parts = self.parts(n_sums)

        def visit(k: int) -> tuple[Floats, Floats, float]:
            table = line_table(len(w), 1 + 2 * n_sums)
            mass = 0.0
            table[:, PARAMETER] = w
            for place in self._cut(parts[k], _CALL_ENTRIES):
                mass += csr_pass(flat, place.start, place.stop, row_weights, norms, along, margins, losses, table)
            changes = _totals(table[:, CHANGES : 1 + 2 * n_sums])
            return _totals(table[:, DERIVATIVE:CHANGES])[:, 0], changes, mass

        gradient = np.zeros(len(w))
        changes = np.zeros((len(w), n_sums - 1))
        mass = 0.0
        for part, change, size in map_threads(visit, len(parts)):
            gradient = gradient + part
            changes = changes + change
            mass = mass + size
        return gradient, changes, mass

    def _rows_at(self, entries: Floats) -> Indices:
        """Return the first row that begins at or after each entry."""
        return np.searchsorted(self.X.indptr, entries.astype(self.X.indptr.dtype))


def line_table(n_rows: int, n_columns: int) -> Floats:
    """Return zeros with at least so many columns, so that every row of up to eight lies within one cache line.

    A row that crosses the border of two lines takes about twice as long to read and write.
    """
    width = n_columns if n_columns > _LINE else 1 << (n_columns - 1).bit_length()
    memory = np.zeros(n_rows * width + _LINE)
    first = -(memory.ctypes.data // memory.itemsize) % _LINE
    return memory[first : first + n_rows * width].reshape(n_rows, width)


def _totals(sums: Floats) -> Floats:
    """Return compensated sums, of which each takes two columns."""
    return np.asarray(sums[:, 0::2] + sums[:, 1::2])


def _columns(values: Floats) -> Floats:
    """Return values with one column per output."""
    return values if values.ndim == 2 else values[:, None]
