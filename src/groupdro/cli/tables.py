"""Reading of CSV and Parquet files as pandas DataFrames, and of their columns as numbers or text."""

import csv
import difflib
import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype, is_hashable

from groupdro.utils.optional import import_extra
from groupdro.utils.types import Floats

__all__ = [
    "NUMBERS",
    "are_integers",
    "as_numbers",
    "as_text",
    "as_written",
    "check_columns",
    "csv_header",
    "has_decimal_commas",
    "is_csv",
    "is_nested",
    "read_table",
    "refuse_missing",
]

NUMBERS = "integer", "floating", "decimal", "boolean"  # kinds of columns of numbers

_CSV = ".csv", ".csv.gz", ".tsv", ".tsv.gz"
_PARQUET = ".parquet", ".pq"
_DELIMITERS = ",;\t|"
_NOT_UTF8 = "is not in UTF-8, but perhaps in Latin-1: save the table in UTF-8"
_MOST_LISTED = 12  # columns in an error
_DECIMAL_COMMA = r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?"  # 0,5 as R's write.csv2 and many spreadsheets write it
_EXACT = 2**53  # integers below are exact as floats


def is_csv(path: Path) -> bool:
    """Return whether a file is a CSV file, from its name."""
    return path.name.lower().endswith(_CSV)


def read_table(path: Path) -> Any:
    """Read a file as a pandas DataFrame.

    Parameters
    ----------
    path : Path
        A CSV file, possibly compressed with gzip, or a Parquet file. A CSV file is in UTF-8 and has a header in its
        first line, from which its delimiter is detected.

    Returns
    -------
    DataFrame
        A table with at least one row and distinct column names, in pandas' types with missing values.
    """
    if not path.name.lower().endswith(_CSV + _PARQUET):
        raise ValueError(f"{str(path)!r} must end in one of {', '.join(_CSV + _PARQUET)}.")
    if not path.stat().st_size:
        raise ValueError(f"{str(path)!r} is empty.")
    form, read = ("CSV", _read_csv) if is_csv(path) else ("Parquet", _read_parquet)
    try:
        table = read(path)
    except (FileNotFoundError, MemoryError):
        raise
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(f"{str(path)!r} cannot be read as {form}: {error}") from None
    if not len(table):
        raise ValueError(f"{str(path)!r} has no rows.")
    return table


def _read_csv(path: Path) -> Any:
    delimiter, names = csv_header(path)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"it has more than one column {twice[0]!r}")
    table = pd.read_csv(path, sep=delimiter, engine="pyarrow", dtype_backend="numpy_nullable")
    for name in table:
        if infer_dtype(table[name]) == "bytes":
            raise ValueError(f"column {name!r} {_NOT_UTF8}")
    return table


def _read_parquet(path: Path) -> Any:
    table = pd.read_parquet(path, dtype_backend="numpy_nullable")
    if table.index.names != [None]:  # a named index is a column, and another only counts the rows
        table = table.reset_index()
    table.columns = table.columns.astype(str)
    for name in table.select_dtypes("category"):
        table[name] = table[name].astype(object).convert_dtypes()
    return table


