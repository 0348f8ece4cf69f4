"""AL-SVRE: loopless variance-reduced extragradient inside Catalyst (after Luo and others 2021).

It is reconstructed from published descriptions; the original text and code were not available. The inner method is that
of Alacaoglu and Malitsky, Algorithm 1; how it is combined with Catalyst follows from the complexity that is stated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from groupdro.data import BatchPlan, Draw
from groupdro.data.rows import DenseRows
from groupdro.geometry import Entropy, Euclidean, bounded_geometry
from groupdro.kernels.blocks import projected_block
from groupdro.kernels.svre import project_simplex, svre_steps
from groupdro.problem import GroupRisk, L2Domain, ScalarLoss
from groupdro.run.solver import BOUNDED, Requirement, Solver, State
from groupdro.solvers.baselines.mpvr import sampling_constant
from groupdro.solvers.inner_loop import InnerLoop
from groupdro.solvers.row_blocks import RowBlocks, takes_blocks
from groupdro.solvers.step_sizes import check_multiplier
from groupdro.utils.arguments import check_choice, check_number
from groupdro.utils.types import Floats, Indices

__all__ = ["ALSVRE", "AlSvreState", "euclidean_constant"]


_STEPS_A_PIECE = 20_000  # drawn at once
_SECONDS_A_CALL = 0.05  # of compiled code: between calls an interrupt can arrive


def _short_calls(problem: GroupRisk, n_steps: int) -> Iterator[slice]:
    """Divide steps among calls of compiled code, which change nothing but how long each takes."""
    seconds = 1e-9 * (10.0 * np.prod(problem.shape) ** 0.9 + 300.0 * problem.n_groups)  # two sorts of the groups
    length = max(1, int(_SECONDS_A_CALL / seconds))
    for start in range(0, n_steps, length):
        yield slice(start, min(start + length, n_steps))


def euclidean_constant(problem: GroupRisk, radius: float) -> float:
    """Return the mean-square Lipschitz constant of the one-sample operator with q in the Euclidean norm.

    max( sqrt(2 m L^2 + m^2 G^2), G sqrt(2 m) ), G and L the rows' Lipschitz and smoothness constants.
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
        w at the end of the last epoch, and the point that Catalyst pulls toward.
    tau : float
        Step.
    pull, w_curvature, q_curvature : float
        Strength of Catalyst's pull, and curvature added to either side.
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


