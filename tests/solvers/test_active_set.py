"""SQP where penalties and bounds are of each coefficient: against CVXPY, and against its own conditions."""

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.oracle import Oracle
from groupdro.oracle.groups import ColumnCurvature, evaluate_groups
from groupdro.solvers import active_set, sqp
from groupdro.solvers.resting_weights import weights_at_rest
from tests.pairs import every_pair
from tests.reference.convex import worst_value
from tests.reference.random_problems import elastic_net, judge
from tests.reference.random_problems import make_problem as random_problem


def make_problem(seed, domain, loss="logistic", storage="dense", n=120, d=25, m=3, fit_intercept=True):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-0.5, 0.5, d)
    score = X[:, :4] @ [1.0, -1.0, 0.5, 0.0] + rng.normal(size=n)
    y = np.digitize(score, [-1.0, 1.0]) if loss == "softmax" else np.where(score > 0, 1.0, -1.0)
    losses = {"logistic": gd.losses.Logistic(), "softmax": gd.losses.Softmax(3), "squared": gd.losses.Squared()}
    stored = sp.csr_array(X * (rng.random(X.shape) < 0.5)) if storage == "csr" else X
    groups = np.r_[np.arange(m), rng.integers(0, m, n - m)]
    data = gd.GroupedData.from_arrays(stored, score if loss == "squared" else y, groups)
    return gd.Problem(data, losses[loss], domain, fit_intercept=fit_intercept)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(k, marks=pytest.mark.long) for k in range(4, 60))])
def test_every_bound_holds_under_an_elastic_net(seed):
    # The first that `python -m tests.reference.random_problems 500 --elastic` judges.
    assert not judge(seed, elastic=True).violations


@every_pair(
    loss=["logistic", "softmax", "squared"],
    l2=[0.0, 0.01],
    ends={"free": (-np.inf, np.inf), "positive": (0.0, np.inf), "between": (-0.2, 0.1)},
)
def test_zeros_are_exact_and_those_of_the_reference(loss, l2, ends):
    domain = gd.domains.ElasticNetDomain(l1=0.03, l2=l2, low=ends[0], high=ends[1])
    problem = make_problem(1, domain, loss)
    found, reference = gd.solve(problem, "sqp", tol=1e-9), worst_value(problem)
    assert found.converged
    np.testing.assert_allclose(found.upper_bound, reference.value, rtol=1e-7)
    coef, other = problem.coef(found.w), problem.coef(reference.w)
    assert 0 < np.count_nonzero(coef) < coef.size
    np.testing.assert_array_equal(coef == 0.0, np.abs(other) < 1e-5)
    np.testing.assert_allclose(coef, other, atol=1e-4)
    assert domain.contains(coef)


@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared"])
@pytest.mark.parametrize("l2", [0.0, 0.01])
def test_smoothed_kinks_end_at_the_same_zeros(monkeypatch, loss, l2):
    problem = make_problem(3, gd.domains.ElasticNetDomain(l1=0.03, l2=l2), loss)
    guessed = gd.solve(problem, "sqp", tol=1e-9)
    monkeypatch.setattr(active_set, "_SOON", 0)
    for polish, atol in ((5, 1e-5), (0, 1e-4)):  # with its zeros solved for, and as it is
        monkeypatch.setattr(active_set, "_POLISH", polish)
        smoothed = gd.solve(problem, "sqp", tol=1e-8)
        assert smoothed.upper_bound == pytest.approx(guessed.upper_bound, rel=1e-8)
        np.testing.assert_array_equal(problem.coef(smoothed.w) == 0.0, problem.coef(guessed.w) == 0.0)
        np.testing.assert_allclose(smoothed.w, guessed.w, atol=atol)


@pytest.mark.parametrize(("n", "l1", "noise", "more"), [(600, 0.3, 0.01, 0), (200, 0.5, 0.1, 8)])
def test_zeros_that_no_single_release_finds(n, l1, noise, more):
    """Nothing is worth its penalty here, which only the right weights of the groups show."""
    rng = np.random.default_rng(0 if more == 0 else 40)
    y = np.arange(n) % 2
    shortcut = np.where(rng.random(n) < 0.9, y, 1 - y)
    hidden = np.column_stack([y - 0.5, 2 * shortcut - 1.0, np.zeros((n, more))]) + 0.5 * rng.normal(size=(n, more + 2))
    X = hidden @ rng.normal(size=(more + 2, 40)) + noise * rng.normal(size=(n, 40)) + (3.0 if more else 0.0)
    data = gd.GroupedData.from_arrays(np.maximum(X, 0.0), 2.0 * y - 1.0, 2 * y + shortcut)
    found = gd.solve(
        gd.Problem(data, gd.losses.Logistic(), gd.domains.ElasticNetDomain(l1=l1), fit_intercept=True),
        "sqp",
        tol=1e-7,
    )
    assert found.converged
    assert found.upper_bound == pytest.approx(np.log(2.0))
    assert not found.w.any()


