"""Bounds and gaps, computed from the results of passes over the data."""

from groupdro.certificate.certificate import LEAST_GAP, Certificate, Cut, CutAggregate, balance, linearise

__all__ = ["LEAST_GAP", "Certificate", "Cut", "CutAggregate", "balance", "linearise"]
