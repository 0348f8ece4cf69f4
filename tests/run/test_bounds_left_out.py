"""Lower bounds that take half a pass are left out until they may end the run, and made up for at every other end."""

import numpy as np
import pytest

import groupdro as gd
from groupdro.certificate import Certificate
from groupdro.oracle import Oracle

WANTED = 1e-12


def make_problem(*, intercept, n=300, d=8, n_classes=4):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    y = np.argmax(X[:, :n_classes] + rng.gumbel(size=(n, n_classes)), axis=1)
    data = gd.GroupedData.from_arrays(X, y, rng.integers(0, 3, n))
    return gd.Problem(data, gd.losses.Softmax(), gd.domains.L2Domain(penalty=0.01), fit_intercept=intercept)


@pytest.fixture
def problem():
    return make_problem(intercept=True)


def test_a_bound_that_cannot_end_the_run_is_left_out_and_made_up_for(problem):
    rough = gd.solve(problem, gd.solvers.GroupSQP(), tol=1e-1)
    oracle = Oracle(problem)
    at = oracle.evaluate(rough.w, rough.q)
    passes = oracle.passes
    certificate = Certificate(oracle)
    certificate.observe(at, WANTED)
    assert oracle.passes == passes
    assert certificate.left_out is at
    assert certificate.lower == 0.0
    certificate.observe(certificate.left_out)
    whole = Certificate(Oracle(problem))
    whole.observe(at)
    assert certificate.lower == whole.lower > 0.0
    assert certificate.left_out is None


def test_bounds_that_need_no_pass_are_never_left_out():
    problem = make_problem(intercept=False)
    certificate = Certificate(Oracle(problem))
    certificate.observe(certificate.oracle.evaluate(problem.centre(), problem.central_weights()), WANTED)
    assert certificate.left_out is None
    assert certificate.cut is not None


def test_the_gap_expected_of_the_solution_is_the_one_that_its_bound_leaves(problem):
    best = gd.solve(problem, gd.solvers.GroupSQP(), tol=1e-10)
    certificate = Certificate(Oracle(problem))
    at = certificate.oracle.evaluate(best.w, best.q)
    assert abs(certificate.expected_gap(at)) <= 1e-8
    assert certificate.expected_gap(certificate.oracle.evaluate(1.1 * best.w, best.q)) > 1e-5


@pytest.mark.parametrize("limit", [{"max_passes": 5}, {"callbacks": [lambda progress: progress.latest.epoch == 3]}])
def test_a_run_that_ends_early_states_the_bound_of_its_last_pass(problem, limit):
    solver = gd.solvers.GroupSQP("lbfgs")
    early = gd.solve(problem, solver, tol=1e-9, **limit)
    best = gd.solve(problem, solver, tol=1e-9)
    assert best.status is gd.solvers.Status.CONVERGED
    assert early.status is not gd.solvers.Status.CONVERGED
    assert 0.0 < early.lower_bound <= best.upper_bound
    assert early.gap < early.upper_bound


def test_few_bounds_are_computed_on_the_way_and_the_last_is_proven(problem):
    found = gd.solve(problem, gd.solvers.GroupSQP("lbfgs"), tol=1e-6)
    lower = [row.lower for row in found.trace]
    assert found.status is gd.solvers.Status.CONVERGED
    assert 3 <= len(set(lower)) < len(lower)
    exact = gd.solve(problem, gd.solvers.GroupSQP("newton"), tol=1e-9)
    assert found.lower_bound <= exact.upper_bound
    assert exact.lower_bound <= found.upper_bound
