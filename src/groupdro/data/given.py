"""The rows that a user passes to a fit, a report or a comparison, read in one place."""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal

import narwhals.stable.v1 as nw
import numpy as np
import scipy.sparse as sp
from sklearn.utils import _safe_indexing

from groupdro.data.grouping import Grouping, GroupRules, read_groups
from groupdro.utils.arguments import as_table, number_of_rows
from groupdro.utils.types import Array, Floats, Indices
from groupdro.utils.vectors import LARGEST, read_finite, read_offset, read_target

__all__ = [
    "GivenRows",
    "RowSource",
    "read_clusters",
    "read_given",
    "read_weights",
    "refuse_other_order",
    "refuse_own",
]


@dataclass(frozen=True, eq=False)
class GivenRows:
    """Rows with labels and groups, whatever containers they came in.

    Attributes
    ----------
    X : array-like, DataFrame or sparse matrix
        The rows in the user's container, which a pipeline may require; sparse rows in a format with indexing.
    y : ndarray of shape (n_rows,)
        Labels, or finite numbers.
    groups : Grouping
        The groups. All have rows.
    weights : ndarray of shape (n_rows,) or None
        Nonnegative weights.
    clusters : ndarray of int of shape (n_rows,) or None
        Number of each row's cluster.
    offset : ndarray of shape (n_rows,) or (n_rows, n_outputs) or None
        Numbers added to the model's outputs.
    """

    X: Any
    y: Array
    groups: Grouping
    weights: Floats | None = None
    clusters: Indices | None = None
    offset: Floats | None = None

    @property
    def group_sizes(self) -> Indices:
        """Number of rows with a weight in each group."""
        if self.weights is None:
            return self.groups.sizes
        return np.add.reduceat(self.weights[self.groups.members] > 0, self.groups.offsets[:-1], dtype=np.int64)

    @property
    def counted(self) -> Indices:
        """The rows with a weight, in ascending order."""
        return np.arange(len(self.y)) if self.weights is None else np.flatnonzero(self.weights)

    @property
    def row_weights(self) -> Floats:
        """Weights of the rows, which are ones if none were given."""
        return np.ones(len(self.y)) if self.weights is None else self.weights

    def check_weight_of_groups(self) -> None:
        """Raise if all rows of a group have zero weight."""
        sizes = self.group_sizes
        if not sizes.all():
            raise ValueError(f"sample_weight is zero on all of group {self.groups.names[int(np.argmin(sizes))]!r}.")

    def take(self, rows: Indices) -> "GivenRows":
        """Return some of the rows, given in ascending order, and the groups that have any of them."""
        return GivenRows(
            _take_rows(self.X, rows),
            self.y[rows],
            self.groups.present_in(rows),
            None if self.weights is None else self.weights[rows],
            None if self.clusters is None else np.unique(self.clusters[rows], return_inverse=True)[1],
            None if self.offset is None else self.offset[rows],
        )

    def with_weight(self) -> "GivenRows":
        """Return the rows with a weight, and warn of groups that have none."""
        counted = self.counted
        if len(counted) == len(self.y):
            return self
        lost = np.flatnonzero(self.group_sizes == 0)
        if lost.size:
            more = f" and of {lost.size - 1} other groups" if lost.size > 1 else ""
            warnings.warn(
                f"sample_weight is zero on all of group {self.groups.names[int(lost[0])]!r}{more}: left out.",
                UserWarning,
                stacklevel=4,
            )
        return self.take(counted)


class RowSource(ABC):
    """Rows with labels, groups, weights and offsets of their own, such as a store."""

    @abstractmethod
    def given(self) -> GivenRows:
        """Return the rows."""


