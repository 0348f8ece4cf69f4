import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """Exponentiated gradient with a weighted ERM oracle."""

    name = "ERMEG"
    parameters = {  # noqa: RUF012
        "multiplier": [0.1, 0.3, 1, 3, 10],
    }

    def make(self) -> gd.Solver:
        return gd.ERMEG(self.multiplier)
