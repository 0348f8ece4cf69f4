"""Steps of both players in flat arrays."""

import math

from groupdro.kernels.compile import compiled, compiled_fast

__all__ = ["descend", "q_half_step", "q_step", "softmax_into"]

_ROOT_STEPS = 50


@compiled_fast
def descend(centre, gradient, steps, penalty, radius, n_bound, out):
    """Set out to the proximal step from centre against gradient.

    out = argmin <gradient, w> + sum_j (w_j - centre_j)^2 / (2 steps_j) + penalty / 2 |w_B|^2  over  |w_B| <= radius,

    where B are the first n_bound entries. The ball's multiplier nu solves |w(nu)| = radius with
    w_j(nu) = v_j / (1 + steps_j nu): Newton's method on 1 / |w| - 1 / radius, concave in nu, rises to the root.
    """
    square = 0.0
    if penalty == 0.0:  # divisions would be most of the time
        for j in range(n_bound):
            v = centre[j] - steps[j] * gradient[j]
            out[j] = v
            square += v * v
    else:
        for j in range(n_bound):
            v = (centre[j] - steps[j] * gradient[j]) / (1.0 + steps[j] * penalty)
            out[j] = v
            square += v * v
    for j in range(n_bound, centre.size):
        out[j] = centre[j] - steps[j] * gradient[j]
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
    square = 0.0
    for j in range(n_bound):
        step = steps[j] / (1.0 + steps[j] * penalty)
        out[j] /= 1.0 + step * nu
        square += out[j] * out[j]
    # The root is approached from outside; the last rounding is taken by scaling.
    norm = math.sqrt(square)
    if norm > radius:
        for j in range(n_bound):
            out[j] *= radius / norm


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
def q_half_step(q, half_logits, q_half, loss_difference):
    """Set the half point of q, as logits and weights, and clear the loss differences."""
    for i in range(q.logits.size):
        half_logits[i] = q.alpha * q.centre[i] + (1.0 - q.alpha) * q.logits[i] + q.step * q.values[i]
        loss_difference[i] = 0.0
    softmax_into(half_logits, q_half)


@compiled
def q_step(q, half_logits, q_half, loss_difference, sums):
    """Step q along the loss differences and add to its sums; q_half is overwritten with the new weights."""
    mean, square, shifted = 0.0, 0.0, 0.0
    largest = -math.inf
    for i in range(q.logits.size):
        mean += q_half[i] * loss_difference[i]
        square += q_half[i] * loss_difference[i] ** 2
        shifted += (q_half[i] - q.snapshot[i]) ** 2 / max(q_half[i], q.snapshot[i], 1e-30)
        q.logits[i] = half_logits[i] + q.step * loss_difference[i]
        largest = max(largest, q.logits[i])
    for i in range(q.logits.size):
        q.logits[i] -= largest  # so that they cannot drift
        sums.logits[i] += q.logits[i]
    softmax_into(q.logits, q_half)
    for i in range(q.logits.size):
        sums.q[i] += q_half[i]
    sums.measures[1] += q.step * (square - mean * mean)
    sums.measures[3] += shifted / q.step
