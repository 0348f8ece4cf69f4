"""Losses of a linear model's outputs, for `loss=` of the estimators and for `Problem`."""

from groupdro.problem.glm_losses import Gamma, Poisson, Quantile, Tweedie
from groupdro.problem.losses import Huber, Logistic, Loss, Squared, SquaredHinge
from groupdro.problem.softmax import Softmax

__all__ = [
    "Gamma",
    "Huber",
    "Logistic",
    "Loss",
    "Poisson",
    "Quantile",
    "Softmax",
    "Squared",
    "SquaredHinge",
    "Tweedie",
]
