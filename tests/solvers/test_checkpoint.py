"""Runs that are broken off and go on: the same to the last bit as runs that are not."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.run import checkpoint
from groupdro.run.checkpoint import CheckpointError, Checkpoints, CheckpointWarning, fingerprint
from groupdro.utils.bundle import read_bundle, write_bundle
from tests.distributed.thread_comm import run_workers
from tests.solvers.test_choose import unlike_curvatures

SOLVERS = {
    "aleg": gd.ALEG,
    "aleg-theory": gd.ALEGTheory,
    "auto": gd.Auto,
    "sqp-newton": lambda: gd.GroupSQP("newton"),
    "sqp-lbfgs": lambda: gd.GroupSQP("lbfgs"),
    "alem": gd.ALEM,
    "alem-theory": lambda: gd.ALEM(gd.ALEGTheory(), gd.ALEGTheory(), stage_one_passes=5.0),
}


def _problem(loss="logistic", seed=4, n=240):
    rng = np.random.default_rng(seed)
    X, groups = rng.normal(size=(n, 5)), rng.integers(0, 3, size=n)
    if loss == "softmax":
        return gd.GroupRisk(
            gd.GroupedData.from_arrays(X, rng.integers(0, 3, size=n), groups), gd.Softmax(3), gd.L2Domain(radius=2.0)
        )
    scores = X @ rng.normal(size=5) + 0.5 * groups * X[:, 0]
    if loss == "squared":
        data = gd.GroupedData.from_arrays(X, scores + rng.normal(size=n), groups)
        return gd.GroupRisk(data, gd.Squared(), gd.L2Domain(radius=3.0))
    y = np.where(scores + rng.logistic(size=n) > 0, 1.0, -1.0)
    return gd.GroupRisk(gd.GroupedData.from_arrays(X, y, groups), gd.Logistic(), gd.L2Domain(radius=3.0))


def _assert_same(a, b):
    assert a.status is b.status
    for name in ("w", "q", "group_risks", "upper_bound", "lower_bound", "epochs", "passes"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert a.counters == b.counters
    strip = [(r.epoch, r.passes, r.grad_evals, r.grad_evals_paper, r.upper, r.lower) for r in a.trace]
    assert strip == [(r.epoch, r.passes, r.grad_evals, r.grad_evals_paper, r.upper, r.lower) for r in b.trace]


@contextlib.contextmanager
def _forging(directory):
    """Let the parts of the newest checkpoint be changed, and write it again with checksums that fit."""
    newest = max(directory.glob("checkpoint-*.zip"))
    manifest, arrays = read_bundle(newest)
    yield manifest["run"], arrays
    write_bundle(newest, manifest, arrays)


def _stop_after(epochs):
    return lambda progress: progress.latest.epoch >= epochs


#: Of several outputs, the others differ from one output in nothing that a checkpoint holds.
SOFTMAX = ("aleg", "auto", "sqp-newton", "sqp-lbfgs", "alem")
RUNS = [
    pytest.param(name, loss, marks=[] if loss == "logistic" or name in SOFTMAX else [pytest.mark.long])
    for loss in ("logistic", "softmax")
    for name in SOLVERS
]


@pytest.mark.parametrize(("name", "loss"), RUNS)
def test_a_run_that_was_broken_off_ends_as_if_it_had_not_been(tmp_path, name, loss):
    make, options = SOLVERS[name], {"tol": 1e-9, "max_passes": 60.0, "seed": 5}
    whole = gd.solve(_problem(loss), make(), **options)
    for epochs in (1, 3):
        gd.solve(_problem(loss), make(), **options, callbacks=[_stop_after(epochs)], checkpoint_dir=tmp_path)
    resumed = gd.solve(_problem(loss), make(), **options, checkpoint_dir=tmp_path)
    _assert_same(resumed, whole)


def test_an_intercept_and_a_simplex_go_on_too(tmp_path):
    base = _problem()
    for k, problem in enumerate(
        [
            lambda: gd.GroupRisk(base.data, gd.Logistic(), gd.L2Domain(penalty=1e-2), fit_intercept=True),
            lambda: gd.GroupRisk(base.data, gd.Logistic(), gd.SimplexDomain()),
        ]
    ):
        options = {"tol": 1e-7, "max_passes": 50.0}
        whole = gd.solve(problem(), "aleg", **options)
        folder = tmp_path / str(k)
        gd.solve(problem(), "aleg", **options, callbacks=[_stop_after(2)], checkpoint_dir=folder)
        _assert_same(gd.solve(problem(), "aleg", **options, checkpoint_dir=folder), whole)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_the_curvature_of_many_features_goes_on_too(tmp_path, loss, fit_intercept):
    rng = np.random.default_rng(0)
    X, y, groups = rng.normal(size=(300, 270)), rng.integers(0, 3, size=300), np.arange(300) % 3
    problem = gd.GroupRisk(
        gd.GroupedData.from_arrays(X, y if loss == "softmax" else np.where(y > 0, 1.0, -1.0), groups),
        gd.Softmax(3) if loss == "softmax" else gd.Logistic(),
        gd.L2Domain(penalty=1e-1),
        fit_intercept=fit_intercept,
    )
    whole = gd.solve(problem, "aleg", tol=1e-9, max_passes=15.0)
    gd.solve(problem, "aleg", tol=1e-9, max_passes=15.0, callbacks=[_stop_after(2)], checkpoint_dir=tmp_path)
    _assert_same(gd.solve(problem, "aleg", tol=1e-9, max_passes=15.0, checkpoint_dir=tmp_path), whole)


def test_squared_loss_by_the_compressed_solver(tmp_path):
    whole = gd.solve(_problem("squared"), gd.Quadratic(), tol=1e-9)
    gd.solve(_problem("squared"), gd.Quadratic(), tol=1e-9, checkpoint_dir=tmp_path)
    _assert_same(gd.solve(_problem("squared"), gd.Quadratic(), tol=1e-9, checkpoint_dir=tmp_path), whole)


def test_auto_goes_on_after_its_handover(tmp_path):
    problem = unlike_curvatures()

    def run(**more):
        return gd.solve(problem, gd.Auto(), tol=1e-6, **more)

    whole = run()
    assert "newton takes over" in whole.solver
    gd_epochs = [row.epoch for row in whole.trace]
    run(callbacks=[_stop_after(gd_epochs[-2])], checkpoint_dir=tmp_path)
    resumed = run(checkpoint_dir=tmp_path)
    _assert_same(resumed, whole)
    assert resumed.solver == whole.solver


def test_a_finished_run_is_not_run_again(tmp_path):
    first = gd.solve(_problem(), "aleg", checkpoint_dir=tmp_path)
    again = gd.solve(_problem(), "aleg", checkpoint_dir=tmp_path)
    _assert_same(again, first)
    finer = gd.solve(_problem(), "aleg", tol=1e-6, checkpoint_dir=tmp_path)
    assert finer.converged
    assert finer.epochs > first.epochs
    _assert_same(finer, gd.solve(_problem(), "aleg", tol=1e-6))


@pytest.mark.parametrize("other", ["data", "solver", "seed", "domain"])
def test_a_directory_of_another_run_is_refused(tmp_path, other):
    problem, solver = _problem(), gd.ALEG()
    gd.solve(problem, solver, checkpoint_dir=tmp_path)
    if other == "data":
        problem = _problem(seed=5)
    if other == "domain":
        problem = gd.GroupRisk(problem.data, gd.Logistic(), gd.L2Domain(radius=3.5))
    solver = gd.ALEG(rows_per_step=7) if other == "solver" else solver
    with pytest.raises(CheckpointError, match="another problem"):
        gd.solve(problem, solver, seed=1 if other == "seed" else 0, checkpoint_dir=tmp_path)


@pytest.mark.parametrize("what", ["__version__", "BOUNDS_VERSION"])
def test_bounds_of_another_version_are_not_believed(tmp_path, monkeypatch, what):
    before = fingerprint(_problem(), gd.ALEG(), 0)
    gd.solve(_problem(), gd.ALEG(), checkpoint_dir=tmp_path)
    other = [gd.__version__, checkpoint.BOUNDS_VERSION]
    other[what == "BOUNDS_VERSION"] = "9.9" if what == "__version__" else 99
    monkeypatch.setattr(checkpoint, "_MADE_BY", other)
    assert fingerprint(_problem(), gd.ALEG(), 0) != before
    told = f"made by groupdro '{gd.__version__}' with bounds of version {checkpoint.BOUNDS_VERSION}; this is"
    with pytest.raises(CheckpointError, match=re.escape(told)):
        gd.solve(_problem(), gd.ALEG(), checkpoint_dir=tmp_path)


@pytest.mark.parametrize("made_by", [None, 7, ["x" * 10**6, None], [1], {"a": 1}], ids=lambda value: str(value)[:12])
def test_a_strange_maker_is_an_error_of_a_few_words(tmp_path, made_by):
    Checkpoints(tmp_path, "key").write(0, {}, {})
    (path,) = tmp_path.glob("checkpoint-*.zip")
    manifest, arrays = read_bundle(path)
    write_bundle(path, manifest | {"made_by": made_by}, arrays)
    with pytest.raises(CheckpointError, match="made by groupdro") as caught:
        Checkpoints(tmp_path, "other key").latest()
    assert len(str(caught.value)) < 1000


def _changed_store(tmp_path, sparse):
    """Return a store, and a function that changes a number of each of its files without changing its size."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(400, 3)), rng.integers(0, 3, size=400)
    y = np.where(X[:, 0] + rng.logistic(size=400) > 0, 1.0, -1.0)
    rows = sp.csr_array(X) if sparse else X
    store = gd.GroupedStore.write_arrays(
        tmp_path / "s", rows, y, groups, sample_weight=1 + rng.random(400), offset=X[:, 1], task="regression"
    )

    def change(name):
        content = bytearray((store.path / name).read_bytes())
        content[len(content) // 8 * 4] ^= 1
        with open(store.path / name, "r+b") as file:  # in place, where the store has it mapped
            file.write(content)

    return store, change


@pytest.mark.parametrize(
    ("sparse", "name"),
    [
        *((False, name) for name in ("X.npy", "y.npy", "weight.npy", "offset.npy", "source.npy")),
        *((True, name) for name in ("data.npy", "indices.npy", "indptr.npy")),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bound_is_not_believed_for_a_store_whose_files_changed(tmp_path, sparse, name, workers):
    store, change = _changed_store(tmp_path, sparse)

    def key(comm):
        problem = gd.GroupRisk(store.shard(comm).data(), gd.Squared(), gd.L2Domain(radius=1.0))
        return fingerprint(problem, gd.ALEG(), 0)

    def refused(comm):
        with pytest.raises(gd.StoreError, match=rf"its {re.escape(name)} does not match the checksums"):
            key(comm)
        return True

    assert len(set(run_workers(workers, key))) == 1
    change(name)
    assert run_workers(workers, refused) == [True] * workers


def test_a_fit_on_a_changed_store_does_not_go_on_from_what_was_proved_before(tmp_path):
    store, change = _changed_store(tmp_path, sparse=False)
    model = gd.GroupDRORegressor(checkpoint_dir=tmp_path / "run").fit(store)
    assert model.status_ == "converged"
    change("X.npy")
    with pytest.raises(gd.StoreError, match=r"X\.npy"):
        gd.GroupDRORegressor(checkpoint_dir=tmp_path / "run").fit(gd.GroupedStore.open(store.path))
    # Without checkpoints nothing is believed, and nothing is read twice.
    assert gd.GroupDRORegressor().fit(gd.GroupedStore.open(store.path)).status_ == "converged"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_byte_of_a_store_of_many_blocks_is_read_by_some_worker(tmp_path, monkeypatch, workers):
    monkeypatch.setattr("groupdro.store.files.BLOCK", 512)
    monkeypatch.setattr("groupdro.store.manifest.BLOCK", 512)
    store, _ = _changed_store(tmp_path, sparse=True)
    size = (store.path / "data.npy").stat().st_size
    with open(store.path / "data.npy", "r+b") as file:
        for place in range(100, size, 500):
            file.seek(place)
            before = file.read(1)
            file.seek(place)
            file.write(bytes([before[0] ^ 1]))
            file.flush()
            with pytest.raises(gd.StoreError, match=r"data\.npy"):
                run_workers(workers, lambda comm: store.shard(comm).data().key_check())
            file.seek(place)
            file.write(before)
            file.flush()
    run_workers(workers, lambda comm: store.shard(comm).data().key_check())


@pytest.mark.parametrize("kind", ["dense", "float32", "sparse", "mapped"])
@pytest.mark.parametrize("row", [0, 1234, 2999])
def test_a_bound_is_not_believed_for_data_that_differ_in_a_single_entry(tmp_path, kind, row):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3000, 4)), rng.choice([-1.0, 1.0], size=3000)

    def solved():
        held = {"dense": lambda: X, "float32": lambda: X.astype(np.float32), "sparse": lambda: sp.csr_array(X)}
        rows = held.get(kind, lambda: np.load(tmp_path / "X.npy", mmap_mode="r"))()
        data = gd.GroupedData.from_arrays(rows, y, np.repeat([0, 1], 1500))
        problem = gd.GroupRisk(data, gd.Logistic(), gd.L2Domain(radius=1.0))
        return gd.solve(problem, checkpoint_dir=tmp_path / "run")

    np.save(tmp_path / "X.npy", X)
    solved()
    X[row, 2] += 1e-3
    np.save(tmp_path / "X.npy", X)
    with pytest.raises(CheckpointError, match="another problem"):
        solved()


def test_references_found_once_for_a_rougher_tolerance_are_found_anew(tmp_path):
    solver = gd.ALEM(gd.GroupSQP())
    rough = gd.solve(_problem(), solver, tol=3e-2, checkpoint_dir=tmp_path)
    assert rough.converged
    fine = gd.solve(_problem(), solver, tol=1e-4, checkpoint_dir=tmp_path)
    assert fine.converged
    _assert_same(fine, gd.solve(_problem(), solver, tol=1e-4))


def test_references_that_can_be_refined_are_refined_further_for_a_finer_tolerance(tmp_path):
    rough = gd.solve(_problem(), "alem", tol=3e-2, checkpoint_dir=tmp_path)
    assert rough.converged
    fine = gd.solve(_problem(), "alem", tol=1e-6, checkpoint_dir=tmp_path)
    assert fine.converged
    assert fine.trace[: len(rough.trace)] == rough.trace  # it went on from there
    assert (fine.references.upper - fine.references.lower).max() < (
        rough.references.upper - rough.references.lower
    ).max()


@pytest.mark.parametrize("how", ["interrupt", "time limit"])
def test_a_first_stage_that_was_cut_short_is_made_anew(tmp_path, monkeypatch, how):
    epochs, whole_epoch = 0, gd.GroupSQP.epoch
    options = {"tol": 1e-4, "max_passes": 60.0}
    whole = gd.solve(_problem(), "alem", **options)

    def interrupted(self, *args):
        nonlocal epochs
        epochs += 1
        if epochs == 3:
            raise KeyboardInterrupt
        whole_epoch(self, *args)

    with monkeypatch.context() as patch:
        if how == "interrupt":
            patch.setattr(gd.GroupSQP, "epoch", interrupted)
        limit = 1e-4 if how == "time limit" else np.inf
        short = gd.solve(_problem(), "alem", **options, max_time=limit, checkpoint_dir=tmp_path)
    assert short.status is (gd.Status.INTERRUPTED if how == "interrupt" else gd.Status.TIME_LIMIT)
    assert short.references.lower.min() == 0.0  # as rough as can be
    _assert_same(gd.solve(_problem(), "alem", **options, checkpoint_dir=tmp_path), whole)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    options = {"tol": 1e-8, "max_passes": 60.0}
    whole = gd.solve(_problem(), "aleg", **options)
    gd.solve(_problem(), "aleg", **options, callbacks=[_stop_after(4)], checkpoint_dir=tmp_path)
    newest = sorted(tmp_path.glob("checkpoint-*.zip"))[-1]
    with zipfile.ZipFile(newest) as file:
        part = max(file.infolist(), key=lambda part: part.compress_size)
    content = bytearray(newest.read_bytes())
    end = content.index(part.filename.encode(), part.header_offset) + len(part.filename)
    content[end + part.compress_size // 2] ^= 1  # not in a header, some of whose fields nobody reads
    newest.write_bytes(content)
    with pytest.warns(CheckpointWarning, match="Damaged"):
        resumed = gd.solve(_problem(), "aleg", **options, checkpoint_dir=tmp_path)
    _assert_same(resumed, whole)


def test_a_damaged_checkpoint_is_not_kept_in_reserve(tmp_path):
    run = Checkpoints(tmp_path, "key")
    for epoch in range(4):
        run.write(epoch, {"epoch": epoch}, {})
    for epoch in (2, 2):  # twice the newest file is damaged, and one epoch is saved in between
        newest = max(tmp_path.glob("checkpoint-*.zip"))
        newest.write_bytes(newest.read_bytes()[:-20])
        run = Checkpoints(tmp_path, "key")
        with pytest.warns(CheckpointWarning, match="Damaged"):
            assert run.latest()[0] == {"epoch": epoch}
        run.write(epoch + 1, {"epoch": epoch + 1}, {})
        assert len(list(tmp_path.glob("checkpoint-*"))) == 2


def test_nothing_but_damaged_checkpoints_is_an_error(tmp_path):
    gd.solve(_problem(), "aleg", checkpoint_dir=tmp_path)
    for path in tmp_path.glob("checkpoint-*.zip"):
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="No checkpoint"):
        gd.solve(_problem(), "aleg", checkpoint_dir=tmp_path)


def _other_references(run, arrays):
    """Return references for a run that has none, and none for one that has."""
    if run["references"] != {"value": None}:
        return {"value": None}
    arrays["forged"] = np.zeros(3)
    bounds = {name: {"array": "forged"} for name in ("upper", "lower")}
    return {"mapping": {**bounds, "models": {"value": None}}}


FORGED = {
    "no parts": lambda run, arrays: run.clear(),
    "unknown part": lambda run, arrays: run.update(more=1),
    "no state": lambda run, arrays: run.update(state={"value": 3}),
    "unknown kind": lambda run, arrays: run.update(state={"code": "x"}),
    "unknown field": lambda run, arrays: run["state"]["mapping"].update(other={"value": 1}),
    "method": lambda run, arrays: run["state"]["mapping"].update(__class__={"value": 1}),
    "negative epoch": lambda run, arrays: run["state"]["mapping"].update(epoch={"value": -1}),
    "epoch of text": lambda run, arrays: run["state"]["mapping"].update(epoch={"value": "1"}),
    "truth of a number": lambda run, arrays: run["state"]["mapping"].update(stalled={"value": 1}),
    "missing array": lambda run, arrays: arrays.pop("a1"),
    "other shapes": lambda run, arrays: arrays.update({name: array.ravel()[:2] for name, array in arrays.items()}),
    "other types": lambda run, arrays: arrays.update({name: array.astype(np.int64) for name, array in arrays.items()}),
    "not finite": lambda run, arrays: arrays.update({name: np.full_like(a, np.nan) for name, a in arrays.items()}),
    "references of a number": lambda run, arrays: run.update(references={"value": 1}),
    "references": lambda run, arrays: run.update(
        references={"mapping": {"upper": {"value": 1}, "lower": {"value": 1}}}
    ),
    "references of the other objective": lambda run, arrays: run.update(references=_other_references(run, arrays)),
    "stage": lambda run, arrays: run.update(stage=7),
    "no certificate": lambda run, arrays: run.update(certificate={"mapping": {}}),
    "no model": lambda run, arrays: run["certificate"]["mapping"].update(w={"value": None}),
    "bound of text": lambda run, arrays: run["certificate"]["mapping"].update(lower={"value": "0"}),
    "bound of no number": lambda run, arrays: run["certificate"]["mapping"].update(upper={"value": np.nan}),
    "cut": lambda run, arrays: run["certificate"]["mapping"]["aggregate"]["mapping"].update(cut={"value": 1}),
    "trace": lambda run, arrays: run.update(trace=[[1, 2]]),
    "counters": lambda run, arrays: run.update(counters=[-1, 0, 0]),
    "seconds": lambda run, arrays: run.update(seconds=None),
    "tolerances": lambda run, arrays: run.update(tolerances=[0.1]),
    "deep": lambda run, arrays: run.update(state=json.loads('{"list":[' * 450 + "]}" * 450)),
}


@pytest.mark.parametrize("what", FORGED)
@pytest.mark.parametrize("name", ["aleg", "auto", "sqp-lbfgs", "alem"])
def test_a_checkpoint_with_the_right_checksums_and_wrong_parts_is_an_error(tmp_path, name, what):
    make, options = SOLVERS[name], {"tol": 1e-9, "max_passes": 20.0}
    gd.solve(_problem(), make(), **options, callbacks=[_stop_after(2)], checkpoint_dir=tmp_path)
    with _forging(tmp_path) as (run, arrays):
        FORGED[what](run, arrays)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        gd.solve(_problem(), make(), **options, checkpoint_dir=tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rotation", np.eye(2)),
        ("shift", np.ones(4)),
        ("shift", np.ones(5)),  # of a problem without an intercept
        ("metric", np.ones(2)),
        ("spectral", np.ones(2)),
    ],
    ids=["rotation", "shift", "shift without intercept", "metric", "spectral"],
)
def test_curvature_of_another_shape_is_an_error(tmp_path, field, value):
    gd.solve(_problem(), "aleg", tol=1e-9, callbacks=[_stop_after(2)], checkpoint_dir=tmp_path)
    with _forging(tmp_path) as (run, arrays):
        run["state"]["mapping"][field] = {"array": "forged"}
        arrays["forged"] = value
    with pytest.raises(CheckpointError, match="curvature"):
        gd.solve(_problem(), "aleg", tol=1e-9, checkpoint_dir=tmp_path)


