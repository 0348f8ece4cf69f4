"""`groupdro report`."""

import dataclasses
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
)
from groupdro.cli.model import SavedModel, certificate_lines, certificate_of, table_digest
from groupdro.cli.page import report_page, write_page
from groupdro.cli.tables import check_columns, read_table, refuse_missing
from groupdro.cli.training import group_labels
from groupdro.evaluation.report import group_report
from groupdro.store import GroupedStore
from groupdro.utils.text import records

__all__ = ["report"]


@click.command()
@click.argument("model", type=PATH)
@click.argument("table", type=PATH)
@option("--group groups", "Column with the groups.  [default: as in fit]", metavar="COLUMN", multiple=True)
@metric_option
@details_option
@option("--html", "Also write an HTML page with the table and charts.", type=PATH)
@flag("--force", "Replace the page if it exists.")
@flag("--allow-unknown", "Accept a column without any label seen in fit.")
@command
def report(
    model: Path,
    table: Path,
    groups: tuple[str, ...],
    metrics: tuple[str, ...],
    details: bool,
    html: Path | None,
    force: bool,
    allow_unknown: bool,
) -> Outcome:
    """Report the performance of MODEL on each group of TABLE, worst first.

    TABLE should preferably hold data that the model was not fitted on: a CSV or Parquet file with the same columns, or
    a store. If it is the training table, the report says so.
    """
    check_output(html, "--html", force=force)
    with progress(f"Reporting on {table.name}"):
        fitted = SavedModel.load(model)
        fitted = dataclasses.replace(fitted, groups=groups or fitted.groups)
        rows = _open_store(fitted, table) if table.is_dir() else _rows_of_table(fitted, table, allow_unknown)
        found = group_report(fitted.pipeline, *rows, metrics=metrics or None)
    n_rows = len(rows[0])
    found = dataclasses.replace(found, title=f"{type(fitted.model).__name__} on {n_rows} rows of {table.name}")
    in_sample, sentence = "unknown", "It is unknown whether some of these rows were used for training."
    if found.in_sample:
        in_sample, sentence = "yes", "In-sample: these are the rows the model was fitted on."
    elif fitted.reads_tables and fitted.facts.get("digest") == table_digest(*rows[:2]):
        in_sample = "partly"
        sentence = f"Partly in-sample: the model was fitted on {fitted.facts['rows']} of these rows."
    document = {
        "model": model,
        "table": table,
        "rows": found.overall["n"],
        "target": fitted.target,
        "group_columns": fitted.groups,
        **{
            name: getattr(found, name)
            for name in ("confidence", "metrics", "worst_group", "worst_value", "limit", "overall")
        },
        "groups": records(found.columns),
        "certificate": certificate_of(fitted.model),
        "in_sample": in_sample,
    }
    certified = f"Certified on the training rows:\n{certificate_lines(fitted.model)}"
    text = f"{found.summary(details=details)}\n{sentence}\n\n{certified}"
    if html is not None:
        text += write_page(html, report_page(fitted, found, table.name, sentence))
    return document, text, ""


def _rows_of_table(fitted: SavedModel, path: Path, allow_unknown: bool) -> tuple[Any, Any, Any]:
    if not (fitted.target and fitted.groups):
        raise ValueError("the model was fitted on a store that does not name its target and groups.")
    table = read_table(path)
    check_columns(table, [fitted.target], "--target")
    check_columns(table, fitted.groups, "--group")
    refuse_missing(table[fitted.target], "--target")
    X = fitted.features(table, allow_unknown=allow_unknown)
    return X, fitted.target_of(table), group_labels(table, fitted.groups)


def _open_store(fitted: SavedModel, path: Path) -> tuple[GroupedStore]:
    """Return a store, whose labels, groups, weights and offsets a report takes from it."""
    if fitted.reads_tables:
        raise ValueError(f"TABLE {str(path)!r} is a store, but the model was fitted on the columns of a table.")
    return (GroupedStore.open(path),)
