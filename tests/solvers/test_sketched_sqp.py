from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.data.sketch import Sketch
from groupdro.oracle import Oracle
from groupdro.oracle.along import evaluate_along, group_sketches, outputs_along
from groupdro.oracle.groups import evaluate_groups
from groupdro.problem import GroupMinima
from groupdro.solvers.auto import choose
from groupdro.solvers.merged_groups import MergedGroups
from groupdro.solvers.sketched_sqp import _times_inverse
from tests.distributed.test_sharding import shard
from tests.distributed.thread_comm import run_workers
from tests.reference.convex import worst_value
from tests.solvers.test_aleg import LOSSES, make_problem

PENALTY = gd.domains.L2Domain(penalty=0.05)
ONE_OUTPUT = [name for name in LOSSES if name != "softmax"]


def sparse_problem(n=600, d=400, m=12, penalty=1e-3, weight_set=None, storage="csr", **options):
    rng = np.random.default_rng(0)
    X = sp.random(n, d, density=0.03, random_state=rng, format="csr")
    groups = rng.integers(0, m, n)
    y = np.where(np.asarray(X @ rng.normal(size=d)) + 0.3 * (groups % 3) + rng.logistic(size=n) > 0, 1.0, -1.0)
    if storage == "overlap":
        groups = (groups[:, None] == np.arange(m)) | (np.arange(n)[:, None] % 7 == 0)
    X = X.toarray() if storage == "dense" else X
    data = gd.GroupedData.from_arrays(X, y, groups, rng.random(n) + 0.1)
    return gd.Problem(
        data,
        gd.losses.Logistic(),
        gd.domains.L2Domain(penalty=penalty),
        weight_set or gd.weight_sets.Simplex(),
        **options,
    )


@pytest.mark.parametrize("loss", ONE_OUTPUT)
@pytest.mark.parametrize("intercept", [False, True])
def test_it_reaches_the_optimum_of_an_independent_solver(loss, intercept):
    problem = make_problem(loss, PENALTY, intercept=intercept, weights=True)
    result = gd.solve(problem, "sketched-sqp", tol=1e-6, max_passes=500)
    assert result.converged
    assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


SETS = [gd.weight_sets.Simplex(), gd.weight_sets.Floor(0.02), gd.weight_sets.Cap(0.2), gd.weight_sets.Floor(1 / 12)]


@pytest.mark.parametrize("weight_set", SETS, ids=str)
@pytest.mark.parametrize("storage", ["csr", "dense", "overlap"])
def test_every_set_of_weights_and_every_storage(weight_set, storage):
    problem = sparse_problem(weight_set=weight_set, storage=storage, fit_intercept=True)
    result = gd.solve(problem, "sketched-sqp", tol=1e-5, max_passes=600)
    expected = gd.solve(problem, "sqp", tol=1e-7)
    assert result.converged
    assert result.lower_bound <= expected.upper_bound + 1e-9
    assert expected.lower_bound <= result.upper_bound + 1e-9


def test_group_minima_and_offsets_enter_the_values():
    problem = sparse_problem(offsets=np.linspace(0.0, 0.2, 12))
    minima = GroupMinima.exact(np.linspace(0.1, 0.3, 12))
    for each in (problem, problem.with_minima(minima)):
        result = gd.solve(each, "sketched-sqp", tol=1e-5, max_passes=600)
        expected = gd.solve(each, "sqp", tol=1e-7)
        assert result.converged
        assert result.upper_bound == pytest.approx(expected.upper_bound, rel=2e-5)


@pytest.mark.parametrize("storage", ["csr", "dense", "overlap"])
@pytest.mark.parametrize("intercept", [False, True])
def test_sketches_are_those_of_the_groups_gradients(storage, intercept):
    problem = sparse_problem(storage=storage, fit_intercept=intercept)
    oracle = Oracle(problem)
    rng = np.random.default_rng(1)
    w, sketch = rng.normal(size=problem.shape), Sketch.of(rng.random(problem.shape) + 0.1, 64)
    here = evaluate_groups(oracle, w)
    found = group_sketches(oracle, here.margins, sketch)
    np.testing.assert_allclose(found, [sketch.gradient(g) for g in here.gradients], atol=1e-14)


@pytest.mark.parametrize("storage", ["csr", "dense", "overlap"])
def test_sketches_of_sums_of_groups_are_sums_of_sketches(storage):
    problem, rng = sparse_problem(storage=storage, fit_intercept=True), np.random.default_rng(1)
    oracle = Oracle(problem)
    sketch, margins = Sketch.of(rng.random(problem.shape) + 0.1, 64), rng.normal(size=problem.data.n_rows)
    shares = sp.csr_array(rng.random((5, 12)) * (rng.random((5, 12)) < 0.5))
    found = group_sketches(oracle, margins, sketch, shares)
    np.testing.assert_allclose(found, shares @ group_sketches(oracle, margins, sketch), atol=1e-13)


