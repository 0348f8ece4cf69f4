"""Gradient evaluations until a certified gap, as functions of the groups, their size and the gap.

    python -m benchmarks.complexity run     measures (resumes where it stopped), into benchmarks/results/complexity.csv
    python -m benchmarks.complexity table   prints the exponents with intervals beside the predicted ones

Steps are those of each method's theory, untouched, so that they scale with m and n as it says. Gradient evaluations
are the paper's count. The gap is the best certified pair's, which is what a user waits for; the theorems speak of the
average's.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

import groupdro as gd

RESULTS = Path(__file__).parent / "results"
TABLE = RESULTS / "complexity.csv"
FEATURES, RADIUS, SEEDS = 20, 3.0, 3
M, N, EPS = 16, 400, 1e-2  # the middle, at which the two others are kept
GROUPS = (4, 8, 16, 32, 64, 128, 256)
SIZES = (50, 100, 200, 400, 1000, 2000, 5000)
GAPS = tuple(np.geomspace(4e-2, 4e-3, 6))
METHODS = {
    "ALEG": gd.ALEGTheory,
    "MPVR": gd.MPVR,
    "SMD": gd.SMD,
}
MOST_SECONDS = 150.0
PREDICTED = {
    "ALEG": {"m": 1.0, "n": 0.5, "eps": -1.0},
    "MPVR": {"m": 1.5, "n": 0.5, "eps": -1.0},
    "SMD": {"m": 1.0, "n": 0.0, "eps": -2.0},
}


def problem(m: int, n: int, seed: int) -> gd.GroupRisk:
    """Return groups whose rules vary around a common one, so that the optimum is as far from the start for every m."""
    rng = np.random.default_rng([seed, m, n])
    common = rng.normal(size=FEATURES)
    rules = common / np.linalg.norm(common) + 0.7 * rng.normal(size=(m, FEATURES)) / np.sqrt(FEATURES)
    groups = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, FEATURES)) / np.sqrt(FEATURES)
    y = np.where(np.einsum("rd,rd->r", X, rules[groups]) > 0, 1.0, -1.0)
    y[rng.random(m * n) < 0.1] *= -1.0
    return gd.GroupRisk(gd.GroupedData.from_arrays(X, y, groups), gd.Logistic(), gd.L2Domain(radius=RADIUS))


def evaluations(method: str, m: int, n: int, seed: int, gaps: tuple[float, ...]) -> list[float]:
    """Return the gradient evaluations at which the certified gap first reached each of the gaps."""
    run = gd.solve(
        problem(m, n, seed), METHODS[method](), tol=0.0, atol=min(gaps), max_passes=np.inf, max_time=MOST_SECONDS,
        seed=seed,
    )  # fmt: skip
    count, gap = (np.array([getattr(row, key) for row in run.trace]) for key in ("grad_evals_paper", "gap"))
    reached = [np.flatnonzero(gap <= eps) for eps in gaps]
    return [float(count[places[0]]) if len(places) else np.nan for places in reached]


def run() -> None:
    """Measure whatever is not in the table yet."""
    RESULTS.mkdir(exist_ok=True)
    rows = pd.read_csv(TABLE).to_dict("records") if TABLE.exists() else []
    done = {(r["method"], r["axis"], r["m"], r["n"], r["seed"]) for r in rows}
    begun = time.perf_counter()
    for method in METHODS:
        plans = [("m", m, N, (EPS,)) for m in GROUPS] + [("n", M, n, (EPS,)) for n in SIZES] + [("eps", M, N, GAPS)]
        for axis, m, n, gaps in plans:
            for seed in range(SEEDS):
                if (method, axis, m, n, seed) in done:
                    continue
                for eps, count in zip(gaps, evaluations(method, m, n, seed, gaps), strict=True):
                    rows.append({"method": method, "axis": axis, "m": m, "n": n, "eps": eps, "seed": seed,
                                 "evaluations": count})  # fmt: skip
                pd.DataFrame(rows).to_csv(TABLE, index=False)
        print(f"{method}: {time.perf_counter() - begun:.0f} s so far")


def exponent(part: pd.DataFrame, axis: str) -> tuple[float, float]:
    """Return the slope on logarithmic axes and half the width of its 95% interval."""
    part = part.dropna(subset=["evaluations"])
    x, y = np.log(part[axis].to_numpy(float)), np.log(part["evaluations"].to_numpy(float))
    A = np.column_stack([x, np.ones_like(x)])
    solution, *_ = np.linalg.lstsq(A, y, rcond=None)
    residual = y - A @ solution
    spread = np.sqrt(residual @ residual / max(len(x) - 2, 1) / ((x - x.mean()) ** 2).sum())
    return float(solution[0]), float(1.96 * spread)


def table() -> None:
    """Print the exponents."""
    rows = pd.read_csv(TABLE)
    lines = ["| method | exponent of | measured | predicted | reached |", "|---|---|---|---|---|"]
    for method in METHODS:
        for axis in ("m", "n", "eps"):
            part = rows[(rows["method"] == method) & (rows["axis"] == axis)]
            slope, half = exponent(part, axis)
            reached = f"{int(part['evaluations'].notna().sum())} of {len(part)}"
            lines.append(f"| {method} | {axis} | {slope:.2f} ± {half:.2f} | {PREDICTED[method][axis]:g} | {reached} |")
    print("\n".join(lines))
    (RESULTS / "complexity.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    {"run": run, "table": table}[sys.argv[1]]()
