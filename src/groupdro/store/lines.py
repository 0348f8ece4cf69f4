"""Text files with one sparse row per line: those of svmlight and libsvm, and those of Vowpal Wabbit."""

import codecs
import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_svmlight_file

from groupdro.store.hashed import hashed_features
from groupdro.store.sources import Coded, LabelBlock, Source, has_classes, refuse_not_finite
from groupdro.utils.arguments import check_flag, check_path, check_whole
from groupdro.utils.types import Floats

__all__ = ["SvmlightSource", "VowpalSource"]

_LEAST_BYTES = 1 << 16  # of a block
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zX", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")  # gzip, bzip2, xz, zstd, zip
_WIDE_TEXT = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)  # UTF-32-LE begins as UTF-16-LE does
_TEXT_SHARE = 8  # memory of a parsed block in bytes per byte of text


class _LineSource(Source):
    """Files that are read line by line.

    Parameters
    ----------
    files : str, path-like, or list of them
        The files.
    n_features : int
        Number of features.
    dtype : str, type or dtype
        Type of the entries of the store.
    task : {"classes", "regression"}
        Kind of label.
    """

    feature_names = None
    weighted = False

    def __init__(self, files: Any, n_features: int, dtype: Any, task: str):
        super().__init__(dtype, sparse=True)
        listed = list(files) if isinstance(files, Sequence) and not isinstance(files, str) else [files]
        if not listed:
            raise ValueError("source has no file.")
        self._files = [check_path(file, "source") for file in listed]
        check_whole(n_features, "n_features", least=1, most=2**31)
        self.n_features = int(n_features)
        self.has_classes = has_classes("floating", task, "the label")

    def feature(self, column: int) -> str:
        """Describe a column of X for an error."""
        return f"feature {column}"

    def _line_blocks(self, memory: int) -> Iterator[tuple[str, int, list[bytes]]]:
        """Yield the name of a file, the number of the first line of a block, and the lines of the block."""
        for file in self._files:
            name = os.fspath(file)
            with Path(file).open("rb") as stream:
                start = stream.read(4)
                if start.startswith(_COMPRESSED):
                    raise ValueError(f"{name!r} is compressed; decompress it first.")
                if start.startswith(_WIDE_TEXT):
                    raise ValueError(f"{name!r} is text in UTF-16 or UTF-32; convert it to UTF-8 first.")
                stream.seek(len(codecs.BOM_UTF8) if start.startswith(codecs.BOM_UTF8) else 0)
                number = 1
                while lines := stream.readlines(max(_LEAST_BYTES, memory // _TEXT_SHARE)):
                    yield name, number, lines
                    number += len(lines)

    def _target(self, labels: Floats, row: int) -> Coded | Floats:
        refuse_not_finite("the label", labels, row)
        if not self.has_classes:
            return labels
        values, codes = np.unique(labels, return_inverse=True)
        whole = (values == np.floor(values)).all()
        return Coded(codes.ravel().astype(np.int64), [int(value) if whole else value for value in values.tolist()])

    def _stored_rows(self, matrix: Any, row: int) -> Any:
        """Store rows in which no feature has been added to another one yet."""
        if self.rounding.dtype.kind == "b":
            self.rounding.check_ones(matrix, row)
        matrix.sum_duplicates()
        if self.rounding.dtype.kind == "b":
            matrix.data = (matrix.data != 0).astype(np.float64)  # features that fall on each other count once
        return self.stored(matrix, row)


@dataclass(frozen=True, slots=True)
class _VowpalRow:
    """One line of Vowpal Wabbit.

    Attributes
    ----------
    label, weight : float
        Label and importance weight.
    group : str
        Name of the group.
    texts : list of bytes
        What the features are hashed from.
    values : list of float
        Values of the features.
    """

    label: float
    weight: float
    group: str
    texts: list[bytes]
    values: list[float]


class SvmlightSource(_LineSource):
    """Files of svmlight and libsvm, with lines such as "1 qid:3 2:0.5 7:1"; the query is the group.

    Parameters
    ----------
    files, n_features, dtype, task
        As for any file of lines.
    zero_based : bool
        Whether columns are numbered from 0 instead of 1.
    """

    group_names = ("qid",)

    def __init__(self, files: Any, n_features: int, dtype: Any, task: str, *, zero_based: bool):
        super().__init__(files, n_features, dtype, task)
        check_flag(zero_based, "zero_based")
        self._zero_based = zero_based

    def blocks(self, memory: int, *, labels_only: bool = False) -> Iterator[tuple[LabelBlock, Any]]:
        """Parse some lines at a time."""
        row, first = 0, 0 if self._zero_based else 1
        for file, number, lines in self._line_blocks(memory):
            try:
                X, y, queries = load_svmlight_file(
                    io.BytesIO(b"".join(lines)), n_features=self.n_features, zero_based=self._zero_based, query_id=True
                )
            except (ValueError, OverflowError) as error:
                raise ValueError(
                    f"{file!r}, lines {number} to {number + len(lines) - 1}: {error}. A line is a label, qid:GROUP, "
                    f"and ascending COLUMN:VALUE, with columns from {first} to {self.n_features - 1 + first}."
                ) from error
            if len(queries) != len(y):
                raise ValueError(f"{file!r} has rows without a qid, which is the group.")
            values, codes = np.unique(queries, return_inverse=True)
            labels = LabelBlock(self._target(y, row), Coded(codes.ravel(), values.tolist()), None)
            yield labels, None if labels_only else self._stored_rows(sp.csr_array(X), row)
            row += len(y)


class VowpalSource(_LineSource):
    """Files of Vowpal Wabbit, with lines such as "1 0.5 |country DE |page url_7 price:2.5".

    The feature of name v in namespace c is hashed from the text "c=v", or from "v" if the namespace has no name: not as
    Vowpal Wabbit hashes, but as `GroupedStore.write` does with ``hashed=True``. A feature that occurs several times in
    a line has the sum of its values, or one in a store of ones. Importance weights are the weights of the rows.

    Parameters
    ----------
    files, n_features, dtype, task
        As for any file of lines.
    groups : str
        Namespace whose only feature is the group.
    """

    weighted = True

    def __init__(self, files: Any, n_features: int, dtype: Any, task: str, *, groups: str):
        super().__init__(files, n_features, dtype, task)
        if not isinstance(groups, str) or not groups:
            raise ValueError(f"groups must be the name of a namespace, got {groups!r}.")
        self.group_names, self._own = (groups,), groups.encode()

    def blocks(self, memory: int, *, labels_only: bool = False) -> Iterator[tuple[LabelBlock, Any]]:
        """Parse some lines at a time."""
        row = 0
        for file, first, lines in self._line_blocks(memory):
            parsed = []
            for number, line in enumerate(lines, first):
                try:
                    parsed += [self._parse(line, labels_only)] if line.strip() else []
                except ValueError as error:
                    raise ValueError(f"{file!r}, line {number}: {error}") from error
            if parsed:
                yield self._labels(parsed, row), None if labels_only else self._rows(parsed, row)
            row += len(parsed)

    def _parse(self, line: bytes, labels_only: bool) -> _VowpalRow:
        head, *parts = line.rstrip(b"\r\n").split(b"|")
        texts, values, groups, unscaled = [], [], [], True
        for part in parts:
            words = part.split()
            name, factor = (b"", 1.0) if part[:1].isspace() or not words else _named_value(words.pop(0))
            if name == self._own:
                groups += words
                unscaled &= factor == 1.0
            elif not labels_only:
                for text, value in map(_named_value, words):
                    texts.append(name + b"=" + text if name else text)
                    values.append(factor * value)
        if len(groups) != 1 or b":" in groups[0] or not unscaled:
            raise ValueError(
                f"namespace {self._own.decode()!r} must have one feature, the group, without a value; it has "
                f"{', '.join(map(_shown, groups[:5])) or 'none'}{'' if unscaled else ' and a value itself'}."
            )
        return _VowpalRow(*_label_and_weight(head), groups[0].decode(), texts, values)

    def _labels(self, parsed: list[_VowpalRow], row: int) -> LabelBlock:
        values, codes = np.unique(np.array([line.group for line in parsed], dtype=object), return_inverse=True)
        target = self._target(np.array([line.label for line in parsed]), row)
        return LabelBlock(target, Coded(codes.ravel(), values.tolist()), np.array([line.weight for line in parsed]))

    def _rows(self, parsed: list[_VowpalRow], row: int) -> Any:
        columns = hashed_features("", [text for line in parsed for text in line.texts], self.n_features)
        values = np.array([value for line in parsed for value in line.values], np.float64)
        ends = np.cumsum([0, *(len(line.values) for line in parsed)])
        return self._stored_rows(sp.csr_array((values, columns, ends), shape=(len(parsed), self.n_features)), row)


def _label_and_weight(head: bytes) -> tuple[float, float]:
    """Read the words before the first bar: a label, perhaps an importance weight, and perhaps a tag."""
    words = head.split()
    if words and (words[-1].startswith(b"'") or (len(words) > 1 and not head[-1:].isspace())):
        words.pop()  # a tag begins with an apostrophe or touches the bar
    if not words:
        raise ValueError("has no label.")
    numbers = [_number(word) for word in words]
    if any(numbers[2:]):
        raise ValueError("has more than a label and a weight; a store does not hold initial predictions.")
    weight = numbers[1] if len(numbers) > 1 else 1.0
    if weight < 0:
        raise ValueError(f"the importance weight {weight:g} is negative.")
    return numbers[0], weight


def _named_value(word: bytes) -> tuple[bytes, float]:
    """Read the name of a feature or namespace, and its value, if it has one."""
    name, colon, value = word.partition(b":")
    if not name:  # Vowpal Wabbit numbers such features
        raise ValueError(f"{_shown(word)} has no name.")
    return name, _number(value) if colon else 1.0


def _number(word: bytes) -> float:
    try:
        number = float(word)
    except ValueError:
        raise ValueError(f"{_shown(word)} is not a number.") from None
    if not math.isfinite(number):
        raise ValueError(f"{_shown(word)} is NaN or infinite.")
    return number


def _shown(word: bytes) -> str:
    return repr(word[:40].decode(errors="replace"))
