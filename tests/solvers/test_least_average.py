"""The least average within a level of the worst value, against CVXPY."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import logsumexp

import groupdro as gd
from groupdro.problem import References
from groupdro.solvers import least_average as least_average_module
from groupdro.solvers.least_average import find_least_average
from tests.distributed.thread_comm import run_workers
from tests.reference.convex import dense_rows, least_average, membership_matrix, worst_value
from tests.solvers.test_aleg import LOSSES, make_problem

SLACK = 2e-3  # of the worst value
TOL = 1e-4  # of the average; a thousandth of the slack is never spent, so that intervals have a least width
DOMAINS = {
    "ball": gd.domains.L2Domain(radius=0.7),
    "penalty": gd.domains.L2Domain(penalty=0.05),
    "both": gd.domains.L2Domain(radius=1.0, penalty=0.02),
}


def values_by_hand(problem, w):
    """Return each group's mean loss with the penalty, in plain NumPy."""
    X, y, d = dense_rows(problem), problem.data.y, problem.data.n_features
    u = X @ w[:d] + (w[d] if problem.fit_intercept else 0.0)
    if problem.loss.name == "softmax":
        losses = logsumexp(u, axis=1) - u[np.arange(len(u)), y]
    else:
        losses = np.logaddexp(0.0, -y * u) if problem.loss.name == "logistic" else (u - y) ** 2 / 2
    return membership_matrix(problem) @ losses + problem.domain.penalty / 2 * np.sum(np.square(w[:d]))


def sparse(problem):
    """Return the same problem with its rows as a sparse matrix."""
    groups = np.repeat(np.arange(problem.n_groups), problem.data.group_sizes)
    data = gd.GroupedData.from_arrays(sp.csr_array(problem.data.rows.X), problem.data.y, groups)
    return gd.GroupRisk(data, problem.loss, problem.domain, fit_intercept=problem.fit_intercept)


def search(problem, base=None, *, slack=SLACK, **options):
    """Return what was found, its level, and the weights of the average."""
    base = problem.data.group_sizes / problem.data.group_sizes.sum() if base is None else base
    best = gd.solve(problem, "sqp", tol=1e-9, max_passes=1000)
    level = (1.0 + slack) * best.lower_bound
    found = find_least_average(problem, base, level, best.lower_bound, (best.w, best.q), tol=TOL, **options)
    return found, level, base


def hold_against_cvxpy(problem, found, level, base, n_bound=None):
    values = values_by_hand(problem, found.w)
    assert np.linalg.norm(found.w[: problem.data.n_features]) <= problem.domain.radius * (1 + 1e-12)
    assert values[:n_bound].max() <= level * (1 + 1e-12)
    assert found.worst == pytest.approx(values[:n_bound].max(), rel=1e-10)
    assert found.mean == pytest.approx(base @ values, rel=1e-10)
    np.testing.assert_allclose(found.group_risks, values - problem.domain.penalty_at(problem.coef(found.w)), rtol=1e-10)
    least = least_average(problem, base, level, n_bound)
    assert least.accurate
    assert found.mean_lower - 1e-7 <= least.value <= found.mean + 1e-7
    assert found.mean - found.mean_lower <= TOL * abs(found.mean)
    return least.value


@pytest.mark.parametrize(("storage", "hessian"), [("dense", "newton"), ("csr", "lbfgs")])
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", ["logistic", "squared", "softmax"])
def test_the_average_is_the_least_within_the_level(loss, intercept, domain, storage, hessian, monkeypatch):
    if hessian == "lbfgs":
        monkeypatch.setattr("groupdro.solvers.sqp._NEWTON_SIZE", 0)
    problem = make_problem(loss, DOMAINS[domain], intercept=intercept)
    if storage == "csr":
        problem = sparse(problem)
    found, level, base = search(problem, max_passes=500)
    hold_against_cvxpy(problem, found, level, base)
    assert not found.interrupted


