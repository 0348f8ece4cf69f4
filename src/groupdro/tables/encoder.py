"""Encoding of table columns as features: numbers standardised, text one-hot encoded, missing values filled."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from groupdro.tables.columns import arrow, as_numbers, as_text, kind_of, refuse_absent
from groupdro.utils.bundle import check
from groupdro.utils.types import Floats, Indices

__all__ = ["Category", "Number", "TableEncoder"]


_MOST_CATEGORIES = 1000  # most categories of a column, each of which is a feature
_FEW = 20  # up to this many categories never count as row identifiers


@dataclass(frozen=True)
class Number:
    """A column of numbers: (value - mean) / scale, with the median in place of a missing value.

    Attributes
    ----------
    name : str
        The column.
    median, mean, scale : float
        Statistics of the training rows; the scale is the standard deviation, or 1 if that is zero.
    """

    name: str
    median: float
    mean: float
    scale: float

    @property
    def features(self) -> list[str]:
        """Names of the features: just one."""
        return [self.name]

    @classmethod
    def learn(cls, column: Any, name: str) -> "Number":
        """Learn from the training rows."""
        values = as_numbers(column, name)
        absent = np.isnan(values)
        if absent.all():
            raise ValueError(f"column {name!r} has no value in the training rows: pass --drop {name}.")
        median = float(np.median(values[~absent]))
        values[absent] = median
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale = float(values.mean()), float(values.std())
        if not np.isfinite([mean, scale]).all():
            raise ValueError(f"column {name!r} has values that are too large.")
        return cls(name, median, mean, scale if scale > 1e-12 * abs(mean) else 1.0)

    def encode(self, column: Any, out: Floats) -> None:
        """Fill `out`, of shape (n_rows, 1)."""
        values = as_numbers(column, self.name)
        out[:, 0] = (np.where(np.isnan(values), self.median, values) - self.mean) / self.scale


@dataclass(frozen=True)
class Category:
    """A column of labels: one feature per label seen in fit, and zeros for an unknown label.

    Attributes
    ----------
    name : str
        The column.
    labels : tuple of str or None
        The sorted labels; None, placed last, is a missing value.
    """

    name: str
    labels: tuple[str | None, ...]

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        return [f"{self.name}={'(missing)' if label is None else label}" for label in self.labels]

    @classmethod
    def learn(cls, column: Any, name: str) -> "Category":
        """Learn from the training rows."""
        text = as_text(column)
        labels = sorted(text.drop_null().unique().to_pylist())
        many = len(labels) > _MOST_CATEGORIES or (len(labels) > _FEW and len(labels) > len(text) / 2)
        if many:
            raise ValueError(
                f"column {name!r} has {len(labels)} distinct labels in {len(text)} rows, too many for one feature "
                f"each: pass --drop {name}, or merge labels."
            )
        return cls(name, (*labels, None) if text.null_count else tuple(labels))

    def codes(self, column: Any) -> Indices:
        """Return the index of each row's label; -1 if it is unknown."""
        text = as_text(column)
        known = arrow().array([label for label in self.labels if label is not None], arrow().string())
        places = arrow("pyarrow.compute").index_in(text, value_set=known, skip_nulls=True)
        codes = np.asarray(places.fill_null(-1).to_numpy(), dtype=np.int64)
        return np.where(text.is_null().to_numpy(), len(self.labels) - 1, codes) if None in self.labels else codes

    def encode(self, column: Any, out: Floats) -> None:
        """Fill `out`, of shape (n_rows, n_labels)."""
        codes = self.codes(column)
        out[:] = 0.0
        rows = np.flatnonzero(codes >= 0)
        out[rows, codes[rows]] = 1.0


