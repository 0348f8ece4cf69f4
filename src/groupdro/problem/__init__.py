"""The group-risk problem: the loss of a linear model over a domain, averaged within groups."""

from groupdro.problem.counting import Counters
from groupdro.problem.domains import Domain, ElasticNetDomain, L2Domain, SimplexDomain
from groupdro.problem.group_risk import GroupRisk
from groupdro.problem.losses import Huber, Logistic, Loss, ScalarLoss, Squared, SquaredHinge
from groupdro.problem.records import Constants, Evaluation, References
from groupdro.problem.softmax import Softmax
from groupdro.problem.weight_sets import Box, Cap, Floor, Simplex, WeightSet

__all__ = [
    "Box",
    "Cap",
    "Constants",
    "Counters",
    "Domain",
    "ElasticNetDomain",
    "Evaluation",
    "Floor",
    "GroupRisk",
    "Huber",
    "L2Domain",
    "Logistic",
    "Loss",
    "References",
    "ScalarLoss",
    "Simplex",
    "SimplexDomain",
    "Softmax",
    "Squared",
    "SquaredHinge",
    "WeightSet",
]
