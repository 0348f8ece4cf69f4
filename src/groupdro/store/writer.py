"""Writing a store in two passes over its source and a sort on disk.

1. The labels are read: groups are counted, classes collected.
2. All rows are read. The position of a row is the offset of its group plus its shuffled position in the group, which
   depends only on the number of rows of the group so far. Rows go to files, one per range of positions that fits in
   memory.
3. Every range is loaded, sorted and appended to the final files.
"""

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.store.chunks import Chunk, Sorter
from groupdro.store.directories import new_store
from groupdro.store.document import GROUPS
from groupdro.store.files import ChecksummedFile, write_bytes
from groupdro.store.labels import label_to_json, names_bytes
from groupdro.store.layout import FileRecord, Manifest, index_dtypes
from groupdro.store.reader import PIECE, sums_by_group
from groupdro.store.shuffle import shuffled_places
from groupdro.store.sources import Coded, Source
from groupdro.utils.arguments import check_flag, check_path, check_whole
from groupdro.utils.types import Floats, Indices

__all__ = ["write_store"]


_MOST_CLASSES = 2**16


def write_store(path: str | os.PathLike[str], source: Source, *, seed: int, memory: int, overwrite: bool) -> None:
    """Write a store, completely or not at all.

    Parameters
    ----------
    path : str or path-like
        Directory of the store.
    source : Source
        The rows.
    seed : int
        Seed for the shuffling within groups.
    memory : int
        Bytes of rows to hold at once.
    overwrite : bool
        Whether to replace an existing store.
    """
    check_whole(seed, "seed", most=2**64 - 1)
    check_whole(memory, "memory", least=1)
    check_flag(overwrite, "overwrite")
    seed, memory = int(seed), int(memory)
    with new_store(check_path(path, "path").resolve(), overwrite=overwrite) as new:
        groups, classes = _count(source, memory // 8)
        names = names_bytes(list(groups.labels))
        n_rows = int(groups.offsets[-1])
        sorter = Sorter(new.directory, n_rows, memory)
        nnz = _place_rows(source, groups, classes, seed, sorter, memory // 8)
        manifest = Manifest(
            n_rows=n_rows,
            n_features=source.n_features,
            n_groups=len(groups.labels),
            nnz=nnz if source.sparse else None,
            dtype=source.rounding.dtype.name,
            seed=seed,
            weighted=source.weighted,
            classes=None if classes is None else tuple(label_to_json(label, "target") for label in classes),
            target=source.target_name,
            groups=source.group_names,
            feature_names=source.feature_names,
            files={},
        )
        files = _write_arrays(new.directory, sorter, manifest, groups.offsets)
        files[GROUPS] = write_bytes(new.directory / GROUPS, names)
        source.rounding.warn()
        new.publish(replace(manifest, files=files))


# ---------------------------------------------------------------------- the first pass


class _Names(dict[Any, int]):
    """Distinct labels and their numbers, first in order of arrival and then sorted."""

    _last: tuple[Any, Indices] | None = None

    def learn(self, column: Coded) -> Indices:
        """Return the number of each row's label, giving new labels the next numbers."""
        codes = np.array([self.setdefault(value, len(self)) for value in column.values], np.int64)
        return codes[column.codes]

    def sort(self) -> Indices:
        """Renumber labels in sorted order, and return the old number of each new one."""
        names = list(self)
        try:
            order = sorted(range(len(names)), key=names.__getitem__)
        except TypeError:
            order = list(range(len(names)))  # labels of mixed types cannot be sorted: keep the order of arrival
        self.clear()
        self.update((names[old], new) for new, old in enumerate(order))
        return np.array(order, np.int64)

    def look_up(self, column: Coded) -> Indices:
        """Return the number of each row's label."""
        if self._last is None or self._last[0] is not column.values:  # array sources share one list for all blocks
            self._last = column.values, np.array([self.get(value, -1) for value in column.values], np.int64)
        found = self._last[1][column.codes]
        if found.size and found.min() < 0:
            raise _changed()
        return found


@dataclass(frozen=True)
class _Groups:
    """Results of the first pass about groups.

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


def _count(source: Source, memory: int) -> tuple[_Groups, _Names | None]:
    labels = _Names()
    classes = _Names() if source.has_classes else None
    counts, largest = np.zeros(0, np.int64), np.zeros(0)
    for block, _ in source.blocks(memory, labels_only=True):
        codes = labels.learn(block.groups)
        n_new = len(labels) - len(counts)
        counts, largest = np.pad(counts, (0, n_new)), np.pad(largest, (0, n_new))
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
    if classes is not None:
        classes.sort()
        if any(isinstance(label, int) and abs(label) >= 2**63 for label in classes):
            raise ValueError("target has classes that are integers of more than 64 bits.")
    order = labels.sort()
    counts, largest = counts[order], largest[order]
    if source.weighted and not largest.all():
        name = "weight" if source.target_name is not None else "sample_weight"
        raise ValueError(f"{name} is zero on all of group {list(labels)[int(np.argmin(largest))]!r}.")
    return _Groups(labels, np.concatenate([[0], np.cumsum(counts)]), largest), classes


# ---------------------------------------------------------------------- the second pass


def _changed() -> ValueError:
    return ValueError("source returned different rows when it was read again; it must return the same rows twice.")


def _place_rows(source: Source, groups: _Groups, classes: _Names | None, seed: int, sorter: Sorter, memory: int) -> int:
    """Assign every row its position and pass it to the sorter; return the number of entries."""
    row_dtype, entry_dtype = _record_dtypes(source)
    sizes = np.diff(groups.offsets)
    seen = np.zeros_like(sizes)
    row = nnz = 0
    for labels, X in source.blocks(memory):
        codes = groups.labels.look_up(labels.groups)
        order = _arrival(codes, seen)
        if (order >= sizes[codes]).any():
            raise _changed()
        rows = np.zeros(len(codes), row_dtype)
        entries = np.empty(X.nnz if source.sparse else 0, entry_dtype)
        rows["place"] = groups.offsets[codes] + shuffled_places(order, codes, sizes, seed)
        rows["source.bin"] = np.arange(row, row + len(codes))
        y = labels.target
        rows["y.bin"] = classes.look_up(y) if classes is not None and isinstance(y, Coded) else y
        if labels.weight is not None:
            rows["weights.bin"] = labels.weight / groups.largest_weight[codes]
        if source.sparse:
            rows["n_entries"] = np.diff(X.indptr)
            entries["indices.bin"] = X.indices
            if "data.bin" in (entry_dtype.names or ()):
                entries["data.bin"] = X.data
        else:
            rows["X.bin"] = X
        sorter.add(Chunk(rows, entries))
        row += len(rows)
        nnz += len(entries)
    if (seen != sizes).any():
        raise _changed()
    return nnz


def _record_dtypes(source: Source) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Return the types of a chunk's records of rows and of entries, with fields named like the files."""
    dtype = source.rounding.dtype
    rows: list[Any] = [("place", "<i8"), ("n_entries", "<i8"), ("source.bin", "<i8")]
    rows.append(("y.bin", "<i8" if source.has_classes else "<f8"))
    if source.weighted:
        rows.append(("weights.bin", "<f8"))
    if not source.sparse:
        rows.append(("X.bin", dtype, (source.n_features,)))
    values: list[Any] = [] if dtype.name == "bool" else [("data.bin", dtype)]
    return np.dtype(rows), np.dtype([("indices.bin", index_dtypes(source.n_features, 0, dtype.name)[0]), *values])


def _arrival(codes: Indices, seen: Indices) -> Indices:
    """Return the number of each row in its group, counting on from `seen`, which is updated."""
    by_group = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[by_group], prepend=-1))
    counts, present = np.diff(starts, append=len(codes)), codes[by_group[starts]]
    order = np.empty_like(codes)
    order[by_group] = np.arange(len(codes)) - np.repeat(starts - seen[present], counts)
    seen[present] += counts
    return order


