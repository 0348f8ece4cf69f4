"""Steps on one drawn row each for several outputs, many steps at a time.

A step changes w, a matrix of d rows and C columns, by multiples of three fixed matrices and of one row times C numbers.
So w need not be touched in every step. Between two blocks of steps it is kept as

    w = s v + a c + b g,        v the sum of rows times numbers, c the snapshot, g its gradient,

and within a block of rows x_1 .. x_B only the coefficients (s, a, b) and the C numbers of each row change. The outputs
of row k are those at the start of the block plus, through x_k . x_j, the contributions of the block's earlier rows.
Matrix products with the whole block at its start and end replace B products with single rows.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from benchmarks.paper.methods.svre_kernel import project_simplex
from groupdro.kernels.compile import compiled, compiled_fast
from groupdro.kernels.mirror import q_half_step, q_step, weight_of
from groupdro.kernels.spectral import softmax_loss

__all__ = ["RowBlock", "entropic_block", "projected_block"]


class RowBlock(NamedTuple):
    """A block of B rows used for steps of one row each.

    products, of shape (B, 3, C), has each row times v (changed), c and g; gram, of shape (B, B), the inner products of
    the rows; labels, groups and weights, of shape (B,), those of each row. w, of shape (3,), has the coefficients s, a,
    b and inner, of shape (6,), the inner products vv, vc, vg, cc, cg, gg (both changed). betas, of shape (B, C), is set
    to the increments of v: row k times betas[k].
    """

    products: Any
    gram: Any
    labels: Any
    groups: Any
    weights: Any
    w: Any
    inner: Any
    betas: Any
    step: float
    penalty: float
    radius: float


@compiled
def _norm(s, a, b, inner):
    """Return |s v + a c + b g| from the inner products vv, vc, vg, cc, cg, gg."""
    square = s * s * inner[0] + a * a * inner[3] + b * b * inner[5]
    square += 2.0 * (s * a * inner[1] + s * b * inner[2] + a * b * inner[4])
    return math.sqrt(max(square, 0.0))


@compiled_fast
def _half_point(k, block, alpha, outputs):
    """Set w to the centre's coefficients, outputs to those of row k at the half point, and return the latter's scale.

    The half point is scale * (s v + a c + (b - step) g).
    """
    products, w, step = block.products, block.w, block.step
    s, a, b = (1.0 - alpha) * w[0], (1.0 - alpha) * w[1] + alpha, (1.0 - alpha) * w[2]
    scale = 1.0 / (1.0 + step * block.penalty)
    norm = scale * _norm(s, a, b - step, block.inner)
    if norm > block.radius:
        scale *= block.radius / norm
    own = products[k, 0]
    for j in range(k):
        shared = block.gram[k, j]
        for c in range(outputs.size):
            own[c] += shared * block.betas[j, c]
    for c in range(outputs.size):
        outputs[c] = scale * (s * own[c] + a * products[k, 1, c] + (b - step) * products[k, 2, c])
    w[0], w[1], w[2] = s, a, b
    return scale


@compiled_fast
def _full_step(k, block, bend):
    """Step from the centre along the gradient and row k times bend, and project; changes v and the coefficients."""
    products, w, inner, step = block.products, block.w, block.inner, block.step
    factor = -step / w[0]
    for c in range(bend.size):
        block.betas[k, c] = factor * bend[c]
    along_v, along_c, along_g, square = 0.0, 0.0, 0.0, 0.0
    for c in range(bend.size):
        beta = block.betas[k, c]
        along_v += beta * products[k, 0, c]
        along_c += beta * products[k, 1, c]
        along_g += beta * products[k, 2, c]
        square += beta * beta
    inner[0] += 2.0 * along_v + block.gram[k, k] * square
    inner[1] += along_c
    inner[2] += along_g
    w[2] -= step
    scale = 1.0 / (1.0 + step * block.penalty)
    norm = scale * _norm(w[0], w[1], w[2], inner)
    if norm > block.radius:
        scale *= block.radius / norm
    w[0], w[1], w[2] = scale * w[0], scale * w[1], scale * w[2]


@compiled_fast
def entropic_block(block, q, sums, scales, totals, work_q):
    """Make a step on each row of the block, with mirror steps for q.

    Parameters
    ----------
    block : RowBlock
        The block.
    q : WeightPlayer
        The player q.
    sums : Sums
        Sums over the steps; the sum of w follows from scales and totals.
    scales : ndarray of shape (B,)
        s after each step (set).
    totals : ndarray of shape (2,)
        Sums over the steps of a and b, accumulated.
    work_q : ndarray of shape (3, m)
        Work space.
    """
    n_outputs = block.products.shape[2]
    outputs, new, old = np.empty(n_outputs), np.empty(n_outputs), np.empty(n_outputs)
    half_logits, q_half, loss_difference = work_q[0], work_q[1], work_q[2]
    w, step = block.w, block.step
    for k in range(block.labels.size):
        i, label, weight = block.groups[k], block.labels[k], block.weights[k]
        scale = _half_point(k, block, q.alpha, outputs)
        moved = _norm(scale * w[0], scale * w[1] - 1.0, scale * (w[2] - step), block.inner)
        q_half_step(q, half_logits, q_half, loss_difference)
        change = softmax_loss(outputs, label, new) - softmax_loss(block.products[k, 1], label, old)
        loss_difference[i] = weight * change
        q_now = weight_of(q, q_half, i)
        for c in range(n_outputs):
            new[c] = weight * (q_now * new[c] - q.snapshot[i] * old[c])
        square = 0.0
        for c in range(n_outputs):
            square += new[c] * new[c]
        sums.measures.gradient_w += step * block.gram[k, k] * square
        sums.measures.distance_w += moved * moved / step
        _full_step(k, block, new)
        scales[k] = w[0]
        totals[0] += w[1]
        totals[1] += w[2]
        q_step(q, half_logits, q_half, loss_difference, sums)


@compiled_fast
def projected_block(block, q, q_snapshot, values, q_pull, alpha, work_q):
    """Make a step on each row of the block, with projected steps for q. Parameters as in `svre_steps`."""
    n_outputs, m, step = block.products.shape[2], q.size, block.step
    outputs, new, old = np.empty(n_outputs), np.empty(n_outputs), np.empty(n_outputs)
    q_half, moved = work_q[0], work_q[1]
    shrink = 1.0 / (1.0 + step * q_pull)
    for k in range(block.labels.size):
        i, label, weight = block.groups[k], block.labels[k], block.weights[k]
        _half_point(k, block, alpha, outputs)
        for g in range(m):
            moved[g] = ((1.0 - alpha) * q[g] + alpha * q_snapshot[g] + step * values[g]) * shrink
        project_simplex(moved, q_half)
        change = softmax_loss(outputs, label, new) - softmax_loss(block.products[k, 1], label, old)
        for c in range(n_outputs):
            new[c] = weight * (q_half[i] * new[c] - q_snapshot[i] * old[c])
        _full_step(k, block, new)
        moved[i] += step * weight * change * shrink
        project_simplex(moved, q)
