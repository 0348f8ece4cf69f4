"""What the stored curves say: values at budgets, and comparisons of two curves with intervals.

A run's value at a budget is that of its latest point by then. There is none before its first point, and none after its
end, except for a run that ended because its certified gap was met: it is over, and nothing is left to gain.
"""

import json
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.paper.contenders import METHODS, TOL
from benchmarks.paper.runs import BUDGET
from benchmarks.paper.setups import CIFAR_CLASSES, SETUPS
from benchmarks.paper.store import RESULTS
from benchmarks.paper.timings import TIMINGS, clock

__all__ = [
    "BUDGETS", "FEWEST", "Interval", "Outcome", "Panel", "arithmetic", "compare", "geometric", "has",
    "of_known_methods", "panel", "zero_values",
]  # fmt: skip

BUDGETS = (5, 10, 20, 30, 40)
FEWEST = 5  # seeds for a t interval; fewer are shown by their range
DEFAULT = {"gdro": "auto", "mero": "auto, excess risk"}


@dataclass(frozen=True)
class Interval:
    """A mean with its 95% t interval, with the range of fewer than five values, or with NaN for a single one."""

    mean: float
    low: float
    high: float
    n: int


def arithmetic(values: np.ndarray) -> Interval:
    """Return the mean with its interval or range."""
    mean, n = float(values.mean()), len(values)
    if n < 2:
        return Interval(mean, np.nan, np.nan, n)
    if n < FEWEST:
        return Interval(mean, float(values.min()), float(values.max()), n)
    half = float(stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def geometric(values: np.ndarray) -> Interval:
    """Return the geometric mean of positive numbers with its interval or range."""
    logs = arithmetic(np.log(values))
    return Interval(*(float(np.exp(v)) for v in (logs.mean, logs.low, logs.high)), logs.n)


def has(setup: str, folder: Path | None = None) -> bool:
    """Return whether curves of a set-up are stored."""
    return ((folder or RESULTS) / f"paper_{setup}.parquet").exists()


class Panel:
    """All curves of a set-up, from a folder of results.

    Attributes
    ----------
    curves : dict
        By method and output, then seed: the points of a run.
    best : dict
        By seed: the certified lower and upper bound of the best value.
    repeated : dict
        By method and output: seeds that were run, also if all runs are the same and count as one.
    timed : set
        Methods and outputs whose settings were timed on an idle machine; the column "seconds" of others is NaN.
    """

    def __init__(self, setup: str, folder: Path | None = None):
        self.setup, folder = setup, folder or RESULTS
        points = of_known_methods(pd.read_parquet(folder / f"paper_{setup}.parquet"))
        points["seconds"] = _seconds(setup, points, folder)
        bounds = pd.read_parquet(folder / "paper_best.parquet")
        bounds = bounds[bounds["setup"] == setup].set_index("seed")
        self.best = {seed: (float(row["lower"]), float(row["upper"])) for seed, row in bounds.iterrows()}
        self.groups = int(bounds["groups"].iloc[0])
        self.repeated: dict[tuple[str, str], int] = {}
        self._known: dict[tuple, dict[int, float]] = {}
        self.curves: dict[tuple[str, str], dict[int, pd.DataFrame]] = {}
        order = {name: k for k, name in enumerate(METHODS)}
        for (method, output), own in sorted(points.groupby(["method", "output"]), key=lambda p: order[p[0][0]]):
            runs = {int(seed): run for seed, run in own.groupby("seed")}
            self.curves[method, output] = runs if SETUPS[setup].new_data else _different(runs)
            self.repeated[method, output] = len(runs)
        self.timed = {curve for curve, runs in self.curves.items()
                      if not any(run["seconds"].isna().any() for run in runs.values())}  # fmt: skip

    @property
    def kind(self) -> str:
        """Whether risks or excess risks are minimised."""
        return self.setup.split("_")[0]

    @property
    def seeds(self) -> int:
        """Most repetitions of a method."""
        return max(len(runs) for runs in self.curves.values())

    @property
    def default(self) -> tuple[str, str]:
        """The curve of our default."""
        return DEFAULT[self.kind], "best"

    def setting_of(self, curve: tuple[str, str]) -> tuple[float, ...]:
        """Return the chosen exponents."""
        return tuple(json.loads(next(iter(self.curves[curve].values()))["setting"].iloc[0]))

    def setting(self, curve: tuple[str, str]) -> str:
        """Return the chosen parameters in words; empty for a method without any."""
        return METHODS[curve[0]].shown(self.setting_of(curve))

    def solved(self, curve: tuple[str, str]) -> Interval | None:
        """Return the multiples after which runs ended with their certified gap met, if all did."""
        runs = list(self.curves[curve].values())
        if any(run["status"].iloc[0] != "converged" for run in runs):
            return None
        return arithmetic(np.array([float(run["multiples"].max()) for run in runs]))

    def at(self, curve: tuple[str, str], budget: float, column: str, x: str = "multiples") -> dict[int, float]:
        """Return a column of each seed at a budget; seeds without a value are left out.

        The column "above" is the suboptimality: what is above the certified lower bound of the best value, and at least
        the width of that certificate.
        """
        key = (curve, budget, column, x)
        if key in self._known:
            return self._known[key]
        found = self._known[key] = {}
        for seed, run in self.curves.get(curve, {}).items():
            spent = run["multiples"].to_numpy() <= BUDGET * (1 + 1e-6)  # a budget in seconds allows no more of them
            place = int((spent & (run[x].to_numpy() <= budget * (1 + 1e-6))).sum()) - 1
            if place < 0 or self._over(run, budget, x):
                continue
            if column == "above":
                lower, _ = self.best[seed if seed in self.best else 0]
                found[seed] = max(float(run["train"].iloc[place]) - lower, self._floor(seed))
            else:
                found[seed] = float(run[column].iloc[place])
        return found

    @staticmethod
    def _over(run: pd.DataFrame, budget: float, x: str) -> bool:
        """Return whether a run had ended by a budget without having met its certified gap.

        Not every epoch of a run to the budget is stored, but it went on to the end of it.
        """
        status = run["status"].iloc[0]
        if status == "converged":
            return False
        end = BUDGET if status == "budget" and x == "multiples" else float(run[x].max())
        return bool(budget > end * (1 + 1e-6))

    def reached(self, curve: tuple[str, str], relative: float, x: str) -> dict[int, float]:
        """Return when each seed first had a relative suboptimality, within the budget; infinite if it never had."""
        found = {}
        for seed, run in self.curves.get(curve, {}).items():
            lower, upper = self.best[seed if seed in self.best else 0]
            inside = run[run["multiples"] <= BUDGET * (1 + 1e-6)]
            there = inside[inside["train"] - lower <= relative * upper]
            found[seed] = float(there[x].iloc[0]) if len(there) else np.inf
        return found

    def at_floor(self, curve: tuple[str, str], budget: float, x: str = "multiples") -> bool:
        """Return whether a seed's suboptimality is at most twice the width of the certificate of the best value."""
        return any(value <= 2 * self._floor(seed) for seed, value in self.at(curve, budget, "above", x).items())

    def _floor(self, seed: int) -> float:
        lower, upper = self.best[seed if seed in self.best else 0]
        return max(upper - lower, TOL * 1e-3)

    def last_second(self, *curves: tuple[str, str]) -> float:
        """Return the seconds at which the first run of some curves has spent the budget."""
        runs = [run for curve in curves for run in self.curves[curve].values()]
        return float(min(run[run["multiples"] <= BUDGET * (1 + 1e-6)]["seconds"].max() for run in runs))

    def common_seconds(self) -> float:
        """Return the seconds up to which no timed curve has ended."""
        ends = [run["seconds"].max() for curve in self.timed for run in self.curves[curve].values()
                if run["status"].iloc[0] != "converged"]  # fmt: skip
        return float(min(ends))


def of_known_methods(points: pd.DataFrame) -> pd.DataFrame:
    """Leave out curves of methods that no registered file adds, and say so."""
    unknown = sorted(set(points["method"]) - METHODS.keys())
    if unknown:
        print(f"left out: {', '.join(unknown)}, which no file in GROUPDRO_METHODS adds", file=sys.stderr, flush=True)
    return points[~points["method"].isin(unknown)].reset_index(drop=True)


def _seconds(setup: str, points: pd.DataFrame, folder: Path) -> pd.Series:
    """Return the seconds of points on an idle machine; NaN for settings that were not timed on one."""
    found = pd.Series(np.nan, index=points.index)
    if not (folder / TIMINGS).exists():
        return found
    timed = pd.read_parquet(folder / TIMINGS)
    for (method, setting), part in points.groupby(["method", "setting"]):
        own = clock(timed, setup, method, setting, part["multiples"].to_numpy(float))
        if own is not None:
            found.loc[part.index] = own
    return found


def _different(runs: dict[int, pd.DataFrame]) -> dict[int, pd.DataFrame]:
    """Return the first run alone if all are the same: on fixed data, of a method without random numbers."""
    first, *others = (run[["multiples", "train"]].to_numpy() for run in runs.values())
    same = all(np.array_equal(first, other) for other in others)
    return dict([next(iter(runs.items()))]) if same else runs


@dataclass(frozen=True)
class Outcome:
    """How two curves compare at a budget.

    Attributes
    ----------
    kind : {"ahead", "undecided", "behind", "no rival", "neither"}
        From the first curve's side. "no rival" if the other has no model yet on a seed on which the first has one;
        "behind" if it is the other way round.
    found : Interval or None
        The other's suboptimality over the first's, or its test value minus the first's.
    sign : {"", "≥ ", "≤ ", "≈ "}
        A ratio whose denominator, numerator or both are at the floor.
    seeds : tuple of int
        Seeds on which the first and the other curve have a model, of all their seeds.
    """

    kind: str
    found: Interval | None
    sign: str
    seeds: tuple[int, int, int]


def compare(
    own: Panel, mine: tuple[str, str], other: tuple[str, str], budget: float, column: str = "above",
    x: str = "multiples", without_tuning: bool = False,
) -> Outcome:  # fmt: skip
    """Compare two curves on the same seeds.

    A curve is ahead if the whole interval (of fewer than five seeds, each of them) says so; one seed decides nothing.
    With `without_tuning`, the tuning seeds are left out if there are at least four others.
    """
    runs = [own.curves[mine], own.curves[other]]
    a, b = own.at(mine, budget, column, x), own.at(other, budget, column, x)
    both = runs[0].keys() & runs[1].keys()
    if not SETUPS[own.setup].new_data:  # the only run of a method without random numbers stands for every seed
        both = runs[0].keys() | runs[1].keys() if min(map(len, runs)) == 1 else both
        a, b = (
            dict.fromkeys(both, *v.values()) if len(v) == len(r) == 1 else v for v, r in zip((a, b), runs, strict=True)
        )
    a, b = ({s: v for s, v in values.items() if s in both} for values in (a, b))
    kind = "no rival" if a.keys() > b.keys() else "behind" if a.keys() != b.keys() else "compared" if a else "neither"
    count, sign = (len(a), len(b), len(both)), ""
    seeds = sorted(a.keys() & b.keys())
    others = [seed for seed in seeds if seed not in SETUPS[own.setup].tuning_seeds]
    if without_tuning and len(others) >= FEWEST - 1:
        seeds = others
    if not seeds:
        return Outcome(kind, None, sign, count)
    mine_values, other_values = (np.array([values[s] for s in seeds]) for values in (a, b))
    if column == "above":
        found, even = geometric(other_values / mine_values), 1.0
        sign = ("", "≤ ", "≥ ", "≈ ")[own.at_floor(other, budget, x) + 2 * own.at_floor(mine, budget, x)]
    else:
        found, even = arithmetic(other_values - mine_values), 0.0
    if kind == "compared":
        kind = "ahead" if found.low > even else "behind" if found.high < even else "undecided"
        if sign == "≈ ":
            kind = "undecided"
    return Outcome(kind, found, sign, count)


@lru_cache(32)
def panel(setup: str) -> Panel:
    """Return the curves of a set-up."""
    return Panel(setup)


def zero_values(own: Panel) -> dict[int, float]:
    """Return the zero model's worst value on test rows, by seed."""
    seeds = {seed for runs in own.curves.values() for seed in runs}
    if own.kind == "gdro":
        return dict.fromkeys(seeds, float(np.log(2.0 if SETUPS[own.setup].task == "binary" else CIFAR_CLASSES)))
    # Our solver's first model is zero: its risks, and its excess risks, are the same on training and on test rows.
    first = {seed: run.iloc[0] for seed, run in own.curves[own.default].items()}
    assert all(abs(point["train"] - point["test"]) <= 1e-6 * point["test"] for point in first.values())
    return {seed: float(first[seed if seed in first else 0]["test"]) for seed in seeds}
