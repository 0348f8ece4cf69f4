"""The interface of the rows of X. Storage implements the products, so no other code depends on how rows are stored."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np

from groupdro.data.shares import Shares
from groupdro.data.single_blocks import SingleBlock
from groupdro.data.sketch import Sketch
from groupdro.utils.types import Array, Floats, Indices, KernelLoss

__all__ = ["Rows", "T", "as_writable", "rows_within"]

T = TypeVar("T")

_MOST_ROWS = 1 << 16  # of a range within given bytes


class Rows(ABC):
    """Rows of X in some storage.

    Rows are cut in two ways, both of which depend only on the data:

    - `ranges` are small and are read one after the other, so that a range stays in the processor's cache while both
      products of a pass are computed, and so that mapped rows need little memory. `blocks` are their rows.
    - `parts` are a few large ranges, one per thread. Each part adds up its own sums, and these are added in order.

    A block of rows, or a sample of them, is again a `Rows` object. Products return float64. Products with one output
    are computed in float64 too. Products with several outputs dominate the time of a step and are computed in the
    precision of the rows: blocks are float64, samples and `single_blocks` are as stored. Sparse rows are stored as they
    are, and all their products are computed in float64.
    """

    n_rows: int
    n_features: int
    #: Whether all rows fit in memory, so that reading any row costs the same.
    in_memory: bool = True
    #: Whether only nonzero entries are stored, here and in files of the rows.
    sparse: ClassVar[bool] = False
    #: Whether copies with other columns are allowed: memory-mapped rows may not fit in memory.
    copyable: ClassVar[bool] = True
    #: Whether columns can be shifted, rotated and factored, which would make sparse rows dense.
    combinable: ClassVar[bool]
    #: Cost of multiplying a row's entry with another for a Hessian, relative to that of the entry in a pass.
    gram_cost: ClassVar[float]

    # ------------------------------------------------------------------ products

    @abstractmethod
    def matvec(self, w: Floats) -> Floats:
        """Return ``X @ w``, for one or several outputs."""

    @abstractmethod
    def rmatvec(self, v: Floats) -> Floats:
        """Return ``X.T @ v``, for one or several outputs."""

    @abstractmethod
    def matvec_sizes(self, w: Floats) -> Floats:
        """Return ``abs(X) @ abs(w)``, for one output: how large the terms of the outputs are."""

    @abstractmethod
    def gram(self, weights: Floats) -> Floats:
        """Return ``X.T @ diag(weights) @ X``."""

    @abstractmethod
    def rmatvec_by_group(self, shares: Shares, v: Floats, out: Floats) -> None:
        """Do ``out[i] += X.T @ (shares[i] * v)`` for every group i."""

    def sketch_by_group(self, shares: Shares, v: Floats, sketch: Sketch, out: Floats) -> None:
        """Add to out[i] the sketch of the same sum, for one output."""
        for i, place in shares.groups:
            members = shares.rows[place] if shares.rows.size else place
            sketch.add(self.take(members).rmatvec(shares.weights[place] * v[members]), 0, out[i])

    # ------------------------------------------------------------------ parts

    @abstractmethod
    def ranges(self, n_bytes: int | None = None, *, dense: bool = False) -> Iterator[slice]:
        """Yield consecutive ranges of rows that fit in a cache, or take at most about `n_bytes` bytes.

        The bytes of sparse rows are those of their entries, or with `dense` also those of all their numbers. Rows of a
        range should be read before the next one is asked for, because the memory of mapped rows is then released.
        """

    @abstractmethod
    def parts(self, n_sums: int = 1) -> list[slice]:
        """Divide the rows into a few ranges for threads, each of which adds up `n_sums` numbers per feature."""

    @abstractmethod
    def wide(self, place: slice) -> "Rows":
        """Return consecutive rows in the precision of a pass: dense ones in float64."""

    def blocks(self) -> Iterator[tuple[slice, "Rows"]]:
        """Yield the rows of all ranges as `wide` ones, with their positions. The next block may overwrite the last."""
        for place in self.ranges():
            yield place, self.wide(place)

    def map_blocks(self, function: Callable[[slice, "Rows"], T]) -> Iterator[T]:
        """Yield function(place, block) for all blocks in order. Several may run at a time."""
        for place, block in self.blocks():
            yield function(place, block)

    @abstractmethod
    def take(self, rows: "Indices | slice") -> "Rows":
        """Return only these rows, as a view if possible."""

    @abstractmethod
    def dense(self) -> Array:
        """Return the rows as an array, in a precision that kernels support."""

    @abstractmethod
    def stored(self, *, dense: bool) -> Any:
        """Return the rows as they are stored, as an array or as a sparse one; always as an array if `dense` is true."""

    def read_ahead(self, rows: Indices) -> None:
        """Let the system prefetch rows that will be needed soon."""

    # ------------------------------------------------------------------ transformed columns

    @abstractmethod
    def columns(self, features: Indices) -> "Rows":
        """Return a copy of only these columns, in float64."""

    @abstractmethod
    def scaled(self, factors: Floats) -> "Rows":
        """Return a copy, in float64, with each column multiplied by its factor."""

    def shifted(self, centre: Floats) -> "Rows":
        """Return a copy, in float64, with a number subtracted from each column. Requires `combinable` rows."""
        raise NotImplementedError(f"Columns of {type(self).__name__} cannot be shifted.")

    # ------------------------------------------------------------------ properties

    @property
    def n_entries(self) -> float:
        """Average number of entries per row, scaled by their cost relative to those of a dense row."""
        return float(self.n_features)

    @abstractmethod
    def longest_sum(self) -> int:
        """Bound the longest chain of additions in a sum over rows, by blocks, and over the entries of a row."""

    @abstractmethod
    def moments(self, row_weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the 2-norm of each row, and the weighted sums of squares and of values of each column, in one pass."""

    @abstractmethod
    def largest(self) -> Floats:
        """Return the maximum norm of each row, in one pass."""

    @abstractmethod
    def entries(self) -> tuple[Floats, Indices]:
        """Return the values of a block that are not known to be zero, and the column of each."""

    @abstractmethod
    def update_digest(self, update: Callable[[Any], object]) -> None:
        """Feed the content of the rows to a digest's update function, in one pass."""

    # ------------------------------------------------------------------ compiled code

    def flat(self, y: Array, offset: Floats, loss: KernelLoss, *, intercept: bool) -> Any:
        """Return rows, labels, offsets and loss in the form kernels take; None if no kernel can read the rows."""

    def fused_pass(
        self, flat: Any, w: Floats, row_weights: Floats, norms: Floats, margins: Floats, losses: Floats
    ) -> tuple[Floats, float] | None:
        """Set margins and losses, and return the gradient and the mass of its terms; None if no kernel can."""
        return None

    def fused_curvature(
        self, flat: Any, w: Floats, row_weights: Floats, norms: Floats, along: Array, margins: Floats, losses: Floats
    ) -> tuple[Floats, Floats, float] | None:
        """Do as `fused_pass`, and return the gradient's change as each column of `along` is added to the outputs."""
        return None

    @property
    def single(self) -> bool:
        """Whether the rows are float32 and `single_blocks` can multiply them in that precision."""
        return False

    def single_blocks(self, place: slice, n_outputs: int) -> Iterator[tuple[slice, SingleBlock]]:
        """Yield float32 blocks of consecutive rows with their positions. The next block overwrites their products."""
        raise NotImplementedError(f"{type(self).__name__} cannot be multiplied in single precision.")

    def fused_difference(self, flat: Any, *point: Any) -> bool:
        """Add the differences of drawn rows from a snapshot, as `dense_difference` does; False if no kernel can."""
        del flat, point
        return False


def rows_within(n_bytes: int, n_features: int) -> int:
    """Return how many float64 rows with labels fit into the given number of bytes."""
    return max(1, min(_MOST_ROWS, n_bytes // (8 * (n_features + 8))))


class _SameMemory:
    """Exposes the memory of an array as writable."""

    def __init__(self, array: Array):
        self.owner = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def as_writable(array: Array) -> Array:
    """Return the same memory as a writable array, the type that kernels are compiled for.

    For read-only arrays, such as those that joblib passes to its workers, every kernel would be compiled again, which
    takes seconds. No kernel writes to rows.
    """
    if array.flags.writeable or not array.size:
        return array
    return np.asarray(_SameMemory(array))
