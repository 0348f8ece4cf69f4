import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import groupdro as gd
from groupdro.oracle import Evaluation, Oracle
from groupdro.run.solver import SOLVERS
from groupdro.solvers import State, Status
from tests.timing import HUNG, cpu_seconds, interrupted_after


def make_problem(n=60, d=3, m=4, seed=0, domain=None, **options):
    rng = np.random.default_rng(seed)
    data = gd.GroupedData.from_arrays(rng.normal(size=(n, d)), np.sign(rng.normal(size=n)), rng.integers(0, m, n))
    return gd.Problem(data, gd.losses.Logistic(), domain or gd.domains.L2Domain(radius=1.0), **options)


def test_counts_of_an_epoch_are_exactly_those_of_the_paper():
    problem = make_problem()
    N, m, K, S = 60, 4, 7, 5
    result = gd.solve(problem, gd.solvers.ALEGTheory(K), tol=0.0, max_passes=(S + 1) + S * m * K / N - 1e-9)
    assert result.epochs == S
    steps = np.diff([(row.grad_evals, row.grad_evals_paper) for row in result.trace], axis=0)
    assert steps.tolist() == [[N + m * K, N + 2 * m * K]] * S
    # The pass at the very first snapshot precedes the first epoch; those of the average and the last check are free.
    assert result.counters.grad_evals == N + S * (N + m * K)
    assert result.passes == pytest.approx(1 + S + S * m * K / N)


def test_trace_bounds_are_monotone_and_enclose_the_result():
    result = gd.solve(make_problem(), "aleg-theory", tol=0.0, max_passes=60)
    uppers, lowers = [row.upper for row in result.trace], [row.lower for row in result.trace]
    assert uppers == sorted(uppers, reverse=True)
    assert lowers == sorted(lowers)
    assert result.upper_bound <= uppers[-1]
    assert result.lower_bound >= lowers[-1]
    assert result.gap == pytest.approx(result.upper_bound - result.lower_bound)


def test_the_result_describes_its_own_w():
    problem = make_problem()
    result = gd.solve(problem, "aleg-theory", max_passes=60)
    np.testing.assert_allclose(Oracle(problem).risks(result.w), result.group_risks, rtol=1e-14)
    assert result.upper_bound == pytest.approx(result.group_risks.max(), rel=1e-14)
    assert result.worst_group == int(np.argmax(result.group_risks))
    assert result.q.sum() == pytest.approx(1.0)
    assert f"{result.upper_bound:.6g}" in repr(result)


def test_statuses_of_the_budgets():
    assert gd.solve(make_problem(), "aleg-theory", tol=0.5).status is Status.CONVERGED
    limited = gd.solve(make_problem(), "aleg-theory", tol=0.0, max_passes=5)
    assert limited.status is Status.PASS_LIMIT
    assert "pass limit" in limited.message
    assert "Gap" in limited.message
    assert gd.solve(make_problem(), "aleg-theory", tol=0.0, max_passes=1e9, max_time=0.05).status is Status.TIME_LIMIT


def test_absolute_tolerance():
    result = gd.solve(make_problem(), "aleg-theory", tol=0.0, atol=0.01, max_passes=2000)
    assert result.converged
    assert 0 < result.gap <= 0.01


def test_no_finite_minimiser_is_named():
    data = gd.GroupedData.from_arrays(np.random.default_rng(0).normal(size=(9, 2)), np.ones(9), np.arange(9) % 3)
    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=1.0), fit_intercept=True)
    result = gd.solve(problem, gd.solvers.ALEGTheory(guarantee=False))
    assert result.status is Status.NO_FINITE_MINIMISER
    assert "all labels are the same" in result.message


def test_same_seed_same_bits_and_other_seed_other_path():
    a, b, c = (
        gd.solve(make_problem(), "aleg-theory", tol=0.0, max_passes=30, seed=seed).average.w for seed in (1, 1, 2)
    )
    assert a.tobytes() == b.tobytes()
    assert a.tobytes() != c.tobytes()


def test_callbacks_see_progress_off_the_clock_and_uncounted_and_can_stop(monkeypatch):
    problem, seen, clock = make_problem(), [], [0.0]
    monkeypatch.setattr("groupdro.run.clock.time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def callback(progress):
        clock[0] += 1.0
        Oracle(problem).risks(progress.certificate.w)
        seen.append(progress.latest)
        return len(seen) == 4

    result = gd.solve(problem, "aleg-theory", tol=0.0, callbacks=[callback])
    assert result.status is Status.INTERRUPTED
    assert [row.epoch for row in seen] == [0, 1, 2, 3]
    assert seen == list(result.trace)
    assert result.passes == pytest.approx(1 + 3 * (1 + 15 * 4 / 60))
    assert clock[0] == 4.0
    assert result.seconds == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": -1.0}, "tol must be"),
        ({"tol": np.nan}, "tol must be"),
        ({"atol": np.inf}, "atol must be"),
        ({"max_passes": 0}, "max_passes must be positive"),
        ({"max_time": -1}, "max_time must be positive"),
        ({"solver": "newton"}, "solver must be one of"),
    ],
)
def test_bad_options_name_the_argument(options, message):
    with pytest.raises(ValueError, match=message):
        gd.solve(make_problem(), **options)


