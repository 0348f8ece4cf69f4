"""The outcome of a fit: its average and worst value, with proven bounds on both."""

from dataclasses import dataclass, replace

import numpy as np

from groupdro.estimators.between import ALL_ROWS, Between
from groupdro.problem import GroupRisk
from groupdro.run.clock import Clock
from groupdro.solvers import GroupSQP, Result, solve
from groupdro.solvers.auto import weights_are_costly
from groupdro.solvers.least_average import LeastAverage, find_least_average
from groupdro.utils.types import Floats

__all__ = ["Outcome", "read_outcome"]

_FINER = 0.05  # share of the tolerance to which the best worst value is determined before the slack is used
_SHARE_OF_MEAN = 0.1  # share of the tolerance to which the smallest average is found
_FEWEST_PASSES = 60.0  # passes for using the slack, or as many as the fit took if more
_LEAST_SLACK = 1e-9  # below which the slack is mere rounding
_CONTRADICTION = 1e-9  # relative amount by which a value may not be below a bound


@dataclass(frozen=True, eq=False)
class Outcome:
    """A result, with its average and worst value. All values include the penalty.

    Attributes
    ----------
    result : Result
        The result for the user's groups.
    q : ndarray of shape (n_groups,) or (n_groups + 1,)
        Group weights that prove the lower bound, including the group of all rows if groups overlap.
    mean, worst : float
        Average and worst value of the model; NaN if the average is unknown.
    mean_lower : float
        No model whose worst value is at most that of this one has a smaller average. At robustness 1, this holds for
        models whose worst value is within the tolerance of the lower bound.
    worst_lower : float
        No model whose average is at most that of this one has a smaller worst value.
    """

    result: Result
    q: Floats
    mean: float
    worst: float
    mean_lower: float
    worst_lower: float


def read_outcome(
    problem: GroupRisk,
    result: Result,
    between: Between,
    robustness: float,
    row_weights: Floats | None,
    *,
    max_passes: float,
    max_time: float,
    spend: bool = True,
) -> Outcome:
    """Return average and worst of a result. At robustness 1, the slack of the tolerance is used first.

    Parameters
    ----------
    problem : GroupRisk
        The solved problem, with group weights as in `between`.
    result : Result
        Its result.
    between : Between
        Definition of the average and the worst.
    robustness : float
        Weight of the worst in the blend.
    row_weights : ndarray of shape (n_rows,) or None
        Weights of the stored rows, if they differ.
    max_passes, max_time : float
        Limits on passes and seconds of the whole fit.
    spend : bool
        Whether to use the slack to improve the average.

    Returns
    -------
    Outcome
        The result, possibly of another model that is as good on the worst group and better on average.
    """
    if robustness < 1.0:
        penalty = result.upper_bound - problem.weight_set.support(result.group_values)
        mean, worst = (of(result.group_values) + penalty for of in (between.mean, between.worst))
        lower = result.lower_bound
        mean_lower = (lower - robustness * worst) / (1.0 - robustness)
        # The largest value is at least the average of the values, which is all that plain training proves about it.
        # Rows in several groups count once in the average over rows, which may then exceed every value.
        plain = lower if between.caps is None and not between.over_all else -np.inf
        worst_lower = (lower - (1.0 - robustness) * mean) / robustness if robustness else plain
        # Losses and penalties are nonnegative, which bounds both if the fit ended early.
        least = problem.offsets - result.references.upper
        mean_lower = max(mean_lower, between.mean(least))
        worst_lower = max(worst_lower, between.worst(least))
        shown = _without_all_rows(result, between.n_groups)
        return Outcome(shown, result.q, mean, worst, min(mean_lower, mean), min(worst_lower, worst))
    known = not (between.over_all and result.references.upper.any())
    left = max_passes - result.passes, max_time - result.seconds
    if spend and known and result.converged and not result.interrupted:
        clock = Clock(problem)
        found = _use_slack(problem, result, between, row_weights, *left)
        if found is not None:
            return found
        result = replace(result, passes=result.passes + clock.passes)  # including the unsuccessful search
    mean, values = np.nan, result.group_values
    if known:
        if between.over_all:
            values = np.append(values, _with_average(problem, between, row_weights).risks(result.w)[-1])
        mean = between.mean(values) + result.upper_bound - problem.weight_set.support(result.group_values)
    mean_lower = result.lower_bound if problem.n_groups == 1 else -np.inf
    return Outcome(result, _all_weights(result, between), mean, result.upper_bound, mean_lower, result.lower_bound)


def _all_weights(result: Result, between: Between) -> Floats:
    """Return the weights at robustness 1, where the group of all rows has none."""
    return np.append(result.q, 0.0) if between.over_all else result.q


