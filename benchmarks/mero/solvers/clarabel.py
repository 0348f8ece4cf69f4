import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import ClarabelSolver


class Solver(ClarabelSolver):
    """The interior point method behind CVXPY."""

    name = "CVXPY with Clarabel"
