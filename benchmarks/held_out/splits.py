"""Splits of a table, what models do on them, and a cache of it that lets an interrupted run resume."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.held_out.models import Part, fit_all, losses_of
from benchmarks.held_out.problems import Table, design
from benchmarks.held_out.writing import stored

HELD_OUT = 0.3
FEWEST = 30  # held-out rows from which a group is judged
N_SPLITS = 10


def split(table: Table, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the training rows and 30% held-out rows, alike in their groups and labels.

    Rows are put in order by group and label, at random within, and held out at even distances: every stratum keeps its
    share, however small. Where rows belong to units, such as days, whole units are drawn instead; every group has rows
    in all of them.
    """
    rng = np.random.default_rng(seed)
    n = table.n_rows
    if table.units is None:
        strata = np.unique(table.groups, return_inverse=True)[1] * 2 + (table.y == 1 if table.classes else 0)
        held_out = np.sort(np.lexsort((rng.random(n), strata))[_spread(n, rng)])
    else:
        n_units = int(table.units.max()) + 1
        held_out = np.flatnonzero(np.isin(table.units, rng.permutation(n_units)[_spread(n_units, rng)]))
    return np.setdiff1d(np.arange(n), held_out), held_out


def _spread(n: int, rng: np.random.Generator) -> np.ndarray:
    """Return 30% of the places from 0 to n - 1, at even distances from a random start."""
    steps = np.floor(HELD_OUT * np.arange(n + 1) + rng.random())
    return np.flatnonzero(np.diff(steps))


def parts(table: Table, train: np.ndarray, held_out: np.ndarray) -> tuple[Part, Part]:
    """Return both parts with the columns as models get them."""
    whole = Part(design(table, train), table.y, table.groups, table.classes, table.units)
    return whole.take(train), whole.take(held_out)


def judge(losses: np.ndarray, groups: np.ndarray) -> tuple[float, float, str]:
    """Return the average loss, and the largest of a group that has enough rows, with its name."""
    names, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    risks = np.where(sizes >= FEWEST, np.bincount(number, weights=losses) / sizes, -np.inf)
    worst = int(np.argmax(risks))
    return float(losses.mean()), float(risks[worst]), str(names[worst])


def run_split(table: Table, seed: int) -> dict[str, Any]:
    """Fit all models on one split, and return what is stored of it."""
    begun = time.perf_counter()
    train, held_out = parts(table, *split(table, seed))
    search, models = fit_all(train, seed)
    found = {}
    for name, model in models.items():
        mean, worst, group = judge(losses_of(model, held_out), held_out.groups)
        found[name] = {"mean": mean, "worst": worst, "worst_group": group}
    return {
        "split": seed,
        "rows": table.n_rows,
        "columns": train.X.shape[1],
        "groups": len(np.unique(table.groups)),
        "judged": int((np.unique(held_out.groups, return_counts=True)[1] >= FEWEST).sum()),
        "n_train": len(train.y),
        "n_held_out": len(held_out.y),
        "plain_alpha": search.plain_alpha_,
        "alpha": search.alpha_,
        "robustness": search.robustness_,
        "seconds": time.perf_counter() - begun,
        "models": found,
    }


def run_table(key: str, table: Table, cache: Path, n_splits: int = N_SPLITS) -> list[dict[str, Any]]:
    """Return what all splits of a table found, fitting those that the cache lacks."""

    def run(seed: int) -> dict[str, Any]:
        done = run_split(table, seed)
        print(f"{table.name}, split {seed}: {done['seconds']:.1f} s, robustness {done['robustness']:g}", flush=True)
        return done

    return [stored(cache / key / f"{seed}.json", partial(run, seed)) for seed in range(n_splits)]
