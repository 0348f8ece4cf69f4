"""ALEM: each group's own minimum, and ALEG on the regrets (Yu, Cai, Jiang, Zhang 2024, Algorithm 2)."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from groupdro.problem import GroupRisk
from groupdro.run.solver import Solver
from groupdro.run.stages import Preparation
from groupdro.solvers.auto import Auto
from groupdro.solvers.references import GroupReferences, RefinedReferences
from groupdro.utils.arguments import check_flag, check_kind, check_number

__all__ = ["ALEM"]


@dataclass(frozen=True)
class ALEM(Solver):
    """Minimise the worst group's regret, with every group's own minimum known as well as that needs.

    A few steps in each group alone, several groups at a time, give certified bounds lower_i <= R_i* <= upper_i, and the
    worst regret is minimised. Whenever the bounds are the larger part of the gap, groups whose regret may be the worst
    are solved further. The certificate uses both bounds, and holds for the true regrets however rough they are:

        gap = max_i (R_i(w) - lower_i) - (bound at q of sum_i q_i (R_i - upper_i)).

    With a `stage_one` of your own, each group is solved by it once, before the regrets, as in the paper.

    Parameters
    ----------
    stage_one : Solver, optional
        The solver of each group alone; by default SQP (ALEG on other domains), refined where the regrets depend on it.
    stage_two : Solver, optional
        The solver of the regrets; by default `Auto`. The paper's own are `ALEGTheory` for both.
    stage_one_passes : float
        Passes over each group's rows alone; S epochs with K = n_i are 2 S + 1.
    every_group : bool
        Whether the minima of groups whose regret is far from the worst are found to the tolerance too. The worst regret
        does not depend on them, but the regrets of these groups and their average do: the estimators ask for it.
    """

    name = "alem"
    minimises_regrets = True

    stage_one: Solver | None = None
    stage_two: Solver | None = None
    _: KW_ONLY
    stage_one_passes: float = 101.0
    every_group: bool = False

    def __post_init__(self) -> None:
        for name, stage in (("stage_one", self.stage_one), ("stage_two", self.stage_two)):
            check_kind(stage, name, Solver | None, "a Solver or None")
        check_flag(self.every_group, "every_group")
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
        return [*([] if problem.regret else [self._first]), *self._second.stages(problem, tol)]

    @property
    def _first(self) -> Preparation:
        if self.stage_one is None:
            return RefinedReferences(max_passes=self.stage_one_passes, every_group=self.every_group)
        return GroupReferences(self.stage_one, max_passes=self.stage_one_passes)

    def describe(self, problem: GroupRisk, tol: float) -> str:
        """Say what both stages run."""
        first = self.stage_one.describe(problem, tol) if self.stage_one is not None else "the default"
        return f"alem: {first} for each group, then {self._second.describe(problem, tol)}"
