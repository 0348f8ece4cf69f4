"""Runs that are interrupted and resumed from what they had proved."""

import itertools
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.run import checkpoint
from groupdro.run.checkpoint import Checkpoint, CheckpointWarning, problem_digest
from tests.distributed.thread_comm import run_workers
from tests.reference.convex import worst_value
from tests.solvers.test_choose import unlike_curvatures

SOLVERS = {
    "aleg": gd.solvers.ALEG,
    "aleg-theory": gd.solvers.ALEGTheory,
    "auto": gd.solvers.Auto,
    "sqp-newton": lambda: gd.solvers.GroupSQP("newton"),
    "sqp-lbfgs": lambda: gd.solvers.GroupSQP("lbfgs"),
    "sketched-sqp": gd.solvers.SketchedSQP,
    "alem": gd.solvers.ALEM,
    "alem-theory": lambda: gd.solvers.ALEM(gd.solvers.ALEGTheory(), gd.solvers.ALEGTheory(), stage_one_passes=5.0),
}


def make_problem(loss="logistic", seed=4, n=240):
    rng = np.random.default_rng(seed)
    X, groups = rng.normal(size=(n, 5)), rng.integers(0, 3, size=n)
    if loss == "softmax":
        data = gd.GroupedData.from_arrays(X, rng.integers(0, 3, size=n), groups)
        return gd.Problem(data, gd.losses.Softmax(3), gd.domains.L2Domain(radius=2.0))
    scores = X @ rng.normal(size=5) + 0.5 * groups * X[:, 0]
    if loss == "squared":
        data = gd.GroupedData.from_arrays(X, scores + rng.normal(size=n), groups)
        return gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(radius=3.0))
    y = np.where(scores + rng.logistic(size=n) > 0, 1.0, -1.0)
    return gd.Problem(gd.GroupedData.from_arrays(X, y, groups), gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-2))


def sparse_problem():
    rng = np.random.default_rng(0)
    X = sp.random_array((300, 60), density=0.1, rng=rng, format="csr")
    y = rng.choice([-1.0, 1.0], size=300)
    data = gd.GroupedData.from_arrays(X, y, np.arange(300) % 50)
    return gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-2), fit_intercept=True)


def stop_after(epochs):
    return lambda progress: progress.latest.epoch >= epochs


def assert_overlap(one, other):
    """Assert that two intervals of the same optimum agree."""
    assert one.lower_bound <= other.upper_bound * (1 + 1e-12) + 1e-15
    assert other.lower_bound <= one.upper_bound * (1 + 1e-12) + 1e-15


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        # Hundreds of single steps a pass, each in Python.
        pytest.param(name, loss, marks=[pytest.mark.long] if "theory" in name and loss == "softmax" else [])
        for name in SOLVERS
        for loss in ("logistic", "softmax")
        if (name, loss) != ("sketched-sqp", "softmax")  # which has one output
    ],
)
def test_a_resumed_run_continues_from_what_was_proved(tmp_path, name, loss):
    options = {"tol": 1e-9, "max_passes": 60.0, "seed": 5}
    solver = SOLVERS[name]()
    whole = gd.solve(make_problem(loss), solver, **options)
    seen = []
    for epochs in (1, 3, np.inf):
        seen.append(
            gd.solve(make_problem(loss), solver, **options, callbacks=[stop_after(epochs)], checkpoint_dir=tmp_path)
        )
    for before, after in itertools.pairwise(seen):
        assert after.upper_bound <= before.upper_bound * (1 + 1e-12)
        assert after.lower_bound >= before.lower_bound
        assert after.trace[: len(before.trace)] == before.trace
        assert after.passes >= before.passes
    assert_overlap(seen[-1], whole)
    assert seen[-1].status is whole.status or whole.status is gd.solvers.Status.PASS_LIMIT


