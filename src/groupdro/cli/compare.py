"""`groupdro compare`."""

from pathlib import Path
from typing import Any

import click

from groupdro.cli.command import (
    PATH,
    Outcome,
    check_output,
    command,
    details_option,
    flag,
    metric_option,
    option,
    progress,
    say,
)
from groupdro.cli.page import comparison_page, write_page
from groupdro.cli.training import read_training, training_options
from groupdro.compare import compare as compare_models
from groupdro.evaluation.models import final_estimator
from groupdro.utils.text import records

__all__ = ["compare"]

SHARE = click.FloatRange(0.0, 1.0, min_open=True, max_open=True)


@click.command()
@click.argument("table", type=PATH)
@training_options
@option("--test-size", "Fraction of each group's rows to hold out.", type=SHARE, default=0.25)
@option("--folds", "Folds to choose the robustness by; 0 for no such model.", type=click.IntRange(min=0), default=5)
@metric_option
@option("--mean-budget", "How much worse the average may get, relatively.  [default: by the gain]", type=click.FLOAT)
@option("--floor", "Value of the metric that the worst group must reach.", type=click.FLOAT)
@details_option
@option("--html", "Also write an HTML page with the tables and the verdict.", type=PATH)
@flag("--force", "Replace the page if it exists.")
@command
def compare(
    table: Path,
    folds: int,
    metrics: tuple[str, ...],
    mean_budget: float | None,
    floor: float | None,
    details: bool,
    html: Path | None,
    force: bool,
    **options: Any,
) -> Outcome:
    """Compare plain and robust training on held-out rows of TABLE, and say which model to use.

    TABLE is a CSV or Parquet file, read as by `groupdro fit`. Six models are fitted: ERM, which minimises the average
    risk; ERM with equal weight for every group; a blend of average and worst risk; GDRO, which minimises the worst
    risk; MERO, which minimises the worst excess risk; and a model whose robustness is chosen by cross-validation on the
    training rows. No model is saved.
    """
    if folds == 1:
        raise ValueError("--folds must be 0 or at least 2: one fold leaves no rows to train on.")
    check_output(html, "--html", force=force)
    if table.is_dir():
        raise ValueError(f"TABLE {str(table)!r} is a store, but compare requires a table.")
    training = read_training(table, options)
    say(training.summary)
    with progress("Comparing"):
        found = compare_models(
            *training.fitted,
            estimator=training.pipeline(options),
            held_out=training.held_out,
            metrics=metrics or None,
            mean_budget=mean_budget,
            floor=floor,
            cv=folds or None,
            random_state=options["seed"],
        )
    document = {
        **training.facts,
        "alpha": options["alpha"],
        "models": records(found.columns),
        "worth_it": found.worth_it,
        "recommended": found.recommended,
        "changes": {name: vars(change) for name, change in found.changes.items()},
        "differences": records(found.differences),
        "left_out": found.left_out,
        "verdict": found.verdict,
        "evidence": found.evidence,
        "metrics": found.metrics,
        "groups": {name: records(report.columns) for name, report in found.reports.items()},
    }
    text = f"\n{found.summary(details=details)}"
    if html is not None:
        text += write_page(html, comparison_page(training, found))
    late = [name for name, model in found.models.items() if final_estimator(model).status_ != "converged"]
    not_converged = f"Not converged: {', '.join(late)}, see the column gap. --tol is {options['tol']:g}."
    return document, text, not_converged if late else ""
