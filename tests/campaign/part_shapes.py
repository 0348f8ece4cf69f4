"""Groups of odd shapes, and groups that are separable while nothing bounds the coefficients."""

import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import groupdro as gd
from tests.campaign.exact import Long, PlainProblem
from tests.campaign.frame import Check, Tally
from tests.campaign.judging import map_cases
from tests.campaign.part_scales import MAX_TIME, Drawn, Outcome, judge_fit, tally
from tests.timing import HUNG

# ---------------------------------------------------------------------- separable groups

SEPARABLE = ("apart", "touching", "shifted", "rare", "many classes", "one class apart")


def draw_separable(number: int) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """Return rows, labels, groups, a direction, and parameters.

    Along the direction no row's loss rises, and of every group at least one falls without end: whatever w is, the worst
    group is better off further along. So there is no finite minimiser.
    """
    rng = np.random.default_rng([number, 17])
    kind = SEPARABLE[number % len(SEPARABLE)]
    m, d = int(rng.integers(2, 7)), int(rng.integers(2, 6))
    groups = rng.permutation(np.repeat(np.arange(m), rng.integers(3, 20, m)))
    n = len(groups)
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-1, 1, d)
    intercept = bool(rng.random() < 0.5)
    if kind in ("many classes", "one class apart"):
        y = rng.integers(0, 3, n)
        for i in range(m):  # every group has a row of class 0, which is set apart
            y[np.flatnonzero(groups == i)[0]] = 0
        y[np.flatnonzero(groups == 0)[1:3]] = 1, 2
        direction = np.zeros((d + intercept, 3))
        corners = np.array([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])
        if kind == "many classes":
            X[:, :2] = corners[y] * 3.0 + rng.uniform(-0.5, 0.5, (n, 2))
            direction[:2] = corners.T
        else:
            X[:, 0] = np.where(y == 0, 1.0, -1.0) * rng.uniform(0.5, 2.0, n)
            direction[0] = 1.0, 0.0, 0.0
        if kind == "one class apart":
            direction[0] -= direction[0].mean()
    else:
        y = rng.integers(0, 2, n)
        y[:2] = 0, 1
        sign = 2.0 * y - 1.0
        direction = np.zeros(d + intercept)
        direction[0] = 1.0
        if kind == "apart":
            X[:, 0] = sign * rng.uniform(0.1, 2.0, n)
        elif kind == "shifted":
            intercept = True
            X[:, 0] = 50.0 + sign * rng.uniform(0.5, 2.0, n)
            direction = np.r_[1.0, np.zeros(d - 1), -50.0]
        else:  # the direction touches some rows, or all but a few, without a margin
            X[:, 0] = sign * rng.uniform(0.1, 2.0, n) * (rng.random(n) < (0.7 if kind == "touching" else 0.05))
            for i in range(m):
                first = np.flatnonzero(groups == i)[0]
                X[first, 0] = sign[first]
    stored = sp.csr_array(X) if rng.random() < 0.2 else X.astype(np.float32) if rng.random() < 0.2 else X
    parameters = {
        "objective": str(rng.choice(["risk", "excess_risk"])),
        "fit_intercept": intercept,
        "solver": str(rng.choice(["auto", "auto", "sqp", "aleg"])),
        "random_state": 0,
        "max_time": HUNG,
    }
    return stored, y, groups, direction, {"kind": kind, **parameters}


