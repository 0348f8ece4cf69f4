import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import MULTIPLIERS, OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """Accelerated loopless variance-reduced extragradient, reconstructed."""

    name = "AL-SVRE reconstructed"
    parameters = {  # noqa: RUF012
        "multiplier": MULTIPLIERS,
        "geometry": ["euclidean", "kl"],
    }

    def make(self) -> gd.Solver:
        return gd.ALSVRE(self.multiplier, geometry=self.geometry)
