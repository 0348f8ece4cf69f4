"""L-BFGS on the soft maximum of the group risks, sharpened step by step, as a solver for the driver."""

from collections import deque
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from groupdro.oracle import Oracle
from groupdro.run.solver import Solver, State

__all__ = ["SmoothedLBFGS"]

MEMORY = 10
WIDTHS = np.geomspace(1e-1, 1e-5, 9)
SLOPE = 0.1  # of the penalty outside of the ball, relative to the width of the losses


@dataclass
class _SmoothedState(State):
    flat: np.ndarray
    value: float
    gradient: np.ndarray
    pairs: Any
    level: int
    done: int


@dataclass(frozen=True)
class SmoothedLBFGS(Solver):
    """Minimise width * log sum exp(R_i / width) for nine widths, each for some steps of L-BFGS with backtracking.

    A model outside of the ball stands for its projection, with a slope back to the ball. Every trial of the line search
    computes values and gradient together, and counts as one gradient evaluation per row.

    Parameters
    ----------
    multiplier : float
        Factor of the widths, which start at 0.1.
    length : float
        Steps per width, in units of 8.
    """

    multiplier: float = 1.0
    _: KW_ONLY
    length: float = 1.0

    name = "benchmark-smoothed"

    def init(self, oracle: Oracle, w: np.ndarray, q: np.ndarray, seed: int) -> _SmoothedState:
        at = oracle.evaluate(w, q)
        flat = at.w.ravel().copy()
        begun = _SmoothedState(at, flat, 0.0, flat, deque(maxlen=MEMORY), 0, 0)
        with oracle.uncounted():  # the evaluation above, with the weights of the soft maximum
            begun.value, begun.gradient, begun.evaluation = self._smooth(oracle, flat, self._width(0))
        return begun

    def _width(self, level: int) -> float:
        return float(self.multiplier * WIDTHS[min(level, len(WIDTHS) - 1)])

    def _smooth(self, oracle: Oracle, flat: np.ndarray, width: float) -> tuple[float, np.ndarray, Any]:
        problem = oracle.problem
        radius = problem.domain.radius  # type: ignore[attr-defined]
        raw = flat.reshape(problem.shape)
        norm = float(np.linalg.norm(raw))
        point = raw if norm <= radius else raw * (radius / norm)
        # The weights depend on the risks at the point: two products with X, one gradient evaluation per row.
        with oracle.uncounted():
            risks = oracle.risks(point)
        top = risks.max()
        weights = np.exp((risks - top) / width)
        total = weights.sum()
        at = oracle.evaluate(point, weights / total)
        gradient, value = at.gradient, top + width * np.log(total)
        if norm > radius:
            unit = raw / norm
            gradient = (gradient - unit * float(np.vdot(unit, gradient))) * (radius / norm) + SLOPE * unit
            value += SLOPE * (norm - radius)
        return float(value), gradient.ravel(), at

    def epoch(self, oracle: Oracle, state: _SmoothedState) -> None:
        """Make one step."""
        if state.done >= round(8 * self.length) and state.level + 1 < len(WIDTHS):
            state.level, state.done = state.level + 1, 0
            # The same point under a sharper maximum: margins are known, only the weights change.
            with oracle.uncounted():
                state.value, state.gradient, state.evaluation = self._smooth(
                    oracle, state.flat, self._width(state.level)
                )
        direction = -_two_loops(state.gradient, state.pairs)
        slope = float(direction @ state.gradient)
        if slope >= 0:
            state.pairs.clear()
            direction, slope = -state.gradient, -float(state.gradient @ state.gradient)
        step = 1.0 if state.pairs else min(1.0, 1.0 / max(float(np.abs(state.gradient).sum()), 1e-300))
        for _ in range(30):
            flat = state.flat + step * direction
            value, gradient, at = self._smooth(oracle, flat, self._width(state.level))
            if value <= state.value + 1e-4 * step * slope:
                break
            step *= 0.5
        else:
            state.pairs.clear()
            state.done = 1 << 30  # on to the next width
            state.stalled = state.level + 1 == len(WIDTHS)
            return
        s, y = flat - state.flat, gradient - state.gradient
        if float(s @ y) > 1e-12 * float(s @ s):
            state.pairs.append((s, y))
        state.flat, state.value, state.gradient, state.evaluation = flat, value, gradient, at
        state.done += 1


def _two_loops(gradient: np.ndarray, pairs: Any) -> np.ndarray:
    """Return the inverse Hessian's approximation times the gradient."""
    direction, kept = gradient.copy(), []
    for s, y in reversed(pairs):
        rho = 1.0 / float(s @ y)
        a = rho * float(s @ direction)
        direction -= a * y
        kept.append((rho, a))
    if pairs:
        s, y = pairs[-1]
        direction *= float(s @ y) / float(y @ y)
    for (s, y), (rho, a) in zip(pairs, reversed(kept), strict=True):
        direction += s * (a - rho * float(y @ direction))
    return direction