def test_weights_of_merged_groups_are_those_of_all():
    rng = np.random.default_rng(0)
    q, values = rng.dirichlet(np.full(30, 0.3)), rng.normal(size=30)
    merged = MergedGroups.of(q, values, 8)
    assert len(merged.apart) == 8
    assert set(np.argsort(-values)[:4]) <= set(merged.apart)
    np.testing.assert_allclose(merged.divide(merged.join(q)), q, atol=1e-16)
    assert merged.join(q) @ (merged.matrix @ values) == pytest.approx(q @ values)
    for few in (MergedGroups.of(q, values, 30), MergedGroups.of(q, values, 100)):
        np.testing.assert_array_equal(few.divide(few.join(q)), q)
    q[merged.others] = 0.0
    assert np.isfinite(MergedGroups.of(q / q.sum(), values, 8).proportions).all()


@pytest.mark.parametrize("weight_set", [gd.weight_sets.Simplex(), gd.weight_sets.Floor(0.02)], ids=str)
@pytest.mark.parametrize("workers", [1, 2])
def test_with_more_groups_than_a_program_takes_it_reaches_the_same_optimum(monkeypatch, weight_set, workers):
    monkeypatch.setattr("groupdro.solvers.sketched_sqp.MOST_APART", 4)
    problem = sparse_problem(weight_set=weight_set, fit_intercept=True)
    expected = gd.solve(problem, "sqp", tol=1e-7)

    def solved(data):
        mine = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-3), weight_set, fit_intercept=True)
        return gd.solve(mine, "sketched-sqp", tol=1e-4, max_passes=900)

    parts = run_workers(workers, lambda comm: solved(shard(problem.data, comm) if workers > 1 else problem.data))
    for result in parts:
        assert result.converged
        assert result.lower_bound <= expected.upper_bound + 1e-9
        assert expected.lower_bound <= result.upper_bound + 1e-9


def test_sketched_products_are_unbiased_for_those_of_gradients_and_steps():
    rng, n, K = np.random.default_rng(0), 20_000, 4096
    curvature, a, b = rng.random(n) + 0.1, rng.normal(size=n), rng.normal(size=n) + 0.5
    sketch = Sketch.of(curvature, K)
    spread = 4.0 / np.sqrt(K)  # four standard deviations
    for x, y, exact, sizes in (
        (sketch.gradient(a), sketch.gradient(b), a @ (b / curvature), (a @ (a / curvature), b @ (b / curvature))),
        (sketch.gradient(a), sketch.step(b), a @ b, (a @ (a / curvature), b @ (b * curvature))),
    ):
        assert abs(x @ y - exact) <= spread * np.sqrt(sizes[0] * sizes[1])
    np.testing.assert_allclose(sketch.gradient(a + 2.0 * b), sketch.gradient(a) + 2.0 * sketch.gradient(b), atol=1e-10)


@pytest.mark.parametrize("loss", ONE_OUTPUT)
@pytest.mark.parametrize("rows", ["dense", "sparse", "offsets"])
def test_changes_along_a_direction_against_finite_differences(loss, rows):
    problem = make_problem(loss, PENALTY, intercept=True, weights=True)
    if rows != "dense":
        data = problem.data
        groups, weights = np.repeat(np.arange(3), data.all_sizes), data.row_weights(np.ones(3))
        offset = np.random.default_rng(0).normal(size=data.n_rows) if rows == "offsets" else None
        sparse = gd.GroupedData.from_arrays(sp.csr_array(data.rows.dense()), data.y, groups, weights, offset=offset)
        problem = replace(problem, data=sparse)
    oracle, rng = Oracle(problem), np.random.default_rng(2)
    w, direction, q = rng.normal(size=problem.shape), rng.normal(size=problem.shape), np.array([0.2, 0.5, 0.3])
    at, along, h = oracle.evaluate(w, q), outputs_along(oracle, direction), 1e-6
    ahead, behind = oracle.evaluate(w + h * direction, q), oracle.evaluate(w - h * direction, q)
    np.testing.assert_allclose((ahead.margins - behind.margins) / (2 * h), along, atol=1e-7)
    difference = (ahead.gradient - behind.gradient) / (2 * h)
    slack = 0.2 if loss in ("huber", "squared_hinge") else 1e-6  # rows may cross a kink of the slope
    before = oracle.passes
    there, found = evaluate_along(oracle, w, q, np.column_stack([along, np.ones_like(along)]))
    assert oracle.passes - before == (2.0 if rows == "dense" else 1.0)
    for name in ("margins", "group_risks", "gradient", "mass"):
        np.testing.assert_array_equal(getattr(there, name), getattr(at, name))
    np.testing.assert_allclose(found[:, 0], difference, atol=slack * np.abs(difference).max())
    bend = evaluate_groups(oracle, w, q, hessian=False).bend
    np.testing.assert_allclose(found[:, 1:], bend, atol=1e-12)


