"""Predictions in the place of the model that made them: from R, SAS, a database or a served network."""

from typing import Any

import numpy as np
from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

from groupdro.data.given import refuse_other_order
from groupdro.evaluation.folds import MOST_CLASSES
from groupdro.evaluation.models import unknown_labels
from groupdro.utils.arguments import number_of_rows, short_repr
from groupdro.utils.types import Array, Floats, Indices
from groupdro.utils.vectors import read_target, read_vector

__all__ = ["Answers", "Predictions", "answered"]


_ROUNDED = 0.05  # deviation of a sum of probabilities that rounding to two digits explains; it is divided out
_EXACT = 1e-6  # deviation that single precision explains, which changes no figure


class Predictions:
    """What a model predicted for some rows, in the place of the model.

    `group_report`, `compare` and `find_groups` take it instead of a fitted model, with the labels as `y` and without
    `X`. Give what there is: with probabilities, the log loss, ROC AUC and calibration are available too.

    Parameters
    ----------
    predicted : array-like of shape (n_rows,), optional
        Predicted classes, or numbers: means, counts (with the exposure in them) or quantiles. The default is the class
        of the largest probability or score.
    probability : array-like of shape (n_rows,) or (n_rows, n_classes), optional
        Probability of the second class, or of each class, which must add up to 1 up to rounding.
    score : array-like of shape (n_rows,) or (n_rows, n_classes), optional
        Scores that grow with the probability, such as logits; of the second class, or of each class. They are
        classified at zero, or by the largest one.
    classes : array-like of shape (n_classes,), optional
        The classes, in the order of the probabilities. The default is the sorted labels, from the smallest to the
        largest.
    task : {"classification", "regression"}, optional
        Whether `predicted` has classes or numbers. The default is classes if there are probabilities, scores or
        `classes`, if labels are text or truth values, or if labels and predictions are whole numbers with at most ten
        different values.
    name : str
        What to call the model in titles and messages.

    Examples
    --------
    >>> import groupdro as gd
    >>> shop = gd.Predictions(probability=[0.9, 0.2, 0.7, 0.4])
    >>> gd.group_report(shop, y=[1, 0, 0, 1], groups=["a", "a", "b", "b"], n_bootstrap=0).overall["accuracy"]
    0.5
    """

    def __init__(
        self,
        predicted: Any = None,
        *,
        probability: Any = None,
        score: Any = None,
        classes: Any = None,
        task: str | None = None,
        name: str = "Predictions",
    ):
        if predicted is None and probability is None and score is None:
            raise TypeError("Predictions needs predicted, probability or score.")
        if task not in (None, "classification", "regression"):
            raise ValueError(f"task must be 'classification' or 'regression', got {short_repr(task)}.")
        if task == "regression" and not (probability is None and score is None and classes is None):
            raise ValueError("task='regression' takes predicted numbers only.")
        self.predicted = predicted
        self.probability = probability
        self.score = score
        self.classes = classes
        self.task = task
        self.name = name

    def __repr__(self) -> str:
        given = [key for key in ("predicted", "probability", "score") if getattr(self, key) is not None]
        return f"{self.name}({', '.join(given)})"


def answered(model: Any, X: Any, y: Any) -> tuple[Any, Any]:
    """Return a model and its rows; for predictions, a model that looks them up by the number of the row.

    Parameters
    ----------
    model : fitted estimator or Predictions
        The model.
    X : array-like or None
        Its rows; None for predictions.
    y : array-like
        The labels of the rows.

    Returns
    -------
    model, X : estimator, array-like
        A model that can predict, and the rows that it takes.
    """
    if not isinstance(model, Predictions):
        return model, X
    if X is not None:
        raise ValueError("X must be None if there are predictions instead of a model: pass y and groups by name.")
    if y is None:
        raise ValueError("y is missing: predictions are judged by the labels of their rows.")
    refuse_other_order(y, called="y", predicted=model.predicted, probability=model.probability, score=model.score)
    n_rows = number_of_rows(y, "y")
    numbers: Any = np.arange(n_rows)[:, None]
    if hasattr(y, "to_frame") and hasattr(y, "index"):  # so that groups in another order are refused
        numbers = y.to_frame("row").assign(row=numbers)
    return Answers(model, y, n_rows), numbers


