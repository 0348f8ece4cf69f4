"""Squared loss: each group compressed by QR to as many rows as there are columns, and solved there."""

from functools import partial

import numpy as np

from groupdro.data import GroupedData
from groupdro.data.rows import DenseRows
from groupdro.problem import GroupRisk, Squared
from groupdro.run.driver import solve
from groupdro.run.result import Status
from groupdro.run.solver import Requirement, Run
from groupdro.solvers.sqp import GroupSQP
from groupdro.utils.threads import interruptibly
from groupdro.utils.types import Floats

__all__ = ["Quadratic", "compress"]


_ROWS_A_PIECE = 1024
_LONG = 1 << 20  # numbers, whose factorisation takes a good part of a second

SQUARED_LOSS = Requirement(
    what="the squared loss on dense rows of one machine without a free intercept",
    holds=lambda p: (
        isinstance(p.loss, Squared)
        and isinstance(p.data.rows, DenseRows)
        and not p.fit_intercept
        and p.data.n_workers == 1
    ),
    remedy="use solver='sqp', which takes every loss",
)


def compress(problem: GroupRisk) -> GroupRisk:
    """Return a problem with the same group risks for every w, and at most n_features + 1 rows a group.

    With [X_i, y_i] = Q R, the sum of squares |X_i w - y_i|^2 = |R (w, -1)|^2 for every w. Reads X once.
    """
    data = problem.data
    rows, targets, sizes = [], [], []
    for i in range(data.n_groups):
        group = data.group(i)
        weights = group.weights if group.weights.size else np.full(group.n_rows, 1.0 / group.n_rows)
        table = np.column_stack([group.rows.take(np.arange(group.n_rows)), group.y])
        if len(table) > table.shape[1]:
            table = _triangle(np.sqrt(weights)[:, None] * table)
            table *= np.sqrt(len(table))  # the mean over the new rows is the sum over R
        else:
            table *= np.sqrt(weights * len(table))[:, None]
        rows.append(table[:, :-1])
        targets.append(table[:, -1])
        sizes.append(len(table))
    problem.counters.add(grad_evals=data.n_rows, grad_evals_paper=data.n_rows, row_reads=data.n_rows)
    small = GroupedData.from_arrays(np.vstack(rows), np.concatenate(targets), np.repeat(np.arange(len(sizes)), sizes))
    references = problem.references if problem.regret else None
    start = problem.start(), problem.start_weights()
    return GroupRisk(small, problem.loss, problem.domain, references=references, offsets=problem.offsets, start=start)


def _triangle(table: Floats) -> Floats:
    """Return R of table = Q R, by pieces: they stay in the cache, and between them an interrupt can arrive."""
    triangle, step = np.empty((0, table.shape[1])), max(_ROWS_A_PIECE, 2 * table.shape[1])
    for start in range(0, len(table), step):
        stacked = np.vstack([triangle, table[start : start + step]])
        factor = partial(np.linalg.qr, stacked, mode="r")
        triangle = np.asarray(interruptibly(factor) if stacked.size > _LONG else factor())
    return triangle


class Quadratic(GroupSQP):
    """Exact solver of the squared loss for modest numbers of features.

    The groups are compressed by QR in one pass; SQP solves the small problem, whose every pass then costs next to
    nothing; one more pass over the data certifies the solution there. Should rounding have cost too much, SQP goes on
    from it on the data themselves.
    """

    name = "quadratic"

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """The squared loss on dense rows."""
        return (SQUARED_LOSS,)

    def prepare(self, problem: GroupRisk, run: Run, seed: int) -> GroupRisk:
        """Solve the compressed problem and start from there."""
        small = compress(problem)
        seconds = max(run.seconds_left(), 1e-3)
        sqp = GroupSQP(self.hessian, memory=self.memory)
        found = solve(small, sqp, tol=0.1 * run.tol, atol=0.1 * run.atol, max_time=seconds, seed=seed)
        run.interrupted = found.interrupted
        run.rough |= found.interrupted or found.status is Status.TIME_LIMIT
        run.best = found.w, found.q
        return problem.starting_at(*run.best)
