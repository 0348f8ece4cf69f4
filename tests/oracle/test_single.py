"""Passes in single precision: their bounds hold, allow for what rounding does, and give way to float64 in the end."""

import os
import subprocess
import sys

import numpy as np
import pytest

import groupdro as gd
from groupdro.certificate import Certificate, balance, linearise
from groupdro.certificate.rounding import rounding_slack
from groupdro.distributed import shard
from groupdro.oracle import Oracle, single
from groupdro.oracle.groups import evaluate_groups
from tests.distributed.thread_comm import run_workers
from tests.reference.convex import worst_value

EPS = np.finfo(np.float64).eps

ROWS = {
    "plain": lambda rng, X: X,
    "large": lambda rng, X: 1e4 * X,
    "columns far from zero": lambda rng, X: X + 1e3,
    "alternating columns far from zero": lambda rng, X: X + 1e3 * (-1.0) ** np.arange(X.shape[1]),
    "rows of all sizes": lambda rng, X: X * 10.0 ** rng.uniform(-6, 4, (len(X), 1)),
    "nearly nothing": lambda rng, X: 1e-30 * X,
}


@pytest.fixture(autouse=True)
def any_size_is_worth_it(monkeypatch):
    monkeypatch.setattr(single, "_WORTH", 0)


def make_problem(kind="plain", *, n=700, d=600, n_classes=4, seed=0, domain=None, **options):
    rng = np.random.default_rng(seed)
    X = ROWS[kind](rng, rng.normal(size=(n, d))).astype(np.float32)
    teacher = rng.normal(size=(d, n_classes)) / np.sqrt(d)
    y = np.argmax(X @ teacher / np.abs(X).mean() + rng.gumbel(size=(n, n_classes)), axis=1)
    data = gd.GroupedData.from_arrays(X, y, rng.integers(0, 3, n), options.pop("sample_weight", None))
    return gd.Problem(data, gd.losses.Softmax(n_classes), domain or gd.domains.L2Domain(radius=2.0), **options)


def in_float64(problem):
    oracle = Oracle(problem)
    oracle.use_double()
    return oracle


def some_points(problem, seed=1):
    rng = np.random.default_rng(seed)
    for size in (1e-3, 0.5, 1.0):
        w = rng.normal(size=problem.shape)
        w *= size * 2.0 / np.linalg.norm(problem.coef(w))
        yield w, rng.dirichlet(np.ones(problem.n_groups))


@pytest.mark.parametrize("fit_intercept", [False, True], ids=["no intercept", "intercept"])
@pytest.mark.parametrize("kind", ROWS)
def test_risks_are_bounded_from_above_by_no_more_than_twice_the_allowance(kind, fit_intercept):
    problem = make_problem(kind, fit_intercept=fit_intercept)
    oracle = Oracle(problem)
    for w, q in some_points(problem):
        at, exact = oracle.evaluate(w, q), in_float64(problem).evaluate(w, q)
        assert at.single is not None
        assert exact.single is None
        assert (at.single.allowance > 0).all()
        excess = at.group_risks - exact.group_risks
        assert (excess >= 0).all()
        assert (excess <= 2.0 * at.single.allowance).all()
        np.testing.assert_allclose(oracle.risks(w), at.group_risks, rtol=1e-12)


@pytest.mark.parametrize("kind", ROWS)
def test_the_error_of_the_gradient_is_within_its_bound(kind):
    problem = make_problem(kind)
    oracle = Oracle(problem)
    for w, q in some_points(problem):
        at = oracle.evaluate(w, q)
        slopes = problem.loss.value_and_slope(at.margins.astype(np.float64), problem.data.y)[1]
        weighted = slopes * problem.data.row_weights(q)[:, None]
        exact = in_float64(problem).combine_rows(weighted)
        error = np.linalg.norm(at.gradient - exact)
        bound = EPS * problem.data.rounding * at.mass
        assert 0 < error <= bound
        assert np.linalg.norm(oracle.combine_rows(weighted) - exact) <= bound


