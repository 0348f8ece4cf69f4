import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import SmoothedLBFGS


class Solver(SmoothedLBFGS):
    """L-BFGS on the soft maximum, sharpened step by step."""

    name = "L-BFGS on the smoothed maximum"
