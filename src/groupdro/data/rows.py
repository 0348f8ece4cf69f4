"""How the rows of X are stored: the only code that tells dense, sparse and mapped rows apart.

Both kinds give blocks of consecutive rows as float64, on which ``block @ w`` and ``block.T @ a`` work. A pass that
does both products on a block reads X from memory once, because the block stays in the processor's cache, and sums in
float64 whatever the storage.
"""

import itertools
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import narwhals.stable.v1 as nw
import numpy as np
import scipy.sparse as sp

from groupdro.utils.arguments import error_prefix
from groupdro.utils.types import Array, Floats, Indices

__all__ = ["CsrRows", "DenseRows", "Rows", "memory_limit", "read_rows"]


_NONE = -1  # advice to the system, where it takes any
_RANDOM, _SEQUENTIAL = getattr(mmap, "MADV_RANDOM", _NONE), getattr(mmap, "MADV_SEQUENTIAL", _NONE)
_BLOCK_ENTRIES = 1 << 23  # of sparse rows that are widened at once
_BLOCK_VALUES = 1 << 20  # 8 MiB of float64: in the shared cache, and enough work for a threaded product
_PIECE_ROWS = 1 << 16
_BLOCK_ROWS = 1 << 10  # at least, whose sum is apart from that of others: rounding does not build up over all rows


