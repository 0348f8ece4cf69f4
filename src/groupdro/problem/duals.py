"""Dual variables of the rows: sums over them, and their repair for a free intercept."""

from dataclasses import dataclass

import numpy as np

from groupdro.problem.group_risk import GroupRisk
from groupdro.problem.intercept import best_shift
from groupdro.problem.linear_model import term_sizes
from groupdro.problem.records import Evaluation
from groupdro.utils.types import Floats

__all__ = ["DualValue", "balanced_slopes", "dual_value", "slopes_at"]


@dataclass(frozen=True)
class DualValue:
    """Weighted sums over the rows at given duals.

    Attributes
    ----------
    conjugates, sizes : float
        Of the loss's conjugates, and of their absolute values: how far terms cancel.
    duals : float
        Of the duals' absolute values.
    mass : float
        The same with each row's norm, as in `Evaluation`.
    """

    conjugates: float
    sizes: float
    duals: float
    mass: float


def dual_value(problem: GroupRisk, duals: Floats, row_weights: Floats) -> DualValue:
    """Return the weighted sum of the conjugates of duals, and what scales the rounding of such sums."""
    carried = row_weights > 0  # a row without weight adds nothing, whatever its dual
    conjugates, weights = problem.loss.conjugate(duals, problem.data.y)[carried], row_weights[carried]
    sizes, terms = (term_sizes(duals, norms)[carried] for norms in (1.0, problem.row_norms))
    # Not by products: those of BLAS are running sums, where NumPy's own lose less than the certificate allows for.
    sums = np.array([(weights * part).sum() for part in (conjugates, np.abs(conjugates), sizes, terms)])
    problem.data.add_up(sums)
    return DualValue(*map(float, sums))


def slopes_at(problem: GroupRisk, at: Evaluation) -> Floats:
    """Return the slopes of the rows' losses at an evaluation."""
    return problem.loss.value_and_slope(at.margins, problem.data.y)[1]


def balanced_slopes(problem: GroupRisk, at: Evaluation, row_weights: Floats) -> Floats:
    """Return slopes at the intercept that is best for the weights, repaired to a weighted sum of zero."""
    loss, y = problem.loss, problem.data.y

    def total(sums: Floats) -> Floats:
        problem.data.add_up(sums)
        return sums

    margins = at.margins + best_shift(loss, at.margins, y, row_weights, total)
    return loss.balance(loss.value_and_slope(margins, y)[1], y, row_weights, total)
