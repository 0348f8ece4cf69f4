"""Problems as people bring them: offsets, units, sentinels, heavy tails, rare levels, far weights, many rows.

`describe` draws a small description from a seed and `draw` makes its rows. Seeds count on from multiples of `PERIOD`,
and the kind is the seed's place within it, so that any stretch of seeds has its share of every kind.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

__all__ = ["KINDS", "PERIOD", "Case", "Table", "describe", "draw"]

Array = np.ndarray[Any, Any]

#: How often each kind comes within a period of seeds.
KINDS = {
    "mixed": 14,
    "offset targets": 2,
    "zero-weight sentinel": 2,
    "no penalty and an outlying cell": 3,
    "excess risk": 3,
    "given references": 1,
    "many groups": 1,
    "many rows": 2,
    "through solve": 3,
    "far start": 2,
    "warm start": 2,
    "resumed": 2,
    "custom": 3,
}
PERIOD = sum(KINDS.values())
# Kinds that cost much or little alternate: a kind's places are spread over the period.
_ORDER = [kind for _, kind in sorted(((k + 0.5) / count, kind) for kind, count in KINDS.items() for k in range(count))]

UGLY_COLUMNS = (
    "offset", "unit", "sentinel", "weightless sentinel", "cauchy", "lognormal", "one cell", "one-hot", "years",
    "seconds", "ids", "constant",
)  # fmt: skip
UGLY_TARGETS = ("offset y", "unit y", "sentinel y", "weightless sentinel y", "heavy y")
#: Parts of the user's own, as `custom_parts` makes them.
CUSTOM = (
    "smoothed logistic", "box", "expectile", "logistic, value overridden", "logistic, all overridden", "unknown code",
    "unknown code with formulas", "wrong conjugate", "negative loss", "L2, penalty overridden",
)  # fmt: skip
UGLY_ROWS = ("far weights", "some weights zero", "duplicates")


@dataclass(frozen=True)
class Case:
    """All that makes a problem and its fit."""

    seed: int
    kind: str
    loss: str
    n: int
    d: int
    m: int
    ugly: tuple[str, ...]
    storage: str
    parameters: dict[str, Any] = field(default_factory=dict)  # of the estimator that differ from its defaults
    variant: str = ""

    def parameter(self, name: str) -> Any:
        """Return a parameter of the estimator, or its documented default."""
        defaults = {"objective": "risk", "alpha": 1e-4, "radius": None, "fit_intercept": True, "tol": 1e-4}
        return self.parameters.get(name, defaults.get(name))


@dataclass
class Table:
    """Rows as they are handed to a fit."""

    X: Any
    y: Array
    groups: Array
    weight: Array | None

    @property
    def dense(self) -> Array:
        return np.asarray(self.X.todense() if sp.issparse(self.X) else self.X, np.float64)


def describe(seed: int) -> Case:
    """Draw a description, the same for the same seed."""
    rng, kind, turn = np.random.default_rng([seed, 1]), _ORDER[seed % PERIOD], seed // PERIOD
    loss = str(rng.choice(["squared", "huber", "logistic", "softmax", "squared_hinge"], p=[0.35, 0.15, 0.3, 0.1, 0.1]))
    n, d, m = int(10 ** rng.uniform(1.5, 2.78)), int(rng.integers(1, 8)), int(rng.integers(2, 8))
    p: dict[str, Any] = {}
    if rng.random() < 0.6:  # otherwise all defaults
        p["alpha"] = float(rng.choice([0.0, 1e-4, 1e-3, 1e-2]))
        p["tol"] = float(rng.choice([1e-2, 1e-3, 1e-4, 1e-5, 1e-6]))
        p["fit_intercept"] = bool(rng.random() < 0.85)
        p["solver"] = str(rng.choice(["auto", "sqp", "aleg"], p=[0.8, 0.12, 0.08]))
        if rng.random() < 0.15:
            p["radius"] = float(10 ** rng.uniform(-1, 2))
        if rng.random() < 0.1:
            p["objective"] = "excess_risk"
    columns = list(rng.choice(UGLY_COLUMNS, int(rng.integers(0, 4)), replace=False))
    targets = list(rng.choice(UGLY_TARGETS, int(rng.choice([0, 1, 2], p=[0.5, 0.4, 0.1])), replace=False))
    rows = [name for name in UGLY_ROWS if rng.random() < 0.2]
    storage = str(rng.choice(["float64", "float32", "csr"], p=[0.76, 0.12, 0.12]))
    variant = ""
    if kind == "offset targets":
        loss, columns, targets = str(rng.choice(["squared", "squared", "huber"])), columns[:1], ["offset y"]
    elif kind == "zero-weight sentinel":
        columns, targets = ["weightless sentinel"], ["weightless sentinel y"] if rng.random() < 0.7 else []
    elif kind == "no penalty and an outlying cell":
        columns = [str(rng.choice(["one cell", "unit and sentinel", "sentinel", "cauchy"])), *columns[:1]]
        targets, p = [], {**p, "alpha": 0.0, "radius": None, "fit_intercept": True}
        n = n if rng.random() < 0.5 else 3000
        p.pop("objective", None)
    elif kind in ("excess risk", "given references"):
        p["objective"] = "excess_risk"
        columns, targets = columns[:2], targets[:1]
    elif kind == "many rows":
        # Few of them are as large as they come, so that a small part of the campaign stays small.
        n = 1_000_000 if turn % 12 == 11 else 300_000 if turn % 4 == 3 else 100_000
        loss, d, m = str(rng.choice(["squared", "logistic", "huber"], p=[0.5, 0.4, 0.1])), int(rng.integers(1, 4)), m
        columns, targets = columns[:1], targets[:1]
        p = {name: p[name] for name in ("tol", "alpha") if name in p and rng.random() < 0.5}
    elif kind == "many groups":
        m = 10_000 if turn % 12 == 11 else int(rng.choice([500, 1000, 2000], p=[0.4, 0.4, 0.2]))
        n, d, loss = m * int(rng.integers(20, 40)), int(rng.integers(1, 4)), str(rng.choice(["squared", "logistic"]))
        columns, targets, rows = columns[:1], targets[:1], []
        p = {name: p[name] for name in ("tol",) if name in p}
    elif kind == "through solve":
        if p.get("alpha", 1) == 0.0 and p.get("radius") is None:
            p["alpha"] = 1e-3
    elif kind == "warm start":
        variant = str(rng.choice(["rows changed", "targets changed", "units changed"]))
    elif kind == "resumed":
        variant = str(rng.choice(["same", "changed in memory", "store", "store changed", "store changed"]))
        # Iterations that are cheap and many, so that there is something to resume.
        p["solver"] = str(rng.choice(["aleg", "auto", "sqp"]))
        n, columns, rows = max(n, 200), columns[:1], rows[:1]
        if "store" in variant:
            storage, p["alpha"] = "float64", p.get("alpha") or 1e-3
    elif kind == "custom":
        variant, loss = CUSTOM[turn % len(CUSTOM)], "squared"
        p = {"tol": 1e-4, "alpha": 1e-2, "solver": str(rng.choice(["auto", "sqp", "aleg"], p=[0.6, 0.2, 0.2]))}
        if rng.random() < 0.4:
            p["objective"] = "excess_risk"
        columns, targets, rows, storage = columns[: turn % 2], [], rows[:1], "float64"
    if loss not in ("squared", "huber"):
        targets = []
    elif kind == "mixed" and turn % 5 == 4:
        columns, targets = [name for name in columns if name in ("offset", "unit", "years", "ids")], ["exact y"]
    n = max(n, 6 * m)
    return Case(seed, kind, loss, n, d, m, (*map(str, columns), *map(str, targets), *rows), storage, p, variant)


def draw(case: Case) -> Table:
    """Make the rows of a description."""
    rng = np.random.default_rng([case.seed, 2])
    n, d, m = case.n, case.d, case.m
    groups = _draw_groups(case, rng)
    Z, noise = rng.normal(size=(n, d)), rng.standard_normal(n) * np.linspace(0.5, 1.5, m)[groups]
    if "duplicates" in case.ugly:
        kept = rng.permutation(np.r_[np.arange(n - n // 2), rng.integers(0, n - n // 2, n // 2)])
        Z, noise, groups = Z[kept], noise[kept], groups[kept]
    slopes = rng.normal(size=d) / np.sqrt(d)
    if case.kind == "no penalty and an outlying cell":
        slopes[0] = rng.choice([-3.0, -1.5, 1.5, 3.0])  # the column with that cell matters
    X, weight, weightless = Z.copy(), None, []
    for k, name in enumerate(name for name in case.ugly if name in (*UGLY_COLUMNS, "unit and sentinel")):
        j = k % d
        X[:, j], lost = _ugly_column(name, Z[:, j], rng)
        weightless += lost
    latent = Z @ slopes
    if "exact y" not in case.ugly:  # otherwise the columns give the targets up to rounding
        latent += 0.3 * np.linspace(-1, 1, m)[groups] + noise
    y, lost = _draw_targets(case, latent, rng)
    weightless += lost
    if "far weights" in case.ugly:
        weight = 10.0 ** rng.uniform(-6, 6, n)
    elif "some weights zero" in case.ugly:
        weight = rng.integers(0, 3, n).astype(float)
    if weightless:
        weight = np.ones(n) if weight is None else weight
        weight[weightless] = 0.0
    if weight is not None:  # every group and class keeps rows that count
        for rows in [np.flatnonzero(groups == g) for g in range(m)] if m < 50 else []:
            counted = [r for r in rows if r not in weightless]
            if not weight[rows].sum() > 0 and counted:
                weight[counted] = 1.0
    return Table(_stored(X, case.storage, rng), y, groups, weight)


def _draw_groups(case: Case, rng: np.random.Generator) -> Array:
    n, m = case.n, case.m
    if m > 50:
        return rng.permutation(np.arange(n) % m)
    share = rng.dirichlet(np.full(m, 2.0))
    groups = rng.choice(m, n, p=share)
    groups[: 5 * m] = np.arange(5 * m) % m  # every group has a few rows
    return rng.permutation(groups[:n])


def _draw_targets(case: Case, latent: Array, rng: np.random.Generator) -> tuple[Array, list[int]]:
    n, lost = len(latent), []
    if case.loss in ("logistic", "squared_hinge"):
        y = (latent > 0).astype(np.int64)
        y[:2] = 0, 1
        return y, lost
    if case.loss == "softmax":
        y = np.digitize(latent, [-0.7, 0.7])
        y[:3] = 0, 1, 2
        return y, lost
    y = latent
    if "heavy y" in case.ugly:
        y = y + (rng.standard_cauchy(n) if rng.random() < 0.5 else rng.lognormal(0, 2, n))
    if "sentinel y" in case.ugly:
        y[rng.integers(0, n, 2)] = rng.choice([-999.0, 1e9])
    if "unit y" in case.ugly:
        y = y * 10 ** rng.uniform(-12, 12)
    if "offset y" in case.ugly:
        y = y + np.abs(y).mean() * 10 ** rng.uniform(2, 12)
    if "weightless sentinel y" in case.ugly:
        lost = [int(rng.integers(0, n))]
        y[lost] = rng.choice([1e9, 1e10])
    return y, lost


def _ugly_column(name: str, z: Array, rng: np.random.Generator) -> tuple[Array, list[int]]:
    """Return a column made of a standard one, and the rows that must not count."""
    n, lost, x = len(z), [], z.copy()
    if name == "offset":
        x = x + rng.choice([-1, 1]) * 10 ** rng.uniform(2, 12 if rng.random() < 0.3 else 7)
    elif name == "unit":
        x = x * 10 ** rng.uniform(-12, 12)
    elif name == "sentinel":
        x[rng.integers(0, n, max(1, n // 100))] = rng.choice([-999.0, 1e9, 1e10])
    elif name == "unit and sentinel":
        x = x * 10 ** rng.uniform(-12, -6)
        x[rng.integers(0, n, max(1, int(rng.integers(0, 3))))] = -999.0
    elif name == "weightless sentinel":
        lost = [int(rng.integers(0, n))]
        x[lost] = rng.choice([1e9, 1e10])
    elif name == "cauchy":
        x = x + rng.standard_cauchy(n)
    elif name == "lognormal":
        x = np.exp(rng.uniform(1, 3) * z)
    elif name == "one cell":
        x = -np.log(0.5 * (1 + np.tanh(z)) + 1e-9)  # exponential, and tied to what y is made of
        x[rng.integers(0, n)] = 1e9
    elif name == "one-hot":
        x = (z > np.quantile(z, 1 - max(3 / n, 0.01))).astype(float)
    elif name == "years":
        x = np.round(1990 + 15 * z)
    elif name == "seconds":
        x = np.round(1.6e9 + 1e7 * z)
    elif name == "ids":
        x = rng.integers(10**6, 10**9, n).astype(float)
    elif name == "constant":
        x = np.full(n, 10 ** rng.uniform(-6, 6))
    return x, lost


def _stored(X: Array, storage: str, rng: np.random.Generator) -> Any:
    if storage == "csr":
        X = X * (rng.random(X.shape) < 0.5) if X.shape[1] > 1 else X
        return sp.csr_array(X)
    return X.astype(storage)
