"""Checks of user arguments. Errors name the argument, its value and what was expected."""

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np

from groupdro.utils.optional import import_extra

__all__ = [
    "as_table",
    "check_choice",
    "check_flag",
    "check_kind",
    "check_number",
    "check_path",
    "check_whole",
    "error_prefix",
    "number_of_rows",
    "printable",
    "read_callables",
    "short_repr",
]

_LONGEST = 80  # most characters of a value that an error message repeats
# Characters that a terminal obeys instead of showing: control characters, line breaks and direction marks. A lone
# surrogate cannot be printed at all.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(value: Any, *, keep: str = "") -> str:
    r"""Return text that is safe to print, with control characters escaped as in Python source.

    Parameters
    ----------
    value : object
        The text, or an object that converts to it, such as a path.
    keep : str
        Control characters to leave alone, such as line breaks.

    Returns
    -------
    str
        The text, with ``\x1b`` in place of an escape character.
    """
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else repr(found[0])[1:-1], str(value))


def short_repr(value: Any) -> str:
    """Return a short, printable repr of any value, for use in an error message."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


@contextmanager
def error_prefix(argument: str) -> Iterator[None]:
    """Prefix errors raised inside the block with the argument's name, unless they already contain it.

    Parameters
    ----------
    argument : str
        Name of the argument.
    """
    try:
        yield
    except OverflowError as error:
        raise ValueError(f"{argument} contains numbers that are too large: {error}") from error
    except (TypeError, ValueError) as error:
        if re.search(rf"\b{re.escape(argument)}\b", str(error)):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        if "unsupported ScalarType" in str(error):  # torch's bfloat16, which NumPy does not have
            raise kind(
                f"{argument} is a tensor of a type that NumPy does not have; pass {argument}.float()."
            ) from error
        raise kind(f"{argument}: {error}") from error


def check_number(value: Any, name: str, *, positive: bool = False, finite: bool = True) -> None:
    """Raise unless a value is a number within range.

    Parameters
    ----------
    value : object
        The value.
    name : str
        Name of the argument.
    positive : bool
        Whether zero is refused too. Negative numbers always are.
    finite : bool
        Whether infinity is refused too. NaN always is.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {short_repr(value)}.")
    number: Any = value  # anything that compares with numbers, such as a Fraction
    try:
        infinite = math.isinf(value)
    except OverflowError:  # an int too large for a float
        infinite = True
    if not (number > 0 if positive else number >= 0) or (finite and infinite):
        wanted = "positive" + " and finite" * finite if positive else "finite and " * finite + "not negative"
        raise ValueError(f"{name} must be {wanted}, got {short_repr(value)}.")


def check_whole(value: Any, name: str, *, least: int = 0, most: int | None = None) -> None:
    """Raise unless a value is an integer within range.

    Parameters
    ----------
    value : object
        The value.
    name : str
        Name of the argument.
    least, most : int
        Smallest and largest value allowed; None for no upper limit.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {short_repr(value)}.")
    if int(value) < least or (most is not None and int(value) > most):
        span = f"from {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be a whole number {span}, got {short_repr(value)}.")


def check_flag(value: Any, name: str) -> None:
    """Raise unless a value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {short_repr(value)}.")


def check_choice(value: Any, name: str, choices: Sequence[str]) -> None:
    """Raise unless a value is one of several words."""
    if not (isinstance(value, str) and value in choices):
        words = [repr(word) for word in choices]
        raise ValueError(f"{name} must be {', '.join(words[:-1])} or {words[-1]}, got {short_repr(value)}.")


def check_kind(value: Any, name: str, kind: type | UnionType, what: str) -> None:
    """Raise unless a value is of the right type. Catches a class passed in place of an instance.

    Parameters
    ----------
    value : object
        The value.
    name : str
        Name of the argument.
    kind : type or union of types
        The type that it must have.
    what : str
        The type in words, for the message.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, got {short_repr(value)}.")


def check_path(value: Any, name: str) -> Path:
    """Return a value as a path, or raise if it is not one.

    Parameters
    ----------
    value : object
        The value.
    name : str
        Name of the argument.

    Returns
    -------
    Path
        The path.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise TypeError(f"{name} must be a path, got {short_repr(value)}.")
    if "\0" in os.fspath(value):
        raise ValueError(f"{name} must be a path without null characters, got {short_repr(value)}.")
    return Path(value)


def as_table(values: Any) -> Any:
    """Return a pyarrow RecordBatch as a Table, which narwhals and scikit-learn can index; anything else unchanged."""
    if type(values).__module__.startswith("pyarrow") and type(values).__name__ == "RecordBatch":
        return import_extra("pyarrow", extra="store").Table.from_batches([values])
    return values


def number_of_rows(values: Any, name: str) -> int:
    """Return the number of rows of an array, data frame or sequence; raise if there are none to count.

    Parameters
    ----------
    values : object
        The value.
    name : str
        Name of the argument.

    Returns
    -------
    int
        The number of rows.
    """
    shape = getattr(values, "shape", None)
    if isinstance(shape, tuple) and shape:
        return int(shape[0])
    if isinstance(values, str | bytes | dict | set | frozenset) or not hasattr(values, "__len__") or shape == ():
        raise TypeError(f"{name} must be an array with one entry per row, got {short_repr(values)}.")
    return len(values)


def read_callables(values: Any, argument: str) -> tuple[Callable[..., Any], ...]:
    """Return a list of callables as a tuple, or raise if it is anything else."""
    try:
        read = tuple(values)
    except TypeError:
        read = (None,)
    if not all(map(callable, read)):
        raise TypeError(f"{argument} must be a list of callables, got {short_repr(values)}.")
    return read