@pytest.mark.parametrize("kind", ROWS)
def test_a_cut_lies_below_the_objective_everywhere(kind):
    problem = make_problem(kind)
    oracle = Oracle(problem)
    exact, points = in_float64(problem), list(some_points(problem))
    for w, q in points:
        cut = linearise(oracle, oracle.evaluate(w, q))
        for v, _ in [*points, (w, q), (np.zeros_like(w), q)]:
            value = float(q @ exact.risks(v))
            slack = rounding_slack(cut.error, float(np.linalg.norm(v)), 0.0)
            assert cut.constant + float(np.vdot(cut.gradient, v)) - slack <= value


def test_a_cut_with_a_free_intercept_lies_below_the_objective_everywhere():
    problem = make_problem(fit_intercept=True)
    oracle = Oracle(problem)
    exact, points = in_float64(problem), list(some_points(problem))
    for w, q in points:
        cut = balance(oracle, oracle.evaluate(w, q))
        fine = balance(exact, exact.evaluate(w, q))
        assert cut.error > fine.error
        for v, _ in [*points, (w, q)]:
            coef = problem.coef(v)
            slack = rounding_slack(cut.error, float(np.linalg.norm(coef)), 0.0)
            assert cut.constant + float(np.vdot(cut.gradient, coef)) - slack <= float(q @ exact.risks(v))


@pytest.mark.parametrize("fit_intercept", [False, True], ids=["no intercept", "intercept"])
@pytest.mark.parametrize("kind", ROWS)
def test_a_pass_with_the_gradients_of_all_groups_has_the_same_bounds(kind, fit_intercept):
    weights = np.random.default_rng(3).uniform(0.5, 2.0, 700)
    problem = make_problem(kind, fit_intercept=fit_intercept, sample_weight=weights)
    oracle = Oracle(problem)
    exact = in_float64(problem)
    for w, q in some_points(problem):
        groups, fine = evaluate_groups(oracle, w), evaluate_groups(exact, w)
        at = groups.at(q)
        assert at.single is groups.single is not None
        excess = groups.group_risks - fine.group_risks
        assert (excess >= 0).all()
        assert (excess <= 2.0 * at.single.allowance).all()
        np.testing.assert_allclose(at.mass, oracle.evaluate(w, q).mass, rtol=1e-3)
        slopes = problem.loss.value_and_slope(at.margins.astype(np.float64), problem.data.y)[1]
        for i in range(problem.n_groups):
            weighted = slopes * problem.data.row_weights(np.eye(problem.n_groups)[i])[:, None]
            gradient = exact.combine_rows(weighted)
            error = np.linalg.norm(problem.coef(groups.gradients[i]) - gradient)
            assert error <= EPS * problem.data.rounding * groups.masses[i]
            if fit_intercept:
                np.testing.assert_allclose(groups.gradients[i, -1], weighted.sum(axis=0), atol=1e-12)
        if not fit_intercept:
            cut = linearise(oracle, at)
            for v in (w, np.zeros_like(w), -w):
                slack = rounding_slack(cut.error, float(np.linalg.norm(v)), 0.0)
                assert cut.constant + float(np.vdot(cut.gradient, v)) - slack <= float(q @ exact.risks(v))


def test_a_solver_of_all_gradients_takes_passes_in_single_precision_too(monkeypatch):
    seen = []
    problem = make_problem(n=2000, d=300, domain=gd.domains.L2Domain(radius=1.0))
    result = gd.solve(
        problem,
        gd.solvers.GroupSQP("lbfgs"),
        tol=1e-5,
        callbacks=[lambda progress: seen.append(progress.state.evaluation)],
    )
    assert result.converged
    kinds = [at.single is not None for at in seen]
    assert kinds[0]
    assert not kinds[-1]
    assert sorted(kinds, reverse=True) == kinds
    monkeypatch.setattr(single, "_WORTH", np.inf)
    fine = gd.solve(problem, gd.solvers.GroupSQP("lbfgs"), tol=1e-7)
    assert result.lower_bound <= fine.upper_bound
    assert result.upper_bound >= fine.lower_bound


