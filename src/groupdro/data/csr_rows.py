"""Rows of a compressed sparse row matrix."""

import itertools
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from groupdro.data.rows import Rows, as_writable, piece_rows
from groupdro.data.shares import Shares
from groupdro.kernels.arguments import CsrData
from groupdro.kernels.gram import add_csr_by_group, add_csr_gram
from groupdro.utils.types import Array, Floats, Indices

__all__ = ["CsrRows"]

_BLOCK_ENTRIES = 1 << 23  # converted to float64 at once
_ENTRY = 6.0  # cost of an entry relative to one of a dense row


def _widened(X: Any) -> Any:
    """Return X in float64, without a copy if it already is: SciPy's own conversion scans every index even then."""
    return X if X.dtype == np.float64 else X.astype(np.float64)


class CsrRows(Rows):
    """Rows of a compressed sparse row matrix."""

    sparse = True
    combinable = False
    gram_cost = 0.1

    def __init__(self, X: Any):
        self.X = X
        self.n_rows, self.n_features = X.shape

    # ------------------------------------------------------------------ products

    def like(self, v: Floats) -> Any:
        """Convert to float64 for one output."""
        return _widened(self.X) if v.ndim == 1 else self.X

    def gram(self, weights: Floats) -> Floats:
        """Multiply the transpose by the weighted rows."""
        half = np.zeros((self.n_features, self.n_features))
        add_csr_gram(*self._memory, np.ascontiguousarray(weights, dtype=np.float64), half)
        return half + half.T

    def rmatvec_by_group(self, shares: Shares, v: Floats, out: Floats) -> None:
        """Add up the entries of each group's rows."""
        members = np.asarray(shares.rows, dtype=np.int64)
        out = out[shares.listed]
        columns = (v, out) if v.ndim == 2 else (v[:, None], out[:, :, None])
        add_csr_by_group(*self._memory, np.asarray(shares.offsets, np.int64), members, shares.weights, *columns)

    # ------------------------------------------------------------------ parts

    def blocks(self) -> Iterator[tuple[slice, "CsrRows"]]:
        """Yield the rows in one block: a dense gradient per block would cost more than the entries.

        If entries must be converted to float64, blocks are limited so that the copies stay small.
        """
        if self.X.dtype == np.float64 or self.X.nnz <= _BLOCK_ENTRIES:
            yield slice(0, self.n_rows), CsrRows(_widened(self.X))
            return
        marks = np.arange(0, self.X.nnz + _BLOCK_ENTRIES, _BLOCK_ENTRIES)
        bounds = np.unique(np.append(np.searchsorted(self.X.indptr, marks), self.n_rows).clip(0, self.n_rows))
        for start, stop in itertools.pairwise(bounds.tolist()):
            yield slice(start, stop), CsrRows(_widened(self.X[start:stop]))

    def pieces(self, n_bytes: int, *, dense: bool) -> Iterator[tuple[slice, Any]]:
        """Split the rows by their entries, at twelve bytes each and as many again for a copy."""
        start = 0
        while start < self.n_rows:
            most = int(self.X.indptr[start]) + n_bytes // 24
            stop = max(start + 1, int(np.searchsorted(self.X.indptr, most, side="right")) - 1)
            place = slice(start, min(stop, start + piece_rows(n_bytes, self.n_features if dense else 0), self.n_rows))
            start = place.stop
            yield place, self.X[place].toarray() if dense else self.X[place]

    def take(self, rows: Indices | slice) -> "CsrRows":
        """Select rows."""
        return CsrRows(self.X[rows])

    def dense(self) -> Array:
        """Return a dense array."""
        return np.asarray(self.X.toarray())

    def columns(self, features: Indices) -> "CsrRows":
        """Select columns."""
        return CsrRows(_widened(self._by_column[:, features].tocsr()))

    @cached_property
    def _by_column(self) -> Any:
        return self.X.tocsc()

    def scaled(self, factors: Floats) -> "CsrRows":
        """Scale columns."""
        scaled = self.X.astype(np.float64)
        scaled.data *= factors[scaled.indices]
        return CsrRows(scaled)

    # ------------------------------------------------------------------ properties

    @property
    def n_entries(self) -> float:
        """Stored entries, scaled by their cost: scattered entries take longer."""
        return _ENTRY * self.X.nnz / max(self.n_rows, 1)

    def longest_sum(self) -> int:
        """Return the number of rows, which are summed sequentially, plus the entries of the longest row."""
        return self.n_rows + int(np.diff(self.X.indptr).max(initial=0))

    def moments(self, row_weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Compute row norms, column squares and column sums."""
        with np.errstate(over="ignore", invalid="ignore"):
            X = _widened(self.X)
            squared = X.power(2)
            return np.sqrt(squared @ np.ones(self.n_features)), squared.T @ row_weights, X.T @ row_weights

    def largest(self) -> Floats:
        """Compute the maximum norm of each row."""
        row = np.repeat(np.arange(self.n_rows), np.diff(self.X.indptr))
        out = np.zeros(self.n_rows)
        np.maximum.at(out, row, np.abs(self.X.data.astype(np.float64)))
        return out

    def entries(self) -> tuple[Floats, Indices]:
        """Return the stored entries."""
        return self.X.data, self.X.indices

    def update_digest(self, update: Callable[[Any], object]) -> None:
        """Add types, shape and entries to the digest."""
        update(f"csr{self.X.shape}".encode())
        for array in (self.X.data, self.X.indices, self.X.indptr):
            update(f"{array.dtype.str}{array.shape}".encode())
            update(np.ascontiguousarray(array).data)

    # ------------------------------------------------------------------ compiled code

    @cached_property
    def _memory(self) -> tuple[Array, ...]:
        indices: tuple[Any, ...] = (self.X.indices, self.X.indptr)
        if max(self.n_features, self.X.nnz) <= np.iinfo(np.int32).max:
            # int32, so that one kernel is compiled instead of two.
            indices = tuple(np.asarray(index, dtype=np.int32) for index in indices)
        return tuple(map(as_writable, (self.X.data, *indices)))

    def flat(self, y: Array, loss: tuple[int, float], *, intercept: bool) -> CsrData:
        """Return the arrays with labels and loss."""
        data, indices, indptr = self._memory
        return CsrData(data, indices, indptr, y, *loss, intercept)
