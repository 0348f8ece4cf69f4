"""`groupdro fit`."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from groupdro.cli.failures import NOT_CONVERGED, debug_option, users_mistake
from groupdro.cli.output import check_output, json_option, print_json, progress, records
from groupdro.cli.terminal import echo
from groupdro.cli.training import Options, Training, fit_with_progress, read_training, training_options
from groupdro.run.result import relative_gap
from groupdro.tables.table_model import TableModel
from groupdro.utils.arguments import printable
from groupdro.utils.text import group_name, table_text

__all__ = ["certificate_lines", "certificate_of", "fit"]

_REMEDIES = {
    "pass_limit": "Raise --max-passes or --tol.",
    "time_limit": "Raise --max-time or --tol.",
    "stalled": "Raise --tol: rounding leaves too few digits for it.",
    "no_finite_minimiser": "Raise --alpha, which bounds the coefficients.",
    "numerical_failure": "Look for columns with extreme values.",
}


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@training_options
@click.option("--test-size", type=click.FloatRange(0.0, 1.0, max_open=True), default=0.0, show_default=True,
              help="Fraction of each group's rows to hold out and report on.")  # fmt: skip
@click.option("--solver", type=click.Choice(["auto", "aleg", "sqp"]), default="auto", show_default=True,
              help="What solves it; auto picks by a model of the costs.")  # fmt: skip
@click.option("--max-time", type=click.FloatRange(min=0.0, min_open=True), help="Most seconds.  [default: any]")
@click.option("--max-passes", type=click.FloatRange(min=0.0, min_open=True), default=1000.0, show_default=True,
              help="Most passes over the rows.")  # fmt: skip
@click.option("--checkpoint-dir", type=click.Path(file_okay=False, path_type=Path),
              help="Save every epoch there; the same command goes on from it.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("model.groupdro"), show_default=True,
              help="File of the model.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file of the model if it exists.")
@json_option
@debug_option
def fit(
    table: Path,
    test_size: float,
    solver: str,
    max_time: float | None,
    max_passes: float,
    checkpoint_dir: Path | None,
    output: Path,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Fit a model whose worst group is as well off as it can be.

    TABLE is a CSV or Parquet file, or a store that `groupdro convert` wrote. Columns of numbers are standardised, text
    is one-hot encoded, missing values are filled in (the median, or a category of their own), and all of that is kept
    in the model's file. The model does not see the group columns unless --group-as-feature is given.
    """
    options = Options(**given)
    check_output(output, "--output", force=force)
    training = read_training(table, options, test_size=test_size)
    model = options.estimator(
        training.task, solver=solver, max_time=max_time, max_passes=max_passes, checkpoint_dir=checkpoint_dir
    )  # fmt: skip
    if not as_json:
        echo(training.summary)
    begun = time.perf_counter()
    warned = fit_with_progress(model, training.fitted, "Fitting")
    seconds = time.perf_counter() - begun
    if model.status_ == "interrupted":  # by Ctrl-C: the solver kept its best model, but no one asked for that
        resumes = "" if checkpoint_dir is None else "; the same command goes on from the checkpoint"
        raise KeyboardInterrupt(f"Interrupted: no model was written{resumes}.")
    whole = TableModel(model, training.encoder, training.target, training.groups, _facts(training, seconds))
    with users_mistake("--output"):
        whole.save(output)
    columns, text = _group_table(training, model)

    for warning in warned:
        echo(f"Warning: {warning}", err=True)
    if as_json:
        print_json(_document(training, model, options, output, seconds, columns, warned))
    else:
        echo(f"\n{text}\n\n{certificate_lines(model)}\n")
        echo(f"{model.solver_}: {model.n_passes_:.1f} passes, {seconds:.2f} s\nWrote {printable(output)}")
    if model.status_ != "converged":
        relative = certificate_of(model)["relative_gap"]
        echo(
            f"Not converged: {model.message_} The relative gap is {relative:.2g}, --tol is {model.tol:g}. "
            f"{_REMEDIES[model.status_]} The model was written to {printable(output)}.",
            err=True,
        )
        click.get_current_context().exit(NOT_CONVERGED)


