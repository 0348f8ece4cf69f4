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

    Divisions follow IEEE rules: no Python exception inside a loop. Sums keep their order wherever the kernel is called
    from: left unsaid, it would be that of whichever caller happened to be compiled first.
    """
    return _compile(function, fastmath=False)


def compiled_fast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel whose sums over features may be reordered, without which they cannot be vectorised.

    Their order must not depend on where arrays lie in memory. A loop that stores is compiled twice, for arrays far
    apart and for others, and the two differ in the order of what they add up: so no loop here does both.
    """
    return _compile(function, fastmath={"reassoc", "contract"})
