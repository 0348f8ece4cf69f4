"""Sets of group weights: the feasible sets of q."""

from groupdro.problem.weight_sets.bounded import Box, Cap, Floor
from groupdro.problem.weight_sets.moving import Moving
from groupdro.problem.weight_sets.simplex import Simplex
from groupdro.problem.weight_sets.weight_set import WeightSet

__all__ = ["Box", "Cap", "Floor", "Moving", "Simplex", "WeightSet"]
