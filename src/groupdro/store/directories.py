"""Directories of stores: new ones appear whole or not at all, and readers see the old store or the new one.

A new store is filled next to its place and renamed. An existing store is replaced in three steps: the new files move
into a directory of their own inside of it; the manifest, which names that directory, is replaced by one rename, after
which readers see the new store; the old files are removed. Files never change once they are there. A reader whose files
vanish while it opens them reads the manifest again.
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
    """Make a directory next to the place of a store, to be filled and then published.

    Parameters
    ----------
    target : Path
        Where the store will be.
    overwrite : bool
        Whether a store may be there already, which is then replaced.

    Yields
    ------
    NewStore
        What to fill. It is removed unless it was published; what a killed process left is removed by the next one that
        writes to the same place.
    """
    _clear_leftovers(target)
    _check_free(target, overwrite)
    with ExitStack() as stack:
        temporary = _locked_directory(target, stack)
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)  # while it is locked
        yield NewStore(target, temporary, overwrite)


@dataclass(frozen=True)
class NewStore:
    """A store that is not at its place yet.

    Attributes
    ----------
    target : Path
        Where it will be.
    directory : Path
        Where its files are written.
    overwrite : bool
        Whether it may replace a store.
    """

    target: Path
    directory: Path
    overwrite: bool

    def publish(self, manifest: Manifest) -> None:
        """Move the store to its place, when all of its files are on the disk.

        Parameters
        ----------
        manifest : Manifest
            What the files are.
        """
        self._write_manifest(manifest)
        _check_free(self.target, self.overwrite)
        try:
            os.rename(self.directory, self.target)  # never onto a directory that has something in it
        except OSError:
            if not os.path.lexists(self.target):
                raise
            self._replace(manifest)
        else:
            sync_folder(self.target.parent)

    def _write_manifest(self, manifest: Manifest) -> None:
        content = manifest_bytes(manifest)
        parse_manifest(content)  # what could not be read is not written
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
            # The same rows have the same name, unless they replace themselves.
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
            why = "path is not a store, or has other files in it, and is not overwritten"
        raise FileExistsError(errno.EEXIST, why, os.fspath(target))


def _is_store(target: Path) -> bool:
    """Whether a directory has the manifest of a store, however damaged, and nothing that stores do not have."""
    with suppress(OSError, BundleError):
        document = parse_json((target / MANIFEST).read_bytes(), MANIFEST)
        return isinstance(document, dict) and document.get("format") == FORMAT and all(map(_is_ours, target.iterdir()))
    return False


def _is_ours(entry: Path) -> bool:
    """Whether an entry of a store's directory is what stores have there."""
    known = {MANIFEST, *FILES}
    if not DIRECTORY.fullmatch(entry.name):
        return entry.name in known
    with suppress(FileNotFoundError):  # another writer has just removed it
        return not entry.is_symlink() and {inner.name for inner in entry.iterdir()} <= known
    return True


def _old_files(target: Path, *, everything: bool) -> list[Path]:
    """Return what may be removed when the store is replaced.

    Without a lock, another writer may have moved its files in just now and be about to publish them. Only what the
    manifest names is old then, and what two writers leave behind stays.
    """
    found = [entry for entry in target.iterdir() if entry.name != MANIFEST]
    if everything:
        return found
    named = parse_json((target / MANIFEST).read_bytes(), MANIFEST).get("directory")
    return [entry for entry in found if (entry.name in FILES if named is None else entry.name == named)]


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)  # which leaves files and links
    with suppress(OSError):
        path.unlink()


# ---------------------------------------------------------------------- locks


@contextmanager
def _locked(directory: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a directory, or yield False where the system has no such locks. A lock dies with its process."""
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
    """Make a directory and lock it, which distinguishes work under way from a leftover."""
    while True:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
        temporary.mkdir()
        try:
            stack.enter_context(_locked(temporary))
        except (BlockingIOError, FileNotFoundError):
            continue  # another writer took it for a leftover before it was locked, and removes it
        except OSError:
            return temporary  # a file system without locks
        if temporary.exists():
            return temporary


def _clear_leftovers(target: Path) -> None:
    """Remove what killed writers of the same place left next to it."""
    pattern = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{16}\.partial")
    for entry in list(target.parent.iterdir()):
        if pattern.fullmatch(entry.name):
            # An error says that its writer lives, or that the file system has no locks.
            with suppress(OSError), _locked(entry) as certain:
                if certain:
                    shutil.rmtree(entry, ignore_errors=True)
