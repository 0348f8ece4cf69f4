"""Fits that a field test found wrong, as users write them, each with what it must say now.

    python -m tests.estimators.field_cases

prints one line per case and exits with 1 if any is wrong. The same cases run as tests.
"""

import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import groupdro as gd
from groupdro import GroupDROClassifier, GroupDRORegressor
from groupdro.losses import Logistic, Loss
from groupdro.oracle import Oracle
from groupdro.problem import Domain
from tests.reference.convex import worst_value

CASES: dict[str, Callable[[], str]] = {}
LONG: dict[str, Callable[[], str]] = {}  # which take ten seconds or more
LARGE: dict[str, Callable[[], str]] = {}  # which take a gigabyte, and run by the command alone

RNG = np.random.default_rng(0)
N = 2000
X = RNG.normal(size=(N, 3))
GROUPS = RNG.integers(0, 3, N)
Y = X @ [1, -2, 0.5] + RNG.normal(size=N)


def case(name: str, among: dict[str, Callable[[], str]] = CASES) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register a case: it asserts what must hold, and returns what was found."""

    def register(run: Callable[[], str]) -> Callable[[], str]:
        among[name] = run
        return run

    return register


def fit(model, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(*args, **kwargs)


def worst_of(model, X, y, groups, weight=None):
    """Return the worst group's objective at a model, by plain formulas on centred targets in extended precision."""
    wide = np.longdouble
    kept = np.ones(len(y), bool) if weight is None else weight > 0
    outputs = X.astype(wide) @ np.ravel(model.coef_).astype(wide)
    if isinstance(model, GroupDROClassifier):
        signs = np.where(y == model.classes_[1], 1.0, -1.0)
        losses = np.logaddexp(0.0, -signs * (outputs + wide(model.intercept_[0])))
    else:
        centre = wide(np.median(y[kept]))
        losses = (outputs + (wide(model.intercept_) - centre) - (y.astype(wide) - centre)) ** 2 / 2
    risks = [losses[kept & (groups == g)].mean() for g in np.unique(groups)]
    return float(max(risks) + model.alpha / 2 * np.sum(model.coef_.astype(wide) ** 2))


def describe(model) -> str:
    relative = model.gap_ / abs(model.upper_bound_) if model.upper_bound_ else np.inf
    bounds = f"[{model.lower_bound_:.6g}, {model.upper_bound_:.6g}]"
    return f"{model.status_} ({model.criterion_}), {bounds}, relative gap {relative:.1e}, {model.n_passes_:.0f} passes"


def assert_certified(model, optimum, *, rel=1e-6):
    """Assert that a model converged with bounds around the optimum, which is known to a relative accuracy."""
    assert model.status_ == "converged"
    assert model.criterion_ == "tol"
    assert model.gap_ <= model.tol * abs(model.upper_bound_)
    assert model.lower_bound_ <= optimum * (1 + rel)
    assert model.upper_bound_ >= optimum * (1 - rel)


def reference(y=Y):
    return fit(GroupDRORegressor(tol=1e-9), X, y, groups=GROUPS).upper_bound_


# ---------------------------------------------------------------------- offsets and rows without weight


@case("targets + 1e8")
def _far_targets() -> str:
    model = fit(GroupDRORegressor(), X, Y + 1e8, groups=GROUPS)
    assert_certified(model, reference())
    assert abs(worst_of(model, X, Y + 1e8, GROUPS) - model.upper_bound_) <= 1e-9
    return describe(model)


@case("a target of 1e10 without weight")
def _sentinel_without_weight() -> str:
    weight, z = np.ones(N), Y.copy()
    weight[0], z[0] = 0, 1e10
    model = fit(GroupDRORegressor(), X, z, weight, groups=GROUPS)
    without = fit(GroupDRORegressor(tol=1e-9), X[1:], Y[1:], groups=GROUPS[1:])
    assert_certified(model, without.upper_bound_)
    return describe(model)


@case("metres on the globe")
def _metres() -> str:
    model = fit(GroupDRORegressor(), X, 6.4e6 + 0.02 * Y, groups=GROUPS)
    assert_certified(model, fit(GroupDRORegressor(tol=1e-9), X, 0.02 * Y, groups=GROUPS).upper_bound_)
    return describe(model)


