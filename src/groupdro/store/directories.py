"""Directories of stores. A new store appears completely or not at all, and readers see either the old or the new one.

A new store is filled next to its destination and renamed. An existing store is replaced in three steps. The new files
move into a directory of their own inside it. The manifest, which names that directory, is replaced by one rename, after
which readers see the new store. The old files are removed. Files never change once they are in place. A reader whose
files vanish while it opens them reads the manifest again.
"""

import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from groupdro.store.document import MANIFEST, parse_json
from groupdro.store.files import write_bytes
from groupdro.store.layout import DIRECTORY, FILES, FORMAT, Manifest, manifest_bytes, parse_manifest
from groupdro.utils.bundle import BundleError, sync_folder

__all__ = ["NewStore", "new_store"]


@contextmanager
def new_store(target: Path, *, overwrite: bool) -> Iterator["NewStore"]:
    """Create a directory next to the destination of a store, to be filled and then published.

    Parameters
    ----------
    target : Path
        Destination of the store.
    overwrite : bool
        Whether to replace an existing store.

    Yields
    ------
    NewStore
        The store to fill. It is removed unless it was published. Leftovers of a killed process are removed by the next
        one that writes to the same destination.
    """
    _clear_leftovers(target)
    _check_free(target, overwrite)
    with ExitStack() as stack:
        temporary = _locked_directory(target, stack)
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)  # while it is locked
        yield NewStore(target, temporary, overwrite)


@dataclass(frozen=True)
class NewStore:
    """A store that is not yet in place.

    Attributes
    ----------
    target : Path
        Destination of the store.
    directory : Path
        Directory in which its files are written.
    overwrite : bool
        Whether it may replace a store.
    """

    target: Path
    directory: Path
    overwrite: bool

    def publish(self, manifest: Manifest) -> None:
        """Move the store to its destination, after all of its files are on disk.

        Parameters
        ----------
        manifest : Manifest
            Description of the files.
        """
        self._write_manifest(manifest)
        _check_free(self.target, self.overwrite)
        try:
            os.rename(self.directory, self.target)  # fails if the target is a nonempty directory
        except OSError:
            if not os.path.lexists(self.target):
                raise
            self._replace(manifest)
        else:
            sync_folder(self.target.parent)

    def _write_manifest(self, manifest: Manifest) -> None:
        content = manifest_bytes(manifest)
        parse_manifest(content)  # refuse to write what could not be read
        (self.directory / MANIFEST).unlink(missing_ok=True)
        write_bytes(self.directory / MANIFEST, content)
        sync_folder(self.directory)

    def _replace(self, manifest: Manifest) -> None:
        with ExitStack() as stack:
            alone = False
            with suppress(OSError):  # a file system without locks
                alone = stack.enter_context(_locked(self.target, wait=True))
            _check_free(self.target, self.overwrite)
            old = _old_files(self.target, everything=alone)
            # The same rows get the same name, unless a store replaces itself.
            name = f"rows-{hashlib.sha256(manifest_bytes(manifest)).hexdigest()[:16]}"
            if os.path.lexists(self.target / name):
                name = f"rows-{secrets.token_hex(8)}"
            self._write_manifest(replace(manifest, directory=name))
            files = self.target / name
            os.rename(self.directory, files)
            try:
                sync_folder(self.target)
                os.replace(files / MANIFEST, self.target / MANIFEST)
            except BaseException:
                if os.path.lexists(files / MANIFEST):  # readers still see the old store
                    shutil.rmtree(files, ignore_errors=True)
                raise
            sync_folder(self.target)
            for path in old:
                _remove(path)


def _check_free(target: Path, overwrite: bool) -> None:
    if os.path.lexists(target) and not (overwrite and _is_store(target)):
        why = "path exists: choose another, or pass overwrite=True"
        if overwrite:
            why = "path is not a store, or contains other files; refusing to overwrite it"
        raise FileExistsError(errno.EEXIST, why, os.fspath(target))


def _is_store(target: Path) -> bool:
    """Return whether a directory has a store's manifest, even a damaged one, and no foreign files."""
    with suppress(OSError, BundleError):
        document = parse_json((target / MANIFEST).read_bytes(), MANIFEST)
        return (
            isinstance(document, dict)
            and document.get("format") == FORMAT
            and all(map(_belongs_to_store, target.iterdir()))
        )
    return False


def _belongs_to_store(entry: Path) -> bool:
    """Return whether an entry of a directory belongs to a store."""
    known = {MANIFEST, *FILES}
    if not DIRECTORY.fullmatch(entry.name):
        return entry.name in known
    with suppress(FileNotFoundError):  # another writer has just removed it
        return not entry.is_symlink() and {inner.name for inner in entry.iterdir()} <= known
    return True


def _old_files(target: Path, *, everything: bool) -> list[Path]:
    """Return the files that may be removed when the store is replaced.

    Without a lock, another writer may just have moved its files in and be about to publish them. Then only the files
    that the manifest names are old, and leftovers of two writers remain.
    """
    found = [entry for entry in target.iterdir() if entry.name != MANIFEST]
    if everything:
        return found
    named = parse_json((target / MANIFEST).read_bytes(), MANIFEST).get("directory")
    return [entry for entry in found if (entry.name in FILES if named is None else entry.name == named)]


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)  # it leaves files and links
    with suppress(OSError):
        path.unlink()


# ---------------------------------------------------------------------- locks


@contextmanager
def _locked(directory: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a directory, or yield False if the system has no such locks. A lock ends with its process."""
    try:
        import fcntl
    except ImportError:
        yield False
        return
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield True
    finally:
        os.close(held)


def _locked_directory(target: Path, stack: ExitStack) -> Path:
    """Create and lock a directory; the lock distinguishes work in progress from a leftover."""
    while True:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
        temporary.mkdir()
        try:
            stack.enter_context(_locked(temporary))
        except (BlockingIOError, FileNotFoundError):
            continue  # another writer mistook it for a leftover before it was locked, and is removing it
        except OSError:
            return temporary  # a file system without locks
        if temporary.exists():
            return temporary


def _clear_leftovers(target: Path) -> None:
    """Remove leftovers of killed writers of the same destination."""
    pattern = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{16}\.partial")
    for entry in list(target.parent.iterdir()):
        if pattern.fullmatch(entry.name):
            # An error means that its writer is alive, or that the file system has no locks.
            with suppress(OSError), _locked(entry) as certain:
                if certain:
                    shutil.rmtree(entry, ignore_errors=True)
