"""Comparison of plain, balanced, robust and other models on held-out data: the gain and the price of robustness."""

from groupdro.compare.compare import compare
from groupdro.compare.comparison import Change, Comparison

__all__ = ["Change", "Comparison", "compare"]
