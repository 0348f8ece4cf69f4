"""`groupdro bench`."""

import time
import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from groupdro.cli.certificate import certificate_of
from groupdro.cli.failures import UserError, debug_option, echo
from groupdro.cli.options import PATH, POSITIVE, Options, json_option, option, training_options
from groupdro.cli.output import progress, show
from groupdro.cli.training import Training, fit_with_progress, read_training
from groupdro.data.grouping import read_groups
from groupdro.estimators.between import Between
from groupdro.evaluation.metrics import means_by_group, row_losses
from groupdro.solvers import ALEG, GroupSQP
from groupdro.utils.text import records, table_text
from groupdro.utils.types import Floats

__all__ = ["bench"]


# Solvers that support a free intercept, as in the estimators.
_SOLVERS: dict[str, Any] = {
    "auto": lambda: "auto",
    "aleg": ALEG,
    "sqp-newton": lambda: GroupSQP("newton"),
    "sqp-lbfgs": lambda: GroupSQP("lbfgs"),
}
_ALL = (*_SOLVERS, "sklearn")


@click.command()
@click.argument("table", type=PATH)
@training_options
@option("--solver solvers", "Solver to run. May be repeated.  [default: all]", type=click.Choice(_ALL), multiple=True)
@option("--time-limit", "Time limit of each solver in seconds.", type=POSITIVE, default=60.0)
@json_option
@debug_option
def bench(table: Path, solvers: tuple[str, ...], time_limit: float, as_json: bool, **given: Any) -> None:
    """Time the solvers on TABLE, with scikit-learn's model for comparison.

    TABLE is read as by `groupdro fit`. Each solver first runs for one epoch, so that compilation is not timed, and then
    until its certified gap is within --tol or the time limit is reached. A plain LogisticRegression or Ridge with the
    same penalty shows how long minimising the average takes, and what it means for the worst group. The objective is
    the worst risk, or excess risk, plus the penalty.
    """
    options = Options(**given)
    training = read_training(table, options)
    if not as_json:
        echo(f"{training.summary}\n")
    found: list[dict[str, Any]] = []
    references: Floats | None = None
    for name in dict.fromkeys(solvers or _ALL):
        if name == "sklearn":
            found.append(_run_plain(training, options, references))
        else:
            row, own = _run(name, training, options, time_limit)
            references = own if own is not None else references
            found.append(row)
    columns = {key: [row[key] for row in found] for key in found[0]}
    document = {
        "command": "bench",
        "task": training.task,
        "target": training.target,
        "rows": training.fitted.n_rows,
        "tol": options.tol,
        "time_limit": time_limit,
        "solvers": records(columns),
    }
    show(document, table_text(f"tolerance {options.tol:.0e}, at most {time_limit:g} s each", columns), as_json=as_json)


def _row(solver: str, status: str, **known: float) -> dict[str, Any]:
    empty = dict.fromkeys(("seconds", "passes", "relative_gap", "objective", "worst_risk"), np.nan)
    return {"solver": solver, **empty, **known, "status": status}


def _run(name: str, training: Training, options: Options, time_limit: float) -> tuple[dict[str, Any], Floats | None]:
    """Return a row of the table, and each group's smallest risk if excess risks are minimised."""
    model = options.estimator(training.task, solver=_SOLVERS[name](), max_time=time_limit, max_passes=1e-9)
    try:
        fit_with_progress(model, training.fitted, f"{name}: compiling")
        model.set_params(max_passes=np.inf)
        begun = time.perf_counter()
        fit_with_progress(model, training.fitted, name)
    except UserError as error:
        if name in ("auto", "aleg"):  # these support everything, so the data are at fault
            raise
        return _row(name, f"does not apply: {error.message}"), None
    seconds = time.perf_counter() - begun
    if model.status_ == "interrupted":
        raise KeyboardInterrupt
    row = _row(
        name,
        model.status_.replace("_", " "),
        seconds=seconds,
        passes=model.n_passes_,
        relative_gap=certificate_of(model)["relative_gap"],
        objective=model.upper_bound_,
        worst_risk=float(model.group_risks_.max()),
    )
    return row, getattr(model, "reference_risks_", None)


def _run_plain(training: Training, options: Options, references: Floats | None) -> dict[str, Any]:
    """Fit scikit-learn's model with the same penalty, and return its row."""
    rows, n = training.fitted, training.fitted.n_rows
    if training.encoder is None:
        return _row("sklearn", "does not apply: the rows are in a store")
    if training.task == "classification":
        model: Any = LogisticRegression(C=1.0 / (options.alpha * n) if options.alpha else np.inf, max_iter=1000)
    else:
        model = Ridge(alpha=options.alpha * n)
    with progress(type(model).__name__), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begun = time.perf_counter()
        model.fit(rows.X, rows.y)
        known = {"seconds": time.perf_counter() - begun}
    late = any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    if options.loss in (None, "logistic", "squared"):  # otherwise its risks would use another loss
        loss = "log" if training.task == "classification" else "squared"
        grouping = read_groups(rows.groups, n, missing="own")
        risks = means_by_group(row_losses(model, rows.X, rows.y, loss), grouping)
        known["worst_risk"] = float(risks.max())
        if options.objective == "risk" or references is not None:
            values = risks if references is None else risks - references
            between = Between.of(
                grouping.sizes / n, len(risks), average=options.average, n_worst=options.n_worst,
                worst_share=options.worst_share, overlapping=False,
            )  # fmt: skip
            blend = between.weight_set(options.robustness).support(values)
            known["objective"] = blend + 0.5 * options.alpha * float(np.square(model.coef_).sum())
    return _row(type(model).__name__, "minimises the average" + (", not converged" if late else ""), **known)
