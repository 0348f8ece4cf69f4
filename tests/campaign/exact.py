"""The problems by plain formulas in extended precision, and an interior-point solver: none of it is the package's code.

A lower bound is refuted by any feasible w whose objective is below it, so `solve` looks for the best w it can find and
`objective` evaluates it. `lower_estimate` bounds the optimum from below by other formulas than the package's, which
says how sharp a refutation by that w is.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["PlainProblem", "Solution", "group_minima", "lower_estimate", "solution_of", "solve"]

Long = np.longdouble


@dataclass(frozen=True, eq=False)
class PlainProblem:
    """A group-risk problem in dense arrays.

    Attributes
    ----------
    X, y : ndarray
        Rows in the order of the user; y in the loss's own code.
    rows, starts, weights : ndarray
        Members sorted by group: row of each, where each group begins, weight of each within its group.
    loss, delta : str, float
        Name of the loss, and Huber's parameter.
    radius, penalty, simplex : float, float, bool
        The domain.
    intercept : bool
        Whether an intercept follows the coefficients, free of radius and penalty.
    n_outputs : int
        Outputs of a row, 1 unless the loss is softmax.
    shift : ndarray of shape (n_groups,)
        What is added to the groups' risks: offsets less minima.
    weight_set : PlainSet or None
        Weights that the groups may have; None for all, which makes the objective the largest value.
    """

    X: np.ndarray
    y: np.ndarray
    rows: np.ndarray
    starts: np.ndarray
    weights: np.ndarray
    loss: str
    delta: float = 1.35
    radius: float = np.inf
    penalty: float = 0.0
    simplex: bool = False
    intercept: bool = False
    n_outputs: int = 1
    shift: Any = 0.0
    weight_set: Any = None

    @classmethod
    def from_arrays(cls, X: Any, y: Any, groups: Any, sample_weight: Any = None, **more: Any) -> "PlainProblem":
        """Read rows, labels, and groups as labels or as a boolean matrix; weights are relative within a group."""
        X = np.asarray(X.todense() if hasattr(X, "todense") else X, dtype=np.float64)
        groups = np.asarray(groups)
        if groups.ndim == 1:
            labels = np.unique(groups, return_inverse=True)[1]
            rows = np.argsort(labels, kind="stable")
            member_of = labels[rows]
        else:
            member_of, rows = np.nonzero(groups.T)
        starts = np.flatnonzero(np.r_[True, np.diff(member_of) > 0])
        raw = np.ones(len(rows), Long) if sample_weight is None else np.asarray(sample_weight)[rows].astype(Long)
        totals = np.add.reduceat(raw, starts)
        weights = raw / np.repeat(totals, np.diff(np.r_[starts, len(rows)]))
        return cls(X, np.asarray(y), rows, starts, weights, **more)

    @property
    def n_groups(self) -> int:
        return len(self.starts)

    @property
    def n_features(self) -> int:
        return self.X.shape[1]

    @property
    def shape(self) -> tuple[int, ...]:
        size = self.n_features + self.intercept
        return (size,) if self.n_outputs == 1 else (size, self.n_outputs)

    def with_shift(self, shift: Any) -> "PlainProblem":
        return PlainProblem(**{**vars(self), "shift": np.asarray(shift)})

    def group(self, i: int) -> "PlainProblem":
        """Return the problem of one group, without what is added to its risk."""
        end = np.r_[self.starts, len(self.rows)][i + 1]
        mine = slice(self.starts[i], end)
        rows = self.rows[mine]
        own = {"X": self.X[rows], "y": self.y[rows], "rows": np.arange(len(rows)), "weights": self.weights[mine]}
        return PlainProblem(**{**vars(self), **own, "starts": np.zeros(1, int), "shift": 0.0, "weight_set": None})

    # ------------------------------------------------------------------ values in extended precision

    def group_sums(self, by_row: np.ndarray) -> np.ndarray:
        """Return each group's weighted mean of a quantity of the rows."""
        by_member = by_row[self.rows]
        weights = self.weights.astype(by_row.dtype)
        return np.add.reduceat(weights.reshape(-1, *[1] * (by_row.ndim - 1)) * by_member, self.starts, axis=0)

    def outputs(self, w: np.ndarray, kind: Any = Long) -> np.ndarray:
        w = w.astype(kind)
        u = self.X.astype(kind) @ w[: self.n_features]
        return u + w[-1] if self.intercept else u

    def risks(self, w: np.ndarray) -> np.ndarray:
        return self.group_sums(_losses(self, self.outputs(w)))

    def values(self, w: np.ndarray) -> np.ndarray:
        """Return what the worst is taken of."""
        return self.risks(w) + self.shift

    def worst_of(self, values: np.ndarray) -> Any:
        """Return the largest value, or what the set of weights makes of them."""
        return values.max() if self.weight_set is None else self.weight_set.value(values)

    def penalty_at(self, w: np.ndarray) -> Any:
        return Long(self.penalty) / 2 * (w[: self.n_features].astype(Long) ** 2).sum()

    def objective(self, w: np.ndarray) -> Any:
        return self.worst_of(self.values(w)) + self.penalty_at(w)

    def excess(self, w: np.ndarray) -> float:
        """Return how far the coefficients are outside of their domain, relative to its size."""
        coef = w[: self.n_features].astype(Long)
        if self.simplex:
            return float(max(abs(coef.sum() - 1), -coef.min()))
        return max(0.0, float(np.sqrt((coef**2).sum()) / self.radius - 1)) if np.isfinite(self.radius) else 0.0

    def rounding_at(self, w: np.ndarray) -> float:
        """Return what a few units of rounding of every product x_j w_j may change in a group's risk."""
        w = w.astype(np.float64)
        sizes = np.abs(self.X) @ np.abs(w[: self.n_features]) + (np.abs(w[-1]) if self.intercept else 0.0)
        slopes = np.abs(_slopes(self, self.outputs(w, np.float64))[0])
        products = sizes * slopes if sizes.ndim == 1 else (sizes * slopes).sum(axis=1)
        return 8 * float(np.finfo(np.float64).eps) * float(self.group_sums(products).max())

    def feasible(self, w: np.ndarray) -> np.ndarray:
        """Return a point of the domain near w, in extended precision."""
        w = w.astype(Long)
        coef = w[: self.n_features]
        if self.simplex:
            coef = np.maximum(coef, 0)
            coef = coef / coef.sum()
        elif np.isfinite(self.radius):
            norm = np.sqrt((coef**2).sum())
            if norm > self.radius:
                coef = coef * (self.radius / norm)
        return np.concatenate([coef, w[self.n_features :]])