@pytest.mark.parametrize("tol", [10**400, "1", -1.0, np.nan, None])
def test_a_choice_for_no_tolerance_is_an_error(tmp_path, tol):
    gd.solve(_problem(), "auto", tol=1e-9, callbacks=[_stop_after(2)], checkpoint_dir=tmp_path)
    with _forging(tmp_path) as (run, _):
        run["tolerances"][0] = tol
    with pytest.raises(CheckpointError, match="tolerance"):
        gd.solve(_problem(), "auto", tol=1e-9, checkpoint_dir=tmp_path)


@pytest.mark.parametrize("damping", [0.0, -1e12, 5e-324, np.inf, -1])
def test_a_damping_that_would_never_help_is_an_error(tmp_path, damping):
    gd.solve(_problem(), "sqp", tol=1e-9, callbacks=[_stop_after(2)], checkpoint_dir=tmp_path)
    with _forging(tmp_path) as (run, _):
        run["state"]["mapping"]["damping"] = {"value": damping}
    with pytest.raises(CheckpointError, match="damping"):
        gd.solve(_problem(), "sqp", tol=1e-9, checkpoint_dir=tmp_path)


@pytest.mark.parametrize("missing", ["run", "key", "both"])
def test_a_checkpoint_of_no_run_is_damaged(tmp_path, missing):
    write_bundle(
        tmp_path / "checkpoint-000001-00000001.zip",
        {"format": "groupdro-checkpoint", "version": 2, **({"key": "x"} if missing == "run" else {"run": {}})}
        if missing != "both"
        else {"format": "groupdro-checkpoint", "version": 2},
        {},
    )
    with pytest.raises(CheckpointError, match="No checkpoint"):
        gd.solve(_problem(), "aleg", checkpoint_dir=tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("what", ["pipe", "device", "folder", "nowhere"])
def test_what_is_no_file_is_passed_over_and_not_waited_for(tmp_path, what):
    whole = gd.solve(_problem(), "aleg")
    gd.solve(_problem(), "aleg", callbacks=[_stop_after(2)], checkpoint_dir=tmp_path)
    odd = tmp_path / "checkpoint-000001-00000009.zip"
    if what == "pipe":
        os.mkfifo(odd)
    elif what == "folder":
        odd.mkdir()
    else:
        odd.symlink_to("/dev/zero" if what == "device" else "nowhere")
    with pytest.warns(CheckpointWarning, match="Damaged"):
        _assert_same(gd.solve(_problem(), "aleg", checkpoint_dir=tmp_path), whole)


def test_files_of_other_names_are_left_alone(tmp_path):
    whole = gd.solve(_problem(), "aleg")
    gd.solve(_problem(), "aleg", callbacks=[_stop_after(2)], checkpoint_dir=tmp_path)
    others = [".checkpoint-x.tmp", ".checkpoint-.tmp", "generation-x", "checkpoint-1-2.zip", "notes"]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / "generation-000000").mkdir()
    _assert_same(gd.solve(_problem(), "aleg", checkpoint_dir=tmp_path), whole)
    assert {*others, "generation-000000"} <= {path.name for path in tmp_path.iterdir()}


