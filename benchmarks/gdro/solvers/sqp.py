import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """Sequential quadratic programming with L-BFGS."""

    name = "group SQP"

    def make(self) -> gd.Solver:
        return gd.GroupSQP("lbfgs")
