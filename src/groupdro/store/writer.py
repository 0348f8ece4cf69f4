"""Writing a store in two passes over its source and a sort on disk.

1. The labels are read: groups are counted, classes collected.
2. All rows are read. The position of a row is the offset of its group plus its shuffled position in the group, which is
   computed from the seed, the group, its size, and the number of its rows so far. The first positions of a group belong
   to the store, the last ones to the store of held-out rows, if there is one. Rows go to files, one per range of
   positions that fits in memory.
3. Every range is loaded, sorted and appended to the arrays of the store.
"""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groupdro.store.files import ArrayFile
from groupdro.store.folders import new_folder, publish
from groupdro.store.manifest import FileRecord, Manifest, label_to_json, manifest_bytes, parse_manifest
from groupdro.store.shuffle import shuffled_places
from groupdro.store.sorting import Sorter
from groupdro.store.sources import Coded, Source
from groupdro.utils.arguments import check_flag, check_number, check_path, check_whole
from groupdro.utils.types import Indices

__all__ = ["test_path", "write_store"]

_MOST_CLASSES = 2**16


def write_store(
    path: str | os.PathLike[str], source: Source, *, seed: int, memory: int, overwrite: bool, test_size: float = 0.0
) -> None:
    """Write a store, or two with different rows of the same groups, completely or not at all.

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
    test_size : float
        Share of each group's rows to write to a second store at `test_path` instead; 0 for none.
    """
    check_whole(seed, "seed", most=2**64 - 1)
    check_whole(memory, "memory", least=1)
    check_flag(overwrite, "overwrite")
    check_number(test_size, "test_size")
    if not test_size < 1:
        raise ValueError(f"test_size must be less than 1, got {test_size!r}.")
    seed = int(seed)
    memory = int(memory)
    target = check_path(path, "path").resolve()
    targets = [target, *([test_path(target)] if test_size else [])]
    with ExitStack() as stack:
        folders = [stack.enter_context(new_folder(place, overwrite=overwrite)) for place in targets]
        source.prepare(folders[0], memory // 8)
        counted = _count(source, memory // 8)
        held_out = np.minimum(np.round(test_size * counted.sizes).astype(np.int64), counted.sizes - 1)
        if test_size and not held_out.any():
            raise ValueError(f"test_size={test_size!r} holds out no rows: the groups are too small.")
        parts = [
            _Part(folder, source, sizes, memory // len(folders))
            for folder, sizes in zip(folders, (counted.sizes - held_out, held_out), strict=False)
        ]
        _place_rows(source, counted, seed, parts, memory // 8)
        manifests = [part.finish(source, counted) for part in parts]
        source.rounding.warn()
        for folder, place, manifest in zip(folders, targets, manifests, strict=True):
            publish(folder, place, manifest, overwrite=overwrite)


def test_path(path: Path) -> Path:
    """Return where the store of held-out rows is written."""
    return path.with_name(f"{path.name}-test")


class _Part:
    """One of the stores that are written.

    Parameters
    ----------
    folder : Path
        Its folder.
    source : Source
        The rows.
    sizes : ndarray of shape (n_groups,)
        Rows of each group that belong to it, 0 for groups that it lacks.
    memory : int
        Bytes of rows to hold at once.
    """

    def __init__(self, folder: Path, source: Source, sizes: Indices, memory: int):
        self.folder = folder
        self.sizes = sizes
        self.starts = np.cumsum(sizes) - sizes
        self.n_rows = int(sizes.sum())
        self.sorter = Sorter(folder, self.n_rows, *_fields(source), memory)
        self.has_weight = np.zeros(len(sizes), bool)

    def finish(self, source: Source, counted: "_Counted") -> Manifest:
        """Write the arrays and return the manifest."""
        names = [name for name, size in zip(counted.groups, self.sizes, strict=True) if size]
        if not self.has_weight[self.sizes > 0].all():
            lacking = names[int(np.argmin(self.has_weight[self.sizes > 0]))]
            raise ValueError(
                f"weight is zero on all rows of group {lacking!r} in a part of the rows: use another seed."
            )
        classes = counted.classes
        manifest = Manifest(
            n_features=source.n_features,
            classes=None if classes is None else tuple(label_to_json(label, "target") for label in classes),
            target=source.target_name,
            group_columns=source.group_names,
            feature_names=source.feature_names,
            group_names=tuple(label_to_json(label, "groups") for label in names),
            group_sizes=tuple(self.sizes[self.sizes > 0].tolist()),
            files=_write_arrays(self.folder, self.sorter, source, self.n_rows),
        )
        parse_manifest(manifest_bytes(manifest))  # refuse to write what could not be read
        return manifest


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


def _place_rows(source: Source, counted: _Counted, seed: int, parts: list[_Part], memory: int) -> None:
    """Assign every row its store and its position there, and pass it to the sorter."""
    classes = counted.classes
    sizes = counted.sizes
    seen = np.zeros_like(sizes)
    row = 0
    for labels, X in source.blocks(memory):
        codes = counted.groups.look_up(labels.groups)
        order = _arrival(codes, seen)
        if (order >= sizes[codes]).any():
            raise _changed()
        rows = np.zeros(len(codes), parts[0].sorter.row_dtype)
        entries = np.empty(X.nnz if source.sparse else 0, parts[0].sorter.entry_dtype)
        places = shuffled_places(order, codes, sizes, seed)
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
        first = np.zeros(len(codes), np.int64)  # of the places in its group that belong to a part
        for part in parts:
            mine = (places >= first) & (places < first + part.sizes[codes])
            rows["place"] = part.starts[codes] + places - first
            part.has_weight[codes[mine & (rows["weight"] > 0) if source.weighted else mine]] = True
            own = np.repeat(mine, rows["n_entries"]) if source.sparse else slice(0)
            part.sorter.add(rows[mine], entries[own])
            first += part.sizes[codes]
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
