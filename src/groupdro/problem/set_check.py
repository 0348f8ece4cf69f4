"""Checks of custom sets: inconsistent methods would give bounds that look right but are wrong."""

import numpy as np

from groupdro.problem.domains import Domain
from groupdro.problem.linear_model import LinearModel
from groupdro.problem.weight_sets import WeightSet

__all__ = ["check_domain", "check_weight_set"]

_TRIALS = 8
_CLOSE = 1e-9


def _is_own(kind: type) -> bool:
    return kind.__module__.startswith("groupdro.problem.")


def check_domain(domain: Domain, model: LinearModel) -> None:
    """Refuse a domain that does not fit a model's coefficients, or whose methods contradict each other.

    The package's own domains are covered by its tests. For others, random points are moved inside. There, no linear
    function plus the penalty may be below the domain's own minimum, and steps must end inside.

    Parameters
    ----------
    domain : Domain
        The domain.
    model : LinearModel
        The shape of w.
    """
    domain.check(model)
    if _is_own(type(domain)):
        return
    rng = np.random.default_rng(0)
    shape = model.coef(np.empty(model.shape)).shape
    start = domain.start(shape)
    points = [start]
    geometry = domain.geometry(model.n_features)
    for k in range(_TRIALS):
        anywhere = 10.0 ** (k % 7 - 3) * rng.normal(size=shape)
        points += [domain.feasible(anywhere), *([anywhere] if domain.contains(anywhere) else [])]
        w = np.zeros(model.shape)
        model.coef(w)[...] = start
        moved = geometry.point(geometry.step(geometry.mirror(w), 10.0 ** (k % 7 - 3), rng.normal(size=model.shape)))
        points.append(model.coef(moved))
    fault = None
    for point in points:
        if point.shape != shape or not domain.contains(point):
            fault = "its start, a point returned by feasible or a step lies outside"
        elif domain.penalty_at(point) < 0:
            fault = "its penalty is negative"
        elif not domain.within(domain.penalty_at(point)).contains((1.0 - _CLOSE) * point + _CLOSE * start):
            fault = "within(penalty at a point) does not contain that point"
    for k in range(_TRIALS):
        gradient = 10.0 ** (k % 7 - 3) * rng.normal(size=shape)
        least = domain.support(gradient)
        along = 10.0 ** (2 * (k % 4)) * gradient / max(float(np.linalg.norm(gradient)), 1e-300)
        farthest = domain.feasible(start - along)  # where the minimum is nearly attained, far from the start
        for point in [*points, farthest] if fault is None else ():
            value = float(np.vdot(gradient, point)) + domain.penalty_at(point)
            if least > value + _CLOSE * (abs(value) + float(np.linalg.norm(gradient) * np.linalg.norm(point))):
                fault = "its support exceeds the value at one of its points"
    if fault:
        raise ValueError(f"domain {type(domain).__name__} cannot be certified: {fault}.")


def check_weight_set(weight_set: WeightSet, n_groups: int) -> None:
    """Refuse a set of group weights that does not fit the number of groups, or whose methods contradict each other.

    Parameters
    ----------
    weight_set : WeightSet
        The set.
    n_groups : int
        Number of groups.
    """
    weight_set.check(n_groups)
    if _is_own(type(weight_set)):
        return
    rng = np.random.default_rng(0)
    geometry = weight_set.geometry(n_groups)
    start = weight_set.start(n_groups)
    points = [start]
    for k in range(_TRIALS):
        values = 10.0 ** (k % 7 - 3) * rng.normal(size=n_groups)
        points.append(weight_set.maximiser(values))
        points.append(geometry.point(geometry.step(geometry.mirror(geometry.interior(start)), 1.0, values)))
    fault = None
    points += [vertex for vertex in np.eye(min(_TRIALS, n_groups), n_groups) if weight_set.contains(vertex)]
    for q in points:
        total = abs(float(q.sum()) - 1.0) <= _CLOSE if q.shape == (n_groups,) else False
        if not total or (q < -_CLOSE).any() or not weight_set.contains(q):
            fault = "its start, a maximiser or a step lies outside the set or the simplex"
    for k in range(_TRIALS if fault is None else 0):
        values = 10.0 ** (k % 7 - 3) * rng.normal(size=n_groups)
        most = weight_set.support(values)
        size = _CLOSE * float(np.abs(values).max())
        if any(float(q @ values) > most + size for q in points):
            fault = "its support is less than the value at one of its points"
        if abs(most - float(weight_set.maximiser(values) @ values)) > size:
            fault = "its support is not attained by its maximiser"
    outside = np.where(np.arange(n_groups) == 0, 2.0, -1.0 / max(n_groups - 1, 1))
    if n_groups > 1 and weight_set.contains(outside):
        fault = "it contains weights that are not a distribution"
    if fault:
        raise ValueError(f"weight_set {type(weight_set).__name__} cannot be certified: {fault}.")
