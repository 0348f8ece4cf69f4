"""Two writers that replace a store over and over while a reader opens it.

``python -m tests.store.race SECONDS`` prints how often the store was opened, how often rows of one store met labels or
names of another, and how often a store was called damaged or missing though every one of them was healthy.
"""

import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from groupdro.store import GroupedStore, StoreError

_WRITERS = 2


def _write(path, value):
    """Write a store whose every number and name is the value; one in three has other sizes than the others."""
    n = 60 if value % 3 else 90
    full = np.full(n, float(value))
    GroupedStore.write_arrays(
        path, np.full((n, 3), float(value)), full, [f"{value:06d}"] * n, task="regression", overwrite=True
    )


def _keep_writing(path, first, stop, locks):
    if not locks:
        sys.modules["fcntl"] = None  # as on systems that have no such locks
    value = first
    while not stop.is_set():
        _write(path, value)
        value = first + (value - first + _WRITERS) % 10_000


def _look(path):
    """Open the store once, and return what was seen."""
    try:
        store = GroupedStore.open(path)
        data = store.data()
        values = {*np.unique(store.X), *np.unique(data.y), *map(float, store.names)}
        data.key_check()
    except FileNotFoundError:
        return "missing"
    except StoreError as error:
        return "replaced meanwhile" if "was replaced since it was opened" in str(error) else "damaged"
    return "whole" if len(values) == 1 else "mixed"


def race(path, opens=None, seconds=np.inf, locks=True):
    """Open a store that two processes replace, so many times or seconds, and count what was seen."""
    context, seen = multiprocessing.get_context("spawn"), Counter()
    stop = context.Event()
    _write(path, 1)
    writers = [context.Process(target=_keep_writing, args=(path, 2 + k, stop, locks)) for k in range(_WRITERS)]
    for writer in writers:
        writer.start()
    try:
        while GroupedStore.open(path).names[0] < "000010":
            time.sleep(0.01)  # until a writer is at work
        begun = time.monotonic()
        while (opens is None or seen.total() < opens) and time.monotonic() - begun < seconds:
            seen[_look(path)] += 1
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    return seen, [writer.exitcode for writer in writers]


def main():
    with tempfile.TemporaryDirectory() as folder:
        seen, codes = race(Path(folder, "store"), seconds=float(sys.argv[1]))
    print(f"{seen.total()} opens: {seen['mixed']} mixed, {seen['damaged']} called damaged, {seen['missing']} missing")
    print(f"{seen['replaced meanwhile']} replaced between opening and reading; writers ended with {codes}")
    return 0 if codes == [0] * _WRITERS and not seen["mixed"] + seen["damaged"] + seen["missing"] else 1


if __name__ == "__main__":
    sys.exit(main())
