"""Gradient evaluations until certified gaps with tuned steps: what Table 1 says when no constant puts the slope in.

With the steps of a theorem, the number of steps to a gap is the theorem's own constant over that gap, so that slopes
measured with them restate the formula of the step. Here each method's step is multiplied by a factor that is tuned for
every number of groups m, rows per group n, gap and kind of gap, on two families of problems:

- random: the groups' rules vary around a common one, as in `complexity`;
- opposed: losses that are nearly linear and groups that pull in opposite directions, as in lower bounds for the maximum
  of many functions, with labels that are mostly noise, so that a drawn row says little about its group.

A run is stored with the evaluations at which it first reached each gap: that of the best certified pair, which is what
a user waits for, and that of the average, which the theorems bound.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

import groupdro as gd
from benchmarks.paper import complexity
from benchmarks.paper.balanced import Mpvr, Smd
from benchmarks.paper.methods import SMD
from benchmarks.paper.methods.smd import SmdState
from benchmarks.paper.store import CACHE, RESULTS
from groupdro.certificate import Certificate
from groupdro.oracle import Oracle
from groupdro.run.result import Progress

__all__ = [
    "FAMILIES",
    "FILE",
    "GROUPS",
    "MOST_PASSES",
    "OUTPUTS",
    "SIZES",
    "M",
    "N",
    "against",
    "best",
    "crossing",
    "local_slopes",
    "measure",
    "run",
    "slope",
    "targets",
]

FILE = "paper_tuned.parquet"
M, N, SEEDS = 16, 100, 3  # the base case, as in `complexity`
GROUPS, SIZES = (4, 8, 16, 32, 64, 128), (25, 50, 100, 200, 400)
MOST_UNTUNED = 64  # groups up to which the theorem's step is run too
OUTPUTS = ("pair", "average")


class _Smd(Smd):
    """SMD with certificates of its average, its only output, while it runs."""

    def point(self, state: SmdState) -> Any:
        return SMD.point(self, state)


METHODS: dict[str, Callable[[float], gd.solvers.Solver]] = {
    "ALEG": lambda factor: gd.solvers.ALEGTheory(multiplier=factor, guarantee=False),
    "MPVR": Mpvr,
    "SMD": _Smd,
}
#: Gaps by family, in the unit of the loss.
FAMILIES = {
    "random": (8e-2, 4e-2, 2e-2, 1e-2, 4e-3, 1e-3),
    "opposed": (8e-3, 4e-3, 2e-3, 1e-3, 4e-4, 1e-4),
}
FIRST = 10  # the exponent at which searches start: 2^(10/2) = 32 times the theorem's step
SMALLEST, LARGEST = 1, 24  # exponents between which searches stay
MOST_PASSES = 150.0  # evaluations of a run over the rows
UNTUNED_PASSES = 3000.0  # of a run with the theorem's step
LONGER = 1.5  # times the evaluations of the best factor so far, up to which others are run
PATIENCE = 20  # epochs without a better gap of either kind after which a run ends


def opposed(m: int, n: int, seed: int) -> gd.Problem:
    """Return groups that pull in opposite directions, two along each, with rows of length 0.1 on a ball of radius 3.

    A row is its group's direction with a random sign, which is right by a probability of 0.55 to 0.75.
    """
    rng = np.random.default_rng([seed, m, n])
    directions = rng.normal(size=((m + 1) // 2, complexity.FEATURES))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    of_group = np.concatenate([directions, -directions])[:m]
    groups = np.repeat(np.arange(m), n)
    X = 0.1 * of_group[groups]
    right = rng.uniform(0.55, 0.75, size=m)
    y = np.where(rng.random(m * n) < right[groups], 1.0, -1.0)
    return gd.Problem(
        gd.GroupedData.from_arrays(X, y, groups),
        gd.losses.Logistic(),
        gd.domains.L2Domain(radius=complexity.RADIUS),
    )


MAKE = {"random": complexity.problem, "opposed": opposed}


class _Counter:
    """Notes when a run first reaches each gap, and ends it once nothing better can come."""

    def __init__(self, solver: gd.solvers.Solver, gaps: tuple[float, ...], most: dict[tuple[str, float], float]):
        self.solver, self.gaps, self.most = solver, gaps, most
        self.found: dict[tuple[str, float], float] = {}
        self.least, self.waited = dict.fromkeys(OUTPUTS, np.inf), 0

    def __call__(self, progress: Progress) -> bool:
        row = progress.latest
        values = {"pair": row.upper - row.lower, "average": self._of_the_average(progress)}
        self.waited += 1
        for output, value in values.items():
            if value < 0.99 * self.least[output]:
                self.least[output], self.waited = value, 0
            for gap in self.gaps:
                if value <= gap:
                    self.found.setdefault((output, gap), float(row.grad_evals_paper))
        open_ = [key for key in self.most if key not in self.found and row.grad_evals_paper < self.most[key]]
        return not open_ or self.waited >= PATIENCE

    def _of_the_average(self, progress: Progress) -> float:
        pair = self.solver.average(progress.state)  # type: ignore[attr-defined]
        if pair is None:
            return np.inf
        oracle = Oracle(progress.certificate.problem)  # whose passes the run does not count
        alone = Certificate(oracle)
        alone.observe(oracle.evaluate(*pair))
        return float(alone.upper - alone.lower)


def counts(
    family: str,
    method: str,
    m: int,
    n: int,
    seed: int,
    exponent: int,
    most: dict[tuple[str, float], float],
    most_passes: float = MOST_PASSES,
) -> dict[tuple[str, float], float]:
    """Return the evaluations at which a run first reached each gap, by kind of gap; nothing for gaps not reached."""
    given = MAKE[family](m, n, seed)
    solver = METHODS[method](2.0 ** (exponent / 2))
    counter = _Counter(solver, FAMILIES[family], most)
    # A step that is far too long ends in one of these.
    with np.errstate(all="ignore"), contextlib.suppress(FloatingPointError, ValueError, AssertionError):
        gd.solve(given, solver, tol=0.0, max_passes=most_passes, seed=seed, callbacks=[counter])
    return counter.found


def targets(family: str) -> list[tuple[str, float]]:
    """Return the kinds of gap and the gaps: for averages, which need many more passes, all but the finest."""
    gaps = FAMILIES[family]
    return [("pair", gap) for gap in gaps] + [("average", gap) for gap in gaps[:-1]]


def _cell(family: str, method: str, m: int, n: int, seeds: int) -> list[dict[str, Any]]:
    """Tune the factor for every gap of one problem size: by factors of two, and then by that of the root of two.

    A factor is judged by the geometric mean over the seeds, on all of which it must reach the gap.
    """
    tried: dict[int, list[dict[tuple[str, float], float]]] = {}

    def cost(exponent: int, key: tuple[str, float]) -> float:
        if not SMALLEST <= exponent <= LARGEST:
            return np.inf
        if exponent not in tried:
            limit = MOST_PASSES * m * n
            most = {key: LONGER * min((known(e, key) for e in tried), default=np.inf) for key in targets(family)}
            most = {key: min(limit, value) for key, value in most.items()}
            tried[exponent] = [counts(family, method, m, n, seed, exponent, most) for seed in range(seeds)]
        return known(exponent, key)

    def known(exponent: int, key: tuple[str, float]) -> float:
        return float(np.exp(np.mean([np.log(max(found.get(key, np.inf), 1.0)) for found in tried[exponent]])))

    for key in targets(family):
        best = min([*tried, FIRST], key=lambda e: cost(e, key))
        while (
            not np.isfinite(cost(best, key)) and best > SMALLEST and not any(np.isfinite(known(e, key)) for e in tried)
        ):
            best -= 2
        for step in (2, 1):
            for direction in (step, -step):
                while cost(best + direction, key) < cost(best, key):
                    best += direction
    return [row for exponent, found in tried.items() for row in _rows((family, method, m, n), exponent, found)]


def _untuned(family: str, method: str, m: int, n: int, seeds: int) -> list[dict[str, Any]]:
    """Return the evaluations with the theorem's own step until both kinds of gap are at the base case's."""
    gap = FAMILIES[family][1]
    most = {(output, gap): np.inf for output in OUTPUTS}
    found = [counts(family, method, m, n, seed, 0, most, UNTUNED_PASSES) for seed in range(seeds)]
    return _rows((family, method, m, n), 0, found)


def _rows(cell: tuple[str, str, int, int], exponent: int, of_seeds: list[dict[tuple[str, float], float]]) -> list[dict]:
    """Return the rows that are stored of a factor, one for each seed and gap."""
    base = dict(zip(("family", "method", "m", "n"), cell, strict=True))
    return [{**base, "seed": seed, "exponent": exponent, "output": output, "eps": gap,
             "evaluations": found.get((output, gap), np.nan)}
            for seed, found in enumerate(of_seeds) for output, gap in targets(cell[0])]  # fmt: skip


def plans(groups: tuple[int, ...], sizes: tuple[int, ...]) -> list[tuple[str, int, int]]:
    """Return methods with problem sizes, small ones first; SMD last, and along n alone, where it meets ALEG."""
    along_m = [(method, m, N) for m in groups for method in ("ALEG", "MPVR")]
    along_n = [(method, M, n) for n in sizes for method in METHODS]
    return sorted(dict.fromkeys([*along_n, *along_m]), key=lambda plan: (plan[0] == "SMD", plan[1] * plan[2]))


def measure(
    path: Path, known: Path | None, seeds: int = SEEDS, groups: tuple[int, ...] = GROUPS,
    sizes: tuple[int, ...] = SIZES, families: tuple[str, ...] = tuple(FAMILIES),
) -> pd.DataFrame:  # fmt: skip
    """Measure what a file does not have yet, and keep it in another one, or the same, after every problem size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = pd.read_parquet(known).to_dict("records") if known and known.exists() else []
    done = {(r["family"], r["method"], r["m"], r["n"]) for r in rows}
    for plan in plans(groups, sizes):
        for family in families:
            if (family, *plan) in done:
                continue
            since = time.process_time()
            found = _cell(family, *plan, seeds)
            rows += found
            pd.DataFrame(rows).to_parquet(path, index=False)
            print(f"tuned | {family} {plan[0]} m={plan[1]} n={plan[2]} | {time.process_time() - since:.1f} s, "
                  f"{len({row['exponent'] for row in found})} factors", flush=True)  # fmt: skip
    done = {(r["family"], r["method"], r["m"], r["n"]) for r in rows if r["exponent"] == 0}
    for m in groups:
        for cell in ((family, method, m, N) for family in families for method in ("ALEG", "MPVR")):
            if cell in done or m > MOST_UNTUNED:
                continue
            since = time.process_time()
            rows += _untuned(*cell, seeds)
            pd.DataFrame(rows).to_parquet(path, index=False)
            print(
                f"tuned | {cell[0]} {cell[1]} m={m}, theorem's step | {time.process_time() - since:.1f} s", flush=True
            )
    return pd.DataFrame(rows)


