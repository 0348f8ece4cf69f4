"""Fits of drawn problems, each handed to the judge with what it claims."""

import inspect
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import groupdro as gd
from tests.campaign.custom_parts import PARTS
from tests.campaign.plain_losses import LogisticLoss
from tests.campaign.real_data import Case, Table
from tests.campaign.real_verdicts import Claim, Verdict, hold, pose
from tests.campaign.witnesses import Posed

__all__ = ["estimator", "judge_case"]

MAX_TIME, LONG_TIME = 3.0, 15.0  # seconds of a fit, and of one with many rows


def judge_case(case: Case, table: Table, verdict: Verdict) -> None:
    """Fit a problem as its kind asks, and add to the verdict what the fit says wrongly."""
    judges = {"through solve": judge_solve, "custom": judge_custom, "resumed": judge_resumed}
    judges.get(case.kind, judge_fit)(case, table, verdict)


def estimator(case: Case, **more: Any) -> Any:
    """Return the estimator of a case."""
    kind = gd.GroupDRORegressor if case.loss in ("squared", "huber") else gd.GroupDROClassifier
    loss = {"softmax": "logistic"}.get(case.loss, case.loss)
    limit = MAX_TIME if case.n < 10_000 else LONG_TIME
    parameters = {**case.parameters, "loss": loss, "random_state": 0, "max_time": limit, **more}
    known = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in parameters.items() if name in known})


def judge_fit(case: Case, table: Table, verdict: Verdict) -> None:
    """Judge a fit by an estimator: from zero, from far away, after another one, or with given minima."""
    rng = np.random.default_rng([case.seed, 3])
    start = {}
    posed = pose(case, table)
    outputs = posed.K * case.d
    if case.kind == "given references":
        given = (posed.risks(posed.zero()).astype(float)) * rng.uniform(0, 1.2, posed.m)
        start["group_minima"] = given
        posed.shift = -given.astype(np.longdouble)
    if case.kind == "far start":
        start["coef_init"] = 1e6 * rng.choice([-1.0, 1.0], outputs)
        if posed.K > 1:
            start["coef_init"] = start["coef_init"].reshape(posed.K, case.d)
    model = estimator(case)
    if case.kind == "warm start":
        before = fit(model, changed(case, table, rng))
        start["coef_init"] = before.coef_
        if before.fit_intercept:
            start["intercept_init"] = before.intercept_
    fit(model, table, **start)
    verdict.status = model.status_
    regret = case.parameter("objective") == "excess_risk"
    hold(verdict, posed, Claim.of_estimator(model), regret=regret, own_minima=regret and "group_minima" not in start)


def fit(model: Any, table: Table, **start: Any) -> Any:
    return model.fit(table.X, table.y, table.weight, groups=table.groups, **start)


def changed(case: Case, table: Table, rng: np.random.Generator) -> Table:
    """Return other data of the same shape, as a fit may have seen before."""
    if case.variant == "rows changed":
        other = rng.permutation(len(table.y))
        return Table(table.X[other], table.y, table.groups, table.weight)
    if case.variant == "targets changed" and case.loss in ("squared", "huber"):
        return Table(table.X, table.y * -3.0, table.groups, table.weight)
    return Table(table.X * 1e-3, table.y, table.groups, table.weight)


def judge_solve(case: Case, table: Table, verdict: Verdict) -> None:
    """Judge a problem that was posed and solved without an estimator."""
    posed = pose(case, table)
    loss: Any = {
        "squared": gd.losses.Squared(),
        "huber": gd.losses.Huber(),
        "logistic": gd.losses.Logistic(),
        "softmax": gd.losses.Softmax(3),
        "squared_hinge": gd.losses.SquaredHinge(),
    }[case.loss]
    y = 2.0 * table.y - 1.0 if case.loss in ("logistic", "squared_hinge") else table.y
    regret, tol = case.parameter("objective") == "excess_risk", case.parameter("tol")
    problem = gd.Problem(
        gd.GroupedData.from_arrays(table.X, y, table.groups, table.weight),
        loss,
        gd.domains.L2Domain(radius=posed.radius, penalty=posed.alpha),
        fit_intercept=posed.intercept,
    )
    solver: Any = {"auto": gd.solvers.Auto, "aleg": gd.solvers.ALEG, "sqp": gd.solvers.GroupSQP}[
        case.parameters.get("solver", "auto")
    ]()
    solver = gd.solvers.ALEM(stage_two=solver) if regret else solver
    result = gd.solve(problem, solver, tol=tol, max_time=MAX_TIME)
    verdict.status = result.status.name.lower()
    hold(verdict, posed, Claim.of_result(result, case.d, tol), regret=regret, own_minima=regret)


