"""The curvature of F(., q), estimated from drawn members: what a solver's metric is made of."""

from typing import Any

import numpy as np
import scipy.linalg

from groupdro.data import Draw
from groupdro.problem.group_risk import GroupRisk
from groupdro.problem.records import Evaluation, scale_rows
from groupdro.utils.types import Floats

__all__ = ["curvature_centre", "curvature_product", "feature_curvature", "leading_curvature"]


def feature_curvature(problem: GroupRisk, draw: Draw, at: Evaluation) -> Floats:
    """Return an estimate of the Hessian of F(., q) at an evaluation, from drawn members.

    For several outputs, whose Hessian couples classes, the mean over classes of the diagonal blocks. The
    intercept, if any, is the last row and column.
    """
    X, weights = _curvature_rows(problem, draw, at)
    if problem.fit_intercept:
        X = np.hstack([X, np.ones((len(X), 1))])
    hessian = np.ascontiguousarray((X * weights[:, None]).T @ X, dtype=np.float64)
    problem.data.add_up(hessian)
    return hessian


def leading_curvature(
    problem: GroupRisk, draw: Draw, at: Evaluation, n_directions: int
) -> tuple[Floats, Floats, float, Floats]:
    """Return the largest curvatures of F(., q) along directions of the features, these, the rest's mean, the centre.

    From drawn members; for several outputs, of the mean over classes as in `feature_curvature`. With an intercept,
    the curvature that is left when the intercept follows the coefficients: of features less their centre, which is
    their mean weighted by curvature; without one the centre is empty.
    """
    X, weights = _gathered(problem, draw, at)
    centre = np.empty(0)
    if problem.fit_intercept:
        centre = np.asarray(weights @ X, dtype=np.float64) / max(float(weights.sum()), 1e-300)
        X = X - centre.astype(X.dtype)
    scaled = X * np.sqrt(weights).astype(X.dtype)[:, None]
    # The smaller side's Gram matrix has the same eigenvalues; rows are usually fewer than features here.
    gram = np.asarray(scaled @ scaled.T, dtype=np.float64)
    n_directions = min(n_directions, len(gram))
    values, vectors = scipy.linalg.eigh(gram, subset_by_index=[len(gram) - n_directions, len(gram) - 1])
    keep = values > 1e-12 * values[-1]
    values, vectors = values[keep][::-1], vectors[:, keep][:, ::-1]
    directions = np.asarray(scaled.T @ vectors.astype(scaled.dtype), dtype=np.float64) / np.sqrt(values)
    directions, _ = np.linalg.qr(directions)  # float32 products leave them orthogonal to few digits
    left = max(float(np.trace(gram)) - float(values.sum()), 0.0)
    return values, directions, left / max(problem.data.n_features - len(values), 1), centre


def curvature_centre(problem: GroupRisk, draw: Draw, at: Evaluation) -> Floats:
    """Return the mean of the features weighted by curvature, from drawn members.

    An intercept taken there does not bend with the coefficients.
    """
    X, weights = _curvature_rows(problem, draw, at)
    moment, mass = np.asarray(weights @ X, dtype=np.float64), np.array([weights.sum()])
    problem.data.add_up(moment, mass)
    return moment / max(float(mass[0]), 1e-300)


def _gathered(problem: GroupRisk, draw: Draw, at: Evaluation) -> tuple[Any, Floats]:
    """Return all drawn rows and their weights, wherever they are stored."""
    X, weights = _curvature_rows(problem, draw, at)
    data, n = problem.data, len(draw.members)
    if data.n_workers == 1:
        return X, weights
    here = data.here(draw)
    all_rows, all_weights = np.zeros((n, data.n_features)), np.zeros(n)
    all_rows[here], all_weights[here] = X, weights
    data.add_up(all_rows, all_weights)
    return all_rows.astype(X.dtype), all_weights


def _curvature_rows(problem: GroupRisk, draw: Draw, at: Evaluation) -> tuple[Any, Floats]:
    """Return drawn rows and the weight of each in the Hessian of the features."""
    n_drawn, draw = len(draw.members), problem.data.own(draw)
    rows = problem.data.rows_of(draw.members)
    X = problem.data.rows.take(rows)
    X = np.asarray(X.todense()) if hasattr(X, "todense") else X
    curvature = problem.loss.curvature(at.margins[rows], problem.data.y[rows])
    if curvature.ndim == 2:
        curvature = (curvature * (1.0 - curvature)).mean(axis=1)
    problem.counters.add(grad_evals=n_drawn, grad_evals_paper=n_drawn, row_reads=n_drawn)
    return X, curvature * draw.weights * at.q[draw.groups]


def curvature_product(problem: GroupRisk, draw: Draw, at: Evaluation, direction: Floats) -> Floats:
    """Return an estimate of the Hessian of F(., q) at an evaluation times a direction, from drawn members."""
    n_drawn, draw = len(draw.members), problem.data.own(draw)
    rows = problem.data.rows_of(draw.members)
    X = problem.data.rows.take(rows)
    curvature = problem.loss.curvature(at.margins[rows], problem.data.y[rows])
    moved = X @ problem.coef(direction) + (direction[-1] if problem.fit_intercept else 0.0)
    if moved.ndim == 2:  # the second derivative of a class model is diag(p) - p p'
        bent = curvature * (moved - (curvature * moved).sum(axis=1, keepdims=True))
    else:
        bent = curvature * moved
    weights = draw.weights * at.q[draw.groups]
    weighted = scale_rows(bent, weights)
    out = np.zeros(problem.shape)
    problem.coef(out)[...] = X.T @ weighted
    if problem.fit_intercept:
        problem.intercept(out)[...] = weighted.sum(axis=0)
    problem.data.add_up(out)
    problem.counters.add(grad_evals=n_drawn, grad_evals_paper=n_drawn, row_reads=n_drawn)
    return out
