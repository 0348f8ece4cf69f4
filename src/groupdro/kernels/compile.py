"""How every kernel is compiled."""

import contextlib
from collections.abc import Callable
from typing import Any

import numba

__all__ = ["compiled", "compiled_fast"]


def _compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    try:
        kernel = numba.njit(cache=True, nogil=True, error_model="numpy", **options)(function)
    except RuntimeError:
        # No directory of the cache is writable (a read-only install without HOME): compile in every process.
        return numba.njit(nogil=True, error_model="numpy", **options)(function)
    cache = getattr(kernel, "_cache", None)  # none where NUMBA_DISABLE_JIT is set
    if cache is not None:
        save = cache.save_overload

        def save_where_there_is_room(*what: Any) -> None:
            with contextlib.suppress(OSError):  # a full disk must not end a fit, whose kernel is compiled already
                save(*what)

        cache.save_overload = save_where_there_is_room
    return kernel


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel on first use, keeping the machine code on disk where there is a place for it.

    Divisions follow IEEE rules: no Python exception inside a loop.
    """
    return _compile(function)


def compiled_fast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel whose sums over features may be reordered, without which they cannot be vectorised.

    The order is fixed when the code is compiled, so that the same machine gives the same bits on every run.
    """
    return _compile(function, fastmath={"reassoc", "contract"})
