from typing import Any

import benchmark_utils  # noqa: F401  (finds `benchmarks`)
import numpy as np
from benchmarks.benchopt_tools import GroupObjective

from groupdro.run.stages import Budget
from groupdro.solvers.references import GroupReferences


class Objective(GroupObjective):
    """The worst group's regret over a ball: its average loss less the least that any model reaches there."""

    name = "worst regret"

    def find_references(self, test_names: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return each group's own minimum, certified to 1e-8: what every curve is measured against."""
        free = Budget(tol=0.0, atol=1e-7, passes_left=lambda: np.inf, seconds_left=lambda: np.inf)
        found = GroupReferences(max_passes=5000.0).run(self.train, free, 0).references
        assert found is not None
        minima = found.upper
        place = {name: k for k, name in enumerate(self.data.names)}
        return minima, np.array([minima[place[name]] for name in test_names])