def test_the_recursion_gives_the_bfgs_matrix():
    rng, n = np.random.default_rng(0), 6
    curvature, steps = rng.random(n) + 0.5, list(rng.normal(size=(3, n)))
    bent = np.diag(rng.random(n) + 1.0)
    changes = [bent @ s for s in steps]
    B = np.diag(curvature) * (changes[-1] @ (changes[-1] / curvature)) / (steps[-1] @ changes[-1])
    for s, y in zip(steps, changes, strict=True):
        B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (s @ y)
    g = rng.normal(size=n)
    np.testing.assert_allclose(_times_inverse(g, curvature, steps, changes), np.linalg.solve(B, g), rtol=1e-10)


def test_many_groups_of_many_features_are_solved_where_aleg_is_not():
    """The groups' gradients have 10^8 entries; after as many passes, ALEG's gap is several times as large."""
    rng, n, d, m = np.random.default_rng(0), 20_000, 300_000, 400
    columns = np.minimum(d ** rng.random((n, 15)) - 1, d - 1).astype(np.int32)
    groups, weights = rng.integers(0, m, n), rng.normal(size=d) * (np.arange(d) < 500)
    score = weights[columns].sum(axis=1) + 0.5 * rng.normal(size=m)[groups]
    X = sp.csr_array((np.ones(columns.size, np.float32), columns.ravel(), np.arange(0, columns.size + 1, 15)), (n, d))
    X.sum_duplicates()
    y = np.where(score + rng.logistic(size=n) > 0, 1.0, -1.0)
    problem = gd.Problem(
        gd.GroupedData.from_arrays(X, y, groups),
        gd.losses.Logistic(),
        gd.domains.L2Domain(penalty=1e-4),
        fit_intercept=True,
    )
    assert choose(problem, 1e-2).reason.startswith("sketched sqp")
    result = gd.solve(problem, tol=1e-2, max_passes=150)
    assert result.converged
    other = gd.solve(problem, "aleg", tol=1e-2, max_passes=result.passes)
    assert other.gap > 3.0 * result.gap
    assert other.lower_bound <= result.upper_bound
    assert result.lower_bound <= other.upper_bound


@pytest.mark.parametrize("size", [2, 3])
def test_workers_find_the_same_and_end_with_the_same_bits(size):
    whole = sparse_problem(fit_intercept=True)

    def solved(data):
        problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-3), fit_intercept=True)
        return gd.solve(problem, "sketched-sqp", tol=1e-4, max_passes=400)

    alone, parts = solved(whole.data), run_workers(size, lambda comm: solved(shard(whole.data, comm)))
    assert alone.converged
    for part in parts:
        assert part.upper_bound == pytest.approx(alone.upper_bound, rel=2e-4)
        for name in ("w", "q", "lower_bound", "passes"):
            np.testing.assert_array_equal(getattr(part, name), getattr(parts[0], name))


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (make_problem("logistic", gd.domains.L2Domain(radius=1.0)), "an L2 penalty without a radius"),
        (make_problem("softmax", PENALTY), "one output"),
        (
            sparse_problem(n=30_000, d=3, m=4200, weight_set=gd.weight_sets.Cap(0.1)),
            "at most 4,096 groups for weights with upper",
        ),
    ],
)
def test_what_it_cannot_solve_is_refused(problem, message):
    with pytest.raises(ValueError, match=message):
        gd.solve(problem, "sketched-sqp")


def test_it_stops_where_rounding_leaves_no_descent():
    runs = [
        gd.solve(make_problem("logistic", PENALTY, seed=seed), "sketched-sqp", tol=0.0, max_passes=2000)
        for seed in range(5)
    ]
    assert {run.status.name for run in runs} == {"STALLED"}
    gaps = [run.gap for run in runs]
    assert np.median(gaps) < 1e-9  # how far a run gets before its last step depends on rounding
    assert max(gaps) < 1e-7


def test_targets_far_from_zero_are_fitted_by_the_intercept():
    problem = make_problem("squared", PENALTY, intercept=True)
    data = problem.data.with_labels(problem.data.y + 1e4)
    far = gd.Problem(data, gd.losses.Squared(), PENALTY, fit_intercept=True)
    result, near = (gd.solve(each, "sketched-sqp", tol=1e-6, max_passes=500) for each in (far, problem))
    assert result.converged
    assert result.upper_bound == pytest.approx(near.upper_bound, rel=1e-5)
    assert result.passes <= near.passes + 40


def test_weights_move_also_where_the_start_is_optimal_for_the_first_ones():
    X, y = sp.csr_array(np.ones((4, 1))), np.array([1.0, -1.0, 3.0, -3.0])
    data = gd.GroupedData.from_arrays(X, y, [0, 0, 1, 1])
    result = gd.solve(
        gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(penalty=1e-2)), "sketched-sqp", tol=1e-2
    )
    assert result.converged
    assert result.lower_bound == pytest.approx(4.5)
