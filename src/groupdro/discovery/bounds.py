"""Lower bounds on how much larger the loss of each of several groups is than that of the other rows."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from groupdro.data.grouping import Grouping
from groupdro.evaluation.resampling import LEAST_ERROR, effective_sizes, resample
from groupdro.evaluation.statistics import FunctionOfMeans
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["Group", "Judged", "Quantity", "Sampling", "judge"]

# Where fewer units carry the variance on the side that can make a group look worse than it is, its bound is this many
# times as far below the difference: without that, groups that differ in skewness alone are reported by 7 to 15% of the
# searches in place of 5% (benchmarks/find_groups, `tails`).
_FEWEST_CARRYING = 10.0
_FURTHER = 1.5


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
    absolute : bool
        Whether the mean inside is compared with 0, as that of calibrated predictions is, and not with the mean outside.
    unit : float
        What the losses are in multiples of: a power of two, so that no square of a loss overflows or vanishes.
    """

    name: str
    losses: Floats
    counted: Mask
    sign: float = 1.0
    absolute: bool = False
    unit: float = 1.0

    def scaled(self) -> "Quantity":
        """Return the same in units of about its largest loss, without any rounding."""
        largest = float(np.abs(self.losses[self.counted]).max(initial=0.0))
        unit = 2.0 ** np.clip(np.frexp(largest)[1], -1000, 1000) if largest > 0 else 1.0
        return replace(self, losses=self.losses / unit, unit=float(unit))

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
    inside, outside, difference : ndarray of shape (n_groups,)
        Mean losses, and by how much the one inside is larger than that outside, or than 0.
    low : ndarray of shape (n_groups,)
        Lower bounds of the differences that hold for all groups at once.
    enough : ndarray of bool of shape (n_groups,)
        Groups with enough rows; the others have no bound.
    critical : float
        Number of standard errors by which the bounds are below the differences, or two thirds of it where few rows
        carry the variance; NaN if there are no bounds.
    """

    inside: Floats
    outside: Floats
    difference: Floats
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
    careful: bool = True,
) -> Judged:
    """Bound how much larger the loss of each group is than that of the other rows.

    Parameters
    ----------
    groups : list of Group
        The groups, chosen without looking at these rows.
    sampling : Sampling
        Clusters and weights of these rows.
    least : float
        Effective number of rows (or clusters) that must be inside and outside.
    level : float
        Probability with which all bounds hold.
    n_bootstrap, seed : int
        Number of resamples, and their seed.
    careful : bool
        Whether bounds are further away where few units carry the variance.

    Returns
    -------
    Judged
        The bounds, from the largest studentised deviation over all groups: rows or clusters are resampled with Poisson
        weights, and every resample is divided by its own standard error. If `careful`, bounds are half as far again
        from the difference where fewer than ten units carry the variance on the side that can make a group look worse
        than it is.
    """
    if not groups:
        nothing = np.empty(0)
        return Judged(nothing, nothing, nothing, nothing, np.empty(0, dtype=bool), np.nan)
    if sampling.weights is not None:  # so that no square overflows
        sampling = replace(sampling, weights=sampling.weights / sampling.weights.max())
    everything = Grouping.of_all(len(groups[0].inside))
    options: dict[str, Any] = {"seed": seed, "clusters": sampling.clusters, "weights": sampling.weights}
    found = resample([_difference(group, sampling) for group in groups], everything, n_bootstrap=n_bootstrap, **options)
    parts = [[_Part.of(group, side, sampling) for side in (True, False)] for group in groups]
    inside, outside = np.array([[part.mean for part in pair] for pair in parts]).T
    difference = found.means[0]
    sizes = np.array([min(sampling.effective_size(group.part(side)) for side in (True, False)) for group in groups])
    errors = found.errors[0] * np.sqrt(sizes / np.maximum(sizes - 1.0, 1.0))
    # Where all losses of a part are equal, one row more could have had another one.
    errors = np.maximum(errors, np.abs(difference) / np.maximum(sizes, 1.0))
    enough = (sizes >= least - 1e-9) & (errors > 0)
    further = np.array([_FURTHER if careful and _few_carry(*pair) else 1.0 for pair in parts])
    low = np.full(len(groups), -np.inf)
    if not enough.any():
        return Judged(inside, outside, difference, low, enough, np.nan)
    spread = np.maximum(found.resampled_errors[:, 0], LEAST_ERROR * errors)
    largest = ((found.resampled_means[:, 0] - found.means[0])[:, enough] / spread[:, enough]).max(axis=1)
    critical = float(np.sort(largest)[min(math.ceil((n_bootstrap + 1) * level), n_bootstrap) - 1])
    low[enough] = (difference - further * critical * errors)[enough]
    return Judged(inside, outside, difference, low, enough, critical)


def _difference(group: Group, sampling: Sampling) -> FunctionOfMeans:
    """Return the mean loss inside, minus that outside or 0, as a function of means over all rows."""
    counted = group.quantity.counted
    mass = sampling.mass(counted)
    centre = (
        0.0
        if group.quantity.absolute
        else float(np.average(group.quantity.losses, weights=mass))
        if mass.any()
        else 0.0
    )
    losses = np.where(counted, group.quantity.losses - centre, 0.0)  # so that large ones do not cancel
    inside, outside = group.part(True), group.part(False)
    columns = np.column_stack([losses * inside, inside, losses * outside, outside])

    def function(means: Floats) -> tuple[Floats, Floats]:
        own, rest = (np.where(means[:, [k]] > 0, means[:, [k]], np.nan) for k in (1, 3))
        first, second = means[:, [0]] / own, means[:, [2]] / rest
        if group.quantity.absolute:
            nothing = np.zeros_like(first)
            return first[:, 0], np.hstack([1.0 / own, -first / own, nothing, nothing])
        return (first - second)[:, 0], np.hstack([1.0 / own, -first / own, -1.0 / rest, second / rest])

    return FunctionOfMeans(columns, function, counted[:, None])


@dataclass(frozen=True, eq=False)
class _Part:
    """The rows inside or outside of a group: their mean, and per unit the weight and the deviation from the mean."""

    mean: float
    mass: Floats
    deviations: Floats

    @classmethod
    def of(cls, group: Group, side: bool, sampling: Sampling) -> "_Part":
        counted = group.part(side)
        mass = sampling.mass(counted)
        mean = float(np.average(group.quantity.losses, weights=mass)) if mass.any() else np.nan
        units = np.arange(len(mass)) if sampling.clusters is None else sampling.clusters
        deviations = np.where(counted, mass * (group.quantity.losses - mean), 0.0)
        return cls(mean, *(np.bincount(units, weights=each).astype(np.float64) for each in (mass, deviations)))


def _few_carry(inside: _Part, outside: _Part) -> bool:
    """Return whether too few units carry the variance on the side that can make a group look worse than it is.

    Those are the rows of small loss inside, and of large loss outside: a sample that misses them shows too large a
    difference and too small an error. A group that has none of the small losses may just not have met them, so their
    share is that among all rows; outside is the majority, and shows its own.
    """
    mass = inside.mass + outside.mass
    if not (inside.mass.any() and outside.mass.any()):
        return True
    mean = (inside.mass.sum() * inside.mean + outside.mass.sum() * outside.mean) / mass.sum()
    deviations = inside.deviations + outside.deviations
    deviations = deviations + inside.mass * (inside.mean - mean) + outside.mass * (outside.mean - mean)
    share = _carrying(-deviations) * mass @ mass / mass.sum() ** 2
    below = share * inside.mass.sum() ** 2 / (inside.mass @ inside.mass)
    return min(below, _carrying(outside.deviations)) < _FEWEST_CARRYING - 1e-9


def _carrying(deviations: Floats) -> float:
    """Return the effective number of units with positive deviations, of which the squares are the variance."""
    squares = np.square(np.maximum(deviations, 0.0) / (deviations.max(initial=0.0) or 1.0))
    return float(squares.sum() ** 2 / max(squares @ squares, 1e-300))
