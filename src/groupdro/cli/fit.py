"""`groupdro fit`."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from groupdro.cli.certificate import certificate_lines, certificate_of
from groupdro.cli.failures import NOT_CONVERGED, debug_option, echo, user_errors
from groupdro.cli.model import SavedModel, known_columns
from groupdro.cli.options import PATH, POSITIVE, Options, flag, json_option, option, training_options
from groupdro.cli.output import atomic_path, check_output, progress, show
from groupdro.cli.training import Training, fit_with_progress, read_training
from groupdro.evaluation.report import group_report
from groupdro.utils.arguments import printable
from groupdro.utils.text import records, table_text

__all__ = ["fit"]

_REMEDIES = {
    "pass_limit": "Increase --max-passes or --tol.",
    "time_limit": "Increase --max-time or --tol.",
    "stalled": "Rounding limits the attainable accuracy: increase --tol.",
    "no_finite_minimiser": "Increase --alpha to bound the coefficients.",
    "numerical_failure": "Look for columns with extreme values.",
}


@click.command()
@click.argument("table", type=PATH)
@training_options
@option(
    "--l1-ratio",
    "Share of the L1 penalty in the penalty of weight --alpha.",
    type=click.FloatRange(0.0, 1.0),
    default=0.0,
)
@option(
    "--test-size",
    "Fraction of each group's rows to hold out and report on.",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.0,
)
@option("--solver", "Solver; auto picks one by a cost model.", choices=("auto", "aleg", "sqp"))
@option("--max-time", "Time limit in seconds.  [default: none]", type=POSITIVE)
@option("--max-passes", "Limit on passes over the data.", type=POSITIVE, default=1000.0)
@option(
    "--checkpoint-dir",
    "Directory for checkpoints; rerun the same command to resume.",
    type=click.Path(file_okay=False, path_type=Path),
)
@option("-o --output", "File to save the model to.", type=PATH, default=Path("model.skops"))
@flag("--force", "Replace the file if it exists.")
@json_option
@debug_option
def fit(
    table: Path,
    l1_ratio: float,
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
    """Fit a model that performs as well as possible on its worst group.

    TABLE is a CSV or Parquet file, or a store written by `groupdro convert`. Numeric columns are standardised, text is
    one-hot encoded, and missing values are filled in (with the median, or as a separate category). All of this is a
    scikit-learn pipeline, which is saved with skops. The model does not see the group columns unless --group-as-feature
    is given.
    """
    options = Options(**given)
    check_output(output, "--output", force=force)
    training = read_training(table, options, test_size=test_size)
    estimator = options.estimator(
        training.task,
        solver=solver,
        max_time=max_time,
        max_passes=max_passes,
        checkpoint_dir=checkpoint_dir,
        l1_ratio=l1_ratio,
    )
    if not as_json:
        echo(training.summary)
    fitted = training.model(estimator)
    begun = time.perf_counter()
    warned = fit_with_progress(fitted, training.fitted, "Fitting")
    model = fitted if training.is_store else fitted[-1]
    seconds = time.perf_counter() - begun
    if model.status_ == "interrupted":  # by Ctrl-C; the solver has a best model so far, but it is not saved
        resumes = "" if checkpoint_dir is None else "; the same command resumes from the checkpoint"
        raise KeyboardInterrupt(f"Interrupted: no model was written{resumes}.")
    facts = {"table": training.path.name, "rows": training.fitted.n_rows, "held_out_rows": training.n_held_out}
    facts |= {"seconds": seconds, **({} if training.digest is None else {"table_digest": training.digest})}
    with user_errors("--output"), atomic_path(output) as temporary:
        SavedModel(fitted, training.target, training.groups, facts).save(temporary)
    columns, text = _group_table(training, fitted)
    document = {
        "command": "fit",
        "model": output,
        **training.document,
        "objective": options.objective,
        "loss": getattr(model.loss, "name", model.loss),
        "alpha": options.alpha,
        "l1_ratio": l1_ratio,
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
    """Return the group table of the held-out rows, or else of the training rows, and its text."""
    if training.is_store:  # a store may be larger than memory, so use what the fit has computed
        columns = {"group": model.groups_.tolist(), "n": training.fitted.X.group_sizes.tolist()}
        columns["risk"] = model.group_risks_.tolist()
        if hasattr(model, "group_minima_"):
            columns["regret"] = (model.group_risks_ - model.group_minima_).tolist()
        columns["weight"] = model.group_weights_.tolist()
        worst_first = np.argsort(-model.group_risks_, kind="stable")
        columns = {name: [values[k] for k in worst_first] for name, values in columns.items()}
        return columns, table_text(f"{training.fitted.n_rows} training rows", columns)
    rows, what = (training.held_out, "held-out rows") if training.held_out else (training.fitted, "training rows")
    with progress("Reporting"), user_errors(), known_columns():
        report = group_report(model, rows.X, rows.y, rows.groups)
    return report.columns, repr(dataclasses.replace(report, title=f"{rows.n_rows} {what}"))
