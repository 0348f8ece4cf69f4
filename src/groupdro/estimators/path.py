"""Regularisation paths: one fit per penalty, each warm-started from the previous ones."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from groupdro.data.grouping import names_array
from groupdro.estimators.base import GroupDROEstimator
from groupdro.estimators.fitting import warn_caller
from groupdro.solvers import Result
from groupdro.utils.arguments import check_flag, error_prefix
from groupdro.utils.types import Array, Floats

__all__ = ["RegularizationPath", "regularization_path"]


@dataclass(frozen=True, eq=False)
class RegularizationPath:
    """Models along a path of penalties, from the largest to the smallest.

    Attributes
    ----------
    alphas : ndarray of shape (n_alphas,)
        Penalties, descending.
    coefs : ndarray of shape (n_alphas, ...)
        `coef_` at each penalty.
    intercepts : ndarray of shape (n_alphas, ...)
        `intercept_` at each penalty.
    group_risks : ndarray of shape (n_alphas, n_groups)
        Average training loss of each group.
    upper_bounds, lower_bounds, gaps : ndarray of shape (n_alphas,)
        The certificate at each penalty.
    n_passes : ndarray of shape (n_alphas,)
        Passes over the data of each fit.
    statuses : list of str
        How each fit ended.
    groups : ndarray of shape (n_groups,)
        Names of the groups.
    """

    alphas: Floats
    coefs: Floats
    intercepts: Floats
    group_risks: Floats
    upper_bounds: Floats
    lower_bounds: Floats
    gaps: Floats
    n_passes: Floats
    statuses: list[str]
    groups: Array


def _extrapolated(results: list[Result], alphas: Floats) -> tuple[Floats, Floats]:
    """Return a starting point extrapolated from the last two models, linearly in the logarithm of the penalty.

    Zero coefficients stay zero, and none changes its sign.
    """
    w, q = results[-1].w, results[-1].q
    if len(results) == 1 or alphas[-2] == alphas[-3]:
        return w, q
    share = min(np.log(alphas[-1] / alphas[-2]) / np.log(alphas[-2] / alphas[-3]), 1.0)
    ahead = w + share * (w - results[-2].w)
    return np.where(w * ahead > 0.0, ahead, 0.0), q


def regularization_path(
    estimator: GroupDROEstimator,
    X: Any,
    y: Any = None,
    *,
    groups: Any = None,
    alphas: Any = None,
    sample_weight: Any = None,
    offset: Any = None,
    group_minima: Any = None,
    warm_start: bool = True,
) -> RegularizationPath:
    """Fit an estimator for each of several penalties, with a certified gap at each.

    The rows are read and ordered once, and each fit starts from an extrapolation of the last two solutions. Ctrl-C ends
    the path with the interrupted fit, and a warning.

    Parameters
    ----------
    estimator : GroupDROClassifier or GroupDRORegressor
        Estimator that provides all parameters except `alpha`. It is not modified, and must not have a `domain`, which
        would replace `alpha`.
    X, y, groups, sample_weight, offset, group_minima : array-like
        As in `fit`.
    alphas : array-like, optional
        Positive penalties in any order; by default ten from 1 to 1e-5.
    warm_start : bool
        Whether each fit starts near the previous solution.

    Returns
    -------
    RegularizationPath
        Coefficients, intercepts and certificates as arrays, from the largest penalty to the smallest.
    """
    if not isinstance(estimator, GroupDROEstimator):
        raise TypeError(f"estimator must be a GroupDROClassifier or GroupDRORegressor, got {type(estimator).__name__}.")
    check_flag(warm_start, "warm_start")
    estimator._refuse_domain("regularization_path")
    with error_prefix("alphas"):
        given = np.logspace(0, -5, 10) if alphas is None else np.asarray(alphas, dtype=np.float64).ravel()
    values = np.sort(given)[::-1]
    if not len(values) or not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"alphas must be positive and finite, got {alphas!r}.")
    model = clone(estimator)
    model._check_parameters()
    task, _ = model._read(X, y, sample_weight, groups, offset)
    task = model._with_minima(task, group_minima)
    results: list[Result] = []
    for k, alpha in enumerate(values):
        start = _extrapolated(results, values[: k + 1]) if warm_start and results else (None, None)
        results.append(model._solve(task, float(alpha), start).result)
        if results[-1].interrupted:
            break
    if results[-1].interrupted:
        warn_caller(f"Interrupted after {len(results)} of {len(values)} penalties.", ConvergenceWarning)
    models = [model._attributes(result.w) for result in results]
    return RegularizationPath(
        alphas=values[: len(results)].copy(),
        coefs=np.array([found["coef_"] for found in models]),
        intercepts=np.array([found["intercept_"] for found in models]),
        group_risks=np.array([result.group_risks for result in results]),
        upper_bounds=np.array([result.upper_bound for result in results]),
        lower_bounds=np.array([result.lower_bound for result in results]),
        gaps=np.array([result.gap for result in results]),
        n_passes=np.array([result.passes for result in results]),
        statuses=[result.status.name.lower() for result in results],
        groups=names_array(task.data.names),
    )