class _Broken(gd.solvers.Solver):
    """Walks off to infinity after a few epochs."""

    def init(self, oracle, w, q, seed):
        return State(oracle.evaluate(w, q))

    def epoch(self, oracle, state):
        at = state.evaluation
        risks = at.group_risks if state.epoch < 3 else np.full(oracle.problem.n_groups, np.nan)
        state.evaluation = Evaluation(at.w, at.q, at.margins, risks, at.gradient, at.mass)


def test_values_that_are_not_finite_end_as_numerical_failure_with_the_last_good_pair():
    result = gd.solve(make_problem(), _Broken(), tol=0.0)
    assert result.status is Status.NUMERICAL_FAILURE
    assert result.epochs == 4
    assert np.isfinite([result.upper_bound, result.lower_bound]).all()


def test_converged_is_taken_back_when_the_returned_model_does_not_have_the_claimed_risk():
    class Liar(_Broken):
        def init(self, oracle, w, q, seed):
            state = super().init(oracle, w, q, seed)
            at = state.evaluation
            state.evaluation = Evaluation(at.w, at.q, at.margins, at.group_risks * 0.5, at.gradient * 0, at.mass)
            return state

    result = gd.solve(make_problem(), Liar(), tol=1e-3)
    assert result.status is Status.NUMERICAL_FAILURE


def test_a_solver_registers_itself_by_its_name():
    assert SOLVERS["aleg-theory"] is gd.solvers.ALEGTheory

    class Mine(_Broken):
        name = "mine"

    try:
        assert gd.solve(make_problem(), "mine", tol=0.0).epochs == 4
    finally:
        del SOLVERS["mine"]


@pytest.fixture
def interruptible():
    # A shell that starts tests in the background lets them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("solver", ["aleg-theory", "aleg"])
def test_an_interrupt_keeps_the_best_certified_pair(solver):
    problem = make_problem()
    gd.solve(problem, solver, max_passes=4)  # compiles what is needed
    with interrupted_after(0.3):
        result, seconds = cpu_seconds(lambda: gd.solve(problem, solver, tol=0.0, max_passes=1e9, max_time=HUNG))
    assert seconds < 2.0
    assert result.status is Status.INTERRUPTED
    assert result.epochs > 0
    assert result.upper_bound == pytest.approx(Oracle(problem).risks(result.w).max(), rel=1e-14)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_in_the_first_stage_leaves_valid_bounds():
    problem = make_problem(m=30, n=600)
    gd.solve(problem, "aleg-theory", max_passes=4)
    with interrupted_after(0.5):
        result = gd.solve(
            problem,
            gd.solvers.ALEM(gd.solvers.ALEGTheory(), gd.solvers.ALEGTheory(), stage_one_passes=1e5),
            tol=1e-9,
            max_passes=1e9,
            max_time=HUNG,
        )
    assert result.status is Status.INTERRUPTED
    assert result.lower_bound <= result.upper_bound


@pytest.mark.parametrize("solver", ["aleg", "aleg-theory"])
def test_an_interrupt_of_the_last_pass_keeps_the_best_certified_pair(solver, monkeypatch):
    problem, whole, calls = make_problem(), Oracle.risks, 0

    def interrupted(self, w):
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        return whole(self, w)

    expected = gd.solve(problem, solver, tol=1e-2, max_passes=40)
    stopped = gd.solve(problem, solver, tol=1e-12, max_passes=6)
    monkeypatch.setattr(Oracle, "risks", interrupted)
    result = gd.solve(problem, solver, tol=1e-2, max_passes=40)
    assert calls == 2
    assert (result.upper_bound, result.lower_bound) == (expected.upper_bound, expected.lower_bound)
    assert result.status is (Status.CONVERGED if expected.gap <= 1e-2 * expected.upper_bound else Status.INTERRUPTED)
    calls = 0
    result = gd.solve(problem, solver, tol=1e-12, max_passes=6)
    assert result.status is Status.INTERRUPTED
    assert result.upper_bound >= stopped.upper_bound


