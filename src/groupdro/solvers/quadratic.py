"""Squared loss: each group is compressed by QR to as many rows as there are columns, and solved in that form."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from groupdro.problem import GroupRisk, Squared
from groupdro.problem.compressed import compress
from groupdro.run.driver import solve
from groupdro.run.result import Status
from groupdro.run.solver import Requirement, Solver
from groupdro.run.stages import Budget, Preparation, Prepared
from groupdro.solvers.sqp import GroupSQP

__all__ = ["Quadratic"]

SQUARED_LOSS = Requirement(
    what="the squared loss on dense rows of one machine without a free intercept",
    holds=lambda p: isinstance(p.loss, Squared) and p.data.rows.combinable and not p.fit_intercept and p.data.is_whole,
    remedy="use solver='sqp', which supports every loss",
)


@dataclass(frozen=True)
class _Compression(Preparation):
    """Solve the compressed problem, whose passes are very cheap, and start from its solution."""

    sqp: GroupSQP

    def run(self, problem: GroupRisk, budget: Budget, seed: int) -> Prepared:
        """Compress in one pass, and solve."""
        small = compress(problem)
        seconds = max(budget.seconds_left(), 1e-3)
        found = solve(small, self.sqp, tol=0.1 * budget.tol, atol=0.1 * budget.atol, max_time=seconds, seed=seed)
        rough = found.interrupted or found.status is Status.TIME_LIMIT
        return Prepared(start=(found.w, found.q), interrupted=found.interrupted, rough=rough)


@dataclass(frozen=True)
class Quadratic(Solver):
    """Exact solver of the squared loss for modest numbers of features.

    The groups are compressed by QR in one pass. SQP solves the small problem, whose passes are very cheap. One more
    pass over the data certifies the solution. If rounding has cost too much accuracy, SQP continues from there on the
    original data.

    Parameters
    ----------
    hessian, memory : str, int
        As in `GroupSQP`.
    """

    name = "quadratic"

    hessian: Literal["auto", "newton", "lbfgs"] = "auto"
    _: KW_ONLY
    memory: int = 20

    def __post_init__(self) -> None:
        self._sqp()  # checks the parameters

    def _sqp(self) -> GroupSQP:
        return GroupSQP(self.hessian, memory=self.memory)

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """The squared loss on dense rows, and the requirements of SQP."""
        return (*self._sqp().requires, SQUARED_LOSS)

    def stages(self, problem: GroupRisk, tol: float) -> Sequence[Preparation | Solver]:
        """Compress, then certify on the data."""
        del problem, tol
        return (_Compression(self._sqp()), self._sqp())
