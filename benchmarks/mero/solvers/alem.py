import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """Every group alone, then the regrets: nothing is tuned."""

    name = "ALEM"

    def make(self) -> gd.Solver:
        return gd.ALEM(stage_two=gd.ALEG())