def csv_header(path: Path) -> tuple[str, list[str]]:
    """Return the delimiter of a CSV file, that which gives its first line the most columns, and their names."""
    with _opener(path)(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
        line = file.readline(1 << 20)
    if "\ufffd" in line:
        raise ValueError(f"the first line {_NOT_UTF8}")
    names = {delimiter: next(csv.reader([line], delimiter=delimiter), []) for delimiter in _DELIMITERS}
    return max(names.items(), key=lambda item: len(item[1]))


def _opener(path: Path) -> Any:
    return gzip.open if path.name.lower().endswith(".gz") else open


def as_written(path: Path, table: Any, names: Iterable[str]) -> Any:
    """Return columns of labels, in which different texts of a CSV file stay different.

    Parameters
    ----------
    path : Path
        The file.
    table : DataFrame
        What `read_table` read from it.
    names : iterable of str
        Columns of labels.

    Returns
    -------
    DataFrame
        The columns. Those of a CSV file are text as in the file, without padding. Numbers and truth values keep their
        type if each has one spelling, the usual one: 007 is not how 7 is written.
    """
    columns = table[list(names)].copy()
    typed = [name for name in columns if infer_dtype(columns[name]) not in ("string", "empty")]
    if not is_csv(path) or not typed:
        return columns
    pa, arrow_csv = import_extra("pyarrow", extra="cli"), import_extra("pyarrow.csv", extra="cli")
    with _opener(path)(path, "rb") as file:
        texts = arrow_csv.read_csv(
            file,
            parse_options=arrow_csv.ParseOptions(delimiter=csv_header(path)[0]),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=typed, column_types=dict.fromkeys(typed, pa.string()), strings_can_be_null=False
            ),
        )
    for name in typed:
        text = pd.Series(texts[name].to_pandas(), dtype=object).str.strip()
        pairs = pd.DataFrame({"text": text, "value": columns[name]})[columns[name].notna()].drop_duplicates("text")
        if pairs["value"].duplicated().any() or not all(map(_is_usual, pairs["text"], pairs["value"])):
            columns[name] = text.where(columns[name].notna(), np.nan)
    return columns


def _is_usual(text: str, value: Any) -> bool:
    """Return whether a text is the usual one for a number or a truth value."""
    if isinstance(value, bool | np.bool_):
        return text.lower() == str(value).lower()
    return text in (str(value), f"{value:.0f}") if isinstance(value, int | float | np.number) else False


# ---------------------------------------------------------------------- columns


def check_columns(columns: Iterable[str], names: Iterable[str], argument: str) -> None:
    """Raise if names are not columns of a table."""
    columns = list(columns)
    for name in names:
        if name not in columns:
            like = ", ".join(map(repr, (difflib.get_close_matches(name, columns) or columns)[:_MOST_LISTED]))
            raise ValueError(
                f"{argument}: there is no column {name!r} among the table's {len(columns)}, such as {like}."
            )


def refuse_missing(column: Any, argument: str) -> None:
    """Refuse a column of labels with missing values."""
    absent = column.isna().to_numpy()
    if absent.any():
        where = f"{absent.sum()} missing values, the first in data row {absent.argmax() + 1}"
        raise ValueError(f"{argument}: column {column.name!r} has {where}: fill them in, or remove these rows.")


def are_integers(values: Any) -> bool:
    """Return whether all numbers are integers that floats can represent."""
    return bool(((values % 1 == 0) & (abs(values) < _EXACT)).all())


def as_numbers(column: Any) -> Floats:
    """Return a column as numbers, NaN where they are missing."""
    if infer_dtype(column) not in (*NUMBERS, "empty"):
        present = column.dropna()
        wrong = present[pd.to_numeric(present.astype(str), errors="coerce").isna().to_numpy()]
        example = str((wrong if len(wrong) else present).iloc[0])
        remedy = ""
        if has_decimal_commas(column):
            remedy = (
                f": a decimal comma. Write the table with decimal points, as in {example.replace(',', '.')!r}; in R by "
                "write.csv in place of write.csv2"
            )
        raise ValueError(f"column {column.name!r} must be numbers, but has {example!r}{remedy}.")
    values: Floats = column.to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isinf(values).any():
        first = np.isinf(values).argmax() + 1
        raise ValueError(f"column {column.name!r} has an infinite value, first in data row {first}.")
    return values


def has_decimal_commas(column: Any) -> bool:
    """Return whether a column of text has numbers only, some of them with a decimal comma."""
    if infer_dtype(column) != "string":
        return False
    text = column.dropna().astype(str).str.strip()
    commas = text.str.fullmatch(_DECIMAL_COMMA)
    return bool(commas.any() and text[~commas].str.fullmatch(r"[-+]?\d+").all())


def is_nested(column: Any) -> bool:
    """Return whether a column has lists, or other values that cannot be compared as a whole."""
    return bool(column.dtype == object and not column.dropna().map(is_hashable).all())


def as_text(column: Any) -> Any:
    """Return a column of any type as text, NaN where it is missing; integers are written without a decimal point."""
    if column.dtype.kind == "f" and are_integers(column.dropna()):
        column = column.astype("Int64")
    return column.astype("string").astype(object).where(column.notna(), np.nan)
