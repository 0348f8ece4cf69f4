"""`groupdro report`."""

from pathlib import Path
from typing import Any

import click

from groupdro.cli.command import PATH, Outcome, check_output, command, flag, option, progress
from groupdro.cli.predictions import missing_outputs_named, page_options, read_predictions, table_options
from groupdro.evaluation.report import group_report
from groupdro.utils.arguments import printable
from groupdro.utils.text import records

__all__ = ["report"]


@click.command()
@click.argument("table", type=PATH)
@option(
    "--group groups",
    "Column with the groups. Repeat it for combinations.",
    metavar="COLUMN",
    multiple=True,
    required=True,
)
@table_options
@option("--min-rows", "Rows below which a group is not judged.", type=click.IntRange(min=1), default=30)
@flag("--details", "Print the intervals of all metrics too, and how much groups differ.")
@page_options
@command
def report(
    table: Path,
    groups: tuple[str, ...],
    min_rows: int,
    details: bool,
    html: Path | None,
    title: str,
    about: str,
    force: bool,
    **options: Any,
) -> Outcome:
    """Report the performance on each group of TABLE, worst first.

    TABLE is a CSV or Parquet file with one row per case: what happened, what was predicted, and the groups, preferably
    of data that the model was not fitted on. The numbers are those of `group_report` in Python.
    """
    check_output(html, "--html", force=force)
    with progress(f"Reading {table.name}"):
        given = read_predictions(table, options)
        labels = given.labels_of(groups, "--group")
    with progress(f"Reporting on {len(given.y)} rows"), missing_outputs_named(options):
        found = group_report(
            given.predictions,
            y=given.y,
            groups=labels,
            metrics=options["metrics"] or None,
            confidence=options["confidence"],
            min_rows=min_rows,
            random_state=options["seed"],
            **given.judging,
        )
    document = {
        "table": table,
        "rows": found.overall["n"],
        "target": options["target"],
        "group_columns": groups,
        **{
            name: getattr(found, name)
            for name in ("message", "confidence", "metrics", "worst_group", "worst_value", "limit", "overall")
        },
        "groups": records(found.columns),
    }
    text = found.summary(details=details)
    if details:
        text += "".join(f"\n\n{name}: {found.heterogeneity(name)}" for name in found.metrics)
    if html is not None:
        text += f"\nWrote {printable(found.to_html(html, title=title, about=about))}"
    return document, text
