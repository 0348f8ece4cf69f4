"""Lower bounds from dual variables: one number per row, or per row and class.

For group weights q that give row r the weight v_r, and any duals a_r in the domain of the loss's conjugate,

    min_w F(w, q)  >=  - sum_r v_r loss*(a_r) - q.baseline
                       + min over the domain of <sum_r v_r a_r x_r, w> + penalty.

The slopes at a point give its linearisation bound; averages of duals over several points give a better one. With a free
intercept the bound is finite only for duals whose weighted sum is exactly zero.
"""

import numpy as np
from scipy.optimize import minimize_scalar

from groupdro.problem import Domain, GroupRisk
from groupdro.problem.duals import dual_value
from groupdro.problem.output_ball import OutputBall
from groupdro.utils.types import Floats

__all__ = ["best_scaled_bound", "fenchel_bound", "rounding_slack", "support_slack"]


def rounding_slack(problem: GroupRisk, mass: float, reach: float, scale: float) -> float:
    """Bound the amount by which rounding may have raised a lower bound.

    An error in a sum of slopes times rows shifts the bound by that error times the distance at which the bound is
    taken. Sums of losses are compensated or pairwise, so their relative error is a few units of rounding.
    """
    moved = gradient_error(problem, mass)
    return (moved * reach if moved else 0.0) + 32.0 * float(np.finfo(np.float64).eps) * abs(scale)


def gradient_error(problem: GroupRisk, mass: float) -> float:
    """Bound the error of a sum of slopes times rows, given the mass of its terms."""
    return float(np.finfo(np.float64).eps) * mass * problem.rounding


def support_slack(problem: GroupRisk, domain: Domain | OutputBall, gradient: Floats, mass: float) -> float:
    """Bound the amount by which rounding of a gradient may have raised the domain's support.

    The error counts at the minimiser of the exact gradient, which with a weak penalty may be far from that of the
    computed one.
    """
    return rounding_slack(problem, mass, domain.reach_near(gradient, gradient_error(problem, mass)), 0.0)


def fenchel_bound(
    problem: GroupRisk,
    domain: Domain | OutputBall,
    q: Floats,
    row_weights: Floats,
    duals: Floats,
    combined: Floats,
    mass: float = 0.0,
) -> float:
    """Return the lower bound given by dual variables.

    Parameters
    ----------
    problem : GroupRisk
        The problem.
    domain : Domain or OutputBall
        The problem's domain, or a smaller set known to contain the solution.
    q : ndarray of shape (n_groups,)
        Group weights.
    row_weights : ndarray of shape (n_rows,)
        ``problem.data.row_weights(q)``.
    duals : ndarray, shaped as the margins
        Dual variables. With a free intercept, their weighted sum must be zero.
    combined : ndarray, shaped as the coefficients
        Weighted sum of duals times rows.
    mass : float
        `Evaluation.mass` of that sum, if it was computed in less than float64.

    Returns
    -------
    float
        A lower bound on min_w F(w, q), minus the slack for rounding; minus infinity outside the conjugate's domain.
    """
    at = dual_value(problem, duals, row_weights)
    if not np.isfinite(at.conjugates):
        return -np.inf
    baseline = q * problem.baseline.upper
    bound = -at.conjugates - float(baseline.sum()) + domain.support(combined)
    scale = at.sizes + float(np.abs(baseline).sum())
    slack = support_slack(problem, domain, combined, max(at.mass, mass))
    return bound - slack - rounding_slack(problem, 0.0, 0.0, scale)


def best_scaled_bound(
    problem: GroupRisk,
    domain: Domain | OutputBall,
    q: Floats,
    row_weights: Floats,
    duals: Floats,
    combined: Floats,
    mass: float = 0.0,
) -> float:
    """Return the best bound of c times the duals over c in [0, 1]. Scaling rescues duals that overshoot."""

    def bound(c: float) -> float:
        return fenchel_bound(problem, domain, q, row_weights, c * duals, c * combined, mass)

    # The bound is concave in c, and any c gives a valid bound, so a rough maximiser is enough. Where rounding has put
    # duals outside the conjugate's domain the bound is minus infinity, and the search may subtract infinities.
    with np.errstate(invalid="ignore"):
        inner = minimize_scalar(lambda c: -bound(c), bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-4})
    return max(bound(1.0), bound(float(inner.x)), bound(0.0))
