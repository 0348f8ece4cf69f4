"""Models whose rows are their predictions."""

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose rows are the probabilities of its classes."""

    def __init__(self, classes=(0, 1)):
        self.classes = classes

    @property
    def classes_(self):
        return np.asarray(self.classes)

    def fit(self, X, y):
        return self

    def predict(self, X):
        return self.classes_[np.asarray(X).argmax(axis=1)]

    def predict_proba(self, X):
        return np.asarray(X)


class GivenNumbers(RegressorMixin, BaseEstimator):
    """A regressor whose rows are its predictions."""

    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.asarray(X)[:, 0]
