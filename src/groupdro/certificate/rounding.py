"""How much rounding may have raised a lower bound."""

import numpy as np

from groupdro.problem import Domain, Problem
from groupdro.problem.output_ball import OutputBall
from groupdro.utils.types import Floats

__all__ = ["gradient_error", "rounding_slack", "support_slack"]


def gradient_error(problem: Problem, mass: float) -> float:
    """Bound the error of a sum of slopes times rows, given the mass of its terms."""
    return float(np.finfo(np.float64).eps) * mass * problem.data.rounding


def rounding_slack(error: float, reach: float, scale: float) -> float:
    """Bound the amount by which rounding may have raised a lower bound.

    An error of a gradient shifts the bound by that error times the distance at which the bound is taken. Sums of losses
    are compensated or pairwise, so their relative error is a few units of rounding.
    """
    return (error * reach if error else 0.0) + 32.0 * float(np.finfo(np.float64).eps) * abs(scale)


def support_slack(domain: Domain | OutputBall, gradient: Floats, error: float) -> float:
    """Bound the amount by which rounding of a gradient may have raised the domain's support.

    The error counts at the minimiser of the exact gradient, which with a weak penalty may be far from that of the
    computed one.
    """
    return rounding_slack(error, domain.reach_near(gradient, error), 0.0)
