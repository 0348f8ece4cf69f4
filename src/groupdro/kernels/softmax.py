"""The multi-class logistic loss of rows, in one loop over the rows."""

import math

import numpy as np

from groupdro.kernels.compile import compiled, compiled_fast

__all__ = [
    "add_up",
    "below_largest",
    "divide_by_sums",
    "outputs_of",
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
def outputs_of(parts, free, margins, below):
    """Set margins to the outputs of a block of rows, and below to these minus each row's largest.

    Sums are in float64 and rounded once. The exponentials of `below` cannot overflow; NumPy computes them faster than a
    loop here would.

    Parameters
    ----------
    parts : ndarray of float32 of shape (n_parts, B, C)
        Contributions of ranges of columns to the outputs.
    free : ndarray of shape (C,)
        The intercept, or zeros.
    margins : ndarray of float32 of shape (B, C)
        Outputs (set).
    below : ndarray of shape (B, C)
        Outputs as stored, minus the largest of their row (set).
    """
    n_parts, n_outputs = parts.shape[0], parts.shape[2]
    for k in range(margins.shape[0]):
        for c in range(n_outputs):
            below[k, c] = free[c] + parts[0, k, c]
        for part in range(1, n_parts):
            for c in range(n_outputs):
                below[k, c] += parts[part, k, c]
        for c in range(n_outputs):
            margins[k, c] = below[k, c]
        largest = np.float32(-np.inf)
        for c in range(n_outputs):
            largest = max(largest, margins[k, c])
        for c in range(n_outputs):
            below[k, c] = margins[k, c] - np.float64(largest)


@compiled_fast
def softmax_rows(below, powers, y, weights, losses, constants, sizes, weighted, slopes):
    """Compute losses and weighted slopes of a block of rows from its outputs.

    All sums are in float64. Losses and slopes belong to the outputs as stored.

    Parameters
    ----------
    below, powers : ndarray of shape (B, C)
        As set by `outputs_of`, and their exponentials (changed).
    y, weights : ndarray of shape (B,)
        Label and weight of each row.
    losses, constants, sizes : ndarray of shape (B,)
        Loss l, l - a.u for the slopes a, and the norm |a| (set).
    weighted : ndarray of float32 of shape (B, C)
        Weight times slopes (set).
    slopes : ndarray of shape (C,)
        Sum of the weighted slopes, accumulated.
    """
    n_outputs = below.shape[1]
    for k in range(y.size):
        label = y[k]
        own = powers[k, label]
        powers[k, label] = 0.0
        others, moment, square = 0.0, 0.0, 0.0
        for c in range(n_outputs):
            others += powers[k, c]
        for c in range(n_outputs):
            moment += powers[k, c] * below[k, c]
        for c in range(n_outputs):
            square += powers[k, c] * powers[k, c]
        total = others + own
        moment += own * below[k, label]
        log_total = math.log(total)
        losses[k] = log_total - below[k, label]
        constants[k] = log_total - moment / total  # the entropy of p: no terms cancel
        sizes[k] = math.sqrt(square + others * others) / total
        powers[k, label] = -others  # stays accurate when p rounds to 1
        factor = weights[k] / total
        for c in range(n_outputs):
            powers[k, c] *= factor
        for c in range(n_outputs):
            weighted[k, c] = powers[k, c]
        for c in range(n_outputs):
            slopes[c] += powers[k, c]


@compiled_fast
def softmax_values(below, powers, y, losses):
    """Set the losses of a block of rows. Parameters as in `softmax_rows`."""
    for k in range(y.size):
        total = 0.0
        for c in range(below.shape[1]):
            total += powers[k, c]
        losses[k] = math.log(total) - below[k, y[k]]


@compiled_fast
def add_up(part, total):
    """Add a float32 array to a float64 array of the same size."""
    for j in range(total.size):
        total[j] += part[j]
