import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.data import BatchPlan
from groupdro.oracle import Oracle
from groupdro.solvers.steps import BATCHES, InnerLoop, steps_of
from groupdro.solvers.steps.fused import FusedSteps
from groupdro.solvers.steps.lazy import LazySteps
from groupdro.solvers.steps.proximal import ProximalSteps
from groupdro.solvers.steps.readable import ReadableSteps
from tests.pairs import every_pair
from tests.reference.convex import group_minima, worst_value

LOSSES = {
    "logistic": gd.losses.Logistic(),
    "squared": gd.losses.Squared(),
    "huber": gd.losses.Huber(0.7),
    "squared_hinge": gd.losses.SquaredHinge(),
    "softmax": gd.losses.Softmax(),
}


def make_problem(
    loss="logistic", domain=None, seed=0, sizes=(40, 25, 60), d=4, intercept=False, dtype=float, weights=None
):
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    n = len(groups)
    X = rng.normal(size=(n, d)).astype(dtype)
    if loss == "softmax":
        y = rng.integers(0, 3, n)
    elif loss in ("squared", "huber"):
        y = X @ rng.normal(size=d) + rng.normal(size=n) + groups
    else:
        y = np.sign(X @ rng.normal(size=d) + rng.normal(size=n))
    weight = rng.random(n) + 0.1 if weights else None
    data = gd.GroupedData.from_arrays(X, y, groups, weight)
    return gd.Problem(data, LOSSES[loss], domain or gd.domains.L2Domain(radius=1.5), fit_intercept=intercept)


BALLS = [
    gd.domains.L2Domain(radius=0.2),
    gd.domains.L2Domain(penalty=0.3),
    gd.domains.L2Domain(radius=0.5, penalty=0.1),
]


@every_pair(
    loss=["logistic", "squared", "huber", "squared_hinge"],
    domain=BALLS,
    intercept=[False, True],
    dtype=[np.float64, np.float32],
    rotated=[False, True],
    shifted=[False, True],
    unless=lambda shifted, intercept, **_: shifted and not intercept,  # there is nothing to shift
)
def test_the_fused_epoch_equals_the_readable_one_on_the_same_draws(loss, domain, intercept, dtype, rotated, shifted):
    problem = make_problem(loss, domain, intercept=intercept, dtype=dtype, weights=intercept)
    oracle = Oracle(problem)
    rng = np.random.default_rng(1)
    plan = BatchPlan.of(problem.data, 12)
    members = plan.draw(problem.data, 15, rng)
    at = oracle.evaluate(rng.normal(size=problem.shape) * 0.05, rng.dirichlet(np.ones(3)))
    metric = rng.uniform(0.2, 3.0, problem.shape)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0] if rotated else np.empty((0, 0))
    shift = rng.normal(size=4) if shifted else np.empty(0)

    def loop():
        start = (at.w + 0.01, at.w, np.log(at.q), np.zeros(3))
        return InnerLoop(oracle, at, problem.geometry(), 0.05 * metric, 0.2, 0.1, *start, rotation, shift)

    fused, readable = loop(), loop()
    assert FusedSteps.fits(fused)
    before = oracle.counters.row_reads
    FusedSteps(fused).run(plan, members)
    assert oracle.counters.row_reads - before == members.size
    ReadableSteps(readable).run(plan, members)
    for name in ("w", "logits", "w_total", "mirror_total", "q_total", "logit_total"):
        np.testing.assert_allclose(getattr(fused, name), getattr(readable, name), rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(fused.measures.tolist(), readable.measures.tolist(), rtol=1e-9, atol=1e-12)
    assert fused.n_steps == readable.n_steps == 15


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "domain", [gd.domains.L2Domain(radius=0.7), gd.domains.L2Domain(penalty=0.05), gd.domains.L2Domain(1.0, 0.02)]
)
def test_it_converges_to_the_optimum_with_nothing_set(loss, domain):
    problem = make_problem(loss, domain)
    result = gd.solve(problem, "aleg", tol=1e-4, max_passes=600)
    optimum = worst_value(problem).value
    assert result.converged
    assert result.lower_bound - 1e-8 <= optimum <= result.upper_bound + 1e-8


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_it_converges_on_the_simplex(loss):
    problem = make_problem(loss, gd.domains.SimplexDomain())
    result = gd.solve(problem, "aleg", tol=1e-4, max_passes=600)
    assert result.converged
    assert result.lower_bound - 1e-8 <= worst_value(problem).value <= result.upper_bound + 1e-8
    assert result.w.min() >= 0
    assert result.w.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("loss", LOSSES)
