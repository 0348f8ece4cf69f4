"""One pass that computes every group's gradient and the Hessian of their mixture, for second-order solvers."""

from dataclasses import dataclass, replace

import numpy as np

from groupdro.data.rows import Rows
from groupdro.losses import Loss, Product
from groupdro.oracle.evaluation import Evaluation, SingleRounding
from groupdro.oracle.oracle import Oracle
from groupdro.problem.linear_model import LinearModel, scale_rows, term_sizes
from groupdro.utils.types import Array, Floats, Indices

__all__ = ["ColumnCurvature", "GroupEvaluation", "evaluate_groups", "output_curvatures"]


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
        Second derivative of sum_i q_i R_i, with w flattened.
    bend : ndarray of shape (w.size, n_outputs) or None
        Columns of the Hessian along a free intercept.
    hessian_q : ndarray of shape (n_groups,) or None
        The q of hessian and bend.
    apart : ndarray of shape (w.size, w.size) or None
        A second Hessian, of other group weights.
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
    apart: Floats | None = None
    single: SingleRounding | None = None

    def at(self, q: Floats) -> Evaluation:
        """Return the evaluation at (w, q), without another pass."""
        gradient = np.tensordot(q, self.gradients, axes=1)
        mass = float(q @ self.masses)
        same = self.hessian_q is not None and np.array_equal(q, self.hessian_q)
        bend = self.bend if same else None
        return Evaluation(self.w, q, self.margins, self.group_risks, gradient, mass, self.single, bend)


def evaluate_groups(
    oracle: Oracle,
    w: Floats,
    hessian_q: Floats | None = None,
    *,
    hessian: bool = True,
    apart_q: Floats | None = None,
) -> GroupEvaluation:
    """Pass over the data at w.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the problem.
    w : ndarray
        Parameters.
    hessian_q : ndarray of shape (n_groups,), optional
        Group weights of the Hessian; if None, no Hessian is computed.
    hessian : bool
        Whether to compute the full Hessian. Otherwise only its column along the free intercept is computed, for one
        output.
    apart_q : ndarray of shape (n_groups,), optional
        Group weights of a second Hessian.

    Returns
    -------
    GroupEvaluation
        Risks and gradients of all groups. Reads X once.
    """
    problem = oracle.problem
    data = problem.data
    model = problem.model
    formed = hessian_q is not None and hessian
    along = hessian_q is not None and not hessian and problem.fit_intercept and model.n_outputs == 1
    found = None if formed or data.members.size else oracle.singly(lambda passes: passes.groups(w), gradients=1)
    if found is not None:
        margins, risks, gradients, masses, single = found
        return GroupEvaluation(w, margins, risks, gradients, masses, None, None, hessian_q, single=single)
    margins = np.empty((data.n_rows, *problem.shape[1:]))
    losses = np.empty(data.n_rows)
    sizes = np.empty(data.n_rows)
    gradients = np.zeros((problem.n_groups, *problem.shape))
    mixtures = [data.row_weights(q) for q in (hessian_q, apart_q) if q is not None]
    # The Hessians, all of them or their last columns.
    seconds = np.zeros((len(mixtures), model.size, model.size if formed else int(along)))
    norms = problem.row_norms  # before the loop, because all workers take part, even those without rows

    def curvature(place: slice, block: Rows, row_weights: Floats) -> Floats | None:
        rows, bent = _with_weights(block, place, row_weights)
        if not rows.n_rows:
            return None
        if along:
            bend = problem.loss.curvature(margins[bent], data.y[bent])
            return model.gradient(rows, bend * row_weights[bent])[:, None]
        times = problem.loss.curvature_product(margins[bent], data.y[bent])
        return _hessian(rows, times, row_weights[bent], model)

    def visit(place: slice, block: Rows) -> tuple[slice, Rows, Floats, list[Floats | None]]:
        margins[place] = problem.outputs(block, place, w)
        losses[place], slopes = problem.loss.value_and_slope(margins[place], data.y[place])
        sizes[place] = term_sizes(slopes, norms[place])
        return place, block, slopes, [curvature(place, block, each) for each in mixtures if seconds.size]

    for place, block, slopes, parts in data.rows.map_blocks(visit):
        model.add_gradients(gradients, block, data.shares(place), slopes)
        for second, part in zip(seconds, parts, strict=False):
            if part is not None:
                second += part
    oracle.count_pass()
    risks = data.partial_means(losses)
    masses = data.partial_means(sizes)
    data.add_up(risks, masses, gradients, seconds)
    bend = seconds[0, :, -model.n_outputs :] if problem.fit_intercept and seconds.size else None
    whole = seconds[0] if formed else None
    apart = seconds[1] if formed and len(seconds) > 1 else None
    return GroupEvaluation(w, margins, risks, gradients, masses, whole, bend, hessian_q, apart)