def test_an_interrupt_of_a_part_that_had_converged_ends_the_whole(monkeypatch):
    solver, whole, calls = gd.solvers.ALEM(gd.solvers.GroupSQP()), Oracle.risks, 0

    def interrupted(self, w):
        nonlocal calls
        if self.problem.data.names == ("all",):  # the last pass over all rows as one group
            calls += 1
            if calls == 1:
                raise KeyboardInterrupt
        return whole(self, w)

    monkeypatch.setattr(Oracle, "risks", interrupted)
    result = gd.solve(make_problem(), solver, tol=1e-6)
    assert calls == 2
    assert result.status is Status.INTERRUPTED
    assert result.interrupted
    assert not gd.solve(make_problem(), solver, tol=1e-2).interrupted


def test_an_interrupt_while_groups_are_solved_waits_for_none_of_them(monkeypatch):
    """Interrupt the wait for groups whose epochs take long, as those of a large group do."""
    problem, whole, out, ended = make_problem(), gd.solvers.GroupSQP.epoch, threading.Event(), []

    def slow(self, oracle, state):
        names = oracle.problem.data.names
        alone = names != ("all",)
        if alone:
            out.wait(120.0)
        whole(self, oracle, state)
        ended.extend([names] * alone)

    def interrupted(asked):
        raise KeyboardInterrupt

    monkeypatch.setattr(gd.solvers.GroupSQP, "epoch", slow)
    monkeypatch.setattr("groupdro.solvers.minima_search.Future.result", interrupted)
    result = gd.solve(problem, gd.solvers.ALEM(gd.solvers.GroupSQP()), tol=1e-9)
    waited_for = list(ended)
    out.set()
    assert result.status is Status.INTERRUPTED
    assert waited_for == []
    pooled = gd.solve(problem.pooled(), "sqp", tol=1e-2)
    np.testing.assert_array_equal(result.w, pooled.w)  # the best that was known


@pytest.mark.parametrize("after_calls", [1, 40, 77])
def test_an_interrupt_inside_an_epoch_certifies_nothing_of_the_half_made_state(after_calls, monkeypatch):
    problem, calls = make_problem(), 0
    whole = Oracle.sampled_difference

    def interrupted(self, *args):
        nonlocal calls
        calls += 1
        if calls == after_calls:
            raise KeyboardInterrupt
        return whole(self, *args)

    monkeypatch.setattr(Oracle, "sampled_difference", interrupted)
    result = gd.solve(problem, "aleg-theory", tol=0.0, max_passes=100)
    assert result.status is Status.INTERRUPTED
    assert result.average is None
    assert result.q.sum() == pytest.approx(1.0)
    assert result.lower_bound <= result.upper_bound


def test_bounds_that_contradict_each_other_are_a_failure_and_never_convergence():
    class Contradiction(_Broken):
        def epoch(self, oracle, state):
            at = state.evaluation
            too_good = at.group_risks + 5.0 * (state.epoch == 0)
            state.evaluation = Evaluation(at.w, at.q, at.margins, too_good, at.gradient * 0, at.mass)

    result = gd.solve(make_problem(), Contradiction(), tol=1e-3, max_passes=1.0)
    assert result.status is Status.PASS_LIMIT
    problem, solver = make_problem(), Contradiction()
    result = gd.solve(problem, solver, tol=1e-3, callbacks=[lambda progress: progress.latest.epoch == 3])
    assert result.status is Status.NUMERICAL_FAILURE


def test_weights_outside_the_simplex_prove_nothing():
    problem = make_problem()
    oracle = Oracle(problem)
    certificate = gd.certificate.Certificate(oracle)
    certificate.observe(oracle.evaluate(problem.centre(), np.full(4, 0.5)))
    assert certificate.lower == 0.0


def test_any_true_value_of_a_callback_stops():
    result = gd.solve(
        make_problem(), "aleg-theory", tol=0.0, callbacks=[lambda progress: np.bool_(progress.latest.epoch == 2)]
    )
    assert result.epochs == 2


def test_an_optimum_of_zero_is_reached_with_an_absolute_tolerance():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 3))
    data = gd.GroupedData.from_arrays(X, X @ np.array([0.3, -0.2, 0.1]), np.arange(12) % 3)
    result = gd.solve(
        gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(radius=1.0)), "aleg", atol=1e-3, max_passes=5000
    )
    assert result.converged
    assert result.lower_bound == 0.0


def test_a_missing_class_is_named_only_after_the_budget_was_used():
    rng = np.random.default_rng(0)
    data = gd.GroupedData.from_arrays(rng.normal(size=(30, 2)), rng.integers(0, 2, 30), np.arange(30) % 3)
    problem = gd.Problem(data, gd.losses.Softmax(3), gd.domains.L2Domain(penalty=0.1), fit_intercept=True)
    result = gd.solve(problem, gd.solvers.ALEGTheory(guarantee=False), tol=0.0, max_passes=30)
    assert result.status is Status.NO_FINITE_MINIMISER
    assert "no row has label 2" in result.message
    assert result.epochs > 5


