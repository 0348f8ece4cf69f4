"""What is written to a store: blocks of rows with their labels, whatever they come from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import narwhals.stable.v1 as nw
import numpy as np
import scipy.sparse as sp

from groupdro.data.grouping import read_groups
from groupdro.data.read_rows import read_rows
from groupdro.store.rounding import Rounding
from groupdro.utils.arguments import error_prefix
from groupdro.utils.types import Array, Floats, Indices, Mask

__all__ = ["ArraySource", "Coded", "LabelBlock", "Source", "Task", "as_csr", "has_classes", "refuse"]

Task = Literal["auto", "classes", "regression"]

_MOST_ROWS = 2**16  # of a block, for labels take memory too


@dataclass(frozen=True)
class Coded:
    """A column of labels by the places of its values in a list.

    Attributes
    ----------
    codes : ndarray of shape (n_rows,)
        Place of each row's value.
    values : sequence
        Distinct values.
    """

    codes: Indices
    values: Sequence[Any]


@dataclass(frozen=True)
class LabelBlock:
    """Labels of consecutive rows.

    Attributes
    ----------
    target : Coded or ndarray of shape (n_rows,)
        Classes, or finite numbers.
    groups : Coded
        Names of the groups.
    weight : ndarray of shape (n_rows,) or None
        Finite weights, not negative.
    """

    target: Coded | Floats
    groups: Coded
    weight: Floats | None


class Source(Protocol):
    """Rows that can be read twice, in the same order."""

    n_features: int
    feature_names: tuple[str, ...] | None
    has_classes: bool
    weighted: bool
    sparse: bool

    @property
    def target_name(self) -> str | None:
        """Column of the targets, where they come from one."""
        ...

    @property
    def group_names(self) -> tuple[str, ...] | None:
        """Columns of the groups, where they come from some."""
        ...

    def label_blocks(self, memory: int) -> Iterator[LabelBlock]:
        """Read only the labels, in blocks of at most about so many bytes."""
        ...

    def row_blocks(self, memory: int) -> Iterator[tuple[LabelBlock, Any]]:
        """Read labels and rows: arrays of the store's type, or CSR arrays with sorted indices and no zeros."""
        ...

    def feature(self, column: int) -> str:
        """Describe a column of X for an error."""
        ...

    @property
    def rounding(self) -> Rounding:
        """What converts the rows, and knows in the end what that has done to their columns."""
        ...


def refuse(argument: str, fault: str, bad: Mask, first_row: int) -> None:
    """Raise an error that names the first bad row, where there is one.

    Parameters
    ----------
    argument : str
        What has the fault.
    fault : str
        What a bad row has.
    bad : ndarray of bool
        The bad rows of a block.
    first_row : int
        Row of the source at which the block begins.
    """
    if bad.any():
        raise ValueError(f"{argument} has {fault}, first in row {first_row + int(np.argmax(bad))}.")


def has_classes(kind: str, task: str, argument: str) -> bool:
    """Decide whether targets are classes.

    Parameters
    ----------
    kind : {"bool", "int", "float", "str"}
        Kind of the values.
    task : {"auto", "classes", "regression"}
        What the user asked for; "auto" takes only floating point for numbers.
    argument : str
        What to call the targets in an error.

    Returns
    -------
    bool
        True for classes, False for numbers.
    """
    if task not in ("auto", "classes", "regression"):
        raise ValueError(f'task must be "auto", "classes" or "regression", got {task!r}.')
    if task == "regression" and kind == "str":
        raise ValueError(f'{argument} is text, which task="regression" cannot use: pass task="classes".')
    return task == "classes" or (task == "auto" and kind != "float")


def as_csr(block: Any, rounding: Rounding, first_row: int) -> Any:
    """Return rows as CSR in the store's type, with sorted indices, sums of duplicates and no zeros.

    Parameters
    ----------
    block : ndarray or sparse array
        The rows.
    rounding : Rounding
        What converts the entries.
    first_row : int
        Row of the source at which they begin.

    Returns
    -------
    csr_array
        A new array.
    """
    matrix = sp.csr_array(block, copy=True)
    matrix.sum_duplicates()
    matrix = rounding.convert_sparse(matrix, first_row)
    matrix.eliminate_zeros()
    return matrix


