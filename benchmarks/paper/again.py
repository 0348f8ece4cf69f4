"""Figures 1 and 2 and Table 1 of the paper, run again with the stored settings and drawn in the paper's layout.

Nothing is tuned, and nothing is written to `results/`. Figure 1 has the worst risk (GDRO) of SMD, MPVR, AL-SVRE and
ALEG, and the averages of ALEG with constant and, where they were run, alterable steps, Figure 2 the worst excess risk
(MERO) of ERMEG, TSA and ALEM, each on training and test rows of synthetic data and of CIFAR-100. Training values are
drawn above the certified lower bound of the best value, on a logarithmic axis; test values with that of the zero model.
A second picture adds our own solvers. Table 1 has gradient evaluations until a certified gap.

Every finished run is a file in the folder of the output, so that an interrupted command resumes.
"""

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from benchmarks.paper import complexity, tuned
from benchmarks.paper.analysis import DEFAULT, has, panel
from benchmarks.paper.contenders import BUDGET, METHODS, own_methods
from benchmarks.paper.figures import SIZE, draw_zero, label, look, save, spread_of
from benchmarks.paper.runs import place_of, prepared, stored_run
from benchmarks.paper.setups import CIFAR_CLASSES, QUICK, QUICK_SHARE, SETUPS, available, setup_of, whole
from benchmarks.paper.store import RESULTS
from benchmarks.paper.tables import complexity_table
from benchmarks.paper.tuned_tables import crossing_table, factor_table, local_table, ratio_table, untuned_table

__all__ = ["FIGURES", "draw_stored", "figure", "measure_commands", "table1"]

#: By set-up, then by method and output: a run per seed.
Curves = dict[str, dict[tuple[str, str], list[pd.DataFrame]]]

PROCESSES = 2
COMMANDS = "paper_commands.json"  # what the quick commands took
FLOOR = 1e-9  # of values above the best: what a relative gap of 1e-8, at which our solvers end, leaves unknown
#: By figure: the set-ups, the paper's methods and ours. Of each the best output is drawn.
FIGURES = {
    "figure1": (
        ("gdro_synthetic", "gdro_cifar"),
        ("SMD", "MPVR", "AL-SVRE, Euclidean", "ALEG of the paper"),
        ("auto", "ALEG"),
    ),
    "figure2": (
        ("mero_synthetic", "mero_cifar"),
        ("ERMEG", "ERMEG, first-order", "TSA", "ALEM of the paper"),
        ("auto, excess risk", "ALEM"),
    ),
}
#: Drawn as well: what Algorithms 3 and 1 return, the latter with constant steps and with alterable ones, as in the
#: paper's experiments.
AVERAGES = (("MPVR", "average"), ("ALEG of the paper", "average"), ("ALEG of the paper, alterable", "average"))
#: Their steps shrink with the root of an epoch's length. One exponent less, a factor of the root of ten, leaves them as
#: long with a tenth of the rows as with all.
VARIANCE_REDUCED = ("MPVR", "AL-SVRE, KL", "AL-SVRE, Euclidean", "ALEG of the paper", "ALEM of the paper")
QUICK_TABLE = {"seeds": 1, "groups": (4, 8, 16), "sizes": (25, 50, 100), "finest": 4e-2,
               "methods": ("ALEG", "MPVR", "AL-SVRE", "SMD", "TSA", "ERMEG")}  # fmt: skip
QUICK_TUNED = {"seeds": 1, "groups": (4, 8, 16, 32), "sizes": (25, 100)}


class Task(NamedTuple):
    """A run of a stored setting, of which one output is drawn."""

    setup: str
    method: str
    output: str
    setting: tuple[float, ...]
    seed: int


