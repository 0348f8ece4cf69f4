import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import MULTIPLIERS, OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """The paper's ALEM, at multiples of the theorem's step in both stages."""

    name = "ALEM of the paper"
    parameters = {  # noqa: RUF012
        "multiplier": MULTIPLIERS,
    }

    def make(self) -> gd.Solver:
        return gd.ALEM(
            gd.ALEGTheory(multiplier=self.multiplier, guarantee=False),
            gd.ALEGTheory(multiplier=self.multiplier, guarantee=False),
            stage_one_passes=11.0,
        )
