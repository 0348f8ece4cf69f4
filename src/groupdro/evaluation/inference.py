"""Simultaneous confidence intervals for numbers of all groups, and for differences between models.

The worst of many groups is selected after the fact, so a separate interval per group would be too narrow. The largest
studentised deviation over all groups and resamples gives intervals that hold simultaneously with the stated confidence.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import expit, logit
from scipy.stats import beta

from groupdro.evaluation.resampling import LEAST_ERROR, Resampled
from groupdro.utils.types import Floats, Mask

__all__ = ["Intervals", "Scale", "falls_of_worst", "least_falls", "simultaneous_intervals"]

Scale = Literal["plain", "logit", "log", "square root"]

_SHARE_OF_RANKING = 0.2  # of the allowed error, spent on which group is the worst
_MOST_PAIRED = 40  # candidates for the worst up to which all pairs are compared
# Clusters with an error at which its estimated variance is doubled: few of them say little of how errors cluster.
_ERRING_CLUSTERS = 10.0
_NO_SPREAD = 1e-12  # standard error relative to the mean below which all rows count as equal
_EDGE = 1e-12  # distance from 0 and 1 at which log-odds are cut off


@dataclass(frozen=True, eq=False)
class Intervals:
    """Simultaneous confidence intervals.

    Attributes
    ----------
    estimates, low, high : ndarray of shape (n,)
        Means, and both ends of simultaneous intervals.
    most, least : float
        No mean exceeds `most`, and the largest is at least `least`, each individually with the stated confidence.
    none_below : float
        No mean is smaller, with the stated confidence.
    confidence : float
        Confidence level.
    """

    estimates: Floats
    low: Floats
    high: Floats
    most: float
    least: float
    none_below: float
    confidence: float

    @classmethod
    def nothing(cls, n: int, confidence: float) -> "Intervals":
        """Return what is known without any resample."""
        estimates, low, high = np.full((3, n), np.nan)
        return cls(estimates, low, high, np.nan, np.nan, np.nan, confidence)

    def within(self, least: float, most: float) -> "Intervals":
        """Return the same intervals without impossible values."""
        low, high = (np.clip(end, least, most) for end in (self.low, self.high))
        highest, largest, none_below = np.clip([self.most, self.least, self.none_below], least, most).tolist()
        return Intervals(self.estimates, low, high, highest, largest, none_below, self.confidence)

    def spread(self, chosen: Mask) -> "Intervals":
        """Return the same intervals in the places of the chosen groups; NaN elsewhere."""
        wide = np.full((3, len(chosen)), np.nan)
        wide[:, chosen] = self.estimates, self.low, self.high
        return replace(self, estimates=wide[0], low=wide[1], high=wide[2])


def simultaneous_intervals(
    found: Resampled,
    confidence: float,
    *,
    kind: int = 0,
    against: int | None = None,
    groups: Mask | None = None,
    scale: Scale = "plain",
) -> Intervals:
    """Return simultaneous confidence intervals for the means of all groups.

    Parameters
    ----------
    found : Resampled
        Means and their resamples.
    confidence : float
        Confidence level.
    kind : int
        Index of the quantity.
    against : int, optional
        Index of a quantity to subtract; by default none.
    groups : ndarray of bool, optional
        Groups to include; by default all. The others have NaN, as do groups whose rows are all equal: resampling says
        nothing about values that were not observed.
    scale : {"plain", "logit", "log", "square root"}
        Whether to compute intervals for the means themselves; for their log-odds; for their logarithms; or for their
        logarithms, and return square roots.

    Returns
    -------
    Intervals
        The intervals, from the largest studentised deviation over the included groups. All are NaN if there are none.
        For zeros and ones, of which one kind may be rare, they are Clopper-Pearson intervals (at the effective number
        of rows) with Bonferroni correction.
    """
    m = len(found.means)
    counted = np.ones(m, dtype=bool) if groups is None else groups.copy()
    if against is None and found.binary[kind] and counted.any():
        return _binomial_intervals(found, confidence, kind, counted)
    estimates, resampled = found.means[:, kind], found.resampled_means[:, :, kind]
    errors = np.maximum(found.errors[:, kind], found.least_errors[:, kind])
    spread = found.resampled_errors[:, :, kind]
    if against is not None:
        estimates, resampled = estimates - found.means[:, against], resampled - found.resampled_means[:, :, against]
        errors = _spread_of(resampled, counted)
        spread = np.broadcast_to(errors, resampled.shape)
    if against is None:
        counted &= errors > _NO_SPREAD * np.maximum(np.abs(estimates), 1e-300)
    if not counted.any():
        return Intervals.nothing(m, confidence)
    estimates, errors = _to_scale(scale, estimates, errors)
    resampled, spread = _to_scale(scale, resampled, spread)
    floor = _NO_SPREAD * np.maximum(np.abs(estimates), 1e-300)
    units = np.maximum(np.maximum(spread, floor), LEAST_ERROR * errors)  # which say nothing of groups left out
    deviations = np.divide(resampled - estimates, units, out=np.zeros_like(resampled), where=counted)
    highest, lowest = deviations[:, counted].max(axis=1), deviations[:, counted].min(axis=1)
    tail = 0.5 * (1.0 - confidence)
    # A resample above the mean means that the sample may lie above the truth: its quantile sets the lower end.
    below, above = np.quantile(highest, 1.0 - tail), -np.quantile(lowest, tail)
    low, high = estimates - below * errors, estimates + above * errors
    once_below, once_above = np.quantile(highest, confidence), -np.quantile(lowest, 1.0 - confidence)
    ends = estimates, low, high, estimates + once_above * errors, estimates - once_below * errors
    estimates, low, high, highest, lowest = (np.where(counted, _BACK[scale](end), np.nan) for end in ends)
    return Intervals(
        estimates,
        low,
        high,
        most=float(np.nanmax(highest)),
        least=float(np.nanmax(lowest)),
        none_below=float(np.nanmin(lowest)),
        confidence=confidence,
    )


_BACK: dict[str, Callable[[Floats], Floats]] = {
    "plain": lambda values: values,
    "logit": expit,
    "log": np.exp,
    "square root": lambda logarithms: np.exp(0.5 * logarithms),
}


def _to_scale(scale: Scale, values: Floats, errors: Floats) -> tuple[Floats, Floats]:
    """Return values on another scale, with their standard errors."""
    if scale == "plain":
        return values, errors
    if scale == "logit":
        values = np.clip(values, _EDGE, 1.0 - _EDGE)
        return logit(values), errors / (values * (1.0 - values))
    values = np.maximum(values, 1e-300)
    return np.log(values), errors / values


def _binomial_intervals(found: Resampled, confidence: float, kind: int, counted: Mask) -> Intervals:
    """Return intervals for proportions."""
    shares, errors = found.means[:, kind], found.errors[:, kind]
    # The number of independent rows with the same standard error, but not more than there are: clusters whose errors
    # happen to balance, or errors that happen to be on light rows, do not make rows more informative. Few erring
    # clusters say little of that standard error, so it is increased, up to where a cluster counts as one row.
    rows = found.sizes.copy()
    np.divide(shares * (1.0 - shares), np.square(errors), out=rows, where=errors > 0)
    clustered = found.rows > found.sizes * (1.0 + 1e-9)
    careful = rows / (1.0 + _ERRING_CLUSTERS / np.maximum(found.mixed[:, kind], 1e-9))
    rows = np.where(clustered, np.maximum(careful, np.minimum(rows, found.sizes)), rows)
    rows = np.minimum(rows, found.rows)
    ones = shares * rows
    tail = (1.0 - confidence) / int(counted.sum())

    def upper(error: float) -> Floats:
        return np.where(shares >= 1.0, 1.0, beta.ppf(1.0 - error, ones + 1.0, np.maximum(rows - ones, 1e-12)))

    def lower(error: float) -> Floats:
        return np.where(shares <= 0.0, 0.0, beta.ppf(error, np.maximum(ones, 1e-12), rows - ones + 1.0))

    low, high = (np.where(counted, end(0.5 * tail), np.nan) for end in (lower, upper))
    most, least = (float(end(tail)[counted].max()) for end in (upper, lower))
    none_below = float(lower(tail)[counted].min())
    return Intervals(np.where(counted, shares, np.nan), low, high, most, least, none_below, confidence)


def falls_of_worst(found: Resampled, confidence: float, *, against: int, groups: Mask) -> Intervals:
    """Return simultaneous intervals for the decrease of the worst group's mean relative to one quantity.

    The bootstrap fails for the largest of several means if two of them nearly tie. So the interval is built from
    differences of means, for which it is valid. Whichever group j is the worst for a quantity, the decrease is at least
    the mean of any group i under `against` minus that of j under the quantity. So it is at least the minimum, over all
    j that may be the worst, of the maximum over i of such differences. The upper end is analogous.

    Parameters
    ----------
    found : Resampled
        Means and their resamples.
    confidence : float
        Simultaneous confidence level over all quantities.
    against : int
        Index of the quantity that the others are compared with.
    groups : ndarray of bool
        Groups to include.

    Returns
    -------
    Intervals
        One decrease per quantity, positive if it is better; that of `against` itself is 0.
    """
    means, again = found.means[groups], found.resampled_means[:, groups]
    error, n_bootstrap = 1.0 - confidence, len(again)
    contenders = _may_be_worst(means, again, _SHARE_OF_RANKING * error)
    first = contenders[:, against]
    highest, lowest = np.zeros(n_bootstrap), np.zeros(n_bootstrap)
    pairs = []
    for k in range(means.shape[1]):
        both = np.flatnonzero(first | contenders[:, k])
        # Differences between all pairs of groups; if there are many, only of each group with itself.
        i, j = np.ix_(both, both) if len(both) <= _MOST_PAIRED else (both[None], both[None])
        falls = means[i, against] - means[j, k]
        strayed = again[:, i, against] - again[:, j, k] - falls
        spread = strayed.std(axis=0)
        spread[spread <= _NO_SPREAD * np.abs(means[j, k])] = 0.0
        deviations = np.divide(strayed, spread, out=np.zeros_like(strayed), where=spread > 0)
        highest = np.maximum(highest, deviations.max(axis=(1, 2)))
        lowest = np.minimum(lowest, deviations.min(axis=(1, 2)))
        pairs.append((falls, spread, first[both], contenders[both, k]))
    tail = 0.5 * (1.0 - _SHARE_OF_RANKING) * error
    below, above = np.quantile(highest, 1.0 - tail), -np.quantile(lowest, tail)
    worst = means.max(axis=0)
    estimates = worst[against] - worst
    low = np.array([(falls - below * spread).max(axis=0)[after].min() for falls, spread, _, after in pairs])
    high = np.array([_least_of_each(falls + above * spread)[before].max() for falls, spread, before, _ in pairs])
    same = np.abs(found.resampled_means - found.resampled_means[:, :, [against]]).max(axis=(0, 1)) <= (
        _NO_SPREAD * np.abs(worst)
    )
    for values in (estimates, low, high):
        values[same] = 0.0
    return Intervals(estimates, low, high, float(high.max()), float(low.max()), float(low.min()), confidence)


def least_falls(found: Resampled, plain: int, judged: Mask, confidence: float, *, others: float = 1.0) -> Floats:
    """Return one-sided lower bounds on the decrease of the worst mean relative to plain training, for all cells.

    The ends of `falls_of_worst` hold for all pairs of groups at once, which a choice among dozens of cells does not
    need and would pay for with gains that it misses. The worst mean of a cell is smaller than that of plain training if
    every group's mean in the cell is smaller than that of one group under plain training, for which we take its worst
    group. All of these differences must be positive, so each is tested on its own: an intersection-union test needs a
    correction for the number of cells, but none for the number of groups.

    Parameters
    ----------
    found : Resampled
        Held-out means of every group and cell, and their resamples.
    plain : int
        Index of plain training among the cells.
    judged : ndarray of bool
        Groups to compare.
    confidence : float
        Confidence level.
    others : float
        Multiplies the error allowed for groups other than the worst under plain training.

    Returns
    -------
    ndarray of shape (n_cells,)
        The bounds; minus infinity for plain training itself.
    """
    means, again = found.means[judged], found.resampled_means[:, judged]
    worst = int(means[:, plain].argmax())
    falls = means[worst, plain] - means
    strayed = again[:, [worst], plain][:, :, None] - again - falls
    spread = strayed.std(axis=0)
    moving = spread > _NO_SPREAD * np.abs(means[worst, plain])
    deviations = np.divide(strayed, spread, out=np.zeros_like(strayed), where=moving)
    error = np.full(len(means), min(others * (1.0 - confidence), 0.5))
    error[worst] = 1.0 - confidence
    reach = [np.quantile(deviations[:, j].max(axis=1), 1.0 - error[j]) for j in range(len(means))]
    least = np.asarray((falls - np.array(reach)[:, None] * spread).min(axis=0))
    return np.where(moving[worst], least, -np.inf)


def _least_of_each(ends: Floats) -> Floats:
    """Return the minimum of each row; for a single row, its entries, which compare groups with themselves."""
    return ends.min(axis=1) if len(ends) > 1 else ends[0]


def _may_be_worst(means: Floats, again: Floats, error: float) -> Mask:
    """Return which groups may have the largest mean of each quantity, with the given probability of missing one."""
    out = np.zeros(means.shape, dtype=bool)
    for k in range(means.shape[1]):
        top = int(means[:, k].argmax())
        behind = means[top, k] - means[:, k]
        distances = again[:, [top], k] - again[:, :, k] - behind
        spread = distances.std(axis=0)
        others = spread > _NO_SPREAD * abs(means[top, k])
        deviations = distances[:, others] / spread[others]
        reach = np.quantile(deviations.max(axis=1, initial=0.0), 1.0 - error / means.shape[1])
        out[:, k] = behind <= reach * np.where(others, spread, 0.0)
    return out


def _spread_of(resampled: Floats, counted: Any) -> Floats:
    """Return the standard deviation of each group's resamples; 0 for groups that are not included."""
    return np.where(counted, resampled.std(axis=0), 0.0)