def test_dual_ascent_starts_at_the_slopes_of_its_last_model(tmp_path):
    problem = sparse_problem()
    whole = gd.solve(problem, "dual-ascent", tol=1e-5)
    half = whole.epochs // 2
    gd.solve(problem, "dual-ascent", tol=1e-5, callbacks=[stop_after(half)], checkpoint_dir=tmp_path)
    resumed = gd.solve(problem, "dual-ascent", tol=1e-5, checkpoint_dir=tmp_path)
    assert resumed.converged
    assert_overlap(resumed, whole)
    assert resumed.epochs <= whole.epochs + 6


def test_bounds_of_a_resumed_run_enclose_the_optimum_of_an_independent_solver(tmp_path):
    problem = make_problem()
    optimum = worst_value(problem).value
    for epochs in (0, 1, 2, 4, np.inf):
        found = gd.solve(problem, "aleg", tol=1e-7, callbacks=[stop_after(epochs)], checkpoint_dir=tmp_path)
        assert found.lower_bound - 1e-7 <= optimum <= found.upper_bound + 1e-7


@pytest.mark.parametrize(("first", "second"), [("aleg", "sqp"), ("sqp", "aleg"), ("aleg-theory", "auto")])
def test_another_solver_takes_over(tmp_path, first, second):
    begun = gd.solve(make_problem(), first, callbacks=[stop_after(1)], tol=1e-9, checkpoint_dir=tmp_path)
    resumed = gd.solve(make_problem(), second, tol=1e-9, seed=3, checkpoint_dir=tmp_path)
    assert resumed.converged
    assert resumed.trace[: len(begun.trace)] == begun.trace
    assert "resumed" in resumed.solver


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("solver", ["sqp", "alem"])
def test_another_number_of_workers_takes_over(tmp_path, workers, solver):
    from groupdro.distributed import shard

    whole = gd.solve(make_problem(), solver, tol=1e-6)

    def run(comm, epochs):
        problem = make_problem()
        problem = problem.with_rows(shard(problem.data, comm))
        return gd.solve(problem, solver, tol=1e-6, callbacks=[stop_after(epochs)], checkpoint_dir=tmp_path)

    run_workers(2, lambda comm: run(comm, 2))
    resumed = run_workers(workers, lambda comm: run(comm, np.inf))
    assert all(result.converged for result in resumed)
    assert_overlap(resumed[0], whole)


def test_auto_continues_in_the_stage_that_it_had_reached(tmp_path):
    problem = unlike_curvatures()
    whole = gd.solve(problem, tol=1e-6)
    assert "newton takes over" in whole.solver
    gd.solve(problem, tol=1e-6, callbacks=[stop_after(whole.epochs - 1)], checkpoint_dir=tmp_path)
    (path,) = tmp_path.glob("*.npz")
    stage = str(np.load(path)["stage"])
    resumed = gd.solve(problem, tol=1e-6, checkpoint_dir=tmp_path)
    assert stage == "1 GroupSQP"
    assert resumed.converged
    assert "takes over" not in resumed.solver.split("resumed")[1]


def test_a_finished_run_costs_one_pass(tmp_path):
    first = gd.solve(make_problem(), "aleg", checkpoint_dir=tmp_path)
    again = gd.solve(make_problem(), "aleg", checkpoint_dir=tmp_path)
    assert again.converged
    assert again.passes == first.passes + 1
    np.testing.assert_array_equal(again.w, first.w)
    finer = gd.solve(make_problem(), "aleg", tol=1e-6, checkpoint_dir=tmp_path)
    assert finer.converged
    assert finer.epochs > first.epochs


