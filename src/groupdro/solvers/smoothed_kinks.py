"""The model of a step with an L1 penalty, solved along a path of decreasing smoothing of the kinks.

The slope s of a smoothed penalty l1 |a| satisfies a (l1^2 - s^2) = 2 mu s. It runs from -l1 to l1, and tends to that of
the kink as mu goes to zero. These equations and those of the model are linearised together in a and s (Chan, Golub and
Mulet, 1999), and s stays strictly inside its interval. Unlike guessing signs and zeros, this cannot cycle: if the worst
group changes with every released coefficient, no single release leads downhill.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from groupdro.solvers.step_models import StepModel
from groupdro.solvers.weight_program import Program
from groupdro.utils.types import Floats

__all__ = ["solve_smoothed"]

_FALL = 0.2  # factor of mu after a full step
_LEAST = 1e-11  # smallest mu, relative to the first
_ROUNDS = 60
_INSIDE = 0.99  # share of the distance from s to the ends of its interval

#: Makes the model of a program with the given additional curvature of the parameters.
MakeModel = Callable[[Program, Floats], StepModel]
Times = Callable[[Floats], Floats]


def solve_smoothed(
    program: Program, here: Floats, l1: Floats, make_model: MakeModel, times: Times
) -> tuple[Floats, Floats]:
    """Minimise the worst of the program's models, a common quadratic, and an L1 penalty.

    Parameters
    ----------
    program : Program
        The program, with the slopes of the parameters that may move.
    here, l1 : ndarray of shape (p,)
        The parameters before the step, and the penalty of each, at least one of them positive.
    make_model : callable
        Makes the model of a program, with additional curvature of each parameter.
    times : callable
        Returns the product of the curvature, including that of penalties, with a step.

    Returns
    -------
    at, x : ndarray
        The parameters after the step, with exact zeros, and the program's multipliers.
    """
    kink = l1 > 0
    none = np.zeros(len(here))
    step, x = make_model(program, none).solve(0.0)
    size = max(float(np.abs(part[kink]).max()) for part in (here, here + step)) or 1.0
    most = float(l1.max())
    mu = most * size
    d = none
    s = none
    least = _LEAST * mu
    for _ in range(_ROUNDS):
        # 1. The model with the penalty's slope and curvature, linearised in a and s.
        a = here + d
        room = l1**2 - s**2
        per = 2.0 * (mu + np.maximum(a * s, 0.0))
        slope = s + (room * a - 2.0 * mu * s) / per
        small = replace(program, rows=program.rows + (slope + times(d)), values=program.values + program.rows @ d)
        step, x = make_model(small, room / per).solve(0.0)

        # 2. A step of both, keeping s inside its interval.
        d = d + step
        change = (room * (a + step) - 2.0 * mu * s) / per
        ahead = np.where(change > 0.0, l1 - s, l1 + s)[kink]
        length = min(1.0, _INSIDE / float((np.abs(change[kink]) / ahead).max(initial=_INSIDE)))
        s = s + length * change
        if mu <= least:
            break
        if length > 0.5:
            mu *= _FALL if length > 0.9 else 0.5
    # Along the path either a or the distance of s from the ends tends to zero, never both.
    zero = kink & (np.abs(here + d) * most < (l1 - np.abs(s)) * size)
    return np.where(zero, 0.0, here + d), x
