"""Passes and seconds of regrets: what it costs to know every group's own minimum no better than the regrets need.

    python -m benchmarks.excess_risk synthetic                  the paper's set-up, five seeds and three radii
    python -m benchmarks.excess_risk superclasses FOLDER        CIFAR-100 with 20 superclasses as groups
    python -m benchmarks.excess_risk classes FOLDER             CIFAR-100 with 100 classes as groups

Every row has the passes until the first epoch of the regrets and in all. "every minimum first" solves each group to a
tenth of the squared tolerance before, as all versions did once. Results are added to results/excess_risk.json. It also
runs against older versions of the package: put their folder on PYTHONPATH, and give their name as a last argument.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import groupdro as gd
from benchmarks.real_data import cifar, superclasses

RESULTS = Path(__file__).parent / "results" / "excess_risk.json"
SOLVERS = {
    "default": gd.solvers.ALEM(),
    "sqp for the regrets": gd.solvers.ALEM(stage_two=gd.solvers.GroupSQP()),
    "every minimum first": gd.solvers.ALEM(gd.solvers.GroupSQP()),
}


def measure(
    problem: gd.Problem, solver: gd.solvers.Solver, tol: float, max_passes: float, seed: int = 0
) -> dict[str, Any]:
    """Solve, and return what it took."""
    result = gd.solve(problem, solver, tol=tol, max_passes=max_passes, seed=seed)
    return {
        "passes": round(result.passes, 1),
        "before the regrets": round(result.trace[0].passes, 1),
        "seconds": round(result.seconds, 1),
        "relative gap": float(f"{result.gap / result.upper_bound:.2g}"),
        "converged": result.converged,
    }


def synthetic() -> dict[str, Any]:
    """Return mean passes over fifteen runs, and those of each radius."""
    found: dict[str, Any] = {}
    for seed in range(5):
        data = gd.GroupedData.from_arrays(*gd.datasets.make_mero(25, 1000, 1024, seed=seed))
        for radius in (1.0, 3.0, 10.0):
            for tol in (1e-2, 1e-3):
                for name, solver in SOLVERS.items():
                    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=radius))
                    row = measure(problem, solver, tol, 200.0, seed)
                    found.setdefault(f"{name}, {tol:.0e}", {}).setdefault(f"radius {radius:g}", []).append(row)
    table = {}
    for name, radii in found.items():
        passes = {radius: [row["passes"] for row in rows] for radius, rows in radii.items()}
        everything = [row for rows in radii.values() for row in rows]
        table[name] = {
            "mean": round(float(np.mean([row["passes"] for row in everything])), 1),
            "before the regrets": round(float(np.mean([row["before the regrets"] for row in everything])), 1),
            **{radius: round(float(np.mean(some)), 1) for radius, some in passes.items()},
            "converged": sum(row["converged"] for row in everything),
        }
    return table


def images(folder: str, kind: str) -> dict[str, Any]:
    """Return passes and seconds on CIFAR-100."""
    problem = cifar(Path(folder))
    groups = superclasses(Path(folder)) if kind == "superclasses" else problem.groups
    data = gd.GroupedData.from_arrays(problem.X, problem.y, groups)
    made = gd.Problem(data, gd.losses.Softmax(100), gd.domains.L2Domain(radius=20.0))
    return {"default, 1e-02": measure(made, SOLVERS["default"], 1e-2, 150.0)}


def main(words: list[str]) -> None:
    """Run what was asked for, print it, and store it."""
    kind, *rest = words or [""]
    if kind not in ("synthetic", "superclasses", "classes") or (kind != "synthetic" and not rest):
        raise SystemExit(__doc__)
    table = synthetic() if kind == "synthetic" else images(rest.pop(0), kind)
    for name, row in table.items():
        print(f"{kind}, {name}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    stored.setdefault(rest[0] if rest else "this version", {})[kind] = table
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
