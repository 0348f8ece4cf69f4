"""Files that are written completely or not at all."""

import errno
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["filename_in_errors", "reading_header", "sync_folder", "write_content"]

# NumPy reads headers of arrays by `ast`, whose count of recursions is shared by the threads of an interpreter: where
# collecting garbage lets another thread in, Python 3.11.7 raises "AST constructor recursion depth mismatch".
reading_header = threading.Lock()


def write_content(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file, completely or not at all.

    Parameters
    ----------
    path : str or path-like
        The file, replaced if it exists.
    content : bytes
        The entire content.
    """
    target = Path(os.path.realpath(path))  # write through a symbolic link instead of replacing it
    if target.exists() and not (target.is_file() or target.is_dir()):  # os.replace would overwrite even /dev/null
        raise FileExistsError(errno.EEXIST, "path is not a regular file; refusing to replace it", os.fspath(target))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with filename_in_errors(target), temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)


@contextmanager
def filename_in_errors(path: Path) -> Iterator[None]:
    """Add the file name to an OSError that lacks one, such as that of a full disk.

    Parameters
    ----------
    path : Path
        The file being read or written.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure, on systems where a folder can be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
