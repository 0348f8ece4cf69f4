"""What a fitted model answers: outputs, reports, files, and itself as other libraries' objects."""

import os
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from groupdro.data.training_digest import rows_digest
from groupdro.estimators.export import to_sklearn, to_torch_linear
from groupdro.estimators.model_file import build_model, model_document, write_model
from groupdro.estimators.validation import read_features, read_outputs_offset
from groupdro.evaluation.report import GroupReport, group_report
from groupdro.problem import Loss
from groupdro.utils.arguments import check_path
from groupdro.utils.types import Array, Floats

__all__ = ["FittedModel"]


class FittedModel:
    """The part of an estimator that needs no solver."""

    # Offsets of a model that was fitted with them go wherever scikit-learn routes metadata.
    __metadata_request__predict = {"offset": True}  # noqa: RUF012
    __metadata_request__score = {"offset": True}  # noqa: RUF012

    coef_: Floats
    intercept_: Any
    training_digest_: str | None
    uses_offset_: bool = False  # as of models that earlier versions fitted

    def _own_loss(self) -> Loss:
        """Return the loss of what was learned of y."""
        raise NotImplementedError

    def _codes(self, y: Any) -> Array:
        """Return labels as they are encoded for the fit, or refuse those that the fit did not have."""
        raise NotImplementedError

    def _outputs(self, X: Any, offset: Any = None) -> Floats:
        """Return the model's outputs, of shape (n_rows,) or (n_rows, n_outputs)."""
        check_is_fitted(self)
        X = read_features(self, X, reset=False)
        coef = np.atleast_2d(self.coef_).astype(np.float64)
        outputs = X @ coef.T + self.intercept_
        outputs = outputs[:, 0] if len(coef) == 1 else outputs
        if offset is None and self.uses_offset_:
            raise ValueError(
                "offset is missing: the model was fitted with one, which it corrects. Pass the same score of these "
                "rows as offset=..."
            )
        if offset is None:
            return outputs
        if not self.uses_offset_:
            raise ValueError("offset was given, but the model was fitted without one.")
        return np.asarray(outputs + read_outputs_offset(offset, len(outputs), len(coef)))

    def _row_losses(self, X: Any, y: Any, offset: Any = None) -> Floats:
        """Return the loss of each row, for reports."""
        outputs, loss = np.ascontiguousarray(self._outputs(X, offset)), self._own_loss()
        return loss.value(outputs, loss.encode(self._codes(y)))

    def _are_training_rows(self, X: Any, y: Any) -> bool | None:
        """Return whether rows are those of the fit, all of them in their order; None where that is not known."""
        if getattr(self, "training_digest_", None) is None:  # a file of an earlier version
            return None
        try:
            codes = self._codes(y)
        except (TypeError, ValueError):
            return False
        return rows_digest(read_features(self, X, reset=False), codes) == self.training_digest_

    def report(self, X: Any, y: Any, groups: Any = None, **options: Any) -> GroupReport:
        """Report how each group fares, preferably on held-out data.

        Parameters
        ----------
        X, y : array-like
            Rows and labels.
        groups : array-like, Series, DataFrame, boolean or sparse matrix, optional
            Their groups, as in `fit`.
        **options
            Passed to `groupdro.group_report`: `offset`, `loss`, `n_bootstrap`, `confidence`, `min_rows`,
            `random_state`, `linear`.

        Returns
        -------
        GroupReport
            A table with one row per group, worst first.
        """
        return group_report(self, X, y, groups, **options)

    def to_sklearn(self) -> Any:
        """Return a plain scikit-learn estimator with the same predictions.

        Whatever takes scikit-learn's own models takes it: ONNX by skl2onnx, MLflow, skops.

        Returns
        -------
        LogisticRegression, LinearSVC or Ridge
            For the logistic loss, the squared hinge loss, and regressions.
        """
        self._check_whole("to_sklearn")
        return to_sklearn(self)

    def to_torch_linear(self) -> Any:
        """Return a `torch.nn.Linear` in double precision with the same outputs.

        Returns
        -------
        torch.nn.Linear
            With one output, or one per class where there are more than two.
        """
        self._check_whole("to_torch_linear")
        return to_torch_linear(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a file of JSON and arrays, which holds no code; `groupdro.load` reads it.

        Parameters
        ----------
        path : str or path-like
            The file, replaced if it exists. Callbacks and random states are left out; of a solver object the name is
            kept.

        Raises
        ------
        ModelFileError
            If the file could not be loaded again, as after a change of parameters that contradicts the fit. Nothing is
            written then.
        """
        check_is_fitted(self)
        write_model(check_path(path, "path"), *model_document(self), build_model)

    def _check_whole(self, method: str) -> None:
        """Refuse to export a correction as if it were the whole model."""
        check_is_fitted(self)
        if self.uses_offset_:
            raise ValueError(
                f"{method} has no place for the offset that this model was fitted with, and which it corrects: add "
                "X @ coef_.T + intercept_ to the score yourself."
            )
