"""Cross-validated losses of every penalty and robustness, and their comparison."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Protocol

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.parallel import Parallel, delayed

from groupdro.data.given import GivenRows
from groupdro.data.mapping import nameless
from groupdro.data.rows import rows_within
from groupdro.estimators.base import GroupDROEstimator
from groupdro.estimators.fitting import MissingGroupsWarning, SmallGroupWarning, Task
from groupdro.evaluation.folds import divide, keep_classes
from groupdro.evaluation.outputs import row_losses
from groupdro.evaluation.selection import Selection, select_cell
from groupdro.store import GroupedStore
from groupdro.utils.arguments import check_whole
from groupdro.utils.types import Floats, Indices

__all__ = ["ROUGH", "FoldFits", "GridSearch", "MemoryFold"]

ROUGH = 1e-3  # tolerance of fits whose held-out losses are only compared
_HOPELESS = 2.0  # a penalty is dropped if its plain training is this many standard errors worse than the best
_AT_ONCE = 1 << 26  # bytes of held-out rows of a store that are in memory at once
_NEARLY = 0.01  # a penalty is kept in any case up to this relative difference from the smallest loss


class GridSearch:
    """A search over penalties and robustness, by the held-out losses of all rows.

    Parameters
    ----------
    about : GroupDROClassifierCV or GroupDRORegressorCV
        Parameters of the search.
    rough : GroupDROEstimator
        Estimator to fit.
    given : GivenRows
        The data, without rows of zero weight. Rows of a cluster stay together.
    grid : pair of ndarray
        Penalties, descending, and values of robustness, ascending from 0.
    """

    def __init__(
        self,
        about: Any,
        rough: GroupDROEstimator,
        given: GivenRows,
        grid: tuple[Floats, Floats],
        store: GroupedStore | None = None,
    ):
        self.about = about
        self.rough = rough
        self.given = given
        self.store = store
        self.alphas, self.blends = grid
        if len(given.groups.names) == 1:
            self.blends = self.blends[:1]  # robustness makes no difference
        self.cells = np.repeat(self.alphas, len(self.blends)), np.tile(self.blends, len(self.alphas))
        if isinstance(about.cv, str) or not (hasattr(about.cv, "split") or isinstance(about.cv, Iterable)):
            check_whole(about.cv, "cv", least=2)
            if len(given.y) < int(about.cv):
                raise ValueError(f"cv={about.cv!r} requires as many rows, but there are n_samples={len(given.y)}.")
        self.splits = list(self._splits())
        self.n_splits = len(self.splits)

    def run(self) -> Selection:
        """Select a cell by the held-out losses of all rows."""
        about, (rows, losses) = self.about, self.held_out_losses()
        without_features = replace(self.given, X=np.empty((len(self.given.y), 0)))
        return select_cell(
            losses,
            self.cells[1],
            without_features.take(rows),
            confidence=about.confidence,
            n_bootstrap=about.n_bootstrap,
            min_rows=about.min_rows,
            mean_budget=about.mean_budget,
            prefer=about.prefer or ("caution" if about.mean_budget is None else "gain"),
            seed=about.random_state,
            classes=is_classifier(self.rough),
        )

    def held_out_losses(self) -> tuple[Indices, Floats]:
        """Return the rows that were held out, and their losses in each cell.

        Penalties whose plain training is clearly worse are not tried with any other robustness; these cells have NaN.
        """
        weights = self.given.weights
        n, n_blends = len(self.given.y), len(self.blends)
        totals, counts = np.zeros((n, len(self.cells[0]))), np.zeros(n)
        for _, test in self.splits:
            counts[test] += 1.0
        kept = counts > 0
        plain = np.arange(len(self.alphas)) * n_blends
        starts = self._add(totals, [(self.alphas, self.blends[:1], None)] * self.n_splits)
        able = self._competitive(
            totals[:, plain][kept] / counts[kept, None], None if weights is None else weights[kept]
        )
        if n_blends > 1:
            some = [(self.alphas[able], self.blends[1:], [fold[k] for k in np.flatnonzero(able)]) for fold in starts]
            self._add(totals, some)
        losses = totals[kept] / counts[kept, None]
        losses[:, np.repeat(~able, n_blends) & (self.cells[1] > 0)] = np.nan
        return np.flatnonzero(kept), losses

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
        about = self.about
        given = self.given
        classes = is_classifier(self.rough)
        if isinstance(about.cv, Integral):
            yield from divide(given, n_splits=int(about.cv), seed=about.random_state, classes=classes)
            return
        splits = list(about.cv) if isinstance(about.cv, Iterable) else []
        if hasattr(about.cv, "split"):
            apart = given.groups.labels(len(given.y)) if given.clusters is None else given.clusters
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The groups parameter is ignored")
                splits = list(about.cv.split(given.X, given.y, apart))
        for train, test in splits:
            # Groups are restricted to rows in ascending order, which splits of the user's own may not be in.
            train, test = np.sort(train), np.sort(test)
            yield keep_classes(train, test, given.y) if classes else (train, test)

    def _fold(self, train: Indices, test: Indices) -> "Fold":
        if self.store is None:
            return MemoryFold(self.given.take(train), self.given.take(test))
        return StoredFold(self.store, train, test)

    def _add(self, totals: Floats, jobs: list[Any]) -> list[Any]:
        """Fit all jobs in every fold, add the held-out losses, and return the solutions."""
        tasks = (
            delayed(_fit_fold)(self.rough, self._fold(train, test), self.about.scoring, job)
            for (train, test), job in zip(self.splits, jobs, strict=True)
        )
        found = Parallel(n_jobs=self.about.n_jobs, verbose=self.about.verbose)(tasks)
        for (_, test), (losses, _), (alphas, blends, _) in zip(self.splits, found, jobs, strict=True):
            columns = [
                int(np.flatnonzero((self.cells[0] == alpha) & (self.cells[1] == t))[0])
                for alpha in alphas
                for t in blends
            ]
            totals[np.ix_(test, np.array(columns))] += losses
        return [solutions for _, solutions in found]


class Fold(Protocol):
    """The training and the held-out rows of a fold."""

    def read(self, model: GroupDROEstimator) -> Task:
        """Return the training rows as a task of a model."""
        ...

    def losses(self, model: GroupDROEstimator, loss: Any) -> Floats:
        """Return the losses of a model on the held-out rows."""
        ...


@dataclass(frozen=True, eq=False)
class MemoryFold:
    """A fold of rows in memory."""

    train: GivenRows
    test: GivenRows

    def read(self, model: GroupDROEstimator) -> Task:
        """Return the training rows as a task of a model."""
        return model._read_rows(self.train)

    def losses(self, model: GroupDROEstimator, loss: Any) -> Floats:
        """Return the losses of a model on the held-out rows."""
        return row_losses(model, self.test.X, self.test.y, loss, offset=self.test.offset)


@dataclass(frozen=True, eq=False)
class StoredFold:
    """A fold of a store, whose rows are never in memory together."""

    store: GroupedStore
    train: Indices
    test: Indices

    def read(self, model: GroupDROEstimator) -> Task:
        """Return the training rows as a task of a model."""
        return model._read_store(self.store, self.train)

    def losses(self, model: GroupDROEstimator, loss: Any) -> Floats:
        """Return the losses of a model on the held-out rows, read in parts."""
        given = self.store.given()
        step = rows_within(_AT_ONCE, self.store.n_features)
        parts = (given.take(self.test[start : start + step]) for start in range(0, len(self.test), step))
        with nameless(given.X):
            return np.concatenate([row_losses(model, part.X, part.y, loss, offset=part.offset) for part in parts])


class FoldFits:
    """Fits on the training rows of a fold, which are read once, and their losses on its held-out rows.

    Parameters
    ----------
    rough : GroupDROClassifier or GroupDRORegressor
        The estimator, which is not changed.
    fold : Fold
        Both parts of the rows.
    scoring : object, optional
        Loss of a row, by default that of the estimator.
    """

    def __init__(self, rough: GroupDROEstimator, fold: Fold, scoring: Any = None):
        # Ties matter little among rough fits, and the penalty and the blend are chosen by their losses.
        self._model, self._fold = clone(rough).set_params(break_ties=False), fold
        self._loss = "auto" if scoring is None else scoring
        self._task = fold.read(self._model)

    def fit(self, alpha: float, robustness: float, start: tuple[Any, Any]) -> tuple[Floats, tuple[Floats, Floats]]:
        """Fit from a start.

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

        Raises
        ------
        KeyboardInterrupt
            If the fit was interrupted: a search cannot choose among models of which some are half fitted.
        """
        model = self._model
        result = model._solve(self._task, float(alpha), start, robustness=float(robustness)).result
        if result.interrupted:
            raise KeyboardInterrupt
        for name, value in model._attributes(result.w).items():
            setattr(model, name, value)
        return self._fold.losses(model, self._loss), (result.w, result.q)


def _fit_fold(rough: GroupDROEstimator, fold: Fold, scoring: Any, job: Any) -> tuple[Floats, list[Any]]:
    """Return a fold's held-out losses for each penalty and robustness, and the solution for each penalty."""
    alphas, blends, starts = job
    losses, solutions = [], []
    with warnings.catch_warnings():
        for category in (MissingGroupsWarning, SmallGroupWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", category=category)
        fits = FoldFits(rough, fold, scoring)
        last: Any = (None, None)
        for k, alpha in enumerate(alphas):
            last = last if starts is None else starts[k]
            for t in blends:
                found, last = fits.fit(alpha, t, last)
                losses.append(found)
            solutions.append(last)
    return np.stack(losses, axis=1), solutions