def read_given(
    X: Any,
    y: Any = None,
    groups: Any = None,
    *,
    sample_weight: Any = None,
    cluster: Any = None,
    offset: Any = None,
    numeric: bool,
    missing: Literal["error", "own"] = "error",
) -> GivenRows:
    """Read rows in any accepted containers.

    Parameters
    ----------
    X : array-like, DataFrame, sparse matrix or RowSource
        Rows. Their entries are not read. For a source, all others must be None.
    y : array-like of shape (n_rows,)
        Labels or targets.
    groups : array-like, Series, DataFrame, sparse matrix, Grouping, GroupRules or None
        Groups, as `read_groups` takes them, or rules that find them in the columns of X.
    sample_weight, cluster : array-like of shape (n_rows,), optional
        Weights, and labels of clusters.
    offset : array-like of shape (n_rows,) or (n_rows, n_outputs), optional
        Numbers added to the model's outputs.
    numeric : bool
        Whether y must be numbers.
    missing : {"error", "own"}
        Whether missing group labels raise an error, or form a group of their own.

    Returns
    -------
    GivenRows
        The rows.
    """
    if isinstance(X, RowSource):
        refuse_own(y=y, sample_weight=sample_weight, groups=groups, offset=offset)
        return replace(X.given(), clusters=read_clusters(cluster, number_of_rows(X, "X")))
    if sp.issparse(X) and X.format not in ("csr", "csc"):
        X = X.tocsr()
    X = as_table(X)
    refuse_other_order(X, y=y, groups=groups, sample_weight=sample_weight, cluster=cluster, offset=offset)
    n_rows = number_of_rows(X, "X")
    if isinstance(groups, GroupRules):
        groups = groups.grouping(X)
    target = read_target(y, n_rows, numeric=numeric)
    weights = read_weights(sample_weight, n_rows)
    if weights is not None and weights.max() > LARGEST:  # only ratios matter, and sums would overflow
        weights /= weights.max()
    return GivenRows(
        X,
        target,
        read_groups(groups, n_rows, missing=missing),
        weights,
        read_clusters(cluster, n_rows),
        None if offset is None else read_offset(offset, n_rows),
    )


def refuse_other_order(X: Any, /, *, called: str = "X", **columns: Any) -> None:
    """Refuse columns of pandas whose index has the labels of that of X in another order: rows are taken by position."""
    index: Any = getattr(X, "index", None)
    if not hasattr(index, "equals"):
        return
    for name, column in columns.items():
        own: Any = getattr(column, "index", None)
        if not hasattr(own, "equals") or len(own) != len(index) or own.equals(index):
            continue
        if not own.has_duplicates and own.isin(index).all():
            raise ValueError(
                f"{name} has the index of {called} in another order, but rows are matched by position: pass "
                f"{name}.loc[{called}.index]."
            )


def refuse_own(**given: Any) -> None:
    """Refuse arguments that a store has itself."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} must be None if X is a store, which has its own.")


def read_clusters(cluster: Any, n_rows: int) -> Indices | None:
    """Return the number of the cluster of each row; None stays None.

    Parameters
    ----------
    cluster : array-like, Series, DataFrame or None
        Label of the patient, user or site of each row; of several columns, each combination is a cluster.
    n_rows : int
        Number of rows.

    Returns
    -------
    ndarray of shape (n_rows,) or None
        Cluster numbers from 0.
    """
    if cluster is None:
        return None
    try:
        found = read_groups(cluster, n_rows)
    except (TypeError, ValueError) as error:  # which name the argument groups
        raise type(error)(str(error).replace("groups", "cluster")) from None
    if found.overlapping:
        raise ValueError("cluster must have one label per row, not a membership matrix.")
    return found.codes(n_rows)


def read_weights(sample_weight: Any, n_rows: int) -> Floats | None:
    """Return the weights of the rows; None stays None."""
    if sample_weight is None:
        return None
    weights = read_finite(sample_weight, "sample_weight", n_rows).astype(np.float64)
    if (weights < 0).any():
        raise ValueError("sample_weight has negative values.")
    if not weights.any():
        raise ValueError("sample_weight is zero on all rows.")
    return weights


def _take_rows(X: Any, rows: Indices) -> Any:
    # Narwhals indexes frames of all libraries, but refuses those of pandas with duplicate column names.
    if not (isinstance(X, np.ndarray) or hasattr(X, "iloc")):
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        if isinstance(frame, nw.DataFrame):
            return nw.to_native(frame[rows])
    return _safe_indexing(X, rows)
