import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression, Ridge

import groupdro as gd
from groupdro.data import dense_rows
from groupdro.oracle import Oracle
from groupdro.oracle.groups import evaluate_groups
from groupdro.solvers import Status
from tests.estimators.field_cases import many_groups
from tests.pairs import every_pair
from tests.reference.convex import group_minima, membership_matrix, worst_value
from tests.solvers.test_aleg import LOSSES, make_problem

DOMAINS = [
    gd.domains.L2Domain(radius=0.7),
    gd.domains.L2Domain(penalty=0.05),
    gd.domains.L2Domain(1.0, 0.02),
    gd.domains.L2Domain(radius=50.0),
]


@every_pair(loss=[*LOSSES], domain=DOMAINS, hessian=["newton", "lbfgs"])
def test_it_reaches_the_optimum_to_high_accuracy(loss, domain, hessian):
    problem = make_problem(loss, domain)
    result = gd.solve(problem, gd.solvers.GroupSQP(hessian), tol=1e-8, max_passes=400)
    reference = worst_value(problem)
    assert result.converged
    assert result.lower_bound - 1e-7 <= reference.value <= result.upper_bound + 1e-7
    assert result.gap <= 1e-8 * result.upper_bound
    assert result.passes < (60 if hessian == "newton" else 400)


@pytest.mark.parametrize("loss", LOSSES)
def test_free_intercept_weights_and_overlap(loss):
    problem = make_problem(loss, gd.domains.L2Domain(penalty=0.1), intercept=True, weights=True)
    rng = np.random.default_rng(0)
    member = rng.random((problem.n_rows, 5)) < 0.4
    member[:, 0] = True
    data = gd.GroupedData.from_arrays(problem.data.rows.X, problem.data.y, member, rng.random(problem.n_rows) + 0.1)
    for each in (problem, gd.Problem(data, LOSSES[loss], gd.domains.L2Domain(penalty=0.1), fit_intercept=True)):
        result = gd.solve(each, gd.solvers.GroupSQP(), tol=1e-7, max_passes=200)
        assert result.converged
        assert result.lower_bound - 1e-7 <= worst_value(each).value <= result.upper_bound + 1e-7


@every_pair(
    loss=[*LOSSES],
    storage=["dense", "csr", "overlap"],
    intercept=[False, True],
    q=[(0.2, 0.5, 0.3), (0.0, 1.0, 0.0), (0.6, 0.0, 0.4), (0.0, 0.7, 0.3)],
)
def test_group_gradients_and_hessian_against_finite_differences(loss, storage, intercept, q, monkeypatch):
    for rows in ("_SUMMED_ROWS", "_BLOCK_ROWS"):  # several blocks, some of them of groups without weight
        monkeypatch.setattr(dense_rows, rows, 4)
    problem = make_problem(loss, intercept=intercept, sizes=(9, 4, 7), weights=True)
    X, y = problem.data.rows.X, problem.data.y
    groups = np.repeat(np.arange(3), [9, 4, 7])
    if storage == "overlap":
        groups = (groups[:, None] == np.arange(3)) | (np.arange(20)[:, None] % 3 == 0)
    if storage != "dense":
        rows = sp.csr_array(X) if storage == "csr" else X
        data = gd.GroupedData.from_arrays(rows, y, groups, np.arange(20) + 1.0)
        problem = gd.Problem(data, LOSSES[loss], gd.domains.L2Domain(radius=1.0), fit_intercept=intercept)
    oracle, rng = Oracle(problem), np.random.default_rng(3)
    w, q = rng.normal(size=problem.shape) * 0.3, np.array(q)
    here = evaluate_groups(oracle, w, q)
    np.testing.assert_allclose(here.group_risks, oracle.risks(w), rtol=1e-13)
    plain = oracle.evaluate(w, q)
    np.testing.assert_allclose(here.at(q).gradient, plain.gradient, atol=1e-12)
    assert here.at(q).mass == pytest.approx(plain.mass)
    direction = rng.normal(size=problem.shape)
    ahead, behind = (evaluate_groups(oracle, w + h * direction) for h in (1e-5, -1e-5))
    slope = (ahead.group_risks - behind.group_risks) / 2e-5
    np.testing.assert_allclose(here.gradients.reshape(3, -1) @ direction.ravel(), slope, atol=1e-7)
    if loss in ("logistic", "softmax", "squared"):  # the others' second derivatives jump
        bend = (ahead.at(q).gradient - behind.at(q).gradient).ravel() / 2e-5
        np.testing.assert_allclose(here.hessian @ direction.ravel(), bend, atol=1e-6)
    assert membership_matrix(problem).sum(axis=1) == pytest.approx(1.0)


def test_one_group_is_the_oracle_of_ordinary_regression():
    rng = np.random.default_rng(0)
    X, signal = rng.normal(size=(300, 5)), rng.normal(size=5)
    y = np.sign(X @ signal + rng.normal(size=300))
    data = gd.GroupedData.from_arrays(X, y)
    ours = gd.solve(
        gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.01), fit_intercept=True),
        "sqp",
        tol=1e-10,
    )
    theirs = LogisticRegression(C=1 / (300 * 0.01), tol=1e-10, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(ours.w[:-1], theirs.coef_[0], atol=1e-5)
    assert ours.w[-1] == pytest.approx(theirs.intercept_[0], abs=1e-5)
    target = X @ signal + rng.normal(size=300)
    line = gd.Problem(
        gd.GroupedData.from_arrays(X, target), gd.losses.Squared(), gd.domains.L2Domain(penalty=0.1), fit_intercept=True
    )
    ridge = Ridge(alpha=0.1 * 300).fit(X, target)
    np.testing.assert_allclose(gd.solve(line, "sqp", tol=1e-10).w, [*ridge.coef_, ridge.intercept_], atol=1e-6)


def test_collinear_columns_and_separable_groups_on_a_ball():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 4, 200)
    X = np.column_stack([np.eye(4)[kind], np.ones(200), rng.normal(size=200)])  # dummies and constant are collinear
    y = np.where(kind == 0, 1.0, np.sign(rng.normal(size=200)))  # a category decides: its coefficient wants to infinity
    problem = gd.Problem(
        gd.GroupedData.from_arrays(X, y, kind % 3), gd.losses.Logistic(), gd.domains.L2Domain(radius=30.0)
    )
    result = gd.solve(problem, "sqp", tol=1e-7, max_passes=200)
    assert result.converged
    assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


