"""One pass that gives every group's own gradient, and the Hessian of their mixture: what second-order solvers ask."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from groupdro.data.rows import Rows
from groupdro.problem.group_risk import GroupRisk
from groupdro.problem.linear_model import LinearModel, term_sizes
from groupdro.problem.records import Evaluation, SingleRounding
from groupdro.utils.types import Array, Floats

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
    bend : ndarray of shape (w.size, n_outputs) or None
        Its columns along a free intercept.
    hessian_q : ndarray of shape (n_groups,) or None
        The q of both.
    single : SingleRounding or None
        As in `Evaluation`.
    """

    w: Floats
    margins: Array
    group_risks: Floats
    gradients: Floats
    masses: Floats
    hessian: Floats | None
    bend: Floats | None
    hessian_q: Floats | None
    single: SingleRounding | None = None

    point_fields: ClassVar[tuple[str, ...]] = ("w", "hessian_q")  # a pass there gives the rest

    def at(self, q: Floats) -> Evaluation:
        """Return the evaluation at (w, q), without another pass."""
        gradient, mass = np.tensordot(q, self.gradients, axes=1), float(q @ self.masses)
        same = self.hessian_q is not None and np.array_equal(q, self.hessian_q)
        bend = self.bend if same else None
        return Evaluation(self.w, q, self.margins, self.group_risks, gradient, mass, self.single, bend)


def evaluate_groups(
    problem: GroupRisk, w: Floats, hessian_q: Floats | None = None, *, hessian: bool = True
) -> GroupEvaluation:
    """Pass over the data at w.

    Parameters
    ----------
    problem : GroupRisk
        The problem.
    w : ndarray
        Parameters.
    hessian_q : ndarray of shape (n_groups,), optional
        Group weights of the Hessian; without them none is computed.
    hessian : bool
        Whether to compute all of it. Otherwise only its column along the free intercept of one output is.

    Returns
    -------
    GroupEvaluation
        Risks and gradients of all groups. Reads X once.
    """
    data, model = problem.data, problem.model
    formed = hessian_q is not None and hessian
    along = hessian_q is not None and not hessian and problem.fit_intercept and model.n_outputs == 1
    if problem.single_precision and not formed and not data.members.size:
        problem.count_pass()
        found = problem.groups_in_single(w, problem.row_norms)
        if found is not None:
            margins, risks, gradients, masses, single = found
            return GroupEvaluation(w, margins, risks, gradients, masses, None, None, hessian_q, single)
        problem.single_precision = False  # it overflows
    margins = np.empty((data.n_rows, *problem.shape[1:]))
    losses, sizes = np.empty(data.n_rows), np.empty(data.n_rows)
    gradients = np.zeros((problem.n_groups, *problem.shape))
    row_weights = np.empty(0) if hessian_q is None else data.row_weights(hessian_q)
    # The second derivative, all of it or its last column.
    second = np.zeros((model.size, model.size if formed else int(along)))
    norms = problem.row_norms  # before the loop: all workers are asked for them, also those without rows

    def visit(place: slice, block: Rows) -> tuple[slice, Rows, Floats, Floats | None]:
        margins[place] = model.outputs(block, w)
        losses[place], slopes = problem.loss.value_and_slope(margins[place], data.y[place])
        sizes[place] = term_sizes(slopes, norms[place])
        if not second.size:
            return place, block, slopes, None
        bend = problem.loss.curvature(margins[place], data.y[place])
        if along:
            return place, block, slopes, model.gradient(block, bend * row_weights[place])[:, None]
        return place, block, slopes, _hessian(block, bend, row_weights[place], model)

    for place, block, slopes, part in data.rows.map_blocks(visit):
        model.add_gradients(gradients, block, data.shares(place), slopes)
        if part is not None:
            second += part
    problem.count_pass()
    risks, masses = data.partial_means(losses), data.partial_means(sizes)
    data.add_up(risks, masses, gradients, second)
    bend = second[:, -model.n_outputs :] if problem.fit_intercept and second.size else None
    return GroupEvaluation(w, margins, risks, gradients, masses, second if formed else None, bend, hessian_q)


def _hessian(block: Rows, bend: Floats, weights: Floats, model: LinearModel) -> Floats:
    """Return the block's share of the Hessian."""
    if bend.ndim == 1:
        return model.gram(block, bend * weights)
    # Classes couple: the block of classes (a, b) has the weights p_a (1{a = b} - p_b).
    p, C = bend, bend.shape[1]
    hessian = np.empty((model.size, model.size))
    blocks = hessian.reshape(model.shape[0], C, model.shape[0], C)
    for a in range(C):
        for b in range(a, C):
            gram = model.gram(block, weights * p[:, a] * ((a == b) - p[:, b]))
            blocks[:, a, :, b] = gram
            if a != b:
                blocks[:, b, :, a] = gram
    return hessian
