"""`groupdro report`."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from groupdro.cli.certificate import certificate_lines, certificate_of
from groupdro.cli.failures import UserError, debug_option, user_errors
from groupdro.cli.model import SavedModel, known_columns, table_digest
from groupdro.cli.options import OPEN_UNIT, PATH, flag, json_option, option, unknown_option
from groupdro.cli.output import check_output, progress, show, write_page
from groupdro.cli.page import report_page
from groupdro.cli.tables import check_columns, read_table, refuse_missing
from groupdro.cli.training import collected_warnings, group_labels
from groupdro.data.grouping import Grouping
from groupdro.evaluation.report import GroupReport, group_report
from groupdro.store import GroupedStore
from groupdro.utils.arguments import printable
from groupdro.utils.text import records

__all__ = ["report"]


@click.command()
@click.argument("model", type=PATH)
@click.argument("table", type=PATH)
@option("--target", "Column of the target.  [default: as in fit]", metavar="COLUMN")
@option("--group groups", "Column with the groups.  [default: as in fit]", metavar="COLUMN", multiple=True)
@option("--html", "Also write an HTML page with the table and charts.", type=PATH)
@flag("--force", "Replace the page if it exists.")
@option("--confidence", "Level of the confidence intervals.", type=OPEN_UNIT, default=0.95)
@option("--bootstrap", "Bootstrap resamples for the intervals.", type=click.IntRange(min=0), default=1000)
@option("--seed", "Seed for the resamples.", type=click.IntRange(min=0), default=0)
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
    """Report the performance of MODEL on each group of TABLE, worst first.

    TABLE should preferably hold data that the model was not fitted on: a CSV or Parquet file with the same columns, or
    a store. If it is the training table, the report says so.
    """
    if html is not None:
        check_output(html, "--html", force=force)
    with progress(f"Reporting on {table.name}"):
        with user_errors():
            fitted = SavedModel.load(model)
        fitted = dataclasses.replace(fitted, target=target or fitted.target, groups=groups or fitted.groups)
        with collected_warnings() as warned:
            read = _rows_of_store if table.is_dir() else partial(_rows_of_table, allow_unknown=allow_unknown)
            X, y, labels = read(fitted, table)
        with user_errors(), known_columns():
            found = group_report(
                fitted.pipeline, X, y, labels, n_bootstrap=bootstrap, confidence=confidence, random_state=seed
            )
    found = dataclasses.replace(found, title=f"{type(fitted.model).__name__} on {len(y)} rows of {table.name}")
    in_sample, sentence = _in_sample(fitted, found, X, y)
    if html is not None:
        write_page(html, report_page(fitted, found, table.name, sentence))
    document = {
        "command": "report",
        "model": model,
        "table": table,
        "html": html,
        "rows": found.overall["n"],
        "target": fitted.target,
        "group_columns": fitted.groups,
        "confidence": found.confidence,
        "worst_group": found.worst_group,
        "worst_value": dict(zip(("estimate", "low", "high"), found.worst_value, strict=True)),
        "limit": found.limit,
        "groups": records(found.columns),
        "overall": found.overall,
        "certificate": certificate_of(fitted.model),
        "in_sample": in_sample,
        "warnings": warned,
    }
    text = f"{found!r}\n{sentence}\n\nCertified on the training rows:\n{certificate_lines(fitted.model)}"
    text += "" if html is None else f"\nWrote {printable(html)}"
    show(document, text, as_json=as_json, warned=warned)


def _in_sample(fitted: SavedModel, found: GroupReport, X: Any, y: Any) -> tuple[str, str]:
    """Return "yes" for the training rows, "partly" if some were held out, otherwise "unknown", and a sentence."""
    if found.in_sample:
        return "yes", "In-sample: these are the rows the model was fitted on."
    table = fitted.facts.get("table_digest")
    if table is not None and table == table_digest(X, y):
        n_rows = fitted.facts.get("rows", "some")
        return "partly", f"Partly in-sample: the model was fitted on {n_rows} of these rows."
    return "unknown", "It is unknown whether some of these rows were used for training."


def _rows_of_table(fitted: SavedModel, path: Path, allow_unknown: bool) -> tuple[Any, Any, Any]:
    for name, value in (("--target", fitted.target), ("--group", fitted.groups)):
        if not value:
            raise UserError(f"{name} must be given, because the model file does not name the column.")
    assert fitted.target is not None
    with user_errors():
        rows = read_table(path)
        check_columns(rows.column_names, [fitted.target], "--target")
        check_columns(rows.column_names, fitted.groups, "--group")
        refuse_missing(rows.column(fitted.target), f"--target: column {fitted.target!r}", "remove those rows")
        X = fitted.features(rows, allow_unknown=allow_unknown)
        return X, fitted.labels(rows), group_labels(rows, fitted.groups)


def _rows_of_store(fitted: SavedModel, path: Path) -> tuple[Any, Any, Any]:
    if fitted.reads_tables:
        raise UserError(f"TABLE {str(path)!r} is a store, but the model was fitted on the columns of a table.")
    with user_errors():
        store = GroupedStore.open(path)
    offsets = np.concatenate([[0], np.cumsum(store.group_sizes)]).astype(np.int64)
    return store.X, store.y, Grouping(offsets, np.arange(store.n_rows), store.names, overlapping=False)
