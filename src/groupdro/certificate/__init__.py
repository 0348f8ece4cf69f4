"""Bounds and gaps from what a pass over the data already computed."""

from groupdro.certificate.certificate import Certificate, Cut, CutAggregate, balance, linearise

__all__ = ["Certificate", "Cut", "CutAggregate", "balance", "linearise"]