@every_pair(loss=["logistic", "softmax"], storage=["dense", "csr"], formed=[True, False])
def test_more_features_than_a_hessian_holds_end_at_the_same_model(monkeypatch, loss, storage, formed):
    domain = gd.domains.ElasticNetDomain(l1=0.02, l2=0.001)
    problem = make_problem(2, domain, loss, storage, d=60)
    whole = gd.solve(problem, "sqp", tol=1e-8)
    monkeypatch.setattr(sqp, "SETTINGS", sqp.SETTINGS._replace(newton_size=0))
    monkeypatch.setattr(active_set, "_FEWEST_ENTERING", 3)
    monkeypatch.setattr(active_set, "_FORMED_SIZE", 10**6 if formed else 0)
    parts = gd.solve(problem, "sqp", tol=1e-8)
    assert whole.converged
    assert parts.converged
    np.testing.assert_allclose(problem.coef(parts.w), problem.coef(whole.w), atol=1e-6)
    np.testing.assert_array_equal(problem.coef(parts.w) == 0, problem.coef(whole.w) == 0)


def test_entries_that_would_all_leave_their_side_along_a_flat_direction_change_one_by_one():
    """The same change in all classes leaves the losses alone, and the bounds leave the penalty a say in it."""
    problem, _ = random_problem(107, elastic=True)
    result = gd.solve(problem, "sqp", tol=1e-8, max_passes=20)
    assert result.converged
    assert result.lower_bound - 1e-8 <= worst_value(problem).value <= result.upper_bound + 1e-8


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_the_curvature_of_some_columns_is_a_part_of_the_hessian(loss, storage):
    problem = make_problem(3, gd.domains.ElasticNetDomain(l1=0.1), loss, storage, d=9)
    oracle = Oracle(problem)
    rng = np.random.default_rng(0)
    w, q = 0.3 * rng.normal(size=problem.shape), np.array([0.5, 0.2, 0.3])
    groups = evaluate_groups(oracle, w, q)
    features, k = np.array([1, 4, 7]), problem.model.n_outputs
    entries = np.r_[(features[:, None] * k + np.arange(k)).ravel(), np.arange(9 * k, 10 * k)]
    part = ColumnCurvature(oracle, groups.margins, q, features)
    expected = groups.hessian[np.ix_(entries, entries)]
    np.testing.assert_allclose(part.formed(), expected, atol=1e-12)
    np.testing.assert_allclose(part.diagonal(), np.diag(expected), atol=1e-12)
    directions = rng.normal(size=(4, len(entries)))
    np.testing.assert_allclose(part.times(directions), directions @ expected, atol=1e-12)
    np.testing.assert_allclose(part.times(directions[:1]), directions[:1] @ expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_a_step_solves_its_own_model(seed):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(4, 12))
    problem = make_problem(seed, elastic_net(rng, d), d=d, n=40, fit_intercept=bool(seed % 2))
    w = problem.within_domain(rng.normal(size=problem.shape) * (rng.random(problem.shape) < 0.6))
    solver = gd.solvers.GroupSQP()
    state = solver.init(Oracle(problem), w, problem.central_weights(), 0)
    values = problem.group_values(state.groups.group_risks)
    step, q, promised = solver._solve_model(Oracle(problem), state, values)

    z, domain, hessian = cp.Variable(d + problem.fit_intercept), problem.domain, state.groups.hessian
    coef = (w + z)[:d]
    penalty = domain.l1 * cp.norm1(coef) + domain.l2 / 2 * cp.sum_squares(coef)
    quadratic = cp.quad_form(z, cp.psd_wrap(hessian)) / 2
    worst = cp.max(values + state.groups.gradients @ z)
    low, high = (np.broadcast_to(end, d) for end in (domain.low, domain.high))
    inside = [coef[np.isfinite(low)] >= low[np.isfinite(low)], coef[np.isfinite(high)] <= high[np.isfinite(high)]]
    program = cp.Problem(cp.Minimize(worst + penalty + quadratic), inside)
    best = program.solve(solver=cp.CLARABEL)
    reached = (values + state.groups.gradients @ step).max() + step @ hessian @ step / 2
    reached += domain.penalty_at(problem.coef(w + step))
    np.testing.assert_allclose(problem.coef(w + step), domain.feasible(problem.coef(w + step)), atol=1e-14)
    assert reached <= best + 1e-6 * (1.0 + abs(best))
    assert promised >= -1e-9
    np.testing.assert_allclose(q.sum(), 1.0)


def test_a_box_is_solved_by_sqp_too():
    problem = make_problem(4, gd.domains.ElasticNetDomain(low=-0.3, high=0.2))
    found, reference = gd.solve(problem, "sqp", tol=1e-8), worst_value(problem)
    assert found.converged
    np.testing.assert_allclose(found.upper_bound, reference.value, rtol=1e-7)
    assert ((problem.coef(found.w) == 0.2) | (problem.coef(found.w) == -0.3)).any()


