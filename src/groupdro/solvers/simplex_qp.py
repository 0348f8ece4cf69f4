"""A small quadratic program over a simplex, solved to rounding by an active set."""

import numpy as np

from groupdro.utils.types import Floats

__all__ = ["solve_simplex_qp"]


def solve_simplex_qp(M: Floats, v: Floats, n_simplex: int, start: Floats | None = None) -> Floats:
    """Maximise v.x - x'Mx / 2 over x >= 0 with the first n_simplex entries summing to one.

    A primal active-set method: solve on the free entries, step until one of them reaches zero and drop it, and when
    none does let in the entry whose reduced gain is largest. Any point that it returns is feasible.

    Parameters
    ----------
    M : ndarray of shape (n, n)
        Symmetric and positive semidefinite.
    v : ndarray of shape (n,)
        Linear gain.
    n_simplex : int
        Entries that sum to one; the others are only non-negative.
    start : ndarray of shape (n_simplex,), optional
        Entries to begin with, which sum to one; by default all on the best single one.

    Returns
    -------
    ndarray of shape (n,)
        The maximiser.
    """
    n = len(v)
    on_simplex = (np.arange(n) < n_simplex).astype(np.float64)
    v = v - on_simplex * v[:n_simplex].max()  # a constant on the simplex, taken off to keep digits
    # Entries off the simplex have no scale of their own: give them that of the others, or rounding drowns these.
    sizes = np.diag(M)
    typical = max(float(np.median(sizes[:n_simplex])), 1e-300)
    scale = np.ones(n)
    scale[n_simplex:] = np.sqrt(typical / np.where(sizes[n_simplex:] > 0, sizes[n_simplex:], typical))
    M, v = M * np.outer(scale, scale), v * scale
    # A ridge for singular systems, relative to each entry: groups without curvature of their own have huge ones.
    ridge = 1e-15 * np.diag(M) + 1e-300
    x = np.zeros(n)
    if start is not None:
        x[:n_simplex] = start
    else:
        x[int(np.argmax(v[:n_simplex] - 0.5 * np.diag(M)[:n_simplex]))] = 1.0
    free = x > 0
    for _ in range(20 * n + 50):
        index = np.flatnonzero(free)
        k = len(index)
        kkt = np.zeros((k + 1, k + 1))
        kkt[:k, :k] = M[np.ix_(index, index)] + np.diag(ridge[index])
        kkt[:k, k] = kkt[k, :k] = on_simplex[index]
        try:
            solution = np.linalg.solve(kkt, np.append(v[index], 1.0))
        except np.linalg.LinAlgError:
            solution = np.linalg.lstsq(kkt, np.append(v[index], 1.0), rcond=None)[0]
        target, price = solution[:k], solution[k]
        if not np.isfinite(target).all():
            break
        if (target < 0).any():
            # Go as far toward the target as stays feasible; the entry that blocks leaves.
            blocks = (target < 0) & (target < x[index])
            ratios = np.divide(x[index], x[index] - target, out=np.full(k, np.inf), where=blocks)
            block = int(np.argmin(ratios))
            x[index] += min(1.0, ratios[block]) * (target - x[index])
            x[index[block]] = 0.0
            free[index[block]] = False
            x = np.maximum(x, 0.0)
            continue
        x[:] = 0.0
        x[index] = target
        gain = np.where(free, -np.inf, v - M @ x - price * on_simplex)
        best = int(np.argmax(gain))
        if gain[best] <= 1e-13 * (typical + float(np.abs(v[best])) + abs(float(price))):
            break
        free[best] = True
    x[:n_simplex] /= x[:n_simplex].sum()
    return x * scale
