"""ALEM: each group's own minimum, then ALEG on the excess risks (Yu, Cai, Jiang, Zhang 2024, Algorithm 2)."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import numpy as np

from groupdro.oracle import Oracle
from groupdro.problem import GroupMinima, Problem
from groupdro.run.run import Run
from groupdro.run.solver import Solver
from groupdro.run.stages import Budget, Preparation, Prepared, Stage
from groupdro.solvers.aleg_theory import ALEGTheory, mean_size
from groupdro.solvers.auto import Auto
from groupdro.solvers.minima_stages import MinimaAsNeeded, MinimaOnce
from groupdro.utils.arguments import check_choice, check_flag, check_kind, check_number, check_whole
from groupdro.utils.types import Floats

__all__ = ["ALEM", "MinimaOfAverages"]


@dataclass(frozen=True)
class ALEM(Solver):
    """Minimise the worst group's excess risk, finding each group's own minimum as accurately as needed.

    A few steps on each group alone, several groups at a time, give certified bounds lower_i <= R_i* <= upper_i. Then
    the worst excess risk is minimised. Whenever these bounds make up most of the gap, groups whose excess risk may be
    the worst are solved further. The certificate uses both bounds and holds for the true excess risks, however rough
    they are:

        gap = max_i (R_i(w) - lower_i) - (bound at q of sum_i q_i (R_i - upper_i)).

    If you pass `stage_one`, it solves each group once, before the excess risks, as in the paper. Algorithm 2 as
    published, with S epochs per group, is
    ``ALEM(ALEGTheory(), ALEGTheory(), stage_one_epochs=S)``; see :doc:`/from_the_paper`.

    Parameters
    ----------
    stage_one : Solver, optional
        Solver for each group alone. The default is SQP (ALEG on domains it does not support), refined where the excess
        risks depend on it.
    stage_two : Solver, optional
        Solver for the excess risks; by default `Auto`. The paper uses `ALEGTheory` for both stages.
    stage_one_passes : float, optional
        Most passes over each group's rows alone. The default is 101 for a given `stage_one`, and 1,000 otherwise, where
        they are made only as far as needed. Excess risks are over the best model of each group.
    stage_one_epochs : int, optional
        Epochs of a given `stage_one` on each group alone, instead of passes. Excess risks are then over each group's
        average iterate, as in Algorithm 2, and epochs of `ALEGTheory` without a length of their own are as long as
        groups are on average. The averages are in ``Result.group_minima.models``.
    stage_one_step : {"group", "theorem"}
        The step of `ALEGTheory` on each group alone in these epochs, at ``multiplier=1``. "group" is Lemma 4.3 with
        that group as the only one: its own smoothness L_i gives steps of w of 1 / (L_i sqrt(10 K)). "theorem" is
        Theorem 5.2 as printed, 1 / (L sqrt(5 K)) with the smoothness L of all rows, and needs a ball. The proof covers
        both. Groups of short rows advance faster with the first.
    every_group : bool
        Whether to find the minima of groups far from the worst to the tolerance too. The worst excess risk does not
        depend on them, but the excess risks of these groups and their average do. The estimators set this.
    """

    name = "alem"
    finds_minima = True

    stage_one: Solver | None = None
    stage_two: Solver | None = None
    _: KW_ONLY
    stage_one_passes: float | None = None
    stage_one_epochs: int | None = None
    stage_one_step: Literal["group", "theorem"] = "group"
    every_group: bool = False

    def __post_init__(self) -> None:
        check_choice(self.stage_one_step, "stage_one_step", ("group", "theorem"))
        for name, stage in (("stage_one", self.stage_one), ("stage_two", self.stage_two)):
            check_kind(stage, name, Solver | None, "a Solver or None")
        check_flag(self.every_group, "every_group")
        if self.stage_one_passes is not None:
            check_number(self.stage_one_passes, "stage_one_passes", positive=True, finite=False)
        if self.stage_one_epochs is not None:
            check_whole(self.stage_one_epochs, "stage_one_epochs", least=1)
            if self.stage_one is None or self.stage_one_passes is not None:
                raise ValueError("stage_one_epochs needs a stage_one, and no stage_one_passes.")
        if self.stage_one_step == "theorem" and not (isinstance(self.stage_one, ALEGTheory) and self.stage_one_epochs):
            raise ValueError("stage_one_step='theorem' needs ALEGTheory as stage_one, and stage_one_epochs.")

    @property
    def _second(self) -> Solver:
        return self.stage_two if self.stage_two is not None else Auto()

    def check(self, problem: Problem) -> None:
        """Raise if a problem lacks something that a stage requires, naming the stage's solver."""
        if self.stage_one is not None:
            self.stage_one.check(problem)
        if self.stage_one_epochs is not None and not problem.data.is_whole:
            raise ValueError("stage_one_epochs needs all rows in one process; use stage_one_passes.")
        if self.stage_one_step == "theorem" and not np.isfinite(problem.geometry().radius):
            raise ValueError("stage_one_step='theorem' needs a ball, from whose radius the step is derived.")
        self._second.check(problem)

    def stages(self, problem: Problem, tol: float) -> Sequence[Preparation | Stage | Solver]:
        """Bound every group's own minimum, unless they are given, then minimise the excess risks."""
        first = [self._first(problem)] if problem.group_minima is None else []
        return [*first, *self._second.stages(problem, tol)]

    def _first(self, problem: Problem) -> Preparation:
        limit = self.stage_one_passes
        if self.stage_one is None:
            return MinimaAsNeeded(max_passes=1000.0 if limit is None else limit, every_group=self.every_group)
        if self.stage_one_epochs is not None:
            solver = self.stage_one
            if isinstance(solver, ALEGTheory) and solver.epoch_length is None:
                solver = replace(solver, epoch_length=mean_size(problem))
            if isinstance(solver, ALEGTheory) and self.stage_one_step == "theorem":
                geometry = problem.geometry()
                L = problem.constants(geometry.dual_order, geometry.radius).smoothness
                # In the scaled norm, in which a step of w is eta times twice the squared diameter.
                solver = replace(solver, lipschitz=2.0 * geometry.squared_diameter * L)
            return MinimaOfAverages(solver, self.stage_one_epochs)
        return MinimaOnce(self.stage_one, max_passes=101.0 if limit is None else limit)

    def describe(self, problem: Problem, tol: float) -> str:
        """Describe both stages."""
        first = self.stage_one.describe(problem, tol) if self.stage_one is not None else "the default"
        return f"alem: {first} for each group, then {self._second.describe(problem, tol)}"


