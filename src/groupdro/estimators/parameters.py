"""The parameters of the estimators, and their checks."""

import os
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_scalar

from groupdro.losses import Loss
from groupdro.problem import Domain, ElasticNetDomain, L2Domain
from groupdro.solvers import Solver
from groupdro.utils.arguments import check_choice, check_flag, check_kind, check_number, check_path

__all__ = ["Parameters"]

_NUMBERS = (
    "robustness",
    "worst_share",
    "alpha",
    "l1_ratio",
    "radius",
    "tol",
    "atol",
    "max_passes",
    "max_time",
    "small_group_bonus",
)
_OPTIONAL = ("worst_share", "atol", "radius", "max_time")
_SHORTHANDS = ("alpha", "l1_ratio", "radius")  # of a domain
_LEAST = 1e-100  # smallest penalty and radius; their squares must not underflow


@dataclass(eq=False, repr=False)
class Parameters(BaseEstimator):
    """Parameters of both estimators, with defaults."""

    _losses: ClassVar[dict[str, type[Loss]]]

    objective: str = "risk"
    _: KW_ONLY
    robustness: float = 1.0
    average: str = "rows"
    worst_share: float | None = None
    break_ties: bool = True
    loss: str | Loss
    alpha: float = 1e-4
    l1_ratio: float = 0.0
    radius: float | None = None
    domain: Domain | None = None
    fit_intercept: bool = True
    tol: float = 1e-4
    atol: float | None = None
    max_passes: float = 1000
    max_time: float | None = None
    solver: str | Solver = "auto"
    random_state: Any = None
    verbose: int = 0
    callbacks: Any = None
    checkpoint_dir: str | os.PathLike[str] | None = None
    min_group_size: int = 1
    small_group_bonus: float = 0.0

    def _check_parameters(self) -> None:
        """Check the parameters at fit time; constructors only store them, by scikit-learn's convention."""
        check_choice(self.objective, "objective", ("risk", "excess_risk"))
        check_choice(self.average, "average", ("rows", "groups"))
        if not isinstance(self.loss, Loss):
            check_choice(self.loss, "loss", tuple(self._losses))
        check_flag(self.break_ties, "break_ties")
        check_flag(self.fit_intercept, "fit_intercept")
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
        check_scalar(self.verbose, "verbose", Integral, min_val=0)
        check_kind(self.solver, "solver", str | Solver, "a name or a Solver")
        called = self.callbacks
        if called is not None and not (isinstance(called, Iterable) and all(map(callable, called))):
            raise TypeError(f"callbacks must be a list of callables, got {self.callbacks!r}.")
        if self.checkpoint_dir is not None:
            check_path(self.checkpoint_dir, "checkpoint_dir")
        self._check_domain()

    def _check_domain(self) -> None:
        """Check that the parameters describe one domain, and one that bounds the coefficients."""
        if self.domain is not None:
            check_kind(self.domain, "domain", Domain, "a Domain or None")
            # A default cannot be told from the same value passed by the user, and is ignored.
            given = [name for name in _SHORTHANDS if getattr(self, name) != getattr(Parameters, name)]
            if given:
                raise ValueError(
                    f"domain replaces {', '.join(given)}: leave the defaults, and set penalties and bounds there."
                )
        elif self.l1_ratio > 0:
            if self.radius is not None:
                raise ValueError("radius must be None with l1_ratio.")
            if self.alpha == 0:
                raise ValueError("alpha must be greater than 0 with l1_ratio.")

    def _domain(self, alpha: float) -> Domain | None:
        """Return the domain of the coefficients with its penalty; None if nothing bounds them."""
        if self.domain is not None:
            return self.domain
        ratio = float(self.l1_ratio)
        if ratio > 0:
            return ElasticNetDomain(l1=alpha * ratio, l2=alpha * (1.0 - ratio))
        if alpha == 0 and self.radius is None:
            return None
        return L2Domain(radius=np.inf if self.radius is None else float(self.radius), penalty=alpha)

    def _refuse_domain(self, caller: str) -> None:
        """Refuse a domain where alpha varies."""
        if self.domain is not None:
            raise ValueError(f"{caller} varies alpha, but the estimator has domain={self.domain!r}, which replaces it.")
