"""The manifest of a store: a JSON file that must not be trusted, and is checked before any array is opened.

It has the names and sizes of the groups, the classes and the columns, and a CRC-32 of every 64 MiB of each `.npy` file.
Types and shapes of the arrays are those in the headers of the files.
"""

import itertools
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from groupdro.utils.types import Array, Indices

__all__ = ["ARRAYS", "BLOCK", "FORMAT", "LARGEST_COUNT", "LARGEST_MANIFEST", "MANIFEST", "FileRecord", "Manifest"]
__all__ += ["StoreError", "check", "classes_array", "label_to_json", "manifest_bytes", "parse_manifest"]

FORMAT = "groupdro-store"
VERSION = 1
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 256 * 2**20  # bytes; the file is read at once
BLOCK = 64 * 2**20  # bytes that share a checksum
ARRAYS = ("X", "data", "indices", "indptr", "y", "weight", "offset", "source")

LARGEST_COUNT = 2**48  # limit on rows, columns and bytes, so that sizes computed from them are representable


class StoreError(ValueError):
    """A directory is not a groupdro store, is damaged, or contains something unknown."""


def check(holds: Any, why: str) -> None:
    """Raise a `StoreError` with a reason unless a condition holds."""
    if not holds:
        raise StoreError(why)


@dataclass(frozen=True)
class FileRecord:
    """Size of a file and the CRC-32 of each of its blocks.

    Attributes
    ----------
    size : int
        Size in bytes.
    crc32 : tuple of int
        One per block of 64 MiB; the last block may be shorter.
    """

    size: int
    crc32: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    """Content of the manifest.

    Attributes
    ----------
    n_features : int
        Number of columns of X.
    classes : tuple or None
        Sorted classes, whose indices are the stored codes; None if targets are numbers.
    target : str or None
        Column of the targets.
    group_columns, feature_names : tuple of str or None
        Columns of the groups, and names of the columns of X.
    group_names, group_sizes : tuple
        Name and number of rows of each group.
    files : mapping from str to FileRecord
        The files by the names of their arrays.
    """

    n_features: int
    classes: tuple[Any, ...] | None
    target: str | None
    group_columns: tuple[str, ...] | None
    feature_names: tuple[str, ...] | None
    group_names: tuple[Any, ...]
    group_sizes: tuple[int, ...]
    files: Mapping[str, FileRecord]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(self.group_sizes)

    @cached_property
    def group_offsets(self) -> Indices:
        """Where each group's rows begin and end, of shape (n_groups + 1,)."""
        return np.concatenate([[0], np.cumsum(self.group_sizes)]).astype(np.int64)


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the content of the manifest file, which is identical for identical stores."""
    document = asdict(manifest) | {"format": FORMAT, "version": VERSION}
    content = _to_json(document | {"crc32": zlib.crc32(_to_json(document))})
    if len(content) > LARGEST_MANIFEST:
        raise ValueError(f"{MANIFEST} would have {len(content)} bytes: use fewer groups or shorter names.")
    return content


def parse_manifest(content: bytes) -> Manifest:
    """Read a manifest and check everything that can be checked without the arrays.

    Parameters
    ----------
    content : bytes
        The file.

    Returns
    -------
    Manifest
        The manifest.
    """
    try:
        document = json.loads(content)
        check(document.pop("format") == FORMAT, f"its format is not {FORMAT!r}")
        version = document.pop("version")
        fits = type(version) is int and version == VERSION  # 1.0 and True are equal to 1 too
        check(fits, f"its version is {str(version)[:40]}, and this groupdro reads version {VERSION}")
        stated = document.pop("crc32")
        signed = document | {"format": FORMAT, "version": VERSION}
        check(stated == zlib.crc32(_to_json(signed)), f"its {MANIFEST} does not match its checksum")
        fields = {key: _as_tuple(value) for key, value in document.items()}
        fields["files"] = {name: _parse_record(entry) for name, entry in document["files"].items()}
        manifest = Manifest(**fields)
        _check_fields(manifest)
    except StoreError:
        raise
    except Exception as error:  # whatever a value of a wrong type leads to
        raise StoreError(f"its {MANIFEST} is not valid: {str(error)[:200]}") from None
    return manifest


def _parse_record(entry: dict[str, Any]) -> FileRecord:
    record = FileRecord(**{key: _as_tuple(value) for key, value in entry.items()})
    check(_is_count(record.size), f"its {MANIFEST} has a file of size {str(record.size)[:40]}")
    listed = isinstance(record.crc32, tuple) and len(record.crc32) == -(-record.size // BLOCK)
    check(listed and all(_is_count(one, 0) for one in record.crc32), f"its {MANIFEST} lacks checksums of blocks")
    return record


def _check_fields(manifest: Manifest) -> None:
    names = manifest.group_names
    sizes = manifest.group_sizes
    columns = manifest.group_columns
    for field, fits in {
        "n_features": _is_count(manifest.n_features),
        "classes": manifest.classes is None or _are_classes(manifest.classes),
        "target": isinstance(manifest.target, str | None),
        "group_columns": _are_texts(columns),
        "feature_names": _are_texts(manifest.feature_names, manifest.n_features),
        "group_sizes": isinstance(sizes, tuple) and all(map(_is_count, sizes)) and _is_count(sum(sizes)),
        "group_names": isinstance(names, tuple) and len(names) == len(sizes),
        "files": set(manifest.files) <= set(ARRAYS),
    }.items():
        check(fits, f"its {MANIFEST} is not valid: {field} is {str(getattr(manifest, field))[:40]}")
    for name in names:
        parts = name if isinstance(name, tuple) else (name,)
        named = parts and all(map(_is_scalar, parts)) and len(parts) == len(columns or parts)
        check(named, f"its {MANIFEST} is not valid: a group has the name {str(name)[:40]}")
    check(len(set(names)) == len(names), "two groups have the same name")


def _are_texts(value: Any, length: int | None = None) -> bool:
    """Return whether a value is a tuple of text, or None."""
    listed = isinstance(value, tuple) and value and all(isinstance(text, str) for text in value)
    return value is None or bool(listed and length in (None, len(value)))


def _are_classes(value: Any) -> bool:
    """Return whether a value is a sorted tuple of distinct labels of one type, which an array can hold."""
    listed = isinstance(value, tuple) and value and all(map(_is_scalar, value)) and len(set(map(type, value))) == 1
    fits = listed and (type(value[0]) is not int or max(map(abs, value)) < 2**63)
    return bool(fits and all(a < b for a, b in itertools.pairwise(value)))


def _is_count(value: Any, least: int = 1) -> bool:
    return type(value) is int and least <= value <= LARGEST_COUNT  # excludes booleans, which are ints


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _to_json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


# ---------------------------------------------------------------------- labels


def label_to_json(label: Any, argument: str) -> Any:
    """Return a class or group name as a JSON value; a tuple becomes a list.

    Parameters
    ----------
    label : object
        Text, a number, a boolean, or a tuple of these.
    argument : str
        Name of the argument in errors.

    Returns
    -------
    str, bool, int, float or list
        The label.
    """
    if isinstance(label, np.generic) and not isinstance(label, np.datetime64 | np.timedelta64):
        label = label.item()
    if isinstance(label, tuple) and label:
        return [label_to_json(part, argument) for part in label]
    if not _is_scalar(label):
        raise ValueError(f"{argument} has a label that cannot be stored: {label!r}. Use text or a number instead.")
    return label


def classes_array(classes: Sequence[Any]) -> Array:
    """Return classes, which all have one type, as an array of int64, float64, bool or text.

    If a text ends in a null character, which text arrays drop, the array is of objects.
    """
    if isinstance(classes[0], str) and any(label.endswith("\0") for label in classes):
        return np.array(classes, dtype=object)
    return np.array(classes, dtype=np.int64 if type(classes[0]) is int else None)