@pytest.mark.parametrize("other", ["data", "domain", "objective", "version"])
def test_bounds_of_another_problem_are_not_used(tmp_path, monkeypatch, other):
    gd.solve(make_problem(), "sqp", checkpoint_dir=tmp_path)
    problem, solver = make_problem(seed=5 if other == "data" else 4), "alem" if other == "objective" else "sqp"
    if other == "domain":
        problem = gd.Problem(problem.data, gd.losses.Logistic(), gd.domains.L2Domain(radius=3.5))
    if other == "version":
        monkeypatch.setattr(checkpoint, "BOUNDS_VERSION", 99)
    fresh = gd.solve(problem, solver, checkpoint_dir=tmp_path)
    assert "resumed" not in fresh.solver
    assert fresh.trace[0].epoch == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_of_a_loss_from_elsewhere_only_the_point_is_taken_over(tmp_path):
    Expectile = runpy.run_path("docs/snippets/expectile.py")["Expectile"]
    results = []
    for level in (0.5, 0.9):
        problem = gd.Problem(make_problem("squared").data, Expectile(level), gd.domains.L2Domain(radius=1.0))
        results.append(
            (gd.solve(problem, "sqp", tol=1e-8, checkpoint_dir=tmp_path), gd.solve(problem, "sqp", tol=1e-8))
        )
    assert len(list(tmp_path.iterdir())) == 1
    for found, fresh in results:
        assert found.converged
        assert_overlap(found, fresh)
    again = gd.solve(problem, "sqp", tol=1e-8, checkpoint_dir=tmp_path)
    assert again.converged
    assert again.passes < results[1][1].passes  # it began at the solution


# ---------------------------------------------------------------------- what a bound belongs to


def changed_store(tmp_path, sparse):
    """Return a store, and a function that changes a number of one of its files without changing its size."""
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
def test_a_bound_is_not_used_for_a_store_whose_files_changed(tmp_path, sparse, name, workers):
    store, change = changed_store(tmp_path, sparse)

    def digest(comm):
        problem = gd.Problem(store.shard(comm).data(), gd.losses.Squared(), gd.domains.L2Domain(radius=1.0))
        return problem_digest(problem, excess=False)

    def refused(comm):
        with pytest.raises(gd.store.StoreError, match=rf"its {re.escape(name)} does not match the checksums"):
            digest(comm)
        return True

    assert len(set(run_workers(workers, digest))) == 1
    change(name)
    assert run_workers(workers, refused) == [True] * workers


def test_a_fit_on_a_changed_store_is_refused_with_checkpoints(tmp_path):
    store, change = changed_store(tmp_path, sparse=False)
    model = gd.GroupDRORegressor(checkpoint_dir=tmp_path / "run").fit(store)
    assert model.status_ == "converged"
    change("X.npy")
    with pytest.raises(gd.store.StoreError, match=r"X\.npy"):
        gd.GroupDRORegressor(checkpoint_dir=tmp_path / "run").fit(gd.GroupedStore.open(store.path))
    # Without checkpoints no old bound is used, and nothing is read twice.
    assert gd.GroupDRORegressor().fit(gd.GroupedStore.open(store.path)).status_ == "converged"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_byte_of_a_store_of_many_blocks_is_read_by_some_worker(tmp_path, monkeypatch, workers):
    monkeypatch.setattr("groupdro.store.files.BLOCK", 512)
    monkeypatch.setattr("groupdro.store.manifest.BLOCK", 512)
    store, _ = changed_store(tmp_path, sparse=True)
    size = (store.path / "data.npy").stat().st_size
    with open(store.path / "data.npy", "r+b") as file:
        for place in range(100, size, 500):
            file.seek(place)
            before = file.read(1)
            file.seek(place)
            file.write(bytes([before[0] ^ 1]))
            file.flush()
            with pytest.raises(gd.store.StoreError, match=r"data\.npy"):
                run_workers(workers, lambda comm: store.shard(comm).data().key_check())
            file.seek(place)
            file.write(before)
            file.flush()
    run_workers(workers, lambda comm: store.shard(comm).data().key_check())


@pytest.mark.parametrize("kind", ["dense", "float32", "sparse", "mapped"])
@pytest.mark.parametrize("row", [0, 1234, 2999])
def test_a_bound_is_not_used_for_data_that_differ_in_a_single_entry(tmp_path, kind, row):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3000, 4)), rng.choice([-1.0, 1.0], size=3000)

    def digest():
        np.save(tmp_path / "X.npy", X)
        held = {"dense": lambda: X, "float32": lambda: X.astype(np.float32), "sparse": lambda: sp.csr_array(X)}
        rows = held.get(kind, lambda: np.load(tmp_path / "X.npy", mmap_mode="r"))()
        data = gd.GroupedData.from_arrays(rows, y, np.repeat([0, 1], 1500))
        return problem_digest(gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=1.0)), excess=False)

    before = digest()
    assert digest() == before
    X[row, 2] += 1e-3
    assert digest() != before


