"""Worst-group scorers for scikit-learn's searches."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import get_scorer, get_scorer_names
from sklearn.utils import _safe_indexing
from sklearn.utils.metadata_routing import UNUSED

from groupdro.data.grouping import Grouping, read_groups
from groupdro.evaluation.models import (
    call_inner,
    check_model,
    final_estimator,
    means_by_group,
    predictions_of,
    row_losses,
    take_columns,
)
from groupdro.utils.arguments import check_whole, number_of_rows, short_repr
from groupdro.utils.text import group_name
from groupdro.utils.types import Array, Floats, Mask
from groupdro.utils.vectors import read_by_group, read_target

__all__ = ["worst_group_scorer"]


_OWN_METRICS = ("risk", "accuracy", "regret")


@dataclass(eq=False, repr=False)
class worst_group_scorer(BaseEstimator):  # noqa: N801  # named like scikit-learn's make_scorer
    """Score a model by its worst group. Larger is better.

    Use it wherever scikit-learn takes `scoring`. Groups come from metadata routing, which the scorer requests by
    itself, from the columns of X named by `group_by`, or from the `GroupBy` being scored. Create a new scorer for each
    use: scorers that share a metadata request interfere with each other.

    Parameters
    ----------
    metric : {"risk", "accuracy", "regret"}, name of a scikit-learn scorer, or callable, default="risk"
        "risk" is minus the largest average loss of a group, "accuracy" the smallest accuracy, and "regret" minus the
        largest excess risk, the average loss minus the smallest risk of the group. Any other scorer gives the smallest
        score of a group: a name such as "roc_auc" or "neg_mean_absolute_error", or a callable ``scorer(estimator, X,
        y)``. A group for which such a score is undefined, like "roc_auc" with a single class, is left out with a
        warning; if no group is left, an error is raised.
    loss : str or callable, default="auto"
        Loss of "risk" and "regret", as in `row_losses`.
    group_minima : mapping, default=None
        The smallest risk of each group for "regret". The default is the `group_minima_` of the model's own fit, which
        include its penalty: to choose `alpha`, pass the same values for all candidates.
    group_by : str or list of str, default=None
        Columns of X with the groups, used if no groups are passed.
    min_group_size : int, default=1
        Groups with fewer rows are left out. Increase it so that the noisy scores of tiny groups do not decide.
    """

    __metadata_request__score = {"groups": True, "offset": True, "estimator": UNUSED}  # noqa: RUF012

    metric: Any = "risk"
    _: KW_ONLY
    loss: Any = "auto"
    group_minima: Mapping[Any, float] | None = None
    group_by: str | list[str] | None = None
    min_group_size: int = 1

    def __post_init__(self) -> None:
        _check_metric(self.metric)

    def __call__(
        self, estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None, offset: Any = None
    ) -> float:
        """Score a fitted estimator; see `score`."""
        return self.score(estimator, X, y, sample_weight, groups=groups, offset=offset)

    def score(
        self, estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None, offset: Any = None
    ) -> float:
        """Score a fitted estimator.

        Parameters
        ----------
        estimator : fitted estimator
            The model.
        X, y : array-like
            Rows and labels.
        sample_weight : array-like, optional
            Weights of the rows, relative to the total of their group.
        groups : array-like, optional
            Groups of the rows.
        offset : array-like, optional
            Offsets of the rows, if the model was fitted with them.

        Returns
        -------
        float
            The score of the worst group.
        """
        _check_metric(self.metric)  # it may have been changed by set_params
        check_whole(self.min_group_size, "min_group_size")
        check_model(estimator, "estimator")
        if groups is None:
            groups = (
                call_inner(estimator, X, "_own_groups") if self.group_by is None else take_columns(X, self.group_by)[0]
            )
        if groups is None:
            raise ValueError(
                "groups did not reach the scorer: enable metadata routing "
                "(sklearn.set_config(enable_metadata_routing=True)), or name columns of X with group_by."
            )
        y = read_target(y, number_of_rows(X, "X"), numeric=not is_classifier(estimator))
        grouping = read_groups(groups, len(y), missing="own")
        judged = grouping.sizes >= self.min_group_size
        if not judged.any():
            raise ValueError(f"min_group_size={self.min_group_size} leaves no group to score.")
        if self.metric not in _OWN_METRICS:
            if offset is not None:
                raise ValueError("offset requires metric 'risk', 'accuracy' or 'regret'; others do not support it.")
            scorer = get_scorer(self.metric) if isinstance(self.metric, str) else self.metric
            return _least_score(scorer, estimator, X, y, sample_weight, grouping, judged)
        if self.metric == "accuracy":
            if not is_classifier(estimator):
                raise ValueError("metric 'accuracy' requires a classifier; use 'risk' for a regressor.")
            right = (predictions_of(estimator, "predict", X, offset) == y).astype(np.float64)
            return float(means_by_group(right, grouping, sample_weight)[judged].min())
        risks = means_by_group(row_losses(estimator, X, y, self.loss, offset=offset), grouping, sample_weight)
        if self.metric == "regret":
            names = [name for name, enough in zip(grouping.names, judged, strict=True) if enough]
            return -float((risks[judged] - self._minima_of(estimator, names)).max())
        return -float(risks[judged].max())

    def _minima_of(self, estimator: Any, names: list[Any]) -> Floats:
        known = self.group_minima
        if known is None:
            if not (isinstance(self.loss, str) and self.loss == "auto"):
                raise ValueError("group_minima is required for metric 'regret' with a loss other than the model's own.")
            inner = final_estimator(estimator)
            if not hasattr(inner, "group_minima_"):
                raise ValueError("group_minima is required for metric 'regret' of a model fitted without them.")
            known = dict(zip(inner.groups_.tolist(), inner.group_minima_, strict=True))
        if not isinstance(known, Mapping):
            raise TypeError(f"group_minima must be a mapping from group to number, got {short_repr(known)}.")
        return read_by_group(known, names, "group_minima")


def _check_metric(metric: Any) -> None:
    """Raise unless `metric` is one of this module or a scorer."""
    if not callable(metric) and not (isinstance(metric, str) and metric in (*_OWN_METRICS, *get_scorer_names())):
        raise ValueError(
            f"metric must be 'risk', 'accuracy' or 'regret', the name of a scikit-learn scorer, or a callable "
            f"scorer(estimator, X, y), got {short_repr(metric)}."
        )


def _least_score(
    scorer: Callable[..., float], estimator: Any, X: Any, y: Array, sample_weight: Any, grouping: Grouping, judged: Mask
) -> float:
    """Score each group separately, and return the smallest defined score."""
    scores, undefined = [], []
    classes = len(getattr(estimator, "classes_", np.unique(y))) if is_classifier(estimator) else 0
    for i in np.flatnonzero(judged).tolist():
        own = grouping.rows_of(i)
        more = {} if sample_weight is None else {"sample_weight": np.asarray(sample_weight)[own]}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UndefinedMetricWarning)
                score = float(scorer(estimator, _safe_indexing(X, own), y[own], **more))
        except ValueError:
            # Some scorers raise for a group that lacks a class, others return NaN.
            if len(np.unique(y[own])) >= classes:
                raise
            score = np.nan
        if np.isnan(score):
            undefined.append(grouping.names[i])
        else:
            scores.append(score)
    if undefined:
        names = ", ".join(map(group_name, undefined[:5])) + (", ..." if len(undefined) > 5 else "")
        if not scores:
            raise ValueError(f"metric is not defined for any group ({names}): each may have rows of one class only.")
        warnings.warn(
            f"metric is not defined for {len(undefined)} groups, which are left out: {names}. They may have rows of "
            "one class only.",
            UndefinedMetricWarning,
            stacklevel=4,
        )
    return min(scores)
