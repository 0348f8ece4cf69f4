"""Bounds on every group's own minimum, tightened group by group, with several groups solved at a time."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

from groupdro.oracle import Counters, Oracle
from groupdro.problem import GroupMinima, Problem
from groupdro.problem.attainment import is_separated, vanishes
from groupdro.problem.present_classes import with_present_classes
from groupdro.problem.row_space import fits_row_space, in_row_space
from groupdro.run.result import Result, Status
from groupdro.run.run import Run
from groupdro.run.solver import Solver
from groupdro.run.stages import Budget
from groupdro.solvers.sqp import GroupSQP
from groupdro.utils.threads import n_threads
from groupdro.utils.types import Floats, Mask

__all__ = ["MinimaSearch", "group_sqp"]

_GROUPS_AT_ONCE = 256  # submitted to threads at once: after an interrupt each must be cancelled
_MOMENT = 0.2  # seconds
_MOST_KEPT = 1e8  # largest number of values kept of all groups' runs between two calls
_HESSIAN_SIZE = 600  # parameters up to which SQP stores a Hessian
_MOST_PAIRS = 20  # of a group's L-BFGS matrix
_FEWEST_PAIRS = 4


class MinimaSearch:
    """Bounds ``lower <= min_w R_i(w) + penalty(w) <= upper`` of every group i.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the problem of risks.
    solver : Solver
        The solver of a group's problem.
    upper : ndarray of shape (n_groups,)
        Initial upper bounds: risks plus penalty of any model.
    max_passes : float
        Passes over a group's own rows after which its bounds are no longer tightened.
    near : ndarray or None
        A model from which every group starts; zero by default.
    keep : bool
        Whether tightening a group again continues from its last state.
    seed : int
        Seed of the groups' runs.

    Attributes
    ----------
    lower, upper : ndarray of shape (n_groups,)
        The bounds.
    closed : ndarray of shape (n_groups,)
        Which groups no further step can improve.
    rough : bool
        Whether a budget or an interrupt has cut a group short.
    """

    def __init__(
        self,
        oracle: Oracle,
        solver: Solver,
        upper: Floats,
        *,
        max_passes: float,
        near: Floats | None = None,
        keep: bool = False,
        seed: int = 0,
    ):
        problem = oracle.problem
        self.oracle = oracle
        self.problem = problem
        self.solver = solver
        self.near = near
        self.max_passes = max_passes
        self.keep = keep
        self.seed = seed
        self.upper = upper.copy()
        self.lower = np.zeros(problem.n_groups)  # losses and penalties are nonnegative
        self.closed = np.zeros(problem.n_groups, dtype=bool)
        self.rough = False
        self._small = fits_row_space(problem, problem.data.all_sizes)
        self.starts: dict[int, Floats] = {}  # models at which groups without a run begin
        self._runs: dict[int, Run] = {}
        self._spent = np.zeros(problem.n_groups)
        self._in_full = _numbers_kept(problem, solver, self._small) <= _MOST_KEPT

    @property
    def all_small(self) -> bool:
        """Whether every group is solved in its row space."""
        return bool(self._small.all())

    @property
    def width(self) -> Floats:
        """Distance between the bounds."""
        return self.upper - self.lower

    def tighten(self, allowed: Floats, budget: Budget, *, passes: float = np.inf) -> bool:
        """Solve the groups that are not closed until their bounds are close enough.

        Parameters
        ----------
        allowed : ndarray of shape (n_groups,)
            Width at which a group's bounds are good enough.
        budget : Budget
            Remaining budget of the calling run.
        passes : float
            Passes over a group's rows that may be spent on it now.

        Returns
        -------
        bool
            Whether Ctrl-C ended it. The bounds are still valid.
        """
        problem = self.problem
        data = self.problem.data
        due = ~self.closed & (self.width > allowed)
        # A worker solves the groups it holds entirely; those divided among workers are solved by all together, one by
        # one.
        here = data.whole_groups()
        held = here.astype(np.float64)
        data.add_up(held)
        interrupted, spent = self._tighten_in_threads(np.flatnonzero(due & here).tolist(), allowed, budget, passes)
        m = problem.n_groups
        bounds = data.largest(np.concatenate([-self.upper, self.lower, self.closed, [float(self.rough)]]))
        self.upper = -bounds[:m]
        self.lower = bounds[m : 2 * m]
        self.closed = bounds[2 * m : 3 * m] > 0
        self.rough = bool(bounds[-1])
        self.oracle.count_apart(spent)
        stop = threading.Event()  # a new event: abandoned groups may not have seen the old one yet
        for i in np.flatnonzero(due & (held == 0.0)).tolist():
            together = self._tighten_one(i, float(allowed[i]), budget, passes, stop)
            self.oracle.count_together(together)
        return interrupted

    def _tighten_in_threads(
        self, groups: list[int], allowed: Floats, budget: Budget, passes: float
    ) -> tuple[bool, list[Counters]]:
        """Tighten groups in threads; return whether it was interrupted, and the operations on the data."""
        spent: list[Counters] = []
        stop = threading.Event()

        def tighten(i: int) -> None:
            spent.append(self._tighten_one(i, float(allowed[i]), budget, passes, stop))

        pool = ThreadPoolExecutor(max_workers=min(self.problem.n_groups, n_threads()))
        asked: list[Future[None]] = []
        interrupted = False
        try:
            for first in range(0, len(groups), _GROUPS_AT_ONCE):
                asked = [pool.submit(tighten, i) for i in groups[first : first + _GROUPS_AT_ONCE]]
                for answer in asked:
                    answer.result()
        except KeyboardInterrupt:
            interrupted = self.rough = True
        finally:
            stop.set()
            # Running groups stop after their epoch. After an interrupt, wait only a moment.
            pool.shutdown(wait=not interrupted, cancel_futures=True)
            wait([answer for answer in asked if answer.running()], timeout=_MOMENT)
        return interrupted, spent

    def _tighten_one(self, i: int, allowed: float, budget: Budget, passes: float, stop: threading.Event) -> Counters:
        """Tighten the bounds of one group's minimum; return the operations on its rows."""
        seconds = budget.seconds_left()
        passes_left = budget.passes_left()
        if stop.is_set() or passes_left <= 0 or seconds <= 0:
            self.rough = True
            return Counters()
        run = self._runs.get(i) or self._open(i)
        if run is None:
            self.upper[i] = 0.0
            self.closed[i] = True
            return Counters()
        most = min(self.max_passes - self._spent[i], passes)
        # This may run in any thread. Only the main thread receives Ctrl-C, and signals the others.
        run.callbacks = (lambda _: stop.is_set(),)
        if run.state is None:
            before = Counters()
            run.atol = allowed
            run.max_passes = min(most, passes_left)
            run.max_time = seconds
            found = run()
        else:
            before = run.clock.counts
            found = run.go_on(allowed, passes=min(most, passes_left), seconds=seconds)
        spent = run.clock.counts.since(before)
        self._spent[i] += spent.row_reads / run.problem.n_rows
        self._note(i, run, found, cut_short=passes_left < most)
        self._runs.pop(i, None)
        if self.keep and not self.closed[i]:
            if self._in_full:
                self._runs[i] = run
            else:
                self.starts[i] = found.w  # all runs together would not fit into memory
        return spent

    def _open(self, i: int) -> Run | None:
        """Return the run of a group's own problem, before its first pass; None if the minimum is zero."""
        alone = self.problem.group(i)
        w = None
        if vanishes(alone):
            return None
        alone, present = with_present_classes(alone)
        if self._small[i]:
            alone = in_row_space(alone)
        elif self.near is not None:
            w = self.near[:, present] if present.size else self.near
        if i in self.starts and self.starts[i].shape == alone.shape:
            w = self.starts[i]
        return Run.of(alone, self.solver, w, atol=0.0, seed=self.seed)

    def _note(self, i: int, run: Run, found: Result, *, cut_short: bool) -> None:
        """Store the outcome of a group's run."""
        if found.interrupted:
            raise KeyboardInterrupt  # it ended only this group's run
        cut_short &= found.status is Status.PASS_LIMIT
        if cut_short or found.status in (Status.TIME_LIMIT, Status.INTERRUPTED):
            self.rough = True
        elif found.status is Status.PASS_LIMIT:
            self.closed[i] = self._spent[i] >= self.max_passes
        elif found.status is not Status.CONVERGED:
            self.closed[i] = True
        if found.status is Status.NO_FINITE_MINIMISER:
            at = run.oracle.evaluate(run.centring.inward(found.w), np.ones(1))
            if is_separated(run.problem, at.w, at.margins):
                self.upper[i] = 0.0  # the losses tend to zero
        self.upper[i] = min(self.upper[i], found.upper_bound)
        self.lower[i] = max(self.lower[i], found.lower_bound)

    # ------------------------------------------------------------------ results

    def found(self) -> GroupMinima:
        """Return the bounds."""
        return GroupMinima(self.upper.copy(), self.lower.copy(), self.centre())

    def models(self) -> dict[int, Floats]:
        """Return the best known models of groups that are not closed, of those that have all parameters.

        With several workers there are none, since each has only those of its own groups.
        """
        if not self.problem.data.is_whole:
            return {}
        known = self.starts | {
            i: run.centring.outward(run.certificate.w) for i, run in self._runs.items() if run.certificate.w is not None
        }
        return {i: w for i, w in sorted(known.items()) if w.shape == self.problem.shape and not self._small[i]}

    def centre(self) -> Floats:
        """Return what solvers best subtract from the risks: an estimate of the minima, between their bounds.

        Near a minimum, the upper bound is much the better estimate. If the lower bound is uninformative, the minimum
        may be far below what a few steps reached, and using the upper bound would take weight away from a group that
        needs it.
        """
        relative = self.width / np.maximum(self.upper, np.finfo(np.float64).tiny)
        return np.clip(self.upper - self.width * relative**2, self.lower, self.upper)


def group_sqp(problem: Problem) -> GroupSQP:
    """Return SQP for all groups of a problem, with as many L-BFGS pairs as can be stored for each."""
    sizes = _sizes_alone(problem, fits_row_space(problem, problem.data.all_sizes))
    return GroupSQP(memory=int(np.clip(0.5 * _MOST_KEPT / sizes.sum(), _FEWEST_PAIRS, _MOST_PAIRS)))


def _sizes_alone(problem: Problem, small: Mask) -> Floats:
    """Return the number of parameters of each group's own problem."""
    features = np.where(small, problem.data.all_sizes, problem.shape[0]).astype(np.float64)
    return features * problem.model.n_outputs


def _numbers_kept(problem: Problem, solver: Solver, small: Mask) -> float:
    """Return the approximate number of values that the runs of all groups hold: outputs, rows and curvature."""
    sizes = _sizes_alone(problem, small)
    rows = problem.data.all_sizes.astype(np.float64)
    pairs = solver.memory if isinstance(solver, GroupSQP) else 0
    curvature = sizes * np.where(sizes <= _HESSIAN_SIZE, sizes, 2.0 * pairs)
    return float((rows * problem.model.n_outputs + small * rows**2 + 6.0 * sizes + curvature).sum())