def test_of_many_groups_that_tie_only_some_enter_the_program(monkeypatch):
    """At zero every group has log 2: a program of all would take the square of their number in memory."""
    sizes, solved = [], least_average_module.solve_simplex_qp

    def watched(M, *given):
        sizes.append(len(M))
        return solved(M, *given)

    monkeypatch.setattr(least_average_module, "solve_simplex_qp", watched)
    monkeypatch.setattr(least_average_module, "WORKING_SET", 8)
    rng = np.random.default_rng(0)
    m, d = 120, 3
    X, groups = rng.normal(size=(2 * m, d)), np.repeat(np.arange(m), 2)
    X[1::2] = X[::2] + 0.3 * rng.normal(size=(m, d))
    y = np.tile([-1, 1], m)
    data = gd.GroupedData.from_arrays(X, y, groups)
    problem = gd.GroupRisk(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.05))
    found, level, base = search(problem, max_passes=500)
    assert max(sizes) <= 1 + 3 * 8
    hold_against_cvxpy(problem, found, level, base)


def test_any_weights_of_the_average_are_taken():
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05), intercept=True, weights=True)
    for base in (np.full(3, 1 / 3), np.array([0.0, 0.0, 1.0]), np.array([0.7, 0.0, 0.3])):
        found, level, _ = search(problem, base)
        hold_against_cvxpy(problem, found, level, base)


@pytest.mark.parametrize("loss", ["logistic", "squared", "softmax"])
def test_a_level_may_hold_for_the_first_groups_alone(loss):
    rng = np.random.default_rng(4)
    first = make_problem(loss, gd.domains.L2Domain(penalty=0.05), intercept=True)
    member = (np.repeat(np.arange(3), [40, 25, 60])[:, None] == np.arange(3)) | (rng.random((125, 3)) < 0.2)
    member = np.column_stack([member, np.ones(125, dtype=bool)])  # the average is that of all rows
    rows, y = first.data.rows.X, first.data.y
    groups = gd.GroupRisk(
        gd.GroupedData.from_arrays(rows, y, member[:, :3]), LOSSES[loss], first.domain, fit_intercept=True
    )
    whole = gd.GroupRisk(gd.GroupedData.from_arrays(rows, y, member), LOSSES[loss], first.domain, fit_intercept=True)
    best = gd.solve(groups, "sqp", tol=1e-9)
    level, base = (1.0 + SLACK) * best.lower_bound, np.array([0.0, 0.0, 0.0, 1.0])
    start = best.w, np.append(best.q, 0.0)
    found = find_least_average(whole, base, level, best.lower_bound, start, tol=TOL, n_bound=3)
    hold_against_cvxpy(whole, found, level, base, n_bound=3)
    assert found.q[:3].sum() < 1.0


def test_a_level_that_does_not_hold_for_a_worse_group_leaves_it_alone():
    """The group that the level does not hold for is far above it."""
    problem = make_problem("squared", gd.domains.L2Domain(penalty=0.05))
    best = worst_value(problem.group(0))
    base, level = np.array([0.0, 0.5, 0.5]), 1.5 * best.value
    found = find_least_average(
        problem, base, level, best.value, (best.w, np.array([1.0, 0.0, 0.0])), tol=TOL, n_bound=1
    )
    hold_against_cvxpy(problem, found, level, base, n_bound=1)
    assert values_by_hand(problem, found.w).max() > 1.1 * level


@pytest.mark.parametrize("hessian", ["newton", "lbfgs"])
def test_groups_enter_where_there_are_more_than_the_program_takes_at_once(hessian, monkeypatch):
    monkeypatch.setattr("groupdro.solvers.least_average.WORKING_SET", 1)
    if hessian == "lbfgs":
        monkeypatch.setattr("groupdro.solvers.sqp._NEWTON_SIZE", 0)
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05), sizes=(12,) * 25, d=6)
    found, level, base = search(problem, slack=5e-3, max_passes=500)
    hold_against_cvxpy(problem, found, level, base)
    assert (found.q > 1.001 * found.q.min()).sum() > 1  # more groups bind than enter at once


