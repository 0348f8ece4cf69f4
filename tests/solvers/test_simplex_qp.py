import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupdro.solvers.simplex_qp import solve_simplex_qp


def gain(M, v, x):
    return v @ x - 0.5 * x @ M @ x


def optimality(M, v, x, n_simplex):
    """Largest gain rate that moving weight could still bring, relative to the sizes at hand."""
    rate = v - M @ x
    size = 1.0 + np.abs(v).max() + np.abs(M @ x).max()
    price = rate[:n_simplex] @ x[:n_simplex]
    rest = np.concatenate([rate[:n_simplex] - price, rate[n_simplex:]])
    complementary = np.abs(rate[n_simplex:] * x[n_simplex:]).max(initial=0.0)
    return max(rest.max(initial=0.0), complementary) / size


@settings(max_examples=200)
@given(st.integers(1, 30), st.integers(0, 2), st.integers(1, 40), st.floats(-2, 2), st.integers(0, 10**6))
def test_the_maximiser_satisfies_the_optimality_conditions(m, extra, rank, log_scale, seed):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(m + extra, rank)) * 10.0**log_scale
    A[m:] *= 10.0 ** rng.uniform(0, 2)
    M, v = A @ A.T, rng.normal(size=m + extra)
    x = solve_simplex_qp(M, v, m)
    assert x.min() >= 0
    assert x[:m].sum() == pytest.approx(1.0, abs=1e-12)
    if extra and np.linalg.matrix_rank(A) < m + extra and v[m:].max() > 0:
        return  # a free direction may have no maximiser
    assert optimality(M, v, x, m) < 1e-7


def test_it_agrees_with_an_independent_solver():
    rng = np.random.default_rng(0)
    for _ in range(20):
        A = rng.normal(size=(9, 12))
        M, v = A @ A.T, rng.normal(size=9) * 3
        x = cp.Variable(9, nonneg=True)
        objective = cp.Maximize(v @ x - 0.5 * cp.sum_squares(A.T @ x))
        reference = cp.Problem(objective, [cp.sum(x[:8]) == 1]).solve(solver=cp.CLARABEL)
        assert gain(M, v, solve_simplex_qp(M, v, 8)) == pytest.approx(reference, abs=1e-7)


def test_one_entry_and_equal_entries():
    assert solve_simplex_qp(np.array([[2.0]]), np.array([5.0]), 1).tolist() == [1.0]
    x = solve_simplex_qp(np.eye(4), np.ones(4), 4)
    np.testing.assert_allclose(x, 0.25)


def test_duplicated_rows_are_no_obstacle():
    A = np.repeat(np.random.default_rng(1).normal(size=(3, 5)), 4, axis=0)
    v = np.repeat([0.3, 0.1, 0.2], 4)
    x = solve_simplex_qp(A @ A.T, v, 12)
    assert optimality(A @ A.T, v, x, 12) < 1e-9
