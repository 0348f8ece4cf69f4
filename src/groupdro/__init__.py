"""Models that hold up on their worst group, with a proof of how close to the best possible they are."""

from groupdro import certificate, datasets
from groupdro.data import GroupedData
from groupdro.estimators import GroupDROClassifier, GroupDRORegressor, MissingGroupsWarning, SmallGroupWarning
from groupdro.problem import (
    GroupRisk,
    Huber,
    L2Domain,
    Logistic,
    SimplexDomain,
    Softmax,
    Squared,
    SquaredHinge,
)
from groupdro.solvers import ALEG, ALEM, ALEGTheory, Auto, GroupSQP, Quadratic, Result, Solver, Status, solve

__version__ = "0.1.0.dev0"

__all__ = [
    "ALEG",
    "ALEM",
    "ALEGTheory",
    "Auto",
    "GroupDROClassifier",
    "GroupDRORegressor",
    "GroupRisk",
    "GroupSQP",
    "GroupedData",
    "Huber",
    "L2Domain",
    "Logistic",
    "MissingGroupsWarning",
    "Quadratic",
    "Result",
    "SimplexDomain",
    "SmallGroupWarning",
    "Softmax",
    "Solver",
    "Squared",
    "SquaredHinge",
    "Status",
    "certificate",
    "datasets",
    "solve",
]
