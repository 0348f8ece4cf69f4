from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.certificate import Certificate, CutAggregate, balance, linearise
from groupdro.oracle import Oracle
from groupdro.oracle.duals import dual_value
from groupdro.oracle.groups import evaluate_groups
from groupdro.oracle.intercept import best_shift
from tests.reference.convex import worst_value
from tests.reference.random_problems import judge
from tests.solvers.test_aleg import LOSSES


def make_problem(loss="logistic", domain=None, seed=0, intercept=False, dtype=np.float64, n=40):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n) if loss == "softmax" else np.sign(rng.normal(size=n))
    X = rng.normal(size=(n, 3)).astype(dtype)
    data = gd.GroupedData.from_arrays(X, y, rng.integers(0, 4, n))
    return gd.Problem(data, LOSSES[loss], domain or gd.domains.L2Domain(radius=1.5), fit_intercept=intercept)


def random_evaluation(problem, rng, scale=0.4):
    return Oracle(problem).evaluate(rng.normal(size=problem.shape) * scale, rng.dirichlet(np.ones(problem.n_groups)))


@pytest.mark.parametrize("block", [*range(4), *(pytest.param(k, marks=pytest.mark.long) for k in range(4, 8))])
def test_no_bound_of_random_problems_passes_the_optimum(block):
    # The first 80 of the 1,000 that `python -m tests.reference.random_problems 1000` judges.
    verdicts = [judge(seed) for seed in range(10 * block, 10 * block + 10)]
    assert not [line for verdict in verdicts for line in verdict.violations]
    assert sum(not verdict.accurate for verdict in verdicts) <= 1
    assert max(verdict.reference_gap for verdict in verdicts if verdict.accurate) < 1e-4


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "domain", [gd.domains.L2Domain(radius=1.5), gd.domains.L2Domain(penalty=0.2), gd.domains.L2Domain(1.0, 0.1)]
)
def test_slopes_as_duals_give_the_linearisation_bound(loss, domain):
    problem = make_problem(loss, domain)
    at = random_evaluation(problem, np.random.default_rng(1))
    weights = problem.data.row_weights(at.q)
    duals = problem.loss.value_and_slope(at.margins, problem.data.y)[1]
    fenchel = domain.support(at.gradient) - dual_value(problem, duals, weights).conjugates
    assert fenchel == pytest.approx(linearise(Oracle(problem), at).bound(problem, domain), abs=1e-11)


@pytest.mark.parametrize("loss", LOSSES)
def test_aggregated_cuts_never_fall_and_exceed_every_single_one(loss):
    problem = make_problem(loss)
    oracle = Oracle(problem)
    rng = np.random.default_rng(2)
    cuts, bounds, single = CutAggregate(oracle), [], -np.inf
    for _ in range(8):
        at = random_evaluation(problem, rng)
        bounds.append(cuts.add(at, problem.domain))
        single = max(single, linearise(oracle, at).bound(problem, problem.domain))
    assert bounds == sorted(bounds)
    assert bounds[-1] > single + 1e-6


@pytest.mark.parametrize("loss", LOSSES)
def test_a_free_intercept_has_no_linearisation_bound_but_a_repaired_dual_one(loss):
    problem = make_problem(loss, gd.domains.L2Domain(penalty=0.1), intercept=True)
    oracle = Oracle(problem)
    rng = np.random.default_rng(4)
    reference = worst_value(problem)
    for _ in range(5):
        at = random_evaluation(problem, rng)
        with pytest.raises(ValueError, match="free intercept"):
            linearise(oracle, at)
        bound = balance(oracle, at).bound(problem, problem.domain)
        assert np.isfinite(bound)
        assert bound <= reference.value + 1e-8
    near = oracle.evaluate(reference.w + 1e-3, reference.q)
    assert balance(oracle, near).bound(problem, problem.domain) >= reference.value - 1e-3
    exact = oracle.evaluate(reference.w, reference.q)
    assert balance(oracle, exact).bound(problem, problem.domain) == pytest.approx(reference.value, abs=1e-6)


@pytest.mark.parametrize("loss", ["logistic", "squared", "squared_hinge", "softmax"])  # Huber's are bounded
def test_slopes_that_follow_the_intercept_give_the_same_bound_without_a_pass(loss):
    problem = make_problem(loss, gd.domains.L2Domain(penalty=0.1), intercept=True, n=400)
    oracle = Oracle(problem)
    best = gd.solve(problem, "sqp", tol=1e-9)
    rng = np.random.default_rng(0)
    for scale in (1e-3, 0.05):
        w = best.w + scale * rng.normal(size=problem.shape)
        at = evaluate_groups(oracle, w, best.q).at(best.q)
        passes = oracle.passes
        followed = balance(oracle, at)
        assert oracle.passes == passes
        again = balance(oracle, replace(at, bend=None))
        assert oracle.passes == passes + 1
        bounds = [cut.bound(problem, problem.domain) for cut in (followed, again)]
        assert max(bounds) <= best.upper_bound + 1e-12
        np.testing.assert_allclose(bounds[0], bounds[1], atol=30.0 * scale**2)