def test_generations_that_are_used_up_are_an_error(tmp_path):
    for number in ("999999", "1000000"):
        (tmp_path / f"generation-{number}").touch()
    with pytest.raises(CheckpointError, match="no generation number left"):
        Checkpoints(tmp_path, "key")


def test_an_older_run_may_no_longer_write(tmp_path):
    old, new = Checkpoints(tmp_path, "key"), Checkpoints(tmp_path, "key")
    new.write(1, {"of": "new"}, {"a": np.arange(3.0)})
    with pytest.raises(CheckpointError, match="taken over"):
        old.write(5, {"of": "old"}, {})
    run, arrays = Checkpoints(tmp_path, "key").latest()
    assert run == {"of": "new"}
    np.testing.assert_array_equal(arrays["a"], np.arange(3.0))


def test_the_newest_generation_is_read_even_at_an_earlier_epoch(tmp_path):
    Checkpoints(tmp_path, "key").write(9, {"of": "first"}, {})
    Checkpoints(tmp_path, "key").write(2, {"of": "second"}, {})
    assert Checkpoints(tmp_path, "key").latest()[0] == {"of": "second"}


def test_only_what_older_runs_left_unfinished_is_removed(tmp_path):
    checkpoints = Checkpoints(tmp_path, "key")
    for generation in (checkpoints.generation, checkpoints.generation + 1):
        (tmp_path / f".checkpoint-{generation:06d}-00000001.zip.abc.tmp").touch()
    checkpoints.write(3, {}, {})
    assert [path.name.split("-")[1] for path in tmp_path.glob(".*.tmp")] == [f"{checkpoints.generation + 1:06d}"]