def judge_resumed(case: Case, table: Table, verdict: Verdict) -> None:
    """Judge a fit that goes on where a short one ended, on the same data or on data changed in between."""
    rng = np.random.default_rng([case.seed, 3])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        options = {"checkpoint_dir": f"{folder}/checkpoints", "max_passes": float(rng.integers(2, 30))}
        model, rest = estimator(case, **options), estimator(case, **{**options, "max_passes": 1000.0})
        if "store" in case.variant:
            task = "regression" if case.loss in ("squared", "huber") else "classes"
            store = gd.GroupedStore.write_arrays(
                path, table.X, table.y, table.groups, sample_weight=table.weight, dtype="float64", task=task
            )
            model.fit(store)
        else:
            fit(model, table)
        if "changed" in case.variant:
            _change_in_place(table, path if "store" in case.variant else None)
        try:
            if "store" in case.variant:
                rest.fit(gd.GroupedStore.open(path))
            else:
                fit(rest, table)
        except ValueError as error:
            _refused(verdict, error, "store changed" in case.variant and "X.npy" in str(error))
            return
    verdict.status = rest.status_
    regret = case.parameter("objective") == "excess_risk"
    hold(verdict, pose(case, table), Claim.of_estimator(rest), regret=regret, own_minima=regret)


def _change_in_place(table: Table, store: Path | None) -> None:
    if sp.issparse(table.X):
        table.X.data *= -2.0
        return
    table.X[:, 0] *= -2.0
    if store is not None:
        stored = np.load(store / "X.npy", mmap_mode="r+")
        stored[:, 0] *= -2.0
        stored.flush()


def judge_custom(case: Case, table: Table, verdict: Verdict) -> None:
    """Judge a problem with a part of the user's own."""
    rng = np.random.default_rng([case.seed, 3])
    part = PARTS[case.variant](rng)
    regret = case.parameter("objective") == "excess_risk"
    y = table.y if part.regression else 2.0 * (table.y > np.median(table.y)) - 1.0
    if not part.regression and rng.random() < 0.5:
        y[table.groups == 0] = 1.0  # a group of one class
    formula = dict(part.formula)
    factor = formula.pop("factor", 1.0)
    domain = part.domain if part.domain is not None else gd.domains.L2Domain(penalty=1e-2)
    intercept = bool(rng.random() < 0.7)
    solver: Any = {"auto": gd.solvers.Auto, "aleg": gd.solvers.ALEG, "sqp": gd.solvers.GroupSQP}[
        case.parameters["solver"]
    ]()
    solver = gd.solvers.ALEM(stage_two=solver) if regret else solver
    try:
        data = gd.GroupedData.from_arrays(table.X, y, table.groups, table.weight)
        loss = part.loss if part.loss is not None else gd.losses.Logistic()
        problem = gd.Problem(data, loss, domain, fit_intercept=intercept)
        result = gd.solve(problem, solver, tol=1e-4, max_passes=200, max_time=MAX_TIME)
    except (TypeError, ValueError, NotImplementedError) as error:
        named = [type(x).__name__ for x in (part.loss, part.domain) if x is not None] + ["loss", "domain", "Problem"]
        _refused(verdict, error, any(name in str(error) for name in named))
        return
    verdict.status = result.status.name.lower()
    if part.meaningless:
        verdict.wrong.append(f"{case.variant} was solved, though it means nothing")
        return
    options = {"alpha": 1e-2 * factor, "loss": LogisticLoss(), "intercept": intercept, "radius": np.inf, **formula}
    if part.contradictory and verdict.status == "numerical_failure":
        return  # the bounds contradict each other, and the run says so: as good as a refusal
    posed = Posed(table.dense, y, table.groups, table.weight, **options)
    hold(verdict, posed, Claim.of_result(result, case.d, 1e-4), regret=regret, own_minima=regret)


def _refused(verdict: Verdict, error: Exception, named: bool) -> None:
    verdict.status = "refused"
    if not named:
        verdict.wrong.append(f"{type(error).__name__} does not name what it refuses: {error}")
