"""Threads for kernels that release the GIL: fixed pieces of work, whose results do not depend on how many run."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["map_threads", "n_threads"]

T = TypeVar("T")

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def n_threads() -> int:
    """Return the number of threads to use: OMP_NUM_THREADS, or the cores that this process may run on."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
