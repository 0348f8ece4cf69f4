"""The JSON files of a store, which must not be trusted."""

import json
from typing import Any

from groupdro.utils.bundle import BundleError, check

__all__ = ["GROUPS", "LARGEST", "MANIFEST", "StoreError", "parse_json", "to_json"]

MANIFEST, GROUPS = "manifest.json", "groups.json"
LARGEST = {MANIFEST: 64 * 2**20, GROUPS: 256 * 2**20}  # bytes; each file is read at once


class StoreError(ValueError):
    """A directory is not a groupdro store, is damaged, or contains something unknown."""


def to_json(document: Any, name: str) -> bytes:
    """Return a document as canonical ASCII JSON.

    Parameters
    ----------
    document : object
        Dictionaries, sequences, text and finite numbers.
    name : str
        Name of the file.

    Returns
    -------
    bytes
        The JSON.
    """
    content = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(content) > LARGEST[name]:
        raise ValueError(f"{name} would have {len(content)} bytes, more than {LARGEST[name]}: shorten the names.")
    return content


def parse_json(content: bytes, name: str) -> Any:
    """Read JSON.

    Parameters
    ----------
    content : bytes
        Content of the file.
    name : str
        Name of the file.

    Returns
    -------
    object
        Dictionaries, lists, text and numbers; numbers that are too large become infinite.
    """
    check(len(content) <= LARGEST[name], f"its {name} has {len(content)} bytes, more than {LARGEST[name]}")
    try:
        return json.loads(content.decode("ascii"), parse_constant=_refuse, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"its {name} is not valid JSON of a store: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("duplicate key")
    return document
