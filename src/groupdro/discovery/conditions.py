"""Conditions on describing columns: a number below or above a cut, a category, missing or not; and conjunctions."""

from dataclasses import dataclass
from datetime import date
from hashlib import blake2b
from typing import Any, Literal

import narwhals.stable.v1 as nw
import numpy as np

from groupdro.data.grouping import read_labels
from groupdro.utils.arguments import as_table, error_prefix, printable
from groupdro.utils.types import Array, Indices, Mask

__all__ = ["Column", "Columns", "Condition", "EncodedColumns", "Rule", "encode"]

_MOST_CATEGORIES = 200  # of a column, the most frequent ones; with two more codes they fit into a byte
_N_CUTS = 63  # quantiles of a number; with 31, groups at its ends are matched in 89 instead of 98 of 100 tries
_MOST_SORTED = 100_000  # rows from which quantiles are computed

Kind = Literal["<=", ">", "=", "missing", "present"]


@dataclass(frozen=True, eq=False)
class Column:
    """The values of a describing column.

    Attributes
    ----------
    values : ndarray of shape (n_rows,)
        Numbers or times; codes of the categories if there are any.
    missing : ndarray of bool of shape (n_rows,)
        Where there is no value.
    categories : list or None
        The categories; None for numbers and times.
    """

    values: Array
    missing: Mask
    categories: list[Any] | None = None

    def equal_to(self, value: Any) -> Mask:
        """Return where the values are equal to one of the same type."""
        if self.categories is None:
            number = isinstance(value, int | float) and self.values.dtype.kind in "iuf"
            return self.values == value if number else np.zeros(len(self.values), dtype=bool)
        alike = [k for k, own in enumerate(self.categories) if type(own) is type(value) and own == value]
        return np.isin(self.values, alike)

    def add_to(self, keys: Array) -> None:
        """Mix the values into a number per row."""
        if self.categories is None:
            numbers = self.values
            if numbers.dtype.kind == "M":
                numbers = numbers.astype("M8[us]")
            elif numbers.dtype.kind == "f":
                with np.errstate(over="ignore"):
                    numbers = numbers.astype(np.float32)  # which is all that some tables keep
            codes = (numbers.astype(np.float64) + 0.0).view(np.uint64)  # so that -0 is 0
        else:
            codes = np.array([*map(_digest, self.categories), 0], dtype=np.uint64)[self.values]
        keys ^= np.where(self.missing, np.uint64(1), codes)
        keys *= np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)


class Columns:
    """Describing columns in the user's container, read one at a time.

    Parameters
    ----------
    given : DataFrame or array-like of shape (n_rows, n_columns)
        A table of any library that narwhals supports, or an array, whose columns are named x0, x1 and so on.
    argument : str
        Name of the argument in errors.
    """

    def __init__(self, given: Any, argument: str = "columns"):
        self._argument = argument
        with error_prefix(argument):
            table = nw.from_native(as_table(given), pass_through=True)
            table = table.collect() if isinstance(table, nw.LazyFrame) else table
        self._frame = table if isinstance(table, nw.DataFrame) else None
        self._columns: dict[str, Any]
        if self._frame is not None:
            self._columns = {name: self._frame.get_column(name) for name in self._frame.columns}
            self.n_rows = len(self._frame)
            return
        with error_prefix(argument):
            array = np.asarray(given)
        if array.ndim != 2:
            raise TypeError(
                f"{argument} must be a DataFrame or an array of columns that describe the rows, got "
                f"{type(given).__name__} of shape {getattr(given, 'shape', array.shape)}"
                f"{'' if argument == 'columns' else ', and columns was not given'}."
            )
        self._columns = {f"x{j}": column for j, column in enumerate(array.T)}
        self.n_rows = len(array)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def __getitem__(self, name: str) -> Column:
        """Read a column."""
        if name not in self._columns:
            raise ValueError(
                f"{self._argument} has no column {name!r}, by which a group was found. Pass a table that has it; or, "
                "if X is transformed first, as in a pipeline, groups=found.groups(table)."
            )
        with error_prefix(f"{self._argument}[{name!r}]"):
            return _read(self._columns[name])

    def keys(self, names: list[str]) -> Array:
        """Return a number per row, the same for rows that are alike in some columns whatever library they are from."""
        keys = np.zeros(self.n_rows, dtype=np.uint64)
        for name in names:
            self[name].add_to(keys)
        return keys

    def like(self, data: dict[str, Mask]) -> Any:
        """Return columns as a table of the same library, or as an array if the columns were given as one."""
        if self._frame is None:
            return np.column_stack([*data.values(), np.empty((self.n_rows, 0), dtype=bool)]).astype(bool)
        native = nw.to_native(self._frame)
        if not data:
            return nw.to_native(self._frame.drop(self._frame.columns))
        table = nw.to_native(nw.from_dict(data, backend=self._frame.implementation))
        if hasattr(native, "index"):  # of pandas
            table.index = native.index
        return table