def test_a_callback_that_fails_does_not_cost_the_epoch(tmp_path):
    def fail(progress):
        if progress.latest.epoch == 3:
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        gd.solve(_problem(), "aleg", tol=1e-8, callbacks=[fail], checkpoint_dir=tmp_path)
    assert max(path.name for path in tmp_path.glob("checkpoint-*")).endswith("00000003.zip")


def test_few_files_stay(tmp_path):
    gd.solve(_problem(), "aleg", tol=1e-8, checkpoint_dir=tmp_path)
    gd.solve(_problem(), "aleg", tol=1e-8, checkpoint_dir=tmp_path)
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2
    assert len(list(tmp_path.iterdir())) <= 4


def test_a_disk_that_is_full_does_not_end_the_run(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("groupdro.run.checkpoint.write_bundle", full)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = gd.solve(_problem(), "aleg", checkpoint_dir=tmp_path)
    assert result.converged
    told = [str(w.message) for w in caught if w.category is CheckpointWarning]
    assert len(told) == 1
    assert told[0].endswith("No space left on device")


def test_a_directory_that_vanishes_does_not_end_the_run(tmp_path):
    place = tmp_path / "runs"

    def remove(progress):
        if progress.latest.epoch == 1:
            shutil.rmtree(place)

    with pytest.warns(CheckpointWarning, match=r"could not be written.*runs") as caught:
        result = gd.solve(_problem(), "aleg", tol=1e-6, callbacks=[remove], checkpoint_dir=place)
    assert result.converged
    assert len(caught) == 1


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        gd.solve(_problem(), "aleg", checkpoint_dir=tmp_path / "file")


@pytest.mark.long  # the campaign does the same more often, with one compilation for all
def test_killed_at_any_moment_it_goes_on_to_the_same_answer(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent("""
        import sys, time, numpy as np, groupdro as gd
        sys.path.insert(0, sys.argv[1])
        from tests.solvers.test_checkpoint import _problem
        print("begun", flush=True)
        slow = lambda progress: time.sleep(0.02)
        result = gd.solve(_problem(), "aleg", tol=1e-8, callbacks=[slow], checkpoint_dir=sys.argv[2])
        np.save(sys.argv[3], result.w)
        """)
    )
    root, out, folder = os.getcwd(), tmp_path / "w.npy", tmp_path / "checkpoints"
    rng = np.random.default_rng(0)
    killed = 0
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, str(script), root, str(folder), str(out)], stdout=subprocess.PIPE, text=True
        )
        process.stdout.readline()
        try:
            process.wait(timeout=float(rng.uniform(0.2, 0.9)))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
        process.stdout.close()
        if out.exists():
            break
    if not out.exists():
        subprocess.run([sys.executable, str(script), root, str(folder), str(out)], check=True, capture_output=True)
    assert killed
    np.testing.assert_array_equal(np.load(out), gd.solve(_problem(), "aleg", tol=1e-8).w)


