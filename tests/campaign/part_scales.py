"""Columns, rows and labels of ugly sizes, through the estimators and through `solve`.

What cannot be certified may be said (a status, a warning, an error that names X or y), but never hidden. A failure
prints its case, which runs again:

    from tests.campaign.part_scales import judge
    judge(("columns 1e6", 17))
"""

import re
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import groupdro as gd
from groupdro.problem import GroupMinima
from tests.campaign.exact import PlainProblem
from tests.campaign.frame import Check, Tally
from tests.campaign.judging import Claim, Truth, hold_against, map_cases

MAX_TIME = 3.0  # seconds that a fit is given
PATIENCE = 20.0  # more CPU seconds that it may take, for its compilation


@dataclass
class Drawn:
    """Data and parameters of one fit.

    Where all rows are there equally often, `few` may hold each of them once: so the plain formulas stay cheap.
    """

    X: Any
    y: np.ndarray
    groups: np.ndarray
    loss: str
    parameters: dict[str, Any]
    through_solve: bool = False
    weight: np.ndarray | None = None
    few: "Drawn | None" = None

    def __repr__(self) -> str:
        through = "solve" if self.through_solve else "estimator"
        return f"{through}, {self.loss}, {type(self.X).__name__} {self.X.shape}, {self.parameters}"


@dataclass
class Outcome:
    """What became of one fit."""

    case: tuple[str, int]
    status: str = ""
    seconds: float = 0.0  # of the CPU
    wrong: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------- drawing


def _draw(rng: np.random.Generator) -> Drawn:
    """Draw rows of ordinary sizes, and how they are fitted."""
    m, d = int(rng.integers(2, 6)), int(rng.integers(2, 7))
    sizes = rng.integers(3, 25, m)
    groups = rng.permutation(np.repeat(np.arange(m), sizes))
    n = len(groups)
    X = rng.normal(size=(n, d))
    loss = str(rng.choice(["logistic", "softmax", "squared_hinge", "squared", "huber"]))
    signal = X @ rng.normal(size=d)
    y = signal + rng.normal(size=n) * rng.uniform(0.3, 2.0)
    if loss in ("logistic", "squared_hinge"):
        y = (y > 0).astype(int)
        y[:2] = 0, 1
    elif loss == "softmax":
        y = np.digitize(y, [-1.0, 1.0])
        y[:3] = 0, 1, 2
    alpha = float(rng.choice([0.0, 1e-4, 1e-2, 1.0]))
    parameters = {
        "objective": str(rng.choice(["risk", "excess_risk"])),
        "alpha": alpha,
        "radius": float(rng.choice([0.1, 1.0, 100.0])) if rng.random() < 0.3 else None,
        "fit_intercept": bool(rng.random() < 0.6),
        "solver": str(rng.choice(["auto", "auto", "aleg", "sqp"])),
        "tol": float(rng.choice([1e-2, 1e-4, 1e-6])),
        "max_passes": float(rng.choice([50, 1000])),
        "max_time": MAX_TIME,
    }
    through_solve = bool(rng.random() < 0.3) and not (parameters["alpha"] == 0.0 and parameters["radius"] is None)
    return Drawn(X, y, groups, loss, parameters, through_solve)


def _scale_columns(drawn: Drawn, rng: np.random.Generator, power: int) -> None:
    drawn.X = drawn.X * 10.0 ** (power * rng.integers(-1, 2, drawn.X.shape[1]))
    if rng.random() < 0.2:
        drawn.X = drawn.X.astype(np.float32)
    elif rng.random() < 0.3:
        drawn.X = sp.csr_array(drawn.X * (rng.random(drawn.X.shape) < 0.7))


def _odd_columns(drawn: Drawn, rng: np.random.Generator) -> None:
    """Add columns that are constant, zero, copies, multiples or nearly copies of others, or far from zero."""
    X, n = drawn.X, len(drawn.y)
    odd = {
        "constant": np.full(n, 10.0 ** rng.integers(-6, 7)),
        "zero": np.zeros(n),
        "copy": X[:, 0],
        "multiple": X[:, 0] * 10.0 ** rng.integers(-6, 7),
        "nearly a copy": X[:, 0] + 10.0 ** rng.integers(-9, -2) * rng.normal(size=n),
        "far from zero": 10.0 ** rng.integers(2, 9) + rng.normal(size=n),
        "sum": X.sum(axis=1),
        "marks a row": (np.arange(n) == 0) * 10.0 ** rng.integers(-6, 7),
    }
    names = rng.choice(list(odd), size=int(rng.integers(1, 4)), replace=False)
    drawn.X = np.column_stack([X, *(odd[name] for name in names)])
    drawn.parameters["odd"] = [str(name) for name in names]


