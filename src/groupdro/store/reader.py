"""Checking a store before its arrays are used."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.store.document import StoreError, check
from groupdro.store.files import check_blocks
from groupdro.store.labels import GROUPS, parse_names
from groupdro.store.layout import BLOCK, LARGEST_MANIFEST, MANIFEST, Manifest, parse_manifest
from groupdro.utils.types import Array, Indices

__all__ = ["Opened", "check_content", "manifest_content", "read_manifest", "read_store"]

_ATTEMPTS = 100  # to open a store that others replace meanwhile
_PIECE = 2**20  # entries that are checked at once
_ROUNDING = 1e-6  # of the sum of a group's weights, however many
_SMALL = ("y.bin", "weights.bin", "indptr.bin")  # beside X


@dataclass(frozen=True)
class Opened:
    """All that is known of a store when it is open. What is mapped stays, even if the store is replaced.

    Attributes
    ----------
    manifest : Manifest
        Its manifest.
    names : tuple
        Names of the groups.
    offsets : ndarray of shape (n_groups + 1,)
        Where each group's rows begin and end.
    arrays : dict of str to ndarray
        The mapped arrays by the names of their files, read-only.
    """

    manifest: Manifest
    names: tuple[Any, ...]
    offsets: Indices
    arrays: dict[str, Any]


def read_store(path: Path, *, full: bool) -> Opened:
    """Check a store and map its arrays, all of the same store though others may replace it meanwhile.

    Parameters
    ----------
    path : Path
        Its directory.
    full : bool
        As `check_content` has it.

    Returns
    -------
    Opened
        The store.
    """
    for _ in range(_ATTEMPTS):
        content = manifest_content(path)
        try:
            manifest = _check_sizes(path, parse_manifest(content))
            names, offsets = _read_groups_of(manifest.place(path), manifest)
            opened = Opened(manifest, names, offsets, _map_arrays(manifest.place(path), manifest))
            check_content(path, opened, full=full)
        except (StoreError, OSError):
            if manifest_content(path) == content:
                raise
            continue  # the files were removed because the store was replaced
        # Files in a directory of their own belong to this manifest only; those beside it might not.
        if manifest.directory is not None or manifest_content(path) == content:
            return opened
    raise StoreError(f"it was replaced {_ATTEMPTS} times while it was being opened")


def read_manifest(path: Path) -> Manifest:
    """Read the manifest and check that all files are there and have their sizes.

    Parameters
    ----------
    path : Path
        Directory of the store.

    Returns
    -------
    Manifest
        What it says.
    """
    return _check_sizes(path, parse_manifest(manifest_content(path)))


def manifest_content(path: Path) -> bytes:
    """Read the file of the manifest.

    Parameters
    ----------
    path : Path
        Directory of the store.

    Returns
    -------
    bytes
        Its content, unless the file is missing or too large.
    """
    found = _lstat(path / MANIFEST)
    check(found is not None and stat.S_ISREG(found.st_mode), f"it has no {MANIFEST}")
    check(found is not None and found.st_size <= LARGEST_MANIFEST, f"its {MANIFEST} is too large")
    return (path / MANIFEST).read_bytes()


def _check_sizes(path: Path, manifest: Manifest) -> Manifest:
    """Return the manifest, if all of its files are there and have their sizes."""
    place = manifest.place(path)
    found = _lstat(place)
    check(found is not None and (place == path or stat.S_ISDIR(found.st_mode)), f"its {place.name} is missing")
    for name, record in manifest.files.items():
        found = _lstat(place / name)
        check(found is not None and stat.S_ISREG(found.st_mode), f"its {name} is missing or no plain file")
        size = found.st_size if found else 0
        check(size == record.size, f"its {name} has {size} bytes instead of {record.size}")
    return manifest


def _read_groups_of(path: Path, manifest: Manifest) -> tuple[tuple[Any, ...], Indices]:
    """Read the names and the offsets of the groups, and check both."""
    # The names come first: there cannot be more than their file has bytes, which bounds the offsets.
    check_blocks(path / GROUPS, manifest.files[GROUPS])
    n_columns = None if manifest.groups is None else len(manifest.groups)
    names = parse_names((path / GROUPS).read_bytes(), manifest.n_groups, n_columns)
    check_blocks(path / "offsets.bin", manifest.files["offsets.bin"])
    offsets = np.fromfile(path / "offsets.bin", "<i8").astype(np.int64, copy=False)
    check(int(offsets[0]) == 0 and int(offsets[-1]) == manifest.n_rows, "its groups do not cover its rows")
    check(bool((offsets[1:] > offsets[:-1]).all()), "its groups are not in order, or one has no rows")
    return names, offsets


def check_content(path: Path, opened: Opened, *, full: bool) -> None:
    """Compare files with their checksums, and look at their entries.

    Parameters
    ----------
    path : Path
        Directory of the store.
    opened : Opened
        What it was opened as.
    full : bool
        Whether to check all files, or only targets, weights and row pointers of at most 64 MiB.
    """
    manifest, arrays = opened.manifest, opened.arrays
    for name, record in manifest.files.items():
        if full or (name in _SMALL and record.size <= BLOCK):
            check_blocks(manifest.place(path) / name, record)
    for name in manifest.arrays:
        if name in ("X.bin", "data.bin", "offsets.bin"):
            continue  # any bits are numbers; offsets are checked when they are read
        if full or (name in _SMALL and manifest.files[name].size <= BLOCK):
            _check_entries(name, arrays[name], manifest)
    if manifest.weighted and (full or manifest.files["weights.bin"].size <= BLOCK):
        _check_weights(arrays["weights.bin"], opened.offsets)
    if full and manifest.nnz:
        _check_columns(arrays["indices.bin"], arrays["indptr.bin"])


def _map_arrays(path: Path, manifest: Manifest) -> dict[str, Any]:
    """Map all arrays of the store."""
    return {
        # An empty file cannot be mapped.
        name: np.memmap(path / name, dtype=dtype, mode="r", shape=shape) if 0 not in shape else np.empty(shape, dtype)
        for name, (dtype, shape) in manifest.arrays.items()
    }


def _check_entries(name: str, values: Array, manifest: Manifest) -> None:
    """Refuse entries that would make solvers read outside of arrays, or that are no numbers."""
    stops = {"source.bin": manifest.n_rows, "indices.bin": manifest.n_features, "indptr.bin": (manifest.nnz or 0) + 1}
    if manifest.classes is not None:
        stops["y.bin"] = len(manifest.classes)
    for start in range(0, len(values), _PIECE):
        piece = np.asarray(values[start : start + _PIECE + 1])  # one more, for the order across pieces
        if name in stops:
            fits = piece.min() >= 0 and piece.max() < stops[name]
        else:
            fits = np.isfinite(piece).all() and (name != "weights.bin" or piece.min() >= 0)
        check(bool(fits), f"its {name} has an entry out of range")
        check(name != "indptr.bin" or bool((piece[1:] >= piece[:-1]).all()), f"its {name} is not in order")
    if name == "indptr.bin":
        check(int(values[0]) == 0 and int(values[-1]) == manifest.nnz, f"its {name} does not cover the entries")


def _check_weights(weights: Array, offsets: Indices) -> None:
    """Refuse weights that do not sum to one in each group, whose sums would be no averages."""
    totals = np.zeros(len(offsets) - 1)
    for start in range(0, len(weights), _PIECE):
        piece = np.asarray(weights[start : start + _PIECE])
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        last = int(np.searchsorted(offsets, start + len(piece), side="left"))
        with np.errstate(over="ignore"):
            totals[first:last] += np.add.reduceat(piece, np.maximum(offsets[first:last] - start, 0))
    fits = np.abs(totals - 1.0) <= _ROUNDING
    check(bool(fits.all()), f"its weights of group {int(np.argmin(fits))} do not sum to one")


def _check_columns(indices: Array, indptr: Array) -> None:
    """Refuse rows whose columns do not rise: a column that is there twice would count once here and twice there."""
    for start in range(0, len(indices), _PIECE):
        piece = np.asarray(indices[start : start + _PIECE + 1])
        begins = start + 1 + np.flatnonzero(piece[1:] <= piece[:-1])  # where only another row can begin
        found = np.searchsorted(indptr, begins.astype(indptr.dtype))  # of another type, all of it would be converted
        check(bool((np.asarray(indptr[found]) == begins).all()), "its indices.bin has a row whose columns do not rise")


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
