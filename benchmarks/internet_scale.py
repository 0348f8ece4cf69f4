"""Hashed rows of ones at the size of click logs: writing a store from Parquet, a pass beside other tools, and fits.

    python -m benchmarks.internet_scale make FOLDER [--rows 40000000]      a table of clicks in Parquet files
    python -m benchmarks.internet_scale write FOLDER                       its store: MB/s and peak memory
    python -m benchmarks.internet_scale passes FOLDER [--rows 10000000]    one pass of ours and of other tools
    python -m benchmarks.internet_scale race FOLDER [--seconds 60]         worst group of each tool after the same time
    python -m benchmarks.internet_scale fit FOLDER [--workers 2] [--memory 6]   a fit to a relative gap of 1e-2
    python -m benchmarks.internet_scale messages FOLDER                    what two workers exchange, by the features
    python -m benchmarks.internet_scale groups FOLDER                      fits to many groups of few rows

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
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, SGDClassifier

from benchmarks.torchrun import torchrun_command, torchrun_environment
from groupdro import GroupedStore, Problem, distributed, solve
from groupdro.data.csr_rows import CsrRows
from groupdro.domains import L2Domain
from groupdro.losses import Logistic
from groupdro.oracle import Oracle

N_COLUMNS, N_VALUES, N_GROUPS, N_FEATURES = 30, 2**22, 1000, 2**22
ROWS_PER_FILE = 1_000_000
PENALTY = 1e-5
MOST_PASSES = 120.0
WIDTHS = (2**14, 2**17, 2**20, 2**23)  # features for which messages are counted
FEW_PASSES = 15.0
SPLITS, GROUP_ROWS = (10, 100, 1000), 1_000_000  # parts of a group; rows of those fits
GROUP_PASSES = 240.0
VOWPAL = [sys.executable, "-m", "vowpalwabbit", "-b", "22", "--loss_function", "logistic", "--quiet", "--holdout_off"]
VOWPAL_CONSTANT = 11650396  # hash of its intercept
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


def write(folder: Path, n_features: int = N_FEATURES, name: str = "store") -> dict[str, Any]:
    """Write the store by a stream over the files."""
    begun = time.perf_counter()
    store = GroupedStore.write(
        folder / name, sorted((folder / "rows").glob("*.parquet")), target="click", groups="group", hashed=True,
        sparse=True, dtype="bool", n_features=n_features, overwrite=True,
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
    y = signs(store, n_rows)
    flat = rows.flat(y, np.empty(0), (0, 0.0), intercept=True)
    entries, found = int(rows.X.nnz), {}
    w, weights, norms = np.zeros(N_FEATURES + 1), np.full(len(y), 1 / len(y)), np.ones(len(y))
    margins, losses = np.empty(len(y)), np.empty(len(y))
    rows.take(slice(0, 10)).fused_pass(
        rows.take(slice(0, 10)).flat(y[:10], np.empty(0), (0, 0.0), intercept=True), w, weights, norms, margins, losses
    )
    found["groupdro, a pass"] = best_of(lambda: rows.fused_pass(flat, w, weights, norms, margins, losses))
    X = with_values(rows)
    sgd = SGDClassifier(loss="log_loss", alpha=PENALTY, max_iter=1, tol=None)
    found["scikit-learn, SGDClassifier, an epoch"] = best_of(lambda: sgd.fit(X, y))
    newton = LogisticRegression(C=1 / (PENALTY * len(y)), solver="liblinear", max_iter=1)
    found["liblinear, one Newton iteration"] = best_of(lambda: newton.fit(X, y))
    epoch = vowpal(folder, X, y)
    if epoch is not None:
        found["Vowpal Wabbit, an epoch"] = best_of(epoch)
    return {"rows": len(y), "entries": entries, "seconds": found,
            "entries_per_second": {name: entries / seconds for name, seconds in found.items()}}  # fmt: skip


def signs(store: GroupedStore, n_rows: int | None = None) -> np.ndarray:
    """Return the labels as -1 and 1."""
    return np.where(np.asarray(store.y[:n_rows]) == store.classes[1], 1.0, -1.0)


def with_values(rows: CsrRows) -> Any:
    """Return rows of ones with their values, which other tools need."""
    X = rows.X.copy()
    X.data = np.ones(X.nnz)
    return X


def race(folder: Path, seconds: float) -> dict[str, Any]:
    """Train with every tool on one core for the same time, and judge the models on training and on other rows.

    Tools other than ours minimise the average, Vowpal Wabbit without a penalty. Each runs as many epochs as fit into
    the time, at least one; reading the store or the text and looking at the model is not counted, except that Vowpal
    Wabbit reads its cache.
    """
    os.sched_setaffinity(0, {0})
    store, other = GroupedStore.open(folder / "store"), held_out(folder)
    problem, test = (
        Problem(each.data(), Logistic(), L2Domain(penalty=PENALTY), fit_intercept=True) for each in (store, other)
    )
    X, y, found = with_values(CsrRows(store.X)), signs(store), {}

    def judged(w: np.ndarray, spent: float, epochs: float) -> dict[str, float]:
        risks, others, sizes = Oracle(problem).risks(w), Oracle(test).risks(w), test.data.all_sizes
        return {
            "worst_value": float(risks.max()) + problem.domain.penalty_at(problem.coef(w)),
            "worst_held_out": float(others.max()), "average_held_out": float(others @ sizes / sizes.sum()),
            "seconds": spent, "epochs": epochs,
        }  # fmt: skip

    solve(problem, "auto", tol=1e-2, max_passes=1e-9)  # compiles
    begun = time.perf_counter()
    result = solve(problem, "auto", tol=1e-9, max_passes=np.inf, max_time=seconds, callbacks=[show])
    found["groupdro"] = judged(result.w, time.perf_counter() - begun, result.epochs)
    found["groupdro"] |= {"lower": result.lower_bound, "passes": result.passes}

    sgd, epochs = SGDClassifier(loss="log_loss", alpha=PENALTY), 0
    begun = time.perf_counter()
    while not epochs or (time.perf_counter() - begun) * (epochs + 1) / epochs <= seconds:
        sgd.partial_fit(X, y, classes=[-1.0, 1.0])
        epochs += 1
    spent = time.perf_counter() - begun
    found["scikit-learn, SGDClassifier"] = judged(np.append(sgd.coef_[0], sgd.intercept_), spent, epochs)
    found["liblinear"] = longest(lambda k: judged(*newton_iterations(X, y, k), k), seconds)
    if vowpal(folder, X, y) is not None:
        found["Vowpal Wabbit"] = longest(lambda k: judged(*vowpal_passes(folder, k), k), seconds)
    return {"rows": len(y), "held_out_rows": test.n_rows, "seconds": seconds, "tools": found}


def held_out(folder: Path) -> GroupedStore:
    """Return a store of rows that are not in the table, by the same rule."""
    if not (folder / "others" / "store").exists():
        n_rows = min(ROWS_PER_FILE, GroupedStore.open(folder / "store").n_rows)
        (folder / "others" / "rows").mkdir(parents=True, exist_ok=True)
        pq.write_table(make_block(10_000, n_rows), folder / "others" / "rows" / "0000.parquet")
        write(folder / "others")
    return GroupedStore.open(folder / "others" / "store")


def longest(run: Callable[[int], dict[str, float]], seconds: float) -> dict[str, float]:
    """Return a run with as many epochs as fit into the time, by doubling and then by one guess."""
    best, k = run(1), 1
    for _ in range(8):
        per_epoch = best["seconds"] / best["epochs"]
        guess = min(2 * k, int(seconds / per_epoch))
        if guess <= k:
            break
        tried = run(guess)
        if tried["seconds"] > seconds:
            break
        best, k = tried, guess
    return best


def newton_iterations(X: Any, y: np.ndarray, k: int) -> tuple[np.ndarray, float]:
    """Return liblinear's model after some Newton iterations, and the seconds."""
    model = LogisticRegression(C=1 / (PENALTY * len(y)), solver="liblinear", max_iter=k, tol=1e-12)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return np.append(model.coef_[0], model.intercept_), time.perf_counter() - begun


