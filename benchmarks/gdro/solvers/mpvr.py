import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import MULTIPLIERS, OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """Variance-reduced mirror prox, one sample a step."""

    name = "MPVR"
    parameters = {  # noqa: RUF012
        "multiplier": MULTIPLIERS,
        "sampling": ["importance", "uniform"],
    }

    def make(self) -> gd.Solver:
        return gd.MPVR(self.multiplier, sampling=self.sampling)
