import numpy as np
import pytest

from groupdro.data import Draw
from groupdro.oracle import Oracle
from groupdro.oracle.curvature import curvature_centre, curvature_product, feature_curvature, leading_curvature
from groupdro.oracle.groups import evaluate_groups
from tests.solvers.test_aleg import make_problem

Q = np.array([0.2, 0.5, 0.3])


def everyone(problem):
    """A draw of every member by its own weight, whose estimate is the whole."""
    data = problem.data
    groups = np.repeat(np.arange(3), data.group_sizes)
    return Draw(np.arange(data.n_rows), groups, 1.0 / data.group_sizes[groups])


@pytest.mark.parametrize("loss", ["logistic", "squared", "softmax"])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_draw_of_everyone_gives_the_hessian(loss, intercept):
    problem = make_problem(loss, intercept=intercept)
    oracle = Oracle(problem)
    rng = np.random.default_rng(0)
    w, direction = rng.normal(size=(2, *problem.shape)) * 0.3
    at, hessian = oracle.evaluate(w, Q), evaluate_groups(oracle, w, Q).hessian
    product = curvature_product(oracle, everyone(problem), at, direction)
    np.testing.assert_allclose(product.ravel(), hessian @ direction.ravel(), atol=1e-12)
    features = feature_curvature(oracle, everyone(problem), at)
    if loss != "softmax":
        np.testing.assert_allclose(features, hessian, atol=1e-12)
    else:
        blocks = hessian.reshape(*problem.shape, *problem.shape)
        np.testing.assert_allclose(features, np.mean([blocks[:, c, :, c] for c in range(3)], axis=0), atol=1e-12)


def test_the_centre_takes_the_intercept_out_of_the_curvature():
    problem = make_problem("softmax", intercept=True)
    oracle = Oracle(problem)
    at = oracle.evaluate(problem.centre(), Q)
    full = feature_curvature(oracle, everyone(problem), at)
    centre = curvature_centre(oracle, everyone(problem), at)
    np.testing.assert_allclose(centre, full[-1, :-1] / full[-1, -1], atol=1e-12)
    values, directions, _, own = leading_curvature(oracle, everyone(problem), at, 3)
    np.testing.assert_allclose(own, centre, atol=1e-12)
    left = full[:-1, :-1] - full[-1, -1] * np.outer(centre, centre)
    np.testing.assert_allclose(np.diag(directions.T @ left @ directions), values, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_leading_directions_are_the_largest_eigenvectors(dtype):
    problem = make_problem("softmax", d=8, dtype=dtype)
    oracle = Oracle(problem)
    at = oracle.evaluate(problem.centre(), Q)
    full = feature_curvature(oracle, everyone(problem), at)
    expected = np.linalg.eigvalsh(full)[::-1]
    values, directions, rest, _ = leading_curvature(oracle, everyone(problem), at, 3)
    np.testing.assert_allclose(values, expected[:3], rtol=1e-4)
    assert rest == pytest.approx(expected[3:].mean(), rel=1e-3)
    np.testing.assert_allclose(directions.T @ directions, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(np.diag(directions.T @ full @ directions), values, rtol=1e-3)
