"""Opening a store: its arrays are mapped, and checked before they are used."""

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.data.communicator import Communicator
from groupdro.data.cuts import row_cuts
from groupdro.store.files import check_blocks, map_array, regular_size
from groupdro.store.folders import folder_identity, is_being_replaced
from groupdro.store.manifest import (
    BLOCK,
    LARGEST_COUNT,
    LARGEST_MANIFEST,
    MANIFEST,
    Manifest,
    StoreError,
    check,
    parse_manifest,
)
from groupdro.utils.types import Array
from groupdro.utils.vectors import LARGEST

__all__ = ["Opened", "RowsCheck", "read_manifest", "read_store"]

_PIECE = 2**20  # entries checked at once
_PATIENCE = 5.0  # seconds to wait for a store that a writer is replacing
_SMALL = ("y", "weight", "offset", "indptr")  # arrays that are small compared to X


@dataclass(frozen=True)
class Opened:
    """The content of an open store. Mapped arrays stay valid even if the store is replaced.

    Attributes
    ----------
    manifest : Manifest
        The manifest.
    arrays : dict of str to memmap
        The arrays by name, read-only.
    """

    manifest: Manifest
    arrays: dict[str, Any]

    @property
    def nnz(self) -> int | None:
        """Number of stored entries; None if the rows are dense."""
        return None if "X" in self.arrays else len(self.arrays["indices"])


def read_store(path: Path, *, full: bool) -> Opened:
    """Check a store and map its arrays, consistently even if it is replaced in the meantime.

    Parameters
    ----------
    path : Path
        Directory of the store.
    full : bool
        Whether to check all arrays, or only targets, weights, offsets and row pointers of at most 64 MiB.

    Returns
    -------
    Opened
        The store.
    """
    patient_until = time.monotonic() + _PATIENCE
    while True:
        before = folder_identity(path)
        try:
            opened = _open(path, full=full)
        except (StoreError, OSError):
            changing = folder_identity(path) != before or is_being_replaced(path)
            if not changing or time.monotonic() > patient_until:
                raise
        else:
            if folder_identity(path) == before:  # otherwise, some of the files may be those of another store
                return opened
            check(time.monotonic() < patient_until, "it keeps being replaced while it is opened")
        time.sleep(0.01)


def _open(path: Path, *, full: bool) -> Opened:
    manifest = read_manifest(path)
    arrays = {name: map_array(_file(path, name), record) for name, record in manifest.files.items()}
    _check_types(manifest, arrays)
    opened = Opened(manifest, arrays)
    _check_content(path, opened, full=full)
    return opened


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a store without opening its arrays."""
    size = regular_size(path / MANIFEST)
    check(size is not None, f"it has no {MANIFEST}")
    check((size or 0) <= LARGEST_MANIFEST, f"its {MANIFEST} is too large")
    return parse_manifest((path / MANIFEST).read_bytes())


def _file(path: Path, name: str) -> Path:
    return path / f"{name}.npy"


def _check_content(path: Path, opened: Opened, *, full: bool) -> None:
    """Verify the checksums of the arrays, and check their entries."""
    manifest = opened.manifest
    arrays = opened.arrays
    for name, record in manifest.files.items():
        if full or (name in _SMALL and record.size <= BLOCK):
            check_blocks(_file(path, name), record)
            if name not in ("X", "data"):  # of which any bits are numbers
                _check_entries(name, arrays[name], opened)
    if full and opened.nnz:
        _check_columns(arrays["indices"], arrays["indptr"])


def _check_types(manifest: Manifest, arrays: dict[str, Any]) -> None:
    """Refuse arrays that do not make up a table of the manifest's groups, features and classes."""
    sparse = {"indices", "indptr"}
    needed = {"y", "source", *({"X"} if "X" in arrays else sparse)}
    allowed = needed | {"weight", "offset", *({"data"} if needed > sparse else ())}
    check(needed <= set(arrays) <= allowed, f"its arrays are {sorted(arrays)}")
    n_rows = manifest.n_rows
    nnz = arrays["indices"].size if "indices" in arrays else 0
    outputs = arrays["offset"].shape[1:2] if "offset" in arrays else ()
    shapes = {"X": (n_rows, manifest.n_features), "data": (nnz,), "indices": (nnz,), "indptr": (n_rows + 1,)}
    shapes["offset"] = (n_rows, *outputs)
    types = {"X": ("<f2", "<f4", "<f8"), "data": ("<f4", "<f8"), "indices": ("<i4", "<i8"), "indptr": ("<i4", "<i8")}
    types["source"] = ("<i8",)
    types["y"] = ("<f8",) if manifest.classes is None else ("<i8",)
    for name, array in arrays.items():
        check(array.dtype.str in types.get(name, ("<f8",)), f"its {name}.npy has type {array.dtype}")
        check(array.shape == shapes.get(name, (n_rows,)), f"its {name}.npy has shape {array.shape}")


