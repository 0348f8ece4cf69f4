"""TSA: stochastic approximation in two stages for the worst regret (after Zhang and Tu 2023).

It is reconstructed from published descriptions; the original text and code were not available. This is the two-stage
reading: each group's minimum by stochastic gradients, then stochastic mirror descent on the regrets against what stage
one found.
"""

from typing import Any, Literal

import numpy as np

from groupdro.certificate import linearise
from groupdro.data import Draw
from groupdro.geometry import Euclidean, Geometry, bounded_geometry
from groupdro.problem import GroupRisk, References
from groupdro.run.solver import ONE_MACHINE, Requirement, Run
from groupdro.solvers.baselines.smd import SMD
from groupdro.utils.arguments import check_choice, check_number
from groupdro.utils.bundle import check, is_finite_array
from groupdro.utils.types import Floats, Indices

__all__ = ["TSA"]


def _own_outputs(problem: GroupRisk, draw: Draw, models: Floats) -> tuple[Indices, Floats, Floats]:
    """Return the drawn rows' places, the rows, and the output of each under its group's own model."""
    rows = problem.data.rows_of(draw.members)
    X = problem.data.rows.take(rows)
    X = np.asarray(X.todense() if hasattr(X, "todense") else X, dtype=np.float64)
    return rows, X, np.ascontiguousarray(np.einsum("md,md...->m...", X, models))


def _points(geometry: Geometry, mirrored: Floats) -> Floats:
    """Return every group's own model from the coordinates in which steps are taken: in a ball these are the same."""
    return mirrored if isinstance(geometry, Euclidean) else np.array([geometry.point(w) for w in mirrored])


def _step_all(geometry: Geometry, mirrored: Floats, step: float, gradients: Floats) -> Floats:
    """Take the step of every group's own model: all at once in a ball, one by one elsewhere."""
    if not isinstance(geometry, Euclidean):
        return np.array([geometry.step(w, step, g) for w, g in zip(mirrored, gradients, strict=True)])
    moved = (mirrored - step * gradients) / (1.0 + step * geometry.penalty)
    norms = np.linalg.norm(moved.reshape(len(moved), -1), axis=1)
    shrink = np.minimum(1.0, geometry.radius / np.maximum(norms, 1e-300))
    return np.asarray(moved * shrink.reshape((-1,) + (1,) * (moved.ndim - 1)))


_OWN_REFERENCES = Requirement(
    what="a problem without references",
    holds=lambda problem: not problem.regret,
    remedy="it finds every group's own minimum itself; with references of your own use 'alem'",
)


