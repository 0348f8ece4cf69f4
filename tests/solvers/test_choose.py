import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.problem.compressed import compress
from groupdro.solvers.auto import choose
from tests.reference.convex import group_minima, worst_value
from tests.solvers.test_aleg import LOSSES, make_problem


def problem_of(n=60, d=3, m=3, loss=None, domain=None, sparse=False, classes=None, **options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    y = rng.integers(0, classes, n) if classes else np.sign(rng.normal(size=n))
    data = gd.GroupedData.from_arrays(sp.csr_array(X) if sparse else X, y, np.arange(n) % m)
    loss = loss or (gd.Softmax() if classes else gd.Logistic())
    return gd.GroupRisk(data, loss, domain or gd.L2Domain(radius=1.0), **options)


@pytest.mark.parametrize(
    ("problem", "tol", "reason"),
    [
        (problem_of(domain=gd.SimplexDomain()), 1e-6, "aleg: it takes every domain"),
        (problem_of(loss=gd.Squared()), 1e-6, "quadratic: squared loss"),
        (problem_of(loss=gd.Squared(), fit_intercept=True), 1e-6, "sqp with the exact Hessian"),
        (problem_of(loss=gd.Squared(), sparse=True), 1e-6, "sqp with the exact Hessian"),
        (problem_of(loss=gd.Squared(), n=20, d=10), 1e-6, "sqp with the exact Hessian"),
        (problem_of(), 1e-6, "sqp with the exact Hessian"),
        (problem_of(), 1e-1, "sqp with the exact Hessian"),
        (problem_of(d=2500), 1e-2, "aleg: few digits"),
        (problem_of(d=2500), 1e-6, "aleg to two digits, then sqp"),
        (problem_of(d=900, classes=3), 1e-6, "aleg to two digits, then sqp"),
    ],
)
def test_the_cost_model_says_what_it_picks_and_why(problem, tol, reason):
    choice = choose(problem, tol)
    assert reason in choice.reason
    assert f"{problem.n_rows} rows" in choice.reason


def test_gradients_of_too_many_groups_leave_aleg(monkeypatch):
    monkeypatch.setattr("groupdro.solvers.auto.MOST_GRADIENT_VALUES", 5)
    assert "would not fit in memory" in choose(problem_of(), 1e-6).reason


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("domain", [gd.L2Domain(radius=0.7), gd.L2Domain(penalty=0.05)])
@pytest.mark.parametrize("intercept", [False, True])
def test_auto_reaches_the_optimum(loss, domain, intercept):
    problem = make_problem(loss, domain, intercept=intercept)
    result = gd.solve(problem, tol=1e-6)
    assert result.converged
    assert result.solver.startswith("auto: ")
    assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


def test_auto_hands_over_from_aleg_to_sqp(monkeypatch):
    monkeypatch.setattr("groupdro.solvers.auto._NEWTON_LIMIT", 1)
    problem = make_problem()
    result = gd.solve(problem, tol=1e-8, max_passes=500)
    assert "then sqp" in result.solver
    assert result.converged
    assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("domain", [gd.L2Domain(radius=0.7), gd.L2Domain(penalty=0.05)])
def test_compression_keeps_every_risk_and_the_solution(weights, domain):
    problem = make_problem("squared", domain, weights=weights, sizes=(40, 3, 60))
    small = compress(problem)
    assert small.n_rows == 5 + 3 + 5
    for w in np.random.default_rng(0).normal(size=(5, 4)):
        np.testing.assert_allclose(small.risks(w), problem.risks(w), rtol=1e-12)
    result = gd.solve(problem, "quadratic", tol=1e-8)
    assert result.converged
    assert result.passes <= 4
    assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


def test_compression_by_pieces_is_as_exact_as_at_once(monkeypatch):
    problem = make_problem("squared", sizes=(400, 25, 900))
    whole, w = compress(problem), np.linspace(-1.0, 1.0, problem.shape[0])
    monkeypatch.setattr("groupdro.problem.compressed._ROWS_A_PIECE", 16)
    monkeypatch.setattr("groupdro.problem.compressed._LONG", 100)
    pieces = compress(problem)
    assert pieces.n_rows == whole.n_rows
    np.testing.assert_allclose(pieces.risks(w), whole.risks(w), rtol=1e-13)
    np.testing.assert_allclose(pieces.risks(w), problem.risks(w), rtol=1e-13)


def test_quadratic_refuses_what_it_cannot_compress():
    with pytest.raises(ValueError, match="'quadratic' requires the squared loss"):
        gd.solve(problem_of(), "quadratic")


@pytest.mark.parametrize("loss", ["logistic", "squared", "softmax"])
def test_alem_by_default_reaches_the_regret_to_high_accuracy(loss):
    problem = make_problem(loss)
    minima, _ = group_minima(problem)
    result = gd.solve(problem, "alem", tol=1e-5)
    assert result.converged
    assert "for each group, then auto" in result.solver
    assert result.lower_bound - 1e-7 <= worst_value(problem, minima).value <= result.upper_bound + 1e-7
    np.testing.assert_allclose(result.references.upper, minima, atol=1e-7)


@pytest.mark.parametrize(("loss", "solver"), [("squared", "quadratic"), ("logistic", "alem")])
def test_an_interrupt_while_preparing_is_not_swallowed(loss, solver, monkeypatch):
    problem, calls = make_problem(loss, sizes=(40, 25, 60)), 0
    whole = gd.GroupSQP.epoch

    def interrupted(self, *args):
        nonlocal calls
        calls += 1
        if calls == 1:  # in the compressed or the pooled problem
            raise KeyboardInterrupt
        return whole(self, *args)

    monkeypatch.setattr(gd.GroupSQP, "epoch", interrupted)
    result = gd.solve(problem, solver, tol=1e-9)
    assert result.status is gd.Status.INTERRUPTED
    assert result.lower_bound <= result.upper_bound


def test_a_solver_whose_gap_stays_is_left():
    """Columns of unlike curvature, which sampled steps cannot follow on sparse rows: SQP needs few passes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 150)) * (rng.random((3000, 150)) < 0.2) * np.logspace(0, -4, 150)
    y = np.where(X @ np.logspace(0, 4, 150) / 30 + rng.logistic(size=3000) > 0, 1.0, -1.0)
    data = gd.GroupedData.from_arrays(sp.csr_array(X), y, np.arange(3000) % 5)
    problem = gd.GroupRisk(data, gd.Logistic(), gd.L2Domain(penalty=1e-7), fit_intercept=True)
    alone = gd.solve(problem, "aleg", tol=1e-3, max_passes=300)
    found = gd.solve(problem, "auto", tol=1e-3, max_passes=300)
    assert choose(problem, 1e-3).stages[0].name == "aleg"
    assert not alone.converged
    assert found.converged
    assert found.passes < 150
