"""Epochs of ALEG for one output on dense rows: the steps between two snapshots, fused.

Rows are drawn beforehand, so that the readable version of the epoch can use the same draws.
"""

import numpy as np

from groupdro.kernels.compile import compiled_fast
from groupdro.kernels.dense import add_rows, dots
from groupdro.kernels.losses import slope, value
from groupdro.kernels.mirror import descend, descend_entries, q_half_step, q_step, weight_of

__all__ = ["dense_steps"]


@compiled_fast
def dense_steps(data, turn, drawn, margins, player, thresholds, q, sums, work_w, work_q):
    """Make one step per row of `drawn`.

    Parameters
    ----------
    data : DenseData
        Rows, labels and loss.
    turn : Turn
        Coordinates of w, snapshot, gradient and steps.
    drawn : Drawn
        The draws.
    margins : ndarray of shape (n,)
        Outputs at the snapshot.
    player, q : WPlayer, WeightPlayer
        Both players.
    thresholds : Thresholds
        L1 penalty and bounds, if they take the place of the ball.
    sums : Sums
        Sums over the steps.
    work_w, work_q : ndarray of shape (5, p), (3, m)
        Work space.
    """
    X, y, offset, code, parameter, intercept = data
    rows, groups, weights = drawn
    rotation, shift = turn
    w, w_snapshot, gradient, steps, penalty, radius = player
    alpha, q_snapshot = q.alpha, q.snapshot
    d = X.shape[1]
    p = w.size
    four = np.empty(4)
    inverse_steps = 1.0 / steps
    by_entry = thresholds.low.size > 0
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
        if by_entry:
            descend_entries(centre, gradient, steps, penalty, thresholds, half)
        else:
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
        q_half_step(q, half_logits, q_half, loss_difference)

        for e in range(0, rows.shape[1], 4):
            n = min(4, rows.shape[1] - e)
            dots(X, rows[k], e, n, point, d, four)
            for t in range(n):
                r, i, weight = rows[k, e + t], groups[own, e + t], weights[own, e + t]
                u = four[t] + (point[d] if intercept else 0.0) + (offset[r] if offset.size else 0.0)
                old = margins[r]
                change = value(code, parameter, u, y[r]) - value(code, parameter, old, y[r])
                loss_difference[i] += weight * change
                q_now = weight_of(q, q_half, i)
                four[t] = weight * (
                    q_now * slope(code, parameter, u, y[r]) - q_snapshot[i] * slope(code, parameter, old, y[r])
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
        for j in range(p):
            difference[j] += gradient[j]
        if by_entry:
            descend_entries(centre, difference, steps, penalty, thresholds, w)
        else:
            descend(centre, difference, steps, penalty, radius, d, w)
        for j in range(p):
            sums.w[j] += w[j]

        sums.measures.gradient_w += changed
        sums.measures.distance_w += moved
        q_step(q, half_logits, q_half, loss_difference, sums)
