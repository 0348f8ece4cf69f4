"""Threads for kernels that release the GIL: fixed pieces of work, whose results do not depend on how many run."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["interruptibly", "map_threads", "n_cores", "n_threads"]

T = TypeVar("T")

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


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
    """Return function() of a long call into compiled code, which Ctrl-C could not end.

    It runs in a thread of its own. Ctrl-C ends the waiting at once; the call goes on until it ends by itself, unheard.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="groupdro")
    try:
        return pool.submit(function).result()
    finally:
        pool.shutdown(wait=False)


def map_threads(function: Callable[[int], T], n: int) -> list[T]:
    """Return function(0), ..., function(n - 1), several at a time.

    The pool belongs to the process that made it: after a fork the child makes its own, because threads do not survive
    a fork.
    """
    if n == 1 or n_threads() == 1:
        return [function(k) for k in range(n)]
    with _lock:
        pool = _pools.get(os.getpid())
        if pool is None:
            pool = _pools[os.getpid()] = ThreadPoolExecutor(n_threads(), thread_name_prefix="groupdro")
    return list(pool.map(function, range(n)))
