import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr

from groupdro.problem.weight_sets import Moving
from groupdro.solvers.simplex_qp import nearby_weights, solve_simplex_qp


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


@pytest.mark.parametrize("kind", ["low rank", "full rank", "duplicates", "nearly equal gains"])
@pytest.mark.parametrize("n", [25, 150, 400])
def test_with_hundreds_of_entries_many_are_released_at_once_and_the_answer_is_the_same(kind, n, monkeypatch):
    rng = np.random.default_rng(n)
    A = rng.normal(size=(n, {"low rank": n // 3}.get(kind, 2 * n)))
    if kind == "duplicates":
        A = np.repeat(A[: -(-n // 3)], 3, axis=0)[:n]
    M, v = A @ A.T, rng.normal(size=n) * (1e-6 if kind == "nearly equal gains" else 1.0)
    systems, solve = [], np.linalg.solve
    monkeypatch.setattr(np.linalg, "solve", lambda *given: systems.append(1) or solve(*given))
    found = solve_simplex_qp(M, v, n)
    n_found = len(systems)
    monkeypatch.setattr("groupdro.solvers.simplex_qp._RELEASED", n + 1)
    one_by_one = solve_simplex_qp(M, v, n)
    assert optimality(M, v, found, n) < 1e-9
    assert gain(M, v, found) >= gain(M, v, one_by_one) - 1e-12 * (1 + abs(gain(M, v, one_by_one)))
    if n > 25 and (one_by_one > 0).sum() > 50:
        assert n_found < len(systems) - n_found


@pytest.mark.parametrize("rank", [5, 80])
def test_under_caps_few_entries_are_released_at_once_if_few_can_stay_free(rank, monkeypatch):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(400, rank)) / np.sqrt(rank)
    M, v, caps = A @ A.T, 1e-6 * rng.normal(size=400), np.full(400, 0.01)
    systems, solve = [], np.linalg.solve
    monkeypatch.setattr(np.linalg, "solve", lambda *given: systems.append(1) or solve(*given))
    found = solve_simplex_qp(M, v, 400, caps=caps)
    rate, between = v - M @ found, (found > 1e-12) & (found < 0.01 - 1e-12)
    price = rate[between].mean()
    assert np.abs(rate[between] - price).max() < 1e-12
    assert rate[found < 1e-12].max() < price + 1e-12 < rate[found > 0.01 - 1e-12].min() + 2e-12
    assert len(systems) < 400 * (3 if rank == 5 else 6)  # 2,572 and 5,020 if forty are released every time


def test_one_entry_and_equal_entries():
    assert solve_simplex_qp(np.array([[2.0]]), np.array([5.0]), 1).tolist() == [1.0]
    x = solve_simplex_qp(np.eye(4), np.ones(4), 4)
    np.testing.assert_allclose(x, 0.25)


def test_duplicated_rows_are_no_obstacle():
    A = np.repeat(np.random.default_rng(1).normal(size=(3, 5)), 4, axis=0)
    v = np.repeat([0.3, 0.1, 0.2], 4)
    x = solve_simplex_qp(A @ A.T, v, 12)
    assert optimality(A @ A.T, v, x, 12) < 1e-9


# ---------------------------------------------------------------------- caps


def draw_caps(kind, m, rng):
    """Caps that hold all weight, just or with room."""
    if kind == "k entries":
        caps = np.full(m, 1.0 / rng.integers(1, m + 1))
    elif kind == "no room":
        caps = rng.random(m) + 0.01
        caps /= caps.sum()
    else:
        caps = rng.random(m) * ((rng.random(m) < 0.6) if kind == "some of zero" else 1.0)
        caps[rng.integers(m)] += 0.1
        caps *= 1.4 / caps.sum()
    return caps / min(1.0, caps.sum())


@pytest.mark.parametrize("kind", ["k entries", "no room", "some of zero", "room"])
@pytest.mark.parametrize("extra", [0, 1])
def test_below_caps_it_agrees_with_an_independent_solver(kind, extra):
    rng = np.random.default_rng([3, extra, len(kind)])
    for trial in range(25):
        m, rank = int(rng.integers(1, 12)), int(rng.integers(1, 14))
        A = rng.normal(size=(m + extra, rank)) * 10.0 ** rng.uniform(-1, 1)
        M, v, caps = A @ A.T, rng.normal(size=m + extra), draw_caps(kind, m, rng)
        if rank < m + extra:
            v[m:] = -np.abs(v[m:])  # a free direction would have no maximiser
        moving = Moving(np.zeros(m), 1.0, caps)
        start = 0.5 * (moving.fill(rng.normal(size=m)) + moving.spread()) if trial % 2 else None
        x = cp.Variable(m + extra, nonneg=True)
        program = cp.Problem(cp.Maximize(v @ x - 0.5 * cp.sum_squares(A.T @ x)), [cp.sum(x[:m]) == 1, x[:m] <= caps])
        reference = program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
        found = solve_simplex_qp(M, v, m, start, caps)
        assert found.min() >= 0
        assert (found[:m] <= caps * (1.0 + 1e-12)).all()
        assert found[:m].sum() == pytest.approx(1.0, abs=1e-13)
        assert gain(M, v, found) == pytest.approx(reference, rel=1e-7, abs=1e-7)


# ---------------------------------------------------------------------- a price of moving weight


@pytest.mark.parametrize("log_price", [-2, 0, 1])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_nearby_weights_agree_with_an_independent_solver(log_price, scale):
    rng = np.random.default_rng([log_price + 4, int(scale)])
    for rank in (1, 3, 12):
        A, v = rng.normal(size=(8, rank)) * scale, rng.normal(size=8)
        base, price = 0.9 * rng.dirichlet(np.ones(8)) + 0.1 / 8, 10.0**log_price
        x = cp.Variable(8)
        objective = v @ x - 0.5 * cp.sum_squares(A.T @ x) - price * cp.sum(cp.rel_entr(x, base))
        program = cp.Problem(cp.Maximize(objective), [cp.sum(x) == 1])
        program.solve(solver=cp.CLARABEL)
        assert program.status == cp.OPTIMAL
        theirs = np.maximum(x.value, 0.0) / np.maximum(x.value, 0.0).sum()  # it leaves the simplex by a little
        M = A @ A.T
        ours = nearby_weights(M, v, price, base)
        found, reference = (gain(M, v, q) - price * rel_entr(q, base).sum() for q in (ours, theirs))
        size = price + np.abs(v).max() + (np.abs(M) @ ours).max()  # its accuracy is relative to the terms that cancel
        assert reference - 1e-6 - 1e-7 * size <= found <= reference + 1e-6 * max(1.0, abs(reference))


def test_nearby_weights_solve_their_program():
    rng = np.random.default_rng(0)
    A, v, known = rng.normal(size=(12, 8)), rng.normal(size=12), rng.dirichlet(np.ones(12))
    M, price = A @ A.T, 0.05
    q = nearby_weights(M, v, price, known)
    x = cp.Variable(12)
    worth = v @ x - 0.5 * cp.sum_squares(A.T @ x) - price * cp.sum(cp.rel_entr(x, known))
    best = cp.Problem(cp.Maximize(worth), [cp.sum(x) == 1]).solve(solver="CLARABEL")
    value = v @ q - 0.5 * q @ M @ q - price * (q @ np.log(q / known))
    assert q.sum() == pytest.approx(1.0)
    assert best - value <= 1e-5 * (1.0 + abs(best))


def test_nearby_weights_survive_a_matrix_that_rounding_made_indefinite():
    M = np.diag([1.0, -1e-3, 1.0])
    q = nearby_weights(M, np.array([0.1, 0.2, 0.3]), 1e-9, np.full(3, 1 / 3))
    assert q.sum() == pytest.approx(1.0)
    assert (q >= 0.0).all()
