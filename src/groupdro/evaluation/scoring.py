"""Scores of the worst group, for scikit-learn's searches."""

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
from groupdro.evaluation.metrics import (
    answers,
    ask,
    check_model,
    final_estimator,
    means_by_group,
    row_losses,
    take_columns,
)
from groupdro.utils.arguments import check_whole, number_of_rows, short_repr
from groupdro.utils.text import group_name
from groupdro.utils.types import Array, Floats, Mask
from groupdro.utils.vectors import read_by_group, read_target

__all__ = ["WorstGroupScorer", "worst_group_scorer"]


_OWN_METRICS = ("risk", "accuracy", "regret")


@dataclass(eq=False, repr=False)
class WorstGroupScorer(BaseEstimator):
    """Score a model by its worst group; larger is better.

    Use it wherever scikit-learn takes `scoring`. Groups come by metadata routing, which it requests by itself, from the
    columns of X that `group_by` names, or from those of the `GroupBy` that is scored. Make one for each use: scorers
    that share a request disturb each other.

    Parameters
    ----------
    metric : {"risk", "accuracy", "regret"}, name of a scikit-learn scorer, or callable, default="risk"
        Minus the largest average loss of a group; the least accuracy; or minus the largest regret, the average loss
        less the group's reference. Otherwise the least score of a group by one of scikit-learn's scorers, such as
        "roc_auc" or "neg_mean_absolute_error", or by a callable ``scorer(estimator, X, y)``. A group for which such a
        score is not defined, as "roc_auc" is not where all rows have the same class, is left out with a warning that
        names it; if there is no other, that is an error.
    loss : str or callable, default="auto"
        The loss of "risk" and "regret", as in `row_losses`.
    references : mapping, default=None
        Reference risk of each group for "regret"; by default those that the model was fitted with. These contain its
        penalty: to choose `alpha`, pass the same references for all candidates.
    group_by : str or list of str, default=None
        Columns of X that hold the groups, where no groups are passed.
    min_group_size : int, default=1
        Groups with fewer rows are left out: their scores are mostly noise.
    """

    __metadata_request__score = {"groups": True, "offset": True, "estimator": UNUSED}  # noqa: RUF012

    metric: Any = "risk"
    _: KW_ONLY
    loss: Any = "auto"
    references: Mapping[Any, float] | None = None
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
            Weights, relative within each group.
        groups : array-like, optional
            Groups of the rows.
        offset : array-like, optional
            Offsets of the rows, where the model was fitted with them.

        Returns
        -------
        float
            The score of the worst group.
        """
        _check_metric(self.metric)  # which may have been set since
        check_whole(self.min_group_size, "min_group_size")
        check_model(estimator, "estimator")
        if groups is None:
            groups = ask(estimator, X, "_own_groups") if self.group_by is None else take_columns(X, self.group_by)[0]
        if groups is None:
            raise ValueError(
                "groups did not reach the scorer: turn on metadata routing "
                "(sklearn.set_config(enable_metadata_routing=True)), or name a column of X by group_by."
            )
        y = read_target(y, number_of_rows(X, "X"), numeric=not is_classifier(estimator))
        grouping = read_groups(groups, len(y), missing="own")
        judged = grouping.sizes >= self.min_group_size
        if not judged.any():
            raise ValueError(f"min_group_size={self.min_group_size} leaves no group to score.")
        if self.metric not in _OWN_METRICS:
            if offset is not None:
                raise ValueError("offset needs metric 'risk', 'accuracy' or 'regret': other scorers know none.")
            scorer = get_scorer(self.metric) if isinstance(self.metric, str) else self.metric
            return _least_score(scorer, estimator, X, y, sample_weight, grouping, judged)
        if self.metric == "accuracy":
            if not is_classifier(estimator):
                raise ValueError("metric 'accuracy' needs a classifier; use 'risk' for a regressor.")
            right = (answers(estimator, "predict", X, offset) == y).astype(np.float64)
            return float(means_by_group(right, grouping, sample_weight)[judged].min())
        risks = means_by_group(row_losses(estimator, X, y, self.loss, offset=offset), grouping, sample_weight)
        if self.metric == "regret":
            names = [name for name, enough in zip(grouping.names, judged, strict=True) if enough]
            return -float((risks[judged] - self._references_of(estimator, names)).max())
        return -float(risks[judged].max())

    def _references_of(self, estimator: Any, names: list[Any]) -> Floats:
        known = self.references
        if known is None:
            if not (isinstance(self.loss, str) and self.loss == "auto"):
                raise ValueError("references must be given for regrets of another loss than the model's own.")
            inner = final_estimator(estimator)
            if not hasattr(inner, "reference_risks_"):
                raise ValueError("references must be given to score regrets of a model that was fitted without any.")
            known = dict(zip(inner.groups_.tolist(), inner.reference_risks_, strict=True))
        if not isinstance(known, Mapping):
            raise TypeError(f"references must be a mapping from group to number, got {short_repr(known)}.")
        return read_by_group(known, names, "references")


worst_group_scorer = WorstGroupScorer  # the name under which scikit-learn's makers of scorers are known


def _check_metric(metric: Any) -> None:
    """Refuse what is neither a metric of this module nor a scorer."""
    if not callable(metric) and not (isinstance(metric, str) and metric in (*_OWN_METRICS, *get_scorer_names())):
        raise ValueError(
            f"metric must be 'risk', 'accuracy' or 'regret', the name of a scikit-learn scorer, or a callable "
            f"scorer(estimator, X, y), got {short_repr(metric)}."
        )


def _least_score(
    scorer: Callable[..., float], estimator: Any, X: Any, y: Array, sample_weight: Any, grouping: Grouping, judged: Mask
) -> float:
    """Score each group on its own, and return the least score of those for which it is defined."""
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
            # Some scorers refuse a group that lacks a class, others return NaN.
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