class ALSVRE(Solver):
    """Accelerated loopless variance-reduced extragradient, one sample per step.

    It is reconstructed from published descriptions; the original text and code were not available.

    The problem is made strongly convex and concave by eps / (2 R^2) and eps / (2 D^2), and solved by Catalyst on w: an
    epoch runs the inner method on the problem with a pull toward an extrapolated point. The inner method refreshes its
    snapshot with probability 2 / n_rows a step.

    Parameters
    ----------
    multiplier : float
        Factor of the step; 1 is the theory's.
    geometry : {"euclidean", "kl"}
        How q moves: by projections, as its authors have it, or by the mirror steps of MPVR.
    accuracy : float
        The eps aimed at.
    inner_passes : float
        Steps of an epoch, in halves of the number of rows.
    """

    name = "al-svre"
    domains = (L2Domain,)

    def __init__(
        self,
        multiplier: float = 1.0,
        *,
        geometry: Literal["euclidean", "kl"] = "euclidean",
        accuracy: float = 1e-3,
        inner_passes: float = 2.0,
    ):
        check_multiplier(multiplier)
        check_choice(geometry, "geometry", ("euclidean", "kl"))
        check_number(accuracy, "accuracy", positive=True)
        check_number(inner_passes, "inner_passes", positive=True)
        self.multiplier = multiplier
        self.geometry = geometry
        self.accuracy = accuracy
        self.inner_passes = inner_passes

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """A bounded Euclidean domain, from which the steps are derived."""
        return (BOUNDED,)

    def init(self, problem: GroupRisk, seed: int) -> AlSvreState:
        """Evaluate the start, which is the first snapshot."""
        w, q = problem.start(), Entropy(problem.n_groups).interior(problem.start_weights())
        at = problem.evaluate(w, q)
        geometry = bounded_geometry(problem, at)
        assert isinstance(geometry, Euclidean)
        N, m, p = problem.n_rows, problem.n_groups, self._refresh(problem)
        diameter = max(1.0 - 1.0 / m, 1e-300)  # of the simplex, squared
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
    def _refresh(problem: GroupRisk) -> float:
        return min(1.0, 2.0 / problem.n_rows)

    def epoch(self, problem: GroupRisk, state: AlSvreState) -> None:
        """Solve Catalyst's problem roughly by the inner method, and extrapolate."""
        rng = np.random.default_rng([state.seed, state.epoch])
        p, left = self._refresh(problem), max(1, round(self.inner_passes * problem.n_rows / 2.0))
        advance = self._advance_euclidean if self.geometry == "euclidean" else self._advance_kl
        while left > 0:
            until = min(left, int(rng.geometric(p)))  # steps until the snapshot is refreshed, or the epoch ends
            advance(problem, state, until, p, rng)
            left -= until
            state.evaluation = problem.evaluate(state.w, state.q)
        share = state.w_curvature / (state.w_curvature + state.pull)
        kappa = (1.0 - np.sqrt(share)) / (1.0 + np.sqrt(share))
        state.anchor = state.w + kappa * (state.w - state.w_before)
        state.w_before = state.w.copy()

    def _bent(self, state: AlSvreState) -> tuple[Euclidean, Floats]:
        """Return the domain with all curvature that is added to w, and the snapshot's gradient with the pull."""
        own = state.geometry
        geometry = Euclidean(own.radius, own.penalty + state.w_curvature + state.pull, own.n_bound)
        return geometry, state.evaluation.gradient - state.pull * state.anchor

    def _advance_kl(self, problem: GroupRisk, state: AlSvreState, n: int, p: float, rng: np.random.Generator) -> None:
        """Make n steps with mirror steps of q, the snapshot staying where it is."""
        geometry, gradient = self._bent(state)
        entropy, at = Entropy(problem.n_groups), state.evaluation
        loop = InnerLoop(
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
        make = loop.single_rows(problem)
        for start in range(0, n, _STEPS_A_PIECE):
            groups = rng.integers(0, problem.n_groups, size=min(_STEPS_A_PIECE, n - start))
            members = problem.data.draw_members(groups, rng)
            short = loop.can_fuse(problem)  # other loops are not compiled as a whole
            for part in _short_calls(problem, len(groups)) if short else [slice(0, len(groups))]:
                here = groups[part, None]
                plan = BatchPlan(len(here), here, np.full(here.shape, float(problem.n_groups)))
                make(problem, plan, members[part, None])
        loop.settle()
        state.w, state.q = loop.iterate(), entropy.point(loop.logits)

    def _advance_euclidean(
        self, problem: GroupRisk, state: AlSvreState, n: int, p: float, rng: np.random.Generator
    ) -> None:
        """Make n steps with projections of q, the snapshot staying where it is."""
        geometry, gradient = self._bent(state)
        at, m, rows = state.evaluation, problem.n_groups, problem.data.rows
        values = problem.group_values(at.group_risks) + state.q_curvature / m  # the pull toward equal weights
        state.w, state.q = state.w.copy(), state.q.copy()
        in_blocks = takes_blocks(problem, geometry, state.tau, p)
        blocks = RowBlocks(problem, at, gradient, state.w) if in_blocks else None
        for start in range(0, n, _STEPS_A_PIECE):
            groups = rng.integers(0, m, size=min(_STEPS_A_PIECE, n - start))
            members = problem.data.draw_members(groups, rng)
            alone = problem.data.n_workers == 1
            if alone and isinstance(problem.loss, ScalarLoss) and isinstance(rows, DenseRows) and rows.compilable:
                drawn, work = problem.data.rows_of(members), (np.empty((3, state.w.size)), np.empty((3, m)))
                for part in _short_calls(problem, len(groups)):
                    svre_steps(
                        rows.for_kernels, problem.data.y, *problem.loss.kernel, drawn[part], groups[part],
                        float(m), at.margins, state.w, at.w, gradient, np.full(state.w.shape, state.tau),
                        geometry.penalty, geometry.radius, state.q, at.q, values, state.q_curvature, p, *work,
                    )  # fmt: skip
                n_drawn = len(drawn)
                problem.counters.add(grad_evals=n_drawn, grad_evals_paper=2 * n_drawn, row_reads=n_drawn)
            elif blocks is not None:
                self._advance_blocks(problem, state, blocks, members, groups, geometry, values, p)
            else:
                for member, group in zip(members, groups, strict=True):
                    draw = Draw(np.array([member]), np.array([group]), np.array([float(m)]))
                    self.step(problem, state, draw, geometry, gradient, values, p)

    @staticmethod
    def _advance_blocks(
        problem: GroupRisk, state: AlSvreState, blocks: RowBlocks, members: Indices,
        groups: Indices, geometry: Euclidean, values: Floats, p: float,
    ) -> None:  # fmt: skip
        """Make a step on each member, many at a time, and write out the iterate."""
        rows, work = problem.data.rows_of(members), np.empty((2, problem.n_groups))

        def make(place: slice, products: Floats, gram: Floats, betas: Floats, scales: Floats) -> None:
            del scales  # no sums over the steps are needed
            projected_block(
                products, gram, problem.data.y[rows[place]], groups[place], float(problem.n_groups),
                blocks.coefficients, blocks.inner, state.tau, geometry.penalty, geometry.radius, state.q,
                state.evaluation.q, values, state.q_curvature, p, betas, work,
            )  # fmt: skip

        blocks.advance(rows, make)
        state.w = blocks.iterate()

    @staticmethod
    def step(
        problem: GroupRisk,
        state: AlSvreState,
        draw: Draw,
        geometry: Euclidean,
        gradient: Floats,
        values: Floats,
        p: float,
    ) -> None:
        """Advance both players by one step on a draw, q by projections.

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
        # 3. The step from the same centre, corrected by what the drawn row shows there.
        loss_difference, gradient_difference = problem.sampled_difference(draw, at, w_half, q_half)
        state.w = geometry.step(w_centre, tau, gradient + gradient_difference)
        project_simplex((q_centre + tau * (values + loss_difference)) * shrink, state.q)

    def describe(self) -> str:
        """Say which form ran, and that it is reconstructed."""
        return f"al-svre ({self.geometry}; reconstructed)"
