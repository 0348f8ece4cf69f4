import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import MULTIPLIERS, OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """Stochastic mirror descent."""

    name = "SMD"
    parameters = {  # noqa: RUF012
        "multiplier": MULTIPLIERS,
    }

    def make(self) -> gd.Solver:
        return gd.SMD(self.multiplier)
