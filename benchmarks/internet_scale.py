"""Hashed rows of ones at the size of click logs: writing a store from Parquet, a pass beside other tools, and fits.

    python -m benchmarks.internet_scale make FOLDER [--rows 40000000]      a table of clicks in Parquet files
    python -m benchmarks.internet_scale write FOLDER                       its store: MB/s and peak memory
    python -m benchmarks.internet_scale passes FOLDER [--rows 10000000]    one pass of ours and of other tools
    python -m benchmarks.internet_scale fit FOLDER [--workers 2] [--memory 6]   a fit to a relative gap of 1e-2

A row has 30 columns. The value of a column is drawn from a power law: the logarithm of its rank is uniform up to 2^22.
The 1,000 groups have sizes by a power law too. A click follows a logistic model with a weight for each of the commonest
values, one for the group, and for a third of the groups a weight of the opposite sign on ten of the columns, which is
what a single model gets wrong. `--memory` limits each worker to so many GB, cached pages of the store included, which
needs the right to make control groups (version 1). Results go to results/internet_scale.json, command by command.
"""

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.linear_model import LogisticRegression, SGDClassifier

from groupdro import GroupedStore, GroupRisk, L2Domain, Logistic, distributed, solve
from groupdro.data.csr_rows import CsrRows
from groupdro.distributed.launch import launch_command, launch_environment

N_COLUMNS, N_VALUES, N_GROUPS, N_FEATURES = 30, 2**22, 1000, 2**22
ROWS_PER_FILE = 1_000_000
PENALTY = 1e-5
MOST_PASSES = 120.0
RESULTS = Path(__file__).parent / "results" / "internet_scale.json"


def make_block(block: int, n_rows: int) -> pa.Table:
    """Return some rows of the table, which depend only on their number."""
    shared, rng = np.random.default_rng(0), np.random.default_rng([1, block])
    common = shared.normal(scale=0.4, size=(N_COLUMNS, 4096))
    shift, turned = shared.normal(scale=0.5, size=N_GROUPS), shared.random(N_GROUPS) < 1 / 3
    group = np.minimum(N_GROUPS ** rng.random(n_rows) - 1, N_GROUPS - 1).astype(np.int16)
    columns, score = {}, shift[group] - 1.0
    for c in range(N_COLUMNS):
        value = np.minimum(N_VALUES ** rng.random(n_rows) - 1, N_VALUES - 1).astype(np.int32)
        weight = np.where(value < 4096, common[c][np.minimum(value, 4095)], 0.0)
        score += np.where(turned[group] & (c < 10), -weight, weight)
        columns[f"c{c}"] = value
    click = (rng.random(n_rows) < 1 / (1 + np.exp(-score))).astype(np.int8)
    return pa.table({"click": click, "group": group} | columns)


def make(folder: Path, n_rows: int) -> dict[str, Any]:
    """Write the Parquet files."""
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    for block, first in enumerate(range(0, n_rows, ROWS_PER_FILE)):
        table = make_block(block, min(ROWS_PER_FILE, n_rows - first))
        pq.write_table(table, folder / "rows" / f"{block:04}.parquet", row_group_size=2**17)
    size = sum(file.stat().st_size for file in (folder / "rows").glob("*.parquet"))
    return {"rows": n_rows, "parquet_bytes": size, "seconds": time.perf_counter() - begun}


