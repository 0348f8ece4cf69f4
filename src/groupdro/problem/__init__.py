"""The group-risk problem: the loss of a linear model over a domain, averaged within groups."""

from groupdro.problem.domains import Domain, ElasticNetDomain, L2Domain, SimplexDomain
from groupdro.problem.glm_losses import Gamma, Poisson, Quantile, Tweedie
from groupdro.problem.group_minima import GroupMinima
from groupdro.problem.losses import Huber, Logistic, Loss, ScalarLoss, Squared, SquaredHinge
from groupdro.problem.problem import Constants, Problem
from groupdro.problem.softmax import Softmax
from groupdro.problem.weight_sets import Box, Cap, Floor, Simplex, WeightSet

__all__ = [
    "Box",
    "Cap",
    "Constants",
    "Domain",
    "ElasticNetDomain",
    "Floor",
    "Gamma",
    "GroupMinima",
    "Huber",
    "L2Domain",
    "Logistic",
    "Loss",
    "Poisson",
    "Problem",
    "Quantile",
    "ScalarLoss",
    "Simplex",
    "SimplexDomain",
    "Softmax",
    "Squared",
    "SquaredHinge",
    "Tweedie",
    "WeightSet",
]
