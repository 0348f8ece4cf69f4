"""`GroupBy`: groups from a column of X, for pipelines and searches without metadata routing."""

from typing import Any, Self

import narwhals.stable.v1 as nw
from sklearn import config_context
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from groupdro.evaluation.models import final_estimator, predictions_of, take_columns
from groupdro.evaluation.report import GroupReport, group_report
from groupdro.utils.arguments import check_flag

__all__ = ["GroupBy"]

_NO_GROUPS = ("unexpected keyword argument 'groups'", "{'groups'}, which are not routed")  # of estimators, pipelines


def _delegates(method: str) -> Any:
    def has_method(self: "GroupBy") -> bool:
        getattr(self.estimator_ if hasattr(self, "estimator_") else self.estimator, method)
        return True

    return available_if(has_method)


def _given(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


class GroupBy(MetaEstimatorMixin, BaseEstimator):
    """Fit an estimator with groups taken from a column of X.

    The column is removed from X before the fit, so that it is not a feature. Predictions do not need the column, and
    ignore it if present. No metadata routing is required: the wrapper works inside `GridSearchCV`, `cross_validate` and
    `CalibratedClassifierCV` as they are. `group_report`, `worst_group_scorer` and `compare` also take the groups from
    the column.

    Parameters
    ----------
    estimator : estimator
        An estimator whose `fit` takes groups, such as `GroupDROClassifier`, or a pipeline that ends in one.
    group_by : str or list of str
        Name of the column with the groups; or several columns, whose combinations are the groups.
    drop : bool, default=True
        Whether to remove the columns from X. Set it to False to keep them as features; predictions then need them too.

    Attributes
    ----------
    estimator_ : estimator
        The fitted estimator. Its fitted attributes, such as `gap_`, `worst_group_`, `lower_bound_`, `group_weights_`
        and `coef_`, are also attributes of the wrapper. For a pipeline, these are the attributes of its last step.

    Examples
    --------
    >>> import pandas as pd
    >>> from groupdro import GroupBy, GroupDROClassifier
    >>> X = pd.DataFrame({"age": [20.0, 30.0, 40.0, 50.0], "region": ["n", "n", "s", "s"]})
    >>> model = GroupBy(GroupDROClassifier(), group_by="region").fit(X, [0, 1, 0, 1])
    >>> model.predict(X[["age"]]).shape
    (4,)
    >>> model.status_
    'converged'
    """

    def __init__(self, estimator: Any, group_by: str | list[str], *, drop: bool = True):
        self.estimator = estimator
        self.group_by = group_by
        self.drop = drop

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> Self:
        """Fit the estimator with the groups in the column.

        Parameters
        ----------
        X : DataFrame
            Rows, with the group columns.
        y : array-like
            Labels or targets.
        sample_weight : array-like, optional
            Weights of the rows. In a pipeline, its steps must request them.
        offset : array-like, optional
            Offsets of the rows.

        Returns
        -------
        self
            The fitted wrapper.
        """
        check_flag(self.drop, "drop")
        groups, rest = take_columns(X, self.group_by)
        fitted = clone(self.estimator)
        more = _given(sample_weight=sample_weight, offset=offset)
        # Enable routing here only, so that groups pass through pipelines whatever the caller's setting.
        with config_context(enable_metadata_routing=True):
            try:
                fitted.fit(rest if self.drop else X, y, groups=groups, **more)
            except TypeError as error:
                if not any(phrase in str(error) for phrase in _NO_GROUPS):
                    raise
                raise TypeError(f"estimator must accept groups in fit: {error}") from error
            except (KeyError, ValueError) as error:
                names = [self.group_by] if isinstance(self.group_by, str) else self.group_by
                dropped = [name for name in names if self.drop and name in str(error)]
                if not dropped:
                    raise
                raise ValueError(
                    f"{str(error).strip(chr(34))} GroupBy removes {dropped[0]!r} from X: leave it out of the steps of "
                    "the estimator, or pass drop=False."
                ) from error
        self.estimator_ = fitted
        return self

    def _fitted(self) -> Any:
        check_is_fitted(self)
        return self.estimator_

    def _without_groups(self, X: Any) -> Any:
        """Return X for the inner estimator, without the group columns if they are to be dropped."""
        if not self.drop:
            return X
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        if not isinstance(frame, nw.DataFrame):
            return X
        names = [self.group_by] if isinstance(self.group_by, str) else self.group_by
        present = [name for name in names if name in frame.columns]
        return nw.to_native(frame.drop(present)) if present else X

    @_delegates("predict")
    def predict(self, X: Any, *, offset: Any = None) -> Any:
        """Predict with the fitted estimator.

        Parameters
        ----------
        X : DataFrame or array-like
            Rows, with or without the group columns.
        offset : array-like, optional
            Offsets of the rows, if the estimator was fitted with them.

        Returns
        -------
        ndarray
            Predictions.
        """
        return predictions_of(self._fitted(), "predict", self._without_groups(X), offset)

    @_delegates("predict_proba")
    def predict_proba(self, X: Any, *, offset: Any = None) -> Any:
        """Predict probabilities with the fitted estimator.

        Parameters
        ----------
        X : DataFrame or array-like
            Rows, with or without the group columns.
        offset : array-like, optional
            Offsets of the rows, if the estimator was fitted with them.

        Returns
        -------
        ndarray of shape (n_rows, n_classes)
            Probabilities.
        """
        return predictions_of(self._fitted(), "predict_proba", self._without_groups(X), offset)

    @_delegates("predict_log_proba")
    def predict_log_proba(self, X: Any, *, offset: Any = None) -> Any:
        """Predict log-probabilities with the fitted estimator.

        Parameters
        ----------
        X : DataFrame or array-like
            Rows, with or without the group columns.
        offset : array-like, optional
            Offsets of the rows, if the estimator was fitted with them.

        Returns
        -------
        ndarray of shape (n_rows, n_classes)
            Log-probabilities.
        """
        return predictions_of(self._fitted(), "predict_log_proba", self._without_groups(X), offset)

    @_delegates("decision_function")
    def decision_function(self, X: Any, *, offset: Any = None) -> Any:
        """Return the outputs of the fitted estimator.

        Parameters
        ----------
        X : DataFrame or array-like
            Rows, with or without the group columns.
        offset : array-like, optional
            Offsets of the rows, if the estimator was fitted with them.

        Returns
        -------
        ndarray
            Outputs.
        """
        return predictions_of(self._fitted(), "decision_function", self._without_groups(X), offset)

    @_delegates("score")
    def score(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> float:
        """Score the fitted estimator: accuracy, or R squared, over all rows.

        Parameters
        ----------
        X : DataFrame or array-like
            Rows, with or without the group columns.
        y : array-like
            Labels or targets.
        sample_weight : array-like, optional
            Weights of the rows.
        offset : array-like, optional
            Offsets of the rows, if the estimator was fitted with them.

        Returns
        -------
        float
            The score.
        """
        more = _given(sample_weight=sample_weight, offset=offset)
        return float(self._fitted().score(self._without_groups(X), y, **more))

    def _own_groups(self, X: Any) -> Any:
        return take_columns(X, self.group_by)[0]

    def report(self, X: Any, y: Any, groups: Any = None, **options: Any) -> GroupReport:
        """Report the performance on each group; see `group_report`.

        Parameters
        ----------
        X : DataFrame
            Rows, with the group columns unless groups are given.
        y : array-like
            Labels or targets.
        groups : array-like, optional
            Groups to use instead of those in the column.
        **options
            Passed to `group_report`.

        Returns
        -------
        GroupReport
            The table.
        """
        return group_report(self, X, y, groups, **options)

    def _holding(self, fitted: Any) -> "GroupBy":
        """Return a wrapper with the same parameters around an estimator fitted without it."""
        wrapper: GroupBy = clone(self)
        wrapper.estimator_ = fitted
        return wrapper

    def __getattr__(self, name: str) -> Any:
        """Look up fitted attributes such as `gap_` in the estimator or the last step of its pipeline."""
        # Fitted attributes of scikit-learn's estimators end in an underscore.
        if name.endswith("_") and not name.startswith("_") and "estimator_" in self.__dict__:
            for learned in (self.estimator_, final_estimator(self.estimator_)):
                if hasattr(learned, name):
                    return getattr(learned, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_tags__(self) -> Any:
        """Return the tags of the inner estimator."""
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.target_tags, tags.input_tags = inner.target_tags, inner.input_tags
        return tags
