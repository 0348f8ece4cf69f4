"""The steps of ALEG in plain form, for any loss, rows, domain, set of weights and number of workers."""

import numpy as np

from groupdro.data import BatchPlan, Draw
from groupdro.solvers.steps.inner_loop import InnerLoop, Steps
from groupdro.utils.types import Indices

__all__ = ["ReadableSteps"]


class ReadableSteps(Steps):
    """Steps in terms of the problem's and the geometries' operations; compiled steps must agree with them."""

    @classmethod
    def fits(cls, loop: InnerLoop) -> bool:
        """Return True: this implementation supports everything."""
        return True

    def run(self, plan: BatchPlan, members: Indices) -> None:
        """Make one step per row of `members`."""
        loop = self.loop
        problem = self.loop.problem
        at = loop.at
        geometry = loop.geometry
        weighting = problem.weight_geometry()
        groups = np.atleast_2d(plan.groups)
        weights = np.atleast_2d(plan.weights)
        for k, drawn in enumerate(members):
            # 1. The centre between snapshot and iterate.
            w_centre = loop.alpha * loop.w_centre + (1.0 - loop.alpha) * loop.w
            q_centre = loop.alpha * loop.logit_centre + (1.0 - loop.alpha) * loop.logits
            # 2. The half point, along the snapshot's gradient.
            w_half = geometry.point(geometry.step(w_centre, loop.w_steps, loop.gradient))
            q_half = weighting.point(weighting.step(q_centre, loop.q_step, -loop.values))
            # 3. The drawn rows' differences between there and the snapshot.
            draw = Draw(drawn, groups[k % len(groups)], weights[k % len(weights)])
            loss_difference, sampled = loop.oracle.sampled_difference(draw, at, loop.turned_back(w_half), q_half)
            gradient_difference = loop.turned_gradient(sampled)
            # 4. The step, from the same centre.
            loop.w = geometry.step(w_centre, loop.w_steps, loop.gradient + gradient_difference)
            loop.logits = weighting.step(q_centre, loop.q_step, -(loop.values + loss_difference))
            # 5. Sums for the next snapshot and the choice of step sizes.
            loop.w_total += geometry.point(loop.w)
            loop.mirror_total += loop.w
            loop.q_total += weighting.moved(weighting.point(loop.logits))
            loop.logit_total += loop.logits
            loop.measures["gradient_w"] += geometry.squared_gradient(loop.w_steps, gradient_difference, w_half)
            loop.measures["gradient_q"] += weighting.squared_gradient(loop.q_step, loss_difference, q_half)
            loop.measures["distance_w"] += geometry.squared_distance(loop.w_steps, w_half, loop.snapshot)
            loop.measures["distance_q"] += weighting.squared_distance(loop.q_step, q_half, at.q)
        loop.n_steps += len(members)
