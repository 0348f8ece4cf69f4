"""What a report says of each group: averages over its rows of what was measured on every row."""

from typing import Any

import numpy as np
from sklearn.base import is_classifier

from groupdro.data.grouping import Grouping
from groupdro.evaluation.metrics import predictions_of, row_losses
from groupdro.utils.types import Array, Floats

__all__ = ["measure", "summarise"]

_BINS = 10  # of the expected calibration error


def measure(model: Any, X: Any, y: Array, loss: Any, offset: Any) -> dict[str, Floats]:
    """Return the loss of each row, and its correctness and confidence, or its residual."""
    out = {"risk": row_losses(model, X, y, loss, offset=offset)}
    predicted = predictions_of(model, "predict", X, offset)
    if is_classifier(model):
        out["right"] = (predicted == y).astype(np.float64)
        if hasattr(model, "predict_proba"):
            out["confidence"] = predictions_of(model, "predict_proba", X, offset).max(axis=1)
    else:
        out["residual"] = predicted - y.astype(np.float64)
    return out


def summarise(measured: dict[str, Floats], weights: Floats | None, grouping: Grouping) -> dict[str, Floats]:
    """Return the columns of a report that are averages over the rows of each group."""
    m, rows = len(grouping.names), grouping.members
    group = np.repeat(np.arange(m), grouping.sizes)
    each = np.ones(len(rows)) if weights is None else weights[rows]
    total = np.bincount(group, weights=each, minlength=m)

    def mean(values: Floats) -> Floats:
        return np.asarray(np.bincount(group, weights=each * values, minlength=m) / total)

    own = {key: values[rows] for key, values in measured.items()}
    out = {"risk": mean(own["risk"])}
    if "residual" in own:
        return out | {"rmse": np.sqrt(mean(np.square(own["residual"]))), "bias": mean(own["residual"])}
    out["accuracy"] = mean(own["right"])
    if "confidence" in own:
        sure, right = own["confidence"], own["right"]
        bins = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
        gaps = np.bincount(group * _BINS + bins, weights=each * (sure - right), minlength=m * _BINS)
        out |= {"overconfidence": mean(sure - right), "ece": np.abs(gaps).reshape(m, _BINS).sum(axis=1) / total}
    return out
