"""The set of models with moderate outputs, for which a lower bound can hold if nothing bounds the coefficients.

A ball of coefficients would depend on the units of the columns. It would also exclude models along nearly collinear
columns, whose coefficients are large although their outputs are ordinary. The set

    { w : sum_r m_r (x_r.w)^2 <= limit^2 },    m_r = weight of row r over its squared size, where that is above 1,

has neither problem: it does not depend on how the same column space is written. The weights m_r keep an outlier from
making its row count more than others. Along directions in which no row varies, all models are the same and the gradient
is zero.
"""

from dataclasses import dataclass

import numpy as np

from groupdro.data import GroupedData
from groupdro.utils.types import Floats

__all__ = ["OutputBall"]


_NEAR = 0.1  # share of the limit
_MOST_FEATURES = 2000  # most features for which the decomposition is computed
_DEPENDENT = 1e-13  # singular value, relative to the largest, below which columns count as collinear


@dataclass(frozen=True, eq=False)
class OutputBall:
    """The set in the form that a certificate needs: the minimum of a linear function over it.

    Attributes
    ----------
    limit : float
        Largest root mean square of the outputs.
    values : ndarray of shape (n_directions,)
        Singular values of the weighted rows; empty if there are too many features, so that nothing is bounded.
    directions : ndarray of shape (n_features, n_directions)
        The corresponding directions of the features.
    """

    limit: float
    values: Floats
    directions: Floats

    @classmethod
    def of(cls, data: GroupedData, limit: float, *, centred: bool) -> "OutputBall":
        """Decompose the rows in one pass; `centred` if a free intercept absorbs the mean of the outputs."""
        d = data.n_features
        if d > _MOST_FEATURES:
            return cls(limit, np.empty(0), np.empty((d, 0)))
        weights = data.balanced_weights()
        weights = weights / np.maximum(1.0, np.square(data.row_norms) / d)
        centre = np.zeros(d)
        if centred:
            moment = np.zeros(d)
            mass = np.array([weights.sum()])
            for place, block in data.rows.blocks():
                moment += block.rmatvec(weights[place])
            data.add_up(moment, mass)
            centre = moment / max(float(mass[0]), 1e-300)
        triangle = np.zeros((0, d))
        for place, block in data.rows.blocks():
            scaled = (block.dense() - centre) * np.sqrt(weights[place])[:, None]
            triangle = np.asarray(np.linalg.qr(np.vstack([triangle, scaled]), mode="r"))
        all_triangles = np.zeros((data.n_workers, d, d))
        all_triangles[data.rank, : len(triangle)] = triangle
        data.add_up(all_triangles)
        _, values, directions = np.linalg.svd(all_triangles.reshape(-1, d), full_matrices=False)
        kept = values > _DEPENDENT * values[0]
        return cls(limit, values[kept], np.ascontiguousarray(directions[kept].T))

    def support(self, gradient: Floats) -> float:
        """Return the minimum of <gradient, coef> over the set."""
        if not self.values.size:
            return -np.inf if gradient.any() else 0.0
        slopes = self.directions.T @ gradient
        return -self.limit * float(np.linalg.norm(slopes.T / self.values))

    def reach(self, gradient: Floats) -> float:
        """Return the largest norm of coefficients in the set, which multiplies the rounding error of a gradient."""
        return self.limit / float(self.values[-1]) if self.values.size else 0.0

    def reach_near(self, gradient: Floats, error: float) -> float:
        """Return the same, whatever the gradient."""
        return self.reach(gradient)

    def size(self, coef: Floats) -> float:
        """Return the root mean square of the outputs at coef."""
        return float(np.linalg.norm((self.directions.T @ coef).T * self.values))

    def is_near(self, coef: Floats) -> bool:
        """Return whether the outputs at coef are near the limit, so that the set may cut off the solution."""
        return not self.size(coef) <= _NEAR * self.limit
