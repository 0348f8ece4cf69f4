"""Steps of several outputs in single precision: the same as the readable ones, up to the precision of their rows."""

import numpy as np
import pytest

import groupdro as gd
from groupdro.oracle import Oracle
from groupdro.solvers.steps import BATCHES, make_steps, steps_of
from groupdro.solvers.steps.readable import ReadableSteps
from groupdro.solvers.steps.spectral import SpectralSteps
from tests.pairs import every_pair

DOMAINS = [
    gd.domains.L2Domain(radius=0.5),
    gd.domains.L2Domain(penalty=0.1),
    gd.domains.L2Domain(radius=0.5, penalty=0.01),
]


def make_problem(domain=DOMAINS[0], *, dtype=np.float32, n=2000, d=300, **options):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(n, d)) * np.linspace(0.2, 3.0, d) + 0.3).astype(dtype)
    y = np.argmax(X @ rng.normal(size=(d, 4)) / np.sqrt(d) + rng.gumbel(size=(n, 4)), axis=1)
    return gd.Problem(gd.GroupedData.from_arrays(X, y, rng.integers(0, 5, n)), gd.losses.Softmax(4), domain, **options)


def started(problem, epochs=2, solver=gd.solvers.ALEG()):  # noqa: B008  # frozen
    oracle = Oracle(problem)
    state = solver.init(oracle, problem.centre(), problem.central_weights(), 0)
    for _ in range(epochs):
        solver.epoch(oracle, state)
        state.epoch += 1
    return solver, oracle, state


@every_pair(
    fit_intercept={"no intercept": False, "intercept": True},
    domain=dict(zip(("ball", "penalty", "both"), DOMAINS, strict=True)),
    weights={"simplex": gd.weight_sets.Simplex(), "floor": gd.weight_sets.Floor(0.5)},
)
def test_steps_agree_with_the_readable_ones(domain, fit_intercept, weights):
    problem = make_problem(domain, weight_set=weights, fit_intercept=fit_intercept)
    solver, oracle, state = started(problem)
    plan, loops = solver.plan(problem), []
    for form in (SpectralSteps, ReadableSteps):
        loop = solver.inner_loop(oracle, state, plan)
        assert isinstance(steps_of(loop, BATCHES), SpectralSteps)
        steps, rng = form(loop), np.random.default_rng(0)
        before = oracle.counters.counts
        for n_steps in (1, 7, 12):
            steps.run(plan, plan.draw(problem.data, n_steps, rng))
        steps.flush()
        counted = oracle.counters.counts - before
        loops.append((loop, counted))
    (fast, its_counts), (readable, counts) = loops
    np.testing.assert_array_equal(its_counts, counts)
    assert fast.n_steps == readable.n_steps == 20
    moved = np.abs(readable.mean_point() - state.evaluation.w).max()
    for name in ("iterate", "mean_point", "mean_mirror"):
        np.testing.assert_allclose(getattr(fast, name)(), getattr(readable, name)(), atol=1e-4 * moved, err_msg=name)
    np.testing.assert_allclose(fast.logits, readable.logits, atol=1e-4 * np.abs(readable.logits).max())
    np.testing.assert_allclose(fast.mean_weights(), readable.mean_weights(), rtol=1e-5)
    np.testing.assert_allclose(fast.measures.tolist(), readable.measures.tolist(), rtol=1e-5)


def test_the_mean_of_iterates_on_the_edge_of_the_ball_lies_in_the_domain():
    problem = make_problem(gd.domains.L2Domain(radius=1e-3))
    solver, oracle, state = started(problem)
    plan = solver.plan(problem)
    loop = solver.inner_loop(oracle, state, plan)
    make_steps(loop, plan, 5, np.random.default_rng(0))
    mean = loop.mean_point()
    assert np.linalg.norm(mean) <= 1e-3 * (1.0 + 1e-12)
    assert np.linalg.norm(mean) > 0.9e-3


@pytest.mark.parametrize(
    "problem",
    [
        make_problem(dtype=np.float64),
        make_problem(d=200),
        make_problem(gd.domains.ElasticNetDomain(low=-1.0, high=1.0)),
    ],
    ids=["float64", "few features", "box"],
)
def test_other_rows_and_metrics_take_other_steps(problem):
    solver, oracle, state = started(problem, epochs=0)
    loop = solver.inner_loop(oracle, state, solver.plan(problem))
    assert not isinstance(steps_of(loop, BATCHES), SpectralSteps)


def test_steps_in_single_precision_reach_a_fine_tolerance():
    problem = make_problem(gd.domains.L2Domain(penalty=0.1))
    result = gd.solve(problem, "aleg", tol=1e-6, max_passes=300)
    assert result.converged
    exact = gd.Problem(
        gd.GroupedData.from_arrays(
            problem.data.rows.X.astype(np.float64),
            problem.data.y,
            np.repeat(np.arange(5), problem.data.group_sizes),
        ),
        gd.losses.Softmax(4),
        problem.domain,
    )
    fine = gd.solve(exact, "sqp", tol=1e-8)
    assert result.lower_bound <= fine.upper_bound
    assert result.upper_bound >= fine.lower_bound
    assert result.upper_bound - fine.upper_bound <= 1e-6 * fine.upper_bound
