"""Files of arrays, in NumPy's `.npy` format and with checksums."""

import io
import os
import stat
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib import format as npy

from groupdro.store.manifest import BLOCK, FileRecord, StoreError, check
from groupdro.utils.files import filename_in_errors, reading_header
from groupdro.utils.types import Array

__all__ = ["ArrayFile", "check_blocks", "map_array", "regular_size"]

_PIECE = 4 * 2**20  # bytes read at once to check them


class ArrayFile:
    """A new `.npy` file, written from its beginning to its end.

    The file is not written through a memory map, where a full disk would kill the process.

    Parameters
    ----------
    path : Path
        The file, which must not exist.
    dtype : str
        Type of the entries.
    shape : tuple of int
        Shape of the array, to be written in C order.
    """

    def __init__(self, path: Path, dtype: str, shape: tuple[int, ...]):
        self._path = path
        self._dtype = np.dtype(dtype)
        self._size = 0
        self._crc32: list[int] = []
        self._file = path.open("xb")
        header = io.BytesIO()
        npy.write_array_header_1_0(header, {"descr": self._dtype.str, "fortran_order": False, "shape": shape})
        self._append(header.getbuffer())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # if the file is not finished, there already is an error
            self._file.close()

    def write(self, part: Array) -> None:
        """Append the next rows of the array."""
        rows = np.ascontiguousarray(part, dtype=self._dtype)
        self._append(rows.reshape(-1).view(np.uint8).data)

    def finish(self) -> FileRecord:
        """Flush the file to disk, close it, and return its record."""
        with filename_in_errors(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return FileRecord(self._size, tuple(self._crc32))

    def _append(self, content: memoryview) -> None:
        with filename_in_errors(self._path):
            self._file.write(content)
        while content:
            used = self._size % BLOCK
            part = content[: BLOCK - used]
            self._crc32.append(zlib.crc32(part, self._crc32.pop() if used else 0))
            self._size += len(part)
            content = content[len(part) :]


def regular_size(path: Path) -> int | None:
    """Return the size of a regular file; None for anything else, such as a pipe, on which a reader would wait."""
    with suppress(OSError):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode):
            return found.st_size
    return None


def map_array(path: Path, record: FileRecord) -> np.memmap[Any, Any]:
    """Map an array for reading, after checking that the file has the size of its record.

    Parameters
    ----------
    path : Path
        The file.
    record : FileRecord
        Its size.

    Returns
    -------
    memmap
        The array, read-only.
    """
    size = regular_size(path)
    check(size is not None, f"its {path.name} is missing or not a regular file")
    check(size == record.size, f"its {path.name} has {size} bytes instead of {record.size}")
    try:
        with reading_header:
            array = npy.open_memmap(path, mode="r")  # never unpickles
    except Exception as error:  # a damaged header can make NumPy raise anything
        raise StoreError(f"its {path.name} cannot be read: {error}") from None
    whole = array.flags.c_contiguous and array.offset + array.nbytes == size
    check(whole, f"its {path.name} is not an array in C order that fills the file")
    return array


def check_blocks(path: Path, record: FileRecord, start: int = 0, stop: int | None = None) -> None:
    """Read a file and compare its blocks with their checksums.

    Parameters
    ----------
    path : Path
        The file.
    record : FileRecord
        Its size and checksums.
    start, stop : int
        Range of bytes whose blocks are read; None for the end of the file.
    """
    buffer = memoryview(bytearray(min(_PIECE, BLOCK, record.size)))
    first = start // BLOCK
    last = -(-(record.size if stop is None else stop) // BLOCK)
    with path.open("rb", buffering=0) as file:
        file.seek(first * BLOCK)
        for block, stated in enumerate(record.crc32[first:last], first):
            left = min(BLOCK, record.size - block * BLOCK)
            crc32 = 0
            while left:
                n_read = file.readinto(buffer[: min(left, len(buffer))])
                check(n_read, f"its {path.name} ends in block {block}")
                crc32 = zlib.crc32(buffer[:n_read], crc32)
                left -= n_read
            check(crc32 == stated, f"its {path.name} is damaged in block {block}, which begins at byte {block * BLOCK}")