@pytest.mark.parametrize("solver", [gd.solvers.GroupSQP("newton"), gd.solvers.GroupSQP("lbfgs")])
def test_a_free_intercept_costs_no_more_passes(solver):
    passes = []
    for intercept in (False, True):
        problem = make_problem(domain=gd.domains.L2Domain(penalty=0.1), intercept=intercept, n=400)
        passes.append(gd.solve(problem, solver, tol=1e-6).passes)
    assert passes[1] <= passes[0] + 2


@pytest.mark.parametrize("loss", LOSSES)
def test_centring_finds_the_best_intercept_from_far_away(loss):
    problem = make_problem(loss, gd.domains.L2Domain(penalty=0.1), intercept=True)
    w = np.random.default_rng(5).normal(size=problem.shape)
    w[-1] += 8.0 * np.arange(1, 1 + w[-1].size).reshape(w[-1].shape)
    at = Oracle(problem).evaluate(w, np.full(4, 0.25))
    weights = problem.data.row_weights(at.q)
    slopes = best_shift(problem.loss, at.margins, problem.data.y, weights)[1]
    assert np.abs(weights @ slopes).max() < 1e-9


def test_a_penalty_confines_the_solution_and_so_tightens_the_bound():
    problem = make_problem(domain=gd.domains.L2Domain(penalty=0.01))
    oracle = Oracle(problem)
    certificate = Certificate(oracle)
    at = random_evaluation(problem, np.random.default_rng(6), scale=0.05)
    certificate.observe(at)
    assert certificate.domain.radius == pytest.approx(np.sqrt(2 * certificate.upper / 0.01), rel=1e-9)
    assert np.linalg.norm(worst_value(problem).w) <= certificate.domain.radius
    assert certificate.lower >= linearise(oracle, at).bound(problem, problem.domain)


def test_a_domain_without_any_bound_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="separable group has no minimiser"):
        gd.domains.L2Domain()


@pytest.mark.parametrize("loss", LOSSES)
def test_float32_rows_give_valid_and_tight_certificates(loss):
    problem = make_problem(loss, dtype=np.float32)
    oracle = Oracle(problem)
    reference = worst_value(problem)  # solved in float64 on the very values that float32 holds
    certificate = Certificate(oracle)
    certificate.observe(oracle.evaluate(reference.w * (1 - 1e-12), reference.q))
    assert certificate.lower <= reference.value + 1e-8
    assert certificate.upper >= reference.value - 1e-8
    assert certificate.gap < 1e-5


def test_the_gap_is_never_below_the_rounding_of_the_bounds():
    data = gd.GroupedData.from_arrays(np.zeros((4, 1)), np.array([1.0, -1, 1, -1]), [0, 0, 1, 1])
    result = gd.solve(gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=1.0)))
    assert result.converged
    assert 0 < result.gap <= 1e-11
    assert result.upper_bound == pytest.approx(np.log(2))


def test_huge_rows_widen_the_slack_instead_of_breaking_the_bound():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(30, 2)) * 1e8
    y = np.sign(rng.normal(size=30))
    data = gd.GroupedData.from_arrays(X, y, np.arange(30) % 3)
    problem = gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(radius=1e-6))
    exact = gd.GroupedData.from_arrays(X * 1e-8, y, np.arange(30) % 3)
    optimum = worst_value(gd.Problem(exact, gd.losses.Squared(), gd.domains.L2Domain(radius=1e2))).value
    result = gd.solve(problem, gd.solvers.ALEGTheory(guarantee=True), max_passes=40, tol=0.0)
    assert result.lower_bound <= optimum + 1e-7
    assert result.upper_bound >= optimum - 1e-7


@pytest.mark.parametrize("n", [1_000, 1_000_000])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_sums_of_many_equal_losses_do_not_drift_past_the_truth(loss, n):
    data = gd.GroupedData.from_arrays(np.zeros((n, 1)), np.ones(n) if loss == "logistic" else np.full(n, 0.3))
    result = gd.solve(gd.Problem(data, LOSSES[loss], gd.domains.L2Domain(radius=1.0)))
    truth = np.log(2) if loss == "logistic" else 0.045
    assert result.converged
    assert abs(result.upper_bound - truth) <= 1e-14
    assert result.lower_bound <= truth


@pytest.mark.parametrize("offset", [0, 10**6, 10**9])
@pytest.mark.parametrize("loss", [gd.losses.Squared(), gd.losses.Huber(1e6)])
def test_targets_far_from_zero_do_not_lift_the_bound_of_a_free_intercept(loss, offset):
    # With zero columns the best value at q is the weighted variance / 2, which whole numbers give exactly.
    rng = np.random.default_rng(offset % 97)
    for _ in range(20):
        y = rng.integers(-4, 5, 24)
        data = gd.GroupedData.from_arrays(np.zeros((24, 1)), y + offset, np.arange(24) % 3)
        problem = gd.Problem(data, loss, gd.domains.L2Domain(penalty=1.0), fit_intercept=True)
        oracle = Oracle(problem)
        at = oracle.evaluate(np.array([0.0, offset + 1.0]), np.full(3, 1 / 3))
        truth = Fraction(int((y**2).sum()) * 24 - int(y.sum()) ** 2, 2 * 24**2)
        bound = balance(oracle, at).bound(problem, problem.domain)
        assert Fraction(bound) <= truth
        assert bound >= float(truth) - 1e-14 * max(1.0, offset) * 50


