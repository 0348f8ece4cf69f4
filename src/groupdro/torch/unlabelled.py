"""A last layer without group labels: rows that the network finds hard count more, as much as held-out rows allow.

The second stage of automatic feature reweighting (Qiu, Potapczynski, Izmailov and Wilson, ICML 2023) is convex. A row
of class y counts by exp(-gamma * p) / n_y, where p is the network's probability of y and n_y the size of the class,
and the penalty is on the change of the layer. How far to go is chosen here without labelled validation rows: by the
accuracy, out of fold, on rows of which the network is sure and right plus that on rows of which it is sure and wrong,
in the class where this is smallest. If the network follows a shortcut, its confident errors have something in common
that the features show, and a layer that corrects many of them loses few of the others. If they are wrong labels, a
layer corrects none without losing as many others, and the sum stays at one. Errors near the boundary do not count: some
are corrected by any layer that is less sure. The sum must rise in every class, because a layer that turns the shortcut
around corrects the errors of one class at the expense of the other.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from groupdro.data.given import GivenRows
from groupdro.data.grouping import Grouping
from groupdro.estimators import GroupDROClassifier
from groupdro.estimators.grid_search import ROUGH
from groupdro.evaluation.folds import divide
from groupdro.evaluation.report import GroupReport
from groupdro.torch.choosing import penalty_unit
from groupdro.torch.features import Features
from groupdro.utils.types import Array, Floats, Indices, Mask

__all__ = ["Trial", "WeightedFit", "Weighting", "fit_without_groups", "reported_groups", "true_class_probabilities"]

# Shares of the weight for rows that the network gets wrong. At a half, the network is no better than a coin on the
# weighted rows; beyond, a layer with its predictions exchanged is rewarded.
_SHARES = (0.2, 0.3, 0.4, 0.5)
_ALPHAS = (1e-1, 1e-2, 1e-3, 1e-4)  # in units of the features' scale, as in `choose`
_MOST_GAMMA = 100.0  # weights then span 43 powers of ten
# A row is sure if the network gives its class more than this probability or less than the rest. Calibrated on networks
# and flipped labels of benchmarks/last_layers, and on normal features without a shortcut: there the sum then gains 0.01
# at most, but up to 0.16 if all errors count.
_SURE = 0.9
_LEAST = 10  # sure and right rows, and as many sure and wrong ones, for a class to count in the choice
# Standard errors by which uneven weights must raise the sum over equal weights within each class. Networks with a
# planted shortcut pass by 2.4 and more, one of sentences without any by 2.3 on sure rows but by 1.6 on all.
_BEYOND = 2.0
_TINY = 1e-12  # replaces a standard error of zero


def true_class_probabilities(scores: Floats, y: Indices) -> Floats:
    """Return the probability that scores give to the class of each row."""
    if scores.shape[1] == 1:
        return np.asarray(expit(np.where(y == 1, scores[:, 0], -scores[:, 0])))
    return np.asarray(softmax(scores, axis=1)[np.arange(len(y)), y])


def are_right(scores: Floats, y: Indices) -> Mask:
    """Return whether scores predict the class of each row."""
    predicted = (scores[:, 0] > 0).astype(np.int64) if scores.shape[1] == 1 else scores.argmax(axis=1)
    return np.asarray(predicted == y)


@dataclass(frozen=True)
class Trial:
    """Weights and penalty that were tried, and accuracies of rows judged by fits without them.

    Attributes
    ----------
    gamma : float
        Exponent of the weights; 0 for equal weights within each class.
    share : float
        Share of the weight on rows that the network gets wrong.
    alpha : float
        Penalty on the change of the layer.
    right, wrong : float
        Accuracy of the rows that the network gets right, and of those that it gets wrong; NaN if there are none.
    worst_class : float
        Accuracy of the class where it is lowest.
    average : float
        Accuracy of all rows.
    value : float
        What is maximised: the sum of the accuracies on rows of which the network is sure and right and on those of
        which it is sure and wrong, in the class where it is smallest. It is 1 for the network itself, and NaN if it has
        hardly any confident errors.
    """

    gamma: float
    share: float
    alpha: float
    right: float
    wrong: float
    worst_class: float
    average: float
    value: float


@dataclass(frozen=True)
class Weighting:
    """How rows without group labels are weighted.

    Attributes
    ----------
    chosen : Trial
        The weights and the penalty of the layer.
    trials : tuple of Trial
        All that were tried.
    n_rows, n_wrong : int
        Number of rows, and of those that the network gets wrong.
    is_worse : bool
        Whether the layer is significantly less accurate than the network, and corrects no larger share of its errors
        than it loses of the other rows.
    """

    chosen: Trial
    trials: tuple[Trial, ...]
    n_rows: int
    n_wrong: int
    is_worse: bool

    def message(self, before: GroupReport, after: GroupReport, classifier: GroupDROClassifier, n_folds: int) -> str:
        """Describe the outcome in plain words."""
        chosen = self.chosen
        text = f"No row has a group label. The network gets {self.n_wrong} of {self.n_rows} rows wrong; "
        if chosen.gamma:
            text += f"with gamma {chosen.gamma:.3g} they have {chosen.share:.0%} of the weight. "
        elif self.n_wrong:
            text += "more weight for these does not clearly help, so all rows of a class count alike. "
        else:
            text += "so all rows of a class count alike. "
        text += f"Layers fitted without a row's fold ({n_folds} folds) get "
        if self.n_wrong:
            text += f"{chosen.wrong:.1%} of these right, and {chosen.right:.1%} of the others. "
        else:
            text += f"{chosen.average:.1%} of the rows right. "
        text += (
            f"Accuracy over all rows goes from {before.overall['accuracy']:.1%} to {after.overall['accuracy']:.1%}. "
            "Whether a group that nobody labelled gains cannot be seen from these rows: label a few, which "
            "rows_to_label proposes."
        )
        if self.is_worse:
            return f"{text} It loses a larger share of rows than it corrects, so the network keeps its old layer."
        if classifier.status_ != "converged":
            return f"{text} The fit did not converge: {classifier.message_}"
        return (
            f"{text} The objective is proven to be within {classifier.gap_:.2g} of the optimum of this weighted "
            "problem, which is not a statement about the worst group."
        )


@dataclass(frozen=True, eq=False)
class WeightedFit:
    """A layer fitted on weighted rows, its out-of-fold scores, and how the rows were weighted."""

    classifier: GroupDROClassifier
    scores: Floats
    weighting: Weighting


def fit_without_groups(
    estimator: GroupDROClassifier,
    features: Features,
    old: tuple[Floats, Floats],
    old_scores: Floats,
    *,
    alpha: float | str,
    variance: float,
    n_splits: int,
    seed: int,
) -> WeightedFit:
    """Choose weights and penalty by cross-validation, and fit all rows.

    Parameters
    ----------
    estimator : GroupDROClassifier
        Estimator that provides all other parameters.
    features : Features
        The rows, in memory.
    old : pair of ndarray
        Coefficients and intercept of the network's layer.
    old_scores : ndarray of shape (n_rows, n_outputs)
        Scores of that layer, which was not fitted on these rows.
    alpha : float or "cv"
        Penalty on the change of the layer, or "cv" to choose it together with the weights.
    variance : float
        Mean variance of the features, which sets the unit of the penalties.
    n_splits, seed : int
        Number of folds, and their seed.

    Returns
    -------
    WeightedFit
        The layer, whose coefficients include those of the old one.
    """
    X, y = features.X, features.y
    right = are_right(old_scores, y)
    plain = clone(estimator).set_params(robustness=0.0)
    unit = penalty_unit(variance, float(estimator.l1_ratio))
    alphas = unit * np.array(_ALPHAS) if isinstance(alpha, str) else np.array([alpha], np.float64)
    probabilities = true_class_probabilities(old_scores, y)
    cells = _cells(probabilities, y, right)
    candidates = _candidate_weights(probabilities, y, right)[: None if cells else 1]
    strata = Grouping.of_codes(right.astype(np.int64), ("wrong", "right"))
    given = GivenRows(X, y, strata.only(np.flatnonzero(strata.sizes)))
    folds = list(divide(given, n_splits=n_splits, seed=seed, classes=True))
    trials, scores = [], []
    for gamma, weights in candidates:
        share = float(weights[~right].sum() / weights.sum())
        for a, found in zip(alphas, _scores_out_of_fold(plain, given, weights, old_scores, alphas, folds), strict=True):
            trials.append(_judge(gamma, share, float(a), found, y, right, cells))
            scores.append(found)
    best = _choose(trials, [are_right(found, y) for found in scores], cells, right)
    chosen = trials[best]
    weights = next(weights for gamma, weights in candidates if gamma == chosen.gamma)
    fitted = _fit(plain.set_params(alpha=chosen.alpha), X, y, weights, old_scores)
    # The layer of the network is the old one plus the fitted change.
    fitted.coef_ = fitted.coef_ + old[0]
    fitted.intercept_ = fitted.intercept_ + old[1]
    fitted.uses_offset_ = False
    changes = are_right(scores[best], y).astype(float) - right
    error = changes.std() / np.sqrt(len(y))
    is_worse = bool(changes.mean() < -_BEYOND * error and not chosen.right + chosen.wrong > 1.0)
    weighting = Weighting(chosen, tuple(trials), len(y), int(np.count_nonzero(~right)), is_worse)
    return WeightedFit(fitted, scores[best], weighting)


def reported_groups(y: Indices, right: Mask) -> Grouping:
    """Return the groups of a report without labels: the classes, and the rows that the network gets right and wrong."""
    codes = np.unique(y)
    members = [np.flatnonzero(y == code) for code in codes]
    names = [f"class {code}" for code in codes]
    for name, rows in (("right before", right), ("wrong before", ~right)):
        if rows.any():
            members.append(np.flatnonzero(rows))
            names.append(name)
    offsets = np.append(0, np.cumsum([len(rows) for rows in members]))
    return Grouping(offsets, np.concatenate(members), tuple(names), overlapping=True)


def _candidate_weights(probabilities: Floats, y: Indices, right: Mask) -> list[tuple[float, Floats]]:
    """Return exponents and weights of mean 1: equal ones within a class, then those that give errors more weight."""
    by_class = (1.0 / np.bincount(y))[y]

    def weights(gamma: float) -> Floats:
        found = np.exp(-gamma * probabilities) * by_class
        return np.asarray(found * (len(found) / found.sum()))

    def excess(gamma: float, share: float) -> float:
        found = weights(gamma)
        return float(found[~right].sum() / found.sum() - share)

    gammas = [0.0]
    if right.any() and not right.all():
        possible = [share for share in _SHARES if excess(0.0, share) < 0 < excess(_MOST_GAMMA, share)]
        gammas += [float(brentq(excess, 0.0, _MOST_GAMMA, args=(share,), xtol=1e-3)) for share in possible]
    return [(gamma, weights(gamma)) for gamma in gammas]


def _scores_out_of_fold(
    estimator: GroupDROClassifier,
    given: GivenRows,
    weights: Floats,
    old_scores: Floats,
    alphas: Floats,
    folds: list[tuple[Indices, Indices]],
) -> list[Floats]:
    """Return each row's scores by a layer fitted without its fold, for every penalty."""
    rough = clone(estimator).set_params(tol=max(float(estimator.tol), ROUGH), verbose=0, callbacks=None)
    rough.set_params(checkpoint_dir=None)
    found = [old_scores.copy() for _ in alphas]  # a row that no fold holds out keeps its old scores
    with warnings.catch_warnings():
        for category in (ConvergenceWarning, UserWarning):
            warnings.simplefilter("ignore", category=category)
        for train, test in folds:
            start: dict[str, Any] = {}
            for scores, alpha in zip(found, alphas, strict=True):
                rough.set_params(alpha=float(alpha))
                _fit(rough, given.X[train], given.y[train], weights[train], old_scores[train], **start)
                scores[test] = old_scores[test] + given.X[test] @ rough.coef_.T + rough.intercept_
                start = {"coef_init": rough.coef_, "intercept_init": rough.intercept_}
    return found


