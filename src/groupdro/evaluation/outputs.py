"""What is predicted for some rows, by a model or as it was handed over, and the loss of each row."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from groupdro.evaluation.models import (
    in_pieces,
    inner_with,
    name_of,
    own_loss,
    pinball_loss,
    predictions_of,
    unknown_labels,
)
from groupdro.losses import Loss
from groupdro.utils.arguments import check_choice
from groupdro.utils.types import Array, Floats, Mask
from groupdro.utils.vectors import class_codes

__all__ = ["SAME_AS_OURS", "Outputs", "RowLoss", "row_losses"]

_METHODS = "predict", "predict_proba", "predict_log_proba", "decision_function"
#: Losses of this package that models of other kinds have too, by their names in our estimators.
SAME_AS_OURS = {"logistic": "log", "squared": "squared", "squared_error": "squared"}
# Of predictions f of y, a constant leaves var(y), and f at least var(y) - 2 sd(f) sd(y): this explains at most 0.2%.
_ALMOST_CONSTANT = 1e-3
_IN_WORDS = {"log": "log loss", "squared": "half mean squared error", "zero_one": "error rate"}


@dataclass(frozen=True, eq=False)
class RowLoss:
    """The loss of a row behind "risk".

    Attributes
    ----------
    of : callable
        Computes the loss of each row from outputs.
    words : str
        What its average is called in a sentence.
    loss : Loss or None
        The loss as one of this package, if it is one of predicted numbers.
    is_own : bool
        Whether it is the loss that the model's fit minimised, to which its group minima belong.
    is_recognised : bool
        Whether it was recognised by the parameters of a quantile regressor of another package.
    """

    of: "Callable[[Outputs], Floats]"
    words: str = "average loss"
    loss: Loss | None = None
    is_own: bool = False
    is_recognised: bool = False

    @classmethod
    def given(cls, loss: Any) -> "RowLoss":
        """Return a loss that is named or passed."""
        if isinstance(loss, Loss):
            return cls(partial(_of_numbers, loss), loss=loss)
        if callable(loss):
            return cls(partial(_of_function, loss))
        check_choice(loss, "loss", ("auto", *_BY_NAME))
        return cls(_BY_NAME[loss], _IN_WORDS.get(loss, "average loss"))

    @classmethod
    def usual(cls, *, classifies: bool, has_probabilities: bool) -> "RowLoss":
        """Return the loss by which predictions of a kind are judged if nothing else is known."""
        return cls.given(("log" if has_probabilities else "zero_one") if classifies else "squared")

    @classmethod
    def of_model(cls, model: Any, X: Any, loss: Any, offset: Floats | None) -> "RowLoss":
        """Return the loss that is given; for "auto" the model's own one, or the usual one of its kind."""
        if not (isinstance(loss, str) and loss == "auto"):
            return cls.given(loss)
        layer = inner_with(model, "_row_losses")
        if layer is not None:
            own = layer.model._row_losses

            def losses(outputs: "Outputs") -> Floats:
                def of_part(part: Any, place: slice) -> Floats:
                    more = [] if offset is None else [offset[place]]
                    return np.asarray(own(layer.rows(part), outputs.y[place], *more))

                return in_pieces(X, of_part)

            name = getattr(layer.model, "loss", None)
            words = _IN_WORDS.get(SAME_AS_OURS.get(name, ""), "average loss") if isinstance(name, str) else ""
            return cls(losses, words or "average loss", own_loss(model), is_own=True)
        pinball = pinball_loss(model)
        if pinball is not None:
            return cls(partial(_of_numbers, pinball), loss=pinball, is_recognised=True)
        return cls.usual(classifies=is_classifier(model), has_probabilities=hasattr(model, "predict_proba"))


def _of_numbers(loss: Loss, outputs: "Outputs") -> Floats:
    predicted = np.ascontiguousarray(outputs.predicted.astype(np.float64))
    return loss.value(loss.output(predicted), loss.encode(outputs.y))


def _of_function(function: Callable[[Array, Array], Any], outputs: "Outputs") -> Floats:
    losses = np.asarray(function(outputs.y, outputs.predicted), dtype=np.float64)
    if losses.shape != (len(outputs.y),):
        raise ValueError(f"loss must return one number per row, got shape {losses.shape}.")
    if not np.isfinite(losses).all():
        raise ValueError("loss returned NaN or infinite values.")
    return losses


def _log_losses(outputs: "Outputs") -> Floats:
    if not outputs.has_probabilities:
        raise TypeError(f"loss='log' requires predict_proba, which {outputs.name} does not have.")
    return outputs.log_losses


