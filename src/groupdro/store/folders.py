"""The folder of a store, which appears completely or not at all.

A new store is written to a folder next to its place, which is then renamed. A store that it replaces is renamed first
and removed afterwards, so that readers find either the old or the new one; between the two renames they wait. If a
writer is killed there, the next one moves the old store back.
"""

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from groupdro.store.manifest import ARRAYS, FORMAT, MANIFEST, Manifest, manifest_bytes
from groupdro.utils.files import sync_folder, write_content

__all__ = ["folder_identity", "is_being_replaced", "new_folder", "publish"]

_FILES = {MANIFEST, *(f"{name}.npy" for name in ARRAYS)}


@contextmanager
def new_folder(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Create a folder next to the place of a store, to be filled and then published.

    Parameters
    ----------
    target : Path
        Place of the store.
    overwrite : bool
        Whether a store may be replaced.

    Yields
    ------
    Path
        The folder. It is removed unless it was published. If the process is killed, the next writer of the same place
        removes it.
    """
    _clean_up(target)
    _check_free(target, overwrite)
    with ExitStack() as stack:
        folder = _beside(target, "new")
        folder.mkdir()
        with suppress(OSError):  # a file system without locks
            stack.enter_context(_locked(folder))
        # Only now, when it is locked, does its name say that it may be removed if it is not.
        folder = folder.rename(_beside(target, "partial"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def publish(folder: Path, target: Path, manifest: Manifest, *, overwrite: bool) -> None:
    """Move a store to its place, after all of its arrays were written.

    Parameters
    ----------
    folder : Path
        The folder with the arrays.
    target : Path
        Place of the store.
    manifest : Manifest
        Its manifest.
    overwrite : bool
        Whether a store may be replaced.
    """
    write_content(folder / MANIFEST, manifest_bytes(manifest))
    try:
        while True:
            _check_free(target, overwrite)
            if overwrite:
                with suppress(FileNotFoundError):  # there is none, or another writer has just moved it
                    os.rename(target, _beside(target, "old"))
            try:
                os.rename(folder, target)  # fails if there is a store
                break
            except OSError:
                if not os.path.lexists(target):
                    raise
    finally:
        _clean_up(target)
    sync_folder(target.parent)


def folder_identity(target: Path) -> tuple[int, int] | None:
    """Return what changes if another folder is moved to a place; None if there is nothing."""
    with suppress(FileNotFoundError):
        found = target.lstat()
        return found.st_ino, found.st_ctime_ns
    return None


def is_being_replaced(target: Path) -> bool:
    """Return whether a place without a store has one that a writer has moved away to replace it."""
    return not os.path.lexists(target) and bool(_found(target, "old"))


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}.{suffix}")


def _found(target: Path, suffix: str) -> list[Path]:
    """Return the folders next to a place that `_beside` has named."""
    pattern = re.compile(re.escape(f".{target.name}.") + rf"[0-9a-f]{{16}}\.{suffix}")
    with suppress(FileNotFoundError):
        return [entry for entry in target.parent.iterdir() if pattern.fullmatch(entry.name)]
    return []


def _clean_up(target: Path) -> None:
    """Remove stores that were replaced and what killed writers left, or move back a store that was not replaced."""
    for entry in _found(target, "old"):
        if not os.path.lexists(target):
            with suppress(OSError):  # another writer was faster
                os.rename(entry, target)
        else:
            shutil.rmtree(entry, ignore_errors=True)
    for entry in _found(target, "partial"):
        # An error means that its writer is alive, or that the file system has no locks.
        with suppress(OSError), _locked(entry) as certain:
            if certain:
                shutil.rmtree(entry, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder, or yield False if the system has no such locks. A lock ends with its process."""
    try:
        import fcntl
    except ImportError:
        yield False
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    finally:
        os.close(held)


def _check_free(target: Path, overwrite: bool) -> None:
    while (found := folder_identity(target)) is not None:
        if overwrite and _is_store(target):
            return
        if folder_identity(target) == found:  # otherwise, another writer has replaced it meanwhile
            why = "path exists: choose another, or pass overwrite=True"
            if overwrite:
                why = "path is not a store, or contains other files; refusing to overwrite it"
            raise FileExistsError(errno.EEXIST, why, os.fspath(target))


def _is_store(target: Path) -> bool:
    """Return whether a directory has a store's manifest, even a damaged one, and no foreign files."""
    with suppress(OSError, ValueError, RecursionError):
        document = json.loads((target / MANIFEST).read_bytes())
        own = {entry.name for entry in target.iterdir()} <= _FILES
        return isinstance(document, dict) and document.get("format") == FORMAT and own
    return False
