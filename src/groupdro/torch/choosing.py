"""Choice of penalty and robustness for a last layer by cross-validation on its training rows."""

import warnings
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from groupdro.data.given import GivenRows
from groupdro.data.grouping import Grouping
from groupdro.estimators import GroupDROClassifier, GroupDROClassifierCV, SmallGroupWarning
from groupdro.estimators.grid_search import ROUGH, FoldFits, MemoryFold
from groupdro.evaluation.folds import divide
from groupdro.utils.types import Array, Floats, Mask

__all__ = ["choose", "penalty_unit"]

# In units of the features' scale, see `penalty_unit`. Below the last one, the layers of the examples no longer change.
_ALPHAS = (1.0, 3e-1, 1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5)
_LEAST = 10  # rows a group needs for its held-out loss to count
# The smallest penalty within this many standard errors of the best held-out value is taken. Calibrated on the test
# images of four networks of benchmarks/last_layer.py: worst accuracy 77.4%, against 76.4% with the best itself (0), and
# about 79% with alpha=1e-4. Not checked on other networks.
_WITHIN = 1.0
_TINY = 1e-12  # replaces a standard error of zero
_BEYOND = 2.0  # standard errors beyond which smaller penalties are not tried
_FALLEN = 0.99  # share of the largest penalty's value below which the best one counts as better
_ANY_PRICE = 1e9  # relative amount by which the average may be worse


def choose(
    estimator: GroupDROClassifier,
    X: Array,
    y: Array,
    weights: Floats | None,
    groups: Grouping,
    *,
    alpha: Any,
    robustness: Any,
    variance: float,
    n_splits: int,
    seed: int,
    by: str = "risk",
) -> tuple[float, float]:
    """Return penalty and robustness: the given values, or chosen ones for "cv".

    Parameters
    ----------
    estimator : GroupDROClassifier
        Estimator that provides all other parameters.
    X, y, groups : ndarray, ndarray, Grouping
        Rows to fit on.
    weights : ndarray or None
        Weights of the rows, equal within a group.
    alpha, robustness : float or "cv"
        The user's values.
    variance : float
        Mean variance of the features, which sets the unit of the penalties.
    n_splits, seed : int
        Number of folds, and their seed.
    by : {"risk", "accuracy"}
        What of the held-out rows the penalty is chosen by.

    Returns
    -------
    alpha, robustness : float
        Values to fit with.
    """
    unit = penalty_unit(variance, float(estimator.l1_ratio))
    alphas = unit * np.array(_ALPHAS) if alpha == "cv" else np.array([alpha], np.float64)
    at = 1.0 if robustness == "cv" else float(robustness)
    chosen = float(alphas[0])
    if len(alphas) > 1:
        chosen = _choose_alpha(estimator, X, y, weights, groups, alphas, at, n_splits, seed, by)
    if robustness != "cv":
        return chosen, at
    # Retraining is for rare groups: few rows must suffice to judge one, and the average of these rows, in which it
    # hardly counts, does not measure the price. All levels share the penalty that suits the worst group, because one
    # chosen for each level would suit the average.
    search = GroupDROClassifierCV(
        estimator,
        alphas=[chosen],
        cv=n_splits,
        prefer="gain",
        mean_budget=_ANY_PRICE,
        min_rows=_LEAST,
        refit=False,
        random_state=seed,
    )
    search.fit(X, y, weights, groups=groups.codes(len(y)))
    return chosen, float(search.robustness_)


def penalty_unit(variance: float, l1_ratio: float) -> float:
    """Return the unit of penalties: coefficients scale inversely with the features, their squares with the variance."""
    return l1_ratio * float(np.sqrt(variance)) + (1 - l1_ratio) * variance


def _choose_alpha(
    estimator: GroupDROClassifier,
    X: Array,
    y: Array,
    weights: Floats | None,
    groups: Grouping,
    alphas: Floats,
    robustness: float,
    n_splits: int,
    seed: int,
    by: str,
) -> float:
    """Return the smallest penalty whose held-out value is within a standard error of the best."""
    codes = groups.codes(len(y))
    n_groups = len(groups.names)
    given = GivenRows(X, y, groups, weights)
    folds = list(divide(given, n_splits=n_splits, seed=seed, classes=True))
    each = np.ones(len(y)) if weights is None else weights
    tested = np.zeros(len(y), bool)
    for _, test in folds:
        tested[test] = True
    counts = np.bincount(codes[tested], minlength=n_groups)
    shares = np.bincount(codes, each) / each.sum()
    judged = np.flatnonzero(counts >= min(_LEAST, int(counts.max())))
    rough = clone(estimator).set_params(
        tol=max(float(estimator.tol), ROUGH), verbose=0, callbacks=None, checkpoint_dir=None
    )

    found = []
    with warnings.catch_warnings():
        for category in (SmallGroupWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", category=category)
        loss = None if by == "risk" else "zero_one"
        fits = [FoldFits(rough, MemoryFold(given.take(train), given.take(test)), loss) for train, test in folds]
        solutions: list[Any] = [(None, None)] * len(folds)
        for alpha in alphas:
            losses = np.zeros(len(y))
            for k, (_, test) in enumerate(folds):
                losses[test], solutions[k] = fits[k].fit(alpha, robustness, solutions[k])
            risks = np.bincount(codes, losses, minlength=n_groups) / np.maximum(counts, 1)
            worst = int(judged[np.argmax(risks[judged])])
            value = (1 - robustness) * shares @ risks + robustness * risks[worst]
            found.append((value, losses, tested & (codes == worst)))
            if _has_risen(found):
                break
    return float(alphas[np.flatnonzero(_excess(found) <= _WITHIN)[-1]])


def _has_risen(found: list[tuple[float, Floats, Mask]]) -> bool:
    """Return whether the held-out value, having fallen, rises again.

    An L1 penalty leaves the first models almost constant. They differ by tiny amounts, which may be significant, and
    one that is worse than the constant model by so little says nothing of those that follow.
    """
    least = min(value for value, _, _ in found)
    return bool(least < _FALLEN * found[0][0] and _excess(found)[-1] > _BEYOND)


def _excess(found: list[tuple[float, Floats, Mask]]) -> Floats:
    """Return how much each held-out value exceeds the smallest, in standard errors of its own worst group's change."""
    values = np.array([value for value, _, _ in found])
    best = int(np.argmin(values))
    excess = np.zeros(len(found))
    for k, (value, losses, rows) in enumerate(found):
        change = (losses - found[best][1])[rows]
        error = change.std() / np.sqrt(len(change))
        if value > values[best]:
            excess[k] = (value - values[best]) / max(error, _TINY)
    return excess
