"""How well probabilities are calibrated: observed over expected, and a logistic recalibration.

The recalibration is the logistic regression logit P(y = 1) = a + b logit(p) of labels y on predicted probabilities p.
Calibrated probabilities have the slope b = 1, and a = 0 where b is fixed at 1 ("calibration in the large"). Each number
is a `groupdro.evaluation.statistics.Statistic`: it is computed for many weightings of the rows at once, with the
influence of every row.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from groupdro.utils.types import Floats, Indices, Mask

__all__ = [
    "CLIP",
    "CalibrationInTheLarge",
    "CalibrationSlope",
    "ObservedOverExpected",
    "expected_events",
    "log_odds",
    "recalibrate",
]

#: Distance from 0 and 1 to which probabilities are clipped before their log-odds are taken.
CLIP = 1e-6
#: Expected events of either kind below which the calibration of a group is not judged, in addition to the ten observed
#: ones of `has_enough` (benchmarks/results/judging_calibration.md has the coverage).
FEWEST_EXPECTED = 20
_STEPS = 100  # of Newton's iteration, which takes about five
_ACCURACY = 1e-7  # of log-odds, at which it ends: the next step would be about its square
_NEAR = 5.0  # a step changes no log-odds by more than this, or than the largest of them
_AT_ONCE = 1 << 15  # weights worked on at a time, which fit into the cache

Found = tuple[Floats, Floats | None]


def log_odds(probabilities: Floats) -> Floats:
    """Return the log-odds of probabilities, which are clipped at a distance of `CLIP` from 0 and 1."""
    clipped = np.clip(probabilities, CLIP, 1.0 - CLIP)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


def recalibrate(
    positive: Mask,
    odds: Floats,
    weights: Floats,
    *,
    coefficient: Literal["intercept", "slope"] = "slope",
    fixed_slope: float | None = None,
) -> tuple[Floats, Floats]:
    """Regress labels on log-odds for several weightings of the same rows.

    Parameters
    ----------
    positive : ndarray of bool of shape (n,)
        The labels.
    odds : ndarray of shape (n,)
        Predicted log-odds.
    weights : ndarray of shape (n_weightings, n)
        Nonnegative weights.
    coefficient : {"intercept", "slope"}
        The coefficient to return.
    fixed_slope : float, optional
        A slope to hold fixed; by default it is estimated.

    Returns
    -------
    values : ndarray of shape (n_weightings,)
        The coefficient under each weighting. It is NaN where one class has no weight, where a threshold on the log-odds
        separates the classes, so that the best slope is infinite, and where the iteration does not converge.
    influence : ndarray of shape (n_weightings, n)
        To first order, the contribution of each row to the coefficient's deviation from the truth.
    """
    values, influence = np.full(len(weights), np.nan), np.full(weights.shape, np.nan)
    if not len(odds):
        return values, influence
    # The regression is on standardised log-odds. The coefficient on the log-odds themselves is linear in its two.
    centre, unit = float(odds.mean()), float(odds.std()) or 1.0
    standard = (odds - centre) / unit
    wanted = np.array([1.0, -centre / unit] if coefficient == "intercept" else [0.0, 1.0 / unit])
    free = fixed_slope is None
    start = np.array([0.0, 0.0 if fixed_slope is None else fixed_slope * unit])
    if len(weights) > 1:  # Resamples are similar: the fit of their mean is close to all of theirs.
        fit = _Fit.of(positive, standard, weights.mean(axis=0, keepdims=True), start, free=free)
        start = fit.coefficients[0] if np.isfinite(fit.coefficients).all() else start
    at_once = max(1, _AT_ONCE // len(odds))
    for begin in range(0, len(weights), at_once):
        block = slice(begin, begin + at_once)
        fit = _Fit.of(positive, standard, weights[block], start, free=free)
        values[block] = fit.coefficients @ wanted
        fit.influence(wanted, out=influence[block])
    return values, influence


@dataclass(frozen=True, eq=False)
class _Fit:
    """Logistic regressions on a constant and a column, for several weightings.

    Attributes
    ----------
    positive, column : ndarray of shape (n,)
        Labels and the column.
    weights : ndarray of shape (n_weightings, n)
        Weights, which sum to 1.
    coefficients : ndarray of shape (n_weightings, 2)
        Intercepts and slopes.
    free : bool
        Whether the slopes are estimated.
    """

    positive: Mask
    column: Floats
    weights: Floats
    coefficients: Floats
    free: bool

    @classmethod
    def of(cls, positive: Mask, column: Floats, weights: Floats, start: Floats, *, free: bool) -> "_Fit":
        """Fit by Newton's iteration, for all weightings at once."""
        total = weights.sum(axis=1, keepdims=True)
        weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        solvable = _has_minimum(positive, column, weights) if free else _has_both(positive, weights)
        coefficients = np.where(solvable[:, None], start, np.nan)
        powers = np.column_stack([np.ones_like(column), column, np.square(column)])
        observed = weights @ (positive[:, None] * powers[:, :2])
        ends = np.array([column.min(), column.max()])
        left = np.flatnonzero(solvable)
        last, promised = np.zeros((len(left), 2)), np.zeros(len(left))
        for _ in range(_STEPS):
            if not len(left):
                break
            at = coefficients[left]
            expected, curvature = _expected(column, weights if len(left) == len(weights) else weights[left], at)
            gradient = observed[left] - expected @ powers[:, :2]
            step = _solve(curvature @ powers, gradient, free=free)
            # Where all rows are far from log-odds of zero, the curvature says little of what is further away.
            change, reach = (np.abs(line[:, :1] + line[:, 1:] * ends).max(axis=1) for line in (step, at))
            step *= np.minimum(1.0, np.maximum(reach, _NEAR) / np.maximum(change, 1e-300))[:, None]
            # The likelihood is concave along the last step: it was too long if it ended beyond the highest point.
            beyond = np.sum(gradient * last, axis=1) < -0.5 * promised
            last = np.where(beyond[:, None], 0.5 * last, step)
            promised = np.where(beyond, 0.5 * promised, np.sum(gradient * step, axis=1))
            coefficients[left] = at + np.where(beyond[:, None], -last, last)
            going = beyond | ~(change <= _ACCURACY)
            left, last, promised = left[going], last[going], promised[going]
        coefficients[left] = np.nan
        return cls(positive, column, weights, coefficients, free)

    def influence(self, wanted: Floats, out: Floats) -> None:
        """Write the influence of each row on a linear combination of the coefficients."""
        expected, curvature = _expected(self.column, self.weights, self.coefficients)
        powers = np.column_stack([np.ones_like(self.column), self.column, np.square(self.column)])
        row = _solve(curvature @ powers, np.tile(wanted, (len(self.weights), 1)), free=self.free)
        np.multiply(row[:, 1:], self.column, out=out)
        out += row[:, :1]
        out *= np.subtract(self.weights * self.positive, expected, out=expected)


