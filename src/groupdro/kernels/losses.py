"""Losses of one output u with label y: value, derivative in u, and convex conjugate.

Every function takes the loss as an integer code and two shape parameters: Huber's threshold, Tweedie's power, or the
level and the smoothing width of a quantile; the others are unused.

Losses with a log link are written in the distance of u from ln y, so that nothing cancels for large labels.
"""

import math

from groupdro.kernels.compile import compiled

__all__ = [
    "GAMMA",
    "HUBER",
    "LOGISTIC",
    "N_LOSSES",
    "POISSON",
    "QUANTILE",
    "ROUNDING",
    "SQUARED",
    "SQUARED_HINGE",
    "TWEEDIE",
    "conjugates",
    "curvatures",
    "losses_and_slopes",
    "outputs_of_duals",
    "values_only",
]

LOGISTIC = 0
SQUARED = 1
HUBER = 2
SQUARED_HINGE = 3
POISSON = 4
GAMMA = 5
TWEEDIE = 6
QUANTILE = 7
N_LOSSES = 8

# Rounding may put averages of duals outside the conjugate's domain.
ROUNDING = 1e-15
_ROOT_STEPS = 100
_INSIDE = 1.0 - 4e-16


@compiled
def _exp_beyond_line(d):
    """Return exp(d) - 1 - d, which is small near 0."""
    if abs(d) < 1e-2:
        return d * d * (0.5 + d * (1.0 / 6.0 + d * (1.0 / 24.0 + d * (1.0 / 120.0 + d / 720.0))))
    return math.expm1(d) - d


@compiled
def _tweedie_slope(p, d):
    """Return the slope of label 1 at output d."""
    if d > 0.0:  # where the other form may overflow
        return math.exp((2.0 - p) * d) * -math.expm1(-d)
    return math.exp((1.0 - p) * d) * math.expm1(d)


@compiled
def _tweedie_output(p, a, y):
    """Return the output at which the slope is `a`, which is positive if y is 0."""
    if y == 0.0:
        return math.log(a) / (2.0 - p)
    target = a / y ** (2.0 - p)
    # The slope of label 1 is between its increasing exponential minus one, and one minus its decreasing exponential. It
    # is also farther from zero than that of powers 2, where it increases, and 1, where it decreases.
    if target >= 0.0:
        low, high = 0.0, math.log1p(target) / (2.0 - p)
        high = min(high, -math.log1p(-target)) if target < 1.0 else high
    else:
        low, high = -math.log1p(-target) / (p - 1.0), 0.0
        low = max(low, math.log1p(target)) if target > -1.0 else low
    d = high if target >= 0.0 else low
    for _ in range(_ROOT_STEPS):
        excess = _tweedie_slope(p, d) - target
        if excess > 0.0:
            high = d
        elif excess < 0.0:
            low = d
        else:
            break
        step = excess / ((2.0 - p) * math.exp((2.0 - p) * d) + (p - 1.0) * math.exp((1.0 - p) * d))
        new = d - step if low < d - step < high else 0.5 * (low + high)
        if abs(new - d) <= 1e-15 * abs(d):
            break
        d = new
    return math.log(y) + d


@compiled
def _share(level, width, r):
    """Return the distance of the slope at residual r from its smallest value, at least 0 and at most 1.

    The slope a maximises a r + width B(a), where B is the barrier below.
    """
    root = math.sqrt((width - r) * (width - r) + 4.0 * r * width * level)
    if width > r:
        return 2.0 * width * level / (width - r + root)
    return (r - width + root) / (2.0 * r)


@compiled
def _barrier(level, a):
    """Return level ln((a + level) / level) + (1 - level) ln((1 - level - a) / (1 - level)), which is at most 0."""
    if a <= -level or a >= 1.0 - level:
        return -math.inf
    return level * math.log1p(a / level) + (1.0 - level) * math.log1p(-a / (1.0 - level))


@compiled
def _value_of_means(code, parameter, u, y):
    """Return the loss of a count, an amount or a quantile."""
    if code == POISSON:
        if y == 0.0:
            return math.exp(u)
        d = u - math.log(y)
        return y * _exp_beyond_line(d)
    if code == GAMMA:
        return _exp_beyond_line(math.log(y) - u)
    if code == TWEEDIE:
        p = parameter[0]
        if y == 0.0:
            return math.exp((2.0 - p) * u) / (2.0 - p)
        d = u - math.log(y)
        rise, fall = _exp_beyond_line((2.0 - p) * d), _exp_beyond_line((1.0 - p) * d)
        return y ** (2.0 - p) * (rise / (2.0 - p) + fall / (p - 1.0))
    level, width = parameter
    r = u - y
    if width == 0.0:
        return max((1.0 - level) * r, -level * r)
    below, above = _share(level, width, r), _share(1.0 - level, width, -r)
    barrier = level * math.log(below / level) + (1.0 - level) * math.log(above / (1.0 - level))
    return max((1.0 - level - above if r > 0.0 else below - level) * r + width * barrier, 0.0)


@compiled
def value(code, parameter, u, y):
    """Return the loss of output u."""
    if code >= POISSON:
        return _value_of_means(code, parameter, u, y)
    if code == LOGISTIC:
        t = y * u
        # log(1 + exp(-t)) with the exponential's argument never positive: exp cannot overflow.
        return math.log1p(math.exp(-abs(t))) + max(-t, 0.0)
    if code == SQUARED:
        return 0.5 * (u - y) * (u - y)
    if code == HUBER:
        r = abs(u - y)
        if r <= parameter[0]:
            return 0.5 * r * r
        return parameter[0] * (r - 0.5 * parameter[0])
    t = max(1.0 - y * u, 0.0)
    return 0.5 * t * t


