"""`groupdro find`."""

import warnings
from pathlib import Path
from typing import Any

import click

from groupdro.cli import tables
from groupdro.cli.command import PATH, Outcome, check_output, command, option, progress
from groupdro.cli.predictions import missing_outputs_named, page_options, read_predictions, table_options
from groupdro.discovery.find import find_groups
from groupdro.utils.arguments import printable
from groupdro.utils.text import records

__all__ = ["find"]


@click.command()
@click.argument("table", type=PATH)
@table_options
@option(
    "--columns",
    "Column to search, or several separated by commas. May be repeated.  [default: all others]",
    metavar="COLUMNS",
    multiple=True,
)
@option("--max-conditions", "Largest number of conditions of a group.", type=click.IntRange(min=1), default=3)
@option(
    "--min-rows",
    "Rows that a group needs in either half.  [default: 50, or 1% of the half if that is more]",
    type=click.IntRange(min=20),
)
@page_options
@command
def find(
    table: Path,
    columns: tuple[str, ...],
    max_conditions: int,
    min_rows: int | None,
    html: Path | None,
    title: str,
    about: str,
    force: bool,
    **options: Any,
) -> Outcome:
    """Find groups of rows of TABLE in which the predictions fail, and report those that are not chance.

    TABLE is a CSV or Parquet file as for `groupdro report`, with columns that describe the rows. One random half of the
    rows is searched, and the other half judges what was found. `--metric miscalibration` searches for groups whose
    probabilities or numbers are too low or too high.
    """
    check_output(html, "--html", force=force)
    with progress(f"Reading {table.name}"):
        given = read_predictions(table, options)
        names = _columns(columns, list(given.table))
        tables.check_columns(given.table, names, "--columns")
        names = _searchable(given.table, names, [name for name in given.table if name not in given.used])
        if not names:
            raise ValueError("no column is left to search: name some by --columns.")
    with progress(f"Searching {len(names)} columns"), missing_outputs_named(options):
        found = find_groups(
            given.predictions,
            y=given.y,
            columns=given.table[names],
            metrics=list(options["metrics"]) or None,
            level=options["confidence"],
            max_conditions=max_conditions,
            min_rows=min_rows,
            random_state=options["seed"],
            **given.judging,
        )
    document = {
        "table": table,
        "rows": len(given.y),
        "target": options["target"],
        "message": found.message,
        "confidence": found.level,
        "metrics": found.metrics,
        "searched": found.searched,
        "detectable": found.detectable,
        "groups": records(found.columns),
    }
    text = found.summary()
    if html is not None:
        text += f"\nWrote {printable(found.to_html(html, title=title, about=about))}"
    return document, text


def _searchable(table: Any, named: list[str], others: list[str]) -> list[str]:
    """Return the named columns, or else the others without those of lists and the like."""
    nested = [name for name in named or others if tables.is_nested(table[name])]
    if named and nested:
        raise ValueError(f"--columns: column {nested[0]!r} holds lists or other nested values, not one value per row.")
    if nested:
        warnings.warn(f"columns of lists or other nested values are not searched: {nested}.", stacklevel=2)
    return named or [name for name in others if name not in nested]


def _columns(given: tuple[str, ...], known: list[str]) -> list[str]:
    """Return the names of columns, of which one option may have several; a column's own name may have commas."""
    names = [name for text in given for name in ([text] if text in known else text.split(","))]
    return list(dict.fromkeys(names))
