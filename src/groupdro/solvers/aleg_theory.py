"""ALEG with the parameters of its theorem (Yu, Cai, Jiang, Zhang 2024, Algorithm 1)."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np

from groupdro.data import Draw
from groupdro.geometry import Geometry
from groupdro.oracle import Oracle
from groupdro.problem import Problem
from groupdro.run.solver import BOUNDED, BOUNDED_CURVATURE, Requirement, Solver, State
from groupdro.solvers.step_sizes import Schedule, Schedules, check_multiplier, saddle_constant
from groupdro.utils.arguments import check_choice, check_flag, check_number
from groupdro.utils.types import Floats

__all__ = ["ALEGTheory", "Player", "TheoryState", "mean_size"]


@dataclass
class Player:
    """One of the two players, w or q.

    Attributes
    ----------
    geometry : Geometry
        Geometry of the player's steps.
    scale : float
        Twice the squared diameter, by which the paper's norm multiplies the player's steps.
    mirror : ndarray
        z_k, in mirror coordinates.
    centre : ndarray
        Mirror coordinates of the snapshot: the mean of those of the last epoch's iterates. For entropy this is not the
        mirror image of the mean point, the snapshot at which the pass is made.
    total : ndarray
        Sum of base steps times the points z_{k+1/2}, whose average is the output.
    """

    geometry: Geometry
    scale: float
    mirror: Floats
    centre: Floats
    total: Floats

    @classmethod
    def at(cls, geometry: Geometry, point: Floats) -> "Player":
        """Return a player at a point, with its snapshot there too."""
        mirror = geometry.mirror(point)
        return cls(geometry, 2.0 * geometry.squared_diameter, mirror, mirror, np.zeros_like(point))


def mean_size(problem: Problem) -> int:
    """Return the mean group size, which is the theorem's epoch length."""
    return max(1, round(float(problem.data.all_sizes.mean())))


@dataclass
class TheoryState(State):
    """State of ALEGTheory; the evaluation is the pass at the snapshot (w^s, q^s)."""

    w: Player
    q: Player
    eta_total: float
    schedules: Schedules
    seed: int