class TSA(SMD):
    """Two stages of stochastic approximation.

    It is reconstructed from published descriptions; the original text and code were not available.

    Stage one runs projected stochastic gradients on every group at once, one row of each a step, with steps
    radius / (G sqrt t) times the multiplier, and averages them by their steps. One pass then measures each group's risk
    there. Stage two is SMD on the regrets.

    Parameters
    ----------
    multiplier : float
        Factor of the steps of stage two; 1 is the theory's.
    stage_one_multiplier : float, optional
        That of stage one; by default the same.
    stage_one_passes : float
        Passes over the data in stage one.
    form : {"two-stage", "common-random-numbers"}
        What stage two subtracts from a drawn row's loss: the group's measured risk; or the loss of the same row under
        the group's own model, which has the same mean and less variance.
    """

    name = "tsa"
    minimises_regrets = True

    def __init__(
        self,
        multiplier: float = 1.0,
        *,
        stage_one_multiplier: float | None = None,
        stage_one_passes: float = 10.0,
        form: Literal["two-stage", "common-random-numbers"] = "two-stage",
    ):
        super().__init__(multiplier)
        check_choice(form, "form", ("two-stage", "common-random-numbers"))
        check_number(stage_one_passes, "stage_one_passes", positive=True)
        if stage_one_multiplier is not None:
            check_number(stage_one_multiplier, "stage_one_multiplier", positive=True)
        self.stage_one_multiplier = multiplier if stage_one_multiplier is None else stage_one_multiplier
        self.stage_one_passes = stage_one_passes
        self.form = form
        self._models: Floats | None = None

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """All rows in one place and no references, besides what SMD needs."""
        return (*super().requires, ONE_MACHINE, _OWN_REFERENCES)

    def prepare(self, problem: GroupRisk, run: Run, seed: int) -> GroupRisk:
        """Stage one: approach every group's own minimum, and measure its risk there."""
        del run
        self._models = self._group_models(problem, np.random.default_rng([seed, 1 << 24]))
        upper, lower = np.empty(problem.n_groups), np.empty(problem.n_groups)
        for i, w in enumerate(self._models):
            alone = problem.group(i)
            at = alone.evaluate(w, np.ones(1))
            upper[i] = alone.objective(w, at.group_risks)
            lower[i] = max(0.0, linearise(alone, at).bound(alone, alone.solution_domain(upper[i])))
        return problem.with_references(References(upper, lower))

    def prepared(self) -> dict[str, Any]:
        """Return every group's own model."""
        return {"models": self._models}

    def resume(self, problem: GroupRisk, run: Run, prepared: dict[str, Any]) -> GroupRisk:
        """Take stage one from the checkpoint."""
        models = prepared.get("models")
        check(is_finite_array(models, (problem.n_groups, *problem.shape)), "its models of the groups do not fit")
        self._models = models
        return super().resume(problem, run, prepared)

    def _group_models(self, problem: GroupRisk, rng: np.random.Generator) -> Floats:
        """Return the step-weighted averages of one stochastic gradient run a group."""
        m, start = problem.n_groups, problem.start()
        with problem.counters.suspended():
            geometry = bounded_geometry(problem, problem.evaluate(start, np.full(m, 1.0 / m)))
        G = problem.constants(geometry.dual_order, geometry.radius).lipschitz
        mirrored = np.repeat(geometry.mirror(start)[None], m, axis=0)
        total, weight = np.zeros((m, *start.shape)), 0.0
        for t in range(max(1, round(self.stage_one_passes * problem.n_rows / m))):
            share = 1.0 / np.sqrt(t + 1.0)
            step = self.stage_one_multiplier * geometry.radius / max(G, 1e-300) * share
            models = _points(geometry, mirrored)
            total += share * models  # not times the step, which vanishes on a domain of one point
            weight += share
            gradients = self._row_gradients(problem, problem.data.draw(rng), models)
            mirrored = _step_all(geometry, mirrored, step, gradients)
        return total / weight

    @staticmethod
    def _row_gradients(problem: GroupRisk, draw: Draw, models: Floats) -> Floats:
        """Return the gradient of each group's drawn row at the group's own model."""
        rows, X, outputs = _own_outputs(problem, draw, models)
        slopes = problem.loss.value_and_slope(outputs, problem.data.y[rows])[1]
        problem.counters.add(grad_evals=len(rows), grad_evals_paper=len(rows), row_reads=len(rows))
        return np.asarray(np.einsum("md,m...->md...", X, slopes))

    def sampled_values(
        self, problem: GroupRisk, rng: np.random.Generator, w: Floats, q: Floats
    ) -> tuple[Floats, Floats]:
        """Return unbiased regrets and the gradient from one row a group."""
        draw = problem.data.draw(rng)
        risks, gradient = problem.sampled(draw, w, q)
        if self.form == "two-stage":
            return problem.group_values(risks), gradient
        assert self._models is not None
        rows, _, outputs = _own_outputs(problem, draw, self._models)
        own = problem.loss.value(outputs, problem.data.y[rows])
        n = len(rows)
        problem.counters.add(grad_evals=n, grad_evals_paper=n)
        # The penalty at a group's own model is part of what it reached there.
        penalties = np.array([problem.domain.penalty_at(problem.coef(model)) for model in self._models])
        return risks - own - penalties + problem.offsets, gradient

    def describe(self) -> str:
        """Say which form ran, and that it is reconstructed."""
        return f"tsa ({self.form}; reconstructed)"
