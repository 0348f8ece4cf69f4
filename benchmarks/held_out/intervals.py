"""Differences over splits that overlap: the corrected resampled t of Nadeau and Bengio."""

from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

CONFIDENCE = 0.95


class Difference(NamedTuple):
    """Mean difference over splits, and an interval that holds together with those of the other models."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Return "above" or "below" where the interval excludes zero, otherwise "open"."""
        return "above" if self.low > 0 else "below" if self.high < 0 else "open"


def corrected_interval(
    differences: np.ndarray, n_train: float, n_held_out: float, n_comparisons: int = 1, confidence: float = CONFIDENCE
) -> Difference:
    """Return the interval of the mean of paired differences over random splits of one table.

    Training and held-out parts of the splits overlap, so that their differences are not independent: the variance of
    the mean is not s^2 / J but s^2 (1 / J + n_held_out / n_train) (C. Nadeau and Y. Bengio, Inference for the
    generalization error, Machine Learning 52, 2003). Bonferroni's correction makes `n_comparisons` such intervals hold
    together.
    """
    J = len(differences)
    error = np.sqrt(differences.var(ddof=1) * (1.0 / J + n_held_out / n_train))
    half = student.ppf(1.0 - 0.5 * (1.0 - confidence) / n_comparisons, J - 1) * error
    mean = differences.mean()
    return Difference(float(mean), float(mean - half), float(mean + half))
