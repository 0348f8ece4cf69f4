"""`solve`, the entry point for running a solver."""

import os
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from groupdro.problem import Problem
from groupdro.run.checkpoint import CheckpointFile, problem_digest
from groupdro.run.result import Result
from groupdro.run.run import Callback, Run
from groupdro.run.smoothing import solve_with_kink
from groupdro.run.solver import Solver, make_solver
from groupdro.utils.arguments import check_kind, check_number, check_path, check_whole, read_callables, short_repr
from groupdro.utils.threads import one_blas_thread
from groupdro.utils.types import Floats

__all__ = ["solve"]

_OFF_SIMPLEX = 1e-6  # allowed deviation of the sum of the initial group weights from 1


def solve(
    problem: Problem,
    solver: str | Solver = "auto",
    *,
    w: Floats | None = None,
    q: Floats | None = None,
    tol: float = 1e-4,
    atol: float | None = None,
    max_passes: float = 1000.0,
    max_time: float = np.inf,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> Result:
    """Solve a problem until its certified gap is within a tolerance or a budget is used up.

    Parameters
    ----------
    problem : Problem
        The problem.
    solver : str or Solver
        Name of a registered solver, or a solver object with options. "auto" picks one by a cost model and is a good
        choice unless you know better; `Result.solver` says which one ran and why.
    w, q : ndarray, optional
        Parameters and group weights to start from; by default the centres of their sets. If the constant model of
        the default start has a smaller objective than w, the run starts from that constant.
    tol : float
        Relative tolerance: stop when the certified gap is at most `tol` times the upper bound. Decrease it for a more
        accurate optimum.
    atol : float, optional
        Absolute tolerance: stop when the certified gap is at most `atol`, in the units of the loss. Meeting either
        tolerance ends the run; `Result.criterion` says which one was met. The default for excess risks, whose optimum
        may be zero, is ``tol ** 2`` times the loss of a constant prediction in the group where it is smallest.
        Otherwise it is tiny, just large enough for a model that fits perfectly up to rounding to count as optimal.
    max_passes : float
        Limit on passes over the data. The run ends after the epoch that reaches it.
    max_time : float
        Time limit in seconds, excluding compilation and evaluations for the trace. The run ends after the epoch that
        reaches it.
    seed : int
        Seed of all random numbers. Runs with the same seed are identical.
    callbacks : iterable of callable
        Called with a `Progress` after every epoch, off the clock. A callback that returns a true value ends the run.
    checkpoint_dir : str or path-like, optional
        Directory in which to save what was proved, after every epoch: one file per problem. If there is a checkpoint of
        the same data and problem, the run starts from its model and bounds, whatever the solver, seed or number of
        workers were. A quantile fit solves a sequence of smooth problems and saves each of them in its own file.

    Returns
    -------
    Result
        The best certified pair, and how it was found. Ctrl-C ends the run and returns the best pair so far.
    """
    check_kind(problem, "problem", Problem, "a Problem")
    w, q = _read_start(problem, w, q)
    check_number(tol, "tol")
    if atol is not None:
        check_number(atol, "atol")
    for name, value in (("max_passes", max_passes), ("max_time", max_time)):
        check_number(value, name, positive=True, finite=False)
    check_whole(seed, "seed")
    callbacks = read_callables(callbacks, "callbacks")
    solver = make_solver(solver)
    folder = None if checkpoint_dir is None else check_path(checkpoint_dir, "checkpoint_dir")

    def solve_smooth(
        smooth: Problem,
        w: Floats | None,
        q: Floats | None,
        atol: float | None = atol,
        passes: float = 0.0,
        seconds: float = 0.0,
        solver: Solver = solver,
        tol: float = tol,
        *,
        alone: bool = False,
    ) -> Result:
        run = Run.of(
            smooth,
            solver,
            w,
            q,
            tol=tol,
            atol=atol,
            max_passes=max(max_passes - passes, 1.0),
            max_time=max(max_time - seconds, 1e-3),
            callbacks=() if alone else callbacks,
            seed=seed,
        )
        if folder is not None and not alone:
            digest = problem_digest(run.problem, excess=run.minimises_excess)
            run.checkpointed = True
            if problem.data.is_first:
                run.file = CheckpointFile(folder, digest)
        return run()

    with one_blas_thread():  # our own threads share the blocks of a pass
        if problem.loss.has_kink:
            # Smooth problems end by the tolerance that their width sets. With no relative one, "auto" plans for an
            # accurate fit, which is right for them: near the kink their condition is bad.
            smoothly = partial(solve_smooth, tol=0.0)
            of_groups = partial(smoothly, solver=make_solver("auto"), alone=True) if solver.finds_minima else None
            return solve_with_kink(problem, w, q, smoothly, tol=tol, atol=atol, solve_alone=of_groups)
        return solve_smooth(problem, w, q)


def _read_start(problem: Problem, w: Any, q: Any) -> tuple[Floats | None, Floats | None]:
    """Check and return the w and q to start from, in float64."""
    shapes = {"w": problem.shape, "q": (problem.n_groups,)}
    for name, given in (("w", w), ("q", q)):
        if given is None:
            continue
        if not (isinstance(given, np.ndarray) and given.dtype.kind in "fiu"):
            raise TypeError(f"{name} must be an array of numbers, got {short_repr(given)}.")
        if given.shape != shapes[name]:
            raise ValueError(f"{name} must have the shape {shapes[name]} of the problem's, got {given.shape}.")
        if not np.isfinite(given).all():
            raise ValueError(f"{name} has NaN or infinite values.")
    if q is not None:
        q = q.astype(np.float64)
        if (q < 0).any() or abs(q.sum() - 1.0) > _OFF_SIMPLEX:
            raise ValueError("q must be a distribution: its entries must be at least 0 and sum to one.")
        q /= q.sum()
        if not problem.weight_set.contains(q):
            raise ValueError(f"q lies outside {type(problem.weight_set).__name__}.")
    return (None if w is None else problem.within_domain(w.astype(np.float64))), q
