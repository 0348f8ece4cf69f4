"""Regularisation paths: one fit per penalty, each warm-started from the previous ones."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning

from groupdro.data.given import read_given
from groupdro.data.grouping import names_array
from groupdro.estimators.base import GroupDROEstimator
from groupdro.estimators.fitting import warn_caller
from groupdro.estimators.outcome import Outcome
from groupdro.evaluation.judgement import values_by_group
from groupdro.evaluation.metrics import read_metrics
from groupdro.evaluation.outputs import Outputs
from groupdro.solvers import Result
from groupdro.utils.arguments import check_flag, check_whole, error_prefix
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
    models : list of GroupDROClassifier or GroupDRORegressor
        The fitted estimator at each penalty, which predicts, reports and exports like any other.
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
    models: list[Any]

    def judge(
        self,
        X: Any,
        y: Any,
        *,
        groups: Any,
        metric: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
        min_group_size: int = 1,
    ) -> dict[str, list[Any]]:
        """Judge every model on held-out rows by its average and its worst group.

        The largest of many held-out values is too good: report the chosen model on rows that the choice has not seen.

        Parameters
        ----------
        X, y, groups, sample_weight, offset : array-like
            Held-out rows, as in `fit`.
        metric : str or callable, optional
            A metric as in `group_report`; by default accuracy for classifiers, and the risk for regressors.
        min_group_size : int, default=1
            Groups with fewer rows are left out.

        Returns
        -------
        dict of list
            Columns of a table with one row per penalty: "alpha", the metric over "all rows", in the "worst group", and
            which "group" that is.
        """
        numeric = not is_classifier(self.models[0])
        check_whole(min_group_size, "min_group_size", least=1)
        given = read_given(
            X, y, groups, sample_weight=sample_weight, offset=offset, numeric=numeric, missing="error"
        ).with_weight()
        (read,) = read_metrics(("risk" if numeric else "accuracy") if metric is None else metric, given.weights)
        large = np.flatnonzero(given.groups.sizes >= min_group_size)
        if not len(large):
            raise ValueError(f"min_group_size={min_group_size} leaves no group to judge.")
        rows = replace(given, groups=given.groups.only(large))
        table: dict[str, list[Any]] = {"alpha": [], "all rows": [], "worst group": [], "group": []}
        for alpha, model in zip(self.alphas, self.models, strict=True):
            outputs = Outputs.of_model(model, given.X, given.y, offset=given.offset)
            outputs.check_labels()
            *values, overall = values_by_group(read, read.of(outputs), rows)
            if np.isnan(values).all():
                raise ValueError(f"{read.name} is not defined for any group.")
            worst = int(np.nanargmin(values) if read.larger_is_better else np.nanargmax(values))
            row = float(alpha), float(overall), float(values[worst]), rows.groups.names[worst]
            for name, value in zip(table, row, strict=True):
                table[name].append(value)
        return table


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
    outcomes: list[Outcome] = []
    results: list[Result] = []
    for k, alpha in enumerate(values):
        start = _extrapolated(results, values[: k + 1]) if warm_start and results else (None, None)
        outcomes.append(model._solve(task, float(alpha), start))
        results.append(outcomes[-1].result)
        if results[-1].interrupted:
            break
    if results[-1].interrupted:
        warn_caller(f"Interrupted after {len(results)} of {len(values)} penalties.", ConvergenceWarning)
    models = [model._with_outcome(one, alpha=float(alpha)) for one, alpha in zip(outcomes, values, strict=False)]
    return RegularizationPath(
        alphas=values[: len(results)].copy(),
        coefs=np.array([fitted.coef_ for fitted in models]),
        intercepts=np.array([fitted.intercept_ for fitted in models]),
        group_risks=np.array([result.group_risks for result in results]),
        upper_bounds=np.array([result.upper_bound for result in results]),
        lower_bounds=np.array([result.lower_bound for result in results]),
        gaps=np.array([result.gap for result in results]),
        n_passes=np.array([result.passes for result in results]),
        statuses=[result.status.name.lower() for result in results],
        groups=names_array(task.data.names),
        models=models,
    )
