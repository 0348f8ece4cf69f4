"""A run: the main loop with its stages, budgets, certificate, trace, callbacks and interruption."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from groupdro.certificate import Certificate
from groupdro.oracle import Evaluation, Oracle
from groupdro.problem import GroupMinima, Problem
from groupdro.problem.attainment import is_separated, unattained, vanishes
from groupdro.problem.centring import Centring, recentre, resolution
from groupdro.run.checkpoint import Checkpoint, CheckpointFile, bounds_are_ours
from groupdro.run.clock import Clock
from groupdro.run.ending import SEPARABLE, Ending, runs_away
from groupdro.run.precision import raise_precision
from groupdro.run.result import OutputPair, Progress, Result, Status, TraceRow, met_tolerance
from groupdro.run.solver import Solver, State
from groupdro.run.stages import Budget, Preparation, Prepared, Refinement, Stage
from groupdro.utils.types import Floats

__all__ = ["Callback", "Run"]

Callback = Callable[[Progress], bool | None]


@dataclass
class Run:
    """One run. Calling it runs from the start or a checkpoint to the end; `go_on` continues from there.

    Attributes
    ----------
    oracle : Oracle
        The oracle of the problem as solved, in which the run changes the group minima.
    centring : Centring
        What was subtracted from the user's problem.
    solver : Solver
        The solver.
    w, q : ndarray or None
        Where to start, in the problem as solved.
    tol, atol, max_passes, max_time, callbacks, seed : object
        As in `solve`.
    """

    oracle: Oracle
    centring: Centring
    solver: Solver
    w: Floats | None
    q: Floats | None
    tol: float
    atol: float
    max_passes: float
    max_time: float
    callbacks: tuple[Callback, ...] = ()
    seed: int = 0

    @classmethod
    def of(
        cls,
        problem: Problem,
        solver: Solver,
        w: Floats | None = None,
        q: Floats | None = None,
        *,
        tol: float = 0.0,
        atol: float | None = None,
        max_passes: float = np.inf,
        max_time: float = np.inf,
        callbacks: tuple[Callback, ...] = (),
        seed: int = 0,
    ) -> "Run":
        """Return a run on a problem in the user's units, from w and q there; `atol` has a default as in `solve`."""
        solver.check(problem)
        problem, centring = recentre(problem)
        run = cls(
            oracle=Oracle(problem),
            centring=centring,
            solver=solver,
            w=None if w is None else centring.inward(w),
            q=q,
            tol=tol,
            atol=0.0 if atol is None else atol,
            max_passes=max_passes,
            max_time=max_time,
            callbacks=callbacks,
            seed=seed,
        )
        if atol is None:
            least = tol**2 * problem.unit_of_loss if run.minimises_excess else 0.0
            run.atol = max(resolution(problem, centring), least)
        return run

    def __post_init__(self) -> None:
        self.checkpointed = False
        self.file: CheckpointFile | None = None  # only the first of several workers reads and writes
        self.trace: list[TraceRow] = []
        self.interrupted = False
        self.reason: str | None = None  # why there is no finite minimiser
        self.found_minima = False
        self.stage = 0
        self.handed_over = ""  # why stages took over from others
        self.state: State | None = None
        self.refinement: Refinement | None = None
        self._whole = True  # whether the state is at the end of an epoch
        self._observed: Evaluation | None = None  # by the certificate

    def __call__(self) -> Result:
        """Run until a tolerance is met or a budget is used up."""
        self.oracle.warm_up()
        self.clock = Clock(self.oracle)
        preparations = self._choose_stages()
        given = self.problem
        saved = self._read_checkpoint()
        taken_over = saved is not None and self._take_over_minima(saved, preparations)
        # Interrupts after the preparation are handled in the loop below; the preparation reports its own.
        prepared = Prepared() if taken_over else self._prepare(preparations)
        self.found_minima = given.group_minima is None and self.problem.group_minima is not None
        self.certificate = Certificate(self.oracle)
        self.reason = unattained(self.problem)
        return self._run(lambda: self._resume(saved) if saved is not None and taken_over else self._begin(prepared))

    def go_on(self, atol: float, *, passes: float, seconds: float) -> Result:
        """Continue from where the run ended, to a smaller absolute tolerance within additional passes and seconds."""
        self.atol = atol
        self.max_passes = self.clock.passes + passes
        self.max_time = self.clock.seconds + seconds
        return self._run(lambda: self._agree(self._verdict(self._now)))

    @property
    def problem(self) -> Problem:
        """The problem as solved, with the group minima known so far."""
        return self.oracle.problem

    @property
    def minimises_excess(self) -> bool:
        """Whether excess risks are minimised, of minima that are given or found."""
        return self.problem.group_minima is not None or self.solver.finds_minima

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
            status = Status.INTERRUPTED
            self.interrupted = True
        self.oracle.use_double()  # for the final figures
        try:
            if self.certificate.left_out is not None and status is not Status.NUMERICAL_FAILURE:
                self.certificate.observe(self.certificate.left_out)
            if self.reason is not None and status in (Status.PASS_LIMIT, Status.TIME_LIMIT):
                status = Status.NO_FINITE_MINIMISER
            elif runs_away(self.problem, self.certificate, self._now, status):
                self.reason = SEPARABLE
                status = Status.NO_FINITE_MINIMISER
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
        if prepared.evaluation is not None and not prepared.interrupted:
            self.state = State(prepared.evaluation)
            status = self._after_epoch(self.state)
            if status is not None or self._criterion is not None:
                return status
        if not prepared.interrupted:
            begun = 0 if self.state is None else self.state.epoch + 1
            self.state = self._first_state()
            self.state.epoch = self.state.begun = begun
            return self._after_epoch(self.state)
        # Make one pass so that there is a pair to return: the solver's own initialisation may take long.
        self._whole = False
        self.interrupted = True
        w, q = prepared.best or prepared.start or self._start()
        self.state = State(self.oracle.evaluate(self.problem.within_domain(w), q))
        self.certificate.observe(self.state.evaluation)
        self._record(self.state)
        return Status.INTERRUPTED

    # ------------------------------------------------------------------ checkpoints

    def _read_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint of this problem, which the first worker reads and sends to all others."""
        if not self.checkpointed:
            return None
        content = self.problem.data.share(b"" if self.file is None else self.file.read(self.problem))
        if not content:
            return None
        saved = Checkpoint.from_bytes(content, self.problem)
        with self.clock.stopped(), self.oracle.uncounted(), np.errstate(over="ignore", invalid="ignore"):
            objective = self.problem.objective(saved.best_w, self.oracle.risks(saved.best_w))
        if np.isfinite(objective):
            return saved
        if self.file is not None:
            self.file.warn_of_damage("the objective at its model is not finite")
        return None

    def _take_over_minima(self, saved: Checkpoint, preparations: list[Preparation]) -> bool:
        """Set the group minima found by a saved run, and return whether its bounds are those of this one.

        If they are not, the run only starts at the saved point: its loss or sets are of a kind that no digest
        identifies, or its minima are too rough for this tolerance and cannot be refined.
        """
        self.w = saved.w
        self.q = saved.q if self.problem.weight_set.contains(saved.q) else None
        minima = saved.group_minima
        finds_minima = self.solver.finds_minima and self.problem.group_minima is None
        if not bounds_are_ours(self.problem) or (minima is None) == finds_minima:
            return False
        if minima is None:
            return True
        for preparation in preparations:
            resumed = preparation.resume(self.oracle, minima, saved.group_models, self.seed)
            self.refinement = resumed or self.refinement
        if self.refinement is None and (np.array([self.tol, self.atol]) < saved.tolerances).any():
            return False
        self.oracle = self.oracle.on(self.problem.with_minima(minima))
        return True

    def _resume(self, saved: Checkpoint) -> Status | None:
        """Start from what the checkpoint proves: first a pass at its best point, which may already be good enough."""
        self.clock.set(float(saved.seconds), saved.counters.astype(int).tolist())
        self.trace = saved.trace_rows
        self.certificate.take_over(float(saved.lower), saved.lower_q, saved.cut)
        epoch = int(saved.epoch)
        at = self.oracle.evaluate(saved.best_w, saved.lower_q)
        self.state = State(at, epoch=epoch, begun=epoch)
        self._whole = False  # it is not a state of the solver
        self.certificate.offer(at.w, at.group_risks)
        status = self._agree(self._verdict(self.state))
        if status is not None:
            return status
        self.handed_over = "; resumed"
        if self._criterion is not None:
            return None  # a stage within the tolerance begins again at this point
        names = [self._name_of(i) for i, stage in enumerate(self.stages) if not stage.within_tolerance]
        self.stage = names.index(str(saved.stage)) if str(saved.stage) in names else 0
        self.state = self._first_state()
        self.state.epoch = self.state.begun = epoch + 1
        self._whole = True
        return self._after_epoch(self.state)

    def _write_checkpoint(self, state: State) -> None:
        """Write what was proved so far, with the clock stopped."""
        certificate = self.certificate
        cut = self.certificate.cut
        found = self.problem.group_minima
        if self.file is None or certificate.w is None or certificate.q is None:
            return
        optional: dict[str, Any] = {}
        if cut is not None:
            optional |= {f"cut_{name}": np.asarray(part) for name, part in vars(cut).items()}
        models: dict[int, Floats] = {}
        if self.found_minima and found is not None:
            optional |= {"minima_upper": found.upper, "minima_lower": found.lower, "minima_centre": found.centre}
            models = {} if found.models is None else dict(enumerate(found.models))
        if self.refinement is not None:
            models = self.refinement.models()
        if models:
            optional |= {
                "model_groups": np.array(list(models), dtype=np.float64),
                "models": np.array([*models.values()]),
            }
        with self.clock.stopped():
            self.file.write(
                Checkpoint(
                    digest=np.array(self.file.digest),
                    stage=np.array(self._name_of(self.stage)),
                    tolerances=np.array([self.tol, self.atol]),
                    epoch=np.array(float(state.epoch)),
                    seconds=np.array(max(self.clock.seconds, 0.0)),
                    counters=self.clock.counts.counts,
                    trace=np.array([list(vars(row).values()) for row in self.trace], dtype=np.float64),
                    w=state.evaluation.w,
                    q=state.evaluation.q,
                    best_w=certificate.w,
                    lower=np.array(certificate.lower),
                    lower_q=certificate.q,
                    **optional,
                )
            )

    # ------------------------------------------------------------------ stages

    @property
    def _solver(self) -> Solver:
        return self.stages[self.stage].solver

    def _name_of(self, number: int) -> str:
        """Return the number and the solver of a stage, by which a resumed run finds it."""
        return f"{number} {type(self.stages[number].solver).__qualname__}"

    def _choose_stages(self) -> list[Preparation]:
        """Set the stages that follow one another, and return the preparations to run before them."""
        given = self.problem
        parts = self.solver.stages(given, self.tol)
        self.description = self.solver.describe(given, self.tol)
        stages = [Stage(part) if isinstance(part, Solver) else part for part in parts]
        self.stages = [stage for stage in stages if isinstance(stage, Stage)]
        self.stages.sort(key=lambda stage: stage.within_tolerance)
        known = all(isinstance(stage, Stage | Preparation) for stage in stages)
        if not known or not self.stages or self.stages[0].within_tolerance:
            raise TypeError(f"stages of {self.solver!r} must be preparations and at least one solver, got {parts!r}.")
        solvers = [stage.solver for stage in self.stages]
        for solver in solvers:
            if solver is not self.solver:
                solver.check(given)
        with self.clock.stopped(), self.oracle.uncounted():
            for solver in solvers:
                solver.warm_up(self.oracle)
        return [part for part in parts if isinstance(part, Preparation)]

    @property
    def _budget(self) -> Budget:
        return Budget(
            tol=self.tol,
            atol=self.atol,
            passes_left=lambda: self.max_passes - self.clock.passes,
            seconds_left=lambda: self.max_time - self.clock.seconds,
        )

    def _prepare(self, preparations: list[Preparation]) -> Prepared:
        """Run the preparations, and take over the minima and the start that they found."""
        prepared = Prepared()
        for preparation in preparations:
            prepared = preparation.run(self.oracle, *self._start(), self._budget, self.seed)
            if prepared.rough:
                self.file = None
            if prepared.group_minima is not None:
                self.oracle = self.oracle.on(self.problem.with_minima(prepared.group_minima))
                self.refinement = prepared.refinement
            if prepared.start is not None:
                self.w, self.q = prepared.start
            if prepared.interrupted:
                break
        return prepared

    def _start(self) -> tuple[Floats, Floats]:
        """Return the w and q at which the solver begins."""
        w = self.problem.centre() if self.w is None else self.w
        return w, self.problem.central_weights() if self.q is None else self.q

    def _first_state(self) -> State:
        """Return the state at the given start, or at the default constant if the given start is worse.

        Far away, most losses are nearly linear, and a solver may take very long to come back.
        """
        problem = self.problem
        solver = self._solver
        w, q = self._start()
        with np.errstate(over="ignore", invalid="ignore"):
            state: State = solver.init(self.oracle, w, q, self.seed)
        # The constant that the start is compared with, not zeros: with a log link their risk may be far larger.
        constant = problem.centre()
        problem.coef(constant)[...] = 0.0
        if self.w is None or not problem.domain.contains(problem.coef(constant)):
            return state
        with np.errstate(invalid="ignore"):
            value = problem.objective(state.evaluation.w, state.evaluation.group_risks)
        if value <= problem.objective(constant, problem.risks_of_constant()):
            return state
        began: State = solver.init(self.oracle, constant, q, self.seed)
        return began

    def _why_over(self, state: State) -> str:
        """Return why the present stage is over, or an empty string."""
        stage = self.stages[self.stage]
        if self._criterion is not None and not stage.within_tolerance:
            return "the tolerance is met"
        return stage.until(state, [row for row in self.trace if row.epoch >= state.begun])

    @property
    def _next_stage(self) -> int | None:
        """The stage that follows the present one: within the tolerance once it is met, and one of the others before."""
        met = self._criterion is not None
        later = range(self.stage + 1, len(self.stages))
        return next((i for i in later if self.stages[i].within_tolerance == met), None)

    def _advance(self, state: State) -> State:
        """Return the state after an epoch, or after a pass at the start of the next stage, which counts as one."""
        following = self._next_stage
        why = "" if following is None else self._why_over(state)
        if following is not None and why:
            before, state = state, self._begin_stage(following, state, why)
            if state.evaluation is not before.evaluation:
                return state
        self._solver.epoch(self.oracle, state)
        state.epoch += 1
        return state

    def _begin_stage(self, number: int, state: State, why: str) -> State:
        """Return the first state of a stage that takes over."""
        stage = self.stages[number]
        certificate = self.certificate
        w = state.evaluation.w if certificate.w is None else certificate.w  # the last may be far off
        q = state.evaluation.q
        if stage.within_tolerance:
            assert certificate.q is not None  # it proves that the tolerance is met
            q = certificate.q
            self.oracle.use_double()  # the tolerance must be met to full accuracy
        begun: State
        if stage.begin is None:
            begun = stage.solver.init(self.oracle, w, q, self.seed)
        else:
            begun = stage.begin(self.oracle, state, w, q, self.seed)
        self.stage = number
        if not stage.within_tolerance:
            self.handed_over += f"; after {self.clock.passes:.0f} passes {why}"
        begun.epoch = begun.begun = state.epoch + int(begun.evaluation is not state.evaluation)
        if begun.answer is None:
            begun.answer = state.answer  # until the stage has one of its own
        self._set_bounds(begun)
        return begun

    # ------------------------------------------------------------------ after each epoch

    def _after_epoch(self, state: State) -> Status | None:
        """Certify and record the state, and return the status that ends the run, if any."""
        pair = self._solver.point(state)
        if pair is not None:
            with self.clock.stopped(), self.oracle.uncounted():
                state.evaluation = self.oracle.evaluate(*pair)
        at = state.evaluation
        if not (np.isfinite(at.group_risks).all() and np.isfinite(at.gradient).all()):
            return Status.NUMERICAL_FAILURE
        self.certificate.offer(at.w, at.group_risks)
        wanted = max(self.tol * abs(self.certificate.upper), self.atol)
        if raise_precision(self.oracle, self.certificate, state, wanted) and pair is None:
            state.stalled = False
            self._solver.refresh(self.oracle, state)
        if state.evaluation is not self._observed:
            sparing = self._solver.has_short_epochs and not state.stalled
            self.certificate.observe(state.evaluation, wanted if sparing else np.inf)
        self._observed = state.evaluation
        self._refine(state)
        self._set_bounds(state)
        self._record(state)
        self._write_checkpoint(state)  # before the callbacks, which may take long or fail
        stopped = self._callback_stops(state)
        return self._agree(self._verdict(state, stopped=stopped))

    def _refine(self, state: State) -> None:
        """Tighten the group minima after an epoch, or if they are all that remains of the gap."""
        if self.refinement is None or self.stages[self.stage].within_tolerance:
            return
        found = self.refinement.after_epoch(self.certificate, state, self._budget)
        if found is not None:
            self.oracle = self.oracle.on(self.problem.with_minima(found))
            self.certificate.tighten(self.oracle)

    def _set_bounds(self, state: State) -> None:
        """Set the bounds of a state."""
        lower = self.certificate.lower
        state.bounds = lower, self.certificate.upper
        state.allowed = lower + max(self.tol * abs(lower) / (1.0 if lower >= 0 else 1.0 + self.tol), self.atol)

    @property
    def _criterion(self) -> str | None:
        """Which tolerance is met."""
        return met_tolerance(self.certificate.gap, self.certificate.upper, self.tol, self.atol)

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
        with self.clock.stopped(), self.oracle.uncounted():
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
        if self.problem.unbounded and is_separated(self.problem, state.evaluation.w, state.evaluation.margins):
            self.reason = SEPARABLE
            self.certificate.withdraw()  # beyond the ball the losses keep falling towards zero
            return Status.NO_FINITE_MINIMISER
        if self._criterion is not None and not self._may_choose(state):
            return Status.CONVERGED
        if stopped:
            return Status.INTERRUPTED
        if state.stalled and self._next_stage is None:
            return Status.STALLED
        if self.clock.passes >= self.max_passes:
            return Status.PASS_LIMIT
        if self.clock.seconds >= self.max_time:
            return Status.TIME_LIMIT
        return None

    def _may_choose(self, state: State) -> bool:
        """Return whether a stage has yet to choose among the models that meet the tolerance."""
        if self._criterion == "atol" and self.problem.group_minima is None:
            return False  # risks that are zero up to rounding leave nothing to choose
        chooses = self.stages[self.stage].within_tolerance and not state.stalled and not self._why_over(state)
        return chooses or self._next_stage is not None

    # ------------------------------------------------------------------ the end

    def _average(self) -> OutputPair | None:
        """Certify the solver's average, which may improve the best pair too."""
        pair = self._solver.average(self._now)
        if pair is None:
            return None
        own = Certificate(self.oracle)
        with self.clock.stopped(), self.oracle.uncounted():
            at = self.oracle.evaluate(*pair)
            own.observe(at)
            self.certificate.observe(at)
        return OutputPair(self.centring.outward(pair[0]), pair[1], own.upper, own.lower)

    def _minima_outward(self) -> GroupMinima | None:
        """Return the group minima with their models, if there are any, in the user's units."""
        found = self.problem.group_minima
        if found is None or found.models is None:
            return found
        return replace(found, models=np.array([self.centring.outward(w) for w in found.models]))

    def _finish(self, status: Status, average: OutputPair | None) -> Result:
        problem = self.problem
        counters = self.clock.counts
        seconds = self.clock.seconds
        passes = self.clock.passes
        answer = self._now.answer
        ending = Ending.of(
            self.oracle, self.certificate, answer, self.centring, status, self.reason, self.tol, self.atol
        )
        certificate = ending.certificate
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
            group_minima=self._minima_outward(),
            solver=self.description + self.handed_over,
            tol=self.tol,
            atol=self.atol,
            bound_radius=problem.output_ball.limit if problem.unbounded else np.inf,
            interrupted=self.interrupted,
            mean_lower=-np.inf if answer is None else answer.mean_lower,
        )