def test_it_converges_with_a_free_intercept_and_weights(loss):
    problem = make_problem(loss, gd.domains.L2Domain(penalty=0.1), intercept=True, weights=True)
    result = gd.solve(problem, "aleg", tol=1e-3, max_passes=600)
    assert result.converged
    assert result.lower_bound - 1e-8 <= worst_value(problem).value <= result.upper_bound + 1e-8


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_units_of_the_features_do_not_matter_where_the_radius_follows_them(scale):
    plain = make_problem(domain=gd.domains.L2Domain(radius=1.0))
    data = gd.GroupedData.from_arrays(
        plain.data.rows.X * scale, plain.data.y, np.repeat(np.arange(3), plain.data.group_sizes)
    )
    scaled = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=1.0 / scale))
    a, b = (gd.solve(problem, "aleg", tol=1e-4, max_passes=400) for problem in (plain, scaled))
    assert a.converged
    assert b.converged
    assert b.upper_bound == pytest.approx(a.upper_bound, rel=1e-3)
    assert b.passes <= 1.5 * a.passes + 10


def test_columns_of_very_different_scale_are_met_by_the_metric():
    problem = make_problem(d=6)
    scales = 10.0 ** np.array([0, 0, -1, 1, 0.5, -0.5])
    data = gd.GroupedData.from_arrays(
        problem.data.rows.X * scales, problem.data.y, np.repeat(np.arange(3), problem.data.group_sizes)
    )
    ugly = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-3))
    with_metric = gd.solve(ugly, gd.solvers.ALEG(), tol=1e-3, max_passes=150)
    without = gd.solve(ugly, gd.solvers.ALEG(scale_columns=False), tol=1e-3, max_passes=150)
    assert with_metric.gap < 0.3 * without.gap


@pytest.mark.parametrize("first", [1e-8, 1e8])
def test_steps_that_start_absurdly_wrong_recover(first, monkeypatch):
    problem = make_problem()
    monkeypatch.setattr(
        gd.solvers.ALEG, "_find_first_steps", lambda self, problem, state: setattr(state, "w_step", first)
    )
    result = gd.solve(problem, "aleg", tol=1e-3, max_passes=400)
    assert result.converged
    assert np.isfinite(result.upper_bound)


def test_unbalanced_groups_and_single_rows():
    problem = make_problem(sizes=(1, 300, 1, 7))
    result = gd.solve(problem, "aleg", tol=1e-3, max_passes=600)
    assert result.converged
    assert result.lower_bound - 1e-8 <= worst_value(problem).value <= result.upper_bound + 1e-8


def test_a_batch_plan_draws_about_as_many_rows_as_there_are():
    even = BatchPlan.of(make_problem(sizes=(100, 100)).data, 10)
    assert even.steps == 20
    assert np.bincount(even.groups).tolist() == [5, 5]
    uneven = BatchPlan.of(make_problem(sizes=(10, 1000, 100)).data, 50)
    assert uneven.steps * len(uneven.groups) <= 1.3 * 1110
    np.testing.assert_allclose(np.bincount(uneven.groups, uneven.weights), 1.0)
    assert np.bincount(uneven.groups).tolist() == [1, 45, 5]


def test_a_rotation_with_equal_steps_changes_nothing():
    problem = make_problem()
    rng = np.random.default_rng(2)
    plan = BatchPlan.of(problem.data, 12)
    members = plan.draw(problem.data, 10, rng)
    oracle = Oracle(problem)
    at = oracle.evaluate(problem.centre(), np.full(3, 1 / 3))
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    common = (oracle, at, problem.geometry(), 0.3, 0.2, 0.1, at.w, at.w, np.log(at.q), np.zeros(3))
    plain, rotated = InnerLoop(*common), InnerLoop(*common, turn)
    for loop in (plain, rotated):
        FusedSteps(loop).run(plan, members)
    np.testing.assert_allclose(rotated.mean_point(), plain.mean_point(), atol=1e-13)
    np.testing.assert_allclose(rotated.iterate(), plain.iterate(), atol=1e-13)
    np.testing.assert_allclose(rotated.measures.tolist(), plain.measures.tolist(), rtol=1e-10)


