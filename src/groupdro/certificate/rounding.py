"""How much rounding may have raised a lower bound."""

import numpy as np

from groupdro.problem import Domain, GroupRisk
from groupdro.problem.output_ball import OutputBall
from groupdro.utils.types import Floats

__all__ = ["gradient_error", "rounding_slack", "support_slack"]


def rounding_slack(problem: GroupRisk, mass: float, reach: float, scale: float) -> float:
    """Bound the amount by which rounding may have raised a lower bound.

    An error in a sum of slopes times rows shifts the bound by that error times the distance at which the bound is
    taken. Sums of losses are compensated or pairwise, so their relative error is a few units of rounding.
    """
    moved = gradient_error(problem, mass)
    return (moved * reach if moved else 0.0) + 32.0 * float(np.finfo(np.float64).eps) * abs(scale)


def gradient_error(problem: GroupRisk, mass: float) -> float:
    """Bound the error of a sum of slopes times rows, given the mass of its terms."""
    return float(np.finfo(np.float64).eps) * mass * problem.rounding


def support_slack(problem: GroupRisk, domain: Domain | OutputBall, gradient: Floats, mass: float) -> float:
    """Bound the amount by which rounding of a gradient may have raised the domain's support.

    The error counts at the minimiser of the exact gradient, which with a weak penalty may be far from that of the
    computed one.
    """
    return rounding_slack(problem, mass, domain.reach_near(gradient, gradient_error(problem, mass)), 0.0)
