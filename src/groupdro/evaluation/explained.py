"""The share of the pinball loss that a model of quantiles explains."""

from dataclasses import dataclass

import numpy as np

from groupdro.evaluation.statistics import Found, Median
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["ExplainedPinball"]


@dataclass(frozen=True, eq=False)
class ExplainedPinball:
    """One minus the pinball loss over that of the best constant, a quantile of the same rows.

    Attributes
    ----------
    y, predicted : ndarray of shape (n_rows,)
        Targets and predicted quantiles.
    level : float
        Level of the quantile.
    """

    y: Floats
    predicted: Floats
    level: float
    chances: None = None
    of_means: None = None

    def _losses(self, rows: Indices, predicted: Floats) -> Floats:
        above = self.y[rows] - predicted
        return np.maximum(self.level * above, (self.level - 1.0) * above)

    @property
    def required(self) -> Mask:
        """All rows."""
        return np.ones((len(self.y), 1), dtype=bool)

    @property
    def sizes(self) -> Floats:
        """The pinball losses."""
        return self._losses(np.arange(len(self.y)), self.predicted)

    @property
    def steep_share(self) -> float:
        """The share of the targets beyond the quantile, on its rarer side."""
        return min(self.level, 1.0 - self.level)

    def __call__(self, rows: Indices, weights: Floats) -> Found:
        """Return the shares. That the constant depends on the rows does not matter to first order: it is optimal."""
        constants = Median(self.y).quantiles(rows, weights, np.array([self.level]))
        losses, null = self._losses(rows, self.predicted[rows]), self._losses(rows, constants[:, None])
        total = weights.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            loss, least = ((weights * each).sum(axis=1, keepdims=True) / total for each in (losses, null))
            least[least <= 1e-12 * np.abs(self.y[rows]).max()] = np.nan  # all targets are equal
            share = loss / least
            influence = weights / total * (share * null - losses) / least
        return 1.0 - share[:, 0], influence