@compiled
def _slope_of_means(code, parameter, u, y):
    """Return the derivative of such a loss."""
    if code == POISSON:
        return y * math.expm1(u - math.log(y)) if y > 0.0 else math.exp(u)
    if code == GAMMA:
        return -math.expm1(math.log(y) - u)
    if code == TWEEDIE:
        p = parameter[0]
        if y == 0.0:
            return math.exp((2.0 - p) * u)
        return y ** (2.0 - p) * _tweedie_slope(p, u - math.log(y))
    level, width = parameter
    r = u - y
    if width > 0.0:
        # Rounded to an end of their interval, slopes would have an infinite conjugate.
        if r > 0.0:
            return (1.0 - level) * min(1.0 - _share(1.0 - level, width, -r) / (1.0 - level), _INSIDE)
        return level * max(_share(level, width, r) / level - 1.0, -_INSIDE)
    return 1.0 - level if r > 0.0 else (-level if r < 0.0 else 0.0)


@compiled
def slope(code, parameter, u, y):
    """Return the derivative of the loss in u."""
    if code >= POISSON:
        return _slope_of_means(code, parameter, u, y)
    if code == LOGISTIC:
        t = y * u
        e = math.exp(-abs(t))  # at most 1
        if t >= 0.0:
            return -y * e / (1.0 + e)
        return -y / (1.0 + e)
    if code == SQUARED:
        return u - y
    if code == HUBER:
        return min(max(u - y, -parameter[0]), parameter[0])
    return -y * max(1.0 - y * u, 0.0)


@compiled
def _curvature_of_means(code, parameter, u, y):
    """Return the second derivative of such a loss."""
    if code == POISSON:
        return math.exp(u)
    if code == GAMMA:
        return math.exp(math.log(y) - u)
    if code == TWEEDIE:
        p = parameter[0]
        if y == 0.0:
            return (2.0 - p) * math.exp((2.0 - p) * u)
        d = u - math.log(y)
        return y ** (2.0 - p) * ((2.0 - p) * math.exp((2.0 - p) * d) + (p - 1.0) * math.exp((1.0 - p) * d))
    level, width = parameter
    if width == 0.0:
        return 0.0
    below, above = _share(level, width, u - y), _share(1.0 - level, width, y - u)
    return 1.0 / (width * (level / (below * below) + (1.0 - level) / (above * above)))


@compiled
def curvature(code, parameter, u, y):
    """Return the second derivative of the loss in u, at a kink of the first one as `Loss.curvature` defines it."""
    if code >= POISSON:
        return _curvature_of_means(code, parameter, u, y)
    if code == LOGISTIC:
        e = math.exp(-abs(u))
        return e / ((1.0 + e) * (1.0 + e))
    if code == SQUARED:
        return 1.0
    if code == HUBER:
        return 1.0 if abs(u - y) <= parameter[0] else 0.0
    return 1.0 if y * u < 1.0 else 0.0


@compiled
def _conjugate_of_means(code, parameter, a, y):
    """Return the conjugate of such a loss."""
    if code == POISSON:
        mean = a + y
        if mean < -ROUNDING * y:
            return math.inf
        if y == 0.0:
            return mean * math.log(mean) - mean if mean > 0.0 else 0.0
        return a * (math.log(y) - 1.0) + (mean * math.log1p(a / y) if mean > 0.0 else 0.0)
    if code == GAMMA:
        ratio = 1.0 - a
        if ratio < -ROUNDING:
            return math.inf
        return a * (math.log(y) + 1.0) + (ratio * math.log(ratio) if ratio > 0.0 else 0.0)
    if code == TWEEDIE:
        if y == 0.0 and a <= 0.0:
            return 0.0 if a == 0.0 else math.inf
        u = _tweedie_output(parameter[0], a, y)
        return a * u - _value_of_means(code, parameter, u, y)
    level, width = parameter
    if a < -level - ROUNDING or a > 1.0 - level + ROUNDING:
        return math.inf
    return a * y - (width * _barrier(level, a) if width > 0.0 else 0.0)


@compiled
def conjugate(code, parameter, a, y):
    """Return sup_u (a u - loss(u)), infinite outside its domain."""
    if code >= POISSON:
        return _conjugate_of_means(code, parameter, a, y)
    if code == LOGISTIC:
        p = -a * y
        if p < -ROUNDING or p > 1.0 + ROUNDING:
            return math.inf
        # x log x tends to 0 at 0, where the logarithm alone is infinite.
        low = p * math.log(p) if p > 0.0 else 0.0
        high = (1.0 - p) * math.log1p(-p) if p < 1.0 else 0.0
        return low + high
    if code == SQUARED:
        return 0.5 * a * a + a * y
    if code == HUBER:
        if abs(a) > parameter[0] * (1.0 + ROUNDING):
            return math.inf
        return 0.5 * a * a + a * y
    p = -a * y
    if p < -ROUNDING:
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
def curvatures(code, parameter, margins, y, out):
    """Set out[r] to the second derivative of row r's loss."""
    for r in range(margins.size):
        out[r] = curvature(code, parameter, margins[r], y[r])


@compiled
def outputs_of_duals(power, duals, y, out):
    """Set out[r] to the output at which the slope of Tweedie's loss is duals[r]; minus infinity for 0 at label 0."""
    for r in range(duals.size):
        out[r] = _tweedie_output(power, duals[r], y[r]) if y[r] > 0.0 or duals[r] > 0.0 else -math.inf


@compiled
def conjugates(code, parameter, duals, y, out):
    """Set out[r] to the conjugate of row r's loss at duals[r]."""
    for r in range(duals.size):
        out[r] = conjugate(code, parameter, duals[r], y[r])
