"""A curvature learned from the gradients seen, as a matrix to multiply by."""

import numpy as np

from groupdro.utils.types import Floats

__all__ = ["InverseLbfgs"]


class InverseLbfgs:
    """The compact form of the L-BFGS inverse: scale * I + U W U', U = [S, scale * Y].

    Parameters
    ----------
    steps, changes : list of ndarray
        Changes of w, and of the gradient along them.
    first_scale : float
        Scale without any.
    """

    def __init__(self, steps: list[Floats], changes: list[Floats], first_scale: float):
        self.scale = first_scale
        self.U: Floats | None = None
        if not steps:
            return
        S, Y = np.array(steps), np.array(changes)
        SY, YY = S @ Y.T, Y @ Y.T
        k = len(steps)
        self.scale = scale = float(SY[-1, -1] / YY[-1, -1])
        R_inverse = np.linalg.inv(np.triu(SY))
        middle = np.zeros((2 * k, 2 * k))
        middle[:k, :k] = R_inverse.T @ (np.diag(np.diag(SY)) + scale * YY) @ R_inverse
        middle[:k, k:] = -R_inverse.T
        middle[k:, :k] = -R_inverse
        self.U, self.W = np.vstack([S, scale * Y]), middle

    def apply(self, rows: Floats) -> Floats:
        """Return rows times the inverse."""
        out = self.scale * rows
        if self.U is not None:
            out += ((rows @ self.U.T) @ self.W) @ self.U
        return out
