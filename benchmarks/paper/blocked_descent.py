"""TSA's first stage for the softmax loss, some steps of a group at a time.

With one row per step and a hundred classes, a step changes all of w and hardly computes anything. So a block of steps
is made from the outputs of its rows at the model before it and the products of its rows with each other, and only then
are the model and its average changed, by products of matrices. The steps are those of `GroupModels`, up to rounding.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.paper.methods.tsa import GroupModels
from groupdro.data import Draw
from groupdro.oracle import Oracle
from groupdro.problem import Problem
from groupdro.utils.types import Floats

__all__ = ["GroupModelsInBlocks"]

BLOCK = 64  # steps; more would spend longer on the products of rows


@dataclass(frozen=True)
class GroupModelsInBlocks(GroupModels):
    """Each group's own model, by the same steps, for dense rows in a ball without a penalty."""

    def models(self, oracle: Oracle, start: Floats, rng: np.random.Generator) -> Floats:
        """Return the step-weighted averages of one stochastic gradient run per group, from models of zeros."""
        problem = oracle.problem
        m, data, radius = problem.n_groups, problem.data, problem.domain.radius  # type: ignore[attr-defined]
        n_steps = max(1, round(self.passes * problem.n_rows / m))
        members = np.array([Draw.one_per_group(data, rng).members for _ in range(n_steps)])
        oracle.count_draw(Draw(members.ravel(), members.ravel(), members.ravel()))
        shares = 1.0 / np.sqrt(np.arange(n_steps) + 1.0)
        steps = self.multiplier * radius / max(problem.constants(2.0, radius).lipschitz, 1e-300) * shares
        return np.array([_average(problem, rows, steps, shares, radius) for rows in members.T])


def _average(problem: Problem, rows: np.ndarray, steps: Floats, shares: Floats, radius: float) -> Floats:
    """Return the average over steps on the given rows, from a model of zeros."""
    X, y = problem.data.rows.X, problem.data.y  # type: ignore[attr-defined]
    w, total, square = np.zeros(problem.shape), np.zeros(problem.shape), 0.0  # square: of the norm of w
    for block in np.array_split(np.arange(len(rows)), -(-len(rows) // BLOCK)):
        drawn = X[rows[block]]
        outputs, products = (np.asarray(drawn @ other, np.float64) for other in (w.astype(X.dtype), drawn.T))
        # Within the block the model is kept * w + drawn.T @ changes, and so is the sum of all models.
        kept, changes, sum_kept, sum_changes = 1.0, np.zeros_like(outputs), 0.0, np.zeros_like(outputs)
        for k, t in enumerate(block):
            sum_kept += shares[t] * kept
            sum_changes += shares[t] * changes
            z = kept * outputs[k] + products[k, :k] @ changes[:k]
            slope = problem.loss.value_and_slope(z[None], y[rows[t], None])[1][0]
            square += steps[t] * (steps[t] * (slope @ slope) * products[k, k] - 2.0 * (slope @ z))
            changes[k] = -steps[t] * slope
            if square > radius**2:
                shrink = radius / np.sqrt(square)
                kept, square = shrink * kept, radius**2
                changes *= shrink
        total += sum_kept * w + drawn.T @ sum_changes.astype(X.dtype)
        w = kept * w + drawn.T @ changes.astype(X.dtype)
        square = float((w**2).sum())
    average: Floats = total / shares.sum()
    return average