@pytest.mark.parametrize("objective", ["risk", "regret"])
@pytest.mark.parametrize(
    "weight_set", [gd.weight_sets.Simplex(), gd.weight_sets.Floor(0.5), gd.weight_sets.Cap(0.5)], ids=str
)
def test_every_set_of_weights_and_both_objectives(objective, weight_set):
    if objective == "regret" and not weight_set.is_simplex:
        pytest.skip("regrets are of the simplex here")
    plain = make_problem(5, gd.domains.ElasticNetDomain(l1=0.02, l2=0.01))
    problem = gd.Problem(plain.data, plain.loss, plain.domain, weight_set, fit_intercept=True)
    found = gd.solve(problem, "alem" if objective == "regret" else "auto", tol=1e-6)
    assert found.converged
    if objective == "risk":
        np.testing.assert_allclose(found.upper_bound, worst_value(problem).value, rtol=2e-6)


def test_aleg_takes_proximal_steps():
    problem = make_problem(6, gd.domains.ElasticNetDomain(l1=0.02, l2=0.01))
    found = gd.solve(problem, "aleg", tol=1e-3, max_passes=400)
    best = gd.solve(problem, "sqp", tol=1e-8)
    assert found.converged
    assert best.lower_bound <= found.upper_bound <= best.upper_bound * (1.0 + 2e-3)


def test_a_run_that_was_broken_off_goes_on(tmp_path):
    problem = make_problem(7, gd.domains.ElasticNetDomain(l1=0.01))
    whole = gd.solve(problem, "sqp", tol=1e-8)
    gd.solve(problem, "sqp", tol=1e-8, max_passes=4, checkpoint_dir=tmp_path)
    again = gd.solve(problem, "sqp", tol=1e-8, checkpoint_dir=tmp_path)
    assert again.converged
    np.testing.assert_allclose(again.w, whole.w, atol=1e-10)


def test_weights_prove_a_point_where_every_coefficient_rests():
    """At zero all groups tie, and the quadratic model has no step from which their weights could be told."""
    problem, _ = random_problem(100, elastic=True)
    found = gd.solve(problem, tol=1e-9)
    assert not found.w.any()
    assert found.converged
    assert found.passes <= 4
    reference = worst_value(problem)
    assert found.lower_bound - 1e-12 <= reference.value <= found.upper_bound + 1e-7


@pytest.mark.parametrize("seed", range(6))
def test_weights_at_rest_are_those_of_the_game(seed):
    """The average with these weights has no smaller minimum than the worst group, by CVXPY."""
    rng = np.random.default_rng(seed)
    m, d, low, high = 5, 4, -0.2 if seed % 2 else -np.inf, 0.3 if seed % 3 else np.inf
    X, y, groups = rng.normal(size=(60, d)), np.sign(rng.normal(size=60)), np.arange(60) % m
    domain = gd.domains.ElasticNetDomain(l1=0.05, l2=0.0, low=low, high=high)
    problem = gd.Problem(gd.GroupedData.from_arrays(X, y, groups), gd.losses.Logistic(), domain, fit_intercept=seed > 2)
    best = gd.solve(problem, tol=1e-10)
    here = evaluate_groups(Oracle(problem), best.w, best.q, hessian=False)
    q = weights_at_rest(problem, here, problem.group_values(here.group_risks), problem.weight_set.moving(m))
    assert q.min() >= 0
    assert q.sum() == pytest.approx(1.0)
    w, b = cp.Variable(d), cp.Variable()
    margins = cp.multiply(y, X @ w + (b if seed > 2 else 0.0))
    average = cp.sum(cp.multiply(q[groups] * m / 60, cp.logistic(-margins))) + 0.05 * cp.norm1(w)
    inside = [w >= max(low, -9.0), w <= min(high, 9.0)]
    assert cp.Problem(cp.Minimize(average), inside).solve(solver=cp.CLARABEL) >= best.upper_bound - 1e-7


@pytest.mark.parametrize(("m", "d"), [(1, 3), (2, 3_000)])
def test_no_program_is_solved_where_weights_are_known_or_parameters_are_many(m, d):
    """A dense identity of 100,000 features took all memory."""
    X = sp.csr_array(sp.eye_array(8, d))
    data = gd.GroupedData.from_arrays(X, np.tile([1.0, -1.0], 4), np.arange(8) % m)
    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.ElasticNetDomain(l1=0.5))
    here = evaluate_groups(Oracle(problem), problem.centre(), problem.central_weights(), hessian=False)
    moving = problem.weight_set.moving(m)
    assert weights_at_rest(problem, here, problem.group_values(here.group_risks), moving) is None
    assert gd.solve(problem, tol=1e-6).converged


def test_no_weights_come_of_slopes_that_overflowed():
    problem, _ = random_problem(100, elastic=True)
    here = evaluate_groups(Oracle(problem), problem.centre(), problem.central_weights(), hessian=False)
    values, moving = problem.group_values(here.group_risks), problem.weight_set.moving(problem.n_groups)
    assert weights_at_rest(problem, here, values, moving) is not None
    here.gradients[0, 0] = np.inf
    assert weights_at_rest(problem, here, values, moving) is None
