"""Sets of group weights: the sets of the player q."""

from groupdro.problem.weight_sets.floor import Floor
from groupdro.problem.weight_sets.simplex import Simplex
from groupdro.problem.weight_sets.weight_set import WeightSet

__all__ = ["Floor", "Simplex", "WeightSet"]
