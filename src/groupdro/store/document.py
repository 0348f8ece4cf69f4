"""JSON that may have been written by anyone, and the error for what is wrong with it."""

import json
from typing import Any

__all__ = ["StoreError", "check", "parse_json", "to_json"]


class StoreError(ValueError):
    """A directory is no store of this package, is damaged, or has something in it that is not known."""


def check(holds: bool, why: str) -> None:
    """Refuse what does not hold.

    Parameters
    ----------
    holds : bool
        The condition.
    why : str
        What is wrong where it does not hold, as the end of a sentence.
    """
    if not holds:
        raise StoreError(why)


def to_json(document: Any, name: str, most: int) -> bytes:
    """Return a document as JSON in ASCII, of which there is only one.

    Parameters
    ----------
    document : object
        Dictionaries, sequences, text and finite numbers.
    name : str
        What to call it in an error.
    most : int
        Bytes that it may have.

    Returns
    -------
    bytes
        The JSON.
    """
    content = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(content) > most:
        raise ValueError(f"{name} would have {len(content)} bytes, more than {most}: shorten the names.")
    return content


def parse_json(content: bytes, name: str, most: int) -> Any:
    """Read JSON.

    Parameters
    ----------
    content : bytes
        The file.
    name : str
        What to call it in an error.
    most : int
        Bytes that it may have.

    Returns
    -------
    object
        Dictionaries, lists, text and numbers, which may be infinite where they are too large.
    """
    check(len(content) <= most, f"its {name} has {len(content)} bytes, more than {most}")
    try:
        return json.loads(content.decode("ascii"), parse_constant=_refuse, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"its {name} is no JSON as stores have it: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is there twice")
    return document