def _expected(column: Floats, weights: Floats, coefficients: Floats) -> tuple[Floats, Floats]:
    """Return the weights of each row times its chance of being positive, and times the variance of its label."""
    chance = np.multiply(coefficients[:, 1:], -column)
    chance -= coefficients[:, :1]
    with np.errstate(over="ignore"):  # exp is several times as fast as expit, and its infinity gives the right zero
        np.exp(chance, out=chance)
    chance += 1.0
    np.reciprocal(chance, out=chance)
    expected = weights * chance
    chance *= expected
    return expected, np.subtract(expected, chance, out=chance)


def _solve(sums: Floats, gradient: Floats, *, free: bool) -> Floats:
    """Return a Newton step from sums of the curvature times powers of the column; NaN where there is none."""
    first, mixed, second = sums.T
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if not free:
            return np.column_stack([gradient[:, 0] / first, np.zeros(len(sums))])
        determinant = first * second - mixed**2
        return np.column_stack([
            (second * gradient[:, 0] - mixed * gradient[:, 1]) / determinant,
            (first * gradient[:, 1] - mixed * gradient[:, 0]) / determinant,
        ])  # fmt: skip


def _has_both(positive: Mask, weights: Floats) -> Mask:
    """Return which weightings have rows of both classes."""
    return np.asarray((weights[:, positive] > 0).any(axis=1) & (weights[:, ~positive] > 0).any(axis=1))