def vowpal_passes(folder: Path, k: int) -> tuple[np.ndarray, float]:
    """Return Vowpal Wabbit's model after some passes, and the seconds."""
    program = [*VOWPAL, "-d", str(folder / "rows.vw"), "--cache_file", str(folder / "rows.cache")]
    model, readable = folder / "model.vw", folder / "model.txt"
    begun = time.perf_counter()
    subprocess.run([*program, "--passes", str(k), "-f", str(model)], check=True)
    spent, w = time.perf_counter() - begun, np.zeros(N_FEATURES + 1)
    subprocess.run([*VOWPAL, "-t", "-d", os.devnull, "-i", str(model), "--readable_model", str(readable)], check=True)
    for line in readable.read_text().splitlines():
        place, _, value = line.partition(":")
        if place.isdigit() and value:
            w[int(place)] = float(value)
    w[-1] = w[VOWPAL_CONSTANT % N_FEATURES]
    return w, spent


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
        for r in vowpal_order(len(y)):
            file.write(f"{int(y[r])} | {' '.join(map(str, X.indices[X.indptr[r] : X.indptr[r + 1]]))}\n")
    program = [*VOWPAL, "-d", str(text), "--cache_file", str(cache)]
    subprocess.run([*program, "-k"], check=True)  # writes the cache
    return lambda: subprocess.run(program, check=True)