@case("Huber's loss of targets near 1e12")
def _huber() -> str:
    model = fit(GroupDRORegressor(loss="huber"), X, 1e12 * Y, groups=GROUPS)
    assert model.status_ != "converged" or model.gap_ <= model.tol * model.upper_bound_
    return describe(model)


@case("excess risks of targets + 1e5")
def _regret_of_far_targets() -> str:
    model = fit(GroupDRORegressor("excess_risk"), X, Y + 1e5, groups=GROUPS)
    near = fit(GroupDRORegressor("excess_risk", tol=1e-9), X, Y, groups=GROUPS)
    assert_certified(model, near.upper_bound_, rel=1e-4)
    return describe(model)


@case("a row of 1e9 without weight")
def _row_without_weight() -> str:
    big, weight = X.copy(), np.ones(N)
    big[0], weight[0] = 1e9, 0
    model = fit(GroupDROClassifier(), big, Y > 0, weight, groups=GROUPS)
    without = fit(GroupDROClassifier(tol=1e-9), X[1:], Y[1:] > 0, groups=GROUPS[1:])
    assert_certified(model, without.upper_bound_)
    return describe(model)


@case("negative excess risks")
def _negative_regrets() -> str:
    model = fit(GroupDROClassifier("excess_risk"), X, Y > 0, groups=GROUPS, group_minima=[1.0, 1.0, 1.0])
    risk = fit(GroupDROClassifier(tol=1e-9), X, Y > 0, groups=GROUPS).upper_bound_
    assert_certified(model, risk - 1.0, rel=-1e-4)
    return describe(model)


# ---------------------------------------------------------------------- no penalty and one outlying cell


@case("no penalty, a column in units of 1e-12 with one cell of -999")
def _outlying_cell() -> str:
    rng, n = np.random.default_rng(1), 3000
    rows, groups = rng.normal(size=(n, 3)), rng.integers(0, 3, n)
    rows[:, 1] *= 1e-12
    y = rng.random(n) < 1 / (1 + np.exp(-rows[:, 0] - 2e12 * rows[:, 1]))
    rows[7, 1], y[7] = -999, False
    model = fit(GroupDROClassifier(alpha=0), rows, y, groups=groups)
    other = GroupDROClassifier(alpha=0)
    other.classes_, other.coef_, other.intercept_ = model.classes_, np.array([[1.0, 2e12, 0.0]]), np.zeros(1)
    assert model.status_ != "no_finite_minimiser"
    assert model.lower_bound_ <= worst_of(other, rows, y, groups)
    assert model.status_ != "converged" or model.gap_ <= model.tol * model.upper_bound_
    return describe(model)


@case("no penalty, an exponential column with one cell of 1e9")
def _outlying_exponential() -> str:
    rng, n = np.random.default_rng(2), 3000
    rows, groups = np.column_stack([rng.normal(size=n), rng.exponential(size=n)]), rng.integers(0, 3, n)
    y = rng.random(n) < 1 / (1 + np.exp(1 - rows[:, 0] - rows[:, 1]))
    rows[5, 1], y[5] = 1e9, True
    model = fit(GroupDROClassifier(alpha=0), rows, y, groups=groups)
    other = GroupDROClassifier(alpha=0)
    other.classes_, other.coef_, other.intercept_ = model.classes_, np.array([[1.0, 1.0]]), np.array([-1.0])
    assert model.lower_bound_ <= worst_of(other, rows, y, groups)
    assert_certified(model, model.upper_bound_)
    return describe(model)


@case("no penalty, columns that nearly depend on each other, of any size and storage", LONG)
def _near_dependences() -> str:
    cases = ((1e3, 1e-4), (1.7e9, 1e-2), (1e12, 1e-4))
    return ", ".join(_near_dependence(*each, store) for each in cases for store in (np.asarray, sp.csr_array))


@case("no penalty, columns that nearly depend on each other")
def _near_dependence(offset: float = 1e12, tol: float = 1e-4, store: Callable[..., Any] = sp.csr_array) -> str:
    rng, n = np.random.default_rng(1), 300
    z, groups = np.round(rng.normal(size=(n, 2)) * 64) / 64, np.arange(n) % 2
    y, missing = z.sum(axis=1) + rng.normal(size=n), rng.random(n) < 0.02
    # A time stamp that is 0 where it is missing, with an indicator of that: another model is twice as good.
    rows = np.column_stack([z[:, 0], np.where(missing, 0.0, offset + z[:, 1]), missing])
    losses = (y - z[:, 0] - np.where(missing, 0.0, z[:, 1])) ** 2 / 2
    model = fit(GroupDRORegressor(alpha=0, tol=tol), store(rows), y, groups=groups)
    assert model.lower_bound_ <= max(losses[groups == i].mean() for i in range(2)), offset
    return model.status_


