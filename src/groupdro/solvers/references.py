"""Every group's own minimum, which turns risks into regrets: several groups are solved at a time."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import KW_ONLY, dataclass

import numpy as np

from groupdro.problem import Counters, GroupRisk, References
from groupdro.problem.attainment import is_separated, vanishes
from groupdro.problem.present_classes import with_present_classes
from groupdro.problem.row_space import fits_row_space, in_row_space
from groupdro.run.driver import solve
from groupdro.run.result import Result, Status
from groupdro.run.solver import Solver
from groupdro.run.stages import Budget, Preparation, Prepared
from groupdro.solvers.aleg import ALEG
from groupdro.solvers.sqp import GroupSQP
from groupdro.utils.threads import n_threads
from groupdro.utils.types import Floats

__all__ = ["GroupReferences"]

_GROUPS_AT_ONCE = 256  # that wait for a thread: after an interrupt each has to be taken back
_MOMENT = 0.2  # seconds


@dataclass(frozen=True)
class GroupReferences(Preparation):
    """Bound each group's own minimum by solving it alone; with a penalty, the minimum includes it.

    When the budget ends, the groups that are left keep rough bounds, which are valid too.

    Parameters
    ----------
    solver : Solver or None
        The solver of a group's problem; None is SQP, or ALEG where SQP does not know the domain.
    max_passes : float
        Passes over a group's own rows.
    share : float
        Certified gap at which a group's minimum is good enough, relative to the least gap that the run may ask for.
    finest : float
        The least such gap.
    absolute : bool
        Whether the run's absolute tolerance counts for it too.
    """

    solver: Solver | None = None
    _: KW_ONLY
    max_passes: float = 101.0
    share: float = 0.1
    finest: float = 1e-11  # below which rounding decides
    absolute: bool = True

    def run(self, problem: GroupRisk, budget: Budget, seed: int) -> Prepared:
        """Solve every group that this worker holds, then all together those that are divided."""
        # The regrets' gap is the sum of both stages' errors. How large the regrets are is not known yet, so this stage
        # takes a small share of the least gap that the tolerance may ask for.
        least = max(budget.tol**2, budget.atol) if self.absolute else budget.tol**2
        atol = max(self.share * least, self.finest)
        solver = self.solver or (GroupSQP() if problem.domain.ball is not None else ALEG())
        return _Search(self, problem, solver, budget, atol, seed).run()


class _Search:
    """One run of the preparation."""

    def __init__(
        self, about: GroupReferences, problem: GroupRisk, solver: Solver, budget: Budget, atol: float, seed: int
    ):
        self.problem, self.solver, self.budget = problem, solver, budget
        self.atol, self.max_passes, self.seed = atol, about.max_passes, seed
        start = problem.start()
        self.upper = problem.risks(start) + problem.domain.penalty_at(problem.coef(start))
        self.lower = np.zeros(problem.n_groups)  # losses and penalties are at least 0
        self.small = fits_row_space(problem, problem.data.all_sizes)
        self.near: Floats | None = None
        self.rough = False
        self.stop = threading.Event()

    def run(self) -> Prepared:
        problem, data = self.problem, self.problem.data
        pooled = self._pooled()
        best = None
        if pooled is not None:
            best, self.near = (pooled.w, problem.weight_set.start(problem.n_groups)), pooled.w
            if pooled.interrupted:
                return Prepared(References(self.upper, self.lower), best=best, interrupted=True, rough=True)
        # A worker solves the groups that it holds; those that are divided are solved by all together, one by one.
        here = data.whole_groups()
        held = here.astype(np.float64)
        data.add_up(held)
        interrupted, spent = self._solve_side_by_side(np.flatnonzero(here).tolist())
        bounds = data.largest(np.concatenate([-self.upper, self.lower, [float(self.rough)]]))
        self.upper, self.lower = -bounds[: problem.n_groups], bounds[problem.n_groups : -1]
        self.rough = bool(bounds[-1])
        problem.count_apart(spent)
        self.stop = threading.Event()  # a new one, because groups that nobody waits for have yet to see the old
        for i in np.flatnonzero(held == 0.0).tolist():
            self._bound(i, problem.group(i))
        references = References(self.upper, self.lower)
        return Prepared(references, best=best, interrupted=interrupted, rough=self.rough)

    def _pooled(self) -> Result | None:
        """Solve all rows together: most groups' own models are near that one."""
        if not isinstance(self.solver, GroupSQP) or self.problem.n_groups == 1 or self.small.all():
            return None
        most = min(self.max_passes, max(self.budget.passes_left(), 1e-3))
        seconds = max(self.budget.seconds_left(), 1e-3)
        return solve(self.problem.pooled(), self.solver, tol=1e-2, max_passes=most, max_time=seconds)

    def _solve_side_by_side(self, groups: list[int]) -> tuple[bool, list[Counters]]:
        """Bound groups in threads; return whether that was interrupted, and what was asked of the data."""
        spent: list[Counters] = []

        def bound(i: int) -> None:
            alone = self.problem.group(i).apart()
            spent.append(alone.counters)
            self._bound(i, alone)

        pool = ThreadPoolExecutor(max_workers=min(self.problem.n_groups, n_threads()))
        asked: list[Future[None]] = []
        interrupted = False
        try:
            for first in range(0, len(groups), _GROUPS_AT_ONCE):
                asked = [pool.submit(bound, i) for i in groups[first : first + _GROUPS_AT_ONCE]]
                for answer in asked:
                    answer.result()
        except KeyboardInterrupt:
            interrupted = self.rough = True
        finally:
            self.stop.set()
            # Groups under way end by themselves with their epoch. After an interrupt nobody waits longer than a moment.
            pool.shutdown(wait=not interrupted, cancel_futures=True)
            wait([answer for answer in asked if answer.running()], timeout=_MOMENT)
        return interrupted, spent

    def _bound(self, i: int, alone: GroupRisk) -> None:
        """Tighten the bounds of one group's minimum."""
        stop, seconds, passes = self.stop, self.budget.seconds_left(), self.budget.passes_left()
        if stop.is_set() or passes <= 0 or seconds <= 0:
            self.rough = True
            return
        if vanishes(alone):
            self.upper[i] = 0.0
            return
        alone, present = with_present_classes(alone)
        if self.small[i]:
            alone = in_row_space(alone)
        elif self.near is not None:
            alone = alone.starting_at(self.near[:, present] if present.size else self.near)
        # One that is interrupted here could be in any thread: only the main one gets Ctrl-C, and tells the others.
        found = solve(
            alone,
            self.solver,
            tol=0.0,
            atol=self.atol,
            max_passes=min(self.max_passes, passes),
            max_time=seconds,
            seed=self.seed,
            callbacks=[lambda _: stop.is_set()],
        )
        cut_short = found.status is Status.PASS_LIMIT and passes < self.max_passes
        if cut_short or found.status in (Status.TIME_LIMIT, Status.INTERRUPTED):
            self.rough = True
        if found.status is Status.NO_FINITE_MINIMISER and is_separated(alone, alone.evaluate(found.w, np.ones(1))):
            self.upper[i] = 0.0  # the losses fall to zero without end
        self.upper[i] = min(self.upper[i], found.upper_bound)
        self.lower[i] = max(self.lower[i], found.lower_bound)
