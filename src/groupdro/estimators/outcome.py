"""The outcome of a fit: its average and worst value, with proven bounds on both."""

from dataclasses import dataclass, replace

import numpy as np

from groupdro.estimators.blend import ALL_ROWS, Blend
from groupdro.oracle import Oracle
from groupdro.problem import Problem
from groupdro.solvers import Result
from groupdro.utils.types import Floats

__all__ = ["Outcome", "read_outcome"]

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
    risks : ndarray of the same shape
        Risks of these groups, without the penalty; where a group has no weight, maybe 0.
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
    risks: Floats
    mean: float
    worst: float
    mean_lower: float
    worst_lower: float


def read_outcome(
    problem: Problem, result: Result, blend: Blend, robustness: float, row_weights: Floats | None
) -> Outcome:
    """Return average and worst of a result, with bounds on both.

    Parameters
    ----------
    problem : Problem
        The solved problem, with group weights as in `blend`.
    result : Result
        Its result.
    blend : Blend
        Definition of the average and the worst.
    robustness : float
        Weight of the worst in the blend.
    row_weights : ndarray of shape (n_rows,) or None
        Weights of the stored rows, if they differ.

    Returns
    -------
    Outcome
        The result, with its average and worst value.
    """
    if robustness < 1.0:
        return _blended(problem, result, blend, robustness)
    mean = np.nan
    if not blend.over_all or result.group_minima is None:
        values = result.group_values
        if blend.over_all:
            whole = Oracle(problem.with_group_of_all(ALL_ROWS, row_weights))
            values = np.append(values, whole.risks(result.w)[-1])
        mean = blend.mean(values) + result.upper_bound - problem.weight_set.support(result.group_values)
    mean_lower = result.lower_bound if problem.n_groups == 1 else result.mean_lower
    if mean_lower > mean:  # a bound that exceeds the attained value by more than rounding proves nothing
        scale = max(abs(mean), float(np.abs(result.group_risks).max()))
        mean_lower = mean if mean_lower <= mean + _CONTRADICTION * scale else -np.inf
    q, risks = (np.append(each, np.zeros(int(blend.over_all))) for each in (result.q, result.group_risks))
    return Outcome(result, q, risks, mean, result.upper_bound, mean_lower, result.lower_bound)


def _blended(problem: Problem, result: Result, blend: Blend, robustness: float) -> Outcome:
    """Return the outcome of a blend, whose lower bound limits each part given the other."""
    penalty = result.upper_bound - problem.weight_set.support(result.group_values)
    mean, worst = (of(result.group_values) + penalty for of in (blend.mean, blend.worst))
    lower = result.lower_bound
    mean_lower = (lower - robustness * worst) / (1.0 - robustness)
    # The largest value is at least the average of the values, which is all that plain training proves about it.
    # Rows in several groups count once in the average over rows, which may then exceed every value.
    plain = lower if blend.caps is None and not blend.over_all else -np.inf
    worst_lower = (lower - (1.0 - robustness) * mean) / robustness if robustness else plain
    # Losses and penalties are nonnegative, which bounds both if the fit ended early.
    least = problem.offsets - (0.0 if result.group_minima is None else result.group_minima.upper)
    mean_lower = max(mean_lower, blend.mean(least))
    worst_lower = max(worst_lower, blend.worst(least))
    shown = _without_all_rows(result, blend.n_groups)
    return Outcome(shown, result.q, result.group_risks, mean, worst, min(mean_lower, mean), min(worst_lower, worst))


def _without_all_rows(result: Result, n_groups: int) -> Result:
    """Return a result without the group of all rows."""
    found = result.group_minima
    minima = None if found is None else found.of_first(n_groups)
    names = ("q", "group_risks", "group_values", "group_names")
    return replace(result, group_minima=minima, **{name: getattr(result, name)[:n_groups] for name in names})
