"""The package's file format: a zip with a JSON manifest and arrays. It holds no code and is checked when read.

Members are stored without compression, so a small file cannot expand when it is read. The manifest holds a checksum of
every array, and the zip one of the manifest. The reader refuses anything it does not know. A file is written completely
or not at all.
"""

import errno
import hashlib
import io
import json
import math
import os
import secrets
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from groupdro.utils.types import Array

__all__ = [
    "BundleError",
    "check",
    "check_version",
    "dump_bundle",
    "filename_in_errors",
    "is_finite_array",
    "parse_bundle",
    "read_bundle",
    "sync_folder",
    "write_bundle",
    "write_content",
]

_MANIFEST = "manifest.json"
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_DTYPES = ("<f8", "<f4", "<i8", "|b1")


class BundleError(ValueError):
    """A file is damaged or of the wrong kind."""


def check(holds: bool, why: str) -> None:
    """Raise a `BundleError` with a reason unless a condition holds."""
    if not holds:
        raise BundleError(why)


def check_version(found: Any, *known: int) -> None:
    """Refuse a file of an unknown version, and say what to do about it."""
    if type(found) is not int or found not in known:  # 1.0 and True are in (1,) too
        newer = isinstance(found, int) and found > max(known)
        remedy = "a newer groupdro wrote it: update groupdro to read it" if newer else "no release wrote such a file"
        raise BundleError(f"its version is {str(found)[:40]}, and this reads {' and '.join(map(str, known))}; {remedy}")


def is_finite_array(value: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a value read from a file is an array of finite float64 of the given shape."""
    fits = isinstance(value, np.ndarray) and value.dtype == np.float64 and value.shape == shape
    return fits and bool(np.isfinite(value).all())


def write_bundle(path: str | os.PathLike[str], manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write a manifest and arrays to a file, completely or not at all.

    Parameters
    ----------
    path : str or path-like
        The file, replaced if it exists.
    manifest : mapping
        Anything that JSON can represent.
    arrays : mapping from str to ndarray
        Arrays of float64, float32, int64 or bool.
    """
    write_content(path, dump_bundle(manifest, arrays))


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


def dump_bundle(manifest: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Return the content of a file with a manifest and arrays."""
    blobs = {f"{name}.npy": _to_npy(array) for name, array in arrays.items()}
    digests = {name: hashlib.sha256(blob).hexdigest() for name, blob in blobs.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, blob in {_MANIFEST: json.dumps({**manifest, "sha256": digests}).encode(), **blobs}.items():
            archive.writestr(name, blob)
    return buffer.getvalue()


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure, on systems where a folder can be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_bundle(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read a file written by `write_bundle`.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    manifest : dict
        The manifest.
    arrays : dict from str to ndarray
        The arrays, with checksums verified.
    """
    # Do not wait for a pipe, nor read from a device that may never end.
    with open(Path(path), "rb", opener=lambda name, flags: os.open(name, flags | _NONBLOCK)) as file:
        check(stat.S_ISREG(os.fstat(file.fileno()).st_mode), "it is not a regular file")
        content = file.read()
    return parse_bundle(content)


def parse_bundle(content: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the manifest and arrays in a file's content, with checksums verified."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            blobs = _members(archive, len(content))
        manifest = json.loads(blobs.pop(_MANIFEST).decode("utf-8"))
        check(isinstance(manifest, dict), "its manifest is not an object")
        digests = manifest.pop("sha256", None)
        check(isinstance(digests, dict) and set(digests) == set(blobs), "its arrays do not match the manifest")
        for name, blob in blobs.items():
            check(hashlib.sha256(blob).hexdigest() == digests[name], f"its member {name!r} is damaged")
        return manifest, {name.removesuffix(".npy"): _from_npy(blob) for name, blob in blobs.items()}
    except BundleError:
        raise
    except Exception as error:  # a damaged file can make zipfile, json or numpy raise anything
        raise BundleError(f"{type(error).__name__}: {error}") from None


def _members(archive: zipfile.ZipFile, file_size: int) -> dict[str, bytes]:
    members = archive.infolist()
    names = [member.filename for member in members]
    check(len(set(names)) == len(names) and _MANIFEST in names, "it has no manifest, or members with the same name")
    strange = sorted(name for name in names if name != _MANIFEST and not name.endswith(".npy"))
    check(not strange, f"it has an unknown member: {strange}")
    for member in members:
        stored = member.compress_type == zipfile.ZIP_STORED and member.file_size == member.compress_size
        check(stored, f"its member {member.filename!r} is compressed")
    # Members are uncompressed and must not overlap, so the size of the file bounds what is read.
    check(sum(member.file_size for member in members) <= file_size, "its members are larger than the file")
    return {name: archive.read(name) for name in names}


def _to_npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    npy.write_array(buffer, np.asarray(array, order="C"), version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def _from_npy(blob: bytes) -> Array:
    buffer = io.BytesIO(blob)
    check(npy.read_magic(buffer) == (1, 0), "an array has an unknown format version")
    shape, fortran, dtype = npy.read_array_header_1_0(buffer)
    check(dtype.str in _DTYPES and not fortran, f"an array has the unsupported dtype {dtype}")
    n_bytes = dtype.itemsize * math.prod(shape)  # Python ints, which cannot overflow
    left = blob[buffer.tell() :]
    check(len(left) == n_bytes and min(shape, default=0) >= 0, "an array's shape does not match its content")
    return np.frombuffer(left, dtype=dtype).astype(dtype.newbyteorder("=")).reshape(shape)