def test_many_groups_enter_by_a_working_set(monkeypatch):
    monkeypatch.setattr("groupdro.solvers.weight_program.WORKING_SET", 6)
    problem = make_problem(sizes=(12,) * 25)
    result = gd.solve(problem, "sqp", tol=1e-6, max_passes=300)
    assert result.converged
    assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("hessian", ["newton", "lbfgs"])
def test_many_groups_of_every_set_enter_by_a_working_set(monkeypatch, hessian, size):
    monkeypatch.setattr("groupdro.solvers.weight_program.WORKING_SET", size)
    base = np.random.default_rng(0).dirichlet(np.ones(25))
    some = base * (np.arange(25) % 2)
    caps = [
        gd.weight_sets.Cap(0.1),
        gd.weight_sets.Cap(1.0 / 12.0),
        gd.weight_sets.Cap(some / some.sum()),
        gd.weight_sets.Cap(base / 0.3),
        gd.weight_sets.Box(0.02, 0.07),
    ]
    for weight_set in (*caps, gd.weight_sets.Simplex(), gd.weight_sets.Floor(0.5)):
        for seed in range(2):
            plain = make_problem(sizes=(12,) * 25, seed=seed)
            problem = gd.Problem(plain.data, plain.loss, plain.domain, weight_set)
            result = gd.solve(problem, gd.solvers.GroupSQP(hessian), tol=1e-6, max_passes=300)
            assert result.converged
            assert problem.weight_set.contains(result.q)


def test_it_stops_where_rounding_leaves_nothing_to_gain():
    result = gd.solve(make_problem(), "sqp", tol=0.0, max_passes=1000)
    assert result.status is Status.STALLED
    assert result.gap < 1e-11
    assert result.passes < 100


def test_it_starts_where_it_is_told():
    problem = make_problem()
    solved = gd.solve(problem, "sqp", tol=1e-10)
    again = gd.solve(problem, "sqp", w=solved.w, q=solved.q, tol=1e-8)
    assert again.converged
    assert again.epochs <= 3


def test_the_simplex_is_refused():
    with pytest.raises(ValueError, match=r"'sqp' requires a ball, .* has SimplexDomain"):
        gd.solve(make_problem("squared", gd.domains.SimplexDomain()), "sqp")
    with pytest.raises(ValueError, match="hessian must be"):
        gd.solvers.GroupSQP("exact")


def test_regret_against_the_independent_solver():
    problem = make_problem()
    minima, _ = group_minima(problem)
    result = gd.solve(
        problem, gd.solvers.ALEM(gd.solvers.GroupSQP(), gd.solvers.GroupSQP(), stage_one_passes=60), tol=1e-6
    )
    assert result.converged
    assert result.lower_bound - 1e-7 <= worst_value(problem, minima).value <= result.upper_bound + 1e-7


@pytest.mark.parametrize("hessian", ["newton", "lbfgs"])
def test_rows_of_zeros_leave_the_intercept_to_be_found(hessian):
    data = gd.GroupedData.from_arrays(np.zeros((6, 2)), np.arange(6.0), np.arange(6) % 2)
    problem = gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(radius=1.0), fit_intercept=True)
    result = gd.solve(problem, gd.solvers.GroupSQP(hessian), tol=1e-6)
    assert result.converged
    assert result.w[-1] == pytest.approx(2.5, abs=1e-3)


def test_a_start_outside_the_ball_is_moved_into_it():
    problem = make_problem("logistic", gd.domains.L2Domain(radius=1.0))
    optimum = gd.solve(problem, gd.solvers.GroupSQP(), tol=1e-10)
    for factor in (1.01, 1.03, 3.0):
        result = gd.solve(problem, gd.solvers.GroupSQP(), w=factor * optimum.w, tol=0.05)
        assert np.linalg.norm(result.w) <= 1 + 1e-12
        assert result.upper_bound >= optimum.lower_bound


@pytest.mark.parametrize("hessian", ["newton", "lbfgs"])
def test_groups_that_a_step_makes_worst_enter_the_program(hessian):
    """Thousands of groups of about the same value: a program of the 400 worst leads nowhere."""
    rows, y, groups = many_groups(1500, 12, 10)
    problem = gd.Problem(
        gd.GroupedData.from_arrays(rows, y, groups), gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-3)
    )
    result = gd.solve(problem, gd.solvers.GroupSQP(hessian), tol=1e-2, max_passes=200)
    assert result.converged


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_the_unit_of_the_targets_does_not_matter(unit):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    y = (X @ [1.0, -1.0, 0.5] + rng.normal(size=90) * (1 + np.arange(90) % 3)) * unit
    problem = gd.Problem(
        gd.GroupedData.from_arrays(X, y, np.arange(90) % 3),
        gd.losses.Squared(),
        gd.domains.L2Domain(penalty=1e-2),
        fit_intercept=True,
    )
    assert gd.solve(problem, "sqp", tol=1e-8).converged
