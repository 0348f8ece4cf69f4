"""Writing a store in two passes over its source and a sort on disk.

1. The labels are read: groups are counted, classes collected.
2. All rows are read. The position of a row is the offset of its group plus its shuffled position in the group, which
   depends only on the number of rows of the group so far. Rows go to files, one per range of positions that fits in
   memory.
3. Every range is loaded, sorted and appended to the arrays of the store.
"""

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.store.files import ArrayFile
from groupdro.store.folders import new_folder, publish
from groupdro.store.manifest import FileRecord, Manifest, label_to_json, manifest_bytes, parse_manifest
from groupdro.store.shuffle import shuffled_places
from groupdro.store.sorting import Sorter
from groupdro.store.sources import Coded, Source
from groupdro.utils.arguments import check_flag, check_path, check_whole
from groupdro.utils.types import Indices

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
    seed = int(seed)
    memory = int(memory)
    target = check_path(path, "path").resolve()
    with new_folder(target, overwrite=overwrite) as folder:
        counted = _count(source, memory // 8)
        classes = counted.classes
        manifest = Manifest(
            n_features=source.n_features,
            classes=None if classes is None else tuple(label_to_json(label, "target") for label in classes),
            target=source.target_name,
            group_columns=source.group_names,
            feature_names=source.feature_names,
            group_names=tuple(label_to_json(label, "groups") for label in counted.groups),
            group_sizes=tuple(counted.sizes.tolist()),
            files={},
        )
        sorter = Sorter(folder, manifest.n_rows, *_fields(source), memory)
        _place_rows(source, counted, seed, sorter, memory // 8)
        manifest = replace(manifest, files=_write_arrays(folder, sorter, source, manifest.n_rows))
        parse_manifest(manifest_bytes(manifest))  # refuse to write what could not be read
        source.rounding.warn()
        publish(folder, target, manifest, overwrite=overwrite)


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
class _Counted:
    """Results of the first pass.

    Attributes
    ----------
    groups : _Names
        Names of the groups.
    sizes : ndarray of shape (n_groups,)
        Number of rows of each group.
    classes : _Names or None
        The classes; None if targets are numbers.
    """

    groups: _Names
    sizes: Indices
    classes: _Names | None


def _count(source: Source, memory: int) -> _Counted:
    groups = _Names()
    classes = _Names() if source.has_classes else None
    sizes = np.zeros(0, np.int64)
    has_weight = np.zeros(0, bool)
    for block, _ in source.blocks(memory, labels_only=True):
        codes = groups.learn(block.groups)
        n_new = len(groups) - len(sizes)
        sizes = np.pad(sizes, (0, n_new)) + np.bincount(codes, minlength=len(groups))
        has_weight = np.pad(has_weight, (0, n_new))
        has_weight[codes if block.weight is None else codes[block.weight > 0]] = True
        if classes is not None and isinstance(block.target, Coded):
            classes.learn(block.target)
            if len(classes) > _MOST_CLASSES:
                raise ValueError(
                    f"target has more than {_MOST_CLASSES} distinct values, too many for classes: "
                    'pass task="regression" if they are numbers.'
                )
    if not sizes.sum():
        raise ValueError("source has no rows.")
    if classes is not None:
        classes.sort()
        if any(isinstance(label, int) and abs(label) >= 2**63 for label in classes):
            raise ValueError("target has classes that are integers of more than 64 bits.")
    _check_offset(source, classes)
    order = groups.sort()
    if not has_weight.all():
        name = "weight" if source.target_name is not None else "sample_weight"
        raise ValueError(f"{name} is zero on all of group {list(groups)[int(np.argmin(has_weight[order]))]!r}.")
    return _Counted(groups, sizes[order], classes)


def _check_offset(source: Source, classes: _Names | None) -> None:
    shape = () if classes is None or len(classes) < 3 else (len(classes),)
    if source.offset_shape not in (None, shape):
        wanted = f"{shape[0]} numbers per row, one per class" if shape else "one number per row"
        raise ValueError(f"offset must be {wanted}, got {source.offset_shape or 1}.")


# ---------------------------------------------------------------------- the second pass


def _changed() -> ValueError:
    return ValueError("source returned different rows when it was read again; it must return the same rows twice.")


def _fields(source: Source) -> tuple[list[Any], list[Any]]:
    """Return the fields of the sorter's records of rows and of entries, named like the arrays."""
    dtype = source.rounding.dtype
    rows: list[Any] = [("source", "<i8"), ("y", "<i8" if source.has_classes else "<f8")]
    if source.weighted:
        rows.append(("weight", "<f8"))
    if source.offset_shape is not None:
        rows.append(("offset", "<f8", source.offset_shape))
    if not source.sparse:
        rows.append(("X", dtype, (source.n_features,)))
    entries: list[Any] = [("indices", _index_type(source.n_features))]
    if source.sparse and dtype.kind != "b":
        entries.append(("data", dtype))
    return rows, entries


def _index_type(most: int) -> str:
    return "<i4" if most <= np.iinfo(np.int32).max else "<i8"


def _place_rows(source: Source, counted: _Counted, seed: int, sorter: Sorter, memory: int) -> None:
    """Assign every row its position and pass it to the sorter."""
    classes = counted.classes
    sizes = counted.sizes
    starts = np.cumsum(sizes) - sizes
    seen = np.zeros_like(sizes)
    row = 0
    for labels, X in source.blocks(memory):
        codes = counted.groups.look_up(labels.groups)
        order = _arrival(codes, seen)
        if (order >= sizes[codes]).any():
            raise _changed()
        rows = np.zeros(len(codes), sorter.row_dtype)
        entries = np.empty(X.nnz if source.sparse else 0, sorter.entry_dtype)
        rows["place"] = starts[codes] + shuffled_places(order, codes, sizes, seed)
        rows["source"] = np.arange(row, row + len(codes))
        y = labels.target
        rows["y"] = classes.look_up(y) if classes is not None and isinstance(y, Coded) else y
        if labels.weight is not None:
            rows["weight"] = labels.weight
        if labels.offset is not None:
            rows["offset"] = labels.offset
        if source.sparse:
            rows["n_entries"] = np.diff(X.indptr)
            entries["indices"] = X.indices
            if "data" in (entries.dtype.names or ()):
                entries["data"] = X.data
        else:
            rows["X"] = X
        sorter.add(rows, entries)
        row += len(rows)
    if (seen != sizes).any():
        raise _changed()


def _arrival(codes: Indices, seen: Indices) -> Indices:
    """Return the number of each row in its group, counting on from `seen`, which is updated."""
    by_group = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[by_group], prepend=-1))
    counts = np.diff(starts, append=len(codes))
    present = codes[by_group[starts]]
    order = np.empty_like(codes)
    order[by_group] = np.arange(len(codes)) - np.repeat(starts - seen[present], counts)
    seen[present] += counts
    return order