def write(folder: Path) -> dict[str, Any]:
    """Write the store by a stream over the files."""
    begun = time.perf_counter()
    store = GroupedStore.write(
        folder / "store", sorted((folder / "rows").glob("*.parquet")), target="click", groups="group", hashed=True,
        sparse=True, dtype="bool", n_features=N_FEATURES, overwrite=True,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    read = sum(file.stat().st_size for file in (folder / "rows").glob("*.parquet"))
    return {
        "rows": store.n_rows, "entries": int(store.X.nnz), "store_bytes": store.nbytes, "seconds": seconds,
        "MB_per_second_read": read / seconds / 1e6, "entries_per_second": store.X.nnz / seconds,
        "peak_GB": peak_memory(),
    }  # fmt: skip


def peak_memory() -> float:
    """Return the largest memory of this process in GB, with the pages of files that it mapped."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def anonymous_memory() -> float:
    """Return the memory of this process in GB at present, without pages of files."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1e6


def passes(folder: Path, n_rows: int) -> dict[str, Any]:
    """Time a pass over some rows on one core: loss and gradient of ours, one epoch of the others."""
    os.sched_setaffinity(0, {0})
    store = GroupedStore.open(folder / "store")
    rows = CsrRows(store.X).take(slice(0, n_rows))
    y = np.where(np.asarray(store.y[:n_rows]) == store.classes[1], 1.0, -1.0)
    flat = rows.flat(y, (0, 0.0), intercept=True)
    entries, found = int(rows.X.nnz), {}
    w, weights, norms = np.zeros(N_FEATURES + 1), np.full(len(y), 1 / len(y)), np.ones(len(y))
    margins, losses = np.empty(len(y)), np.empty(len(y))
    rows.take(slice(0, 10)).fused_pass(
        rows.take(slice(0, 10)).flat(y[:10], (0, 0.0), intercept=True), w, weights, norms, margins, losses
    )
    found["groupdro, a pass"] = best_of(lambda: rows.fused_pass(flat, w, weights, norms, margins, losses))
    X = rows.X.copy()
    X.data = np.ones(entries)
    sgd = SGDClassifier(loss="log_loss", alpha=PENALTY, max_iter=1, tol=None)
    found["scikit-learn, SGDClassifier, an epoch"] = best_of(lambda: sgd.fit(X, y))
    newton = LogisticRegression(C=1 / (PENALTY * len(y)), solver="liblinear", max_iter=1)
    found["liblinear, one Newton iteration"] = best_of(lambda: newton.fit(X, y))
    epoch = vowpal(folder, X, y)
    if epoch is not None:
        found["Vowpal Wabbit, an epoch"] = best_of(epoch)
    return {"rows": len(y), "entries": entries, "seconds": found,
            "entries_per_second": {name: entries / seconds for name, seconds in found.items()}}  # fmt: skip


def best_of(run: Callable[[], object], times: int = 3) -> float:
    """Return the least seconds of several runs."""
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def vowpal(folder: Path, X: Any, y: np.ndarray) -> Callable[[], object] | None:
    """Return an epoch of Vowpal Wabbit on its own cache of the rows, None if it is not installed."""
    if importlib.util.find_spec("vowpalwabbit") is None:
        return None
    text, cache = folder / "rows.vw", folder / "rows.cache"
    with text.open("w") as file:
        for r in range(len(y)):
            file.write(f"{int(y[r])} | {' '.join(map(str, X.indices[X.indptr[r] : X.indptr[r + 1]]))}\n")
    program = [sys.executable, "-m", "vowpalwabbit", "-d", str(text), "-b", "22", "--loss_function", "logistic"]
    program += ["--quiet", "--cache_file", str(cache), "--holdout_off"]
    subprocess.run([*program, "-k"], check=True)  # writes the cache
    return lambda: subprocess.run(program, check=True)


def fit(store: Path, n_workers: int, solver: str, memory: float) -> dict[str, Any]:
    """Fit by one worker, or by several under torchrun, each with one thread on a core of its own."""
    arguments = ["worker", str(store), "--solver", solver, "--memory", str(memory)]
    environment = launch_environment(os.environ, workers=n_workers) | {"NUMBA_NUM_THREADS": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), environment.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, *arguments]
    if n_workers > 1:
        command = launch_command(__file__, arguments, workers=n_workers, max_restarts=0)
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(next(line for line in printed.splitlines() if line.startswith("{")))


def show(progress: Any) -> None:
    """Print the bounds so far, because a fit may take longer than one waits."""
    row = progress.latest
    print(
        f"{row.seconds:.0f} s, {row.passes:.0f} passes: {row.lower:.4f} to {row.upper:.4f}", file=sys.stderr, flush=True
    )


def limit_memory(rank: int, gigabytes: float) -> Path:
    """Put this process into a control group of its own, and return its folder."""
    folder = Path(f"/sys/fs/cgroup/memory/groupdro-{rank}")
    folder.mkdir(exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(str(int(gigabytes * 1e9)))
    (folder / "memory.max_usage_in_bytes").write_text("0")
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    return folder


def work(store: Path, solver: str, memory: float) -> None:
    """Solve this worker's part."""
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    limited = limit_memory(rank, memory) if np.isfinite(memory) else None
    comm = distributed.communicator()
    data = GroupedStore.open(store).shard(comm).data()
    problem = GroupRisk(data, Logistic(), L2Domain(penalty=PENALTY), fit_intercept=True)
    begun = time.perf_counter()
    result = solve(problem, solver, tol=1e-2, max_passes=MOST_PASSES, callbacks=[show] if comm.rank == 0 else [])
    seconds = time.perf_counter() - begun
    if comm.rank == 0:
        found = {
            "workers": comm.size, "rows": problem.n_rows, "solver": result.solver, "status": result.status.name.lower(),
            "epochs": result.epochs, "passes": result.passes, "seconds": seconds,
            "entries_per_second": result.passes * N_COLUMNS * problem.n_rows / seconds, "upper": result.upper_bound,
            "lower": result.lower_bound, "seconds_of_messages": comm.seconds, "bytes_sent": comm.bytes_sent,
            "anonymous_GB": anonymous_memory(),
        }  # fmt: skip
        if limited is not None:
            used = int((limited / "memory.max_usage_in_bytes").read_text())
            found |= {"memory_limit_GB": memory, "memory_used_GB": used / 1e9}
        print(json.dumps(found), flush=True)
    comm.close()


def main() -> None:
    """Run one command, and add what it found to the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.internet_scale", description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=("make", "write", "passes", "fit", "worker"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--memory", type=float, default=float("inf"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.command == "worker":
        work(given.folder, given.solver, given.memory)
        return
    found = {
        "make": lambda: make(given.folder, given.rows or 40_000_000),
        "write": lambda: write(given.folder),
        "passes": lambda: passes(given.folder, given.rows or 10_000_000),
        "fit": lambda: fit(given.folder / "store", given.workers, given.solver, given.memory),
    }[given.command]()
    found["load_average"] = os.getloadavg()[0]
    name = given.command
    if given.command == "fit":
        name = f"fit of {found['rows']:,} rows, {given.solver}, {given.workers} workers"
    stored = json.loads(given.results.read_text()) if given.results.exists() else {}
    given.results.write_text(json.dumps(stored | {name: found}, indent=1) + "\n")
    print(json.dumps({name: found}, indent=1))


if __name__ == "__main__":
    main()
