"""Delegation of a search to the model that it refitted on all rows."""

from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from groupdro.evaluation.report import GroupReport, group_report
from groupdro.utils.types import Array, Floats

__all__ = ["RefittedClassifier", "RefittedModel"]


def _has(method: str) -> Any:
    def check(search: Any) -> bool:
        inner = getattr(search, "best_estimator_", None)
        getattr(search._own() if inner is None else inner, method)  # raises the inner estimator's own error
        return True

    return available_if(check)


class RefittedModel:
    """Methods of any search, delegated to the refitted model."""

    __metadata_request__predict = {"offset": True}  # noqa: RUF012
    __metadata_request__score = {"offset": True}  # noqa: RUF012

    refit: bool
    best_estimator_: Any

    def _best(self) -> Any:
        if not self.refit and hasattr(self, "cv_results_"):
            raise NotFittedError(f"{type(self).__name__} has no model, because it was fitted with refit=False.")
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    @property
    def coef_(self) -> Floats:
        """Coefficients of the refitted model."""
        return np.asarray(self._best().coef_)

    @property
    def intercept_(self) -> Any:
        """Intercept of the refitted model."""
        return self._best().intercept_

    def predict(self, X: Any, *, offset: Any = None) -> Array:
        """Predict with the refitted model.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows. Groups are not needed.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Offsets of the rows; required if the model was fitted with offsets, not allowed otherwise.

        Returns
        -------
        ndarray of shape (n_rows,)
            Labels or numbers.
        """
        return np.asarray(self._best().predict(X, offset=offset))

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> float:
        """Score the refitted model: accuracy, or R squared, over all rows.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows.
        y : array-like of shape (n_rows,)
            Labels or targets.
        sample_weight : array-like of shape (n_rows,), optional
            Weights of the rows.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Offsets of the rows; required if the model was fitted with offsets, not allowed otherwise.

        Returns
        -------
        float
            The score.
        """
        return float(self._best().score(X, y, sample_weight, offset=offset))

    def report(self, X: Any, y: Any, groups: Any = None, **options: Any) -> GroupReport:
        """Report the performance of the refitted model on each group, preferably on held-out data.

        Parameters
        ----------
        X, y, groups : array-like
            Rows, labels and groups.
        **options
            Passed to `groupdro.group_report`.

        Returns
        -------
        GroupReport
            One row per group, worst first.
        """
        return group_report(self._best(), X, y, groups, **options)


class RefittedClassifier(RefittedModel):
    """Further methods of a search for a classifier."""

    __metadata_request__decision_function = {"offset": True}  # noqa: RUF012
    __metadata_request__predict_proba = {"offset": True}  # noqa: RUF012
    __metadata_request__predict_log_proba = {"offset": True}  # noqa: RUF012

    @property
    def classes_(self) -> Array:
        """Class labels."""
        return np.asarray(self._best().classes_)

    @_has("decision_function")
    def decision_function(self, X: Any, *, offset: Any = None) -> Floats:
        """Return the outputs of the refitted model.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Offsets of the rows; required if the model was fitted with offsets, not allowed otherwise.

        Returns
        -------
        ndarray of shape (n_rows,) or (n_rows, n_classes)
            The outputs.
        """
        return np.asarray(self._best().decision_function(X, offset=offset))

    @_has("predict_proba")
    def predict_proba(self, X: Any, *, offset: Any = None) -> Floats:
        """Return the probability of each class.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Offsets of the rows; required if the model was fitted with offsets, not allowed otherwise.

        Returns
        -------
        ndarray of shape (n_rows, n_classes)
            Probabilities, in the order of `classes_`.
        """
        return np.asarray(self._best().predict_proba(X, offset=offset))

    @_has("predict_log_proba")
    def predict_log_proba(self, X: Any, *, offset: Any = None) -> Floats:
        """Return the logarithms of the probabilities.

        Parameters
        ----------
        X : array-like, DataFrame or sparse matrix of shape (n_rows, n_features)
            Rows.
        offset : array-like of shape (n_rows,) or (n_rows, n_classes), optional
            Offsets of the rows; required if the model was fitted with offsets, not allowed otherwise.

        Returns
        -------
        ndarray of shape (n_rows, n_classes)
            Log-probabilities, in the order of `classes_`.
        """
        return np.asarray(self._best().predict_log_proba(X, offset=offset))
