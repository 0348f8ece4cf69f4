"""Losses with a kink, such as the pinball loss: smooth problems of decreasing width, and the bounds of the true one.

A smoothed loss is smaller than the true one, so lower bounds of its problem hold for the true problem. Better ones
follow from the conjugates of the true loss at the same duals, and the gap to the true objective falls with the width.
As in interior-point methods, each problem starts at the solution of the one before.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from groupdro.certificate import Certificate
from groupdro.certificate.certificate import cut_of_duals
from groupdro.oracle import Oracle
from groupdro.oracle.duals import balanced_slopes, slopes_at
from groupdro.problem import GroupMinima, Problem
from groupdro.problem.centring import recentre, resolution
from groupdro.run.ending import message_of, most_with_rounding
from groupdro.run.result import Result, Status, TraceRow, met_tolerance
from groupdro.utils.types import Floats

__all__ = ["solve_with_kink"]

_FIRST_WIDTH = 0.5  # relative to the mean deviation of the targets
_SHARE = 0.1  # of the width, which is about the gap that it leaves: to which smooth problems are solved
_FINER = 0.1  # first tolerance of the groups' minima, of which the excess risks may be a small part
_FINEST = 1e-10  # their last one
_MOST_WIDTHS = 30
_LEAST_WIDTH = 1e-14  # relative to the first: less is lost in rounding
_FALLS = 0.1, 0.5  # smallest and largest factor between widths

#: Solves a smooth problem from w and q, given an absolute tolerance, and the passes and seconds already used.
SolveSmooth = Callable[[Problem, Floats | None, Floats | None, float, float, float], Result]


def solve_with_kink(
    problem: Problem,
    w: Floats | None,
    q: Floats | None,
    solve_smooth: SolveSmooth,
    *,
    tol: float,
    atol: float | None,
    solve_alone: SolveSmooth | None = None,
) -> Result:
    """Solve smoothed problems until the gap of the true one is within the tolerance.

    Parameters
    ----------
    problem : Problem
        The problem.
    w, q : ndarray or None
        Where to start.
    solve_smooth : callable
        Solves a smooth problem within what is left of the budgets.
    tol, atol : float
        Tolerances, as in `solve`.
    solve_alone : callable, optional
        Solves smooth problems of single groups, whose minima are found first for excess risks.

    Returns
    -------
    Result
        The result for the true problem, whose trace has one row per width.
    """
    given, passes, seconds, finer = problem, 0.0, 0.0, _FINER * tol

    atol_alone = atol
    minima = None  # those that are found here
    if solve_alone is not None and problem.group_minima is None:
        minima, passes, seconds = _minima(given, solve_alone, finer, atol_alone, passes, seconds)
        problem = problem.with_minima(minima)
    problem, centring = recentre(problem)
    w = None if w is None else centring.inward(w)
    width = _FIRST_WIDTH * _mean_deviation(problem)
    least_width = _LEAST_WIDTH * width
    certificate = Certificate(Oracle(problem))
    if atol is None:
        least = 0.0 if problem.group_minima is None else tol**2 * problem.unit_of_loss
        atol = max(resolution(problem, centring), least)
    trace: list[TraceRow] = []
    while True:
        smooth = problem.with_rows(problem.data, problem.loss.smoothed(width))
        if problem.group_minima is not None:  # their width is part of the true gap alone
            smooth = smooth.with_minima(GroupMinima.exact(problem.group_minima.upper))
        found = solve_smooth(smooth, w, q, _SHARE * width, passes, seconds)
        passes, seconds = passes + found.passes, seconds + found.seconds
        w, q = found.w, found.q
        risks, lower = _bounds_of(problem, smooth, w, q)
        certificate.offer(w, risks)
        certificate.offer_bound(max(lower, found.lower_bound), q)
        last = replace(found.trace[-1], epoch=len(trace), passes=passes, seconds=seconds)
        trace.append(replace(last, upper=certificate.upper, lower=certificate.lower))
        met = met_tolerance(certificate.gap, certificate.upper, tol, atol)
        if met is not None or found.status in _LAST or len(trace) == _MOST_WIDTHS:
            break
        aim = 0.5 * max(tol * abs(certificate.upper), atol)
        if solve_alone is not None and minima is not None and minima.width_at(q) > aim and finer > _FINEST:
            # The minima are too rough for excess risks as small as these.
            finer = max(finer * min(0.5 * aim / minima.width_at(q), _FALLS[1]), _FINEST)
            rough = minima
            minima, passes, seconds = _minima(given, solve_alone, finer, atol_alone, passes, seconds)
            minima = GroupMinima(np.minimum(minima.upper, rough.upper), np.maximum(minima.lower, rough.lower))
            problem = problem.with_minima(minima)
            certificate.tighten(Oracle(problem))
            continue
        width *= float(np.clip(aim / certificate.gap, *_FALLS))
        if width < least_width:
            break
    # The returned model, whose bounds rounding in the user's units may have changed.
    assert certificate.w is not None
    w = centring.outward(certificate.w)
    risks = Oracle(given).risks(w)
    stated = given if minima is None else given.with_minima(minima)
    upper = most_with_rounding(stated, w, risks, stated.objective(w, risks))
    certificate = certificate.with_model(certificate.w, risks, upper)
    assert certificate.q is not None
    status = found.status
    if certificate.contradicts_itself:
        status = Status.NUMERICAL_FAILURE
    elif met_tolerance(certificate.gap, upper, tol, atol) is not None:
        status = Status.CONVERGED
    elif status not in _LAST:
        status = Status.STALLED
    return replace(
        found,
        w=w,
        q=certificate.q,
        group_risks=risks,
        group_values=risks - problem.baseline.lower,
        upper_bound=upper,
        lower_bound=certificate.lower,
        gap=certificate.gap,
        status=status,
        message=found.message if status is Status.NO_FINITE_MINIMISER else message_of(status, certificate.gap, upper),
        passes=passes,
        seconds=seconds,
        epochs=len(trace),
        trace=tuple(trace),
        average=None,
        group_minima=problem.group_minima,
        solver=f"{found.solver}; {len(trace)} widths of the kink, the last {width:.2g}",
        tol=tol,
        atol=atol,
    )


_LAST = (
    Status.PASS_LIMIT,
    Status.TIME_LIMIT,
    Status.INTERRUPTED,
    Status.NO_FINITE_MINIMISER,
    Status.NUMERICAL_FAILURE,
)


def _minima(
    problem: Problem, solve_smooth: SolveSmooth, tol: float, atol: float | None, passes: float, seconds: float
) -> tuple[GroupMinima, float, float]:
    """Return bounds of the groups' minima, and the passes and seconds used, including those used before.

    A worker solves the groups that it holds entirely; those divided among workers are solved by all together.
    """
    data = problem.data
    shares = data.all_sizes / problem.n_rows
    bounds = np.full((2, problem.n_groups), -np.inf)  # of minus the upper and of the lower bounds
    used = np.array([passes, seconds, 0.0])  # and whether it was interrupted

    def bound(i: int) -> None:
        before = used.copy()

        def solve(smooth: Problem, w: Floats | None, q: Floats | None, atol: float, own: float, clock: float) -> Result:
            return solve_smooth(smooth, w, q, atol, before[0] + shares[i] * own, before[1] + clock)

        found = solve_with_kink(problem.group(i), None, None, solve, tol=tol, atol=atol)
        bounds[:, i] = -found.upper_bound, found.lower_bound
        used[:] += shares[i] * found.passes, found.seconds, found.interrupted

    here = data.whole_groups()
    held = here.astype(np.float64)
    data.add_up(held)
    for i in np.flatnonzero(here).tolist():
        if not used[2]:
            bound(i)
    own = np.array([used[0] - passes])
    data.add_up(own)
    used = data.largest(np.array([passes + own[0], *used[1:]]))
    for i in np.flatnonzero(held == 0.0).tolist():
        if not used[2]:
            bound(i)
    if used[2]:
        raise KeyboardInterrupt  # it ended only one group's run, and nothing is certified for the others
    upper, lower = data.largest(bounds) * [[-1.0], [1.0]]
    return GroupMinima(upper, lower), float(used[0]), float(used[1])


def _mean_deviation(problem: Problem) -> float:
    """Return the largest mean deviation of a group's targets from the groups' average."""
    data = problem.data
    centre = float(data.group_means(data.y).mean())
    return float(data.group_means(np.abs(data.y - centre)).max()) or 1.0


def _bounds_of(problem: Problem, smooth: Problem, w: Floats, q: Floats) -> tuple[Floats, float]:
    """Return the true group risks, and a lower bound from the slopes of the smoothed losses."""
    oracle = Oracle(problem)
    smoothly = Oracle(smooth)
    at = smoothly.evaluate(w, q)
    row_weights = problem.data.row_weights(q)
    duals = balanced_slopes(smoothly, at, row_weights) if problem.fit_intercept else slopes_at(smooth, at)
    risks = oracle.risks(w)
    cut = cut_of_duals(oracle, at, duals, row_weights)
    if cut is None:
        return risks, -np.inf
    return risks, cut.bound(problem, problem.solution_set(problem.objective(w, risks)))
