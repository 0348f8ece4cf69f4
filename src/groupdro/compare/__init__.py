"""The price of robustness: plain, balanced, robust and any other models side by side on held-out rows."""

from groupdro.compare.compare import compare
from groupdro.compare.comparison import Change, Comparison

__all__ = ["Change", "Comparison", "compare"]