class ArraySource:
    """Arrays in memory, or mapped.

    Parameters
    ----------
    X : ndarray, memmap, DataFrame, or sparse matrix or array
        Features.
    y : array-like
        Targets.
    groups : array-like or None
        Groups as `groupdro.data.grouping.read_groups` reads them, without overlap.
    sample_weight : array-like or None
        Weights.
    dtype : dtype
        Type of the entries of the store.
    sparse : bool or None
        Whether rows are given out as CSR; None is as X is.
    task : {"auto", "classes", "regression"}
        What the targets are.
    """

    target_name: str | None = None
    group_names: tuple[str, ...] | None = None

    def __init__(
        self, X: Any, y: Any, groups: Any, sample_weight: Any, dtype: np.dtype[Any], sparse: bool | None, task: str
    ):
        rows, self.feature_names = read_rows(X)
        self._X: Any = rows.X
        self.rounding = Rounding(dtype, self)
        n_rows, self.n_features = self._X.shape
        if not self.n_features:
            raise ValueError("X has no columns.")
        self.sparse = sp.issparse(self._X) if sparse is None else sparse
        grouping = read_groups(groups, n_rows)
        if grouping.overlapping:
            raise ValueError("groups is a membership matrix: a store has every row in one group.")
        codes = np.empty(n_rows, np.int64)
        codes[grouping.members] = np.repeat(np.arange(len(grouping.names)), grouping.sizes)
        self._groups = Coded(codes, grouping.names)
        self._target = _read_target(y, n_rows, task)
        self.has_classes = isinstance(self._target, Coded)
        self._weight = None if sample_weight is None else _read_weight(sample_weight, n_rows)
        self.weighted = self._weight is not None

    def label_blocks(self, memory: int) -> Iterator[LabelBlock]:
        """Give out all labels at once, which are in memory anyway."""
        del memory
        yield self._labels(slice(None))

    def row_blocks(self, memory: int) -> Iterator[tuple[LabelBlock, Any]]:
        """Give out slices of rows, converted."""
        start, n_rows = 0, self._X.shape[0]
        while start < n_rows:
            stop = start + max(1, memory // (8 * (self.n_features + 8)))
            if self.sparse and sp.issparse(self._X):
                # Twelve bytes an entry, and as many again for the copy that is sorted.
                most = int(self._X.indptr[start]) + memory // 24
                stop = max(start + 1, int(np.searchsorted(self._X.indptr, most, side="right")) - 1)
            place = slice(start, min(stop, start + _MOST_ROWS, n_rows))
            start = place.stop
            block = self._X[place]
            if self.sparse:
                yield self._labels(place), as_csr(block, self.rounding, place.start)
                continue
            dense = block.toarray() if sp.issparse(block) else block
            yield self._labels(place), self.rounding.convert(dense, place.start)

    def feature(self, column: int) -> str:
        """Describe a column of X for an error."""
        return f"X, column {self.feature_names[column]!r}," if self.feature_names else f"X, column {column},"

    def _labels(self, place: slice) -> LabelBlock:
        target = self._target
        return LabelBlock(
            target=Coded(target.codes[place], target.values) if isinstance(target, Coded) else target[place],
            groups=Coded(self._groups.codes[place], self._groups.values),
            weight=None if self._weight is None else self._weight[place],
        )


def _read_target(y: Any, n_rows: int, task: str) -> Coded | Floats:
    values = _read_vector(y, "y", n_rows)
    if values.dtype.kind == "O":
        values = _of_one_kind(values)
    kind = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str", "O": "str"}.get(values.dtype.kind)
    if kind is None:
        raise ValueError(f"y must be numbers, booleans or text, got dtype {values.dtype}.")
    if kind == "float":
        refuse("y", "a value that is NaN or infinite", ~np.isfinite(values), 0)
    if not has_classes(kind, task, "y"):
        return values.astype(np.float64)
    classes, codes = np.unique(values, return_inverse=True)
    return Coded(codes.astype(np.int64, copy=False).ravel(), classes.tolist())


def _of_one_kind(values: Array) -> Array:
    """Return objects as an array of numbers or booleans, or as they are where all are text."""
    items = [value.item() if isinstance(value, np.generic) else value for value in values.tolist()]
    refuse("y", "a missing value", np.array([value is None or value != value for value in items], bool), 0)
    kinds = {type(item) for item in items}
    if kinds == {str}:
        return values
    if kinds in ({bool}, {int}, {float}, {int, float}):
        return np.array(items)
    raise ValueError(
        f"y must be of one kind, numbers, booleans or text, got {sorted(kind.__name__ for kind in kinds)}."
    )


def _read_weight(sample_weight: Any, n_rows: int) -> Floats:
    values = _read_vector(sample_weight, "sample_weight", n_rows)
    if values.dtype.kind not in "fiub":
        raise ValueError(f"sample_weight must be numeric, got dtype {values.dtype}.")
    weight = values.astype(np.float64)
    refuse("sample_weight", "a value that is NaN, infinite or negative", ~(np.isfinite(weight) & (weight >= 0)), 0)
    return weight


def _read_vector(values: Any, name: str, n_rows: int) -> Array:
    native = nw.from_native(values, pass_through=True, allow_series=True)
    if isinstance(values, np.ma.MaskedArray) and values.mask.any():
        raise ValueError(f"{name} has masked entries: fill them or drop the rows.")
    if isinstance(native, nw.Series):
        refuse(name, "a missing value", native.is_null().to_numpy().astype(bool), 0)
        array: Array = native.to_numpy()
    else:
        with error_prefix(name):
            array = np.asarray(values)
        if not isinstance(values, np.ndarray) and array.dtype.kind == "U":
            array = np.asarray(values, dtype=object)  # NumPy turns a list of text and anything else into text
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (n_rows,):
        raise ValueError(f"{name} must have one value a row of X ({n_rows}), got shape {array.shape}.")
    return array
