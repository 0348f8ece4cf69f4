"""Epochs of ALEG for one output: the steps between two snapshots, fused.

The arrays of a step's players are

    players of w, each (p,):  w, snapshot, gradient, steps, and the work space centre, half, difference
    players of q, each (m,):  logits, centre, values, snapshot weights, and the work space

`totals` (3 arrays) and `sums` (4 numbers) accumulate what the snapshot and the choice of the next steps need. Rows are
drawn beforehand, so that the readable form of the same epoch can be run on the same draws.
"""

import numpy as np

from groupdro.kernels.compile import compiled_fast
from groupdro.kernels.dense import add_rows, dots
from groupdro.kernels.losses import slope, value
from groupdro.kernels.mirror import descend, weigh, weigh_half

__all__ = ["dense_steps"]


@compiled_fast
def dense_steps(
    X, y, code, parameter, intercept, rotation, shift, rows, groups, weights, margins,
    w, w_snapshot, gradient, steps, penalty, radius,
    logits, logit_centre, values, q_snapshot, q_step, alpha, w_total, logit_total, q_total, sums, work_w, work_q,
):  # fmt: skip
    """Make len(rows) steps on dense rows.

    Parameters
    ----------
    X, y : ndarray of shape (n, d), (n,)
        Rows and labels.
    code, parameter : int, float
        The loss.
    intercept : bool
        Whether the last entry of w is an intercept.
    rotation : ndarray of shape (d, d) or (0, 0)
        Orthogonal matrix whose columns are the coordinates in which w, snapshot, gradient and steps are given; empty
        where these are the features themselves.
    shift : ndarray of shape (d,) or (0,)
        Point of the features at which the intercept is taken; empty for their origin.
    rows : ndarray of shape (K, s)
        Rows drawn for each step.
    groups, weights : ndarray of shape (1, s) or (K, s)
        Group and weight of each draw: of every step, or of each.
    margins : ndarray of shape (n,)
        Outputs at the snapshot.
    w, w_snapshot, gradient, steps : ndarray of shape (p,)
        Iterate (changed), snapshot, its gradient, and the step of each coordinate.
    penalty, radius : float
        Of the domain.
    logits, logit_centre, values, q_snapshot : ndarray of shape (m,)
        Iterate of q (changed), mirror coordinates of its snapshot, group values and weights at the snapshot.
    q_step, alpha : float
        Step of the logits, weight of the snapshot in the centre.
    w_total, logit_total, q_total : ndarray
        Sums over the steps, added to.
    sums : ndarray of shape (4,)
        Sums over the steps of what the geometries call squared gradients, of w and of q, and squared distances of
        the half points from the snapshot, of w and of q; added to.
    work_w, work_q : ndarray of shape (5, p), (3, m)
        Work space.
    """
    d = X.shape[1]
    p = w.size
    four = np.empty(4)
    inverse_steps = 1.0 / steps
    rotated, shifted = rotation.size > 0, shift.size > 0
    turned = rotated or shifted
    centre, half, difference = work_w[0], work_w[1], work_w[2]
    point, sampled = (work_w[3], work_w[4]) if turned else (half, difference)  # in the coordinates of the features
    half_logits, q_half, loss_difference = work_q[0], work_q[1], work_q[2]
    for k in range(rows.shape[0]):
        own = k % groups.shape[0]
        for j in range(p):
            centre[j] = alpha * w_snapshot[j] + (1.0 - alpha) * w[j]
            difference[j] = 0.0
            sampled[j] = 0.0
        descend(centre, gradient, steps, penalty, radius, d, half)
        if rotated:
            for j in range(d):
                total = 0.0
                for c in range(d):
                    total += rotation[j, c] * half[c]
                point[j] = total
        elif turned:
            for j in range(d):
                point[j] = half[j]
        if turned and intercept:
            point[d] = half[d]
            if shifted:
                for j in range(d):
                    point[d] -= shift[j] * point[j]
        weigh_half(logits, logit_centre, alpha, values, q_step, half_logits, q_half, loss_difference)

        for e in range(0, rows.shape[1], 4):
            n = min(4, rows.shape[1] - e)
            dots(X, rows[k], e, n, point, d, four)
            for t in range(n):
                r, i, weight = rows[k, e + t], groups[own, e + t], weights[own, e + t]
                u = four[t] + (point[d] if intercept else 0.0)
                old = margins[r]
                change = value(code, parameter, u, y[r]) - value(code, parameter, old, y[r])
                loss_difference[i] += weight * change
                four[t] = weight * (
                    q_half[i] * slope(code, parameter, u, y[r]) - q_snapshot[i] * slope(code, parameter, old, y[r])
                )
                if intercept:
                    sampled[d] += four[t]
            add_rows(X, rows[k], e, n, four, d, sampled)

        if shifted:
            for j in range(d):
                sampled[j] -= shift[j] * sampled[d]
        if rotated:
            for j in range(d):
                c = sampled[j]
                for i in range(d):
                    difference[i] += rotation[j, i] * c
        elif turned:
            for j in range(d):
                difference[j] = sampled[j]
        if turned and intercept:
            difference[d] = sampled[d]

        moved, changed = 0.0, 0.0
        for j in range(p):
            gap, change = half[j] - w_snapshot[j], difference[j]
            moved += gap * gap * inverse_steps[j]
            changed += steps[j] * change * change
            difference[j] = change + gradient[j]
        descend(centre, difference, steps, penalty, radius, d, w)
        for j in range(p):
            w_total[j] += w[j]

        sums[0] += changed
        sums[2] += moved
        weigh(logits, half_logits, q_half, q_snapshot, q_step, loss_difference, logit_total, q_total, sums)
