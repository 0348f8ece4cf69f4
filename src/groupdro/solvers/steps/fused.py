"""Steps in one compiled loop, for one output, dense rows of one process, a ball, and bounded group weights."""

import numpy as np

from groupdro.data import BatchPlan
from groupdro.kernels.arguments import DenseData, Drawn, Turn, WPlayer
from groupdro.kernels.epochs import dense_steps
from groupdro.solvers.steps.inner_loop import InnerLoop, Steps
from groupdro.utils.types import Indices

__all__ = ["FusedSteps"]


class FusedSteps(Steps):
    """Steps of `kernels.epochs`."""

    @classmethod
    def fits(cls, loop: InnerLoop) -> bool:
        """Require flat dense rows, a ball and a supported weight set."""
        plain = loop.geometry.ball is not None and loop.problem.weights_known
        return plain and isinstance(loop.problem.flat, DenseData)

    def run(self, plan: BatchPlan, members: Indices) -> None:
        """Make one step per row of `members`."""
        loop, ball = self.loop, self.loop.geometry.ball
        assert ball is not None
        rows = loop.problem.drawn_rows(members)
        steps = np.ascontiguousarray(np.broadcast_to(loop.w_steps, loop.w.shape))
        dense_steps(
            loop.problem.flat,
            Turn(loop.rotation, loop.shift),
            Drawn(rows, np.atleast_2d(plan.groups), np.atleast_2d(plan.weights)),
            loop.at.margins,
            WPlayer(loop.w, loop.snapshot, loop.gradient, steps, ball.penalty, ball.radius),
            loop.weight_player(),
            loop.totals(),
            np.empty((5, loop.w.size)),
            np.empty((3, loop.problem.n_groups)),
        )
        loop.mirror_total = loop.w_total
        loop.n_steps += len(members)
