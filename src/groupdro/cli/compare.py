"""`groupdro compare`."""

import datetime
import functools
import html as markup
from importlib import metadata, resources
from pathlib import Path
from string import Template
from typing import Any

import click

from groupdro.cli.failures import NOT_CONVERGED, UserError, debug_option, users_mistake
from groupdro.cli.output import check_output, json_option, print_json, progress, records, written_whole
from groupdro.cli.terminal import echo
from groupdro.cli.training import Options, Training, read_training, training_options, warnings_kept
from groupdro.compare import Comparison
from groupdro.compare import compare as compare_models
from groupdro.evaluation.metrics import final_estimator
from groupdro.utils.arguments import printable
from groupdro.utils.text import table_html, table_text

__all__ = ["compare"]


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@functools.partial(training_options, objective=False)
@click.option("--test-size", type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True), default=0.25,
              show_default=True, help="Fraction of each group's rows to hold out and judge on.")  # fmt: skip
@click.option("--min-rows", type=click.IntRange(min=0), default=30, show_default=True,
              help="Held-out rows that a group needs to be judged as the worst.")  # fmt: skip
@click.option("--confidence", type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True), default=0.95,
              show_default=True, help="Level of the verdict's interval.")  # fmt: skip
@click.option("--bootstrap", type=click.IntRange(min=1), default=500, show_default=True,
              help="Resamples behind the verdict.")  # fmt: skip
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with the tables and the verdict, too.")
@click.option("--force", is_flag=True, help="Replace the page if it exists.")
@json_option
@debug_option
def compare(
    table: Path,
    test_size: float,
    min_rows: int,
    confidence: float,
    bootstrap: int,
    html: Path | None,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Compare plain and robust training on held-out rows of TABLE, and say whether robustness is worth it.

    TABLE is a CSV or Parquet file, read as by `groupdro fit`. Four models are fitted: ERM, which minimises the average
    risk; ERM with every group of the same weight; GDRO, which minimises the worst risk; and MERO, the worst regret. No
    model is written.
    """
    options = Options(**given)
    if html is not None:
        check_output(html, "--html", force=force)
    if table.is_dir():
        raise UserError(f"TABLE {str(table)!r} is a store: compare holds out rows of a table.")
    training = read_training(table, options, test_size=test_size)
    held_out = training.held_out
    if held_out is None:
        raise UserError("--test-size holds out no row: all rows have classes that training would lack.")
    if not as_json:
        echo(training.summary)
    with warnings_kept() as warned, progress("Comparing"), users_mistake():
        found = compare_models(
            training.fitted.X,
            training.fitted.y,
            training.fitted.groups,
            estimator=options.estimator(training.task),
            held_out=(held_out.X, held_out.y, held_out.groups),
            min_rows=min_rows,
            n_bootstrap=bootstrap,
            confidence=confidence,
            random_state=options.seed,
        )
    for warning in warned:
        echo(f"Warning: {warning}", err=True)
    if html is not None:
        with users_mistake("--html"), written_whole(html) as temporary:
            temporary.write_text(_page(training, found), encoding="utf-8")
    if as_json:
        print_json(_document(training, found, options, html, warned))
    else:
        echo(f"\n{table_text(f'{held_out.n_rows} held-out rows', found.columns)}\n\n{found.verdict}")
        if html is not None:
            echo(f"Wrote {printable(html)}")
    late = [name for name, model in found.models.items() if final_estimator(model).status_ != "converged"]
    if late:
        echo(f"Not converged: {', '.join(late)}, see the column gap. --tol is {options.tol:g}.", err=True)
        click.get_current_context().exit(NOT_CONVERGED)


def _document(
    training: Training, found: Comparison, options: Options, html: Path | None, warned: list[str]
) -> dict[str, Any]:
    estimate, low, high = found.gain
    return {
        "command": "compare",
        "html": html,
        "task": training.task,
        "task_reason": training.reason,
        "alpha": options.alpha,
        "target": training.target,
        "group_columns": training.groups,
        "rows": training.fitted.n_rows,
        "held_out_rows": found.reports["ERM"].overall["n"],
        "models": records(found.columns),
        "worth_it": found.worth_it,
        "gain": {"estimate": estimate, "low": low, "high": high},
        "left_out": found.left_out,
        "verdict": found.verdict,
        "groups": {name: records(report.columns) for name, report in found.reports.items()},
        "warnings": warned,
    }


def _page(training: Training, found: Comparison) -> str:
    """Return the tables and the verdict as one HTML page, without scripts or requests."""
    files = resources.files("groupdro.cli")

    def table(title: str, columns: dict[str, list[Any]], footer: dict[str, Any] | None = None) -> str:
        return f'<div class="scroll" tabindex="0">{table_html(title, columns, footer)}</div>'

    groups = [
        table(name, report.columns, {"group": "(all rows)", **report.overall}) for name, report in found.reports.items()
    ]
    return Template(files.joinpath("compare.html").read_text(encoding="utf-8")).substitute(
        title=markup.escape(f"{training.target} by {' x '.join(training.groups)}"),
        subtitle=markup.escape(f"Plain and robust training on {training.path.name}"),
        style=files.joinpath("page.css").read_text(encoding="utf-8"),
        verdict=markup.escape(found.verdict),
        models=table(f"{found.reports['ERM'].overall['n']} held-out rows", found.columns),
        groups="".join(groups),
        written=f"{datetime.date.today():%d %B %Y}".lstrip("0"),
        version=markup.escape(metadata.version("groupdro")),
    )
