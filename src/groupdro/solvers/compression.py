"""The squared loss by its second moments: a start near the solution, for little more than a pass."""

from dataclasses import dataclass

from groupdro.oracle import Oracle
from groupdro.oracle.groups import evaluate_groups
from groupdro.problem import Problem
from groupdro.problem.second_moments import compress, compressed_rows
from groupdro.run.run import Run
from groupdro.run.solver import Solver
from groupdro.run.stages import Budget, Preparation, Prepared
from groupdro.utils.types import Floats

__all__ = ["Compression", "compression_pays"]

_MOST_ROWS = 0.25  # share of the rows that the compressed problem may have
_SHARE = 0.1  # of the tolerance, to which it is solved
_MOST_PASSES = 1000.0  # over its rows
_MOST_MOMENTS = 5e7  # numbers in all groups' moments


def compression_pays(problem: Problem) -> bool:
    """Return whether the second moments stand for a problem, and are small compared to its rows."""
    moments = problem.n_groups * float(problem.data.n_features + 2) ** 2
    return moments <= _MOST_MOMENTS and compressed_rows(problem) <= _MOST_ROWS * problem.n_rows


@dataclass(frozen=True)
class Compression(Preparation):
    """Solve the problem of the second moments, whose passes are very cheap.

    Rounding of the moments may make its solution inaccurate, but never a bound wrong: all bounds come from passes over
    the data.

    Parameters
    ----------
    solver : Solver
        The solver of that problem.
    """

    solver: Solver

    def run(self, oracle: Oracle, w: Floats, q: Floats, budget: Budget, seed: int) -> Prepared:
        """Compress in one pass, and solve."""
        small = compress(oracle.problem)
        oracle.count_pass()
        if small is None:
            return Prepared()
        found = Run.of(
            small,
            self.solver,
            w,
            q,
            tol=_SHARE * budget.tol,
            atol=_SHARE * budget.atol,
            max_passes=_MOST_PASSES,
            max_time=max(budget.seconds_left(), 1e-3),
            seed=seed,
        )()
        if found.interrupted:
            return Prepared(start=(found.w, found.q), interrupted=True)
        there = evaluate_groups(oracle, found.w, found.q, hessian=False)
        return Prepared(start=(found.w, found.q), evaluation=there.at(found.q))
