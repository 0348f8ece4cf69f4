"""Memory of fits: a store larger than memory from end to end, and half precision.

    python -m benchmarks.small_memory store FOLDER [--gigabytes 5] [--limit 1]
    python -m benchmarks.small_memory halves FOLDER [--rows 500000] [--features 256]

`store` writes a table of float32 numbers as Parquet, then runs each step in a process of a control group (version 1)
limited to so many GB, in which cached pages of files count too: writing with `test_size`, fitting, a report and
predictions. `halves` fits float16 and float32 rows in memory, as a memory-mapped array and as a store. Results go to
results/small_memory.json, command by command. Files in FOLDER are deleted afterwards.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import groupdro as gd
from groupdro import GroupDROClassifier, GroupedStore

RESULTS = Path(__file__).parent / "results" / "small_memory.json"
CONTROL = Path("/sys/fs/cgroup/memory/groupdro-small-memory")
N_FEATURES, N_GROUPS, BATCH = 512, 20, 20_000
TEST_SIZE, TOL, MAX_TIME = 0.2, 1e-2, 300.0
STEPS = ("write", "fit", "report", "predict")
KINDS, TYPES, REPEATS = ("memory", "memmap", "store"), ("float16", "float32"), 3


def anonymous_memory() -> float:
    """Return the memory of this process in GB that is not backed by files, at present."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024 / 1e9


