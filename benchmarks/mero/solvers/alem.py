import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """Every group alone, then the regrets: nothing is tuned."""

    name = "ALEM"
    tol = 1e-2  # which also tells stage one how far to go; finer ones leave it no budget

    def make(self) -> gd.Solver:
        return gd.ALEM(stage_two=gd.ALEG())
