"""`GroupedStore`, the public interface of stores."""

import hashlib
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from groupdro.data import GroupedData
from groupdro.data.communicator import Communicator, SerialCommunicator
from groupdro.data.csr_rows import csr_of
from groupdro.data.given import GivenRows, RowSource
from groupdro.data.grouping import Grouping
from groupdro.data.read_rows import wrap_rows
from groupdro.data.shares import relative_weights
from groupdro.distributed.sharding import shard
from groupdro.store.folders import is_being_replaced
from groupdro.store.manifest import StoreError, classes_array, manifest_bytes
from groupdro.store.reader import Opened, RowsCheck, read_manifest, read_store
from groupdro.store.sources import ArraySource, Source, Task
from groupdro.store.table_source import TableSource
from groupdro.store.writer import test_path, write_store
from groupdro.utils.arguments import check_choice, check_kind, check_path
from groupdro.utils.types import Array, Floats

__all__ = ["GroupedStore"]

_MEMORY = 256 * 2**20


class GroupedStore(RowSource):
    """A table on disk whose rows are ordered by group and shuffled within each group.

    Any range of a group's rows is a random sample of the group, so mini-batches can be read contiguously. The arrays
    are memory-mapped, so a table may be larger than memory. Create a store with `write` or `write_arrays`, and open it
    with `open`.

    A store is a directory of `.npy` files, which ``np.load(file, mmap_mode="r")`` opens too, and a JSON manifest with
    the names, shapes and checksums. It holds no code, and the reader refuses anything it does not know.

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
    weight : memmap of shape (n_rows,) or None
        Weights of the rows as they were given.
    offset : memmap of shape (n_rows,) or (n_rows, n_classes) or None
        Numbers that are added to the model's outputs, as with the argument `offset` of an estimator's `fit`.
    source : memmap of shape (n_rows,)
        Input row of each stored row.
    nbytes : int
        Bytes of all arrays.

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
        self._opened = opened
        self._manifest = opened.manifest
        self._arrays = opened.arrays
        self._comm = comm or SerialCommunicator()
        self.path = path
        self.n_rows = self._manifest.n_rows
        self.n_features = self._manifest.n_features
        self.n_groups = len(self._manifest.group_names)
        self.names = self._manifest.group_names
        self.group_sizes = np.array(self._manifest.group_sizes)
        self.classes = None if self._manifest.classes is None else classes_array(self._manifest.classes)
        self.feature_names = self._manifest.feature_names
        self.target = self._manifest.target
        self.group_columns = self._manifest.group_columns
        self.weight = self._arrays.get("weight")
        self.offset = self._arrays.get("offset")
        self.source = self._arrays["source"]
        self.nbytes = sum(array.nbytes for array in self._arrays.values())

    # ------------------------------------------------------------------ writing

    @classmethod
    def write(
        cls,
        path: str | os.PathLike[str],
        source: Any,
        *,
        target: str,
        groups: str | Sequence[str],
        features: Sequence[str] | None = None,
        drop: str | Sequence[str] | None = None,
        weight: str | None = None,
        offset: str | Sequence[str] | None = None,
        dtype: Any = "float32",
        sparse: bool = False,
        n_features: int | None = None,
        hashed: bool = False,
        task: Task = "auto",
        seed: int = 0,
        memory: int = _MEMORY,
        test_size: float = 0.0,
        overwrite: bool = False,
        filesystem: Any = None,
    ) -> Any:
        """Write a table of any size to a store. Requires pyarrow (``pip install "groupdro[store]"``).

        The source is read twice: first the labels, then everything. Rows that do not fit into `memory` are sorted on
        disk, which needs space for two copies of the table. The store appears only when it is complete; an error or an
        interrupt leaves nothing behind.

        Parameters
        ----------
        path : str or path-like
            Directory of the store.
        source : str, path-like, list of them, table, reader, or callable
            One of the following:

            - Parquet, CSV or Arrow IPC (Feather) files, by paths, URIs (``s3://``, ``gs://``, ``file://`` and others
              that pyarrow knows, which finds credentials in the environment) or patterns of both (``visits/*.parquet``;
              ``**`` stands for any number of folders). Or one directory of Parquet files, where columns may be encoded
              in directory names ("column=value").
            - Anything that streams Arrow (``__arrow_c_stream__``), such as a table of pyarrow, Polars or pandas, a
              relation of DuckDB, or a reader. What has a length is streamed twice, so a relation must give the same
              rows again. A reader can be read only once, so the columns that are needed are kept on disk, next to the
              store, between the two passes. The same holds for a pyarrow Scanner.
            - A pyarrow Dataset. Its scanner holds a whole row group in memory, whereas Parquet files given by path are
              read in small batches.
            - A function without arguments that returns an iterator of pyarrow record batches, the same each time.
        target : str
            Column with class labels or numbers.
        groups : str or list of str
            Column with group labels: text, numbers or booleans. With several columns, each combination that occurs is a
            group.
        features : list of str, optional
            Numeric columns, or one column of fixed-size lists. For a sparse store, also one column of lists of (index,
            value), or a column of lists of indices and one of lists of values, of any or of a fixed size. The default
            is all other columns, except a pandas index.
        drop : str or list of str, optional
            Columns to leave out of the features.
        weight : str, optional
            Column with nonnegative weights. In a group's risk, they are relative to the total of the group; in the
            average over rows, a group counts by its total.
        offset : str or list of str, optional
            Column with a number per row that is added to the model's output, such as the score of a model to correct.
            For more than two classes, one column per class in sorted order.
        dtype : {"float16", "float32", "float64", "bool"}
            Type of the stored features; "float16" for dense features only, "bool" for sparse features that are all zero
            or one, of which no values are stored. Use "float64" if a warning or an error
            says so: integer columns that the type cannot represent (beyond 2^24 in float32, 2^11 in float16) are
            refused, and a warning names columns whose rounding error is not small compared to their spread.
        sparse : bool
            Whether to store only nonzero entries. Use it for data that are mostly zeros.
        n_features : int, optional
            Number of features; required if they are lists of indices and values, and if they are hashed.
        hashed : bool
            Whether to hash the columns into `n_features` sparse features. A value v of a text, integer or boolean
            column c becomes what scikit-learn's ``FeatureHasher(n_features)`` gives for the text "c=v", which is 1 or
            -1; so does every item of a list. A floating-point column c becomes the feature of the text "c", with its
            values or their negatives. Features that collide in a row are added up. With ``dtype="bool"`` there are no
            signs (``alternate_sign=False``), and features that collide count once.
        task : {"auto", "classes", "regression"}
            Kind of target. "auto" treats text, booleans and integers as classes, and floating-point values as numbers.
        seed : int
            Seed for the shuffling within groups. The same seed and rows give the same bytes on disk.
        memory : int
            Bytes of rows to hold at once. Peak use is up to three times as much, in addition to what pyarrow needs.
            Increase it to sort less on disk.
        test_size : float
            Share of each group's rows, drawn at random, to write to a second store instead, whose directory has the
            name of the first one followed by "-test". Every group keeps at least one row in the first.
        overwrite : bool
            Whether to replace an existing store, atomically. Anything other than a store is never replaced.
        filesystem : pyarrow or fsspec file system, optional
            The file system of the source's paths, for credentials or endpoints that a URI cannot name. The default is
            the local one.

        Returns
        -------
        GroupedStore, or tuple of two
            The opened store, followed by that of the held-out rows if `test_size` is positive.

        Raises
        ------
        ValueError
            If a column is missing or of the wrong type, or has missing values, NaN or infinite values, or integers that
            the type cannot represent; or if a URI has a scheme that pyarrow does not know.
        FileNotFoundError
            If a file or bucket of the source does not exist.
        FileExistsError
            If the path exists and `overwrite` is false, or if it is not a store.
        """
        table = TableSource(
            source,
            target=target,
            groups=groups,
            features=features,
            drop=drop,
            weight=weight,
            offset=offset,
            n_features=n_features,
            dtype=dtype,
            sparse=sparse,
            hashed=hashed,
            task=task,
            filesystem=filesystem,
        )
        return cls._write(path, table, seed=seed, memory=memory, overwrite=overwrite, test_size=test_size)

    @classmethod
    def write_arrays(
        cls,
        path: str | os.PathLike[str],
        X: Any,
        y: Any,
        groups: Any = None,
        *,
        sample_weight: Any = None,
        offset: Any = None,
        dtype: Any = "float32",
        sparse: bool | None = None,
        task: Task = "auto",
        seed: int = 0,
        memory: int = _MEMORY,
        test_size: float = 0.0,
        overwrite: bool = False,
    ) -> Any:
        """Write arrays to a store.

        Parameters
        ----------
        path : str or path-like
            Directory of the store.
        X : ndarray, memmap, DataFrame, or sparse matrix or array of shape (n_rows, n_features)
            Numeric features.
        y : array-like of shape (n_rows,)
            Labels or numbers.
        groups : array-like, Series or DataFrame, or None
            One label per row, or several columns, whose combinations are the groups; or what `find_groups` returned, of
            which each row gets the worst group that it is in. None for one group of all rows.
        sample_weight : array-like of shape (n_rows,), optional
            Nonnegative weights, as `weight` of `write`.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Numbers that are added to the model's outputs; one per class for more than two classes.
        dtype, task, seed, memory, test_size, overwrite
            As in `write`.
        sparse : bool, optional
            Whether to store only nonzero entries. The default is True if X is sparse.

        Returns
        -------
        GroupedStore, or tuple of two
            As for `write`.
        """
        arrays = ArraySource(
            X, y, groups, sample_weight=sample_weight, offset=offset, dtype=dtype, sparse=sparse, task=task
        )
        return cls._write(path, arrays, seed=seed, memory=memory, overwrite=overwrite, test_size=test_size)

    @classmethod
    def _write(cls, path: Any, source: Source, *, test_size: float, **how: Any) -> Any:
        write_store(path, source, test_size=test_size, **how)
        return (cls.open(path), cls.open(test_path(Path(path)))) if test_size else cls.open(path)

    # ------------------------------------------------------------------ reading

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: Literal["small", "full"] = "small") -> "GroupedStore":
        """Open a store.

        Parameters
        ----------
        path : str or path-like
            Directory of the store.
        verify : {"small", "full"}
            "small" checks the manifest, the size and header of every file, and the entries of targets, weights, offsets
            and row pointers that take at most 64 MiB each. "full" reads everything, like `verify`; use it for a store
            from a source that you do not trust.

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
        place = check_path(path, "path").resolve()
        try:
            return cls(place, read_store(place, full=verify == "full"))
        except (StoreError, OSError) as error:
            if place.is_dir():
                raise StoreError(f"{os.fspath(path)!r} cannot be read as a store: {error}.") from None
            killed = "; its writer was killed, and the next writer moves the old store back"
            why = killed if is_being_replaced(place) else ""
            raise FileNotFoundError(f"there is no directory {os.fspath(path)!r}{why}.") from None

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
        except (StoreError, OSError) as error:
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
        y = np.array(self._arrays["y"])
        # The manifest has the checksums of all arrays; `RowsCheck` verifies them only if a checkpoint is used.
        key = hashlib.sha256(manifest_bytes(self._manifest))
        if labels is not None:
            if self.classes is None:
                raise ValueError("labels require a store of classes, but the targets of this one are numbers.")
            numbers = np.asarray(labels)
            fits = numbers.shape == self.classes.shape and numbers.dtype.kind in "fiu"
            if not fits or not np.isfinite(numbers).all():
                raise ValueError(f"labels must be {len(self.classes)} numbers, one per class, got {labels!r}.")
            y = numbers[y]
            key.update(numbers.astype(np.float64).tobytes())
        weights = np.empty(0)
        if self.weight is not None:
            weights = relative_weights(self.weight, self._manifest.group_offsets, self.names)
        whole = GroupedData(
            rows=wrap_rows(self.X),
            y=y,
            row_offsets=np.empty(0) if self.offset is None else np.asarray(self.offset),
            offsets=self._manifest.group_offsets,
            members=np.empty(0, np.int64),
            weights=weights,
            names=self.names,
            source=self.source,
            feature_names=self.feature_names,
            key=key.digest(),
            key_check=RowsCheck(self.path, self._opened, self._comm),
        )
        return shard(whole, self._comm)

    def given(self) -> GivenRows:
        """Return the rows with labels, groups, weights and offsets, as reports and comparisons take them.

        Returns
        -------
        GivenRows
            The rows in the order of the store. X is mapped, not read.
        """
        offsets = self._manifest.group_offsets
        return GivenRows(
            self.X,
            self.y,
            Grouping(
                offsets, np.arange(self.n_rows), self.names, overlapping=False, by=tuple(self.group_columns or ())
            ),
            None if self.weight is None else np.array(self.weight),
            None,
            None if self.offset is None else np.array(self.offset),
        )

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
        if self._opened.nnz is None:
            return self._arrays["X"]
        indices = np.asarray(self._arrays["indices"])
        data = self._arrays.get("data")
        if data is None:  # all entries are one
            data = np.broadcast_to(np.ones(1, np.float32), indices.shape)
        return csr_of(np.asarray(data), indices, np.asarray(self._arrays["indptr"]), self.n_features)

    @cached_property
    def y(self) -> Array:
        """Original labels, or memory-mapped numbers."""
        stored: Array = self._arrays["y"]
        return stored if self.classes is None else self.classes[stored]

    @cached_property
    def group_shares(self) -> Floats:
        """Share of each group in all rows, or in their total weight if rows have weights."""
        totals = self.group_sizes.astype(np.float64)
        if self.weight is not None:
            # Divided first, so that no sum overflows.
            totals = np.add.reduceat(self.weight / self.weight.max(), self._manifest.group_offsets[:-1])
        return np.asarray(totals / totals.sum())

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        kind = "dense" if self._opened.nnz is None else f"CSR with {self._opened.nnz} entries"
        dtype = self.X.dtype if self._opened.nnz is None or "data" in self._arrays else "bool"
        return (
            f"GroupedStore({os.fspath(self.path)!r}: {self.n_rows} rows in {self.n_groups} groups, "
            f"{self.n_features} features, {kind}, {dtype}, {self.nbytes / 2**20:.1f} MiB)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self._comm.size > 1:
            raise TypeError(
                "A store for one of several workers cannot be copied to another process: open and shard it there."
            )
        return GroupedStore.open, (os.fspath(self.path),)  # the other process maps the files itself
