"""How every kernel is compiled."""

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["compiled"]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel on first use, keeping the machine code on disk where there is a place for it.

    Divisions follow IEEE rules (no Python exception inside a loop) and no reordering of sums is allowed, so that a
    kernel gives the same bits on every run.
    """
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:
        # No directory of the cache is writable (a read-only install without HOME): compile in every process.
        return numba.njit(nogil=True, error_model="numpy")(function)