_BY_NAME: dict[str, Callable[["Outputs"], Floats]] = {
    "log": _log_losses,
    "zero_one": lambda outputs: (~outputs.right).astype(np.float64),
    "squared": lambda outputs: 0.5 * outputs.residual**2,
    "absolute": lambda outputs: np.abs(outputs.residual),
}


class Outputs:
    """What is predicted for some rows: all that metrics know of a model.

    Parameters
    ----------
    y : ndarray of shape (n_rows,)
        Labels.
    responses : mapping of str to callable
        Return predictions, named like the methods of scikit-learn's models: "predict", and "predict_proba" or
        "decision_function" if there are probabilities or scores. Each is called once, when first needed.
    classes : ndarray or None
        Classes, in the order of the probabilities. None if they are unknown, as for predicted numbers.
    classifies : bool
        Whether classes are predicted, not numbers.
    loss : RowLoss
        The loss behind "risk".
    own_loss : Loss, optional
        The loss of a model of numbers, whose deviance it explains.
    name : str
        What to call the model in messages.
    """

    def __init__(
        self,
        y: Array,
        responses: Mapping[str, Callable[[], Any]],
        *,
        classes: Array | None = None,
        classifies: bool,
        loss: RowLoss,
        own_loss: Loss | None = None,
        name: str = "the model",
    ):
        self.y = y
        self.classifies = classifies
        self.loss = loss
        self.own_loss = own_loss or loss.loss
        self.name = name
        self._classes = classes
        self._responses = responses
        self._found: dict[str, Array] = {}

    @classmethod
    def of_model(cls, model: Any, X: Any, y: Any, *, loss: Any = "auto", offset: Floats | None = None) -> "Outputs":
        """Return the outputs of a fitted model, with offsets of the rows if it was fitted with them."""
        methods = [name for name in _METHODS if hasattr(model, name)]
        return cls(
            np.asarray(y),
            {name: partial(predictions_of, model, name, X, offset) for name in methods},
            classes=getattr(model, "classes_", None),
            classifies=bool(is_classifier(model)),
            loss=RowLoss.of_model(model, X, loss, offset),
            own_loss=loss if isinstance(loss, Loss) else own_loss(model),
            name=name_of(model),
        )

    @classmethod
    def of_classes(cls, predicted: Array, y: Array) -> "Outputs":
        """Return the outputs of a classifier of which only the predicted classes are known."""
        classes = np.unique(np.concatenate([predicted, y]))
        loss = RowLoss(_unknown_risk)
        return cls(y, {"predict": lambda: predicted}, classes=classes, classifies=True, loss=loss)

    def has(self, method: str) -> bool:
        """Return whether there is a response of this name."""
        return method in self._responses

    def response(self, method: str) -> Array:
        """Return a response."""
        if method not in self._found:
            self._found[method] = np.asarray(self._responses[method]())
        return self._found[method]

    @cached_property
    def unknown_labels(self) -> list[Any]:
        """The labels that are none of the classes; raises if all of them are unknown."""
        return unknown_labels(self._classes, self.y) if self.classifies and self._classes is not None else []

    def check_labels(self) -> None:
        """Raise if none of the labels is one of the classes."""
        self.unknown_labels  # noqa: B018  # looking raises

    @cached_property
    def risk(self) -> Floats:
        """Loss of each row."""
        return self.loss.of(self)

    @property
    def predicted(self) -> Array:
        """The predictions."""
        return self.response("predict")

    @cached_property
    def right(self) -> Mask:
        """Whether the predicted class is the label."""
        return np.asarray(self.predicted == self.y)

    @cached_property
    def residual(self) -> Floats:
        """Prediction minus target."""
        return np.asarray(self.predicted - self.y.astype(np.float64))

    @property
    def has_probabilities(self) -> bool:
        """Whether there are probabilities of classes."""
        return self.classifies and self.has("predict_proba")

    @cached_property
    def probabilities(self) -> Floats:
        """Probability of each class."""
        if not self.has_probabilities:
            raise TypeError(f"{self.name} has no predict_proba")
        return self.response("predict_proba").astype(np.float64)

    @cached_property
    def log_losses(self) -> Floats:
        """Log loss of each row; probabilities are cut off at the rounding error of their type."""
        of_label = np.where(self.indicators, self.probabilities, 0.0).sum(axis=1)
        kind = np.result_type(self.response("predict_proba"), np.float32)
        return np.asarray(-np.log(np.maximum(of_label, np.finfo(kind).eps)))

    @property
    def classes(self) -> Array:
        """The classes."""
        if self._classes is None:
            raise TypeError(f"{self.name} has no classes_")
        return np.asarray(self._classes)

    @cached_property
    def indicators(self) -> Mask:
        """Whether each label is each of the classes."""
        codes, known = class_codes(self.y, self.classes)
        return (codes[:, None] == np.arange(len(self.classes))) & known[:, None]

    def sameness(self, *, of_scores: bool) -> str:
        """Return in what way all rows are predicted the same, as a phrase; empty text if they are not.

        Predicted numbers, and if `of_scores` probabilities and scores of classes, are almost the same if their standard
        deviation is below a thousandth of their size and of the standard deviation of what they predict: they then
        explain less than 0.2% of its variance beyond a constant.
        """
        scores, labels = self.predicted, None
        if not self.classifies:
            labels = self.y.astype(np.float64)
        elif of_scores and self.has_probabilities:
            scores, labels = self.probabilities, self.indicators.astype(np.float64)
        elif of_scores and self.has("decision_function"):
            scores = self.response("decision_function")
        elif bool((scores == scores[0]).all()):
            return "the same class"
        else:
            return ""
        scores = scores.astype(np.float64)
        if bool((scores == scores[0]).all()):
            return "the same"
        size = np.sqrt(np.mean(scores**2, axis=0))
        if labels is not None:
            size = np.minimum(size, labels.std(axis=0))
        return "almost the same" if bool((scores.std(axis=0) < _ALMOST_CONSTANT * size).all()) else ""

    @property
    def is_guessing(self) -> bool:
        """Whether the predicted classes show no dependence on the labels, as those of a coin do not.

        The mean recall of the classes that occur is that of a guess, up to three standard errors.
        """
        if not self.classifies:
            return False
        kinds = self.indicators[:, self.indicators.any(axis=0)].astype(np.float64)
        n, n_kinds = kinds.sum(axis=0), kinds.shape[1]
        recalls = kinds.T @ self.right / np.maximum(n, 1.0)
        error = np.sqrt(np.sum(recalls * (1.0 - recalls) / np.maximum(n, 1.0))) / max(n_kinds, 1)
        return bool(n_kinds > 1 and recalls.mean() - 1.0 / n_kinds <= 3.0 * error)

    @property
    def second_class(self) -> Any:
        """The second of two classes, which counts as positive."""
        if len(self.classes) != 2:
            raise ValueError(f"it requires two classes, and the model has {len(self.classes)}")
        return self.classes[1]

    @property
    def positive(self) -> Mask:
        """Whether the label is the second class."""
        return np.asarray(self.y == self.second_class)

    @property
    def chosen(self) -> Mask:
        """Whether the second class is predicted."""
        return np.asarray(self.predicted == self.second_class)

    def scores(
        self, method: str | Iterable[str] = ("decision_function", "predict_proba"), positive: Any = None
    ) -> Array:
        """Return the first of several responses that there is; of two classes, the score of the positive one."""
        methods = [method] if isinstance(method, str) else list(method)
        found = next((name for name in methods if self.has(name)), None)
        if found is None:
            raise TypeError(f"{self.name} has no {' and no '.join(methods)}, which the metric requires")
        if found == "predict":
            return self.predicted
        response = self.response(found)
        first = positive is not None and len(self.classes) == 2 and positive == self.classes[0]
        if found == "predict_proba" and response.shape[1] == 2:
            return response[:, 0 if first else 1]
        return -response if first and response.ndim == 1 else response


def _unknown_risk(_: Outputs) -> Floats:
    raise TypeError("metric 'risk' requires a model, but only predictions are known")


def row_losses(model: Any, X: Any, y: Any, loss: Any = "auto", *, offset: Any = None) -> Floats:
    """Return the loss of each row.

    Parameters
    ----------
    model : fitted estimator
        Any classifier or regressor with the scikit-learn interface.
    X, y : array-like
        Rows and labels.
    loss : {"auto", "log", "zero_one", "squared", "absolute"}, Loss or callable
        "auto" means the model's own loss for an estimator of this package, alone or inside pipelines and searches.
        Otherwise it is the log loss for classifiers with probabilities (cut off at machine epsilon), zero-one for other
        classifiers, the pinball loss for `pinball_loss` models, and half the squared residual for others. A `Loss`,
        such as ``Poisson()``, is that of the predictions of a regressor. A callable takes y and the predictions.
    offset : array-like, optional
        Offsets of the rows, if the model was fitted with them.

    Returns
    -------
    ndarray of shape (n_rows,)
        The losses.
    """
    return Outputs.of_model(model, X, y, loss=loss, offset=offset).risk
