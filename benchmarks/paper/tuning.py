"""One rule for the parameters of every method, by the suboptimality on training rows at the whole budget.

1. Climb on seed 0 until every neighbour was tried and none is better. The grid is therefore extended until the best
   setting is inside of it, in every parameter.
2. Run the best settings of that search on all tuning seeds, and leave out those that are unstable.
3. From the best of them by the geometric mean over these seeds, climb in the step alone, by half of the factor.

Each output of a method (average, snapshot, last point) is tuned for itself.
"""

import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from benchmarks.paper.contenders import METHODS, Setting
from benchmarks.paper.optimum import Optimum
from benchmarks.paper.runs import BUDGET, place_of, prepared, setting_of, stored_run
from benchmarks.paper.setups import SETUPS
from benchmarks.paper.store import CACHE

__all__ = ["at_budget", "chosen", "climb", "is_refined", "names_in", "over_seeds", "tune", "tuning_seeds"]

#: Files of a set-up: settings found; methods whose search on seed 0 has ended, and that on all tuning seeds too, and
#: those of which all that was restored was dropped.
CHOSEN, ENDED, REFINED, FORGOTTEN = "chosen.json", "ended.json", "refined.json", "forgotten.json"
TRIED = "tried.parquet"  # of a restored set-up: values of all settings that were tried, of which most have no curve
BETTER = 0.98  # a neighbour is better if its suboptimality is at most this share
FINALISTS = 3  # settings of the search on seed 0 that are run on the other tuning seeds
FINER = 0.5  # step of the exponent in the last search
UNSTABLE = 10.0  # times the least suboptimality over the tuning seeds


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


def _restored(setup_name: str, name: str, output: str) -> dict[tuple[Setting, int], float]:
    """Return the values at the whole budget that restored searches had found, by setting and seed."""
    path = CACHE / setup_name / TRIED
    if not path.exists():
        return {}
    rows = pd.read_parquet(path)
    own = rows[(rows["method"] == name) & (rows["output"] == output)]
    return {(tuple(json.loads(row.setting)), row.seed): row.train for row in own.itertuples()}


def suboptimality(value: float, best: Optimum) -> float:
    """Return what a value is above the certified lower bound, at least the certificate's width; infinite for NaN."""
    return max(value - best.lower, best.upper - best.lower, 1e-12) if np.isfinite(value) else np.inf


def _run_with(setup_name: str, name: str, setting: Setting, seed: int, outputs: set[str]) -> pd.DataFrame:
    """Return a run, made again if it was restored with other outputs alone."""
    points = stored_run(setup_name, name, setting, seed)
    if points["wall"].isna().any() and not outputs <= set(points["output"]):
        place_of(setup_name, name, setting, seed).unlink()
        return stored_run(setup_name, name, setting, seed)
    return points


def _cost(setup_name: str, name: str, output: str, seed: int = 0) -> Callable[[Setting], float]:
    """Return a function of a setting: its suboptimality at the whole budget on a seed."""
    known, best = _restored(setup_name, name, output), prepared(setup_name, seed).best

    def cost(setting: Setting) -> float:
        there = (setting, seed) in known
        run = None if there else _run_with(setup_name, name, setting, seed, {output})
        value = known[setting, seed] if run is None else at_budget(run, output)
        return suboptimality(value, best)

    return cost


def chosen(setup_name: str) -> dict[str, dict[str, Setting]]:
    """Return the settings found so far of all methods that are known: method, output, setting."""
    found = _all_chosen(setup_name).items()
    return {name: {output: tuple(s) for output, s in outputs.items()} for name, outputs in found if name in METHODS}


def _all_chosen(setup_name: str) -> dict[str, dict[str, list[float]]]:
    """Return the settings found so far, also of methods that are registered no more."""
    path = CACHE / setup_name / CHOSEN
    return json.loads(path.read_text()) if path.exists() else {}


def _choose(setup_name: str, name: str, output: str, setting: Setting) -> None:
    found = _all_chosen(setup_name)
    found.setdefault(name, {})[output] = list(setting)
    path = CACHE / setup_name / CHOSEN
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found))


def names_in(setup_name: str, file: str) -> list[str]:
    """Return the methods that a file of a set-up lists."""
    path = CACHE / setup_name / file
    return json.loads(path.read_text()) if path.exists() else []


def ranked(setup_name: str, name: str, output: str) -> list[Setting]:
    """Return all settings that were run on seed 0, by searches for other outputs too, the best first."""
    cost = _cost(setup_name, name, output)
    files = place_of(setup_name, name, (), 0).parent.glob("*__0.parquet")
    known = {setting for setting, seed in _restored(setup_name, name, output) if seed == 0}
    found = {setting: cost(setting) for setting in {setting_of(path) for path in files} | known}
    # Of equally good settings, the one nearest to the theory's.
    return sorted(found, key=lambda setting: (found[setting], sum(map(abs, setting)), setting))


def tune(setup_name: str, names: list[str], starts: Sequence[dict[str, dict[str, Setting]]] = ()) -> None:
    """Find the settings of methods: coarsely on seed 0, then among the best and between them on all tuning seeds."""
    for name in names:
        if name not in names_in(setup_name, ENDED):
            _search(setup_name, name, starts)
        if METHODS[name].tuned and name not in names_in(setup_name, REFINED):
            refine(setup_name, name)


