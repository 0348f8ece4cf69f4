"""Steps of both players in flat arrays."""

import math

from groupdro.kernels.compile import compiled, compiled_fast

__all__ = [
    "capped_softmax",
    "descend",
    "descend_entries",
    "q_half_step",
    "q_step",
    "settle_logits",
    "softmax_into",
    "weight_of",
]

_ROOT_STEPS = 50
_MOST_LOGIT = 600.0  # largest absolute value where caps bind; its exponential, also times a level, does not overflow
_FAR_BELOW = 1e200  # level of weights below caps at which clipped ones begin to matter


@compiled_fast
def _squared_norm(v, n):
    square = 0.0
    for j in range(n):
        square += v[j] * v[j]
    return square


@compiled_fast
def descend(centre, gradient, steps, penalty, radius, n_bound, out):
    """Set out to the proximal step from centre against gradient.

    out = argmin <gradient, w> + sum_j (w_j - centre_j)^2 / (2 steps_j) + penalty / 2 |w_B|^2  over  |w_B| <= radius,

    where B are the first n_bound entries. The ball's multiplier nu solves |w(nu)| = radius with w_j(nu) = v_j / (1 +
    steps_j nu): Newton's method on 1 / |w| - 1 / radius, which is concave in nu, increases to the root.
    """
    if penalty == 0.0:  # divisions would dominate the time
        for j in range(n_bound):
            out[j] = centre[j] - steps[j] * gradient[j]
    else:
        for j in range(n_bound):
            out[j] = (centre[j] - steps[j] * gradient[j]) / (1.0 + steps[j] * penalty)
    for j in range(n_bound, centre.size):
        out[j] = centre[j] - steps[j] * gradient[j]
    square = _squared_norm(out, n_bound)
    if square <= radius * radius:
        return
    nu = 0.0
    for _ in range(_ROOT_STEPS):
        square = 0.0
        slope = 0.0
        for j in range(n_bound):
            step = steps[j] / (1.0 + steps[j] * penalty)
            v = out[j] / (1.0 + step * nu)
            square += v * v
            slope += step * v * v / (1.0 + step * nu)
        norm = math.sqrt(square)
        change = (norm / radius - 1.0) * square / slope
        nu += change
        if norm <= radius * (1.0 + 1e-14) or change <= 1e-15 * nu:
            break
    for j in range(n_bound):
        step = steps[j] / (1.0 + steps[j] * penalty)
        out[j] /= 1.0 + step * nu
    # The root is approached from outside; scaling removes the last rounding error.
    norm = math.sqrt(_squared_norm(out, n_bound))
    if norm > radius:
        for j in range(n_bound):
            out[j] *= radius / norm


@compiled_fast
def descend_entries(centre, gradient, steps, penalty, thresholds, out):
    """Set out to the proximal step for separate penalties and bounds of each coefficient.

    Each entry is shrunk towards zero, then clipped: its own function is convex, so the bounds come last. Entries
    without bounds, at the end, are free.
    """
    l1, low, high = thresholds
    for j in range(low.size):
        v = centre[j] - steps[j] * gradient[j]
        size = max(abs(v) - steps[j] * l1, 0.0) / (1.0 + steps[j] * penalty)
        out[j] = min(max(size if v > 0.0 else -size, low[j]), high[j])
    for j in range(low.size, centre.size):
        out[j] = centre[j] - steps[j] * gradient[j]


@compiled
def softmax_into(logits, weights):
    """Set weights to the softmax of logits, with the largest exponent at 0 so that none overflows."""
    largest = logits[0]
    for i in range(1, logits.size):
        largest = max(largest, logits[i])
    total = 0.0
    for i in range(logits.size):
        weights[i] = math.exp(logits[i] - largest)
        total += weights[i]
    for i in range(logits.size):
        weights[i] /= total


@compiled
def _filling_logit(logits, caps):
    """Return the logit at which the caps, summed from the largest logit down, reach a total weight of one."""
    lowest, filled = math.inf, 0.0
    while filled < 1.0 - 1e-12:
        below = -math.inf
        for i in range(logits.size):
            if below < logits[i] < lowest:
                below = logits[i]
        if below == -math.inf:
            break
        lowest = below
        for i in range(logits.size):
            filled += caps[i] if logits[i] == lowest else 0.0
    return lowest


