"""Dual ascent by several workers at the same time."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.data.cuts import cuts_between, row_cuts
from groupdro.distributed.sharding import shard
from groupdro.oracle import Oracle
from groupdro.solvers.auto import choose
from groupdro.solvers.dual_ascent import DualAscent
from tests.distributed.thread_comm import run_workers
from tests.reference.convex import worst_value
from tests.solvers.test_dual_ascent import advanced, few_rows


def together(problem, size, function):
    """Return function(problem on a part) of every worker."""
    return run_workers(size, lambda comm: function(replace(problem, data=shard(problem.data, comm))))


def assert_same(results):
    """Check that all workers have the same bits."""
    for result in results[1:]:
        for name in ("w", "q", "upper_bound", "lower_bound", "passes"):
            np.testing.assert_array_equal(getattr(result, name), getattr(results[0], name), err_msg=name)


#: Size, intercept, ones. Threads that share a core wait for each other for minutes, so that not all are in the gate.
IN_THE_GATE = ((2, False, True), (2, True, False))


@pytest.mark.parametrize(
    ("size", "intercept", "ones"),
    [
        pytest.param(*case, marks=[] if case in IN_THE_GATE else [pytest.mark.long])
        for case in itertools.product((2, 3, 5), (False, True), (False, True))
    ],
)
def test_workers_find_what_one_process_finds(size, intercept, ones):
    problem = few_rows(ones=ones, fit_intercept=intercept)
    levels = np.random.default_rng(0).normal(size=problem.n_groups) / 10
    problem = replace(problem, offsets=levels)
    alone = gd.solve(problem, "dual-ascent", tol=3e-3, max_passes=400)
    results = together(problem, size, lambda part: gd.solve(part, "dual-ascent", tol=3e-3, max_passes=1500))
    assert_same(results)
    assert alone.converged
    assert results[0].converged
    assert results[0].lower_bound <= alone.upper_bound
    assert alone.lower_bound <= results[0].upper_bound


@pytest.mark.parametrize(
    "loss", [gd.losses.Logistic(), gd.losses.Squared(), gd.losses.Huber(0.5), gd.losses.SquaredHinge()]
)
@pytest.mark.parametrize(("penalty", "tol"), [(0.1, 1e-3), pytest.param(1e-2, 1e-4, marks=pytest.mark.long)])
def test_the_bounds_enclose_the_optimum_of_an_independent_solver(loss, penalty, tol):
    problem = few_rows(n=120, d=60, m=30, penalty=penalty)
    problem = gd.Problem(problem.data, loss, problem.domain, fit_intercept=True)
    results = together(problem, 2, lambda part: gd.solve(part, "dual-ascent", tol=tol, max_passes=8000))
    assert_same(results)
    assert results[0].converged
    assert results[0].lower_bound - 1e-7 <= worst_value(problem).value <= results[0].upper_bound + 1e-7


@pytest.mark.parametrize("intercept", [False, True])
def test_the_model_and_the_objective_are_those_of_all_slopes(intercept):
    problem = few_rows(fit_intercept=intercept)
    data = problem.data

    def found(part):
        state = advanced(part, 8)
        slopes = np.zeros(part.data.n_total)
        slopes[part.data.first : part.data.first + part.data.n_rows] = state.slopes
        part.data.add_up(slopes)
        return slopes, state.heights, state.evaluation, state.objective

    for slopes, heights, at, objective in together(problem, 3, found):
        v = -data.rows.rmatvec(data.row_weights(at.q) * slopes)
        np.testing.assert_allclose(problem.coef(at.w), v / 1e-3, rtol=1e-9, atol=1e-11)
        p = -slopes * data.y
        entropy = data.group_means(-p * np.log(p) - (1 - p) * np.log1p(-p))
        np.testing.assert_allclose(heights, entropy, rtol=1e-9)
        assert objective == pytest.approx(at.q @ entropy - v @ v / (2 * 1e-3), rel=1e-9)
        assert at.q.sum() == pytest.approx(1.0)
        assert (at.q >= 0.0).all()


def test_the_objective_rises_in_every_sweep():
    def objectives(part):
        oracle = Oracle(part)
        solver, found = DualAscent(), []
        state = solver.init(oracle, part.centre(), part.central_weights(), seed=0)
        for _ in range(10):
            solver.epoch(oracle, state)
            state.epoch += 1
            found.append(state.objective)
        return found

    for found in together(few_rows(), 4, objectives):
        assert (np.diff(found) > 0).all()


def test_a_worker_whose_groups_had_no_weight():
    problem = few_rows()
    q = np.zeros(problem.n_groups)
    q[:10] = 0.1
    results = together(problem, 2, lambda part: gd.solve(part, "dual-ascent", q=q, tol=1e-2, max_passes=1500))
    assert_same(results)
    assert results[0].converged
    assert results[0].q[500:].sum() > 0.1


@pytest.mark.parametrize(
    ("tol", "sizes"), [(5e-3, (1,)), *(pytest.param(tol, (2, 1, 3), marks=pytest.mark.long) for tol in (5e-3, 1e-3))]
)
def test_a_run_goes_on_with_another_number_of_workers(tmp_path, tol, sizes):
    problem, options = few_rows(fit_intercept=True), {"tol": tol, "max_passes": 1500.0}
    stop = [lambda progress: progress.latest.epoch >= 12]

    def begun(part, folder):
        return gd.solve(part, "dual-ascent", **options, callbacks=stop, checkpoint_dir=folder)

    def ended(part, folder):
        return gd.solve(part, "dual-ascent", **options, checkpoint_dir=folder)

    whole = together(problem, 2, lambda part: gd.solve(part, "dual-ascent", **options))
    for size in sizes:
        folder = tmp_path / str(size)
        before = together(problem, 2, lambda part, folder=folder: begun(part, folder))
        results = together(problem, size, lambda part, folder=folder: ended(part, folder))
        assert_same(results)
        assert results[0].converged
        assert results[0].epochs > before[0].epochs
        assert results[0].lower_bound <= whole[0].upper_bound
        assert whole[0].lower_bound <= results[0].upper_bound


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_a_run_goes_on_where_another_number_of_workers_changes_the_choice(tmp_path, sizes):
    rng = np.random.default_rng(0)
    X = sp.random(600, 3000, density=0.005, random_state=rng, format="csr")
    y = np.where(rng.random(600) < 0.5, 1.0, -1.0)
    groups = np.append(np.zeros(300, int), np.arange(1, 301))  # three workers divide the first group, two do not
    data = gd.GroupedData.from_arrays(X, y, groups)
    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-2), fit_intercept=True)
    stop = [lambda progress: progress.latest.epoch >= 1]
    before = together(problem, sizes[0], lambda part: gd.solve(part, tol=1e-6, callbacks=stop, checkpoint_dir=tmp_path))
    after = together(problem, sizes[1], lambda part: gd.solve(part, tol=1e-6, checkpoint_dir=tmp_path))
    assert_same(after)
    assert ("dual ascent" in before[0].solver) != ("dual ascent" in after[0].solver)
    assert "resumed" in after[0].solver
    assert after[0].epochs > before[0].epochs
    assert after[0].lower_bound >= before[0].lower_bound
    assert after[0].upper_bound <= before[0].upper_bound
    expected = gd.solve(problem, "sqp", tol=1e-8)
    assert after[0].lower_bound <= expected.upper_bound
    assert expected.lower_bound <= after[0].upper_bound


@pytest.mark.parametrize("loss", [gd.losses.Logistic(), gd.losses.Squared()])
@pytest.mark.parametrize("m", [2, 8])
def test_few_groups_on_each_worker(loss, m):
    rng = np.random.default_rng(0)
    X = sp.random(96, 30, density=0.2, random_state=rng, format="csr")
    y = np.where(np.asarray(X.sum(axis=1)).ravel() + rng.normal(size=96) > 1.0, 1.0, -1.0)
    data = gd.GroupedData.from_arrays(X, y, np.repeat(np.arange(m), 96 // m))
    problem = gd.Problem(data, loss, gd.domains.L2Domain(penalty=0.1), fit_intercept=True)
    results = together(problem, 2, lambda part: gd.solve(part, "dual-ascent", tol=1e-3, max_passes=3000))
    assert_same(results)
    assert results[0].converged


@pytest.mark.parametrize("passes", [3.0, pytest.param(1000.0, marks=pytest.mark.long)])
def test_auto_lets_workers_ascend_where_the_gradients_do_not_fit(passes):
    problem = few_rows(n=12_000, m=5000, fit_intercept=True)

    def solved(part):
        assert choose(part, 1e-2).reason.startswith("dual ascent: the groups' gradients would not fit")
        return gd.solve(part, tol=1e-2, max_passes=passes)

    results = together(problem, 2, solved)
    assert_same(results)
    assert results[0].converged == (passes > 100.0)


def test_groups_that_are_divided_are_refused():
    problem = few_rows(m=3)

    def refused(part):
        with pytest.raises(ValueError, match="no group to be divided among workers: fewer workers"):
            gd.solve(part, "dual-ascent")

    together(problem, 2, refused)


def test_cuts_are_at_the_nearest_border_if_that_is_near():
    offsets = np.array([0, 10, 48, 100])
    np.testing.assert_array_equal(row_cuts(offsets, 2), [0, 48, 100])
    np.testing.assert_array_equal(row_cuts(offsets, 4), [0, 25, 50, 75, 100])  # 2 of 25 rows are too many
    assert cuts_between(offsets, 2)
    assert not cuts_between(offsets, 4)
    np.testing.assert_array_equal(row_cuts(np.array([0, 3]), 3), [0, 1, 2, 3])
    for size in range(1, 40):
        cuts = row_cuts(np.arange(0, 1001, 7).clip(max=1000), size)
        assert (np.diff(cuts) > 0).all()
        assert cuts[0] == 0
        assert cuts[-1] == 994
