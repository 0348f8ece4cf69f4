"""Losses of a linear model's outputs, for `loss=` of the estimators and for `Problem`."""

from groupdro.problem.losses import Huber, Logistic, Loss, Squared, SquaredHinge
from groupdro.problem.softmax import Softmax

__all__ = ["Huber", "Logistic", "Loss", "Softmax", "Squared", "SquaredHinge"]
