"""Weight sets: the feasible weights of the groups, which determine what `Problem` minimises."""

from groupdro.problem.weight_sets import Box, Cap, Floor, Simplex, WeightSet

__all__ = ["Box", "Cap", "Floor", "Simplex", "WeightSet"]
