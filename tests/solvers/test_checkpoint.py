"""Runs that are broken off and go on: the same to the last bit as runs that are not."""

import os
import signal
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.solvers.checkpoint import CheckpointError, Checkpoints, CheckpointWarning

SOLVERS = {
    "aleg": gd.ALEG,
    "aleg-theory": gd.ALEGTheory,
    "auto": gd.Auto,
    "sqp-newton": lambda: gd.GroupSQP("newton"),
    "sqp-lbfgs": lambda: gd.GroupSQP("lbfgs"),
    "smd": lambda: gd.SMD(10.0),
    "mpvr": lambda: gd.MPVR(10.0),
    "al-svre": lambda: gd.ALSVRE(10.0),
    "alem": gd.ALEM,
    "alem-theory": lambda: gd.ALEM(gd.ALEGTheory(), gd.ALEGTheory(), stage_one_passes=5.0),
    "ermeg": gd.ERMEG,
    "tsa": lambda: gd.TSA(3.0),
    "tsa-crn": lambda: gd.TSA(3.0, form="common-random-numbers"),
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


def _stop_after(epochs):
    return lambda progress: progress.latest.epoch >= epochs


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_a_run_that_was_broken_off_ends_as_if_it_had_not_been(tmp_path, name, loss):
    make, options = SOLVERS[name], {"tol": 1e-9, "max_passes": 60.0, "seed": 5}
    whole = gd.solve(_problem(loss), make(), **options)
    for epochs in (1, 3):
        gd.solve(_problem(loss), make(), **options, callbacks=[_stop_after(epochs)], checkpoint_dir=tmp_path)
    resumed = gd.solve(_problem(loss), make(), **options, checkpoint_dir=tmp_path)
    _assert_same(resumed, whole)


@pytest.mark.parametrize("average_duals", [False, True])
def test_an_intercept_a_simplex_and_averaged_duals_go_on_too(tmp_path, average_duals):
    base = _problem()
    for k, problem in enumerate(
        [
            lambda: gd.GroupRisk(base.data, gd.Logistic(), gd.L2Domain(penalty=1e-2), fit_intercept=True),
            lambda: gd.GroupRisk(base.data, gd.Logistic(), gd.SimplexDomain()),
        ]
    ):
        options = {"tol": 1e-7, "max_passes": 50.0, "average_duals": average_duals}
        whole = gd.solve(problem(), "aleg", **options)
        folder = tmp_path / str(k)
        gd.solve(problem(), "aleg", **options, callbacks=[_stop_after(2)], checkpoint_dir=folder)
        _assert_same(gd.solve(problem(), "aleg", **options, checkpoint_dir=folder), whole)


def test_squared_loss_by_the_compressed_solver(tmp_path):
    whole = gd.solve(_problem("squared"), gd.Quadratic(), tol=1e-9)
    gd.solve(_problem("squared"), gd.Quadratic(), tol=1e-9, checkpoint_dir=tmp_path)
    _assert_same(gd.solve(_problem("squared"), gd.Quadratic(), tol=1e-9, checkpoint_dir=tmp_path), whole)


def test_auto_goes_on_after_its_handover(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 700))
    y = np.where(X[:, 0] + rng.logistic(size=4000) > 0, 1.0, -1.0)
    data = gd.GroupedData.from_arrays(X, y, np.arange(4000) % 4)

    def run(**more):
        return gd.solve(gd.GroupRisk(data, gd.Logistic(), gd.L2Domain(radius=0.3)), gd.Auto(), tol=1e-6, **more)

    whole = run()
    assert "then sqp" in whole.solver
    gd_epochs = [row.epoch for row in whole.trace]
    run(callbacks=[_stop_after(gd_epochs[-2])], checkpoint_dir=tmp_path)
    _assert_same(run(checkpoint_dir=tmp_path), whole)


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


def test_references_found_for_a_rougher_tolerance_are_found_anew(tmp_path):
    rough = gd.solve(_problem(), "alem", tol=3e-2, checkpoint_dir=tmp_path)
    assert rough.converged
    fine = gd.solve(_problem(), "alem", tol=1e-4, checkpoint_dir=tmp_path)
    assert fine.converged
    _assert_same(fine, gd.solve(_problem(), "alem", tol=1e-4))


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    options = {"tol": 1e-8, "max_passes": 60.0}
    whole = gd.solve(_problem(), "aleg", **options)
    gd.solve(_problem(), "aleg", **options, callbacks=[_stop_after(4)], checkpoint_dir=tmp_path)
    newest = sorted(tmp_path.glob("checkpoint-*.zip"))[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
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

    monkeypatch.setattr("groupdro.solvers.checkpoint.write_bundle", full)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = gd.solve(_problem(), "aleg", checkpoint_dir=tmp_path)
    assert result.converged
    told = [str(w.message) for w in caught if w.category is CheckpointWarning]
    assert len(told) == 1
    assert told[0].endswith("No space left on device")


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        gd.solve(_problem(), "aleg", checkpoint_dir=tmp_path / "file")


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
