import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import SagawaSolver


class Solver(SagawaSolver):
    """The online algorithm of group DRO."""

    name = "Sagawa SGD"