def test_tangents_at_wrong_outputs_still_lie_below():
    # At w the outputs are of order 10^7 and cancel to order 1: single precision leaves none of their digits.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 40))
    X[:, 0], X[:, 1] = 1e7, 1e7
    data = gd.GroupedData.from_arrays(X.astype(np.float32), rng.integers(0, 3, 300), np.arange(300) % 2)
    problem = gd.Problem(data, gd.losses.Softmax(3), gd.domains.L2Domain(radius=5.0))
    oracle = Oracle(problem)
    w = rng.normal(size=problem.shape) * 0.1
    w[0], w[1] = 1.0 / 3.0, -1.0 / 3.0 + 1e-8
    at, exact = oracle.evaluate(w, np.full(2, 0.5)), in_float64(problem)
    assert np.abs(at.margins - exact.evaluate(w, at.q).margins).max() > 1e-3
    cut = linearise(oracle, at)
    for v in (w, np.zeros_like(w), 0.5 * w):
        slack = rounding_slack(cut.error, float(np.linalg.norm(v)), 0.0)
        assert cut.constant + float(np.vdot(cut.gradient, v)) - slack <= float(at.q @ exact.risks(v))
    assert (at.group_risks >= exact.risks(w)).all()


@pytest.mark.parametrize("solver", ["aleg", "sqp", "auto"])
@pytest.mark.parametrize("tol", [1e-2, 1e-6])
def test_bounds_enclose_the_optimum_that_clarabel_finds(solver, tol):
    problem = make_problem(n=120, d=6, n_classes=3)
    best = worst_value(problem)
    result = gd.solve(problem, solver, tol=tol)
    assert result.converged
    assert result.lower_bound <= best.value + 1e-8
    assert result.upper_bound >= best.value - 1e-8
    assert Oracle(problem).single_precision  # the run changed that of its own oracle


def test_a_run_ends_in_float64_where_the_tolerance_needs_it_and_not_where_it_does_not():
    for tol, needs in ((3e-1, False), (1e-6, True)):
        seen = []
        problem = make_problem(n=2000, d=300)
        result = gd.solve(
            problem, "aleg", tol=tol, callbacks=[lambda progress, seen=seen: seen.append(progress.state.evaluation)]
        )
        assert result.converged
        kinds = [at.single is not None for at in seen]
        assert kinds[0]
        assert kinds[-1] != needs
        assert sorted(kinds, reverse=True) == kinds  # it changes once
        assert len(result.trace) == len(seen)
        fine = in_float64(problem).evaluate(result.w, result.q)
        np.testing.assert_allclose(result.group_risks, fine.group_risks, rtol=1e-12)


def test_a_certificate_in_single_precision_is_wider_than_one_in_float64_and_holds_it():
    problem = make_problem()
    oracle, exact = Oracle(problem), in_float64(problem)
    wide, narrow = (Certificate(one) for one in (oracle, exact))
    for w, q in some_points(problem):
        wide.observe(oracle.evaluate(w, q))
        narrow.observe(exact.evaluate(w, q))
    assert wide.upper > narrow.upper
    assert wide.lower < narrow.lower + 1e-6
    assert wide.gap > narrow.gap


def test_what_overflows_is_passed_over_in_float64():
    problem = make_problem()
    oracle = Oracle(problem)
    w = np.full(problem.shape, 1e38)
    w[:, 1] *= -1.0
    with np.errstate(over="raise"):
        at = oracle.evaluate(w, np.full(3, 1.0 / 3.0))
    assert at.single is None
    assert not oracle.single_precision
    np.testing.assert_array_equal(at.group_risks, in_float64(problem).evaluate(w, at.q).group_risks)
    for ask in (lambda one: one.risks(w), lambda one: one.combine_rows(np.full((700, 4), 3e38))):
        np.testing.assert_array_equal(ask(Oracle(problem)), ask(in_float64(problem)))


def test_only_large_products_of_float32_rows_with_several_outputs_are_passed_over_in_single_precision(monkeypatch):
    monkeypatch.setattr(single, "_WORTH", 700 * 600 * 4)
    rng = np.random.default_rng(0)
    X, y, groups = rng.normal(size=(700, 600)).astype(np.float32), rng.integers(0, 4, 700), np.arange(700) % 3

    def chosen(X, y=y, loss=gd.losses.Softmax(), domain=gd.domains.L2Domain(radius=1.0)):  # noqa: B008
        return Oracle(gd.Problem(gd.GroupedData.from_arrays(X, y, groups), loss, domain)).single_precision

    assert chosen(X)
    assert not chosen(X.astype(np.float64))
    assert not chosen(X.astype(np.float16))
    assert not chosen(X[:, :-1])
    assert not chosen(X, np.where(y > 1, 1.0, -1.0), gd.losses.Logistic())
    assert not chosen(X, domain=gd.domains.L2Domain(radius=1e6, proxy_for_unbounded=True))


