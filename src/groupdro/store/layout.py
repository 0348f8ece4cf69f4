"""Layout of a store on disk: raw arrays, and a manifest that is checked before anything else is read.

The manifest is JSON with the shape of the table and the size and checksums of every other file. Sizes are compared with
those of the files as Python integers, so that no manifest can make the reader allocate more memory than the files
justify.
"""

import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.store.document import GROUPS, LARGEST, MANIFEST, parse_json, to_json
from groupdro.store.labels import check_classes
from groupdro.utils.bundle import BundleError, check, check_version

__all__ = [
    "BLOCK",
    "DIRECTORY",
    "DTYPES",
    "FILES",
    "FORMAT",
    "SPARSE_DTYPES",
    "FileRecord",
    "Manifest",
    "index_dtypes",
    "manifest_bytes",
    "parse_manifest",
]

FORMAT = "groupdro-store"
VERSION, VERSION_IN_DIRECTORY = 1, 2  # files next to the manifest, or in a directory that it names
FILES = (
    "X.bin", "data.bin", "indices.bin", "indptr.bin", "y.bin", "offsets.bin", "weights.bin", "source.bin", GROUPS
)  # fmt: skip
DIRECTORY = re.compile(r"rows-[0-9a-f]{16}")
DTYPES = ("float16", "float32", "float64")
SPARSE_DTYPES = ("bool", "float32", "float64")  # the first stores no values: all entries are one
BLOCK = 64 * 2**20  # bytes that share a checksum

_DERIVED = {"format", "version", "crc32", "kind", "label_kind"}  # keys of the file that are not fields of `Manifest`
_LARGEST_COUNT = 2**48  # limit on rows, columns or entries, so that file sizes computed from them are representable


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
    n_rows, n_features, n_groups : int
        Shape of the table.
    nnz : int or None
        Stored entries of a sparse table; None if the rows are dense.
    dtype : str
        Type of the entries of X; "bool" if all stored entries are one, which has no file of values.
    seed : int
        Seed of the shuffling within groups.
    weighted : bool
        Whether rows have weights.
    classes : tuple or None
        Sorted classes, whose indices are the stored codes; None if targets are numbers.
    target : str or None
        Column of the targets.
    groups : tuple of str or None
        Columns of the groups.
    feature_names : tuple of str or None
        Names of the columns of X.
    files : mapping from str to FileRecord
        All other files.
    directory : str or None
        Subdirectory of the files; None if they are next to the manifest.
    """

    n_rows: int
    n_features: int
    n_groups: int
    nnz: int | None
    dtype: str
    seed: int
    weighted: bool
    classes: tuple[Any, ...] | None
    target: str | None
    groups: tuple[str, ...] | None
    feature_names: tuple[str, ...] | None
    files: Mapping[str, FileRecord]
    directory: str | None = None

    def place(self, path: Path) -> Path:
        """Return the directory of the files of the store at a path."""
        return path if self.directory is None else path / self.directory

    @property
    def arrays(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Type and shape of each binary file."""
        n_rows = self.n_rows
        arrays: dict[str, tuple[Any, tuple[int, ...]]] = {
            "y.bin": ("<f8" if self.classes is None else "<i8", (n_rows,)),
            "offsets.bin": ("<i8", (self.n_groups + 1,)),
            "source.bin": ("<i8", (n_rows,)),
        }
        if self.weighted:
            arrays["weights.bin"] = ("<f8", (n_rows,))
        if self.nnz is None:
            arrays["X.bin"] = (self.dtype, (n_rows, self.n_features))
        else:
            column, pointer = index_dtypes(self.n_features, self.nnz, self.dtype)
            arrays |= {"indices.bin": (column, (self.nnz,)), "indptr.bin": (pointer, (n_rows + 1,))}
            if self.dtype != "bool":
                arrays["data.bin"] = (self.dtype, (self.nnz,))
        return {name: (np.dtype(dtype).newbyteorder("<"), shape) for name, (dtype, shape) in arrays.items()}


def index_dtypes(n_features: int, nnz: int, dtype: str) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Return the types of the column numbers and of the row pointers of a sparse table.

    Parameters
    ----------
    n_features, nnz : int
        Number of columns and of stored entries.
    dtype : str
        Type of the entries. With values, both types are the same: if they differ, SciPy copies the narrower one.

    Returns
    -------
    columns, pointers : dtype
        int32 where it suffices, else int64.
    """
    largest = (n_features, nnz) if dtype == "bool" else (max(n_features, nnz),) * 2
    columns, pointers = (np.dtype("<i4" if most <= np.iinfo(np.int32).max else "<i8") for most in largest)
    return columns, pointers


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the content of the manifest file, which is identical for identical stores.

    Parameters
    ----------
    manifest : Manifest
        The manifest.

    Returns
    -------
    bytes
        JSON in ASCII.
    """
    document = vars(manifest) | {
        "format": FORMAT,
        "version": VERSION if manifest.directory is None else VERSION_IN_DIRECTORY,
        "kind": "dense" if manifest.nnz is None else "csr",
        "label_kind": "float" if manifest.classes is None else "classes",
        "files": {name: {"bytes": file.size, "crc32": file.crc32} for name, file in manifest.files.items()},
    }
    if manifest.directory is None:
        del document["directory"]
    return to_json(document | {"crc32": zlib.crc32(to_json(document, MANIFEST))}, MANIFEST)