def figure(name: str, quick: bool, folder: Path) -> None:
    """Run what a figure shows, unless it is there, and draw it without and with our own solvers."""
    setups, paper, ours = _shown(name)
    begun, root = time.perf_counter(), folder / "runs"
    tasks = [task for setup in available(list(setups)) for task in _tasks(setup, (*paper, *ours), quick)]
    jobs = {task[:2] + task[3:]: task for task in tasks}  # outputs of the same setting are of one run
    missing = [task for task in jobs.values() if not _place(task, root).exists()]
    stored = sum(_seconds(task) for task in missing) / 60
    print(f"{name}: {len(missing)} of {len(jobs)} runs, {_announced(name, stored)} by {PROCESSES} processes; the runs "
          f"are kept in {root}", flush=True)  # fmt: skip
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        # Each group's own minimum is found once, and then read by all runs of the same rows.
        splits = sorted({(task.setup, task.seed * setup_of(task.setup).new_data) for task in missing})
        for ready in [pool.submit(_find_minima, setup, seed, root) for setup, seed in splits]:
            ready.result()
        running = [pool.submit(_run, task, root) for task in sorted(missing, key=lambda t: (t.setup, t.seed))]
        for k, done in enumerate(as_completed(running)):
            done.result()
            print(f"{name}: {k + 1} of {len(missing)}, {(time.perf_counter() - begun) / 60:.1f} min", flush=True)
    whole_picture: Curves = {}
    for task in tasks:
        run = pd.read_parquet(_place(task, root)).assign(seed=task.seed)
        own = whole_picture.setdefault(task.setup, {}).setdefault((task.method, task.output), [])
        own.append(run[run["output"] == task.output])
    bounds = {setup: _lower_bounds(setup, root) for setup in whole_picture}
    _draw_both(name, whole_picture, bounds, folder, "png")


def measure_commands(names: Sequence[str]) -> None:
    """Measure the processor minutes of the quick commands, each from nothing, and keep them in benchmarks/results/."""
    quick = {name: partial(figure, name, True) for name in FIGURES} | {"table1": partial(table1, True)}
    for name in names or list(quick):
        if name not in quick:
            raise SystemExit(f"there is no command {name!r}; there are: {', '.join(quick)}")
        with TemporaryDirectory() as folder:
            begun, stored = _processor_seconds(), _stored_seconds(name)
            quick[name](Path(folder))
            minutes = (_processor_seconds() - begun) / 60
        measured = _measured() | {name: {"minutes": round(minutes, 1), "stored": round(stored / 60, 2)}}
        (RESULTS / COMMANDS).write_text(json.dumps(dict(sorted(measured.items())), indent=1) + "\n")
        print(f"{name} --quick: {minutes:.1f} minutes of processor time", flush=True)


def _measured() -> dict[str, dict[str, float]]:
    """Return the minutes that quick commands took, and those of the same runs when they were stored."""
    path = RESULTS / COMMANDS
    return json.loads(path.read_text()) if path.exists() else {}


def _announced(name: str, stored: float) -> str:
    """Return how long runs will take, in words, from the minutes that they took when they were stored.

    Those leave out compiling, preparing the rows and evaluating the points, for which the quick command was measured.
    """
    measured = _measured().get(name)
    if measured is None:
        return f"at least {stored:.0f} minutes of processor time"
    return f"about {stored * measured['minutes'] / measured['stored']:.0f} minutes of processor time"


def _stored_seconds(name: str) -> float:
    """Return the seconds of a quick figure's runs when they were stored; none for the table."""
    if name not in FIGURES:
        return 0.0
    setups, paper, ours = _shown(name)
    tasks = [task for setup in available(list(setups)) for task in _tasks(setup, (*paper, *ours), True)]
    return sum(_seconds(task) for task in {task[:2] + task[3:]: task for task in tasks}.values())


def _processor_seconds() -> float:
    """Return the processor time of this process and of those that it started and that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def draw_stored() -> None:
    """Draw the figures of the stored curves, in the paper's layout."""
    for name in FIGURES:
        setups, paper, ours = _shown(name)
        picture = {setup: {curve: [*panel(setup).curves[curve].values()] for curve in _best(setup, (*paper, *ours))}
                   for setup in setups if has(setup)}  # fmt: skip
        if picture:
            _draw_both(f"paper_{name}", picture, {setup: _lower_bounds(setup) for setup in picture}, RESULTS, "svg")


def _lower_bounds(setup: str, root: Path | None = None) -> dict[int, float]:
    """Return the certified lower bounds of the best value by seed: the stored ones, or with fewer rows a solved one."""
    if "cifar" in setup and setup != whole(setup):
        return {0: prepared(setup, 0, root).best.lower}
    return {seed: lower for seed, (lower, _) in panel(whole(setup)).best.items()}


