"""The one-vs-rest logistic loss: a loss with several outputs in one file."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, xlogy

from groupdro.losses import Loss

Floats = NDArray[np.float64]


class OneVsRest(Loss):
    """Sum over classes of the logistic loss of "this class or another".

    With s_c = 1 for the row's own class and -1 for the others, the loss is
    sum_c ln(1 + exp(-s_c u_c)), and with a_c = -s_c p_c its conjugate is
    sum_c p_c ln p_c + (1 - p_c) ln(1 - p_c) for 0 <= p_c <= 1.

    Parameters
    ----------
    n_classes : int, optional
        Number of classes; by default the largest label plus one.
    """

    name = "one-vs-rest"
    smoothness = 0.25

    def __init__(self, n_classes: int | None = None):
        self.n_classes = n_classes

    def encode(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """Check that labels are whole numbers from 0."""
        if (y < 0).any() or (y != np.floor(y)).any():
            raise ValueError("y must be whole numbers from 0 for the one-vs-rest loss.")
        return y.astype(np.int64)

    def n_outputs(self, y: NDArray[Any]) -> int:
        """Return one output per class."""
        return int(y.max()) + 1 if self.n_classes is None else self.n_classes

    def with_outputs(self, n_outputs: int) -> "OneVsRest":
        """Fix the number of classes: one group, or one worker, may lack some."""
        return OneVsRest(n_outputs)

    def value(self, u: Floats, y: NDArray[Any]) -> Floats:
        """Return the loss, by a sum that cannot overflow."""
        return np.logaddexp(0.0, -_signs(u, y) * u).sum(axis=1)

    def value_and_slope(self, u: Floats, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return the loss and -s p, where p is the probability of the wrong side."""
        signs = _signs(u, y)
        return self.value(u, y), -signs * expit(-signs * u)

    def curvature_product(
        self, u: Floats, y: NDArray[Any]
    ) -> Callable[[Floats], Floats]:
        """Return the product with the diagonal matrix of p (1 - p)."""
        curvature = expit(u) * expit(-u)
        return lambda along: curvature * along

    def conjugate(self, duals: Floats, y: NDArray[Any]) -> Floats:
        """Return the negative entropy of all p; infinite outside [0, 1]."""
        p = -_signs(duals, y) * duals
        inside = (np.abs(p - 0.5) <= 0.5 + 1e-15).all(axis=1)
        p = np.clip(p, 0.0, 1.0)
        return np.where(inside, (xlogy(p, p) + xlogy(1 - p, 1 - p)).sum(axis=1), np.inf)

    def balance(
        self,
        duals: Floats,
        y: NDArray[Any],
        row_weights: Floats,
        total: Any = lambda sums: sums,
    ) -> Floats:
        """Scale down the duals of the heavier sign of every class."""
        above = total(row_weights @ np.maximum(duals, 0.0))
        below = total(row_weights @ np.maximum(-duals, 0.0))
        lighter = np.minimum(above, below)
        with np.errstate(invalid="ignore"):  # 0 / 0 multiplies duals that are zero
            factors = np.where(duals > 0, lighter / above, lighter / below)
        return np.where(duals == 0, 0.0, factors * duals)

    def lipschitz(self, y: NDArray[Any], reach: Floats) -> Floats:
        """Bound each of the slopes by 1."""
        return np.full_like(reach, np.sqrt(self.n_outputs(y)))


def _signs(u: Floats, y: NDArray[Any]) -> Floats:
    """Return 1 for the class of each row, and -1 for the others."""
    return np.where(np.arange(u.shape[1]) == y[:, None], 1.0, -1.0)
