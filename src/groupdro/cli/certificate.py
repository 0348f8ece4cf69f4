"""The certificate of a fitted model, as the commands print it."""

from typing import Any

import numpy as np

from groupdro.run.result import relative_gap
from groupdro.utils.arguments import printable
from groupdro.utils.text import group_name, objective_name

__all__ = ["certificate_lines", "certificate_of", "digits_apart"]


def certificate_of(model: Any) -> dict[str, Any]:
    """Return the certificate of a fitted model as a dict."""
    return {
        "lower_bound": model.lower_bound_,
        "upper_bound": model.upper_bound_,
        "gap": model.gap_,
        "relative_gap": relative_gap(model.gap_, model.upper_bound_),
        "tol": float(model.tol),
        "status": model.status_,
        "message": model.message_,
        "worst_group": model.worst_group_,
        "robustness": float(model.robustness),
        "mean_risk": model.mean_risk_,
        "mean_lower_bound": model.mean_lower_bound_,
        "worst_risk": model.worst_risk_,
        "worst_lower_bound": model.worst_lower_bound_,
    }


def digits_apart(lower: float, upper: float) -> int:
    """Return the number of digits at which two bounds differ: at least four, at most eight."""
    return next((digits for digits in range(4, 8) if f"{lower:.{digits}g}" != f"{upper:.{digits}g}"), 8)


def certificate_lines(model: Any) -> str:
    """Return the certificate as two lines of text."""
    lower, upper = model.lower_bound_ + 0.0, model.upper_bound_  # not "-0"
    digits = digits_apart(lower, upper)
    about = "group " if model.robustness == 1.0 else "worst group "
    about += printable(group_name(model.worst_group_)) + (", with penalty" if model.alpha else "")
    if model.bound_radius_ < np.inf and lower > 0:
        about += f", of models with outputs up to {model.bound_radius_:.0e}"
    relative = certificate_of(model)["relative_gap"]
    return (
        f"{lower:.{digits}g} <= best possible {objective_name(model)} <= {upper:.{digits}g} ({about})\n"
        f"{model.status_.replace('_', ' ')}: relative gap {relative:.1e}, tolerance {model.tol:.0e}"
    )