@pytest.mark.parametrize("loss", ["logistic", "squared", "softmax"])
def test_where_plain_training_is_within_the_level_it_is_the_answer(loss):
    problem = make_problem(loss, gd.domains.L2Domain(penalty=0.05), intercept=True)
    base = problem.data.group_sizes / problem.data.group_sizes.sum()
    pooled = gd.GroupedData.from_arrays(problem.data.rows.X, problem.data.y)
    plain = worst_value(gd.GroupRisk(pooled, LOSSES[loss], problem.domain, fit_intercept=True))
    level = 1.01 * values_by_hand(problem, plain.w).max()
    best = gd.solve(problem, "sqp", tol=1e-9)
    found = find_least_average(problem, base, level, best.lower_bound, (best.w, best.q), tol=TOL)
    hold_against_cvxpy(problem, found, level, base)
    assert found.mean == pytest.approx(plain.value, rel=2 * TOL)
    np.testing.assert_allclose(found.q, base, atol=1e-12)  # no group has a multiplier


def test_excess_risks_are_held_within_the_level_too():
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05), intercept=True)
    references = np.array([0.3, 0.1, 0.25])
    shifted = problem.with_references(References(references, references))
    best, base = gd.solve(shifted, "sqp", tol=1e-9), np.array([0.2, 0.3, 0.5])
    level = best.lower_bound + 2e-3
    found = find_least_average(shifted, base, level, best.lower_bound, (best.w, best.q), tol=TOL)
    values = values_by_hand(problem, found.w) - references
    assert values.max() <= level * (1 + 1e-12)
    assert found.mean == pytest.approx(base @ values, rel=1e-10)
    # A shift of one group's level is that of its value: the same problem, stated for one level after another.
    smaller = find_least_average(shifted, base, level - 1e-3, best.lower_bound, (best.w, best.q), tol=TOL)
    assert smaller.mean_lower > found.mean
    middle = 0.5 * (found.mean + smaller.mean)  # the least average is convex in the level
    between = find_least_average(shifted, base, level - 5e-4, best.lower_bound, (best.w, best.q), tol=TOL)
    assert between.mean_lower <= middle


def test_two_workers_find_what_one_does(tmp_path):
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05), sizes=(70, 50, 80), intercept=True)
    rows, y = problem.data.rows.X, problem.data.y
    groups = np.repeat(np.arange(3), [70, 50, 80])
    store = gd.GroupedStore.write_arrays(tmp_path / "store", rows, y, groups, dtype="float64")
    alone, level, base = search(problem)
    least = hold_against_cvxpy(problem, alone, level, base)

    def work(communicator):
        shard = store.shard(communicator)
        posed = gd.GroupRisk(shard.data(), gd.losses.Logistic(), problem.domain, fit_intercept=True)
        return search(posed, base)[0]

    first, second = run_workers(2, work)
    np.testing.assert_array_equal(first.w, second.w)
    assert (first.mean, first.mean_lower) == (second.mean, second.mean_lower)
    assert first.mean_lower - 1e-7 <= least <= first.mean + 1e-7
    assert first.mean == pytest.approx(alone.mean, rel=TOL)
    assert values_by_hand(problem, first.w).max() <= level * (1 + 1e-12)


def test_no_pass_is_made_beyond_the_budget():
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05))
    found, level, base = search(problem, max_passes=3.0)
    assert found.passes <= 6.0
    least = least_average(problem, base, level).value
    assert found.mean_lower <= least <= found.mean + 1e-7
    assert found.worst <= level


def test_a_level_below_what_any_model_has_finds_no_model():
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05))
    best = gd.solve(problem, "sqp", tol=1e-9)
    level = 0.99 * best.lower_bound
    base = np.full(3, 1 / 3)
    assert find_least_average(problem, base, level, level, (best.w, best.q), tol=TOL, max_passes=50) is None


def test_a_domain_without_a_ball_has_no_search():
    problem = make_problem("squared", gd.domains.SimplexDomain())
    w = np.full(4, 0.25)
    assert find_least_average(problem, np.full(3, 1 / 3), 10.0, 0.0, (w, np.full(3, 1 / 3)), tol=TOL) is None