def test_mapped_rows_that_do_not_fit_in_memory_give_the_same(tmp_path, monkeypatch):
    problem = make_problem()
    X = problem.data.rows.X
    X.tofile(tmp_path / "X.bin")
    monkeypatch.setattr("groupdro.data.dense_rows.memory_limit", lambda: X.nbytes // 4)
    mapped = np.memmap(tmp_path / "X.bin", np.float32, mode="r", shape=X.shape)
    groups = np.repeat(np.arange(3), problem.data.group_sizes)
    data = gd.GroupedData.from_arrays(mapped, problem.data.y, groups)
    assert not data.rows.in_memory
    other = gd.Problem(data, gd.losses.Softmax(4), gd.domains.L2Domain(radius=2.0))
    for w, q in some_points(problem):
        one, two = Oracle(problem).evaluate(w, q), Oracle(other).evaluate(w, q)
        assert one.single is not None
        np.testing.assert_array_equal(one.group_risks, two.group_risks)
        np.testing.assert_array_equal(one.gradient, two.gradient)


def pass_bytes():
    problem = make_problem(n=3000)
    w, q = list(some_points(problem))[1]
    at = Oracle(problem).evaluate(w, q)
    assert at.single is not None
    return at.gradient.tobytes() + at.group_risks.tobytes() + at.margins.tobytes()


@pytest.mark.long
def test_the_number_of_threads_changes_no_bit():
    script = "from tests.oracle.test_single import pass_bytes, single; single._WORTH = 0; print(hash(pass_bytes()))"
    printed = set()
    for threads in ("1", "2", "4"):
        env = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        printed.add(done.stdout)
    assert len(printed) == 1


@pytest.mark.parametrize("epochs", [4, *(pytest.param(k, marks=pytest.mark.long) for k in (1, 7))])
def test_a_run_that_was_broken_off_before_or_after_its_precision_changed_is_resumed(tmp_path, epochs):
    options = {"tol": 1e-6, "max_passes": 40.0}
    whole = gd.solve(make_problem(), "aleg", **options)
    stop = [lambda progress: progress.latest.epoch >= epochs]
    gd.solve(make_problem(), "aleg", **options, callbacks=stop, checkpoint_dir=tmp_path)
    resumed = gd.solve(make_problem(), "aleg", **options, checkpoint_dir=tmp_path)
    assert whole.epochs > 7
    assert resumed.lower_bound <= whole.upper_bound
    assert whole.lower_bound <= resumed.upper_bound


@pytest.mark.parametrize("fit_intercept", [False, True], ids=["no intercept", "intercept"])
def test_workers_find_the_same_bounds(fit_intercept):
    alone = make_problem(fit_intercept=fit_intercept)
    oracle = Oracle(alone)
    w, q = list(some_points(alone))[1]
    at = oracle.evaluate(w, q)
    make = balance if fit_intercept else linearise
    cut = make(oracle, at)

    def work(comm):
        problem = make_problem(fit_intercept=fit_intercept)
        shared = Oracle(problem.with_rows(shard(problem.data, comm)))
        here = shared.evaluate(w, q)
        there = make(shared, here)
        return here, there, rounding_slack(there.error, 1.0, 0.0)

    for here, there, slack in run_workers(3, work):
        assert here.single is not None
        np.testing.assert_allclose(here.group_risks, at.group_risks, rtol=1e-12)
        np.testing.assert_allclose(here.gradient, at.gradient, atol=1e-6)
        np.testing.assert_allclose(there.constant, cut.constant, rtol=1e-10)
        np.testing.assert_allclose(slack, rounding_slack(cut.error, 1.0, 0.0), rtol=1e-6)
