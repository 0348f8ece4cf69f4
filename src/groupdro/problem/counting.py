"""What was asked of the data: counted by the problem, and nowhere else."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from groupdro.data import Draw, GroupedData
from groupdro.utils.types import Floats

__all__ = ["Counters", "Counting"]


@dataclass
class Counters:
    """What was asked of the data, in rows.

    Attributes
    ----------
    grad_evals : int
        Loss gradients of single rows, where those at a snapshot are free because its margins are kept.
    grad_evals_paper : int
        The same as the paper counts, with a drawn row's gradient at the snapshot counted again.
    row_reads : int
        Rows of X read; divided by the number of rows, the passes over the data.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("grad_evals", "grad_evals_paper", "row_reads")

    grad_evals: int = 0
    grad_evals_paper: int = 0
    row_reads: int = 0
    counting: bool = field(default=True, repr=False)

    def add(self, *, grad_evals: int = 0, grad_evals_paper: int = 0, row_reads: int = 0) -> None:
        """Count, unless counting is suspended."""
        if self.counting:
            self.grad_evals += grad_evals
            self.grad_evals_paper += grad_evals_paper
            self.row_reads += row_reads

    @property
    def counts(self) -> Floats:
        """All counts, in the order of `NAMES`."""
        return np.array([getattr(self, name) for name in self.NAMES], dtype=np.float64)

    def since(self, before: "Counters") -> "Counters":
        """Return what was counted since another time."""
        return Counters(*(getattr(self, name) - getattr(before, name) for name in self.NAMES))

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Leave what happens inside uncounted: evaluations for a trace or a final check."""
        before, self.counting = self.counting, False
        try:
            yield
        finally:
            self.counting = before


class Counting:
    """The part of a problem that counts."""

    counters: Counters
    data: GroupedData

    @property
    def passes(self) -> float:
        """Passes over the data so far."""
        return self.counters.row_reads / self.data.n_total

    def _count(self, n_rows: int, *, gradients: int = 1, read: bool = True) -> None:
        """Count rows, and the paper's count of the gradients of each; with `read`, as read from X."""
        evaluated = n_rows if gradients else 0
        reads = n_rows if read else 0
        self.counters.add(grad_evals=evaluated, grad_evals_paper=gradients * n_rows, row_reads=reads)

    def count_pass(self) -> None:
        """Count a pass with gradients that a module of this room made."""
        self._count(self.data.n_total)

    def count_columns(self, n_features: int) -> None:
        """Count a pass over some columns that a module of this room made, as so much of one."""
        self._count(round(self.data.n_total * n_features / max(self.data.n_features, 1)), gradients=0)

    def count_draw(self, draw: Draw) -> None:
        """Count drawn members whose derivatives a module of this room took."""
        self._count(len(draw.members))

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave what happens inside uncounted: evaluations for a trace or a final check."""
        with self.counters.suspended():
            yield

    def count_apart(self, others: Iterable[Counters]) -> None:
        """Count what was asked of problems with counters of their own, by all workers."""
        total = np.zeros(3)
        for other in others:
            total += other.counts
        self.data.add_up(total)
        self._count_all(total)

    def count_together(self, other: Counters) -> None:
        """Count what all workers together asked of a problem with counters of its own."""
        self._count_all(other.counts)

    def _count_all(self, counts: Floats) -> None:
        self.counters.add(**dict(zip(Counters.NAMES, map(int, counts), strict=True)))
