"""Epochs of ALEG on compressed sparse rows with an L1 penalty or bounds: a step costs the entries of its rows.

A feature that a step does not draw moves by a map of its own,

    T(w) = clip(shrink(centre(w) - step gradient)),

which stays the same until the next snapshot. T is increasing, so repeated steps go in one direction, and affine in
pieces. A feature therefore catches up with all the steps that passed it by when it is drawn next: in closed form where
T is affine, step by step where it changes from one piece to another, which happens a few times at most.
"""

import numpy as np

from groupdro.kernels.compile import compiled
from groupdro.kernels.csr import most_entries
from groupdro.kernels.losses import slope, value
from groupdro.kernels.mirror import q_half_step, q_step, weight_of
from groupdro.kernels.prefetch import prefetch

__all__ = ["catch_up_all", "csr_proximal_steps"]


@compiled
def _shrunk(v, threshold, shrink, low, high):
    """Return the proximal step to v."""
    size = shrink * max(abs(v) - threshold, 0.0)
    return min(max(size if v > 0.0 else -size, low), high)


@compiled
def _steps_in_piece(w, delta, most, reached, share, pull, threshold, low, high):
    """Return how many steps from w, the first of which changes it by delta, stay in one piece of T: 1 to `most`."""
    positive = w + delta > 0.0
    lowest, above, tried = 0, most + 1, 1
    while above - lowest > 1:
        v, target = share * (w + delta * reached[tried - 1]) + pull, w + delta * reached[tried]
        if (v > threshold if positive else v < -threshold) and low < target < high:
            lowest = tried
        else:
            above = tried
        tried = most if tried == 1 else (lowest + above) // 2  # all of them stay, as a rule: try that second
    return max(lowest, 1)


@compiled
def _catch_up(feature, n_steps, alpha, limits, sums):
    """Make the steps of a feature up to n_steps, none of which drew it; return the sum of its squared distances."""
    threshold, shrink, low, high = limits
    w, snapshot, pull, left = feature.w, feature.snapshot, feature.pull, n_steps - feature.steps
    share, total, squares = 1.0 - alpha, 0.0, 0.0
    while left > 0:
        target = _shrunk(share * w + pull, threshold, shrink, low, high)
        gap, delta = w - snapshot, target - w
        count = left
        if delta == 0.0:
            total += left * w
            squares += left * gap * gap
        else:
            most = min(left, sums.reached.size - 1)
            count = _steps_in_piece(w, delta, most, sums.reached, share, pull, threshold, low, high)
            total += count * w + delta * sums.total[count]
            squares += count * gap * gap + 2.0 * gap * delta * sums.total[count] + delta * delta * sums.squares[count]
            w = target if count == 1 else w + delta * sums.reached[count]
        left -= count
    feature.w = w
    feature.total += total
    feature.steps = n_steps
    return squares


@compiled
def _limits(player, j):
    """Return threshold, factor, lower and upper bound of a step of feature j."""
    low, high = (player.bounds[j].low, player.bounds[j].high) if player.bounds.size else (-np.inf, np.inf)
    return player.step * player.l1, 1.0 / (1.0 + player.step * player.l2), low, high


@compiled
def catch_up_all(player, alpha, n_steps):
    """Make the steps of all features up to n_steps, and return the sum of their squared distances."""
    squares = 0.0
    for j in range(player.features.size):
        squares += _catch_up(player.features[j], n_steps, alpha, _limits(player, j), player.sums)
    return squares


@compiled
def csr_proximal_steps(flat, drawn, margins, player, first_step, q, sums, work_q):
    """Make one step per row of `drawn`.

    Parameters
    ----------
    flat : CsrData
        Rows, labels and loss.
    drawn : Drawn
        The draws, with groups and weights of shape (s,).
    margins : ndarray of shape (n,)
        Outputs at the snapshot.
    player, q : ProximalPlayer, WeightPlayer
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
    features, free = player.features, player.free
    step, free_step, alpha = player.step, player.free_step, q.alpha
    half_logits, q_half, loss_difference = work_q[0], work_q[1], work_q[2]
    touched = np.empty(most_entries(indptr, rows), np.int64)
    for k in range(rows.shape[0]):
        now = first_step + k
        free_centre = alpha * free.snapshot + (1.0 - alpha) * free.iterate
        free_half = free_centre - free_step * free.gradient
        q_half_step(q, half_logits, q_half, loss_difference)
        count = 0
        distances, free_difference = 0.0, 0.0
        for e in range(rows.shape[1]):
            row, i = rows[k, e], groups[e]
            if e + 1 < rows.shape[1]:  # the next row's features are scattered: prefetch them
                following = rows[k, e + 1]
                for n in range(indptr[following], indptr[following + 1]):
                    prefetch(features, indices[n])  # type: ignore[call-arg]
            new = (free_half if intercept else 0.0) + (offset[row] if offset.size else 0.0)
            for n in range(indptr[row], indptr[row + 1]):
                feature = features[indices[n]]
                if feature.drawn != now:
                    limits = _limits(player, indices[n])
                    distances += _catch_up(feature, now, alpha, limits, player.sums)
                    half = _shrunk((1.0 - alpha) * feature.w + feature.pull, *limits)
                    distances += (half - feature.snapshot) ** 2
                    feature.drawn, feature.difference, feature.half = now, 0.0, half
                    touched[count] = indices[n]
                    count += 1
                new += data[n * own] * feature.half
            old = margins[row]
            change = value(code, parameter, new, y[row]) - value(code, parameter, old, y[row])
            loss_difference[i] += weights[e] * change
            c = weights[e] * (
                weight_of(q, q_half, i) * slope(code, parameter, new, y[row])
                - q.snapshot[i] * slope(code, parameter, old, y[row])
            )
            free_difference += c
            for n in range(indptr[row], indptr[row + 1]):
                features[indices[n]].difference += c * data[n * own]

        squared = 0.0
        for n in range(count):
            feature = features[touched[n]]
            squared += feature.difference * feature.difference
            v = (1.0 - alpha) * feature.w + feature.pull - step * feature.difference
            feature.w = _shrunk(v, *_limits(player, touched[n]))
            feature.total += feature.w
            feature.steps = now + 1
        sums.measures.gradient_w += step * squared
        sums.measures.distance_w += distances / step
        if intercept:
            sums.measures.gradient_w += free_step * free_difference**2
            sums.measures.distance_w += (free_half - free.snapshot) ** 2 / free_step
            free.iterate = free_centre - free_step * (free.gradient + free_difference)
            free.total += free.iterate
        q_step(q, half_logits, q_half, loss_difference, sums)
