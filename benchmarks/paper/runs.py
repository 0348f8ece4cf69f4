"""One run of a method at a setting: recorded to the common budget, and kept in a file, so that everything resumes."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import groupdro as gd
from benchmarks.paper.contenders import BUDGET, METHODS, TOL, Method, Setting
from benchmarks.paper.methods import TSA
from benchmarks.paper.optimum import Optimum, minima_of, optimum
from benchmarks.paper.setups import Split, setup_of
from benchmarks.paper.store import CACHE
from groupdro.certificate import Certificate
from groupdro.oracle import Oracle
from groupdro.run.result import Progress

__all__ = ["BUDGET", "curve_of", "stored_run"]

MOST_SECONDS = 3600.0


@dataclass(frozen=True, eq=False)
class Prepared:
    """A set-up's rows of one seed, what is subtracted from each group's risk, and the certified best value."""

    split: Split
    train: gd.GroupedData
    n_outputs: int
    test: gd.Problem
    minima: np.ndarray
    test_minima: np.ndarray
    solve: Callable[[], Optimum]

    @cached_property
    def best(self) -> Optimum:
        """The bounds of the best value, which curves do not need."""
        return self.solve()


@lru_cache(1)
def prepared(setup_name: str, seed: int, root: Path | None = None) -> Prepared:
    """Return the rows of a seed, with the minima and the best value, which are kept under `root` as runs are."""
    setup = setup_of(setup_name)
    split = setup.make(seed)
    n_outputs = int(split.train.y.max()) + 1
    problem = setup.problem(split.train)
    test = setup.problem(split.test, n_outputs)
    key = (setup_name, seed if setup.new_data else 0, problem, root)
    minima = minima_of(*key)
    place = {name: k for k, name in enumerate(problem.data.names)}
    of_test = np.array([minima[place[name]] for name in test.data.names])
    return Prepared(split, problem.data, n_outputs, test, minima, of_test, lambda: optimum(*key))


def cost(progress: Progress, n_rows: int) -> float:
    """Return the multiples of the rows spent: the paper's count, and once for every row read without a gradient."""
    row = progress.latest
    return float(row.grad_evals_paper / n_rows + max(0.0, row.passes - row.grad_evals / n_rows))


class Recorder:
    """Keeps points of a run while it goes on, off its clocks.

    A point is stored on both sides of every multiple of the spacing, since that of an average takes a pass of its own:
    if the epoch has reached one, or the next is expected to. A snapshot's risks are known, and stored after every
    epoch. A method that makes a counted
    pass at its snapshot returns the best snapshot so far; averages and last points are what they are.
    """

    def __init__(self, ready: Prepared, method: Method, solver: gd.solvers.Solver, spacing: float, n_rows: int):
        self.ready, self.method, self.solver = ready, method, solver
        self.spacing, self.n_rows = spacing, n_rows
        self.rows: list[dict[str, float | str]] = []
        self.certificates: dict[str, Certificate] = {}
        self.seen: set[str] = set()
        self.cpu, self.before, self.ended = 0.0, 0.0, False
        self.best: tuple[float, Any] = (np.inf, None)
        self.known_costs_nothing = ready.test.n_rows * ready.n_outputs < 100_000  # but for the test rows' risks
        self.since = time.process_time()

    def __call__(self, progress: Progress) -> bool:
        self.cpu += time.process_time() - self.since
        at, spent = progress.state.evaluation, cost(progress, self.n_rows)
        if self.method.outputs != ("average", "last"):
            value = self._value(at.group_risks)
            if value < self.best[0]:
                self.best = value, at.w.copy()
        marks = np.floor(np.array([self.before, spent, spent + (spent - self.before)]) / self.spacing + 1e-9)
        near_mark = marks[0] < marks[1] or marks[1] < marks[2]
        for output in self.method.outputs:
            known = output in ("best", "snapshot") and self.known_costs_nothing
            if known or near_mark or output not in self.seen:
                self._store(output, progress, spent)
        self.before, self.ended = spent, spent >= BUDGET
        self.since = time.process_time()
        return self.ended

    def _value(self, risks: np.ndarray) -> float:
        return float((risks - self.ready.minima).max())

    def _store(self, output: str, progress: Progress, spent: float) -> None:
        row = progress.latest
        if output in ("best", "snapshot"):
            train, w, gap = *self.best, row.upper - row.lower
        else:
            pair = getattr(self.solver, output)(progress.state)
            if pair is None:
                return
            oracle = Oracle(progress.certificate.problem)  # whose passes the run does not count
            at = oracle.evaluate(*pair)
            if not np.isfinite(at.group_risks).all():
                return
            own = self.certificates.setdefault(output, Certificate(oracle))
            own.observe(at)
            train, w, gap = self._value(at.group_risks), pair[0], own.upper - own.lower
        if w is None:
            return
        test = float((Oracle(self.ready.test).risks(w) - self.ready.test_minima).max())
        self.seen.add(output)
        self.rows.append({"output": output, "multiples": spent, "train": train, "test": test, "gap": gap,
                          "seconds": row.seconds, "cpu": self.cpu})  # fmt: skip


