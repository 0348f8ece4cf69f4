"""Losses of one output u with label y: value, derivative in u, and convex conjugate.

Every function takes the loss as an integer code and one shape parameter (Huber's threshold; unused elsewhere).
"""

import math

from groupdro.kernels.compile import compiled

__all__ = [
    "HUBER",
    "LOGISTIC",
    "N_LOSSES",
    "SQUARED",
    "SQUARED_HINGE",
    "conjugates",
    "losses_and_slopes",
    "values_only",
]

LOGISTIC = 0
SQUARED = 1
HUBER = 2
SQUARED_HINGE = 3
N_LOSSES = 4

# Rounding may put averages of duals outside the conjugate's domain.
_ROUNDING = 1e-15


@compiled
def value(code, parameter, u, y):
    """Return the loss of output u."""
    if code == LOGISTIC:
        t = y * u
        # log(1 + exp(-t)) with the exponential's argument never positive: exp cannot overflow.
        return math.log1p(math.exp(-abs(t))) + max(-t, 0.0)
    if code == SQUARED:
        return 0.5 * (u - y) * (u - y)
    if code == HUBER:
        r = abs(u - y)
        if r <= parameter:
            return 0.5 * r * r
        return parameter * (r - 0.5 * parameter)
    t = max(1.0 - y * u, 0.0)
    return 0.5 * t * t


@compiled
def slope(code, parameter, u, y):
    """Return the derivative of the loss in u."""
    if code == LOGISTIC:
        t = y * u
        e = math.exp(-abs(t))  # at most 1
        if t >= 0.0:
            return -y * e / (1.0 + e)
        return -y / (1.0 + e)
    if code == SQUARED:
        return u - y
    if code == HUBER:
        return min(max(u - y, -parameter), parameter)
    return -y * max(1.0 - y * u, 0.0)


@compiled
def curvature(code, parameter, u, y):
    """Return the second derivative of the loss in u, at a kink of the first one as `Loss.curvature` defines it."""
    if code == LOGISTIC:
        e = math.exp(-abs(u))
        return e / ((1.0 + e) * (1.0 + e))
    if code == SQUARED:
        return 1.0
    if code == HUBER:
        return 1.0 if abs(u - y) <= parameter else 0.0
    return 1.0 if y * u < 1.0 else 0.0


@compiled
def conjugate(code, parameter, a, y):
    """Return sup_u (a u - loss(u)), infinite outside its domain."""
    if code == LOGISTIC:
        p = -a * y
        if p < -_ROUNDING or p > 1.0 + _ROUNDING:
            return math.inf
        # x log x tends to 0 at 0, where the logarithm alone is infinite.
        low = p * math.log(p) if p > 0.0 else 0.0
        high = (1.0 - p) * math.log1p(-p) if p < 1.0 else 0.0
        return low + high
    if code == SQUARED:
        return 0.5 * a * a + a * y
    if code == HUBER:
        if abs(a) > parameter * (1.0 + _ROUNDING):
            return math.inf
        return 0.5 * a * a + a * y
    p = -a * y
    if p < -_ROUNDING:
        return math.inf
    return 0.5 * p * p - p


@compiled
def losses_and_slopes(code, parameter, margins, y, losses, slopes):
    """Set losses[r] and slopes[r] from margins[r] and y[r]."""
    for r in range(margins.size):
        losses[r] = value(code, parameter, margins[r], y[r])
        slopes[r] = slope(code, parameter, margins[r], y[r])


@compiled
def values_only(code, parameter, margins, y, losses):
    """Set losses[r] from margins[r] and y[r]."""
    for r in range(margins.size):
        losses[r] = value(code, parameter, margins[r], y[r])


@compiled
def conjugates(code, parameter, duals, y, out):
    """Set out[r] to the conjugate of row r's loss at duals[r]."""
    for r in range(duals.size):
        out[r] = conjugate(code, parameter, duals[r], y[r])