def watched(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return what a function does, its peak of anonymous memory in GB, that before it, and its CPU seconds."""
    before, ended = anonymous_memory(), threading.Event()
    peak = before

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.005):
            peak = max(peak, anonymous_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.process_time()
    try:
        done = work()
    finally:
        seconds = time.process_time() - begun
        ended.set()
        watcher.join()
    return done, {"before_GB": before, "peak_GB": peak, "cpu_seconds": seconds}


def batches(n_rows: int, n_features: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield rows, labels and groups whose rules differ."""
    rng = np.random.default_rng(0)
    rules = (rng.normal(size=n_features) + 0.5 * rng.normal(size=(N_GROUPS, n_features))) / np.sqrt(n_features)
    for start in range(0, n_rows, BATCH):
        n = min(BATCH, n_rows - start)
        X = rng.standard_normal((n, n_features), dtype=np.float32)
        group = rng.integers(0, N_GROUPS, size=n)
        scores = np.einsum("nd,nd->n", X, rules.astype(np.float32)[group])
        yield X, (scores + rng.logistic(size=n) > 0).astype(np.int8), group.astype(np.int16)


def make_parquet(path: Path, n_rows: int) -> None:
    schema = pa.schema([("x", pa.list_(pa.float32(), N_FEATURES)), ("label", pa.int8()), ("site", pa.int16())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for X, y, group in batches(n_rows, N_FEATURES):
            values = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), N_FEATURES)
            writer.write_batch(pa.record_batch([values, pa.array(y), pa.array(group)], schema=schema))


def run_step(step: str, folder: Path) -> dict[str, Any]:
    """Do one step in this process, inside the control group."""
    (CONTROL / "cgroup.procs").write_text(str(os.getpid()))
    model_path = folder / "model.joblib"
    if step == "write":
        (train, test), used = watched(
            lambda: GroupedStore.write(
                folder / "store", folder / "table.parquet", target="label", groups="site", test_size=TEST_SIZE,
                memory=2**27, overwrite=True,
            )
        )  # fmt: skip
        (folder / "paths.json").write_text(json.dumps([str(train.path), str(test.path)]))
        return {**used, "GB": [train.nbytes / 1e9, test.nbytes / 1e9]}
    import joblib

    train, test = (GroupedStore.open(path) for path in json.loads((folder / "paths.json").read_text()))
    if step == "fit":
        model, used = watched(lambda: GroupDROClassifier(alpha=1e-3, tol=TOL, max_time=MAX_TIME).fit(train))
        joblib.dump(model, model_path)
        return {**used, "status": model.status_, "gap": model.gap_ / model.upper_bound_, "passes": model.n_passes_}
    model = joblib.load(model_path)
    if step == "report":
        report, used = watched(lambda: gd.group_report(model, test, metrics=["accuracy", "roc_auc"]))
        return {**used, "worst_group": str(report.worst_group), "rows": test.n_rows}
    predicted, used = watched(lambda: model.predict(train))
    return {**used, "rows": len(predicted)}


def store(folder: Path, gigabytes: float, limit: float) -> dict[str, Any]:
    """Run all steps, each in a process with limited memory."""
    make_parquet(folder / "table.parquet", int(gigabytes * 1e9 / (4 * N_FEATURES)))
    CONTROL.mkdir(exist_ok=True)
    (CONTROL / "memory.limit_in_bytes").write_text(str(int(limit * 1e9)))
    found: dict[str, Any] = {"GB": gigabytes, "limit_GB": limit}
    try:
        for step in STEPS:
            (CONTROL / "memory.max_usage_in_bytes").write_text("0")
            begun = time.perf_counter()
            found[step] = in_new_process("step", step, str(folder))
            found[step]["with_cached_pages_GB"] = int((CONTROL / "memory.max_usage_in_bytes").read_text()) / 1e9
            print(step, found[step], f"{time.perf_counter() - begun:.0f} s", flush=True)
            if step == "write":
                (folder / "table.parquet").unlink()
    finally:
        CONTROL.rmdir()
    return found


def in_new_process(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.small_memory", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def run_half(kind: str, dtype: str, folder: Path) -> dict[str, Any]:
    """Fit rows of one type and kind in this process, after a small fit that compiles."""
    y, groups = np.load(folder / "y.npy"), np.load(folder / "groups.npy")
    path = folder / f"{dtype}.npy"
    X = GroupedStore.open(folder / dtype) if kind == "store" else np.load(path, mmap_mode="r")
    if kind == "memory":
        X = np.array(X)
    model = GroupDROClassifier(alpha=1e-3, tol=TOL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = np.load(path, mmap_mode="r")[:2000]
        GroupDROClassifier(alpha=1e-3, tol=TOL).fit(small, y[:2000], groups=groups[:2000])
        runs = [
            watched(lambda: model.fit(X) if kind == "store" else model.fit(X, y, groups=groups))[1]
            for _ in range(REPEATS)
        ]
    return {
        "above_GB": max(run["peak_GB"] - run["before_GB"] for run in runs),
        "cpu_seconds": min(run["cpu_seconds"] for run in runs),
        "passes": model.n_passes_,
        "status": model.status_,
    }


def halves(folder: Path, n_rows: int, n_features: int) -> dict[str, Any]:
    """Compare float16 with float32."""
    whole = [np.concatenate(part) for part in zip(*batches(n_rows, n_features), strict=True)]
    X, y, groups = whole
    np.save(folder / "y.npy", y)
    np.save(folder / "groups.npy", groups)
    found: dict[str, Any] = {"rows": n_rows, "features": n_features}
    for dtype in TYPES:
        np.save(folder / f"{dtype}.npy", X.astype(dtype))
        GroupedStore.write_arrays(folder / dtype, X, y, groups, dtype=dtype, overwrite=True)
    del X, y, groups, whole
    for kind in KINDS:
        for dtype in TYPES:
            found[f"{kind}, {dtype}"] = in_new_process("half", kind, dtype, str(folder))
            print(kind, dtype, found[f"{kind}, {dtype}"], flush=True)
        slow, fast = (found[f"{kind}, {dtype}"]["cpu_seconds"] for dtype in TYPES)
        found[f"{kind}, time over float32"] = slow / fast
    return found


def keep(name: str, found: dict[str, Any]) -> None:
    """Add the result of a command to the file."""
    record = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    record[name] = found
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_memory")
    commands = parser.add_subparsers(dest="command", required=True)
    asked = commands.add_parser("store")
    asked.add_argument("folder", type=Path)
    asked.add_argument("--gigabytes", type=float, default=5.0)
    asked.add_argument("--limit", type=float, default=1.0)
    asked = commands.add_parser("halves")
    asked.add_argument("folder", type=Path)
    asked.add_argument("--rows", type=int, default=500_000)
    asked.add_argument("--features", type=int, default=256)
    for name in ("step", "half"):  # of `store` and `halves`, in a process of their own
        asked = commands.add_parser(name)
        asked.add_argument("parts", nargs="+")
        asked.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.command in ("step", "half"):
        print(json.dumps((run_step if given.command == "step" else run_half)(*given.parts, given.folder)))
        return
    folder = given.folder / "small-memory"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if given.command == "store":
            keep("store", store(folder, given.gigabytes, given.limit))
        else:
            keep("halves", halves(folder, given.rows, given.features))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