# ---------------------------------------------------------------------- the arrays


def _write_arrays(folder: Path, sorter: Sorter, source: Source, n_rows: int) -> dict[str, FileRecord]:
    """Write the rows in the order of their positions."""
    of_rows = {name: sorter.row_dtype[name] for name, *_ in sorter.row_fields}
    types = {name: (dtype.base.str, (n_rows, *dtype.shape)) for name, dtype in of_rows.items()}
    if source.sparse:
        nnz = sorter.n_entries
        types |= {name: (sorter.entry_dtype[name].str, (nnz,)) for name in sorter.entry_dtype.names or ()}
        types["indptr"] = (_index_type(nnz), (n_rows + 1,))
        if "data" in types:  # if the types of both indices differed, SciPy would copy the narrower one
            widest = _index_type(max(nnz, source.n_features))
            types |= {"indices": (widest, (nnz,)), "indptr": (widest, (n_rows + 1,))}
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(ArrayFile(folder / f"{name}.npy", dtype, shape))
            for name, (dtype, shape) in types.items()
        }
        n_written = 0
        if source.sparse:
            files["indptr"].write(np.zeros(1, np.int64))
        for rows, entries in sorter.ordered():
            for records in (rows, entries):
                for name in files.keys() & set(records.dtype.names or ()):
                    files[name].write(records[name])
            if source.sparse:
                files["indptr"].write(n_written + np.cumsum(rows["n_entries"]))
                n_written += len(entries)
            del rows, entries, records  # before the next are loaded
        return {name: file.finish() for name, file in files.items()}
