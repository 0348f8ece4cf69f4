"""What a blend costs beside the worst group alone, and what sets of group weights cost ALEG."""

import copy
import time
import warnings

import numpy as np

import groupdro as gd
from benchmarks.between.problems import ALPHA, estimator, group_risk, some_rows, without_ones
from benchmarks.between.tables import best_times, markdown, write
from benchmarks.real_data import TEN
from groupdro.oracle import Oracle

_COST = """\
# Cost of a blend

Time of a fit with `robustness=0.5` as a multiple of that with `robustness=1`, and of `gd.solve` alone, which leaves the
slack of the tolerance unspent. Estimators with alpha={alpha:g}, all to a certified 1e-6; the best of several, in turns.

"""


def cost() -> None:
    warnings.simplefilter("ignore")
    rows, ratios, to_solve, spending = [], [], [], []
    for make in TEN:
        p = without_ones(make())
        small = some_rows(p, 500)
        for robustness in (0.5, 1.0):  # compiles
            estimator(p, robustness=robustness).fit(small.X, small.y, groups=small.groups)
        blend, worst = estimator(p, robustness=0.5), estimator(p)
        times = best_times(
            {
                "blend": lambda p=p, blend=blend: blend.fit(p.X, p.y, groups=p.groups),
                "worst": lambda p=p, worst=worst: worst.fit(p.X, p.y, groups=p.groups),
                "solve": lambda p=p: gd.solve(group_risk(p), tol=1e-6),
            },
            rounds=7,
            seconds=20.0,
        )
        ratios.append(times["blend"] / times["worst"])
        to_solve.append(times["blend"] / times["solve"])
        spending.append(times["worst"] / times["solve"])
        rows.append([
            p.name, len(p.y), p.X.shape[1], len(set(p.groups)), f"{blend.n_passes_:.1f}", f"{worst.n_passes_:.1f}",
            f"{blend.gap_ / blend.upper_bound_:.1e}", f"{times['worst']:.3f}", f"{ratios[-1]:.2f}",
            f"{to_solve[-1]:.2f}", f"{spending[-1]:.2f}",
        ])  # fmt: skip
        print(rows[-1], flush=True)
    medians = [f"{np.median(values):.2f}" for values in (ratios, to_solve, spending)]
    rows.append(["**median**", *[""] * 7, *medians])
    columns = [
        "problem", "rows", "columns", "groups", "passes, blend", "passes, worst", "gap, blend", "worst, s",
        "blend / worst", "blend / solve alone", "worst / solve alone",
    ]  # fmt: skip
    write("cost", _COST.format(alpha=ALPHA) + markdown(columns, rows))


_EPOCHS = """\
# Epochs of ALEG with sets of group weights

Processor time of an epoch (10^6 synthetic rows in float32, 100 columns, 1,000 groups) from the state after {warm}
epochs with the same seed, the best of {best}, in turns of changing order; as a multiple of that with all weights
allowed. "At a cap" counts the groups whose weight was at its cap. Steps alone leave out the pass at the end of an
epoch, which is the same for all.

"""
_WARM, _BEST = 6, 20


def epochs() -> None:
    m, d, n = 1000, 100, 1_000_000
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), dtype=np.float32)
    groups = rng.integers(m, size=n)
    truth = rng.standard_normal(d).astype(np.float32) / np.sqrt(d)
    noise = 0.2 + 3.0 * rng.random(m)  # so that groups differ in their risks
    y = np.where(X @ truth + noise[groups] * rng.standard_normal(n) > 0, 1.0, -1.0)
    data = gd.GroupedData.from_arrays(X, y, groups)
    del X
    sets = {
        "Simplex()": gd.weight_sets.Simplex(),
        "Floor(0.5)": gd.weight_sets.Floor(0.5),
        "Cap(1/10)": gd.weight_sets.Cap(0.1),
        "Cap(1/100)": gd.weight_sets.Cap(0.01),
        "Box(0.5/m, 0.5/m + 0.05)": gd.weight_sets.Box(0.5 / m, 0.5 / m + 0.05),
    }
    solver, begun = gd.solvers.ALEG(), {}
    for name, weight_set in sets.items():
        problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=ALPHA), weight_set=weight_set)
        oracle = Oracle(problem)
        state = solver.init(oracle, problem.centre(), problem.central_weights(), 0)
        for _ in range(_WARM):
            solver.epoch(oracle, state)
            state.epoch += 1
        begun[name] = oracle, state
    times, taken_back = dict.fromkeys(sets, np.inf), dict.fromkeys(sets, 0)
    for _ in range(_BEST):
        for name in rng.permutation(list(sets)).tolist():  # no set always follows the same other
            oracle, state = begun[name]
            again = copy.deepcopy(state)
            start = time.process_time()
            solver.epoch(oracle, again)
            times[name] = min(times[name], time.process_time() - start)
            taken_back[name] = again.rejected - state.rejected
    pass_time = np.inf
    for _ in range(_BEST):
        start = time.process_time()
        oracle.evaluate(state.evaluation.w, state.evaluation.q)
        pass_time = min(pass_time, time.process_time() - start)
    rows = []
    for name, (oracle, state) in begun.items():
        moving = oracle.problem.weight_set.moving(m)
        bound = int((moving.moved(state.evaluation.q) >= 0.98 * moving.caps).sum()) if moving.caps.size else 0
        rows.append([
            f"`{name}`", f"{times[name]:.2f}", f"{times[name] / times['Simplex()']:.3f}",
            f"{(times[name] - pass_time) / (times['Simplex()'] - pass_time):.3f}", bound,
            f"{(state.evaluation.q > 1e-3).sum()}", "yes" if taken_back[name] else "no",
        ])  # fmt: skip
    columns = ["set", "epoch, s", "epoch", "steps alone", "at a cap", "weights above 1e-3", "taken back"]
    write("epochs", _EPOCHS.format(warm=_WARM, best=_BEST) + markdown(columns, rows))
