"""Worst-group scorers for scikit-learn's searches."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils.metadata_routing import UNUSED

from groupdro.data.given import GivenRows, read_given
from groupdro.evaluation.judgement import values_by_group
from groupdro.evaluation.metrics import METRICS, Metric, read_metrics
from groupdro.evaluation.models import check_model, final_estimator, own_groups, take_columns
from groupdro.evaluation.outputs import Outputs
from groupdro.utils.arguments import check_whole, short_repr
from groupdro.utils.text import group_name
from groupdro.utils.types import Floats
from groupdro.utils.vectors import read_by_group

__all__ = ["worst_group_scorer"]


@dataclass(eq=False, repr=False)
class worst_group_scorer(BaseEstimator):  # noqa: N801  # named like scikit-learn's make_scorer
    """Score a model by its worst group. Larger is better.

    Use it wherever scikit-learn takes `scoring`. Groups come from metadata routing, which the scorer requests by
    itself, from the columns of X named by `group_by`, or from the `GroupBy` being scored. Create a new scorer for each
    use: scorers that share a metadata request interfere with each other.

    Parameters
    ----------
    metric : str or callable, default="risk"
        A metric as in `group_report`, such as "recall" or "rmse", or "regret", the excess risk: the average loss minus
        the smallest risk of the group. The score is the smallest value of a group or, if smaller values are better,
        minus the largest one. A group for which the metric is undefined, like "roc_auc" with a single class, is left
        out with a warning; if no group is left, an error is raised.
    loss : str or callable, default="auto"
        Loss of "risk" and "regret", as in `group_report`.
    group_minima : mapping, default=None
        The smallest risk of each group for "regret". The default is the `group_minima_` of the model's own fit, which
        include its penalty: to choose `alpha`, pass the same values for all candidates.
    group_by : str or list of str, default=None
        Columns of X with the groups, used if no groups are passed.
    min_group_size : int, default=1
        Groups with fewer rows are left out. Increase it so that the noisy scores of tiny groups do not decide.

    Notes
    -----
    ``TunedThresholdClassifierCV`` passes only labels and predictions to a scorer, not X: enable metadata routing and
    pass `groups` to its `fit`.
    """

    __metadata_request__score = {"groups": True, "offset": True, "estimator": UNUSED}  # noqa: RUF012

    metric: Any = "risk"
    _: KW_ONLY
    loss: Any = "auto"
    group_minima: Mapping[Any, float] | None = None
    group_by: str | list[str] | None = None
    min_group_size: int = 1

    def __post_init__(self) -> None:
        self._metric()

    def _metric(self, weights: Floats | None = None) -> Metric:
        """Return the metric, or raise if it is unknown."""
        if isinstance(self.metric, str) and self.metric == "regret":
            return METRICS["risk"]
        (metric,) = read_metrics(self.metric, weights)
        return metric

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
        self._metric()  # it may have been changed by set_params
        check_model(estimator, "estimator")
        if groups is None:
            groups = own_groups(estimator, X) if self.group_by is None else take_columns(X, self.group_by)[0]
        if groups is None:
            raise ValueError(
                "groups did not reach the scorer: enable metadata routing "
                "(sklearn.set_config(enable_metadata_routing=True)), or name columns of X with group_by."
            )
        numeric = not is_classifier(estimator)
        given = read_given(
            X, y, groups, sample_weight=sample_weight, offset=offset, numeric=numeric, missing="own"
        ).with_weight()
        outputs = Outputs.of_model(estimator, given.X, given.y, loss=self.loss, offset=given.offset)
        outputs.check_labels()
        return self._worst(outputs, given, estimator)

    def _worst(self, outputs: Outputs, given: GivenRows, estimator: Any = None) -> float:
        """Return the score of the worst group that has enough rows."""
        check_whole(self.min_group_size, "min_group_size")
        metric = self._metric(given.weights)
        grouping = given.groups
        judged = np.flatnonzero(grouping.sizes >= self.min_group_size)
        if not len(judged):
            raise ValueError(f"min_group_size={self.min_group_size} leaves no group to score.")
        part = replace(given, groups=grouping.only(judged))
        values = values_by_group(metric, metric.of(outputs), part)[:-1]
        names = list(part.groups.names)
        if isinstance(self.metric, str) and self.metric == "regret":
            values -= self._minima_of(estimator, names)
        undefined = [name for name, value in zip(names, values, strict=True) if np.isnan(value)]
        if undefined:
            self._warn(undefined, len(names))
        return float(np.nanmin(values) if metric.larger_is_better else -np.nanmax(values))

    @staticmethod
    def _warn(undefined: list[Any], n_groups: int) -> None:
        named = ", ".join(map(group_name, undefined[:5])) + (", ..." if len(undefined) > 5 else "")
        if len(undefined) == n_groups:
            raise ValueError(f"metric is not defined for any group ({named}): each may have rows of one class only.")
        warnings.warn(
            f"metric is not defined for {len(undefined)} groups, which are left out: {named}. They may have rows of "
            "one class only.",
            UndefinedMetricWarning,
            stacklevel=5,
        )

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

    # ------------------------------------------------------------------ thresholds

    # What scikit-learn's TunedThresholdClassifierCV takes from a scorer.
    _sign = 1

    @property
    def _kwargs(self) -> dict[str, Any]:
        return {}

    @property
    def _score_func(self) -> Callable[..., float]:
        return self._score_of_predictions

    def _score_of_predictions(
        self, y_true: Any, y_pred: Any, *, groups: Any = None, sample_weight: Any = None
    ) -> float:
        if groups is None:
            raise ValueError(
                "groups did not reach the scorer: a search for thresholds passes only labels and predictions to it. "
                "Enable metadata routing (sklearn.set_config(enable_metadata_routing=True)), and pass groups to fit."
            )
        given = read_given(
            np.asarray(y_pred), y_true, groups, sample_weight=sample_weight, numeric=False, missing="own"
        ).with_weight()
        return self._worst(Outputs.of_classes(given.X, given.y), given)