UNBOUNDED = gd.domains.L2Domain(radius=1e8, proxy_for_unbounded=True)


def nearly_the_same_columns(difference, seed=0):
    """Return rows of two columns whose difference, times a thousand or a million, gives the targets."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(2, 90))
    return gd.GroupedData.from_arrays(
        np.column_stack([x, x + difference * z]), z + 0.1 * rng.normal(size=90), np.arange(90) % 3
    )


@pytest.mark.parametrize(
    ("solver", "difference"),
    [
        pytest.param(solver, difference, marks=[] if (solver, difference) == ("sqp", 1e-7) else [pytest.mark.long])
        for solver in ("sqp", "auto", "alem")
        for difference in (1e-7, 1e-5, 1e-9, 1e-12)
    ],
)
def test_columns_that_nearly_depend_on_each_other_hide_no_model(solver, difference):
    near, far = (
        gd.solve(
            gd.Problem(nearly_the_same_columns(apart), gd.losses.Squared(), UNBOUNDED),
            solver,
            tol=1e-4,
        )
        for apart in (1e-1, difference)
    )
    assert near.converged
    assert near.bound_radius == pytest.approx(1e3)
    # The same rows but for a column's unit: the best value is the same.
    assert far.lower_bound <= near.upper_bound
    assert far.upper_bound >= near.lower_bound
    assert far.converged == (far.gap <= max(1e-4 * far.upper_bound, far.atol))


@pytest.mark.parametrize("seed", range(20))
def test_a_gradient_goes_to_zero_although_the_objective_falls_no_more(seed):
    # The outputs cancel, so that the last step changes the objective by more than its own rounding.
    problem = gd.Problem(nearly_the_same_columns(1e-1, seed), gd.losses.Squared(), UNBOUNDED)
    near = gd.solve(problem.pooled(), "sqp", tol=1e-2).w
    for i in range(3):
        assert gd.solve(problem.group(i), "sqp", w=near, tol=0.0, atol=1e-9).converged


def test_nothing_is_claimed_where_outputs_come_near_the_limit():
    x = np.arange(1.0, 31.0)[:, None]
    data = gd.GroupedData.from_arrays(x, 1e6 * x[:, 0] + np.sin(x[:, 0]), np.arange(30) % 2)
    result = gd.solve(gd.Problem(data, gd.losses.Squared(), UNBOUNDED), "sqp")
    assert result.status is Status.STALLED
    assert "outputs of the best model" in result.message
    assert result.lower_bound == 0.0


def test_an_ordinary_ball_may_be_reached():
    problem = gd.Problem(nearly_the_same_columns(1e-5), gd.losses.Squared(), gd.domains.L2Domain(radius=1e4))
    assert gd.solve(problem, "sqp", tol=1e-4).converged


def test_a_solver_is_written_as_it_was_made():
    assert repr(gd.solvers.ALEG()) == "ALEG()"
    assert repr(gd.solvers.GroupSQP("lbfgs", memory=7)) == "GroupSQP(hessian='lbfgs', memory=7)"


@pytest.mark.parametrize("solver", ["auto", "aleg", gd.solvers.GroupSQP("lbfgs")])
def test_a_start_that_is_worse_than_zero_is_left_for_it(solver):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    y = np.where(X[:, 0] + rng.logistic(size=90) > 0, 1.0, -1.0)
    data = gd.GroupedData.from_arrays(X, y, np.arange(90) % 3)
    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-3), fit_intercept=True)
    result, usual = (gd.solve(problem, solver, w=w, tol=1e-3) for w in (np.full(4, 1e6), None))
    assert result.converged
    assert result.epochs == usual.epochs
    np.testing.assert_array_equal(result.w, usual.w)


@pytest.mark.parametrize("solver", ["auto", "aleg"])
def test_a_start_is_replaced_by_nothing_worse(solver):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = rng.poisson(np.exp(12 + 0.3 * X[:, 0])).astype(float)
    data = gd.GroupedData.from_arrays(X, y, np.arange(200) % 2)
    problem = gd.Problem(data, gd.losses.Poisson(), gd.domains.L2Domain(penalty=1e-3), fit_intercept=True)
    start = np.array([-0.3, 0.0, 12.0])  # better than zeros, but worse than the best constant
    at_start = problem.objective(start, gd.oracle.Oracle(problem).risks(start))
    result = gd.solve(problem, solver, w=start, max_passes=1)
    assert result.trace[0].upper <= at_start
    assert result.trace[0].upper == gd.solve(problem, solver, max_passes=1).trace[0].upper
