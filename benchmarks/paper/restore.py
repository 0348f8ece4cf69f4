"""Runs from the files that are stored beside the page, so that a fresh clone goes on where these end.

The files have the curves of the chosen settings, and the values at the whole budget of all others: a method whose
search has ended is not tuned again, only repeated on more seeds, until it is forgotten. Each group's own minimum is not
stored, and is computed again when needed.
"""

import json
import shutil

import numpy as np
import pandas as pd

from benchmarks.paper.analysis import of_known_methods
from benchmarks.paper.contenders import METHODS
from benchmarks.paper.runs import place_of
from benchmarks.paper.setups import SETUPS
from benchmarks.paper.store import CACHE, RESULTS
from benchmarks.paper.tuning import CHOSEN, ENDED, FORGOTTEN, REFINED, TRIED, is_refined, names_in

__all__ = ["forget", "restore"]


def restore() -> None:
    """Restore every set-up of which no run is there."""
    tried, best = (pd.read_parquet(RESULTS / f"paper_{name}.parquet") for name in ("tuning", "best"))
    for name, setup in SETUPS.items():
        stored, folder = RESULTS / f"paper_{name}.parquet", CACHE / name
        if folder.exists() or not stored.exists():
            continue
        curves = of_known_methods(pd.read_parquet(stored)).assign(wall=np.nan)
        chosen: dict[str, dict[str, list[int]]] = {}
        for (method, output), part in curves.groupby(["method", "output"], sort=False):
            chosen.setdefault(method, {})[output] = json.loads(part["setting"].iloc[0])
        for (method, setting, seed), points in curves.groupby(["method", "setting", "seed"], sort=False):
            path = place_of(name, method, tuple(json.loads(setting)), seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            points.drop(columns=["method", "setting", "seed"]).to_parquet(path, index=False)
        (folder / CHOSEN).write_text(json.dumps(chosen))
        (folder / ENDED).write_text(json.dumps(list(chosen)))
        own = tried[tried["setup"] == name]
        finished = [m for m in chosen if METHODS[m].tuned and _is_refined(name, m, own, chosen[m])]
        (folder / REFINED).write_text(json.dumps(finished))
        own.to_parquet(folder / TRIED, index=False)
        known = best[best["setup"] == name]
        if setup.kind == "gdro":
            for row in known.itertuples():
                bounds = pd.DataFrame({"lower": row.lower, "upper": row.upper, "reference": np.zeros(row.groups)})
                bounds.to_parquet(folder / f"optimum__{row.seed}.parquet", index=False)
        print(f"{name}: {len(chosen)} methods, {curves['seed'].nunique()} seeds restored", flush=True)


def _is_refined(setup: str, method: str, tried: pd.DataFrame, chosen: dict[str, list[int]]) -> bool:
    """Return whether the search of every output of a method has ended on all tuning seeds."""
    for output, setting in chosen.items():
        own = tried[(tried["method"] == method) & (tried["output"] == output)]
        known = {tuple(json.loads(key)): set(part["seed"]) for key, part in own.groupby("setting")}
        if not is_refined(setup, method, tuple(setting), known):
            return False
    return True


def forget(setups: list[str], methods: list[str]) -> None:
    """Drop all runs of methods whose code has changed, so that they are tuned from the beginning.

    What is stored of them stays until their new runs are complete.
    """
    unrestored = [setup for setup in setups if not (CACHE / setup / TRIED).exists()]
    if unrestored:
        raise SystemExit(f"{', '.join(unrestored)}: nothing was restored that could be forgotten; run 'restore' first.")
    for setup in setups:
        folder = CACHE / setup
        for method in methods:
            shutil.rmtree(place_of(setup, method, (), 0).parent, ignore_errors=True)
        for file in (ENDED, REFINED):
            (folder / file).write_text(json.dumps([name for name in names_in(setup, file) if name not in methods]))
        (folder / FORGOTTEN).write_text(json.dumps([*{*names_in(setup, FORGOTTEN), *methods}]))
        tried = pd.read_parquet(folder / TRIED)
        tried[~tried["method"].isin(methods)].to_parquet(folder / TRIED, index=False)