def _digest(category: Any) -> int:
    return int.from_bytes(blake2b(str(category).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _read(values: Any) -> Column:
    """Read a series of narwhals, or an array."""
    if isinstance(values, nw.Series):
        values = _as_array(values)
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufmM":
        return Column(values, np.isnan(values) if values.dtype.kind in "iuf" else np.isnat(values))
    try:
        codes, categories = read_labels(values)
    except ValueError as error:  # which names the groups
        raise ValueError(str(error).replace("groups has labels", "it has values")) from None
    if categories and all(isinstance(category, date) for category in categories):  # objects, as those of Series.dt.date
        times = np.array([*categories, None], dtype="M8[us]")[codes]
        return Column(times, np.isnat(times))
    return Column(codes, codes < 0, categories)


def _as_array(series: "nw.Series[Any]") -> Any:
    """Return numbers and times as an array, and other values unchanged."""
    kind = series.dtype
    if kind.is_numeric():
        values = series.to_numpy()
        # Decimals, and integers with missing values, are of another type.
        return values if values.dtype.kind in "iuf" else series.cast(nw.Float64).to_numpy()
    if kind == nw.Date:
        return series.cast(nw.Datetime("us")).to_numpy()
    if isinstance(kind, nw.Datetime) and kind.time_zone is not None:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return series.to_numpy() if kind in (nw.Datetime, nw.Duration) else series


@dataclass(frozen=True)
class Condition:
    """A condition on one column.

    Attributes
    ----------
    column : str
        Name of the column.
    kind : {"<=", ">", "=", "missing", "present"}
        What must hold. A missing value is neither equal to anything, nor below or above it.
    value : object
        The number, time or category; None if the condition is about missing values.
    """

    column: str
    kind: Kind
    value: Any = None

    def holds(self, columns: Columns) -> Mask:
        """Return on which rows the condition holds."""
        found = columns[self.column]
        if self.kind in ("missing", "present"):
            return np.asarray(found.missing == (self.kind == "missing"))
        if self.kind == "=":
            return found.equal_to(self.value)
        if found.missing.all():
            return np.zeros(len(found.values), dtype=bool)
        if found.categories is not None:
            raise TypeError(f"column {self.column!r} had numbers or dates when groups were found, and has none now.")
        below = found.values <= self.value
        return ~found.missing & (below if self.kind == "<=" else ~below)

    def __str__(self) -> str:
        if self.kind in ("missing", "present"):
            return f"{self.column} is {'not ' if self.kind == 'present' else ''}missing"
        return f"{self.column} {self.kind} {_text(self.value)}"


def _text(value: Any) -> str:
    return str(np.datetime_as_string(value, unit="auto")) if isinstance(value, np.datetime64) else str(value)


@dataclass(frozen=True)
class Rule:
    """Conditions that must all hold."""

    conditions: tuple[Condition, ...]

    def holds(self, columns: Columns) -> Mask:
        """Return on which rows all conditions hold."""
        return np.logical_and.reduce([condition.holds(columns) for condition in self.conditions])

    def __str__(self) -> str:
        bounds = {(condition.column, condition.kind): condition.value for condition in self.conditions}
        parts = []
        for condition in self.conditions:
            above = bounds.get((condition.column, ">"))
            if condition.kind == "<=" and above is not None:
                one = isinstance(above, int) and condition.value == above + 1
                parts.append(f"{condition.column} = {condition.value}" if one else f"{_text(above)} < {condition}")
            elif condition.kind != ">" or (condition.column, "<=") not in bounds:
                parts.append(str(condition))
        return printable(" & ".join(parts))


@dataclass(frozen=True, eq=False)
class EncodedColumns:
    """Columns as small codes, such that each condition is a range of codes of its column.

    Attributes
    ----------
    codes : ndarray of uint8 of shape (n_rows, n_columns)
        The codes.
    conditions : tuple of Condition
        All conditions.
    column, low, high : ndarray of shape (n_conditions,)
        A condition holds if the code of its column is at least `low` and below `high`.
    keys : ndarray of shape (n_rows,)
        A number per row, from the values of all columns, by which the row is recognised.
    """

    codes: Array
    conditions: tuple[Condition, ...]
    column: Indices
    low: Indices
    high: Indices
    keys: Array

    def holds(self, rule: tuple[int, ...], rows: Indices) -> Mask:
        """Return on which of some rows the conditions with these numbers hold."""
        met = np.ones(len(rows), dtype=bool)
        for c in rule:
            codes = self.codes[rows, self.column[c]]
            met &= (codes >= self.low[c]) & (codes < self.high[c])
        return met


def encode(columns: Columns, searched: Indices, least: int) -> EncodedColumns:
    """Choose the conditions to search among, and encode the columns.

    Parameters
    ----------
    columns : Columns
        The columns.
    searched : ndarray of int
        The rows that may be looked at.
    least : int
        Number of these rows for which a category must hold.

    Returns
    -------
    EncodedColumns
        All rows. Categories with fewer rows have no condition, and columns without conditions are left out.
    """
    coded: list[Array] = []
    found: list[tuple[int, Condition, int, int]] = []
    keys = np.zeros(columns.n_rows, dtype=np.uint64)
    for name in columns.names:
        column = columns[name]
        column.add_to(keys)
        if column.categories is None:
            codes, own = _encode_numbers(name, column, searched)
        else:
            codes, own = _encode_categories(name, column, searched, least)
        missing = int(codes.max(initial=0)) + 1
        if least <= column.missing[searched].sum() <= len(searched) - least:
            own += [(Condition(name, "missing"), missing, missing + 1), (Condition(name, "present"), 0, missing)]
        if own:
            codes[column.missing] = missing
            found += [(len(coded), *one) for one in own]
            coded.append(codes)
    number, conditions, low, high = zip(*found, strict=True) if found else ((), (), (), ())
    codes = np.stack(coded, axis=1) if coded else np.empty((columns.n_rows, 0), dtype=np.uint8)
    column_of, begin, end = (np.array(each, dtype=np.int64) for each in (number, low, high))
    return EncodedColumns(codes, conditions, column_of, begin, end, keys)


def _encode_categories(
    name: str, column: Column, searched: Indices, least: int
) -> tuple[Array, list[tuple[Condition, int, int]]]:
    assert column.categories is not None
    present = column.values[searched][~column.missing[searched]]
    sizes = np.bincount(present, minlength=len(column.categories))
    kept = np.argsort(-sizes, kind="stable")[:_MOST_CATEGORIES]
    kept = np.sort(kept[(sizes[kept] >= least) & (sizes[kept] < len(searched))])
    code_of = np.full(len(column.categories) + 1, len(kept), dtype=np.uint8)  # the last is that of missing values
    code_of[kept] = np.arange(len(kept))
    own = [(Condition(name, "=", column.categories[value]), k, k + 1) for k, value in enumerate(kept.tolist())]
    return code_of[column.values], own


def _encode_numbers(name: str, column: Column, searched: Indices) -> tuple[Array, list[tuple[Condition, int, int]]]:
    some = searched[:: max(-(-len(searched) // _MOST_SORTED), 1)]
    ordered = np.sort(column.values[some][~column.missing[some]])
    cuts = _cuts(ordered)
    codes = np.searchsorted(cuts, column.values, side="left").astype(np.uint8)
    codes[column.missing] = 0
    if (
        len(cuts) == 1
        and ordered.dtype.kind in "iuf"
        and np.isin(column.values, ordered[[0, -1]])[~column.missing].all()
    ):
        return codes, [(Condition(name, "=", _plain(value)), k, k + 1) for k, value in enumerate(ordered[[0, -1]])]
    own = []
    for k, value in enumerate(cuts):
        cut = _plain(value)
        own += [(Condition(name, "<=", cut), 0, k + 1), (Condition(name, ">", cut), k + 1, len(cuts) + 1)]
    return codes, own


def _plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python, written with as many digits; times unchanged."""
    if isinstance(value, np.floating):
        return float(str(value))
    return value.item() if isinstance(value, np.integer) else value


def _cuts(ordered: Array) -> Array:
    """Return cuts near quantiles: between two values that occur, the number that is shortest to write."""
    if not len(ordered):
        return ordered
    quantiles = ordered[np.arange(1, _N_CUTS + 1) * len(ordered) // (_N_CUTS + 1)]
    places = np.unique(np.searchsorted(ordered, quantiles, side="right"))
    places = places[places < len(ordered)]
    return np.array([_shortest(ordered[k - 1], ordered[k]) for k in places], dtype=ordered.dtype)


def _shortest(low: Any, high: Any) -> Any:
    """Return the shortest value c with low <= c < high."""
    if isinstance(low, np.datetime64):
        for unit in ("Y", "M", "D", "h", "m", "s"):
            cut = high.astype(f"M8[{unit}]").astype(high.dtype)
            if low <= cut < high:
                return cut
    if isinstance(low, np.floating) and np.isfinite(low):
        for digits in range(1, 18):
            cut = low.dtype.type(f"{0.5 * (low + high) if np.isfinite(high) else low:.{digits}g}")
            if low <= cut < high:
                return cut
    return low
