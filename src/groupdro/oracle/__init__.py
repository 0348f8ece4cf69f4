"""How a problem is evaluated: passes and samples, counted in one place."""

from groupdro.oracle.counters import Counters
from groupdro.oracle.evaluation import Evaluation
from groupdro.oracle.oracle import Oracle

__all__ = ["Counters", "Evaluation", "Oracle"]
