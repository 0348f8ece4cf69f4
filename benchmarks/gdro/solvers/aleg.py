import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """ALEG with measured steps: nothing is tuned."""

    name = "ALEG"

    def make(self) -> gd.Solver:
        return gd.ALEG()
