"""AL-SVRE: loopless variance-reduced extragradient inside Catalyst (after Luo and others 2021).

It is reconstructed from published descriptions; the original text and code were not available. The inner method is that
of Alacaoglu and Malitsky, Algorithm 1; its combination with Catalyst is inferred from the stated complexity.
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np

from benchmarks.paper.methods.block_kernels import RowBlock, projected_block
from benchmarks.paper.methods.mpvr import sampling_constant
from benchmarks.paper.methods.requirements import BALL
from benchmarks.paper.methods.row_blocks import BLOCK, SINGLE_ROWS, RowBlocks, takes_blocks
from benchmarks.paper.methods.svre_kernel import project_simplex, svre_steps
from groupdro.data import BatchPlan, Draw
from groupdro.geometry import Ball, Euclidean
from groupdro.kernels.arguments import DenseData, WPlayer
from groupdro.oracle import Oracle
from groupdro.problem import Problem
from groupdro.run.solver import BOUNDED, SIMPLEX, Requirement, Solver, State
from groupdro.solvers.step_sizes import check_multiplier
from groupdro.solvers.steps import InnerLoop, steps_of
from groupdro.utils.arguments import check_choice, check_number
from groupdro.utils.types import Floats

__all__ = ["ALSVRE", "AlSvreState", "euclidean_constant"]


_STEPS_PER_PIECE = 20_000  # drawn at once
_SECONDS_PER_CALL = 0.05  # per call of compiled code, since an interrupt can arrive only between calls


def _short_calls(problem: Problem, n_steps: int) -> Iterator[slice]:
    """Split steps into calls of compiled code. This affects only the duration of each call."""
    seconds = 1e-9 * (10.0 * np.prod(problem.shape) ** 0.9 + 300.0 * problem.n_groups)  # with two sorts of the groups
    length = max(1, int(_SECONDS_PER_CALL / seconds) // BLOCK) * BLOCK  # a multiple of the block size
    for start in range(0, n_steps, length):
        yield slice(start, min(start + length, n_steps))


def euclidean_constant(problem: Problem, radius: float) -> float:
    """Return the mean-square Lipschitz constant of the one-sample operator with q in the Euclidean norm.

    max( sqrt(2 m L^2 + m^2 G^2), G sqrt(2 m) ), with G and L the rows' Lipschitz and smoothness constants.
    """
    constants, m = problem.constants(2.0, radius), problem.n_groups
    G, L = constants.lipschitz, constants.smoothness
    return float(max(np.sqrt(2.0 * m * L**2 + m**2 * G**2), G * np.sqrt(2.0 * m)))


@dataclass
class AlSvreState(State):
    """State of AL-SVRE; the evaluation is the pass at the latest snapshot.

    Attributes
    ----------
    geometry : Euclidean
        The domain, with a finite radius.
    w, q : ndarray
        The iterate.
    w_before, anchor : ndarray
        w at the end of the last epoch, and Catalyst's proximal centre.
    tau : float
        Step size.
    pull, w_curvature, q_curvature : float
        Weight of Catalyst's proximal term, and curvature added to either side.
    seed : int
        Seed.
    """

    geometry: Euclidean
    w: Floats
    q: Floats
    w_before: Floats
    anchor: Floats
    tau: float
    pull: float
    w_curvature: float
    q_curvature: float
    seed: int


@dataclass(frozen=True)
class ALSVRE(Solver):
    """Accelerated loopless variance-reduced extragradient, one sample per step.

    It is reconstructed from published descriptions; the original text and code were not available.

    The problem is made strongly convex and concave by eps / (2 R^2) and eps / (2 D^2), and solved by Catalyst on w: an
    epoch runs the inner method on the problem with a proximal term around an extrapolated point. The inner method
    refreshes its snapshot with probability 2 / n_rows per step.

    Parameters
    ----------
    multiplier : float
        Factor of the step size; 1 is the theoretical value.
    geometry : {"euclidean", "kl"}
        Geometry of q: projections, as published, or the mirror steps of MPVR. With "kl" the curvature added to the side
        of q is left out, so that only w's side is strongly convex, and the step size is MPVR's for monotone operators;
        no rate is claimed for this variant.
    accuracy : float
        The target accuracy eps.
    inner_passes : float
        Steps per epoch, in units of half the number of rows.
    """

    name = "al-svre"

    multiplier: float = 1.0
    _: KW_ONLY
    geometry: Literal["euclidean", "kl"] = "euclidean"
    accuracy: float = 1e-3
    inner_passes: float = 2.0

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)
        check_choice(self.geometry, "geometry", ("euclidean", "kl"))
        check_number(self.accuracy, "accuracy", positive=True)
        check_number(self.inner_passes, "inner_passes", positive=True)

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """A bounded Euclidean domain, from which the steps are derived, and the whole simplex."""
        return (BALL, SIMPLEX, BOUNDED)

    def init(self, oracle: Oracle, w: Floats, q: Floats, seed: int) -> AlSvreState:
        """Evaluate the start, which is the first snapshot."""
        problem = oracle.problem
        q = problem.weight_geometry().interior(q)
        at = oracle.evaluate(w, q)
        geometry = problem.bounded_geometry(w, at.group_risks)
        assert isinstance(geometry, Euclidean)
        N, m, p = problem.n_rows, problem.n_groups, self._refresh(problem)
        diameter = max(1.0 - 1.0 / m, 1e-300)  # squared diameter of the simplex
        w_curvature, q_curvature = self.accuracy / (2.0 * geometry.radius**2), self.accuracy / (2.0 * diameter)
        if self.geometry == "euclidean":
            lipschitz = euclidean_constant(problem, geometry.radius)
            tau = 0.5 * np.sqrt(p) / max(lipschitz, 1e-300)
        else:
            lipschitz = sampling_constant(problem, geometry, "importance")
            tau = 0.99 * np.sqrt(p) / max(lipschitz, 1e-300)
        pull = max(min(q_curvature, lipschitz / np.sqrt(N)) - w_curvature, 0.0)
        return AlSvreState(
            evaluation=at, geometry=geometry, w=w, q=q, w_before=w, anchor=w, tau=float(self.multiplier * tau),
            pull=float(pull), w_curvature=w_curvature, q_curvature=q_curvature, seed=seed,
        )  # fmt: skip

    @staticmethod
    def _refresh(problem: Problem) -> float:
        return min(1.0, 2.0 / problem.n_rows)

    def epoch(self, oracle: Oracle, state: AlSvreState) -> None:
        """Solve Catalyst's subproblem approximately by the inner method, and extrapolate."""
        problem = oracle.problem
        rng = np.random.default_rng([state.seed, state.epoch])
        p, left = self._refresh(problem), max(1, round(self.inner_passes * problem.n_rows / 2.0))
        advance = self._advance_euclidean if self.geometry == "euclidean" else self._advance_kl
        while left > 0:
            until = min(left, int(rng.geometric(p)))  # steps until the snapshot is refreshed or the epoch ends
            advance(oracle, state, until, p, rng)
            left -= until
            state.evaluation = oracle.evaluate(state.w, state.q)
        share = state.w_curvature / (state.w_curvature + state.pull)
        kappa = (1.0 - np.sqrt(share)) / (1.0 + np.sqrt(share))
        state.anchor = state.w + kappa * (state.w - state.w_before)
        state.w_before = state.w.copy()

    def _bent(self, state: AlSvreState) -> tuple[Euclidean, Floats]:
        """Return the domain with all curvature added to w, and the snapshot's gradient with the proximal term."""
        own = state.geometry
        geometry = Euclidean(own.radius, own.penalty + state.w_curvature + state.pull, own.n_bound)
        return geometry, state.evaluation.gradient - state.pull * state.anchor

    def _advance_kl(self, oracle: Oracle, state: AlSvreState, n: int, p: float, rng: np.random.Generator) -> None:
        """Make n steps with mirror steps of q and a fixed snapshot."""
        problem = oracle.problem
        geometry, gradient = self._bent(state)
        entropy, at = problem.weight_geometry(), state.evaluation
        loop = InnerLoop(
            oracle=oracle,
            at=at,
            geometry=geometry,
            w_steps=2.0 * geometry.squared_diameter * state.tau,
            q_step=2.0 * entropy.squared_diameter * state.tau,
            alpha=p,
            w=state.w,
            w_centre=at.w,
            logits=entropy.mirror(state.q),
            logit_centre=entropy.mirror(at.q),
        )
        loop.gradient = gradient
        steps = steps_of(loop, SINGLE_ROWS)
        for start in range(0, n, _STEPS_PER_PIECE):
            groups = rng.integers(0, problem.n_groups, size=min(_STEPS_PER_PIECE, n - start))
            members = problem.data.draw_members(groups, 1, rng)[0]
            for part in _short_calls(problem, len(groups)):
                here = groups[part, None]
                plan = BatchPlan(len(here), here, np.full(here.shape, float(problem.n_groups)))
                steps.run(plan, members[part, None])
        steps.flush()
        state.w, state.q = loop.iterate(), entropy.point(loop.logits)

    def _advance_euclidean(
        self, oracle: Oracle, state: AlSvreState, n: int, p: float, rng: np.random.Generator
    ) -> None:
        """Make n steps with projections of q and a fixed snapshot."""
        problem = oracle.problem
        geometry, gradient = self._bent(state)
        at, m, flat = state.evaluation, problem.n_groups, problem.flat
        values = problem.group_values(at.group_risks) + state.q_curvature / m  # the pull towards equal weights
        state.w, state.q = state.w.copy(), state.q.copy()
        in_blocks = takes_blocks(problem, geometry, state.tau, p)
        blocks = RowBlocks(oracle, at, gradient, state.w) if in_blocks else None
        player = WPlayer(state.w, at.w, gradient, np.full(state.w.shape, state.tau), geometry.penalty, geometry.radius)
        work = np.empty((3, state.w.size)), np.empty((3, m))
        for start in range(0, n, _STEPS_PER_PIECE):
            groups = rng.integers(0, m, size=min(_STEPS_PER_PIECE, n - start))
            draw = Draw(problem.data.draw_members(groups, 1, rng)[0], groups, np.full(len(groups), float(m)))
            if isinstance(flat, DenseData):
                rows = oracle.drawn_rows(draw.members)
                for part in _short_calls(problem, len(groups)):
                    svre_steps(
                        flat, rows[part], groups[part], at.margins, player, state.q, at.q, values, state.q_curvature, p,
                        *work,
                    )  # fmt: skip
            elif blocks is not None:

                def make(block: RowBlock, scales: Floats) -> None:
                    del scales  # no sums over the steps are needed
                    projected_block(block, state.q, at.q, values, state.q_curvature, p, work[1])

                blocks.advance(draw, state.tau, Ball(geometry.radius, geometry.penalty), make)
                state.w = blocks.iterate()
            else:
                for k in range(len(groups)):
                    one = Draw(draw.members[k : k + 1], groups[k : k + 1], draw.weights[k : k + 1])
                    self.step(oracle, state, one, geometry, gradient, values, p)

    @staticmethod
    def step(
        oracle: Oracle,
        state: AlSvreState,
        draw: Draw,
        geometry: Euclidean,
        gradient: Floats,
        values: Floats,
        p: float,
    ) -> None:
        """Advance both players by one step on a draw, with projections for q.

        Sets the iterate.
        """
        at, tau, shrink = state.evaluation, state.tau, 1.0 / (1.0 + state.tau * state.q_curvature)
        # 1. The centre between iterate and snapshot.
        w_centre = (1.0 - p) * state.w + p * at.w
        q_centre = (1.0 - p) * state.q + p * at.q
        # 2. The half point, along the snapshot's gradient.
        w_half = geometry.step(w_centre, tau, gradient)
        q_half = np.empty_like(q_centre)
        project_simplex((q_centre + tau * values) * shrink, q_half)
        # 3. The step from the same centre, with the drawn row's correction.
        loss_difference, gradient_difference = oracle.sampled_difference(draw, at, w_half, q_half)
        state.w = geometry.step(w_centre, tau, gradient + gradient_difference)
        project_simplex((q_centre + tau * (values + loss_difference)) * shrink, state.q)

    def describe(self, problem: Problem, tol: float) -> str:
        """Describe which variant runs, and that it is reconstructed."""
        return f"al-svre ({self.geometry}; reconstructed)"
