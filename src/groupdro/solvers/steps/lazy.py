"""Steps on sparse rows at the cost of their entries, for one output and one step size for all features."""

import numpy as np

from groupdro.data import BatchPlan
from groupdro.kernels.arguments import CsrData, Drawn, LazyPlayer
from groupdro.kernels.sparse import csr_steps
from groupdro.solvers.steps.inner_loop import InnerLoop, Steps
from groupdro.utils.types import Indices

__all__ = ["LazySteps"]

_SCATTERED = 25.0 / 3.0  # cost of an entry of a drawn row relative to one in a pass


class LazySteps(Steps):
    """Steps of `kernels.sparse`."""

    def __init__(self, loop: InnerLoop):
        super().__init__(loop)
        d = loop.problem.data.n_features
        ball = loop.geometry.ball
        assert ball is not None
        features = np.zeros((d, 8))
        gram = np.zeros(10)
        free = np.zeros(4)
        vectors = (loop.w[:d], loop.snapshot[:d], loop.gradient[:d])
        for k, vector in enumerate(vectors):
            features[:, k] = vector
            gram[k] = vector @ vector
        features[:, 5] = -1.0
        gram[4:7] = vectors[0] @ vectors[1], vectors[0] @ vectors[2], vectors[1] @ vectors[2]
        if len(loop.w) > d:
            free[:3] = loop.w[d], loop.snapshot[d], loop.gradient[d]
        steps = np.broadcast_to(loop.w_steps, loop.w.shape)
        step = float(steps[0])
        free_step = float(steps[-1])
        coefficients = np.array([1.0, 0, 0, 1, 0, 0, 0, 0])
        self.player = LazyPlayer(features, gram, coefficients, free, step, free_step, ball.penalty, ball.radius)

    @classmethod
    def fits(cls, loop: InnerLoop) -> bool:
        """Require flat sparse rows, a ball, a supported weight set, the original coordinates and a single step size."""
        plain = loop.geometry.ball is not None and loop.problem.weights_known
        return plain and not loop.rotation.size and isinstance(loop.problem.flat, CsrData) and np.ndim(loop.w_steps) > 0

    @property
    def entries(self) -> float:
        """Count the stored entries."""
        return _SCATTERED * self.loop.problem.data.rows.n_entries

    def run(self, plan: BatchPlan, members: Indices) -> None:
        """Make one step per row of `members`."""
        loop = self.loop
        drawn = Drawn(loop.oracle.drawn_rows(members), plan.groups, plan.weights)
        q = loop.weight_player()
        sums = loop.totals()
        work = np.empty((3, loop.problem.n_groups))
        csr_steps(loop.problem.flat, drawn, loop.at.margins, self.player, loop.n_steps, q, sums, work)
        loop.n_steps += len(members)

    def flush(self) -> None:
        """Set w to the iterate and add the sum of the iterates to the points."""
        loop = self.loop
        player = self.player
        d = len(player.features)
        vectors = player.features[:, :4]
        loop.w_total[:d] += vectors @ player.coefficients[4:] - player.features[:, 4]
        loop.w[:d] = vectors @ player.coefficients[:4]
        if len(loop.w) > d:
            loop.w[d] = player.free[0]
            loop.w_total[d] += player.free[3]
        loop.mirror_total = loop.w_total
