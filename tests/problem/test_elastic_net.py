import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import groupdro as gd
from tests.reference.random_problems import elastic_net


def minimum_by_cvxpy(domain, gradient, total=None):
    z = cp.Variable(gradient.shape)
    objective = cp.sum(cp.multiply(gradient, z)) + domain.l1 * cp.sum(cp.abs(z)) + domain.l2 / 2 * cp.sum_squares(z)
    low, high = (np.broadcast_to(end, gradient.shape) for end in (domain.low, domain.high))
    inside = [z[np.isfinite(low)] >= low[np.isfinite(low)], z[np.isfinite(high)] <= high[np.isfinite(high)]]
    inside += [] if total is None else [cp.norm1(z) <= total]
    return cp.Problem(cp.Minimize(objective), inside).solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("seed", range(20))
def test_support_is_the_minimum(seed):
    rng = np.random.default_rng(seed)
    domain, gradient = elastic_net(rng, 5), rng.normal(size=5) * 10.0 ** rng.uniform(-2, 0)
    best = minimum_by_cvxpy(domain, gradient)
    np.testing.assert_allclose(domain.support(gradient), best, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("seed", range(20))
def test_a_known_total_bounds_from_below_and_is_exact_without_l2(seed):
    rng = np.random.default_rng(seed)
    domain = elastic_net(rng, 5)
    if domain.l1 == 0.0:
        domain = gd.domains.ElasticNetDomain(l1=0.1, l2=domain.l2, low=domain.low, high=domain.high)
    gradient, value = rng.normal(size=5), float(rng.uniform(0.01, 1))
    smaller = domain.within(value)
    best = minimum_by_cvxpy(domain, gradient, value / domain.l1)
    assert smaller.support(gradient) <= best + 1e-7
    assert smaller.support(gradient) >= domain.support(gradient)
    if domain.l2 == 0.0:
        np.testing.assert_allclose(smaller.support(gradient), best, rtol=1e-6, atol=1e-7)


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32 - 1), step=st.floats(1e-6, 1e3))
def test_a_step_minimises_its_proximal_model(seed, step):
    rng = np.random.default_rng(seed)
    domain = elastic_net(rng, 4)
    geometry, centre, gradient = domain.geometry(4), rng.normal(size=5), rng.normal(size=5)
    steps = step * rng.uniform(0.5, 2.0, 5)

    def model(w):
        return gradient @ w + domain.penalty_at(w[:4]) + ((w - centre) ** 2 / (2.0 * steps)).sum()

    found = geometry.step(centre, steps, gradient)
    assert domain.contains(found[:4])
    for _ in range(20):
        other = found + rng.normal(size=5) * 10.0 ** rng.uniform(-6, 0)
        other[:4] = domain.feasible(other[:4])
        assert model(found) <= model(other) + 1e-9 * (1.0 + abs(model(other)))


def test_bounds_of_each_feature_are_those_of_every_output():
    domain = gd.domains.ElasticNetDomain(l1=0.1, low=[-1.0, 0.0], high=[0.0, 2.0])
    assert domain.contains(np.array([[-1.0, 0.0], [0.0, 2.0]]))
    assert not domain.contains(np.array([[0.5, 0.0], [0.0, 2.0]]))
    assert hash(domain) == hash(gd.domains.ElasticNetDomain(l1=0.1, low=np.array([-1.0, 0.0]), high=(0.0, 2.0)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "must bound"),
        ({"l1": -1.0}, "l1"),
        ({"l1": 1.0, "low": 0.5}, "low must be"),
        ({"l1": 1.0, "high": [1.0, -1.0]}, "high must be"),
        ({"low": 0.0, "high": np.inf}, "must bound"),
    ],
)
def test_what_bounds_nothing_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        gd.domains.ElasticNetDomain(**arguments)


def test_the_number_of_bounds_must_be_that_of_the_features():
    data = gd.GroupedData.from_arrays(np.ones((4, 3)), [1.0, -1.0, 1.0, -1.0], [0, 0, 1, 1])
    with pytest.raises(ValueError, match="low has 2 bounds, but there are 3 features"):
        gd.Problem(data, gd.losses.Logistic(), gd.domains.ElasticNetDomain(l1=1.0, low=[0.0, 0.0]))
