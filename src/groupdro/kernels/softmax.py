"""The multi-class logistic loss of rows, in one loop over the rows."""

import math

import numpy as np

from groupdro.kernels.compile import compiled, compiled_fast

__all__ = [
    "add_up",
    "below_largest",
    "divide_by_sums",
    "slopes_of",
    "softmax_curvature",
    "softmax_loss",
    "softmax_rows",
    "softmax_values",
]


@compiled
def softmax_loss(u, label, slopes):
    """Set slopes to p - e_label and return the loss of the outputs u."""
    largest = u[0]
    for c in range(1, u.size):
        largest = max(largest, u[c])
    total, others = 0.0, 0.0
    for c in range(u.size):
        slopes[c] = math.exp(u[c] - largest)
        total += slopes[c]
    for c in range(u.size):
        slopes[c] /= total
        if c != label:
            others += slopes[c]
    slopes[label] = -others  # stays accurate when p rounds to 1
    return math.log(total) - (u[label] - largest)


@compiled
def below_largest(u, y, out, own):
    """Set each row of out to u minus its largest entry, so that no exponential overflows, and own to the label's."""
    for k in range(y.size):
        largest = u[k, 0]
        for c in range(1, u.shape[1]):
            largest = max(largest, u[k, c])
        for c in range(u.shape[1]):
            out[k, c] = u[k, c] - largest
        own[k] = out[k, y[k]]


@compiled
def divide_by_sums(p, totals):
    """Divide each row by its sum, which totals are set to."""
    for k in range(p.shape[0]):
        total = 0.0
        for c in range(p.shape[1]):
            total += p[k, c]
        for c in range(p.shape[1]):
            p[k, c] /= total
        totals[k] = total


@compiled
def slopes_of(p, y):
    """Subtract e_y from each row of probabilities."""
    for k in range(y.size):
        p[k, y[k]] = 0.0
        others = 0.0
        for c in range(p.shape[1]):
            others += p[k, c]
        p[k, y[k]] = -others  # stays accurate when p rounds to 1


@compiled
def softmax_curvature(p, along, out):
    """Set out to the product of diag(p) - p p' with along, for each row."""
    n_outputs = p.shape[1]
    for k in range(p.shape[0]):
        mean = 0.0
        for c in range(n_outputs):
            mean += p[k, c] * along[k, c]
        for c in range(n_outputs):
            out[k, c] = p[k, c] * (along[k, c] - mean)


@compiled_fast
def _outputs(parts, k, free, margins):
    """Set margins to the outputs of row k, the sum of its parts and of the intercept, and return the largest."""
    n_parts, n_outputs = parts.shape[0], parts.shape[2]
    sums = np.empty(n_outputs)
    for c in range(n_outputs):
        sums[c] = free[c]
    for part in range(n_parts):
        for c in range(n_outputs):
            sums[c] += parts[part, k, c]
    largest = np.float32(-np.inf)
    for c in range(n_outputs):
        margins[c] = sums[c]
        largest = max(largest, margins[c])
    return largest


@compiled_fast
def softmax_rows(parts, free, y, weights, margins, losses, constants, sizes, weighted, slopes):
    """Compute losses and weighted slopes of a block of rows from its outputs.

    All sums are in float64. Losses and slopes belong to the outputs as stored.

    Parameters
    ----------
    parts : ndarray of float32 of shape (n_parts, B, C)
        Contributions of ranges of columns to the outputs.
    free : ndarray of shape (C,)
        The intercept, or zeros.
    y, weights : ndarray of shape (B,)
        Label and weight of each row.
    margins : ndarray of float32 of shape (B, C)
        Outputs u (set).
    losses, constants, sizes : ndarray of shape (B,)
        Loss l, l - a.u for the slopes a, and the norm |a| (set).
    weighted : ndarray of float32 of shape (B, C)
        Weight times slopes (set).
    slopes : ndarray of shape (C,)
        Sum of the weighted slopes, accumulated.
    """
    n_outputs = parts.shape[2]
    p = np.empty(n_outputs)
    for k in range(y.size):
        u, label = margins[k], y[k]
        largest = np.float64(_outputs(parts, k, free, u))
        for c in range(n_outputs):
            p[c] = math.exp(u[c] - largest)
        total, below = 0.0, 0.0
        for c in range(n_outputs):
            total += p[c]
            below += p[c] * (largest - u[c])
        for c in range(n_outputs):
            p[c] /= total
        others, square = 0.0, 0.0
        for c in range(n_outputs):
            others += p[c] if c != label else 0.0
            square += p[c] * p[c] if c != label else 0.0
        p[label] = -others  # stays accurate when p rounds to 1
        log_total = math.log(total)
        losses[k] = log_total + (largest - u[label])
        constants[k] = log_total + below / total  # the entropy of p: no terms cancel
        sizes[k] = math.sqrt(square + others * others)
        for c in range(n_outputs):
            slope = weights[k] * p[c]
            weighted[k, c] = slope
            slopes[c] += slope


@compiled_fast
def softmax_values(parts, free, y, losses):
    """Set the losses of a block of rows. Parameters as in `softmax_rows`."""
    n_outputs = parts.shape[2]
    u = np.empty(n_outputs, np.float32)
    for k in range(y.size):
        largest = np.float64(_outputs(parts, k, free, u))
        total = 0.0
        for c in range(n_outputs):
            total += math.exp(u[c] - largest)
        losses[k] = math.log(total) + (largest - u[y[k]])


@compiled_fast
def add_up(part, total):
    """Add a float32 array to a float64 array of the same size."""
    for j in range(total.size):
        total[j] += part[j]
