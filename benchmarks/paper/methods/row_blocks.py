"""Steps on one row each for several outputs, many at a time, using `block_kernels`."""

from collections.abc import Callable

import numpy as np

from benchmarks.paper.methods.block_kernels import RowBlock, entropic_block
from groupdro.data import BatchPlan, Draw
from groupdro.geometry import Ball, Geometry
from groupdro.oracle import Evaluation, Oracle
from groupdro.problem import Problem
from groupdro.solvers.steps import InnerLoop, Steps
from groupdro.solvers.steps.fused import FusedSteps
from groupdro.solvers.steps.readable import ReadableSteps
from groupdro.utils.types import Floats, Indices

__all__ = ["SINGLE_ROWS", "BlockSteps", "RowBlocks", "takes_blocks"]

#: Makes the steps of a block; sets each row's contribution to v, and s after each step.
Make = Callable[[RowBlock, Floats], None]

BLOCK = 128  # steps; products of rows with rows then take about as long as those with w


def takes_blocks(problem: Problem, geometry: Geometry, w_steps: Floats | float, alpha: float) -> bool:
    """Return whether steps on one row each can be made in blocks: several outputs, a single step size.

    If the centre is the snapshot (alpha = 1), nothing is left of v, by whose share the blocks divide.
    """
    known = geometry.ball is not None and problem.weights_known and problem.loss.in_blocks
    whole = problem.data.rows.combinable and problem.data.is_whole and not problem.data.row_offsets.size
    return bool(alpha < 1.0 and known and whole and not problem.fit_intercept and np.ndim(w_steps) == 0)


class RowBlocks:
    """w as s v + a c + b g, where c and g are the snapshot and its gradient.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the problem.
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

    def __init__(self, oracle: Oracle, at: Evaluation, gradient: Floats, w: Floats):
        self.oracle, self.at, self.gradient = oracle, at, gradient
        self.v, self.v_total = w.copy(), np.zeros_like(w)
        self.coefficients, self.totals, self.inner = np.array([1.0, 0.0, 0.0]), np.zeros(2), np.empty(6)
        self.inner[3:] = np.vdot(at.w, at.w), np.vdot(at.w, gradient), np.vdot(gradient, gradient)

    def advance(self, draw: Draw, step: float, ball: Ball, make: Make) -> None:
        """Make a step on each of the drawn members."""
        data, n_outputs = self.oracle.problem.data, self.oracle.problem.model.n_outputs
        rows = self.oracle.drawn_rows(draw.members)
        for start in range(0, len(rows), BLOCK):
            place = slice(start, min(start + BLOCK, len(rows)))
            X = data.rows.take(rows[place]).dense()
            n = len(X)
            v, c, g = self.v, self.at.w, self.gradient
            v *= self.coefficients[0]  # s would eventually underflow
            self.coefficients[0] = 1.0
            self.inner[:3] = np.vdot(v, v), np.vdot(v, c), np.vdot(v, g)
            # Float32 rows are multiplied in float32, as in the problem's own sampled products.
            products = np.empty((n, 3, n_outputs))
            products[:, 0] = X @ v.astype(X.dtype, copy=False)
            products[:, 1] = self.at.margins[rows[place]]
            products[:, 2] = X @ g.astype(X.dtype, copy=False)
            gram = np.asarray(X @ X.T, dtype=np.float64)
            betas, scales = np.zeros((n, n_outputs)), np.zeros(n)
            drawn = data.y[rows[place]], draw.groups[place], draw.weights[place]
            kept = self.coefficients, self.inner, betas
            make(RowBlock(products, gram, *drawn, *kept, step, ball.penalty, ball.radius), scales)
            # After step j, v holds the contributions of rows up to j; its sum over steps weights each by all later s.
            later = np.cumsum(scales[::-1])[::-1]
            self.v_total += later[0] * v
            added = X.T @ np.hstack([betas, later[:, None] * betas]).astype(X.dtype, copy=False)
            v += added[:, :n_outputs]
            self.v_total += added[:, n_outputs:]

    def iterate(self) -> Floats:
        """Return w."""
        s, a, b = self.coefficients
        return s * self.v + a * self.at.w + b * self.gradient

    def total(self) -> Floats:
        """Return the sum of w over the steps."""
        return self.v_total + self.totals[0] * self.at.w + self.totals[1] * self.gradient


class BlockSteps(Steps):
    """Mirror steps on one row each in blocks; the snapshot is also the centre."""

    def __init__(self, loop: InnerLoop):
        super().__init__(loop)
        self.blocks = RowBlocks(loop.oracle, loop.at, loop.gradient, loop.w)

    @classmethod
    def fits(cls, loop: InnerLoop) -> bool:
        """Require several outputs, dense rows, a ball, a supported weight set and a single step size."""
        return takes_blocks(loop.problem, loop.geometry, loop.w_steps, loop.alpha)

    def run(self, plan: BatchPlan, members: Indices) -> None:
        """Make one step per row of `members`."""
        loop, blocks, ball = self.loop, self.blocks, self.loop.geometry.ball
        assert ball is not None
        assert isinstance(loop.w_steps, float)
        player, sums, work = loop.weight_player(), loop.totals(), np.empty((3, loop.problem.n_groups))
        draw = Draw(members[:, 0], plan.groups[:, 0], plan.weights[:, 0])

        def make(block: RowBlock, scales: Floats) -> None:
            entropic_block(block, player, sums, scales, blocks.totals, work)

        blocks.advance(draw, loop.w_steps, ball, make)
        loop.n_steps += len(members)

    def flush(self) -> None:
        """Write out w and the sum of its iterates."""
        loop = self.loop
        loop.w, loop.w_total = self.blocks.iterate(), loop.w_total + self.blocks.total()
        loop.mirror_total = loop.w_total


#: Steps that draw one member each, fastest first.
SINGLE_ROWS: tuple[type[Steps], ...] = (FusedSteps, BlockSteps, ReadableSteps)
