from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.kernels.dual import _meeting_output
from groupdro.kernels.losses import HUBER, LOGISTIC, SQUARED, SQUARED_HINGE, slope
from groupdro.oracle import Oracle
from groupdro.problem import GroupMinima
from groupdro.solvers import auto
from groupdro.solvers.auto import AscentIsSlow, Auto, choose
from groupdro.solvers.dual_ascent import DualAscent
from tests.pairs import every_pair
from tests.reference.convex import worst_value
from tests.solvers.test_aleg import make_problem
from tests.solvers.test_sketched_sqp import ONE_OUTPUT, PENALTY, sparse_problem


def as_sparse(problem, offset=None):
    """Return a problem with its rows stored as sparse ones."""
    data = problem.data
    groups, weights = np.repeat(np.arange(data.n_groups), data.all_sizes), data.row_weights(np.ones(data.n_groups))
    sparse = gd.GroupedData.from_arrays(sp.csr_array(data.rows.dense()), data.y, groups, weights, offset=offset)
    return replace(problem, data=sparse)


def few_rows(n=3000, d=20_000, m=1000, penalty=1e-3, ones=True, **options):
    """Return a problem with three rows per group, of fifteen entries each."""
    rng = np.random.default_rng(0)
    columns = np.minimum(d ** rng.random((n, 15)) - 1, d - 1).astype(np.int32)
    values = np.ones(columns.size) if ones else rng.normal(size=columns.size)
    X = sp.csr_array((values, columns.ravel(), np.arange(0, columns.size + 1, 15)), (n, d))
    if not ones:
        X.sum_duplicates()
    score = (rng.normal(size=d) * (np.arange(d) < 200))[columns].sum(axis=1)
    y = np.where(score + rng.logistic(size=n) > 0, 1.0, -1.0)
    data = gd.GroupedData.from_arrays(X, y, rng.integers(0, m, n))
    return gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=penalty), **options)


def advanced(problem, epochs):
    """Return the state after some epochs."""
    oracle = Oracle(problem)
    solver = DualAscent()
    state = solver.init(oracle, problem.centre(), problem.central_weights(), seed=0)
    for _ in range(epochs):
        solver.epoch(oracle, state)
        state.epoch += 1
    return state


@every_pair(loss=ONE_OUTPUT, intercept=[False, True], offsets=[False, True])
def test_it_reaches_the_optimum_of_an_independent_solver(loss, intercept, offsets):
    dense = make_problem(loss, PENALTY, intercept=intercept, weights=True)
    offset = np.random.default_rng(0).normal(size=dense.n_rows) if offsets else None
    problem = as_sparse(dense, offset)
    result = gd.solve(problem, "dual-ascent", tol=1e-6, max_passes=4000)
    assert result.converged
    assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


@pytest.mark.parametrize("storage", ["csr", "overlap"])
def test_group_minima_offsets_of_groups_and_overlap(storage):
    levels = np.linspace(0.1, 0.3, 12)
    problem = sparse_problem(storage=storage, fit_intercept=True, offsets=levels)
    for each in (problem, problem.with_minima(GroupMinima.exact(levels / 2))):
        result = gd.solve(each, "dual-ascent", tol=1e-4, max_passes=2000)
        expected = gd.solve(each, "sqp", tol=1e-7)
        assert result.converged
        assert result.lower_bound <= expected.upper_bound + 1e-9
        assert expected.lower_bound <= result.upper_bound + 1e-9


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_the_model_and_the_objective_are_those_of_the_slopes(ones, intercept):
    problem = few_rows(ones=ones, fit_intercept=intercept)
    data, state = problem.data, advanced(problem, 6)
    q, weights = state.evaluation.q, problem.data.row_weights(state.evaluation.q)
    v = -data.rows.rmatvec(weights * state.slopes)
    np.testing.assert_allclose(problem.coef(state.evaluation.w), v / 1e-3, rtol=1e-9, atol=1e-12)
    p = -state.slopes * data.y  # minus the logistic loss's conjugate is the entropy of p
    entropy = data.group_means(-p * np.log(p) - (1 - p) * np.log1p(-p))
    np.testing.assert_allclose(state.heights, entropy, rtol=1e-9)
    assert state.objective == pytest.approx(q @ entropy - v @ v / (2 * 1e-3), rel=1e-9)


