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
from groupdro.cli.terminal import echo
from groupdro.cli.training import group_labels, unknown_option, warnings_kept
from groupdro.data.grouping import Grouping
from groupdro.estimators.training_rows import rows_digest
from groupdro.evaluation.report import GroupReport
from groupdro.store import GroupedStore
from groupdro.tables.table_model import TableModel, columns_in_order
from groupdro.utils.arguments import printable

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
@unknown_option
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
    allow_unknown: bool,
    as_json: bool,
) -> None:
    """Report how each group of TABLE fares under MODEL, the worst first.

    TABLE is preferably one that the model was not fitted on: a CSV or Parquet file with the same columns, or a store.
    The report says where it is the training table.
    """
    if html is not None:
        check_output(html, "--html", force=force)
    with progress(f"Reporting on {table.name}"):
        with users_mistake():
            fitted = TableModel.load(model)
        fitted = _with_columns(fitted, target, groups)
        with warnings_kept() as warned:
            read = _rows_of_store if table.is_dir() else _rows_of_table
            X, y, labels = read(fitted, table, allow_unknown)
        with users_mistake(), columns_in_order():
            found = fitted.model.report(
                X, y, labels, n_bootstrap=bootstrap, confidence=confidence, random_state=seed
            )  # fmt: skip
    found = dataclasses.replace(found, title=f"{type(fitted.model).__name__} on {len(y)} rows of {table.name}")
    in_sample = _in_sample(fitted, found, X, y)
    for warning in warned:
        echo(f"Warning: {warning}", err=True)
    if html is not None:
        with users_mistake("--html"), written_whole(html) as temporary:
            page = report_page(fitted, found, table.name, _in_sample_sentence(in_sample, fitted))
            temporary.write_text(page, encoding="utf-8")
    if as_json:
        print_json({**_document(fitted, found, model, table, html), "in_sample": in_sample, "warnings": warned})
        return
    echo(f"{found!r}\n{_in_sample_sentence(in_sample, fitted)}\n")
    echo(f"Certified on the rows of the fit:\n{certificate_lines(fitted.model)}")
    if html is not None:
        echo(f"Wrote {printable(html)}")


def _in_sample(fitted: TableModel, found: GroupReport, X: Any, y: Any) -> str:
    """Return "yes" for the training rows, "partly" for a table of which some were held out, otherwise "unknown"."""
    if found.in_sample:
        return "yes"
    table = fitted.facts.get("table_digest")
    return "partly" if table is not None and table == rows_digest(X, fitted.model._codes(y)) else "unknown"


def _in_sample_sentence(in_sample: str, fitted: TableModel) -> str:
    if in_sample == "yes":
        return "In-sample: these are the rows the model was fitted on."
    if in_sample == "partly":
        return f"Partly in-sample: the model was fitted on {fitted.facts.get('rows', 'some')} of these rows."
    return "Whether some of these rows were used for training is not known."


def _with_columns(fitted: TableModel, target: str | None, groups: tuple[str, ...]) -> TableModel:
    """Return the model with the columns of this report."""
    return dataclasses.replace(fitted, target=target or fitted.target, groups=groups or fitted.groups)


def _rows_of_table(fitted: TableModel, path: Path, allow_unknown: bool) -> tuple[Any, Any, Any]:
    for option, value in (("--target", fitted.target), ("--group", fitted.groups)):
        if not value:
            raise UserError(f"{option} must be given: the model's file does not say which column it is.")
    assert fitted.target is not None
    with users_mistake():
        rows = read_table(path)
        check_columns(rows, [fitted.target], "--target")
        check_columns(rows, fitted.groups, "--group")
        refuse_missing(rows.column(fitted.target), f"--target: column {fitted.target!r}", "remove those rows")
        X = fitted.features(rows, allow_unknown=allow_unknown)
        return X, fitted.labels(rows, fitted.target), group_labels(rows, fitted.groups)


def _rows_of_store(fitted: TableModel, path: Path, allow_unknown: bool) -> tuple[Any, Any, Any]:
    del allow_unknown  # a store has numbers only
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
