"""Mirror prox in the benchmark."""

import benchmark_utils  # noqa: F401  (finds `benchmarks`)
from benchmarks.benchopt_tools import OwnSolver
from mirror_prox import MirrorProx

import groupdro as gd


class Solver(OwnSolver):
    """Mirror prox on full passes."""

    name = "mirror prox"

    def make(self) -> gd.Solver:
        """Return the solver that is run."""
        return MirrorProx()
