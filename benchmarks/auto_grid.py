"""Time of `auto` beside the best single solver, on 17 problems at five tolerances.

    GROUPDRO_DATA=... GROUPDRO_CIFAR=... python -m benchmarks.auto_grid          writes results/auto_grid.json and .md
    ... python -m benchmarks.auto_grid busy                                      the same with both cores busy
    ... python -m benchmarks.auto_grid table                                     prints what is stored
    ... python -m benchmarks.auto_grid passes NAME ...                           passes alone, of the problems named

`auto` runs once for each tolerance (three times, the best counts). Every single solver runs once, to the finest
tolerance and for at most four times as long as `auto` took to it; its trace gives its time to each tolerance, the best
of three runs where they are short. A tolerance that `auto` does not reach counts as failed.
"""

import itertools
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import groupdro as gd
from benchmarks.real_data import TEN, Problem, cifar

RESULTS = Path(__file__).parent / "results"
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6)
LOSS = {"binary": gd.losses.Logistic, "classes": gd.losses.Softmax, "regression": gd.losses.Squared}
PATIENCE = 4.0  # times that of auto which a single solver gets
SHORT = 2.0  # seconds below which a run is repeated
MOST_SECONDS = 300.0
MOST_PASSES = 5000


def _of_arrays(X: object, y: np.ndarray, groups: np.ndarray, domain: gd.domains.L2Domain, loss: object) -> gd.Problem:
    return gd.Problem(gd.GroupedData.from_arrays(X, y, groups), loss, domain)


def _table(make: Callable[[], Problem]) -> gd.Problem:
    p = make()
    return _of_arrays(p.X, p.y, p.groups, gd.domains.L2Domain(radius=10.0), LOSS[p.task]())


def synthetic() -> gd.Problem:
    return _of_arrays(
        *gd.datasets.make_gdro(25, 1000, 1024, seed=0), gd.domains.L2Domain(radius=3.0), gd.losses.Logistic()
    )


def long_table() -> gd.Problem:
    return _of_arrays(
        *gd.datasets.make_gdro(20, 10_000, 100, seed=0), gd.domains.L2Domain(radius=3.0), gd.losses.Logistic()
    )


def sparse(d: int, entries: int = 20, n: int = 50_000, m: int = 20) -> gd.Problem:
    """Return rows of a few entries in columns of a power law, as words have it."""
    rng = np.random.default_rng(0)
    columns = np.minimum((d * rng.random(n * entries) ** 2).astype(np.int64), d - 1)
    place = np.repeat(np.arange(n), entries), columns
    X = sp.csr_array((rng.standard_normal(n * entries), place), shape=(n, d))
    groups = rng.integers(0, m, n)
    margins = X @ rng.standard_normal(d) / 2 + 0.3 * rng.standard_normal(m)[groups]
    y = np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-margins)), 1.0, -1.0)
    return _of_arrays(X, y, groups, gd.domains.L2Domain(penalty=1e-4), gd.losses.Logistic())


def uniform_sparse(d: int = 100_000, entries: int = 20, n: int = 50_000, m: int = 20) -> gd.Problem:
    """Return rows of a few entries anywhere."""
    rng = np.random.default_rng(0)
    place = np.repeat(np.arange(n), entries), rng.integers(0, d, n * entries)
    X = sp.csr_array((rng.standard_normal(n * entries), place), shape=(n, d))
    groups = rng.integers(0, m, n)
    y = np.where(X @ rng.standard_normal(d) + rng.standard_normal(n) > 0, 1.0, -1.0)
    return _of_arrays(X, y, groups, gd.domains.L2Domain(penalty=1e-4), gd.losses.Logistic())


def cifar_ten() -> gd.Problem:
    """Return ten classes of CIFAR-100, each a group."""
    p = cifar(Path(os.environ["GROUPDRO_CIFAR"]))
    chosen = np.isin(p.y, np.arange(10))
    return _of_arrays(p.X[chosen], p.y[chosen], p.groups[chosen], gd.domains.L2Domain(radius=20.0), gd.losses.Softmax())


def group_slopes(m: int, size: int, d: int = 50) -> gd.Problem:
    """Return groups that each follow a rule of their own."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(m), size)
    X = rng.standard_normal((len(groups), d))
    slopes = rng.standard_normal(d) + 0.5 * rng.standard_normal((m, d))
    chance = 1.0 / (1.0 + np.exp(-(X * slopes[groups]).sum(axis=1)))
    y = np.where(rng.random(len(groups)) < chance, 1.0, -1.0)
    return _of_arrays(X, y, groups, gd.domains.L2Domain(radius=10.0), gd.losses.Logistic())


PROBLEMS: dict[str, Callable[[], gd.Problem]] = {
    **{make.__name__: lambda make=make: _table(make) for make in TEN},
    "synthetic": synthetic,
    "200,000 x 100": long_table,
    "CSR 50,000 x 50,000": lambda: sparse(50_000),
    "CSR 50,000 x 100,000": uniform_sparse,
    "CIFAR, ten classes": cifar_ten,
    "2,000 groups of 20": lambda: group_slopes(2_000, 20),
    "20,000 groups of 100": lambda: group_slopes(20_000, 100),
}
SOLVERS: dict[str, Callable[[], gd.solvers.Solver]] = {
    "newton": lambda: gd.solvers.GroupSQP("newton"),
    "lbfgs": lambda: gd.solvers.GroupSQP("lbfgs"),
    "aleg": gd.solvers.ALEG,
}
_NEWTON_PARAMETERS = 3100  # beyond which a Hessian would not fit or take minutes


def reached(result: gd.solvers.Result, tol: float) -> tuple[float, float]:
    """Return passes and seconds at which a run's gap was within the tolerance."""
    rows = (row for row in result.trace if row.gap <= tol * abs(row.upper))
    row = next(rows, None)
    return (row.passes, row.seconds) if row is not None else (np.inf, np.inf)


