"""Steps of several outputs in the precision of float32 rows: what lies around their products of matrices.

Points are kept as what they differ by from a snapshot, so that rounding is small against what moved. Sums over entries
are of float64.
"""

import numpy as np

from groupdro.kernels.blocks import softmax_loss
from groupdro.kernels.compile import compiled_fast

__all__ = ["aim", "land", "softmax_difference"]


@compiled_fast
def aim(snapshot, centre, moved, alpha, gradient, difference, step, out):
    """Set out to alpha centre + (1 - alpha) moved - step (gradient + difference).

    Returns |snapshot + out|^2 less |snapshot|^2. All are flat, of float32, and difference may be empty.
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
    """Set out to aimed + growth (snapshot + aimed) + along, and add it to total where that is not empty.

    Returns its squared norm. All are flat, of float32 but for total.
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
    """Compare drawn rows at a point with the snapshot.

    Parameters
    ----------
    drawn : Drawn
        The drawn rows, the group of each, and its weight in the estimates, each of shape (s,).
    y : ndarray of shape (n,)
        Labels.
    margins : ndarray of shape (n, C)
        Outputs at the snapshot.
    moved : ndarray of shape (s, C)
        What the point's coefficients add to those of the drawn rows.
    free : ndarray of shape (C,)
        What its intercept adds to them.
    q, q_snapshot : ndarray of shape (m,)
        Group weights of the point and of the snapshot.
    change : ndarray of shape (s,)
        Set to weight times what each loss differs by.
    bends : ndarray of float32 of shape (s, C)
        Set to weight times what slopes times group weights differ by.
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
