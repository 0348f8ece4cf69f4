"""Mirror prox on full passes: a solver in one file."""

from dataclasses import dataclass

import numpy as np

from groupdro.oracle import Oracle
from groupdro.solvers import Solver, State

_SHORTEST = 1e-15  # a step that moves nothing


@dataclass
class MirrorProxState(State):
    """Both players in mirror coordinates, and the step."""

    w: np.ndarray
    logits: np.ndarray
    step: float


@dataclass(frozen=True)
class MirrorProx(Solver):
    """Extragradient steps of both players on all rows, two passes each.

    Parameters
    ----------
    balance : float
        Step size of the group weights relative to that of w.
    """

    name = "mirror_prox"

    balance: float = 10.0

    def init(
        self, oracle: Oracle, w: np.ndarray, q: np.ndarray, seed: int
    ) -> MirrorProxState:
        """Pass over the data at the start."""
        at = oracle.evaluate(w, q)
        mirror = oracle.problem.geometry().mirror(w)
        logits = oracle.problem.weight_geometry().mirror(q)
        return MirrorProxState(evaluation=at, w=mirror, logits=logits, step=1.0)

    def epoch(self, oracle: Oracle, state: MirrorProxState) -> None:
        """Look ahead, then step from the same centre along the gradient found there."""
        problem = oracle.problem
        geometry, weighting = problem.geometry(), problem.weight_geometry()
        at = state.evaluation
        values = problem.group_values(at.group_risks)
        while state.step > _SHORTEST:
            w_step, q_step = state.step, self.balance * state.step
            # 1. The half point. The weights ascend, hence the minus sign.
            w = geometry.point(geometry.step(state.w, w_step, at.gradient))
            q = weighting.point(weighting.step(state.logits, q_step, -values))
            half = oracle.evaluate(w, q)
            # 2. The step is short enough if gradients differ no more than points do.
            gradient_change = half.gradient - at.gradient
            value_change = half.group_risks - at.group_risks
            change = geometry.squared_gradient(w_step, gradient_change, w)
            change += weighting.squared_gradient(q_step, value_change, q)
            distance = geometry.squared_distance(w_step, w, at.w)
            distance += weighting.squared_distance(q_step, q, at.q)
            if change <= distance:
                break
            state.step *= 0.5
        else:
            state.stalled = True
            return
        # 3. The step itself, from the same centre. The next epoch tries a longer one.
        state.w = geometry.step(state.w, w_step, half.gradient)
        values = problem.group_values(half.group_risks)
        state.logits = weighting.step(state.logits, q_step, -values)
        w, q = geometry.point(state.w), weighting.point(state.logits)
        state.evaluation = oracle.evaluate(w, q)
        state.step *= 1.5
