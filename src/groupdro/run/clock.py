"""The clock of a run, which is paused for anything outside the algorithm, and its count of passes."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

from groupdro.oracle import Counters, Oracle

__all__ = ["Clock"]


class Clock:
    """Time and work of a run, counted from the creation of this object.

    Parameters
    ----------
    oracle : Oracle
        The oracle, whose counters may include earlier runs.
    """

    def __init__(self, oracle: Oracle):
        self._counters = oracle.counters
        self._n_rows = oracle.problem.n_rows
        self._before = replace(oracle.counters)
        self._started = time.perf_counter()
        self._off = 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far, excluding time off the clock."""
        return time.perf_counter() - self._started - self._off

    @property
    def counts(self) -> Counters:
        """Operations on the data so far."""
        return self._counters.since(self._before)

    @property
    def passes(self) -> float:
        """Passes over the data so far."""
        return (self._counters.row_reads - self._before.row_reads) / self._n_rows

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock inside the block."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._off += time.perf_counter() - begun

    def set(self, seconds: float, counts: list[int]) -> None:
        """Continue from the values of a checkpoint."""
        self._off = time.perf_counter() - self._started - seconds
        for name, count in zip(Counters.NAMES, counts, strict=True):
            setattr(self._counters, name, getattr(self._before, name) + count)
