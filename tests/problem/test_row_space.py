"""A problem in the space of its rows has the same values."""

import numpy as np
import pytest

import groupdro as gd
from groupdro.oracle import Oracle
from groupdro.problem.row_space import fits_row_space, in_row_space
from groupdro.run.stages import Budget
from groupdro.solvers.minima_stages import MinimaOnce


def _problem(domain, fit_intercept=False, n=24, d=80, C=5):
    rng = np.random.default_rng(1)
    data = gd.GroupedData.from_arrays(rng.normal(size=(n, d)), rng.integers(0, C, size=n), np.arange(n) % 2)
    return gd.Problem(data, gd.losses.Softmax(C), domain, fit_intercept=fit_intercept)


@pytest.mark.parametrize("domain", [gd.domains.L2Domain(radius=1.5), gd.domains.L2Domain(penalty=0.1)])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_the_optimum_is_the_same_in_fewer_features(domain, fit_intercept):
    problem = _problem(domain, fit_intercept)
    small = in_row_space(problem)
    assert small.data.n_features == 24
    runs = [gd.solve(p, "sqp", tol=1e-8) for p in (problem, small)]
    assert all(run.status is gd.solvers.Status.CONVERGED for run in runs)
    assert runs[0].upper_bound == pytest.approx(runs[1].upper_bound, rel=1e-7)


def test_it_is_worth_it_for_few_rows_and_many_outputs_in_a_round_domain():
    problem = _problem(gd.domains.L2Domain(radius=1.0))
    np.testing.assert_array_equal(fits_row_space(problem, np.array([10, 40, 41])), [True, True, False])
    one_output = gd.Problem(
        problem.data.with_labels(np.ones(24)), gd.losses.Logistic(), gd.domains.L2Domain(radius=1.0)
    )
    np.testing.assert_array_equal(fits_row_space(one_output, np.array([10, 40])), [True, False])
    simplex = gd.Problem(problem.data.with_labels(np.ones(24)), gd.losses.Logistic(), gd.domains.SimplexDomain())
    assert not fits_row_space(simplex, np.array([10])).any()


def test_bounds_of_the_groups_minima_hold_either_way(monkeypatch):
    problem = _problem(gd.domains.L2Domain(radius=2.0))
    free = Budget(tol=0.0, atol=1e-8, passes_left=lambda: np.inf, seconds_left=lambda: np.inf)
    stage = MinimaOnce(gd.solvers.GroupSQP(), max_passes=500.0)
    start = problem.centre(), problem.central_weights()
    small = stage.run(Oracle(problem), *start, free, 0).group_minima
    monkeypatch.setattr(
        "groupdro.solvers.minima_search.fits_row_space", lambda _, sizes: np.zeros(len(sizes), dtype=bool)
    )
    whole = stage.run(Oracle(problem), *start, free, 0).group_minima
    np.testing.assert_allclose(small.upper, whole.upper, atol=2e-9)
    assert (small.lower <= whole.upper + 1e-12).all()
    assert (whole.lower <= small.upper + 1e-12).all()
