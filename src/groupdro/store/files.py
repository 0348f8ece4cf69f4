"""Files with checksums."""

import errno
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from groupdro.store.layout import BLOCK, FileRecord
from groupdro.utils.bundle import check, filename_in_errors
from groupdro.utils.types import Array

__all__ = ["ChecksummedFile", "check_blocks", "read_array", "write_array", "write_bytes"]

_PIECE = 4 * 2**20  # bytes read at once to check them


def write_array(file: BinaryIO, array: Array) -> memoryview:
    """Append the bytes of an array, in C order.

    Parameters
    ----------
    file : binary file
        The file.
    array : ndarray
        The array.

    Returns
    -------
    memoryview
        The bytes written.
    """
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    file.write(content)
    return content


def read_array(file: BinaryIO, dtype: np.dtype[Any], n: int) -> Array:
    """Read the next entries of a file.

    Parameters
    ----------
    file : binary file
        The file.
    dtype : dtype
        Type of the entries.
    n : int
        Number of entries.

    Returns
    -------
    ndarray of shape (n,)
        The entries, as a new array.
    """
    array = np.empty(n, dtype)
    content = array.view(np.uint8).data
    if file.readinto(content) != len(content):  # type: ignore[attr-defined]  # buffered files have this method
        raise OSError(errno.EIO, "the file ends early")
    return array


class ChecksummedFile:
    """A new file, written sequentially.

    Parameters
    ----------
    path : Path
        The file, which must not exist.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = path.open("xb")
        self._size = 0
        self._crc32: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # if the file is not finished, there already is an error
            self._file.close()

    def write(self, array: Array) -> None:
        """Append an array.

        Parameters
        ----------
        array : ndarray
            The array.
        """
        with filename_in_errors(self._path):
            content = write_array(self._file, array)
        while content:
            used = self._size % BLOCK
            part = content[: BLOCK - used]
            self._crc32.append(zlib.crc32(part, self._crc32.pop() if used else 0))
            self._size += len(part)
            content = content[len(part) :]

    def finish(self) -> FileRecord:
        """Flush the file to disk and close it.

        Returns
        -------
        FileRecord
            Its size and checksums.
        """
        with filename_in_errors(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return FileRecord(self._size, tuple(self._crc32))


def check_blocks(path: Path, record: FileRecord, start: int = 0, stop: int | None = None) -> None:
    """Read a file and compare its blocks with their checksums.

    Parameters
    ----------
    path : Path
        The file.
    record : FileRecord
        Expected size and checksums.
    start, stop : int
        Range of bytes whose blocks are read; None for the end of the file.
    """
    buffer = memoryview(bytearray(min(_PIECE, BLOCK, max(record.size, 1))))
    first, last = start // BLOCK, -(-(record.size if stop is None else stop) // BLOCK)
    with path.open("rb", buffering=0) as file:
        file.seek(first * BLOCK)
        for block, stated in enumerate(record.crc32[first:last], first):
            left = min(BLOCK, record.size - block * BLOCK)
            crc32 = 0
            while left:
                n_read = file.readinto(buffer[: min(left, len(buffer))])
                check(bool(n_read), f"its {path.name} ends in block {block}")
                crc32 = zlib.crc32(buffer[:n_read], crc32)
                left -= n_read
            check(crc32 == stated, f"its {path.name} is damaged in block {block}, which begins at byte {block * BLOCK}")


def write_bytes(path: Path, content: bytes) -> FileRecord:
    """Write a new file and flush it to disk.

    Parameters
    ----------
    path : Path
        The file, which must not exist.
    content : bytes
        The entire content.

    Returns
    -------
    FileRecord
        Its size and checksums.
    """
    with ChecksummedFile(path) as file:
        file.write(np.frombuffer(content, np.uint8))
        return file.finish()
