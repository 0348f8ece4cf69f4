"""Stages that follow one another, and those within the tolerance, whose answer a run returns if it is good enough."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

import groupdro as gd
from groupdro.oracle import Evaluation, Oracle
from groupdro.solvers import Answer, Preparation, Prepared, Solver, Stage, State, Status
from groupdro.solvers.slack import LeastAverage, SlackStage
from tests.run.test_driver import make_problem as bounded_problem
from tests.solvers.test_aleg import make_problem

TOL = 1e-2


def slack_problem():
    return make_problem("logistic", gd.domains.L2Domain(penalty=0.05), intercept=True)


def least_average(solver=None):
    return LeastAverage(solver or gd.solvers.GroupSQP(), np.array([40, 25, 60]) / 125)


def hold_to_its_claim(problem, found, tol=TOL):
    """Assert that the returned model is as good as the result says, and within the tolerance if it converged."""
    assert found.upper_bound == pytest.approx(problem.objective(found.w, Oracle(problem).risks(found.w)), rel=1e-12)
    if found.converged:
        assert found.upper_bound - found.lower_bound <= tol * abs(found.upper_bound) * (1 + 1e-12)


# ---------------------------------------------------------------------- one after another


@dataclass(frozen=True)
class Listed(Solver):
    """A solver made of whatever it is given."""

    parts: tuple = ()

    def stages(self, problem, tol):
        return self.parts


def test_a_stage_ends_where_its_condition_says():
    traces = []

    def after_three(state, trace):
        traces.append(len(trace))
        return "that is enough" if len(trace) == 3 else ""

    descent = gd.solvers.ALEGTheory()
    found = gd.solve(bounded_problem(), Listed((Stage(descent, until=after_three), gd.solvers.GroupSQP())), tol=1e-8)
    assert found.converged
    assert traces == [1, 2, 3]
    assert found.solver.endswith("passes that is enough")
    assert "after " in found.solver


def test_a_stage_begins_where_it_is_told_to():
    seen = []

    def begin(oracle, state, w, q, seed):
        seen.append((state, w, q, seed))
        return gd.solvers.GroupSQP().init(oracle, w, q, seed)

    first = Stage(gd.solvers.ALEGTheory(), until=lambda state, trace: "it is time")
    found = gd.solve(
        bounded_problem(), Listed((first, Stage(gd.solvers.GroupSQP(), begin=begin))), tol=1e-8, atol=0.0, seed=7
    )
    assert found.converged
    ((state, w, _, seed),) = seen
    assert type(state).__name__ == "TheoryState"
    assert w.shape == found.w.shape
    assert seed == 7


def test_stages_within_the_tolerance_alone_are_refused():
    with pytest.raises(TypeError, match="at least one solver"):
        gd.solve(bounded_problem(), Listed((Stage(gd.solvers.GroupSQP(), within_tolerance=True),)))


# ---------------------------------------------------------------------- answers


@dataclass(frozen=True)
class Answering(Solver):
    """Answers with a shrunken model whose gap is a multiple of the one allowed, after a few epochs."""

    gap: float = 0.5
    epochs: int = 1
    shift: float = 0.0

    def init(self, oracle, w, q, seed):
        return State(oracle.evaluate(w, q))

    def epoch(self, oracle, state):
        w, lower = state.evaluation.w, state.bounds[0]
        low, high = 0.0, 1.0
        for _ in range(60):
            share = 0.5 * (low + high)
            upper = oracle.problem.objective(share * w, oracle.risks(share * w))
            low, high = (share, high) if upper - lower > self.gap * TOL * upper else (low, share)
        state.answer = Answer(high * w + self.shift, mean_lower=0.25)
        state.stalled = state.epoch - state.begun + 1 >= self.epochs


def answered(problem, *others, tol=TOL, **options):
    stages = (Stage(other, within_tolerance=True) for other in others)
    return gd.solve(problem, Listed((gd.solvers.GroupSQP(), *stages)), tol=tol, **options)


@pytest.mark.parametrize(("gap", "taken"), [(0.999, True), (1.0 + 1e-9, False), (2.0, False)])
def test_an_answer_is_returned_only_if_it_is_within_the_tolerance(gap, taken):
    problem = slack_problem()
    alone = gd.solve(problem, "sqp", tol=TOL)
    found = answered(problem, Answering(gap))
    hold_to_its_claim(problem, found)
    assert found.status is Status.CONVERGED
    assert found.lower_bound == alone.lower_bound
    assert found.mean_lower == 0.25  # a statement about all models within the tolerance, whichever is returned
    if taken:
        assert found.gap == pytest.approx(gap * TOL * found.upper_bound)
    else:
        np.testing.assert_array_equal(found.w, alone.w)


@pytest.mark.parametrize(("gap", "taken"), [(1.0 - 1e-6, False), (0.99, True)])
def test_an_answer_that_rounding_in_the_units_of_y_leads_astray_is_not_returned(gap, taken):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(300, 3)), np.arange(300) % 3
    y = X[:, 0] + 1e-3 * (1.0 + groups) * X[:, 1] + 1e-3 * rng.normal(size=300)
    data = gd.GroupedData.from_arrays(X, y + 1e7, groups)  # which the intercept absorbs, at the price of its digits
    problem = gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(penalty=1e-9), fit_intercept=True)
    alone, seen = gd.solve(problem, "sqp", tol=TOL), []
    found = answered(problem, Answering(gap), callbacks=[lambda progress: seen.append(progress.w)])
    assert alone.converged
    assert found.converged
    assert found.gap <= TOL * found.upper_bound
    assert found.upper_bound == pytest.approx(problem.objective(found.w, Oracle(problem).risks(found.w)), rel=1e-4)
    np.testing.assert_array_equal(found.w, seen[-1] if taken else alone.w)
    assert (seen[-1] != alone.w).any()


def test_an_answer_outside_the_domain_is_not_returned():
    problem = make_problem("logistic", gd.domains.L2Domain(radius=0.5))
    alone = gd.solve(problem, "sqp", tol=TOL)
    found = answered(problem, Answering(0.0, shift=1e-3 * alone.w))
    assert np.linalg.norm(1.001 * alone.w) > 0.5
    assert found.converged
    np.testing.assert_array_equal(found.w, alone.w)


def test_stages_within_the_tolerance_follow_one_another_and_the_last_answer_counts():
    problem = slack_problem()
    alone = gd.solve(problem, "sqp", tol=TOL)
    found = answered(problem, Answering(0.9, epochs=2), Answering(0.6, epochs=2))
    hold_to_its_claim(problem, found)
    assert found.gap == pytest.approx(0.6 * TOL * found.upper_bound)
    assert found.epochs == alone.epochs + 6  # each stage makes a pass and two epochs
    assert found.solver == "Listed"


def test_an_answer_stays_until_the_next_stage_has_one():
    problem = slack_problem()
    alone = gd.solve(problem, "sqp", tol=TOL)
    stop = [lambda progress: progress.latest.epoch == alone.epochs + 3]  # the first pass of the second stage
    found = answered(problem, Answering(0.9), Answering(0.6), callbacks=stop)
    hold_to_its_claim(problem, found)
    assert found.epochs == alone.epochs + 3
    assert found.gap == pytest.approx(0.9 * TOL * found.upper_bound)


def test_without_the_tolerance_no_stage_within_it_begins():
    problem = slack_problem()
    found = answered(problem, Answering(), tol=1e-12, max_passes=3)
    assert found.status is Status.PASS_LIMIT
    hold_to_its_claim(problem, found)
    assert found.mean_lower == -np.inf


def test_risks_that_are_zero_up_to_rounding_leave_nothing_to_choose():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    data = gd.GroupedData.from_arrays(X, X @ [1.0, -2.0, 0.5], np.arange(60) % 3)
    problem = gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(radius=5.0))
    found = answered(problem, Answering())
    assert found.criterion == "atol"
    assert found.mean_lower == -np.inf


def test_a_solver_that_stalls_within_the_tolerance_is_followed_too():
    problem = slack_problem()
    alone = gd.solve(problem, "sqp", tol=TOL)

    @dataclass(frozen=True)
    class Stalls(gd.solvers.GroupSQP):
        def init(self, oracle, w, q, seed):
            state = super().init(oracle, alone.w, alone.q, seed)
            state.stalled = True
            return state

    found = gd.solve(problem, Listed((Stalls(), Stage(Answering(), within_tolerance=True))), tol=TOL)
    assert found.converged
    assert found.mean_lower == 0.25


def test_where_bounds_contradict_each_other_no_answer_counts():
    class Spoils(Answering):
        def epoch(self, oracle, state):
            super().epoch(oracle, state)
            at = state.evaluation
            claimed = 1.1 * at.group_risks  # with no slope, so that no model could be better
            state.evaluation = Evaluation(at.w, at.q, at.margins, claimed, 0.0 * at.gradient, at.mass)

    found = answered(bounded_problem(), Spoils())
    assert found.status is Status.NUMERICAL_FAILURE


# ---------------------------------------------------------------------- ends in the slack of the tolerance


def interrupted_at(monkeypatch, call, what):
    """Let something happen in a search of the stage."""
    whole, calls = SlackStage._search, 0

    def search(self, *args):
        nonlocal calls
        calls += 1
        if calls == call:
            what()
        return whole(self, *args)

    monkeypatch.setattr(SlackStage, "_search", search)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interrupt_in_the_middle_of_an_epoch_of_the_stage_keeps_its_answer_so_far(monkeypatch, call):
    problem = slack_problem()
    alone, whole = (gd.solve(problem, solver, tol=TOL) for solver in ("sqp", least_average()))

    def interrupt():
        raise KeyboardInterrupt

    interrupted_at(monkeypatch, call, interrupt)
    found = gd.solve(problem, least_average(), tol=TOL)
    hold_to_its_claim(problem, found)
    assert found.converged
    assert found.interrupted
    assert found.mean_lower == -np.inf
    base = least_average().base
    means = [base @ result.group_risks + problem.domain.penalty_at(result.w[:-1]) for result in (whole, found, alone)]
    assert means[0] < means[1] <= means[2]
    assert (found.upper_bound > found.trace[-1].upper * (1 + 1e-9)) == (call > 1)  # at first there is no answer yet


def test_a_time_limit_in_the_stage_ends_it_with_its_answer_so_far(monkeypatch):
    problem, clock = slack_problem(), [0.0]
    alone = gd.solve(problem, "sqp", tol=TOL)
    monkeypatch.setattr("groupdro.run.clock.time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def late():
        clock[0] += 100.0

    interrupted_at(monkeypatch, 2, late)
    found = gd.solve(problem, least_average(), tol=TOL, max_time=50.0)
    hold_to_its_claim(problem, found)
    assert found.converged
    assert not found.interrupted
    assert found.mean_lower == -np.inf
    assert found.upper_bound > alone.upper_bound


def test_the_best_pair_stays_known_while_a_stage_chooses():
    problem, seen = slack_problem(), []
    found = gd.solve(problem, least_average(), tol=TOL, callbacks=[lambda p: seen.append((p.certificate.upper, p.w))])
    uppers = [upper for upper, _ in seen]
    assert uppers == sorted(uppers, reverse=True)
    assert found.upper_bound > uppers[-1]
    np.testing.assert_array_equal(seen[-1][1], found.w)
    assert found.trace[-1].upper == uppers[-1]


@pytest.mark.parametrize("tol", [TOL, 1e-4])
def test_a_checkpoint_of_the_stage_is_resumed_in_it_or_before_it(tmp_path, tol):
    problem = slack_problem()
    alone, whole = (gd.solve(problem, solver, tol=TOL) for solver in ("sqp", least_average()))
    stop = [lambda progress: progress.latest.epoch > alone.epochs]
    cut = gd.solve(problem, least_average(), tol=TOL, callbacks=stop, checkpoint_dir=tmp_path)
    assert cut.converged
    assert cut.epochs < whole.epochs
    resumed = gd.solve(problem, least_average(), tol=tol, checkpoint_dir=tmp_path)
    expected = whole if tol == TOL else gd.solve(problem, least_average(), tol=tol)
    hold_to_its_claim(problem, resumed, tol)
    assert resumed.converged
    assert "resumed" in resumed.solver
    assert resumed.lower_bound >= cut.lower_bound
    base = least_average().base
    means = [base @ result.group_risks + problem.domain.penalty_at(result.w[:-1]) for result in (resumed, expected)]
    assert means[0] == pytest.approx(means[1], rel=0.2 * tol)
    assert resumed.mean_lower <= means[0] + 1e-12


def test_a_stage_that_continues_makes_no_pass_of_its_own():
    problem = slack_problem()
    alone = gd.solve(problem, "sqp", tol=TOL)
    found = gd.solve(problem, least_average(), tol=TOL)
    first = found.trace[len(alone.trace)]
    assert first.passes - alone.trace[-1].passes <= 2  # a step, and the curvature of the average


def test_after_a_preparation_that_meets_the_tolerance_the_stage_begins_with_a_pass():
    problem = slack_problem()
    alone = gd.solve(problem, "sqp", tol=TOL)

    class Ready(Preparation):
        def run(self, oracle, w, q, budget, seed):
            return Prepared(start=(alone.w, alone.q), evaluation=oracle.evaluate(alone.w, alone.q))

    slack = SlackStage(tol=TOL, base=least_average().base)
    parts = Ready(), gd.solvers.GroupSQP(), Stage(slack, begin=slack.begin, within_tolerance=True)
    found = gd.solve(problem, Listed(parts), tol=TOL)
    hold_to_its_claim(problem, found)
    assert found.converged
    assert found.mean_lower > 0.0
