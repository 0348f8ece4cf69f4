import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """The default: what the cost model picks."""

    name = "auto"

    def make(self) -> gd.Solver:
        return gd.Auto()
