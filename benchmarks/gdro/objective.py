import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import GroupObjective


class Objective(GroupObjective):
    """The worst group's average loss over a ball."""

    name = "worst risk"