def _losses(p: PlainProblem, u: np.ndarray) -> np.ndarray:
    if p.loss == "softmax":
        top = u.max(axis=1)
        return np.log(np.exp(u - top[:, None]).sum(axis=1)) + top - u[np.arange(len(u)), p.y]
    y = p.y.astype(u.dtype)
    if p.loss == "logistic":
        return np.logaddexp(np.zeros_like(u), -y * u)
    if p.loss == "squared_hinge":
        return np.maximum(1 - y * u, 0) ** 2 / 2
    r = np.abs(u - y)
    if p.loss == "squared":
        return r**2 / 2
    delta = u.dtype.type(p.delta)
    return np.where(r <= delta, r**2 / 2, delta * (r - delta / 2))


def _slopes(p: PlainProblem, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return first derivatives, and second ones: numbers, or for softmax the probabilities they are made of."""
    if p.loss == "softmax":
        e = np.exp(u - u.max(axis=1, keepdims=True))
        probability = e / e.sum(axis=1, keepdims=True)
        own = np.zeros_like(u)
        own[np.arange(len(u)), p.y] = 1
        return probability - own, probability
    y = p.y.astype(u.dtype)
    if p.loss == "logistic":
        e = np.exp(-np.abs(u))
        wrong = np.where(y * u > 0, e, 1) / (1 + e)
        return -y * wrong, e / (1 + e) ** 2
    if p.loss == "squared_hinge":
        short = np.maximum(1 - y * u, 0)
        return -y * short, (short > 0).astype(u.dtype)
    r = u - y
    if p.loss == "squared":
        return r, np.ones_like(r)
    return np.clip(r, -p.delta, p.delta), (np.abs(r) <= p.delta).astype(u.dtype)


def _gradients(p: PlainProblem, slopes: np.ndarray) -> np.ndarray:
    """Return every group's gradient, flattened as w is."""
    X = p.X.astype(slopes.dtype)
    if p.intercept:
        X = np.column_stack([X, np.ones(len(X), slopes.dtype)])
    by_row = X * slopes[:, None] if slopes.ndim == 1 else (X[:, :, None] * slopes[:, None, :]).reshape(len(X), -1)
    return p.group_sums(by_row)


def _hessian(p: PlainProblem, bend: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return the Hessian of sum_i q_i R_i."""
    sizes = np.diff(np.r_[p.starts, len(p.rows)])
    v = np.bincount(p.rows, np.repeat(q, sizes) * p.weights.astype(float), minlength=len(p.X))
    X = np.column_stack([p.X, np.ones(len(p.X))]) if p.intercept else p.X
    if bend.ndim == 1:
        return (X * (v * bend)[:, None]).T @ X
    C, d = bend.shape[1], X.shape[1]
    H = np.zeros((d, C, d, C))
    for a in range(C):
        for b in range(C):
            pair = bend[:, a] * ((a == b) - bend[:, b])
            H[:, a, :, b] = (X * (v * pair)[:, None]).T @ X
    return H.reshape(d * C, d * C)


# ---------------------------------------------------------------------- the interior-point method


@dataclass(frozen=True, eq=False)
class Solution:
    """The best w found, its group weights and the ball's multiplier."""

    w: np.ndarray
    q: np.ndarray
    multiplier: float


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def solve(p: PlainProblem, start: np.ndarray | None = None, *, steps: int = 200) -> Solution:
    """Minimise t + penalty subject to value_i(w) <= t and the domain, by a primal-dual interior-point method.

    It is for all weights. Under another set, `solution_of` makes a solution of what others found.
    """
    d, m = p.n_features, p.n_groups
    size = int(np.prod(p.shape))
    outputs = size // p.shape[0]
    n_coef = d * outputs
    coef = np.arange(size) < n_coef
    shift = np.broadcast_to(np.asarray(p.shift, float), (m,))
    w = np.zeros(size)
    if start is not None and not p.simplex:
        w = 0.9 * np.asarray(start, float).ravel()
    if p.simplex:
        w[:] = 1.0 / d
    elif np.isfinite(p.radius) and np.linalg.norm(w[coef]) > 0.9 * p.radius:
        w[coef] *= 0.9 * p.radius / np.linalg.norm(w[coef])

    # Units in which every parameter has a curvature of about one, and the worst value is one.
    squares = np.repeat(np.append(p.group_sums(p.X**2).mean(axis=0), [1.0] * p.intercept), outputs)
    risks = p.group_sums(_losses(p, p.outputs(w.reshape(p.shape), float))).astype(float)
    first = risks + shift
    scale = max(abs(first.max()), np.ptp(first), 1e-3 * risks.max(), 1e-300)
    unit = np.sqrt((squares + np.where(coef, p.penalty, 0.0)) / scale + np.where(coef, 1e-6 / p.radius**2, 0.0))
    unit[unit == 0] = 1.0
    ball, ends = np.isfinite(p.radius), p.simplex
    n_bounds = m + ball + (n_coef if ends else 0)

    def constraints(z: np.ndarray) -> np.ndarray:
        w, t = z[:-1] / unit, z[-1]
        values = p.group_sums(_losses(p, p.outputs(w.reshape(p.shape), float))).astype(float) + shift
        parts = [values / scale - t]
        if ball:
            parts.append([((w[coef] / p.radius) ** 2).sum() - 1.0])
        if ends:
            parts.append(-w[coef])
        return np.concatenate(parts)

    def jacobian(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the objective's gradient, the constraints' Jacobian, and the rows' second derivatives."""
        w = z[:-1] / unit
        slopes, bend = _slopes(p, p.outputs(w.reshape(p.shape), float))
        J = np.zeros((n_bounds, size + 1))
        J[:m, :-1] = _gradients(p, slopes) / unit / scale
        J[:m, -1] = -1.0
        if ball:
            J[m, :-1] = np.where(coef, 2.0 * w / p.radius**2, 0.0) / unit
        if ends:
            J[m + ball :, :-1] = -np.eye(size)[:n_coef] / unit
        return np.append(np.where(coef, p.penalty / scale, 0.0) * w / unit, 1.0), J, bend

    def curvature(bend: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
        """Return the Hessian of the Lagrangian."""
        H = np.zeros((size + 1, size + 1))
        H[:-1, :-1] = _hessian(p, bend, multipliers[:m]) / np.outer(unit, unit) / scale
        more = p.penalty / scale + (2.0 * multipliers[m] / p.radius**2 if ball else 0.0)
        H[np.arange(size), np.arange(size)] += np.where(coef, more, 0.0) / unit**2
        return H

    z = np.append(w * unit, 0.0)
    z[-1] = (first / scale).max() + 1.0
    multipliers = 1.0 / np.maximum(-constraints(z), 1e-3)
    equality = np.append(np.where(coef, 1.0 / unit, 0.0), 0.0)[None] if ends else np.zeros((0, size + 1))
    nu, best, t, damping = np.zeros(len(equality)), (np.inf, z, multipliers), 1.0, 1e-14

    def residuals(z: np.ndarray, multipliers: np.ndarray, nu: np.ndarray) -> tuple[Any, ...]:
        gradient, J, bend = jacobian(z)
        dual = gradient + J.T @ multipliers + equality.T @ nu
        return dual, equality[:, :-1] @ z[:-1] - 1.0 if ends else np.zeros(0), J, bend

    g, (dual, primal, J, bend) = constraints(z), residuals(z, multipliers, nu)
    for _ in range(steps):
        gap = float(-(g @ multipliers))
        error = gap + float(np.abs(dual).max()) + float(np.abs(primal).max(initial=0.0))
        if error < best[0]:
            best = (error, z, multipliers)
        if error < 1e-15 or not np.isfinite(error):
            break
        # Short steps mean that the centre is far; and the gap must not vanish before the slopes do.
        mu = max(gap * (0.1 if t > 0.5 else 0.8), 0.1 * float(np.abs(dual).max())) / n_bounds
        central = -multipliers * g - mu
        # Eliminate the multipliers' step, and solve the symmetric system that is left.
        M = curvature(bend, multipliers) + (J.T * (multipliers / -g)) @ J
        M[np.diag_indices_from(M)] += 1e-14 * np.abs(np.diag(M)).max() + damping
        k = len(equality)
        system = np.block([[M, equality.T], [equality, np.zeros((k, k))]])
        try:
            step = np.linalg.solve(system, np.append(-(dual + J.T @ (central / g)), -primal))
        except np.linalg.LinAlgError:
            break
        dz, dnu = step[: size + 1], step[size + 1 :]
        dm = (central - multipliers * (J @ dz)) / g
        falling = dm < 0
        t = min(1.0, 0.99 * float((-multipliers[falling] / dm[falling]).min())) if falling.any() else 1.0
        before = np.sqrt((dual**2).sum() + (central**2).sum() + (primal**2).sum())
        for _ in range(40):
            new = (z + t * dz, multipliers + t * dm, nu + t * dnu)
            inside = constraints(new[0])
            if (inside < 0).all():
                trial = residuals(*new)
                central = -new[1] * inside - mu
                after = np.sqrt((trial[0] ** 2).sum() + (central**2).sum() + (trial[1] ** 2).sum())
                if after <= (1.0 - 0.01 * t) * before or after < 1e-16:
                    break
            t *= 0.5
        else:
            if damping >= 1.0:
                break
            damping, t = max(1e3 * damping, 1e-6), 1.0  # no way down: a loss that is flat here may not be so there
            continue
        damping = max(damping / 10, 1e-14) if t > 0.3 else min(max(10 * damping, 1e-6), 1.0) if t < 0.1 else damping
        (z, multipliers, nu), g, (dual, primal, J, bend) = new, inside, trial
    _, z, multipliers = best
    q = np.maximum(multipliers[:m], 0.0)
    w = (z[:-1] / unit).reshape(p.shape)
    bend = 2.0 * multipliers[m] * scale / p.radius**2 if ball else 0.0
    return Solution(p.feasible(w), q / q.sum(), float(bend))


def solution_of(p: PlainProblem, w: np.ndarray, q: np.ndarray) -> Solution:
    """Return w and q of another solver, with the multiplier that the ball must have there."""
    w, q = p.feasible(np.asarray(w)), np.asarray(q, float)
    inside, coef = np.sqrt((w[: p.n_features] ** 2).sum()) < (1 - 1e-4) * p.radius, w[: p.n_features].ravel()
    if p.simplex or inside or not np.isfinite(p.radius):
        return Solution(w, q, 0.0)
    slope = (q @ _gradients(p, _slopes(p, p.outputs(w))[0]))[: coef.size] + p.penalty * coef
    return Solution(w, q, max(float(-(slope @ coef) / (coef @ coef)), 0.0))


# ---------------------------------------------------------------------- a lower estimate of the optimum


def lower_estimate(p: PlainProblem, at: Solution) -> tuple[Any, np.ndarray]:
    """Return a lower bound of min_w sum_i q_i value_i(w) + penalty, and the w at which it was taken.

    On the simplex the linearisation's least entry. Otherwise the ball's multiplier makes the problem strongly convex:
    Newton's method, with its gradients in extended precision, comes so near to the minimum that what is left, squared
    and divided by twice the curvature, is next to nothing. What neither ball nor penalty holds is taken to lie within
    a thousand times the size that it has there.
    """
    q, w = at.q.astype(Long) / at.q.astype(Long).sum(), at.w.astype(Long)
    coef = np.arange(w.size) < p.n_features * (w.size // len(w))
    curved = Long(p.penalty) + Long(max(at.multiplier, 0.0) if np.isfinite(p.radius) else 0.0)
    if not p.simplex and p.penalty == 0.0 and np.isfinite(p.radius):
        curved = max(curved, Long(1e-13) / max(Long(p.radius) ** 2, Long(1e-300)))
    extra = curved - Long(p.penalty)
    squares = np.append(p.group_sums(p.X**2).max(axis=0), [1.0] * p.intercept)
    unit = np.repeat(1.0 / np.sqrt(np.where(squares > 0, squares, 1.0)), w.size // len(w))

    def value_and_gradient(w: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
        u = p.outputs(w)
        slopes, bend = _slopes(p, u)
        value = q @ (p.group_sums(_losses(p, u)) + p.shift)
        return value, q @ _gradients(p, slopes), bend

    if p.simplex:
        value, gradient, _ = value_and_gradient(w)
        return value - gradient @ w.ravel() + gradient.min(), w

    def lagrangian(w: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
        value, gradient, bend = value_and_gradient(w)
        square = (w.ravel()[coef] ** 2).sum()
        value = value + curved / 2 * square - (extra / 2 * Long(p.radius) ** 2 if np.isfinite(p.radius) else 0)
        return value, gradient + np.where(coef, curved * w.ravel(), 0), bend

    def bound(w: np.ndarray, value: Any, gradient: np.ndarray) -> Any:
        flat = ~coef if curved else np.ones_like(coef)
        loss = (gradient[~flat] ** 2).sum() / (2 * curved) if curved else Long(0)
        return value - loss - (np.abs(gradient) * 1000 * (unit + np.abs(w.ravel())))[flat].sum()

    value, gradient, bend = lagrangian(w)
    best = (bound(w, value, gradient), w)
    for _ in range(25):
        H = _hessian(p, bend.astype(float), q.astype(float))
        H[np.diag_indices_from(H)] += np.where(coef, float(curved), 0.0)
        scale = np.sqrt(np.where(np.diag(H) > 0, np.diag(H), 1.0))
        system = H / np.outer(scale, scale) + 1e-15 * np.eye(len(H))
        try:
            step = np.linalg.solve(system, gradient.astype(float) / scale) / scale
        except np.linalg.LinAlgError:
            break
        t = Long(1)
        for _ in range(12):
            new = w - t * step.reshape(w.shape)
            there = lagrangian(new)
            if there[0] <= value + 1e-18 * abs(value):
                break
            t /= 2
        w, (value, gradient, bend) = new, there
        found = bound(w, value, gradient)
        if found <= best[0]:
            break
        best = (found, w)
    return best


def group_minima(p: PlainProblem) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return lower and upper bounds of every group's own minimum, with the penalty, and the best models found."""
    lower, upper, models = np.empty(p.n_groups, Long), np.empty(p.n_groups, Long), []
    for i in range(p.n_groups):
        single = p.group(i)
        found = solve(single)
        least, polished = lower_estimate(single, found)
        points = [w for w in (found.w, single.feasible(polished)) if np.isfinite(w).all()]
        models.append(min(points, key=single.objective))
        lower[i], upper[i] = np.fmax(least, 0), single.objective(models[-1])
    return lower, upper, models
