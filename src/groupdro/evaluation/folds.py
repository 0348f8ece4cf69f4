"""A splitter that keeps every group in every fold, and helpers for splitting rows into training and test."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.model_selection import BaseCrossValidator, StratifiedGroupKFold
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import type_of_target

from groupdro.data.given import GivenRows
from groupdro.data.grouping import Grouping, GroupRules, read_groups
from groupdro.evaluation.models import take_columns
from groupdro.utils.arguments import check_flag, check_whole, error_prefix, number_of_rows
from groupdro.utils.types import Array, Indices, Mask

__all__ = ["MOST_CLASSES", "GroupStratifiedKFold", "divide", "keep_classes"]

MOST_CLASSES = 10  # distinct integers up to which a target is treated as classes by default


def keep_classes(train: Array, test: Array, y: Array) -> tuple[Array, Array]:
    """Move test rows whose class is missing from training to the training rows: no model could predict them.

    Parameters
    ----------
    train, test : ndarray of int
        Indices of both parts.
    y : ndarray of shape (n_rows,)
        Class labels.

    Returns
    -------
    train, test : ndarray of int
        Indices of both parts, sorted.
    """
    # Use codes: np.isin compares every pair of text labels in object arrays, which takes quadratic time.
    codes = np.unique(y, return_inverse=True)[1].ravel()
    new = np.bincount(codes[train], minlength=int(codes.max()) + 1)[codes[test]] == 0
    return np.sort(np.concatenate([train, test[new]])), test[~new]


def divide(given: GivenRows, *, n_splits: int, seed: int, classes: bool) -> Iterator[tuple[Indices, Indices]]:
    """Split rows into folds stratified by group and class, with clusters kept together.

    Parameters
    ----------
    given : GivenRows
        The data.
    n_splits, seed : int
        Number of folds, and the seed of their random order.
    classes : bool
        Whether y holds classes; every training part then contains all of them.

    Yields
    ------
    train, test : ndarray of int
        Training and test indices of each fold.
    """
    labels, clusters = given.y, given.clusters
    if clusters is None:
        folds = GroupStratifiedKFold(n_splits, random_state=seed).split(given.X, labels, given.groups)
    else:
        n_clusters = len(np.unique(clusters))
        if n_clusters < n_splits:
            raise ValueError(f"cluster has {n_clusters} distinct labels, fewer than the {n_splits} folds.")
        strata = _codes(given.groups, len(labels))
        if classes:
            strata = strata * (len(labels) + 1) + np.unique(labels, return_inverse=True)[1].ravel()
        whole = StratifiedGroupKFold(n_splits, shuffle=True, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about strata with fewer rows than folds
            folds = iter(list(whole.split(given.X, strata, clusters)))
    for train, test in folds:
        yield keep_classes(train, test, labels) if classes else (train, test)


def _codes(grouping: Grouping, n_rows: int) -> Indices:
    """Return a number for each row, the same for rows of the same groups."""
    if not grouping.overlapping:
        return grouping.codes(n_rows)
    codes = np.zeros(n_rows, np.int64)
    for i in range(len(grouping.names)):
        inside = np.zeros(n_rows, np.int64)
        inside[grouping.rows_of(i)] = 1
        codes = np.unique(2 * codes + inside, return_inverse=True)[1].ravel()
    return codes


class GroupStratifiedKFold(BaseCrossValidator):
    """K folds stratified by group and, for class labels, by class within each group.

    A group and class with fewer rows than folds is spread over as many folds as it has rows. `GroupKFold` keeps a
    group's rows together; this splitter instead keeps every group in both training and test, as required to evaluate
    the worst of known groups.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds.
    shuffle : bool, default=True
        Whether to shuffle the rows of each stratum.
    random_state : int, RandomState instance or None, default=None
        Seed of the shuffling.
    group_by : str or list of str, default=None
        Columns of X with the groups, used if no groups are passed.
    """

    __metadata_request__split = {"groups": True}  # noqa: RUF012

    def __init__(
        self,
        n_splits: int = 5,
        *,
        shuffle: bool = True,
        random_state: Any = None,
        group_by: str | list[str] | None = None,
    ):
        check_whole(n_splits, "n_splits", least=2)
        check_flag(shuffle, "shuffle")
        self.n_splits = int(n_splits)
        self.shuffle = shuffle
        self.random_state = random_state
        self.group_by = group_by

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds.

        Parameters
        ----------
        X, y, groups : object
            Ignored.

        Returns
        -------
        int
            The number of folds.
        """
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Array, Array]]:
        """Yield training and test indices of each fold.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Rows; only their number matters, unless `group_by` names columns.
        y : array-like of shape (n_rows,), optional
            Labels; if they are classes, folds are stratified by them too.
        groups : array-like, optional
            Groups of the rows.

        Yields
        ------
        train, test : ndarray
            Training and test indices of each fold.
        """
        n_rows = number_of_rows(X, "X")
        groups = groups.grouping(X) if isinstance(groups, GroupRules) else groups
        for name, part in (("y", y), ("groups", groups)):
            if part is not None and not isinstance(part, Grouping) and (n_here := number_of_rows(part, name)) != n_rows:
                raise ValueError(f"{name} has {n_here} rows but X has {n_rows}.")
        rows = np.arange(n_rows)
        for test in self._iter_test_masks(X, y, groups):
            yield rows[~test], rows[test]

    def _iter_test_masks(self, X: Any = None, y: Any = None, groups: Any = None) -> Iterator[Mask]:
        if groups is None:
            if self.group_by is None:
                raise ValueError("groups must be given, or group_by must name a column of X.")
            groups, _ = take_columns(X, self.group_by)
        n = number_of_rows(X, "X")
        if n < self.n_splits:
            raise ValueError(f"n_splits={self.n_splits} is larger than the number of rows, {n}.")
        codes = _codes(read_groups(groups, n, missing="own"), n)
        if y is not None and type_of_target(y) in ("binary", "multiclass"):
            labels = np.unique(np.asarray(y), return_inverse=True)[1].ravel()
            strata = codes * (int(labels.max()) + 1) + labels
        else:
            strata = codes
        with error_prefix("random_state"):
            rng = check_random_state(self.random_state)
        tie = rng.permutation(n) if self.shuffle else np.arange(n)
        if self.shuffle:
            codes, strata = (self._shuffle_small(part, rng) for part in (codes, strata))
        order = np.lexsort((tie, strata, codes))
        # Continuing the count from stratum to stratum keeps the folds equal in size.
        folds = np.empty(n, np.int64)
        folds[order] = np.arange(n) % self.n_splits
        for fold in range(self.n_splits):
            yield folds == fold

    def _shuffle_small(self, codes: Indices, rng: Any) -> Indices:
        """Shuffle strata with fewer rows than folds: otherwise they would be assigned the same way for every seed."""
        codes = np.unique(codes, return_inverse=True)[1].ravel()
        small = np.flatnonzero(np.bincount(codes) < self.n_splits)
        place = np.arange(codes.max() + 1)
        place[small] = rng.permutation(small)
        return place[codes]
