"""Sets of group weights, held against linear programs and against each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

import groupdro as gd
from groupdro.problem.weight_sets import Moving


@given(st.integers(1, 10), st.sampled_from((1.0, 1.2, 3.0)), st.booleans(), st.integers(0, 10**6))
def test_what_moves_fills_the_worst_groups_as_a_linear_program_does(m, room, ties, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(-2, 3, m).astype(float) if ties else rng.normal(size=m)
    caps = rng.random(m) * (rng.random(m) < 0.8)
    caps[0] += 0.1
    caps *= room / caps.sum()
    caps /= min(1.0, caps.sum())
    for own in (caps, np.empty(0)):
        moving = Moving(np.zeros(m), 1.0, own)
        s = moving.fill(values)
        most = own if own.size else np.ones(m)
        reference = linprog(-values, A_eq=np.ones((1, m)), b_eq=[1.0], bounds=[(0.0, cap) for cap in most + 1e-12])
        assert (s >= 0).all()
        assert (s <= most).all()
        assert s.sum() == pytest.approx(1.0, abs=1e-12)
        assert s @ values == pytest.approx(-reference.fun, abs=1e-9)


def draw_set(kind, m, rng):
    base = rng.dirichlet(np.ones(m))
    if kind == "floor":
        return gd.weight_sets.Floor(float(rng.choice((0.0, 0.3, 1.0))), base)
    if kind == "cap":
        return gd.weight_sets.Cap(np.minimum(base * 1.7, 1.0) + 0.2 / m * (rng.random(m) < 0.5) + 0.5 / m)
    least = base * float(rng.choice((0.0, 0.6, 1.0)))
    return gd.weight_sets.Box(least, np.maximum(least, base * 1.5) * np.where(rng.random(m) < 0.5, 1.0, 1.4))


@given(st.sampled_from(("floor", "cap", "box")), st.integers(1, 8), st.integers(0, 10**6))
def test_the_objective_of_bounds_is_the_value_of_their_linear_program(kind, m, seed):
    rng = np.random.default_rng(seed)
    weight_set, values = draw_set(kind, m, rng), rng.normal(size=m)
    weight_set.check(m)
    least, most = np.zeros(m), np.ones(m)
    if kind == "floor":
        least = (1.0 - weight_set.robustness) * np.array(weight_set.base)
    if kind == "box":
        least = np.array(weight_set.least)
    if kind != "floor":
        most = np.array(weight_set.most)
    bounds = list(zip(least - 1e-13, most + 1e-13, strict=True))
    reference = linprog(-values, A_eq=np.ones((1, m)), b_eq=[1.0], bounds=bounds)
    assert weight_set.support(values) == pytest.approx(-reference.fun, abs=1e-9)
    assert weight_set.contains(weight_set.maximiser(values))
    assert weight_set.contains(weight_set.start(m))
    geometry = weight_set.geometry(m)
    assert weight_set.contains(geometry.point(rng.normal(size=m) * 10.0))
    assert weight_set.contains(geometry.interior(weight_set.maximiser(values)))
    outside = weight_set.start(m) + 1e-6 * np.where(np.arange(m) == 0, 1.0, -1.0 / max(m - 1, 1))
    worst = np.max([(least - outside).max(), (outside - most).max(), abs(outside.sum() - 1.0)])
    assert weight_set.contains(outside) == (worst <= 1e-9)
