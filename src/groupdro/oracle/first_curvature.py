"""The initial Hessian of quasi-Newton steps: a diagonal, plus a few outstanding directions."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh
from sklearn.utils.extmath import randomized_svd

from groupdro.data import Draw
from groupdro.oracle.curvature import curvature_rows
from groupdro.oracle.evaluation import Evaluation
from groupdro.oracle.oracle import Oracle
from groupdro.problem import Problem
from groupdro.problem.linear_model import LinearModel
from groupdro.utils.threads import map_threads
from groupdro.utils.types import Array, Floats, Indices

__all__ = ["CurvatureProducts", "FirstCurvature", "column_curvature", "outstanding_directions"]

_MOST_DIRECTIONS = 64
_STANDING_OUT = 2.0  # factor over the largest curvature that pure noise would show
_LEAST_SHARE = 1e-3  # of the mean curvature of a column; columns below it are treated alike
_MANY_COLUMNS = 1000  # columns from which the search uses single precision
_PIECE_VALUES = 1 << 20  # entries of gradients worth a thread
_CACHED_VALUES = 1 << 19  # entries of gradients, 4 MiB, that are copied to let the intercept follow
_POWERS = 2  # power iterations in the search for directions


@dataclass(frozen=True, eq=False)
class FirstCurvature:
    """A Hessian B = diag(diagonal) + directions directions', the same for every output.

    A free intercept is taken at the mean of the features, where it is nearly decoupled from the coefficients.

    Attributes
    ----------
    model : LinearModel
        The shape of w.
    diagonal : ndarray of shape (n_features,)
        Curvature along each column, minus that of the directions. It has few distinct values, so that products with the
        inverse of B + bend I cost almost nothing once they are known for each value.
    directions : ndarray of shape (n_features, r)
        Outstanding directions, each scaled by the square root of its curvature.
    centre : ndarray of shape (n_features,)
        Mean of the features; unused without an intercept.
    free : float
        Curvature along the intercept.
    """

    model: LinearModel
    diagonal: Floats
    directions: Floats
    centre: Floats
    free: float

    def split(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return slopes along the features and along the intercept, as views.

        Shapes are (n_rows, n_features, n_outputs) and (n_rows, 0 or 1, n_outputs).
        """
        model = self.model
        shaped = rows.reshape(len(rows), model.n_features + model.fit_intercept, model.n_outputs)
        return shaped[:, : model.n_features], shaped[:, model.n_features :]

    def following(self, features: Floats, free: Floats, columns: slice | Indices) -> Floats:
        """Return slopes along some columns while the intercept follows, given the slopes along all and along it."""
        own = features[:, columns]
        if not self.model.fit_intercept:
            return own
        moved = self.centre[columns, None] * free
        return np.subtract(own, moved, out=moved)

    def solve(self, gradient: Floats, bend: float) -> Floats:
        """Return the inverse of B + bend I, times one gradient (flattened as w is)."""
        split = self.split(gradient[None])
        features, free = self.following(*split, slice(None))[0], split[1][0]
        diagonal = (self.diagonal + bend)[:, None]
        E = self.directions
        out = features / diagonal
        if E.size:
            scaled = E / diagonal
            inner = np.eye(E.shape[1]) + E.T @ scaled
            out -= scaled @ cho_solve(cho_factor(inner, check_finite=False), scaled.T @ features, check_finite=False)
        if self.model.fit_intercept:
            out = np.vstack([out, free / self.free - self.centre @ out])
        return out.ravel()