@dataclass(frozen=True)
class ALEGTheory(Solver):
    """ALEG as published: variance-reduced mirror prox with one sample of every group per step.

    Each epoch makes a pass at the snapshot and then K steps. Each step moves twice from the same centre, a mixture of
    snapshot and iterate: along the snapshot's gradient to z_{k+1/2}, and then, with the gradient corrected by one drawn
    row per group at z_{k+1/2}, to z_{k+1}. After S epochs of K steps at the theorem's step size, the expected gap of
    the step-weighted average of the z_{k+1/2} is at most 3 sqrt(5) L_z / (S sqrt K).

    A penalty is handled exactly inside the step. With a penalty and no radius, the ball is the one that must contain
    the solution, because the penalty outside exceeds the objective at the start.

    Parameters
    ----------
    epoch_length : Schedule, optional
        K_s, the steps of epoch s; by default the mean group size. It may be a constant, a sequence with one entry per
        epoch whose last entry repeats, or a function of the epoch.
    alpha : Schedule, optional
        alpha_k^s, the weight of the snapshot in the centre; by default 1 / K_s. An entry may be a number or a number
        per step.
    step : Schedule, optional
        eta_k^s, the base step size; by default the largest that the theorem allows.
    multiplier : float
        Factor of the default step size, the parameter to tune. The theorem holds up to 1.
    constant : {"paper", "tight"}
        Which bound on the Lipschitz constant L_z to use: the published one, or a smaller one that is equally rigorous.
        It takes the root mean square of a group's smoothness in place of the largest of a row, and so allows steps that
        are longer by a factor that depends on the data; of the bounds with the same smoothness, up to sqrt(2).
    lipschitz : float, optional
        A bound on L_z of your own, in place of `constant`.
    guarantee : bool
        Whether to refuse schedules and domains that the theorem does not cover.

    The errata of the paper, which are corrected here, are on the page :doc:`/from_the_paper`.

    References
    ----------
    Yu, Cai, Jiang, Zhang. Efficient Algorithms for Empirical Group Distributionally Robust Optimization and Beyond.
    ICML 2024.
    """

    name = "aleg-theory"

    epoch_length: Schedule | None = None
    alpha: Schedule | None = None
    step: Schedule | None = None
    _: KW_ONLY
    multiplier: float = 1.0
    constant: Literal["paper", "tight"] = "paper"
    lipschitz: float | None = None
    guarantee: bool = True

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)
        if self.lipschitz is not None:
            check_number(self.lipschitz, "lipschitz", positive=True)
        check_choice(self.constant, "constant", ("paper", "tight"))
        check_flag(self.guarantee, "guarantee")

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """A bounded domain and curvature, as the theorem assumes.

        Floors, caps and boxes are covered: with q = least + share * s the saddle function is linear in s, its constants
        are no larger, and s moves in a convex part of the simplex with the same entropic steps.
        """
        return (BOUNDED, BOUNDED_CURVATURE) if self.guarantee else (BOUNDED_CURVATURE,)

    def init(self, oracle: Oracle, w: Floats, q: Floats, seed: int) -> TheoryState:
        """Evaluate the start."""
        problem = oracle.problem
        weighting = problem.weight_geometry()
        at = oracle.evaluate(w, weighting.interior(q))
        geometry = problem.bounded_geometry(at.w, at.group_risks)
        length = mean_size(problem) if self.epoch_length is None else self.epoch_length
        L_z = self.lipschitz
        if L_z is None:
            L_z = saddle_constant(problem, geometry, self.constant)
        elif self.guarantee and L_z < (proven := saddle_constant(problem, geometry, "tight")) * (1.0 - 1e-12):
            raise ValueError(
                f"lipschitz must be at least {proven:.6g} for the theorem to hold, got {L_z!r}. "
                "Pass guarantee=False to run it anyway."
            )
        schedules = Schedules(length, self.alpha, self.step, L_z, self.multiplier)
        if self.guarantee:
            for s in range(schedules.n_listed):
                schedules.check(s)
        return TheoryState(
            evaluation=at,
            w=Player.at(geometry, at.w),
            q=Player.at(weighting, at.q),
            eta_total=0.0,
            schedules=schedules,
            seed=seed,
        )

    def epoch(self, oracle: Oracle, state: TheoryState) -> None:
        """Make K steps, move the snapshot to their mean, and make a pass there."""
        problem = oracle.problem
        if self.guarantee:
            state.schedules.check(state.epoch)
        now = state.schedules.epoch(state.epoch)
        rng = np.random.default_rng([state.seed, state.epoch])
        players = (state.w, state.q)
        points = [np.zeros_like(player.total) for player in players]
        mirrors = [np.zeros_like(player.mirror) for player in players]
        for alpha, eta in zip(now.alpha.tolist(), now.eta.tolist(), strict=True):
            self.advance(oracle, state, Draw.one_per_group(problem.data, rng), alpha, eta)
            for player, point, mirror in zip(players, points, mirrors, strict=True):
                point += alpha * player.geometry.point(player.mirror)
                mirror += alpha * player.mirror
        # The snapshot is the alpha-weighted mean of z_1 .. z_K, in points for the pass and in mirror coordinates
        # for the centre; the iterate carries over.
        total = float(now.alpha.sum())
        for player, mirror in zip(players, mirrors, strict=True):
            player.centre = mirror / total
        state.evaluation = oracle.evaluate(points[0] / total, points[1] / total)

    def advance(self, oracle: Oracle, state: TheoryState, draw: Draw, alpha: float, eta: float) -> None:
        """Advance both players by one step on a draw.

        Sets the players' mirror coordinates and output sums.
        """
        problem = oracle.problem
        at = state.evaluation
        w = state.w
        q = state.q
        gradients = (at.gradient, -problem.group_values(at.group_risks))  # the second player ascends

        # 1. The centre between snapshot and iterate, in mirror coordinates.
        centres = [alpha * player.centre + (1.0 - alpha) * player.mirror for player in (w, q)]

        # 2. z_{k+1/2}: a step along the snapshot's gradient.
        w_half, q_half = (
            player.geometry.point(player.geometry.step(centre, player.scale * eta, gradient))
            for player, centre, gradient in zip((w, q), centres, gradients, strict=True)
        )

        # 3. The correction from the drawn rows at z_{k+1/2} relative to the snapshot.
        loss_difference, gradient_difference = oracle.sampled_difference(draw, at, w_half, q_half)

        # 4. z_{k+1}: from the same centre along the corrected gradient.
        w.mirror = w.geometry.step(centres[0], w.scale * eta, gradients[0] + gradient_difference)
        q.mirror = q.geometry.step(centres[1], q.scale * eta, gradients[1] - loss_difference)

        # 5. The output averages z_{k+1/2}, weighted by the step.
        w.total += eta * w_half
        q.total += eta * q_half
        state.eta_total += eta

    def average(self, state: TheoryState) -> tuple[Floats, Floats] | None:
        """Return the step-weighted average of the z_{k+1/2}, to which the theorem applies."""
        if state.eta_total == 0.0:
            return None
        return state.w.total / state.eta_total, state.q.total / state.eta_total
