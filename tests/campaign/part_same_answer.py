"""The same fit gives the same answer: again, with other threads and batches, side by side, and in other processes.

    python -m tests.campaign.part_same_answer runs SEED REPEATS
    python -m tests.campaign.part_same_answer certified SEED
    python -m tests.campaign.part_same_answer memory SEED COUNT WARM_UP

are what the checks start in processes of their own; each prints JSON.
"""

import functools
import gc
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import joblib
import numpy as np
import psutil
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import groupdro as gd
from tests.campaign.frame import Check, Tally
from tests.timing import HUNG

TOL = 1e-3
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
PATIENCE = 4 * HUNG  # of a check's process


def start(command: str, *arguments: Any, threads: int = 1) -> Any:
    """Run a command of this module in a process with so many threads, and return what it prints."""
    env = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    process = subprocess.run(
        [sys.executable, "-m", __name__ if __name__ != "__main__" else __spec__.name, command, *map(str, arguments)],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}: {process.stderr[-500:]}")
    return json.loads(process.stdout.splitlines()[-1])


# ---------------------------------------------------------------------- runs that must be the same to the last bit

RISK: dict[str, Callable[[], Any]] = {
    "auto": lambda: gd.solvers.Auto(),
    "aleg": lambda: gd.solvers.ALEG(),
    "aleg, 1 row a step": lambda: gd.solvers.ALEG(rows_per_step=1),
    "sqp": lambda: gd.solvers.GroupSQP(),
    "sqp with lbfgs": lambda: gd.solvers.GroupSQP("lbfgs"),
    "aleg of theory": lambda: gd.solvers.ALEGTheory(),
}
REGRET: dict[str, Callable[[], Any]] = {
    "alem": lambda: gd.solvers.ALEM(),
    "alem with aleg": lambda: gd.solvers.ALEM(stage_two=gd.solvers.ALEG()),
}
SOLVERS = {**RISK, **REGRET}


def small_problem(seed: int, storage: str = "dense", loss: str = "logistic", n: int = 400, d: int = 6) -> gd.Problem:
    rng = np.random.default_rng([seed, 3])
    X, groups = rng.normal(size=(n, d)), rng.integers(0, 7, n)
    slope = rng.normal(size=(7, d))[groups] * 0.5 + rng.normal(size=d)
    score = (X * slope).sum(axis=1) + rng.normal(size=n)
    y = np.digitize(score, [-1.0, 1.0]) if loss == "softmax" else np.where(score > 0, 1.0, -1.0)
    stored = sp.csr_array(X * (rng.random(X.shape) < 0.4)) if storage == "csr" else X
    losses = {"logistic": gd.losses.Logistic(), "softmax": gd.losses.Softmax(3)}
    return gd.Problem(gd.GroupedData.from_arrays(stored, y, groups), losses[loss], gd.domains.L2Domain(radius=2.0))


def digest_of(*arrays: Any) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(a, dtype=np.float64).tobytes() for a in arrays)).hexdigest()


def digests(seed: int) -> dict[str, str]:
    """Run every solver once and return a digest of each result and its trace."""
    out = {}
    for storage, loss in (("dense", "logistic"), ("csr", "logistic"), ("dense", "softmax")):
        for name, make in SOLVERS.items():
            result = gd.solve(small_problem(seed, storage, loss), make(), tol=1e-4, max_passes=12, seed=seed)
            bounds = [(row.upper, row.lower, row.passes) for row in result.trace]
            out[f"{name} on {storage} rows, {loss}"] = digest_of(
                result.w, result.q, result.group_risks, [result.lower_bound, result.upper_bound], bounds
            )
    return out


def guarded(check: Callable[[int, int, int], Tally]) -> Callable[[int, int, int], Tally]:
    """Call a process that breaks down a failure, and go on."""

    @functools.wraps(check)
    def run(count: int, seed: int, jobs: int) -> Tally:
        try:
            return check(count, seed, jobs)
        except (RuntimeError, OSError, subprocess.SubprocessError, ValueError) as error:
            return Tally(tried=count, failures=[f"{type(error).__name__}: {error}"])

    return run


