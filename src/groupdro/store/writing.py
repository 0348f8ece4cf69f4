"""The ways to write a store: from tables, arrays, and text files."""

import os
from collections.abc import Sequence
from typing import Any, Literal, Self

from groupdro.store.arrow import ArrowSource
from groupdro.store.hashed import HashedSource
from groupdro.store.lines import SvmlightSource, VowpalSource
from groupdro.store.sources import ArraySource, Source, Task
from groupdro.store.writer import write_store
from groupdro.utils.arguments import check_choice, check_flag

__all__ = ["StoreWriting"]

_MEMORY = 256 * 2**20


class StoreWriting:
    """The part of a store that writes it."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a store."""
        raise NotImplementedError

    @classmethod
    def write(
        cls,
        path: str | os.PathLike[str],
        source: Any,
        *,
        target: str,
        groups: str | Sequence[str],
        features: Sequence[str] | None = None,
        weight: str | None = None,
        dtype: Any = "float32",
        sparse: bool = False,
        n_features: int | None = None,
        hashed: bool = False,
        task: Task = "auto",
        seed: int = 0,
        memory: int = _MEMORY,
        overwrite: bool = False,
    ) -> Self:
        """Write a table of any size to a store. Requires pyarrow (``pip install "groupdro[store]"``).

        The source is read twice: first the labels, then everything. Rows that do not fit into `memory` are sorted on
        disk, which needs space for two copies of the table. The store appears only when it is complete; an error or an
        interrupt leaves nothing behind.

        Parameters
        ----------
        path : str or path-like
            Directory of the store.
        source : str, path-like, list of them, pyarrow Dataset or Table, or callable
            Parquet, CSV or Arrow IPC (Feather) files; or one directory of Parquet files, where columns may be encoded
            in directory names ("column=value"); or a function without arguments that returns an iterator of pyarrow
            record batches, the same each time. Parquet files given by path are read in small batches, whereas the
            scanner of a Dataset holds a whole row group in memory.
        target : str
            Column with class labels or numbers.
        groups : str or list of str
            Column with group labels: text, numbers or booleans. With several columns, each combination that occurs is a
            group.
        features : list of str, optional
            Numeric columns, or one column of fixed-size lists. For a sparse store, also one column of lists of (index,
            value), or a column of lists of indices and one of lists of values, of any or of a fixed size. The default
            is all other columns, except a pandas index.
        weight : str, optional
            Column with nonnegative weights, relative to the total of the group.
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
            column c becomes the feature that ``FeatureHasher(n_features, alternate_sign=False)`` of scikit-learn gives
            to the text "c=v", with value one; so does every item of a list. A floating-point column c becomes the
            feature of the text "c", with its values. With ``dtype="bool"``, features that collide in a row count once.
        task : {"auto", "classes", "regression"}
            Kind of target. "auto" treats text, booleans and integers as classes, and floating-point values as numbers.
        seed : int
            Seed for the shuffling within groups. The same seed and rows give the same bytes on disk.
        memory : int
            Bytes of rows to hold at once. Peak use is up to three times as much, in addition to what pyarrow needs.
            Increase it to sort less on disk.
        overwrite : bool
            Whether to replace an existing store, atomically. Anything other than a store is never replaced.

        Returns
        -------
        GroupedStore
            The opened store.

        Raises
        ------
        ValueError
            If a column is missing or of the wrong type, or has missing values, NaN or infinite values, or integers that
            the type cannot represent.
        FileExistsError
            If the path exists and `overwrite` is false, or if it is not a store.
        """
        check_flag(hashed, "hashed")
        kind = HashedSource if hashed else ArrowSource
        table = kind(
            source,
            target=target,
            groups=groups,
            features=features,
            weight=weight,
            n_features=n_features,
            dtype=dtype,
            sparse=sparse,
            task=task,
        )
        write_store(path, table, seed=seed, memory=memory, overwrite=overwrite)
        return cls.open(path)

    @classmethod
    def write_arrays(
        cls,
        path: str | os.PathLike[str],
        X: Any,
        y: Any,
        groups: Any = None,
        *,
        sample_weight: Any = None,
        dtype: Any = "float32",
        sparse: bool | None = None,
        task: Task = "auto",
        seed: int = 0,
        memory: int = _MEMORY,
        overwrite: bool = False,
    ) -> Self:
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
            One label per row, or several columns, whose combinations are the groups. None for one group of all rows.
        sample_weight : array-like of shape (n_rows,), optional
            Nonnegative weights, relative to the total of the group.
        dtype, task, seed, memory, overwrite
            As in `write`.
        sparse : bool, optional
            Whether to store only nonzero entries. The default is True if X is sparse.

        Returns
        -------
        GroupedStore
            The opened store.
        """
        arrays = ArraySource(X, y, groups, sample_weight, dtype, sparse, task)
        write_store(path, arrays, seed=seed, memory=memory, overwrite=overwrite)
        return cls.open(path)

    @classmethod
    def write_lines(
        cls,
        path: str | os.PathLike[str],
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        form: Literal["svmlight", "vw"],
        n_features: int,
        groups: str | None = None,
        zero_based: bool = False,
        dtype: Any = "float32",
        task: Literal["classes", "regression"] = "classes",
        seed: int = 0,
        memory: int = _MEMORY,
        overwrite: bool = False,
    ) -> Self:
        """Write text files with one sparse row per line to a store.

        Parameters
        ----------
        path : str or path-like
            Directory of the store.
        source : str, path-like, or list of them
            The files: text in UTF-8, with or without a byte order mark, not compressed.
        form : {"svmlight", "vw"}
            "svmlight" for files of svmlight and libsvm, whose ``qid`` is the group. "vw" for files of Vowpal Wabbit,
            whose importance weights become the weights of the rows.
        n_features : int
            Number of features. Those of Vowpal Wabbit are hashed: the feature v of namespace c is that of the text
            "c=v" in `write` with ``hashed=True``, and that of the text "v" if the namespace has no name. Values of a
            feature that occurs several times in a line are added up.
        groups : str, optional
            Namespace of Vowpal Wabbit whose only feature, without a value, is the group.
        zero_based : bool
            Whether svmlight's columns are numbered from 0 instead of 1.
        task : {"classes", "regression"}
            Kind of label.
        dtype, seed, memory, overwrite
            As in `write`.

        Returns
        -------
        GroupedStore
            The opened store.
        """
        check_choice(form, "form", ("svmlight", "vw"))
        check_choice(task, "task", ("classes", "regression"))
        lines: Source
        if form == "svmlight":
            if groups is not None:
                raise ValueError("groups is for Vowpal Wabbit; the groups of svmlight are its qid.")
            lines = SvmlightSource(source, n_features, dtype, task, zero_based=zero_based)
        else:
            lines = VowpalSource(source, n_features, dtype, task, groups=groups or "")
        write_store(path, lines, seed=seed, memory=memory, overwrite=overwrite)
        return cls.open(path)