# ---------------------------------------------------------------------- the files


def _write_arrays(directory: Path, sorter: Sorter, manifest: Manifest, offsets: Indices) -> dict[str, FileRecord]:
    """Write the rows in the order of their positions."""
    dtypes = {name: dtype for name, (dtype, _) in manifest.arrays.items()}
    unscaled = directory / "weights.tmp"
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(ChecksummedFile(unscaled if name == "weights.bin" else directory / name))
            for name in dtypes
        }
        files["offsets.bin"].write(offsets.astype(dtypes["offsets.bin"]))
        nnz = 0
        if manifest.nnz is not None:
            files["indptr.bin"].write(np.zeros(1, dtypes["indptr.bin"]))
        for chunk in sorter.ordered():
            for records in (chunk.rows, chunk.entries):
                for name in files.keys() & set(records.dtype.names or ()):
                    files[name].write(records[name].astype(dtypes[name], copy=False))
            if manifest.nnz is not None:
                indptr = nnz + np.cumsum(chunk.rows["n_entries"])
                files["indptr.bin"].write(indptr.astype(dtypes["indptr.bin"]))
                nnz = indptr[-1]
            del chunk, records  # before the next is loaded
        written = {name: file.finish() for name, file in files.items()}
    if manifest.weighted:
        written["weights.bin"] = _normalise(unscaled, directory / "weights.bin", offsets)
        unscaled.unlink()
    return written


def _normalise(unscaled: Path, path: Path, offsets: Indices) -> FileRecord:
    """Divide weights by the sum of their group."""
    weights = np.memmap(unscaled, "<f8", mode="r")
    totals = sums_by_group(weights, offsets)
    with ChecksummedFile(path) as file:
        for start in range(0, len(weights), PIECE):
            piece = np.asarray(weights[start : start + PIECE])
            group = np.searchsorted(offsets, np.arange(start, start + len(piece)), side="right") - 1
            file.write(piece / totals[group])
        return file.finish()