def test_calls_of_a_sweep_continue_each_other(monkeypatch):
    problem = few_rows(fit_intercept=True)
    at_once = advanced(problem, 4)
    monkeypatch.setattr("groupdro.oracle.dual_sweep._CALL_MEMBERS", 100)
    in_parts = advanced(problem, 4)
    np.testing.assert_allclose(in_parts.evaluation.w, at_once.evaluation.w, rtol=1e-8, atol=1e-10)
    assert in_parts.objective == pytest.approx(at_once.objective, rel=1e-12)


def test_the_objective_rises_and_stays_below_every_upper_bound():
    problem = few_rows()
    found = [advanced(problem, epochs).objective for epochs in range(1, 12)]
    assert (np.diff(found) > 0).all()
    assert found[-1] < gd.solve(problem, "dual-ascent", tol=1e-4, max_passes=500).upper_bound


@pytest.mark.parametrize(
    ("code", "parameter"),
    [(LOGISTIC, (0.0, 0.0)), (SQUARED, (0.0, 0.0)), (HUBER, (0.7, 0.0)), (SQUARED_HINGE, (0.0, 0.0))],
)
@pytest.mark.parametrize("stiffness", [0.0, 1e-3, 1.0, 1e4, 1e9])
def test_a_row_step_solves_its_equation(code, parameter, stiffness):
    rng = np.random.default_rng(0)
    for y in (1.0, -1.0):
        for u in (*rng.normal(size=5), 40.0, -40.0, 1e6):
            s = slope(code, parameter, rng.normal(), y)
            z = _meeting_output(code, parameter, y, u, stiffness, s)
            left, right = z + stiffness * slope(code, parameter, z, y), u + stiffness * s
            curvature = 1.0 + stiffness  # an error of z grows by at most as much
            assert abs(left - right) <= 1e-11 * curvature * (1.0 + abs(z))


def test_a_program_of_many_weights_is_not_needed():
    """SQP takes minutes for these groups: its program alone has 1,000 weights."""
    problem = few_rows(fit_intercept=True)
    choice = choose(problem, 1e-3)
    assert choice.reason.startswith("dual ascent: there are many groups")
    result = gd.solve(problem, tol=1e-3, max_passes=500)
    assert result.converged
    few = few_rows(m=60, fit_intercept=True)
    found, expected = (gd.solve(few, name, tol=1e-5, max_passes=3000) for name in ("dual-ascent", "sqp"))
    assert found.converged
    assert found.lower_bound <= expected.upper_bound + 1e-12
    assert expected.lower_bound <= found.upper_bound + 1e-12


def test_a_fit_ends_when_ascent_does():
    """The search for the least average would solve programs of all weights, which take a hundred times as long."""
    problem = few_rows(m=1500)
    data = problem.data
    groups = np.repeat(np.arange(data.n_groups), data.all_sizes)
    model = gd.GroupDROClassifier(alpha=2e-3, tol=1e-2, random_state=0).fit(data.rows.X, data.y, groups=groups)
    assert model.solver_.startswith("auto: dual ascent: there are many groups")
    assert "takes over" not in model.solver_
    assert model.mean_lower_bound_ == -np.inf
    assert model.n_passes_ < 300


def test_groups_whose_gradients_do_not_fit_in_memory():
    problem = few_rows(n=12_000, m=5000, fit_intercept=True)
    assert choose(problem, 1e-2).reason.startswith("dual ascent: the groups' gradients would not fit")
    result = gd.solve(problem, tol=1e-2, max_passes=500)
    assert result.converged
    assert "takes over" not in result.solver
    assert choose(few_rows(n=12_000, d=60_000, m=900, fit_intercept=True), 1e-2).reason.startswith("sketched sqp")


def test_auto_continues_with_sqp_where_the_penalty_is_too_small_for_ascent():
    problem = few_rows(n=200, d=500, m=20, penalty=1e-7, ones=False)
    slow = Auto().stages(problem, 1e-3)
    assert not any(isinstance(getattr(stage, "solver", stage), DualAscent) for stage in slow)
    expected = gd.solve(problem, tol=1e-3, max_passes=500)

    class Hasty(Auto):
        def stages(self, problem, tol):
            slow = AscentIsSlow(tol, passes=2.0, other=1.0, successor="sqp")
            return (gd.solvers.Stage(DualAscent(), until=slow), gd.solvers.GroupSQP("lbfgs"))

    result = gd.solve(problem, Hasty(), tol=1e-3, max_passes=2000)
    assert expected.converged
    assert result.converged
    assert "sqp takes over" in result.solver


