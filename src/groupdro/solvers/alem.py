"""ALEM: each group's own minimum first, then ALEG on the regrets (Yu, Cai, Jiang, Zhang 2024, Algorithm 2)."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from groupdro.problem import GroupRisk
from groupdro.run.solver import Solver
from groupdro.run.stages import Preparation
from groupdro.solvers.auto import Auto
from groupdro.solvers.references import GroupReferences
from groupdro.utils.arguments import check_kind, check_number

__all__ = ["ALEM"]


@dataclass(frozen=True)
class ALEM(Solver):
    """Minimise the worst group's regret in two stages.

    Stage one solves each group alone, several at a time, and keeps certified bounds of its minimum R_i*; the upper one
    is the best risk seen, which is at most that of the paper's average. Stage two minimises the worst regret against
    the upper bounds. The certificate uses both bounds, and holds for the true regrets however rough stage one was:

        gap = max_i (R_i(w) - lower_i) - (bound at q of sum_i q_i (R_i - upper_i)).

    Parameters
    ----------
    stage_one, stage_two : Solver, optional
        The solver of each stage; by default SQP for the groups alone (ALEG on other domains), then `Auto` for regrets.
        The paper's own are `ALEGTheory` for both.
    stage_one_passes : float
        Passes over each group's rows in stage one; S epochs with K = n_i are 2 S + 1.
    """

    name = "alem"
    minimises_regrets = True

    stage_one: Solver | None = None
    stage_two: Solver | None = None
    _: KW_ONLY
    stage_one_passes: float = 101.0

    def __post_init__(self) -> None:
        for name, stage in (("stage_one", self.stage_one), ("stage_two", self.stage_two)):
            check_kind(stage, name, Solver | None, "a Solver or None")
        check_number(self.stage_one_passes, "stage_one_passes", positive=True, finite=False)

    @property
    def _second(self) -> Solver:
        return self.stage_two if self.stage_two is not None else Auto()

    def check(self, problem: GroupRisk) -> None:
        """Refuse a problem that lacks something a stage needs, naming the stage's solver."""
        if self.stage_one is not None:
            self.stage_one.check(problem)
        self._second.check(problem)

    def stages(self, problem: GroupRisk, tol: float) -> Sequence[Preparation | Solver]:
        """Bound every group's own minimum, unless references are given, and minimise the regrets."""
        first = [] if problem.regret else [GroupReferences(self.stage_one, max_passes=self.stage_one_passes)]
        return [*first, *self._second.stages(problem, tol)]

    def describe(self, problem: GroupRisk, tol: float) -> str:
        """Say what both stages run."""
        first = self.stage_one.describe(problem, tol) if self.stage_one is not None else "the default"
        return f"alem: {first} for each group, then {self._second.describe(problem, tol)}"
