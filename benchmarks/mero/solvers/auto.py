import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """The default: what the cost model picks for the regrets."""

    name = "auto"
    tol = 1e-2  # which also tells stage one how far to go; finer ones leave it no budget

    def make(self) -> gd.Solver:
        return gd.ALEM()
