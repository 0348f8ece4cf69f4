import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupdro.data import GroupedData
from groupdro.geometry import Entropy, Euclidean, Spectral, softmax
from groupdro.losses import Logistic, Softmax
from groupdro.problem import L2Domain, Problem, SimplexDomain
from tests.pairs import every_pair

seeds = st.integers(0, 2**32 - 1)
steps = st.floats(1e-4, 1e3)


def read_only(array):
    array.flags.writeable = False
    return array


@every_pair(shape=[(4,), (4, 2)], n_bound=[3, 4], penalty=[0.0, 0.7], radius=[0.5, 100.0])
def test_euclidean_step_is_the_argmin_that_cvxpy_finds(shape, n_bound, penalty, radius):
    rng = np.random.default_rng(0)
    centre, gradient, step = rng.normal(size=shape), rng.normal(size=shape), 0.8
    z = cp.Variable(shape)
    cost = cp.sum(cp.multiply(gradient, z)) + penalty / 2.0 * cp.sum_squares(z[:n_bound])
    ball = cp.norm(cp.vec(z[:n_bound], order="C"), 2) <= radius
    cp.Problem(cp.Minimize(step * cost + cp.sum_squares(z - centre) / 2.0), [ball]).solve(solver=cp.CLARABEL)
    found = Euclidean(radius, penalty, n_bound).step(centre, step, gradient)
    np.testing.assert_allclose(found, z.value, atol=1e-5)


@settings(max_examples=200)
@given(
    seed=seeds,
    step=steps,
    radius=st.floats(1e-3, 1e3) | st.just(np.inf),
    penalty=st.floats(1e-4, 1e3) | st.just(0.0),
    outputs=st.sampled_from([(), (2,)]),
    free=st.integers(0, 1),
)
def test_euclidean_step_satisfies_the_optimality_conditions(seed, step, radius, penalty, outputs, free):
    rng = np.random.default_rng(seed)
    n_bound = 3
    centre, gradient = rng.normal(size=(2, n_bound + free, *outputs))
    found = Euclidean(radius, penalty, n_bound).step(read_only(centre), step, read_only(gradient))
    z, free_part = found[:n_bound], found[n_bound:]
    scale = 1.0 + step
    np.testing.assert_array_equal(free_part, (centre - step * gradient)[n_bound:])
    norm = np.linalg.norm(z)
    assert norm <= radius * (1.0 + 1e-12)
    residual = step * (gradient[:n_bound] + penalty * z) + z - centre[:n_bound]  # must lie in minus the normal cone
    slack = 1e-9 * (scale + step * penalty * norm)
    if norm < radius * (1.0 - 1e-9):
        assert np.abs(residual).max() <= slack
    else:
        assert np.vdot(residual, z) <= slack * norm
        along = np.vdot(residual, z) / norm**2 * z
        assert np.abs(residual - along).max() <= slack


@settings(max_examples=200)
@given(seed=seeds, step=steps, n=st.integers(1, 8), spread=st.sampled_from([1.0, 30.0]))
def test_entropy_step_satisfies_the_optimality_conditions(seed, step, n, spread):
    rng = np.random.default_rng(seed)
    centre, gradient = rng.normal(scale=spread, size=n), rng.normal(size=n)
    geometry = Entropy(n)
    logits = geometry.step(read_only(centre), step, read_only(gradient))
    # step * gradient + ln(z / point(centre)) is one constant over the simplex's entries.
    stationary = step * gradient + logits - centre
    assert np.ptp(stationary) <= 1e-12 * (1.0 + step * np.abs(gradient).max() + np.abs(centre).max())
    assert logits.max() == 0.0
    z = geometry.point(logits)
    assert (z >= 0.0).all()
    np.testing.assert_allclose(z.sum(), 1.0, rtol=1e-12)


def test_entropy_step_is_the_argmin_that_cvxpy_finds():
    rng = np.random.default_rng(1)
    q, gradient, step = rng.dirichlet(np.ones(5)), rng.normal(size=5), 0.6
    z = cp.Variable(5)
    objective = step * gradient @ z + cp.sum(cp.kl_div(z, q))
    cp.Problem(cp.Minimize(objective), [cp.sum(z) == 1]).solve(solver=cp.CLARABEL)
    geometry = Entropy(5)
    found = geometry.point(geometry.step(geometry.mirror(q), step, gradient))
    np.testing.assert_allclose(found, z.value, atol=1e-5)


def test_the_sum_of_entropy_steps_does_not_drift():
    geometry, logits = Entropy(3), np.zeros(3)
    for _ in range(1000):
        logits = geometry.step(logits, 1.0, np.array([1e3, 1e3, 1e3 + 1e-3]))
    np.testing.assert_allclose(logits, [0.0, 0.0, -1.0], atol=1e-9)


@pytest.mark.parametrize("logits", [[0.0, -1e4], [1e4, 0.0], [1e4, 1e4, 0.0], [-1e4, -1e4], [1e300, -1e300]])
def test_softmax_of_far_logits_is_finite_and_sums_to_one(logits):
    logits = np.array(logits)
    weights = softmax(read_only(logits))
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-15)
    best = logits == logits.max()
    np.testing.assert_allclose(weights, best / best.sum(), atol=1e-300)


@given(seed=seeds, shift=st.floats(-1e3, 1e3))
def test_softmax_does_not_change_when_logits_are_shifted(seed, shift):
    logits = np.random.default_rng(seed).normal(scale=3.0, size=5)
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(softmax(logits + shift), expected, rtol=1e-11)


