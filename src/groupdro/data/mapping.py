"""Memory maps: finding them behind arrays, advising the system how they are read, and the memory limit."""

import mmap
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from groupdro.utils.types import Array

__all__ = ["RANDOM", "SEQUENTIAL", "advise", "mapping_of", "memory_limit", "nameless", "release"]

_NONE = -1  # no advice, on systems without madvise
RANDOM = getattr(mmap, "MADV_RANDOM", _NONE)
SEQUENTIAL = getattr(mmap, "MADV_SEQUENTIAL", _NONE)


def mapping_of(array: Any) -> np.memmap[Any, Any] | None:
    """Return the memory map behind an array, if there is one."""
    while isinstance(array, np.ndarray):
        # Copies of a map keep its class but not the map.
        if isinstance(array, np.memmap) and getattr(array, "_mmap", None) is not None:
            return array
        array = array.base
    return None


@contextmanager
def nameless(X: Any) -> Iterator[None]:
    """Accept rows of a file, whose columns have no names, without scikit-learn's warning."""
    with warnings.catch_warnings():
        if mapping_of(getattr(X, "data", None) if sp.issparse(X) else X) is not None:
            warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
        yield


def release(X: Array, place: slice) -> None:
    """Release the resident pages of mapped rows that were read. The system keeps them cached.

    Pages of a copy-on-write map (mode "c") hold changes that exist nowhere else, and are kept.
    """
    mapping = mapping_of(X)
    if mapping is not None and mapping.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
        advise(X, place, mmap.MADV_DONTNEED)


def advise(X: Array, place: slice, advice: int) -> None:
    """Advise the system about the pages of mapped rows."""
    mapping = mapping_of(X)
    if mapping is None or not X.flags.c_contiguous or advice < 0:
        return
    pages: mmap.mmap = mapping._mmap  # type: ignore[attr-defined]  # NumPy has no public attribute for it
    map_start = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
    block = X[place]
    start = block.__array_interface__["data"][0] - map_start
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    pages.madvise(advice, first, start + block.nbytes - first)


def memory_limit() -> float:
    """Return the memory in bytes that this process may use: the limit of its control group or of the machine."""
    limits = [float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        for _, controllers, group in groups:
            if controllers not in ("", "memory"):
                continue
            root = "/sys/fs/cgroup"
            name = "memory.max"
            if controllers:  # control groups, version 1
                root = "/sys/fs/cgroup/memory"
                name = "memory.limit_in_bytes"
            for folder in (Path(root + group), *Path(root + group).parents):
                text = (folder / name).read_text().strip() if (folder / name).exists() else ""
                limits += [float(text)] if text.isdigit() else []
    except OSError:
        pass  # no control groups here
    return min(limits, default=np.inf)
