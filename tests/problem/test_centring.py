"""Offsets that a free intercept absorbs: the centred problem is the same problem."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import groupdro as gd
from groupdro.oracle import Oracle
from groupdro.problem.centring import recentre, resolution, size_of_targets, typical_sizes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
GROUPS = np.arange(60) % 3
Y = X @ [1.0, -0.5, 0.2] + RNG.normal(size=60)


def problem_of(X, y, loss=None, weight=None, **options):
    data = gd.GroupedData.from_arrays(X, y, GROUPS, weight)
    options = {"fit_intercept": True, **options}
    return gd.Problem(data, loss or gd.losses.Squared(), gd.domains.L2Domain(penalty=1e-2), **options)


@given(
    target=st.sampled_from([0.0, 3.0, -1e3, 1e8]),
    column=st.sampled_from([0.0, 1e2, -1e4, 1e7]),
    loss=st.sampled_from([gd.losses.Squared(), gd.losses.Huber(0.7)]),
)
@settings(deadline=None, max_examples=25)
def test_risks_and_parameters_are_those_of_the_problem_that_was_given(target, column, loss):
    given_problem = problem_of(X + np.array([column, 0.0, 0.0]), Y + target, loss)
    centred, centring = recentre(given_problem)
    w = np.array([0.3, -0.2, 0.1, 0.4])
    # What the data themselves resolve: x.coef + b has the rounding of the offsets.
    resolved = 1e-13 * (1.0 + abs(target) + abs(column))
    outward = centring.outward(w)
    np.testing.assert_allclose(Oracle(given_problem).risks(outward), Oracle(centred).risks(w), atol=1e3 * resolved)
    np.testing.assert_allclose(centring.inward(outward), w, atol=resolved)
    np.testing.assert_array_equal(outward[:3], w[:3])


def test_usual_data_stay_as_they_are():
    problem = problem_of(np.column_stack([X, np.ones(60)]), Y)
    centred, centring = recentre(problem)
    assert centring.target == 0.0
    assert not centring.columns.size
    assert centred is problem


def test_without_an_intercept_nothing_is_subtracted():
    problem = problem_of(X + 1e6, Y + 1e6, fit_intercept=False)
    assert recentre(problem)[0] is problem


def test_classes_are_no_targets():
    problem = problem_of(X, np.ones(60), gd.losses.Logistic())
    assert recentre(problem)[1].target == 0.0


@pytest.mark.parametrize("sentinel", [1e10, -999.0, 1e30])
def test_one_sentinel_does_not_move_the_centre(sentinel):
    y = Y + 1e5
    y[7] = sentinel
    centring = recentre(problem_of(X, y))[1]
    assert abs(centring.target - 1e5) < 8.0
    assert resolution(*recentre(problem_of(X, y))) < 1e-20


def test_a_constant_target_becomes_exactly_zero():
    centred, centring = recentre(problem_of(X, np.full(60, 0.1)))
    assert centring.target == 0.1
    assert not centred.data.y.any()


def test_columns_far_from_zero_are_centred_in_memory_alone(tmp_path):
    far = X + np.array([0.0, 1e6, 0.0])
    assert recentre(problem_of(far, Y))[1].columns[1] == pytest.approx(1e6, abs=1.0)
    assert not recentre(problem_of(sp.csr_array(far), Y))[1].columns.size
    mapped = np.memmap(tmp_path / "X", np.float64, "w+", shape=far.shape)
    mapped[:] = far
    assert not recentre(problem_of(mapped, Y))[1].columns.size


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array])
def test_typical_sizes_see_through_units_and_outliers(store):
    rows = np.column_stack([X[:, 0] * 1e-12, X[:, 1] * 1e9, X[:, 2] > 1.5])
    rows[3, 0] = -999.0
    sizes = typical_sizes(gd.GroupedData.from_arrays(store(rows), Y, GROUPS), centred=False)
    assert 1e-13 < sizes[0] < 1e-11
    assert 1e8 < sizes[1] < 1e10
    assert sizes[2] == 1.0
    assert (np.log2(sizes) % 1 == 0).all()


@pytest.mark.parametrize("solver", ["auto", "aleg", gd.solvers.GroupSQP("lbfgs"), "alem"])
def test_starts_and_results_are_in_the_units_that_were_given(solver):
    near = gd.solve(problem_of(X, Y), solver, tol=1e-5)
    far = gd.solve(problem_of(X, Y + 1e7), solver, tol=1e-5)
    assert far.converged
    assert far.w[-1] == pytest.approx(near.w[-1] + 1e7, abs=0.1)
    tol = 1e-4 if solver != "alem" else 1.0
    again = gd.solve(problem_of(X, Y + 1e7), "sqp", w=far.w, q=far.q, tol=tol)
    assert again.epochs <= 2


def test_callbacks_see_the_model_in_the_units_that_were_given():
    seen = []
    gd.solve(problem_of(X, Y + 1e7), "sqp", callbacks=[lambda progress: seen.append(progress.w[-1])])
    assert seen[-1] == pytest.approx(1e7, rel=1e-3)


def test_an_offset_that_leaves_no_digits_is_named():
    result = gd.solve(problem_of(X, Y + 1e15), tol=1e-6)
    assert result.status is gd.solvers.Status.STALLED
    assert "offsets" in result.message
    risks = Oracle(problem_of(X, Y)).risks(np.append(result.w[:3], result.w[3] - 1e15))
    assert risks.max() == pytest.approx(result.group_risks.max(), rel=0.5)


@pytest.mark.parametrize("sentinel", [1e10, 1e30, -1e30])
@pytest.mark.parametrize("loss", [gd.losses.Squared(), gd.losses.Huber(1.35)])
def test_a_sentinel_among_the_targets_does_not_loosen_the_tolerance(loss, sentinel):
    y = Y.copy()
    y[7] = sentinel
    result = gd.solve(problem_of(X, y, loss), tol=1e-4)
    assert result.atol < 1e-20
    assert not result.converged or result.gap <= 1e-4 * result.upper_bound


@pytest.mark.parametrize("centred", [True, False])
def test_the_size_of_targets_scales_with_them(centred):
    one, other = (gd.GroupedData.from_arrays(X, unit * Y, GROUPS) for unit in (1.0, 1e-9))
    assert size_of_targets(other, centred=centred) == pytest.approx(1e-9 * size_of_targets(one, centred=centred))
    assert size_of_targets(gd.GroupedData.from_arrays(X, 0.0 * Y, GROUPS), centred=centred) == 1.0
