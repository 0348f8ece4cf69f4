"""Whether the model at robustness 1 depends on seeds, solvers, starts and the order of rows.

At a tolerance of 1% many models are as good as the best on the worst group. `gd.solve` returns any of them; the
estimators return the one of least average.
"""

import itertools
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

import groupdro as gd
from benchmarks import real_data
from benchmarks.between.convex import BetweenProgram
from benchmarks.between.problems import Problem, estimator, group_risk, halves, part, some_rows, without_ones
from benchmarks.between.tables import markdown, write

TOL = 1e-2
SOLVERS: dict[str, Any] = {
    "aleg": gd.solvers.ALEG(),
    "sqp, newton": gd.solvers.GroupSQP("newton"),
    "sqp, lbfgs": gd.solvers.GroupSQP("lbfgs"),
    "auto": "auto",
}
STARTS = "zero", "random", "plain"
SEEDS = ORDERS = range(3)
_ROUNDING = 1e-7  # relative: as far as Clarabel is trusted
_HEADER = f"""\
# What the worst group leaves undetermined

Bank by job, alpha=1e-3, tol={TOL:g}: {len(SEEDS)} seeds, {len(STARTS)} starts (zero, random normal, the plain solution)
and {len(ORDERS)} orders of the training rows for every solver. Spread is the difference between the largest and the
smallest value on the held-out rows, accuracy in points. "Alone" is `gd.solve`, which leaves the slack of the tolerance
unspent; "time" is the median of a fit's time as a multiple of that of `gd.solve`.

"""
_CHECKED = """
## Intervals against CVXPY

The same on {rows:,} of the rows, one seed: `[mean_lower_bound_, mean_risk_]` must hold the least average of all models
whose worst value is within tol of `lower_bound_`, as CVXPY finds it with Clarabel.

"""


@dataclass(frozen=True)
class Run:
    """A configuration, with what both ways made of it."""

    solver: str
    worst: float
    accuracy: tuple[float, float]
    log_loss: tuple[float, float]
    seconds: tuple[float, float]


def undetermined() -> None:
    warnings.simplefilter("ignore")
    train, held_out = halves(without_ones(real_data.bank()))
    runs = _all_runs(train, held_out)
    rows = []
    for name in [*SOLVERS, "all"]:
        of = [run for run in runs if name in (run.solver, "all")]
        cells: list[Any] = [name, len(of)]
        for values, scale in (("accuracy", 100.0), ("log_loss", 1.0)):
            pairs = np.array([getattr(run, values) for run in of])
            cells += [f"{scale * spread:.4f}" for spread in np.ptp(pairs, axis=0)]
        worst = np.array([run.worst for run in of])
        times = np.array([run.seconds for run in of])
        cells += [f"{np.ptp(worst) / worst.min():.1e}", f"{np.median(times[:, 0] / times[:, 1]):.2f}"]
        rows.append(cells)
    columns = ["solver", "runs", "spread of accuracy", "alone", "spread of log loss", "alone",
               "spread of worst, relative", "time"]  # fmt: skip
    best = next(f"{run.seconds[0]:.2f} s / {run.seconds[1]:.2f} s" for run in runs if run.solver == "auto")
    text = _HEADER + markdown(columns, rows) + f"\nA fit with `auto` and its `gd.solve`: {best}.\n"
    small = some_rows(train, 3000)
    write("undetermined", text + _CHECKED.format(rows=len(small.y)) + _checked(small))


def _start(kind: str, problem: Problem, seed: int) -> Any:
    """Return coefficients and an intercept to begin with."""
    d = problem.X.shape[1]
    if kind == "plain":
        plain = estimator(problem, robustness=0.0).fit(problem.X, problem.y, groups=problem.groups)
        return plain.coef_, plain.intercept_
    rng = np.random.default_rng([seed, 7])
    return (np.zeros((1, d)), np.zeros(1)) if kind == "zero" else (rng.standard_normal((1, d)), np.zeros(1))


def _all_runs(train: Problem, held_out: Problem) -> list[Run]:
    few = some_rows(train, 500)
    for solver in SOLVERS.values():  # compiles
        estimator(few, tol=TOL, solver=solver).fit(few.X, few.y, groups=few.groups)
    runs = []
    plain = _start("plain", train, 0)
    for order in ORDERS:
        rows = np.random.default_rng([order, 1]).permutation(len(train.y)) if order else np.arange(len(train.y))
        problem = part(train, rows)
        for (name, solver), seed, kind in itertools.product(SOLVERS.items(), SEEDS, STARTS):
            coef, intercept = plain if kind == "plain" else _start(kind, problem, seed)
            begun = time.perf_counter()
            model = estimator(problem, tol=TOL, solver=solver, random_state=seed).fit(
                problem.X, problem.y, groups=problem.groups, coef_init=coef, intercept_init=intercept
            )
            middle = time.perf_counter()
            start = np.append(coef[0], intercept)
            alone = gd.solve(group_risk(problem), solver, w=start, tol=TOL, seed=seed)
            ended = time.perf_counter()
            scores = [
                _scores(coef, intercept, held_out)
                for coef, intercept in ((model.coef_[0], model.intercept_[0]), (alone.w[:-1], alone.w[-1]))
            ]
            accuracy, log_loss = zip(*scores, strict=True)
            runs.append(Run(name, model.worst_risk_, accuracy, log_loss, (middle - begun, ended - middle)))
        print(f"order {order}: {len(runs)} runs", flush=True)
    return runs


def _scores(coef: np.ndarray, intercept: float, problem: Problem) -> tuple[float, float]:
    """Return accuracy and log loss."""
    outputs = problem.X @ coef + intercept
    probability = np.maximum(expit(problem.y * outputs), 1e-300)
    return float((np.where(outputs > 0, 1.0, -1.0) == problem.y).mean()), float(-np.log(probability).mean())


def _checked(problem: Problem) -> str:
    """Hold every interval on a small problem against CVXPY's least average at the same level."""
    program, known = BetweenProgram(group_risk(problem)), {}
    rows, wrong = [], 0
    for name, solver in SOLVERS.items():
        found, widths, inside, places = [], [], 0, 0
        for order, kind in itertools.product(ORDERS, STARTS):
            some = part(problem, np.random.default_rng([order, 1]).permutation(len(problem.y)))
            coef, intercept = _start(kind, some, order)
            model = estimator(some, tol=TOL, solver=solver, random_state=order).fit(
                some.X, some.y, groups=some.groups, coef_init=coef, intercept_init=intercept
            )
            level = model.lower_bound_ * (1.0 + TOL)
            if level not in known:
                known[level] = program.least(program.mean, [program.worst <= level])
            least = known[level]
            slack = _ROUNDING * abs(least)
            holds = model.mean_lower_bound_ - slack <= least <= model.mean_risk_ + slack
            inside += bool(holds and model.worst_risk_ <= level * (1.0 + 1e-12))
            places += 1
            found.append(model.mean_risk_)
            widths.append((model.mean_risk_ - model.mean_lower_bound_) / model.mean_risk_)
        wrong += places - inside
        rows.append([
            name, places, inside, f"{max(widths):.1e}", f"{min(found):.6f}", f"{max(found):.6f}", f"{least:.6f}",
        ])  # fmt: skip
    columns = ["solver", "runs", "hold it", "widest, relative", "least average", "largest average", "CVXPY, last"]
    return markdown(columns, rows) + f"\nIntervals that do not hold it: {wrong}.\n"
