"""ERMEG: exponentiated gradient on the group weights with a weighted ERM oracle (Agarwal and Zhang 2022, section 6)."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np

from benchmarks.paper.methods.requirements import BALL
from groupdro.oracle import Oracle
from groupdro.problem import Problem
from groupdro.run.driver import solve
from groupdro.run.solver import SIMPLEX, Requirement, Solver, State
from groupdro.run.stages import Preparation
from groupdro.solvers.minima_stages import MinimaOnce
from groupdro.solvers.sqp import GroupSQP
from groupdro.solvers.step_sizes import check_multiplier
from groupdro.utils.arguments import check_number
from groupdro.utils.types import Floats

__all__ = ["ERMEG", "ErmegState"]

_ORACLE = GroupSQP("lbfgs")
_FINEST = 1e-8  # width of the bounds on a group's minimum that is always good enough


@dataclass
class ErmegState(State):
    """State of ERMEG: the weights in logits, and the sum of the oracle's models."""

    logits: Floats
    w_total: Floats
    calls: int


@dataclass(frozen=True)
class ERMEG(Solver):
    """Exponentiated gradient on the group weights, with best responses of w from an oracle.

    Before the first epoch, the oracle finds every group's own minimum. An epoch calls it once for the minimiser of the
    weighted risk, makes a pass there, and multiplies each weight by exp(step * excess risk). The step decreases as
    multiplier * sqrt(ln m / t) / B, with B the largest excess risk at that time. The output is the best single model,
    which is at least as good as the mixture of the theory; the mean of all models is certified at the end.

    Parameters
    ----------
    multiplier : float
        Factor of the step size; 1 is the theoretical value.
    oracle_tol : float
        Relative certified gap at which an oracle's answer is good enough.
    oracle : Solver
        Solver of the weighted risk.
    """

    name = "ermeg"
    finds_minima = True

    multiplier: float = 1.0
    _: KW_ONLY
    oracle_tol: float = 1e-3
    oracle: Solver = _ORACLE

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier)
        check_number(self.oracle_tol, "oracle_tol", positive=True)

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """The oracle's requirements, and the whole simplex."""
        return (BALL, SIMPLEX)

    def stages(self, problem: Problem, tol: float) -> Sequence[Preparation | Solver]:
        """Find every group's own minimum, unless the minima are given, then call the oracle."""
        first = MinimaOnce(GroupSQP("lbfgs"), max_passes=1000.0, width=max(0.1 * tol**2, _FINEST))
        return [self] if problem.group_minima is not None else [first, self]

    def init(self, oracle: Oracle, w: Floats, q: Floats, seed: int) -> ErmegState:
        """Evaluate the start."""
        entropy = oracle.problem.weight_geometry()
        at = oracle.evaluate(w, entropy.interior(q))
        return ErmegState(at, entropy.mirror(at.q), np.zeros_like(w), 0)

    def epoch(self, oracle: Oracle, state: ErmegState) -> None:
        """Call the ERM oracle for the current weights, and update them by the excess risks of its model."""
        problem = oracle.problem
        entropy = problem.weight_geometry()
        q = entropy.point(state.logits)
        weighted = problem.weighted(q)
        found = solve(weighted, self.oracle, w=state.evaluation.w, tol=self.oracle_tol, max_passes=500.0)
        oracle.counters.add_counts(found.counters.counts)
        if found.interrupted:
            raise KeyboardInterrupt  # it ended only the oracle's run
        w = found.w
        state.evaluation = oracle.evaluate(w, q)
        state.w_total += w
        state.calls += 1
        regrets = problem.group_values(state.evaluation.group_risks)
        size = max(float(np.abs(regrets).max()), 1e-300)
        step = self.multiplier * float(np.sqrt(np.log(problem.n_groups) / state.calls)) / size
        state.logits = entropy.step(state.logits, step, -regrets)

    def average(self, state: ErmegState) -> tuple[Floats, Floats] | None:
        """Return the mean of the oracle's models, with the current weights."""
        if not state.calls:
            return None
        return state.w_total / state.calls, state.evaluation.q
