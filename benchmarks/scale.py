"""Tables larger than memory, and several workers.

    python -m benchmarks.scale make FOLDER [ROWS FEATURES GROUPS]   writes a table to FOLDER/table.parquet, and a store
    python -m benchmarks.scale fit FOLDER/store [TOL]               fits it; passes, seconds, GB/s, resident memory
    python -m benchmarks.scale passes FOLDER/store                  rates of the full pass and of the inner pass
    python -m benchmarks.scale workers FOLDER/store                 1, 2, 3 and 4 workers on the same store
    python -m benchmarks.scale groups                               10^5 groups over two workers
    python -m benchmarks.scale csr                                  10^6 sparse features over two workers

Run `fit` and `passes` under a limit, such as `systemd-run --scope -p MemoryMax=4G`, to see that it holds.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import groupdro as gd
from benchmarks.torchrun import torchrun_command, torchrun_environment
from groupdro.oracle import Oracle
from groupdro.solvers.steps import InnerLoop, make_steps

BATCH = 20_000


def make(folder: str, n_rows: int = 10_000_000, n_features: int = 512, n_groups: int = 100) -> None:
    """Write a table whose groups differ in their rule, and turn it into a store."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    rules = rng.normal(size=n_features) + 0.7 * rng.normal(size=(n_groups, n_features))
    rules /= np.sqrt(n_features)
    kind = pa.list_(pa.float32(), n_features)
    schema = pa.schema([("x", kind), ("label", pa.int8()), ("site", pa.int16())])
    begun = time.perf_counter()
    with pq.ParquetWriter(path / "table.parquet", schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, n_rows, BATCH):
            n = min(BATCH, n_rows - start)
            X = rng.standard_normal((n, n_features), dtype=np.float32)
            group = rng.integers(0, n_groups, size=n)
            score = np.einsum("nd,nd->n", X, rules[group].astype(np.float32)) + rng.logistic(size=n)
            values = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), n_features)
            columns = [values, pa.array((score > 0).astype(np.int8)), pa.array(group.astype(np.int16))]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    size = (path / "table.parquet").stat().st_size / 1e9
    print(f"parquet: {n_rows} rows, {size:.1f} GB, {time.perf_counter() - begun:.0f} s", flush=True)
    begun = time.perf_counter()
    store = gd.GroupedStore.write(
        path / "store", path / "table.parquet", target="label", groups="site", memory=2**28, overwrite=True
    )
    seconds = time.perf_counter() - begun
    print(
        f"store: {store.nbytes / 1e9:.1f} GB in {seconds:.0f} s, {store.nbytes / 1e6 / seconds:.0f} MB/s, "
        f"peak resident {peak():.2f} GB"
    )


def peak() -> float:
    """Return the largest resident memory so far in GB, pages of mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def anonymous() -> float:
    """Return the memory in GB that is not backed by files, now."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) * 1024 / 1e9


def fit(store: str, tol: str = "1e-2") -> None:
    """Fit a store to a certified relative gap."""
    table = gd.GroupedStore.open(store)
    largest = 0.0

    def watch(progress: object) -> None:
        nonlocal largest
        largest = max(largest, anonymous())
        row = progress.latest  # type: ignore[attr-defined]
        print(f"  epoch {row.epoch}: {row.passes:.1f} passes, {row.seconds:.0f} s, gap {row.gap:.2e}", flush=True)

    begun = time.perf_counter()
    model = gd.GroupDROClassifier(alpha=1e-3, tol=float(tol), solver="aleg", random_state=0, callbacks=[watch])
    model.fit(table)
    seconds = time.perf_counter() - begun
    print(
        f"{model.status_}: relative gap {model.gap_ / model.upper_bound_:.1e}, {model.n_passes_:.1f} passes, "
        f"{seconds:.0f} s, {model.n_passes_ * table.nbytes / 1e9 / seconds:.2f} GB/s, memory of its own "
        f"{largest:.2f} GB, peak resident with mapped pages {peak():.2f} GB"
    )


def passes(store: str) -> None:
    """Time a full pass and an inner pass."""
    table = gd.GroupedStore.open(store)
    problem = gd.Problem(table.data(), gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-3))
    print(f"rows in memory: {problem.data.rows.in_memory}", flush=True)
    oracle, solver = Oracle(problem), gd.solvers.ALEG()
    w, q = problem.centre(), problem.central_weights()
    rates = {}
    begun = time.perf_counter()
    at = oracle.evaluate(w, q)
    rates["full"] = table.nbytes / 1e9 / (time.perf_counter() - begun)
    plan = solver.plan(problem)
    loop = InnerLoop(
        oracle=oracle, at=at, geometry=problem.geometry(), w_steps=1e-6, q_step=1e-6, alpha=1.0 / plan.steps, w=w,
        w_centre=w, logits=np.log(q), logit_centre=np.log(q),
    )  # fmt: skip
    steps = plan.steps // 4
    begun = time.perf_counter()
    make_steps(loop, plan, steps, np.random.default_rng(0))
    bytes_read = steps * len(plan.groups) * table.nbytes / len(table)
    rates["inner"] = bytes_read / 1e9 / (time.perf_counter() - begun)
    print(
        f"full pass {rates['full']:.2f} GB/s, inner pass {rates['inner']:.2f} GB/s "
        f"({rates['inner'] / rates['full']:.2f} of it), {len(plan.groups)} rows a step, peak resident {peak():.2f} GB"
    )


