"""A matrix w that moves by one row a step, in blocks of steps: what `kernels.blocks` needs around it."""

from collections.abc import Callable

import numpy as np

from groupdro.data.rows import DenseRows
from groupdro.geometry import Euclidean, Geometry
from groupdro.problem import Evaluation, GroupRisk, Softmax
from groupdro.utils.types import Floats, Indices

__all__ = ["RowBlocks", "takes_blocks"]


#: Makes the steps of a block: its place among the rows, products and Gram matrix; sets what each row adds, and s.
Steps = Callable[[slice, Floats, Floats, Floats, Floats], None]

_BLOCK = 128  # steps: products of rows with rows and with w then take about as long


def takes_blocks(problem: GroupRisk, geometry: Geometry, w_steps: Floats | float, alpha: float) -> bool:
    """Tell whether steps on one row each can be made in blocks: several outputs, one step for all entries.

    Where the snapshot is all of the centre (alpha = 1), nothing is left of v, by whose share the blocks divide.
    """
    return (
        alpha < 1.0
        and problem.data.n_workers == 1
        and isinstance(problem.loss, Softmax)
        and isinstance(problem.data.rows, DenseRows)
        and not problem.fit_intercept
        and isinstance(geometry, Euclidean)
        and np.ndim(w_steps) == 0
    )


class RowBlocks:
    """w as s v + a c + b g, c and g being the snapshot and its gradient.

    Parameters
    ----------
    problem : GroupRisk
        The problem.
    at : Evaluation
        The snapshot.
    gradient : ndarray
        Its gradient, with all linear terms.
    w : ndarray
        The iterate.

    Attributes
    ----------
    coefficients, inner : ndarray of shape (3,), (6,)
        s, a, b; and the inner products of v, c, g.
    totals : ndarray of shape (2,)
        Sums over the steps of a and b.
    """

    def __init__(self, problem: GroupRisk, at: Evaluation, gradient: Floats, w: Floats):
        self.problem, self.at, self.gradient = problem, at, gradient
        self.v, self.v_total = w.copy(), np.zeros_like(w)
        self.coefficients, self.totals, self.inner = np.array([1.0, 0.0, 0.0]), np.zeros(2), np.empty(6)
        self.inner[3:] = np.vdot(at.w, at.w), np.vdot(at.w, gradient), np.vdot(gradient, gradient)

    def advance(self, rows: Indices, make: Steps) -> None:
        """Make a step on each of the rows."""
        data = self.problem.data
        n_outputs = self.problem.shape[1]
        for start in range(0, len(rows), _BLOCK):
            place = slice(start, min(start + _BLOCK, len(rows)))
            X = data.rows.take(rows[place])
            n = len(X)
            v, c, g = self.v, self.at.w, self.gradient
            v *= self.coefficients[0]  # s would underflow in the end
            self.coefficients[0] = 1.0
            self.inner[:3] = np.vdot(v, v), np.vdot(v, c), np.vdot(v, g)
            # As in the problem's own sampled products, rows of float32 are multiplied in float32.
            products = np.empty((n, 3, n_outputs))
            products[:, 0] = X @ v.astype(X.dtype, copy=False)
            products[:, 1] = self.at.margins[rows[place]]
            products[:, 2] = X @ g.astype(X.dtype, copy=False)
            gram = np.asarray(X @ X.T, dtype=np.float64)
            betas, scales = np.zeros((n, n_outputs)), np.zeros(n)
            make(place, products, gram, betas, scales)
            # After step j, v holds what the rows up to j added; its sum over steps weighs each by all later s.
            later = np.cumsum(scales[::-1])[::-1]
            self.v_total += later[0] * v
            added = X.T @ np.hstack([betas, later[:, None] * betas]).astype(X.dtype, copy=False)
            v += added[:, :n_outputs]
            self.v_total += added[:, n_outputs:]
            self.problem.counters.add(grad_evals=n, grad_evals_paper=2 * n, row_reads=n)

    def iterate(self) -> Floats:
        """Return w."""
        s, a, b = self.coefficients
        return s * self.v + a * self.at.w + b * self.gradient

    def total(self) -> Floats:
        """Return the sum of w over the steps."""
        return self.v_total + self.totals[0] * self.at.w + self.totals[1] * self.gradient
