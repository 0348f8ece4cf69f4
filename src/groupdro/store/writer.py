"""Writing a store in two passes over its source and a sort on disk.

1. The labels are read: groups are counted, classes collected.
2. All rows are read. The place of a row is the offset of its group plus its shuffled place in the group, which takes
   only the number of rows of the group so far. Rows go to files, one for each range of places that fits the memory.
3. Every range is loaded, put in order and appended to the final files.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from groupdro.store.chunks import Chunk, ChunkFormat, Sorter
from groupdro.store.directories import new_store
from groupdro.store.files import ChecksummedFile, read_array, write_bytes
from groupdro.store.labels import GROUPS, label_to_json, names_bytes, parse_names
from groupdro.store.layout import DTYPES, FileRecord, Manifest, index_dtype
from groupdro.store.shuffle import shuffled_places
from groupdro.store.sources import Coded, Source
from groupdro.utils.arguments import check_flag, check_whole
from groupdro.utils.types import Array, Floats, Indices

__all__ = ["check_dtype", "write_store"]


_MOST_CLASSES = 2**16
_WEIGHT_ROWS = 2**20  # weights are summed in pieces of this size, so that sums do not depend on the memory


def check_dtype(dtype: Any, *, sparse: bool | None) -> np.dtype[Any]:
    """Read the type of the entries of X.

    Parameters
    ----------
    dtype : str, type or dtype
        float16, float32 or float64.
    sparse : bool or None
        Whether rows are sparse, for which there is no float16.

    Returns
    -------
    dtype
        The type, little-endian.
    """
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = None
    allowed = DTYPES[1:] if sparse else DTYPES
    if dtype is None or name not in allowed:
        raise ValueError(f"dtype must be one of {allowed}{' where rows are sparse' if sparse else ''}, got {dtype!r}.")
    return np.dtype(name).newbyteorder("<")


def write_store(path: Path, source: Source, *, dtype: np.dtype[Any], seed: int, memory: int, overwrite: bool) -> None:
    """Write a store, whole or not at all.

    Parameters
    ----------
    path : Path
        Where to.
    source : Source
        The rows.
    dtype : dtype
        Type of the entries of X.
    seed : int
        Seed of the order within groups.
    memory : int
        Bytes of rows to hold at once.
    overwrite : bool
        Whether to replace a store that is there.
    """
    check_whole(seed, "seed", most=2**64 - 1)
    check_whole(memory, "memory", least=1)
    check_flag(overwrite, "overwrite")
    seed, memory = int(seed), int(memory)
    with new_store(path, overwrite=overwrite) as new:
        directory = new.directory
        groups, classes = _count(source, memory // 8)
        form = ChunkFormat(
            dtype=dtype,
            y_dtype=np.dtype("<f8" if classes is None else "<i8"),
            n_features=source.n_features,
            weighted=source.weighted,
            sparse=source.sparse,
        )
        sorter = Sorter(directory, form, int(groups.offsets[-1]), memory)
        nnz = _place_rows(source, groups, classes, seed, sorter, memory // 8)
        files = _write_arrays(directory, sorter, form, nnz, groups)
        named = names_bytes(groups.names)
        parse_names(named, len(groups.names), None)  # which refuses what could not be read again
        files[GROUPS] = write_bytes(directory / GROUPS, named)
        manifest = Manifest(
            n_rows=int(groups.offsets[-1]),
            n_features=source.n_features,
            n_groups=len(groups.names),
            nnz=nnz if source.sparse else None,
            dtype=dtype.name,
            seed=seed,
            weighted=source.weighted,
            classes=None if classes is None else tuple(label_to_json(label, "target") for label in classes.names),
            target=source.target_name,
            groups=source.group_names,
            feature_names=source.feature_names,
            files=files,
        )
        source.rounding.warn()
        new.publish(manifest)


# ---------------------------------------------------------------------- the first pass


class _Names:
    """Distinct labels, numbered as they come and then in their order."""

    def __init__(self) -> None:
        self._code_of: dict[Any, int] = {}
        self._last: tuple[Any, Indices] | None = None

    def __len__(self) -> int:
        return len(self._code_of)

    @property
    def names(self) -> list[Any]:
        """Labels in the order of their numbers."""
        return list(self._code_of)

    def learn(self, column: Coded) -> Indices:
        """Return the number of each row's label, giving new labels the next numbers."""
        codes = np.array([self._code_of.setdefault(value, len(self._code_of)) for value in column.values], np.int64)
        return codes[column.codes]

    def sort(self) -> Indices:
        """Renumber labels in their order, and return which old number each new one had."""
        names = self.names
        try:
            order = sorted(range(len(names)), key=names.__getitem__)
        except TypeError:
            order = list(range(len(names)))  # labels of mixed kinds have no order: keep that in which they came
        self._code_of = {names[old]: new for new, old in enumerate(order)}
        return np.array(order, np.int64)

    def look_up(self, column: Coded) -> Indices:
        """Return the number of each row's label."""
        if self._last is None or self._last[0] is not column.values:  # arrays have the same list for every block
            codes = np.array([self._code_of.get(value, -1) for value in column.values], np.int64)
            self._last = column.values, codes
        found = self._last[1][column.codes]
        if found.size and found.min() < 0:
            raise _changed()
        return found