def _run(problem: gd.Problem, solver: str | gd.solvers.Solver, tol: float, seconds: float) -> gd.solvers.Result:
    return gd.solve(problem, solver, tol=tol, max_passes=MOST_PASSES, max_time=seconds)


def _repeated(
    problem: gd.Problem, solver: str | gd.solvers.Solver, tol: float, seconds: float
) -> list[gd.solvers.Result]:
    runs = [_run(problem, solver, tol, seconds)]
    while len(runs) < 3 and runs[0].seconds < SHORT:
        runs.append(_run(problem, solver, tol, seconds))
    return runs


def fits(name: str, problem: gd.Problem, solver: gd.solvers.Solver) -> bool:
    if name == "newton" and problem.model.size > _NEWTON_PARAMETERS:
        return False
    return solver.fits(problem)


def measure(name: str, *, singles: bool = True) -> dict:
    problem = PROBLEMS[name]()
    found: dict = {"auto": {}, "single": {}}
    finest = 0.0
    for tol in TOLERANCES:
        runs = _repeated(problem, "auto", tol, MOST_SECONDS)
        best = min(runs, key=lambda run: run.seconds)
        found["auto"][f"{tol:g}"] = {
            "seconds": best.seconds, "passes": best.passes, "converged": best.converged, "solver": best.solver
        }  # fmt: skip
        finest = max(finest, best.seconds)
        print(f"{name:22} auto {tol:7g} {best.seconds:8.3f} s {best.passes:7.1f} {best.status.name} {best.solver}")
    for label, make in SOLVERS.items() if singles else ():
        solver = make()
        if not fits(label, problem, solver):
            continue
        runs = _repeated(problem, solver, TOLERANCES[-1], PATIENCE * finest)
        entry = {}
        for tol in TOLERANCES:
            passes, seconds = min((reached(run, tol) for run in runs), key=lambda pair: pair[1])
            if np.isfinite(seconds):
                entry[f"{tol:g}"] = {"seconds": seconds, "passes": passes}
        found["single"][label] = entry
        text = "  ".join(f"{tol}: {at['seconds']:.3f} s {at['passes']:.1f}" for tol, at in entry.items())
        print(f"{name:22} {label:9} {text}", flush=True)
    return found


def _best(entry: dict, tol: str) -> tuple[str, float]:
    times = {label: at[tol]["seconds"] for label, at in entry["single"].items() if tol in at}
    label = min(times, key=times.__getitem__, default="none")
    return label, times.get(label, np.inf)


def table(stored: dict) -> str:
    """Return the stored times as a table in Markdown, with what they come to."""
    lines = [
        "| problem | " + " | ".join(f"{tol:g}" for tol in TOLERANCES) + " |",
        "|---|" + "---|" * len(TOLERANCES),
    ]
    ratios, looser, busy_ratios = [], [], []
    for name, entry in stored["problems"].items():
        cells = []
        for tol in map("{:g}".format, TOLERANCES):
            mine, (label, best) = entry["auto"][tol], _best(entry, tol)
            ratios.append(mine["seconds"] / best if mine["converged"] else np.inf)
            cells.append(f"{mine['seconds']:.3f} s, {mine['passes']:.0f} passes, {ratios[-1]:.2f} of {label}")
            busy_ratios += [stored["busy"][name][tol]] if name in stored.get("busy", {}) else []
        times = [entry["auto"][f"{tol:g}"]["seconds"] for tol in TOLERANCES]
        looser += [loose / tight for loose, tight in itertools.pairwise(times) if loose > 0.02]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Time of auto over that of the best single solver: median {np.median(ratios):.2f}, "
        f"90% at most {np.quantile(ratios, 0.9):.2f}, largest {np.max(ratios):.2f}.",
        f"Time to a tolerance over that to the next tighter one, above 20 ms: largest {max(looser):.2f}.",
    ]
    if busy_ratios:
        lines.append(
            f"Time with both cores busy over idle time: median {np.median(busy_ratios):.2f}, "
            f"largest {max(busy_ratios):.2f}."
        )
    return "\n".join(lines) + "\n"


def _spin() -> None:
    while True:
        pass


def busy(stored: dict) -> dict:
    """Return times of auto beside two busy loops over its stored idle times."""
    loops = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(2)]
    for loop in loops:
        loop.start()
    try:
        ratios = {}
        for name in stored["problems"]:
            now = measure(name, singles=False)["auto"]
            then = stored["problems"][name]["auto"]
            ratios[name] = {tol: now[tol]["seconds"] / then[tol]["seconds"] for tol in now}
            print(name, {tol: round(ratio, 2) for tol, ratio in ratios[name].items()}, flush=True)
        return ratios
    finally:
        for loop in loops:
            loop.terminate()


def main() -> None:
    command, *names = sys.argv[1:] or ["all"]
    path = RESULTS / "auto_grid.json"
    if command == "passes":
        for name in names or PROBLEMS:
            measure(name)
        return
    stored = json.loads(path.read_text()) if path.exists() else {"problems": {}}
    if command == "busy":
        stored["busy"] = busy(stored)
    elif command != "table":
        for name in names or PROBLEMS:
            stored["problems"][name] = measure(name)
            path.write_text(json.dumps(stored, indent=1) + "\n")
    path.write_text(json.dumps(stored, indent=1) + "\n")
    path.with_suffix(".md").write_text(table(stored))
    print(table(stored))


if __name__ == "__main__":
    main()
