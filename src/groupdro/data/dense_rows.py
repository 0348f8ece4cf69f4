"""Rows of a dense array, in memory or memory-mapped."""

import itertools
import mmap
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np

from groupdro.data.mapping import RANDOM, SEQUENTIAL, advise, mapping_of, memory_limit, release
from groupdro.data.rows import Rows, T, as_writable, rows_within
from groupdro.data.shares import Shares
from groupdro.data.single_blocks import STRETCH, SingleBlock, SingleBuffers
from groupdro.kernels.arguments import DenseData
from groupdro.kernels.dense import dense_difference, dense_pass
from groupdro.utils.threads import map_threads, n_threads
from groupdro.utils.types import Array, Floats, Indices, KernelLoss

__all__ = ["DenseRows", "MappedRows", "dense_rows"]

_BLOCK_VALUES = 1 << 20  # 8 MiB of float64: fits in the shared cache, and is enough work for a threaded product
_SUMMED_ROWS = 1 << 10  # at least; as many are summed separately to limit the accumulation of rounding errors
_BLOCK_ROWS = 1 << 12  # at most, if that takes
_FEW_VALUES = 1 << 17  # 1 MiB: a block with fewer takes less time than the calls that process it
_HALVED = 32  # columns from which a matrix times itself takes less time than the root of the weights
_KERNEL_ROWS = 1 << 9  # for which kernels that read rows as stored keep separate sums
_MOST_PARTS = 8
_PART_VALUES = 1 << 17  # entries of X worth a thread