@dataclass(frozen=True)
class _Groups:
    """What the first pass finds out about groups.

    Attributes
    ----------
    labels : _Names
        Their names.
    offsets : ndarray of shape (n_groups + 1,)
        Where each group's rows begin and end.
    largest_weight : ndarray of shape (n_groups,)
        Largest weight of a row of each.
    """

    labels: _Names
    offsets: Indices
    largest_weight: Floats

    @property
    def names(self) -> list[Any]:
        """Names in the order of the groups."""
        return self.labels.names


def _count(source: Source, memory: int) -> tuple[_Groups, _Names | None]:
    labels = _Names()
    classes = _Names() if source.has_classes else None
    counts, largest = np.zeros(0, np.int64), np.zeros(0)
    for block in source.label_blocks(memory):
        codes = labels.learn(block.groups)
        if len(labels) > len(counts):
            new = len(labels) - len(counts)
            counts, largest = np.append(counts, np.zeros(new, np.int64)), np.append(largest, np.zeros(new))
        counts += np.bincount(codes, minlength=len(counts))
        if block.weight is not None:
            np.maximum.at(largest, codes, block.weight)
        if classes is not None and isinstance(block.target, Coded):
            classes.learn(block.target)
            if len(classes) > _MOST_CLASSES:
                raise ValueError(
                    f"target has more than {_MOST_CLASSES} distinct values, too many for classes: "
                    'pass task="regression" if they are numbers.'
                )
    if not counts.sum():
        raise ValueError("source has no rows.")
    for name in labels.names:
        label_to_json(name, "groups")
    if classes is not None:
        classes.sort()
        if any(isinstance(label, int) and abs(label) >= 2**63 for label in classes.names):
            raise ValueError("target has classes that are whole numbers of more than 64 bits.")
    order = labels.sort()
    counts, largest = counts[order], largest[order]
    if source.weighted and not largest.all():
        name = "weight" if source.target_name is not None else "sample_weight"
        raise ValueError(f"{name} is zero on all of group {labels.names[int(np.argmin(largest))]!r}.")
    return _Groups(labels, np.concatenate([[0], np.cumsum(counts)]), largest), classes


# ---------------------------------------------------------------------- the second pass


def _changed() -> ValueError:
    return ValueError("source gave other rows when it was read again: it must give the same ones twice.")


def _place_rows(source: Source, groups: _Groups, classes: _Names | None, seed: int, sorter: Sorter, memory: int) -> int:
    """Give every row its place and hand it to the sorter; return the number of entries."""
    sizes = np.diff(groups.offsets)
    seen = np.zeros_like(sizes)
    row = nnz = 0
    for labels, X in source.row_blocks(memory):
        codes = groups.labels.look_up(labels.groups)
        if not len(codes):
            continue
        _check_finite(source, X, row)
        order = _arrival(codes, seen)
        if (order >= sizes[codes]).any():
            raise _changed()
        if isinstance(labels.target, Coded):
            y: Array = np.empty(0) if classes is None else classes.look_up(labels.target)
        else:
            y = labels.target
        weights = None if labels.weight is None else labels.weight / groups.largest_weight[codes]
        places = groups.offsets[codes] + shuffled_places(order, codes, sizes, seed)
        sorter.add(Chunk(places, np.arange(row, row + len(codes)), y, weights, X))
        row += len(codes)
        nnz += X.nnz if sp.issparse(X) else X.size
    if (seen != sizes).any():
        raise _changed()
    return nnz


