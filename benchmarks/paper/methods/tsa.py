"""TSA: stochastic approximation in two stages for the worst excess risk (after Zhang and Tu 2023, arXiv:2306.00026).

It is reconstructed from published descriptions; the original text and code were not available. This is the two-stage
interpretation: stochastic gradients find each group's minimum, then stochastic mirror descent minimises the excess
risks over the values found.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np

from benchmarks.paper.methods.requirements import ONE_MACHINE, OWN_MINIMA
from benchmarks.paper.methods.smd import SMD
from groupdro.certificate import linearise
from groupdro.data import Draw
from groupdro.geometry import Euclidean, Geometry
from groupdro.oracle import Oracle
from groupdro.problem import GroupMinima, Problem
from groupdro.run.solver import Requirement, Solver
from groupdro.run.stages import Budget, Preparation, Prepared
from groupdro.utils.arguments import check_number
from groupdro.utils.types import Floats

__all__ = ["TSA", "GroupModels"]


@dataclass(frozen=True)
class GroupModels(Preparation):
    """Approach every group's own minimum by stochastic gradients, and measure the risks there in one pass."""

    multiplier: float
    passes: float

    def run(self, oracle: Oracle, w: Floats, q: Floats, budget: Budget, seed: int) -> Prepared:
        """Return bounds on the minima, and the models."""
        models = self.models(oracle, w, np.random.default_rng([seed, 1 << 24]))
        upper, lower = np.empty(len(models)), np.empty(len(models))
        for i, own in enumerate(models):
            alone = oracle.problem.group(i)
            own_oracle = oracle.on(alone)
            at = own_oracle.evaluate(own, np.ones(1))
            upper[i] = alone.objective(own, at.group_risks)
            lower[i] = max(0.0, linearise(own_oracle, at).bound(alone, alone.solution_set(upper[i])))
        return Prepared(GroupMinima(upper, lower, centre=upper, models=models))

    def models(self, oracle: Oracle, start: Floats, rng: np.random.Generator) -> Floats:
        """Return the step-weighted averages of one stochastic gradient run per group."""
        problem = oracle.problem
        m = problem.n_groups
        with oracle.uncounted():
            geometry = problem.bounded_geometry(start, oracle.risks(start))
        G = problem.constants(geometry.dual_order, geometry.radius).lipschitz
        mirrored = np.repeat(geometry.mirror(start)[None], m, axis=0)
        total, weight = np.zeros((m, *start.shape)), 0.0
        for t in range(max(1, round(self.passes * problem.n_rows / m))):
            share = 1.0 / np.sqrt(t + 1.0)
            step = self.multiplier * geometry.radius / max(G, 1e-300) * share
            models = _points(geometry, mirrored)
            total += share * models  # not times the step, which is zero on a domain of one point
            weight += share
            gradients = own_gradients(oracle, Draw.one_per_group(problem.data, rng), models)
            mirrored = _steps(geometry, mirrored, step, gradients)
        return total / weight


def _points(geometry: Geometry, mirrors: Floats) -> Floats:
    """Return the points with the given mirror coordinates."""
    if isinstance(geometry, Euclidean):
        return mirrors
    return np.array([geometry.point(mirror) for mirror in mirrors])


def _steps(geometry: Geometry, centres: Floats, step: float, gradients: Floats) -> Floats:
    """Return several mirror coordinates, each after a step against its own gradient; all at once in a ball."""
    if not isinstance(geometry, Euclidean):
        return np.array([geometry.step(w, step, g) for w, g in zip(centres, gradients, strict=True)])
    moved = (centres - step * gradients) / (1.0 + step * geometry.penalty)
    norms = np.linalg.norm(moved.reshape(len(moved), -1), axis=1)
    shrink = np.minimum(1.0, geometry.radius / np.maximum(norms, 1e-300))
    return np.asarray(moved * shrink.reshape((-1,) + (1,) * (moved.ndim - 1)))


def own_gradients(oracle: Oracle, draw: Draw, models: Floats) -> Floats:
    """Return the gradient at one member of each group under the group's own model."""
    problem, n = oracle.problem, len(draw.members)
    oracle.counters.add(n)
    rows = problem.data.rows_of(draw.members)
    X = problem.data.rows.take(rows).dense().astype(np.float64, copy=False)
    outputs = np.ascontiguousarray(np.einsum("md,md...->m...", X, models))
    if problem.data.row_offsets.size:
        outputs += problem.data.row_offsets[rows]
    slopes = problem.loss.value_and_slope(outputs, problem.data.y[rows])[1]
    return np.asarray(np.einsum("md,m...->md...", X, slopes))


@dataclass(frozen=True)
class TSA(SMD):
    """Two stages of stochastic approximation.

    It is reconstructed from published descriptions; the original text and code were not available.

    Stage one runs projected stochastic gradients on all groups at once, with one row of each per step and step sizes
    radius / (G sqrt t) times the multiplier, and averages the iterates weighted by their steps. One pass then measures
    each group's risk at its average. Stage two is SMD on the excess risks.

    Parameters
    ----------
    multiplier : float
        Factor of the step sizes of stage two; 1 is the theoretical value.
    stage_one_multiplier : float, optional
        The factor for stage one; by default the same.
    stage_one_passes : float
        Passes over the data in stage one.
    """

    name = "tsa"
    finds_minima = True

    _: KW_ONLY
    stage_one_multiplier: float | None = None
    stage_one_passes: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.stage_one_passes, "stage_one_passes", positive=True)
        if self.stage_one_multiplier is not None:
            check_number(self.stage_one_multiplier, "stage_one_multiplier", positive=True)

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """All rows in one process and no group minima, besides the requirements of SMD."""
        return (*super().requires, ONE_MACHINE, OWN_MINIMA)

    def stages(self, problem: Problem, tol: float) -> Sequence[Preparation | Solver]:
        """Approach every group's own minimum, then minimise the excess risks."""
        multiplier = self.multiplier if self.stage_one_multiplier is None else self.stage_one_multiplier
        return (GroupModels(multiplier, self.stage_one_passes), self)

    def describe(self, problem: Problem, tol: float) -> str:
        """Say that it is reconstructed."""
        return "tsa (reconstructed)"