def test_two_rows_that_contradict_each_other_are_left_to_sketches(monkeypatch):
    """Their groups have all the weight in the end, towards which ascent moves it ever more slowly."""
    given = few_rows(n=1500, m=300, penalty=1e-2).data
    X, groups = sp.csr_array(given.rows.X), np.repeat(np.arange(300), given.all_sizes)
    twice = sp.vstack([X, X[:1], X[:1]]).tocsr()
    data = gd.GroupedData.from_arrays(twice, np.append(given.y, [1.0, -1.0]), np.append(groups, [300, 301]))
    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-2))
    for name, value in (("MOST_GRADIENT_VALUES", 1.0), ("MOST_APART", 100), ("_HOPELESS", 20.0)):
        monkeypatch.setattr(auto, name, value)
    result = gd.solve(problem, tol=1e-6, max_passes=1000)
    assert "sketched-sqp takes over" in result.solver
    assert result.converged
    assert result.lower_bound <= np.log(2.0) + 1e-12
    assert result.upper_bound >= np.log(2.0) - 1e-12


def test_one_group_and_groups_that_tie():
    X, y = sp.csr_array(np.eye(6)), np.array([1.0, -1.0] * 3)
    for groups, m in ((np.zeros(6), 1), (np.arange(6), 6), (np.repeat([0, 1, 2], 2), 3)):
        data = gd.GroupedData.from_arrays(X, y, groups)
        problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-2))
        result = gd.solve(problem, "dual-ascent", tol=1e-8, max_passes=500)
        assert result.converged
        np.testing.assert_allclose(result.q, np.full(m, 1 / m), atol=1e-3)


def test_rows_without_entries_and_large_penalties():
    X = sp.csr_array(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]))
    data = gd.GroupedData.from_arrays(X, np.array([1.0, -1.0, -1.0, 1.0]), [0, 0, 1, 1])
    for penalty in (1e-6, 1.0, 1e6):
        for intercept in (False, True):
            problem = gd.Problem(
                data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=penalty), fit_intercept=intercept
            )
            result = gd.solve(problem, "dual-ascent", tol=1e-6, max_passes=4000)
            assert result.converged
            assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (make_problem("logistic", PENALTY), "sparse rows in memory"),
        (sparse_problem(weight_set=gd.weight_sets.Floor(0.01)), "all group weights to be allowed"),
        (as_sparse(make_problem("logistic", gd.domains.L2Domain(radius=1.0))), "an L2 penalty without a radius"),
    ],
)
def test_what_it_cannot_solve_is_refused(problem, message):
    with pytest.raises(ValueError, match=message):
        gd.solve(problem, "dual-ascent")


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_an_intercept_far_away_is_reached(shift):
    rng = np.random.default_rng(0)
    X = sp.random(240, 40, density=0.1, random_state=rng, format="csr")
    y = 1e4 * (np.asarray(X @ rng.normal(size=40)) + rng.normal(size=240)) + shift
    data = gd.GroupedData.from_arrays(X, y, np.repeat(np.arange(120), 2))
    for loss in (gd.losses.Huber(1.35), gd.losses.Squared()):
        problem = gd.Problem(data, loss, gd.domains.L2Domain(penalty=1e-2), fit_intercept=True)
        result = gd.solve(problem, "dual-ascent", tol=1e-3, max_passes=2000)
        expected = gd.solve(problem, "sqp", tol=1e-6)
        assert result.converged
        assert result.lower_bound <= expected.upper_bound * (1 + 1e-9)
        assert expected.lower_bound <= result.upper_bound * (1 + 1e-9)


@pytest.mark.parametrize("penalty", [0.1, 10.0])
def test_an_intercept_with_a_large_penalty_is_no_obstacle(penalty):
    fits = [
        gd.solve(few_rows(d=500, m=200, penalty=penalty, fit_intercept=intercept), "dual-ascent", tol=1e-4)
        for intercept in (False, True)
    ]
    assert all(fit.converged for fit in fits)
    assert fits[1].passes < 10 * fits[0].passes + 100


def test_it_stops_where_rounding_leaves_no_ascent():
    result = gd.solve(as_sparse(make_problem("logistic", PENALTY)), "dual-ascent", tol=0.0, max_passes=20_000)
    assert result.status.name == "STALLED"
    assert result.gap < 1e-7
