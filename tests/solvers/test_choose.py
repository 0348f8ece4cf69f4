import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.oracle import Oracle
from groupdro.problem.second_moments import compress
from groupdro.solvers.auto import choose
from tests.pairs import every_pair
from tests.reference.convex import group_minima, worst_value
from tests.solvers.test_aleg import LOSSES, make_problem


def problem_of(n=60, d=3, m=3, loss=None, domain=None, sparse=False, classes=None, **options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    y = rng.integers(0, classes, n) if classes else np.sign(rng.normal(size=n))
    data = gd.GroupedData.from_arrays(sp.csr_array(X) if sparse else X, y, np.arange(n) % m)
    loss = loss or (gd.losses.Softmax() if classes else gd.losses.Logistic())
    return gd.Problem(data, loss, domain or gd.domains.L2Domain(radius=1.0), **options)


@pytest.mark.parametrize(
    ("problem", "tol", "reason"),
    [
        (problem_of(domain=gd.domains.SimplexDomain()), 1e-6, "aleg: it supports every domain"),
        (problem_of(loss=gd.losses.Squared()), 1e-6, "sqp on second moments"),
        (problem_of(loss=gd.losses.Squared(), fit_intercept=True), 1e-6, "sqp on second moments"),
        (problem_of(n=50, loss=gd.losses.Squared()), 1e-6, "sqp with the exact Hessian"),
        (problem_of(loss=gd.losses.Squared(), sparse=True), 1e-6, "sqp with the exact Hessian"),
        (problem_of(), 1e-6, "sqp with the exact Hessian"),
        (problem_of(), 1e-1, "sqp with the exact Hessian"),
        (problem_of(n=20_000, d=200), 1e-2, "sqp with L-BFGS"),
        (problem_of(d=2500), 1e-6, "sqp with L-BFGS"),
        (problem_of(d=900, classes=3), 1e-6, "sqp with L-BFGS"),
    ],
)
def test_the_cost_model_says_what_it_picks_and_why(problem, tol, reason):
    choice = choose(problem, tol)
    assert reason in choice.reason
    assert f"{problem.n_rows} rows" in choice.reason


def test_gradients_of_too_many_groups_leave_aleg_or_sketches(monkeypatch):
    monkeypatch.setattr("groupdro.solvers.auto.MOST_GRADIENT_VALUES", 5)
    ball, penalised = choose(problem_of(), 1e-6), choose(problem_of(domain=gd.domains.L2Domain(penalty=0.1)), 1e-6)
    assert ball.reason.startswith("aleg: the groups' gradients would not fit in memory")
    assert penalised.reason.startswith("sketched sqp: the groups' gradients would not fit in memory")
    assert [stage.name for stage in penalised.stages] == ["sketched-sqp", "aleg"]


@every_pair(
    loss=[*LOSSES], domain=[gd.domains.L2Domain(radius=0.7), gd.domains.L2Domain(penalty=0.05)], intercept=[False, True]
)
def test_auto_reaches_the_optimum(loss, domain, intercept):
    problem = make_problem(loss, domain, intercept=intercept)
    result = gd.solve(problem, tol=1e-6)
    assert result.converged
    assert result.solver.startswith("auto: ")
    assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


@pytest.mark.parametrize("limit", [2000, 1])
def test_auto_leaves_a_solver_whose_gap_does_not_fall(monkeypatch, limit):
    monkeypatch.setattr("groupdro.solvers.auto._NEWTON_LIMIT", limit)
    monkeypatch.setattr("groupdro.solvers.auto._LBFGS_OVERHEAD", 0.0)
    monkeypatch.setattr("groupdro.solvers.auto._NEWTON_OVERHEAD", 1e9)
    monkeypatch.setattr("groupdro.solvers.auto._gap_decrease", lambda trace: 0.0)
    monkeypatch.setattr("groupdro.solvers.auto._TRIAL", 0.0)
    monkeypatch.setattr("groupdro.solvers.auto._LOOK_BACK", 2)
    problem = make_problem()
    result = gd.solve(problem, tol=1e-8, max_passes=500)
    expected = ["newton takes over"] if limit > 1 else ["aleg takes over", "sqp takes over"]
    assert all(part in result.solver for part in expected)
    assert result.converged
    assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


@every_pair(
    weights=[False, True],
    domain=[gd.domains.L2Domain(radius=0.7), gd.domains.L2Domain(penalty=0.05)],
    intercept=[False, True],
)
def test_compression_keeps_every_risk_and_the_solution(weights, domain, intercept):
    problem = make_problem("squared", domain, weights=weights, intercept=intercept, sizes=(40, 3, 60))
    small = compress(problem)
    assert small.n_rows == 6 + 3 + 6
    for w in np.random.default_rng(0).normal(size=(5, *problem.shape)):
        np.testing.assert_allclose(Oracle(small).risks(w), Oracle(problem).risks(w), rtol=1e-12)
    result = gd.solve(problem, tol=1e-8)
    assert "second moments" in result.solver
    assert result.converged
    assert result.passes <= 4
    assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


def test_compression_by_pieces_is_as_exact_as_at_once(monkeypatch):
    problem = make_problem("squared", sizes=(400, 25, 900))
    whole, w = compress(problem), np.linspace(-1.0, 1.0, problem.shape[0])
    monkeypatch.setattr("groupdro.problem.second_moments._BLOCK_VALUES", 100)
    pieces = compress(problem)
    assert pieces.n_rows == whole.n_rows
    np.testing.assert_allclose(Oracle(pieces).risks(w), Oracle(whole).risks(w), rtol=1e-13)
    np.testing.assert_allclose(Oracle(pieces).risks(w), Oracle(problem).risks(w), rtol=1e-13)


@pytest.mark.parametrize("loss", ["logistic", pytest.param("squared", marks=pytest.mark.long), "softmax"])
def test_alem_by_default_reaches_the_regret_to_high_accuracy(loss):
    problem = make_problem(loss)
    minima, _ = group_minima(problem)
    result = gd.solve(problem, "alem", tol=1e-5)
    assert result.converged
    assert "for each group, then auto" in result.solver
    assert result.lower_bound - 1e-7 <= worst_value(problem, minima).value <= result.upper_bound + 1e-7
    assert (result.group_minima.lower - 1e-7 <= minima).all()
    assert (minima <= result.group_minima.upper + 1e-7).all()


@pytest.mark.parametrize(("loss", "solver"), [("squared", "auto"), ("logistic", "alem")])
def test_an_interrupt_while_preparing_is_not_swallowed(loss, solver, monkeypatch):
    problem, calls = make_problem(loss, sizes=(40, 25, 60)), 0
    whole = gd.solvers.GroupSQP.epoch

    def interrupted(self, *args):
        nonlocal calls
        calls += 1
        if calls == 1:  # in the compressed problem, or in that of one group
            raise KeyboardInterrupt
        return whole(self, *args)

    monkeypatch.setattr(gd.solvers.GroupSQP, "epoch", interrupted)
    result = gd.solve(problem, solver, tol=1e-9)
    assert result.status is gd.solvers.Status.INTERRUPTED
    assert result.lower_bound <= result.upper_bound


def unlike_curvatures(n=3000, d=300):
    """Return correlated columns whose curvature spans eight digits along directions that no column shows."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    X = rng.normal(size=(n, d)) * np.logspace(0, -4, d) @ turn
    y = np.where(3.0 * X @ rng.normal(size=d) + 0.3 * rng.logistic(size=n) > 0, 1.0, -1.0)
    return gd.Problem(
        gd.GroupedData.from_arrays(X, y, np.arange(n) % 5), gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-7)
    )


def test_a_solver_whose_gap_stays_is_left():
    problem = unlike_curvatures()
    alone = gd.solve(problem, gd.solvers.GroupSQP("lbfgs"), tol=1e-6, max_passes=100)
    found = gd.solve(problem, "auto", tol=1e-6, max_passes=100)
    assert choose(problem, 1e-6).stages[0].solver.hessian == "lbfgs"
    assert not alone.converged
    assert found.converged
    assert "newton takes over" in found.solver
    assert found.passes < 50


def test_hand_overs_are_decided_by_counted_work_alone():
    runs = [gd.solve(unlike_curvatures(), "auto", tol=1e-6, max_passes=100) for _ in range(2)]
    assert [row.passes for row in runs[0].trace] == [row.passes for row in runs[1].trace]
    assert runs[0].solver == runs[1].solver


def test_a_quantile_fit_does_not_report_a_relative_tolerance_that_nobody_set():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    data = gd.GroupedData.from_arrays(X, X[:, 0] + rng.normal(size=60), np.arange(60) % 3)
    problem = gd.Problem(data, gd.losses.Quantile(0.5), gd.domains.L2Domain(penalty=0.1), fit_intercept=True)
    assert "3 groups, an absolute tolerance)" in gd.solve(problem, tol=1e-3).solver
