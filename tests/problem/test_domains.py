import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupdro.problem import L2Domain, SimplexDomain
from tests.pairs import every_pair

BALL, PENALTY, BOTH = L2Domain(radius=2.0), L2Domain(penalty=0.5), L2Domain(radius=2.0, penalty=0.5)
L2_DOMAINS = [BALL, PENALTY, BOTH]
every_l2_domain = pytest.mark.parametrize("domain", L2_DOMAINS, ids=["ball", "penalty", "both"])
seeds = st.integers(0, 2**32 - 1)


def minimum_by_cvxpy(domain, gradient):
    z = cp.Variable(gradient.shape)
    objective, constraints = cp.sum(cp.multiply(gradient, z)), []
    if isinstance(domain, SimplexDomain):
        constraints = [z >= 0, cp.sum(z) == 1]
    else:
        objective += domain.penalty / 2.0 * cp.sum_squares(z)
        if np.isfinite(domain.radius):
            constraints = [cp.norm(cp.vec(z, order="C"), 2) <= domain.radius]
    problem = cp.Problem(cp.Minimize(objective), constraints)
    return problem.solve(solver=cp.CLARABEL), z.value


@every_pair(
    domain=dict(zip(("ball", "penalty", "both"), L2_DOMAINS, strict=True)),
    shape=[(4,), (3, 2)],
    size=[0.3, 0.999, 1.001, 5.0],
)
def test_lower_and_reach_are_those_of_the_minimiser_over_ball_and_penalty(domain, shape, size):
    gradient = np.random.default_rng(0).normal(size=shape)
    gradient *= size / np.linalg.norm(gradient)
    value, minimiser = minimum_by_cvxpy(domain, gradient)
    np.testing.assert_allclose(domain.support(gradient), value, rtol=1e-6)
    np.testing.assert_allclose(domain.reach(gradient), np.linalg.norm(minimiser), rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_lower_and_reach_are_those_of_the_minimiser_over_the_simplex(seed):
    gradient = np.random.default_rng(seed).normal(size=5)
    value, minimiser = minimum_by_cvxpy(SimplexDomain(), gradient)
    np.testing.assert_allclose(SimplexDomain().support(gradient), value, rtol=1e-6)
    np.testing.assert_allclose(SimplexDomain().reach(gradient), np.linalg.norm(minimiser), rtol=1e-5)


@settings(max_examples=200)
@given(
    seed=seeds,
    radius=st.floats(1e-6, 1e6) | st.just(np.inf),
    penalty=st.floats(1e-6, 1e6) | st.just(0.0),
    size=st.floats(1e-6, 1e6),
)
def test_lower_is_below_every_point_of_the_domain_and_attained_at_reach(seed, radius, penalty, size):
    if np.isinf(radius) and penalty == 0.0:
        penalty = 1.0
    domain = L2Domain(radius, penalty)
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=4)
    direction /= np.linalg.norm(direction)
    gradient = size * direction
    lower, reach = domain.support(gradient), domain.reach(gradient)
    assert reach <= radius
    best = -reach * direction
    np.testing.assert_allclose(gradient @ best + domain.penalty_at(best), lower, rtol=1e-9)
    points = rng.normal(size=(50, 4))
    points *= reach * rng.uniform(0.0, 2.0, size=(50, 1)) / np.linalg.norm(points, axis=1, keepdims=True)
    points = np.vstack([points, best * np.linspace(0.9, 1.1, 5)[:, None]])
    inside = points[np.linalg.norm(points, axis=1) <= radius]
    values = inside @ gradient + penalty / 2.0 * (inside**2).sum(axis=1)
    assert (values >= lower - 1e-9 * abs(lower)).all()


@every_l2_domain
def test_a_zero_gradient_costs_nothing(domain):
    assert domain.support(np.zeros(3)) == 0.0


@pytest.mark.parametrize("domain", [L2Domain(radius=1e200), L2Domain(radius=1e200, penalty=1e-250)])
def test_lower_does_not_overflow_for_a_radius_that_hardly_binds(domain):
    np.testing.assert_allclose(domain.support(np.array([3.0, 4.0])), -5e200, rtol=1e-12)


@settings(max_examples=200)
@given(seed=seeds, n=st.integers(1, 6))
def test_lower_on_the_simplex_is_below_every_ensemble_and_attained_at_a_vertex(seed, n):
    rng = np.random.default_rng(seed)
    gradient = rng.normal(scale=10.0, size=n)
    lower = SimplexDomain().support(gradient)
    assert lower in gradient
    assert (rng.dirichlet(np.full(n, 0.3), size=100) @ gradient >= lower - 1e-12).all()


@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_penalty_is_half_the_weighted_squared_norm(shape):
    coef = np.random.default_rng(1).normal(size=shape)
    np.testing.assert_allclose(BOTH.penalty_at(coef), 0.25 * (coef**2).sum(), rtol=1e-14)
    assert BALL.penalty_at(coef) == 0.0
    assert SimplexDomain().penalty_at(coef) == 0.0


@settings(max_examples=300)
@given(
    seed=seeds,
    penalty=st.floats(1e-9, 1e9),
    radius=st.floats(1e-3, 1e3) | st.just(np.inf),
    value=st.floats(1e-12, 1e12),
)
def test_within_holds_every_point_of_a_penalty_up_to_the_value(seed, penalty, radius, value):
    domain = L2Domain(radius, penalty)
    smaller = domain.within(value)
    rng = np.random.default_rng(seed)
    w = rng.normal(size=3)
    w *= min(np.sqrt(2.0 * value / penalty), radius) * rng.choice([1.0, 0.5]) / np.linalg.norm(w)
    assert domain.penalty_at(w) <= value * (1.0 + 1e-14)
    assert np.linalg.norm(w) <= smaller.radius * (1.0 + 1e-15)
    assert smaller.penalty == penalty


def test_within_shrinks_the_radius_to_where_the_penalty_reaches_the_value():
    np.testing.assert_allclose(PENALTY.within(4.0).radius, 4.0, rtol=1e-11)
    np.testing.assert_allclose(BOTH.within(0.25).radius, 1.0, rtol=1e-11)
    assert BOTH.within(100.0).radius == 2.0


@every_l2_domain
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_within_still_holds_the_centre_for_a_value_that_no_other_point_reaches(domain, value):
    assert domain.within(value).radius > 0.0


def test_within_leaves_domains_without_a_penalty_as_they_are():
    assert BALL.within(1e-3) == BALL
    assert SimplexDomain().within(1e-3) == SimplexDomain()


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_ball_starts_at_zero(shape):
    np.testing.assert_array_equal(BOTH.start(shape), np.zeros(shape))


def test_simplex_starts_at_equal_weights():
    np.testing.assert_allclose(SimplexDomain().start((4,)), np.full(4, 0.25), rtol=1e-15)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"radius": 0.0}, r"^radius"),
        ({"radius": -1.0, "penalty": 1.0}, r"^radius"),
        ({"radius": np.nan}, r"^radius"),
        ({"radius": 1.0, "penalty": -1.0}, r"^penalty"),
        ({"penalty": np.nan}, r"^penalty"),
        ({"penalty": np.inf}, r"^penalty"),
        ({}, r"^radius or penalty"),
        ({"penalty": 0.0}, r"^radius or penalty"),
    ],
)
def test_constructor_names_the_argument_that_is_wrong(arguments, named):
    with pytest.raises(ValueError, match=named):
        L2Domain(**arguments)