@guarded
def same_bits(count: int, seed: int, jobs: int) -> Tally:
    """Repeat every solver's run in a few processes of one thread each."""
    del jobs
    processes = min(count, 5)
    repeats = [count // processes + (k < count % processes) for k in range(processes)]
    found = [run for times in repeats for run in start("runs", seed, times)]
    return compare_bits(found)


def compare_bits(found: list[dict[str, str]]) -> Tally:
    tally = Tally(tried=len(found))
    for name in found[0]:
        different = len({run[name] for run in found})
        if different > 1:
            tally.failures.append(f"{name}: {different} different results of {len(found)} runs")
    tally.figures = [f"{len(found[0])} solvers and kinds of rows"]
    return tally


# ---------------------------------------------------------------------- threads and batches

BATCHES = (None, 1, 7, 64, 1000)


def certified(seed: int) -> dict[str, list[float]]:
    """Return the certified bounds of problems that are large enough for several threads."""
    out = {}
    for loss, n, d in (("logistic", 8000, 40), ("softmax", 900, 12)):
        problem = small_problem(seed, "dense", loss, n, d)
        for name in ("auto", "aleg", "sqp", "alem"):
            result = gd.solve(problem, name, tol=TOL, max_passes=600, seed=seed)
            out[f"{name}, {loss}"] = [result.lower_bound, result.upper_bound, float(result.converged)]
    return out


@guarded
def threads_and_batches(count: int, seed: int, jobs: int) -> Tally:
    """Certify the same problems with 1, 2 and 4 threads, and with steps of few and many rows."""
    del jobs
    tally = Tally()
    for k in range(seed, seed + count):
        answers = {f"{threads} threads": start("certified", k, threads=threads) for threads in (1, 2, 4)}
        for name in answers["1 threads"]:
            tally.add(agree({who: found[name] for who, found in answers.items()}, f"{name}, seed {k}"))
        for loss, storage in (("logistic", "dense"), ("logistic", "csr"), ("softmax", "dense")):
            bounds = {}
            for rows in BATCHES:
                solver = gd.solvers.ALEG(rows_per_step=rows)
                result = gd.solve(small_problem(k, storage, loss), solver, tol=TOL, max_passes=2000, seed=k)
                bounds[f"{rows} rows a step"] = [result.lower_bound, result.upper_bound, float(result.converged)]
            tally.add(agree(bounds, f"{loss} on {storage} rows, seed {k}"))
    tally.figures = []
    return tally


def agree(bounds: dict[str, list[float]], what: str) -> Tally:
    """Compare certified bounds of one problem: all converged, and no two values further apart than the tolerance."""
    tally = Tally(tried=len(bounds))
    open_ended = [who for who, (_, _, converged) in bounds.items() if not converged]
    if open_ended:
        tally.failures.append(f"{what}: not converged with {', '.join(open_ended)}")
    lower, upper = max(b[0] for b in bounds.values()), [b[1] for b in bounds.values()]
    if lower > min(upper) * (1 + 1e-9):
        tally.failures.append(f"{what}: a lower bound {lower!r} above an upper bound {min(upper)!r}")
    if max(upper) - min(upper) > TOL * max(upper):
        tally.failures.append(f"{what}: values {bounds} differ by more than the tolerance")
    return tally


# ---------------------------------------------------------------------- many fits at once


def fit_one(number: int) -> str:
    """Fit one of a few kinds of models, and return a digest of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return _fit(number)


def _fit(number: int) -> str:
    rng = np.random.default_rng([number, 29])
    n = int(rng.integers(40, 300))
    X, groups = rng.normal(size=(n, 4)), np.arange(n) % int(rng.integers(1, 6))
    score = X @ rng.normal(size=4) + rng.normal(size=n)
    if number % 5 == 4:
        X = sp.csr_array(X * (rng.random(X.shape) < 0.5))
    solver = ("auto", "aleg", "sqp")[number % 3]
    common = {"solver": solver, "random_state": number, "objective": ("risk", "excess_risk")[number % 2]}
    if number % 4 < 2:
        y = np.digitize(score, [-1.0, 1.0]) if number % 8 < 2 else (score > 0).astype(int)
        model = gd.GroupDROClassifier(max_passes=60, **common).fit(X, y, groups=groups)
    else:
        model = gd.GroupDRORegressor(max_passes=60, **common).fit(X, score, groups=groups)
    return digest_of(model.coef_, model.intercept_, model.group_weights_, [model.lower_bound_, model.upper_bound_])


def in_threads(numbers: list[int], n_threads: int = 32) -> list[str]:
    """Fit in so many threads at once."""
    out: list[Any] = [None] * len(numbers)
    ready = threading.Barrier(n_threads)

    def work(first: int) -> None:
        ready.wait()
        for k in range(first, len(numbers), n_threads):
            try:
                out[k] = _fit(numbers[k])
            except Exception as error:
                out[k] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=work, args=(k,)) for k in range(n_threads)]
    # Filters of warnings belong to the process: threads that set and reset them would take each other's.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return out


def in_loky(numbers: list[int]) -> list[str]:
    """Fit in joblib's own workers, which are new processes."""
    return list(
        joblib.Parallel(n_jobs=2, backend="loky", timeout=PATIENCE)(joblib.delayed(fit_one)(k) for k in numbers)
    )


def _in_pool(method: str, numbers: list[int]) -> list[str]:
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map_async(fit_one, numbers, chunksize=max(1, len(numbers) // 4)).get(timeout=PATIENCE)


def in_forks(numbers: list[int]) -> list[str]:
    """Fit in forked processes, whose parent has fitted before."""
    return _in_pool("fork", numbers)


def in_spawned(numbers: list[int]) -> list[str]:
    """Fit in new processes of multiprocessing."""
    return _in_pool("spawn", numbers)


def compare_fits(numbers: Iterable[int], ways: dict[str, Callable[[list[int]], list[str]]]) -> Tally:
    """Fit one after another, then in other ways, and compare to the last bit."""
    numbers = list(numbers)
    expected, tally = [fit_one(k) for k in numbers], Tally()
    for name, way in ways.items():
        tally.tried += len(numbers)
        try:
            found = way(numbers)
        except Exception as error:
            tally.failures.append(f"{name}: {type(error).__name__}: {error}")
            continue
        for number, before, after in zip(numbers, expected, found, strict=True):
            if before != after:
                tally.failures.append(f"fit_one({number}) {name}: {after[:80]}, alone {before[:12]}")
    return tally


def side_by_side(count: int, seed: int, jobs: int) -> Tally:
    del jobs
    first = 10_000 * seed
    return compare_fits(range(first, first + count), {"in 32 threads": in_threads})


def in_workers(count: int, seed: int, jobs: int) -> Tally:
    del jobs
    numbers = range(10_000 * seed, 10_000 * seed + count)
    return compare_fits(numbers, {"in loky": in_loky, "in forks": in_forks, "in spawned processes": in_spawned})


# ---------------------------------------------------------------------- memory

GROWTH = 0.05  # of resident memory that is allowed after the warm-up


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def memory(seed: int, count: int, warm_up: int, fit: Callable[[int], Any] = fit_one) -> list[int]:
    """Fit again and again, and return resident bytes after the warm-up and then ten times."""
    out = []
    for k in range(count):
        fit(1_000_000 * seed + k % 240)
        if k + 1 == warm_up or (k >= warm_up and (k + 1 - warm_up) % max(1, (count - warm_up) // 10) == 0):
            out.append(resident())
    return out


@guarded
def steady_memory(count: int, seed: int, jobs: int) -> Tally:
    """Make so many small fits in one process of its own."""
    del jobs
    return judge_memory(start("memory", seed, count, min(500, count // 2)), count)


def judge_memory(sizes: list[int], count: int) -> Tally:
    growth = sizes[-1] / sizes[0] - 1.0
    tally = Tally(tried=count, figures=[f"{sizes[0] / 2**20:.0f} MiB, then {100 * growth:+.1f}%"])
    if growth >= GROWTH:
        tally.failures.append(f"resident memory grew from {sizes[0]:,} to {sizes[-1]:,} bytes: {sizes}")
    return tally


CHECKS = [
    Check("same bits", "runs of one seed and one thread are equal to the last bit", same_bits, full=100, ci=2),
    Check("threads and batches", "certified values agree within the tolerance", threads_and_batches, full=10, ci=1),
    Check("fits side by side", "32 threads fit what one does, to the last bit", side_by_side, full=640, ci=32),
    Check("fits in workers", "loky, fork and spawn fit what one process does", in_workers, full=200, ci=8),
    Check("steady memory", "20,000 fits grow resident memory by less than 5%", steady_memory, full=20_000, ci=200),
]


def main(command: str, *arguments: str) -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    numbers = [int(argument) for argument in arguments]
    if command == "runs":
        answer: Any = [digests(numbers[0]) for _ in range(numbers[1])]
    elif command == "certified":
        answer = certified(numbers[0])
    else:
        answer = memory(*numbers)
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
