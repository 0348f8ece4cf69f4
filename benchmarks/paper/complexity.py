"""Gradient evaluations until a certified gap, as functions of the groups, their size and the gap.

Steps are those of each method's theory, untouched, so that they scale with m and n as it says: once with the published
constants for all methods, once with tight constants for all. Gradient evaluations are the paper's count. The gap is
that of the best certified pair, which is what a user waits for; the theorems speak of the average's.
"""

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

import groupdro as gd
from benchmarks.paper.constants import step_factor
from benchmarks.paper.methods import ALSVRE, ERMEG, MPVR, SMD, TSA
from benchmarks.paper.store import CACHE, RESULTS

__all__ = ["PREDICTED", "exponent", "measure", "ratios", "run"]

FEATURES, RADIUS, SEEDS = 20, 3.0, 3
M, N, EPS = 16, 100, 4e-2  # the base case, at which the two others are kept
GROUPS, SIZES = (4, 8, 16, 32, 64), (25, 50, 100, 200, 400)
GAPS = tuple(np.geomspace(1.6e-1, 1e-2, 5))
COARSER = {"TSA": 4.0}  # by what factor gaps are coarser, to be reached at all
TSA_STEPS = 16.0  # over eps^2: steps of TSA's first stage
MOST_SECONDS = float(os.environ.get("GROUPDRO_POINT_SECONDS", "60"))
#: Exponents of m, n and 1/eps as the gap goes to zero, without logarithms.
PREDICTED = {
    "ALEG": (1.0, 0.5, 1.0),
    "MPVR": (1.5, 0.5, 1.0),
    "AL-SVRE": (1.5, 0.5, 1.0),
    "SMD": (1.0, 0.0, 2.0),
    "ALEM": (1.0, 0.5, 1.0),
    "TSA": (1.0, 0.0, 2.0),
    "ERMEG": (1.0, 1.0, 2.0),  # ln(m) / eps^2 calls of an oracle that passes over all rows
}
AXES = ("m", "n", "1/eps")


def problem(m: int, n: int, seed: int) -> gd.Problem:
    """Return groups whose rules vary around a common one, so that the optimum is as far from the start for every m."""
    rng = np.random.default_rng([seed, m, n])
    common = rng.normal(size=FEATURES)
    rules = common / np.linalg.norm(common) + 0.7 * rng.normal(size=(m, FEATURES)) / np.sqrt(FEATURES)
    groups = np.repeat(np.arange(m), n)
    X = rng.normal(size=(m * n, FEATURES)) / np.sqrt(FEATURES)
    y = np.where(np.einsum("rd,rd->r", X, rules[groups]) > 0, 1.0, -1.0)
    y[rng.random(m * n) < 0.1] *= -1.0
    return gd.Problem(
        gd.GroupedData.from_arrays(X, y, groups), gd.losses.Logistic(), gd.domains.L2Domain(radius=RADIUS)
    )


def solver(method: str, constants: str, given: gd.Problem, eps: float) -> gd.solvers.Solver:
    """Return a method with its theory's steps."""
    if method in ("ALEG", "ALEM"):
        paper = gd.solvers.ALEGTheory(constant=constants)  # type: ignore[arg-type]
        return paper if method == "ALEG" else gd.solvers.ALEM(paper, paper, stage_one_passes=np.inf)
    if method == "ERMEG":  # its step is derived from the excess risks that it meets: it has no constants
        return ERMEG(oracle_tol=eps / 4.0)
    factor = step_factor(method, given, RADIUS) if constants == "tight" else 1.0
    if method == "MPVR":
        return MPVR(factor)
    if method == "AL-SVRE":
        return ALSVRE(factor, accuracy=eps)
    if method == "TSA":  # each of one row of every group; then as many as the second stage needs
        return TSA(factor, stage_one_passes=TSA_STEPS / eps**2 * given.n_groups / given.n_rows)
    return SMD(factor)