def _large_rows(drawn: Drawn, rng: np.random.Generator) -> None:
    """Let a few rows, or all, have a norm of 1e8."""
    rows = np.arange(len(drawn.y)) if rng.random() < 0.3 else rng.choice(len(drawn.y), 3, replace=False)
    drawn.X[rows] *= 1e8 / np.linalg.norm(drawn.X[rows], axis=1, keepdims=True)


def _far_labels(drawn: Drawn, rng: np.random.Generator) -> None:
    """Let the targets of a regression be 1e6 apart, or 1e6 from zero, or both."""
    if drawn.loss not in ("squared", "huber"):
        drawn.loss, drawn.y = "squared", drawn.X @ rng.normal(size=drawn.X.shape[1]) + rng.normal(size=len(drawn.y))
    kind = rng.choice(["two values", "far", "by group", "large"])
    if kind == "two values":
        drawn.y = np.where(drawn.y > 0, 1e6, 0.0)
    elif kind == "far":
        drawn.y = drawn.y + 1e6
    elif kind == "by group":
        drawn.y = drawn.y + 1e6 * drawn.groups
    else:
        drawn.y = drawn.y * 1e6
    drawn.parameters["labels"] = str(kind)


KINDS: dict[str, Callable[[Drawn, np.random.Generator], None]] = {
    "columns 1e3": partial(_scale_columns, power=3),
    "columns 1e6": partial(_scale_columns, power=6),
    "columns 1e12": partial(_scale_columns, power=12),
    "odd columns": _odd_columns,
    "rows 1e8": _large_rows,
    "labels 1e6 apart": _far_labels,
}


def draw_case(case: tuple[str, int]) -> Drawn:
    """Return the data and parameters of a case."""
    name, number = case
    rng = np.random.default_rng([number, list(KINDS).index(name), 93])
    drawn = _draw(rng)
    KINDS[name](drawn, rng)
    return drawn


# ---------------------------------------------------------------------- fitting and judging


def judge(case: tuple[str, int]) -> Outcome:
    """Fit a case, and look for anything wrong with it."""
    return judge_fit(case, draw_case(case))


def judge_fit(case: tuple[str, int], drawn: Drawn) -> Outcome:
    """Fit, and hold what the fit says against plain formulas."""
    outcome = Outcome(case)
    begun = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", gd.UselessModelWarning)
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", gd.SmallGroupWarning)  # few rows are drawn on purpose
            claim, outcome.status, outputs = _through_solve(drawn) if drawn.through_solve else _estimate(drawn)
    except ValueError as error:
        outcome.status = "refused"
        if not re.search(r"\b(X|y)\b", str(error)):
            outcome.wrong.append(f"ValueError that does not name X or y: {error} ({drawn!r})")
        return outcome
    except Exception as error:
        outcome.wrong.append(f"{type(error).__name__}: {error} ({drawn!r})")
        return outcome
    outcome.seconds = time.process_time() - begun
    if outcome.seconds > PATIENCE + drawn.parameters["max_time"]:
        outcome.wrong.append(f"took {outcome.seconds:.0f} CPU seconds ({drawn!r})")
    if not np.isfinite(outputs).all():
        outcome.wrong.append(f"predictions are not finite ({drawn!r})")
    regret, plain = drawn.parameters["objective"] == "excess_risk", _plain(drawn.few or drawn)
    truth = Truth(plain, regret=regret, candidates=[claim.w])
    wrong = hold_against(claim, truth, regret=regret)
    outcome.wrong += [f"{sentence} ({outcome.status}, {drawn!r})" for sentence in wrong]
    return outcome


def _plain(drawn: Drawn) -> PlainProblem:
    p = drawn.parameters
    y = 2.0 * drawn.y - 1.0 if drawn.loss in ("logistic", "squared_hinge") else drawn.y
    return PlainProblem.from_arrays(
        drawn.X,
        y,
        drawn.groups,
        drawn.weight,
        loss=drawn.loss,
        delta=1.35,
        radius=np.inf if p["radius"] is None else p["radius"],
        penalty=p["alpha"],
        intercept=p["fit_intercept"],
        n_outputs=3 if drawn.loss == "softmax" else 1,
    )


