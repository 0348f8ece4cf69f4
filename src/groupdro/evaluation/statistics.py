"""Numbers of a group, such as a mean or an area under the ROC curve, as functions of the weights of its rows.

They are computed on the sample and on many resamples, which differ in the weights of the rows only. So each is written
for many weightings at once, and returns the influence of every row, from which its standard error under each weighting
follows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol
from warnings import catch_warnings, simplefilter

import numpy as np
from sklearn.exceptions import UndefinedMetricWarning

from groupdro.utils.types import Array, Floats, Indices, Mask

__all__ = [
    "AnyFunction",
    "AreaUnderROC",
    "Average",
    "AveragePrecision",
    "FunctionOfMeans",
    "Median",
    "Statistic",
]

Found = tuple[Floats, Floats | None]


class Statistic(Protocol):
    """A number for any rows and weights.

    Attributes
    ----------
    required : ndarray of bool of shape (n_rows, n_kinds)
        Kinds of rows, such as those of either class, of each of which a group needs some.
    sizes : ndarray of shape (n_rows,) or None
        Unbounded nonnegative values behind the number, of which a few rows must not have most; None if there are none.
    steep_share : float or None
        Expected share of the rows on the steep side of a pinball loss, which carry most of its variance; None for other
        values, of which only the rows show how many carry it.
    chances : ndarray of shape (n_rows,) or None
        Predicted probabilities of events, of which a group must be expected to have some; None for other numbers.
    of_means : FunctionOfMeans or None
        The number as a smooth function of means, of which a resample needs only sums; None if it is not one.
    """

    @property
    def required(self) -> Mask: ...  # noqa: D102

    @property
    def sizes(self) -> Floats | None: ...  # noqa: D102

    @property
    def steep_share(self) -> float | None: ...  # noqa: D102

    @property
    def chances(self) -> Floats | None: ...  # noqa: D102

    @property
    def of_means(self) -> "FunctionOfMeans | None": ...  # noqa: D102

    def __call__(self, rows: Indices, weights: Floats) -> Found:
        """Compute the number for several weightings of the same rows.

        Parameters
        ----------
        rows : ndarray of shape (n,)
            The rows.
        weights : ndarray of shape (n_weightings, n)
            Nonnegative weights.

        Returns
        -------
        values : ndarray of shape (n_weightings,)
            The number under each weighting; NaN where it is undefined.
        influence : ndarray of shape (n_weightings, n) or None
            To first order, the contribution of each row to the number's deviation from the truth. None if unknown.
        """
        ...


@dataclass(frozen=True, eq=False)
class Average:
    """The mean of a value over the rows that count.

    Attributes
    ----------
    values : ndarray of shape (n_rows,)
        The values.
    counted : ndarray of bool of shape (n_rows,)
        The rows that count.
    is_proportion : bool
        Whether the mean is a share of rows, so that all values are 0 or 1.
    steep_share : float or None
        As in `Statistic`.
    """

    values: Floats
    counted: Mask
    is_proportion: bool = False
    steep_share: float | None = None
    chances: None = None

    @property
    def required(self) -> Mask:
        """The rows that count."""
        return self.counted[:, None]

    @property
    def sizes(self) -> Floats | None:
        """The values, unless they are 0 or 1."""
        return None if self.is_proportion else np.abs(self.values)

    @cached_property
    def of_means(self) -> "FunctionOfMeans":
        """The mean of the values; if not all rows count, a ratio of two means."""
        if self.counted.all():
            return FunctionOfMeans(self.values[:, None], None, self.required)
        # Large values would cancel; shares of rows are left exact, so that equal ones tie.
        centre = 0.0 if self.is_proportion or not self.counted.any() else float(self.values[self.counted].mean())
        columns = np.column_stack([np.where(self.counted, self.values - centre, 0.0), self.counted])

        def function(means: Floats) -> tuple[Floats, Floats]:
            ratio = _ratio(means[:, 0], means[:, 1])
            return centre + ratio, _ratio(np.column_stack([np.ones(len(ratio)), -ratio]), means[:, 1:])

        return FunctionOfMeans(columns, function, self.required)

    def __call__(self, rows: Indices, weights: Floats) -> Found:
        """Return the weighted means."""
        return self.of_means(rows, weights)


@dataclass(frozen=True, eq=False)
class FunctionOfMeans:
    """A smooth function of the means of several columns.

    Attributes
    ----------
    columns : ndarray of shape (n_rows, n_columns)
        The columns.
    function : callable or None
        Returns the number and its derivatives, of shapes (n,) and (n, n_columns), for means of shape (n, n_columns).
        None for the mean of a single column.
    required : ndarray of bool of shape (n_rows, n_kinds)
        Kinds of rows that a group needs.
    sizes : ndarray of shape (n_rows,) or None
        Values of which a few rows must not have most.
    chances : ndarray of shape (n_rows,) or None
        As in `Statistic`.
    """

    columns: Floats
    function: Callable[[Floats], tuple[Floats, Floats]] | None
    required: Mask
    sizes: Floats | None = None
    chances: Floats | None = None
    steep_share: None = None

    @property
    def of_means(self) -> "FunctionOfMeans":
        """The same."""
        return self

    def __call__(self, rows: Indices, weights: Floats) -> Found:
        """Return the function of the weighted means."""
        columns = self.columns[rows]
        total = weights.sum(axis=1, keepdims=True)
        means = _ratio(weights @ columns, total)
        if self.function is None:
            return means[:, 0], _ratio(weights * (columns[:, 0] - means), total)
        with np.errstate(divide="ignore", invalid="ignore"):
            values, slopes = self.function(means)
            along = slopes @ columns.T - (slopes * means).sum(axis=1, keepdims=True)
        return values, _ratio(weights * along, total)


@dataclass(frozen=True, eq=False)
class AreaUnderROC:
    """The probability that a positive row has a larger score than a negative one; ties count half."""

    positive: Mask
    scores: Floats
    sizes: None = None
    steep_share: None = None
    chances: None = None
    of_means: None = None

    @property
    def required(self) -> Mask:
        """The rows of either class."""
        return np.column_stack([self.positive, ~self.positive])

    def __call__(self, rows: Indices, weights: Floats) -> Found:
        """Return the areas, with the influence of DeLong, DeLong and Clarke-Pearson (1988)."""
        order = np.argsort(self.scores[rows], kind="stable")
        scores, positive = self.scores[rows][order], self.positive[rows][order]
        weights = weights[:, order]
        starts, tie = _ties(scores)
        ones, zeros = (np.add.reduceat(weights * kind, starts, axis=1) for kind in (positive, ~positive))
        n_ones, n_zeros = (part.sum(axis=1, keepdims=True) for part in (ones, zeros))
        below = _ratio(np.cumsum(zeros, axis=1) - zeros / 2, n_zeros)  # share of negative rows
        above = 1.0 - _ratio(np.cumsum(ones, axis=1) - ones / 2, n_ones)
        areas = _ratio((ones * below).sum(axis=1), n_ones[:, 0])
        beaten = np.where(positive, below[:, tie], above[:, tie])  # share of the other class on the right side
        influence = np.empty_like(weights)
        influence[:, order] = _ratio(weights * (beaten - areas[:, None]), np.where(positive, n_ones, n_zeros))
        return areas, influence


@dataclass(frozen=True, eq=False)
class AveragePrecision:
    """The mean precision over all thresholds, weighted by the increase in recall."""

    positive: Mask
    scores: Floats
    sizes: None = None
    steep_share: None = None
    chances: None = None
    of_means: None = None

    @property
    def required(self) -> Mask:
        """The positive rows."""
        return self.positive[:, None]

    def __call__(self, rows: Indices, weights: Floats) -> Found:
        """Return the average precisions.

        A positive row contributes the precision at its own score, and changes that of all rows with lower scores.
        """
        order = np.argsort(-self.scores[rows], kind="stable")
        positive, weights = self.positive[rows][order], weights[:, order]
        starts, tie = _ties(self.scores[rows][order])
        found = np.add.reduceat(weights * positive, starts, axis=1)
        taken = np.cumsum(np.add.reduceat(weights, starts, axis=1), axis=1)
        total = found.sum(axis=1, keepdims=True)
        precision = np.divide(np.cumsum(found, axis=1), taken, out=np.zeros_like(found), where=taken > 0)
        values = _ratio((found * precision).sum(axis=1, keepdims=True), total)
        share = np.divide(found, taken, out=np.zeros_like(found), where=taken > 0)
        gained, lost = (np.cumsum(part[:, ::-1], axis=1)[:, ::-1][:, tie] for part in (share, share * precision))
        influence = np.empty_like(weights)
        influence[:, order] = _ratio(weights * (positive * (precision[:, tie] - values + gained) - lost), total)
        return values[:, 0], influence


@dataclass(frozen=True, eq=False)
class Median:
    """The weighted median of a value."""

    values: Floats
    sizes: None = None
    steep_share: None = None
    chances: None = None
    of_means: None = None

    @property
    def required(self) -> Mask:
        """All rows."""
        return np.ones((len(self.values), 1), dtype=bool)

    def __call__(self, rows: Indices, weights: Floats) -> Found:
        """Return the medians; the middle between two values if each side has half of the weight."""
        return self.quantiles(rows, weights, np.array([0.5])), None

    def quantiles(self, rows: Indices, weights: Floats, shares: Floats) -> Floats:
        """Return a quantile for each weighting; the middle between two values if it could be either."""
        order = np.argsort(self.values[rows], kind="stable")
        values = self.values[rows][order]
        summed = np.cumsum(weights[:, order], axis=1)
        wanted = shares[:, None] * summed[:, -1:]
        rounding = 1e-12 * summed[:, -1:]  # of sums that equal the wanted one
        lower, upper = ((summed < wanted + slack).sum(axis=1) for slack in (-rounding, rounding))
        last = len(values) - 1
        return np.asarray(0.5 * (values[np.minimum(lower, last)] + values[np.minimum(upper, last)]))


@dataclass(frozen=True, eq=False)
class AnyFunction:
    """A function of labels and predictions, called for every weighting.

    Attributes
    ----------
    function : callable
        Takes labels, predictions and, if `weighted`, `sample_weight`.
    y, predicted : ndarray of shape (n_rows, ...)
        Labels and predictions.
    weighted : bool
        Whether the function takes weights. Otherwise rows are repeated, and weights must be whole numbers.
    """

    function: Callable[..., Any]
    y: Array
    predicted: Array
    weighted: bool
    sizes: None = None
    steep_share: None = None
    chances: None = None
    of_means: None = None

    @property
    def required(self) -> Mask:
        """All rows."""
        return np.ones((len(self.y), 1), dtype=bool)

    def __call__(self, rows: Indices, weights: Floats) -> Found:
        """Return the values of the function; NaN where it raises a ValueError, as where a class has no rows."""
        return np.array([self._value(rows, each) for each in weights]), None

    def _value(self, rows: Indices, weights: Floats) -> float:
        more: dict[str, Any] = {}
        if self.weighted:
            used = weights > 0
            rows, more = rows[used], {"sample_weight": weights[used]}
        else:
            rows = np.repeat(rows, weights.astype(np.int64))
        with catch_warnings():
            simplefilter("ignore", UndefinedMetricWarning)  # the value itself tells
            try:
                return float(self.function(self.y[rows], self.predicted[rows], **more))
            except ValueError:
                return np.nan


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Return a ratio, NaN where the denominator is zero."""
    nothing = np.full(np.broadcast_shapes(numerator.shape, denominator.shape), np.nan)
    return np.divide(numerator, denominator, out=nothing, where=denominator > 0)


def _ties(ordered: Floats) -> tuple[Indices, Indices]:
    """Return where each run of equal values starts, and the run of each value."""
    new = np.append(True, np.diff(ordered) != 0)
    return np.flatnonzero(new), np.cumsum(new) - 1
