"""`groupdro convert`."""

import time
from pathlib import Path
from typing import Any

import click

from groupdro.cli.columns import arrow, kind_of
from groupdro.cli.failures import UserError, debug_option, user_errors
from groupdro.cli.options import PATH, flag, json_option, option
from groupdro.cli.output import progress, show
from groupdro.cli.tables import check_columns, csv_settings, table_format
from groupdro.cli.training import collected_warnings
from groupdro.store import GroupedStore
from groupdro.store.tables import open_table
from groupdro.utils.arguments import printable

__all__ = ["convert"]


@click.command()
@click.argument("tables", metavar="TABLE...", type=PATH, nargs=-1, required=True)
@click.argument("store", type=PATH)
@option("--target", "Column to predict.", metavar="COLUMN", required=True)
@option(
    "--group groups",
    "Column with the groups. Repeat it for combinations.",
    metavar="COLUMN",
    multiple=True,
    required=True,
)
@option("--drop", "Column to leave out. May be repeated.", metavar="COLUMN", multiple=True)
@option("--weight", "Column with row weights.", metavar="COLUMN")
@option(
    "--dtype", "Type of the stored features.", type=click.Choice(["float16", "float32", "float64"]), default="float32"
)
@option(
    "--task",
    "Kind of target; auto treats only floating-point columns as numbers.",
    choices=("auto", "classification", "regression"),
)
@option("--memory", "MiB of rows to hold in memory.", type=click.IntRange(min=1), default=256)
@option("--seed", "Seed for the order of rows.", type=click.IntRange(min=0), default=0)
@flag("--verify", "Read the whole store again and verify its checksums.")
@flag("--force", "Replace the store if it exists.")
@json_option
@debug_option
def convert(
    tables: tuple[Path, ...],
    store: Path,
    target: str,
    groups: tuple[str, ...],
    drop: tuple[str, ...],
    weight: str | None,
    dtype: str,
    task: Any,
    memory: int,
    seed: int,
    verify: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Convert numeric TABLEs to STORE, a directory that `groupdro fit` reads from disk.

    The tables are CSV or Parquet files with the same columns, or one directory of Parquet files. They are read in
    bounded memory and may be larger than it. All columns except the target, the groups and the weight are features,
    which must be numeric without missing values. The store is written completely or not at all.
    """
    begun = time.perf_counter()
    if store.exists() and not force:
        raise UserError(f"STORE {str(store)!r} exists: pass --force to replace it.")
    with user_errors():
        source = _source(tables, keep={target, *groups})
        schema = open_table(source)[0]
        names = schema.names
        weights = () if weight is None else (weight,)
        for name, given in {"--target": (target,), "--group": groups, "--drop": drop, "--weight": weights}.items():
            check_columns(names, given, name)
        taken = {target, *groups, *drop, weight}
        for field in schema:
            if field.name not in taken and kind_of(field) in ("text", "dates or times"):
                raise ValueError(
                    f"column {field.name!r} holds {kind_of(field)}, but a store holds only numbers: pass --drop "
                    f"{field.name}, or encode it first."
                )
        with collected_warnings() as warned, progress(f"Writing {store.name}"):
            written = GroupedStore.write(
                store,
                source,
                target=target,
                groups=list(groups),
                features=[name for name in names if name not in taken],
                weight=weight,
                dtype=dtype,
                task="classes" if task == "classification" else task,
                seed=seed,
                memory=memory * 2**20,
                overwrite=force,
            )
        if verify:
            with progress(f"Verifying {store.name}"):
                written.verify()
    document: dict[str, Any] = {
        "command": "convert",
        "store": store,
        "rows": written.n_rows,
        "features": written.n_features,
        "groups": written.n_groups,
        "task": "regression" if written.classes is None else "classification",
        "bytes": written.nbytes,
        "verified": verify,
        "warnings": warned,
        "seconds": time.perf_counter() - begun,
    }
    text = (
        f"{printable(store)}: {written.n_rows} rows in {written.n_groups} groups, {written.n_features} features in "
        f"{dtype}, for {document['task']}; {written.nbytes / 2**20:.1f} MiB in {document['seconds']:.1f} s"
        + ("\nVerified: all checksums match" if verify else "")
    )
    show(document, text, as_json=as_json, warned=warned)


def _source(paths: tuple[Path, ...], *, keep: set[str]) -> Any:
    """Return the source of a store: Parquet paths, which are read page by page, or a data set of CSV files."""
    for path in paths:
        if not path.exists():
            raise ValueError(f"TABLE {str(path)!r} does not exist.")
    if any(path.is_dir() for path in paths):
        if len(paths) > 1:
            raise ValueError("TABLE must be one directory or several files.")
        return paths[0]
    kinds = {table_format(path) for path in paths}
    if len(kinds) > 1:
        raise ValueError("TABLE must be files of one format, all CSV or all Parquet.")
    if kinds == {"parquet"}:
        return list(paths)
    pa = arrow()
    dataset = arrow("pyarrow.dataset")
    parse, options = csv_settings(paths[0])
    files = [str(path) for path in paths]
    layout = dataset.CsvFileFormat(parse_options=parse, convert_options=options)
    schema = dataset.dataset(files[0], format=layout).schema
    for place, field in enumerate(schema):
        # Types are inferred from the first rows: a feature that starts with integers may have fractions later.
        if field.name not in keep and (pa.types.is_integer(field.type) or pa.types.is_null(field.type)):
            schema = schema.set(place, field.with_type(pa.float64()))
    return dataset.dataset(files, format=layout, schema=schema)