def evaluations(method: str, constants: str, m: int, n: int, seed: int, gaps: tuple[float, ...]) -> list[float]:
    """Return the gradient evaluations at which the certified gap first reached each of the gaps."""
    # A method that is told its target is run once per gap.
    if method in ("AL-SVRE", "ALEM", "TSA", "ERMEG") and len(gaps) > 1:
        return [evaluations(method, constants, m, n, seed, (eps,))[0] for eps in gaps]
    given = problem(m, n, seed)
    run = gd.solve(
        given, solver(method, constants, given, min(gaps)), tol=0.0, atol=min(gaps), max_passes=np.inf,
        max_time=MOST_SECONDS, seed=seed,
    )  # fmt: skip
    count, gap = (np.array([getattr(row, key) for row in run.trace]) for key in ("grad_evals_paper", "gap"))
    reached = [np.flatnonzero(gap <= eps) for eps in gaps]
    return [float(count[places[0]]) if len(places) else np.nan for places in reached]


def run(seeds: int | None = None) -> None:
    """Measure whatever is not there yet, and keep it in benchmarks/results/."""
    path, stored, begun = CACHE / "complexity.parquet", RESULTS / "paper_complexity.parquet", time.perf_counter()
    known = next((file for file in (path, stored) if file.exists()), None)
    rows = measure(path, known, SEEDS if seeds is None else seeds)
    rows.to_parquet(stored, compression="zstd", index=False)
    print(f"complexity: {(time.perf_counter() - begun) / 60:.1f} min", flush=True)


def measure(
    path: Path, known: Path | None, seeds: int, groups: tuple[int, ...] = GROUPS, sizes: tuple[int, ...] = SIZES,
    finest: float = GAPS[-1], methods: tuple[str, ...] = tuple(PREDICTED),
) -> pd.DataFrame:  # fmt: skip
    """Measure what a file does not have yet, and keep it in another one, or the same, after every point."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = pd.read_parquet(known).to_dict("records") if known and known.exists() else []
    done = {(r["method"], r["constants"], r["axis"], r["m"], r["n"], r["seed"]) for r in rows}
    targets = tuple(eps for eps in GAPS if eps >= finest)
    plans = [("m", m, N, (EPS,)) for m in groups] + [("n", M, n, (EPS,)) for n in sizes] + [("1/eps", M, N, targets)]
    for seed in range(seeds):
        for method in methods:
            for constants in ("paper", "tight"):
                for axis, m, n, gaps in plans:
                    gaps = tuple(COARSER.get(method, 1.0) * eps for eps in gaps)
                    if method == "ERMEG" and constants == "tight":
                        continue
                    if (method, constants, axis, m, n, seed) in done:
                        continue
                    since = time.process_time()
                    for eps, count in zip(gaps, evaluations(method, constants, m, n, seed, gaps), strict=True):
                        rows.append({"method": method, "constants": constants, "axis": axis, "m": m, "n": n,
                                     "eps": eps, "seed": seed, "evaluations": count})  # fmt: skip
                    pd.DataFrame(rows).to_parquet(path, index=False)
                    spent = f"{time.process_time() - since:.1f} s | {rows[-1]['evaluations']:.4g}"
                    print(f"complexity | {method} {constants} {axis} m={m} n={n} seed {seed} | {spent}", flush=True)
    return pd.DataFrame(rows)


def exponent(part: pd.DataFrame, axis: str) -> tuple[float, float, int]:
    """Return the slope on logarithmic axes, half of its 95% t interval (NaN below four points), and the points."""
    part = part.dropna(subset=["evaluations"])
    x = -np.log(part["eps"].to_numpy(float)) if axis == "1/eps" else np.log(part[axis].to_numpy(float))
    y = np.log(part["evaluations"].to_numpy(float))
    found = stats.linregress(x, y)
    half = float(stats.t.ppf(0.975, len(x) - 2) * found.stderr) if len(x) >= 4 else np.nan
    return float(found.slope), half, len(x)


def ratios(rows: pd.DataFrame, constants: str) -> pd.DataFrame:
    """Return MPVR's evaluations over ALEG's on the same problems, for growing m."""
    own = rows[(rows["constants"] == constants) & (rows["axis"] == "m")]
    keys = ["m", "n", "eps", "seed"]
    mpvr, aleg = (own[own["method"] == name].set_index(keys)["evaluations"] for name in ("MPVR", "ALEG"))
    return (mpvr / aleg).dropna().reset_index()
