"""The default estimator for a target."""

from typing import Any

import numpy as np
from sklearn.utils.multiclass import type_of_target

from groupdro.estimators.base import GroupDROEstimator
from groupdro.estimators.classifier import GroupDROClassifier
from groupdro.estimators.regressor import GroupDRORegressor
from groupdro.evaluation.folds import MOST_CLASSES
from groupdro.utils.arguments import error_prefix

__all__ = ["estimator_for"]


def estimator_for(y: Any) -> GroupDROEstimator:
    """Return a classifier if y is text, boolean or has at most ten distinct integers, otherwise a regressor."""
    with error_prefix("y"):
        labels = np.asarray(y)
        classes = type_of_target(labels) in ("binary", "multiclass")
        classes = classes and (labels.dtype.kind not in "iuf" or len(np.unique(labels)) <= MOST_CLASSES)
    return GroupDROClassifier() if classes else GroupDRORegressor()
