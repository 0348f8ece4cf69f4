"""Small files of what the page needs, from the runs that were kept: nothing is computed here, only chosen."""

import json

import numpy as np
import pandas as pd

from benchmarks.paper.analysis import DEFAULT
from benchmarks.paper.contenders import METHODS, Setting
from benchmarks.paper.restore import BEST
from benchmarks.paper.runs import BUDGET, place_of
from benchmarks.paper.setups import SETUPS, Setup
from benchmarks.paper.store import CACHE, RESULTS
from benchmarks.paper.timings import TIMINGS
from benchmarks.paper.tuning import TRIED, at_budget, chosen

__all__ = ["collect"]

SMALL = {"multiples": "float32", "test": "float32", "gap": "float32", "seconds": "float32", "cpu": "float32",
         "load_start": "float32", "load_end": "float32", "seed": "int8"}  # fmt: skip


def collect() -> None:
    """Write the curves of chosen settings, the settings tried and the best values."""
    RESULTS.mkdir(exist_ok=True)
    tried, best = [], []
    for name, setup in SETUPS.items():
        curves = _curves(name)
        if not len(curves) or DEFAULT[setup.kind] not in set(curves["method"]):
            continue  # nothing to compare with yet
        curves.to_parquet(RESULTS / f"paper_{name}.parquet", compression="zstd", index=False)
        print(f"{name}: {len(curves)} points of {curves['method'].nunique()} methods, {curves['seed'].nunique()} seeds")
        tried.append(_with_stored(name, TRIED, _tried(name), ["method", "output", "setting"]))
        best.append(_with_stored(name, BEST, _best(name, setup), ["seed"]))
    pd.concat(tried).to_parquet(RESULTS / "paper_tuning.parquet", compression="zstd", index=False)
    if (CACHE / TIMINGS).exists():
        timed = pd.read_parquet(CACHE / TIMINGS)
        kept = {(name, method, json.dumps(setting)) for name in SETUPS for method, outputs in chosen(name).items()
                for setting in outputs.values()}  # fmt: skip
        still = [key in kept for key in zip(timed["setup"], timed["method"], timed["setting"], strict=True)]
        timed[still].to_parquet(RESULTS / TIMINGS, compression="zstd", index=False)
    pd.concat(best).to_parquet(RESULTS / "paper_best.parquet", compression="zstd", index=False)


def _with_stored(name: str, file: str, rows: list[dict], keys: list[str]) -> pd.DataFrame:
    """Return rows after those that were restored, which win: a restored run has only the outputs that were kept."""
    path = CACHE / name / file
    parts = [pd.read_parquet(path)] if path.exists() else []
    return pd.concat([*parts, pd.DataFrame(rows)]).drop_duplicates(keys)


def _best(name: str, setup: Setup) -> list[dict]:
    """Return the bounds of every seed's best value."""
    rows = []
    for seed in range(setup.seeds if setup.new_data else 1):
        path = CACHE / name / f"optimum__{seed}.parquet"
        if path.exists():
            bounds = pd.read_parquet(path)
            rows.append({"setup": name, "seed": seed, "lower": bounds["lower"].iloc[0],
                         "upper": bounds["upper"].iloc[0], "largest_reference": bounds["reference"].max(),
                         "groups": len(bounds)})  # fmt: skip
    return rows


def _curves(name: str) -> pd.DataFrame:
    """Return the points of every method's chosen settings, each output from its own."""
    parts = []
    for method, outputs in chosen(name).items():
        for output, setting in outputs.items():
            for seed in range(SETUPS[name].seeds):
                path = place_of(name, method, setting, seed)
                if path.exists():
                    points = pd.read_parquet(path)
                    points = points[points["output"] == output]
                    parts.append(points.assign(method=method, seed=seed, setting=json.dumps(setting)))
    if not parts:
        return pd.DataFrame()
    whole = pd.concat(parts, ignore_index=True)
    # A run's first point beyond the budget shows that it went so far, and is not drawn.
    return whole.drop(columns=["wall"]).astype(SMALL)


def _tried(name: str) -> list[dict]:
    """Return the value at the whole budget of every setting that was tried on seed 0."""
    rows = []
    for method, outputs in chosen(name).items():
        if not METHODS[method].tuned:
            continue
        for path in sorted(place_of(name, method, (), 0).parent.glob("*__0.parquet")):
            setting: Setting = tuple(int(part) for part in path.name.split("__")[0].split("_"))
            points = pd.read_parquet(path)
            for output in outputs:
                value = at_budget(points, output, BUDGET)
                rows.append({"setup": name, "method": method, "output": output, "setting": json.dumps(setting),
                             "train": value if np.isfinite(value) else np.nan})  # fmt: skip
    return rows
