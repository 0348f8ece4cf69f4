"""Solvers over several workers against the same solvers on one."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.data import BatchPlan, Draw
from groupdro.data.dense_rows import DenseRows
from groupdro.distributed.sharding import ShardedData, shard
from groupdro.oracle import Oracle
from groupdro.oracle.curvature import curvature_product, feature_curvature, leading_curvature
from groupdro.oracle.duals import balanced_slopes, dual_value
from groupdro.oracle.groups import evaluate_groups
from groupdro.problem.attainment import is_separated, unattained, vanishes
from groupdro.run.checkpoint import problem_digest
from tests.distributed.thread_comm import run_workers
from tests.pairs import every_pair

LOSSES = ("logistic", "softmax", "squared", "huber")


def _data(loss, sparse=False, weights=False, n=331, m=5, d=6):
    rng = np.random.default_rng(7)
    X = rng.normal(size=(n, d))
    if sparse:
        X = sp.csr_array(X * (rng.random((n, d)) < 0.4))
    scores = X @ rng.normal(size=d)
    groups = rng.choice(m, size=n, p=[0.4, 0.3, 0.2, 0.07, 0.03])
    y = {
        "logistic": np.where(scores + rng.logistic(size=n) > 0, 1.0, -1.0),
        "softmax": rng.integers(0, 3, size=n),
    }.get(loss, scores + rng.normal(size=n))
    return gd.GroupedData.from_arrays(X, y, groups, rng.random(n) + 0.1 if weights else None)


def _problem(data, loss, **options):
    kinds = {
        "logistic": gd.losses.Logistic(),
        "softmax": gd.losses.Softmax(),
        "squared": gd.losses.Squared(),
        "huber": gd.losses.Huber(1.0),
        "poisson": gd.losses.Poisson(),
        "quantile": gd.losses.Quantile(0.8),
    }
    options.setdefault("domain", gd.domains.L2Domain(radius=2.0))
    return gd.Problem(data, kinds[loss], options.pop("domain"), **options)


@every_pair(
    loss=LOSSES,
    size=[2, 3],
    sparse=[False, True],
    weights=[False, True],
    unless=lambda sparse, weights, **_: sparse and weights,
)
def test_everything_a_solver_asks_is_that_of_the_whole(loss, sparse, weights, size):
    whole = _data(loss, sparse, weights)
    rng = np.random.default_rng(0)
    q = rng.dirichlet(np.ones(5))
    w = 0.3 * rng.normal(size=_problem(whole, loss, fit_intercept=True).shape)
    w2, q2 = 1.1 * w, q[::-1].copy()
    groups = np.array([0, 1, 1, 2, 3, 4, 0])
    draw = Draw(whole.draw_members(groups, 1, rng)[0] if not weights else whole.offsets[groups], groups, rng.random(7))

    def asked(data):
        problem = _problem(data, loss, fit_intercept=True)
        oracle = Oracle(problem)
        at = oracle.evaluate(w, q)
        by_group = evaluate_groups(oracle, w, q)
        row_weights = data.row_weights(q)
        duals = balanced_slopes(oracle, at, row_weights)
        weighted = duals * row_weights if duals.ndim == 1 else duals * row_weights[:, None]
        out = [
            at.group_risks, at.gradient, at.mass, oracle.risks(w2), by_group.gradients, by_group.group_risks,
            by_group.hessian, by_group.masses, [*vars(dual_value(problem, duals, row_weights)).values()],
            oracle.combine_rows(weighted),
            *oracle.sampled_difference(draw, at, w2, q2), *oracle.sampled(draw, w2, q2),
            feature_curvature(oracle, draw, at), curvature_product(oracle, draw, at, w2),
            leading_curvature(oracle, draw, at, 3)[0], data.column_squares,
            data.mean_square_norm, data.mean_entries,
            [*vars(problem.constants(2.0, 3.0)).values()], problem.n_rows, data.all_sizes,
            unattained(problem) is None, vanishes(problem), is_separated(problem, at.w, at.margins),
            oracle.on(problem.pooled()).evaluate(w, np.ones(1)).gradient,
        ]  # fmt: skip
        assert oracle.counters.row_reads == problem_reads.setdefault("reads", oracle.counters.row_reads)
        return problem.data.rounding, out

    problem_reads = {}
    _, alone = asked(whole)
    roundings, parts = zip(*run_workers(size, lambda comm: asked(shard(whole, comm))), strict=True)
    assert len({*roundings}) == 1
    for rank, part in enumerate(parts):
        for k, (mine, expected) in enumerate(zip(part, alone, strict=True)):
            np.testing.assert_allclose(mine, expected, rtol=1e-9, atol=1e-9, err_msg=f"{k} of rank {rank}")
            np.testing.assert_array_equal(mine, parts[0][k], err_msg=f"{k} of rank {rank}")


SOLVERS = {
    "aleg": gd.solvers.ALEG,
    "auto": gd.solvers.Auto,
    "sqp-newton": lambda: gd.solvers.GroupSQP("newton"),
    "sqp-lbfgs": lambda: gd.solvers.GroupSQP("lbfgs"),
    "aleg-theory": gd.solvers.ALEGTheory,
    "alem": gd.solvers.ALEM,
}


#: Solvers that are run on every kind of problem; the others are, behind `-m long`.
EVERYWHERE = ("aleg", "auto", "sqp-lbfgs")
RUNS = [
    pytest.param(
        name, loss, size, marks=[] if (loss, size) == ("logistic", 2) or name in EVERYWHERE else [pytest.mark.long]
    )
    for loss, size in (("logistic", 2), ("logistic", 3), ("softmax", 2))
    for name in SOLVERS
]


@pytest.mark.parametrize(("name", "loss", "size"), RUNS)
def test_solvers_run_unchanged_and_all_workers_end_with_the_same_bits(name, loss, size):
    whole, make = _data(loss), SOLVERS[name]

    def solved(data):
        return gd.solve(_problem(data, loss), make(), tol=1e-3, max_passes=60.0, seed=3)

    alone = solved(whole)
    parts = run_workers(size, lambda comm: solved(shard(whole, comm)))
    for part in parts:
        assert part.status is alone.status
        assert part.lower_bound <= alone.upper_bound + 1e-9
        assert alone.lower_bound <= part.upper_bound + 1e-9
        for field in ("w", "q", "upper_bound", "lower_bound", "passes", "group_risks"):
            np.testing.assert_array_equal(getattr(part, field), getattr(parts[0], field))
        assert part.counters == parts[0].counters


@pytest.mark.parametrize("loss", LOSSES)
def test_a_free_intercept_over_workers(loss):
    whole = _data(loss)

    def solved(data):
        return gd.solve(
            _problem(data, loss, domain=gd.domains.L2Domain(penalty=1e-2), fit_intercept=True), "aleg", tol=1e-4
        )

    alone = solved(whole)
    parts = run_workers(2, lambda comm: solved(shard(whole, comm)))
    assert all(part.converged for part in parts)
    assert parts[0].upper_bound == pytest.approx(alone.upper_bound, rel=2e-4)
    np.testing.assert_array_equal(parts[0].w, parts[1].w)


@pytest.mark.parametrize("solver", ["auto", "alem"])
@pytest.mark.parametrize("loss", ["poisson", "quantile"])
def test_counts_and_quantiles_over_workers(loss, solver):
    # With two workers some groups are whole on one of them, and one is divided.
    rng = np.random.default_rng(3)
    X, groups = rng.normal(size=(700, 4)), np.repeat(np.arange(4), [300, 150, 150, 100])
    y = rng.poisson(np.exp(0.5 * X[:, 0])) + 0.1 * groups * rng.random(700)
    whole = gd.GroupedData.from_arrays(X, y, groups)

    def solved(data):
        return gd.solve(_problem(data, loss, fit_intercept=True), solver, tol=1e-3)

    alone = solved(whole)
    for size in (2, 3):
        parts = run_workers(size, lambda comm: solved(shard(whole, comm)))
        assert all(part.converged for part in parts)
        assert parts[0].upper_bound == pytest.approx(alone.upper_bound, rel=2e-3)
        for part in parts[1:]:
            for field in ("w", "q", "upper_bound", "lower_bound", "passes"):
                np.testing.assert_array_equal(getattr(part, field), getattr(parts[0], field))


def test_deterministic_solvers_give_the_same_answer_for_every_number_of_workers():
    whole = _data("logistic")
    values = []
    for size in (2, 3, 4):
        parts = run_workers(size, lambda comm: gd.solve(_problem(shard(whole, comm), "logistic"), "sqp", tol=1e-9))
        assert parts[0].converged
        values.append(parts[0].upper_bound)
    assert values == pytest.approx([gd.solve(_problem(whole, "logistic"), "sqp", tol=1e-9).upper_bound] * 3, rel=1e-8)


def test_draws_do_not_depend_on_the_number_of_workers():
    whole = _data("logistic")
    expected = BatchPlan.of(whole, 20).draw(whole, 9, np.random.default_rng(1))
    for size in (2, 3):
        for part in run_workers(size, lambda comm: shard(whole, comm)):
            np.testing.assert_array_equal(BatchPlan.of(part, 20).draw(part, 9, np.random.default_rng(1)), expected)


def test_workers_of_whom_one_lacks_the_memory_draw_alike(tmp_path):
    """All draw stretches or none: one who drew other rows than the rest would spoil the sum in silence."""
    held = _data("logistic")
    np.save(tmp_path / "X.npy", held.rows.X)

    def drawn(comm, short):
        whole = replace(held, rows=DenseRows(np.load(tmp_path / "X.npy", mmap_mode="r")))
        whole.rows.take = lambda rows: _with_memory(DenseRows(whole.rows.X[rows]), comm.rank not in short)
        part = shard(whole, comm)
        assert part.in_memory == (not short)
        return BatchPlan.of(part, 20).draw(part, 200, np.random.default_rng(1))

    singly = run_workers(3, lambda comm: drawn(comm, ()))
    stretches = run_workers(3, lambda comm: drawn(comm, (1,)))
    assert not np.array_equal(singly[0], stretches[0])
    for members in stretches:
        np.testing.assert_array_equal(members, stretches[0])
    assert len(np.unique(stretches[0][:, -1])) < len(np.unique(singly[0][:, 0]))
    everywhere = np.bincount(stretches[0].ravel(), minlength=held.n_rows)
    assert (everywhere > 0).all()


def _with_memory(rows, enough):
    rows.in_memory = enough
    return rows


def test_every_row_is_held_once():
    whole = _data("logistic")
    parts = run_workers(4, lambda comm: shard(whole, comm))
    np.testing.assert_array_equal(np.concatenate([part.source for part in parts]), whole.source)
    assert sum(part.whole_groups().sum() for part in parts) <= whole.n_groups
    assert max(part.n_rows for part in parts) - min(part.n_rows for part in parts) <= 1


@pytest.mark.parametrize("name", ["aleg", "sqp-newton", "alem", "auto"])
def test_checkpoints_are_written_once_and_go_on(tmp_path, name):
    whole, make = _data("logistic"), SOLVERS[name]

    def solved(comm, **more):
        problem = _problem(shard(whole, comm), "logistic")
        return gd.solve(problem, make(), tol=1e-8, max_passes=60.0, **more)

    expected = run_workers(2, solved)[0]
    run_workers(2, lambda comm: solved(comm, callbacks=[lambda p: p.latest.epoch >= 2], checkpoint_dir=tmp_path))
    resumed = run_workers(2, lambda comm: solved(comm, checkpoint_dir=tmp_path))
    for part in resumed:
        np.testing.assert_array_equal(part.w, resumed[0].w)
        assert part.lower_bound <= expected.upper_bound
        assert expected.lower_bound <= part.upper_bound
    other = run_workers(3, lambda comm: solved(comm, checkpoint_dir=tmp_path))[0]
    assert other.upper_bound == pytest.approx(expected.upper_bound, rel=1e-7)


def test_a_worker_that_stops_stops_all():
    whole = _data("logistic")

    def solved(comm):
        callbacks = [lambda p: p.latest.epoch >= 2] if comm.rank == 1 else []
        return gd.solve(_problem(shard(whole, comm), "logistic"), "aleg", tol=1e-12, callbacks=callbacks)

    parts = run_workers(2, solved)
    assert {part.status for part in parts} == {gd.solvers.Status.INTERRUPTED}
    assert {part.epochs for part in parts} == {2}


def test_what_cannot_be_divided_is_refused():
    overlapping = gd.GroupedData.from_arrays(np.eye(4), np.ones(4), np.ones((4, 2), dtype=bool))
    with pytest.raises(ValueError, match="overlap"):
        run_workers(2, lambda comm: shard(overlapping, comm))
    with pytest.raises(ValueError, match="rows for 5 workers"):
        run_workers(5, lambda comm: shard(gd.GroupedData.from_arrays(np.eye(4), np.ones(4), None), comm))
    weighted = _data("logistic", weights=True)
    with pytest.raises(ValueError, match="sample_weight"):
        run_workers(2, lambda comm: gd.solve(_problem(shard(weighted, comm), "logistic"), "aleg"))


def test_one_worker_gets_all_of_the_data():
    whole = _data("logistic")
    [part] = run_workers(1, lambda comm: shard(whole, comm))
    assert type(part) is gd.GroupedData
    assert part.rows is whole.rows
    assert part.y is whole.y
    assert isinstance(run_workers(2, lambda comm: shard(whole, comm))[0], ShardedData)


def test_checkpoints_are_known_again_by_any_number_of_workers():
    drawn = _data("softmax")
    whole = replace(drawn, y=np.minimum(drawn.y, 1))  # 0 and 1, which the loss encodes

    def key(comm):
        return problem_digest(_problem(shard(whole, comm), "logistic"), excess=False)

    [alone] = run_workers(1, key)
    assert run_workers(2, key) + run_workers(3, key) == [alone] * 5


def test_workers_that_hold_different_data_say_so():
    data = [_data("logistic"), replace(_data("logistic"), y=-_data("logistic").y)]

    def begin(comm):
        with pytest.raises(ValueError, match="must be the same on all workers"):
            shard(data[comm.rank], comm)

    run_workers(2, begin)


def test_scaled_columns_keep_the_key_of_the_whole():
    whole = _data("logistic")
    factors = np.linspace(1.0, 2.0, whole.n_features)
    other = replace(whole, y=-whole.y)
    keys = [
        part
        for data in (whole, other)
        for size in (2, 3)
        for part in run_workers(size, lambda comm, data=data: shard(data, comm).with_scaled_columns(factors).digest)
    ]
    assert len({*keys[:5]}) == len({*keys[5:]}) == 1
    assert keys[0] != keys[5]


def test_an_interrupt_of_one_of_several_workers_is_no_result():
    whole = _data("logistic")

    def run(comm):
        def interrupt(progress):
            if progress.latest.epoch == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            gd.solve(_problem(shard(whole, comm), "logistic"), "aleg", tol=0.0, max_passes=50, callbacks=[interrupt])

    run_workers(2, run)


def test_only_the_first_worker_prints_progress(tmp_path, capsys):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(200, 3)), np.arange(200) % 4
    y = (X[:, 0] + rng.normal(size=200) > 0).astype(int)
    store = gd.GroupedStore.write_arrays(tmp_path / "rows", X, y, groups)

    def fit(comm):
        return gd.GroupDROClassifier(verbose=2, alpha=1e-2).fit(store.shard(comm)).n_passes_

    run_workers(2, fit)
    epochs = [line.split(",")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert epochs
    assert len(epochs) == len(set(epochs))