def _without_all_rows(result: Result, n_groups: int) -> Result:
    """Return a result without the group of all rows."""
    references = type(result.references)(result.references.upper[:n_groups], result.references.lower[:n_groups])
    names = ("q", "group_risks", "group_values", "group_names")
    return replace(result, references=references, **{name: getattr(result, name)[:n_groups] for name in names})


def _with_average(problem: GroupRisk, between: Between, row_weights: Floats | None) -> GroupRisk:
    """Return the problem with the group of all rows, if that represents the average."""
    if not between.over_all:
        return problem
    return GroupRisk(
        problem.data.with_group_of_all(ALL_ROWS, row_weights),
        problem.loss,
        problem.domain,
        fit_intercept=problem.fit_intercept,
        offsets=np.append(problem.offsets, 0.0),
        counters=problem.counters,
    )


def _use_slack(
    problem: GroupRisk, result: Result, between: Between, row_weights: Floats | None, passes: float, seconds: float
) -> Outcome | None:
    """Return the model with the smallest average among those whose worst value is within the tolerance."""
    regret, tol = bool(result.references.upper.any()), result.tol
    if regret:
        problem = problem.with_references(result.references)
    if not _has_slack(problem, result, between, regret=regret):
        return None
    most, lower, start = max(_FEWEST_PASSES, result.passes), result.lower_bound, (result.w, result.q)
    unknown = 2.0 * problem.baseline.width_at(result.q)  # no gap of excess risks can be smaller
    if result.gap > max(_FINER * tol * abs(result.upper_bound), unknown):
        # The slack depends on the best value: if that were known only to the tolerance, so would the model be.
        finer = solve(
            problem.starting_at(*start), GroupSQP(), tol=_FINER * tol, atol=unknown,
            max_passes=max(min(passes, most), 1e-3), max_time=max(seconds, 1e-3),
        )  # fmt: skip
        if finer.interrupted or not np.isfinite(finer.gap):  # contradicting bounds prove nothing
            return None
        if finer.upper_bound <= result.upper_bound:
            start = finer.w, finer.q
        if finer.lower_bound > lower:
            lower, result = finer.lower_bound, replace(result, q=finer.q, lower_bound=finer.lower_bound)
        passes, seconds = passes - finer.passes, seconds - finer.seconds
        result = replace(result, passes=result.passes + finer.passes, seconds=result.seconds + finer.seconds)
    level = lower + max(tol * abs(lower) / (1.0 if lower >= 0 else 1.0 + tol), result.atol)
    whole = _with_average(problem, between, row_weights)
    base = between.base
    if between.over_all:
        base = np.append(np.zeros(problem.n_groups), 1.0)
        start = start[0], np.append(start[1], 0.0)
    assert base is not None
    found = find_least_average(
        whole, base, level, lower, start, tol=_SHARE_OF_MEAN * tol, max_passes=min(passes, most), max_time=seconds,
        n_bound=problem.n_groups,
    )  # fmt: skip
    return None if found is None else _outcome(result, problem, between, found)


def _has_slack(problem: GroupRisk, result: Result, between: Between, *, regret: bool) -> bool:
    """Return whether the tolerance leaves slack, and whether the average can use it."""
    one = problem.n_groups == 1 or between.caps is not None or not problem.weight_set.is_simplex
    # Values that are zero up to rounding leave none. If nothing bounds the coefficients, the average may have no
    # minimiser, and bounds hold for only some of the models.
    none = result.tol < _LEAST_SLACK or (result.criterion == "atol" and not regret)
    known = problem.domain.ball is not None and GroupSQP().fits(problem)
    # The search solves programs like those of SQP, in whose time dual ascent does everything else.
    return known and not (one or none or problem.unbounded or weights_are_costly(problem, result.tol))


def _outcome(result: Result, problem: GroupRisk, between: Between, found: LeastAverage) -> Outcome | None:
    risks = found.group_risks[: problem.n_groups]
    gap = max(found.worst - result.lower_bound, 1e-12 * abs(found.worst))
    changed = replace(
        result, w=found.w, group_risks=risks, group_values=risks - problem.baseline.lower, upper_bound=found.worst,
        gap=gap, passes=result.passes + found.passes, seconds=result.seconds + found.seconds,
        interrupted=found.interrupted,
    )  # fmt: skip
    contradicts = found.worst < result.lower_bound - _CONTRADICTION * abs(result.lower_bound)
    if changed.criterion is None or contradicts:
        return None  # beyond the tolerance by rounding, or below a proven bound
    q = _all_weights(changed, between)
    return Outcome(changed, q, found.mean, found.worst, found.mean_lower, changed.lower_bound)
