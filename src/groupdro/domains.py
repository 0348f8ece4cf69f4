"""Domains: feasible sets of the coefficients and their penalties, for `domain=` of the estimators and `Problem`."""

from groupdro.problem.domains import Domain, ElasticNetDomain, L2Domain, SimplexDomain

__all__ = ["Domain", "ElasticNetDomain", "L2Domain", "SimplexDomain"]
