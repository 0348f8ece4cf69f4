"""Epochs of distributed solvers on networks of known rate and delay, measured and modelled.

    python -m benchmarks.network [--results FILE]      needs Linux, root, torch, and `ip` and `tc` of iproute2; resumes

Every worker is a process in a network namespace of its own. Without a delay, the namespaces are joined by veth pairs
and a bridge. With one, each has a TAP device, and a relay process forwards every frame after the delay. A token bucket
(`tc` with tbf) limits what a worker sends to 1 or 10 Gbit/s. Two problems are solved by 2, 4 and 8 workers: dense rows
by ALEG, which sends many short messages, and hashed rows of ones by sketched SQP, which sends few long ones. TCP starts
with windows that hold a long message and keeps them when idle, because the model has no term for their growth.

Calibrated for 2, 4 and 8 workers on two networks whose rate is not limited, veth pairs and a relay with a delay that is
not among the measured ones, and never from an epoch that the model is compared with:

- computing: CPU seconds of each worker per epoch outside of all-reduces, and the lengths of the all-reduces of each
  epoch. Workers are bound to cores in turn, and the busiest core counts. On veth pairs only.
- messages: seconds of an exchange by its length, as a fixed part (all-reduces of 64 numbers) and a part per byte (of
  10^6 numbers).

Predicted from these, the rate and the delay by the formulas of `network_model`: the seconds of an epoch, and the bytes
that a worker sends.

Results go to results/network.json: calibration, combinations, and apart from them what the model extrapolates to.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.network_links import LIMIT, enter, network
from benchmarks.network_model import SIZES, Exchange, Link, fit_costs, model_epochs
from groupdro import GroupedStore, Problem, solve
from groupdro.data.communicator import Numbers
from groupdro.distributed import TorchCommunicator
from groupdro.domains import L2Domain
from groupdro.losses import Logistic

WORKERS, RATES, DELAYS = (2, 4, 8), (1e9, 1e10), (0.0, 1e-4, 1e-3)  # bits per second; seconds one way, 0 for veth pairs
PROBE_DELAY = 3e-4  # of the relay, when it is calibrated
SOLVERS = {"dense": "aleg", "sparse": "sketched-sqp"}
N_FEATURES, N_ENTRIES = {"dense": 200, "sparse": 2**20}, {"dense": 200, "sparse": 30}
N_GROUPS = {"dense": 20, "sparse": 50}
EPOCHS = 8  # the first is not counted
RESULTS = Path(__file__).parent / "results" / "network.json"

# ---------------------------------------------------------------------- workers


class CountingCommunicator(TorchCommunicator):
    """Counts the lengths of all-reduces, and the CPU seconds that this thread spends in them."""

    def __init__(self, *given: Any, **more: Any):
        super().__init__(*given, **more)
        self.lengths: Counter[int] = Counter()
        self.cpu = 0.0

    def _allreduce(self, values: Numbers, combine: np.ufunc) -> None:
        begun = time.thread_time()
        super()._allreduce(values, combine)
        self.cpu += time.thread_time() - begun
        self.lengths[values.size] += 1


def probe_messages(comm: CountingCommunicator) -> dict[str, dict[str, float]]:
    """Time all-reduces of a few lengths."""
    found = {}
    for n, times in SIZES.items():
        array, taken = np.zeros(n), []
        for _ in range(5):
            comm.allreduce(array)
        for _ in range(times):
            begun = time.perf_counter()
            comm.allreduce(array)
            taken.append(time.perf_counter() - begun)
        found[str(n)] = {"seconds": float(np.median(taken))}
    return found


def probe_epochs(comm: CountingCommunicator, folder: Path, kind: str) -> list[dict[str, Any]]:
    """Solve for a few epochs, and return what each of them took."""
    data = GroupedStore.open(folder / kind).shard(comm).data()
    problem = Problem(data, Logistic(), L2Domain(penalty=1e-4), fit_intercept=True)
    found: list[dict[str, Any]] = []

    def so_far() -> dict[str, float]:
        cpu = time.thread_time() - comm.cpu
        return {"seconds": time.perf_counter(), "cpu": cpu, "messages": comm.seconds, "bytes": comm.bytes_sent}

    at = so_far()
    comm.lengths.clear()

    def note(progress: Any) -> bool:
        now = so_far()
        found.append({name: now[name] - at[name] for name in now} | {"calls": dict(comm.lengths)})
        at.update(now)
        comm.lengths.clear()
        return progress.latest.epoch >= EPOCHS

    solve(problem, SOLVERS[kind], tol=1e-14, max_passes=1e6, seed=0, callbacks=[note])
    return found[-EPOCHS + 1 :]  # without the start and the first epoch


def work(folder: Path, tasks: list[str]) -> None:
    """Do tasks as one of the workers, and write what they took."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
    with CountingCommunicator.from_environment(timeout=60.0) as comm:
        found = {
            task: probe_messages(comm) if task == "messages" else probe_epochs(comm, folder, task) for task in tasks
        }
        (folder / f"{comm.rank}.json").write_text(json.dumps(found))
        comm.barrier()