@given(seed=seeds, n=st.integers(1, 8))
def test_entropy_coordinates_lead_back_to_the_point(seed, n):
    q = read_only(np.random.default_rng(seed).dirichlet(np.ones(n)))
    np.testing.assert_allclose(Entropy(n).point(Entropy(n).mirror(q)), q, rtol=1e-12)


def test_entropy_coordinates_of_weights_that_underflowed_are_finite():
    geometry = Entropy(3)
    mirror = geometry.mirror(np.array([1.0, 0.0, 5e-324]))
    assert np.isfinite(mirror).all()
    np.testing.assert_allclose(geometry.point(mirror), [1.0, 0.0, 0.0], atol=1e-300)


@pytest.mark.parametrize("geometry", [Euclidean(0.5, 0.3, 2), Euclidean(np.inf, 0.3, 3), Entropy(3)])
def test_a_step_returns_new_arrays_and_leaves_its_inputs(geometry):
    centre, gradient = np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.2, -1.0])
    before = centre.copy(), gradient.copy()
    found = geometry.step(centre, 0.0, gradient)
    assert not np.shares_memory(found, centre)
    assert not np.shares_memory(found, gradient)
    np.testing.assert_array_equal(centre, before[0])
    np.testing.assert_array_equal(gradient, before[1])


@given(seed=seeds)
def test_squared_diameter_is_the_range_of_the_potential_and_is_attained(seed):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=4)
    w *= 3.0 * rng.random() / np.linalg.norm(w)
    ball = Euclidean(3.0, 0.0, 4)
    assert w @ w / 2.0 <= ball.squared_diameter
    assert ball.squared_diameter == 4.5
    q = rng.dirichlet(np.ones(4))
    entropy = Entropy(4)
    assert q @ np.log(q) + np.log(4.0) <= entropy.squared_diameter + 1e-15
    np.testing.assert_allclose(entropy.squared_diameter, np.log(4.0), rtol=1e-15)  # a vertex against the centre


def problem_on(domain, loss=None, **options):
    X = np.random.default_rng(2).normal(size=(6, 3))
    return Problem(GroupedData.from_arrays(X, np.array([0, 1, 0, 1, 2, 0])), loss or Softmax(), domain, **options)


def test_geometry_of_a_ball_binds_the_coefficients_but_not_the_intercept():
    problem = problem_on(L2Domain(2.0, 0.5), fit_intercept=True)
    assert problem.geometry() == Euclidean(2.0, 0.5, 3)
    assert problem.shape == (4, 3)


def test_a_smaller_domain_that_holds_the_solution_shrinks_the_ball():
    problem = problem_on(L2Domain(2.0))
    assert problem.geometry().radius == 2.0
    assert L2Domain(1.0).geometry(3).radius == 1.0


def test_geometry_of_the_simplex_is_entropy_over_the_columns():
    data = GroupedData.from_arrays(np.ones((2, 3)), np.array([-1, 1]))
    assert Problem(data, Logistic(), SimplexDomain()).geometry() == Entropy(3)


@pytest.mark.parametrize("outputs", [(), (3,)])
@pytest.mark.parametrize(("radius", "penalty"), [(0.3, 0.0), (np.inf, 0.4), (0.5, 0.2), (1e6, 0.0)])
def test_the_spectral_step_is_the_proximal_step_of_its_metric(outputs, radius, penalty):
    rng = np.random.default_rng(0)
    d, r, step = 6, 2, 0.7
    V = np.linalg.qr(rng.normal(size=(d, r)))[0]
    scales, rest, free = np.array([0.2, 0.5]), 2.0, 0.3
    geometry = Spectral(radius, penalty, d, V, scales, rest, free)
    centre, gradient = rng.normal(size=(d + 1, *outputs)), rng.normal(size=(d + 1, *outputs))
    ours = geometry.step(centre, step, gradient)
    # The same by a full rotation: a complete basis makes the metric diagonal, where the other geometry is exact.
    basis = np.linalg.qr(np.column_stack([V, rng.normal(size=(d, d - r))]))[0]
    basis[:, :r] = V
    turn = np.eye(d + 1)
    turn[:d, :d] = basis
    steps = step * np.array([*scales, *[rest] * (d - r), free])
    steps = np.broadcast_to(steps.reshape(-1, *[1] * len(outputs)), centre.shape).copy()
    plain = Euclidean(radius, penalty, d)
    expected = turn @ plain.step(turn.T @ centre, steps, turn.T @ gradient)
    np.testing.assert_allclose(ours, expected, atol=1e-12)
    x, y = centre, gradient
    assert geometry.squared_gradient(step, x, y) == pytest.approx(plain.squared_gradient(steps, turn.T @ x, y))
    assert geometry.squared_distance(step, x, y) == pytest.approx(plain.squared_distance(steps, turn.T @ x, turn.T @ y))


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_a_step_with_a_diagonal_metric_is_the_proximal_step(penalty):
    rng = np.random.default_rng(1)
    for radius in (0.05, 0.4, 2.0, 50.0):
        centre, gradient, steps = rng.normal(size=5), rng.normal(size=5), rng.uniform(0.01, 3.0, 5)
        ours = Euclidean(radius, penalty, 4).step(centre, steps, gradient)
        w = cp.Variable(5)
        value = (
            gradient @ w
            + penalty / 2 * cp.sum_squares(w[:4])
            + cp.sum(cp.multiply(1 / (2 * steps), cp.square(w - centre)))
        )
        cp.Problem(cp.Minimize(value), [cp.norm(w[:4]) <= radius]).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(ours, w.value, atol=1e-4)
        assert np.linalg.norm(ours[:4]) <= radius * (1 + 1e-14)