@dataclass(frozen=True)
class TableEncoder:
    """The encoding of each column of a table. It is saved as JSON and holds no code.

    Attributes
    ----------
    columns : tuple of Number or Category
        The encoded columns, in order.
    """

    columns: tuple[Number | Category, ...]

    @property
    def feature_names(self) -> list[str]:
        """Names of the features: "age", "sex=Female"."""
        return [feature for column in self.columns for feature in column.features]

    @classmethod
    def learn(cls, table: Any, names: Iterable[str], categorical: Iterable[str] = ()) -> "TableEncoder":
        """Learn from the training rows.

        Parameters
        ----------
        table : pyarrow.Table
            The rows.
        names : iterable of str
            Columns to use.
        categorical : iterable of str
            Columns to treat as labels even if they are numeric.

        Returns
        -------
        TableEncoder
            The encoder.
        """
        labels, columns = set(categorical), list[Number | Category]()
        for name in names:
            column = table.column(name)
            kind = kind_of(column)
            if name in labels or kind == "text":
                columns.append(Category.learn(column, name))
            elif kind in ("number", "truth", "nothing"):
                columns.append(Number.learn(column, name))
            else:
                labelled = f", or --categorical {name}" if kind == "dates or times" else ""
                raise ValueError(f"column {name!r} holds {kind}, not numbers or text: pass --drop {name}{labelled}.")
        if not columns:
            raise ValueError("no column is left for the features.")
        return cls(tuple(columns))

    def unknown(self, table: Any) -> dict[str, int]:
        """Return the number of rows with a label not seen in fit, for each column that has any.

        Parameters
        ----------
        table : pyarrow.Table
            It may lack columns.

        Returns
        -------
        dict of str to int
            Number of rows by column.
        """
        there = [c for c in self.columns if isinstance(c, Category) and c.name in table.column_names]
        counts = {c.name: int((c.codes(table.column(c.name)) < 0).sum()) for c in there}
        return {name: count for name, count in counts.items() if count}

    def encode(self, table: Any) -> Floats:
        """Return the features of the rows of a table.

        Parameters
        ----------
        table : pyarrow.Table
            The table; additional columns and any order are fine.

        Returns
        -------
        ndarray of shape (n_rows, n_features)
            The features.
        """
        refuse_absent((column.name for column in self.columns), table)
        out = np.empty((table.num_rows, len(self.feature_names)))
        place = 0
        for column in self.columns:
            width = len(column.features)
            column.encode(table.column(column.name), out[:, place : place + width])
            place += width
        return out

    # ------------------------------------------------------------------ JSON

    def to_json(self) -> list[dict[str, Any]]:
        """Return JSON-compatible values."""
        return [
            {"number": c.name, "median": c.median, "mean": c.mean, "scale": c.scale}
            if isinstance(c, Number)
            else {"category": c.name, "labels": list(c.labels)}
            for c in self.columns
        ]

    @classmethod
    def from_json(cls, document: Any) -> "TableEncoder":
        """Return the encoder described by `to_json`, or raise."""
        check(isinstance(document, list) and bool(document), "its columns are not a list")
        columns = [_column_from_json(entry) for entry in document]
        check(len({column.name for column in columns}) == len(columns), "it has a duplicate column")
        return cls(tuple(columns))


def _column_from_json(entry: Any) -> Number | Category:
    check(isinstance(entry, dict), "a column is not an object")
    if set(entry) == {"number", "median", "mean", "scale"}:
        numbers = [entry[key] for key in ("median", "mean", "scale")]
        fine = all(isinstance(x, float) and np.isfinite(x) for x in numbers) and numbers[2] > 0
        check(fine and isinstance(entry["number"], str), "a numeric column has an invalid value")
        return Number(entry["number"], *numbers)
    check(set(entry) == {"category", "labels"}, f"a column has keys {sorted(map(str, entry))}")
    labels = entry["labels"]
    check(isinstance(entry["category"], str) and isinstance(labels, list), "a column of labels has an invalid value")
    text = labels[:-1] if labels and labels[-1] is None else labels
    check(all(isinstance(label, str) for label in text) and len(set(text)) == len(text), "labels are not distinct text")
    return Category(entry["category"], tuple(labels))