def start(rank: int, space: str, folder: Path, n_workers: int, tasks: list[str]) -> None:
    """Enter a network namespace, and do tasks there."""
    enter(space)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(n_workers), "MASTER_ADDR": "10.99.0.1",
                   "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0"}  # fmt: skip
    work(folder, tasks)


def measure(folder: Path, n_workers: int, rate: float | None, delay: float, tasks: list[str]) -> list[dict[str, Any]]:
    """Return what each worker found on a network."""
    forked = multiprocessing.get_context("fork")  # a new interpreter would import for seconds
    with network(n_workers, rate, delay) as spaces:
        processes = [
            forked.Process(target=start, args=(k, space, folder, n_workers, tasks)) for k, space in enumerate(spaces)
        ]
        try:
            for process in processes:
                process.start()
            end = time.monotonic() + LIMIT
            for process in processes:
                process.join(timeout=max(1.0, end - time.monotonic()))
                if process.exitcode != 0:
                    raise RuntimeError(f"a worker ended with {process.exitcode}.")
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join(timeout=30)
    return [json.loads((folder / f"{k}.json").read_text()) for k in range(n_workers)]


# ---------------------------------------------------------------------- measurements


def make(folder: Path, n_rows: int) -> None:
    """Write the stores of both problems, whose groups differ in their rule."""
    rng = np.random.default_rng(0)
    for kind, d in N_FEATURES.items():
        groups, k = rng.integers(0, N_GROUPS[kind], n_rows), N_ENTRIES[kind]
        if kind == "dense":
            X: Any = rng.standard_normal((n_rows, d), dtype=np.float32)
            rules = (rng.normal(size=d) + 0.7 * rng.normal(size=(N_GROUPS[kind], d))) / np.sqrt(d)
            score = np.einsum("nd,nd->n", X, rules[groups].astype(np.float32))
        else:
            columns = np.minimum(d ** rng.random((n_rows, k)), d - 1).astype(np.int32)  # few columns are common
            X = sp.csr_array((np.ones(n_rows * k, np.float32), columns.ravel(), np.arange(0, n_rows * k + 1, k)))
            X.resize((n_rows, d))
            score = rng.normal(scale=0.4, size=d)[columns].sum(axis=1) + rng.normal(size=N_GROUPS[kind])[groups]
        y = (score + rng.logistic(size=n_rows) > 0).astype(np.int8)
        GroupedStore.write_arrays(folder / kind, X, y, groups)


def computing_of(found: list[dict[str, Any]], cores: int) -> dict[str, Any]:
    """Return what the workers computed and reduced in each epoch of each problem, from what each of them found."""
    out = {}
    for kind in SOLVERS:
        cpu = np.array([[epoch["cpu"] for epoch in worker[kind]] for worker in found])
        by_core = [cpu[core::cores].sum(axis=0) for core in range(min(cores, len(found)))]
        calls = [epoch["calls"] for epoch in found[0][kind]]
        out[kind] = {"cpu_of_busiest_core": np.max(by_core, axis=0).tolist(), "calls": calls}
    return out


def measured(found: list[dict[str, Any]], kind: str, rate: float, delay: float) -> dict[str, Any]:
    """Return what an epoch took on one network."""
    return {
        "problem": kind, "workers": len(found), "gigabits_per_second": rate / 1e9, "milliseconds_one_way": 1e3 * delay,
        "measured_seconds": median_of(found, kind, "seconds"),
        "measured_in_messages": median_of(found, kind, "messages"),
        "measured_cpu_outside": median_of(found, kind, "cpu"), "measured_bytes": median_of(found, kind, "bytes"),
        "load_average": os.getloadavg()[0],
    }  # fmt: skip


def add_model(stored: dict[str, Any], at: dict[str, Any]) -> None:
    """Add the modelled seconds of an epoch to the measured ones."""
    p, rate, delay = at["workers"], 1e9 * at["gigabits_per_second"], 1e-3 * at["milliseconds_one_way"]
    computing = calibration_of(stored, p, 0.0)["computing"][at["problem"]]
    at |= model_epochs(computing, p, link_of(stored, p, rate, delay))
    at["modelled_over_measured"] = at["modelled_seconds"] / at["measured_seconds"]


def median_of(found: list[dict[str, Any]], kind: str, name: str) -> float:
    """Return the median over the epochs of the first worker."""
    return float(np.median([epoch[name] for epoch in found[0][kind]]))


