import benchmark_utils  # noqa: F401, I001  (finds `benchmarks`)
from typing import Any

import numpy as np
from benchopt import BaseObjective
from benchmarks.benchopt_tools import make_problem

import groupdro as gd


class Objective(BaseObjective):
    """The worst group's average loss over a ball."""

    name = "worst risk"
    min_benchopt_version = "1.6"
    sampling_strategy = "callback"
    parameters = {"max_passes": [40]}  # noqa: RUF012
    test_config = {"dataset": {"name": "synthetic"}, "max_passes": 3}  # noqa: RUF012

    def set_data(
        self,
        X: Any,
        y: Any,
        groups: Any,
        X_test: Any,
        y_test: Any,
        groups_test: Any,
        task: str,
        radius: float,
    ) -> None:
        self.task, self.radius = task, radius
        self.data = gd.GroupedData.from_arrays(X, y, groups)
        self.train = make_problem(self.data, task, radius)
        # Test rows of the groups and classes of the training rows only, in the same order of groups.
        known = np.isin(groups_test, np.unique(groups)) & (np.isin(y_test, np.unique(y)) | (task == "regression"))
        rows = gd.GroupedData.from_arrays(np.asarray(X_test)[known], y_test[known], groups_test[known])
        self.test = gd.GroupRisk(rows, self.train.loss, self.train.domain)

    def get_objective(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "task": self.task,
            "radius": self.radius,
            "max_passes": self.max_passes,
        }

    def evaluate_result(
        self,
        w: Any,
        upper: float,
        lower: float,
        grad_evals: int,
        grad_evals_paper: int,
        passes: float,
        solver_seconds: float,
    ) -> dict[str, float]:
        train, test = self.train.risks(w), self.test.risks(w)
        return {
            "value": float((train).max()),
            "worst_train": float((train).max()),
            "worst_test": float((test).max()),
            "certified_gap": upper - lower,
            "grad_evals": grad_evals,
            "grad_evals_paper": grad_evals_paper,
            "passes": passes,
            "solver_seconds": solver_seconds,
        }

    def get_one_result(self) -> dict[str, Any]:
        return {
            "w": self.train.start(),
            "upper": 1.0,
            "lower": 0.0,
            "grad_evals": 0,
            "grad_evals_paper": 0,
            "passes": 0.0,
            "solver_seconds": 0.0,
        }