# ---------------------------------------------------------------------- group minima


def test_minima_found_once_for_a_looser_tolerance_are_found_again(tmp_path):
    solver = gd.solvers.ALEM(gd.solvers.GroupSQP())
    rough = gd.solve(make_problem(), solver, tol=3e-2, checkpoint_dir=tmp_path)
    assert rough.converged
    fine = gd.solve(make_problem(), solver, tol=1e-4, checkpoint_dir=tmp_path)
    assert fine.converged
    assert fine.group_minima.lower.min() > 0.0


def test_minima_that_can_be_refined_are_refined_for_a_tighter_tolerance(tmp_path):
    rough = gd.solve(make_problem(), "alem", tol=3e-2, checkpoint_dir=tmp_path)
    fine = gd.solve(make_problem(), "alem", tol=1e-6, checkpoint_dir=tmp_path)
    assert rough.converged
    assert fine.converged
    assert fine.trace[: len(rough.trace)] == rough.trace
    widths = [(result.group_minima.upper - result.group_minima.lower).max() for result in (rough, fine)]
    assert widths[1] < widths[0]


@pytest.mark.parametrize("how", ["interrupt", "time limit"])
@pytest.mark.parametrize(
    "solver", [gd.solvers.ALEM(), gd.solvers.ALEM(gd.solvers.GroupSQP())], ids=["refined", "found once"]
)
def test_a_first_stage_that_was_cut_short_holds_nothing_back(tmp_path, monkeypatch, how, solver):
    epochs, whole_epoch = 0, gd.solvers.GroupSQP.epoch
    whole = gd.solve(make_problem(), solver, tol=1e-5)

    def interrupted(self, *args):
        nonlocal epochs
        epochs += 1
        if epochs == 3:
            raise KeyboardInterrupt
        whole_epoch(self, *args)

    with monkeypatch.context() as patch:
        if how == "interrupt":
            patch.setattr(gd.solvers.GroupSQP, "epoch", interrupted)
        limit = 1e-4 if how == "time limit" else np.inf
        short = gd.solve(make_problem(), solver, tol=1e-5, max_time=limit, checkpoint_dir=tmp_path)
    assert short.status is (gd.solvers.Status.INTERRUPTED if how == "interrupt" else gd.solvers.Status.TIME_LIMIT)
    resumed = gd.solve(make_problem(), solver, tol=1e-5, checkpoint_dir=tmp_path)
    assert resumed.converged
    assert_overlap(resumed, whole)


# ---------------------------------------------------------------------- files


def begun(tmp_path):
    """Write a checkpoint of a run after a few epochs, and return its file."""
    gd.solve(make_problem(), "alem", tol=1e-9, callbacks=[stop_after(3)], checkpoint_dir=tmp_path)
    (path,) = tmp_path.glob("*.npz")
    return path


def resumes(tmp_path):
    result = gd.solve(make_problem(), "alem", tol=1e-6, checkpoint_dir=tmp_path)
    assert result.converged
    return "resumed" in result.solver


def test_every_part_is_a_plain_array(tmp_path):
    with np.load(begun(tmp_path), allow_pickle=False) as file:
        parts = {name: file[name] for name in file.files}
    assert parts["best_w"].shape == (5,)
    assert parts["minima_upper"].shape == (3,)
    assert float(parts["lower"]) > 0


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text", "pipe", "folder"])
def test_a_damaged_checkpoint_starts_the_run_over(tmp_path, damage):
    path = begun(tmp_path)
    content = path.read_bytes()
    path.unlink()
    if damage == "pipe":
        os.mkfifo(path)
    elif damage == "folder":
        path.mkdir()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:middle], "flip": flipped, "empty": b"", "text": b"hello"}[damage])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not resumes(tmp_path)
    assert any("starts over" in str(one.message) for one in caught if one.category is CheckpointWarning)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("w", np.zeros(4)),
        ("w", np.full(5, np.nan)),
        ("best_w", np.zeros((5, 1))),
        ("q", np.ones(3, dtype=np.int64)),
        ("lower", np.array(np.inf)),
        ("counters", np.zeros(2)),
        ("trace", np.zeros((3, 6))),
        ("minima_upper", np.zeros(2)),
        ("cut_gradient", np.zeros(6)),
        ("digest", np.array("0" * 64)),
        ("surplus", np.zeros(1)),
        ("lower", None),
        ("w", np.array([object()] * 5)),
    ],
    ids=lambda value: str(value)[:20].replace("\n", " "),
)
def test_a_checkpoint_whose_parts_do_not_fit_starts_the_run_over(tmp_path, name, value):
    path = begun(tmp_path)
    with np.load(path) as file:
        parts = {key: file[key] for key in file.files} | {name: value}
    np.savez(path, **{key: part for key, part in parts.items() if part is not None})
    with pytest.warns(CheckpointWarning, match="starts over"):
        assert not resumes(tmp_path)


