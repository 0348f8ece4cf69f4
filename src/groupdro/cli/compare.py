"""`groupdro compare`."""

import functools
from pathlib import Path
from typing import Any

import click

from groupdro.cli.failures import NOT_CONVERGED, UserError, debug_option, echo, user_errors
from groupdro.cli.model import known_columns
from groupdro.cli.options import OPEN_UNIT, PATH, Options, flag, json_option, option, training_options
from groupdro.cli.output import check_output, progress, show, write_page
from groupdro.cli.page import comparison_page
from groupdro.cli.training import collected_warnings, read_training
from groupdro.compare import compare as compare_models
from groupdro.evaluation.models import final_estimator
from groupdro.utils.arguments import printable
from groupdro.utils.text import records, table_text

__all__ = ["compare"]


@click.command()
@click.argument("table", type=PATH)
@functools.partial(training_options, objective=False)
@option("--test-size", "Fraction of each group's rows to hold out for the comparison.", type=OPEN_UNIT, default=0.25)
@option("--min-rows", "Held-out rows a group needs to count as the worst.", type=click.IntRange(min=0), default=30)
@option("--confidence", "Level of the confidence intervals.", type=OPEN_UNIT, default=0.95)
@option("--bootstrap", "Bootstrap resamples for the verdict.", type=click.IntRange(min=20), default=500)
@option(
    "--folds",
    "Folds for choosing the robustness by cross-validation; 0 to skip that model.",
    type=click.IntRange(min=0),
    default=5,
)
@option("--html", "Also write an HTML page with the tables and the verdict.", type=PATH)
@flag("--force", "Replace the page if it exists.")
@json_option
@debug_option
def compare(
    table: Path,
    test_size: float,
    min_rows: int,
    confidence: float,
    bootstrap: int,
    folds: int,
    html: Path | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Compare plain and robust training on held-out rows of TABLE, and report whether robustness is worth it.

    TABLE is a CSV or Parquet file, read as by `groupdro fit`. Six models are fitted: ERM, which minimises the average
    risk; ERM with equal weight for every group; a blend of average and worst risk; GDRO, which minimises the worst
    risk; MERO, which minimises the worst excess risk; and a model whose robustness is chosen by cross-validation on the
    training rows. No model is saved.
    """
    options = Options(**given)
    if folds == 1:
        raise UserError("--folds must be 0 or at least 2: one fold leaves no rows to train on.")
    if html is not None:
        check_output(html, "--html", force=force)
    if table.is_dir():
        raise UserError(f"TABLE {str(table)!r} is a store, but compare requires a table.")
    training = read_training(table, options, test_size=test_size)
    held_out = training.held_out
    if held_out is None:
        raise UserError("--test-size holds out no rows: all have classes that training would lack.")
    if not as_json:
        echo(training.summary)
    with collected_warnings() as warned, progress("Comparing"), user_errors(), known_columns():
        found = compare_models(
            training.fitted.X,
            training.fitted.y,
            training.fitted.groups,
            estimator=training.model(options.estimator(training.task)),
            held_out=(held_out.X, held_out.y, held_out.groups),
            min_rows=min_rows,
            n_bootstrap=bootstrap,
            cv=folds or None,
            confidence=confidence,
            random_state=options.seed,
        )
    if html is not None:
        write_page(html, comparison_page(training, found))
    document = {
        "command": "compare",
        "html": html,
        **training.document,
        "alpha": options.alpha,
        "models": records(found.columns),
        "worth_it": found.worth_it,
        "recommended": found.recommended,
        "changes": {
            name: {
                key: dict(zip(("estimate", "low", "high"), getattr(change, key), strict=True))
                for key in ("gain", "cost")
            }
            for name, change in found.changes.items()
        },
        "differences": records(found.differences),
        "left_out": found.left_out,
        "verdict": found.verdict,
        "groups": {name: records(report.columns) for name, report in found.reports.items()},
        "warnings": warned,
    }
    text = f"\n{table_text(f'{held_out.n_rows} held-out rows', found.columns)}\n\n{found.verdict}"
    text += "" if html is None else f"\nWrote {printable(html)}"
    show(document, text, as_json=as_json, warned=warned)
    late = [name for name, model in found.models.items() if final_estimator(model).status_ != "converged"]
    if late:
        echo(f"Not converged: {', '.join(late)}, see the column gap. --tol is {options.tol:g}.", err=True)
        click.get_current_context().exit(NOT_CONVERGED)
