"""`groupdro convert`."""

import time
from pathlib import Path
from typing import Any

import click

from groupdro.cli.failures import UserError, debug_option, users_mistake
from groupdro.cli.output import json_option, print_json, progress
from groupdro.cli.tables import csv_settings, table_format
from groupdro.cli.terminal import echo
from groupdro.cli.training import warnings_kept
from groupdro.store import GroupedStore
from groupdro.store.tables import open_table
from groupdro.tables.columns import arrow, kind_of
from groupdro.utils.arguments import printable

__all__ = ["convert"]


@click.command()
@click.argument("tables", metavar="TABLE...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--target", metavar="COLUMN", required=True, help="Column to predict.")
@click.option("--group", "groups", metavar="COLUMN", multiple=True, required=True,
              help="Column of groups. Several mean their combinations.")  # fmt: skip
@click.option("--drop", metavar="COLUMN", multiple=True, help="Column to leave out. May be repeated.")
@click.option("--weight", metavar="COLUMN", help="Column of row weights.")
@click.option("--dtype", type=click.Choice(["float16", "float32", "float64"]), default="float32", show_default=True,
              help="Type of the stored features.")  # fmt: skip
@click.option("--task", type=click.Choice(["auto", "classification", "regression"]), default="auto", show_default=True,
              help="What the target is; auto takes only floating point for numbers.")  # fmt: skip
@click.option("--memory", type=click.IntRange(min=1), default=256, show_default=True, help="MiB of rows to hold.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the order of rows.")
@click.option("--verify", is_flag=True, help="Read the store again and compare all of it with its checksums.")
@click.option("--force", is_flag=True, help="Replace a store that is there.")
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
    """Turn TABLEs of numbers into STORE, a directory that `groupdro fit` reads from disk.

    The tables are CSV or Parquet files of the same columns, or one directory of Parquet files. They are read in bounded
    memory, and may be larger than it. All columns but the target, the groups and the weight are features and must be
    numbers, without missing values. The store appears whole or not at all.
    """
    begun = time.perf_counter()
    if store.exists() and not force:
        raise UserError(f"STORE {str(store)!r} exists: pass --force to replace it.")
    with users_mistake():
        source = _source(tables, keep={target, *groups})
        schema = open_table(source)[0]
        names = schema.names
        for option, given in (("--target", (target,)), ("--group", groups), ("--drop", drop)):
            _check_names(option, given, names)
        if weight is not None:
            _check_names("--weight", (weight,), names)
        taken = {target, *groups, *drop, weight}
        for field in schema:
            if field.name not in taken and kind_of(field) in ("text", "dates or times"):
                raise ValueError(
                    f"column {field.name!r} holds {kind_of(field)}, and a store holds numbers: pass --drop "
                    f"{field.name}, or encode it first."
                )
        with warnings_kept() as warned, progress(f"Writing {store.name}"):
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
    for warning in warned:
        echo(f"Warning: {warning}", err=True)
    told = {
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
    if as_json:
        print_json(told)
        return
    echo(
        f"{printable(store)}: {written.n_rows} rows in {written.n_groups} groups, {written.n_features} features in "
        f"{dtype}, for {told['task']}; {written.nbytes / 2**20:.1f} MiB in {told['seconds']:.1f} s"
        + ("\nVerified: every block has its checksum" if verify else "")
    )


def _check_names(option: str, given: tuple[str, ...], names: list[str]) -> None:
    for name in given:
        if name not in names:
            raise ValueError(f"{option}: there is no column {name!r}; the tables have {', '.join(map(repr, names))}.")


def _source(paths: tuple[Path, ...], *, keep: set[str]) -> Any:
    """Return what a store is written from: paths of Parquet, which are read page by page, or a data set of CSV."""
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
    pa, dataset = arrow(), arrow("pyarrow.dataset")
    parse, options = csv_settings(paths[0])
    files = [str(path) for path in paths]
    layout = dataset.CsvFileFormat(parse_options=parse, convert_options=options)
    schema = dataset.dataset(files[0], format=layout).schema
    for place, field in enumerate(schema):
        # Types are told from the first rows: a column of features that begins with whole numbers may go on otherwise.
        if field.name not in keep and (pa.types.is_integer(field.type) or pa.types.is_null(field.type)):
            schema = schema.set(place, field.with_type(pa.float64()))
    return dataset.dataset(files, format=layout, schema=schema)
