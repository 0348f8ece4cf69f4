"""What passes between a problem and its solvers: references, evaluations and constants."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from groupdro.utils.types import Array, Floats

__all__ = ["Constants", "Evaluation", "References", "SingleRounding"]


@dataclass(frozen=True)
class References:
    """Bounds of what each group could reach alone, whose regret is then minimised.

    Attributes
    ----------
    upper, lower : ndarray of shape (n_groups,)
        ``lower[i] <= min_w R_i(w) + penalty(w) <= upper[i]``. Lower bounds of the objective subtract ``upper`` from
        the risks, upper bounds subtract ``lower``: so both stay valid however roughly the minima are known. References
        that are given rather than found are exact: both bounds are the same.
    models : ndarray or None
        Models that reach the upper bounds, one w per group, where a solver needs them.
    centre : ndarray of shape (n_groups,) or None
        What solvers subtract from the risks, which no bound depends on; the upper bounds where it is None.
    """

    upper: Floats
    lower: Floats
    models: Floats | None = None
    centre: Floats | None = None

    @classmethod
    def none(cls, n_groups: int) -> "References":
        """Return zeros: plain risks instead of regrets."""
        return cls(np.zeros(n_groups), np.zeros(n_groups))

    def width_at(self, q: Floats) -> float:
        """Return what the width of the bounds adds to a gap at the group weights q."""
        return float(q @ (self.upper - self.lower))


@dataclass(frozen=True, eq=False)
class SingleRounding:
    """What a pass in single precision knows of its rounding.

    Attributes
    ----------
    allowance : ndarray of shape (n_groups,)
        What was added to the groups' computed risks, so that they are upper bounds of the risks at w.
    constants : ndarray of shape (n_groups,)
        Average over each group of loss - slope.u at the computed outputs u. With the gradient of the same slopes it
        makes a minorant whatever the outputs at w are, because a convex loss lies above its tangent at any u.
    """

    allowance: Floats
    constants: Floats


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
        Outputs of the model, in the precision of the pass, kept so that the rows' losses and slopes at w can be had
        again without X.
    group_risks : ndarray of shape (n_groups,)
        Average loss of each group; an upper bound of it after a pass in single precision.
    gradient : ndarray, shaped as w
        sum_i q_i grad R_i(w), without the penalty.
    mass : float
        Weighted sum of the sizes of the gradient's terms, |slope| times the norm of the row, which scales its rounding
        error: at most `GroupRisk.rounding` units of float64 times this. A row that has no weight, or no slope, adds
        nothing, however large it is.
    bend : ndarray of shape (w.size, n_outputs) or None
        Change of the gradient, flattened, along each output's free intercept; None where it is not known.
    single : SingleRounding or None
        What a pass in single precision knows of its rounding; None where it was made in float64.
    """

    w: Floats
    q: Floats
    margins: Array
    group_risks: Floats
    gradient: Floats
    mass: float
    single: "SingleRounding | None" = None
    bend: Floats | None = None

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
