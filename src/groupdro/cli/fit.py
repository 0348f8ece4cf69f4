"""`groupdro fit`."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from groupdro.cli.certificate import certificate_lines, certificate_of
from groupdro.cli.failures import NOT_CONVERGED, debug_option, echo, users_mistake
from groupdro.cli.options import PATH, POSITIVE, Options, flag, json_option, option, training_options
from groupdro.cli.output import check_output, progress, show
from groupdro.cli.training import Training, fit_with_progress, read_training
from groupdro.tables.table_model import TableModel
from groupdro.utils.arguments import printable
from groupdro.utils.text import records, table_text

__all__ = ["fit"]

_REMEDIES = {
    "pass_limit": "Raise --max-passes or --tol.",
    "time_limit": "Raise --max-time or --tol.",
    "stalled": "Raise --tol: rounding leaves too few digits for it.",
    "no_finite_minimiser": "Raise --alpha, which bounds the coefficients.",
    "numerical_failure": "Look for columns with extreme values.",
}


@click.command()
@click.argument("table", type=PATH)
@training_options
@option("--test-size", "Fraction of each group's rows to hold out and report on.",
        type=click.FloatRange(0.0, 1.0, max_open=True), default=0.0)  # fmt: skip
@option("--solver", "What solves it; auto picks by a model of the costs.", choices=("auto", "aleg", "sqp"))
@option("--max-time", "Time limit in seconds.  [default: none]", type=POSITIVE)
@option("--max-passes", "Most passes over the rows.", type=POSITIVE, default=1000.0)
@option("--checkpoint-dir", "Save every epoch there; the same command resumes from it.",
        type=click.Path(file_okay=False, path_type=Path))  # fmt: skip
@option("-o --output", "File of the model.", type=PATH, default=Path("model.groupdro"))
@flag("--force", "Replace the file of the model if it exists.")
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
        resumes = "" if checkpoint_dir is None else "; the same command resumes from the checkpoint"
        raise KeyboardInterrupt(f"Interrupted: no model was written{resumes}.")
    facts = {"table": training.path.name, "rows": training.fitted.n_rows, "held_out_rows": training.n_held_out}
    facts |= {"seconds": seconds, **({} if training.digest is None else {"table_digest": training.digest})}
    with users_mistake("--output"):
        TableModel(model, training.encoder, training.target, training.groups, facts).save(output)
    columns, text = _group_table(training, model)
    document = {
        "command": "fit",
        "model": output,
        **training.document,
        "objective": options.objective,
        "loss": model.loss,
        "alpha": options.alpha,
        "features": model.n_features_in_,
        **certificate_of(model),
        "solver": model.solver_,
        "passes": model.n_passes_,
        "seconds": seconds,
        "reported_rows": "fit" if training.held_out is None else "held_out",
        "groups": records(columns),
        "warnings": warned,
    }
    work = f"{model.solver_}: {model.n_passes_:.1f} passes, {seconds:.2f} s"
    text = f"\n{text}\n\n{certificate_lines(model)}\n\n{work}\nWrote {printable(output)}"
    show(document, text, as_json=as_json, warned=warned)
    if model.status_ != "converged":
        echo(
            f"Not converged: {model.message_} The relative gap is {document['relative_gap']:.2g}, --tol is "
            f"{model.tol:g}. {_REMEDIES[model.status_]} The model was written to {printable(output)}.",
            err=True,
        )
        click.get_current_context().exit(NOT_CONVERGED)


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
    rows, what = (training.held_out, "held-out rows") if training.held_out else (training.fitted, "rows of the fit")
    with progress("Reporting"), users_mistake():
        report = model.report(rows.X, rows.y, rows.groups)
    return report.columns, repr(dataclasses.replace(report, title=f"{rows.n_rows} {what}"))