def judge_separable(number: int) -> Outcome:
    """Fit separable groups without penalty or radius: that nothing is best must be said."""
    X, y, groups, direction, told = draw_separable(number)
    outcome = Outcome(("separable", number))
    parameters = {name: value for name, value in told.items() if name != "kind"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", gd.UselessModelWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", gd.SmallGroupWarning)  # few rows are drawn on purpose
        try:
            model = gd.GroupDROClassifier(alpha=0.0, radius=None, **parameters).fit(X, y, groups=groups)
        except Exception as error:
            outcome.wrong.append(f"{type(error).__name__}: {error} ({told})")
            return outcome
    outcome.status = model.status_
    if model.status_ != "no_finite_minimiser" or "No finite minimiser" not in model.message_:
        outcome.wrong.append(f"not named: {model.status_}, {model.message_} ({told})")
    plain = PlainProblem.from_arrays(
        X,
        y if direction.ndim == 2 else 2.0 * y - 1.0,
        groups,
        loss="softmax" if direction.ndim == 2 else "logistic",
        intercept=told["fit_intercept"],
        n_outputs=3 if direction.ndim == 2 else 1,
    )
    w = np.atleast_2d(model.coef_).T
    w = np.vstack([w, np.atleast_1d(model.intercept_)]) if told["fit_intercept"] else w
    w = w if direction.ndim == 2 else w[:, 0]
    if not np.isfinite(w).all():
        outcome.wrong.append(f"coefficients are not finite ({told})")
        return outcome
    # Regrets are at most risks, and along the direction these fall below every bound that is not one.
    further = min(plain.objective(w + Long(t) * direction) for t in (1.0, 1e2, 1e4, 1e6))
    if model.lower_bound_ > further * (1 + 1e-9) + 1e-14:
        outcome.wrong.append(f"lower bound {model.lower_bound_!r} is above {further!r} ({told})")
    if not (plain.values(direction) < plain.values(np.zeros_like(direction))).all():
        outcome.wrong.append(f"the direction does not help, so that this case proves nothing ({told})")
    return outcome


# ---------------------------------------------------------------------- odd shapes


def _draw(rng: np.random.Generator, groups: np.ndarray, d: int = 3, **more: Any) -> Drawn:
    """Draw rows for the given groups, and how they are fitted."""
    n = len(groups)
    loss = str(more.pop("loss", None) or rng.choice(["logistic", "softmax", "squared_hinge", "squared", "huber"]))
    X = rng.normal(size=(n, d))
    y = X @ rng.normal(size=d) + rng.normal(size=n)
    if loss in ("logistic", "squared_hinge"):
        y = (y > 0).astype(int)
        y[: min(n, 2)] = np.arange(min(n, 2))
    elif loss == "softmax":
        y = np.digitize(y, [-1.0, 1.0])
        y[: min(n, 3)] = np.arange(min(n, 3))
    parameters = {
        "objective": str(rng.choice(["risk", "excess_risk"])),
        "alpha": float(rng.choice([1e-4, 1e-2, 1.0])),
        "radius": 2.0 if rng.random() < 0.3 else None,
        "fit_intercept": bool(rng.random() < 0.6),
        "solver": str(rng.choice(["auto", "auto", "aleg", "sqp"])),
        "tol": float(rng.choice([1e-2, 1e-4])),
        "max_passes": 300.0,
        "max_time": MAX_TIME,
    }
    return Drawn(X, y, groups, loss, {**parameters, **more})


def _few_groups(rng: np.random.Generator, most: int = 20) -> np.ndarray:
    return np.repeat(np.arange(int(rng.integers(2, 6))), int(rng.integers(2, most)))


def one_class(rng: np.random.Generator) -> Drawn:
    drawn = _draw(rng, _few_groups(rng), loss=rng.choice(["logistic", "softmax", "squared_hinge"]))
    mine = drawn.groups == 0
    drawn.y[mine] = 1
    drawn.y[np.flatnonzero(~mine)[: drawn.y.max() + 1]] = np.arange(drawn.y.max() + 1)[: (~mine).sum()]
    return drawn


def one_row(rng: np.random.Generator) -> Drawn:
    return _draw(rng, np.r_[_few_groups(rng), np.arange(100, 100 + int(rng.integers(1, 6)))])


def every_row_a_group(rng: np.random.Generator) -> Drawn:
    return _draw(rng, np.arange(int(rng.integers(3, 40))))


def identical_groups(rng: np.random.Generator) -> Drawn:
    n, copies = int(rng.integers(4, 20)), int(rng.integers(2, 5))
    drawn = _draw(rng, np.zeros(n, int))
    drawn.X, drawn.y = np.tile(drawn.X, (copies, 1)), np.tile(drawn.y, copies)
    drawn.groups = np.repeat(np.arange(copies), n)
    return drawn


