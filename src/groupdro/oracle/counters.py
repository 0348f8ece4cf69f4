"""Counters of operations on the data, maintained by the oracle and nowhere else."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from groupdro.utils.types import Floats

__all__ = ["Counters"]


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
    shift_evals : int
        Loss gradients of single rows at trial values of a free intercept, on the way to a lower bound. They reuse
        stored outputs and read no row of X, so no other count includes them.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("grad_evals", "grad_evals_paper", "row_reads", "shift_evals")

    grad_evals: int = 0
    grad_evals_paper: int = 0
    row_reads: int = 0
    shift_evals: int = 0
    counting: bool = field(default=True, repr=False)

    def add(self, n_rows: int, *, gradients: int = 1) -> None:
        """Count rows read from X and, per row, the gradients of the paper's count, unless counting is suspended."""
        if self.counting:
            self.grad_evals += n_rows if gradients else 0
            self.grad_evals_paper += gradients * n_rows
            self.row_reads += n_rows

    def add_shifted(self, n_rows: int) -> None:
        """Count rows evaluated at a shifted intercept, unless counting is suspended."""
        if self.counting:
            self.shift_evals += n_rows

    def add_counts(self, counts: Floats) -> None:
        """Add the counts of other counters, unless counting is suspended."""
        if self.counting:
            for name, count in zip(self.NAMES, counts, strict=True):
                setattr(self, name, getattr(self, name) + int(count))

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
        before = self.counting
        self.counting = False
        try:
            yield
        finally:
            self.counting = before