_NOT_PARAMETERS = ("odd", "labels")  # what is only told of a case


def _estimate(drawn: Drawn) -> tuple[Claim, str, np.ndarray]:
    p = {name: value for name, value in drawn.parameters.items() if name not in _NOT_PARAMETERS}
    kind = gd.GroupDRORegressor if drawn.loss in ("squared", "huber") else gd.GroupDROClassifier
    loss = "logistic" if drawn.loss == "softmax" else drawn.loss
    model = kind(loss=loss, random_state=0, **p)
    model.fit(drawn.X, drawn.y, drawn.weight, groups=drawn.groups)
    outputs = model.predict(drawn.X) if kind is gd.GroupDRORegressor else model.decision_function(drawn.X)
    if drawn.loss in ("logistic", "softmax"):
        outputs = np.column_stack([outputs.reshape(len(drawn.y), -1), model.predict_proba(drawn.X)])
    w = np.atleast_2d(model.coef_).T
    if p["fit_intercept"]:
        w = np.vstack([w, np.atleast_1d(model.intercept_)])
    minima = None
    if p["objective"] == "excess_risk":
        found = model.group_minima_
        minima = GroupMinima(found, np.full_like(found, -np.inf), centre=found)  # the lower ones are not reported
    return (
        Claim(
            w=w if drawn.loss == "softmax" else w[:, 0],
            q=model.group_weights_,
            group_risks=model.group_risks_,
            lower=model.lower_bound_,
            upper=model.upper_bound_,
            gap=model.gap_,
            converged=model.status_ == "converged",
            tol=p["tol"],
            # Where the model fits without loss, a gap of a few units of rounding is enough.
            atol=8 * np.finfo(float).eps * (float(np.mean(drawn.y**2)) if kind is gd.GroupDRORegressor else 1.0),
            group_minima=minima,
            exact_upper=drawn.loss != "softmax",  # a constant of all classes is taken off the coefficients
        ),
        model.status_,
        outputs,
    )


def _through_solve(drawn: Drawn) -> tuple[Claim, str, np.ndarray]:
    p, plain = drawn.parameters, _plain(drawn)
    loss = {
        "logistic": gd.losses.Logistic(),
        "softmax": gd.losses.Softmax(3),
        "squared": gd.losses.Squared(),
        "huber": gd.losses.Huber(),
        "squared_hinge": gd.losses.SquaredHinge(),
    }[drawn.loss]
    problem = gd.Problem(
        gd.GroupedData.from_arrays(drawn.X, plain.y, drawn.groups, drawn.weight),
        loss,
        gd.domains.L2Domain(radius=plain.radius, penalty=plain.penalty),
        fit_intercept=plain.intercept,
    )
    solver: Any = {"auto": gd.solvers.Auto, "aleg": gd.solvers.ALEG, "sqp": gd.solvers.GroupSQP}[p["solver"]]()
    if p["objective"] == "excess_risk":
        solver = gd.solvers.ALEM(stage_two=solver)
    result = gd.solve(problem, solver, tol=p["tol"], max_passes=p["max_passes"], max_time=p["max_time"])
    claim = Claim.of(result, tol=p["tol"])
    return claim, result.status.name.lower(), plain.outputs(result.w, float)


def tally(outcomes: Any) -> Tally:
    out, statuses, slowest = Tally(), Counter(), 0.0
    for outcome in outcomes:
        out.tried += 1
        statuses[outcome.status] += 1
        slowest = max(slowest, outcome.seconds)
        out.failures += [f"judge({outcome.case!r}): {sentence}" for sentence in outcome.wrong]
    out.figures = [f"{count} {status}" for status, count in statuses.most_common()] + [
        f"slowest {slowest:.1f} s of CPU"
    ]
    return out


def run(count: int, seed: int, jobs: int, *, name: str) -> Tally:
    return tally(map_cases(judge, [(name, 100_000 * seed + k) for k in range(count)], jobs))


CHECKS = [
    Check(
        name=f"ugly scales: {name}",
        promise="no false converged, no NaN, no exception but one that names X or y",
        run=partial(run, name=name),
        full=200,
        ci=2,
    )
    for name in KINDS
]
