"""The same problems stated for CVXPY and solved by Clarabel: an answer that shares no code with the package's."""

import warnings
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from scipy.special import xlogy

from groupdro.problem import Box, Cap, ElasticNetDomain, Floor, L2Domain, Problem

# Tighter than the default, with shorter steps that get closer on degenerate problems; then other ways to the same.
_TIGHT = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9, "max_iter": 300}
_SETTINGS: tuple[dict[str, Any], ...] = (
    {**_TIGHT, "max_step_fraction": 0.8},
    {**_TIGHT, "iterative_refinement_reltol": 1e-15, "iterative_refinement_max_iter": 100},
    {**_TIGHT, "max_step_fraction": 0.9, "equilibrate_enable": False},
    {**_TIGHT, "max_step_fraction": 0.6, "static_regularization_constant": 1e-10},
)


@dataclass(frozen=True)
class Reference:
    """Optimal value, the w and q that attain it, and whether Clarabel called it accurate."""

    value: float
    w: Any
    q: Any
    accurate: bool


def membership_matrix(problem: Problem) -> np.ndarray:
    """Row i holds the weights of group i's mean over the stored rows."""
    data = problem.data
    A = np.zeros((data.n_groups, data.n_rows))
    for i in range(data.n_groups):
        for e in range(data.offsets[i], data.offsets[i + 1]):
            row = data.members[e] if data.members.size else e
            A[i, row] += data.weights[e] if data.weights.size else 1.0 / data.group_sizes[i]
    return A


def dense_rows(problem: Problem) -> np.ndarray:
    rows = problem.data.rows
    return np.asarray(rows.X.todense() if hasattr(rows.X, "todense") else rows.X, dtype=np.float64)


def _losses(problem: Problem, w: Any) -> Any:
    """The rows' losses as a CVXPY expression of w."""
    X, y, d = dense_rows(problem), problem.data.y, problem.data.n_features
    name = problem.loss.name
    offset = problem.data.row_offsets if problem.data.row_offsets.size else 0.0
    if name == "softmax":
        u = offset + X @ w[:d] + (np.ones((len(X), 1)) @ w[d:] if problem.fit_intercept else 0)
        own = np.zeros((len(X), problem.shape[1]))
        own[np.arange(len(X)), y.astype(int)] = 1.0
        return cp.log_sum_exp(u, axis=1) - cp.sum(cp.multiply(own, u), axis=1)
    u = np.ravel(offset) + X @ w[:d] + (w[d] if problem.fit_intercept else 0)
    if name == "logistic":
        return cp.logistic(-cp.multiply(y, u))
    if name == "squared":
        return cp.square(u - y) / 2
    if name == "huber":
        return cp.huber(u - y, problem.loss.delta) / 2
    if name == "poisson":
        return cp.exp(u) - cp.multiply(y, u) + xlogy(y, y) - y
    if name == "gamma":
        return cp.multiply(y, cp.exp(-u)) + u - np.log(y) - 1
    if name == "tweedie":
        p = problem.loss.power
        both = cp.exp((2 - p) * u) / (2 - p) + cp.multiply(y, cp.exp((1 - p) * u)) / (p - 1)
        return both - y ** (2 - p) / ((2 - p) * (p - 1))
    if name == "quantile":
        level = problem.loss.level
        return cp.maximum((1 - level) * (u - y), level * (y - u))
    return cp.square(cp.pos(1 - cp.multiply(y, u))) / 2


def _constraints_and_penalty(problem: Problem, w: Any) -> tuple[list[Any], Any]:
    coef = w[: problem.data.n_features]
    if isinstance(problem.domain, ElasticNetDomain):
        domain = problem.domain
        ends = [np.broadcast_to(end, (problem.data.n_features,)) for end in (domain.low, domain.high)]
        low, high = (np.broadcast_to(end if coef.ndim == 1 else end[:, None], coef.shape) for end in ends)
        bounds = [coef[at] >= low[at] for at in zip(*np.nonzero(np.isfinite(low)), strict=True)]
        bounds += [coef[at] <= high[at] for at in zip(*np.nonzero(np.isfinite(high)), strict=True)]
        return bounds, domain.l1 * cp.sum(cp.abs(coef)) + domain.l2 / 2 * cp.sum_squares(coef)
    if not isinstance(problem.domain, L2Domain):
        return [coef >= 0, cp.sum(coef) == 1], 0.0
    ball = [cp.norm(cp.vec(coef, order="F")) <= problem.domain.radius] if np.isfinite(problem.domain.radius) else []
    return ball, problem.domain.penalty / 2 * cp.sum_squares(coef)


