"""Methods of fitted models: outputs, reports, and conversion to other libraries."""

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from groupdro.data.read_rows import read_rows
from groupdro.data.training_digest import rows_digest
from groupdro.estimators.export import to_sklearn, to_torch_linear
from groupdro.estimators.validation import check_outputs_offset, read_features
from groupdro.evaluation.report import GroupReport, group_report
from groupdro.losses import Loss
from groupdro.store import GroupedStore
from groupdro.utils.types import Array, Floats
from groupdro.utils.vectors import read_offset

__all__ = ["FittedModel", "adopt", "unfitted"]


def unfitted(estimator: Any) -> Any:
    """Return an estimator with the same parameter objects, to be fitted in place of this one."""
    return type(estimator)(**estimator.get_params(deep=False))


def adopt(estimator: Any, fitted: Any) -> None:
    """Replace what an estimator has learned by what another one has, so that a fit that fails changes nothing."""
    parameters = set(estimator.get_params(deep=False))
    for name in [name for name in vars(estimator) if name.endswith("_") and not name.startswith("_")]:
        delattr(estimator, name)
    vars(estimator).update({name: value for name, value in vars(fitted).items() if name not in parameters})


class FittedModel:
    """The part of an estimator that needs no solver."""

    # Scikit-learn's metadata routing passes offsets to a model that was fitted with them.
    __metadata_request__predict = {"offset": True}  # noqa: RUF012
    __metadata_request__score = {"offset": True}  # noqa: RUF012

    coef_: Floats
    intercept_: Any
    training_digest_: str | None
    uses_offset_: bool

    def _own_loss(self) -> Loss:
        """Return the loss for the labels seen in fit."""
        raise NotImplementedError

    def _codes(self, y: Any) -> Array:
        """Return labels in the encoding of the fit, or raise if the fit has not seen them."""
        raise NotImplementedError

    def _outputs(self, X: Any, offset: Any = None) -> Floats:
        """Return the model's outputs, of shape (n_rows,) or (n_rows, n_outputs)."""
        check_is_fitted(self)
        if isinstance(X, GroupedStore):
            offset = X.offset if offset is None else offset
            X = X.X
        X = read_features(self, X, reset=False)
        coef = np.atleast_2d(self.coef_).astype(np.float64)
        w = coef[0] if len(coef) == 1 else coef.T
        outputs = np.empty((X.shape[0], *w.shape[1:]))
        # Block by block: rows in lower precision, or in a file, may be too large for a copy in float64.
        for place, block in read_rows(X)[0].blocks():
            outputs[place] = block.matvec(w)
        outputs += self.intercept_ if len(coef) > 1 else np.ravel(self.intercept_)[0]
        if offset is None and self.uses_offset_:
            raise ValueError(
                "offset is missing: the model was fitted with one and corrects it. Pass the same score for these "
                "rows as offset=..."
            )
        if offset is None:
            return outputs
        if not self.uses_offset_:
            raise ValueError("offset was given, but the model was fitted without one.")
        offset = read_offset(offset, len(outputs))
        check_outputs_offset(offset, len(outputs), len(coef))
        return np.asarray(outputs + offset)

    def _row_losses(self, X: Any, y: Any, offset: Any = None) -> Floats:
        """Return the loss of each row, for reports."""
        outputs = np.ascontiguousarray(self._outputs(X, offset))
        loss = self._own_loss()
        return loss.value(outputs, loss.encode(self._codes(y)))

    def _are_training_rows(self, X: Any, y: Any) -> bool | None:
        """Return whether the rows are exactly the training data, in the same order; None if unknown."""
        if getattr(self, "training_digest_", None) is None:  # unknown, or not fitted
            return None
        try:
            return rows_digest(read_features(self, X, reset=False), self._codes(y)) == self.training_digest_
        except (TypeError, ValueError):
            return False  # the fit would have refused them

    def report(self, X: Any, y: Any = None, groups: Any = None, **options: Any) -> GroupReport:
        """Report the performance on each group, preferably on held-out data.

        Parameters
        ----------
        X, y : array-like, or GroupedStore and None
            Rows and labels.
        groups : array-like, Series, DataFrame, boolean or sparse matrix, optional
            Groups of the rows, as in `fit`.
        **options
            Passed to `groupdro.group_report`, such as `metrics`, `sample_weight`, `cluster` and `offset`.

        Returns
        -------
        GroupReport
            A table with one row per group, worst first.
        """
        return group_report(self, X, y, groups, **options)

    def to_sklearn(self) -> Any:
        """Return a plain scikit-learn estimator with the same predictions.

        Tools for scikit-learn's own models accept it: skl2onnx, MLflow, skops.

        Returns
        -------
        LogisticRegression, LinearSVC, PoissonRegressor, GammaRegressor, TweedieRegressor, QuantileRegressor or Ridge
            The model for the loss, or the nearest of them.
        """
        self._check_whole("to_sklearn")
        return to_sklearn(self)

    def to_torch_linear(self) -> Any:
        """Return a `torch.nn.Linear` in double precision with the same outputs.

        Returns
        -------
        torch.nn.Linear
            With one output, or one per class if there are more than two.
        """
        self._check_whole("to_torch_linear")
        return to_torch_linear(self)

    def _check_whole(self, method: str) -> None:
        """Refuse to export the correction of an offset as if it were the whole model."""
        check_is_fitted(self)
        if self.uses_offset_:
            raise ValueError(
                f"{method} does not support a model fitted with an offset, which the exported model would ignore: add "
                "X @ coef_.T + intercept_ to the score yourself."
            )
