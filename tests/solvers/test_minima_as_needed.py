"""Bounds of every group's own minimum that are refined during a run: they and the regrets' bounds must always hold."""

import itertools

import numpy as np
import pytest

import groupdro as gd
from groupdro.certificate import Certificate
from groupdro.oracle import Oracle
from groupdro.problem import Cap, Floor, GroupMinima, Simplex
from groupdro.solvers import minima_search
from tests.pairs import every_pair
from tests.reference.convex import group_minima as exact_minima
from tests.reference.convex import worst_value

TOLERANCE = 1e-7
LOSSES = {
    "logistic": gd.losses.Logistic(),
    "squared": gd.losses.Squared(),
    "softmax": gd.losses.Softmax(3),
    "hinge": gd.losses.SquaredHinge(),
}
DOMAINS = {
    "radius": gd.domains.L2Domain(radius=3.0),
    "penalty": gd.domains.L2Domain(penalty=0.02),
    "both": gd.domains.L2Domain(2.0, 0.01),
}
SETS = {"worst": Simplex(), "blend": Floor(0.4), "cap": Cap(0.3)}


def make_problem(loss, domain, weight_set, seed, *, intercept=False, m=6, offsets=None):
    """Groups of 1 to 30 rows: some are fitted without loss, some are separable, some are all noise."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 30, m)
    groups = np.repeat(np.arange(m), sizes)
    X = rng.normal(size=(len(groups), 4))
    slopes = rng.normal(size=(m, 4, 3))
    scores = np.einsum("nd,ndk->nk", X, slopes[groups]) + rng.normal(size=(len(groups), 3)) * (groups % 3)[:, None]
    y = {"squared": scores[:, 0], "softmax": scores.argmax(axis=1)}.get(loss, np.where(scores[:, 0] > 0, 1.0, -1.0))
    weights = rng.random(len(groups)) + 0.05 if seed % 2 else None
    data = gd.GroupedData.from_arrays(X, y, groups, weights)
    return gd.Problem(data, LOSSES[loss], DOMAINS[domain], weight_set, fit_intercept=intercept, offsets=offsets)


def assert_bounds_hold(problem, result, minima, optimum):
    assert (result.group_minima.lower <= minima + TOLERANCE).all()
    assert (result.group_minima.upper >= minima - TOLERANCE).all()
    for row in result.trace:
        assert row.lower - TOLERANCE <= optimum <= row.upper + TOLERANCE
    assert result.lower_bound - TOLERANCE <= optimum <= result.upper_bound + TOLERANCE
    values = Oracle(problem).risks(result.w) + problem.offsets - minima
    regret = problem.weight_set.support(values) + problem.domain.penalty_at(problem.coef(result.w))
    assert optimum - TOLERANCE <= regret <= result.upper_bound + TOLERANCE


@every_pair(loss=[*LOSSES], domain=[*DOMAINS], weight_set=[*SETS])
def test_all_bounds_of_a_run_hold_at_every_epoch_and_the_run_converges(loss, domain, weight_set):
    check_a_run(loss, domain, weight_set)


@pytest.mark.long
@pytest.mark.parametrize(("loss", "domain", "weight_set"), [*itertools.product(LOSSES, DOMAINS, SETS)])
def test_all_bounds_hold_for_every_loss_domain_and_weight_set(loss, domain, weight_set):
    check_a_run(loss, domain, weight_set)


def check_a_run(loss, domain, weight_set):
    seed = 7 * list(LOSSES).index(loss) + list(DOMAINS).index(domain)
    problem = make_problem(loss, domain, SETS[weight_set], seed)
    minima, accurate = exact_minima(problem)
    reference = worst_value(problem, minima - problem.offsets)
    assert accurate
    assert reference.accurate
    for limit in (3.0, 9.0, 400.0):
        result = gd.solve(problem, "alem", tol=1e-5, max_passes=limit)
        assert_bounds_hold(problem, result, minima, reference.value)
    assert result.converged


@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_with_an_intercept_and_an_allowance_for_small_groups(seed):
    rng = np.random.default_rng(seed)
    loss, domain = ("logistic", "squared")[seed % 2], ("penalty", "both")[seed // 2]
    problem = make_problem(
        loss, domain, Floor(0.3) if seed % 2 else Simplex(), seed, intercept=True, offsets=rng.random(6)
    )
    minima, accurate = exact_minima(problem)
    reference = worst_value(problem, minima - problem.offsets)
    assert accurate
    assert reference.accurate
    for limit in (4.0, 400.0):
        result = gd.solve(problem, "alem", tol=1e-5, max_passes=limit)
        assert_bounds_hold(problem, result, minima, reference.value)
    assert result.converged


@pytest.mark.parametrize("stage_two", [gd.solvers.ALEG(), gd.solvers.GroupSQP("lbfgs")], ids=["aleg", "lbfgs"])
def test_bounds_of_many_groups_hold_whatever_solves_the_regrets(stage_two):
    problem = make_problem("logistic", "radius", Simplex(), 11, m=40)
    minima, _ = exact_minima(problem)
    reference = worst_value(problem, minima - problem.offsets)
    result = gd.solve(problem, gd.solvers.ALEM(stage_two=stage_two), tol=1e-2, max_passes=300)
    assert_bounds_hold(problem, result, minima, reference.value)
    assert result.converged


def _unequal(n=400):
    """Two groups that contradict each other, and four easy ones that follow neither closely."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(6), n)
    X = rng.normal(size=(len(groups), 20))
    slope = np.where(groups == 0, 2.0, np.where(groups == 1, -2.0, 0.0))
    p = 1.0 / (1.0 + np.exp(-slope * X[:, 0] - 0.5 * X[:, 1]))
    return gd.Problem(
        gd.GroupedData.from_arrays(X, np.where(rng.random(len(groups)) < p, 1.0, -1.0), groups),
        gd.losses.Logistic(),
        gd.domains.L2Domain(radius=5.0),
    )


