"""The parameters of the estimators, and their checks."""

import os
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar

from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_scalar

from groupdro.solvers import Solver
from groupdro.utils.arguments import check_choice, check_flag, check_kind, check_number, check_path

__all__ = ["Parameters"]

_NUMBERS = ("robustness", "worst_share", "alpha", "tol", "atol", "small_group_adjustment", "radius", "max_passes",
            "max_time")  # fmt: skip
_OPTIONAL = ("worst_share", "atol", "radius", "max_time")
_LEAST = 1e-100  # penalty and radius, whose squares must not vanish


@dataclass(eq=False, repr=False)
class Parameters(BaseEstimator):
    """What the classifier and the regressor take, each with its default."""

    _losses: ClassVar[tuple[str, ...]]

    objective: str = "risk"
    _: KW_ONLY
    robustness: float = 1.0
    average: str = "rows"
    n_worst: int | None = None
    worst_share: float | None = None
    loss: str
    alpha: float = 1e-4
    radius: float | None = None
    fit_intercept: bool = True
    precondition: bool = True
    tol: float = 1e-4
    atol: float | None = None
    max_passes: float = 1000
    max_time: float | None = None
    solver: str | Solver = "auto"
    warm_start: bool = False
    random_state: Any = None
    verbose: int = 0
    callbacks: Any = None
    checkpoint_dir: str | os.PathLike[str] | None = None
    missing_group: str = "error"
    min_group_size: int = 1
    small_groups: str = "warn"
    small_group_adjustment: float = 0.0
    reference_risks: Any = None

    def _check_parameters(self) -> None:
        """Refuse what no fit can use; constructors only store, as scikit-learn has it."""
        check_choice(self.objective, "objective", ("risk", "excess_risk"))
        check_choice(self.loss, "loss", self._losses)
        check_choice(self.average, "average", ("rows", "groups"))
        check_choice(self.missing_group, "missing_group", ("error", "own"))
        check_choice(self.small_groups, "small_groups", ("warn", "merge", "raise"))
        for name in ("fit_intercept", "precondition", "warm_start"):
            check_flag(getattr(self, name), name)
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            unlimited = name in ("max_passes", "max_time")
            check_number(value, name, positive=unlimited or name in ("radius", "worst_share"), finite=not unlimited)
            if name in ("alpha", "radius") and 0 < value < _LEAST:
                raise ValueError(f"{name} is too small to compute with, got {value!r}: the least is {_LEAST:g}.")
        check_scalar(self.min_group_size, "min_group_size", Integral, min_val=1)
        for name in ("robustness", "worst_share"):
            if getattr(self, name) is not None and getattr(self, name) > 1:
                raise ValueError(f"{name} must be at most 1, got {getattr(self, name)!r}.")
        if self.n_worst is not None:
            check_scalar(self.n_worst, "n_worst", Integral, min_val=1)
            if self.worst_share is not None:
                raise ValueError("n_worst and worst_share are two ways to say the same: set one of them.")
        check_scalar(self.verbose, "verbose", Integral, min_val=0)
        check_kind(self.solver, "solver", str | Solver, "a name or a Solver")
        called = self.callbacks
        if called is not None and not (isinstance(called, Iterable) and all(map(callable, called))):
            raise TypeError(f"callbacks must be a list of callables, got {self.callbacks!r}.")
        if self.checkpoint_dir is not None:
            check_path(self.checkpoint_dir, "checkpoint_dir")
        if self.reference_risks is not None and self.objective != "excess_risk":
            raise ValueError("reference_risks needs objective='excess_risk'.")
