"""Steps of loopless variance-reduced extragradient with one sample each and Euclidean projections for q."""

import numpy as np

from groupdro.kernels.compile import compiled, compiled_fast
from groupdro.kernels.losses import slope, value
from groupdro.kernels.mirror import descend

__all__ = ["project_simplex", "svre_steps"]


@compiled
def project_simplex(x, out):
    """Set out to the point of the simplex nearest to x."""
    falling = np.sort(x)[::-1]
    total, shift = 0.0, 0.0
    for k in range(falling.size):
        total += falling[k]
        candidate = (total - 1.0) / (k + 1)
        if falling[k] > candidate:
            shift = candidate
    for k in range(x.size):
        out[k] = max(x[k] - shift, 0.0)


@compiled_fast
def svre_steps(data, rows, groups, margins, player, q, q_snapshot, values, q_pull, p, work_w, work_q):
    """Make one step per row, between two refreshes of the snapshot.

    Parameters
    ----------
    data : DenseData
        Rows, labels and loss.
    rows, groups : ndarray of shape (K,)
        The row drawn for each step and its group.
    margins : ndarray of shape (n,)
        Outputs at the snapshot.
    player : WPlayer
        Player w. Its gradient includes all linear terms, its penalty the added convexity; all entries share one step
        size.
    q, q_snapshot, values : ndarray of shape (m,)
        Iterate (changed), snapshot and group values there, with all linear terms.
    q_pull : float
        Curvature added for q.
    p : float
        Weight of the snapshot in the centre.
    work_w, work_q : ndarray of shape (3, d), (3, m)
        Work space.
    """
    X, y, offset, code, parameter, _ = data
    w, w_snapshot, gradient, steps, penalty, radius = player
    weight = float(q.size)  # weight of a drawn row in the estimates
    d, m = w.size, q.size
    tau = steps[0]
    shrink = 1.0 / (1.0 + tau * q_pull)
    centre, half, full = work_w[0], work_w[1], work_w[2]
    q_centre, q_half, moved = work_q[0], work_q[1], work_q[2]
    for k in range(rows.size):
        r, i = rows[k], groups[k]
        for j in range(d):
            centre[j] = (1.0 - p) * w[j] + p * w_snapshot[j]
        for g in range(m):
            q_centre[g] = (1.0 - p) * q[g] + p * q_snapshot[g]
            moved[g] = (q_centre[g] + tau * values[g]) * shrink
        descend(centre, gradient, steps, penalty, radius, d, half)
        project_simplex(moved, q_half)
        u = offset[r] if offset.size else 0.0
        for j in range(d):
            u += X[r, j] * half[j]
        change = weight * (value(code, parameter, u, y[r]) - value(code, parameter, margins[r], y[r]))
        bend = weight * (
            q_half[i] * slope(code, parameter, u, y[r]) - q_snapshot[i] * slope(code, parameter, margins[r], y[r])
        )
        for j in range(d):
            full[j] = gradient[j] + bend * X[r, j]
        descend(centre, full, steps, penalty, radius, d, w)
        moved[i] += tau * change * shrink
        project_simplex(moved, q)
