"""Which groups have enough rows to judge a statistic: what decides is how many rows carry its variance."""

import numpy as np

from groupdro.data.given import GivenRows
from groupdro.data.grouping import Grouping
from groupdro.evaluation.outputs import Outputs
from groupdro.evaluation.recalibration import FEWEST_EXPECTED, expected_events
from groupdro.evaluation.resampling import effective_sizes, units_of_groups
from groupdro.evaluation.statistics import Statistic
from groupdro.utils.types import Array, Floats, Indices, Mask

__all__ = ["few_carry", "has_enough", "why_not_judged"]

# Effective rows with an error, and effective rows that carry the loss, which a group needs for an interval of another
# loss than zero-one, of a classifier and of a regressor (benchmarks/held_out/reports.py has the coverage).
_FEWEST_ERRORS = 3.0
_FEWEST_OF_CLASSES = 5.0
_FEWEST_CARRYING = 10.0
# Effective rows of every required kind, such as positive ones, below which a group's metric is not judged.
_FEWEST_OF_KIND = 10.0
# Effective rows that a group must be expected to have beyond a quantile, on the side where the pinball loss is steep
# and most of its variance arises. Simulated true quantiles with 15 cover 92 to 96%, with 10 down to 87%, with 3 down to
# 52% (benchmarks/held_out/tails.py). The observed number would select: groups that happen to have many have high means.
_FEWEST_BEYOND = 15.0


def why_not_judged(
    statistic: Statistic, outputs: Outputs, given: GivenRows, large: Mask, *, count_errors: bool = True
) -> Array:
    """Return why each group has too few rows to judge a statistic; empty text if it has enough.

    Parameters
    ----------
    statistic : Statistic
        The statistic.
    outputs : Outputs
        What the model predicts for the rows.
    given : GivenRows
        The rows, with groups, weights and clusters.
    large : ndarray of bool of shape (n_groups,)
        Groups with enough rows to judge anything.
    count_errors : bool
        Whether a classifier must be wrong on some rows of a group.

    Returns
    -------
    ndarray of str of shape (n_groups,)
        The reasons.
    """
    of = given.groups, given.clusters, given.weights
    notes = np.full(len(large), "", dtype=object)
    if statistic.sizes is not None:
        errors = ~outputs.right if outputs.classifies and count_errors else None
        notes[few_carry(statistic.sizes, *of, classes=outputs.classifies, errors=errors)] = "few errors"
    if statistic.steep_share is not None:
        notes[effective_sizes(*of) * statistic.steep_share < _FEWEST_BEYOND - 1e-9] = "few beyond"
    if statistic.chances is not None:
        notes[_expected(statistic.chances, given) < FEWEST_EXPECTED - 1e-9] = "few events"
    notes[~has_enough(statistic, *of)] = "few rows"
    notes[~large] = "small"
    return notes


def _expected(chances: Floats, given: GivenRows) -> Floats:
    """Return how many events, or rows without one if fewer, probabilities promise in each group."""
    groups, rows = given.groups, given.groups.members
    return expected_events(
        chances[rows],
        groups.group_of_members,
        len(groups.names),
        units=None if given.clusters is None else given.clusters[rows],
        weights=None if given.weights is None else given.weights[rows],
    )


def has_enough(
    statistic: Statistic, grouping: Grouping, clusters: Indices | None = None, weights: Floats | None = None
) -> Mask:
    """Return which groups have ten effective rows (or clusters of rows) of every kind that a statistic requires."""
    enough = np.ones(len(grouping.names), dtype=bool)
    for kind in statistic.required.T:
        enough &= effective_sizes(grouping, clusters, weights, kind) >= _FEWEST_OF_KIND - 1e-9
    return enough


def few_carry(
    sizes: Floats,
    grouping: Grouping,
    clusters: Indices | None = None,
    weights: Floats | None = None,
    *,
    classes: bool = False,
    errors: Mask | None = None,
) -> Mask:
    """Return the groups in which too few rows carry an average loss to judge it by.

    A sample in which a few rows have most of the loss shows neither how large such losses are nor how many there are,
    and another sample of the same size may have none of them. So this is decided for all groups together: groups
    without such rows may just not have met them. Losses are taken relative to the mean of their group, or as they are
    if that leaves more rows: what is rare in an easy group may be common in a hard one.

    Parameters
    ----------
    sizes : ndarray of shape (n_rows,)
        Nonnegative losses.
    grouping : Grouping
        The groups.
    clusters : ndarray of shape (n_rows,), optional
        Cluster of each row.
    weights : ndarray of shape (n_rows,), optional
        Weights of the rows.
    classes : bool
        Whether the losses are those of a classifier.
    errors : ndarray of bool of shape (n_rows,), optional
        The rows that a classifier gets wrong.

    Returns
    -------
    ndarray of bool of shape (n_groups,)
        The groups in which the losses are those of fewer than ten effective rows (or clusters of rows); for a
        classifier, of fewer than five, or with fewer than three effective errors.
    """
    n = effective_sizes(grouping, clusters, weights)
    largest = float(sizes.max(initial=0.0))
    if not largest > 0:
        return np.zeros(len(n), dtype=bool)
    mass = sizes / largest * (1.0 if weights is None else weights)
    own = effective_sizes(grouping, clusters, mass) / np.maximum(n, 1.0)  # the squared mean over the mean square
    each = grouping.group_of_members
    total = np.bincount(each, weights=None if weights is None else weights[grouping.members], minlength=len(n))
    means = np.bincount(each, weights=mass[grouping.members], minlength=len(n)) / np.where(total > 0, total, 1.0)
    some = own > 0
    share = np.maximum(1.0 / np.mean(1.0 / own[some]), means**2 / np.max(means[some] ** 2 / own[some]))
    few = n * share < (_FEWEST_OF_CLASSES if classes else _FEWEST_CARRYING)
    if errors is not None:
        group, _, hit = units_of_groups(grouping, clusters, weights, errors[grouping.members])
        wrong = np.bincount(group, weights=hit, minlength=len(n)) / np.bincount(group, minlength=len(n))
        few |= n * wrong < _FEWEST_ERRORS
    return np.asarray(few)
