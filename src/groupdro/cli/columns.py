"""Conversion of pyarrow columns to NumPy."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from groupdro.utils.optional import import_extra
from groupdro.utils.types import Floats

__all__ = ["arrow", "as_numbers", "as_text", "kind_of", "refuse_absent"]


def arrow(module: str = "pyarrow") -> Any:
    """Import a module of pyarrow, or say how to install it."""
    return import_extra(module, extra="cli")


def kind_of(column: Any) -> str:
    """Return what a column holds: "number", "truth", "text", "nothing", or the name of another type."""
    types = arrow().types
    kind = column.type
    if types.is_boolean(kind):
        return "truth"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "text that is not UTF-8"
    if types.is_temporal(kind):
        return "dates or times"
    return "nothing" if types.is_null(kind) else str(kind)


def as_numbers(column: Any, name: str) -> Floats:
    """Return a column as numbers, NaN where they are missing."""
    kind = kind_of(column)
    pa = arrow()
    if kind == "nothing":
        return np.full(len(column), np.nan)
    if kind == "truth":
        column = column.cast(pa.int8())
    elif kind != "number":
        bad = next((value for value in column.to_pylist() if value is not None), None)
        raise ValueError(f"column {name!r} must be numbers, but has {str(bad)!r}.")
    values = np.array(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    if np.isinf(values).any():
        raise ValueError(f"column {name!r} has an infinite value, first in data row {np.isinf(values).argmax() + 1}.")
    return values


def as_text(column: Any) -> Any:
    """Return a column of any type as text; integers are written without a decimal point."""
    pa = arrow()
    if pa.types.is_floating(column.type):
        values = column.drop_null().to_numpy()
        if np.isfinite(values).all() and (values == np.round(values)).all() and (np.abs(values) < 2**53).all():
            column = column.cast(pa.int64())
    return column.cast(pa.string())


def refuse_absent(names: Iterable[str], table: Any) -> None:
    """Refuse a table without the columns that a model needs."""
    absent = [name for name in names if name not in table.column_names]
    if absent:
        more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
        raise ValueError(f"the model requires the column {absent[0]!r}{more}, which the table does not have.")
