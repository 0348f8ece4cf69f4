"""One pass that gives every group's own gradient, and the Hessian of their mixture: what second-order solvers ask."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from groupdro.data.rows import Rows
from groupdro.problem.group_risk import GroupRisk
from groupdro.problem.linear_model import LinearModel, term_sizes
from groupdro.problem.records import Evaluation
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
    data, model = problem.data, problem.model
    margins = np.empty((data.n_rows, *problem.shape[1:]))
    losses, sizes = np.empty(data.n_rows), np.empty(data.n_rows)
    gradients = np.zeros((problem.n_groups, *problem.shape))
    row_weights = np.empty(0) if hessian_q is None else data.row_weights(hessian_q)
    hessian = None if hessian_q is None else np.zeros((model.size, model.size))
    norms = problem.row_norms  # before the loop: all workers are asked for them, also those without rows
    for place, block in data.rows.blocks():
        margins[place] = model.outputs(block, w)
        losses[place], slopes = problem.loss.value_and_slope(margins[place], data.y[place])
        sizes[place] = term_sizes(slopes, norms[place])
        model.add_gradients(gradients, block, data.shares(place), slopes)
        if hessian is not None:
            bend = problem.loss.curvature(margins[place], data.y[place])
            _add_hessian(hessian, block, bend, row_weights[place], model)
    problem.count_pass()
    risks, masses = data.partial_means(losses), data.partial_means(sizes)
    data.add_up(risks, masses, gradients, *([] if hessian is None else [hessian]))
    return GroupEvaluation(w, margins, risks, gradients, masses, hessian, hessian_q)


def _add_hessian(hessian: Floats, block: Rows, bend: Floats, weights: Floats, model: LinearModel) -> None:
    """Add the block's share of the Hessian."""
    if bend.ndim == 1:
        hessian += model.gram(block, bend * weights)
        return
    # Classes couple: the block of classes (a, b) has the weights p_a (1{a = b} - p_b).
    p, C = bend, bend.shape[1]
    blocks = hessian.reshape(model.shape[0], C, model.shape[0], C)
    for a in range(C):
        for b in range(a, C):
            gram = model.gram(block, weights * p[:, a] * ((a == b) - p[:, b]))
            blocks[:, a, :, b] += gram
            if a != b:
                blocks[:, b, :, a] += gram
