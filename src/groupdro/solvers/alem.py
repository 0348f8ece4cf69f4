"""ALEM: each group's own minimum first, then ALEG on the regrets (Yu, Cai, Jiang, Zhang 2024, Algorithm 2)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from groupdro.problem import GroupRisk, References
from groupdro.solvers.aleg_theory import ALEGTheory
from groupdro.solvers.base import Requirement, Run, Solver
from groupdro.solvers.driver import solve
from groupdro.solvers.result import Status

__all__ = ["ALEM", "group_references"]

Floats = NDArray[np.float64]


def group_references(
    problem: GroupRisk, solver: Solver, run: Run, *, atol: float, max_passes: float, seed: int
) -> References:
    """Bound each group's own minimum by solving it alone.

    Parameters
    ----------
    problem : GroupRisk
        The problem of all groups; with a penalty, a group's own minimum includes it.
    solver : Solver
        The solver of a group's problem.
    run : Run
        The budget. When it ends, the groups that are left keep rough bounds, which are valid too.
    atol : float
        Certified gap at which a group's minimum is good enough.
    max_passes : float
        Passes over a group's own rows.
    seed : int
        Seed of all random numbers.

    Returns
    -------
    references : References
        Certified bounds of every group's minimum.
    """
    start = problem.start()
    upper = problem.risks(start) + problem.domain.penalty_at(problem.coef(start))
    lower = np.zeros(problem.n_groups)  # losses and penalties are at least 0
    try:
        for i in range(problem.n_groups):
            alone, seconds = problem.group(i), run.seconds_left()
            if run.passes_left() <= 0 or seconds <= 0:
                break
            if alone.vanishes():
                upper[i] = 0.0
                continue
            found = solve(alone, solver, tol=0.0, atol=atol, max_passes=max_passes, max_time=seconds, seed=seed)
            upper[i] = min(upper[i], found.upper_bound)
            lower[i] = max(lower[i], found.lower_bound)
            if found.status is Status.INTERRUPTED:
                run.interrupted = True
                break
    except KeyboardInterrupt:
        run.interrupted = True
    return References(upper, lower)


class ALEM(Solver):
    """Minimise the worst group's regret in two stages.

    Stage one runs ALEG on each group alone and keeps certified bounds of its minimum R_i*; the upper one is the best
    risk seen, which is at most that of the paper's average. Stage two runs ALEG on the regrets against the upper
    bounds. The certificate uses both bounds, so that it holds for the true regrets however rough stage one was:

        gap = max_i (R_i(w) - lower_i) - (bound at q of sum_i q_i (R_i - upper_i)).

    Parameters
    ----------
    stage_one, stage_two : Solver, optional
        The solver of each stage; by default ALEG with the theorem's parameters.
    stage_one_passes : float
        Passes over each group's rows in stage one; S epochs with K = n_i are 2 S + 1.
    """

    name = "alem"

    def __init__(
        self,
        stage_one: Solver | None = None,
        stage_two: Solver | None = None,
        *,
        stage_one_passes: float = 101.0,
    ):
        self.stage_one = stage_one if stage_one is not None else ALEGTheory()
        self.stage_two = stage_two if stage_two is not None else ALEGTheory()
        self.stage_one_passes = stage_one_passes

    @property
    def requires(self) -> tuple[Requirement, ...]:
        """What both stages need."""
        return tuple(dict.fromkeys(self.stage_one.requires + self.stage_two.requires))

    def prepare(self, problem: GroupRisk, run: Run, seed: int) -> GroupRisk:
        """Stage one: bound every group's own minimum."""
        # The regrets' gap is the sum of both stages' errors. How large the regrets are is not known yet, so stage one
        # takes a small share of the least gap that the tolerance may ask for.
        references = group_references(
            problem,
            self.stage_one,
            run,
            atol=0.1 * max(run.tol**2, run.atol),
            max_passes=self.stage_one_passes,
            seed=seed,
        )
        return problem.with_references(references)

    def init(self, problem: GroupRisk, seed: int) -> Any:
        """Stage two begins."""
        return self.stage_two.init(problem, seed)

    def epoch(self, problem: GroupRisk, state: Any) -> None:
        """Advance stage two."""
        self.stage_two.epoch(problem, state)

    def average(self, state: Any) -> tuple[Floats, Floats] | None:
        """Return stage two's average."""
        return self.stage_two.average(state)
