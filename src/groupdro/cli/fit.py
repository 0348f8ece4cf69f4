"""`groupdro fit`."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import click
import pandas as pd
from sklearn.pipeline import Pipeline

from groupdro.cli.command import (
    PATH,
    UNIT,
    Outcome,
    check_output,
    command,
    flag,
    metric_option,
    option,
    progress,
    say,
)
from groupdro.cli.model import SavedModel, certificate_lines, certificate_of
from groupdro.cli.training import Training, open_store, read_training, training_options
from groupdro.estimators.progress import ProgressLine
from groupdro.evaluation.report import group_report
from groupdro.utils.arguments import printable
from groupdro.utils.text import records, table_text

__all__ = ["fit"]

POSITIVE = click.FloatRange(min=0.0, min_open=True)
BELOW_ONE = click.FloatRange(0.0, 1.0, max_open=True)
_REMEDIES = {
    "converged": "",
    "pass_limit": "Increase --max-passes or --tol.",
    "time_limit": "Increase --max-time or --tol.",
    "stalled": "Rounding limits the attainable accuracy: increase --tol.",
    "no_finite_minimiser": "Increase --alpha to bound the coefficients.",
    "numerical_failure": "Look for columns with extreme values.",
}


@click.command()
@click.argument("table", type=PATH)
@training_options
@option("--objective", "Worst risk, or worst excess risk.", choices=("risk", "excess_risk"))
@option("--l1-ratio", "Share of the L1 penalty in the penalty of weight --alpha.", type=UNIT, default=0.0)
@option("--test-size", "Fraction of each group's rows to hold out and report on.", type=BELOW_ONE, default=0.0)
@option("--solver", "Solver; auto picks one by a cost model.", choices=("auto", "aleg", "sqp"))
@option("--max-time", "Time limit in seconds.  [default: none]", type=POSITIVE)
@option("--max-passes", "Limit on passes over the data.", type=POSITIVE, default=1000.0)
@option("--checkpoint-dir", "Directory for checkpoints; rerun the same command to resume.", type=PATH)
@metric_option
@option("-o --output", "File to save the model to.", type=PATH, default=Path("model.skops"))
@flag("--force", "Replace the file if it exists.")
@command
def fit(table: Path, metrics: tuple[str, ...], output: Path, force: bool, **options: Any) -> Outcome:
    """Fit a model that performs as well as possible on its worst group.

    TABLE is a CSV or Parquet file, or a store written by `groupdro convert`. Numeric columns are standardised, text is
    one-hot encoded, and missing values are filled in (with the median, or as a separate category). All of this is a
    scikit-learn pipeline, which is saved with skops. The model does not see the group columns unless --group-as-feature
    is given.
    """
    check_output(output, "--output", force=force)
    training = open_store(table, options) if table.is_dir() else read_training(table, options)
    say(training.summary)
    fitted = training.pipeline(options)
    model = fitted[-1]
    X, y, groups = training.fitted
    begun = time.perf_counter()
    with progress("Fitting") as show:
        model.set_params(callbacks=[ProgressLine(model.tol, write=show)])
        fitted.fit(X, y, model__groups=groups)
        model.set_params(callbacks=None)
    seconds = time.perf_counter() - begun
    if model.status_ == "interrupted":  # by Ctrl-C; the solver has a best model so far, but it is not saved
        resumes = "; the same command resumes from the checkpoint" if model.checkpoint_dir else ""
        raise KeyboardInterrupt(f"Interrupted: no model was written{resumes}.")
    parameters = {name: getattr(model, name) for name in ("objective", "loss", "alpha", "l1_ratio")}
    work = {"features": model.n_features_in_, "solver": model.solver_, "passes": model.n_passes_, "seconds": seconds}
    facts = {**training.facts, **parameters, **work}
    SavedModel(fitted, facts["target"], tuple(facts["group_columns"]), facts).save(output)
    columns, text = _group_table(training, fitted, metrics)
    certificate = certificate_of(model)
    reported = {"reported_rows": "held_out" if training.held_out else "fit", "groups": records(columns)}
    document = {"model": output, **facts, **certificate, **reported}
    text = (
        f"\n{text}\n\n{certificate_lines(model)}\n\n"
        f"{model.solver_}: {model.n_passes_:.1f} passes, {seconds:.2f} s\nWrote {printable(output)}"
    )
    late = (
        f"Not converged: {model.message_} The relative gap is {certificate['relative_gap']:.2g}, --tol is "
        f"{model.tol:g}. {_REMEDIES[model.status_]} The model was written to {printable(output)}."
    )
    return document, text, "" if model.status_ == "converged" else late


def _group_table(training: Training, fitted: Pipeline, metrics: tuple[str, ...]) -> tuple[dict[str, list[Any]], str]:
    """Return the group table of the held-out rows, or else of the training rows, and its text."""
    if not training.steps:  # a store may be larger than memory, so use what the fit has computed
        model = fitted[-1]
        found = {"group": model.groups_.tolist(), "n": training.fitted[0].group_sizes}
        found |= {"risk": model.group_risks_, "weight": model.group_weights_}
        if hasattr(model, "group_minima_"):
            found["regret"] = model.group_risks_ - model.group_minima_
        columns = pd.DataFrame(found).sort_values("risk", ascending=False).to_dict("list")
        return columns, table_text(f"{training.facts['rows']} training rows", columns)
    rows, which = (training.held_out, "held-out") if training.held_out else (training.fitted, "training")
    with progress("Reporting"):
        report = group_report(fitted, *rows, metrics=metrics or None)
    return report.columns, repr(dataclasses.replace(report, title=f"{report.overall['n']} {which} rows"))
