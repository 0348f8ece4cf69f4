"""Lower bounds on how much larger the loss of each of several groups is than that of the other rows."""

import math
from dataclasses import dataclass

import numpy as np

from groupdro.data.grouping import Grouping
from groupdro.evaluation.inference import LEAST_ERROR, draw_units, effective_sizes
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["Group", "Judged", "effective_size", "judge"]

_NO_WEIGHT = 1e-100  # of a draw without any row; its square must not be zero
_SKEWED = -0.5  # skewness from which losses count as mostly large; error rates above 62% have it


@dataclass(frozen=True, eq=False)
class Group:
    """A group to be judged, and what it is judged by.

    Attributes
    ----------
    losses : ndarray of shape (n_rows,)
        Losses.
    counted : ndarray of bool of shape (n_rows,)
        Rows that have a loss.
    inside : ndarray of bool of shape (n_rows,)
        Rows of the group.
    """

    losses: Floats
    counted: Mask
    inside: Mask


@dataclass(frozen=True, eq=False)
class Judged:
    """Differences of the mean loss inside and outside.

    Attributes
    ----------
    inside, outside : ndarray of shape (n_groups,)
        Mean losses.
    low : ndarray of shape (n_groups,)
        Lower bounds of the differences that hold for all groups at once.
    enough : ndarray of bool of shape (n_groups,)
        Groups with enough rows; the others have no bound.
    critical : float
        Number of standard errors by which the bounds are below the differences; NaN if there are no bounds.
    """

    inside: Floats
    outside: Floats
    low: Floats
    enough: Mask
    critical: float


def judge(
    groups: list[Group],
    clusters: Indices | None,
    weights: Floats | None,
    *,
    least: float,
    level: float,
    n_bootstrap: int,
    seed: int,
) -> Judged:
    """Bound how much larger the loss of each group is than that of the other rows.

    Parameters
    ----------
    groups : list of Group
        The groups, chosen without looking at these rows.
    clusters, weights : ndarray of shape (n_rows,), optional
        Cluster and weight of each row.
    least : float
        Effective number of rows (or clusters) that must be inside and outside; twice as many where large losses are
        the rule, and few rows do not show how small losses can be.
    level : float
        Probability with which all bounds hold.
    n_bootstrap, seed : int
        Number of resamples, and their seed.

    Returns
    -------
    Judged
        The bounds, from the largest studentised deviation over all groups: rows or clusters are resampled with Poisson
        weights, and every resample is divided by its own standard error.
    """
    if not groups:
        nothing = np.empty(0)
        return Judged(nothing, nothing, nothing, np.empty(0, dtype=bool), np.nan)
    n = len(groups[0].losses)
    mass = np.ones(n) if weights is None else weights / weights.max()
    units, draws = draw_units(n, clusters, n_bootstrap, seed)
    n_units = int(units.max()) + 1
    parts = [[_part(group, side, mass, units, n_units) for side in (True, False)] for group in groups]
    inside, outside = np.array([[part.mean for part in pair] for pair in parts]).T
    difference = inside - outside
    columns = [_columns(*pair) for pair in parts]
    everything = np.ones((1, n_units))
    sizes = np.array(
        [
            min(effective_size(group.counted & (group.inside == side), clusters, weights) for side in (True, False))
            for group in groups
        ]
    )
    errors = np.array([_studentised(everything, own)[1][0] for own in columns])
    errors *= np.sqrt(sizes / np.maximum(sizes - 1.0, 1.0))
    needed = np.array([least * (1 + _mostly_large(group)) for group in groups])
    enough = (sizes >= needed - 1e-9) & (errors > 1e-12 * np.abs(difference))
    low = np.full(len(groups), -np.inf)
    if not enough.any():
        return Judged(inside, outside, low, enough, np.nan)
    largest = np.full(n_bootstrap, -np.inf)
    for place, drawn in draws:
        for k in np.flatnonzero(enough):
            strayed, spread = _studentised(drawn, columns[k])
            deviations = strayed / np.maximum(spread, LEAST_ERROR * errors[k])
            largest[place] = np.maximum(largest[place], deviations)
    critical = float(np.sort(largest)[min(math.ceil((n_bootstrap + 1) * level), n_bootstrap) - 1])
    low[enough] = (difference - critical * errors)[enough]
    return Judged(inside, outside, low, enough, critical)


@dataclass(frozen=True, eq=False)
class _Part:
    """The rows inside or outside of a group: their mean, and per unit the weight and the deviation from the mean."""

    mean: float
    mass: Floats
    deviations: Floats


def _part(group: Group, side: bool, mass: Floats, units: Indices, n_units: int) -> _Part:
    rows = np.flatnonzero(group.counted & (group.inside == side))
    own, losses, place = mass[rows], group.losses[rows], units[rows]
    mean = float(np.average(losses, weights=own)) if own.sum() > 0 else np.nan
    total, deviations = (
        np.bincount(place, weights=each, minlength=n_units).astype(np.float64) for each in (own, own * (losses - mean))
    )
    return _Part(mean, total, deviations)


def _columns(inside: _Part, outside: _Part) -> Floats:
    """Return what has to be summed over the units of a draw: weights, deviations, and their products."""
    a, b, c, d = inside.mass, inside.deviations, outside.mass, outside.deviations
    return np.stack([a, b, c, d, a * a, a * b, b * b, c * c, c * d, d * d, b * d, b * c, a * d, a * c], axis=1)


def _studentised(drawn: Floats, columns: Floats) -> tuple[Floats, Floats]:
    """Return by how much the difference of two means deviates in each draw, and its standard error."""
    sums = (drawn @ columns).T
    n1, n0 = np.maximum(sums[0], _NO_WEIGHT), np.maximum(sums[2], _NO_WEIGHT)
    m1, m0 = sums[1] / n1, sums[3] / n0
    aa, ab, bb, cc, cd, dd, bd, bc, ad, ac = sums[4:]
    squared = (bb - 2.0 * m1 * ab + m1**2 * aa) / n1**2 + (dd - 2.0 * m0 * cd + m0**2 * cc) / n0**2
    squared -= 2.0 * (bd - m1 * ad - m0 * bc + m1 * m0 * ac) / (n1 * n0)  # units with rows on both sides
    return m1 - m0, np.sqrt(np.maximum(squared, 0.0))


def _mostly_large(group: Group) -> bool:
    """Return whether losses are skewed to the left, as where most rows are errors."""
    losses = group.losses[group.counted & group.inside]
    if not len(losses) or not losses.std() > 0:
        return False
    return bool(np.mean(((losses - losses.mean()) / losses.std()) ** 3) < _SKEWED)


def effective_size(counted: Mask, clusters: Indices | None, weights: Floats | None) -> float:
    """Return the effective number of rows or clusters among those that are counted."""
    if not counted.any():
        return 0.0
    n = len(counted)
    everything = Grouping(np.array([0, n]), np.arange(n), ("all",), overlapping=False)
    return float(effective_sizes(everything, clusters, weights, counted)[0])