@dataclass(frozen=True)
class MinimaOfAverages(Preparation):
    """Run a number of epochs on each group alone, and take the risk of its average for its minimum, as in Algorithm 2.

    The average, over which the excess risks are taken, is not the best model that the epochs have met. Solvers without
    one return their best model.

    Parameters
    ----------
    solver : Solver
        Solver for a group's problem.
    epochs : int
        Epochs on each group.
    """

    solver: Solver
    epochs: int

    def run(self, oracle: Oracle, w: Floats, q: Floats, budget: Budget, seed: int) -> Prepared:
        """Return the bounds of the averages, and the averages as the groups' models."""
        del q
        problem = oracle.problem
        m = problem.n_groups
        upper, lower = np.empty(m), np.zeros(m)
        models = np.repeat(w[None], m, axis=0)
        interrupted = rough = False
        for i in range(m):
            left = budget.passes_left(), budget.seconds_left()
            if interrupted or min(left) <= 0:
                upper[i:] = (oracle.risks(w) + problem.domain.penalty_at(problem.coef(w)))[i:]
                rough = True
                break
            run = Run.of(
                problem.group(i),
                self.solver,
                atol=0.0,
                max_passes=left[0] * problem.n_rows / problem.data.all_sizes[i],
                max_time=left[1],
                callbacks=(lambda progress: progress.latest.epoch >= self.epochs,),
                seed=seed,
            )
            found = run()
            oracle.count_together(found.counters)
            interrupted = found.interrupted
            lower[i], upper[i], models[i] = found.lower_bound, found.upper_bound, found.w
            if found.average is not None:
                upper[i], models[i] = found.average.upper, found.average.w
                oracle.counters.add(run.problem.n_rows, gradients=0)  # the pass at the average
        return Prepared(GroupMinima(upper, lower, models=models), interrupted=interrupted, rough=rough or interrupted)