def vowpal_order(n_rows: int) -> np.ndarray:
    """Return the order of the rows in the text: the store's is by group, which would mislead a tool that goes along."""
    return np.random.default_rng(0).permutation(n_rows)


def messages(folder: Path) -> dict[str, Any]:
    """Hash the table to several numbers of features, and let two workers make a few epochs with each."""
    found = {}
    for width in WIDTHS:
        name = f"store_{width}"
        if not (folder / name).exists():
            write(folder, width, name)
        run = fit(folder / name, 2, "auto", np.inf, FEW_PASSES)
        found[f"{width:,} features"] = {
            "solver": run["solver"], "epochs": run["epochs"], "passes": run["passes"], "seconds": run["seconds"],
            "MB_per_epoch": run["bytes_sent"] / run["epochs"] / 1e6,
            "share_of_messages": run["seconds_of_messages"] / run["seconds"], "rows": run["rows"],
        }  # fmt: skip
    return found


def groups(folder: Path) -> dict[str, Any]:
    """Split every group by the values of a column, and fit to many groups of few rows."""
    found = {}
    for split in SPLITS:
        name = f"split_{split}"
        if not (folder / name / "store").exists():
            (folder / name / "rows").mkdir(parents=True, exist_ok=True)
            table = pq.read_table(sorted((folder / "rows").glob("*.parquet"))[0]).slice(0, GROUP_ROWS)
            group = table["group"].to_numpy().astype(np.int64) * split + table["c0"].to_numpy() % split
            place = table.schema.get_field_index("group")
            pq.write_table(table.set_column(place, "group", pa.array(group)), folder / name / "rows" / "0000.parquet")
            write(folder / name, 2**20)
        sizes = np.asarray(GroupedStore.open(folder / name / "store").group_sizes)
        run = fit(folder / name / "store", 1, "auto", np.inf, GROUP_PASSES)
        together = fit(folder / name / "store", 2, "auto", np.inf, GROUP_PASSES)
        facts = {"median_rows": float(np.median(sizes)), "single": int((sizes == 1).sum())}
        found[f"{len(sizes):,} groups"] = run | facts | {"together": together}
    return found


def fit(store: Path, n_workers: int, solver: str, memory: float, most_passes: float = MOST_PASSES) -> dict[str, Any]:
    """Fit by one worker, or by several under torchrun, each with one thread on a core of its own."""
    arguments = ["worker", str(store), "--solver", solver, "--memory", str(memory), "--passes", str(most_passes)]
    environment = torchrun_environment() | {"NUMBA_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    program = [__file__, *arguments]
    command = [sys.executable, *program] if n_workers == 1 else torchrun_command(n_workers, program)
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


def work(store: Path, solver: str, memory: float, most_passes: float) -> None:
    """Solve this worker's part."""
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    limited = limit_memory(rank, memory) if np.isfinite(memory) else None
    comm = distributed.communicator()
    data = GroupedStore.open(store).shard(comm).data()
    problem = Problem(data, Logistic(), L2Domain(penalty=PENALTY), fit_intercept=True)
    begun = time.perf_counter()
    result = solve(problem, solver, tol=1e-2, max_passes=most_passes, callbacks=[show] if comm.rank == 0 else [])
    seconds = time.perf_counter() - begun
    if comm.rank == 0:
        found = {
            "workers": comm.size, "rows": problem.n_rows, "features": problem.data.n_features,
            "solver": result.solver, "status": result.status.name.lower(),
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
    parser.add_argument("command", choices=("make", "write", "passes", "race", "fit", "messages", "groups", "worker"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--store", default="store", help="name of the store within the folder")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--passes", type=float, default=MOST_PASSES)
    parser.add_argument("--memory", type=float, default=float("inf"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.command == "worker":
        work(given.folder, given.solver, given.memory, given.passes)
        return
    found = {
        "make": lambda: make(given.folder, given.rows or 40_000_000),
        "write": lambda: write(given.folder),
        "passes": lambda: passes(given.folder, given.rows or 10_000_000),
        "race": lambda: race(given.folder, given.seconds),
        "messages": lambda: messages(given.folder),
        "groups": lambda: groups(given.folder),
        "fit": lambda: fit(given.folder / given.store, given.workers, given.solver, given.memory),
    }[given.command]()
    found["load_average"] = os.getloadavg()[0]
    name = given.command
    if given.command == "fit":
        name = f"fit of {found['rows']:,} rows, {given.solver}, {given.workers} workers"
        name += f", {found['features']:,} features" * (found["features"] != N_FEATURES)
    stored = json.loads(given.results.read_text()) if given.results.exists() else {}
    given.results.write_text(json.dumps(stored | {name: found}, indent=1) + "\n")
    print(json.dumps({name: found}, indent=1))


if __name__ == "__main__":
    main()
