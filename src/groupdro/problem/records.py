"""What passes between a problem and its solvers: references, evaluations and constants."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from groupdro.utils.types import Floats

__all__ = ["Constants", "Evaluation", "References"]


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
