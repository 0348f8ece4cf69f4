from typing import Any

import benchmark_utils  # noqa: F401  (finds `benchmarks`)
import numpy as np
from benchmarks.benchopt_tools import MULTIPLIERS, OwnSolver

import groupdro as gd


class Solver(OwnSolver):
    """Two-stage stochastic approximation, reconstructed."""

    name = "TSA reconstructed"
    parameters = {  # noqa: RUF012
        "multiplier": MULTIPLIERS,
        "form": ["two-stage", "common-random-numbers"],
    }

    def skip(self, data: gd.GroupedData, **_: Any) -> tuple[bool, str | None]:
        n_outputs = len(np.unique(data.y))
        if data.n_groups * data.n_features * n_outputs > 1e7:
            return True, "its first stage moves a model of every group in every step: more than 10^7 numbers"
        return False, None

    def make(self) -> gd.Solver:
        return gd.TSA(self.multiplier, form=self.form)
