"""`groupdro report`."""

import dataclasses
from pathlib import Path
from typing import Any

import click
import numpy as np

from groupdro.cli.failures import UserError, debug_option, users_mistake
from groupdro.cli.fit import certificate_lines, certificate_of
from groupdro.cli.output import check_output, json_option, print_json, progress, records, written_whole
from groupdro.cli.page import report_page
from groupdro.cli.tables import check_columns, read_table, refuse_missing
from groupdro.cli.training import group_labels
from groupdro.grouping import Grouping
from groupdro.report import GroupReport
from groupdro.store import GroupedStore
from groupdro.tables.table_model import TableModel, columns_in_order

__all__ = ["report"]


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--target", metavar="COLUMN", help="Column of the target.  [default: as at fit]")
@click.option("--group", "groups", metavar="COLUMN", multiple=True, help="Column of groups.  [default: as at fit]")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with the table and charts, too.")
@click.option("--force", is_flag=True, help="Replace the page if it exists.")
@click.option("--confidence", type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True), default=0.95,
              show_default=True, help="Level of the intervals.")  # fmt: skip
@click.option("--bootstrap", type=click.IntRange(min=0), default=1000, show_default=True,
              help="Resamples behind an interval.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the resamples.")
@json_option
@debug_option
def report(
    model: Path,
    table: Path,
    target: str | None,
    groups: tuple[str, ...],
    html: Path | None,
    force: bool,
    confidence: float,
    bootstrap: int,
    seed: int,
    as_json: bool,
) -> None:
    """Tell how each group of TABLE fares under MODEL, the worst first.

    TABLE is best one that the model was not fitted on: a CSV or Parquet file with the same columns, or a store.
    """
    if html is not None:
        check_output(html, "--html", force=force)
    with progress(f"Reporting on {table.name}"):
        with users_mistake():
            fitted = TableModel.load(model)
        fitted = _with_columns(fitted, target, groups)
        X, y, labels = _rows_of_store(fitted, table) if table.is_dir() else _rows_of_table(fitted, table)
        with users_mistake(), columns_in_order():
            found = fitted.model.report(
                X, y, labels, n_bootstrap=bootstrap, confidence=confidence, random_state=seed
            )  # fmt: skip
    found = dataclasses.replace(found, title=f"{type(fitted.model).__name__} on {len(y)} rows of {table.name}")
    if html is not None:
        with users_mistake("--html"), written_whole(html) as temporary:
            temporary.write_text(report_page(fitted, found, table.name), encoding="utf-8")
    if as_json:
        print_json(_document(fitted, found, model, table, html))
        return
    click.echo(f"{found!r}\n\nCertified on the rows of the fit:\n{certificate_lines(fitted.model)}")
    if html is not None:
        click.echo(f"Wrote {html}")


def _with_columns(fitted: TableModel, target: str | None, groups: tuple[str, ...]) -> TableModel:
    """Return the model with the columns of this report."""
    return dataclasses.replace(fitted, target=target or fitted.target, groups=groups or fitted.groups)


def _rows_of_table(fitted: TableModel, path: Path) -> tuple[Any, Any, Any]:
    for option, value in (("--target", fitted.target), ("--group", fitted.groups)):
        if not value:
            raise UserError(f"{option} must be given: the model's file does not say which column it is.")
    assert fitted.target is not None
    with users_mistake():
        rows = read_table(path)
        check_columns(rows, [fitted.target], "--target")
        check_columns(rows, fitted.groups, "--group")
        refuse_missing(rows.column(fitted.target), f"--target: column {fitted.target!r}", "remove those rows")
        return fitted.features(rows), fitted.labels(rows, fitted.target), group_labels(rows, fitted.groups)


def _rows_of_store(fitted: TableModel, path: Path) -> tuple[Any, Any, Any]:
    if fitted.encoder is not None:
        raise UserError(f"TABLE {str(path)!r} is a store, but the model was fitted on the columns of a table.")
    with users_mistake():
        store = GroupedStore.open(path)
    offsets = np.concatenate([[0], np.cumsum(store.group_sizes)]).astype(np.int64)
    return store.X, store.y, Grouping(offsets, np.arange(store.n_rows), store.names, overlapping=False)


def _document(fitted: TableModel, found: GroupReport, model: Path, table: Path, html: Path | None) -> dict[str, Any]:
    return {
        "command": "report",
        "model": model,
        "table": table,
        "html": html,
        "rows": found.overall["n"],
        "target": fitted.target,
        "group_columns": fitted.groups,
        "confidence": found.confidence,
        "worst_group": found.worst_group,
        "groups": records(found.columns),
        "overall": found.overall,
        "certificate": certificate_of(fitted.model),
    }
