"""A run: the main loop with its stages, budgets, certificate, trace, callbacks and interruption."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from groupdro.certificate import Certificate
from groupdro.problem import GroupRisk
from groupdro.problem.attainment import is_separated, unattained, vanishes
from groupdro.problem.centring import Centring
from groupdro.run.checkpoint import Checkpoints, checkpoint_errors
from groupdro.run.clock import Clock
from groupdro.run.ending import SEPARABLE, Ending, runs_away
from groupdro.run.precision import raise_precision
from groupdro.run.result import OutputPair, Progress, Result, Status, TraceRow, met_tolerance
from groupdro.run.saved_run import SavedRun, save_run, whole_state
from groupdro.run.solver import Solver, State
from groupdro.run.stages import Budget, Preparation, Prepared, Refinement
from groupdro.utils.bundle import check

__all__ = ["Callback", "Run"]

Callback = Callable[[Progress], bool | None]


@dataclass
class Run:
    """One run. Calling it runs from the start or a checkpoint to the end; `go_on` continues from there."""

    problem: GroupRisk
    centring: Centring
    solver: Solver
    tol: float
    atol: float
    max_passes: float
    max_time: float
    callbacks: tuple[Callback, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        self.checkpointed = False
        self.checkpoints: Checkpoints | None = None  # only the first of several workers writes
        self.trace: list[TraceRow] = []
        self.interrupted = False
        self.reason: str | None = None  # why there is no finite minimiser
        self.found_references = False
        self.stage = 0
        self.state: State | None = None
        self.refinement: Refinement | None = None
        self._whole = True  # whether the state is at the end of an epoch

    def __call__(self) -> Result:
        """Run until a tolerance is met or a budget is used up."""
        self._open()
        tolerances = self.tol, self.atol
        saved = SavedRun.latest(self.checkpoints, self.problem, tolerances) if self.checkpointed else None
        preparations = self._choose_stages(self.tol if saved is None else float(saved.run["tolerances"][0]))
        given, prepared = self.problem, Prepared()
        if saved is None:
            # Interrupts after the preparation are handled in the loop below; the preparation reports its own.
            prepared = self._prepare(preparations)
        else:
            with checkpoint_errors():
                self._restore_references(saved, preparations)
        self.found_references = self.problem.regret and not given.regret
        self._certify()
        return self._run(lambda: self._begin(prepared) if saved is None else self._resume(saved))

    def go_on(self, atol: float, *, passes: float, seconds: float) -> Result:
        """Continue from where the run ended, to a smaller absolute tolerance within additional passes and seconds."""
        self.atol, self.max_passes, self.max_time = atol, self.clock.passes + passes, self.clock.seconds + seconds
        return self._run(lambda: self._agree(self._verdict(self._now)))

    def saved(self) -> dict[str, Any]:
        """Return the state of a run without preparations, for `load`."""
        return {
            "state": self._now,
            "certificate": self.certificate.saved(),
            "counters": [int(count) for count in self.clock.counts.counts],
            "seconds": max(self.clock.seconds, 0.0),
            "single_precision": self.problem.single_precision,
        }

    def load(self, saved: Any) -> None:
        """Restore the state of a run of the same problem and solver, without running an epoch."""
        check(isinstance(saved, dict), "a run is not a mapping")
        self._open()
        self._choose_stages(self.tol)
        self._certify()
        self._resume(SavedRun.of(saved))

    def _open(self) -> None:
        self.problem.warm_up()
        self.clock = Clock(self.problem)

    def _certify(self) -> None:
        self.certificate = Certificate(self.problem)
        self.reason = unattained(self.problem)

    @property
    def _now(self) -> State:
        assert self.state is not None
        return self.state

    def _run(self, first: Callable[[], Status | None]) -> Result:
        """Run epochs until a status ends the run, and return the result."""
        status: Status | None = None
        try:
            status = first()
            if self.reason is not None and vanishes(self.problem):
                status = Status.NO_FINITE_MINIMISER  # the infimum is 0, and no gap relative to it can be reached
            while status is None:
                self._whole = False
                self.state = self._advance(self._now)
                self._whole = True
                status = self._after_epoch(self.state)
        except KeyboardInterrupt:
            if self.state is None or self.certificate.w is None or self.certificate.q is None:
                raise  # nothing was certified yet, so there is nothing to keep
            if not self.problem.data.is_whole:
                raise  # other workers are elsewhere, and a last pass would mix their models with this one
            status, self.interrupted = Status.INTERRUPTED, True
        self.problem.single_precision = False  # the final figures are computed in float64
        try:
            if self.reason is not None and status in (Status.PASS_LIMIT, Status.TIME_LIMIT):
                status = Status.NO_FINITE_MINIMISER
            elif runs_away(self.problem, self.certificate, self._now, status):
                self.reason, status = SEPARABLE, Status.NO_FINITE_MINIMISER
            return self._finish(status, self._average() if self._whole else None)
        except KeyboardInterrupt:
            # Only the last pass was interrupted. Repeat it rather than lose what was certified.
            if not self.problem.data.is_whole:
                raise
            self.interrupted = True
            ended = status in (Status.NO_FINITE_MINIMISER, Status.NUMERICAL_FAILURE)
            return self._finish(status if ended else Status.INTERRUPTED, None)

    def _begin(self, prepared: Prepared) -> Status | None:
        """Set up the initial state, or the one in which an interrupt left the preparations."""
        if not prepared.interrupted:
            self.state = self._first_state()
            return self._after_epoch(self.state)
        # Make one pass so that there is a pair to return: the solver's own initialisation may take long.
        self._whole, self.interrupted = False, True
        pair = prepared.best or prepared.start or (self.problem.start(), self.problem.start_weights())
        self.state = State(self.problem.evaluate(self.problem.within_domain(pair[0]), pair[1]))
        self.certificate.observe(self.state.evaluation)
        self._record(self.state)
        return Status.INTERRUPTED

    def _resume(self, saved: SavedRun) -> Status | None:
        """Restore the state of the checkpoint."""
        with checkpoint_errors():
            same = saved.has_stages(self.solvers)
            self.state, self.trace = saved.resume(
                self._solver, self.problem, self.seed, self.certificate, self.clock, same=same
            )
        return self._agree(self._verdict(self.state))

    # ------------------------------------------------------------------ stages

    @property
    def _solver(self) -> Solver:
        return self.solvers[self.stage]

    @property
    def _in_last_stage(self) -> bool:
        return self.stage + 1 == len(self.solvers)

    def _choose_stages(self, tol: float) -> list[Preparation]:
        """Set the solvers that run one after another, and return the preparations to run before them."""
        given = self.problem
        stages = self.solver.stages(given, tol)
        self.description = self.solver.describe(given, tol)
        self.solvers = [stage for stage in stages if isinstance(stage, Solver)]
        if not self.solvers or not all(isinstance(stage, Solver | Preparation) for stage in stages):
            raise TypeError(f"stages of {self.solver!r} must be preparations and at least one solver, got {stages!r}.")
        for solver in self.solvers:
            if solver is not self.solver:
                solver.check(given)
        with self.clock.stopped(), given.uncounted():
            for solver in self.solvers:
                solver.warm_up(given)
        return [stage for stage in stages if isinstance(stage, Preparation)]

    @property
    def _budget(self) -> Budget:
        return Budget(
            tol=self.tol,
            atol=self.atol,
            passes_left=lambda: self.max_passes - self.clock.passes,
            seconds_left=lambda: self.max_time - self.clock.seconds,
        )

    def _prepare(self, preparations: list[Preparation]) -> Prepared:
        """Run the preparations and update the problem with their results."""
        prepared = Prepared()
        for preparation in preparations:
            prepared = preparation.run(self.problem, self._budget, self.seed)
            if prepared.rough:
                self.checkpoints = None
            if prepared.references is not None:
                self.problem = self.problem.with_references(prepared.references)
                self.refinement = prepared.refinement
            if prepared.start is not None:
                self.problem = self.problem.starting_at(*prepared.start)
            if prepared.interrupted:
                break
        return prepared

    def _restore_references(self, saved: SavedRun, preparations: list[Preparation]) -> None:
        """Restore the references found by a saved run, and their refinement."""
        given, references = self.problem, saved.references(self.problem)
        finds = self.solver.minimises_regrets and not given.regret
        check((references is not None) == finds, "its references do not fit this objective")
        if saved.has_stages(self.solvers):
            check(saved.run["stage"] < len(self.solvers), "it is in a stage that the solver does not have")
            self.stage = saved.run["stage"]
        if references is None:
            return
        self.problem = given.with_references(references)
        for preparation in preparations:
            self.refinement = preparation.restore(given, references, saved.refinement(), self.seed) or self.refinement

    def _first_state(self) -> State:
        """Return the state at the given start, or at zero if the given start is worse.

        Far away, most losses are nearly linear, and a solver may take very long to come back.
        """
        problem, solver = self.problem, self._solver
        state: State = solver.init(problem, self.seed)
        w, q = problem.given_start
        zero = np.zeros(problem.shape)
        if w is None or not problem.domain.contains(problem.coef(zero)):
            return state
        with np.errstate(invalid="ignore"):
            value = problem.objective(state.evaluation.w, state.evaluation.group_risks)
        if value <= problem.objective(zero, problem.risks_at_zero()):
            return state
        began: State = solver.init(problem.starting_at(zero, q), self.seed)
        return began

    def _advance(self, state: State) -> State:
        """Return the state after an epoch, or at the start of the next stage, which counts as an epoch."""
        own = [row for row in self.trace if row.epoch >= state.begun]
        why = "" if self._in_last_stage else self._solver.hand_over(self.problem, state, own)
        if not why:
            self._solver.epoch(self.problem, state)
            state.epoch += 1
            return state
        self.stage += 1
        best = self.certificate.w if self.certificate.w is not None else state.evaluation.w  # the last may be far off
        here = self.problem.starting_at(best, state.evaluation.q)
        begun: State = self._solver.init(here, self.seed)
        begun.epoch = begun.begun = state.epoch + 1
        begun.handed_over = f"{state.handed_over}; after {self.clock.passes:.0f} passes {why}"
        return begun

    # ------------------------------------------------------------------ after each epoch

    def _after_epoch(self, state: State) -> Status | None:
        """Certify and record the state, and return the status that ends the run, if any."""
        pair = self._solver.point(state)
        if pair is not None:
            with self.clock.stopped(), self.problem.uncounted():
                state.evaluation = self.problem.evaluate(*pair)
        at = state.evaluation
        if not (np.isfinite(at.group_risks).all() and np.isfinite(at.gradient).all()):
            return Status.NUMERICAL_FAILURE
        self.certificate.observe(at)
        wanted = max(self.tol * abs(self.certificate.upper), self.atol)
        if raise_precision(self.problem, self.certificate, state, wanted) and pair is None:
            state.stalled = False
            self._solver.restore_state(self.problem, state)
            self.certificate.observe(state.evaluation)
        self._refine(state)
        self._record(state)
        with self.clock.stopped():
            whole = whole_state(state, self.problem.data) if self.checkpointed else state
        if self.checkpoints is not None:  # before the callbacks, which may take long or fail
            save_run(
                self.checkpoints, self.problem, self.solvers, self.stage, whole, self.certificate, self.trace,
                self.clock, tolerances=(self.tol, self.atol), found_references=self.found_references,
                refinement=self.refinement,
            )  # fmt: skip
        stopped = self._callback_stops(state)
        return self._agree(self._verdict(state, stopped=stopped))

    def _refine(self, state: State) -> None:
        """Tighten the references after an epoch, or if they are all that remains of the gap."""
        if self.refinement is None:
            return
        found = self.refinement.after_epoch(self.certificate, state, self._budget)
        if self.refinement.rough:
            self.checkpoints = None
        if found is not None:
            self.problem = self.problem.with_references(found)
            self.certificate.tighten(self.problem)

    def _record(self, state: State) -> None:
        """Add the certificate's bounds to the trace."""
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
        """Return a status that ends the run on any worker: only clocks and callbacks can differ between them."""
        if self.problem.data.is_whole:
            return status
        kinds = [None, *Status]
        return kinds[int(self.problem.data.largest(np.array([float(kinds.index(status))]))[0])]

    def _verdict(self, state: State, *, stopped: bool = False) -> Status | None:
        """Return the status that ends the run, or None to continue."""
        if self.problem.unbounded and is_separated(self.problem, state.evaluation):
            self.reason = SEPARABLE
            self.certificate.withdraw()  # beyond the ball the losses keep falling towards zero
            return Status.NO_FINITE_MINIMISER
        if met_tolerance(self.certificate.gap, self.certificate.upper, self.tol, self.atol) is not None:
            return Status.CONVERGED
        if stopped:
            return Status.INTERRUPTED
        if state.stalled and self._in_last_stage:
            return Status.STALLED
        if self.clock.passes >= self.max_passes:
            return Status.PASS_LIMIT
        if self.clock.seconds >= self.max_time:
            return Status.TIME_LIMIT
        return None

    # ------------------------------------------------------------------ the end

    def _average(self) -> OutputPair | None:
        """Certify the solver's average, which may improve the best pair too."""
        pair = self._solver.average(self._now)
        if pair is None:
            return None
        own = Certificate(self.problem)
        with self.clock.stopped(), self.problem.uncounted():
            at = self.problem.evaluate(*pair)
            own.observe(at)
            self.certificate.observe(at)
        return OutputPair(self.centring.outward(pair[0]), pair[1], own.upper, own.lower)

    def _finish(self, status: Status, average: OutputPair | None) -> Result:
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
            epochs=self._now.epoch,
            trace=tuple(self.trace),
            average=average,
            group_names=problem.data.names,
            references=problem.references,
            solver=self.description + self._now.handed_over,
            tol=self.tol,
            atol=self.atol,
            bound_radius=problem.output_ball.limit if problem.unbounded else np.inf,
            interrupted=self.interrupted,
        )
