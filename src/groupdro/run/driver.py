"""The only loop: budgets, certificate, trace, callbacks and interruption."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from groupdro.certificate import Certificate
from groupdro.problem import GroupRisk, L2Domain
from groupdro.problem.centring import recentre, resolution
from groupdro.problem.separation import has_separating_direction
from groupdro.run.checkpoint import Checkpoints, believing, check_run, fingerprint
from groupdro.run.packing import Arrays, pack, restore
from groupdro.run.result import OutputPair, Progress, Result, Status, TraceRow, met_tolerance
from groupdro.run.solver import Run, Solver, State, make_solver
from groupdro.utils.arguments import check_flag, check_kind, check_number, check_path, check_whole, short_repr
from groupdro.utils.bundle import check, dump_bundle, parse_bundle

__all__ = ["solve"]

_COUNTS = ("grad_evals", "grad_evals_paper", "row_reads")

Callback = Callable[[Progress], bool | None]

_LARGE_OUTPUT = 12.0  # of a model, beyond which a class is certain to one in 10^5
_SEPARABLE = "the rows are separable, and without a penalty or a radius the coefficients grow forever"
_FAR_AWAY = (
    "The outputs of the best model found are so large that nothing is proved of it. "
    "Scale the columns, drop those that others nearly give, or set a penalty or a radius."
)


_OFFSETS = (
    "The offsets of y or of the columns leave the intercept too few digits for the tolerance. Subtract them first."
)


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
        Whether to average dual variables for a tighter lower bound, at one number a row (a row and class).
    checkpoint_dir : str or path-like, optional
        Directory to which the run is saved after every epoch, and from which it goes on if it was saved there before.
        With one thread, a run that was broken off and went on is the same to the last bit as one that was not.

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
    if average_duals and problem.data.n_workers > 1:
        raise ValueError("average_duals must be False over several workers, which keep the duals of their own rows.")
    run = _Driver(problem, solver, tol, atol, max_passes, max_time, callbacks, average_duals)
    problem = run.problem
    if checkpoint_dir is not None:
        key = fingerprint(problem, solver, seed)
        run.checkpointed = True
        if problem.data.is_first:
            run.checkpoints = Checkpoints(check_path(checkpoint_dir, "checkpoint_dir"), key)
    return run(seed)


def _refuse_changed_objective(problem: GroupRisk) -> None:
    """Refuse a subclass that changes what solvers and certificates rest on: they would prove something else."""
    kind = type(problem)
    for name, own in vars(GroupRisk).items():
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


class _Driver:
    """One run."""

    def __init__(
        self,
        problem: GroupRisk,
        solver: Solver,
        tol: float,
        atol: float | None,
        max_passes: float,
        max_time: float,
        callbacks: tuple[Callback, ...],
        average_duals: bool,
    ):
        self.problem, self.centring = recentre(problem)
        self.solver, self.callbacks = solver, callbacks
        self.tol, self.max_passes, self.max_time = tol, max_passes, max_time
        if atol is None:
            regret = problem.regret or solver.minimises_regrets
            atol = max(resolution(self.problem, self.centring), tol**2 if regret else 0.0)
        self.atol = atol
        self.average_duals = average_duals
        self.before = replace(self.problem.counters)
        self.checkpointed = False
        self.checkpoints: Checkpoints | None = None  # of several workers, the first one writes
        self.trace: list[TraceRow] = []
        self.off_clock = 0.0
        self.interrupted = False

    def __call__(self, seed: int) -> Result:
        self._compile()
        self.started = time.perf_counter()
        run = Run(
            tol=self.tol,
            atol=self.atol,
            passes_left=lambda: self.max_passes - self.passes,
            seconds_left=lambda: self.max_time - self.seconds,
        )
        # What follows the preparation is interrupted in the loop below; the preparation itself says so in `run`.
        saved = self._latest() if self.checkpointed else None
        begun = self.problem
        if saved is None:
            problem = self.problem = self.solver.prepare(begun, run, seed)
        else:
            with believing():
                prepared = restore(None, saved[0]["prepared"], saved[1])
                check(isinstance(prepared, dict), "what was prepared is no mapping")
                problem = self.problem = self.solver.resume(begun, run, prepared)
        self.found_references = problem.regret and not begun.regret
        self.certificate = certificate = Certificate(problem, average_duals=self.average_duals)
        state: State | None = None
        status: Status | None = None
        self.reason = reason = problem.unattained()
        whole = True  # whether the state is that of the end of an epoch
        if run.rough:
            self.checkpoints = None
        try:
            if run.interrupted:
                # One pass, so that there is a pair to return: the solver's own first look may take long.
                whole, status, self.interrupted = False, Status.INTERRUPTED, True
                state = State(problem.evaluate(*(run.best or (problem.start(), problem.start_weights()))))
                self._record(state)
            elif saved is None:
                state = self._begin(problem, seed)
                status = self._after_epoch(state)
            else:
                state = self._go_on(*saved, seed)
                status = self._agree(self._verdict(state))
            if reason is not None and problem.vanishes():
                status = Status.NO_FINITE_MINIMISER  # the infimum is 0, and no gap relative to it can be reached
            while status is None:
                whole = False
                self.solver.epoch(problem, state)
                state.epoch += 1
                whole = True
                status = self._after_epoch(state)
        except KeyboardInterrupt:
            if state is None or certificate.w is None or certificate.q is None:
                raise  # nothing was certified yet, so there is nothing to keep
            if problem.data.n_workers > 1:
                raise  # others are at another place, and a last pass would mix their models with this one
            status, self.interrupted = Status.INTERRUPTED, True
        try:
            if reason is not None and status in (Status.PASS_LIMIT, Status.TIME_LIMIT):
                status = Status.NO_FINITE_MINIMISER
            elif self._runs_away(state, status):
                self.reason, status = _SEPARABLE, Status.NO_FINITE_MINIMISER
            return self._finish(state, status, self._average(state) if whole else None)
        except KeyboardInterrupt:
            # All was done but for the last pass, which is made again rather than lose what was certified.
            if problem.data.n_workers > 1:
                raise
            self.interrupted = True
            ended = status in (Status.NO_FINITE_MINIMISER, Status.NUMERICAL_FAILURE)
            return self._finish(state, status if ended else Status.INTERRUPTED, None)

    def _begin(self, problem: GroupRisk, seed: int) -> State:
        """Return the state at the start, or at zero where a start that was given is worse than that.

        Far away most losses are straight lines, along which a solver may take forever to come back.
        """
        state: State = self.solver.init(problem, seed)
        w, q = problem.given_start
        if w is None or not isinstance(problem.domain, L2Domain):
            return state
        with np.errstate(invalid="ignore"):
            value = problem.objective(state.evaluation.w, state.evaluation.group_risks)
        zero = np.zeros(problem.shape)
        if value <= problem.objective(zero, problem.risks_at_zero()):
            return state
        began: State = self.solver.init(problem.starting_at(zero, q), seed)
        return began

    def _runs_away(self, state: State, status: Status) -> bool:
        """Tell whether the coefficients of a problem without bounds grow because nothing holds them.

        Asked only where a run did not converge, or ended at outputs that no uncertain label calls for.
        """
        if not self.problem.unbounded or status is Status.INTERRUPTED:
            return False
        suspicious = status is not Status.CONVERGED or float(np.abs(state.evaluation.margins).max()) > _LARGE_OUTPUT
        if status is Status.NO_FINITE_MINIMISER or not suspicious:
            return False
        return has_separating_direction(self.problem, self.certificate.q)

    # ------------------------------------------------------------------ budgets

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started - self.off_clock

    @property
    def passes(self) -> float:
        return (self.problem.counters.row_reads - self.before.row_reads) / self.problem.n_rows

    def _compile(self) -> None:
        """Compile the kernels of a pass, which belongs to no budget."""
        problem = self.problem
        rows = np.zeros(min(1, problem.data.n_rows), np.int64)
        margins = np.zeros((len(rows), *problem.shape[1:]))
        slopes = problem.loss.value_and_slope(margins, problem.data.y[rows])[1]
        problem.loss.conjugate(slopes, problem.data.y[rows])
        problem.loss.value(margins, problem.data.y[rows])
        problem.data.partial_means(np.zeros(problem.data.n_rows))
        problem.data.row_weights(np.zeros(problem.n_groups))

    # ------------------------------------------------------------------ after each epoch

    def _after_epoch(self, state: State) -> Status | None:
        """Certify where the state stands, record it, and say whether the run is over."""
        pair = self.solver.point(state)
        if pair is not None:
            begun = time.perf_counter()
            with self.problem.counters.suspended():
                state.evaluation = self.problem.evaluate(*pair)
            self.off_clock += time.perf_counter() - begun
        at = state.evaluation
        if not (np.isfinite(at.group_risks).all() and np.isfinite(at.gradient).all()):
            return Status.NUMERICAL_FAILURE
        self._record(state)
        self._save(state)  # first: a callback may take long, or fail
        stopped = self._callback_stops(state)
        return self._agree(self._verdict(state, stopped=stopped))

    def _record(self, state: State) -> None:
        """Take the certificate's bounds from where the state stands, and note them in the trace."""
        certificate, counters = self.certificate, self.problem.counters
        certificate.observe(state.evaluation)
        self.trace.append(
            TraceRow(
                epoch=state.epoch,
                passes=self.passes,
                grad_evals=counters.grad_evals - self.before.grad_evals,
                grad_evals_paper=counters.grad_evals_paper - self.before.grad_evals_paper,
                seconds=self.seconds,
                upper=certificate.upper,
                lower=certificate.lower,
            )
        )

    def _agree(self, status: Status | None) -> Status | None:
        """Return what ends the run of any worker: only clocks and callbacks can differ between them."""
        if self.problem.data.n_workers == 1:
            return status
        kinds = [None, *Status]
        return kinds[int(self.problem.data.largest(np.array([float(kinds.index(status))]))[0])]

    def _verdict(self, state: State, *, stopped: bool = False) -> Status | None:
        """Say whether the run is over."""
        if self.problem.unbounded and self.problem.separated(state.evaluation):
            self.reason = _SEPARABLE
            self.certificate.withdraw()  # beyond the ball the losses go on falling, to zero
            return Status.NO_FINITE_MINIMISER
        if self._within_tolerance():
            return Status.CONVERGED
        if stopped:
            return Status.INTERRUPTED
        if state.stalled:
            return Status.STALLED
        if self.passes >= self.max_passes:
            return Status.PASS_LIMIT
        if self.seconds >= self.max_time:
            return Status.TIME_LIMIT
        return None

    # ------------------------------------------------------------------ checkpoints

    def _save(self, state: State) -> None:
        """Write a checkpoint, off the clock."""
        if self.checkpoints is None:
            return
        begun, arrays, counters = time.perf_counter(), dict[str, Any](), self.problem.counters
        prepared = self.solver.prepared()
        if self.found_references:
            prepared["references"] = {"upper": self.problem.references.upper, "lower": self.problem.references.lower}
        run = {
            "prepared": pack(prepared, arrays),
            "state": pack(state, arrays),
            "certificate": pack(self.certificate.saved(), arrays),
            "trace": [list(vars(row).values()) for row in self.trace],
            "counters": [getattr(counters, name) - getattr(self.before, name) for name in _COUNTS],
            "seconds": max(self.seconds, 0.0),
            "found_references": self.found_references,
            "tolerances": [self.tol, self.atol],
        }
        self.checkpoints.write(state.epoch, run, arrays)
        self.off_clock += time.perf_counter() - begun

    def _latest(self) -> tuple[dict[str, Any], Arrays] | None:
        """Return the newest checkpoint, which the first worker reads and all get."""
        content = b""
        if self.checkpoints is not None:
            found = self.checkpoints.latest()
            with believing():
                content = b"" if found is None else dump_bundle(*found)
        content = self.problem.data.share(content)
        if not content:
            return None
        with believing():
            saved, arrays = parse_bundle(content)
            check_run(saved)
        rough = any(now < before for now, before in zip((self.tol, self.atol), saved["tolerances"], strict=True))
        # References that were found for a rougher tolerance would keep the gap above a finer one for ever.
        return None if rough and saved["found_references"] else (saved, arrays)

    def _go_on(self, saved: dict[str, Any], arrays: Arrays, seed: int) -> State:
        """Return to where a checkpoint stands."""
        with believing(), self.problem.counters.suspended():
            state: State = self.solver.load(self.problem, seed, saved["state"], arrays)
            self.certificate.load(restore(None, saved["certificate"], arrays))
        self.trace = [TraceRow(*row) for row in saved["trace"]]
        for name, count in zip(_COUNTS, saved["counters"], strict=True):
            setattr(self.problem.counters, name, getattr(self.before, name) + count)
        self.off_clock = time.perf_counter() - self.started - saved["seconds"]
        return state

    def _within_tolerance(self) -> bool:
        return met_tolerance(self.certificate.gap, self.certificate.upper, self.tol, self.atol) is not None

    def _callback_stops(self, state: State) -> bool:
        if not self.callbacks:
            return False
        begun = time.perf_counter()
        with self.problem.counters.suspended():
            progress = Progress(self.trace[-1], self.certificate, state, self.centring)
            stops = [bool(callback(progress)) for callback in self.callbacks]
        self.off_clock += time.perf_counter() - begun
        return any(stops)

    # ------------------------------------------------------------------ the end

    def _finish(self, state: State, status: Status, average: OutputPair | None) -> Result:
        problem, certificate, seconds, passes = self.problem, self.certificate, self.seconds, self.passes
        if certificate.w is None or certificate.q is None or certificate.group_risks is None:
            raise FloatingPointError(
                "The very first pass over the data gave no finite risks and bounds: X or y is too large."
            )
        w = self.centring.outward(certificate.w)
        with problem.counters.suspended():
            # "Converged" is said of the model that is returned, which rounding in the units of the user may have moved,
            # not of what was computed on the way to it.
            certificate.w = self.centring.inward(w)
            fresh = problem.risks(certificate.w)
            certificate.upper, certificate.group_risks = problem.objective(certificate.w, fresh), fresh
        far_away = problem.is_far_away(certificate.w)
        if far_away:
            certificate.withdraw()
            status = Status.STALLED if status is Status.CONVERGED else status
        rounded_off = status is Status.CONVERGED and bool(self.centring.target or self.centring.columns.size)
        rounded_off = rounded_off and not self._within_tolerance() and not certificate.contradicts_itself
        if rounded_off:
            status = Status.STALLED
        if self._within_tolerance() and status in (Status.PASS_LIMIT, Status.TIME_LIMIT, Status.INTERRUPTED):
            status = Status.CONVERGED  # thanks to the average
        elif certificate.contradicts_itself or (status is Status.CONVERGED and not self._within_tolerance()):
            status = Status.NUMERICAL_FAILURE
        message = status.value
        if status is Status.NO_FINITE_MINIMISER:
            message = f"No finite minimiser exists: {self.reason}."
        elif status is not Status.CONVERGED:
            message = _FAR_AWAY if far_away else _OFFSETS if rounded_off else message
            message = f"{message} Gap {certificate.gap:.3g} at an upper bound of {certificate.upper:.6g}."
        counters = replace(
            problem.counters,
            grad_evals=problem.counters.grad_evals - self.before.grad_evals,
            grad_evals_paper=problem.counters.grad_evals_paper - self.before.grad_evals_paper,
            row_reads=problem.counters.row_reads - self.before.row_reads,
        )
        return Result(
            w=w,
            q=certificate.q,
            group_risks=certificate.group_risks,
            group_values=certificate.group_risks - problem.baseline.lower,
            upper_bound=certificate.upper,
            lower_bound=certificate.lower,
            gap=certificate.gap,
            status=status,
            message=message,
            counters=counters,
            passes=passes,
            seconds=seconds,
            epochs=state.epoch,
            trace=tuple(self.trace),
            average=average,
            group_names=problem.data.names,
            references=problem.references,
            solver=self.solver.describe(),
            tol=self.tol,
            atol=self.atol,
            bound_radius=problem.output_ball.limit if problem.unbounded else np.inf,
            interrupted=self.interrupted,
        )

    def _average(self, state: State) -> OutputPair | None:
        """Certify the solver's average, which may improve the best pair too."""
        pair = self.solver.average(state)
        if pair is None:
            return None
        own, begun = Certificate(self.problem), time.perf_counter()
        with self.problem.counters.suspended():
            at = self.problem.evaluate(*pair)
            own.observe(at)
            self.certificate.observe(at)
        self.off_clock += time.perf_counter() - begun
        return OutputPair(self.centring.outward(pair[0]), pair[1], own.upper, own.lower)