def test_a_shift_is_the_same_as_centred_columns():
    rng = np.random.default_rng(2)
    X, y, groups = rng.normal(size=(60, 4)) + 2.0, rng.choice([-1, 1], 60), np.arange(60) % 3
    shift, q = rng.normal(size=4), np.array([0.2, 0.3, 0.5])
    loops = []
    for columns, own in ((X, shift), (X - shift, np.empty(0))):
        data = gd.GroupedData.from_arrays(columns, y, groups)
        problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.1), fit_intercept=True)
        oracle = Oracle(problem)
        plan = BatchPlan.of(problem.data, 12)
        members = plan.draw(problem.data, 10, np.random.default_rng(3))
        at = oracle.evaluate(np.zeros(5), q)
        loop = InnerLoop(oracle, at, problem.geometry(), 0.3, 0.2, 0.1, at.w, at.w, np.log(q), np.log(q), shift=own)
        FusedSteps(loop).run(plan, members)
        loops.append(loop)
    np.testing.assert_allclose(loops[0].w, loops[1].w, atol=1e-13)
    np.testing.assert_allclose(loops[0].measures.tolist(), loops[1].measures.tolist(), rtol=1e-10)
    w, centred = loops[0].mean_point(), loops[1].mean_point()
    np.testing.assert_allclose(w[:4], centred[:4], atol=1e-13)
    np.testing.assert_allclose(w[4], centred[4] - shift @ centred[:4], atol=1e-13)


@pytest.mark.parametrize(
    "loss", [gd.losses.Logistic(), gd.losses.Squared(), gd.losses.SquaredHinge(), gd.losses.Softmax()], ids=repr
)
def test_a_free_intercept_of_columns_far_from_zero_costs_few_passes(loss):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 5)) + 3.0
    groups = np.arange(3000) % 3
    slopes = rng.normal(size=(3, 5))
    y = (((X - 3.0) * slopes[groups]).sum(axis=1) + rng.logistic(size=3000) > 0).astype(int)
    problem = gd.Problem(
        gd.GroupedData.from_arrays(X, y, groups), loss, gd.domains.L2Domain(penalty=1e-2), fit_intercept=True
    )
    result = gd.solve(problem, "aleg", tol=1e-3, max_passes=150)
    assert result.converged


def test_alem_with_measured_steps():
    problem = make_problem()
    result = gd.solve(
        problem, gd.solvers.ALEM(gd.solvers.ALEG(), gd.solvers.ALEG(), stage_one_passes=100), tol=1e-2, max_passes=1000
    )
    minima, _ = group_minima(problem)
    assert result.converged
    assert result.lower_bound - 1e-8 <= worst_value(problem, minima).value <= result.upper_bound + 1e-8


def test_many_features_and_classes_use_the_leading_directions(monkeypatch):
    monkeypatch.setattr("groupdro.solvers.aleg._ROTATED_FEATURES", 3)
    monkeypatch.setattr("groupdro.solvers.aleg._LEADING_DIRECTIONS", 4)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 12)) * 10.0 ** np.linspace(0.7, -0.5, 12)  # a few directions bend most
    data = gd.GroupedData.from_arrays(X.astype(np.float32), rng.integers(0, 3, 400), rng.integers(0, 4, 400))
    problem = gd.Problem(data, gd.losses.Softmax(), gd.domains.L2Domain(radius=2.0))
    solver = gd.solvers.ALEG()
    state = solver.init(Oracle(problem), problem.centre(), problem.central_weights(), 0)
    assert state.spectral.directions.shape == (12, 4)
    with_directions = gd.solve(problem, solver, tol=1e-3, max_passes=150)
    without = gd.solve(problem, gd.solvers.ALEG(scale_columns=False), tol=1e-3, max_passes=150)
    assert with_directions.converged
    assert with_directions.passes < without.passes
    assert with_directions.lower_bound - 1e-6 <= worst_value(problem).value <= with_directions.upper_bound + 1e-6


