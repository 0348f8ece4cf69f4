"""The stage that spends the slack of the tolerance on the average, against CVXPY."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import logsumexp

import groupdro as gd
from groupdro.run.solver import make_solver
from groupdro.solvers import slack as slack_module
from groupdro.solvers.slack import LeastAverage
from tests.distributed.thread_comm import run_workers
from tests.pairs import every_pair
from tests.reference.convex import dense_rows, least_average, membership_matrix, worst_value
from tests.solvers.test_aleg import LOSSES, make_problem

TOL = 2e-3
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
    return gd.Problem(data, problem.loss, problem.domain, fit_intercept=problem.fit_intercept)


def row_shares(problem):
    return problem.data.group_sizes / problem.data.group_sizes.sum()


def hold_against_cvxpy(problem, base, solver="sqp", *, tol=TOL, share=0.9, **options):
    """Solve with and without the stage, and hold the average against the least one within the level."""
    alone = gd.solve(problem, solver, tol=tol, **options)
    found = gd.solve(problem, LeastAverage(make_solver(solver), base), tol=tol, **options)
    assert found.converged
    values = values_by_hand(problem, found.w)
    assert np.linalg.norm(found.w[: problem.data.n_features]) <= problem.domain.radius * (1 + 1e-12)
    assert values.max() <= found.lower_bound * (1 + tol) * (1 + 1e-12)
    assert found.upper_bound == pytest.approx(values.max(), rel=1e-10)
    np.testing.assert_allclose(found.group_risks, values - problem.domain.penalty_at(problem.coef(found.w)), rtol=1e-10)
    least = least_average(problem, base, (1 + tol) * found.lower_bound)
    assert least.accurate
    mean, before = base @ values, base @ values_by_hand(problem, alone.w)
    assert found.mean_lower - 1e-7 <= least.value <= mean + 1e-7
    assert before - mean >= share * (before - least.value) - 0.1 * tol * mean
    return alone, found, least.value


@every_pair(
    storage=["dense", "csr"],
    domain=[*DOMAINS],
    intercept=[False, True],
    loss=["logistic", "squared", "softmax"],
)
def test_most_of_what_the_average_can_gain_within_the_level_is_gained(loss, intercept, domain, storage):
    problem = make_problem(loss, DOMAINS[domain], intercept=intercept)
    if storage == "csr":
        problem = sparse(problem)
    hold_against_cvxpy(problem, row_shares(problem), gd.solvers.GroupSQP("lbfgs" if storage == "csr" else "newton"))


@pytest.mark.parametrize("seed", [0, 3])
def test_columns_of_groups_that_do_not_bind_have_the_curvature_of_the_average(seed):
    """Under the worst groups' weights their columns are flat, and a step along them seems to gain without end."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 12, 2000)
    x = rng.normal(size=(2000, 2))
    X = np.hstack([x, np.eye(12)[groups]])
    y = rng.poisson(np.exp(1 + 0.15 * groups + 0.5 * x[:, 0] * (1 + 0.2 * groups)))
    model = gd.GroupDRORegressor(loss="poisson", tol=1e-6, alpha=1e-4).fit(X, y, groups=groups)
    assert model.status_ == "converged"
    assert 0.999 * model.mean_risk_ <= model.mean_lower_bound_ <= model.mean_risk_
    assert model.n_passes_ <= 25


@pytest.mark.parametrize("solver", ["aleg", "auto", "sketched-sqp"])
def test_the_stage_follows_any_solver(solver):
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05), intercept=True)
    hold_against_cvxpy(problem, row_shares(problem), solver)


def test_of_many_groups_that_tie_only_some_enter_the_program(monkeypatch):
    """At zero every group has log 2: a program of all would take the square of their number in memory."""
    sizes, solved = [], slack_module.solve_simplex_qp

    def watched(M, *given):
        sizes.append(len(M))
        return solved(M, *given)

    monkeypatch.setattr(slack_module, "solve_simplex_qp", watched)
    monkeypatch.setattr(slack_module, "WORKING_SET", 8)
    rng = np.random.default_rng(0)
    m, d = 120, 3
    X, groups = rng.normal(size=(2 * m, d)), np.repeat(np.arange(m), 2)
    X[1::2] = X[::2] + 0.3 * rng.normal(size=(m, d))
    y = np.tile([-1, 1], m)
    data = gd.GroupedData.from_arrays(X, y, groups)
    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.05))
    hold_against_cvxpy(problem, row_shares(problem))
    assert 0 < max(sizes) <= 1 + 3 * 8


def test_any_weights_of_the_average_are_taken():
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05), intercept=True, weights=True)
    for base in (np.full(3, 1 / 3), np.array([0.0, 0.0, 1.0]), np.array([0.7, 0.0, 0.3])):
        hold_against_cvxpy(problem, base)


@pytest.mark.parametrize("loss", ["logistic", "squared", "softmax"])
def test_the_average_over_rows_of_overlapping_groups(loss):
    rng = np.random.default_rng(4)
    first = make_problem(loss, gd.domains.L2Domain(penalty=0.05), intercept=True)
    member = (np.repeat(np.arange(3), [40, 25, 60])[:, None] == np.arange(3)) | (rng.random((125, 3)) < 0.2)
    rows, y = first.data.rows.X, first.data.y

    def posed(member):
        data = gd.GroupedData.from_arrays(rows, y, member)
        return gd.Problem(data, LOSSES[loss], first.domain, fit_intercept=True)

    problem, whole = posed(member), posed(np.column_stack([member, np.ones(125, dtype=bool)]))
    alone = gd.solve(problem, "sqp", tol=TOL)
    found = gd.solve(problem, LeastAverage(gd.solvers.GroupSQP()), tol=TOL)
    base, level = np.array([0.0, 0.0, 0.0, 1.0]), (1 + TOL) * found.lower_bound
    least = least_average(whole, base, level, 3)
    values, before = values_by_hand(whole, found.w), values_by_hand(whole, alone.w)
    assert found.converged
    assert values[:3].max() <= level * (1 + 1e-12)
    assert found.mean_lower - 1e-7 <= least.value <= values[3] + 1e-7
    assert before[3] - values[3] >= 0.9 * (before[3] - least.value) - 0.1 * TOL * values[3]


