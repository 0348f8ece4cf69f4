"""The only loop: stages, budgets, certificate, trace, callbacks and interruption."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from groupdro.certificate import Certificate
from groupdro.problem import GroupRisk
from groupdro.problem.attainment import is_separated, unattained, vanishes
from groupdro.problem.centring import Centring, recentre, resolution
from groupdro.run.checkpoint import Checkpoints, checkpoint_errors, fingerprint
from groupdro.run.clock import Clock
from groupdro.run.ending import SEPARABLE, Ending, runs_away
from groupdro.run.result import OutputPair, Progress, Result, Status, TraceRow, met_tolerance
from groupdro.run.saved_run import SavedRun, save_run
from groupdro.run.solver import Solver, State, make_solver
from groupdro.run.stages import Budget, Preparation, Prepared
from groupdro.utils.arguments import check_flag, check_kind, check_number, check_path, check_whole, short_repr
from groupdro.utils.bundle import check

__all__ = ["solve"]

Callback = Callable[[Progress], bool | None]


def solve(
    problem: GroupRisk,
    solver: str | Solver = "auto",
    *,
    tol: float = 1e-4,
    atol: float | None = None,
    max_passes: float = 1000.0,
    max_time: float = np.inf,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    average_duals: bool = False,
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> Result:
    """Solve a problem until its certified gap is within the tolerance, or a budget ends.

    Parameters
    ----------
    problem : GroupRisk
        The problem.
    solver : str or Solver
        A registered solver's name, or a solver with options. "auto" picks one by a cost model; `Result.solver` says
        which and why.
    tol : float
        Certified gap at which to stop, relative to the upper bound.
    atol : float, optional
        Certified gap at which to stop, in the units of the loss. The run ends when either tolerance is met;
        `Result.criterion` says which. By default ``tol ** 2`` for regrets, whose best value may be zero, and otherwise
        no more than the loss of residuals that are all rounding, which a model that fits without loss is left with.
    max_passes : float
        Passes over the data. A run ends after the epoch that reaches it.
    max_time : float
        Seconds, without compilation and evaluations for the trace. A run ends after the epoch that reaches it.
    seed : int
        Seed of all random numbers. The same seed gives the same run.
    callbacks : iterable of callable
        Each is called with a `Progress` after every epoch, off the clock; one that returns a true value ends the run.
    average_duals : bool
        Whether to average dual variables for a tighter lower bound, at one number per row (row and class).
    checkpoint_dir : str or path-like, optional
        Directory to which the run is saved after every epoch, and from which it resumes if it was saved there before.
        With one thread, a resumed run is the same to the last bit as one that was not interrupted.

    Returns
    -------
    Result
        The best certified pair, with the way it was found. Ctrl-C ends a run with the best pair so far.
    """
    check_kind(problem, "problem", GroupRisk, "a GroupRisk")
    _refuse_changed_objective(problem)
    check_number(tol, "tol")
    if atol is not None:
        check_number(atol, "atol")
    for name, value in (("max_passes", max_passes), ("max_time", max_time)):
        check_number(value, name, positive=True, finite=False)
    check_whole(seed, "seed")
    check_flag(average_duals, "average_duals")
    callbacks = _read_callbacks(callbacks)
    solver = make_solver(solver)
    solver.check(problem)
    if average_duals and not problem.data.is_whole:
        raise ValueError("average_duals must be False over several workers, which keep the duals of their own rows.")
    problem, centring = recentre(problem)
    if atol is None:
        regret = problem.regret or solver.minimises_regrets
        atol = max(resolution(problem, centring), tol**2 if regret else 0.0)
    run = _Run(problem, centring, solver, tol, atol, max_passes, max_time, callbacks, average_duals)
    if checkpoint_dir is not None:
        key = fingerprint(problem, solver, seed)
        run.checkpointed = True
        if problem.data.is_first:
            run.checkpoints = Checkpoints(check_path(checkpoint_dir, "checkpoint_dir"), key)
    return run(seed)


def _refuse_changed_objective(problem: GroupRisk) -> None:
    """Refuse a subclass that changes what solvers and certificates rest on: they would prove something else."""
    kind = type(problem)
    parts = {name: part for base in reversed(GroupRisk.__mro__[:-1]) for name, part in vars(base).items()}
    for name, own in parts.items():
        if not name.startswith("__") and (getattr(kind, name) is not own or name in vars(problem)):
            raise TypeError(
                f"problem is a {kind.__name__}, which changes {name!r} of GroupRisk: no bound would hold for it. "
                "A loss or a domain of your own is passed to GroupRisk."
            )


def _read_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    try:
        read = tuple(callbacks)
    except TypeError:
        read = (None,)
    if not all(map(callable, read)):
        raise TypeError(f"callbacks must be a list of callables, got {short_repr(callbacks)}.")
    return read


@dataclass
class _Run:
    """One run."""

    problem: GroupRisk
    centring: Centring
    solver: Solver
    tol: float
    atol: float
    max_passes: float
    max_time: float
    callbacks: tuple[Callback, ...]
    average_duals: bool

    def __post_init__(self) -> None:
        self.checkpointed = False
        self.checkpoints: Checkpoints | None = None  # of several workers, the first one writes
        self.trace: list[TraceRow] = []
        self.interrupted = False
        self.reason: str | None = None  # why there is no finite minimiser
        self.stage = 0

    def __call__(self, seed: int) -> Result:
        self.problem.warm_up()
        self.clock = Clock(self.problem)
        tolerances = self.tol, self.atol
        saved = SavedRun.latest(self.checkpoints, self.problem, tolerances) if self.checkpointed else None
        given = self.problem
        chosen_for = self.tol if saved is None else float(saved.run["tolerances"][0])
        stages = self.solver.stages(given, chosen_for)
        self.description = self.solver.describe(given, chosen_for)
        self.solvers = [stage for stage in stages if isinstance(stage, Solver)]
        if not self.solvers or not all(isinstance(stage, Solver | Preparation) for stage in stages):
            raise TypeError(f"stages of {self.solver!r} must be preparations and at least one solver, got {stages!r}.")
        for solver in self.solvers:
            if solver is not self.solver:
                solver.check(given)
        with self.clock.stopped(), given.uncounted():
            for solver in self.solvers:
                solver.warm_up(given)
        prepared = Prepared()
        if saved is None:
            # What follows the preparation is interrupted in the loop below; the preparation itself says so.
            prepared = self._prepare([stage for stage in stages if isinstance(stage, Preparation)], seed)
        else:
            with checkpoint_errors():
                references = saved.references(given)
                finds = self.solver.minimises_regrets and not given.regret
                check((references is not None) == finds, "its references are not of this objective")
                check(saved.run["stage"] < len(self.solvers), "its stage is not one of the solver")
                self.stage = saved.run["stage"]
                if references is not None:
                    self.problem = given.with_references(references)
        self.found_references = self.problem.regret and not given.regret
        problem = self.problem
        self.certificate = Certificate(problem, average_duals=self.average_duals)
        self.reason = unattained(problem)
        state: State | None = None
        status: Status | None = None
        whole = True  # whether the state is that of the end of an epoch
        try:
            if prepared.interrupted:
                # One pass, so that there is a pair to return: the solver's own first look may take long.
                whole, status, self.interrupted = False, Status.INTERRUPTED, True
                pair = prepared.best or prepared.start or (problem.start(), problem.start_weights())
                state = State(problem.evaluate(problem.within_domain(pair[0]), pair[1]))
                self._record(state)
            elif saved is None:
                state = self._begin(seed)
                status = self._after_epoch(state)
            else:
                with checkpoint_errors():
                    state, self.trace = saved.resume(self._solver, problem, seed, self.certificate, self.clock)
                status = self._agree(self._verdict(state))
            if self.reason is not None and vanishes(problem):
                status = Status.NO_FINITE_MINIMISER  # the infimum is 0, and no gap relative to it can be reached
            while status is None:
                whole = False
                state = self._advance(state, seed)
                whole = True
                status = self._after_epoch(state)
        except KeyboardInterrupt:
            if state is None or self.certificate.w is None or self.certificate.q is None:
                raise  # nothing was certified yet, so there is nothing to keep
            if not problem.data.is_whole:
                raise  # others are at another place, and a last pass would mix their models with this one
            status, self.interrupted = Status.INTERRUPTED, True
        try:
            if self.reason is not None and status in (Status.PASS_LIMIT, Status.TIME_LIMIT):
                status = Status.NO_FINITE_MINIMISER
            elif runs_away(problem, self.certificate, state, status):
                self.reason, status = SEPARABLE, Status.NO_FINITE_MINIMISER
            return self._finish(state, status, self._average(state) if whole else None)
        except KeyboardInterrupt:
            # All was done but for the last pass, which is made again rather than lose what was certified.
            if not problem.data.is_whole:
                raise
            self.interrupted = True
            ended = status in (Status.NO_FINITE_MINIMISER, Status.NUMERICAL_FAILURE)
            return self._finish(state, status if ended else Status.INTERRUPTED, None)

    # ------------------------------------------------------------------ stages

    @property
    def _solver(self) -> Solver:
        return self.solvers[self.stage]

    def _prepare(self, preparations: list[Preparation], seed: int) -> Prepared:
        """Run the preparations, and set the problem to what they make of it."""
        left = Budget(
            tol=self.tol,
            atol=self.atol,
            passes_left=lambda: self.max_passes - self.clock.passes,
            seconds_left=lambda: self.max_time - self.clock.seconds,
        )
        prepared = Prepared()
        for preparation in preparations:
            prepared = preparation.run(self.problem, left, seed)
            if prepared.rough:
                self.checkpoints = None
            if prepared.references is not None:
                self.problem = self.problem.with_references(prepared.references)
            if prepared.start is not None:
                self.problem = self.problem.starting_at(*prepared.start)
            if prepared.interrupted:
                break
        return prepared

    def _begin(self, seed: int) -> State:
        """Return the state at the start, or at zero where a start that was given is worse than that.

        Far away most losses are straight lines, along which a solver may take forever to come back.
        """
        problem, solver = self.problem, self._solver
        state: State = solver.init(problem, seed)
        w, q = problem.given_start
        zero = np.zeros(problem.shape)
        if w is None or not problem.domain.contains(problem.coef(zero)):
            return state
        with np.errstate(invalid="ignore"):
            value = problem.objective(state.evaluation.w, state.evaluation.group_risks)
        if value <= problem.objective(zero, problem.risks_at_zero()):
            return state
        began: State = solver.init(problem.starting_at(zero, q), seed)
        return began

    def _advance(self, state: State, seed: int) -> State:
        """Return the state after an epoch, or at the start of the next stage, which counts as one."""
        last = self.stage + 1 == len(self.solvers)
        if last or not self._solver.is_done(self.problem, state):
            self._solver.epoch(self.problem, state)
            state.epoch += 1
            return state
        self.stage += 1
        here = self.problem.starting_at(state.evaluation.w, state.evaluation.q)
        begun: State = self._solver.init(here, seed)
        begun.epoch = state.epoch + 1
        return begun

    # ------------------------------------------------------------------ after each epoch

    def _after_epoch(self, state: State) -> Status | None:
        """Certify where the state stands, record it, and say whether the run is over."""
        pair = self._solver.point(state)
        if pair is not None:
            with self.clock.stopped(), self.problem.uncounted():
                state.evaluation = self.problem.evaluate(*pair)
        at = state.evaluation
        if not (np.isfinite(at.group_risks).all() and np.isfinite(at.gradient).all()):
            return Status.NUMERICAL_FAILURE
        self._record(state)
        if self.checkpoints is not None:  # first: a callback may take long, or fail
            save_run(
                self.checkpoints, self.problem, self.stage, state, self.certificate, self.trace, self.clock,
                tolerances=(self.tol, self.atol), found_references=self.found_references,
            )  # fmt: skip
        stopped = self._callback_stops(state)
        return self._agree(self._verdict(state, stopped=stopped))

    def _record(self, state: State) -> None:
        """Take the certificate's bounds from where the state stands, and note them in the trace."""
        self.certificate.observe(state.evaluation)
        counts = self.clock.counts
        self.trace.append(
            TraceRow(
                epoch=state.epoch,
                passes=self.clock.passes,
                grad_evals=counts.grad_evals,
                grad_evals_paper=counts.grad_evals_paper,
                seconds=self.clock.seconds,
                upper=self.certificate.upper,
                lower=self.certificate.lower,
            )
        )

    def _callback_stops(self, state: State) -> bool:
        if not self.callbacks:
            return False
        with self.clock.stopped(), self.problem.uncounted():
            progress = Progress(self.trace[-1], self.certificate, state, self.centring)
            stops = [bool(callback(progress)) for callback in self.callbacks]
        return any(stops)

    def _agree(self, status: Status | None) -> Status | None:
        """Return what ends the run of any worker: only clocks and callbacks can differ between them."""
        if self.problem.data.is_whole:
            return status
        kinds = [None, *Status]
        return kinds[int(self.problem.data.largest(np.array([float(kinds.index(status))]))[0])]

    def _verdict(self, state: State, *, stopped: bool = False) -> Status | None:
        """Say whether the run is over."""
        if self.problem.unbounded and is_separated(self.problem, state.evaluation):
            self.reason = SEPARABLE
            self.certificate.withdraw()  # beyond the ball the losses go on falling, to zero
            return Status.NO_FINITE_MINIMISER
        if met_tolerance(self.certificate.gap, self.certificate.upper, self.tol, self.atol) is not None:
            return Status.CONVERGED
        if stopped:
            return Status.INTERRUPTED
        if state.stalled:
            return Status.STALLED
        if self.clock.passes >= self.max_passes:
            return Status.PASS_LIMIT
        if self.clock.seconds >= self.max_time:
            return Status.TIME_LIMIT
        return None

    # ------------------------------------------------------------------ the end

    def _average(self, state: State) -> OutputPair | None:
        """Certify the solver's average, which may improve the best pair too."""
        pair = self._solver.average(state)
        if pair is None:
            return None
        own = Certificate(self.problem)
        with self.clock.stopped(), self.problem.uncounted():
            at = self.problem.evaluate(*pair)
            own.observe(at)
            self.certificate.observe(at)
        return OutputPair(self.centring.outward(pair[0]), pair[1], own.upper, own.lower)

    def _finish(self, state: State, status: Status, average: OutputPair | None) -> Result:
        problem, certificate, counters = self.problem, self.certificate, self.clock.counts
        seconds, passes = self.clock.seconds, self.clock.passes
        ending = Ending.of(problem, certificate, self.centring, status, self.reason, self.tol, self.atol)
        assert certificate.q is not None
        assert certificate.group_risks is not None
        return Result(
            w=ending.w,
            q=certificate.q,
            group_risks=certificate.group_risks,
            group_values=certificate.group_risks - problem.baseline.lower,
            upper_bound=certificate.upper,
            lower_bound=certificate.lower,
            gap=certificate.gap,
            status=ending.status,
            message=ending.message,
            counters=counters,
            passes=passes,
            seconds=seconds,
            epochs=state.epoch,
            trace=tuple(self.trace),
            average=average,
            group_names=problem.data.names,
            references=problem.references,
            solver=self.description,
            tol=self.tol,
            atol=self.atol,
            bound_radius=problem.output_ball.limit if problem.unbounded else np.inf,
            interrupted=self.interrupted,
        )
