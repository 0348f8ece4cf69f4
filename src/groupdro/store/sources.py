"""Sources of a store: blocks of rows with their labels."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from groupdro.data.given import read_weights
from groupdro.data.grouping import GroupRules, read_groups
from groupdro.data.read_rows import read_rows
from groupdro.store.rounding import Rounding
from groupdro.utils.arguments import check_choice, check_flag, error_prefix
from groupdro.utils.types import Array, Floats, Indices, Mask
from groupdro.utils.vectors import read_offset, read_target

__all__ = ["ArraySource", "Coded", "LabelBlock", "Source", "Task", "has_classes", "refuse", "refuse_not_finite"]

Task = Literal["auto", "classes", "regression"]


@dataclass(frozen=True)
class Coded:
    """A column of labels, as indices into a list of values.

    Attributes
    ----------
    codes : ndarray of shape (n_rows,)
        Index of each row's value.
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
        Finite, nonnegative weights.
    offset : ndarray of shape (n_rows,) or (n_rows, n_outputs) or None
        Finite offsets.
    """

    target: Coded | Floats
    groups: Coded
    weight: Floats | None = None
    offset: Floats | None = None


class Source(ABC):
    """Rows that can be read twice, in the same order.

    Parameters
    ----------
    dtype : str, type or dtype
        Type of the entries of the store: float16, float32 or float64, or bool for sparse rows of ones.
    sparse : bool
        Whether rows are returned as CSR, which does not support float16.

    Attributes
    ----------
    sparse : bool
        The argument.
    rounding : Rounding
        Converts the rows, and measures the rounding error of their columns.
    n_features : int
        Number of columns of X.
    feature_names : tuple of str or None
        Names of the columns, if they have any.
    has_classes, weighted : bool
        Whether targets are classes, and whether rows have weights.
    offset_shape : tuple of int or None
        Shape of a row's offset: () or (n_outputs,); None if rows have none.
    target_name : str or None
        Column of the targets, if they come from one.
    group_names : tuple of str or None
        Columns of the groups, if they come from any.
    """

    n_features: int
    feature_names: tuple[str, ...] | None = None
    has_classes: bool
    weighted: bool = False
    offset_shape: tuple[int, ...] | None = None
    target_name: str | None = None
    group_names: tuple[str, ...] | None = None

    def __init__(self, dtype: Any, sparse: bool):
        check_flag(sparse, "sparse")
        try:
            name = None if dtype is None else np.dtype(dtype).name
        except TypeError:
            name = None
        # Of sparse rows of ones, no values are stored.
        allowed = ("bool", "float32", "float64") if sparse else ("float16", "float32", "float64")
        if name not in allowed:
            where = " if rows are sparse" if sparse else ""
            raise ValueError(f"dtype must be one of {allowed}{where}, got {dtype!r}.")
        self.sparse = sparse
        self.rounding = Rounding(np.dtype(name).newbyteorder("<"), self.feature)

    def prepare(self, folder: Path, memory: int) -> None:
        """Set the folder of temporary files and the bytes of a block in them, before rows are read."""

    @abstractmethod
    def blocks(self, memory: int, *, labels_only: bool = False) -> Iterator[tuple[LabelBlock, Any]]:
        """Read labels and rows in blocks of at most about the given number of bytes.

        Rows are arrays of the store's type, or CSR arrays with sorted indices and no zeros; None with `labels_only`.
        """

    @abstractmethod
    def feature(self, column: int) -> str:
        """Describe a column of X for an error."""

    def stored(self, block: Any, first_row: int) -> Any:
        """Return rows in the form of the store; `first_row` is the source row of the first one."""
        return (self.rounding.convert_sparse if self.sparse else self.rounding.convert)(block, first_row)


def refuse(argument: str, fault: str, bad: Mask, first_row: int) -> None:
    """Raise an error that names the first bad row, if there is one.

    Parameters
    ----------
    argument : str
        Name of the argument or column.
    fault : str
        What is wrong with a bad row.
    bad : ndarray of bool
        The bad rows of a block.
    first_row : int
        Source row of the first row of the block.
    """
    if bad.any():
        raise ValueError(f"{argument} has {fault}, first in row {first_row + int(np.argmax(bad))}.")


def refuse_not_finite(argument: str, values: Array, first_row: int, *, nor_negative: bool = False) -> None:
    """Raise an error that names the first row whose value is NaN, infinite or, optionally, negative.

    Parameters
    ----------
    argument : str
        Name of the argument or column.
    values : ndarray of shape (n_rows,)
        The values of a block.
    first_row : int
        Source row of the first row of the block.
    nor_negative : bool
        Whether negative values are refused too.
    """
    fault = "a value that is NaN, infinite or negative" if nor_negative else "a value that is NaN or infinite"
    refuse(argument, fault, ~np.isfinite(values) | (nor_negative & (values < 0)), first_row)


def has_classes(kind: str | None, task: str, argument: str) -> bool:
    """Decide whether targets are classes.

    Parameters
    ----------
    kind : str or None
        Kind of the targets: "text", "floating" or any other.
    task : {"auto", "classes", "regression"}
        The user's choice; "auto" treats only floating-point values as numbers.
    argument : str
        Name of the argument in errors.

    Returns
    -------
    bool
        True for classes, False for numbers.
    """
    check_choice(task, "task", ("auto", "classes", "regression"))
    if task == "regression" and kind == "text":
        raise ValueError(f'{argument} is text, which task="regression" does not support: pass task="classes".')
    return task == "classes" or (task == "auto" and kind != "floating")


class ArraySource(Source):
    """Arrays in memory or memory-mapped.

    Parameters
    ----------
    X : ndarray, memmap, DataFrame, or sparse matrix or array
        Features.
    y : array-like
        Targets.
    groups : array-like, GroupRules or None
        Groups as `groupdro.data.grouping.read_groups` reads them, without overlap; or rules that divide the rows of X.
    sample_weight, offset : array-like or None
        Weights, and offsets.
    dtype : str, type or dtype
        Type of the entries of the store.
    sparse : bool or None
        Whether rows are returned as CSR; None for the format of X.
    task : {"auto", "classes", "regression"}
        Kind of target.
    """

    def __init__(
        self, X: Any, y: Any, groups: Any, *, sample_weight: Any, offset: Any, dtype: Any, sparse: Any, task: str
    ):
        self._rows, self.feature_names = read_rows(X)
        super().__init__(dtype, self._rows.sparse if sparse is None else sparse)
        n_rows = self._rows.n_rows
        self.n_features = self._rows.n_features
        if not self.n_features:
            raise ValueError("X has no columns.")
        grouping = read_groups(groups.partition(X) if isinstance(groups, GroupRules) else groups, n_rows)
        if grouping.overlapping:
            raise ValueError("groups is a membership matrix, but a store has every row in exactly one group.")
        target: Any = read_target(y, n_rows, numeric=task == "regression")
        kind = {"f": "floating", "U": "text", "O": "text"}.get(target.dtype.kind)
        self.has_classes = has_classes(kind, task, "y")
        if self.has_classes:
            with error_prefix("y"):  # labels of mixed types cannot be sorted
                classes, target = np.unique(target, return_inverse=True)
            target = Coded(target.ravel(), classes.tolist())
        self._labels = LabelBlock(
            target,
            Coded(grouping.codes(n_rows), grouping.names),
            read_weights(sample_weight, n_rows),
            None if offset is None else read_offset(offset, n_rows),
        )
        self.weighted = self._labels.weight is not None
        self.offset_shape = None if self._labels.offset is None else self._labels.offset.shape[1:]

    def blocks(self, memory: int, *, labels_only: bool = False) -> Iterator[tuple[LabelBlock, Any]]:
        """Yield converted slices of rows; all labels at once, since they are in memory anyway."""
        if labels_only:
            yield self._labels, None
            return
        labels = self._labels
        for place in self._rows.ranges(memory, dense=not self.sparse):
            block = self._rows.take(place).stored(dense=not self.sparse)
            part = LabelBlock(
                target=_part(labels.target, place),
                groups=_part(labels.groups, place),
                weight=None if labels.weight is None else labels.weight[place],
                offset=None if labels.offset is None else labels.offset[place],
            )
            yield part, self.stored(block, place.start)

    def feature(self, column: int) -> str:
        """Describe a column of X for an error."""
        return f"X, column {self.feature_names[column]!r}," if self.feature_names else f"X, column {column},"


def _part(column: Any, place: slice) -> Any:
    return Coded(column.codes[place], column.values) if isinstance(column, Coded) else column[place]
