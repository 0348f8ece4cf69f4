"""Fits by `solve`: every solver, loss, domain and storage, several workers, and runs that were resumed."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import groupdro as gd
from tests.distributed.thread_comm import run_workers
from tests.house.golden_data import Posed, pose, start
from tests.house.golden_fit import Fit, keep

__all__ = ["SOLVERS", "add"]

SOLVERS: dict[str, Callable[[], gd.solvers.Solver]] = {
    "auto": gd.solvers.Auto,
    "aleg": gd.solvers.ALEG,
    "aleg, 1 row": lambda: gd.solvers.ALEG(rows_per_step=1),
    "aleg, unscaled": lambda: gd.solvers.ALEG(scale_columns=False),
    "aleg, without replacement": lambda: gd.solvers.ALEG(replacement=False),
    "aleg-theory": lambda: gd.solvers.ALEGTheory(multiplier=20.0, guarantee=False),
    "aleg-theory, guaranteed": gd.solvers.ALEGTheory,
    "aleg-theory, schedules": lambda: gd.solvers.ALEGTheory(
        [20, 40], [1 / 20, 1 / 40], constant="paper", guarantee=False
    ),
    "sqp": gd.solvers.GroupSQP,
    "sqp newton": lambda: gd.solvers.GroupSQP("newton"),
    "sqp lbfgs": lambda: gd.solvers.GroupSQP("lbfgs"),
    "alem": gd.solvers.ALEM,
    "alem, aleg": lambda: gd.solvers.ALEM(stage_two=gd.solvers.ALEG()),
    "alem, aleg-theory": lambda: gd.solvers.ALEM(
        gd.solvers.ALEGTheory(), gd.solvers.ALEGTheory(), stage_one_passes=9.0
    ),
}


def stop_after(epochs: int) -> Callable[[Any], bool]:
    """Return a callback that ends a run after so many epochs."""
    calls = itertools.count()
    return lambda progress: next(calls) >= epochs


def add(solver: str, posed: Posed, *, fast: bool = False, way: str = "", **options: Any) -> None:
    """Add a fit: whole, "resumed" from the checkpoint of its second epoch, or "stopped" there."""
    options = {"tol": 1e-6, "max_passes": 16.0, "seed": 3, **options}

    def solved(folder: Path, comm: Any, **more: Any) -> gd.solvers.Result:
        problem = pose(posed, folder, comm)
        return gd.solve(problem, SOLVERS[solver](), **{**options, **start(posed, problem), **more})

    def one(folder: Path, comm: Any = None) -> gd.solvers.Result:
        if way == "stopped":
            return solved(folder, comm, callbacks=[stop_after(2)])
        if way == "resumed":
            saved = {"checkpoint_dir": folder / "checkpoints"}
            solved(folder, comm, **saved, callbacks=[stop_after(2)])
            return solved(folder, comm, **saved)
        return solved(folder, comm)

    def run(folder: Path) -> gd.solvers.Result:
        if posed.workers == 1:
            return one(folder)
        found = run_workers(posed.workers, lambda comm: one(folder, comm))
        assert all((part.w == found[0].w).all() and part.lower_bound == found[0].lower_bound for part in found)
        return found[0]

    more = [f"{name} {value:g}" for name, value in options.items() if name in ("atol",)]
    single = posed.loss == "softmax" and any(kind in posed.storage for kind in ("float16", "float32", "store"))
    keep(Fit("; ".join([solver, str(posed), *more, *([way] if way else [])]), run, fast, rounding=SINGLE * single))


GRID = list(
    itertools.product(("logistic", "squared", "squared hinge", "huber", "softmax"), ("ball", "penalty", "both"))
)
SINGLE = 1e-7
MOST = {"alem": 200.0, "alem, aleg": 200.0, "alem, aleg-theory": 60.0, "sqp lbfgs": 150.0}


def _losses_and_domains() -> None:
    """Solvers that take every loss, with and without an intercept."""
    for solver, (k, (loss, domain)) in itertools.product(("aleg", "sqp newton"), enumerate(GRID)):
        add(solver, Posed(loss, domain, intercept=k % 2 == 0), fast=k % 4 == 0, max_passes=40.0)
    for k, (loss, domain) in enumerate(GRID):
        add("sqp lbfgs", Posed(loss, domain, intercept=k % 2 == 1), fast=k == 7, max_passes=MOST["sqp lbfgs"])
        add("auto", Posed(loss, domain, intercept=k % 2 == 1), fast=k == 0, tol=1e-5, max_passes=40.0)
    for loss in ("logistic", "squared", "squared hinge", "huber"):
        for solver in ("auto", "aleg"):
            add(solver, Posed(loss, "simplex"), fast=loss == "logistic", max_passes=30.0)
    add("aleg-theory", Posed("huber", "simplex"))


def _variants() -> None:
    """The published form on every loss, and other parameters."""
    for k, loss in enumerate(dict(GRID)):
        add("aleg-theory", Posed(loss, ("ball", "penalty", "both")[k % 3]), fast=k < 2)
    add("aleg-theory, guaranteed", Posed())
    add("aleg-theory, schedules", Posed(intercept=True))
    add("aleg, 1 row", Posed("logistic", "penalty"), max_passes=10.0)
    add("aleg, unscaled", Posed("squared", "ball", intercept=True))
    add("aleg, without replacement", Posed("logistic", "ball"))


def _storages() -> None:
    """Every storage, each with solvers that read it differently."""
    dense = ("float32", "float16", "mapped", "mapped float32", "store", "store beyond memory")
    sparse = ("csr", "csr float32", "csr store")
    for storage in (*dense, *sparse):
        for solver, loss in (("aleg", "logistic"), ("aleg", "softmax"), ("sqp newton", "squared hinge")):
            add(solver, Posed(loss, "both", storage, intercept=storage in ("csr", "store")), fast=storage == "csr")
    for storage in ("float32", "csr", "store"):
        add("aleg-theory", Posed("logistic", "ball", storage), fast=storage == "csr")
        add("sqp lbfgs", Posed("huber", "penalty", storage, intercept=True), max_passes=MOST["sqp lbfgs"])
    add("auto", Posed("logistic", "penalty", "csr", intercept=True), tol=1e-5)
    add("auto", Posed("squared", "penalty", "store"), tol=1e-5)
    add("aleg", Posed("logistic", "simplex", "csr"))
    add("aleg", Posed("logistic", "simplex", "float32"))


def _regrets() -> None:
    """Excess risks, found or given."""
    for k, solver in enumerate(("alem", "alem, aleg")):
        for b, loss in enumerate(("logistic", "squared", "softmax")):
            domain = ("ball", "penalty", "both")[(k + b) % 3]
            add(solver, Posed(loss, domain), fast=b == k % 3, tol=1e-4, max_passes=MOST[solver])
    add("alem, aleg-theory", Posed("logistic", "ball"), tol=1e-3, max_passes=MOST["alem, aleg-theory"])
    add("alem", Posed("logistic", "simplex"), tol=1e-3, max_passes=200.0)
    for storage in ("csr", "store", "float32"):
        add("alem", Posed("logistic", "penalty", storage, intercept=True), tol=1e-4, max_passes=200.0)
    add("alem", Posed("logistic", "both", size="short groups"), tol=1e-4, max_passes=200.0)
    add("alem", Posed("softmax", "penalty", size="short groups", intercept=True), tol=1e-4, max_passes=200.0)
    for solver in ("aleg", "sqp newton"):
        add(solver, Posed("logistic", "both", extra="group minima"), fast=solver == "aleg", max_passes=30.0)


def _extras() -> None:
    """Weights, overlapping groups, offsets, starts, sizes, and other ends."""
    for extra in ("weights", "overlapping groups", "offsets", "start", "far start"):
        for solver in ("aleg", "sqp newton"):
            add(solver, Posed("logistic", "both", intercept=True, extra=extra), fast=solver == "aleg")
        add("auto", Posed("squared", "penalty", extra=extra), tol=1e-5, max_passes=40.0)
    for extra in ("weights", "overlapping groups"):
        add("aleg-theory", Posed("logistic", "ball", extra=extra))
        add("aleg", Posed("softmax", "ball", "csr", extra=extra))
        add("alem", Posed("huber", "penalty", extra=extra), tol=1e-4, max_passes=200.0)
    add("aleg", Posed("huber", "penalty", "mapped", extra="overlapping groups"))
    for size, most in (("medium", 24.0), ("wide", 40.0), ("many groups", 30.0), ("one group", 30.0)):
        for solver, loss in (("aleg", "logistic"), ("aleg", "softmax"), ("sqp newton", "squared")):
            if (size, solver) != ("wide", "sqp newton"):
                add(solver, Posed(loss, "penalty", intercept=True, size=size), max_passes=most)
        add("auto", Posed("logistic", "ball", "float32", size=size), tol=1e-4, max_passes=40.0)
    add("aleg", Posed("softmax", "penalty", "csr", size="medium"), max_passes=6.0)
    add("sqp", Posed("logistic", "both", size="medium"))
    add("sqp", Posed("softmax", "both", size="medium", intercept=True), max_passes=60.0)
    add("alem", Posed("logistic", "both", "float32", size="medium"), tol=1e-2, max_passes=60.0)
    add("aleg", Posed("logistic", "ball"), atol=1e-2)
    add("aleg", Posed("logistic", "ball"), way="stopped")


def _workers_and_resumed() -> None:
    """Two workers, and runs that go on from a checkpoint."""
    for solver, loss in itertools.product(("auto", "aleg", "sqp newton", "sqp lbfgs"), ("logistic", "softmax")):
        limit = 60.0 if solver == "sqp lbfgs" else 8.0
        fast = solver in ("aleg", "sqp newton") and loss == "logistic"
        options: Any = {"fast": fast, "tol": 1e-4, "max_passes": limit}
        add(solver, Posed(loss, "both", intercept=True, workers=2), **options)
    for storage in ("csr", "store", "float32"):
        add("aleg", Posed("logistic", "penalty", storage, workers=2), max_passes=8.0)
        add("sqp newton", Posed("squared", "penalty", storage, workers=2, intercept=True))
    add("aleg-theory", Posed("logistic", "ball", workers=2), max_passes=6.0)
    add("aleg", Posed("logistic", "simplex", workers=2), max_passes=8.0)
    add("sqp newton", Posed("logistic", "both", extra="weights", workers=2))
    add("alem", Posed("logistic", "penalty", intercept=True, workers=2), tol=1e-3, max_passes=200.0)
    add("aleg", Posed("logistic", "penalty", intercept=True, workers=2), way="resumed", max_passes=8.0)
    for solver in ("auto", "aleg", "aleg-theory", "sqp newton", "sqp lbfgs"):
        loss = "huber" if "sqp" in solver else "logistic"
        options = {"fast": solver in ("aleg", "sqp lbfgs"), "max_passes": MOST.get(solver, 12.0)}
        add(solver, Posed(loss, "both"), way="resumed", **options)
    add("alem", Posed("logistic", "both"), way="resumed", tol=1e-4, max_passes=MOST["alem"])
    add("aleg", Posed("softmax", "both", size="wide", intercept=True), way="resumed")
    add("aleg", Posed("logistic", "both", "csr", intercept=True), way="resumed")
    add("aleg", Posed("logistic", "both", "store", intercept=True), way="resumed")


for _part in (_losses_and_domains, _variants, _storages, _regrets, _extras, _workers_and_resumed):
    _part()