def test_only_groups_that_may_have_the_worst_regret_are_refined():
    result = gd.solve(_unequal(), gd.solvers.ALEM(), tol=1e-6)
    assert result.converged
    width = result.group_minima.upper - result.group_minima.lower
    assert width[:2].max() < 1e-6
    assert width[2:].min() > 1e-5  # after the first steps nobody looked at them again


def test_regrets_take_fewer_passes_than_with_every_minimum_found_first():
    lazy, eager = (
        gd.solve(_unequal(), solver, tol=1e-4) for solver in (gd.solvers.ALEM(), gd.solvers.ALEM(gd.solvers.GroupSQP()))
    )
    assert lazy.converged
    assert eager.converged
    assert lazy.passes < 0.8 * eager.passes
    assert lazy.upper_bound == pytest.approx(eager.upper_bound, rel=2e-4)


def test_tighter_minima_improve_both_bounds_without_a_pass():
    problem = make_problem("logistic", "both", Floor(0.5), 3)
    minima, _ = exact_minima(problem)
    rough = problem.with_minima(GroupMinima(minima + 0.1, minima - 0.1, centre=minima + 0.1))
    oracle = Oracle(rough)
    certificate = Certificate(oracle)
    certificate.observe(oracle.evaluate(rough.centre(), rough.central_weights()))
    upper, lower, passes = certificate.upper, certificate.lower, oracle.passes
    fine = oracle.on(problem.with_minima(GroupMinima(minima + 0.01, minima - 0.02, centre=minima + 0.01)))
    certificate.tighten(fine)
    assert oracle.passes == passes
    assert certificate.upper == pytest.approx(upper - 0.08)
    assert certificate.lower == pytest.approx(lower + 0.09)
    anew = Certificate(fine)
    anew.observe(fine.evaluate(problem.centre(), problem.central_weights()))
    assert (certificate.upper, certificate.lower) == pytest.approx((anew.upper, anew.lower))
    assert certificate.lower <= worst_value(problem, minima).value + TOLERANCE


def test_solvers_follow_the_centre_and_bounds_do_not():
    problem = make_problem("logistic", "radius", Simplex(), 3)
    risks = Oracle(problem).risks(problem.centre())
    minima = GroupMinima(np.full(6, 0.3), np.full(6, 0.1), centre=np.full(6, 0.2))
    regrets = problem.with_minima(minima)
    np.testing.assert_allclose(regrets.group_values(risks), risks - 0.2)
    assert regrets.objective(problem.centre(), risks) == pytest.approx(risks.max() - 0.1)
    assert regrets.least_value == pytest.approx(-0.3)


@pytest.mark.parametrize("in_full", [True, False], ids=["in full", "as points"])
def test_a_run_that_is_cut_at_any_epoch_resumes_to_the_same_bounds(tmp_path, monkeypatch, in_full):
    if not in_full:
        monkeypatch.setattr(minima_search, "_MOST_KEPT", 0.0)
    options = {"tol": 1e-7, "max_passes": 200.0}
    whole = gd.solve(_unequal(60), "alem", **options)
    assert whole.converged
    for cut in range(whole.epochs):
        folder = tmp_path / str(cut)
        stop = [lambda progress, cut=cut: progress.latest.epoch >= cut]
        gd.solve(_unequal(60), "alem", **options, callbacks=stop, checkpoint_dir=folder)
        again = gd.solve(_unequal(60), "alem", **options, checkpoint_dir=folder)
        assert again.converged
        assert again.lower_bound <= whole.upper_bound
        assert whole.lower_bound <= again.upper_bound
        assert again.passes <= whole.passes + 12


def test_runs_that_do_not_fit_in_memory_go_on_from_their_points(monkeypatch):
    whole = gd.solve(_unequal(), "alem", tol=1e-6)
    monkeypatch.setattr(minima_search, "_MOST_KEPT", 0.0)
    points = gd.solve(_unequal(), "alem", tol=1e-6)
    assert points.converged
    np.testing.assert_array_equal(points.w, whole.w)
    assert whole.passes < points.passes <= whole.passes + 1  # two of six groups, whenever they are refined


def test_an_interrupt_while_bounds_are_refined_returns_the_best_pair(monkeypatch):
    whole, calls = minima_search.MinimaSearch.tighten, 0

    def interrupted(self, *args, **kwargs):
        nonlocal calls
        calls += 1
        return True if calls == 2 else whole(self, *args, **kwargs)

    monkeypatch.setattr(minima_search.MinimaSearch, "tighten", interrupted)
    result = gd.solve(_unequal(), "alem", tol=1e-6)
    assert calls == 2
    assert result.status is gd.solvers.Status.INTERRUPTED
    assert np.isfinite([result.lower_bound, result.upper_bound]).all()
    assert result.lower_bound < result.upper_bound
