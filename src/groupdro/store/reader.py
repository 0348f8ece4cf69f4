"""Checks of a store before its arrays are used, and of its rows before a checkpoint is used."""

import math
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.data.communicator import Communicator
from groupdro.data.cuts import row_cuts
from groupdro.store.document import GROUPS, LARGEST, MANIFEST, StoreError
from groupdro.store.files import check_blocks
from groupdro.store.labels import parse_names
from groupdro.store.layout import BLOCK, Manifest, parse_manifest
from groupdro.utils.bundle import BundleError, check
from groupdro.utils.types import Array, Floats, Indices

__all__ = ["PIECE", "Opened", "RowsCheck", "read_manifest", "read_store", "sums_by_group"]

PIECE = 2**20  # entries checked or summed at once; it affects the rounding of stored weights
_ATTEMPTS = 100  # attempts to open a store that others keep replacing
_ROUNDING = 1e-6  # allowed rounding error of the sum of a group's weights
_SMALL = ("y.bin", "weights.bin", "indptr.bin")  # files that are small compared to X


@dataclass(frozen=True)
class Opened:
    """The content of an open store. Mapped arrays stay valid even if the store is replaced.

    Attributes
    ----------
    manifest : Manifest
        The manifest.
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
    """Check a store and map its arrays, consistently even if it is replaced in the meantime.

    Parameters
    ----------
    path : Path
        Directory of the store.
    full : bool
        Whether to check all files, or only targets, weights and row pointers of at most 64 MiB.

    Returns
    -------
    Opened
        The store.
    """
    for _ in range(_ATTEMPTS):
        content = _manifest_content(path)
        try:
            manifest = parse_manifest(content)
            opened = _open(path, manifest)
            _check_content(manifest.place(path), opened, full=full)
        except (BundleError, OSError):
            if _manifest_content(path) == content:
                raise
            continue  # the files are gone because the store was replaced
        # Files in their own directory belong to this manifest only; those next to the manifest might not.
        if manifest.directory is not None or _manifest_content(path) == content:
            return opened
    raise BundleError(f"it was replaced {_ATTEMPTS} times while it was being opened")


def read_manifest(path: Path) -> Manifest:
    """Read the manifest without checking the other files.

    Parameters
    ----------
    path : Path
        Directory of the store.

    Returns
    -------
    Manifest
        The manifest.
    """
    return parse_manifest(_manifest_content(path))


def _manifest_content(path: Path) -> bytes:
    size = _file_size(path / MANIFEST)
    check(size is not None, f"it has no {MANIFEST}")
    check((size or 0) <= LARGEST[MANIFEST], f"its {MANIFEST} is too large")
    return (path / MANIFEST).read_bytes()


def _file_size(path: Path) -> int | None:
    """Return the size of a regular file; None if there is no such file."""
    with suppress(OSError):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode):
            return found.st_size
    return None


def _open(path: Path, manifest: Manifest) -> Opened:
    """Map the arrays, after checking that all files have the right sizes and the groups are in order."""
    place = manifest.place(path)
    check(place == path or (place.is_dir() and not place.is_symlink()), f"its {place.name} is missing")
    for name, record in manifest.files.items():
        size = _file_size(place / name)
        check(size is not None, f"its {name} is missing or not a regular file")
        check(size == record.size, f"its {name} has {size} bytes instead of {record.size}")
    # Read the names first: the size of their file limits their number, and so that of the offsets.
    check_blocks(place / GROUPS, manifest.files[GROUPS])
    n_columns = None if manifest.groups is None else len(manifest.groups)
    names = parse_names((place / GROUPS).read_bytes(), manifest.n_groups, n_columns)
    check_blocks(place / "offsets.bin", manifest.files["offsets.bin"])
    offsets = np.fromfile(place / "offsets.bin", "<i8").astype(np.int64, copy=False)
    check(int(offsets[0]) == 0 and int(offsets[-1]) == manifest.n_rows, "its groups do not cover its rows")
    check(bool((offsets[1:] > offsets[:-1]).all()), "its groups are not in order, or one has no rows")
    arrays = {
        # An empty file cannot be mapped.
        name: np.memmap(place / name, dtype=dtype, mode="r", shape=shape) if 0 not in shape else np.empty(shape, dtype)
        for name, (dtype, shape) in manifest.arrays.items()
    }
    return Opened(manifest, names, offsets, arrays)


def _check_content(place: Path, opened: Opened, *, full: bool) -> None:
    """Verify the checksums of the files, and check their entries."""
    manifest, arrays = opened.manifest, opened.arrays
    for name, record in manifest.files.items():
        if not full and (name not in _SMALL or record.size > BLOCK):
            continue
        check_blocks(place / name, record)
        if name not in ("X.bin", "data.bin", "offsets.bin", GROUPS):  # any bits are numbers; the others were checked
            _check_entries(name, arrays[name], manifest)
        if name == "weights.bin":  # otherwise sums over a group would not be averages
            fits = np.abs(sums_by_group(arrays[name], opened.offsets) - 1.0) <= _ROUNDING
            check(bool(fits.all()), f"its weights of group {int(np.argmin(fits))} do not sum to one")
    if full and manifest.nnz:
        _check_columns(arrays["indices.bin"], arrays["indptr.bin"])


def sums_by_group(values: Array, offsets: Indices) -> Floats:
    """Sum one number per row over each group, piece by piece.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        The numbers, which may be mapped.
    offsets : ndarray of shape (n_groups + 1,)
        Where each group's rows begin and end.

    Returns
    -------
    ndarray of shape (n_groups,)
        The sums.
    """
    totals = np.zeros(len(offsets) - 1)
    for start in range(0, len(values), PIECE):
        piece = np.asarray(values[start : start + PIECE])
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        last = int(np.searchsorted(offsets, start + len(piece), side="left"))
        with np.errstate(over="ignore"):
            totals[first:last] += np.add.reduceat(piece, np.maximum(offsets[first:last] - start, 0))
    return totals


def _check_entries(name: str, values: Array, manifest: Manifest) -> None:
    """Refuse entries that would make solvers read outside arrays, or that are not finite."""
    stops = {"source.bin": manifest.n_rows, "indices.bin": manifest.n_features, "indptr.bin": (manifest.nnz or 0) + 1}
    if manifest.classes is not None:
        stops["y.bin"] = len(manifest.classes)
    for start in range(0, len(values), PIECE):
        piece = np.asarray(values[start : start + PIECE + 1])  # one more, to check the order across pieces
        if name in stops:
            fits = piece.min() >= 0 and piece.max() < stops[name]
        else:
            fits = np.isfinite(piece).all() and (name != "weights.bin" or piece.min() >= 0)
        check(bool(fits), f"its {name} has an entry out of range")
        check(name != "indptr.bin" or bool((piece[1:] >= piece[:-1]).all()), f"its {name} is not in order")
    if name == "indptr.bin":
        check(int(values[0]) == 0 and int(values[-1]) == manifest.nnz, f"its {name} does not cover the entries")


def _check_columns(indices: Array, indptr: Array) -> None:
    """Refuse rows whose columns are not ascending: code would disagree on how to count a repeated column."""
    for start in range(0, len(indices), PIECE):
        piece = np.asarray(indices[start : start + PIECE + 1])
        begins = start + 1 + np.flatnonzero(piece[1:] <= piece[:-1])  # only a new row can begin here
        found = np.searchsorted(indptr, begins.astype(indptr.dtype))  # with another type, all of it would be converted
        check(bool((np.asarray(indptr[found]) == begins).all()), "its indices.bin has a row with unsorted columns")


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
        self.path, self.opened, self.comm = path, opened, comm
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
        manifest = self.opened.manifest
        # Row pointers come first: they determine which entries of the others are read.
        names = sorted(manifest.files, key=lambda name: (name != "indptr.bin", name))
        changed, fault = 0, None  # 1 for a store that was replaced, 2 and more for a file
        for number, name in enumerate(names, 2):
            try:
                check_blocks(manifest.place(self.path) / name, manifest.files[name], *self._span(name))
            except (BundleError, OSError) as error:
                changed, fault = number, error
                break
        if not self._is_current():
            changed = 1
        changed = int(self.comm.allreduce_max(np.array([changed]))[0])
        if changed == 1:
            raise StoreError(f"{os.fspath(self.path)!r} was replaced since it was opened: open it again.")
        if changed:
            raise StoreError(
                f"{os.fspath(self.path)!r} has changed: its {names[changed - 2]} does not match the checksums that the "
                "store was opened with, so its checkpoints do not apply. Restore the file, or write the store again."
            ) from fault
        self._passed = True

    def _is_current(self) -> bool:
        """Return whether the manifest is still the one that the store was opened with."""
        with suppress(BundleError, OSError):
            return read_manifest(self.path) == self.opened.manifest
        return False

    def _span(self, name: str) -> tuple[int, int]:
        """Return the range of bytes of a file that belong to the rows of this worker."""
        manifest = self.opened.manifest
        if name not in manifest.arrays or name == "offsets.bin":
            return 0, manifest.files[name].size
        dtype, shape = manifest.arrays[name]
        cuts = row_cuts(np.asarray(self.opened.arrays["offsets.bin"]), self.comm.size)
        first, last = cuts[self.comm.rank : self.comm.rank + 2].tolist()
        if name in ("data.bin", "indices.bin"):
            first, last = (int(self.opened.arrays["indptr.bin"][row]) for row in (first, last))
        else:
            last += name == "indptr.bin"
        width = dtype.itemsize * math.prod(shape[1:])
        return first * width, last * width