def run() -> None:
    """Measure whatever is not there yet, and keep it in benchmarks/results/."""
    path, stored, begun = CACHE / "tuned.parquet", RESULTS / FILE, time.perf_counter()
    rows = measure(path, next((file for file in (path, stored) if file.exists()), None))
    rows.to_parquet(stored, compression="zstd", index=False)
    print(f"tuned: {(time.perf_counter() - begun) / 60:.1f} min", flush=True)


def best(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each method's evaluations with its best factor, by family, kind of gap, m, n and gap.

    Columns are the geometric mean over the seeds and the factor; gaps that no factor reached on all seeds are left out.
    """
    keys = ["family", "method", "output", "m", "n", "eps"]
    logs = rows.assign(log=np.log(rows["evaluations"].clip(lower=1.0)))  # a gap that the start has costs SMD nothing
    means = logs.groupby([*keys, "exponent"])["log"].agg(lambda own: own.mean(skipna=False)).dropna().reset_index()
    kept = means.loc[means.groupby(keys)["log"].idxmin()]
    return kept.assign(evaluations=np.exp(kept["log"]), factor=2.0 ** (kept["exponent"] / 2)).drop(columns="log")


def against(found: pd.DataFrame, rival: str, mine: str = "ALEG") -> pd.DataFrame:
    """Return a rival's evaluations over those of ALEG on problems of the same size, where both reached the gap."""
    keys = ["family", "output", "m", "n", "eps"]
    a, b = (found[found["method"] == name].set_index(keys)["evaluations"] for name in (rival, mine))
    return (a / b).dropna().rename("ratio").reset_index()


def slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the slope on logarithmic axes, and half of its 95% t interval (NaN below four points)."""
    fitted = stats.linregress(np.log(x), np.log(y))
    half = stats.t.ppf(0.975, len(x) - 2) * fitted.stderr if len(x) >= 4 else np.nan
    return float(fitted.slope), float(half)


def local_slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the slopes on logarithmic axes between neighbouring points."""
    return np.diff(np.log(y)) / np.diff(np.log(x))


def crossing(found: pd.DataFrame, family: str, output: str, n: int) -> float:
    """Return the gap below which ALEG needs fewer evaluations than SMD, interpolated on logarithmic axes.

    Infinite if it does at every gap that both reached; a gap that SMD does not reach, and ALEG does, is ALEG's. NaN if
    it does at none.
    """
    own = found[(found["family"] == family) & (found["output"] == output) & (found["m"] == M) & (found["n"] == n)]
    table = own.pivot_table(index="eps", columns="method", values="evaluations").sort_index(ascending=False)
    if not {"ALEG", "SMD"} <= set(table.columns):
        return np.nan
    table = table[table["ALEG"].notna()]
    ahead = np.log(table["SMD"].fillna(np.inf)) - np.log(table["ALEG"])  # positive where ALEG needs fewer
    last = np.flatnonzero(ahead.to_numpy() <= 0)
    if not len(last):
        return np.inf
    k = int(last[-1])
    if k + 1 == len(ahead):
        return np.nan
    low, high = ahead.iloc[k], ahead.iloc[k + 1]
    gaps = np.log(ahead.index.to_numpy(float))
    share = 0.0 if np.isinf(high) else -low / (high - low)
    return float(np.exp(gaps[k] + share * (gaps[k + 1] - gaps[k])))
