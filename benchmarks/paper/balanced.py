"""The paper's methods with one more parameter to tune: the balance of both players.

A balance b divides the steps of w by b and multiplies those of the group weights by b; 1 is the theory's. The classes
also return the outputs that each method may be judged by: the average to which its theory applies, and its snapshot or
last point.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np

import groupdro as gd
from benchmarks.paper.blocked_descent import GroupModelsInBlocks
from benchmarks.paper.methods import ALSVRE, ERMEG, MPVR, SMD, TSA
from benchmarks.paper.methods.al_svre import AlSvreState
from benchmarks.paper.methods.mpvr import MpvrState
from benchmarks.paper.methods.smd import SmdState
from groupdro.data import Draw
from groupdro.geometry import Euclidean
from groupdro.oracle import Oracle
from groupdro.problem import Problem
from groupdro.run.solver import Solver, State
from groupdro.run.stages import Preparation
from groupdro.solvers.aleg_theory import mean_size
from groupdro.solvers.alem import MinimaOfAverages
from groupdro.solvers.minima_stages import MinimaAsNeeded

__all__ = ["ALEGOfThePaper", "AlSvre", "AlegOfOneGroup", "Ermeg", "Mpvr", "Sagawa", "Smd", "Tsa"]

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class _Scaled(Euclidean):
    """A ball whose diameter counts as another one when steps are derived from it."""

    share: float = 1.0

    @property
    def squared_diameter(self) -> float:
        return self.share * super().squared_diameter


def _scaled(ball: Any, balance: float) -> _Scaled:
    """Return the ball with steps of w divided by the squared balance: the base step is multiplied by the balance."""
    return _Scaled(ball.radius, ball.penalty, ball.n_bound, balance**-2)


@dataclass(frozen=True)
class ALEGOfThePaper(gd.solvers.ALEGTheory):
    """ALEG as published; with a tilt, its step grows by that factor over `epochs`, as far as the theorem allows."""

    _: KW_ONLY
    balance: float = 1.0
    tilt: float = 1.0
    epochs: float = 1.0

    def init(self, oracle: Oracle, w: np.ndarray, q: np.ndarray, seed: int) -> Any:
        state = super().init(oracle, w, q, seed)
        state.w.scale /= self.balance
        state.q.scale *= self.balance
        if self.tilt != 1.0:
            first = state.schedules.epoch(0).eta / np.sqrt(self.tilt)
            state.schedules = replace(state.schedules, eta=lambda s: first * self.tilt ** min(1.0, s / self.epochs))
        return state


@dataclass(frozen=True)
class Mpvr(MPVR):
    """MPVR with a balance of both players."""

    _: KW_ONLY
    balance: float = 1.0

    def init(self, oracle: Oracle, w: np.ndarray, q: np.ndarray, seed: int) -> MpvrState:
        state = super().init(oracle, w, q, seed)
        state.geometry, state.step = _scaled(state.geometry, self.balance), state.step * self.balance
        return state


@dataclass(frozen=True)
class AlegOfOneGroup(Mpvr):
    """ALEG with a single group, of which MPVR's compiled steps are the same ones: one row, and no weights.

    The epoch is by default as long as the group, and the step is that of ALEG's theorem, sqrt(1 / (5 K)) / L with the
    same L. The average is that of the iterates, because compiled steps do not keep the half steps.
    """

    def length(self, problem: Problem) -> int:
        return problem.n_rows if self.epoch_length is None else self.epoch_length

    def init(self, oracle: Oracle, w: np.ndarray, q: np.ndarray, seed: int) -> MpvrState:
        state = super().init(oracle, w, q, seed)
        state.step /= 0.99 * np.sqrt(5.0)
        return state


@dataclass(frozen=True)
class AlSvre(ALSVRE):
    """AL-SVRE; its Euclidean form has one step for both players and no balance."""

    _: KW_ONLY
    balance: float = 1.0

    def init(self, oracle: Oracle, w: np.ndarray, q: np.ndarray, seed: int) -> AlSvreState:
        state = super().init(oracle, w, q, seed)
        state.tau *= self.balance
        return state

    def _bent(self, state: AlSvreState) -> Any:
        geometry, gradient = super()._bent(state)
        return _scaled(geometry, self.balance), gradient


class _Descent:
    """What SMD and TSA share: the balance, and no evaluation by the driver, which would be timed."""

    balance: float

    def init(self, oracle: Oracle, w: np.ndarray, q: np.ndarray, seed: int) -> SmdState:
        state: SmdState = super().init(oracle, w, q, seed)  # type: ignore[misc]
        state.geometry, state.constant = _scaled(state.geometry, self.balance), state.constant / self.balance
        return state

    def epoch(self, oracle: Oracle, state: SmdState) -> None:
        """Make as many steps as draw about as many rows as there are: the same steps, with less overhead each."""
        problem = oracle.problem
        data, loss, q_geometry = problem.data, problem.loss, problem.weight_geometry()
        X, y, m = data.rows.X, data.y, problem.n_groups  # type: ignore[attr-defined]
        rng = np.random.default_rng([state.seed, state.epoch])
        n_steps = max(1, round(problem.n_rows / m))
        members = data.offsets[:-1] + (rng.random((n_steps, m)) * data.group_sizes).astype(np.int64)
        oracle.count_draw(Draw(members.ravel(), members.ravel(), members.ravel()))
        scale_w, scale_q = 2.0 * state.geometry.squared_diameter, 2.0 * q_geometry.squared_diameter
        for rows in members:
            gamma = self.base_step(state)  # type: ignore[attr-defined]
            w, q, drawn = state.w, np.exp(state.logits - state.logits.max()), X[rows]
            q /= q.sum()
            risks, slopes = loss.value_and_slope(drawn @ w.astype(X.dtype, copy=False), y[rows])
            weighted = (slopes.T * q).T.astype(X.dtype, copy=False)
            state.w_total += gamma * w
            state.q_total += gamma * q
            state.step_total += gamma
            state.w = state.geometry.step(w, scale_w * gamma, np.asarray(drawn.T @ weighted, dtype=np.float64))
            state.logits = q_geometry.step(state.logits, scale_q * gamma, -problem.group_values(risks))
            state.steps += 1

    def point(self, state: SmdState) -> None:
        del state

    def average(self, state: SmdState) -> Pair | None:
        return None if state.step_total == 0.0 else (state.w_total / state.step_total, state.q_total / state.step_total)

    def last(self, state: SmdState) -> Pair:
        weights = np.exp(state.logits - state.logits.max())
        return state.geometry.point(state.w), weights / weights.sum()


@dataclass(frozen=True)
class Smd(_Descent, SMD):
    """Stochastic mirror descent."""

    _: KW_ONLY
    balance: float = 1.0


@dataclass(frozen=True)
class Tsa(_Descent, TSA):
    """Two-stage stochastic approximation."""

    _: KW_ONLY
    balance: float = 1.0

    def stages(self, problem: Problem, tol: float) -> Sequence[Preparation | Solver]:
        first, second = super().stages(problem, tol)
        if isinstance(problem.loss, gd.losses.Softmax):
            first = GroupModelsInBlocks(first.multiplier, first.passes)  # type: ignore[union-attr]
        return first, second


@dataclass(frozen=True)
class Ermeg(ERMEG):
    """ERMEG with the first stage of an ALEM: our own, which is refined only where it matters, or the paper's.

    With `first_epochs`, the oracle makes the groups' models too, as ALEM's first stage does.
    """

    _: KW_ONLY
    first_epochs: int | None = None

    def stages(self, problem: Problem, tol: float) -> Sequence[Preparation | Solver]:
        if self.first_epochs is None:
            return [MinimaAsNeeded(), self]
        alone = replace(self.oracle, epoch_length=mean_size(problem))  # type: ignore[call-arg]
        return [MinimaOfAverages(alone, self.first_epochs), self]


@dataclass
class _SagawaState(State):
    w: np.ndarray
    q: np.ndarray
    w_total: np.ndarray
    q_total: np.ndarray
    steps: int
    step: float
    seed: int


@dataclass(frozen=True)
class Sagawa(Solver):
    """Group DRO's online algorithm: mini-batch gradients weighted by group weights that grow with the losses.

    Written from its published description (Sagawa, Koh, Hashimoto and Liang 2020, Algorithm 1), for linear models.
    """

    multiplier: float = 1.0
    _: KW_ONLY
    balance: float = 1.0
    batch: int = 128

    name = "benchmark-sagawa"

    def init(self, oracle: Oracle, w: np.ndarray, q: np.ndarray, seed: int) -> _SagawaState:
        with oracle.uncounted():
            at = oracle.evaluate(w, q)
        step = self.multiplier * 1e-2 / float(np.mean(oracle.problem.data.row_norms**2))
        return _SagawaState(at, w, q, np.zeros_like(w), np.zeros_like(q), 0, step, seed)

    def epoch(self, oracle: Oracle, state: _SagawaState) -> None:
        problem, rng = oracle.problem, np.random.default_rng([state.seed, state.epoch])
        m, radius = problem.n_groups, problem.domain.radius  # type: ignore[attr-defined]
        for _ in range(max(1, problem.n_rows // self.batch)):
            groups = np.sort(rng.integers(0, m, size=self.batch))
            members = problem.data.draw_members(groups, 1, rng)[0]
            counts = np.bincount(groups, minlength=m)
            risks, gradient = oracle.sampled(Draw(members, groups, 1.0 / counts[groups]), state.w, state.q)
            state.w_total += state.w
            state.q_total += state.q
            state.steps += 1
            q = np.where(counts > 0, state.q * np.exp(0.01 * self.balance * risks), state.q)
            state.q = q / q.sum()
            w = state.w - state.step * gradient
            state.w = w * min(1.0, radius / max(float(np.linalg.norm(w)), 1e-300))

    def average(self, state: _SagawaState) -> Pair | None:
        return None if not state.steps else (state.w_total / state.steps, state.q_total / state.steps)

    def last(self, state: _SagawaState) -> Pair:
        return state.w, state.q