class Answers:
    """A fitted model whose rows are numbers of rows, for which the answers are known."""

    def __init__(self, given: Predictions, y: Any, n_rows: int):
        self._name = given.name
        labels = read_target(y, n_rows, numeric=False)
        self.classifies = _classifies(given, labels)
        found: dict[str, Array] = {}
        if self.classifies:
            classes = np.unique(labels) if given.classes is None else np.asarray(given.classes)
            found = {"predict_proba": given.probability, "decision_function": given.score}
            found = {key: _numbers(values, n_rows) for key, values in found.items() if values is not None}
            if given.classes is None and not found:
                predicted = np.unique(read_vector(given.predicted, "predicted", n_rows))
                unknown_labels(predicted, labels)  # raises if labels and predictions are coded differently
                classes = np.unique(np.concatenate([classes, predicted]))
            self.classes_ = classes
            if "predict_proba" in found:
                found["predict_proba"] = _of_each_class(found["predict_proba"], classes)
            _check_scores(found, classes)
        if given.predicted is not None:
            values = read_vector(given.predicted, "predicted", n_rows)
            found["predict"] = values if self.classifies else _numbers(values, n_rows, "predicted")
        else:
            found["predict"] = self.classes_[_places(found)]
        self._found = found
        for method in found:
            setattr(self, method, self._answer(method))

    def _answer(self, method: str) -> Any:
        return lambda X: self._found[method][np.asarray(X)[:, 0]]

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        return Tags(
            estimator_type="classifier" if self.classifies else "regressor",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags() if self.classifies else None,
            regressor_tags=None if self.classifies else RegressorTags(),
            input_tags=InputTags(),
        )


def _classifies(given: Predictions, labels: Array) -> bool:
    """Return whether predictions are those of classes."""
    if given.task is not None:
        return given.task == "classification"
    if given.probability is not None or given.score is not None or given.classes is not None:
        return True
    values = np.asarray(given.predicted)
    if labels.dtype.kind not in "fiu" or values.dtype.kind not in "fiu":
        return True
    both = np.concatenate([labels, values])
    return bool((both == np.round(both)).all() and len(np.unique(both)) <= MOST_CLASSES)


def _numbers(values: Any, n_rows: int, argument: str = "probability or score") -> Floats:
    """Return finite numbers, one or several per row."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) != n_rows or array.ndim > 2:
        raise ValueError(f"{argument} has shape {array.shape}, but y has {n_rows} rows.")
    if not np.isfinite(array).all():
        raise ValueError(f"{argument} has NaN or infinite values.")
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _of_each_class(probability: Floats, classes: Array) -> Floats:
    """Return the probability of each class."""
    if probability.min() < 0 or probability.max() > 1:
        raise ValueError("probability must be between 0 and 1; pass other scores as score=.")
    if probability.ndim == 1 and len(classes) == 2:
        return np.column_stack([1.0 - probability, probability])
    if probability.ndim == 1:
        raise ValueError(
            f"y has {len(classes)} different labels, {short_repr(classes.tolist())}, and probability is that of the "
            "second of two: pass classes=, or a column per class."
        )
    sums = probability.sum(axis=1)
    farthest = int(np.argmax(np.abs(sums - 1.0)))
    if abs(sums[farthest] - 1.0) > _ROUNDED:
        raise ValueError(
            f"probability must add up to 1 in every row, but row {farthest} adds up to {sums[farthest]:.3g}: divide "
            "each row by its sum, or pass other scores as score=."
        )
    return probability / sums[:, None] if abs(sums[farthest] - 1.0) > _EXACT else probability


def _check_scores(found: dict[str, Array], classes: Array) -> None:
    for method, values in found.items():
        n_columns = 2 if values.ndim == 1 else values.shape[1]
        if n_columns != len(classes):
            raise ValueError(
                f"{'probability' if method == 'predict_proba' else 'score'} is of {n_columns} classes, but there are "
                f"{len(classes)}: {short_repr(classes.tolist())}. Pass classes= in the order of the columns."
            )


def _places(found: dict[str, Array]) -> Indices:
    """Return the number of the class that probabilities or scores predict."""
    if "predict_proba" in found:
        return np.asarray(found["predict_proba"].argmax(axis=1))
    score = found["decision_function"]
    return (score > 0).astype(np.int64) if score.ndim == 1 else np.asarray(score.argmax(axis=1))
