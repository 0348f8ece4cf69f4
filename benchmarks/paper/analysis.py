"""What the stored curves say: values at budgets, leaders, ratios with intervals, claims.

A run's value at a budget is that of its latest point by then. There is none before its first point, and none after its
end, except for a run that ended because its certified gap was met: it is over, and nothing is left to gain.
"""

import json
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.paper.methods import METHODS, TOL
from benchmarks.paper.runs import BUDGET
from benchmarks.paper.store import RESULTS

__all__ = ["BUDGETS", "Interval", "Panel", "geometric", "has", "panel", "ratio"]

BUDGETS = (5, 10, 20, 30, 40)
DEFAULT = {"gdro": "auto", "mero": "auto, excess risk"}


@dataclass(frozen=True)
class Interval:
    """A mean with its 95% interval; NaN bounds for a single repetition."""

    mean: float
    low: float
    high: float
    n: int


def geometric(values: np.ndarray) -> Interval:
    """Return the geometric mean of positive numbers with its 95% t interval."""
    logs = np.log(values)
    mean, n = float(logs.mean()), len(logs)
    if n < 2:
        return Interval(float(np.exp(mean)), np.nan, np.nan, n)
    half = float(stats.t.ppf(0.975, n - 1) * logs.std(ddof=1) / np.sqrt(n))
    return Interval(float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half)), n)


def arithmetic(values: np.ndarray) -> Interval:
    """Return the mean with its 95% t interval."""
    mean, n = float(values.mean()), len(values)
    if n < 2:
        return Interval(mean, np.nan, np.nan, n)
    half = float(stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def ratio(numerator: dict[int, float], denominator: dict[int, float]) -> Interval | None:
    """Return the geometric mean of the ratios of two methods on the same seeds, if they have any in common."""
    seeds = sorted(numerator.keys() & denominator.keys())
    if not seeds:
        return None
    return geometric(np.array([numerator[s] for s in seeds]) / np.array([denominator[s] for s in seeds]))


def has(setup: str) -> bool:
    """Return whether curves of a set-up are stored."""
    return (RESULTS / f"paper_{setup}.parquet").exists()


class Panel:
    """All curves of a set-up.

    Attributes
    ----------
    curves : dict
        By method and output, then seed: the points of a run.
    best : dict
        By seed: the certified lower and upper bound of the best value.
    """

    def __init__(self, setup: str):
        self.setup = setup
        points = pd.read_parquet(RESULTS / f"paper_{setup}.parquet")
        bounds = pd.read_parquet(RESULTS / "paper_best.parquet")
        bounds = bounds[bounds["setup"] == setup].set_index("seed")
        self.best = {seed: (float(row["lower"]), float(row["upper"])) for seed, row in bounds.iterrows()}
        self.groups = int(bounds["groups"].iloc[0])
        self.curves: dict[tuple[str, str], dict[int, pd.DataFrame]] = {}
        order = {name: k for k, name in enumerate(METHODS)}
        for (method, output), own in sorted(points.groupby(["method", "output"]), key=lambda p: order[p[0][0]]):
            self.curves[method, output] = {int(seed): run for seed, run in own.groupby("seed")}

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

    def setting(self, curve: tuple[str, str]) -> str:
        """Return the chosen parameters in words; empty for a method without any."""
        run = next(iter(self.curves[curve].values()))
        return METHODS[curve[0]].shown(tuple(json.loads(run["setting"].iloc[0])))

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
        found = {}
        for seed, run in self.curves.get(curve, {}).items():
            place = int((run[x].to_numpy() <= budget * (1 + 1e-6)).sum()) - 1
            if place < 0 or self._over(run, budget, x):
                continue
            if column == "above":
                lower, upper = self.best[seed if seed in self.best else 0]
                found[seed] = max(float(run["train"].iloc[place]) - lower, upper - lower, TOL * 1e-3)
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

    def leaders(self, budget: float, x: str = "multiples") -> list[tuple[tuple[str, str], Interval]]:
        """Return all curves that every seed has a value of by a budget, the best first."""
        ranked = []
        for curve, runs in self.curves.items():
            values = self.at(curve, budget, "above", x)
            if len(values) == len(runs):
                ranked.append((curve, geometric(np.array(list(values.values())))))
        return sorted(ranked, key=lambda pair: pair[1].mean)

    def common_seconds(self) -> float:
        """Return the CPU seconds up to which no curve has ended."""
        ends = [run["cpu"].max() for runs in self.curves.values() for run in runs.values()
                if run["status"].iloc[0] != "converged"]  # fmt: skip
        return float(min(ends))


@lru_cache(32)
def panel(setup: str) -> Panel:
    """Return the curves of a set-up."""
    return Panel(setup)
