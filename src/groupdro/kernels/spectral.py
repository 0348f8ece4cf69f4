"""Steps with several outputs in float32: everything except the matrix products.

Points are kept as differences from a snapshot, so that rounding is small relative to the movement. Sums over entries
are in float64.
"""

import numpy as np

from groupdro.kernels.compile import compiled_fast
from groupdro.kernels.softmax import softmax_loss

__all__ = ["aim", "land", "softmax_difference"]


@compiled_fast
def aim(snapshot, centre, moved, alpha, gradient, difference, step, out):
    """Set out to alpha centre + (1 - alpha) moved - step (gradient + difference).

    Returns |snapshot + out|^2 - |snapshot|^2. All arrays are flat float32, and difference may be empty.
    """
    share, rest, long = np.float32(alpha), np.float32(1.0 - alpha), np.float32(step)
    square, inner = 0.0, 0.0
    if difference.size:
        for j in range(out.size):
            out[j] = share * centre[j] + rest * moved[j] - long * (gradient[j] + difference[j])
    else:
        for j in range(out.size):
            out[j] = share * centre[j] + rest * moved[j] - long * gradient[j]
    for j in range(out.size):
        square += np.float64(out[j]) * np.float64(out[j])
        inner += np.float64(out[j]) * np.float64(snapshot[j])
    return square + 2.0 * inner


@compiled_fast
def land(snapshot, aimed, along, growth, out, total):
    """Set out to aimed + growth (snapshot + aimed) + along, and add it to total unless that is empty.

    Returns its squared norm. All arrays are flat float32, except total.
    """
    factor, square = np.float32(growth), 0.0
    for j in range(out.size):
        out[j] = aimed[j] + factor * (snapshot[j] + aimed[j]) + along[j]
    for j in range(total.size):
        total[j] += out[j]
    for j in range(out.size):
        square += np.float64(out[j]) * np.float64(out[j])
    return square


@compiled_fast
def softmax_difference(drawn, y, margins, moved, free, q, q_snapshot, change, bends):
    """Compute the differences of drawn rows between a point and the snapshot.

    Parameters
    ----------
    drawn : Drawn
        The drawn rows, the group of each, and its weight in the estimates, each of shape (s,).
    y : ndarray of shape (n,)
        Labels.
    margins : ndarray of shape (n, C)
        Outputs at the snapshot.
    moved : ndarray of shape (s, C)
        Change of the drawn rows' outputs due to the point's coefficients.
    free : ndarray of shape (C,)
        Change due to its intercept.
    q, q_snapshot : ndarray of shape (m,)
        Group weights of the point and of the snapshot.
    change : ndarray of shape (s,)
        Set to weight times the difference of each loss.
    bends : ndarray of float32 of shape (s, C)
        Set to weight times the difference of slopes times group weights.
    """
    rows, groups, weights = drawn
    n_outputs = moved.shape[1]
    old, new, slopes, others = np.empty(n_outputs), np.empty(n_outputs), np.empty(n_outputs), np.empty(n_outputs)
    for k in range(rows.size):
        r, i = rows[k], groups[k]
        for c in range(n_outputs):
            old[c] = margins[r, c]
            new[c] = old[c] + moved[k, c] + free[c]
        change[k] = weights[k] * (softmax_loss(new, y[r], slopes) - softmax_loss(old, y[r], others))
        for c in range(n_outputs):
            bends[k, c] = weights[k] * (q[i] * slopes[c] - q_snapshot[i] * others[c])
