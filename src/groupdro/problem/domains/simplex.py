"""The probability simplex as a domain of the coefficients."""

from dataclasses import dataclass

import numpy as np

from groupdro.geometry import Entropy
from groupdro.problem.domains.domain import Domain
from groupdro.problem.linear_model import LinearModel
from groupdro.utils.types import Floats

__all__ = ["SimplexDomain"]

_ROUNDED = 1e-9  # allowed deviation of the sum of the weights from 1


@dataclass(frozen=True)
class SimplexDomain(Domain):
    """The probability simplex: coefficients are the weights of an ensemble, one column of X per model."""

    def support(self, gradient: Floats) -> float:
        """Return the smallest entry: all weight on the best model."""
        return float(gradient.min())

    def reach(self, gradient: Floats) -> float:
        """Return 1, the norm of a vertex."""
        return 1.0

    def feasible(self, coef: Floats) -> Floats:
        """Set negative weights to zero and rescale the rest to sum to one."""
        kept = np.maximum(coef, 0.0)
        return kept / kept.sum() if kept.sum() > 0 else self.start(coef.shape)

    def contains(self, coef: Floats) -> bool:
        """Check signs and sum."""
        return bool((coef >= 0).all()) and abs(float(coef.sum()) - 1.0) <= _ROUNDED

    def start(self, shape: tuple[int, ...]) -> Floats:
        """Return equal weights."""
        return np.full(shape, 1.0 / shape[0])

    def geometry(self, n_features: int) -> Entropy:
        """Return the entropic geometry."""
        return Entropy(n_features)

    def check(self, model: LinearModel) -> None:
        """Refuse several outputs and a free intercept."""
        if model.n_outputs > 1:
            raise ValueError("domain=SimplexDomain() requires a loss with one output; got the softmax loss.")
        if model.fit_intercept:
            raise ValueError("fit_intercept must be False with SimplexDomain: the weights are its only parameters.")
