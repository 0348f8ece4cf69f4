"""Records exchanged between a problem and its solvers: references, evaluations and constants."""

from dataclasses import dataclass

import numpy as np

from groupdro.utils.types import Array, Floats

__all__ = ["Constants", "Evaluation", "References", "SingleRounding"]


@dataclass(frozen=True)
class References:
    """Bounds on each group's own minimum, relative to which excess risks are measured.

    Attributes
    ----------
    upper, lower : ndarray of shape (n_groups,)
        ``lower[i] <= min_w R_i(w) + penalty(w) <= upper[i]``. Lower bounds on the objective subtract ``upper`` from the
        risks, upper bounds subtract ``lower``, so both stay valid however roughly the minima are known. References
        given by the user are taken as exact: both bounds are equal.
    models : ndarray or None
        Models that attain the upper bounds, one w per group, if a solver needs them.
    centre : ndarray of shape (n_groups,) or None
        Values that solvers subtract from the risks, on which no bound depends; None for the upper bounds.
    """

    upper: Floats
    lower: Floats
    models: Floats | None = None
    centre: Floats | None = None

    @classmethod
    def none(cls, n_groups: int) -> "References":
        """Return zeros: plain risks instead of excess risks."""
        return cls(np.zeros(n_groups), np.zeros(n_groups))

    def width_at(self, q: Floats) -> float:
        """Return the contribution of the bounds' width to the gap at group weights q."""
        return float(q @ (self.upper - self.lower))


@dataclass(frozen=True, eq=False)
class SingleRounding:
    """Rounding errors of a pass in single precision.

    Attributes
    ----------
    allowance : ndarray of shape (n_groups,)
        Amounts added to the computed group risks to make them upper bounds on the risks at w.
    constants : ndarray of shape (n_groups,)
        Average over each group of loss - slope.u at the computed outputs u. Together with the gradient from the same
        slopes it gives a minorant for any outputs at w, because a convex loss lies above its tangent at any u.
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
        Outputs of the model, in the precision of the pass. They are kept so that the rows' losses and slopes at w can
        be recomputed without X.
    group_risks : ndarray of shape (n_groups,)
        Average loss of each group; an upper bound after a pass in single precision.
    gradient : ndarray, shaped as w
        sum_i q_i grad R_i(w), without the penalty.
    mass : float
        Weighted sum of the sizes of the gradient's terms, |slope| times the norm of the row. The gradient's rounding
        error is at most `GroupRisk.rounding` units of float64 times this. A row without weight or slope adds nothing,
        however large it is.
    bend : ndarray of shape (w.size, n_outputs) or None
        Change of the gradient, flattened, along each output's free intercept; None if unknown.
    single : SingleRounding or None
        Rounding errors of a pass in single precision; None for a pass in float64.
    """

    w: Floats
    q: Floats
    margins: Array
    group_risks: Floats
    gradient: Floats
    mass: float
    single: "SingleRounding | None" = None
    bend: Floats | None = None


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
        Max over groups of its root mean square, which suffices for guarantees in expectation.
    """

    lipschitz: float
    smoothness: float
    mean_square_smoothness: float
