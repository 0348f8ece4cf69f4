"""What a store looks like on disk: raw arrays, and a manifest that is checked before anything is believed.

The manifest is JSON with the shape of the table and the size and checksums of every other file. Sizes are compared as
whole numbers of Python with those of the files, so that no manifest makes the reader allocate more than there is.
"""

import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.store.document import StoreError, check, parse_json, to_json
from groupdro.store.labels import GROUPS, LARGEST_GROUPS, parse_classes

__all__ = [
    "BLOCK",
    "DIRECTORY",
    "DTYPES",
    "FILES",
    "FORMAT",
    "LARGEST_MANIFEST",
    "MANIFEST",
    "FileRecord",
    "Manifest",
    "index_dtype",
    "manifest_bytes",
    "parse_manifest",
]

FORMAT = "groupdro-store"
VERSION, VERSION_IN_DIRECTORY = 1, 2  # of a store whose files are beside the manifest, or in a directory that it names
MANIFEST = "manifest.json"
FILES = (
    "X.bin", "data.bin", "indices.bin", "indptr.bin", "y.bin", "offsets.bin", "weights.bin", "source.bin", GROUPS
)  # fmt: skip
DIRECTORY = re.compile(r"rows-[0-9a-f]{16}")
DTYPES = ("float16", "float32", "float64")
BLOCK = 64 * 2**20  # bytes that share a checksum

_LARGEST_COUNT = 2**48  # of rows, columns or entries: products of two and a size still fit a file system's numbers
LARGEST_MANIFEST = 64 * 2**20  # bytes; the file is read as a whole
_KEYS = {
    "format", "version", "crc32", "n_rows", "n_features", "n_groups", "kind", "dtype", "nnz", "seed", "weighted",
    "label_kind", "classes", "target", "groups", "feature_names", "files",
}  # fmt: skip


@dataclass(frozen=True)
class FileRecord:
    """Size of a file and the CRC-32 of each of its blocks.

    Attributes
    ----------
    size : int
        Bytes.
    crc32 : tuple of int
        One for each 64 MiB, the last block being what is left.
    """

    size: int
    crc32: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    """What the manifest says.

    Attributes
    ----------
    n_rows, n_features, n_groups : int
        Shape of the table.
    nnz : int or None
        Stored entries of a sparse table; None where the rows are dense.
    dtype : str
        Type of the entries of X.
    seed : int
        Seed of the order within groups.
    weighted : bool
        Whether rows have weights.
    classes : tuple or None
        Classes in order, whose places are the stored codes; None where targets are numbers.
    target : str or None
        Column that the targets came from.
    groups : tuple of str or None
        Columns that the groups came from.
    feature_names : tuple of str or None
        Names of the columns of X.
    files : mapping from str to FileRecord
        All other files.
    directory : str or None
        Where they are, inside the directory of the store; None is beside the manifest.
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
        whole, real = np.dtype("<i8"), np.dtype("<f8")
        entry = np.dtype(self.dtype).newbyteorder("<")
        arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            "y.bin": (real if self.classes is None else whole, (self.n_rows,)),
            "offsets.bin": (whole, (self.n_groups + 1,)),
            "source.bin": (whole, (self.n_rows,)),
        }
        if self.weighted:
            arrays["weights.bin"] = (real, (self.n_rows,))
        if self.nnz is None:
            return arrays | {"X.bin": (entry, (self.n_rows, self.n_features))}
        index = index_dtype(self.n_features, self.nnz)
        return arrays | {
            "data.bin": (entry, (self.nnz,)),
            "indices.bin": (index, (self.nnz,)),
            "indptr.bin": (index, (self.n_rows + 1,)),
        }


def index_dtype(n_features: int, nnz: int) -> np.dtype[Any]:
    """Return the type of both index arrays of a sparse table: one type, or SciPy would copy the narrower.

    Parameters
    ----------
    n_features, nnz : int
        Number of columns and of stored entries.

    Returns
    -------
    dtype
        int32 where it can count both, else int64.
    """
    return np.dtype("<i4" if max(n_features, nnz) <= np.iinfo(np.int32).max else "<i8")


# ---------------------------------------------------------------------- writing


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the content of the manifest's file, which is the same for the same store.

    Parameters
    ----------
    manifest : Manifest
        What to write.

    Returns
    -------
    bytes
        JSON in ASCII.
    """
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION if manifest.directory is None else VERSION_IN_DIRECTORY,
        "n_rows": manifest.n_rows,
        "n_features": manifest.n_features,
        "n_groups": manifest.n_groups,
        "kind": "dense" if manifest.nnz is None else "csr",
        "dtype": manifest.dtype,
        "nnz": manifest.nnz,
        "seed": manifest.seed,
        "weighted": manifest.weighted,
        "label_kind": "float" if manifest.classes is None else "classes",
        "classes": manifest.classes,
        "target": manifest.target,
        "groups": manifest.groups,
        "feature_names": manifest.feature_names,
        "files": {name: {"bytes": file.size, "crc32": file.crc32} for name, file in manifest.files.items()},
    }
    if manifest.directory is not None:
        document["directory"] = manifest.directory
    return _to_json(document | {"crc32": zlib.crc32(_to_json(document))})


