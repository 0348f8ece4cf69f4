"""Counters of operations on the data, maintained by the problem and nowhere else."""

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
    """Operations on the data, counted in rows.

    Attributes
    ----------
    grad_evals : int
        Loss gradients of single rows. Those at a snapshot are free because its margins are stored.
    grad_evals_paper : int
        The paper's count, in which a drawn row's gradient at the snapshot counts again.
    row_reads : int
        Rows of X read. Divided by the number of rows, this is the number of passes over the data.
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
        """Return what was counted since an earlier state."""
        return Counters(*(getattr(self, name) - getattr(before, name) for name in self.NAMES))

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend counting, for evaluations for a trace or a final check."""
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

    def _count(self, n_rows: int, *, gradients: int = 1) -> None:
        """Count rows read from X, and per row the gradients of the paper's count."""
        evaluated = n_rows if gradients else 0
        self.counters.add(grad_evals=evaluated, grad_evals_paper=gradients * n_rows, row_reads=n_rows)

    def count_pass(self) -> None:
        """Count a pass with gradients made by another module of this package."""
        self._count(self.data.n_total)

    def count_columns(self, n_features: int) -> None:
        """Count a pass over some columns, made by another module of this package, as a fraction of a pass."""
        self._count(round(self.data.n_total * n_features / max(self.data.n_features, 1)), gradients=0)

    def count_draw(self, draw: Draw) -> None:
        """Count drawn members whose derivatives another module of this package computed."""
        self._count(len(draw.members))

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Suspend counting, for evaluations for a trace or a final check."""
        with self.counters.suspended():
            yield

    def count_apart(self, others: Iterable[Counters]) -> None:
        """Add the counts of problems with separate counters, over all workers."""
        total = np.zeros(3)
        for other in others:
            total += other.counts
        self.data.add_up(total)
        self._count_all(total)

    def count_together(self, other: Counters) -> None:
        """Add the counts of a problem with separate counters on which all workers worked together."""
        self._count_all(other.counts)

    def _count_all(self, counts: Floats) -> None:
        self.counters.add(**dict(zip(Counters.NAMES, map(int, counts), strict=True)))
