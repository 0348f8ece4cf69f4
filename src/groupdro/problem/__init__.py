"""The group-risk problem: the loss of a linear model over a domain, averaged within groups."""

from groupdro.problem.domains import Domain, ElasticNetDomain, L2Domain, SimplexDomain
from groupdro.problem.group_minima import GroupMinima
from groupdro.problem.problem import Constants, Problem
from groupdro.problem.weight_sets import Box, Cap, Floor, Simplex, WeightSet

__all__ = [
    "Box",
    "Cap",
    "Constants",
    "Domain",
    "ElasticNetDomain",
    "Floor",
    "GroupMinima",
    "L2Domain",
    "Problem",
    "Simplex",
    "SimplexDomain",
    "WeightSet",
]
