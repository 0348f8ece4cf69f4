"""`groupdro convert`."""

from pathlib import Path
from typing import Any

import click

from groupdro.cli.command import PATH, Outcome, command, flag, option, progress
from groupdro.cli.tables import check_columns, csv_header, is_csv
from groupdro.store import GroupedStore
from groupdro.store.locations import find_files, is_uri
from groupdro.store.tables import open_table
from groupdro.utils.arguments import printable
from groupdro.utils.optional import import_extra

__all__ = ["convert"]

BELOW_ONE = click.FloatRange(0.0, 1.0, max_open=True)


@click.command()
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True)
@click.argument("store", type=PATH)
@option("--target", "Column to predict.", metavar="COLUMN", required=True)
@option("--group groups", "Column with the groups. May be repeated.", metavar="COLUMN", multiple=True, required=True)
@option("--drop", "Column to leave out. May be repeated.", metavar="COLUMN", multiple=True)
@option("--weight", "Column with row weights.", metavar="COLUMN")
@option("--dtype", "Type of the stored features.", choices=("float32", "float64", "float16"))
@option("--task", "Kind of target; auto: only floats are numbers.", choices=("auto", "classification", "regression"))
@option("--test-size", "Fraction of each group's rows to write to STORE-test.", type=BELOW_ONE, default=0.0)
@flag("--verify", "Read the whole store again and verify its checksums.")
@flag("--force", "Replace the store if it exists.")
@command
def convert(
    tables: tuple[str, ...],
    store: Path,
    target: str,
    groups: tuple[str, ...],
    drop: tuple[str, ...],
    weight: str | None,
    dtype: str,
    task: Any,
    test_size: float,
    verify: bool,
    force: bool,
) -> Outcome:
    """Convert numeric TABLEs to STORE, a directory from which `fit` in Python reads the rows.

    The tables are CSV or Parquet files with the same columns, or one directory of Parquet files. They are given by
    paths, by URIs such as s3://bucket/table.parquet, or by quoted patterns of both, such as "parts/*.parquet". They are
    read in bounded memory and may be larger than it. All columns except the target, the groups and the weight are
    features, which must be numeric without missing values. The store is written completely or not at all.
    With --test-size, held-out rows go to a second store, named STORE-test.
    """
    if store.exists() and not force:
        raise ValueError(f"STORE {str(store)!r} exists: pass --force to replace it.")
    labels = {target, *groups}
    source = _find_tables(tables, labels)
    check_columns(open_table(source)[0].names, drop, "--drop")
    with progress(f"Writing {store.name}"):
        written = GroupedStore.write(
            store,
            source,
            target=target,
            groups=list(groups),
            drop=drop,
            weight=weight,
            dtype=dtype,
            task="classes" if task == "classification" else task,
            test_size=test_size,
            overwrite=force,
        )
        written, held_out = written if test_size else (written, None)
        if verify:
            written.verify()
    document = {
        "store": store,
        "rows": written.n_rows,
        "held_out_rows": 0 if held_out is None else held_out.n_rows,
        "features": written.n_features,
        "groups": written.n_groups,
        "task": "regression" if written.classes is None else "classification",
        "bytes": written.nbytes,
        "verified": verify,
    }
    text = (
        f"{printable(store)}: {written.n_rows} rows in {written.n_groups} groups, {written.n_features} features in "
        f"{dtype}, for {document['task']}; {written.nbytes / 2**20:.1f} MiB"
    )
    if held_out is not None:
        text += f"\n{printable(held_out.path.name)}: {held_out.n_rows} held-out rows"
    return document, text + ("\nVerified: all checksums match" if verify else "")


def _find_tables(tables: tuple[str, ...], labels: set[str]) -> Any:
    if any(map(is_uri, tables)):
        return list(tables)
    _, paths, _ = find_files(tables)
    return _csv_files(paths, labels) if all(is_csv(Path(path)) for path in paths) else paths


def _csv_files(files: list[str], labels: set[str]) -> Any:
    """Return CSV files as one data set, with the delimiter of the first."""
    pa, csv, dataset = (import_extra(f"pyarrow{name}", extra="cli") for name in ("", ".csv", ".dataset"))
    layout = dataset.CsvFileFormat(
        parse_options=csv.ParseOptions(delimiter=csv_header(Path(files[0]))[0]),
        convert_options=csv.ConvertOptions(strings_can_be_null=True),
    )
    schema = dataset.dataset(files[0], format=layout).schema
    for place, field in enumerate(schema):
        # Types are inferred from the first rows: a feature that starts with integers may have fractions later.
        if field.name not in labels and str(field.type) in ("int64", "null"):
            schema = schema.set(place, field.with_type(pa.float64()))
    return dataset.dataset(files, format=layout, schema=schema)
