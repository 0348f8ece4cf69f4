"""Problems with several outputs against the products of matrices that they cannot do without, on CIFAR-100.

    python -m benchmarks.several_outputs FOLDER [ROUNDS]      FOLDER is the official cifar-100-python

Prints and writes to results/several_outputs.json: seconds of the pair of products X @ W and X.T @ V in float32, of a
full pass and of an epoch of ALEG, each the best of several rounds in which they take turns; their ratios; and passes
and seconds of ALEG to relative gaps of 1e-1, 1e-2 and 1e-3. Set no limit of threads: the products run on all cores, as
do passes and epochs.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import groupdro as gd
from benchmarks.real_data import cifar
from groupdro.oracle import Oracle
from groupdro.utils.threads import n_threads

GAPS = (1e-1, 1e-2, 1e-3)
OUT = Path(__file__).parent / "results" / "several_outputs.json"


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main(folder: str, rounds: int = 7) -> None:
    p = cifar(Path(folder))
    problem = gd.Problem(
        gd.GroupedData.from_arrays(p.X, p.y, p.groups), gd.losses.Softmax(), gd.domains.L2Domain(radius=20.0)
    )
    oracle = Oracle(problem)
    X, solver = problem.data.rows.dense(), gd.solvers.ALEG()
    rng = np.random.default_rng(0)
    W = rng.standard_normal(problem.shape, dtype=np.float32)
    V = rng.standard_normal((len(X), problem.shape[1]), dtype=np.float32)
    oracle.warm_up()
    solver.warm_up(oracle)
    state = solver.init(oracle, problem.centre(), problem.central_weights(), 0)
    times: dict[str, list[float]] = {"pair": [], "full pass": [], "epoch": []}
    for _ in range(rounds):
        times["pair"].append(seconds(lambda: (X @ W, X.T @ V)))
        times["full pass"].append(seconds(lambda: oracle.evaluate(state.evaluation.w, state.evaluation.q)))
        times["epoch"].append(seconds(lambda: solver.epoch(oracle, state)))
        state.epoch += 1
    best = {name: min(all_times) for name, all_times in times.items()}
    found = {
        "threads": n_threads(),
        "seconds": best,
        "ratio of a full pass": best["full pass"] / best["pair"],
        "ratio of an epoch": best["epoch"] / best["pair"],
        "median ratio of a full pass": float(np.median(np.divide(times["full pass"], times["pair"]))),
        "median ratio of an epoch": float(np.median(np.divide(times["epoch"], times["pair"]))),
    }
    print(json.dumps(found, indent=1), flush=True)
    result = gd.solve(problem, solver, tol=min(GAPS), max_passes=60)
    for gap in GAPS:
        met = [row for row in result.trace if row.gap <= gap * abs(row.upper)]
        found[f"to {gap:g}"] = {"passes": met[0].passes, "seconds": met[0].seconds} if met else None
        print(gap, found[f"to {gap:g}"])
    print(result)
    OUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