def curve_of(setup_name: str, name: str, setting: Setting, seed: int, root: Path | None = None) -> pd.DataFrame:
    """Run a method and return its points up to the budget, with the loads of the machine at its start and end."""
    setup, method = setup_of(setup_name), METHODS[name]
    ready = prepared(setup_name, seed if setup.new_data else 0, root)
    problem = setup.on(ready.train, ready.n_outputs)
    solver = method.solver(setting, problem)
    with np.errstate(all="ignore"):
        brief = replace(solver, stage_one_passes=1e-9) if isinstance(solver, TSA) else solver
        gd.solve(setup.on(ready.train, ready.n_outputs), brief, tol=0.0, max_passes=1e-9)  # compiles
        final = solver.stage_two if isinstance(solver, gd.solvers.ALEM) else solver
        recorder = Recorder(ready, method, final, setup.spacing, problem.n_rows)
        load, begun = os.getloadavg()[0], time.perf_counter()
        recorder.since = time.process_time()
        try:
            result = gd.solve(
                problem, solver, tol=TOL, max_passes=np.inf, max_time=MOST_SECONDS, seed=seed, callbacks=[recorder]
            )
            status = "budget" if recorder.ended else result.status.name.lower()
        except (FloatingPointError, ValueError, AssertionError) as error:
            status = f"failed: {type(error).__name__}"
    points = pd.DataFrame(recorder.rows, columns=["output", "multiples", "train", "test", "gap", "seconds", "cpu"])
    return points.assign(status=status, load_start=load, load_end=os.getloadavg()[0],
                         wall=time.perf_counter() - begun)  # fmt: skip


def setting_of(path: Path) -> Setting:
    """Return the setting of a run from its file's name."""
    key = path.name.split("__")[0]
    return () if key == "default" else tuple(float(e) if "." in e else int(e) for e in key.split("_"))


def place_of(setup_name: str, name: str, setting: Setting, seed: int, root: Path | None = None) -> Path:
    """Return where a run is kept: under `root`, by default the folder of all runs."""
    key = "_".join(f"{e:g}" for e in setting) or "default"
    return (root or CACHE) / setup_name / name.replace(" ", "-").replace(",", "") / f"{key}__{seed}.parquet"


def stored_run(setup_name: str, name: str, setting: Setting, seed: int, root: Path | None = None) -> pd.DataFrame:
    """Return a run from its file, after running it if it is not there."""
    path = place_of(setup_name, name, setting, seed, root)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        points = curve_of(setup_name, name, setting, seed, root)
        part = path.with_suffix(f".{os.getpid()}.part")
        points.to_parquet(part, compression="zstd", index=False)
        part.replace(path)
        ends = points.groupby("output")["train"].last().round(6).to_dict()
        print(f"{setup_name} | {name} | {METHODS[name].shown(setting) or 'default'} | seed {seed} | "
              f"{points['wall'].max() if len(points) else 0:.1f} s | {ends} | {len(points)}", flush=True)  # fmt: skip
    return pd.read_parquet(path)
