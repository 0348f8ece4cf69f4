"""Tables whose values are hashed into a fixed number of sparse features."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from groupdro.kernels.hashing import hash_words
from groupdro.store.arrow import ArrowSource, to_numpy
from groupdro.store.sources import refuse, refuse_not_finite
from groupdro.utils.arguments import check_whole
from groupdro.utils.types import Array, Floats, Indices

__all__ = ["HashedSource", "hashed_features"]

_ENTRY_BYTES = 48  # of an entry of a block, with its copies


def hashed_features(prefix: str, words: list[bytes] | tuple[Array, Indices], n_features: int) -> Indices:
    """Return the feature of each word: that of scikit-learn's FeatureHasher for the prefix followed by the word.

    Parameters
    ----------
    prefix : str
        What every word begins with.
    words : list of bytes, or pair of ndarray
        The words, or their bytes one after the other and the offsets at which they begin and end.
    n_features : int
        Number of features.

    Returns
    -------
    ndarray of int
        The features.
    """
    if isinstance(words, list):
        offsets = np.cumsum([0, *map(len, words)])
        words = np.frombuffer(b"".join(words), np.uint8), offsets
    text, offsets = words
    out = np.empty(len(offsets) - 1, np.int64)
    hash_words(np.frombuffer(prefix.encode(), np.uint8), text, np.asarray(offsets, np.int64), n_features, out)
    return out


class HashedSource(ArrowSource):
    """Any source that pyarrow reads, with its columns hashed.

    A value v of a text, integer or boolean column c is the feature that is hashed from the text "c=v", with value one;
    booleans are True and False. So is every item of a column of lists. A floating-point column c is the feature hashed
    from "c", with the column's values. Features that fall on each other within a row are added up, or count once if the
    store is of ones.

    Parameters are those of `ArrowSource`; `n_features` is required.
    """

    def feature(self, column: int) -> str:
        """Describe a column of X for an error."""
        return f"features, hashed feature {column},"

    def _read_layout(self, n_features: int | None) -> None:
        """Check the types of the columns."""
        if n_features is None or not self.sparse:
            raise ValueError("hashed=True requires sparse=True and n_features.")
        check_whole(n_features, "n_features", least=1, most=2**31)
        self.n_features, self.feature_names = int(n_features), None
        kinds = {name: self._type(name) for name in self._features}
        self._lists = any(map(self._is_list, kinds.values()))
        self._row_bytes = _ENTRY_BYTES * len(kinds)
        self._kinds = {name: self._kind_of_items(kind) for name, kind in kinds.items()}
        for name, kind in kinds.items():
            if self._kinds[name] is None or (self._is_list(kind) and self._kinds[name] == "floating"):
                raise ValueError(
                    f"features column {name!r} has type {kind}, which cannot be hashed; text, numbers, booleans and "
                    "lists of text, integers or booleans can."
                )

    def _kind_of_items(self, kind: Any) -> str | None:
        return self._kind(kind.value_type if self._is_list(kind) else kind)

    def _rows(self, batch: Any, row: int) -> Any:
        parts = [self._entries(self._present(batch, "features", name, row), name, row) for name in self._features]
        rows, columns, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        matrix = sp.coo_array((values, (rows, columns)), shape=(len(batch), self.n_features)).tocsr()
        if self.rounding.dtype.kind == "b":
            matrix.data = (matrix.data != 0).astype(np.float64)
        return self.stored(matrix, row)

    def _entries(self, column: Any, name: str, row: int) -> tuple[Indices, Indices, Floats]:
        """Return row, feature and value of each entry that a column contributes."""
        if self._kind_of_items(column.type) != self._kinds[name]:  # the same values would become other features
            raise ValueError(
                f"features column {name!r} changes its type from row {row} on: {column.type} is not {self._type(name)}."
            )
        owner = np.arange(len(column))
        if self._is_list(column.type):
            owner = np.repeat(owner, to_numpy(column.value_lengths()))
            column = column.flatten()
            missing = np.bincount(owner, to_numpy(column.is_null()), minlength=1) > 0
            refuse(f"features column {name!r}", "a missing item", missing, row)
        if self._kind(column.type) == "floating":
            values = to_numpy(column).astype(np.float64)
            refuse_not_finite(f"features column {name!r}", values, row)
            if self.rounding.dtype.kind == "b":
                other = (values != 0) & (values != 1)
                refuse(f"features column {name!r}", 'a value that dtype="bool" would replace by one', other, row)
            return owner, np.full(len(owner), hashed_features("", [name.encode()], self.n_features)[0]), values
        # Each distinct value is written as text and hashed once.
        encoded = column.dictionary_encode()
        words = encoded.dictionary.cast(self._pa.large_string())
        if self._pa.types.is_boolean(encoded.dictionary.type):  # as Python writes them, so that a prediction can too
            words = self._pa.array([word.capitalize() for word in words.to_pylist()], self._pa.large_string())
        _, offsets, text = words.buffers()
        ends = np.frombuffer(offsets, np.int64)[words.offset : words.offset + len(words) + 1]
        letters = np.frombuffer(text, np.uint8) if text is not None else np.empty(0, np.uint8)
        features = hashed_features(f"{name}=", (letters, ends), self.n_features)
        return owner, features[to_numpy(encoded.indices)], np.ones(len(owner))