def one_in_another(rng: np.random.Generator) -> Drawn:
    n = int(rng.integers(12, 40))
    drawn = _draw(rng, np.zeros(n, int))
    inner, outer = np.arange(n) < n // 4, np.arange(n) < n // 2
    drawn.groups = np.column_stack([inner, outer, np.ones(n, bool), outer])
    return drawn


def identical_rows(rng: np.random.Generator) -> Drawn:
    drawn = _draw(rng, _few_groups(rng))
    drawn.X[:] = drawn.X[0]
    return drawn


def single_row(rng: np.random.Generator) -> Drawn:
    drawn = _draw(rng, np.zeros(1, int), loss=rng.choice(["squared", "huber", "logistic", "squared_hinge"]))
    drawn.through_solve = drawn.loss in ("logistic", "squared_hinge")  # a classifier needs two classes
    if drawn.through_solve:
        drawn.parameters["fit_intercept"] = False
    return drawn


def constant_feature(rng: np.random.Generator) -> Drawn:
    drawn = _draw(rng, _few_groups(rng), d=1)
    drawn.X[:] = float(rng.choice([0.0, 1.0, -3.0, 1e6, 1e-6]))
    return drawn


def imbalance(rng: np.random.Generator, size: int = 1_000_000) -> Drawn:
    """A million rows against one. They are 200, many times over, which keeps the plain formulas cheap."""
    few = _draw(rng, np.r_[np.zeros(200, int), 1], loss=rng.choice(["logistic", "squared", "huber"]), max_time=60.0)
    few.parameters["solver"] = "auto"
    rows = np.r_[np.repeat(np.arange(200), size // 200), 200]
    return Drawn(few.X[rows], few.y[rows], few.groups[rows], few.loss, few.parameters, few=few)


def many_groups(rng: np.random.Generator, size: int = 100_000) -> Drawn:
    groups = np.repeat(np.arange(size), rng.integers(1, 4, size))
    return _draw(
        rng,
        groups,
        loss=rng.choice(["logistic", "squared"]),
        max_time=60.0,
        solver="auto",
        objective="risk",
        fit_intercept=False,
    )


ODD: dict[str, Callable[..., Drawn]] = {
    "one class in a group": one_class,
    "groups of one row": one_row,
    "every row a group": every_row_a_group,
    "identical groups": identical_groups,
    "a group in another": one_in_another,
    "identical rows": identical_rows,
    "a single row": single_row,
    "a constant feature": constant_feature,
    "a million rows to one": imbalance,
    "a hundred thousand groups": many_groups,
}
_LARGE = {"a million rows to one": 1_000_000, "a hundred thousand groups": 100_000}


def judge(case: tuple[str, int], share: float = 1.0) -> Outcome:
    """Fit a case of odd shape, and look for anything wrong with it; of large ones, a share may be enough."""
    name, number = case
    rng = np.random.default_rng([number, list(ODD).index(name), 5])
    return judge_fit(case, ODD[name](rng, round(share * _LARGE[name])) if name in _LARGE else ODD[name](rng))


# ---------------------------------------------------------------------- checks


def run_separable(count: int, seed: int, jobs: int) -> Tally:
    out, statuses = Tally(), Counter()
    for outcome in map_cases(judge_separable, range(10_000 * seed, 10_000 * seed + count), jobs):
        out.tried += 1
        statuses[outcome.status] += 1
        out.failures += [f"judge_separable({outcome.case[1]}): {sentence}" for sentence in outcome.wrong]
    out.figures = [f"{statuses['no_finite_minimiser']} named"]
    return out


def run_odd(count: int, seed: int, jobs: int, *, name: str) -> Tally:
    # A single case is what a test run has time for, at a twentieth of the size.
    fit = partial(judge, share=0.05) if name in _LARGE and count == 1 else judge
    return tally(map_cases(fit, [(name, 10_000 * seed + k) for k in range(count)], jobs))


CHECKS = [
    Check(
        name="separable groups",
        promise="without penalty and radius each is named as having no finite minimiser",
        run=run_separable,
        full=100,
        ci=6,
    ),
    *(
        Check(
            name=f"shapes: {name}",
            promise="true certificates, no exception but one that names X or y",
            run=partial(run_odd, name=name),
            full=4 if name in _LARGE else 50,
            ci=1,
        )
        for name in ODD
    ),
]
