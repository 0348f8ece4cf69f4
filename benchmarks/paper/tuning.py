"""One rule for the parameters of every method: climb on seed 0 until every neighbour was tried and none is better.

The grid is therefore extended until the best setting is inside of it, in every parameter. Each output of a method
(average, snapshot, last point) is tuned for itself, by its suboptimality on training rows at the whole budget.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.paper.contenders import METHODS, Setting
from benchmarks.paper.optimum import Optimum
from benchmarks.paper.runs import BUDGET, place_of, prepared, stored_run
from benchmarks.paper.setups import SETUPS
from benchmarks.paper.store import CACHE

__all__ = ["at_budget", "chosen", "climb", "tune"]

CHOSEN, ENDED = "chosen.json", "ended.json"  # of a set-up: settings found, methods whose search has ended
TRIED = "tried.parquet"  # of a restored set-up: values of all settings that were tried, of which most have no curve
BETTER = 0.98  # a neighbour is better if its suboptimality is at most this share


def at_budget(points: pd.DataFrame, output: str, budget: float = BUDGET, column: str = "train") -> float:
    """Return what a run had by a budget: NaN before its first point and after its end."""
    own = points[points["output"] == output]
    if not len(own):
        return np.nan
    inside = own[own["multiples"] <= budget + 1e-9]
    ended = own["status"].iloc[0] != "budget" and budget > own["multiples"].max() + 1e-9
    return float(inside[column].iloc[-1]) if len(inside) and not ended else np.nan


def climb(cost: Callable[[Setting], float], start: Setting, most_runs: int) -> tuple[Setting, dict[Setting, float]]:
    """Return a setting of which no neighbour is better, and the costs of all settings tried.

    Beyond the limit on runs, settings count as infinitely bad.
    """
    tried: dict[Setting, float] = {}

    def of(setting: Setting) -> float:
        if setting not in tried:
            value = cost(setting) if len(tried) < most_runs else np.inf
            tried[setting] = value if np.isfinite(value) else np.inf
        return tried[setting]

    best, moved = start, True
    while not np.isfinite(of(best)) and best[0] > start[0] - 8:  # a step that is too long
        best = (best[0] - 1, *best[1:])
    while moved:
        moved = False
        for k in range(len(best)):
            for direction in (1, -1):
                while True:
                    neighbour = (*best[:k], best[k] + direction, *best[k + 1 :])
                    if not of(neighbour) < BETTER * of(best):
                        break
                    best, moved = neighbour, True
    return best, tried


def _restored(setup_name: str, name: str, output: str) -> dict[Setting, float]:
    """Return the values at the whole budget of the settings that a restored search had tried."""
    path = CACHE / setup_name / TRIED
    rows = pd.read_parquet(path) if path.exists() else pd.DataFrame(columns=["method", "output", "setting", "train"])
    own = rows[(rows["method"] == name) & (rows["output"] == output)]
    return {tuple(json.loads(setting)): value for setting, value in zip(own["setting"], own["train"], strict=True)}


def _cost(setup_name: str, name: str, output: str, best: Optimum) -> Callable[[Setting], float]:
    known = _restored(setup_name, name, output)

    def cost(setting: Setting) -> float:
        value = known[setting] if setting in known else at_budget(stored_run(setup_name, name, setting, 0), output)
        return value - best.lower if np.isfinite(value) else np.inf

    return cost


def _file(setup_name: str) -> Path:
    return CACHE / setup_name / CHOSEN


def chosen(setup_name: str) -> dict[str, dict[str, Setting]]:
    """Return the settings found so far: method, output, setting."""
    path = _file(setup_name)
    stored = json.loads(path.read_text()) if path.exists() else {}
    return {name: {output: tuple(s) for output, s in outputs.items()} for name, outputs in stored.items()}


def best_known(setup_name: str, name: str, output: str, start: Setting) -> Setting:
    """Return the best setting of all that were run on seed 0, by searches for other outputs too."""
    cost = _cost(setup_name, name, output, prepared(setup_name, 0).best)
    files = place_of(setup_name, name, (), 0).parent.glob("*__0.parquet")
    run = {tuple(int(part) for part in path.name.split("__")[0].split("_")) for path in files}
    found = {setting: cost(setting) for setting in run | _restored(setup_name, name, output).keys()}
    # Of equally good settings, the one nearest to the theory's.
    return min(found, key=lambda setting: (found[setting], sum(map(abs, setting)), setting)) if found else start


def tune(setup_name: str, names: list[str], starts: Sequence[dict[str, dict[str, Setting]]] = ()) -> None:
    """Find the settings of methods on seed 0, each from the best of those at which other set-ups' searches ended.

    A search for one output may meet a setting that is better for another one, whose search then goes on from there,
    until all searches together have used their runs. A search that has ended is not resumed: with a new limit on runs
    it would go on, and move settings that were run.
    """
    ended = CACHE / setup_name / ENDED
    for name in names:
        method = METHODS[name]
        done = json.loads(ended.read_text()) if ended.exists() else []
        if name in done:
            continue
        settled, runs = 0, -1
        for output in itertools.cycle(method.outputs):
            found = chosen(setup_name)
            used = runs >= SETUPS[setup_name].most_runs * len(method.outputs)
            if settled == len(method.outputs) or (used and len(found.get(name, {})) == len(method.outputs)):
                break
            begins = [start[name][output] for start in starts if output in start.get(name, {})] or [method.start]
            best, tried = begins[0], {}
            if method.tuned:
                cost = _cost(setup_name, name, output, prepared(setup_name, 0).best)
                for begin in begins:  # all are run, whatever searches for other outputs have met
                    cost(begin)
                begin = best_known(setup_name, name, output, best)
                best, tried = climb(cost, begin, SETUPS[setup_name].most_runs)
            known, runs = runs, len(list(place_of(setup_name, name, (), 0).parent.glob("*__0.parquet")))
            settled = settled + 1 if runs == known else 1  # the others may go on from what this search has met
            if found.get(name, {}).get(output) == best:
                continue
            found.setdefault(name, {})[output] = best
            _file(setup_name).parent.mkdir(parents=True, exist_ok=True)
            _file(setup_name).write_text(json.dumps(found))
            print(f"{setup_name} | {name}, {output} | {method.shown(best) or 'default'} of {len(tried)}", flush=True)
        ended.write_text(json.dumps([*done, name]))


def repeat(setup_name: str, names: list[str], seeds: int) -> None:
    """Run the chosen settings on all seeds, seed by seed, so that whatever is there is balanced."""
    setup = SETUPS[setup_name]
    for seed in range(seeds):
        for name in names:
            if seed and not METHODS[name].random and not setup.new_data:
                continue  # the same run again
            outputs = chosen(setup_name).get(name, {})
            for setting in sorted(set(outputs.values())):
                points = stored_run(setup_name, name, setting, seed)
                wanted = {output for output, own in outputs.items() if own == setting}
                if points["wall"].isna().any() and not wanted <= set(points["output"]):
                    place_of(setup_name, name, setting, seed).unlink()  # restored with other outputs alone
                    stored_run(setup_name, name, setting, seed)


def is_there(setup_name: str, name: str, setting: Setting, seed: int) -> bool:
    """Return whether a run was made."""
    return place_of(setup_name, name, setting, seed).exists()
