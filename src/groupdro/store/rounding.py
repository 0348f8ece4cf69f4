"""Conversion of rows to the type of a store, without losing the differences between rows."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from groupdro.utils.types import Array, Floats, Mask

__all__ = ["Rounding"]


_LOST = {2: 1e-2, 4: 1e-3}  # allowed root-mean-square rounding error in standard deviations, by bytes per entry
_LARGEST_WHOLE = 2.0**53  # beyond which every float is an integer
_SAMPLED = 1024  # rows per block used to estimate the spread of columns
_NAMED = 5  # columns named in a warning


class Rounding:
    """Converts rows to the type of a store, and measures the rounding error of their columns.

    A column of integers that the type cannot represent is refused: in float32, 300 distinct seconds since 1970 collapse
    to three numbers. So are entries that are not finite. Other columns are reported by `warn` if their rounding error
    is not small compared to their spread.

    Parameters
    ----------
    dtype : dtype
        Type of the entries of the store.
    describe : callable
        Describes a column of X for an error.
    """

    def __init__(self, dtype: np.dtype[Any], describe: Callable[[int], str]):
        self.dtype = dtype
        self._describe = describe
        self._exact_to = 1.0 if dtype.kind == "b" else 2.0 ** (np.finfo(dtype).nmant + 1)  # integers up to it are exact
        self._first: Floats | None = None
        self._sums: Floats = np.zeros((3, 0))  # of differences from the first row, their squares, and squared errors
        self._n = 0

    def is_safe(self, dtype: np.dtype[Any]) -> bool:
        """Return whether the store's type represents every number of a type."""
        return bool(np.can_cast(dtype, self.dtype, "safe"))

    def convert(self, block: Array, first_row: int) -> Array:
        """Return rows in the type of the store.

        Parameters
        ----------
        block : ndarray of shape (n_rows, n_features)
            The rows.
        first_row : int
            Source row of the first one.

        Returns
        -------
        ndarray of shape (n_rows, n_features)
            A new C-ordered array.
        """
        with np.errstate(over="ignore"):  # overflows are refused below
            rounded = np.array(block, self.dtype, order="C", subok=False)
        if not self.is_safe(block.dtype) and len(block):
            exact = block.astype(np.float64, copy=False)
            risky = np.flatnonzero(np.maximum(exact.max(axis=0), -exact.min(axis=0)) > self._exact_to)
            whole, wrong = _whole(exact[:, risky], rounded[:, risky])
            refused = np.argwhere((wrong & whole.all(axis=0)).T)
            if len(refused):
                column = risky[refused[0, 0]]
                row = refused[0, 1]
                self._refuse_whole(column, first_row + row, exact[row, column])
            self._add(exact, rounded)
        self._check_finite(rounded, lambda entry: divmod(entry, rounded.shape[1]), first_row)
        return rounded

    def convert_sparse(self, block: Any, first_row: int) -> Any:
        """Return rows as CSR in the type of the store, with sorted indices, duplicates summed and zeros removed.

        Only integers are checked for rounding, because zeros make the spread large.

        Parameters
        ----------
        block : ndarray or sparse array of shape (n_rows, n_features)
            The rows.
        first_row : int
            Source row of the first one.

        Returns
        -------
        csr_array
            A new array.
        """
        matrix = sp.csr_array(block, copy=True)
        matrix.sum_duplicates()
        if self.dtype.kind == "b":
            self.check_ones(matrix, first_row)
        with np.errstate(over="ignore"):
            rounded = matrix.astype(self.dtype)

        if not self.is_safe(matrix.dtype) and matrix.nnz:
            whole, wrong = _whole(matrix.data.astype(np.float64, copy=False), rounded.data)
            if wrong.any():
                wrong &= ~np.isin(matrix.indices, np.unique(matrix.indices[~whole]))
            if wrong.any():
                row, column = _locate(matrix, int(np.argmax(wrong)))
                self._refuse_whole(column, first_row + row, matrix.data[np.argmax(wrong)])
        self._check_finite(rounded.data, partial(_locate, matrix), first_row)
        lost = (rounded.data == 0) & (matrix.data != 0)
        if lost.any():
            lost &= ~np.isin(matrix.indices, matrix.indices[rounded.data != 0])  # of a column in which nothing remains
        if lost.any():
            row, column = _locate(matrix, int(np.argmax(lost)))
            raise ValueError(
                f"{self._describe(column)} has only values too small for {self.dtype.name}, first in row "
                f'{first_row + row}: pass dtype="float64", or scale the column.'
            )
        rounded.eliminate_zeros()
        return rounded

    def warn(self) -> None:
        """After all rows, warn about columns whose rounding error is not small compared to their spread."""
        lost = _LOST.get(self.dtype.itemsize)
        if lost is None or not self._n:
            return
        total, squares, errors = self._sums / self._n
        spread = np.sqrt(np.maximum(squares - total**2, 0.0))
        found = np.flatnonzero((np.sqrt(errors) > lost * spread) & (spread > 0))
        if not len(found):
            return
        worst = max(float(np.sqrt(errors[j]) / spread[j]) for j in found)
        named = "; ".join(self._describe(int(j)).rstrip(",") for j in found[:_NAMED])
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        warnings.warn(
            f"{self.dtype.name} rounds away part of the differences between rows, up to {worst:.1g} standard "
            f'deviations, in {named}{more}. Pass dtype="float64", or subtract an offset first.',
            UserWarning,
            stacklevel=5,  # the caller of the writing method
        )

    def _refuse_whole(self, column: int, row: int, exact: Any) -> None:
        raise ValueError(
            f"{self._describe(column)} has integers that {self.dtype.name} cannot represent, first {exact:.0f} in "
            f"row {row}, which would become {self.dtype.type(exact):.0f}: "
            'pass dtype="float64", or subtract an offset first.'
        )

    def check_ones(self, matrix: Any, first_row: int) -> None:
        """Refuse entries other than zero and one."""
        other = (matrix.data != 0) & (matrix.data != 1)
        if other.any():
            entry = int(np.argmax(other))
            row, column = _locate(matrix, entry)
            raise ValueError(
                f"{self._describe(column)} has the value {matrix.data[entry]:g}, first in row {first_row + row}, but "
                'dtype="bool" stores only zeros and ones: pass dtype="float32".'
            )

    def _check_finite(self, values: Array, locate: Callable[[int], tuple[int, int]], first_row: int) -> None:
        """Refuse numbers that are not finite; `locate` finds the row and the column of an entry."""
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(values.sum(dtype=np.float64)):  # a non-finite entry never gives a finite sum
                return
        bad = ~np.isfinite(values)
        if bad.any():
            row, column = locate(int(np.argmax(bad)))
            raise ValueError(
                f"{self._describe(column)} has a value that is NaN, infinite or too large for {self.dtype.name}, "
                f"first in row {first_row + row}."
            )

    def _add(self, exact: Floats, rounded: Array) -> None:
        """Accumulate the spread and the rounding error of each column over a sample of the rows."""
        step = -(-len(exact) // _SAMPLED)
        exact = exact[::step]
        if self._first is None:
            self._first = exact[0].copy()
            self._sums = np.zeros((3, exact.shape[1]))
        with np.errstate(over="ignore", invalid="ignore"):  # such numbers are refused elsewhere, with their row
            away = exact - self._first
            error = rounded[::step] - exact
            self._sums += [away.sum(axis=0), (away**2).sum(axis=0), (error**2).sum(axis=0)]
        self._n += len(exact)


def _locate(matrix: Any, entry: int) -> tuple[int, int]:
    """Return the row and the column of a stored entry."""
    return int(np.searchsorted(matrix.indptr, entry, side="right")) - 1, int(matrix.indices[entry])


def _whole(exact: Floats, rounded: Array) -> tuple[Mask, Mask]:
    """Return which numbers are genuine integers, and which of these change when rounded."""
    whole = (exact == np.floor(exact)) & (np.abs(exact) <= _LARGEST_WHOLE)
    return whole, whole & (rounded != exact)
