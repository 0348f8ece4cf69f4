"""Steps on sparse rows at the cost of their entries, for one output and one step size for all features."""

import numpy as np
from numpy.lib.recfunctions import structured_to_unstructured

from groupdro.data import BatchPlan
from groupdro.kernels.arguments import (
    INNER_PRODUCTS,
    LAZY_FEATURE,
    MIXTURE,
    CsrData,
    Drawn,
    LazyPlayer,
    record,
    records,
)
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
        start, snapshot, gradient = loop.w[:d], loop.snapshot[:d], loop.gradient[:d]
        features = records(LAZY_FEATURE, d)
        features["start"], features["snapshot"], features["gradient"] = start, snapshot, gradient
        features["drawn"] = -1
        steps = np.broadcast_to(loop.w_steps, loop.w.shape)
        self.player = LazyPlayer(
            features,
            record(
                INNER_PRODUCTS,
                start=start @ start,
                snapshot=snapshot @ snapshot,
                gradient=gradient @ gradient,
                start_snapshot=start @ snapshot,
                start_gradient=start @ gradient,
                snapshot_gradient=snapshot @ gradient,
            ),
            record(MIXTURE, start=1.0, u=1.0),
            record(MIXTURE),
            loop.free_intercept(),
            float(steps[0]),
            float(steps[-1]),
            ball.penalty,
            ball.radius,
        )

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
        vectors = structured_to_unstructured(player.features[list(MIXTURE.names)])
        loop.w_total[:d] += vectors @ player.total.tolist() - player.features["late"]
        loop.w[:d] = vectors @ player.iterate.tolist()
        if len(loop.w) > d:
            loop.w[d] = player.free["iterate"]
            loop.w_total[d] += player.free["total"]
        loop.mirror_total = loop.w_total