@case("no penalty and a constant column")
def _constant_column() -> str:
    rows = np.column_stack([X, np.full(N, 2020.0)])
    model = fit(GroupDRORegressor(alpha=0), rows, Y, groups=GROUPS)
    assert_certified(model, fit(GroupDRORegressor(alpha=0, tol=1e-8), X, Y, groups=GROUPS).upper_bound_)
    assert model.coef_[3] == 0.0
    return describe(model)


# ---------------------------------------------------------------------- parts of one's own


@case("a store whose rows changed under a checkpoint")
def _changed_store() -> str:
    with tempfile.TemporaryDirectory() as folder:
        store = gd.GroupedStore.write_arrays(Path(folder, "store"), X, Y > 0, groups=GROUPS)
        model = GroupDROClassifier(checkpoint_dir=Path(folder, "runs"), random_state=0)
        fit(model, store)
        del store
        file = Path(folder, "store", "X.npy")
        rows = np.load(file, mmap_mode="r+")
        rows[:, 0] = 0.0
        rows.flush()
        with pytest.raises(gd.store.StoreError, match=re.escape(file.name)) as caught:
            fit(model, gd.GroupedStore.open(Path(folder, "store")))
        return f"refused: {str(caught.value)[-90:]}, before it {describe(model)}"


class Box(Domain):
    """|w| <= size for every coefficient."""

    def __init__(self, size):
        self.size = size

    def support(self, gradient):
        return -self.size * float(np.abs(gradient).sum())

    def reach(self, gradient):
        return self.size * np.sqrt(gradient.size)

    def contains(self, coef):
        return bool((np.abs(coef) <= self.size).all())

    def geometry(self, n_features):
        return gd.domains.ElasticNetDomain(low=-self.size, high=self.size).geometry(n_features)

    def feasible(self, coef):
        return np.clip(coef, -self.size, self.size)

    def start(self, shape):
        return np.zeros(shape)


def refusal(problem, solver, *words) -> str:
    """Return the error with which a problem is refused, which must have the words."""
    with pytest.raises((ValueError, TypeError)) as caught:
        gd.solve(problem, solver)
    assert all(word in str(caught.value) for word in words), caught.value
    return f"refused: {caught.value}"


@case("an unknown domain")
def _unknown_domain() -> str:
    data = gd.GroupedData.from_arrays(X, Y > 0, GROUPS)
    problem = gd.Problem(data, gd.losses.Logistic(), Box(0.1))
    optimum = worst_value(gd.Problem(data, gd.losses.Logistic(), gd.domains.ElasticNetDomain(low=-0.1, high=0.1))).value
    for solver in ("auto", "aleg", "aleg-theory"):
        found = gd.solve(problem, solver, tol=1e-3, max_passes=100 if solver in ("auto", "aleg") else 10)
        assert found.lower_bound <= optimum + 1e-8
        assert found.upper_bound >= optimum - 1e-8
        assert found.converged or solver not in ("auto", "aleg")
    return refusal(problem, "sqp", "Box")


class Smoothed(Loss):
    """Logistic loss of labels that are right with probability 0.9, whose least value is not zero."""

    name, smoothness, share = "smoothed", 0.25, 0.1

    def encode(self, y):
        return np.where(y > 0, 1.0, -1.0)

    def value(self, u, y):
        return np.logaddexp(0.0, -y * u) + self.share * y * u

    def value_and_slope(self, u, y):
        return self.value(u, y), -y / (1.0 + np.exp(y * u)) + self.share * y

    def curvature(self, u, y):
        return Logistic().curvature(u, y)

    def conjugate(self, duals, y):
        p = self.share - duals * y
        inside = (p >= -1e-15) & (p <= 1 + 1e-15)
        p = np.clip(p, 1e-300, 1.0)
        return np.where(inside, p * np.log(p) + (1 - p) * np.log1p(-np.minimum(p, 1 - 1e-16)), np.inf)

    def balance(self, duals, y, row_weights, total=lambda sums: sums):
        return Logistic().balance(duals, y, row_weights, total)

    def lipschitz(self, y, reach):
        return np.ones_like(reach)


