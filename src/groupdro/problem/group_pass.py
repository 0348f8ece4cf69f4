"""One pass that gives every group's own gradient, and the Hessian of their mixture: what second-order solvers ask."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from groupdro.data.rows import DenseRows
from groupdro.problem.group_risk import GroupRisk
from groupdro.problem.records import Evaluation, scale_rows, term_sizes
from groupdro.utils.types import Floats

__all__ = ["GroupEvaluation", "evaluate_groups"]


@dataclass(frozen=True, eq=False)
class GroupEvaluation:
    """One pass over the data at w, with all groups' gradients.

    Attributes
    ----------
    w, margins, group_risks : ndarray
        As in `Evaluation`.
    gradients : ndarray of shape (n_groups, *w.shape)
        Gradient of each group's risk, without the penalty.
    masses : ndarray of shape (n_groups,)
        `Evaluation.mass` of each group.
    hessian : ndarray of shape (w.size, w.size) or None
        Second derivative of sum_i q_i R_i, w flattened.
    hessian_q : ndarray of shape (n_groups,) or None
        The q of the Hessian.
    """

    w: Floats
    margins: Floats
    group_risks: Floats
    gradients: Floats
    masses: Floats
    hessian: Floats | None
    hessian_q: Floats | None

    point_fields: ClassVar[tuple[str, ...]] = ("w", "hessian_q")  # a pass there gives the rest

    def at(self, q: Floats) -> Evaluation:
        """Return the evaluation at (w, q), without another pass."""
        gradient = np.tensordot(q, self.gradients, axes=1)
        return Evaluation(self.w, q, self.margins, self.group_risks, gradient, float(q @ self.masses))


def evaluate_groups(problem: GroupRisk, w: Floats, hessian_q: Floats | None = None) -> GroupEvaluation:
    """Pass over the data at w.

    Parameters
    ----------
    problem : GroupRisk
        The problem.
    w : ndarray
        Parameters.
    hessian_q : ndarray of shape (n_groups,), optional
        Group weights of the Hessian; without them none is computed.

    Returns
    -------
    GroupEvaluation
        Risks and gradients of all groups. Reads X once.
    """
    data, y, d = problem.data, problem.data.y, problem.data.n_features
    margins = np.empty((data.n_rows, *problem.shape[1:]))
    losses, sizes = np.empty(data.n_rows), np.empty(data.n_rows)
    gradients = np.zeros((problem.n_groups, *problem.shape))
    row_weights = None if hessian_q is None else data.row_weights(hessian_q)
    size = int(np.prod(problem.shape))
    hessian = None if hessian_q is None else np.zeros((size, size))
    ordered = not data.members.size and isinstance(data.rows, DenseRows)
    incidence = None if ordered else _incidence(problem)
    norms = problem.row_norms  # before the loop: all workers are asked for them, also those without rows
    for place, block in data.rows.blocks():
        margins[place] = block @ w[:d] + (w[d] if problem.fit_intercept else 0.0)
        losses[place], slopes = problem.loss.value_and_slope(margins[place], y[place])
        sizes[place] = term_sizes(slopes, norms[place])
        if incidence is None:
            _add_ordered_sums(gradients, place, block, slopes, problem)
        else:
            _add_group_sums(gradients, incidence, place, block, slopes, problem)
        if hessian is not None and row_weights is not None:
            bend = problem.loss.curvature(margins[place], y[place])
            _add_hessian(hessian, block, bend, row_weights[place], problem)
    problem.counters.add(grad_evals=problem.n_rows, grad_evals_paper=problem.n_rows, row_reads=problem.n_rows)
    risks, masses = data.partial_means(losses), data.partial_means(sizes)
    data.add_up(risks, masses, gradients, *([] if hessian is None else [hessian]))
    return GroupEvaluation(w, margins, risks, gradients, masses, hessian, hessian_q)


def _incidence(problem: GroupRisk) -> Any:
    """Return the (n_groups, n_rows) matrix of weights of rows in groups."""
    data = problem.data
    weights = data.weights if data.weights.size else np.repeat(1.0 / np.maximum(data.group_sizes, 1), data.group_sizes)
    members = data.members if data.members.size else np.arange(data.n_rows)
    return sp.csr_array((weights, members, data.offsets), shape=(data.n_groups, data.n_rows))


def _add_ordered_sums(gradients: Floats, place: slice, block: Any, slopes: Floats, problem: GroupRisk) -> None:
    """Add the block's share of every group's gradient: rows in the order of groups, each one contiguous piece."""
    data, d = problem.data, problem.data.n_features
    first, last = np.searchsorted(data.offsets, [place.start, place.stop - 1], side="right") - 1
    for i in range(max(first, 0), last + 1):
        low, high = max(data.offsets[i], place.start), min(data.offsets[i + 1], place.stop)
        piece = slice(low - place.start, high - place.start)
        weights = data.weights[low:high] if data.weights.size else np.full(high - low, 1.0 / data.group_sizes[i])
        weighted = scale_rows(slopes[piece], weights)
        gradients[i, :d] += block[piece].T @ weighted
        if problem.fit_intercept:
            gradients[i, d] += weighted.sum(axis=0)


def _add_group_sums(
    gradients: Floats, incidence: Any, place: slice, block: Any, slopes: Floats, problem: GroupRisk
) -> None:
    """Do the same for rows in any order and storage, by products with the groups' weights."""
    d = problem.data.n_features
    share = incidence if place == slice(0, problem.data.n_rows) else incidence[:, place]
    outputs = slopes if slopes.ndim == 2 else slopes[:, None]
    for c in range(outputs.shape[1]):
        weighted = share @ sp.diags_array(outputs[:, c])
        product = weighted @ block
        target = gradients[:, :, c] if slopes.ndim == 2 else gradients
        target[:, :d] += product.toarray() if sp.issparse(product) else product
        if problem.fit_intercept:
            target[:, d] += share @ outputs[:, c]


def _add_hessian(hessian: Floats, block: Any, bend: Floats, weights: Floats, problem: GroupRisk) -> None:
    """Add the block's share of the Hessian."""
    if problem.fit_intercept:
        ones = np.ones((block.shape[0], 1))
        block = sp.hstack([block, sp.csr_array(ones)]).tocsr() if sp.issparse(block) else np.hstack([block, ones])
    if bend.ndim == 1:
        hessian += _weighted_gram(block, bend * weights)
        return
    # Classes couple: the block of classes (a, b) has the weights p_a (1{a = b} - p_b).
    p, C = bend, bend.shape[1]
    blocks = hessian.reshape(block.shape[1], C, block.shape[1], C)
    for a in range(C):
        for b in range(a, C):
            gram = _weighted_gram(block, weights * p[:, a] * ((a == b) - p[:, b]))
            blocks[:, a, :, b] += gram
            if a != b:
                blocks[:, b, :, a] += gram


def _weighted_gram(block: Any, weights: Floats) -> Floats:
    if sp.issparse(block):
        return (block.T @ (sp.diags_array(weights) @ block)).toarray()
    if weights.min(initial=0.0) >= 0.0:
        scaled = block * np.sqrt(weights)[:, None]
        return scaled.T @ scaled  # one matrix with itself: half the work of two
    return block.T @ (block * weights[:, None])