@every_pair(
    loss=["logistic", "squared", "huber", "squared_hinge"],
    domain=BALLS,
    intercept=[False, True],
    dtype=[np.float64, np.float32],
    alpha=[0.1, 1.0],
)
def test_the_sparse_epoch_equals_the_readable_one_on_the_same_draws(loss, domain, intercept, dtype, alpha):
    dense = make_problem(loss, domain, intercept=intercept, d=9)
    X = sp.csr_array(dense.data.rows.X * (np.random.default_rng(3).random((125, 9)) < 0.4)).astype(dtype)
    data = gd.GroupedData.from_arrays(X, dense.data.y, np.repeat(np.arange(3), dense.data.group_sizes))
    problem = gd.Problem(data, LOSSES[loss], domain, fit_intercept=intercept)
    oracle = Oracle(problem)
    rng = np.random.default_rng(1)
    plan = BatchPlan.of(data, 12)
    at = oracle.evaluate(rng.normal(size=problem.shape) * 0.05, rng.dirichlet(np.ones(3)))
    steps = np.full(problem.shape, 0.05)
    if intercept:
        steps[-1] = 0.2

    def loop():
        start = (at.w + 0.01, at.w, np.log(at.q), np.zeros(3))
        return InnerLoop(oracle, at, problem.geometry(), steps, 0.2, alpha, *start)

    sparse, readable = loop(), loop()
    lazy = LazySteps(sparse)
    assert LazySteps.fits(sparse)
    for _ in range(2):  # two pieces: the second goes on from the first
        members = plan.draw(data, 15, rng)
        before = oracle.counters.row_reads
        lazy.run(plan, members)
        assert oracle.counters.row_reads - before == members.size
        ReadableSteps(readable).run(plan, members)
    lazy.flush()
    for name in ("w", "logits", "w_total", "mirror_total", "q_total", "logit_total"):
        np.testing.assert_allclose(getattr(sparse, name), getattr(readable, name), rtol=1e-8, atol=1e-11, err_msg=name)
    np.testing.assert_allclose(sparse.measures.tolist(), readable.measures.tolist(), rtol=1e-8, atol=1e-11)


BY_ENTRY = [
    gd.domains.ElasticNetDomain(l1=0.05),
    gd.domains.ElasticNetDomain(l1=0.3, l2=0.5),
    gd.domains.ElasticNetDomain(l1=0.02, l2=0.1, low=-0.03, high=0.02),
    gd.domains.ElasticNetDomain(l2=0.2, low=0.0),
]


@every_pair(
    loss=["logistic", "squared", "huber"],
    domain=BY_ENTRY,
    intercept=[False, True],
    alpha=[0.1, 0.002, 1.0],
    sparse=[False, True],
)
def test_steps_with_thresholds_equal_the_readable_ones_on_the_same_draws(loss, domain, intercept, alpha, sparse):
    dense = make_problem(loss, domain, intercept=intercept, d=60)
    X = sp.csr_array(dense.data.rows.X * (np.random.default_rng(3).random((125, 60)) < 0.04))
    groups = np.repeat(np.arange(3), dense.data.group_sizes)
    data = gd.GroupedData.from_arrays(X if sparse else X.toarray(), dense.data.y, groups)
    problem = gd.Problem(data, LOSSES[loss], domain, fit_intercept=intercept)
    oracle = Oracle(problem)
    rng = np.random.default_rng(1)
    plan = BatchPlan.of(data, 3)
    start = domain.feasible(rng.normal(size=60) * 0.1)
    at = oracle.evaluate(np.append(start, np.zeros(int(intercept))), rng.dirichlet(np.ones(3)))
    steps = np.full(problem.shape, 0.2)
    if intercept:
        steps[-1] = 0.3

    def loop():
        begin = np.append(domain.feasible(start[::-1]), at.w[60:])
        return InnerLoop(oracle, at, problem.geometry(), steps, 0.2, alpha, begin, at.w, np.log(at.q), np.zeros(3))

    form = ProximalSteps if sparse else FusedSteps
    quick, readable = loop(), loop()
    assert steps_of(quick, BATCHES).__class__ is form
    made = form(quick)
    for n in (40, 25):  # two pieces: the second goes on from the first
        members = plan.draw(data, n, rng)
        before = oracle.counters.row_reads
        made.run(plan, members)
        assert oracle.counters.row_reads - before == members.size
        ReadableSteps(readable).run(plan, members)
    made.flush()
    for name in ("w", "logits", "w_total", "mirror_total", "q_total", "logit_total"):
        np.testing.assert_allclose(getattr(quick, name), getattr(readable, name), rtol=1e-8, atol=1e-11, err_msg=name)
    np.testing.assert_allclose(quick.measures.tolist(), readable.measures.tolist(), rtol=1e-8, atol=1e-11)
    assert (quick.w[:60] == 0.0).sum() == (readable.w[:60] == 0.0).sum()


@pytest.mark.parametrize("domain", BY_ENTRY)
@pytest.mark.parametrize("sparse", [False, True])
def test_it_converges_with_thresholds(domain, sparse):
    rng = np.random.default_rng(0)
    X = np.where(rng.random((600, 40)) < 0.1, rng.random((600, 40)), 0.0)
    y = np.sign(X @ rng.normal(size=40) + 0.3 * rng.normal(size=600))
    data = gd.GroupedData.from_arrays(sp.csr_array(X) if sparse else X, y, rng.integers(0, 4, 600))
    problem = gd.Problem(data, gd.losses.Logistic(), domain)
    result = gd.solve(problem, "aleg", tol=1e-3, max_passes=300)
    assert result.converged
    assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