@case("excess risks of a loss whose least value is not zero")
def _smoothed_labels() -> str:
    y, groups = np.where(Y > 0, 1, -1), GROUPS.copy()
    y[groups == 2] = 1  # a group of one class
    data = gd.GroupedData.from_arrays(X, y, groups)
    problem = gd.Problem(data, Smoothed(), gd.domains.L2Domain(penalty=1e-2), fit_intercept=True)
    result = gd.solve(problem, "alem", tol=1e-4)
    minima = [gd.solve(problem.group(i), "sqp", tol=1e-9) for i in range(3)]
    assert minima[2].lower_bound > 0.3, "the group of one class has a least loss above zero"
    regrets = Oracle(problem).risks(result.w) + problem.domain.penalty_at(result.w[:3])
    regrets -= [alone.upper_bound for alone in minima]
    assert abs(regrets.max() - result.upper_bound) <= 1e-4
    assert result.gap <= 1e-4 * abs(result.upper_bound) or not result.converged
    return f"{result.status.name.lower()}, [{result.lower_bound:.6g}, {result.upper_bound:.6g}]"


@case("a problem whose class changes the objective")
def _changed_objective() -> str:
    with pytest.raises(TypeError, match="Problem cannot be extended") as caught:

        class Doubled(gd.Problem):
            """A problem with another objective."""

            def objective(self, w, group_risks):
                return 2.0 * super().objective(w, group_risks)

    return f"refused: {caught.value}"


# ---------------------------------------------------------------------- solvers that did not end


@case("a looser tolerance takes no more passes")
def _looser_tolerance() -> str:
    rng = np.random.default_rng(0)
    hour, season = rng.integers(0, 24, 8000), rng.integers(0, 4, 8000)
    rows = np.column_stack([np.eye(24)[hour], np.eye(4)[season], rng.normal(size=(8000, 30)) * 0.1])
    y = np.sin(hour) + 0.3 * season + (0.2 + hour / 24) * rng.normal(size=8000)
    found = [fit(GroupDRORegressor(alpha=1e-3, tol=tol), rows, y, groups=hour) for tol in (1e-2, 1e-3, 1e-4)]
    assert all(model.status_ == "converged" for model in found)
    passes = [model.n_passes_ for model in found]
    assert max(passes[:2]) <= 2 * passes[2], passes
    return f"{', '.join(f'{p:.0f}' for p in passes)} passes to 1e-2, 1e-3, 1e-4"


def many_groups(m, size, d, seed=0):
    """Return rows of many groups, each with slopes of its own around common ones."""
    rng = np.random.default_rng(seed)
    rows, groups = rng.normal(size=(m * size, d)), np.repeat(np.arange(m), size)
    slopes = (rng.normal(size=d) + rng.normal(size=(m, d))) / np.sqrt(d)
    return rows, np.einsum("ij,ij->i", rows, slopes[groups]) + 0.3 * rng.normal(size=m * size) > 0, groups


@case("2,000 groups of 20 rows")
def _many_groups() -> str:
    rows, y, groups = many_groups(2000, 20, 50)
    model = fit(GroupDROClassifier(tol=1e-2), rows, y, groups=groups)
    assert_certified(model, model.upper_bound_)
    return describe(model)


def _more_groups() -> str:
    rows, y, groups = many_groups(20_000, 100, 50)
    model = fit(GroupDROClassifier(tol=1e-2), rows, y, groups=groups)
    assert_certified(model, model.upper_bound_)
    return describe(model)


LARGE["20,000 groups of 100 rows"] = _more_groups


def main() -> int:
    import tests.estimators.field_cases_inputs as more  # which registers its cases with the module that it imports

    wrong = 0
    CASES.update(more.CASES)
    LONG.update(more.LONG)
    for name, run in {**CASES, **LONG, **LARGE}.items():
        try:
            print(f"right  {name}: {run()}", flush=True)
        except (AssertionError, pytest.fail.Exception) as error:
            wrong += 1
            print(f"WRONG  {name}: {error}", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
