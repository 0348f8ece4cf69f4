"""Threads for kernels that release the GIL. Work is cut into fixed pieces, so results do not depend on how many run."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

__all__ = ["interruptibly", "map_threads", "n_cores", "n_threads", "one_blas_thread"]

T = TypeVar("T")

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()
_limits: list[Any] = []  # restores the threads of BLAS; held while any caller needs a single one
_limiting = 0


def n_threads() -> int:
    """Return the number of threads to use: OMP_NUM_THREADS, or the cores that this process may run on."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    return n_cores()


def n_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def interruptibly(function: Callable[[], T]) -> T:
    """Return function(), so that Ctrl-C can interrupt even a long call into compiled code.

    The call runs in a thread of its own. Ctrl-C stops waiting at once; the call continues and its result is discarded.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="groupdro")
    try:
        future = pool.submit(function)
        while os.name == "nt" and not wait([future], 0.1).done:
            pass  # on Windows, Ctrl-C does not interrupt waiting for a lock, but is handled between two waits
        return future.result()
    finally:
        pool.shutdown(wait=False)


def map_threads(function: Callable[[int], T], n: int) -> list[T]:
    """Return function(0), ..., function(n - 1), computed by several threads.

    The pool belongs to the process that made it. Threads do not survive a fork, so a child process makes its own.
    """
    if n == 1 or n_threads() == 1:
        return [function(k) for k in range(n)]
    with _lock:
        pool = _pools.get(os.getpid())
        if pool is None:
            pool = _pools[os.getpid()] = ThreadPoolExecutor(n_threads(), thread_name_prefix="groupdro")
    # NumPy's treatment of overflow is part of the context, which threads of a pool do not inherit.
    contexts = [copy_context() for _ in range(n)]
    return list(pool.map(lambda context, k: context.run(function, k), contexts, range(n)))


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()  # inspects all loaded libraries


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread, where our own threads work on pieces or the products are small.

    The threads of BLAS wait for each other in every product, which on a busy machine can take many times as long as the
    product. Those of `map_threads` wait once per pass. Setting the limit takes as long as a small product, so the first
    caller sets it and the last one lifts it.
    """
    global _limiting
    with _lock:
        if not _limiting:
            _limits.append(_libraries().limit(limits=1, user_api="blas"))
        _limiting += 1
    try:
        yield
    finally:
        with _lock:
            _limiting -= 1
            if not _limiting:
                _limits.pop().restore_original_limits()
