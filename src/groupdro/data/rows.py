"""The contract of the rows of X: whoever stores them multiplies them, and nobody else asks how they are stored."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np

from groupdro.data.shares import Shares
from groupdro.data.single_blocks import SingleBlock
from groupdro.utils.types import Array, Floats, Indices, Mask

__all__ = ["Rows", "T", "as_writable", "piece_rows"]

T = TypeVar("T")

_PIECE_ROWS = 1 << 16


class Rows(ABC):
    """Rows of X in some storage.

    A block of rows, or a sample of them, is again `Rows`. A pass takes both of its products block by block, so that a
    block stays in the processor's cache. Products return float64. Those of one output are computed in float64 too;
    those of several outputs, which are most of the time of a step, in the precision of the rows: blocks are float64,
    samples and `single_blocks` are as stored.
    """

    n_rows: int
    n_features: int
    #: Whether the system can keep all rows in memory, where reading one costs the same wherever it is.
    in_memory: bool = True
    #: Whether only entries other than zero are stored, as a file of the rows then does too.
    sparse: ClassVar[bool] = False
    #: Whether copies with other columns may be made: rows that are mapped from a file may not fit in memory twice.
    copyable: ClassVar[bool] = True
    #: Whether columns can be shifted, rotated and factored: sparse rows would fill up.
    combinable: ClassVar[bool]
    #: Time of a multiplication in a product of matrices, relative to one in a pass.
    gram_cost: ClassVar[float]

    # ------------------------------------------------------------------ products

    @abstractmethod
    def like(self, v: Floats) -> Any:
        """Return X in the precision in which it is multiplied with v."""

    def matvec(self, w: Floats) -> Floats:
        """Return X w, of one output or several."""
        X = self.like(w)
        return np.asarray(X @ w.astype(X.dtype, copy=False), dtype=np.float64)

    def rmatvec(self, v: Floats) -> Floats:
        """Return X' v, of one output or several."""
        X = self.like(v)
        return np.asarray(X.T @ v.astype(X.dtype, copy=False), dtype=np.float64)

    @abstractmethod
    def gram(self, weights: Floats) -> Floats:
        """Return X' diag(weights) X."""

    @abstractmethod
    def rmatvec_by_group(self, shares: Shares, v: Floats, out: Floats) -> None:
        """Add to out[i] the sum over rows r of shares[i, r] v[r] x_r."""

    # ------------------------------------------------------------------ parts

    @abstractmethod
    def blocks(self) -> Iterator[tuple[slice, "Rows"]]:
        """Yield consecutive rows with their place, in float64; the next block may overwrite the last."""

    def map_blocks(self, function: Callable[[slice, "Rows"], T]) -> Iterator[T]:
        """Yield function(place, block) of all blocks in their order; several may run at a time."""
        for place, block in self.blocks():
            yield function(place, block)

    @abstractmethod
    def pieces(self, n_bytes: int, *, dense: bool) -> Iterator[tuple[slice, Any]]:
        """Yield consecutive rows with their place, as they are stored, of at most about so many bytes as float64.

        Sparse rows are given out as arrays if `dense` is true.
        """

    @abstractmethod
    def take(self, rows: "Indices | slice") -> "Rows":
        """Return storage of only these rows, a view where a slice allows it."""

    @abstractmethod
    def dense(self) -> Array:
        """Return the rows as an array, in a precision that kernels read."""

    def read_ahead(self, rows: Indices) -> None:
        """Let the system begin to read rows that will be needed soon."""
        del rows

    # ------------------------------------------------------------------ changed columns

    @abstractmethod
    def columns(self, features: Indices) -> "Rows":
        """Return a copy of only these columns, in float64."""

    @abstractmethod
    def scaled(self, factors: Floats) -> "Rows":
        """Return a copy, in float64, with each column multiplied by its factor."""

    def shifted(self, centre: Floats) -> "Rows":
        """Return a copy, in float64, with a number subtracted from each column, of rows that are combinable."""
        raise NotImplementedError(f"Columns of {type(self).__name__} are not shifted.")

    def row_space_pays(self, n_rows: Indices, n_outputs: int) -> Mask:
        """Return for which numbers of rows `in_row_space` costs less than it saves in a few passes."""
        del n_outputs
        return np.zeros(n_rows.shape, dtype=bool)

    # ------------------------------------------------------------------ what is known of them

    @property
    def n_entries(self) -> float:
        """Entries of a row on average, each counted by the time that it takes relative to one of a dense row."""
        return float(self.n_features)

    @abstractmethod
    def longest_sum(self) -> int:
        """Bound the additions one after another in a sum over rows, by blocks, and over the entries of a row."""

    @abstractmethod
    def moments(self, row_weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the 2-norm of each row, and the weighted sums of squares and of values of each column, by one pass."""

    @abstractmethod
    def largest(self) -> Floats:
        """Return the maximum norm of each row, by one pass."""

    @abstractmethod
    def entries(self) -> tuple[Floats, Indices]:
        """Return the values of a block that are not known to be zero, and the column of each."""

    @abstractmethod
    def update_digest(self, update: Callable[[Any], object]) -> None:
        """Hand all that the rows are made of to a function, as bytes, by one pass."""

    # ------------------------------------------------------------------ compiled code

    def flat(self, y: Array, loss: tuple[int, float], *, intercept: bool) -> Any:
        """Return rows, labels and loss as kernels take them; None where no kernel can read the rows."""
        del y, loss, intercept

    def fused_pass(
        self, flat: Any, w: Floats, row_weights: Floats, norms: Floats, margins: Floats, losses: Floats
    ) -> tuple[Floats, float] | None:
        """Set margins and losses, and return the gradient and the mass of its terms; None where no kernel does."""
        del flat, w, row_weights, norms, margins, losses
        return None

    @property
    def single(self) -> bool:
        """Whether the rows are stored in float32, and `single_blocks` multiplies them so."""
        return False

    def single_pieces(self) -> list[slice]:
        """Cut the rows into pieces for threads, by their number alone."""
        return []

    def single_blocks(self, piece: slice, n_outputs: int) -> Iterator[tuple[slice, SingleBlock]]:
        """Yield blocks of a piece with their place, which multiply in float32; the next overwrites their products."""
        raise NotImplementedError(f"{type(self).__name__} are not multiplied in single precision.")

    def fused_difference(self, flat: Any, *point: Any) -> bool:
        """Add what drawn rows show beyond a snapshot, as `dense_difference` does; False where no kernel does."""
        del flat, point
        return False


def piece_rows(n_bytes: int, n_features: int) -> int:
    """Return how many rows of float64 fit into so many bytes, with labels, which limit the number too."""
    return max(1, min(_PIECE_ROWS, n_bytes // (8 * (n_features + 8))))


class _SameMemory:
    """Hands the memory of an array on without its being read-only."""

    def __init__(self, array: Array):
        self.owner = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def as_writable(array: Array) -> Array:
    """Return the same memory in the type that kernels are compiled for.

    For arrays that are read-only, as joblib hands them to its workers, every kernel would be compiled once more, which
    takes seconds. No kernel writes to rows.
    """
    if array.flags.writeable or not array.size:
        return array
    return np.asarray(_SameMemory(array))