class Rows(Protocol):
    """Rows of X in some storage."""

    n_rows: int
    n_features: int
    sparse: bool
    mapped: bool
    in_memory: bool

    def longest_sum(self) -> int:
        """Bound the additions one after another in a sum over rows, by blocks, and over the entries of a row."""
        ...

    def read_ahead(self, rows: Indices) -> None:
        """Let the system begin to read rows that will be needed soon."""
        ...

    def blocks(self) -> Iterator[tuple[slice, Any]]:
        """Yield consecutive rows with their place, as float64 that supports ``@`` and ``.T``."""
        ...

    def pieces(self, n_bytes: int, *, dense: bool) -> Iterator[tuple[slice, Any]]:
        """Yield consecutive rows with their place, as they are stored, of at most about so many bytes as float64.

        Sparse rows are given out as arrays if `dense` is true.
        """
        ...

    def take(self, rows: Indices) -> Any:
        """Return the given rows, in the precision in which they are stored, that supports ``@`` and ``.T``."""
        ...

    def subset(self, rows: "Indices | slice") -> "Rows":
        """Return storage of only these rows, a view where a slice allows it."""
        ...

    def scaled(self, factors: Floats) -> "Rows":
        """Return a copy with each column multiplied by its factor."""
        ...

    def shifted(self, centre: Floats) -> "Rows":
        """Return a copy, in float64, with a number subtracted from each column."""
        ...

    def moments(self, row_weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the 2-norm of each row, and the weighted sums of squares and of values of each column, by one pass."""
        ...

    def largest(self) -> Floats:
        """Return the maximum norm of each row, by one pass."""
        ...

    def feed(self, take: Callable[[Any], object]) -> None:
        """Hand all that the rows are made of to a function, as bytes, by one pass."""
        ...


class DenseRows:
    """Rows of a C-ordered array of floating point, in memory or mapped from a file."""

    sparse = False

    def __init__(self, X: Array):
        self.X = X
        self.n_rows, self.n_features = X.shape
        self.mapped = _mapping_of(X) is not None
        #: Whether the system can keep all rows in memory, where reading one costs the same wherever it is.
        self.in_memory = not self.mapped or X.nbytes <= 0.5 * memory_limit()
        self._pattern = _NONE
        self.for_kernels = _as_writable(X)

    @property
    def compilable(self) -> bool:
        """Whether kernels can read the rows as they are stored; half precision and foreign byte orders they cannot."""
        return self.X.dtype in (np.float32, np.float64) and self.X.dtype.isnative

    @property
    def _block_rows(self) -> int:
        # A sum over blocks and one over the rows of a block are shortest together at the root of the number of rows.
        rows = max(_BLOCK_ROWS, int(np.sqrt(self.n_rows)))
        return max(1, min(self.n_rows, rows, _BLOCK_VALUES // max(self.n_features, 1)))

    def longest_sum(self) -> int:
        """Add up rows of a block, blocks, and entries of a row."""
        return self._block_rows + self.n_rows // self._block_rows + 1 + self.n_features

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield blocks of rows; a block of float32 is widened in a buffer that the next block overwrites."""
        step = self._block_rows
        if self.mapped:
            self._expect(_SEQUENTIAL)
        widen = self.X.dtype != np.float64
        buffer = np.empty((step, self.n_features)) if widen else None
        for start in range(0, self.n_rows, step):
            place = slice(start, min(start + step, self.n_rows))
            block = np.asarray(self.X[place])
            if buffer is not None:
                wide = buffer[: len(block)]
                wide[...] = block
                block = wide
            yield place, block
            if not self.in_memory:
                _release(self.X, place)

    def _expect(self, pattern: int) -> None:
        """Tell the system how mapped rows will be read, where they do not fit in memory."""
        if self.in_memory or self._pattern == pattern or pattern < 0:
            return
        self._pattern = pattern
        _advise(self.X, slice(0, self.n_rows), pattern)

    def read_ahead(self, rows: Indices) -> None:
        """Let the system begin to read mapped rows that will be needed soon, stretch by stretch."""
        if self.in_memory or not rows.size or not hasattr(mmap, "MADV_WILLNEED"):
            return
        # Otherwise every touch of a stretch would read megabytes behind it too.
        self._expect(_RANDOM)
        ordered = np.unique(rows)
        cuts = np.flatnonzero(np.diff(ordered) > 1) + 1
        starts, stops = ordered[np.r_[0, cuts]], ordered[np.r_[cuts - 1, len(ordered) - 1]] + 1
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            _advise(self.X, slice(start, stop), mmap.MADV_WILLNEED)

    def stretches(self, start: int, stop: int) -> Iterator[slice]:
        """Cut consecutive rows for a kernel: mapped ones into stretches whose pages are given back once read."""
        if self.in_memory:
            yield slice(start, stop)
            return
        self._expect(_SEQUENTIAL)
        step = max(512, _BLOCK_VALUES // max(self.n_features, 1) // 512 * 512)
        for begin in range(start, stop, step):
            place = slice(begin, min(begin + step, stop))
            yield place
            _release(self.X, place)

    def pieces(self, n_bytes: int, *, dense: bool) -> Iterator[tuple[slice, Array]]:
        """Cut the rows."""
        del dense  # as they are
        step = _piece_rows(n_bytes, self.n_features)
        for start in range(0, self.n_rows, step):
            place = slice(start, min(start + step, self.n_rows))
            yield place, self.X[place]

    def take(self, rows: Indices) -> Floats:
        """Gather rows."""
        taken = np.asarray(self.X[rows])
        return taken if self.compilable else taken.astype(np.float32 if taken.dtype.itemsize < 8 else np.float64)

    def subset(self, rows: "Indices | slice") -> "DenseRows":
        """Select rows."""
        return DenseRows(self.X[rows])

    def scaled(self, factors: Floats) -> "DenseRows":
        """Scale columns, in float64."""
        return DenseRows(self.X * factors)

    def shifted(self, centre: Floats) -> "DenseRows":
        """Shift columns, in float64."""
        return DenseRows(self.X - centre)

    def moments(self, row_weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Compute row norms, column squares and column sums."""
        norms, squares, sums = np.empty(self.n_rows), np.zeros(self.n_features), np.zeros(self.n_features)
        with np.errstate(over="ignore", invalid="ignore"):
            for place, block in self.blocks():
                squared = block * block
                norms[place] = np.sqrt(squared.sum(axis=1))
                squares += row_weights[place] @ squared
                sums += row_weights[place] @ block
        return norms, squares, sums

    def largest(self) -> Floats:
        """Compute the maximum norm of each row."""
        out = np.empty(self.n_rows)
        for place, block in self.blocks():
            out[place] = np.abs(block).max(axis=1)
        return out

    def feed(self, take: Callable[[Any], object]) -> None:
        """Hand the type, the shape and the rows to a function."""
        take(f"{self.X.dtype.str}{self.X.shape}".encode())
        for place in self.stretches(0, self.n_rows):
            take(np.ascontiguousarray(self.X[place]).data)


class CsrRows:
    """Rows of a compressed sparse row matrix."""

    sparse = True
    mapped = False
    in_memory = True

    def __init__(self, X: Any):
        self.X = X
        self.n_rows, self.n_features = X.shape
        indices: tuple[Any, ...] = (X.indices, X.indptr)
        if max(X.shape[1], X.nnz) <= np.iinfo(np.int32).max:
            indices = tuple(np.asarray(index, dtype=np.int32) for index in indices)  # one kernel instead of two
        self.for_kernels = tuple(map(_as_writable, (X.data, *indices)))

    def longest_sum(self) -> int:
        """Add up rows, which are summed one after another, and entries of the longest one."""
        return self.n_rows + int(np.diff(self.X.indptr).max(initial=0))

    def read_ahead(self, rows: Indices) -> None:
        """Nothing: entries of rows are found through two arrays."""

    def blocks(self) -> Iterator[tuple[slice, Any]]:
        """Yield the rows in one block: a dense gradient a block would cost more than the entries.

        Entries that have to be widened come in blocks of so many that their copy stays small beside the rest.
        """
        if self.X.dtype == np.float64 or self.X.nnz <= _BLOCK_ENTRIES:
            yield slice(0, self.n_rows), self._float64(self.X)
            return
        marks = np.arange(0, self.X.nnz + _BLOCK_ENTRIES, _BLOCK_ENTRIES)
        bounds = np.unique(np.append(np.searchsorted(self.X.indptr, marks), self.n_rows).clip(0, self.n_rows))
        for start, stop in itertools.pairwise(bounds.tolist()):
            yield slice(start, stop), self._float64(self.X[start:stop])

    def pieces(self, n_bytes: int, *, dense: bool) -> Iterator[tuple[slice, Any]]:
        """Cut the rows by their entries: twelve bytes each, and as many again for a copy."""
        start = 0
        while start < self.n_rows:
            most = int(self.X.indptr[start]) + n_bytes // 24
            stop = max(start + 1, int(np.searchsorted(self.X.indptr, most, side="right")) - 1)
            place = slice(start, min(stop, start + _piece_rows(n_bytes, self.n_features if dense else 0), self.n_rows))
            start = place.stop
            yield place, self.X[place].toarray() if dense else self.X[place]

    def take(self, rows: Indices) -> Any:
        """Gather rows."""
        return self.X[rows]

    def subset(self, rows: "Indices | slice") -> "CsrRows":
        """Select rows."""
        return CsrRows(self.X[rows])

    def scaled(self, factors: Floats) -> "CsrRows":
        """Scale columns, in float64."""
        scaled = self.X.astype(np.float64)
        scaled.data *= factors[scaled.indices]
        return CsrRows(scaled)

    def shifted(self, centre: Floats) -> "CsrRows":
        """Refuse: shifted rows would not be sparse."""
        raise NotImplementedError("Columns of sparse rows are not shifted.")

    def moments(self, row_weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Compute row norms, column squares and column sums."""
        with np.errstate(over="ignore", invalid="ignore"):
            X = self._float64(self.X)
            squared = X.power(2)
            return np.sqrt(squared @ np.ones(self.n_features)), squared.T @ row_weights, X.T @ row_weights

    def largest(self) -> Floats:
        """Compute the maximum norm of each row."""
        row = np.repeat(np.arange(self.n_rows), np.diff(self.X.indptr))
        out = np.zeros(self.n_rows)
        np.maximum.at(out, row, np.abs(self.X.data.astype(np.float64)))
        return out

    def feed(self, take: Callable[[Any], object]) -> None:
        """Hand the types, the shape and the entries to a function."""
        take(f"csr{self.X.shape}".encode())
        for array in (self.X.data, self.X.indices, self.X.indptr):
            take(f"{array.dtype.str}{array.shape}".encode())
            take(np.ascontiguousarray(array).data)

    @staticmethod
    def _float64(X: Any) -> Any:
        return X if X.dtype == np.float64 else X.astype(np.float64)


def _piece_rows(n_bytes: int, n_features: int) -> int:
    """Return how many rows of float64 fit into so many bytes, with labels, which limit the number too."""
    return max(1, min(_PIECE_ROWS, n_bytes // (8 * (n_features + 8))))


def read_rows(X: Any) -> tuple[DenseRows | CsrRows, tuple[str, ...] | None]:
    """Read X in any accepted container.

    Parameters
    ----------
    X : ndarray, memmap, DataFrame, or CSR/CSC matrix or array
        Two-dimensional and numeric. Floating-point ndarrays in C order, memmaps and CSR are not copied.

    Returns
    -------
    rows : DenseRows or CsrRows
        The rows.
    feature_names : tuple of str or None
        The columns' names, where X has them.
    """
    if sp.issparse(X):
        if X.ndim != 2:
            raise ValueError(f"X must have two dimensions, got shape {X.shape}.")
        matrix = sp.csr_array(X)
        if matrix.dtype.kind not in "fiub":
            raise ValueError(f"X must be numeric, got a sparse matrix of {matrix.dtype}.")
        if matrix.dtype not in (np.float32, np.float64):
            matrix = matrix.astype(np.float64)
        if not matrix.has_sorted_indices or not matrix.has_canonical_format:
            matrix = matrix.copy()  # summing duplicates works in place, and X is the user's
            matrix.sum_duplicates()
        return CsrRows(matrix), None

    if isinstance(X, np.ma.MaskedArray) and X.mask.any():
        raise ValueError("X has masked entries: fill them or drop the rows.")
    native = nw.from_native(X, pass_through=True)
    if isinstance(native, nw.LazyFrame):
        native = native.collect()
    names: tuple[str, ...] | None = None
    if isinstance(native, nw.DataFrame):
        names = tuple(str(name) for name in native.columns)
        text = [name for name, dtype in native.schema.items() if not (dtype.is_numeric() or dtype == nw.Boolean)]
        if text:
            raise ValueError(f"X has columns that are not numeric: {text}. Encode them first.")
        flags = [name for name, dtype in native.schema.items() if dtype == nw.Boolean]
        array = native.with_columns(nw.col(*flags).cast(nw.Float64)).to_numpy() if flags else native.to_numpy()
    else:
        with error_prefix("X"):
            array = X if isinstance(X, np.ndarray) else np.asarray(X)
    if array.ndim != 2:
        raise ValueError(f"X must have two dimensions, got shape {array.shape}.")
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"X must be numeric, got dtype {array.dtype}.") from None
    if array.dtype.kind not in "fiub":
        raise ValueError(f"X must be numeric, got dtype {array.dtype}.")
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if _mapping_of(array) is None:
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return DenseRows(array), names


class _SameMemory:
    """Hands the memory of an array on without its being read-only."""

    def __init__(self, array: Array):
        self.owner = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _as_writable(array: Array) -> Array:
    """Return the same memory in the type that kernels are compiled for.

    For arrays that are read-only, as joblib hands them to its workers, every kernel would be compiled once more, which
    takes seconds. No kernel writes to rows.
    """
    if array.flags.writeable or not array.size:
        return array
    return np.asarray(_SameMemory(array))


def _mapping_of(array: Any) -> np.memmap[Any, Any] | None:
    """Return the memory map behind an array, if there is one."""
    while isinstance(array, np.ndarray):
        # Copies of a map keep its class, without the map.
        if isinstance(array, np.memmap) and getattr(array, "_mmap", None) is not None:
            return array
        array = array.base
    return None


def _release(X: Array, place: slice) -> None:
    """Give back the resident pages of mapped rows that were read; the system keeps them cached.

    Pages of a copy-on-write map (mode "c") hold changes that exist nowhere else, and stay.
    """
    mapping = _mapping_of(X)
    if mapping is not None and mapping.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
        _advise(X, place, mmap.MADV_DONTNEED)


def _advise(X: Array, place: slice, advice: int) -> None:
    """Tell the system what becomes of the pages of mapped rows."""
    mapping = _mapping_of(X)
    if mapping is None or not X.flags.c_contiguous:
        return
    pages: mmap.mmap = mapping._mmap  # type: ignore[attr-defined]  # NumPy has no public way to it
    map_start = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
    block = X[place]
    start = block.__array_interface__["data"][0] - map_start
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    pages.madvise(advice, first, start + block.nbytes - first)


def memory_limit() -> float:
    """Return the bytes of memory that this process may use, as its control group or the machine says."""
    limits = [float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        for _, controllers, group in groups:
            if controllers not in ("", "memory"):
                continue
            root, name = ("/sys/fs/cgroup", "memory.max")
            if controllers:  # the first version of control groups
                root, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
            for folder in (Path(root + group), *Path(root + group).parents):
                text = (folder / name).read_text().strip() if (folder / name).exists() else ""
                limits += [float(text)] if text.isdigit() else []
    except OSError:
        pass  # no control groups here
    return min(limits, default=np.inf)