def _fit(
    estimator: GroupDROClassifier, X: Array, y: Indices, weights: Floats, old_scores: Floats, **start: Any
) -> GroupDROClassifier:
    """Fit the change of a layer on weighted rows."""
    offset = old_scores[:, 0] if old_scores.shape[1] == 1 else old_scores
    return estimator.fit(X, y, weights, groups=np.zeros(len(y), np.int64), offset=offset, **start)


_Cell = tuple[Mask, Mask]  # rows of a class of which the network is sure and right, and sure and wrong


def _cells(probabilities: Floats, y: Indices, right: Mask) -> list[_Cell]:
    """Return the rows to compare in each class with enough of them; those of all classes if none has enough."""
    good, bad = right & (probabilities > _SURE), ~right & (probabilities < 1.0 - _SURE)

    def enough(cell: _Cell) -> bool:
        return bool(min(map(np.count_nonzero, cell)) >= _LEAST)

    per_class = [(good & (y == code), bad & (y == code)) for code in np.unique(y)]
    return [cell for cell in per_class if enough(cell)] or [cell for cell in [(good, bad)] if enough(cell)]


def _value(now: Mask, cell: _Cell) -> float:
    return float(sum(now[rows].mean() for rows in cell))


def _judge(
    gamma: float, share: float, alpha: float, scores: Floats, y: Indices, right: Mask, cells: list[_Cell]
) -> Trial:
    now = are_right(scores, y)
    per_class = np.bincount(y, now) / np.bincount(y)
    of_right, of_wrong = (float(now[rows].mean()) if rows.any() else float("nan") for rows in (right, ~right))
    value = min((_value(now, cell) for cell in cells), default=float("nan"))
    return Trial(gamma, share, alpha, of_right, of_wrong, float(per_class.min()), float(now.mean()), value)