class _Tilted(gd.Squared):
    """A loss of a user, which says nothing of how it is to be written."""

    def __init__(self, tilt):
        self.tilt = tilt


def test_a_directory_of_another_parameter_of_a_user_s_loss_is_refused(tmp_path):
    data = _problem("squared").data
    for tilt in (0.9, 0.1):
        problem = gd.GroupRisk(data, _Tilted(tilt), gd.L2Domain(radius=1.0))
        if tilt == 0.9:
            gd.solve(problem, "sqp", checkpoint_dir=tmp_path)
            continue
        with pytest.raises(CheckpointError, match="another problem"):
            gd.solve(problem, "sqp", checkpoint_dir=tmp_path)


def test_steps_and_long_starts_tell_runs_apart():
    problem = _problem()
    start, other = np.zeros(5), np.zeros(5)
    other[3] = 1e-12
    solvers = [gd.ALEGTheory(step=0.1), gd.ALEGTheory(step=0.2), gd.ALEGTheory(), gd.ALEM(gd.GroupSQP()), gd.ALEM()]
    keys = [fingerprint(problem, solver, 0) for solver in solvers]
    keys += [fingerprint(problem.starting_at(w), gd.GroupSQP(), 0) for w in (start, other)]
    assert len({*keys}) == len(keys)
    assert fingerprint(problem.starting_at(start.copy()), gd.GroupSQP(), 0) == keys[-2]


def test_one_solver_object_goes_on_as_well_as_two(tmp_path):
    solver = gd.Quadratic()
    first = gd.solve(_problem("squared"), solver, checkpoint_dir=tmp_path)
    _assert_same(first, gd.solve(_problem("squared"), solver, checkpoint_dir=tmp_path))


@pytest.mark.parametrize("value", [0.0, -1.0, 1e200])
def test_pairs_that_no_run_would_keep_are_an_error(tmp_path, value):
    solver = gd.GroupSQP("lbfgs")
    gd.solve(_problem(), solver, tol=1e-9, callbacks=[_stop_after(3)], checkpoint_dir=tmp_path)
    with _forging(tmp_path) as (run, arrays):
        first = run["state"]["mapping"]["steps"]["list"][0]["array"]
        arrays[first] = value * arrays[first]
    with pytest.raises(CheckpointError, match="L-BFGS pairs do not fit"):
        gd.solve(_problem(), solver, tol=1e-9, checkpoint_dir=tmp_path)
