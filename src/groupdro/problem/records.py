"""What passes between a problem and its solvers: counts, references, evaluations and constants."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from groupdro.utils.types import Floats

__all__ = ["Constants", "Counters", "Evaluation", "References"]


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


@dataclass(frozen=True)
class References:
    """Bounds of what each group could reach alone, whose regret is then minimised.

    Attributes
    ----------
    upper, lower : ndarray of shape (n_groups,)
        ``lower[i] <= min_w R_i(w) + penalty(w) <= upper[i]``. Solvers and lower bounds subtract ``upper`` from the
        risks, upper bounds subtract ``lower``: so both stay valid however roughly the minima are known. References
        that are given rather than found are exact: both bounds are the same.
    models : ndarray or None
        Models that reach the upper bounds, one w per group, where a solver needs them.
    """

    upper: Floats
    lower: Floats
    models: Floats | None = None

    @classmethod
    def none(cls, n_groups: int) -> "References":
        """Return zeros: plain risks instead of regrets."""
        return cls(np.zeros(n_groups), np.zeros(n_groups))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One pass over the data at (w, q).

    Attributes
    ----------
    w : ndarray
        Parameters.
    q : ndarray of shape (n_groups,)
        Group weights.
    margins : ndarray of shape (n_rows,) or (n_rows, n_outputs)
        Outputs of the model, kept so that the rows' losses and slopes at w can be had again without X.
    group_risks : ndarray of shape (n_groups,)
        Average loss of each group.
    gradient : ndarray, shaped as w
        sum_i q_i grad R_i(w), without the penalty.
    mass : float
        Weighted sum of the sizes of the gradient's terms, |slope| times the norm of the row, which scales its rounding
        error. A row that has no weight, or no slope, adds nothing, however large it is.
    """

    w: Floats
    q: Floats
    margins: Floats
    group_risks: Floats
    gradient: Floats
    mass: float

    point_fields: ClassVar[tuple[str, ...]] = ("w", "q")  # a pass there gives the rest


@dataclass(frozen=True)
class Constants:
    """Lipschitz and smoothness constants of the rows' losses, in the norm of the geometry of w.

    Attributes
    ----------
    lipschitz : float
        G = max over rows of the loss's Lipschitz constant in w.
    smoothness : float
        L = max over rows of the Lipschitz constant of the loss's gradient.
    mean_square_smoothness : float
        max over groups of the root mean square of the same: enough for guarantees in expectation.
    """

    lipschitz: float
    smoothness: float
    mean_square_smoothness: float
