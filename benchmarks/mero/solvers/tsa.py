import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import MULTIPLIERS, OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """Two-stage stochastic approximation, reconstructed."""

    name = "TSA reconstructed"
    parameters = {  # noqa: RUF012
        "multiplier": MULTIPLIERS,
        "form": ["two-stage", "common-random-numbers"],
    }

    def make(self) -> gd.Solver:
        return gd.TSA(self.multiplier, form=self.form)
