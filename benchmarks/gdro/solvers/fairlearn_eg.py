import benchmark_utils  # noqa: F401  (finds `benchmarks`)
import fairlearn  # noqa: F401  (without it, benchopt says that the solver is not installed)
from benchmarks.benchopt_tools import FairlearnSolver


class Solver(FairlearnSolver):
    """fairlearn's reduction."""

    name = "fairlearn ExponentiatedGradient"