def certificate_of(model: Any) -> dict[str, Any]:
    """Return the certificate of a fitted model by name."""
    upper = model.upper_bound_
    return {
        "lower_bound": model.lower_bound_,
        "upper_bound": upper,
        "gap": model.gap_,
        "relative_gap": relative_gap(model.gap_, upper),
        "tol": float(model.tol),
        "status": model.status_,
        "message": model.message_,
        "worst_group": model.worst_group_,
    }


def certificate_lines(model: Any) -> str:
    """Say what is certified in two lines."""
    value = "regret" if model.objective == "excess_risk" else "risk"
    shown = certificate_of(model)
    lower, upper = _apart(model.lower_bound_, model.upper_bound_)
    about = printable(group_name(model.worst_group_)) + (", with penalty" if model.alpha else "")
    if model.bound_radius_ < np.inf and model.lower_bound_ > 0:
        about += f", of models with outputs up to {model.bound_radius_:.0e}"
    return (
        f"{lower} <= best possible worst {value} <= {upper} (group {about})\n"
        f"{model.status_.replace('_', ' ')}: relative gap {shown['relative_gap']:.1e}, tolerance {model.tol:.0e}"
    )


def _apart(lower: float, upper: float) -> tuple[str, str]:
    """Return both bounds to the digits that tell them apart, and no more than eight."""
    for digits in range(4, 9):
        both = f"{lower + 0.0:.{digits}g}", f"{upper:.{digits}g}"  # not "-0"
        if both[0] != both[1]:
            break
    return both


def _facts(training: Training, seconds: float) -> dict[str, Any]:
    return {
        "table": training.path.name,
        "rows": training.fitted.n_rows,
        "held_out_rows": 0 if training.held_out is None else training.held_out.n_rows,
        "seconds": seconds,
        **({} if training.digest is None else {"table_digest": training.digest}),
    }


def _group_table(training: Training, model: Any) -> tuple[dict[str, list[Any]], str]:
    """Return the group table of the held-out rows, or else of the rows of the fit, and the same as text."""
    if training.encoder is None:  # a store may be larger than memory: what the fit knows has to do
        columns = {"group": model.groups_.tolist(), "n": training.fitted.X.group_sizes.tolist()}
        columns["risk"] = model.group_risks_.tolist()
        if hasattr(model, "reference_risks_"):
            columns["regret"] = (model.group_risks_ - model.reference_risks_).tolist()
        columns["weight"] = model.group_weights_.tolist()
        worst_first = np.argsort(-model.group_risks_, kind="stable")
        columns = {name: [values[k] for k in worst_first] for name, values in columns.items()}
        return columns, table_text(f"{training.fitted.n_rows} rows of the fit", columns)
    rows = training.fitted if training.held_out is None else training.held_out
    with progress("Reporting"), users_mistake():
        report = model.report(rows.X, rows.y, rows.groups)
    title = f"{rows.n_rows} {'rows of the fit' if training.held_out is None else 'held-out rows'}"
    return report.columns, repr(dataclasses.replace(report, title=title))


def _document(
    training: Training,
    model: Any,
    options: Options,
    output: Path,
    seconds: float,
    columns: dict[str, list[Any]],
    warned: list[str],
) -> dict[str, Any]:
    return {
        "command": "fit",
        "model": output,
        "task": training.task,
        "task_reason": training.reason,
        "objective": options.objective,
        "loss": model.loss,
        "alpha": options.alpha,
        "target": training.target,
        "group_columns": training.groups,
        "rows": training.fitted.n_rows,
        "held_out_rows": 0 if training.held_out is None else training.held_out.n_rows,
        "features": model.n_features_in_,
        **certificate_of(model),
        "solver": model.solver_,
        "passes": model.n_passes_,
        "seconds": seconds,
        "reported_rows": "fit" if training.held_out is None else "held_out",
        "groups": records(columns),
        "warnings": warned,
    }
