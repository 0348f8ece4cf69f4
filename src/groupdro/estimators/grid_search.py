"""Cross-validated losses of every penalty and robustness, and their comparison."""

import warnings
from collections.abc import Iterable, Iterator
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.parallel import Parallel, delayed

from groupdro.data.grouping import indexable_groups, read_groups
from groupdro.estimators.base import GroupDROEstimator
from groupdro.estimators.fitting import MissingGroupsWarning, SmallGroupWarning
from groupdro.evaluation.folds import divide, keep_classes
from groupdro.evaluation.inference import read_weights
from groupdro.evaluation.metrics import row_losses
from groupdro.evaluation.selection import Selection, select_cell
from groupdro.utils.arguments import check_whole
from groupdro.utils.types import Floats, Indices

__all__ = ["ROUGH", "FoldFits", "Given", "GridSearch"]

ROUGH = 1e-3  # tolerance of fits whose held-out losses are only compared
_HOPELESS = 2.0  # a penalty is dropped if its plain training is this many standard errors worse than the best
_NEARLY = 0.01  # a penalty is kept in any case up to this relative difference from the smallest loss


class Given(NamedTuple):
    """Arguments of a fit."""

    X: Any
    y: Any
    weight: Any
    groups: Any
    offset: Any


class GridSearch:
    """A search over penalties and robustness, by the held-out losses of all rows.

    Parameters
    ----------
    about : GroupDROClassifierCV or GroupDRORegressorCV
        Parameters of the search.
    rough : GroupDROEstimator
        Estimator to fit.
    given : Given
        The data.
    clusters : ndarray of shape (n_rows,) or None
        Cluster of each row; rows of a cluster stay together.
    grid : pair of ndarray
        Penalties, descending, and values of robustness, ascending from 0.
    """

    def __init__(
        self,
        about: Any,
        rough: GroupDROEstimator,
        given: Given,
        clusters: Indices | None,
        grid: tuple[Floats, Floats],
    ):
        self.about, self.rough, self.X, self.y, self.clusters = about, rough, given.X, np.asarray(given.y), clusters
        self.groups = None if given.groups is None else indexable_groups(given.groups)
        self.weights = read_weights(given.weight, len(self.y))
        self.offset = None if given.offset is None else np.asarray(given.offset)
        self.grouping = read_groups(
            given.groups, len(self.y), missing="own" if rough.missing_group == "own" else "error"
        )
        self.alphas, self.blends = grid
        if len(self.grouping.names) == 1:
            self.blends = self.blends[:1]  # robustness makes no difference
        self.cells = np.repeat(self.alphas, len(self.blends)), np.tile(self.blends, len(self.alphas))
        if isinstance(about.cv, str) or not (hasattr(about.cv, "split") or isinstance(about.cv, Iterable)):
            check_whole(about.cv, "cv", least=2)
            if len(self.y) < int(about.cv):
                raise ValueError(f"cv={about.cv!r} requires as many rows, but there are n_samples={len(self.y)}.")
        self.splits = list(self._splits())
        self.n_splits = len(self.splits)

    def run(self) -> Selection:
        """Compare all cells, except for penalties whose plain training is clearly worse."""
        n, n_blends = len(self.y), len(self.blends)
        totals, counts = np.zeros((n, len(self.cells[0]))), np.zeros(n)
        for _, test in self.splits:
            counts[test] += 1.0
        kept = counts > 0
        plain = np.arange(len(self.alphas)) * n_blends
        starts = self._add(totals, [(self.alphas, self.blends[:1], None)] * self.n_splits)
        able = self._competitive(
            totals[:, plain][kept] / counts[kept, None], None if self.weights is None else self.weights[kept]
        )
        if n_blends > 1:
            some = [(self.alphas[able], self.blends[1:], [fold[k] for k in np.flatnonzero(able)]) for fold in starts]
            self._add(totals, some)
        discarded = np.repeat(~able, n_blends) & (self.cells[1] > 0)
        losses = totals[kept] / counts[kept, None]
        losses[:, discarded] = np.nan
        about = self.about
        return select_cell(
            losses,
            self.cells[1],
            self.grouping.present_in(np.flatnonzero(kept)),
            clusters=None if self.clusters is None else np.unique(self.clusters[kept], return_inverse=True)[1],
            weights=None if self.weights is None else self.weights[kept],
            confidence=about.confidence,
            n_bootstrap=about.n_bootstrap,
            min_rows=about.min_rows,
            mean_budget=about.mean_budget,
            prefer=about.prefer,
            seed=about.random_state,
        )

    def _competitive(self, losses: Floats, weights: Floats | None) -> Any:
        """Return which penalties are worth trying with any robustness: those whose plain training is competitive."""
        w = np.ones(len(losses)) if weights is None else weights
        means = w @ losses / w.sum()
        best = int(np.argmin(means))
        worse = losses - losses[:, [best]]
        errors = np.sqrt((w**2) @ (worse - worse.mean(axis=0)) ** 2) / w.sum()
        able = (means - means[best] <= _HOPELESS * errors) | (means - means[best] <= _NEARLY * abs(means[best]))
        able[max(best - 1, 0) : best + 2] = True  # and its neighbours: robust models may prefer another penalty
        return able

    def _splits(self) -> Iterator[tuple[Indices, Indices]]:
        about, classes = self.about, is_classifier(self.rough)
        if isinstance(about.cv, Integral):
            groups = np.zeros(len(self.y), dtype=np.int64) if self.groups is None else self.groups
            yield from divide(
                self.X, self.y, groups, n_splits=int(about.cv), seed=about.random_state, clusters=self.clusters,
                classes=classes,
            )  # fmt: skip
            return
        splits = list(about.cv) if isinstance(about.cv, Iterable) else []
        if hasattr(about.cv, "split"):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The groups parameter is ignored")
                splits = list(about.cv.split(self.X, self.y, self.groups if self.clusters is None else self.clusters))
        for train, test in splits:
            yield keep_classes(train, test, self.y) if classes else (train, test)

    def _part(self, rows: Indices) -> Given:
        """Return some of the rows."""
        return Given(
            _safe_indexing(self.X, rows),
            self.y[rows],
            None if self.weights is None else self.weights[rows],
            None if self.groups is None else self.grouping.present_in(rows),
            None if self.offset is None else self.offset[rows],
        )

    def _add(self, totals: Floats, jobs: list[Any]) -> list[Any]:
        """Fit all jobs in every fold, add the held-out losses, and return the solutions."""
        tasks = (
            delayed(_fit_fold)(self.rough, self._part(train), self._part(test), self.about.scoring, job)
            for (train, test), job in zip(self.splits, jobs, strict=True)
        )
        found = Parallel(n_jobs=self.about.n_jobs)(tasks)
        for (_, test), (losses, _), (alphas, blends, _) in zip(self.splits, found, jobs, strict=True):
            columns = [
                int(np.flatnonzero((self.cells[0] == alpha) & (self.cells[1] == t))[0])
                for alpha in alphas
                for t in blends
            ]
            totals[np.ix_(test, np.array(columns))] += losses
        return [solutions for _, solutions in found]


