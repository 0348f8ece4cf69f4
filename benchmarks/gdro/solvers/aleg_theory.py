import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import MULTIPLIERS, OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """The paper's ALEG, at multiples of the theorem's step; 1 is the theorem's."""

    name = "ALEG of the paper"
    parameters = {  # noqa: RUF012
        "multiplier": MULTIPLIERS,
    }

    def make(self) -> gd.Solver:
        return gd.ALEGTheory(multiplier=self.multiplier, guarantee=False)