def _shown(name: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return a figure's set-ups, the paper's methods with those that a file of one's own adds, and ours."""
    setups, paper, ours = FIGURES[name]
    added = tuple(method for method in own_methods() if METHODS[method].fits(SETUPS[setups[0]]))
    return setups, (*paper, *added), ours


def _best(setup: str, methods: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the outputs to draw: each method's best on training rows in the stored runs, and some averages."""
    own, found = panel(setup), []
    for method in methods:
        means = {c: np.mean([*own.at(c, BUDGET, "train").values()])
                 for c in own.curves if c[0] == method and own.at(c, BUDGET, "train")}  # fmt: skip
        if means:
            found.append(min(means, key=lambda c: (means[c], c)))
        else:
            print(f"{SETUPS[setup].title}: no stored setting of {method}", flush=True)
    return [*found, *(curve for curve in AVERAGES if curve in own.curves and curve not in found)]


def _tasks(setup: str, methods: tuple[str, ...], quick: bool) -> list[Task]:
    """Return the runs of every method and seed."""
    here, tasks = setup + QUICK * quick, []
    for method, output in _best(setup, methods):
        setting = tuple(json.loads(next(iter(panel(setup).curves[method, output].values()))["setting"].iloc[0]))
        if quick and "cifar" in setup and method in VARIANCE_REDUCED:
            setting = (setting[0] - 1, *setting[1:])
        varies = METHODS[method].random or SETUPS[setup].new_data
        tasks += [Task(here, method, output, setting, seed) for seed in range(setup_of(here).seeds if varies else 1)]
    return tasks


def _place(task: Task, root: Path) -> Path:
    return place_of(task.setup, task.method, task.setting, task.seed, root)


def _seconds(task: Task) -> float:
    """Return the seconds of processor time that a run took when it was stored."""
    run = next(iter(panel(whole(task.setup)).curves[task.method, task.output].values()))
    share = QUICK_SHARE if task.setup != whole(task.setup) and "cifar" in task.setup else 1
    return float(run["cpu"].max()) / share


def _find_minima(setup: str, seed: int, root: Path) -> None:
    prepared(setup, seed, root)


def _run(task: Task, root: Path) -> None:
    stored_run(task.setup, task.method, task.setting, task.seed, root)


def _draw_both(name: str, picture: Curves, bounds: dict[str, dict[int, float]], folder: Path, kind: str) -> None:
    """Draw a figure with the paper's methods, and one with ours too."""
    own = FIGURES[name.removeprefix("paper_")][2]
    paper = {setup: {c: runs for c, runs in curves.items() if c[0] not in own} for setup, curves in picture.items()}
    zeros = {setup: _zero(setup, curves) for setup, curves in picture.items()}
    _draw(paper, bounds, zeros, folder / f"{name}.{kind}")
    _draw(picture, bounds, zeros, folder / f"{name}_with_ours.{kind}")


def _zero(setup: str, curves: dict[tuple[str, str], list[pd.DataFrame]]) -> float:
    """Return the zero model's value on test rows, NaN if it is unknown: of excess risks, our default's first model."""
    if setup_of(setup).kind == "gdro":
        return float(np.log(2.0 if setup_of(setup).task == "binary" else CIFAR_CLASSES))
    first = [run["test"].iloc[0] for (method, _), runs in curves.items() if method == DEFAULT["mero"] for run in runs]
    return float(np.mean(first)) if first else np.nan


def _draw(picture: Curves, bounds: dict[str, dict[int, float]], zeros: dict[str, float], path: Path) -> None:
    """Draw all panels in a row: for each set-up, the worst value on training rows and on test rows."""
    with plt.rc_context(SIZE):
        drawn, axes = plt.subplots(1, 2 * len(picture), figsize=(6.0 * len(picture), 3.1), layout="constrained")
        for k, ax in enumerate(axes):
            setup = list(picture)[k // 2]
            column = ("above", "test")[k % 2]
            _draw_panel(ax, setup, picture[setup], column, bounds[setup], zeros[setup])
            ax.set_title(f"{setup_of(setup).title.split(', ', 1)[1]}\n{('training', 'test')[k % 2]} rows", loc="left")
        handles = {text: handle for ax in axes for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
        drawn.legend(handles.values(), handles, loc="outside lower center", ncols=min(5, len(handles)), frameon=False)
        if any(setup != whole(setup) for setup in picture):
            drawn.suptitle(
                f"A preview: one seed; of CIFAR-100, one training row in {QUICK_SHARE}, with settings tuned on all.",
                fontsize=8,
            )
        save(drawn, path)
    print(path, flush=True)


def _draw_panel(
    ax: plt.Axes, setup: str, curves: dict[tuple[str, str], list[pd.DataFrame]], column: str,
    lower: dict[int, float], zero: float,
) -> None:  # fmt: skip
    """Draw means over the seeds with their standard errors, by gradient evaluations."""
    rows, ends = setup_of(setup).shape[1] / (QUICK_SHARE if setup.endswith("cifar" + QUICK) else 1), []
    for (method, output), whole_runs in curves.items():
        runs = [run[run["multiples"] <= BUDGET] for run in whole_runs]
        grid = np.unique(np.concatenate([run["multiples"] for run in runs]))
        grid = grid[grid >= max(run["multiples"].min() for run in runs)]
        # A run's value is that of its latest point.
        places = [np.searchsorted(run["multiples"], grid, side="right") - 1 for run in runs]
        if column == "above":
            best = [lower.get(int(run["seed"].iloc[0]), lower[0]) for run in runs]
            values = np.array([np.maximum(run["train"].to_numpy()[at] - least, FLOOR)
                               for run, at, least in zip(runs, places, best, strict=True)])  # fmt: skip
        else:
            values = np.array([run["test"].to_numpy()[at] for run, at in zip(runs, places, strict=True)])
        colour, marker, dashes = look((method, output))
        mean, low, high = np.array([spread_of(list(at), column) for at in values.T]).T
        ax.plot(grid * rows, mean, color=colour, ls=dashes, marker=marker, markevery=max(1, len(grid) // 7),
                mfc="white", mew=0.8, drawstyle="steps-post", label=label((method, output)))  # fmt: skip
        ax.fill_between(grid * rows, low, high, color=colour, alpha=0.15, lw=0, step="post")
        ends += list(mean if column == "above" else mean[grid >= BUDGET / 4])
    if column == "above":
        ax.set(ylim=(0.6 * min(ends), 1.6 * max(ends)), yscale="log")
    else:
        if np.isfinite(zero):
            draw_zero(ax, zero)
            ends.append(zero)
        # The first steps may be far above all that follows, and a run that diverges would hide the others.
        bottom, top = min(ends), float(np.quantile(ends, 0.9))
        room = max(top - bottom, zero - bottom if np.isfinite(zero) else 0.0, 1e-6)
        ax.set_ylim(bottom - 0.05 * room, bottom + 1.2 * room)
    ax.set_xlim(0, BUDGET * rows)
    ax.set_xlabel("gradient evaluations")
    value = "worst risk" if setup_of(setup).kind == "gdro" else "worst excess risk"
    ax.set_ylabel(f"{value}, above the best" if column == "above" else value)
    ax.spines[["top", "right"]].set_visible(False)


def table1(quick: bool, folder: Path) -> None:
    """Measure what the complexity table says, unless it is there, and write the tables, with tuned steps first."""
    path = folder / f"table1{'_quick' * quick}.parquet"
    limits = QUICK_TABLE if quick else {"seeds": complexity.SEEDS}
    measured = _measured().get("table1")
    words = f", about {measured['minutes']:.0f} minutes of processor time" if quick and measured else ""
    print(
        f"table1: {'a preview with one seed' if quick else 'hours'}{words}; every point is kept in {path}", flush=True
    )
    place = folder / f"table1_tuned{'_quick' * quick}.parquet"
    rows = tuned.measure(place, place, **(QUICK_TUNED if quick else {}))
    found, untuned = tuned.best(rows[rows["exponent"] > 0]), rows[rows["exponent"] == 0]
    theorems = complexity.measure(path, path, **limits)
    parts = {
        "MPVR's evaluations over ALEG's, with tuned steps": ratio_table(found),
        "Factors of the theorem's step that were best": factor_table(found),
        "Gap below which ALEG needs fewer evaluations than SMD, with tuned steps": crossing_table(found),
        "With the theorem's step, which implies the slopes": untuned_table(untuned),
        "Local slopes": local_table(found, theorems),
        "Straight lines through the points of the theorem's steps": complexity_table(theorems),
    }
    text = "\n\n".join(f"{title}:\n\n{table}" for title, table in parts.items())
    path.with_suffix(".md").write_text(text + "\n")
    print(text, path.with_suffix(".md"), sep="\n", flush=True)