WORKER = """
import hashlib, json, os, sys, time
import numpy as np
import groupdro as gd

kind, path, out, tol, epochs = sys.argv[1:6]
os.sched_setaffinity(0, {int(os.environ.get("LOCAL_RANK", "0")) % os.cpu_count()})
comm = gd.distributed.communicator()
data = gd.GroupedStore.open(path).shard(comm).data()
penalty = float(os.environ.get("PENALTY", "1e-3"))
problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=penalty))
solver = gd.solvers.GroupSQP("lbfgs") if kind == "sqp" else gd.solvers.ALEG()
waited = comm.seconds
result = gd.solve(problem, solver, tol=float(tol), max_passes=1000.0, seed=0,
                  callbacks=[lambda p: p.latest.epoch >= int(epochs)])
waited = comm.seconds - waited
digest = hashlib.sha256(result.w.tobytes() + result.q.tobytes()).hexdigest()
trace = [(r.passes, r.seconds, r.upper, r.lower) for r in result.trace]
plan = gd.solvers.ALEG().plan(problem) if kind != "sqp" else None
record = dict(rank=comm.rank, digest=digest, upper=result.upper_bound, lower=result.lower_bound,
              status=result.status.name,
              seconds=result.seconds, waited=waited, calls=comm.calls, passes=result.passes, epochs=result.epochs,
              trace=trace, rows_per_step=None if plan is None else len(plan.groups))
with open(f"{out}/{comm.rank}.json", "w") as file:
    json.dump(record, file)
comm.close()
"""


def run_workers(n: int, store: str, *, kind: str = "aleg", tol: str = "1e-3", epochs: int = 1000) -> list:
    """Return what each of n workers found, each on a core of its own as far as there are so many."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "worker.py"
        script.write_text(WORKER)
        program = [str(script), kind, store, folder, tol, str(epochs)]
        command = [sys.executable, *program] if n == 1 else torchrun_command(n, program)
        subprocess.run(command, check=True, env=torchrun_environment())
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(n)]


def report(n: int, found: list, alone: list | None) -> None:
    """Print a line for n workers."""
    first = found[0]
    same = len({record["digest"] for record in found}) == 1
    per_epoch = first["seconds"] / max(first["epochs"], 1)
    faster = (
        "" if alone is None else f", {alone[0]['seconds'] / max(alone[0]['epochs'], 1) / per_epoch:.2f} times as fast"
    )
    share = max(record["waited"] / record["seconds"] for record in found)
    print(
        f"{n} workers: {first['status'].lower()}, [{first['lower']:.6f}, {first['upper']:.6f}], "
        f"{first['epochs']} epochs, "
        f"{first['passes']:.1f} passes, {per_epoch:.2f} s an epoch{faster}, communication {share:.0%} "
        f"({first['calls']} calls), {first['rows_per_step']} rows a step, same bits: {same}",
        flush=True,
    )


def workers(store: str) -> None:
    """Compare numbers of workers."""
    from groupdro.distributed import cost

    table = gd.GroupedStore.open(store)
    alone = None
    for n in (1, 2, 3, 4):
        found = run_workers(n, store)
        report(n, found, alone)
        alone = alone or found
        d, m, per_step = table.n_features, table.n_groups, found[0]["rows_per_step"]
        talk = cost.exchange_seconds(d + m, n)
        work = cost._SECONDS_PER_STEP + cost._SECONDS_PER_VALUE * per_step / n * d
        print(f"  the cost model expects {talk / (talk + work):.0%} of a step for communication")


def groups() -> None:
    """Fit 10^5 groups of 100 rows over one and two workers."""
    rng = np.random.default_rng(0)
    m, n, d = 100_000, 100, 100
    X = rng.standard_normal((m * n, d), dtype=np.float32)
    shared = (rng.standard_normal(d) / 10).astype(np.float32)
    noise = np.repeat(rng.standard_normal(m), n) * 0.5
    y = (X @ shared + noise + rng.standard_normal(m * n) > 0).astype(np.int8)
    compare(X, y, np.repeat(np.arange(m), n), "1e-2", penalty=1e-3)


def csr() -> None:
    """Fit 10^6 sparse features over one and two workers."""
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    n, d, entries, m = 1_000_000, 1_000_000, 50, 100
    popular = np.minimum((d * rng.random((n, entries)) ** 3).astype(np.int32), d - 1)
    values = np.ones(n * entries, dtype=np.float32)
    X = sp.csr_array((values, popular.ravel(), np.arange(0, n * entries + 1, entries)), shape=(n, d))
    X.sum_duplicates()
    X.data /= np.sqrt(entries)
    groups = rng.integers(0, m, size=n)
    rule = rng.normal(size=d)
    y = (X @ rule + 0.3 * rng.normal(size=m)[groups] + rng.logistic(size=n) > 0).astype(int)
    compare(X, y, groups, "1e-2", penalty=1e-6)


def compare(X: object, y: np.ndarray, groups: np.ndarray, tol: str, *, penalty: float) -> None:
    """Print a run of one and of two workers, of SQP and of ALEG."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("GROUPDRO_SCRATCH")) as folder:
        store = str(Path(folder) / "store")
        os.environ["PENALTY"] = str(penalty)
        gd.GroupedStore.write_arrays(store, X, y, groups)
        for kind in ("aleg", "sqp"):
            if kind == "sqp" and X.shape[1] * len(np.unique(groups)) > 5e7:  # type: ignore[attr-defined]
                print("sqp: the groups' gradients would not fit in memory")
                continue
            alone = None
            for n in (1, 2):
                found = run_workers(n, store, kind=kind, tol=tol, epochs=12)
                print(kind, end=" ")
                report(n, found, alone)
                alone = found


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    {"make": make, "fit": fit, "passes": passes, "workers": workers, "groups": groups, "csr": csr}[name](
        *(int(a) if a.isdigit() else a for a in arguments)
    )
