"""Dual variables of the rows: sums over them, and balancing them for a free intercept."""

from dataclasses import dataclass

import numpy as np

from groupdro.oracle.evaluation import Evaluation
from groupdro.oracle.intercept import best_shift
from groupdro.oracle.oracle import Oracle
from groupdro.problem import Problem
from groupdro.problem.linear_model import term_sizes
from groupdro.utils.types import Floats, Mask

__all__ = ["DualValue", "balanced_slopes", "dual_value", "followed_slopes", "slopes_at"]

_EPS = float(np.finfo(np.float64).eps)
_FARTHEST = 1.0  # largest step of the intercept for which slopes are treated as linear


@dataclass(frozen=True)
class DualValue:
    """Weighted sums over the rows at given duals.

    Attributes
    ----------
    conjugates, sizes : float
        Sum of the loss's conjugates, and of their absolute values, which shows how much cancels.
    duals : float
        Sum of the duals' absolute values.
    mass : float
        The same, weighted by the row norms, as in `Evaluation`.
    """

    conjugates: float
    sizes: float
    duals: float
    mass: float


def dual_value(problem: Problem, duals: Floats, row_weights: Floats) -> DualValue:
    """Return the weighted sum of the conjugates of duals, and the sums that scale its rounding error."""
    carried = row_weights > 0  # a row without weight adds nothing
    kept: Mask | slice = slice(None) if carried.all() else carried  # millions of rows need no copies
    weights = row_weights[kept]

    def total(values: Floats) -> float:
        # NumPy's pairwise sum: BLAS products are running sums and lose more digits than the certificate allows for.
        return float((weights * values).sum())

    conjugates = problem.loss.conjugate(duals, problem.data.y)[kept]
    offsets = problem.data.row_offsets
    if offsets.size:
        # The conjugate of l(u + o) is that of l minus the dual times o, rounded up, because the terms may cancel.
        terms = (duals * offsets).reshape(len(duals), -1)[kept]
        conjugates += 4.0 * _EPS * np.abs(terms).sum(axis=1) - terms.sum(axis=1)
    parts = [total(conjugates), total(np.abs(conjugates))]
    sums = np.array([*parts, *(total(term_sizes(duals, norms)[kept]) for norms in (1.0, problem.row_norms))])
    problem.data.add_up(sums)
    return DualValue(*map(float, sums))


def slopes_at(problem: Problem, at: Evaluation) -> Floats:
    """Return the slopes of the rows' losses at an evaluation."""
    return problem.loss.value_and_slope(_margins(at), problem.data.y)[1]


def balanced_slopes(oracle: Oracle, at: Evaluation, row_weights: Floats) -> Floats:
    """Return slopes at the optimal intercept for the weights, corrected to a weighted sum of zero."""
    problem = oracle.problem
    loss = problem.loss
    y = problem.data.y

    def total(sums: Floats) -> Floats:
        problem.data.add_up(sums)
        return sums

    _, slopes, n_evals = best_shift(loss, at.margins, y, row_weights, total)
    oracle.count_shifts(n_evals)
    return loss.balance(slopes, y, row_weights, total)


def _margins(at: Evaluation) -> Floats:
    """Return the outputs in float64: slopes in single precision would not be exact distributions."""
    return at.margins.astype(np.float64, copy=False)


def followed_slopes(problem: Problem, at: Evaluation, row_weights: Floats) -> tuple[Floats, Floats, float] | None:
    """Return balanced slopes and their combination of the rows, if an evaluation determines both without a pass.

    A step -t of the intercept changes the slopes a by -t c, where c are the rows' curvatures. The pass has combined
    both with the rows, so the combination is known for the t at which the weighted sum of a - t c is zero. The third
    value scales the rounding error, like `Evaluation.mass`, and covers the final correction of the sum.
    """
    C = problem.model.n_outputs
    loss = problem.loss
    y = problem.data.y
    if at.bend is None or not np.isfinite(at.bend).all():
        return None
    along = at.bend[-C:]
    slope = problem.intercept(at.gradient).ravel()
    t = np.linalg.lstsq(along, slope, rcond=1e-12)[0]
    if not np.abs(t).max() <= _FARTHEST:
        return None
    shift = np.broadcast_to(t[0] if C == 1 else t, at.margins.shape)
    bent = loss.curvature_product(at.margins, y)(shift)
    duals = slopes_at(problem, at)
    duals -= bent

    def total(sums: Floats) -> Floats:
        problem.data.add_up(sums)
        return sums

    repaired = loss.balance(duals, y, row_weights, total)
    sums = [(term_sizes(part, problem.row_norms) * row_weights).sum() for part in (bent, repaired - duals)]
    mass, repair = total(np.array(sums))
    gradient = problem.coef(at.gradient) - (at.bend[:-C] @ t).reshape(problem.coef(at.gradient).shape)
    unit = float(np.finfo(np.float64).eps) * problem.data.rounding
    return repaired, gradient, at.mass + float(mass) + float(repair) / unit