def solve_convex(program: cp.Problem) -> bool:
    """Solve until Clarabel calls it optimal, or two different ways that it calls inaccurate agree."""
    values: list[float] = []
    for settings in _SETTINGS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an inaccurate solution is told by the status
                program.solve(solver=cp.CLARABEL, warm_start=False, **settings)
        except cp.SolverError:
            continue
        if program.value is None:
            continue
        value = float(program.value)
        # Where the infimum is not attained no status is better, but losses are at least 0: a value near 0 is proof.
        if program.status == cp.OPTIMAL or abs(value) < 1e-9:
            return True
        if any(abs(value - other) <= 5e-9 * max(1.0, abs(value)) for other in values):
            return True
        values.append(value)
    return False


def _objective(weight_set: Any, values: Any, n: int) -> tuple[Any, list[Any]]:
    """What a set of group weights makes of their values, as the dual of its linear program, and the constraints.

    Over least <= q <= most with sum 1, the largest q.V is the least over t and a >= V - t, a >= 0 of
    least.V + (1 - sum least) t + (most - least).a.
    """
    least, most, t = np.zeros(n), np.full(n, np.inf), cp.Variable()
    if isinstance(weight_set, Floor):
        base = np.full(n, 1.0 / n) if weight_set.base is None else np.array(weight_set.base)
        least = (1.0 - weight_set.robustness) * base
    if isinstance(weight_set, Box):
        least = np.broadcast_to(weight_set.least, n)
    if isinstance(weight_set, Cap | Box):
        most = np.broadcast_to(weight_set.most, n)
    if not np.isfinite(most).all():  # no group can have more than all that moves
        return least @ values + (1.0 - least.sum()) * t, [values <= t]
    moving = cp.Variable(n, nonneg=True)
    return least @ values + (1.0 - least.sum()) * t + (most - least) @ moving, [values - t <= moving]


def worst_value(problem: Problem, references: np.ndarray | None = None) -> Reference:
    """Minimise what the set of group weights makes of the groups' risks (less references), with the penalty."""
    A = membership_matrix(problem)
    w = cp.Variable(problem.shape)
    domain, penalty = _constraints_and_penalty(problem, w)
    shift = np.zeros(len(A)) if references is None else references
    values = A @ _losses(problem, w) - shift
    objective, groups = _objective(problem.weight_set, values, len(A))
    program = cp.Problem(cp.Minimize(objective + penalty), [*groups, *domain])
    accurate = solve_convex(program)
    if w.value is None or groups[0].dual_value is None:
        return Reference(np.nan, None, None, accurate=False)
    q = np.maximum(np.atleast_1d(groups[0].dual_value), 0.0)
    return Reference(float(program.value), np.asarray(w.value), q / max(q.sum(), 1e-300), accurate)


def least_average(problem: Problem, base: np.ndarray, level: float, n_bound: int | None = None) -> Reference:
    """Minimise the average of the groups' risks with the penalty, where that of the first groups is within a level."""
    A = membership_matrix(problem)
    w = cp.Variable(problem.shape)
    domain, penalty = _constraints_and_penalty(problem, w)
    risks = A @ _losses(problem, w)
    program = cp.Problem(cp.Minimize(base @ risks + penalty), [risks[:n_bound] + penalty <= level, *domain])
    accurate = solve_convex(program)
    if w.value is None:
        return Reference(np.nan, None, None, accurate=False)
    return Reference(float(program.value), np.asarray(w.value), None, accurate)


def group_minima(problem: Problem) -> tuple[np.ndarray, bool]:
    """Minimise each group's risk with the penalty alone."""
    values, accurate = np.empty(problem.n_groups), True
    for i in range(problem.n_groups):
        single = problem.group(i)
        w = cp.Variable(problem.shape)
        domain, penalty = _constraints_and_penalty(single, w)
        program = cp.Problem(cp.Minimize(membership_matrix(single)[0] @ _losses(single, w) + penalty), domain)
        accurate &= solve_convex(program)
        values[i] = program.value if program.value is not None else np.nan
    return values, accurate
