"""Files that come with checksums, and directories that appear whole or not at all."""

import errno
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from groupdro.bundle import naming_file, sync_folder
from groupdro.store.document import StoreError, check, parse_json
from groupdro.store.layout import BLOCK, FILES, FORMAT, LARGEST_MANIFEST, MANIFEST, FileRecord

__all__ = ["ChecksummedFile", "bring_back", "check_blocks", "naming_file", "new_directory", "read_array", "write_array"]

_PIECE = 4 * 2**20  # bytes read at once to check them


def write_array(file: BinaryIO, array: NDArray[Any]) -> memoryview:
    """Append the bytes of an array, in C order.

    Parameters
    ----------
    file : binary file
        Where to.
    array : ndarray
        What.

    Returns
    -------
    memoryview
        The bytes written.
    """
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    file.write(content)
    return content


def read_array(file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Read the next bytes of a file as an array.

    Parameters
    ----------
    file : binary file
        Where from.
    dtype : dtype
        Type of the entries.
    shape : tuple of int
        Shape of the array.

    Returns
    -------
    ndarray
        A new array.
    """
    array = np.empty(shape, dtype)
    content = array.reshape(-1).view(np.uint8).data
    if file.readinto(content) != len(content):  # type: ignore[attr-defined]  # buffered files have it
        raise OSError(errno.EIO, "the file ends early", getattr(file, "name", None))
    return array


class ChecksummedFile:
    """A new file, written from front to back.

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

    def __enter__(self) -> "ChecksummedFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError:
            if error is None:
                raise

    def write(self, array: NDArray[Any]) -> None:
        """Append an array.

        Parameters
        ----------
        array : ndarray
            The array.
        """
        with naming_file(self._path):
            content = write_array(self._file, array)
        while content:
            used = self._size % BLOCK
            part = content[: BLOCK - used]
            self._crc32.append(zlib.crc32(part, self._crc32.pop() if used else 0))
            self._size += len(part)
            content = content[len(part) :]

    def finish(self) -> FileRecord:
        """Bring the file to the disk and close it.

        Returns
        -------
        FileRecord
            Its size and checksums.
        """
        with naming_file(self._path):
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
        What it should be.
    start, stop : int
        Only blocks that have a byte of this range are read; None is the end of the file.
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


# ---------------------------------------------------------------------- directories


@contextmanager
def new_directory(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Fill a directory beside its place, and move it there when all of it is on the disk.

    Parameters
    ----------
    target : Path
        Where it will be.
    overwrite : bool
        Whether a store may be there already, which is then replaced.

    Yields
    ------
    Path
        The directory to fill. It is removed if an exception comes; what a killed process left is removed by the next
        one that writes to the same place.
    """
    _clear_leftovers(target)
    _check_free(target, overwrite)
    temporary, lock = _locked_directory(target)
    try:
        yield temporary
        sync_folder(temporary)
        _move(temporary, target, overwrite)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _check_free(target: Path, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise FileExistsError(errno.EEXIST, "path exists: choose another, or pass overwrite=True", os.fspath(target))
    try:
        content = (target / MANIFEST).read_bytes()
        document = parse_json(content, MANIFEST, LARGEST_MANIFEST)
        ours = isinstance(document, dict) and document.get("format") == FORMAT
    except (OSError, StoreError):
        ours = False
    if not ours or not {entry.name for entry in target.iterdir()} <= {MANIFEST, *FILES}:
        raise FileExistsError(
            errno.EEXIST, "path is no store, or has other files in it, and is not overwritten", os.fspath(target)
        )


def _move(temporary: Path, target: Path, overwrite: bool) -> None:
    _check_free(target, overwrite)
    if not target.exists():
        os.rename(temporary, target)
        sync_folder(target.parent)
        return
    replaced = temporary.with_suffix(".replaced")
    lock = None
    try:
        with suppress(OSError):  # a file system without locks
            lock = _lock(target)  # so that no other writer takes it for a leftover
        os.rename(target, replaced)
        try:
            os.rename(temporary, target)
        except BaseException:
            os.rename(replaced, target)
            raise
        sync_folder(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


def _locked_directory(target: Path) -> tuple[Path, int | None]:
    """Make a directory and lock it. The lock dies with the process, which tells a leftover from work under way."""
    while True:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
        temporary.mkdir()
        try:
            lock = _lock(temporary)
        except (BlockingIOError, FileNotFoundError):
            continue  # another writer took it for a leftover before it was locked, and removes it
        except OSError:
            return temporary, None  # a file system without locks
        if temporary.exists():
            return temporary, lock
        if lock is not None:
            os.close(lock)


def _lock(directory: Path) -> int | None:
    """Lock a directory for as long as it is held open; None where the system has no such locks."""
    try:
        import fcntl
    except ImportError:
        return None
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(held)
        raise
    return held


def bring_back(target: Path) -> None:
    """Bring back a store that a writer was about to replace when it was killed."""
    with suppress(OSError):  # no folder, or one in which nothing may be changed
        _clear_leftovers(target)


def _clear_leftovers(target: Path) -> None:
    """Remove what killed writers of the same place left, and bring back a store that one was about to replace."""
    pattern = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{16}\.(partial|replaced)")
    for entry in list(target.parent.iterdir()):
        if not pattern.fullmatch(entry.name):
            continue
        try:
            lock = _lock(entry)
        except OSError:
            continue  # its writer lives, or the file system cannot tell
        if lock is None:
            continue
        try:
            if entry.suffix == ".replaced" and not os.path.lexists(target):
                os.rename(entry, target)
            else:
                shutil.rmtree(entry, ignore_errors=True)
        finally:
            os.close(lock)