def _gain(now: Mask, before: Mask, cell: _Cell) -> tuple[float, float]:
    """Return by how much the sum of the accuracies on right and on wrong rows rises, and its standard error."""
    changes = now.astype(float) - before
    error = np.sqrt(sum(changes[rows].var() / np.count_nonzero(rows) for rows in cell))
    return float(sum(changes[rows].mean() for rows in cell)), max(float(error), _TINY)


def _choose(trials: list[Trial], now: list[Mask], cells: list[_Cell], right: Mask) -> int:
    """Return the trial with the largest value, if it clearly beats equal weights within each class.

    The sum over all right and wrong rows, sure or not, must rise as clearly: otherwise classes without confident errors
    would pay for the others. If there is no such trial, return that with equal weights whose worst class is best.
    """
    even = np.array([trial.gamma == 0 for trial in trials])
    plain = int(np.argmax(np.where(even, [trial.worst_class for trial in trials], -np.inf)))
    if not cells:
        return plain
    values = np.array([trial.value for trial in trials])
    first = int(np.argmax(np.where(even, values, -np.inf)))
    lowest = min(cells, key=lambda cell: _value(now[first], cell))
    best, most = plain, values[first]
    for k in np.flatnonzero(~even & (values > most)):
        overall, overall_error = _gain(now[k], now[plain], (right, ~right))
        if overall > _BEYOND * overall_error and values[k] > most:
            best, most = int(k), values[k]
    return best if most - values[first] > _BEYOND * _gain(now[best], now[first], lowest)[1] else plain
