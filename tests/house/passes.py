"""Passes that `auto` takes to certify small problems, as they were: a later change must not slow it unnoticed.

    GROUPDRO_DATA=... python -m tests.house.passes   # writes tests/house/passes.json anew

Passes are counted, not timed, so that the same data give the same numbers but for rounding.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from benchmarks import real_data

import groupdro as gd

STORED = Path(__file__).with_suffix(".json")
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6)
LOSS = {"binary": gd.losses.Logistic, "classes": gd.losses.Softmax, "regression": gd.losses.Squared}


def table(make: Callable[[], real_data.Problem]) -> gd.Problem:
    problem = make()
    data = gd.GroupedData.from_arrays(problem.X, problem.y, problem.groups)
    return gd.Problem(data, LOSS[problem.task](), gd.domains.L2Domain(radius=10.0))


def many_groups(n_groups: int = 300, size: int = 20, d: int = 20) -> gd.Problem:
    """Return groups that each follow a rule of their own."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(n_groups), size)
    X = rng.normal(size=(len(groups), d))
    slopes = rng.normal(size=d) + 0.5 * rng.normal(size=(n_groups, d))
    chance = 1.0 / (1.0 + np.exp(-(X * slopes[groups]).sum(axis=1)))
    data = gd.GroupedData.from_arrays(X, np.where(rng.random(len(groups)) < chance, 1.0, -1.0), groups)
    return gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=10.0))


def sparse_rows(n: int = 3000, d: int = 2000, entries: int = 10) -> gd.Problem:
    """Return rows of few entries in more columns than a Hessian is formed of."""
    rng = np.random.default_rng(0)
    place = np.repeat(np.arange(n), entries), rng.integers(0, d, n * entries)
    X = sp.csr_array((rng.normal(size=n * entries), place), shape=(n, d))
    groups = rng.integers(0, 10, n)
    margin = X @ rng.normal(size=d) + 0.2 * (groups % 3)
    y = np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-margin)), 1.0, -1.0)
    return gd.Problem(gd.GroupedData.from_arrays(X, y, groups), gd.losses.Logistic(), gd.domains.L2Domain(penalty=1e-3))


SMALL = ("compas", "german", "heart", "wine_classes", "bike", "communities", "credit", "bank")
PROBLEMS: dict[str, Callable[[], gd.Problem]] = {
    **{name: lambda name=name: table(getattr(real_data, name)) for name in SMALL},
    "many groups": many_groups,
    "sparse rows": sparse_rows,
}


def count(problem: gd.Problem) -> dict[str, float]:
    """Return the passes to each tolerance; all must converge."""
    found = {}
    for tol in TOLERANCES:
        result = gd.solve(problem, "auto", tol=tol, max_passes=2000)
        assert result.converged, f"{tol:g}: {result.status.name} at a gap of {result.gap:g}"
        found[f"{tol:g}"] = round(float(result.passes), 1)
    return found


if __name__ == "__main__":
    STORED.write_text(json.dumps({name: count(make()) for name, make in PROBLEMS.items()}, indent=1) + "\n")
    print(STORED.read_text())
