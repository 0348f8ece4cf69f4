"""`solve`, the entry point for running a solver."""

import os
from collections.abc import Iterable

import numpy as np

from groupdro.problem import GroupRisk
from groupdro.problem.centring import recentre, resolution
from groupdro.run.checkpoint import CheckpointFile, problem_digest
from groupdro.run.result import Result
from groupdro.run.run import Callback, Run
from groupdro.run.solver import Solver, make_solver
from groupdro.utils.arguments import check_kind, check_number, check_path, check_whole, read_callables
from groupdro.utils.threads import one_blas_thread

__all__ = ["solve"]


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
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> Result:
    """Solve a problem until its certified gap is within a tolerance or a budget is used up.

    Parameters
    ----------
    problem : GroupRisk
        The problem.
    solver : str or Solver
        Name of a registered solver, or a solver object with options. "auto" picks one by a cost model and is a good
        choice unless you know better; `Result.solver` says which one ran and why.
    tol : float
        Relative tolerance: stop when the certified gap is at most `tol` times the upper bound. Decrease it for a more
        accurate optimum.
    atol : float, optional
        Absolute tolerance: stop when the certified gap is at most `atol`, in the units of the loss. Meeting either
        tolerance ends the run; `Result.criterion` says which one was met. The default is ``tol ** 2`` for excess risks,
        whose optimum may be zero. Otherwise it is tiny, just large enough for a model that fits perfectly up to
        rounding to count as optimal.
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
        workers were.

    Returns
    -------
    Result
        The best certified pair, and how it was found. Ctrl-C ends the run and returns the best pair so far.
    """
    check_kind(problem, "problem", GroupRisk, "a GroupRisk")
    _refuse_changed_objective(problem)
    check_number(tol, "tol")
    if atol is not None:
        check_number(atol, "atol")
    for name, value in (("max_passes", max_passes), ("max_time", max_time)):
        check_number(value, name, positive=True, finite=False)
    check_whole(seed, "seed")
    callbacks = read_callables(callbacks, "callbacks")
    solver = make_solver(solver)
    solver.check(problem)
    problem, centring = recentre(problem)
    if problem.single_precision:
        problem = problem.starting_at(*problem.given_start)  # a copy whose precision the run may change
    if atol is None:
        regret = problem.regret or solver.minimises_regrets
        atol = max(resolution(problem, centring), tol**2 if regret else 0.0)
    run = Run(problem, centring, solver, tol, atol, max_passes, max_time, callbacks, seed)
    if checkpoint_dir is not None:
        digest = problem_digest(problem, regret=solver.minimises_regrets)
        run.checkpointed = True
        if problem.data.is_first:
            run.file = CheckpointFile(check_path(checkpoint_dir, "checkpoint_dir"), digest)
    with one_blas_thread():  # our own threads share the blocks of a pass
        return run()


def _refuse_changed_objective(problem: GroupRisk) -> None:
    """Refuse a subclass that overrides what solvers and certificates rely on; their bounds would not hold for it."""
    kind = type(problem)
    parts = {name: part for base in reversed(GroupRisk.__mro__[:-1]) for name, part in vars(base).items()}
    for name, own in parts.items():
        if not name.startswith("__") and (getattr(kind, name) is not own or name in vars(problem)):
            raise TypeError(
                f"problem is a {kind.__name__}, which overrides {name!r} of GroupRisk, so no bound would hold for it. "
                "Pass a custom loss or domain to GroupRisk instead."
            )
