"""The parameters of the estimators, and their checks."""

import os
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_scalar

from groupdro.problem import Domain, ElasticNetDomain, L2Domain
from groupdro.solvers import Solver
from groupdro.utils.arguments import check_choice, check_flag, check_kind, check_number, check_path, error_prefix
from groupdro.utils.types import Floats
from groupdro.utils.vectors import LARGEST

__all__ = ["Parameters"]

_NUMBERS = ("robustness", "worst_share", "alpha", "l1_ratio", "tol", "atol", "small_group_adjustment", "radius",
            "max_passes", "max_time")  # fmt: skip
_OPTIONAL = ("worst_share", "atol", "radius", "max_time")
_LEAST = 1e-100  # smallest penalty and radius; their squares must not underflow


@dataclass(eq=False, repr=False)
class Parameters(BaseEstimator):
    """Parameters of both estimators, with defaults."""

    _losses: ClassVar[tuple[str, ...]]

    objective: str = "risk"
    _: KW_ONLY
    robustness: float = 1.0
    average: str = "rows"
    n_worst: int | None = None
    worst_share: float | None = None
    loss: str
    alpha: float = 1e-4
    l1_ratio: float = 0.0
    positive: bool = False
    lower_bounds: Any = None
    upper_bounds: Any = None
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
        """Check the parameters at fit time; constructors only store them, by scikit-learn's convention."""
        check_choice(self.objective, "objective", ("risk", "excess_risk"))
        check_choice(self.loss, "loss", self._losses)
        check_choice(self.average, "average", ("rows", "groups"))
        check_choice(self.missing_group, "missing_group", ("error", "own"))
        check_choice(self.small_groups, "small_groups", ("warn", "merge", "raise"))
        for name in ("positive", "fit_intercept", "precondition", "warm_start"):
            check_flag(getattr(self, name), name)
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            unlimited = name in ("max_passes", "max_time")
            check_number(value, name, positive=unlimited or name in ("radius", "worst_share"), finite=not unlimited)
            if name in ("alpha", "radius") and 0 < value < _LEAST:
                raise ValueError(f"{name} is too small, got {value!r}: the smallest allowed value is {_LEAST:g}.")
        check_scalar(self.min_group_size, "min_group_size", Integral, min_val=1)
        for name in ("robustness", "worst_share", "l1_ratio"):
            if getattr(self, name) is not None and getattr(self, name) > 1:
                raise ValueError(f"{name} must be at most 1, got {getattr(self, name)!r}.")
        if self.n_worst is not None:
            check_scalar(self.n_worst, "n_worst", Integral, min_val=1)
            if self.worst_share is not None:
                raise ValueError("n_worst and worst_share are alternatives: set only one of them.")
        check_scalar(self.verbose, "verbose", Integral, min_val=0)
        check_kind(self.solver, "solver", str | Solver, "a name or a Solver")
        called = self.callbacks
        if called is not None and not (isinstance(called, Iterable) and all(map(callable, called))):
            raise TypeError(f"callbacks must be a list of callables, got {self.callbacks!r}.")
        if self.checkpoint_dir is not None:
            check_path(self.checkpoint_dir, "checkpoint_dir")
        if self.reference_risks is not None and self.objective != "excess_risk":
            raise ValueError("reference_risks requires objective='excess_risk'.")
        low, high = self._coefficient_bounds()
        for name, ends, wrong in (("lower_bounds", low, low > 0), ("upper_bounds", high, high < 0)):
            if ends.ndim > 1 or wrong.any() or np.isnan(ends).any():
                side = "above" if name == "lower_bounds" else "below"
                raise ValueError(f"{name} must be a number, or one per feature, with none {side} 0, got {ends!r}.")
            if (np.isfinite(ends) & (np.abs(ends) > LARGEST)).any():
                raise ValueError(f"{name} has finite values beyond {LARGEST:g}, whose squares are not; use infinity.")
        if self._is_separable:
            if self.radius is not None:
                raise ValueError("radius must be None with l1_ratio, positive or coefficient bounds.")
            if self.alpha == 0 and not (np.isfinite(low).all() and np.isfinite(high).all()):
                raise ValueError("alpha must be positive with l1_ratio, positive or infinite coefficient bounds.")

    @property
    def _is_separable(self) -> bool:
        """Whether penalties and bounds apply to each coefficient separately."""
        low, high = self._coefficient_bounds()
        return bool(self.l1_ratio > 0 or np.isfinite(low).any() or np.isfinite(high).any())

    def _coefficient_bounds(self) -> tuple[Floats, Floats]:
        """Return the bounds on the coefficients, for all or per feature."""
        low, high = self.lower_bounds, self.upper_bounds
        with error_prefix("lower_bounds or upper_bounds"):
            least = np.asarray(-np.inf if low is None else low, dtype=np.float64)
            most = np.asarray(np.inf if high is None else high, dtype=np.float64)
        return np.maximum(least, 0.0) if self.positive else least, most

    def _domain(self, alpha: float) -> Domain | None:
        """Return the domain of the coefficients with its penalty; None if nothing bounds them."""
        if self._is_separable:
            low, high = self._coefficient_bounds()
            ratio = float(self.l1_ratio)
            return ElasticNetDomain(l1=alpha * ratio, l2=alpha * (1.0 - ratio), low=low, high=high)
        if alpha == 0 and self.radius is None:
            return None
        return L2Domain(radius=np.inf if self.radius is None else float(self.radius), penalty=alpha)
