"""Thousands of problems with real data's faults, judged by models that are found without the package.

A failure prints the call that reruns it:

    from tests.campaign.part_real_data import judge
    print(judge(1234).wrong)
"""

import inspect
import time
import warnings
from collections import Counter, defaultdict
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import groupdro as gd
from groupdro.problem import References
from tests.campaign.frame import Check, Tally
from tests.campaign.judging import map_cases
from tests.campaign.real_data import Case, Table, describe, draw
from tests.campaign.real_verdicts import Claim, Verdict, hold, pose

MAX_TIME = 10.0  # seconds of a fit


def judge(seed: int) -> Verdict:
    """Fit the problem of a seed and look for anything that the fit says wrongly."""
    begun = time.process_time()
    case = describe(seed)
    verdict = Verdict(case, "raised")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            JUDGES.get(case.kind, judge_fit)(case, draw(case), verdict)
        except Exception as error:
            verdict.wrong.append(f"{type(error).__name__}: {error}")
    verdict.seconds = time.process_time() - begun
    return verdict


def estimator(case: Case, **more: Any) -> Any:
    """Return the estimator of a case."""
    kind = gd.GroupDRORegressor if case.loss in ("squared", "huber") else gd.GroupDROClassifier
    loss = {"softmax": "logistic"}.get(case.loss, case.loss)
    parameters = {**case.parameters, "loss": loss, "random_state": 0, "max_time": MAX_TIME, **more}
    known = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in parameters.items() if name in known})


def judge_fit(case: Case, table: Table, verdict: Verdict) -> None:
    """Judge a fit by an estimator: from zero, from far away, after another one, or with given references."""
    rng, more, start = np.random.default_rng([case.seed, 3]), {}, {}
    posed = pose(case, table)
    outputs = posed.K * case.d
    if case.kind == "given references":
        given = (posed.risks(posed.zero()).astype(float)) * rng.uniform(0, 1.2, posed.m)
        more["reference_risks"] = given
        posed.shift = -given.astype(np.longdouble)
    if case.kind == "far start":
        start["coef_init"] = 1e6 * rng.choice([-1.0, 1.0], outputs)
        if posed.K > 1:
            start["coef_init"] = start["coef_init"].reshape(posed.K, case.d)
    model = estimator(case, **more)
    if case.kind == "warm start":
        model.set_params(warm_start=True)
        fit(model, changed(case, table, rng))
    fit(model, table, **start)
    verdict.status = model.status_
    regret = case.parameter("objective") == "excess_risk"
    hold(verdict, posed, Claim.of_estimator(model), regret=regret, own_minima=regret and "reference_risks" not in more)


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
        "squared": gd.Squared(),
        "huber": gd.Huber(),
        "logistic": gd.Logistic(),
        "softmax": gd.Softmax(3),
        "squared_hinge": gd.SquaredHinge(),
    }[case.loss]
    y = 2.0 * table.y - 1.0 if case.loss in ("logistic", "squared_hinge") else table.y
    regret, tol = case.parameter("objective") == "excess_risk", case.parameter("tol")
    problem = gd.GroupRisk(
        gd.GroupedData.from_arrays(table.X, y, table.groups, table.weight),
        loss,
        gd.L2Domain(radius=posed.radius, penalty=posed.alpha),
        fit_intercept=posed.intercept,
    )
    solver: Any = {"auto": gd.Auto, "aleg": gd.ALEG, "sqp": gd.GroupSQP}[case.parameters.get("solver", "auto")]()
    solver = gd.ALEM(stage_two=solver) if regret else solver
    result = gd.solve(problem, solver, tol=tol, max_time=MAX_TIME)
    verdict.status = result.status.name.lower()
    hold(verdict, posed, Claim.of_result(result, case.d, tol), regret=regret, own_minima=regret)


JUDGES = {"through solve": judge_solve}


def tally(verdicts: Any) -> Tally:
    """Count verdicts."""
    out, statuses, by_kind = Tally(), Counter(), defaultdict(Counter)
    solvable = converged = unresolved = 0
    for verdict in verdicts:
        out.tried += 1
        statuses[verdict.status] += 1
        by_kind[verdict.case.kind][verdict.status] += 1
        solvable += verdict.minimiser is True
        converged += verdict.minimiser is True and verdict.status == "converged"
        unresolved += verdict.unresolved
        out.failures += [f"judge({verdict.case.seed}): {sentence} {verdict.case!r}" for sentence in verdict.wrong]
    out.figures = [
        ", ".join(f"{count:,} {status}" for status, count in statuses.most_common()),
        f"{converged:,} of {solvable:,} that have a minimiser converged ({converged / max(solvable, 1):.1%})",
        f"{unresolved} held only up to what the data's digits resolve",
        *(f"{kind}: " + ", ".join(f"{n} {s}" for s, n in found.most_common()) for kind, found in by_kind.items()),
    ]
    return out


def run(count: int, seed: int, jobs: int) -> Tally:
    return tally(map_cases(judge, range(1_000_000 * seed, 1_000_000 * seed + count), jobs))


CHECKS = [
    Check(
        name="real data",
        promise="offsets, units, sentinels, heavy tails, many rows: no lower bound above another model, no false converged",
        run=run,
        full=10_000,
        ci=300,
    )
]
