"""A loss of a linear model over a domain, averaged within groups."""

from groupdro.problem.domains import Domain, L2Domain, SimplexDomain
from groupdro.problem.group_risk import GroupRisk
from groupdro.problem.losses import Huber, Logistic, Loss, ScalarLoss, Softmax, Squared, SquaredHinge
from groupdro.problem.records import Constants, Counters, Evaluation, References

__all__ = [
    "Constants",
    "Counters",
    "Domain",
    "Evaluation",
    "GroupRisk",
    "Huber",
    "L2Domain",
    "Logistic",
    "Loss",
    "References",
    "ScalarLoss",
    "SimplexDomain",
    "Softmax",
    "Squared",
    "SquaredHinge",
]