def _has_minimum(positive: Mask, column: Floats, weights: Floats) -> Mask:
    """Return where a finite slope is best: where the ranges of both classes overlap (Silvapulle, 1981)."""
    lowest, highest = [], []
    for kind in (positive, ~positive):
        there = weights[:, kind] > 0
        lowest.append(np.where(there, column[kind], np.inf).min(axis=1, initial=np.inf))
        highest.append(np.where(there, column[kind], -np.inf).max(axis=1, initial=-np.inf))
    return np.asarray((lowest[0] < highest[1]) & (lowest[1] < highest[0]))


@dataclass(frozen=True, eq=False)
class _OfProbabilities:
    """A number for labels and probabilities of the positive class.

    Attributes
    ----------
    positive : ndarray of bool of shape (n_rows,)
        The labels.
    probabilities : ndarray of shape (n_rows,)
        Predicted probabilities of the positive class.
    """

    positive: Mask
    probabilities: Floats
    sizes: None = None
    steep_share: None = None
    of_means: None = None

    @property
    def required(self) -> Mask:
        """The rows of either class."""
        return np.column_stack([self.positive, ~self.positive])

    @property
    def chances(self) -> Floats:
        """The probabilities."""
        return self.probabilities


class ObservedOverExpected(_OfProbabilities):
    """The number of positive rows over the sum of the probabilities."""

    def __call__(self, rows: Indices, weights: Floats) -> Found:
        """Return the ratios; NaN where nothing is expected."""
        expected = weights @ self.probabilities[rows]
        nothing = np.full(len(weights), np.nan)
        ratios = np.divide(weights @ self.positive[rows], expected, out=nothing, where=expected > 0)
        return ratios, weights * (
            (self.positive[rows] - ratios[:, None] * self.probabilities[rows])
            / np.where(expected > 0, expected, np.nan)[:, None]
        )


class CalibrationInTheLarge(_OfProbabilities):
    """The intercept of a logistic recalibration with slope 1: positive if probabilities are too low."""

    def __call__(self, rows: Indices, weights: Floats) -> Found:
        """Return the intercepts; NaN where a class has no weight."""
        odds = log_odds(self.probabilities[rows])
        return recalibrate(self.positive[rows], odds, weights, coefficient="intercept", fixed_slope=1.0)


class CalibrationSlope(_OfProbabilities):
    """The slope of a logistic recalibration: below 1 if probabilities are too extreme."""

    def __call__(self, rows: Indices, weights: Floats) -> Found:
        """Return the slopes; NaN where a threshold separates the classes."""
        return recalibrate(self.positive[rows], log_odds(self.probabilities[rows]), weights)


def expected_events(
    probabilities: Floats, group: Indices, n_groups: int, *, units: Indices | None = None, weights: Floats | None = None
) -> Floats:
    """Return how many positive rows, or if fewer, negative rows, the probabilities promise in each group.

    The observed number decides less well whether a group can be judged: among groups of few expected events, those with
    many of them differ from the expectation by their selection alone.

    Parameters
    ----------
    probabilities : ndarray of shape (n,)
        Predicted probabilities.
    group : ndarray of shape (n,)
        Index of each row's group.
    n_groups : int
        Number of groups.
    units : ndarray of shape (n,), optional
        Cluster of each row; by default every row is its own cluster.
    weights : ndarray of shape (n,), optional
        Weights of the rows.

    Returns
    -------
    ndarray of shape (n_groups,)
        Effective numbers: the square of the expected weight of the events over the expected sum of squares of their
        weights in each cluster.
    """
    weights = np.ones(len(group)) if weights is None else weights / (weights.max(initial=0.0) or 1.0)
    places = np.arange(len(group)) if units is None else units
    cells, place = np.unique(np.column_stack([group, places]), axis=0, return_inverse=True)
    place = place.ravel()
    numbers = []
    for chances in (probabilities, 1.0 - probabilities):
        means = np.bincount(place, weights * chances, minlength=len(cells))
        squares = means**2 + np.bincount(place, weights**2 * chances * (1.0 - chances), minlength=len(cells))
        total, spread = (np.bincount(cells[:, 0], each, minlength=n_groups) for each in (means, squares))
        numbers.append(np.divide(total**2, spread, out=np.zeros(n_groups), where=spread > 0))
    return np.minimum(*numbers)
