"""Lower bounds on how much larger the loss of each of several groups is than that of the other rows."""

import math
from dataclasses import dataclass, replace

import numpy as np

from groupdro.data.grouping import Grouping
from groupdro.evaluation.inference import LEAST_ERROR, draw_units, effective_sizes
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["Group", "Judged", "Quantity", "Sampling", "judge"]

_NO_WEIGHT = 1e-100  # of a draw without any row; its square must not be zero
_SKEWED = -0.5  # skewness from which losses count as mostly large; error rates above 62% have it


@dataclass(frozen=True, eq=False)
class Quantity:
    """What is compared: a loss or a metric, per row.

    Attributes
    ----------
    name : str
        Its name.
    losses : ndarray of shape (n_rows,)
        Losses, or negated values if larger ones are better.
    counted : ndarray of bool of shape (n_rows,)
        Rows that have a value, such as the positive ones for recall.
    sign : float
        -1 if losses are negated values.
    """

    name: str
    losses: Floats
    counted: Mask
    sign: float = 1.0

    def take(self, rows: Indices) -> "Quantity":
        """Return the values of some rows."""
        return replace(self, losses=self.losses[rows], counted=self.counted[rows])


@dataclass(frozen=True, eq=False)
class Sampling:
    """Numbers of the rows' clusters, and their weights; None if rows are independent, or count alike."""

    clusters: Indices | None = None
    weights: Floats | None = None

    def take(self, rows: Indices) -> "Sampling":
        """Return those of some rows."""
        return Sampling(
            None if self.clusters is None else np.unique(self.clusters[rows], return_inverse=True)[1].ravel(),
            None if self.weights is None else self.weights[rows],
        )

    def mass(self, counted: Mask) -> Floats:
        """Return the weight of each row, zero for those that do not count."""
        return counted.astype(np.float64) if self.weights is None else counted * self.weights

    def effective_size(self, counted: Mask) -> float:
        """Return the effective number of rows or clusters among those that count."""
        if not counted.any():
            return 0.0
        n = len(counted)
        everything = Grouping(np.array([0, n]), np.arange(n), ("all",), overlapping=False)
        return float(effective_sizes(everything, self.clusters, self.weights, counted)[0])


@dataclass(frozen=True, eq=False)
class Group:
    """What is compared on some rows, and which of them are inside of a group."""

    quantity: Quantity
    inside: Mask

    def part(self, side: bool) -> Mask:
        """Return the rows inside or outside that have a value."""
        return self.quantity.counted & (self.inside == side)


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
    sampling: Sampling,
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
    sampling : Sampling
        Clusters and weights of these rows.
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
    n = len(groups[0].inside)
    mass = np.ones(n) if sampling.weights is None else sampling.weights / sampling.weights.max()
    units, draws = draw_units(n, sampling.clusters, n_bootstrap, seed)
    n_units = int(units.max()) + 1
    parts = [[_part(group, side, mass, units, n_units) for side in (True, False)] for group in groups]
    inside, outside = np.array([[part.mean for part in pair] for pair in parts]).T
    difference = inside - outside
    columns = [_columns(*pair) for pair in parts]
    everything = np.ones((1, n_units))
    sizes = np.array([min(sampling.effective_size(group.part(side)) for side in (True, False)) for group in groups])
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
    rows = np.flatnonzero(group.part(side))
    own, losses, place = mass[rows], group.quantity.losses[rows], units[rows]
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
    losses = group.quantity.losses[group.part(True)]
    if not len(losses) or not losses.std() > 0:
        return False
    return bool(np.mean(((losses - losses.mean()) / losses.std()) ** 3) < _SKEWED)