def parse_manifest(content: bytes) -> Manifest:
    """Read a manifest and check everything that can be checked without the other files.

    Parameters
    ----------
    content : bytes
        The file.

    Returns
    -------
    Manifest
        The manifest.
    """
    document = _parse_signed(content)
    n_rows, n_features, n_groups = (document[key] for key in ("n_rows", "n_features", "n_groups"))
    for key in ("n_rows", "n_features", "n_groups"):
        _check_entry(document, key, _is_count(document[key], 1, _LARGEST_COUNT))
    sparse, nnz, directory = document["kind"] == "csr", document["nnz"], document.get("directory")
    for key, fits in {
        "n_groups": n_groups <= n_rows,
        "kind": document["kind"] in ("dense", "csr"),
        "dtype": document["dtype"] in (SPARSE_DTYPES if sparse else DTYPES),
        "nnz": _is_count(nnz, 0, min(n_rows * n_features, _LARGEST_COUNT)) if sparse else nnz is None,
        "seed": _is_count(document["seed"], 0, 2**64 - 1),
        "weighted": isinstance(document["weighted"], bool),
        "target": isinstance(document["target"], str | None),
        "groups": _are_names(document["groups"]),
        "feature_names": _are_names(document["feature_names"], n_features),
        "files": isinstance(document["files"], dict),
        "directory": "directory" not in document or (isinstance(directory, str) and DIRECTORY.fullmatch(directory)),
    }.items():
        _check_entry(document, key, fits)
    check_classes(document["label_kind"], document["classes"])
    entries: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in document.items()
    }
    entries["files"] = {name: _parse_record(name, entry) for name, entry in document["files"].items()}
    manifest = Manifest(**{key: value for key, value in entries.items() if key not in _DERIVED})
    expected = {name: math.prod(shape) * dtype.itemsize for name, (dtype, shape) in manifest.arrays.items()}
    check(set(manifest.files) == {*expected, GROUPS}, f"its files are {str(sorted(manifest.files))[:200]}")
    for name, size in expected.items():
        stated = manifest.files[name].size
        check(stated == size, f"its {name} has {stated} bytes, but its shape requires {size}")
    check(manifest.files[GROUPS].size <= LARGEST[GROUPS], f"its {GROUPS} is too large")
    return manifest


def _parse_signed(content: bytes) -> dict[str, Any]:
    """Return a manifest's document after checking its keys and its checksum."""
    document = parse_json(content, MANIFEST)
    check(isinstance(document, dict), "its manifest is not an object")
    check(document.get("format") == FORMAT, f"its format is {str(document.get('format'))[:40]!r}, not {FORMAT!r}")
    version = document.get("version")
    check_version(version, VERSION, VERSION_IN_DIRECTORY)
    keys = {field.name for field in fields(Manifest)} | _DERIVED
    if version == VERSION:
        keys.remove("directory")
    check(set(document) == keys, f"its manifest has unexpected keys: {str(set(document) ^ keys)[:200]}")
    stated = document.pop("crc32")
    try:
        crc32 = zlib.crc32(to_json(document, MANIFEST))
    except (ValueError, RecursionError) as error:  # infinite numbers, or deeply nested lists
        raise BundleError(f"its manifest is not valid JSON of a store: {error}") from None
    check(type(stated) is int and stated == crc32, "its manifest does not match its checksum")
    return document


def _parse_record(name: str, entry: Any) -> FileRecord:
    check(name in FILES, f"it has an unknown file: {name[:80]!r}")
    check(isinstance(entry, dict) and set(entry) == {"bytes", "crc32"}, f"its record of {name} is incomplete")
    size, sums = entry["bytes"], entry["crc32"]
    check(_is_count(size), f"its {name} has a size of {str(size)[:40]}")
    listed = isinstance(sums, list) and all(_is_count(one, 0, 2**32 - 1) for one in sums)
    check(listed and len(sums) == -(-size // BLOCK), f"its checksums of {name} do not match the number of blocks")
    return FileRecord(size, tuple(sums))


def _check_entry(document: dict[str, Any], key: str, fits: Any) -> None:
    check(bool(fits), f"its {key} is not valid: {str(document.get(key))[:40]!r}")


def _is_count(value: Any, least: int = 0, most: float = math.inf) -> bool:
    return type(value) is int and least <= value <= most  # excludes booleans, which are ints


def _are_names(value: Any, length: int | None = None) -> bool:
    """Return whether a value is a list of names, or None."""
    listed = isinstance(value, list) and value and all(isinstance(name, str) for name in value)
    return value is None or bool(listed and length in (None, len(value)))