def calibration_of(stored: dict[str, Any], n_workers: int, delay: float) -> dict[str, Any]:
    """Return what was calibrated on the kind of network that has such a delay."""
    return stored["calibration"][f"{n_workers} workers, {'relay' if delay else 'veth'}"]


def link_of(stored: dict[str, Any], n_workers: int, rate: float, delay: float) -> Link:
    """Return a network with the costs that were calibrated for its kind."""
    return Link(rate, delay, Exchange(**calibration_of(stored, n_workers, delay)["costs"]))


def extrapolate(stored: dict[str, Any]) -> dict[str, Any]:
    """Return modelled epochs of sketched SQP on 10^11 entries, each worker on a core of its own."""
    entries, d = 1e11, N_FEATURES["sparse"]
    inverse, total = [], []
    for p in WORKERS:
        busiest = np.median(calibration_of(stored, p, 0.0)["computing"]["sparse"]["cpu_of_busiest_core"])
        inverse.append([1.0 / p, 1.0])
        total.append(busiest / max(1.0, p / stored["cores"]))
    divided, repeated = np.linalg.lstsq(np.array(inverse), np.array(total), rcond=None)[0]
    per_entry = divided / (stored["rows"] * N_ENTRIES["sparse"])
    calls = calibration_of(stored, WORKERS[0], 0.0)["computing"]["sparse"]["calls"]
    rows = []
    for p in (64, 128, 256, 512, 1024):
        for rate in RATES:
            link = replace(link_of(stored, WORKERS[0], rate, 0.0), delay=DELAYS[1])
            cpu = per_entry * entries / p + repeated
            epoch = {"cpu_of_busiest_core": [cpu] * len(calls), "calls": calls}
            rows.append({"workers": p, "gigabits_per_second": rate / 1e9, **model_epochs(epoch, p, link)})
    return {
        "note": "modelled, not measured: sketched SQP on 10^11 entries, one worker per core, 0.1 ms one way",
        "features": d, "groups": N_GROUPS["sparse"], "cpu_seconds_per_entry": per_entry,
        "cpu_seconds_repeated": repeated, "epochs": rows,
    }  # fmt: skip


def calibrate(folder: Path, stored: dict[str, Any], p: int) -> None:
    """Add what is missing of the calibration for a number of workers."""
    calibration = stored.setdefault("calibration", {})
    for name, delay in (("veth", 0.0), ("relay", PROBE_DELAY)):
        if f"{p} workers, {name}" in calibration:
            continue
        found = measure(folder, p, None, delay, ["messages"] if delay else ["messages", *SOLVERS])
        probe = found[0]["messages"]
        own: dict[str, Any] = {"all-reduces": probe, "costs": asdict(fit_costs(probe, p, delay))}
        if not delay:
            own["computing"] = computing_of(found, stored["cores"])
        calibration[f"{p} workers, {name}"] = own


def rounded(value: Any) -> Any:
    """Return a value as it is stored, with four significant digits of every float."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def benchmark(path: Path, n_rows: int, workers: list[int]) -> None:
    """Calibrate, measure every combination that is not stored yet, and model it."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    setting = {"cores": len(os.sched_getaffinity(0)), "rows": n_rows, "workers": workers}
    if stored and {name: stored[name] for name in setting} != setting:
        raise SystemExit(f"{path} has results of another setting than {setting}; move it away to begin anew.")
    stored = setting | {"combinations": {}} | stored

    def save() -> None:
        path.write_text(json.dumps(rounded(stored), indent=1) + "\n")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, stored["rows"])
        for p, rate, delay in [(p, rate, delay) for p in stored["workers"] for rate in RATES for delay in DELAYS]:
            calibrate(folder, stored, p)  # before its networks: the speed of a shared machine changes within the hour
            name = f"{p} workers, {rate / 1e9:g} Gbit/s, {1e3 * delay:g} ms"
            if f"sparse, {name}" in stored["combinations"]:
                continue
            found = measure(folder, p, rate, delay, list(SOLVERS))
            for kind in SOLVERS:
                stored["combinations"][f"{kind}, {name}"] = at = measured(found, kind, rate, delay)
                add_model(stored, at)
                print(
                    f"{kind}, {name}: measured {at['measured_seconds']:.3f} s, modelled {at['modelled_seconds']:.3f} s "
                    f"({at['modelled_computing']:.3f} computing), ratio {at['modelled_over_measured']:.2f}", flush=True
                )  # fmt: skip
            save()
    for at in stored["combinations"].values():  # also if only the calibration is new
        add_model(stored, at)
    if stored["workers"] == list(WORKERS):
        stored["modelled only"] = extrapolate(stored)
    save()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS))
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an exception, so that the namespaces are removed
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    importlib.import_module("torch.distributed")  # for all workers
    benchmark(given.results, given.rows, given.workers)


if __name__ == "__main__":
    main()