@compiled_fast
def _capped_from(origin, logits, caps, weights):
    """Set weights to exp(logits - origin), clipped, and return the level at which they sum to one under the caps.

    The sum of min(level * weights, caps) is concave and piecewise linear in the level, so Newton's method from below
    increases to the root and stops there.
    """
    for i in range(logits.size):
        weights[i] = math.exp(min(max(logits[i] - origin, -_MOST_LOGIT), _MOST_LOGIT))
    total = 0.0
    for i in range(logits.size):
        total += weights[i]
    level = 1.0 / total
    for _ in range(logits.size):
        free, held = 0.0, 0.0
        for i in range(logits.size):
            capped = level * weights[i] >= caps[i]
            held += caps[i] if capped else 0.0
            free += 0.0 if capped else weights[i]
        following = (1.0 - held) / free if free > 0.0 else 0.0
        if not following > level * (1.0 + 1e-15):
            break
        level = following
    return level


@compiled_fast
def capped_softmax(logits, caps, weights):
    """Set weights to the distribution below caps that is nearest to the softmax of logits in relative entropy.

    It is min(exp(logits - level), caps). Returns the level.
    """
    origin = logits[0]
    for i in range(1, logits.size):
        origin = max(origin, logits[i])
    level = _capped_from(origin, logits, caps, weights)
    if level > _FAR_BELOW:
        # The weight left by the caps comes from logits so low that their exponentials vanish: shift the origin there.
        origin = _filling_logit(logits, caps)
        level = _capped_from(origin, logits, caps, weights)
    for i in range(logits.size):
        weights[i] = min(level * weights[i], caps[i])
    return origin - math.log(level)


@compiled
def settle_logits(logits, caps, weights, level):
    """Lower the logits of weights at their caps to the values that correspond to the caps."""
    for i in range(logits.size):
        if weights[i] >= caps[i]:
            logits[i] = level + max(math.log(caps[i]) if caps[i] > 0.0 else -math.inf, -_MOST_LOGIT)


@compiled
def _moving_part(q, logits, weights):
    """Set weights to the moving part of q, and return the level of its caps."""
    if q.caps.size:
        return capped_softmax(logits, q.caps, weights)
    softmax_into(logits, weights)
    return 0.0


@compiled
def weight_of(q, moved, i):
    """Return the weight of group i, given its moving part."""
    return q.least[i] + q.share * moved[i]


@compiled
def q_half_step(q, half_logits, half, loss_difference):
    """Set the half point of the moving part of q, as logits and weights, and clear the loss differences."""
    for i in range(q.logits.size):
        half_logits[i] = q.alpha * q.centre[i] + (1.0 - q.alpha) * q.logits[i] + q.step * q.pull[i]
        loss_difference[i] = 0.0
    _moving_part(q, half_logits, half)


@compiled
def q_step(q, half_logits, half, loss_difference, sums):
    """Step q along the loss differences and update its sums; half is overwritten with the new moving part."""
    mean, square, shifted = 0.0, 0.0, 0.0
    largest = -math.inf
    gain = q.step * q.share
    for i in range(q.logits.size):
        mean += half[i] * loss_difference[i]
        square += half[i] * loss_difference[i] ** 2
        shifted += (half[i] - q.moved[i]) ** 2 / max(half[i], q.moved[i], 1e-30)
        q.logits[i] = half_logits[i] + gain * loss_difference[i]
        largest = max(largest, q.logits[i])
    for i in range(q.logits.size):
        q.logits[i] -= largest  # so that they cannot drift
    level = _moving_part(q, q.logits, half)
    if q.caps.size:
        settle_logits(q.logits, q.caps, half, level)
    for i in range(q.logits.size):
        sums.logits[i] += q.logits[i]
        sums.q[i] += half[i]
    sums.measures.gradient_q += q.step * q.share**2 * (square - mean * mean)
    sums.measures.distance_q += shifted / q.step
