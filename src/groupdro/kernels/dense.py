"""Loops over dense rows, four at a time: rows are read from memory once, and sums stay in registers longer."""

from groupdro.kernels.compile import compiled_fast
from groupdro.kernels.losses import slope, value

__all__ = ["add_rows", "dense_difference", "dense_pass", "dots"]

_BLOCK = 512  # rows whose gradient is summed separately, to limit the accumulation of rounding errors


@compiled_fast
def dots(X, rows, first, n, w, d, out):
    """Set out[k] to X[rows[first + k]] . w for k < n; n is at most 4."""
    if n == 4:
        a, b, c, e = X[rows[first]], X[rows[first + 1]], X[rows[first + 2]], X[rows[first + 3]]
        u0, u1, u2, u3 = 0.0, 0.0, 0.0, 0.0
        for j in range(d):
            v = w[j]
            u0 += a[j] * v
            u1 += b[j] * v
            u2 += c[j] * v
            u3 += e[j] * v
        out[0], out[1], out[2], out[3] = u0, u1, u2, u3
        return
    for k in range(n):
        row = X[rows[first + k]]
        u = 0.0
        for j in range(d):
            u += row[j] * w[j]
        out[k] = u


@compiled_fast
def add_rows(X, rows, first, n, coefficients, d, total):
    """Add coefficients[k] * X[rows[first + k]] to total for k < n; n is at most 4."""
    if n == 4:
        a, b, c, e = X[rows[first]], X[rows[first + 1]], X[rows[first + 2]], X[rows[first + 3]]
        v0, v1, v2, v3 = coefficients[0], coefficients[1], coefficients[2], coefficients[3]
        for j in range(d):
            total[j] += v0 * a[j] + v1 * b[j] + v2 * c[j] + v3 * e[j]
        return
    for k in range(n):
        row, v = X[rows[first + k]], coefficients[k]
        for j in range(d):
            total[j] += v * row[j]


@compiled_fast
def dense_pass(data, w, row_weights, norms, rows, margins, losses, gradient, work):
    """Set margins and losses of the given rows, add their weighted gradient, and return the terms' mass.

    Parameters
    ----------
    data : DenseData
        Rows, labels and loss.
    w : ndarray of shape (p,)
        Parameters, with the intercept last, if there is one.
    row_weights, norms, margins, losses : ndarray of shape (n,)
        Weight and norm of each row; outputs and losses (set).
    rows : ndarray
        The rows, each visited once.
    gradient : ndarray of shape (p,)
        Gradient, accumulated.
    work : ndarray of shape (2, p) with p >= 4
        Work space.
    """
    X, y, offset, code, parameter, intercept = data
    d = X.shape[1]
    part, four = work[0], work[1]
    mass = 0.0
    for start in range(0, rows.size, _BLOCK):
        stop = min(start + _BLOCK, rows.size)
        part[:] = 0.0
        for e in range(start, stop, 4):
            n = min(4, stop - e)
            dots(X, rows, e, n, w, d, four)
            for k in range(n):
                r = rows[e + k]
                u = four[k] + (w[d] if intercept else 0.0) + (offset[r] if offset.size else 0.0)
                margins[r] = u
                losses[r] = value(code, parameter, u, y[r])
                c = row_weights[r] * slope(code, parameter, u, y[r])
                four[k] = c
                if intercept:
                    part[d] += c
            for k in range(n):
                mass += abs(four[k]) * norms[rows[e + k]]
            add_rows(X, rows, e, n, four, d, part)
        for j in range(gradient.size):
            gradient[j] += part[j]
    return mass


@compiled_fast
def dense_difference(data, w, q, q_snapshot, drawn, margins, loss_difference, gradient, four):
    """Accumulate the differences of drawn rows between (w, q) and a snapshot: losses by group, and the gradient.

    Parameters
    ----------
    data : DenseData
        Rows, labels and loss.
    w : ndarray of shape (p,)
        Parameters, with the intercept last, if there is one.
    q, q_snapshot : ndarray of shape (m,)
        Group weights of the step and of the snapshot.
    drawn : Drawn
        The drawn rows, the group of each, and its weight in the estimates, each of shape (s,).
    margins : ndarray of shape (n,)
        Outputs at the snapshot.
    loss_difference, gradient : ndarray of shape (m,), (p,)
        Differences, accumulated.
    four : ndarray of shape (4,)
        Work space.
    """
    X, y, offset, code, parameter, intercept = data
    rows, groups, weights = drawn
    d = X.shape[1]
    for e in range(0, rows.size, 4):
        n = min(4, rows.size - e)
        dots(X, rows, e, n, w, d, four)
        for t in range(n):
            r, i, weight = rows[e + t], groups[e + t], weights[e + t]
            u = four[t] + (w[d] if intercept else 0.0) + (offset[r] if offset.size else 0.0)
            old = margins[r]
            loss_difference[i] += weight * (value(code, parameter, u, y[r]) - value(code, parameter, old, y[r]))
            four[t] = weight * (
                q[i] * slope(code, parameter, u, y[r]) - q_snapshot[i] * slope(code, parameter, old, y[r])
            )
            if intercept:
                gradient[d] += four[t]
        add_rows(X, rows, e, n, four, d, gradient)
