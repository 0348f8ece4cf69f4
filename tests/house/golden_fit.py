"""A fit that is repeated, and what is kept of it."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import groupdro as gd

__all__ = ["FITS", "Fit", "Outcome", "keep"]

Outcome = dict[str, Any]


def outcome(found: Any) -> Outcome:
    """Return what is kept of a result or of a fitted estimator."""
    if isinstance(found, gd.solvers.Result):
        status, w, trace, passes = found.status.name.lower(), found.w, found.trace, found.passes
        criterion, upper, lower, solver = found.criterion, found.upper_bound, found.lower_bound, found.solver
    else:
        status, trace, passes = found.status_, found.trace_, found.n_passes_
        w = np.append(np.ravel(found.coef_), np.ravel(found.intercept_))
        criterion, upper, lower, solver = found.criterion_, found.upper_bound_, found.lower_bound_, found.solver_
    read = [row.passes for row in trace]
    flat = np.ravel(w).astype(np.float64)
    return {
        "status": status,
        "criterion": criterion,
        "upper": float(upper),
        "lower": float(lower),
        "passes": float(passes),
        "epochs": len(trace),
        "passes_per_epoch": float(max(np.diff(read, prepend=0.0))),
        "solver": solver,
        "w_norm": float(np.linalg.norm(flat)),
        "w_dot": float(flat @ np.cos(np.arange(1.0, flat.size + 1.0))),
    }


@dataclass(frozen=True)
class Fit:
    """A fit that is repeated.

    Attributes
    ----------
    name : str
        What it is.
    run : callable
        Makes the fit with its files in an empty folder, and returns the result or the fitted estimator.
    fast : bool
        Whether it is one of those that every run of the tests repeats.
    table : str
        Public table that it reads, from the folder that GROUPDRO_DATA names.
    rounding : float
        Least relative difference of bounds that says something: products of several outputs with rows of less than
        float64 are rounded to float32.
    """

    name: str
    run: Callable[[Path], Any]
    fast: bool = False
    table: str = ""
    rounding: float = 0.0

    @property
    def possible(self) -> bool:
        """Whether the table that it reads is there."""
        return not self.table or Path(os.environ.get("GROUPDRO_DATA", ""), "tabular", f"{self.table}.csv.gz").exists()

    def outcome(self, folder: Path) -> Outcome:
        """Make the fit, and return what is kept of it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", gd.SmallGroupWarning)
            return outcome(self.run(folder))


FITS: dict[str, Fit] = {}


def keep(fit: Fit) -> None:
    assert fit.name not in FITS, fit.name
    FITS[fit.name] = fit