@pytest.mark.parametrize("size", [1e200, 1e300])
@pytest.mark.parametrize("names", [("w",), ("best_w",), ("w", "best_w")], ids=str)
def test_absurd_models_in_a_checkpoint_never_end_the_run(tmp_path, names, size):
    gd.solve(make_problem(), "auto", tol=1e-9, callbacks=[stop_after(2)], checkpoint_dir=tmp_path)
    (path,) = tmp_path.glob("*.npz")
    with np.load(path) as file:
        parts = dict(file)
    np.savez(path, **parts | {name: np.full_like(parts[name], size) for name in names})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = gd.solve(make_problem(), "auto", tol=1e-9, checkpoint_dir=tmp_path)
    assert result.converged
    # A bad last point costs nothing that was proved; a bad best model is damage.
    assert ("resumed" in result.solver) == (names == ("w",))
    assert [one.category for one in caught] == [CheckpointWarning] * ("best_w" in names)


def test_a_checkpoint_whose_members_are_larger_than_the_file_is_refused(tmp_path):
    path = begun(tmp_path)
    with np.load(path) as file:
        parts = {key: file[key] for key in file.files}
    np.savez_compressed(path, **parts | {"trace": np.zeros((10_000, 7))})
    with pytest.raises(ValueError, match="larger than the file"):
        Checkpoint.from_bytes(path.read_bytes(), make_problem())


def test_a_callback_that_fails_does_not_lose_the_epoch(tmp_path):
    def fail(progress):
        if progress.latest.epoch == 3:
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        gd.solve(make_problem(), "aleg", tol=1e-8, callbacks=[fail], checkpoint_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    assert np.load(path)["epoch"] == 3


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("groupdro.run.checkpoint.write_content", full)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = gd.solve(make_problem(), "aleg", checkpoint_dir=tmp_path)
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
        result = gd.solve(make_problem(), "aleg", tol=1e-6, callbacks=[remove], checkpoint_dir=place)
    assert result.converged
    assert len(caught) == 1


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        gd.solve(make_problem(), "aleg", checkpoint_dir=tmp_path / "file")


@pytest.mark.long
def test_killed_at_any_moment_a_run_resumes(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent("""
        import sys, time, numpy as np, groupdro as gd
        sys.path.insert(0, sys.argv[1])
        from tests.run.test_checkpoint import make_problem
        print("begun", flush=True)
        slow = lambda progress: time.sleep(0.02)
        result = gd.solve(make_problem(), "aleg", tol=1e-8, callbacks=[slow], checkpoint_dir=sys.argv[2])
        np.save(sys.argv[3], [result.lower_bound, result.upper_bound])
        """)
    )
    out = tmp_path / "bounds.npy"
    command = [sys.executable, str(script), os.getcwd(), str(tmp_path / "checkpoints"), str(out)]
    rng = np.random.default_rng(0)
    killed = 0
    for _ in range(20):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert killed
    lower, upper = np.load(out)
    whole = gd.solve(make_problem(), "aleg", tol=1e-8)
    assert upper - lower <= 1e-8 * upper
    assert lower <= whole.upper_bound
    assert whole.lower_bound <= upper
