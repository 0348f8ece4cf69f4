"""ALEM: each group's own minimum first, then ALEG on the regrets (Yu, Cai, Jiang, Zhang 2024, Algorithm 2)."""

import copy
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from groupdro.problem import Counters, GroupRisk, L2Domain, References
from groupdro.problem.present_classes import with_present_classes
from groupdro.problem.row_space import fits_row_space, in_row_space
from groupdro.run.driver import solve
from groupdro.run.packing import Arrays
from groupdro.run.result import Result, Status
from groupdro.run.solver import Run, Solver
from groupdro.solvers.aleg import ALEG
from groupdro.solvers.auto import Auto
from groupdro.solvers.sqp import GroupSQP
from groupdro.utils.arguments import check_kind, check_number
from groupdro.utils.threads import n_threads
from groupdro.utils.types import Floats

__all__ = ["ALEM", "group_references"]


_GROUPS_AT_ONCE = 256  # that wait for a thread: after an interrupt each has to be taken back
_MOMENT = 0.2  # seconds
_FINEST = 1e-11  # certified gap of a group's minimum below which rounding decides


def group_references(
    problem: GroupRisk, solver: Solver | None, run: Run, *, atol: float, max_passes: float, seed: int
) -> References:
    """Bound each group's own minimum by solving it alone.

    Parameters
    ----------
    problem : GroupRisk
        The problem of all groups; with a penalty, a group's own minimum includes it.
    solver : Solver or None
        The solver of a group's problem; None is SQP, or ALEG on the simplex.
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
    stop = threading.Event()
    if solver is None:
        solver = GroupSQP() if isinstance(problem.domain, L2Domain) else ALEG()
    small = fits_row_space(problem, problem.data.all_sizes)
    near: Floats | None = None
    if isinstance(solver, GroupSQP) and problem.n_groups > 1 and not small.all():
        # Most groups' own models are near the one of all rows together.
        most = min(max_passes, max(run.passes_left(), 1e-3))
        pooled = solve(problem.pooled(), solver, tol=1e-2, max_passes=most, max_time=max(run.seconds_left(), 1e-3))
        run.best = pooled.w, np.full(problem.n_groups, 1.0 / problem.n_groups)
        if pooled.interrupted:
            run.interrupted = run.rough = True
            return References(upper, lower)
        near = pooled.w

    def bound(i: int) -> tuple[int, Result | None, Counters]:
        alone, seconds, passes, stopped = problem.group(i), run.seconds_left(), run.passes_left(), stop
        # Counters of its own: the groups are solved side by side.
        alone.counters = Counters()
        if stopped.is_set() or passes <= 0 or seconds <= 0:
            run.rough = True
            return i, None, alone.counters
        if alone.vanishes():
            upper[i] = 0.0
            return i, None, alone.counters
        alone, present = with_present_classes(alone)
        own = copy.deepcopy(solver)  # some keep what they chose, and groups are solved side by side
        if small[i]:
            alone = in_row_space(alone)
        elif near is not None:
            alone = alone.starting_at(near[:, present] if present.size else near)
        # One that is interrupted here could be in any thread: only the main one gets Ctrl-C, and tells the others.
        found = solve(
            alone,
            own,
            tol=0.0,
            atol=atol,
            max_passes=min(max_passes, passes),
            max_time=seconds,
            seed=seed,
            callbacks=[lambda _: stopped.is_set()],
        )
        cut_short = found.status is Status.PASS_LIMIT and passes < max_passes
        if cut_short or found.status in (Status.TIME_LIMIT, Status.INTERRUPTED):
            run.rough = True
        if found.status is Status.NO_FINITE_MINIMISER and alone.separated(alone.evaluate(found.w, np.ones(1))):
            upper[i] = 0.0  # the losses fall to zero without end
        return i, found, alone.counters

    spent = Counters()

    def keep(i: int, found: Result | None, counters: Counters) -> None:
        spent.merge(counters)
        if found is not None:
            upper[i] = min(upper[i], found.upper_bound)
            lower[i] = max(lower[i], found.lower_bound)

    # A worker solves the groups that it holds; those that are divided are solved by all together, one after another.
    here, data = problem.data.whole_groups(), problem.data
    held = here.astype(np.float64)
    data.add_up(held)
    pool = ThreadPoolExecutor(max_workers=min(problem.n_groups, n_threads()))
    asked: list[Future[tuple[int, Result | None, Counters]]] = []
    try:
        own = np.flatnonzero(here).tolist()
        for first in range(0, len(own), _GROUPS_AT_ONCE):
            asked = [pool.submit(bound, i) for i in own[first : first + _GROUPS_AT_ONCE]]
            for answer in asked:
                keep(*answer.result())
    except KeyboardInterrupt:
        run.interrupted = run.rough = True
    finally:
        stop.set()
        # Groups under way end by themselves with their epoch. After an interrupt nobody waits longer than a moment.
        pool.shutdown(wait=not run.interrupted, cancel_futures=True)
        wait([answer for answer in asked if answer.running()], timeout=_MOMENT)
    bounds = data.largest(np.concatenate([-upper, lower, [float(run.rough)]]))
    upper, lower = -bounds[: len(upper)], bounds[len(upper) : -1]
    run.rough = bool(bounds[-1])
    counts = np.array([spent.grad_evals, spent.grad_evals_paper, spent.row_reads], dtype=np.float64)
    data.add_up(counts)
    problem.counters.add(**dict(zip(("grad_evals", "grad_evals_paper", "row_reads"), map(int, counts), strict=True)))
    spent = Counters()
    stop = threading.Event()  # a new one, because groups that nobody waits for have yet to see the old
    for i in np.flatnonzero(held == 0.0).tolist():
        keep(*bound(i))
    problem.counters.merge(spent)
    return References(upper, lower)


class ALEM(Solver):
    """Minimise the worst group's regret in two stages.

    Stage one solves each group alone, several at a time, and keeps certified bounds of its minimum R_i*; the upper one
    is the best risk seen, which is at most that of the paper's average. Stage two minimises the worst regret against
    the upper bounds. The certificate uses both bounds, and holds for the true regrets however rough stage one was:

        gap = max_i (R_i(w) - lower_i) - (bound at q of sum_i q_i (R_i - upper_i)).

    Parameters
    ----------
    stage_one, stage_two : Solver, optional
        The solver of each stage; by default SQP for the groups alone (ALEG on the simplex), then `Auto` for regrets.
        The paper's own are `ALEGTheory` for both.
    stage_one_passes : float
        Passes over each group's rows in stage one; S epochs with K = n_i are 2 S + 1.
    """

    name = "alem"
    minimises_regrets = True

    def __init__(
        self,
        stage_one: Solver | None = None,
        stage_two: Solver | None = None,
        *,
        stage_one_passes: float = 101.0,
    ):
        for name, stage in (("stage_one", stage_one), ("stage_two", stage_two)):
            check_kind(stage, name, Solver | None, "a Solver or None")
        check_number(stage_one_passes, "stage_one_passes", positive=True, finite=False)
        self.stage_one = stage_one
        self.stage_two = stage_two if stage_two is not None else Auto()
        self.stage_one_passes = stage_one_passes

    def check(self, problem: GroupRisk) -> None:
        """Refuse a problem that lacks something a stage needs, naming the stage's solver."""
        for stage in (self.stage_one, self.stage_two):
            if stage is not None:
                stage.check(problem)

    def prepare(self, problem: GroupRisk, run: Run, seed: int) -> GroupRisk:
        """Stage one: bound every group's own minimum, unless references are given."""
        if problem.regret:
            return self.stage_two.prepare(problem, run, seed)
        # The regrets' gap is the sum of both stages' errors. How large the regrets are is not known yet, so stage one
        # takes a small share of the least gap that the tolerance may ask for.
        references = group_references(
            problem,
            self.stage_one,
            run,
            atol=max(0.1 * max(run.tol**2, run.atol), _FINEST),
            max_passes=self.stage_one_passes,
            seed=seed,
        )
        regrets = problem.with_references(references)
        return regrets if run.interrupted else self.stage_two.prepare(regrets, run, seed)

    def prepared(self) -> dict[str, Any]:
        """Return what stage two prepared; the references are the problem's."""
        return self.stage_two.prepared()

    def resume(self, problem: GroupRisk, run: Run, prepared: dict[str, Any]) -> GroupRisk:
        """Take stage one's references from the checkpoint."""
        return self.stage_two.resume(super().resume(problem, run, prepared), run, {**prepared, "references": None})

    def load(self, problem: GroupRisk, seed: int, packed: Any, arrays: Arrays) -> Any:
        """Load stage two."""
        return self.stage_two.load(problem, seed, packed, arrays)

    def init(self, problem: GroupRisk, seed: int) -> Any:
        """Stage two begins."""
        return self.stage_two.init(problem, seed)

    def epoch(self, problem: GroupRisk, state: Any) -> None:
        """Advance stage two."""
        self.stage_two.epoch(problem, state)

    def describe(self) -> str:
        """Say what both stages ran."""
        first = self.stage_one.describe() if self.stage_one is not None else "the default"
        return f"alem: {first} for each group, then {self.stage_two.describe()}"

    def point(self, state: Any) -> tuple[Floats, Floats] | None:
        """Return what stage two wants evaluated."""
        return self.stage_two.point(state)

    def average(self, state: Any) -> tuple[Floats, Floats] | None:
        """Return stage two's average."""
        return self.stage_two.average(state)
