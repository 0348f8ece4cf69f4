"""Runs from the files that are stored beside the page, so that a fresh clone goes on where these end.

The files have the curves of the chosen settings, and the values at the whole budget of all others: a method whose
search has ended is not tuned again, only repeated on more seeds, unless its name is removed from ended.json and
refined.json. Each group's own minimum is not stored, and is computed again when needed.
"""

import json

import numpy as np
import pandas as pd

from benchmarks.paper.runs import place_of
from benchmarks.paper.setups import SETUPS
from benchmarks.paper.store import CACHE, RESULTS
from benchmarks.paper.tuning import CHOSEN, ENDED, REFINED, TRIED

__all__ = ["restore"]


def restore() -> None:
    """Restore every set-up of which no run is there."""
    tried, best = (pd.read_parquet(RESULTS / f"paper_{name}.parquet") for name in ("tuning", "best"))
    for name, setup in SETUPS.items():
        stored, folder = RESULTS / f"paper_{name}.parquet", CACHE / name
        if folder.exists() or not stored.exists():
            continue
        curves = pd.read_parquet(stored).assign(wall=np.nan)
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
        on_all = own.groupby("method")["seed"].nunique() == len(setup.tuning_seeds)
        (folder / REFINED).write_text(json.dumps([method for method in chosen if on_all.get(method, False)]))
        own.to_parquet(folder / TRIED, index=False)
        known = best[best["setup"] == name]
        if setup.kind == "gdro":
            for row in known.itertuples():
                bounds = pd.DataFrame({"lower": row.lower, "upper": row.upper, "reference": np.zeros(row.groups)})
                bounds.to_parquet(folder / f"optimum__{row.seed}.parquet", index=False)
        print(f"{name}: {len(chosen)} methods, {curves['seed'].nunique()} seeds restored", flush=True)
