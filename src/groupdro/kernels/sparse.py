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
def _square(p, r, t, z, products):
    """Return |p start + r snapshot + t gradient + z u|^2."""
    diagonal = p * p * products.start + r * r * products.snapshot + t * t * products.gradient + z * z * products.u
    fixed = p * r * products.start_snapshot + p * t * products.start_gradient + r * t * products.snapshot_gradient
    along_u = p * products.u_start + r * products.u_snapshot + t * products.u_gradient
    return max(diagonal + 2.0 * (fixed + z * along_u), 0.0)


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
    features, products, iterate, total, free, step, free_step, penalty, radius = player
    alpha, q_snapshot = q.alpha, q.snapshot
    half_logits, q_half, loss_difference = work_q[0], work_q[1], work_q[2]
    touched = np.empty(most_entries(indptr, rows), np.int64)
    p, r, t, z = iterate.start, iterate.snapshot, iterate.gradient, iterate.u
    shrink = 1.0 / (1.0 + step * penalty)
    for k in range(rows.shape[0]):
        # The half point, before and after the projection.
        a0, a1 = shrink * (1.0 - alpha) * p, shrink * (alpha + (1.0 - alpha) * r)
        a2, a3 = shrink * ((1.0 - alpha) * t - step), shrink * (1.0 - alpha) * z
        if a3 == 0.0:  # with alpha = 1 nothing remains of the iterate: restart u, after adding it to the sum
            for j in range(features.size):
                features[j].late -= total.u * features[j].u
                features[j].u = 0.0
            products.u, products.u_start, products.u_snapshot, products.u_gradient = 0.0, 0.0, 0.0, 0.0
            a3 = shrink
        norm = math.sqrt(_square(a0, a1, a2, a3, products))
        scale = radius / norm if norm > radius else 1.0
        h0, h1, h2, h3 = scale * a0, scale * a1, scale * a2, scale * a3
        free_centre = alpha * free.snapshot + (1.0 - alpha) * free.iterate
        free_half = free_centre - free_step * free.gradient
        q_half_step(q, half_logits, q_half, loss_difference)

        count = 0
        free_difference = 0.0
        for e in range(rows.shape[1]):
            row, i = rows[k, e], groups[e]
            first, last = indptr[row], indptr[row + 1]
            if e + 1 < rows.shape[1]:  # the next row's features are scattered: prefetch them
                following = rows[k, e + 1]
                for n in range(indptr[following], indptr[following + 1]):
                    prefetch(features, indices[n])  # type: ignore[call-arg]
            on_start, on_gradient, on_u = 0.0, 0.0, 0.0
            for n in range(first, last):
                feature = features[indices[n]]
                on_start += data[n * own] * feature.start
                on_gradient += data[n * own] * feature.gradient
                on_u += data[n * own] * feature.u
            old = margins[row]
            shift = offset[row] if offset.size else 0.0
            on_snapshot = old - (free.snapshot if intercept else 0.0) - shift
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
                feature = features[indices[n]]
                if feature.drawn != first_step + k:
                    feature.drawn = first_step + k
                    feature.difference = 0.0
                    touched[count] = indices[n]
                    count += 1
                feature.difference += c * data[n * own]

        # Update the inner products for the gradient difference.
        squared, with_start, with_snapshot, with_gradient, with_u = 0.0, 0.0, 0.0, 0.0, 0.0
        for n in range(count):
            feature = features[touched[n]]
            v = feature.difference
            squared += v * v
            with_start += v * feature.start
            with_snapshot += v * feature.snapshot
            with_gradient += v * feature.gradient
            with_u += v * feature.u
        sums.measures.gradient_w += step * squared
        sums.measures.distance_w += _square(h0, h1 - 1.0, h2, h3, products) / step
        if intercept:
            sums.measures.gradient_w += free_step * free_difference**2
            sums.measures.distance_w += (free_half - free.snapshot) ** 2 / free_step
        push = -shrink * step / a3
        products.u += push * (2.0 * with_u + push * squared)
        products.u_start += push * with_start
        products.u_snapshot += push * with_snapshot
        products.u_gradient += push * with_gradient
        before = total.u
        for n in range(count):
            feature = features[touched[n]]
            v = push * feature.difference
            feature.u += v
            feature.late += before * v
        norm = math.sqrt(_square(a0, a1, a2, a3, products))
        scale = radius / norm if norm > radius else 1.0
        p, r, t, z = scale * a0, scale * a1, scale * a2, scale * a3
        total.start += p
        total.snapshot += r
        total.gradient += t
        total.u += z
        if intercept:
            free.iterate = free_centre - free_step * (free.gradient + free_difference)
            free.total += free.iterate

        q_step(q, half_logits, q_half, loss_difference, sums)
    iterate.start, iterate.snapshot, iterate.gradient, iterate.u = p, r, t, z
