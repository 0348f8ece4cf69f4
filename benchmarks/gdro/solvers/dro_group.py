import benchmark_utils  # noqa: F401  (finds `benchmarks`)
import dro  # noqa: F401  (without it, benchopt says that the solver is not installed)
from benchmarks.benchopt_tools import DroSolver


class Solver(DroSolver):
    """The package dro's GroupDRO."""

    name = "dro GroupDRO"