class ColumnCurvature:
    """The Hessian of sum_i q_i R_i along the parameters of some features, and of the intercept.

    Parameters are flattened like w. Each method reads these columns of X once.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the problem.
    margins : ndarray
        Outputs at the point.
    q : ndarray of shape (n_groups,)
        Group weights.
    features : ndarray of int
        The features.
    """

    def __init__(self, oracle: Oracle, margins: Array, q: Floats, features: Indices):
        self.oracle = oracle
        self.problem = oracle.problem
        self.rows = self.problem.data.rows.columns(features)
        self.model = replace(self.problem.model, n_features=len(features))
        self.weights = self.problem.data.row_weights(q)
        self.margins = margins

    def _add_up(self, part: Floats) -> Floats:
        self.problem.data.add_up(part)
        self.oracle.count_columns(self.model.n_features)
        return part

    def formed(self) -> Floats:
        """Return the full matrix."""

        def visit(place: slice, block: Rows) -> Floats:
            rows, bent = _with_weights(block, place, self.weights)
            times = self.problem.loss.curvature_product(self.margins[bent], self.problem.data.y[bent])
            return _hessian(rows, times, self.weights[bent], self.model)

        hessian = np.zeros((self.model.size, self.model.size))
        for part in self.rows.map_blocks(visit):
            hessian += part
        return self._add_up(hessian)

    def diagonal(self) -> Floats:
        """Return its diagonal."""
        weights = scale_rows(output_curvatures(self.problem.loss, self.margins, self.problem.data.y), self.weights)
        out = np.empty(self.model.shape)
        for c in np.ndindex(weights.shape[1:]):
            own = weights[(slice(None), *c)]
            self.model.coef(out)[(slice(None), *c)] = self.rows.moments(own)[1]
            self.model.intercept(out)[(slice(None), *c)] = own.sum()
        return self._add_up(out.ravel())

    def times(self, directions: Floats) -> Floats:
        """Return its products with directions of shape (k, p)."""
        loss = self.problem.loss
        y = self.problem.data.y
        if self.margins.ndim == 1 and len(directions) > 1:  # all at once, as if outputs of one model
            together = replace(self.model, n_outputs=len(directions))
            moved = together.outputs(self.rows, np.ascontiguousarray(directions.T))
            gradient = together.gradient(self.rows, scale_rows(moved, loss.curvature(self.margins, y) * self.weights))
            return self._add_up(np.ascontiguousarray(gradient.T))
        out = np.empty_like(directions)
        times = loss.curvature_product(self.margins, y)
        for k, direction in enumerate(directions):
            moved = times(self.model.outputs(self.rows, direction.reshape(self.model.shape)))
            out[k] = self.model.gradient(self.rows, scale_rows(moved, self.weights)).ravel()
        return self._add_up(out)


def gram_and_moments(oracle: Oracle, weights: Floats, slopes: Floats) -> tuple[Floats, Floats]:
    """Return X' diag(weights) X and X' slopes, with the intercept's column of ones, in one pass, for one output."""
    problem = oracle.problem
    model = problem.model

    def visit(place: slice, block: Rows) -> tuple[Floats, Floats]:
        sums = block.rmatvec(slopes[place])
        ones = slopes[place].sum(axis=0, keepdims=True) if problem.fit_intercept else sums[:0]
        return model.gram(block, weights[place]), np.vstack([sums, ones])

    gram = np.zeros((model.size, model.size))
    moments = np.zeros((model.size, slopes.shape[1]))
    for product, part in problem.data.rows.map_blocks(visit):
        gram += product
        moments += part
    problem.data.add_up(gram, moments)
    oracle.count_columns(problem.data.n_features)
    return gram, moments


def output_curvatures(loss: Loss, margins: Array, y: Array) -> Floats:
    """Return the diagonal of l'' of each row, shaped as the outputs."""
    if margins.ndim == 1:
        return loss.curvature(margins, y)
    times = loss.curvature_product(margins, y)
    units = np.eye(margins.shape[1])
    return np.stack([times(np.broadcast_to(e, margins.shape))[:, c] for c, e in enumerate(units)], axis=1)


def _with_weights(block: Rows, place: slice, weights: Floats) -> tuple[Rows, slice]:
    """Return a block without the rows before the first and after the last weight, and where these rows are.

    At the optimum of the worst risk few groups have weights, and the others add nothing to the curvature.
    """
    found = np.flatnonzero(weights[place])
    first, stop = (int(found[0]), int(found[-1]) + 1) if found.size else (0, 0)
    rows = block if stop - first == block.n_rows else block.take(slice(first, stop))
    return rows, slice(place.start + first, place.start + stop)


def _hessian(block: Rows, times: Product, weights: Floats, model: LinearModel) -> Floats:
    """Return the block's contribution to the Hessian, given the product with the loss's second derivative."""
    if model.n_outputs == 1:
        return model.gram(block, times(weights))
    hessian = np.empty((model.size, model.size))
    C = model.n_outputs
    blocks = hessian.reshape(model.shape[0], C, model.shape[0], C)
    for a, unit in enumerate(np.eye(C)):
        column = times(np.broadcast_to(unit, (len(weights), C)))
        for b in range(a, C):
            blocks[:, a, :, b] = blocks[:, b, :, a] = model.gram(block, weights * column[:, b])
    return hessian
