"""Where the files of a table are: paths, URIs and patterns of both, on any file system of pyarrow."""

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from groupdro.utils.arguments import check_path
from groupdro.utils.optional import import_extra

__all__ = ["find_files", "is_uri"]

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")  # a single letter would be a drive of Windows
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")  # access keys may stand before the bucket
_WILD = "*?["  # characters of patterns, as in `fnmatch`
_BUCKETS = ("s3", "gs", "gcs")  # pyarrow's names of file systems whose paths begin with a bucket

_import_fs = partial(import_extra, "pyarrow.fs", extra="store")


def is_uri(location: Any) -> bool:
    """Return whether a location is a URI such as "s3://bucket/file.parquet"."""
    return isinstance(location, str) and _URI.match(location) is not None


def find_files(locations: Sequence[Any], filesystem: Any = None) -> tuple[Any, list[str], bool]:
    """Find the files of a table.

    Parameters
    ----------
    locations : sequence of str or path-like
        Paths, URIs, and patterns of both: `*` stands for any part of a name, and `**` for any number of folders.
    filesystem : pyarrow or fsspec file system, or None
        The file system of the paths; None for the local one and those of URIs.

    Returns
    -------
    filesystem : pyarrow.fs.FileSystem
        The file system of all files.
    paths : list of str
        Their paths on it, or the path of one directory.
    is_directory : bool
        Whether it is a directory.
    """
    if not locations:
        raise ValueError("source is an empty list.")
    found = [_find(location, filesystem) for location in locations]
    system = found[0][0]
    if not all(other.equals(system) for other, _, _ in found):
        raise ValueError("source must be files of one file system, but is a list of locations on several.")
    return system, [path for _, paths, _ in found for path in paths], len(found) == 1 and found[0][2]


def _find(location: Any, filesystem: Any) -> tuple[Any, list[str], bool]:
    path = check_path(location, "source")
    text = os.fspath(location)
    shown = repr(_PASSWORD.sub("***@", text))
    query = ""
    if is_uri(location):
        if filesystem is not None:
            raise ValueError(f"source {shown} is a URI, which has a file system of its own: pass filesystem=None.")
        text, mark, query = text.partition("?")
        query = mark + query
    elif filesystem is None:
        text = path.as_posix()
        if path.exists():  # files may have names that look like patterns
            return _import_fs().LocalFileSystem(), [text], path.is_dir()
    parts = text.split("/")
    n_fixed = next((k for k, name in enumerate(parts) if any(character in name for character in _WILD)), len(parts))
    pattern = parts[n_fixed:]
    fixed = "/".join([*parts[:n_fixed], ""] if pattern else parts) or "."
    try:
        system, fixed = _open(fixed, query, filesystem, shown)
        if pattern:
            return system, _matches(system, fixed, pattern, shown), False
        return system, [fixed], _is_directory(system, fixed, shown)
    except FileNotFoundError:
        raise
    except OSError as error:  # no access or no network
        raise OSError(_PASSWORD.sub("***@", f"source {shown} cannot be read: {error}")) from None


def _open(path: str, query: str, filesystem: Any, shown: str) -> tuple[Any, str]:
    """Return the file system of a path or URI, and the path on it."""
    fs = _import_fs()
    if is_uri(path):
        try:
            system, path = fs.FileSystem.from_uri(path + query)
        except (ValueError, NotImplementedError, ImportError) as error:
            why = _PASSWORD.sub("***@", f"source {shown} is a URI that pyarrow cannot open: {error}.")
            known = "It knows file, s3, gs, abfs and hdfs; for another, pass paths and the argument filesystem."
            raise ValueError(f"{why} {known}") from None
    elif filesystem is None:
        system = fs.LocalFileSystem()
    elif isinstance(filesystem, fs.FileSystem):
        system = filesystem
    elif hasattr(filesystem, "protocol"):  # of fsspec
        system = fs.PyFileSystem(fs.FSSpecHandler(filesystem))
    else:
        raise TypeError(f"filesystem must be one of pyarrow or fsspec, got {type(filesystem).__name__}.")
    return system, path.rstrip("/") or path[:1]


def _is_directory(system: Any, path: str, shown: str) -> bool:
    types = _import_fs().FileType
    kind = system.get_file_info(path).type
    if kind == types.NotFound:
        raise FileNotFoundError(f"source {shown} does not exist{_why_missing(system, path)}.")
    return kind == types.Directory


def _matches(system: Any, folder: str, pattern: list[str], shown: str) -> list[str]:
    """Return the files of a folder whose names match those of a pattern, in sorted order."""
    fs = _import_fs()
    entries = system.get_file_info(fs.FileSelector(folder, recursive=len(pattern) > 1, allow_not_found=True))
    depth = len(_names(folder))
    files = (entry.path for entry in entries if entry.type == fs.FileType.File)
    matching = sorted(path for path in files if _match(_names(path)[depth:], pattern))
    if not matching:
        raise FileNotFoundError(f"source {shown} matches no file{_why_missing(system, folder)}.")
    return matching


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _match(names: list[str], pattern: list[str]) -> bool:
    """Return whether the names of a path match a pattern, as `glob` has it: names with a dot first are hidden."""
    if not pattern or not names:
        return not names and set(pattern) <= {"**"}
    if pattern[0] == "**":
        return _match(names, pattern[1:]) or (not names[0].startswith(".") and _match(names[1:], pattern))
    hidden = names[0].startswith(".") and not pattern[0].startswith(".")
    return not hidden and fnmatchcase(names[0], pattern[0]) and _match(names[1:], pattern[1:])


def _why_missing(system: Any, path: str) -> str:
    """Return that the bucket of a path is missing, if it is."""
    bucket = path.partition("/")[0]
    if system.type_name in _BUCKETS and system.get_file_info(bucket).type == _import_fs().FileType.NotFound:
        return f": there is no bucket {bucket!r}"
    return ""