class FoldFits:
    """Fits on the training rows of a fold, which are read once, and their losses on its held-out rows.

    Parameters
    ----------
    rough : GroupDROClassifier or GroupDRORegressor
        The estimator, which is not changed.
    train, test : Given
        Both parts of the rows.
    scoring : object, optional
        Loss of a row, by default that of the estimator.
    """

    def __init__(self, rough: GroupDROEstimator, train: Given, test: Given, scoring: Any = None):
        self._model, self._test = clone(rough), test
        self._loss = "auto" if scoring is None else scoring
        self._task, _, _ = self._model._read(*train)

    def fit(self, alpha: float, robustness: float, start: tuple[Any, Any]) -> tuple[Floats, tuple[Floats, Floats]]:
        """Fit from a start, without spending slack on the average.

        Parameters
        ----------
        alpha, robustness : float
            Penalty and robustness.
        start : tuple
            w and q to begin with, or (None, None).

        Returns
        -------
        losses : ndarray
            Loss of each held-out row.
        solution : tuple of ndarray
            w and q.
        """
        model, test = self._model, self._test
        result = model._solve(self._task, float(alpha), start, robustness=float(robustness), spend=False).result
        for name, value in model._attributes(result.w).items():
            setattr(model, name, value)
        return row_losses(model, test.X, test.y, self._loss, offset=test.offset), (result.w, result.q)


def _fit_fold(rough: GroupDROEstimator, train: Given, test: Given, scoring: Any, job: Any) -> tuple[Floats, list[Any]]:
    """Return a fold's held-out losses for each penalty and robustness, and the solution for each penalty."""
    alphas, blends, starts = job
    losses, solutions = [], []
    with warnings.catch_warnings():
        for category in (MissingGroupsWarning, SmallGroupWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", category=category)
        fits = FoldFits(rough, train, test, scoring)
        last: Any = (None, None)
        for k, alpha in enumerate(alphas):
            last = last if starts is None else starts[k]
            for t in blends:
                found, last = fits.fit(alpha, t, last)
                losses.append(found)
            solutions.append(last)
    return np.stack(losses, axis=1), solutions
