"""`solve`: the way into a run."""

import os
from collections.abc import Iterable

import numpy as np

from groupdro.problem import GroupRisk
from groupdro.problem.centring import recentre, resolution
from groupdro.run.checkpoint import Checkpoints, fingerprint
from groupdro.run.result import Result
from groupdro.run.run import Callback, Run
from groupdro.run.solver import Solver, make_solver
from groupdro.utils.arguments import check_flag, check_kind, check_number, check_path, check_whole, read_callables
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
    callbacks = read_callables(callbacks, "callbacks")
    solver = make_solver(solver)
    solver.check(problem)
    if average_duals and not problem.data.is_whole:
        raise ValueError("average_duals must be False over several workers, which keep the duals of their own rows.")
    problem, centring = recentre(problem)
    if problem.single_precision:
        problem = problem.starting_at(*problem.given_start)  # one whose precision the run may change
    if atol is None:
        regret = problem.regret or solver.minimises_regrets
        atol = max(resolution(problem, centring), tol**2 if regret else 0.0)
    run = Run(problem, centring, solver, tol, atol, max_passes, max_time, callbacks, average_duals, seed)
    if checkpoint_dir is not None:
        key = fingerprint(problem, solver, seed)
        run.checkpointed = True
        if problem.data.is_first:
            run.checkpoints = Checkpoints(check_path(checkpoint_dir, "checkpoint_dir"), key)
    with one_blas_thread():  # threads of our own share the blocks of a pass
        return run()


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
