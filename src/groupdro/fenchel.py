"""Lower bounds from dual variables: one number (or one a class) for each row.

For group weights q that give row r the weight v_r, and any duals a_r in the domain of the loss's conjugate,

    min_w F(w, q)  >=  - sum_r v_r loss*(a_r) - q.references + min over the domain of <sum_r v_r a_r x_r, w> + penalty.

The slopes at a point give its linearisation bound; averages of duals over several points give more. With a free
intercept the bound is finite only for duals whose weighted sum is exactly zero.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from groupdro.problem import Domain, Evaluation, GroupRisk

__all__ = ["best_scaled_bound", "centred_margins", "fenchel_bound", "intercept_bound", "rounding_slack"]

Floats = NDArray[np.float64]

_CENTRING_STEPS = 60


def rounding_slack(problem: GroupRisk, slope_mass: float, reach: float, scale: float) -> float:
    """Bound what rounding may have added to a lower bound.

    A sum of slopes times rows is wrong by a few units of rounding of the sum of their sizes, which moves a bound by
    that much times the distance at which the bound is taken; sums of losses are wrong relative to their own size.
    """
    return 8.0 * float(np.finfo(np.float64).eps) * (slope_mass * problem.max_row_norm * reach + abs(scale))


def fenchel_bound(
    problem: GroupRisk, domain: Domain, q: Floats, row_weights: Floats, duals: Floats, combined: Floats
) -> float:
    """Return the bound of the given duals.

    Parameters
    ----------
    problem : GroupRisk
        The problem.
    domain : Domain
        The problem's domain, or a smaller one that is known to hold the solution.
    q : ndarray of shape (n_groups,)
        Group weights.
    row_weights : ndarray of shape (n_rows,)
        ``problem.data.row_weights(q)``.
    duals : ndarray, shaped as the margins
        Dual variables. With a free intercept, their weighted sum must be zero.
    combined : ndarray, shaped as the coefficients
        Weighted sum of duals times rows.

    Returns
    -------
    float
        A lower bound of min_w F(w, q), less the slack for rounding; minus infinity outside the conjugate's domain.
    """
    conjugates = problem.loss.conjugate(duals, problem.data.y)
    carried = row_weights > 0  # a row without weight adds nothing, whatever its dual
    value = -float(row_weights[carried] @ conjugates[carried])
    if not np.isfinite(value):
        return -np.inf
    mass = float(np.abs(duals[carried]).reshape(int(carried.sum()), -1).sum(axis=1) @ row_weights[carried])
    bound = value - float(q @ problem.references.upper) + domain.lower(combined)
    return bound - rounding_slack(problem, mass, domain.reach(combined), abs(value) + abs(bound))


def best_scaled_bound(
    problem: GroupRisk, domain: Domain, q: Floats, row_weights: Floats, duals: Floats, combined: Floats
) -> float:
    """Return the best bound of c times the duals over c in [0, 1]: duals that overshoot lose by it nothing."""

    def bound(c: float) -> float:
        return fenchel_bound(problem, domain, q, row_weights, c * duals, c * combined)

    # The bound is concave in c; a rough maximiser is as valid as an exact one.
    inner = minimize_scalar(lambda c: -bound(c), bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-4})
    return max(bound(1.0), bound(float(inner.x)), bound(0.0))


def centred_margins(problem: GroupRisk, at: Evaluation, row_weights: Floats) -> Floats:
    """Return the margins at w with the intercept that is best for q, without reading X."""
    if at.margins.ndim == 1:
        return at.margins + _best_shift(problem, at.margins, row_weights)
    return at.margins + _best_shifts(problem, at.margins, row_weights)


def _best_shift(problem: GroupRisk, margins: Floats, row_weights: Floats) -> float:
    """Newton's method on one intercept, held in a bracket of the root of the slope."""
    loss, y = problem.loss, problem.data.y
    low, high, shift = -np.inf, np.inf, 0.0
    stride = 1.0
    for _ in range(_CENTRING_STEPS):
        slopes = loss.value_and_slope(margins + shift, y)[1]
        slope = float(row_weights @ slopes)
        if abs(slope) <= 1e-14 * float(row_weights @ np.abs(slopes)):
            break
        low, high = (shift, high) if slope < 0 else (low, shift)
        curvature = float(row_weights @ loss.curvature(margins + shift, y))
        newton = shift - slope / curvature if curvature > 0 else np.inf
        if low < newton < high and abs(newton - shift) <= stride:
            shift = newton
        elif np.isinf(low) or np.isinf(high):
            shift, stride = shift - np.sign(slope) * stride, 2.0 * stride
        else:
            shift = 0.5 * (low + high)
    return shift


def _best_shifts(problem: GroupRisk, margins: Floats, row_weights: Floats) -> Floats:
    """Damped Newton's method on one intercept a class."""
    loss, y = problem.loss, problem.data.y
    shifts = np.zeros(margins.shape[1])
    value = float(row_weights @ loss.value(margins, y))
    for _ in range(10):
        p = loss.curvature(margins + shifts, y)
        slope = row_weights @ loss.value_and_slope(margins + shifts, y)[1]
        if np.abs(slope).max() <= 1e-13:
            break
        hessian = np.diag(row_weights @ p) - (p * row_weights[:, None]).T @ p
        # The direction of equal shifts has no curvature and no slope; a small ridge makes the system regular.
        hessian[np.diag_indices_from(hessian)] += 1e-10 + 1e-10 * np.trace(hessian)
        step = np.linalg.solve(hessian, slope)
        for _ in range(20):
            trial = float(row_weights @ loss.value(margins + shifts - step, y))
            if trial <= value:
                break
            step *= 0.5
        else:
            break
        shifts, value = shifts - step, trial
    return shifts


def intercept_bound(problem: GroupRisk, domain: Domain, at: Evaluation) -> float:
    """Return a bound at an evaluation's q that stays finite although the intercept is free.

    Centre the intercept for q, take the slopes there, repair what is left so that their weighted sum is zero, and
    combine the rows anew: one more pass over the data.
    """
    row_weights = problem.data.row_weights(at.q)
    margins = centred_margins(problem, at, row_weights)
    slopes = problem.loss.value_and_slope(margins, problem.data.y)[1]
    duals = problem.loss.balance(slopes, problem.data.y, row_weights)
    weighted = duals * row_weights if duals.ndim == 1 else duals * row_weights[:, None]
    return fenchel_bound(problem, domain, at.q, row_weights, duals, problem.combine_rows(weighted))
