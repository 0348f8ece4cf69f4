"""`GroupedStore`, the public interface of stores."""

import hashlib
import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from groupdro.data import GroupedData
from groupdro.data.communicator import Communicator, SerialCommunicator
from groupdro.data.csr_rows import CsrRows, csr_of
from groupdro.data.dense_rows import dense_rows
from groupdro.distributed.sharding import shard
from groupdro.store.document import StoreError
from groupdro.store.labels import classes_array
from groupdro.store.layout import manifest_bytes
from groupdro.store.reader import Opened, RowsCheck, read_manifest, read_store
from groupdro.store.writing import StoreWriting
from groupdro.utils.arguments import check_choice, check_kind, check_path
from groupdro.utils.bundle import BundleError
from groupdro.utils.types import Array, Indices

__all__ = ["GroupedStore"]


class GroupedStore(StoreWriting):
    """A table on disk whose rows are ordered by group and shuffled within each group.

    Any range of a group's rows is a random sample of the group, so mini-batches can be read contiguously. The arrays
    are memory-mapped, so a table may be larger than memory. Create a store with `write`, `write_arrays` or
    `write_lines`, and open it with `open`.

    A store is a directory of raw little-endian arrays, with a JSON manifest of their sizes and checksums. It holds no
    code, and the reader refuses anything it does not know.

    Attributes
    ----------
    path : Path
        The directory.
    n_rows, n_features, n_groups : int
        Shape of the table.
    names : tuple
        Sorted names of the groups; tuples if groups are combinations of several columns.
    group_sizes : ndarray of shape (n_groups,)
        Number of rows of each group.
    classes : ndarray or None
        Sorted classes; None if the targets are numbers.
    feature_names : tuple of str or None
        Names of the columns of X, if they had names.
    target : str or None
        Column of the targets.
    group_columns : tuple of str or None
        Columns of the groups.
    X : memmap of shape (n_rows, n_features) or csr_array
        The memory-mapped features.
    y : ndarray of shape (n_rows,)
        Original labels, or memory-mapped numbers.
    source : memmap of shape (n_rows,)
        Input row of each stored row.
    nbytes : int
        Bytes of all arrays on disk.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from groupdro.store import GroupedStore
    >>> X, y, groups = np.eye(4), [0, 1, 0, 1], ["north", "north", "south", "south"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = GroupedStore.write_arrays(f"{folder}/table", X, y, groups)
    ...     store.names, store.group_sizes.tolist()
    (('north', 'south'), [2, 2])
    """

    def __init__(self, path: Path, opened: Opened, comm: Communicator | None = None):
        manifest = opened.manifest
        self._opened, self._manifest, self._arrays = opened, manifest, opened.arrays
        self._comm = comm or SerialCommunicator()
        self.path, self.names, self.group_sizes = path, opened.names, np.diff(opened.offsets)
        self.n_rows, self.n_features, self.n_groups = manifest.n_rows, manifest.n_features, manifest.n_groups
        self.feature_names, self.target, self.group_columns = manifest.feature_names, manifest.target, manifest.groups
        self.classes = None if manifest.classes is None else classes_array(manifest.classes)
        self.source: Indices = opened.arrays["source.bin"]
        self.nbytes = sum(manifest.files[name].size for name in manifest.arrays)

    # ------------------------------------------------------------------ reading

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: Literal["small", "full"] = "small") -> "GroupedStore":
        """Open a store.

        Parameters
        ----------
        path : str or path-like
            Directory of the store.
        verify : {"small", "full"}
            "small" checks the manifest, the sizes of all files, the names and offsets of the groups, and those of
            targets, weights and row pointers that take at most 64 MiB each. "full" reads everything, like `verify`; use
            it for a store from a source that you do not trust.

        Returns
        -------
        GroupedStore
            The store. Its arrays are mapped read-only and stay valid if the store is replaced; reopen it to see the new
            one.

        Raises
        ------
        StoreError
            If the directory is not a store, has an unknown version or is damaged.
        FileNotFoundError
            If the directory does not exist.
        """
        check_choice(verify, "verify", ("small", "full"))
        place = check_path(path, "path")
        if not os.path.isdir(place):
            raise FileNotFoundError(f"there is no directory {os.fspath(path)!r}.")
        try:
            place = place.resolve()
            return cls(place, read_store(place, full=verify == "full"))
        except (BundleError, OSError) as error:
            raise StoreError(f"{os.fspath(path)!r} cannot be read as a store: {error}.") from None

    def verify(self) -> None:
        """Read every file and verify its checksums.

        Raises
        ------
        StoreError
            If a block of a file is damaged (the message names it), or if the store was replaced since it was opened.
        """
        try:
            if read_manifest(self.path) == self._manifest:
                read_store(self.path, full=True)
                return
        except (BundleError, OSError) as error:
            raise StoreError(f"{os.fspath(self.path)!r} is damaged: {error}.") from None
        raise StoreError(f"{os.fspath(self.path)!r} was replaced since it was opened: open it again.")

    def data(self, labels: Any = None) -> GroupedData:
        """Return the rows in the form that solvers take. X is mapped, not read; labels and weights are loaded.

        Parameters
        ----------
        labels : array-like of shape (n_classes,), optional
            Number to use for each class, such as (-1, 1). None for 0 to n_classes - 1.

        Returns
        -------
        GroupedData
            The rows in the order of the store. Their norms are computed in one pass when first needed.
        """
        # Kernels would be compiled again for read-only arrays, so everything small compared to X is loaded.
        y = np.array(self._arrays["y.bin"])
        # The manifest has the checksums of all arrays; `RowsCheck` verifies them only if a checkpoint is used.
        key = hashlib.sha256(manifest_bytes(replace(self._manifest, directory=None)))
        if labels is not None:
            if self.classes is None:
                raise ValueError("labels require a store of classes, but the targets of this one are numbers.")
            numbers = np.asarray(labels)
            fits = numbers.shape == self.classes.shape and numbers.dtype.kind in "fiu"
            if not fits or not np.isfinite(numbers).all():
                raise ValueError(f"labels must be {len(self.classes)} numbers, one per class, got {labels!r}.")
            y = numbers[y]
            key.update(numbers.astype(np.float64).tobytes())
        whole = GroupedData(
            rows=dense_rows(self.X) if self._manifest.nnz is None else CsrRows(self.X),
            y=y,
            offsets=self._opened.offsets,
            members=np.empty(0, np.int64),
            weights=np.array(self._arrays["weights.bin"]) if self._manifest.weighted else np.empty(0),
            names=self.names,
            source=self.source,
            feature_names=self.feature_names,
            key=key.digest(),
            key_check=RowsCheck(self.path, self._opened, self._comm),
        )
        return shard(whole, self._comm)

    def shard(self, comm: Communicator) -> "GroupedStore":
        """Return the same store for one of several workers; its `data` is that worker's part of the rows.

        Parameters
        ----------
        comm : Communicator
            Connection to the other workers, which open the same store.

        Returns
        -------
        GroupedStore
            The store, for `fit` or for your own problem.
        """
        check_kind(comm, "comm", Communicator, "a Communicator")
        return GroupedStore(self.path, self._opened, comm)

    @cached_property
    def X(self) -> Any:
        """The memory-mapped features."""
        if self._manifest.nnz is None:
            return self._arrays["X.bin"]
        indices, indptr = (np.asarray(self._arrays[name]) for name in ("indices.bin", "indptr.bin"))
        ones = np.broadcast_to(np.ones(1, np.float32), indices.shape)
        data = np.asarray(self._arrays["data.bin"]) if "data.bin" in self._arrays else ones
        return csr_of(data, indices, indptr, self.n_features)

    @cached_property
    def y(self) -> Array:
        """Original labels, or memory-mapped numbers."""
        stored: Array = self._arrays["y.bin"]
        return stored if self.classes is None else self.classes[stored]

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        kind = "dense" if self._manifest.nnz is None else f"CSR with {self._manifest.nnz} entries"
        return (
            f"GroupedStore({os.fspath(self.path)!r}: {self.n_rows} rows in {self.n_groups} groups, "
            f"{self.n_features} features, {kind}, {self._manifest.dtype}, {self.nbytes / 2**20:.1f} MiB)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self._comm.size > 1:
            raise TypeError(
                "A store for one of several workers cannot be copied to another process: open and shard it there."
            )
        return GroupedStore.open, (os.fspath(self.path),)  # the other process maps the files itself