def _search(setup_name: str, name: str, starts: Sequence[dict[str, dict[str, Setting]]]) -> None:
    """Find a method's settings on seed 0, each from the best of those at which other set-ups' searches ended.

    A search for one output may meet a setting that is better for another one, whose search then goes on from there,
    until all searches together have used their runs. A search that has ended is not resumed: with a new limit on runs
    it would go on, and move settings that were run.
    """
    method, settled, runs = METHODS[name], 0, -1
    for output in itertools.cycle(method.outputs):
        found = chosen(setup_name).get(name, {})
        used = runs >= SETUPS[setup_name].most_runs * len(method.outputs)
        if settled == len(method.outputs) or (used and len(found) == len(method.outputs)):
            break
        begins = [start[name][output] for start in starts if output in start.get(name, {})] or [method.start]
        if method.like:
            begins = [(*chosen(setup_name)[method.like][output], 0)]
        best, tried = begins[0], {}
        if method.tuned:
            cost = _cost(setup_name, name, output)
            for begin in begins:  # all are run, whatever searches for other outputs have met
                cost(begin)
            best, tried = climb(cost, ranked(setup_name, name, output)[0], SETUPS[setup_name].most_runs)
        known, runs = runs, len(list(place_of(setup_name, name, (), 0).parent.glob("*__0.parquet")))
        settled = settled + 1 if runs == known else 1  # the others may go on from what this search has met
        if found.get(output) != best:
            _choose(setup_name, name, output, best)
            print(f"{setup_name} | {name}, {output} | {method.shown(best) or 'default'} of {len(tried)}", flush=True)
    (CACHE / setup_name / ENDED).write_text(json.dumps([*names_in(setup_name, ENDED), name]))


def over_seeds(costs: Sequence[float]) -> float:
    """Return the geometric mean of a setting's suboptimality over the tuning seeds; infinite if it is unstable.

    It is unstable if it diverges on one of them, or ends with more than ten times the suboptimality of another one.
    """
    least, most = min(costs), max(costs)
    return float(np.exp(np.mean(np.log(costs)))) if np.isfinite(most) and most <= UNSTABLE * least else np.inf


def tuning_seeds(setup_name: str, name: str) -> range:
    """Return the seeds on which a method's setting is chosen: one if all runs would be the same."""
    setup = SETUPS[setup_name]
    return setup.tuning_seeds if setup.new_data or METHODS[name].random else range(1)


def is_refined(setup_name: str, name: str, best: Setting, tried: Mapping[Setting, Collection[int]]) -> bool:
    """Return whether a setting and both neighbours of the last search were tried, each on every tuning seed."""
    needed = set(tuning_seeds(setup_name, name))
    return all(needed <= set(tried.get(_moved(best, step), ())) for step in (0, -FINER, FINER))


def refine(setup_name: str, name: str) -> None:
    """Choose each output's setting on all tuning seeds: among the best of seed 0, then with the first parameter finer.

    The first parameter is the step's multiplier, whose neighbours are here half as far as before, and are tried until
    neither is better.
    """
    method, seeds = METHODS[name], tuning_seeds(setup_name, name)
    new = {s for output in method.outputs for s in ranked(setup_name, name, output)[:FINALISTS]}
    costs: dict[str, dict[Setting, list[float]]] = {output: {} for output in method.outputs}
    best: dict[str, Setting] = {}
    while new:
        for seed in seeds:  # whose rows are made once for all settings
            for output in method.outputs:
                cost = _cost(setup_name, name, output, seed)
                for setting in sorted(new):
                    costs[output].setdefault(setting, []).append(cost(setting))
        for output, found in costs.items():
            # If none is stable, the one with the best mean, which all seeds together show to be bad.
            best[output] = min(found, key=lambda s: (over_seeds(found[s]), np.mean(np.log(found[s])), s))
        near = {_moved(setting, step) for setting in best.values() for step in (-FINER, FINER)}
        new = near - costs[method.outputs[0]].keys()
    for output, setting in best.items():
        _choose(setup_name, name, output, setting)
        shown = ", ".join(f"{cost:.2g}" for cost in costs[output][setting])
        print(
            f"{setup_name} | {name}, {output} | {method.shown(setting)}, of {len(costs[output])}: {shown}", flush=True
        )
    (CACHE / setup_name / REFINED).write_text(json.dumps([*names_in(setup_name, REFINED), name]))


def _moved(setting: Setting, step: float) -> Setting:
    """Return a setting with its first exponent moved; a whole number stays an int, for the same file names."""
    first = setting[0] + step
    return (int(first) if first == int(first) else first, *setting[1:])


def repeat(setup_name: str, names: list[str], seeds: int) -> None:
    """Run the chosen settings on all seeds, seed by seed, so that whatever is there is balanced."""
    setup = SETUPS[setup_name]
    for seed in range(seeds):
        prepared(setup_name, seed if setup.new_data else 0).solve()  # kept in a file, as runs are
        for name in names:
            if seed and not METHODS[name].random and not setup.new_data:
                continue  # the same run again
            outputs = chosen(setup_name).get(name, {})
            for setting in sorted(set(outputs.values())):
                _run_with(setup_name, name, setting, seed, {o for o, own in outputs.items() if own == setting})
