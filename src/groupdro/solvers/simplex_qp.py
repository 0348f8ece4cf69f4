"""Small programs over distributions: quadratic (active-set method), and with relative entropy (Newton's method)."""

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

from groupdro.utils.types import Floats

__all__ = ["nearby_weights", "solve_simplex_qp"]

_NO_CAPS: Floats = np.empty(0)
_RELEASED = 10  # share of the entries that are released at once, as its inverse
_WORTH = 0.1  # least gain of such an entry, relative to the largest
_NEWTON_STEPS = 100
_ROUGH = 1e-7  # relative accuracy of nearby weights
_LEAST_KNOWN = 1e-9  # smallest known weight, relative to equal weights, from which an entry can grow again
_PRICE_RATIO = 10.0  # ratio of successive prices of relative entropy


def solve_simplex_qp(
    M: Floats, v: Floats, n_simplex: int, start: Floats | None = None, caps: Floats = _NO_CAPS
) -> Floats:
    """Maximise v.x - x'Mx / 2 over x >= 0 with the first n_simplex entries summing to one, each at most its cap.

    This is a primal active-set method: solve for the free entries, step until one of them reaches a bound and fix it
    there; if none does, release the entry with the largest reduced gain. Every returned point is feasible.

    Parameters
    ----------
    M : ndarray of shape (n, n)
        Symmetric and positive semidefinite.
    v : ndarray of shape (n,)
        Linear gain.
    n_simplex : int
        Entries that sum to one; the others are only nonnegative.
    start : ndarray of shape (n_simplex,), optional
        Feasible entries to start from; by default all weight on the best ones.
    caps : ndarray of shape (n_simplex,), optional
        Upper bounds on these entries; they sum to at least one.

    Returns
    -------
    ndarray of shape (n,)
        The maximiser.
    """
    n = len(v)
    on_simplex = (np.arange(n) < n_simplex).astype(np.float64)
    v = v - on_simplex * v[:n_simplex].max()  # constant on the simplex; subtracted to preserve accuracy
    # Entries off the simplex have no natural scale: give them that of the others, or rounding swamps these.
    sizes = np.diag(M)
    typical = max(float(np.median(sizes[:n_simplex])), 1e-300)
    scale = np.ones(n)
    scale[n_simplex:] = np.sqrt(typical / np.where(sizes[n_simplex:] > 0, sizes[n_simplex:], typical))
    M = M * np.outer(scale, scale)
    v = v * scale
    # A ridge for singular systems, relative to each entry: entries of groups without curvature can be huge.
    ridge = 1e-15 * np.diag(M) + 1e-300
    most = np.full(n, np.inf)
    most[: len(caps)] = caps
    # If caps add up to one, the last free entry can only move by rounding and must not be fixed for it.
    negligible = -1e-14 * on_simplex if len(caps) else np.zeros(n)
    x = np.zeros(n)
    last = 0
    if start is not None:
        x[:n_simplex] = start
        last = int(np.argmax(start))
    else:
        left = 1.0
        for i in np.argsort(-(v - 0.5 * np.diag(M))[:n_simplex], kind="stable"):
            x[i] = min(left, most[i])
            last = i if x[i] > 0.0 else last
            left -= x[i]
            if left <= 0.0:
                break
    free = (x > 0) & (x < most)
    most_released = max(1, n // _RELEASED)
    released = None
    free[last] = True  # one entry of the sum is always free, so that the sum has a price
    for _ in range(20 * n + 50):
        index = np.flatnonzero(free)
        full = np.flatnonzero(~free & (x > 0))
        k = len(index)
        kkt = np.zeros((k + 1, k + 1))
        kkt[:k, :k] = M[np.ix_(index, index)] + np.diag(ridge[index])
        kkt[:k, k] = kkt[k, :k] = on_simplex[index]
        right = np.append(v[index], 1.0)
        if len(full):
            right -= np.append(M[np.ix_(index, full)] @ x[full], x[full].sum())
        try:
            solution = np.linalg.solve(kkt, right)
        except np.linalg.LinAlgError:
            solution = np.linalg.lstsq(kkt, right, rcond=None)[0]
        target = solution[:k]
        price = solution[k]
        if not np.isfinite(target).all():
            break
        low = target < negligible[index]
        high = target > (1.0 + 1e-12) * most[index]
        if low.any() or high.any():
            # Step towards the target as far as is feasible; the blocking entry is fixed at its bound.
            change = target - x[index]
            room = np.where(high, most[index] - x[index], -x[index])
            blocks = (low & (change < 0)) | (high & (change > 0))
            ratios = np.divide(room, change, out=np.full(k, np.inf), where=blocks)
            block = int(np.argmin(ratios))
            x[index] += min(1.0, ratios[block]) * change
            x[index[block]] = most[index[block]] if high[block] else 0.0
            free[index[block]] = False
            if ratios[block] <= 0.0 and not len(caps):
                free[index[ratios <= 0.0]] = False  # all that cannot move; one entry of the sum can
            x = np.clip(x, 0.0, most)
            continue
        x[index] = np.clip(target, 0.0, most[index])
        # Reduced gain of increasing an entry at zero, or of decreasing one at its cap.
        gain = v - M @ x - price * on_simplex
        # An entry whose cap is zero can do neither.
        gain = np.where(free | (most <= 0.0), -np.inf, np.where(x > 0, -gain, gain))
        best = int(np.argmax(gain))
        if gain[best] <= 1e-13 * (typical + float(np.abs(v[best])) + abs(float(price))):
            break
        # Of hundreds of entries, release many at once, but few more than stayed free of the last ones: if M has a low
        # rank, only some can, and the others would be fixed again one at a time.
        many = most_released if released is None else min(most_released, 1 + 2 * int(free[released].sum()))
        worth = np.argsort(-gain)[:many]
        released = worth[gain[worth] >= _WORTH * gain[best]]
        free[released] = True
    x[:n_simplex] /= x[:n_simplex].sum()
    return x * scale


def nearby_weights(M: Floats, v: Floats, price: float, known: Floats) -> Floats:
    """Maximise v.q - q'Mq / 2 - price * KL(q || known) over the simplex roughly, if many entries are positive.

    Without a price, an active-set method would solve a system for each of them. This is Newton's method on q, stored as
    logarithms, so that no weight is too small to recover. If the price is low relative to M, it starts with a higher
    price and lowers it from solution to solution. It stops by the gap to the dual, minimise over x
    ``price * log(sum(known * exp((v - M x) / price))) + x'Mx / 2``, evaluated at x = q.
    """
    log_base = np.log(np.maximum(known, _LEAST_KNOWN / len(known)))
    largest = float(np.diag(M).max())
    z = log_base - logsumexp(log_base)
    prices = [price]
    while largest > 10.0 * _PRICE_RATIO * prices[-1]:
        prices.append(prices[-1] * _PRICE_RATIO)
    for k, high in enumerate(reversed(prices), 1):
        z = _solve_at_price(M, v, high, log_base, z, _ROUGH if k == len(prices) else 1e-3)
    return np.asarray(np.exp(z))


def _solve_at_price(M: Floats, v: Floats, price: float, log_base: Floats, z: Floats, tol: float) -> Floats:
    """Return the logarithms of the maximiser at a price, starting from those of any q."""

    def look(z: Floats) -> tuple[float, Floats, Floats]:
        """Return minus the value at weights with these logarithms, the weights, and M times them."""
        q = np.exp(z)
        Mq = M @ q
        return price * float(q @ (z - log_base)) + float(q @ (0.5 * Mq - v)), q, Mq

    sizes = np.abs(M)
    value, q, Mq = look(z)
    for k in range(_NEWTON_STEPS):
        slopes = Mq - v + price * (z - log_base)
        slopes -= float(q @ slopes)  # constant on the simplex; subtracted to preserve accuracy
        scale = price + float(np.abs(v).max() + (sizes @ q).max())  # scale of rounding errors
        gap = price * float(logsumexp(z - slopes / price))  # from the dual, which bounds the value of every q
        if k and not gap > tol * scale:  # at least one step: at a very high price the gap is lost in rounding
            break
        # The system in units of the square roots of q, in which relative entropy has the price as its curvature.
        s = np.exp(0.5 * z)
        diagonal = price + 1e-15 * float(np.diag(M) @ q)  # never less than the rounding of M
        try:
            factor = cho_factor(M * np.outer(s, s) + diagonal * np.eye(len(s)), check_finite=False)
        except np.linalg.LinAlgError:
            break  # rounding has left M with a negative eigenvalue, at which the weights so far are as good as any
        both = cho_solve(factor, np.column_stack([s * slopes, s]), check_finite=False)
        multiplier = float(s @ both[:, 0]) / float(s @ both[:, 1])
        step = s * (multiplier * both[:, 1] - both[:, 0])
        promised = -float(slopes @ step)
        # The step relative to q, along a straight line; weights that would fall by more than half shrink by a factor
        # instead.
        change = (multiplier - slopes - M @ step) / price
        length = 1.0
        while length > 1e-10:
            part = length * change
            there = z + np.log1p(np.maximum(part, -0.5)) + 2.0 * np.minimum(part + 0.5, 0.0)
            there -= logsumexp(there)
            new, q, Mq = look(there)
            if new <= value - 1e-4 * length * promised + 1e-15 * scale:
                break
            length *= 0.5
        else:
            break
        z = there
        value = new
    return z
