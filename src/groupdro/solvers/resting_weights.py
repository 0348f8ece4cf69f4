"""Group weights that prove optimality where coefficients rest at kinks and bounds, by a linear program.

If no coefficient can move, the quadratic model no longer distinguishes between group weights, and those it returns may
prove little. At a point w, the groups' linear models and the tangent of the L2 penalty prove, for weights q with
weighted slope s, that the objective cannot decrease by more than

    max value - q.values + sum over j of max over u of  -s_j (u - w_j) - l1_j (|u| - |w_j|),    low_j <= u <= high_j,

which is convex and piecewise linear in q: its pieces are at the ends of u and at zero. At an optimum its minimum is
zero.
"""

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from groupdro.oracle.groups import GroupEvaluation
from groupdro.problem import Problem
from groupdro.problem.weight_sets import Moving
from groupdro.solvers.active_set import EntryTerms
from groupdro.utils.threads import interruptibly
from groupdro.utils.types import Floats

__all__ = ["weights_at_rest"]

_LARGEST = 50_000  # entries of all groups' slopes beyond which the program would take too long
_MOST_PARAMETERS = 2_000
_ITERATIONS = 20_000  # a limit by the clock would let workers differ
_FAR = 100.0  # replaces an infinite bound, relative to the largest coefficient; slopes there must vanish


def weights_at_rest(problem: Problem, here: GroupEvaluation, values: Floats, moving: Moving) -> Floats | None:
    """Return the weights that minimise this bound at a point, or None if the program is too large or not solved.

    Parameters
    ----------
    problem : Problem
        The problem, with a separable domain.
    here : GroupEvaluation
        The pass at the point.
    values : ndarray of shape (n_groups,)
        Values that the weights average.
    moving : Moving
        The set of weights.

    Returns
    -------
    ndarray of shape (n_groups,) or None
        The weights q.
    """
    m = len(values)
    w = here.w.ravel()
    too_large = w.size > _MOST_PARAMETERS or m * w.size > _LARGEST
    if m == 1 or too_large or moving.share == 0.0:
        return None
    terms = EntryTerms.of(problem)
    gradients = here.gradients.reshape(m, w.size)
    if not (np.isfinite(gradients).all() and np.isfinite(values).all()):
        return None
    far = _FAR * max(1.0, float(np.abs(w).max(initial=0.0)))
    fixed = moving.least @ gradients + terms.l2 * w
    rows = []
    limits = []
    for u in (np.maximum(terms.low, w - far), np.zeros_like(w), np.minimum(terms.high, w + far)):
        # t_j >= -(u_j - w_j) s_j - l1_j (|u_j| - |w_j|), where s = fixed + share * (moved weights) @ gradients
        u = np.clip(u, terms.low, terms.high)
        rows.append(sp.hstack([sp.csr_array(-moving.share * (gradients * (u - w)).T), -sp.eye_array(w.size)]))
        limits.append((u - w) * fixed + terms.l1 * (np.abs(u) - np.abs(w)))
    caps = moving.caps if moving.caps.size else np.ones(m)
    found = interruptibly(
        lambda: linprog(
            np.r_[-moving.share * (values - values.max()), np.ones(w.size)],
            A_ub=sp.csr_matrix(sp.vstack(rows)),
            b_ub=np.concatenate(limits),
            A_eq=np.r_[np.ones(m), np.zeros(w.size)][None],
            b_eq=[1.0],
            bounds=np.c_[np.zeros(m + w.size), np.r_[caps, np.full(w.size, np.inf)]],
            method="highs",
            options={"maxiter": _ITERATIONS},
        )
    )
    if not found.success:
        return None
    moved = np.clip(found.x[:m], 0.0, caps)
    return moving.mixed(moved / moved.sum())
