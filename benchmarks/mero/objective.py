from typing import Any

import benchmark_utils  # noqa: F401  (finds `benchmarks`)
import numpy as np
from benchmarks.benchopt_tools import GroupObjective

from groupdro.run.solver import Run
from groupdro.solvers.alem import group_references


class Objective(GroupObjective):
    """The worst group's regret over a ball: its average loss less the least that any model reaches there."""

    name = "worst regret"

    def find_references(self, test_names: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return each group's own minimum, certified to 1e-8: what every curve is measured against."""
        free = Run(tol=0.0, atol=0.0, passes_left=lambda: np.inf, seconds_left=lambda: np.inf)
        minima = group_references(self.train, None, free, atol=1e-8, max_passes=5000.0, seed=0).upper
        place = {name: k for k, name in enumerate(self.data.names)}
        return minima, np.array([minima[place[name]] for name in test_names])
