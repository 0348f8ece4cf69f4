"""SMD: stochastic mirror descent on both players (after Nemirovski, Juditsky, Lan and Shapiro 2009).

The constants are derived here, see `descent_constant`. The method has no variance reduction and no snapshot, so a step
costs one row per group and the error decreases like one over the square root of the number of steps.
"""

from dataclasses import dataclass

import numpy as np

from groupdro.data import Draw
from groupdro.geometry import Geometry
from groupdro.oracle import Oracle
from groupdro.problem import Problem
from groupdro.run.solver import BOUNDED, Requirement, Solver, State
from groupdro.solvers.step_sizes import check_multiplier
from groupdro.utils.types import Floats

__all__ = ["SMD", "SmdState", "descent_constant"]


def descent_constant(problem: Problem, geometry: Geometry) -> float:
    """Return M, a root-mean-square bound on the operator in the scaled norm: M^2 = 2 D^2 G^2 + 2 B^2 ln m.

    D^2 is the range of the potential of w, G the rows' Lipschitz constant, and B = radius * G bounds how far losses on
    the domain deviate from those at its centre. A constant common to all groups does not change the weights.
    """
    G = problem.constants(geometry.dual_order, geometry.radius).lipschitz
    log_m = float(np.log(problem.n_groups))
    return float(np.sqrt(2.0 * geometry.squared_diameter * G**2 + 2.0 * (geometry.radius * G) ** 2 * log_m))


@dataclass
class SmdState(State):
    """State of SMD: both players in mirror coordinates, and the step-weighted sums of their positions."""

    geometry: Geometry
    w: Floats
    logits: Floats
    w_total: Floats
    q_total: Floats
    step_total: float
    steps: int
    constant: float
    seed: int


@dataclass(frozen=True)
class SMD(Solver):
    """Stochastic mirror descent with one sample of every group per step.

    A base step gamma means step sizes of 2 D^2 gamma for w and 2 ln(m) gamma for the logits. It decreases as multiplier
    / (M sqrt t). An epoch draws about as many rows as there are.

    Parameters
    ----------
    multiplier : float
        Factor of the base step size, the parameter to tune; 1 is the theoretical value.
    """

    name = "smd"

    multiplier: float = 1.0

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """A bounded domain, from which the step sizes are derived."""
        return (BOUNDED,)

    def init(self, oracle: Oracle, w: Floats, q: Floats, seed: int) -> SmdState:
        """Begin at the start; the evaluation there is only for the trace."""
        problem = oracle.problem
        weighting = problem.weight_geometry()
        q = weighting.interior(q)
        with oracle.uncounted():
            at = oracle.evaluate(w, q)
        geometry = problem.bounded_geometry(w, at.group_risks)
        return SmdState(
            evaluation=at,
            geometry=geometry,
            w=geometry.mirror(w),
            logits=weighting.mirror(q),
            w_total=np.zeros_like(w),
            q_total=np.zeros_like(q),
            step_total=0.0,
            steps=0,
            constant=descent_constant(problem, geometry) or 1.0,  # zero if nothing can move
            seed=seed,
        )

    def base_step(self, state: SmdState) -> float:
        """Return gamma of the next step."""
        return self.multiplier / (state.constant * np.sqrt(state.steps + 1.0))

    def epoch(self, oracle: Oracle, state: SmdState) -> None:
        """Make as many steps as draw about as many rows as there are."""
        rng = np.random.default_rng([state.seed, state.epoch])
        for _ in range(max(1, round(oracle.problem.n_rows / oracle.problem.n_groups))):
            self.step(oracle, state, rng)

    def step(self, oracle: Oracle, state: SmdState, rng: np.random.Generator) -> None:
        """Move both players along the gradients estimated from one row per group."""
        gamma, geometry, weighting = self.base_step(state), state.geometry, oracle.problem.weight_geometry()
        w, q = geometry.point(state.w), weighting.point(state.logits)
        risks, gradient = oracle.sampled(Draw.one_per_group(oracle.problem.data, rng), w, q)
        values = oracle.problem.group_values(risks)
        # The output averages the points at which the gradients were taken.
        state.w_total += gamma * w
        state.q_total += gamma * q
        state.step_total += gamma
        state.w = geometry.step(state.w, 2.0 * geometry.squared_diameter * gamma, gradient)
        state.logits = weighting.step(state.logits, 2.0 * weighting.squared_diameter * gamma, -values)
        state.steps += 1

    def point(self, state: SmdState) -> tuple[Floats, Floats] | None:
        """Return the step-weighted average, to which the theory applies."""
        if state.step_total == 0.0:
            return None
        return state.w_total / state.step_total, state.q_total / state.step_total
