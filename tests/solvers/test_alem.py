import numpy as np
import pytest

import groupdro as gd
from groupdro.oracle import Oracle
from groupdro.run.stages import Budget
from tests.reference.convex import group_minima, worst_value


def make_problem(seed=0, domain=None, noise=(0.05, 0.2, 0.4)):
    """Groups that share a rule but differ in noise: their best risks differ, which is what regret is for."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(3), 20)
    X = rng.normal(size=(60, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    flip = rng.random(60) < np.array(noise)[groups]
    y = np.sign(X @ np.array([1.0, -1.0, 0.5])) * np.where(flip, -1, 1)
    data = gd.GroupedData.from_arrays(X, y, groups)
    return gd.Problem(data, gd.losses.Logistic(), domain or gd.domains.L2Domain(radius=3.0))


@pytest.mark.parametrize(
    "domain",
    [gd.domains.L2Domain(radius=3.0), gd.domains.L2Domain(penalty=0.05), gd.domains.L2Domain(radius=2.0, penalty=0.01)],
)
def test_the_certified_gap_encloses_the_true_regret(domain):
    problem = make_problem(domain=domain)
    minima, accurate = group_minima(problem)
    reference = worst_value(problem, minima)
    assert accurate
    assert reference.accurate
    result = gd.solve(
        problem,
        gd.solvers.ALEM(gd.solvers.ALEGTheory(), gd.solvers.ALEGTheory(), stage_one_passes=401),
        max_passes=3000,
        tol=0.0,
        atol=0.02,
    )
    assert result.converged
    assert result.lower_bound - 1e-8 <= reference.value <= result.upper_bound + 1e-8
    true_regret = (Oracle(problem).risks(result.w) - minima).max() + problem.domain.penalty_at(result.w)
    assert reference.value - 1e-8 <= true_regret <= result.upper_bound + 1e-8


def test_rough_minima_widen_the_gap_but_never_break_it():
    problem = make_problem()
    minima, _ = group_minima(problem)
    optimum = worst_value(problem, minima).value
    rough = gd.solve(
        problem,
        gd.solvers.ALEM(gd.solvers.ALEGTheory(), gd.solvers.ALEGTheory(), stage_one_passes=3),
        max_passes=300,
        tol=0.0,
    )
    fine = gd.solve(
        problem,
        gd.solvers.ALEM(gd.solvers.ALEGTheory(), gd.solvers.ALEGTheory(), stage_one_passes=101),
        max_passes=600,
        tol=0.0,
    )
    assert fine.gap < rough.gap
    for result in (rough, fine):
        assert result.lower_bound - 1e-8 <= optimum <= result.upper_bound + 1e-8


def test_groups_with_equal_minima_have_the_same_solution_as_for_plain_risk():
    # One group written twice in other names: both minima are equal, so regret is risk less a constant.
    problem = make_problem(noise=(0.2, 0.2, 0.2))
    data = problem.data
    both = np.ones((60, 2), dtype=bool)
    same = gd.Problem(gd.GroupedData.from_arrays(data.rows.X, data.y, both), gd.losses.Logistic(), problem.domain)
    minima, _ = group_minima(same)
    result = gd.solve(
        same,
        gd.solvers.ALEM(gd.solvers.ALEGTheory(), gd.solvers.ALEGTheory(), stage_one_passes=2001),
        max_passes=8000,
        tol=0.0,
        atol=5e-3,
    )
    assert result.converged
    assert result.lower_bound <= 1e-8  # nobody has regret
    assert result.group_risks.max() == pytest.approx(minima.max(), abs=5e-3)


def test_both_stages_are_counted_and_budgeted():
    problem = make_problem()
    result = gd.solve(
        problem,
        gd.solvers.ALEM(gd.solvers.ALEGTheory(), gd.solvers.ALEGTheory(), stage_one_passes=11),
        max_passes=40,
        tol=0.0,
    )
    # Stage one: a pass at the start, then 11 over every group (5 epochs of 2 passes and the first snapshot).
    stage_one = 1 + 11
    assert result.trace[0].passes == pytest.approx(stage_one + 1)
    assert 40 <= result.passes < 43
    N, steps = 60, 20
    assert result.counters.grad_evals == 11 * N + (1 + result.epochs) * N + result.epochs * 3 * steps


def test_a_free_intercept_is_named_once():
    problem = make_problem()
    free = gd.Problem(problem.data, gd.losses.Logistic(), problem.domain, fit_intercept=True)
    with pytest.raises(ValueError, match="'aleg-theory' requires a bounded domain"):
        gd.solve(free, gd.solvers.ALEM(gd.solvers.ALEGTheory(), gd.solvers.ALEGTheory()))


def test_the_worst_group_is_that_of_the_regret_and_the_minima_are_reported():
    problem = make_problem()
    minima, _ = group_minima(problem)
    result = gd.solve(
        problem,
        gd.solvers.ALEM(gd.solvers.ALEGTheory(), gd.solvers.ALEGTheory(), stage_one_passes=201),
        max_passes=600,
        tol=0.0,
    )
    assert (result.group_minima.lower <= minima + 1e-8).all()
    assert (result.group_minima.upper >= minima - 1e-8).all()
    regrets = result.group_risks - result.group_minima.lower
    assert result.upper_bound == pytest.approx(regrets.max(), rel=1e-12)
    assert result.worst_group == int(np.argmax(regrets))


def test_a_group_of_one_class_has_minimum_zero_where_the_intercept_is_free():
    problem = make_problem()
    data = problem.data
    pure = np.where(data.y > 0, "yes", "no")  # class and group coincide
    free = gd.Problem(
        gd.GroupedData.from_arrays(data.rows.X, data.y, pure),
        gd.losses.Logistic(),
        gd.domains.L2Domain(penalty=0.1),
        fit_intercept=True,
    )
    single = gd.solvers.ALEGTheory(guarantee=False)
    result = gd.solve(free, gd.solvers.ALEM(single, single), max_passes=100, tol=1e-3)
    assert result.group_minima.upper.tolist() == [0.0, 0.0]
    plain = worst_value(free)
    assert result.lower_bound - 1e-8 <= plain.value <= result.upper_bound + 1e-8
    assert result.gap < 0.05


def test_a_group_whose_minimum_may_lie_beyond_the_ball_keeps_no_lower_bound():
    rng = np.random.default_rng(0)
    groups, x, z = np.arange(90) % 3, *rng.normal(size=(2, 90))
    # Of group 0 the columns are nearly the same, and their difference gives the targets.
    X = np.column_stack([x, np.where(groups == 0, x + 1e-6 * z, z)])
    data = gd.GroupedData.from_arrays(X, z + 0.1 * rng.normal(size=90), groups)
    problem = gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(radius=1e8, proxy_for_unbounded=True))
    minima = gd.solve(problem, "alem").group_minima
    assert minima.lower[0] == 0.0
    assert minima.upper[0] > 0.0
    np.testing.assert_allclose(minima.lower[1:], minima.upper[1:], rtol=1e-4)


@pytest.mark.parametrize("n_per_group", [40, 6])  # the smaller ones are solved in the space of their rows
@pytest.mark.parametrize("weighted", [False, True])
def test_a_class_that_a_group_lacks_does_not_keep_its_minimum_from_being_found(n_per_group, weighted):
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(3), n_per_group)
    X = rng.normal(size=(len(groups), 14))
    y = rng.integers(0, 4, len(groups))
    y[(groups == 0) & (y > 1)] = 0  # has classes 0 and 1
    y[(groups == 1) & (y == 0)] = 3  # has 1, 2 and 3, not the first one
    weights = None
    if weighted:  # class 2 of the last group does not count
        weights = np.where((groups == 2) & (y == 2), 0.0, 1.0)
    data = gd.GroupedData.from_arrays(X, y, groups, weights)
    problem = gd.Problem(data, gd.losses.Softmax(4), gd.domains.L2Domain(penalty=0.1), fit_intercept=True)
    result = gd.solve(problem, gd.solvers.ALEM(), tol=1e-4)
    assert result.converged
    minima, _ = group_minima(problem)
    np.testing.assert_array_less(result.group_minima.lower, minima + 1e-6)
    np.testing.assert_allclose(result.group_minima.upper, minima, atol=1e-5)


@pytest.mark.parametrize(
    "stage_one", [None, gd.solvers.ALEG(), gd.solvers.GroupSQP("lbfgs")], ids=["default", "aleg", "lbfgs"]
)
def test_a_small_budget_ends_stage_one_too(stage_one):
    result = gd.solve(make_problem(), gd.solvers.ALEM(stage_one), tol=1e-8, max_passes=2)
    assert not result.converged
    assert result.passes <= 8  # two, and what each part of stage one is in the middle of when they are used up


def test_groups_side_by_side_do_not_share_what_a_solver_chose(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(800, 6)), np.repeat(np.arange(8), 100)
    y = X @ rng.normal(size=6) + groups * X[:, 0] + rng.normal(size=800)
    data = gd.GroupedData.from_arrays(X, y, groups)
    found = []
    for _ in range(4):
        problem = gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(radius=2.0))
        found.append(gd.solve(problem, gd.solvers.ALEM(gd.solvers.Auto()), tol=1e-3).group_minima.upper)
    assert all((other == found[0]).all() for other in found)


def test_the_paper_subtracts_the_risks_that_its_first_stage_reached():
    problem = make_problem(domain=gd.domains.L2Domain(radius=1.5))
    budget = Budget(1e-3, 0.0, lambda: np.inf, lambda: np.inf)
    for solver, published in ((gd.solvers.ALEGTheory(guarantee=False), True), (None, False)):
        alem = gd.solvers.ALEM(solver, stage_one_passes=3.0)
        start = problem.centre(), problem.central_weights()
        found = alem.stages(problem, 1e-3)[0].run(Oracle(problem), *start, budget, 0).group_minima
        assert (found.centre == found.upper).all() == published
