"""What a pass over the data returns."""

from dataclasses import dataclass

from groupdro.utils.types import Array, Floats

__all__ = ["Evaluation", "SingleRounding"]


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
        Outputs of the model, with the rows' offsets, in the precision of the pass. They are kept so that the rows'
        losses and slopes at w can be recomputed without X.
    group_risks : ndarray of shape (n_groups,)
        Average loss of each group; an upper bound after a pass in single precision.
    gradient : ndarray, shaped as w
        sum_i q_i grad R_i(w), without the penalty.
    mass : float
        Weighted sum of the sizes of the gradient's terms, |slope| times the norm of the row. The gradient's rounding
        error is at most `GroupedData.rounding` units of float64 times this. A row without weight or slope adds nothing,
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