@pytest.mark.parametrize("intercept", [False, True])
def test_it_converges_on_sparse_rows(intercept):
    rng = np.random.default_rng(0)
    X = sp.csr_array(np.where(rng.random((600, 40)) < 0.1, rng.random((600, 40)), 0.0))
    y = np.sign(X @ rng.normal(size=40) + 0.3 * rng.normal(size=600))
    data = gd.GroupedData.from_arrays(X, y, rng.integers(0, 4, 600))
    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.01), fit_intercept=intercept)
    result = gd.solve(problem, "aleg", tol=1e-3, max_passes=300)
    assert result.converged
    assert result.lower_bound - 1e-7 <= worst_value(problem).value <= result.upper_bound + 1e-7


def test_without_replacement_every_row_of_equal_groups_is_drawn_once_an_epoch():
    data = make_problem(sizes=(12, 12, 12)).data
    plan = BatchPlan.of(data, 6)
    members = plan.permute(data, plan.steps, np.random.default_rng(0))
    assert sorted(members.ravel().tolist()) == list(range(36))
    for i in range(3):
        assert (members[:, plan.groups == i] // 12 == i).all()
    again, other = (plan.permute(data, plan.steps, np.random.default_rng(seed)) for seed in (0, 1))
    assert (members == again).all()
    assert (members != other).any()


def test_without_replacement_it_converges_too_and_weights_are_refused():
    problem = make_problem(sizes=(40, 25, 60))
    result = gd.solve(problem, gd.solvers.ALEG(replacement=False), tol=1e-3, max_passes=400)
    assert result.converged
    assert result.lower_bound - 1e-8 <= worst_value(problem).value <= result.upper_bound + 1e-8
    with pytest.raises(ValueError, match="replacement must be True"):
        gd.solve(make_problem(weights=True), gd.solvers.ALEG(replacement=False))


def test_sparse_rows_of_zeros_leave_the_intercept_to_be_found():
    data = gd.GroupedData.from_arrays(sp.csr_array((6, 2)), np.arange(6.0), np.arange(6) % 2)
    problem = gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(penalty=0.1), fit_intercept=True)
    result = gd.solve(problem, gd.solvers.ALEG(), tol=1e-2, max_passes=300)  # a step that overflows would warn
    assert result.converged


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize(
    "domain", [gd.domains.L2Domain(radius=1.0), gd.domains.L2Domain(penalty=0.1)], ids=["ball", "penalty"]
)
def test_an_epoch_of_one_step_moves_sparse_rows_as_dense_ones(domain, fit_intercept):
    rng = np.random.default_rng(0)
    X, y, groups = rng.normal(size=(40, 3)), np.sign(rng.normal(size=40)), np.arange(40) % 10
    runs = []
    for stored in (X, sp.csr_array(X)):
        problem = gd.Problem(
            gd.GroupedData.from_arrays(stored, y, groups), gd.losses.Logistic(), domain, fit_intercept=fit_intercept
        )
        solver = gd.solvers.ALEG(rows_per_step=40, scale_columns=False)
        assert solver.plan(problem).steps == 1
        runs.append(gd.solve(problem, solver, tol=1e-3, max_passes=1500))
    assert all(run.converged for run in runs)
    if not fit_intercept:  # with one, the steps of sparse rows follow the scale of the features
        for dense, sparse in zip(runs[0].trace, runs[1].trace, strict=True):
            assert sparse.upper == pytest.approx(dense.upper, rel=1e-9)


@pytest.mark.parametrize("storage", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("weight_set", [gd.weight_sets.Simplex(), gd.weight_sets.Cap(0.5)], ids=["simplex", "cap"])
def test_warming_up_asks_nothing_of_the_data_and_changes_no_run(storage, weight_set):
    dense = make_problem("logistic", gd.domains.L2Domain(penalty=0.1))
    groups = np.repeat(np.arange(3), dense.data.group_sizes)
    data = gd.GroupedData.from_arrays(storage(dense.data.rows.X), dense.data.y, groups)
    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.1), weight_set)
    oracle = Oracle(problem)
    with oracle.uncounted():
        gd.solvers.ALEG().warm_up(oracle)
    assert oracle.counters.row_reads == 0
    first, again = (gd.solve(problem, "aleg", tol=1e-3) for _ in range(2))
    assert first.converged
    assert first.w.tobytes() == again.w.tobytes()