class DenseRows(Rows):
    """Rows of a C-ordered array of floats."""

    combinable = True
    gram_cost = 0.03

    def __init__(self, X: Array):
        self.X = X
        self.n_rows, self.n_features = X.shape

    @cached_property
    def _readable(self) -> bool:
        """Whether kernels can read the rows as stored. They cannot read half precision or foreign byte orders."""
        return self.X.dtype in (np.float32, np.float64) and self.X.dtype.isnative

    # ------------------------------------------------------------------ products

    def _like(self, v: Floats) -> Array:
        """Return X in the precision in which it is multiplied by v: float64 for one output."""
        return self.X.astype(np.float64, copy=False) if v.ndim == 1 else self.dense()

    def matvec(self, w: Floats) -> Floats:
        """Multiply by BLAS."""
        X = self._like(w)
        return np.asarray(X @ w.astype(X.dtype, copy=False), dtype=np.float64)

    def rmatvec(self, v: Floats) -> Floats:
        """Multiply by BLAS."""
        X = self._like(v)
        return np.asarray(self._in_parts(X.T, v.astype(X.dtype, copy=False)), dtype=np.float64)

    def _in_parts(self, transposed: Any, v: Array) -> Array:
        """Return ``transposed @ v`` from sums over parts of the rows, as `longest_sum` promises."""
        step = self._summed_rows
        total: Array = transposed[:, :step] @ v[:step]
        for first in range(step, len(v), step):
            total += transposed[:, first : first + step] @ v[first : first + step]
        return total

    def matvec_sizes(self, w: Floats) -> Floats:
        """Multiply by BLAS."""
        return np.asarray(np.abs(self._like(w)) @ np.abs(w))

    def gram(self, weights: Floats) -> Floats:
        """Multiply the transpose by the weighted rows."""
        if self.n_features >= _HALVED:  # BLAS halves the work of a matrix times itself
            low, high = float(weights.min(initial=0.0)), float(weights.max(initial=0.0))
            if low >= 0.0 or high <= 0.0:
                scaled = self.X * np.sqrt(np.abs(weights))[:, None]
                product = np.asarray(scaled.T @ scaled)
                return product if low >= 0.0 else -product
        return np.asarray(self.X.T @ (self.X * weights[:, None]), dtype=np.float64)

    def rmatvec_by_group(self, shares: Shares, v: Floats, out: Floats) -> None:
        """Multiply group by group if groups are consecutive rows, otherwise by the matrix of shares."""
        if not shares.rows.size:
            weighted = v * (shares.weights if v.ndim == 1 else shares.weights[:, None])
            for i, place in shares.groups:
                out[i] += self._in_parts(self.X[place].T, weighted[place])
        elif v.ndim == 1:
            out += self._in_parts(shares.matrix.multiply(v).tocsr(), self.X)
        else:
            for c in range(v.shape[1]):
                out[:, :, c] += self._in_parts(shares.matrix.multiply(v[:, c]).tocsr(), self.X)

    # ------------------------------------------------------------------ parts

    @cached_property
    def _summed_rows(self) -> int:
        # Sums over some rows and over their sums are shortest in total at the square root of the number of rows.
        rows = max(_SUMMED_ROWS, int(np.sqrt(self.n_rows)))
        return max(1, min(self.n_rows, rows, _BLOCK_VALUES // max(self.n_features, 1)))

    @property
    def _block_rows(self) -> int:
        few = min(_BLOCK_ROWS, min(_FEW_VALUES, _BLOCK_VALUES) // max(self.n_features, 1))
        return max(self._summed_rows, min(self.n_rows, few))

    def ranges(self, n_bytes: int | None = None, *, dense: bool = False) -> Iterator[slice]:
        """Cut the rows into ranges of equal length."""
        del dense
        n_rows = self._block_rows if n_bytes is None else rows_within(n_bytes, self.n_features)
        return self._cut(slice(0, self.n_rows), n_rows)

    def _cut(self, place: slice, n_rows: int) -> Iterator[slice]:
        """Cut consecutive rows into ranges of at most n_rows."""
        for start in range(place.start, place.stop, n_rows):
            yield slice(start, min(start + n_rows, place.stop))

    @property
    def _kernel_rows(self) -> int:
        # Sums of a pass are divided at multiples of this, whether or not the rows are cut there.
        return max(_KERNEL_ROWS, _BLOCK_VALUES // max(self.n_features, 1) // _KERNEL_ROWS * _KERNEL_ROWS)

    def parts(self, n_sums: int = 1) -> list[slice]:
        """Divide the rows evenly."""
        del n_sums
        n_parts = max(1, min(_MOST_PARTS, self.X.size // _PART_VALUES))
        bounds = np.linspace(0, self.n_rows, n_parts + 1).astype(np.int64).tolist()
        return [slice(start, stop) for start, stop in itertools.pairwise(bounds)]

    def wide(self, place: slice) -> "DenseRows":
        """Convert rows of lower precision."""
        return DenseRows(np.asarray(self.X[place], dtype=np.float64))

    def blocks(self) -> Iterator[tuple[slice, "DenseRows"]]:
        """Yield the rows of all ranges. Lower precision is converted in a buffer that the next block overwrites."""
        buffer = np.empty((self._block_rows, self.n_features)) if self.X.dtype != np.float64 else None
        for place in self.ranges():
            if buffer is None:
                yield place, self.wide(place)
            else:
                block = buffer[: place.stop - place.start]
                block[...] = self.X[place]
                yield place, DenseRows(block)

    def map_blocks(self, function: Callable[[slice, Rows], T]) -> Iterator[T]:
        """Process one block per thread at a time, if all rows are in memory."""
        if n_threads() == 1 or not self.in_memory:
            yield from super().map_blocks(function)
            return
        ranges = self.ranges()
        while places := list(itertools.islice(ranges, 2 * n_threads())):
            yield from map_threads(partial(self._visit, function, places), len(places))

    def _visit(self, function: Callable[[slice, Rows], T], places: list[slice], k: int) -> T:
        return function(places[k], self.wide(places[k]))

    def take(self, rows: Indices | slice) -> "DenseRows":
        """Select rows."""
        return DenseRows(np.asarray(self.X[rows]))

    def dense(self) -> Array:
        """Return the array."""
        if self._readable:
            return self.X
        return self.X.astype(np.float32 if self.X.dtype.itemsize < 8 else np.float64)

    def stored(self, *, dense: bool) -> Array:
        """Return the array."""
        del dense
        return self.X

    # ------------------------------------------------------------------ changed columns

    def columns(self, features: Indices) -> "DenseRows":
        """Select columns, block by block."""
        out = np.empty((self.n_rows, len(features)))
        for place in self.ranges():
            out[place] = self.X[place][:, features]
        return DenseRows(out)

    def scaled(self, factors: Floats) -> "DenseRows":
        """Scale columns."""
        return DenseRows(self.X * factors)

    def shifted(self, centre: Floats) -> "DenseRows":
        """Shift columns."""
        return DenseRows(self.X - centre)

    # ------------------------------------------------------------------ properties

    def longest_sum(self) -> int:
        """Return the rows of a part plus the number of parts plus the entries of a row."""
        return self._summed_rows + self.n_rows // self._summed_rows + 1 + self.n_features

    def moments(self, row_weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Compute row norms, column squares and column sums."""
        norms = np.empty(self.n_rows)
        squares = np.zeros(self.n_features)
        sums = np.zeros(self.n_features)
        with np.errstate(over="ignore", invalid="ignore"):
            for place, block in self.blocks():
                squared = block.X * block.X
                norms[place] = np.sqrt(squared.sum(axis=1))
                squares += row_weights[place] @ squared
                sums += row_weights[place] @ block.X
        return norms, squares, sums

    def largest(self) -> Floats:
        """Compute the maximum norm of each row."""
        out = np.empty(self.n_rows)
        for place, block in self.blocks():
            out[place] = np.abs(block.X).max(axis=1)
        return out

    def entries(self) -> tuple[Floats, Indices]:
        """Return all values, row by row."""
        return self.X.ravel(), np.tile(np.arange(self.n_features), self.n_rows)

    def update_digest(self, update: Callable[[Any], object]) -> None:
        """Add type, shape and rows to the digest."""
        update(f"{self.X.dtype.str}{self.X.shape}".encode())
        for place in self.ranges():
            update(np.ascontiguousarray(self.X[place]).data)

    # ------------------------------------------------------------------ compiled code

    @cached_property
    def _memory(self) -> Array:
        return as_writable(self.X)

    def flat(self, y: Array, offset: Floats, loss: KernelLoss, *, intercept: bool) -> DenseData | None:
        """Return the array with labels, offsets and loss."""
        return DenseData(self._memory, y, offset, *loss, intercept) if self._readable else None

    def fused_pass(
        self, flat: Any, w: Floats, row_weights: Floats, norms: Floats, margins: Floats, losses: Floats
    ) -> tuple[Floats, float] | None:
        """Run the kernel on each part."""
        parts = self.parts()
        gradients = np.zeros((len(parts), len(w)))

        def visit(k: int) -> float:
            work = np.empty((2, max(len(w), 4)))
            mass = 0.0
            for place in self._cut(parts[k], self._kernel_rows):
                rows = np.arange(place.start, place.stop)
                mass += dense_pass(flat, w, row_weights, norms, rows, margins, losses, gradients[k], work)
            return mass

        mass = sum(map_threads(visit, len(parts)))
        return gradients.sum(axis=0), float(mass)

    @cached_property
    def single(self) -> bool:
        """Whether the rows are float32."""
        return bool(self.X.dtype == np.float32) and self.X.dtype.isnative

    def single_blocks(self, place: slice, n_outputs: int) -> Iterator[tuple[slice, SingleBlock]]:
        """Yield views of rows."""
        buffers = SingleBuffers(self.n_features, n_outputs)
        for outer in self._cut(place, self._kernel_rows):
            for start in range(outer.start, outer.stop, STRETCH):
                inner = slice(start, min(start + STRETCH, outer.stop))
                yield inner, SingleBlock(np.asarray(self.X[inner]), buffers)

    def fused_difference(self, flat: Any, *point: Any) -> bool:
        """Run the kernel."""
        dense_difference(flat, *point, np.empty(4))
        return True


class MappedRows(DenseRows):
    """Rows of an array that is mapped from a file."""

    copyable = False

    def __init__(self, X: Array):
        super().__init__(X)
        self.in_memory = X.nbytes <= 0.5 * memory_limit()
        self._pattern = -1

    def take(self, rows: Indices | slice) -> DenseRows:
        """Select rows, as a view if they are consecutive."""
        return dense_rows(self.X[rows])

    def _expect(self, pattern: int) -> None:
        """Advise the system how rows will be read, if they do not fit in memory."""
        if not self.in_memory and self._pattern != pattern:
            self._pattern = pattern
            advise(self.X, slice(0, self.n_rows), pattern)

    def read_ahead(self, rows: Indices) -> None:
        """Let the system prefetch rows that will be needed soon, range by range."""
        if self.in_memory or not rows.size or not hasattr(mmap, "MADV_WILLNEED"):
            return
        # Otherwise every access would also read megabytes after the range.
        self._expect(RANDOM)
        ordered = np.unique(rows)
        cuts = np.flatnonzero(np.diff(ordered) > 1) + 1
        starts = ordered[np.r_[0, cuts]]
        stops = ordered[np.r_[cuts - 1, len(ordered) - 1]] + 1
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            advise(self.X, slice(start, stop), mmap.MADV_WILLNEED)

    def _cut(self, place: slice, n_rows: int) -> Iterator[slice]:
        """Cut consecutive rows into ranges, whose pages are released once read."""
        self._expect(SEQUENTIAL)
        for part in super()._cut(place, n_rows):
            yield part
            if not self.in_memory:
                release(self.X, part)


def dense_rows(X: Array) -> DenseRows:
    """Return the rows of an array, memory-mapped or not."""
    return DenseRows(X) if mapping_of(X) is None else MappedRows(X)
