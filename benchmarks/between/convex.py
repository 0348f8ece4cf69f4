"""Average and worst of small problems stated for CVXPY and solved by Clarabel, which share no code with ours."""

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from tests.reference import convex

import groupdro as gd


class BetweenProgram:
    """Average and worst value of a problem with the penalty, as expressions of one w."""

    def __init__(self, problem: gd.Problem):
        self.w = cp.Variable(problem.shape)
        losses = convex._losses(problem, self.w)
        self.domain, self.penalty = convex._constraints_and_penalty(problem, self.w)
        self.risks = convex.membership_matrix(problem) @ losses
        self.mean = cp.sum(losses) / problem.n_rows + self.penalty
        self.worst = cp.max(self.risks) + self.penalty

    def least(self, objective: Any, constraints: Sequence[Any] = ()) -> float:
        """Return the least value, NaN where Clarabel does not vouch for it."""
        program = cp.Problem(cp.Minimize(objective), [*constraints, *self.domain])
        return float(program.value) if convex.solve_convex(program) else np.nan