class CurvatureProducts:
    """Products of gradients with each other in the inverse of B + bend I, for any bend.

    Parameters
    ----------
    first : FirstCurvature
        The Hessian B.
    rows, more : ndarray of shape (n, w.size), (k, w.size)
        Gradients, in two parts to avoid copying many next to few.
    """

    def __init__(self, first: FirstCurvature, rows: Floats, more: Floats):
        parts = [first.split(rows), first.split(more)]
        E = first.directions
        self.free = _gram([free for _, free in parts]) / first.free
        self.levels, level_of = np.unique(first.diagonal, return_inverse=True)
        pieces = self._pieces(level_of, rows.size + more.size)

        n = len(rows) + len(more)
        L = len(self.levels)
        C = first.model.n_outputs

        def products(k: int) -> tuple[Floats, Floats, Floats]:
            columns = pieces[k][1]
            gram = np.zeros((n, n))
            along = np.zeros((n, E.shape[1], C))
            for few in _cut(columns, max(1, _CACHED_VALUES // (n * C))):
                here = [first.following(features, free, few) for features, free in parts]
                gram += _gram(here)
                if E.size:
                    along += np.concatenate([E[few].T @ part for part in here])
            return gram, along, E[columns].T @ E[columns]

        self.grams = np.zeros((L, n, n))
        self.along = np.zeros((L, n, E.shape[1], C))
        self.inner = np.zeros((L, E.shape[1], E.shape[1]))
        for (level, _), (gram, along, inner) in zip(pieces, map_threads(products, len(pieces)), strict=True):
            self.grams[level] += gram
            if E.size:
                self.along[level] += along
                self.inner[level] += inner

    def _pieces(self, level_of: Indices, n_values: int) -> list[tuple[int, Indices]]:
        """Return ranges of columns of one level each, split for threads in a way that depends only on the data."""
        n_cuts = max(1, min(8, n_values // _PIECE_VALUES))
        if len(self.levels) == 1:
            ends = np.linspace(0, len(level_of), n_cuts + 1).astype(int).tolist()
            return [(0, np.arange(*ends_of)) for ends_of in itertools.pairwise(ends)]
        by_level = [np.flatnonzero(level_of == level) for level in range(len(self.levels))]
        return list(enumerate(by_level))

    def at(self, bend: float) -> Floats:
        """Return the matrix of all products."""
        shares = 1.0 / (self.levels + bend)
        products = np.tensordot(shares, self.grams, axes=1) + self.free
        if self.along.size:
            along = np.tensordot(shares, self.along, axes=1)
            n, r, _ = along.shape
            inner = np.eye(r) + np.tensordot(shares, self.inner, axes=1)
            flat = along.transpose(1, 0, 2).reshape(r, -1)
            solved = cho_solve(cho_factor(inner, check_finite=False), flat, check_finite=False)
            solved = solved.reshape(r, n, -1).transpose(1, 0, 2)
            products -= along.reshape(n, -1) @ solved.reshape(n, -1).T
        return products


def _cut(columns: Indices, size: int) -> Iterator[slice | Indices]:
    """Return ranges of columns of at most a size, as slices where columns are consecutive."""
    for start in range(0, len(columns), size):
        few = columns[start : start + size]
        consecutive = int(few[-1]) - int(few[0]) == len(few) - 1
        yield slice(int(few[0]), int(few[-1]) + 1) if consecutive else few


def _gram(parts: list[Floats]) -> Floats:
    """Return the inner products of all vectors in both parts, flattened."""
    a, b = (part.reshape(len(part), int(np.prod(part.shape[1:]))) for part in parts)
    across = a @ b.T
    return np.block([[a @ a.T, across], [across.T, b @ b.T]])


def column_curvature(problem: Problem) -> Floats:
    """Return the largest curvature along each column, of centred features if an intercept is free."""
    squares = problem.data.column_squares
    if problem.fit_intercept:
        squares = np.maximum(squares - problem.data.column_means**2, 0.0)
    return _levels(problem.curvature * squares)


def outstanding_directions(oracle: Oracle, draw: Draw, at: Evaluation) -> tuple[Floats, Floats] | None:
    """Return the diagonal and the directions of a `FirstCurvature` from drawn members, or None if there are none.

    From noise alone, a sample of n rows of d features shows curvatures of up to (1 + sqrt(d / n))^2 times the mean
    (Marchenko and Pastur). Directions that exceed this clearly count as outstanding. Rows must be combinable.
    """
    problem = oracle.problem
    here, weights = curvature_rows(oracle, draw, at)
    X, weights = problem.data.gathered(draw, here.dense(), weights)
    if problem.fit_intercept:
        X = X - problem.data.column_means.astype(X.dtype)
    sample = X * np.sqrt(weights).astype(X.dtype)[:, None]
    n, d = sample.shape
    n_directions = min(_MOST_DIRECTIONS, n - 1, d - 1)
    unit = float(np.abs(sample).max(initial=0.0))
    if n_directions < 1 or not (0.0 < unit < np.inf):
        return None
    # With many columns the products dominate the time; with few, small curvatures next to large ones matter.
    sample = (sample / unit).astype(np.float32 if d >= _MANY_COLUMNS else np.float64)
    squares = unit**2 * np.square(sample).sum(axis=0, dtype=np.float64)
    total = float(squares.sum())
    noise = _STANDING_OUT * (1.0 + np.sqrt(d / n)) ** 2
    # Try one direction first: if it does not stand out, none does. Columns are taken in units of their own size, which
    # the diagonal already accounts for.
    own = np.sqrt(np.square(sample).sum(axis=0, dtype=np.float64))
    largest = float(_leading(sample / np.where(own > 0, own, 1.0).astype(sample.dtype), 1)[0][0])
    if not largest > noise * (np.count_nonzero(own) - largest) / d:
        return None
    curvatures, transposed = _leading(sample, n_directions)
    curvatures = unit**2 * curvatures
    keep = curvatures > noise * max(total - float(curvatures.sum()), 0.0) / (d - n_directions)
    if not keep.any():
        return None
    curvatures = curvatures[keep]
    orthogonal = np.linalg.qr(transposed[keep].T.astype(np.float64))[0]
    directions = orthogonal * np.sqrt(curvatures)
    left = np.maximum(squares - np.square(directions).sum(axis=1), 0.0)
    # The next directions after the last have nearly the same curvature, and are not aligned with columns.
    next_one = 0.3 * float(curvatures[-1]) if keep.all() else float(left.mean())
    return _levels(np.maximum(left, next_one), least=_LEAST_SHARE * total / d), directions


def _leading(sample: Array, n_directions: int) -> tuple[Floats, Array]:
    """Return the largest squared singular values, descending, and their directions as rows."""
    n, d = sample.shape
    if d <= n and sample.dtype == np.float64:  # four times as fast as a randomized search, and exact
        values, vectors = eigh(sample.T @ sample, subset_by_index=(d - n_directions, d - 1), check_finite=False)
        return np.maximum(values[::-1], 0.0), vectors.T[::-1]
    n_oversamples = 10 if n_directions > 1 else 4
    _, sizes, transposed = randomized_svd(
        sample, n_directions, n_oversamples=n_oversamples, n_iter=_POWERS, random_state=0
    )
    return np.square(sizes.astype(np.float64)), transposed


def _levels(curvatures: Floats, least: float = 0.0) -> Floats:
    """Round to powers of two, from a share of the mean upwards."""
    mean = float(curvatures.mean()) if curvatures.size else 0.0
    least = max(least, _LEAST_SHARE * mean)
    return np.asarray(2.0 ** np.round(np.log2(np.maximum(curvatures, least if least > 0 else 1.0))))
