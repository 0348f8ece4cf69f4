"""Operations on features in memory or memory-mapped: scores, samples, and a store of some of the rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.store import GroupedStore
from groupdro.store.sources import Coded, LabelBlock, Source
from groupdro.store.writer import write_store
from groupdro.torch.features import Features
from groupdro.utils.types import Array, Floats, Indices, Mask

__all__ = ["FeatureSource", "held_out_rows", "mean_variance", "sample_rows", "scores_of", "write_rows"]

_BLOCK = 1 << 20  # entries of X converted to float64 at once


def held_out_rows(features: Features, share: float, seed: int) -> Mask:
    """Choose held-out rows: the same share of every group and class.

    Parameters
    ----------
    features : Features
        The rows.
    share : float
        Share of rows to hold out.
    seed : int
        Seed of the choice.

    Returns
    -------
    ndarray of bool
        Whether each row is held out. Small cells are rounded down, so that no class loses all its training rows.
    """
    cells = features.group_codes * (int(features.y.max()) + 1) + features.y
    order = np.random.default_rng(seed).permutation(len(cells))
    order = order[np.argsort(cells[order], kind="stable")]
    _, starts, sizes = np.unique(cells[order], return_index=True, return_counts=True)
    place = np.arange(len(cells)) - np.repeat(starts, sizes)
    held_out = np.zeros(len(cells), bool)
    held_out[order] = place < np.repeat(np.floor(share * sizes + 1e-9), sizes)
    return held_out


def sample_rows(features: Features, rows: Indices, n_sampled: int, seed: int) -> tuple[Indices, Floats]:
    """Draw about `n_sampled` rows: all rows of small groups, and the same number from each larger group.

    Parameters
    ----------
    features : Features
        All rows.
    rows : ndarray of int
        Rows to draw from.
    n_sampled : int
        Number of rows to draw.
    seed : int
        Seed of the draw.

    Returns
    -------
    rows : ndarray of int
        The drawn rows, sorted.
    weights : ndarray
        Weight of each row, such that groups keep their shares of all rows.
    """
    codes = features.group_codes[rows]
    sizes = np.bincount(codes, minlength=len(features.names))
    most = 0
    left = n_sampled
    for k, size in enumerate(np.sort(sizes)):  # the largest number per group that does not exceed the total
        most = max(most, left // (len(sizes) - k))
        left -= min(int(size), most)
    order = np.random.default_rng(seed).permutation(len(rows))
    order = order[np.argsort(codes[order], kind="stable")]
    place = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    drawn = np.sort(order[place < max(most, 1)])
    kept = np.bincount(codes[drawn], minlength=len(sizes))
    return rows[drawn], (sizes / np.maximum(kept, 1))[codes[drawn]]


def _blocks(X: Array, step: int | None = None) -> Iterator[tuple[slice, Array]]:
    step = step or max(1, _BLOCK // X.shape[1])
    for start in range(0, len(X), step):
        place = slice(start, min(start + step, len(X)))
        yield place, np.asarray(X[place])


def scores_of(features: Features, rows: Mask, models: list[tuple[Floats, Floats]]) -> list[Floats]:
    """Compute the scores of linear models on some rows, in one pass.

    Parameters
    ----------
    features : Features
        All rows.
    rows : ndarray of bool
        Which rows to use.
    models : list of pairs of ndarray
        Coefficients and intercepts.

    Returns
    -------
    list of ndarray of shape (n_rows, n_outputs)
        Scores of each model.
    """
    found: list[list[Floats]] = [[np.empty((0, len(coef)))] for coef, _ in models]
    for place, block in _blocks(features.X):
        wide = block[rows[place]].astype(np.float64)
        for scores, (coef, intercept) in zip(found, models, strict=True):
            scores.append(wide @ coef.T + intercept)
    return [np.concatenate(scores) for scores in found]


def mean_variance(features: Features) -> float:
    """Return the variance of the features, averaged over columns; 1 if all are constant."""
    centre = np.asarray(features.X[0], np.float64)
    squares = np.zeros(features.X.shape[1])
    n = len(features)
    sums = np.zeros_like(squares)
    for _, block in _blocks(features.X):
        away = block - centre
        sums += away.sum(axis=0)
        squares += np.einsum("ij,ij->j", away, away)
    found = float(np.mean(squares / n - (sums / n) ** 2))
    return found if found > 0 else 1.0


class FeatureSource(Source):
    """Some rows of mapped features, as the source of a store.

    Parameters
    ----------
    features : Features
        All rows.
    rows : ndarray of bool
        Which rows to use.
    """

    has_classes = True

    def __init__(self, features: Features, rows: Mask):
        super().__init__(features.X.dtype, False)
        self._features = features
        self._rows = rows
        self.n_features = features.X.shape[1]
        self._classes = list(range(int(features.y.max()) + 1))

    def blocks(self, memory: int, *, labels_only: bool = False) -> Iterator[tuple[LabelBlock, Any]]:
        """Yield slices of rows."""
        if labels_only:
            yield self._labels(np.flatnonzero(self._rows)), None
            return
        X = self._features.X
        for place, block in _blocks(X, max(1, memory // (X.itemsize * self.n_features))):
            rows = np.flatnonzero(self._rows[place])
            if len(rows):
                yield self._labels(place.start + rows), self.stored(block[rows], place.start)

    def feature(self, column: int) -> str:
        """Describe a column for an error."""
        return f"Feature {column} of layer {self._features.layer!r}"

    def _labels(self, rows: Indices) -> LabelBlock:
        features = self._features
        return LabelBlock(
            target=Coded(features.y[rows], self._classes), groups=Coded(features.group_codes[rows], features.names)
        )


def write_rows(path: Path, features: Features, rows: Mask, *, seed: int, memory: int) -> GroupedStore:
    """Write some rows to a store, with bounded memory.

    Parameters
    ----------
    path : Path
        Directory of the store.
    features : Features
        All rows.
    rows : ndarray of bool
        Which rows to write.
    seed, memory : int
        As in `GroupedStore.write`.

    Returns
    -------
    GroupedStore
        The store.
    """
    write_store(path, FeatureSource(features, rows), seed=seed, memory=memory, overwrite=True)
    return GroupedStore.open(path)
