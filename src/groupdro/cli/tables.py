"""Reading of CSV and Parquet files with pyarrow."""

import csv
import difflib
import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from groupdro.cli.columns import arrow, kind_of

__all__ = ["check_columns", "csv_settings", "read_table", "refuse_bytes", "refuse_missing", "table_format"]

_FORMATS = {".csv": "csv", ".csv.gz": "csv", ".tsv": "csv", ".tsv.gz": "csv", ".parquet": "parquet", ".pq": "parquet"}
_DELIMITERS = ",;\t|"


def table_format(path: Path) -> str:
    """Return "csv" or "parquet", from the name of a file."""
    for suffix, kind in _FORMATS.items():
        if path.name.lower().endswith(suffix):
            return kind
    raise ValueError(f"{str(path)!r} must end in one of {', '.join(_FORMATS)}.")


def read_table(path: Path) -> Any:
    """Read a file as a pyarrow Table.

    Parameters
    ----------
    path : Path
        A CSV file, possibly compressed with gzip, or a Parquet file. A CSV file has a header in its first line, from
        which its delimiter is detected. Empty cells, NA, NaN and null are missing.

    Returns
    -------
    pyarrow.Table
        A table with at least one row and distinct column names.
    """
    kind = table_format(path)
    if not path.is_file():
        raise ValueError(f"{str(path)!r} {'is not a file' if path.exists() else 'does not exist'}.")
    reader = arrow("pyarrow.csv" if kind == "csv" else "pyarrow.parquet")
    try:
        if kind == "csv":
            parse, convert = csv_settings(path)
            table = reader.read_csv(path, parse_options=parse, convert_options=convert)
        else:
            table = reader.read_table(path)
        names = table.column_names
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} has column names that are not UTF-8: save the table in UTF-8.") from None
    except (ValueError, OSError, UnicodeError, EOFError) as error:  # includes all errors of pyarrow
        why = " ".join(str(error).split()).rstrip(".")
        name = {"csv": "CSV", "parquet": "Parquet"}[kind]
        raise ValueError(f"{str(path)!r} cannot be read as {name}: {why}.") from None
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"{str(path)!r} has more than one column {sorted(twice)[0]!r}.")
    if not table.num_rows:
        raise ValueError(f"{str(path)!r} has no rows.")
    # Decode dictionary columns to the types of their values.
    plain = [f.with_type(f.type.value_type) if arrow().types.is_dictionary(f.type) else f for f in table.schema]
    return table.cast(arrow().schema(plain, table.schema.metadata))


def csv_settings(path: Path) -> tuple[Any, Any]:
    """Return pyarrow's options for parsing and converting a CSV file, with the delimiter detected from its header."""
    module = arrow("pyarrow.csv")
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = [file.readline(1 << 20)]
    fields = {mark: len(next(csv.reader(lines, delimiter=mark), [])) for mark in _DELIMITERS}
    parse = module.ParseOptions(delimiter=max(_DELIMITERS, key=lambda mark: fields[mark]))
    return parse, module.ConvertOptions(strings_can_be_null=True)


def check_columns(columns: list[str], names: Iterable[str], argument: str) -> None:
    """Raise if names are not columns of a table."""
    for name in names:
        if name not in columns:
            close = difflib.get_close_matches(name, columns, n=3)
            has = close + [other for other in columns if other not in close]  # most similar first
            listed = ", ".join(map(repr, has[:12])) + (f" and {len(has) - 12} more" if len(has) > 12 else "")
            raise ValueError(f"{argument}: there is no column {name!r}; the table has {listed}.")


def refuse_bytes(table: Any, names: Iterable[str], argument: str) -> None:
    """Refuse columns of bytes, which result from text that is not UTF-8."""
    for name in names:
        if kind_of(table.column(name)) == "text that is not UTF-8":
            raise ValueError(
                f"{argument}: column {name!r} holds text that is not UTF-8, such as Latin-1: save the table in UTF-8."
            )


def refuse_missing(column: Any, argument: str, remedy: str) -> None:
    """Refuse a column of labels with missing values."""
    absent = column.is_null(nan_is_null=True).to_numpy().astype(bool)
    n = int(absent.sum())
    if n:
        values = "a missing value" if n == 1 else f"{n} missing values, the first"
        raise ValueError(f"{argument} has {values} in data row {int(absent.argmax()) + 1}: {remedy}.")
