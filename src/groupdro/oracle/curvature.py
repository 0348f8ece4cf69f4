"""The curvature of F(., q), estimated from drawn members, for the metric of a solver."""

import numpy as np

from groupdro.data import Draw
from groupdro.data.rows import Rows
from groupdro.oracle.evaluation import Evaluation
from groupdro.oracle.groups import output_curvatures
from groupdro.oracle.oracle import Oracle
from groupdro.problem.linear_model import scale_rows
from groupdro.utils.eigen import largest_eigenpairs
from groupdro.utils.types import Floats

__all__ = ["curvature_centre", "curvature_product", "curvature_rows", "feature_curvature", "leading_curvature"]


def feature_curvature(oracle: Oracle, draw: Draw, at: Evaluation) -> Floats:
    """Return an estimate of the Hessian of F(., q) at an evaluation, from drawn members.

    With several outputs, whose Hessian couples the classes, this is the mean over classes of the diagonal blocks. The
    intercept, if any, is the last row and column.
    """
    problem = oracle.problem
    X, weights = curvature_rows(oracle, draw, at)
    hessian = problem.model.gram(X, weights)
    problem.data.add_up(hessian)
    return hessian


def leading_curvature(
    oracle: Oracle, draw: Draw, at: Evaluation, n_directions: int
) -> tuple[Floats, Floats, float, Floats]:
    """Return the largest curvatures of F(., q), their directions, the mean of the remaining ones, and the centre.

    They are estimated from drawn members, for several outputs as in `feature_curvature`. With an intercept, the
    curvature is that of the centred features, which remains when the intercept follows the coefficients. The centre is
    the curvature-weighted mean of the features; it is empty without an intercept.
    """
    problem = oracle.problem
    here, weights = curvature_rows(oracle, draw, at)
    X, weights = problem.data.gathered(draw, here.dense(), weights)
    centre = np.empty(0)
    if problem.fit_intercept:
        centre = np.asarray(weights @ X, dtype=np.float64) / max(float(weights.sum()), 1e-300)
        X = X - centre.astype(X.dtype)
    scaled = X * np.sqrt(weights).astype(X.dtype)[:, None]
    # The smaller side's Gram matrix has the same eigenvalues; rows are usually fewer than features here.
    gram = scaled @ scaled.T
    values, vectors = largest_eigenpairs(gram, min(n_directions, len(gram)))
    keep = values > 1e-12 * values[-1]
    values = values[keep][::-1]
    vectors = vectors[:, keep][:, ::-1]
    directions = np.asarray(scaled.T @ vectors.astype(scaled.dtype), dtype=np.float64) / np.sqrt(values)
    directions, _ = np.linalg.qr(directions)  # after float32 products they are orthogonal to few digits only
    left = max(float(np.trace(gram, dtype=np.float64)) - float(values.sum()), 0.0)
    return values, directions, left / max(problem.data.n_features - len(values), 1), centre


def curvature_centre(oracle: Oracle, draw: Draw, at: Evaluation) -> Floats:
    """Return the curvature-weighted mean of the features, from drawn members.

    An intercept taken there is decoupled from the coefficients in the Hessian.
    """
    problem = oracle.problem
    X, weights = curvature_rows(oracle, draw, at)
    moment = X.rmatvec(weights)
    mass = np.array([weights.sum()])
    problem.data.add_up(moment, mass)
    return moment / max(float(mass[0]), 1e-300)


def curvature_rows(oracle: Oracle, draw: Draw, at: Evaluation) -> tuple[Rows, Floats]:
    """Return the locally stored drawn rows, and the weight of each in the Hessian of the features."""
    problem = oracle.problem
    oracle.count_draw(draw)
    draw = problem.data.own(draw)
    rows = problem.data.rows_of(draw.members)
    curvature = output_curvatures(problem.loss, at.margins[rows], problem.data.y[rows])
    mean = curvature if curvature.ndim == 1 else curvature.mean(axis=1)
    return problem.data.rows.take(rows), mean * draw.weights * at.q[draw.groups]


def curvature_product(oracle: Oracle, draw: Draw, at: Evaluation, direction: Floats) -> Floats:
    """Return an estimate of the Hessian of F(., q) at an evaluation times a direction, from drawn members."""
    problem = oracle.problem
    oracle.count_draw(draw)
    draw = problem.data.own(draw)
    rows = problem.data.rows_of(draw.members)
    X = problem.data.rows.take(rows)
    times = problem.loss.curvature_product(at.margins[rows], problem.data.y[rows])
    bent = times(problem.model.outputs(X, direction))
    out = problem.model.gradient(X, scale_rows(bent, draw.weights * at.q[draw.groups]))
    problem.data.add_up(out)
    return out