def test_a_million_targets_far_from_zero_do_not_either():
    n, offset = 1_000_000, 10**6
    y = np.where(np.arange(n) % 4 == 0, 3, -1)  # of mean 0; equal terms at equal distances round alike
    data = gd.GroupedData.from_arrays(np.zeros((n, 1)), (y + offset).astype(np.float64))
    result = gd.solve(
        gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(penalty=1.0), fit_intercept=True), "sqp", tol=1e-6
    )
    assert result.converged
    assert result.lower_bound <= 1.5 <= result.upper_bound * (1 + 1e-9)


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array], ids=["dense", "csr"])
def test_gradients_of_a_million_equal_rows_widen_the_slack(store):
    n, delta, target = 1_000_000, 0.7, -3.0
    data = gd.GroupedData.from_arrays(store(np.ones((n, 1))), np.full(n, target))
    problem = gd.Problem(data, gd.losses.Huber(delta), gd.domains.L2Domain(radius=1.0))
    result = gd.solve(problem, "sqp", tol=1e-9)
    assert result.converged
    assert result.lower_bound <= delta * (abs(-1.0 - target) - delta / 2)


def test_classes_of_many_rows_keep_the_bound_of_a_free_intercept():
    # Without features the best value at q is the entropy of the classes, here that of 0.7, 0.2 and 0.1.
    n, share = 100_000, np.array([0.7, 0.2, 0.1])
    y = np.repeat(np.arange(3), (share * n).round().astype(int))
    data = gd.GroupedData.from_arrays(np.zeros((n, 1)), y)
    problem = gd.Problem(data, gd.losses.Softmax(3), gd.domains.L2Domain(penalty=1.0), fit_intercept=True)
    oracle = Oracle(problem)
    at = oracle.evaluate(np.vstack([np.zeros(3), np.log(share)]), np.ones(1))
    truth = -float(share @ np.log(share))
    assert truth - 1e-9 <= balance(oracle, at).bound(problem, problem.domain) <= truth * (1 + 1e-14)


def test_weights_that_rounding_took_off_the_simplex_are_brought_back():
    problem = _tiny(1.0)
    oracle = Oracle(problem)
    best = gd.solve(problem, "sqp", tol=1e-12)
    certificate = Certificate(oracle)
    certificate.observe(oracle.evaluate(best.w, best.q * (1 + 9e-10)))
    assert certificate.q.sum() == pytest.approx(1.0, abs=1e-15)
    assert certificate.lower <= best.upper_bound * (1 + 1e-13)


@pytest.mark.parametrize("size", [1.0, 1e-5])
def test_bounds_that_contradict_each_other_are_no_gap_however_small_the_losses_are(size):
    problem = _tiny(size)
    oracle = Oracle(problem)
    certificate = Certificate(oracle)
    certificate.observe(oracle.evaluate(problem.centre(), np.full(2, 0.5)))
    assert not certificate.contradicts_itself
    certificate.lower = certificate.upper * (1 + 1e-6)
    assert certificate.contradicts_itself
    assert certificate.gap == np.inf


def test_a_bound_that_is_offered_counts_with_its_weights_if_it_is_better():
    problem = _tiny(1.0)
    certificate = Certificate(Oracle(problem))
    even, uneven = np.full(2, 0.5), np.array([0.2, 0.8])
    certificate.offer_bound(-np.inf, uneven)
    assert certificate.lower == problem.least_value
    np.testing.assert_array_equal(certificate.q, uneven)  # any weights prove that losses are not negative
    for lower, q, expected in ((0.2, even, even), (0.1, uneven, even), (0.3, uneven, uneven)):
        certificate.offer_bound(lower, q)
        np.testing.assert_array_equal(certificate.q, expected)
    assert certificate.lower == 0.3


def test_the_certificate_of_another_model_leaves_that_of_the_best_alone():
    problem = _tiny(1.0)
    oracle = Oracle(problem)
    certificate = Certificate(oracle)
    certificate.observe(oracle.evaluate(problem.centre(), np.full(2, 0.5)))
    w, upper = certificate.w, certificate.upper
    other = certificate.with_model(w + 0.1, certificate.group_risks, 2.0 * upper)
    assert (other.upper, other.lower, certificate.upper) == (2.0 * upper, certificate.lower, upper)
    assert other.gap == 2.0 * upper - certificate.lower
    assert certificate.w is w


def _tiny(size):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), size * rng.normal(size=40)
    return gd.Problem(
        gd.GroupedData.from_arrays(X, y, np.arange(40) % 2), gd.losses.Squared(), gd.domains.L2Domain(radius=1.0)
    )
