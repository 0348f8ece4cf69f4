"""Bounds and gaps, computed from the results of passes over the data."""

from groupdro.certificate.certificate import Certificate, Cut, CutAggregate, balance, linearise

__all__ = ["Certificate", "Cut", "CutAggregate", "balance", "linearise"]