# ---------------------------------------------------------------------- reading


def parse_manifest(content: bytes) -> Manifest:
    """Read a manifest and check all that can be checked without the other files.

    Parameters
    ----------
    content : bytes
        The file.

    Returns
    -------
    Manifest
        What it says.
    """
    document = parse_json(content, MANIFEST, LARGEST_MANIFEST)
    check(isinstance(document, dict), "its manifest is no object")
    check(document.get("format") == FORMAT, f"its format is {str(document.get('format'))[:40]!r}, not {FORMAT!r}")
    version = document.get("version")
    known = _is_count(version) and version in (VERSION, VERSION_IN_DIRECTORY)
    check(known, f"its version is {str(version)[:40]}; this reads {VERSION} and {VERSION_IN_DIRECTORY}")
    keys = _KEYS if version == VERSION else _KEYS | {"directory"}
    check(set(document) == keys, f"its manifest has other keys than expected: {str(set(document) ^ keys)[:200]}")
    stated = document.pop("crc32")
    try:
        crc32 = zlib.crc32(_to_json(document))
    except (ValueError, RecursionError) as error:  # infinite numbers, or lists of lists of lists
        raise StoreError(f"its manifest is no JSON as stores have it: {error}") from None
    check(_is_count(stated) and stated == crc32, "its manifest does not match its checksum")

    n_rows, n_features, n_groups = (document[key] for key in ("n_rows", "n_features", "n_groups"))
    for key in ("n_rows", "n_features", "n_groups"):
        number = document[key]
        check(_is_count(number) and 0 < number <= _LARGEST_COUNT, f"its {key} is {str(number)[:40]}")
    check(n_groups <= n_rows, f"it has {n_groups} groups of {n_rows} rows")
    kind, dtype, nnz = document["kind"], document["dtype"], document["nnz"]
    check(kind in ("dense", "csr"), f"its kind is {str(kind)[:40]!r}")
    check(dtype in (DTYPES if kind == "dense" else DTYPES[1:]), f"its dtype is {str(dtype)[:40]!r}")
    most = n_rows * n_features
    fits = nnz is None if kind == "dense" else _is_count(nnz) and nnz <= min(most, _LARGEST_COUNT)
    check(fits, f"its number of entries is {str(nnz)[:40]}")
    check(_is_count(document["seed"]) and document["seed"] < 2**64, "its seed is no whole number of 64 bits")
    directory = document.get("directory")
    named = directory is None if version == VERSION else isinstance(directory, str) and DIRECTORY.fullmatch(directory)
    check(bool(named), f"its files are in {str(directory)[:40]!r}")
    check(isinstance(document["weighted"], bool), "its 'weighted' is neither true nor false")
    check(document["target"] is None or isinstance(document["target"], str), "its target is no name of a column")
    for key, length in (("groups", None), ("feature_names", n_features)):
        names = document[key]
        listed = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
        check(names is None or bool(listed), f"its {key} are no names of columns")
        check(names is None or length in (None, len(names)), f"its {key} are {len(names or ())}, not {length}")
    manifest = Manifest(
        n_rows=n_rows,
        n_features=n_features,
        n_groups=n_groups,
        nnz=nnz,
        dtype=dtype,
        seed=document["seed"],
        weighted=document["weighted"],
        classes=parse_classes(document["label_kind"], document["classes"]),
        target=document["target"],
        groups=None if document["groups"] is None else tuple(document["groups"]),
        feature_names=None if document["feature_names"] is None else tuple(document["feature_names"]),
        files=_parse_files(document["files"]),
        directory=directory,
    )
    expected = {name: math.prod(shape) * dtype.itemsize for name, (dtype, shape) in manifest.arrays.items()}
    check(set(manifest.files) == {*expected, GROUPS}, f"its files are {str(sorted(manifest.files))[:200]}")
    for name, size in expected.items():
        stated = manifest.files[name].size
        check(stated == size, f"its {name} has {stated} bytes where its shape needs {size}")
    check(manifest.files[GROUPS].size <= LARGEST_GROUPS, f"its {GROUPS} is too large")
    return manifest


def _parse_files(files: Any) -> dict[str, FileRecord]:
    check(isinstance(files, dict), "its list of files is no object")
    records = {}
    for name, entry in files.items():
        check(name in FILES, f"it has a file that is not known: {name[:80]!r}")
        check(isinstance(entry, dict) and set(entry) == {"bytes", "crc32"}, f"its record of {name} is not complete")
        size, sums = entry["bytes"], entry["crc32"]
        check(_is_count(size), f"its {name} has a size of {str(size)[:40]}")
        listed = isinstance(sums, list) and all(_is_count(one) and one < 2**32 for one in sums)
        check(listed and len(sums) == -(-size // BLOCK), f"its checksums of {name} are not one for each block")
        records[name] = FileRecord(size, tuple(sums))
    return records


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0  # a boolean is an int, but no count


def _to_json(document: dict[str, Any]) -> bytes:
    return to_json(document, MANIFEST, LARGEST_MANIFEST)
