"""Steps on sparse rows at the cost of their entries, with an L1 penalty or bounds on each coefficient."""

import numpy as np

from groupdro.data import BatchPlan
from groupdro.kernels.arguments import ENDS, PROXIMAL_FEATURE, CsrData, Drawn, PowerSums, ProximalPlayer, records
from groupdro.kernels.proximal import catch_up_all, csr_proximal_steps
from groupdro.solvers.steps.inner_loop import InnerLoop, Steps
from groupdro.utils.types import Indices

__all__ = ["ProximalSteps"]

_SCATTERED = 12.0  # cost of an entry of a drawn row relative to one in a pass


class ProximalSteps(Steps):
    """Steps of `kernels.proximal`."""

    def __init__(self, loop: InnerLoop):
        super().__init__(loop)
        d = loop.problem.data.n_features
        separable = loop.separable
        assert separable is not None
        steps = np.broadcast_to(loop.w_steps, loop.w.shape)
        step = float(steps[0])
        free_step = float(steps[-1])
        features = records(PROXIMAL_FEATURE, d)
        features["w"], features["snapshot"], features["drawn"] = loop.w[:d], loop.snapshot[:d], -1
        features["pull"] = loop.alpha * loop.snapshot[:d] - step * loop.gradient[:d]
        low, high = separable.ends(1)
        bounds = np.empty(d if np.isfinite(low).any() or np.isfinite(high).any() else 0, ENDS)
        if bounds.size:
            bounds["low"], bounds["high"] = low, high
        rho = (1.0 - loop.alpha) / (1.0 + step * separable.l2)
        reached = np.append(0.0, np.cumsum(rho ** np.arange(round(1.0 / loop.alpha))))
        sums = PowerSums(reached, np.cumsum(reached), np.cumsum(reached**2))
        free = loop.free_intercept()
        self.player = ProximalPlayer(features, sums, free, bounds, step, free_step, separable.l1, separable.l2)

    @classmethod
    def fits(cls, loop: InnerLoop) -> bool:
        """Require flat sparse rows, separate coefficients, a supported weight set and a single step size."""
        plain = loop.separable is not None and loop.problem.weights_known
        return plain and isinstance(loop.problem.flat, CsrData) and np.ndim(loop.w_steps) > 0

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
        csr_proximal_steps(loop.problem.flat, drawn, loop.at.margins, self.player, loop.n_steps, q, sums, work)
        loop.n_steps += len(members)

    def flush(self) -> None:
        """Make the steps that features skipped, set w, and add the sum of the iterates to the points."""
        loop = self.loop
        player = self.player
        loop.measures["distance_w"] += catch_up_all(player, loop.alpha, loop.n_steps) / player.step
        d = len(player.features)
        loop.w[:d] = player.features["w"]
        loop.w_total[:d] += player.features["total"]
        if len(loop.w) > d:
            loop.w[d] = player.free["iterate"]
            loop.w_total[d] += player.free["total"]
        loop.mirror_total = loop.w_total
