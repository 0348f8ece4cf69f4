"""Steps in one compiled loop, for one output, dense rows of one process, and the usual domains and weight sets."""

import numpy as np

from groupdro.data import BatchPlan
from groupdro.kernels.arguments import DenseData, Drawn, Thresholds, Turn, WPlayer
from groupdro.kernels.epochs import dense_steps
from groupdro.solvers.steps.inner_loop import InnerLoop, Steps
from groupdro.utils.types import Indices

__all__ = ["FusedSteps"]


class FusedSteps(Steps):
    """Steps of `kernels.epochs`."""

    @classmethod
    def fits(cls, loop: InnerLoop) -> bool:
        """Require flat dense rows, a ball or separate coefficients, and a supported weight set."""
        plain = (loop.geometry.ball is not None or loop.separable is not None) and loop.problem.weights_known
        return plain and isinstance(loop.problem.flat, DenseData)

    def run(self, plan: BatchPlan, members: Indices) -> None:
        """Make one step per row of `members`."""
        loop = self.loop
        ball = self.loop.geometry.ball
        separable = self.loop.separable
        penalty = 0.0
        radius = np.inf
        thresholds = Thresholds(0.0, np.empty(0), np.empty(0))
        if ball is not None:
            radius, penalty = ball
        elif separable is not None:
            ends = (np.nan_to_num(np.broadcast_to(end, loop.problem.data.n_features)) for end in separable.ends(1))
            penalty = separable.l2
            thresholds = Thresholds(separable.l1, *ends)
        rows = loop.oracle.drawn_rows(members)
        steps = np.ascontiguousarray(np.broadcast_to(loop.w_steps, loop.w.shape))
        dense_steps(
            loop.problem.flat,
            Turn(loop.rotation, loop.shift),
            Drawn(rows, np.atleast_2d(plan.groups), np.atleast_2d(plan.weights)),
            loop.at.margins,
            WPlayer(loop.w, loop.snapshot, loop.gradient, steps, penalty, radius),
            thresholds,
            loop.weight_player(),
            loop.totals(),
            np.empty((5, loop.w.size)),
            np.empty((3, loop.problem.n_groups)),
        )
        loop.mirror_total = loop.w_total
        loop.n_steps += len(members)
