"""MPVR: variance-reduced mirror prox with one sample per step (Alacaoglu and Malitsky 2022, Algorithm 2).

Step size and order of operations are those of the original source; see the errata in docs/from_the_paper.md.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np

from benchmarks.paper.methods.row_blocks import SINGLE_ROWS
from groupdro.data import BatchPlan
from groupdro.geometry import Geometry
from groupdro.oracle import Oracle
from groupdro.problem import Problem
from groupdro.run.solver import BOUNDED, Requirement, Solver, State
from groupdro.solvers.step_sizes import check_multiplier
from groupdro.solvers.steps import InnerLoop, steps_of
from groupdro.solvers.steps.readable import ReadableSteps
from groupdro.utils.arguments import check_choice, check_flag, check_whole
from groupdro.utils.types import Floats, Indices

__all__ = ["MPVR", "MpvrState", "sampling_constant"]

Sampling = Literal["uniform", "importance"]

_SECONDS_PER_PIECE = 0.05  # an interrupt can arrive only between pieces


def sampling_constant(problem: Problem, geometry: Geometry, sampling: Sampling) -> float:
    """Return the mean-square Lipschitz constant of the one-sample operator.

    D^2 is the range of the potential of w, G and L the rows' constants, and n, n_min, n_harmonic the mean, smallest and
    harmonic mean group size:

        uniform      2 D max( sqrt(2 D^2 L^2 m n/n_min + G^2 m^2 ln m n/n_harmonic), G sqrt(2 m ln m n/n_min) )
        importance   2 D max( sqrt(2 D^2 L^2 m + G^2 m^2 ln m), G sqrt(2 m ln m) )
    """
    constants = problem.constants(geometry.dual_order, geometry.radius)
    G, L, D2 = constants.lipschitz, constants.smoothness, geometry.squared_diameter
    sizes, m = problem.data.all_sizes, problem.n_groups
    least, harmonic = 1.0, 1.0
    if sampling == "uniform":
        least, harmonic = float(sizes.mean() / sizes.min()), float(sizes.mean() * np.mean(1.0 / sizes))
    log_m = float(np.log(m))
    first = np.sqrt(2.0 * D2 * L**2 * m * least + G**2 * m**2 * log_m * harmonic)
    return float(2.0 * np.sqrt(D2) * max(first, G * np.sqrt(2.0 * m * log_m * least)))


@dataclass
class MpvrState(State):
    """State of MPVR: both players and the centres of their snapshots, in mirror coordinates."""

    geometry: Geometry
    w: Floats
    logits: Floats
    w_centre: Floats
    logit_centre: Floats
    step: float
    seed: int
    w_total: Floats
    q_total: Floats


class _HalfSteps(ReadableSteps):
    """Plain steps of the algorithm, which also sum up the half steps z_{k+1/2}."""

    def __init__(self, loop: InnerLoop):
        super().__init__(loop)
        self.w_total = np.zeros_like(loop.at.w)
        self.q_total = np.zeros_like(loop.at.q)

    def run(self, plan: BatchPlan, members: Indices) -> None:
        """Make one step per row of `members`, each from its own half step."""
        loop, weighting = self.loop, self.loop.problem.weight_geometry()
        for k in range(len(members)):
            w_centre = loop.alpha * loop.w_centre + (1.0 - loop.alpha) * loop.w
            q_centre = loop.alpha * loop.logit_centre + (1.0 - loop.alpha) * loop.logits
            self.w_total += loop.geometry.point(loop.geometry.step(w_centre, loop.w_steps, loop.gradient))
            self.q_total += weighting.point(weighting.step(q_centre, loop.q_step, -loop.values))
            one = slice(k, k + 1)
            super().run(BatchPlan(1, plan.groups[one], plan.weights[one]), members[one])


@dataclass(frozen=True)
class MPVR(Solver):
    """Variance-reduced mirror prox with one sample per step.

    An epoch is a pass at the snapshot and K steps. Importance sampling draws a group and then one of its rows;
    uniform sampling draws a row among all.

    Parameters
    ----------
    multiplier : float
        Factor of the base step size; 1 is the theoretical value.
    sampling : {"importance", "uniform"}
        How the sample is drawn.
    epoch_length : int, optional
        K; by default half the number of rows, as its authors recommend.
    half_steps : bool
        Whether to average the half steps z_{k+1/2}, as Algorithm 3 does. The steps are then NumPy calls, and much
        slower. Otherwise the average is that of the iterates z_{k+1}, which compiled steps keep.
    """

    name = "mpvr"

    multiplier: float = 1.0
    _: KW_ONLY
    sampling: Sampling = "importance"
    epoch_length: int | None = None
    half_steps: bool = False

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)
        check_choice(self.sampling, "sampling", ("importance", "uniform"))
        check_flag(self.half_steps, "half_steps")
        if self.epoch_length is not None:
            check_whole(self.epoch_length, "epoch_length", least=1)

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """A bounded domain, from which the step size is derived."""
        return (BOUNDED,)

    def length(self, problem: Problem) -> int:
        """Return the steps of an epoch."""
        return self.epoch_length if self.epoch_length is not None else max(1, problem.n_rows // 2)

    def init(self, oracle: Oracle, w: Floats, q: Floats, seed: int) -> MpvrState:
        """Evaluate the start, which is the first snapshot."""
        problem = oracle.problem
        weighting = problem.weight_geometry()
        q = weighting.interior(q)
        at = oracle.evaluate(w, q)
        geometry = problem.bounded_geometry(w, at.group_risks)
        lipschitz = sampling_constant(problem, geometry, self.sampling)
        step = 0.99 * self.multiplier / (np.sqrt(self.length(problem)) * lipschitz) if lipschitz > 0 else 1.0
        mirror, logits = geometry.mirror(w), weighting.mirror(q)
        sums = np.zeros_like(at.w), np.zeros_like(at.q)
        return MpvrState(at, geometry, mirror, logits, mirror, logits, float(step), seed, *sums)

    def epoch(self, oracle: Oracle, state: MpvrState) -> None:
        """Make K steps, move the snapshot to their mean, and make a pass there."""
        problem = oracle.problem
        K, geometry = self.length(problem), state.geometry
        loop = InnerLoop(
            oracle=oracle,
            at=state.evaluation,
            geometry=geometry,
            w_steps=2.0 * geometry.squared_diameter * state.step,
            q_step=2.0 * problem.weight_geometry().squared_diameter * state.step,
            alpha=1.0 / K,
            w=state.w,
            w_centre=state.w_centre,
            logits=state.logits,
            logit_centre=state.logit_centre,
        )
        rng = np.random.default_rng([state.seed, state.epoch])
        steps = _HalfSteps(loop) if self.half_steps else steps_of(loop, SINGLE_ROWS)
        seconds = 1e-9 * (10.0 * np.prod(problem.shape) ** 0.9 + 20.0 * problem.n_groups)
        piece = max(1, int(_SECONDS_PER_PIECE / seconds))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for start in range(0, K, piece):
                plan, members = self.draw(problem, min(piece, K - start), rng)
                steps.run(plan, members)
            steps.flush()
        state.w, state.logits = loop.iterate(), loop.logits
        state.w_centre, state.logit_centre = loop.mean_mirror(), loop.logit_total / K
        state.evaluation = oracle.evaluate(loop.mean_point(), loop.mean_weights())
        # All epochs are equally long, and a snapshot is the mean of an epoch's iterates.
        half = isinstance(steps, _HalfSteps)
        state.w_total = state.w_total + (steps.w_total / K if half else state.evaluation.w)
        state.q_total = state.q_total + (steps.q_total / K if half else state.evaluation.q)

    def average(self, state: MpvrState) -> tuple[Floats, Floats] | None:
        """Return the average of all half steps, the output of Algorithm 3, or of all iterates; None without any."""
        total = float(state.q_total.sum())
        return (state.w_total / total, state.q_total / total) if total else None

    def draw(self, problem: Problem, n: int, rng: np.random.Generator) -> tuple[BatchPlan, Indices]:
        """Draw one member for each of n steps, with its group and its weight in the estimate."""
        data, m = problem.data, problem.n_groups
        if self.sampling == "importance":
            groups = rng.integers(0, m, size=n)
            weights = np.full(n, float(m))
        else:
            sizes = data.all_sizes
            groups = np.searchsorted(np.cumsum(sizes), rng.integers(0, sizes.sum(), size=n), side="right")
            weights = sizes.sum() / sizes[groups]
        plan = BatchPlan(n, groups[:, None], weights[:, None])
        return plan, data.draw_members(groups, 1, rng)[0][:, None]