def _arrival(codes: Indices, seen: Indices) -> Indices:
    """Return the number of each row in its group, counting on from `seen`, which is updated."""
    by_group = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[by_group], prepend=-1))
    counts, present = np.diff(starts, append=len(codes)), codes[by_group[starts]]
    order = np.empty_like(codes)
    order[by_group] = np.arange(len(codes)) - np.repeat(starts - seen[present], counts)
    seen[present] += counts
    return order


def _check_finite(source: Source, X: Any, first_row: int) -> None:
    values = X.data if sp.issparse(X) else X
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum(dtype=np.float64)):  # no entry that is not finite gives a finite sum
            return
    bad = ~np.isfinite(values)
    if not bad.any():
        return
    if sp.issparse(X):
        entry = int(np.argmax(bad))
        row, column = int(np.searchsorted(X.indptr, entry, side="right")) - 1, int(X.indices[entry])
    else:
        row, column = divmod(int(np.argmax(bad)), X.shape[1])
    raise ValueError(
        f"{source.feature(column)} has a value that is NaN, infinite or too large for {X.dtype.name}, "
        f"first in row {first_row + row}."
    )


# ---------------------------------------------------------------------- the files


def _write_arrays(
    directory: Path, sorter: Sorter, form: ChunkFormat, nnz: int, groups: _Groups
) -> dict[str, FileRecord]:
    """Write the rows in the order of their places."""
    names = ["y.bin", "source.bin", *(["data.bin", "indices.bin", "indptr.bin"] if form.sparse else ["X.bin"])]
    index = index_dtype(form.n_features, nnz)
    unscaled = directory / "weights.tmp"
    with ExitStack() as stack:
        files = {name: stack.enter_context(ChecksummedFile(directory / name)) for name in names}
        weights = stack.enter_context(ChecksummedFile(unscaled)) if form.weighted else None
        entries = 0
        if form.sparse:
            files["indptr.bin"].write(np.zeros(1, index))
        for chunk in sorter.ordered():
            files["y.bin"].write(chunk.y)
            files["source.bin"].write(chunk.source)
            if weights is not None and chunk.weights is not None:
                weights.write(chunk.weights)
            if form.sparse:
                files["data.bin"].write(chunk.X.data)
                files["indices.bin"].write(chunk.X.indices.astype(index, copy=False))
                files["indptr.bin"].write((chunk.X.indptr[1:].astype(np.int64) + entries).astype(index))
                entries += chunk.X.nnz
            else:
                files["X.bin"].write(chunk.X)
            del chunk  # before the next is loaded
        records = {name: file.finish() for name, file in files.items()}
    with ChecksummedFile(directory / "offsets.bin") as file:
        file.write(groups.offsets.astype("<i8"))
        records["offsets.bin"] = file.finish()
    if form.weighted:
        records["weights.bin"] = _normalise(unscaled, directory / "weights.bin", groups.offsets)
        unscaled.unlink()
    return records


def _normalise(unscaled: Path, path: Path, offsets: Indices) -> FileRecord:
    """Divide weights by the sum of their group."""
    totals = np.zeros(len(offsets) - 1)
    n_rows = int(offsets[-1])
    pieces = [(start, min(start + _WEIGHT_ROWS, n_rows)) for start in range(0, n_rows, _WEIGHT_ROWS)]
    with unscaled.open("rb") as raw, ChecksummedFile(path) as file:
        for divide in (False, True):
            raw.seek(0)
            for start, stop in pieces:
                weights = read_array(raw, np.dtype("<f8"), (stop - start,))
                first = int(np.searchsorted(offsets, start, side="right")) - 1
                last = int(np.searchsorted(offsets, stop, side="left"))
                begins = np.maximum(offsets[first:last], start) - start
                if divide:
                    file.write(weights / np.repeat(totals[first:last], np.diff(begins, append=stop - start)))
                else:
                    totals[first:last] += np.add.reduceat(weights, begins)
        return file.finish()
