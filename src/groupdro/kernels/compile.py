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
    cache = getattr(kernel, "_cache", None)  # None if NUMBA_DISABLE_JIT is set
    if cache is not None:
        save = cache.save_overload

        def save_where_there_is_room(*what: Any) -> None:
            with contextlib.suppress(OSError):  # a full disk must not end a fit; the kernel is already compiled
                save(*what)

        cache.save_overload = save_where_there_is_room
    return kernel


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel on first use, caching the machine code on disk if possible.

    Divisions follow IEEE rules, so no Python exception is raised inside a loop. Sums keep their order wherever the
    kernel is called from; otherwise the order would be that of whichever caller was compiled first.
    """
    return _compile(function, fastmath=False)


def compiled_fast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel whose sums over features may be reordered, without which they cannot be vectorised.

    Their order must not depend on where arrays lie in memory. A loop that also stores is compiled twice, for
    overlapping and for separate arrays, and the two versions add in different orders. So no loop here does both.
    """
    return _compile(function, fastmath={"reassoc", "contract"})