@pytest.mark.parametrize("hessian", ["newton", "lbfgs"])
def test_groups_enter_where_there_are_more_than_the_program_takes_at_once(hessian, monkeypatch):
    monkeypatch.setattr(slack_module, "WORKING_SET", 1)
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05), sizes=(12,) * 25, d=6)
    hold_against_cvxpy(problem, row_shares(problem), gd.solvers.GroupSQP(hessian), tol=5e-3)


@pytest.mark.parametrize("loss", ["logistic", "squared", "softmax"])
def test_where_plain_training_is_within_the_level_it_is_nearly_the_answer(loss):
    problem = make_problem(loss, gd.domains.L2Domain(penalty=0.05), intercept=True)
    pooled = gd.GroupedData.from_arrays(problem.data.rows.X, problem.data.y)
    plain = worst_value(gd.Problem(pooled, LOSSES[loss], problem.domain, fit_intercept=True))
    tol = 1.05 * values_by_hand(problem, plain.w).max() / worst_value(problem).value - 1
    _, _, least = hold_against_cvxpy(problem, row_shares(problem), tol=tol)
    assert least == pytest.approx(plain.value, rel=1e-5)


def test_excess_risks_are_held_within_the_level_too():
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05), intercept=True)
    base = np.array([0.2, 0.3, 0.5])
    alone = gd.solve(problem, "alem", tol=1e-2)
    found = gd.solve(problem, LeastAverage(gd.solvers.ALEM(), base), tol=1e-2)
    assert found.converged
    assert found.gap <= 1e-2 * found.upper_bound
    assert base @ found.group_risks < base @ alone.group_risks


def test_two_workers_find_what_one_does(tmp_path):
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05), sizes=(70, 50, 80), intercept=True)
    groups = np.repeat(np.arange(3), [70, 50, 80])
    store = gd.GroupedStore.write_arrays(
        tmp_path / "store", problem.data.rows.X, problem.data.y, groups, dtype="float64"
    )
    base = row_shares(problem)
    _, alone, _ = hold_against_cvxpy(problem, base)

    def work(communicator):
        posed = gd.Problem(store.shard(communicator).data(), gd.losses.Logistic(), problem.domain, fit_intercept=True)
        return gd.solve(posed, LeastAverage(gd.solvers.GroupSQP(), base), tol=TOL)

    first, second = run_workers(2, work)
    np.testing.assert_array_equal(first.w, second.w)
    assert first.mean_lower == second.mean_lower
    assert base @ first.group_risks == pytest.approx(base @ alone.group_risks, rel=1e-6)


def test_callbacks_and_the_trace_see_every_epoch_of_the_stage():
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05), intercept=True)
    seen = []
    found = gd.solve(
        problem,
        LeastAverage(gd.solvers.GroupSQP(), row_shares(problem)),
        tol=1e-2,
        callbacks=[lambda p: seen.append(p.w)],
    )
    alone = gd.solve(problem, "sqp", tol=1e-2)
    assert len(found.trace) == len(seen) > len(alone.trace)
    assert found.trace[-1].passes == found.passes
    np.testing.assert_array_equal(seen[-1], found.w)  # nothing but a check follows the last callback
    for row in found.trace[len(alone.trace) :]:
        assert row.upper - row.lower <= 1e-2 * row.upper


@pytest.mark.parametrize("how", ["Ctrl-C", "callback", "passes", "time"])
def test_a_stage_that_is_cut_short_leaves_a_model_that_meets_the_tolerance(how):
    problem = make_problem("logistic", gd.domains.L2Domain(penalty=0.05), intercept=True)
    solver = LeastAverage(gd.solvers.GroupSQP(), row_shares(problem))
    alone = gd.solve(problem, "sqp", tol=1e-2)

    def end(progress):
        if progress.latest.epoch > alone.epochs:
            if how == "Ctrl-C":
                raise KeyboardInterrupt
            return how == "callback"
        return False

    limits = {"passes": {"max_passes": alone.passes + 1}, "time": {"max_time": 1e-9}}.get(how, {})
    found = gd.solve(problem, solver, tol=1e-2, callbacks=[end], **limits)
    if how == "time":
        assert found.status is gd.solvers.Status.TIME_LIMIT
        return
    assert found.converged
    assert found.interrupted == (how == "Ctrl-C")
    assert found.epochs <= alone.epochs + 2
    assert found.upper_bound <= (1 + 1e-2) * found.lower_bound * (1 + 1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"domain": gd.domains.SimplexDomain()},
        {"tol": 1e-10},
        {"sizes": (120,)},
        {"weight_set": gd.weight_sets.Cap((0.5, 0.5, 0.5))},
    ],
    ids=["no ball", "no slack", "one group", "caps"],
)
def test_without_slack_there_is_no_stage(options):
    tol = options.pop("tol", 1e-2)
    weight_set = options.pop("weight_set", gd.weight_sets.Simplex())
    made = make_problem("squared", options.pop("domain", gd.domains.L2Domain(penalty=0.05)), **options)
    problem = gd.Problem(made.data, made.loss, made.domain, weight_set)
    stages = LeastAverage(gd.solvers.Auto(), row_shares(problem)).stages(problem, tol)
    assert not any(isinstance(stage, gd.solvers.Stage) and stage.within_tolerance for stage in stages)
