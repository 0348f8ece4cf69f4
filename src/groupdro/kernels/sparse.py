"""Epochs of ALEG for one output on compressed sparse rows: the cost of a step is the number of entries of its rows.

Within a piece of an epoch the iterate is a combination of three dense vectors that stay fixed (its start, the snapshot
and the full gradient) and one that changes only where drawn rows have entries:

    w = p start + r snapshot + t gradient + z u.

A step scales the four coefficients and adds to u. The norm for the projection follows from ten inner products, four of
which change in a step. The sum of all iterates is a combination of the same vectors and one more of the same kind.
"""

import math

import numpy as np

from groupdro.kernels.compile import compiled
from groupdro.kernels.csr import most_entries
from groupdro.kernels.losses import slope, value
from groupdro.kernels.mirror import q_half_step, q_step, weight_of
from groupdro.kernels.prefetch import prefetch

__all__ = ["csr_steps"]


@compiled
def _square(a0, a1, a2, a3, gram):
    """Return |a0 start + a1 snapshot + a2 gradient + a3 u|^2."""
    diagonal = a0 * a0 * gram[0] + a1 * a1 * gram[1] + a2 * a2 * gram[2] + a3 * a3 * gram[3]
    fixed = a0 * a1 * gram[4] + a0 * a2 * gram[5] + a1 * a2 * gram[6]
    return max(diagonal + 2.0 * (fixed + a3 * (a0 * gram[7] + a1 * gram[8] + a2 * gram[9])), 0.0)


@compiled
def csr_steps(flat, drawn, margins, player, first_step, q, sums, work_q):
    """Make one step per row of `drawn`.

    Parameters
    ----------
    flat : CsrData
        Rows, labels and loss.
    drawn : Drawn
        The draws, with groups and weights of shape (s,).
    margins : ndarray of shape (n,)
        Outputs at the snapshot.
    player, q : LazyPlayer, WeightPlayer
        Both players.
    first_step : int
        Number of earlier steps with the same player.
    sums : Sums
        Sums over the steps; the sum of w is left to the player.
    work_q : ndarray of shape (3, m)
        Work space.
    """
    data, indices, indptr, y, offset, code, parameter, intercept = flat
    own = 1 if data.size > 1 else 0  # one value may stand for all entries
    rows, groups, weights = drawn
    features, gram, coefficients, free, step, free_step, penalty, radius = player
    alpha, q_snapshot = q.alpha, q.snapshot
    half_logits, q_half, loss_difference = work_q[0], work_q[1], work_q[2]
    touched = np.empty(most_entries(indptr, rows), np.int64)
    p, r, t, z = coefficients[0], coefficients[1], coefficients[2], coefficients[3]
    shrink = 1.0 / (1.0 + step * penalty)
    for k in range(rows.shape[0]):
        # The half point, before and after the projection.
        a0, a1 = shrink * (1.0 - alpha) * p, shrink * (alpha + (1.0 - alpha) * r)
        a2, a3 = shrink * ((1.0 - alpha) * t - step), shrink * (1.0 - alpha) * z
        if a3 == 0.0:  # with alpha = 1 nothing remains of the iterate: restart u, after adding it to the sum
            for j in range(features.shape[0]):
                features[j, 4] -= coefficients[7] * features[j, 3]
                features[j, 3] = 0.0
            gram[3], gram[7], gram[8], gram[9] = 0.0, 0.0, 0.0, 0.0
            a3 = shrink
        norm = math.sqrt(_square(a0, a1, a2, a3, gram))
        scale = radius / norm if norm > radius else 1.0
        h0, h1, h2, h3 = scale * a0, scale * a1, scale * a2, scale * a3
        free_centre = alpha * free[1] + (1.0 - alpha) * free[0]
        free_half = free_centre - free_step * free[2]
        q_half_step(q, half_logits, q_half, loss_difference)

        count = 0
        free_difference = 0.0
        for e in range(rows.shape[1]):
            row, i = rows[k, e], groups[e]
            first, last = indptr[row], indptr[row + 1]
            if e + 1 < rows.shape[1]:  # the next row's features are scattered: prefetch them
                following = rows[k, e + 1]
                for n in range(indptr[following], indptr[following + 1]):
                    prefetch(features, indices[n], 0)  # type: ignore[call-arg]
            on_start, on_gradient, on_u = 0.0, 0.0, 0.0
            for n in range(first, last):
                j = indices[n]
                on_start += data[n * own] * features[j, 0]
                on_gradient += data[n * own] * features[j, 2]
                on_u += data[n * own] * features[j, 3]
            old = margins[row]
            shift = offset[row] if offset.size else 0.0
            on_snapshot = old - (free[1] if intercept else 0.0) - shift
            new = h0 * on_start + h1 * on_snapshot + h2 * on_gradient + h3 * on_u + shift
            if intercept:
                new += free_half
            change = value(code, parameter, new, y[row]) - value(code, parameter, old, y[row])
            loss_difference[i] += weights[e] * change
            q_now = weight_of(q, q_half, i)
            c = weights[e] * (
                q_now * slope(code, parameter, new, y[row]) - q_snapshot[i] * slope(code, parameter, old, y[row])
            )
            free_difference += c
            for n in range(first, last):
                j = indices[n]
                if features[j, 5] != first_step + k:
                    features[j, 5] = first_step + k
                    features[j, 6] = 0.0
                    touched[count] = j
                    count += 1
                features[j, 6] += c * data[n * own]

        # Update the inner products for the gradient difference.
        squared, with_start, with_snapshot, with_gradient, with_u = 0.0, 0.0, 0.0, 0.0, 0.0
        for n in range(count):
            j = touched[n]
            v = features[j, 6]
            squared += v * v
            with_start += v * features[j, 0]
            with_snapshot += v * features[j, 1]
            with_gradient += v * features[j, 2]
            with_u += v * features[j, 3]
        sums.measures[0] += step * squared
        sums.measures[2] += _square(h0, h1 - 1.0, h2, h3, gram) / step
        if intercept:
            sums.measures[0] += free_step * free_difference**2
            sums.measures[2] += (free_half - free[1]) ** 2 / free_step
        push = -shrink * step / a3
        gram[3] += push * (2.0 * with_u + push * squared)
        gram[7] += push * with_start
        gram[8] += push * with_snapshot
        gram[9] += push * with_gradient
        before = coefficients[7]
        for n in range(count):
            j = touched[n]
            v = push * features[j, 6]
            features[j, 3] += v
            features[j, 4] += before * v
        norm = math.sqrt(_square(a0, a1, a2, a3, gram))
        scale = radius / norm if norm > radius else 1.0
        p, r, t, z = scale * a0, scale * a1, scale * a2, scale * a3
        coefficients[4] += p
        coefficients[5] += r
        coefficients[6] += t
        coefficients[7] += z
        if intercept:
            free[0] = free_centre - free_step * (free[2] + free_difference)
            free[3] += free[0]

        q_step(q, half_logits, q_half, loss_difference, sums)
    coefficients[0], coefficients[1], coefficients[2], coefficients[3] = p, r, t, z
