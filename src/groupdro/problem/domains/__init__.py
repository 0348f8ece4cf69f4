"""Domains: the feasible sets of w."""

from groupdro.problem.domains.domain import Domain, Separable, penalty_room
from groupdro.problem.domains.elastic_net import ElasticNetDomain
from groupdro.problem.domains.l2 import L2Domain
from groupdro.problem.domains.simplex import SimplexDomain

__all__ = ["Domain", "ElasticNetDomain", "L2Domain", "Separable", "SimplexDomain", "penalty_room"]