def _check_entries(name: str, values: Array, opened: Opened) -> None:
    """Refuse entries that would make solvers read outside arrays, or that are not finite."""
    manifest = opened.manifest
    nnz = opened.nnz or 0
    # The source may have had more rows than the store: some were written to another one.
    stops = {"source": LARGEST_COUNT, "indices": manifest.n_features, "indptr": nnz + 1}
    if manifest.classes is not None:
        stops["y"] = len(manifest.classes)
    for start in range(0, len(values), _PIECE):
        piece = np.asarray(values[start : start + _PIECE + 1])  # one more, to check the order across pieces
        if name in stops:
            fits = piece.min() >= 0 and piece.max() < stops[name]
        elif name == "offset":
            fits = (np.abs(piece) <= LARGEST).all()
        else:
            fits = np.isfinite(piece).all() and (name != "weight" or piece.min() >= 0)
        check(fits, f"its {name}.npy has an entry out of range")
        check(name != "indptr" or (piece[1:] >= piece[:-1]).all(), f"its {name}.npy is not in order")
    if name == "indptr":
        check(values[0] == 0 and values[-1] == nnz, f"its {name}.npy does not cover the entries")
    if name == "weight":
        largest = np.maximum.reduceat(values, manifest.group_offsets[:-1])
        check(largest.all(), f"its {name}.npy is zero on all of group {int(np.argmin(largest))}")


def _check_columns(indices: Array, indptr: Array) -> None:
    """Refuse rows whose columns are not ascending: code would disagree on how to count a repeated column."""
    for start in range(0, len(indices), _PIECE):
        piece = np.asarray(indices[start : start + _PIECE + 1])
        begins = start + 1 + np.flatnonzero(piece[1:] <= piece[:-1])  # only a new row can begin here
        found = np.searchsorted(indptr, begins.astype(indptr.dtype))  # with another type, all of it would be converted
        check((np.asarray(indptr[found]) == begins).all(), "its indices.npy has a row with unsorted columns")


class RowsCheck:
    """Verifies the checksums of the files behind the rows, when first called.

    Every worker reads the blocks of its own part of the rows, in bounded memory. If one of them finds a difference, all
    raise the same error.

    Parameters
    ----------
    path : Path
        Directory of the store.
    opened : Opened
        The store as it was opened.
    comm : Communicator
        Connection to the other workers, all of which must make the call.
    """

    def __init__(self, path: Path, opened: Opened, comm: Communicator):
        self._path = path
        self._opened = opened
        self._comm = comm
        self._passed = False

    def __call__(self) -> None:
        """Check once.

        Raises
        ------
        StoreError
            If a file has changed; the message names it.
        """
        if self._passed:
            return
        records = self._opened.manifest.files
        # Row pointers come first: they determine which entries of the others are read.
        names = sorted(records, key=lambda name: (name != "indptr", name))
        changed = 0  # 1 for a store that was replaced, 2 and more for a file
        fault = None
        for number, name in enumerate(names, 2):
            try:
                check_blocks(_file(self._path, name), records[name], *self._span(name))
            except (StoreError, OSError) as error:
                changed = number
                fault = error
                break
        if not self._is_current():
            changed = 1
        changed = int(self._comm.allreduce_max(np.array([changed]))[0])
        if changed == 1:
            raise StoreError(f"{os.fspath(self._path)!r} was replaced since it was opened: open it again.")
        if changed:
            raise StoreError(
                f"{os.fspath(self._path)!r} has changed: its {names[changed - 2]}.npy does not match the checksums "
                "that the store was opened with, so its checkpoints do not apply. Restore the file, or write the store "
                "again."
            ) from fault
        self._passed = True

    def _is_current(self) -> bool:
        """Return whether the manifest is still the one that the store was opened with."""
        with suppress(StoreError, OSError):
            return read_manifest(self._path) == self._opened.manifest
        return False

    def _span(self, name: str) -> tuple[int, int]:
        """Return the range of bytes of a file that belong to the rows of this worker."""
        array = self._opened.arrays[name]
        cuts = row_cuts(self._opened.manifest.group_offsets, self._comm.size)
        first, last = cuts[self._comm.rank : self._comm.rank + 2].tolist()
        if name in ("data", "indices"):
            first, last = (int(self._opened.arrays["indptr"][row]) for row in (first, last))
        elif name == "indptr":
            last += 1
        width = array.itemsize * math.prod(array.shape[1:])
        return array.offset + first * width, array.offset + last * width
