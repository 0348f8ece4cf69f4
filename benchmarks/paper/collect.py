"""Small files of what the page needs, from the runs that were kept: nothing is computed here, only chosen."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from benchmarks.paper.contenders import METHODS
from benchmarks.paper.runs import place_of, setting_of
from benchmarks.paper.setups import SETUPS, Setup
from benchmarks.paper.store import CACHE, RESULTS
from benchmarks.paper.timings import TIMINGS
from benchmarks.paper.tuning import FORGOTTEN, at_budget, chosen, names_in

__all__ = ["collect"]

SMALL = {"multiples": "float32", "test": "float32", "gap": "float32", "seconds": "float32", "cpu": "float32",
         "load_start": "float32", "load_end": "float32", "seed": "int8"}  # fmt: skip


def collect() -> None:
    """Merge curves of chosen settings, settings tried, best values and timings into the stored files.

    What is stored stays unless a run replaces it, so that a few runs never take the place of a whole comparison.
    """
    RESULTS.mkdir(exist_ok=True)
    tried, best, kept, stale = [], [], set(), set()
    for name, setup in SETUPS.items():
        curves = _curves(name)
        if not len(curves):
            continue
        path = RESULTS / f"paper_{name}.parquet"
        forgotten = names_in(name, FORGOTTEN)
        curves, left = _merged_curves(path, curves, forgotten)
        curves.to_parquet(path, compression="zstd", index=False)
        print(f"{name}: {len(curves)} points of {curves['method'].nunique()} methods, {curves['seed'].nunique()} seeds")
        kept |= {(name, *key) for key in zip(curves["method"], curves["setting"], strict=True)}
        stale |= {(name, method) for method in forgotten if method not in left}
        tried += [row for row in _tried(name) if row["method"] not in left & {*forgotten}]
        best += _best(name, setup)
    _merge("paper_tuning.parquet", pd.DataFrame(tried), ["setup", "method", "output", "setting", "seed"], stale)
    _merge("paper_best.parquet", pd.DataFrame(best), ["setup", "seed"])
    if (CACHE / TIMINGS).exists():
        timed = pd.read_parquet(CACHE / TIMINGS)
        still = [key in kept for key in zip(timed["setup"], timed["method"], timed["setting"], strict=True)]
        _merge(TIMINGS, timed[still], ["setup", "method", "setting"])


def _merge(file: str, fresh: pd.DataFrame, keys: list[str], stale: Collection[tuple] = ()) -> None:
    """Replace the stored rows that have the same keys as fresh ones, or whose first keys are stale; keep all others."""
    if not len(fresh):
        return
    path = RESULTS / file
    if path.exists():
        stored = pd.read_parquet(path)
        again = pd.MultiIndex.from_frame(stored[keys]).isin(pd.MultiIndex.from_frame(fresh[keys]))
        again |= pd.MultiIndex.from_frame(stored[keys[:2]]).isin(list(stale))
        fresh = pd.concat([stored[~again], fresh], ignore_index=True)
    fresh.to_parquet(path, compression="zstd", index=False)


def _merged_curves(path: Path, fresh: pd.DataFrame, forgotten: Sequence[str]) -> tuple[pd.DataFrame, set[str]]:
    """Return fresh curves with the stored ones that they do not replace, and the methods of which these stay.

    Runs of the same setting replace each other seed by seed. A curve of another setting, or of a forgotten method,
    replaces the stored one once it has all of its seeds, and is left out until then.
    """
    if not path.exists():
        return fresh, set()
    stored, parts, left = pd.read_parquet(path), [], set()
    both = pd.concat([stored, fresh]).groupby(["method", "output"], sort=False).groups
    for method, output in both:
        old, new = (rows[(rows["method"] == method) & (rows["output"] == output)] for rows in (stored, fresh))
        another = len(new) and len(old) and old["setting"].iloc[0] != new["setting"].iloc[0]
        if not another and method not in forgotten:
            parts += [old[~old["seed"].isin(new["seed"])], new]
            continue
        missing = set(old["seed"]) - set(new["seed"])
        if missing:
            left.add(method)
            print(f"{path.stem}: {method}, {output}: the stored runs stay until seeds {sorted(missing)} are run")
        parts.append(old if missing else new)
    return pd.concat(parts, ignore_index=True).astype(SMALL), left


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
    """Return the value at the whole budget of every setting that was run on a seed of the tuning."""
    rows = []
    for method, outputs in chosen(name).items():
        if not METHODS[method].tuned:
            continue
        for seed in SETUPS[name].tuning_seeds:
            for path in sorted(place_of(name, method, (), seed).parent.glob(f"*__{seed}.parquet")):
                points = pd.read_parquet(path)
                key = {"setup": name, "method": method, "setting": json.dumps(setting_of(path)), "seed": seed}
                for output in outputs:
                    # A restored run may lack outputs, whose values are in the file into which this is merged.
                    if output in set(points["output"]) or not points["wall"].isna().any():
                        rows.append({**key, "output": output, "train": at_budget(points, output)})
    return rows
