"""The expectile loss: squared errors that count more on one side than on the other."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from groupdro.losses import Loss

Floats = NDArray[np.float64]


class Expectile(Loss):
    """Loss c r^2 / 2 of the residual r = u - y: c = tau for r < 0, 1 - tau for r > 0.

    |l'| <= |u| + |y|, l'' = c < 1, l*(a) = a y + a^2 / (2 c), with the c of r = a.

    Parameters
    ----------
    tau : float
        Weight of predictions below the target: 0.5 gives half the squared loss; 0.9
        makes an error below the target nine times as costly as one above it.
    """

    name = "expectile"
    smoothness = 1.0

    def __init__(self, tau: float = 0.5):
        if not 0.0 < tau < 1.0:
            raise ValueError(f"tau must be between 0 and 1, got {tau!r}.")
        self.tau = float(tau)

    def encode(self, y: NDArray[Any]) -> Floats:
        """Return the targets as they are."""
        return y.astype(np.float64)

    def _price(self, side: Floats) -> Floats:
        return np.where(side < 0, self.tau, 1.0 - self.tau)

    def value(self, u: Floats, y: NDArray[Any]) -> Floats:
        """Return c r^2 / 2."""
        return 0.5 * self._price(u - y) * (u - y) ** 2

    def value_and_slope(self, u: Floats, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return c r^2 / 2 and c r."""
        return self.value(u, y), self._price(u - y) * (u - y)

    def curvature(self, u: Floats, y: NDArray[Any]) -> Floats:
        """Return c."""
        return self._price(u - y)

    def conjugate(self, duals: Floats, y: NDArray[Any]) -> Floats:
        """Return a y + a^2 / (2 c): a slope has the sign of its residual."""
        return duals * y + 0.5 * duals**2 / self._price(duals)

    def balance(
        self,
        duals: Floats,
        y: NDArray[Any],
        row_weights: Floats,
        total: Any = lambda sums: sums,
    ) -> Floats:
        """Subtract the weighted mean: every dual is in the domain of the conjugate."""
        moment, mass = total(np.array([row_weights @ duals, row_weights.sum()]))
        return duals - moment / mass

    def lipschitz(self, y: NDArray[Any], reach: Floats) -> Floats:
        """Bound |l'| by |u| + |y|, since c < 1."""
        return reach + np.abs(y)
