"""Group problems in centred extended precision, and models that refute bounds: none of it is the package's code.

A lower bound is refuted by any feasible model whose objective is below it. `Posed.search` looks for the best model by
Newton's method on a smoothed maximum, in units of the columns and, with an intercept, around the means of columns and
targets, so that neither offsets nor units cost digits. `Posed.objective` evaluates what it finds in extended precision.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import linprog

from tests.campaign.plain_losses import LogisticLoss, SoftmaxLoss

__all__ = ["Long", "Model", "Posed", "separates"]

Long = np.longdouble
Array = np.ndarray[Any, Any]
HALF_UNIT = np.finfo(np.float64).eps / 2


@dataclass(frozen=True, eq=False)
class Model:
    """Coefficients of shape (n_features, n_outputs), and the constant that is left when the means are taken off."""

    coef: Array
    constant: Array


@dataclass(frozen=True, eq=False)
class Found:
    """A model, the relative decrease that its last Newton step promised, and the outputs' largest relative change."""

    model: Model
    promise: float
    moved: float


class Posed:
    """A problem, with the rows that count sorted by group.

    Parameters
    ----------
    X, y, groups, weight : ndarray
        Dense rows, targets or labels (-1 and +1, or from 0), group numbers, and weights or None.
    loss : object
        One of `plain_losses`.
    alpha, radius, box : float
        Weight of the L2 penalty, largest norm, and largest absolute value of the coefficients.
    intercept : bool
        Whether the model has a free intercept.
    offset : ndarray or None
        What is added to the outputs.
    robustness : float
        Share of the worst group in the objective; the rest is the average over the rows.
    """

    def __init__(
        self,
        X: Array,
        y: Array,
        groups: Array,
        weight: Array | None,
        loss: Any,
        *,
        alpha: float = 0.0,
        radius: float = np.inf,
        box: float = np.inf,
        intercept: bool = True,
        offset: Array | None = None,
        robustness: float = 1.0,
    ):
        weight = np.ones(len(y)) if weight is None else np.asarray(weight, np.float64)
        rows = np.flatnonzero(weight > 0)
        rows = rows[np.argsort(groups[rows], kind="stable")]
        self.loss, self.alpha, self.radius, self.box, self.intercept = loss, alpha, radius, box, intercept
        self.X, self.groups = np.asarray(X, np.float64)[rows], groups[rows]
        self.starts = np.flatnonzero(np.r_[True, np.diff(self.groups) > 0])
        raw = weight[rows].astype(Long)
        self.sizes = np.diff(np.r_[self.starts, len(rows)])
        self.weights = raw / np.repeat(np.add.reduceat(raw, self.starts), self.sizes)
        self.m, self.d = len(self.starts), self.X.shape[1]
        self.K = getattr(loss, "n_classes", 1)
        self.y = y[rows]
        share = self.weights / self.m
        self.means, self.mean_y = np.zeros(self.d, Long), Long(0)
        if intercept:
            self.means = np.array([(share * column).sum() for column in self.X.T], Long)
            # The mean itself is rounded: what is left of it after centring is taken off too.
            self.means += np.array([(share * (x - c)).sum() for x, c in zip(self.X.T, self.means, strict=True)], Long)
        if loss.regression:
            self.y = self.y.astype(Long)
            self.mean_y = (share * self.y).sum() if intercept else Long(0)
            self.y = self.y - self.mean_y
        elif self.K == 1:
            self.y = self.y.astype(Long)
        self.centred = self.X - self.means
        scales = np.sqrt(np.array([(share * column**2).sum() for column in self.centred.T], Long)).astype(float)
        self.scales = np.where(scales > 0, scales, 1.0)
        self.shift = np.zeros(self.m, Long)
        self.offset = np.zeros(len(rows), Long) if offset is None else np.asarray(offset, Long)[rows]
        self.robustness = Long(robustness)
        totals = np.add.reduceat(raw, self.starts)
        self.base = totals / totals.sum()

    # ------------------------------------------------------------------ values in extended precision

    def model(self, coef: Array, intercept: Any) -> Model:
        """Take coefficients of shape (n_features, n_outputs) and intercepts as a fit returns them."""
        coef = np.asarray(coef, Long).reshape(self.d, self.K)
        constant = np.broadcast_to(np.asarray(intercept, Long), (self.K,)) + self.means @ coef - self.mean_y
        return Model(coef, constant)

    def zero(self) -> Model:
        return Model(np.zeros((self.d, self.K), Long), np.zeros(self.K, Long))

    def outputs(self, model: Model) -> Array:
        """Return outputs, or residuals in a regression."""
        u = self.centred @ model.coef + model.constant + self.offset[:, None]
        if self.K > 1:
            return u
        return u[:, 0] - self.y if self.loss.regression else u[:, 0]

    def risks(self, model: Model) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return np.add.reduceat(self.weights * self.loss.value(self.outputs(model), self.y), self.starts)

    def penalty(self, model: Model) -> Any:
        return Long(self.alpha) / 2 * (model.coef**2).sum()

    def objective(self, model: Model, shift: Any = None) -> Any:
        """Return the worst value, blended with the average, with the penalty."""
        values = self.risks(model) + (self.shift if shift is None else shift)
        return self.blend(values, values.max()) + self.penalty(model)

    def blend(self, values: Array, worst: Any) -> Any:
        """Return the objective of group values whose largest, or an approximation of it, is given."""
        rest = 1 - self.robustness
        return (rest * (self.base @ values) if rest else 0) + self.robustness * worst

    def outside(self, model: Model) -> float:
        """Return how far the coefficients are outside of radius and box, relative to these."""
        norm, largest = np.sqrt((model.coef**2).sum()), np.abs(model.coef).max(initial=0)
        return max(0.0, float(norm / self.radius - 1), float(largest / self.box - 1))

    def resolution(self, model: Model) -> Any:
        """Return what half a unit in the last place of the intercept and of each x_j w_j changes in a group's risk."""
        with np.errstate(over="ignore", under="ignore"):
            intercept = np.abs(model.constant - self.means @ model.coef + self.mean_y) if self.intercept else 0
            step = HALF_UNIT * (np.abs(self.X) @ np.abs(model.coef) + intercept + np.abs(self.offset)[:, None])
            u = self.outputs(model)
            step = step if self.K > 1 else step[:, 0]
            slope = np.abs(self.loss.slopes(u, self.y)[0])
            change = slope * step + self.loss.majorant(u, self.y) * step * step / 2
            if hasattr(self.loss, "delta"):
                change = np.minimum(change, step * self.loss.delta)
            change = change.sum(axis=1) if self.K > 1 else change
            return np.add.reduceat(self.weights * change, self.starts).max()

    # ------------------------------------------------------------------ parts

    def part(self, i: int | None = None) -> "Posed":
        """Return the problem of group i alone, or of all groups as one."""
        new = object.__new__(type(self))
        new.__dict__.update(vars(self))
        mine = slice(None) if i is None else slice(self.starts[i], self.starts[i] + self.sizes[i])
        new.X, new.centred, new.y, new.groups = self.X[mine], self.centred[mine], self.y[mine], self.groups[mine]
        new.weights = self.weights[mine] / (self.m if i is None else 1)
        new.starts, new.m, new.sizes, new.shift = np.zeros(1, int), 1, np.array([len(new.y)]), np.zeros(1, Long)
        new.offset, new.base = self.offset[mine], np.ones(1, Long)
        return new

    # ------------------------------------------------------------------ the search

    def search(self, start: Model | None = None, *, first: float = 1.0, last: float = 1e-13, steps: int = 150) -> Found:
        """Minimise by Newton's method on a smoothed maximum, whose smoothing falls from `first` to `last` of it."""
        with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
            return _Search(self, first, last, steps).run(self.zero() if start is None else start)


class _Search:
    def __init__(self, posed: Posed, first: float, last: float, steps: int):
        p = self.p = posed
        self.first, self.last, self.steps = first, last, steps
        self.A = np.column_stack([(p.centred / p.scales).astype(float), np.ones(len(p.centred)) * p.intercept])
        self.weights, self.shift = p.weights.astype(float), p.shift.astype(float)
        self.y = p.y.astype(float) if p.K == 1 else p.y
        self.offset = p.offset.astype(float)
        self.robustness, self.base = float(p.robustness), p.base.astype(float)
        width = self.A.shape[1]
        inner = np.append(1.0 / p.scales, 0.0)[:, None] * np.ones(p.K)  # from units of columns to coefficients
        self.to_coef = inner.ravel()
        self.penalty = p.alpha * self.to_coef**2
        self.size, self.width = width * p.K, width
        self.moved = np.inf
        self.barred = np.isfinite(p.radius) or np.isfinite(p.box)

    def run(self, model: Model) -> Found:
        p = self.p
        z = np.vstack([(model.coef.T * p.scales).T, model.constant[None] * p.intercept]).astype(float).ravel()
        z = self._inside(z)
        u = self._outputs(z)
        values = self._values(u)
        top = float(p.blend(values, values.max())) + self._penalty(z)
        scale = max(abs(top), float(np.ptp(values)), 1e-300)
        floor = 1e-28 * max(scale, self._size(z))
        mu = self.first * scale if p.m > 1 or self.barred else self.last * scale
        left, promise = self.steps, np.inf
        while left > 0:
            for _ in range(30):
                left -= 1
                z, u, decrease, moved = self._step(z, u, mu)
                if decrease < 0.03 * mu or not moved or left <= 0:
                    break
            values = self._values(u)
            top = abs(float(p.blend(values, values.max())) + self._penalty(z))
            promise = decrease / max(top, 1e-300)
            if mu <= max(self.last * top, floor):
                break
            mu = max(min(0.1 * mu, 0.03 * top), 0.5 * max(self.last * top, floor))
        Z = z.reshape(self.width, p.K).astype(Long)
        found = Model((Z[:-1].T / p.scales).T, Z[-1])
        return Found(self._feasible(found), promise, self.moved)

    def _feasible(self, model: Model) -> Model:
        worst = 1 + Long(self.p.outside(model))
        return model if worst == 1 else Model(model.coef / worst, model.constant)

    def _inside(self, z: Array) -> Array:
        w = z * self.to_coef
        over = max(np.sqrt((w**2).sum()) / self.p.radius, np.abs(w).max() / self.p.box)
        return z if over < 0.99 else np.where(self.to_coef > 0, z * (0.9 / over), z)

    def _size(self, z: Array) -> float:
        return float(np.abs(self._values(self._outputs(np.zeros_like(z)))).max())

    def _outputs(self, z: Array) -> Array:
        u = self.A @ z.reshape(self.width, self.p.K) + self.offset[:, None]
        if self.p.K > 1:
            return u
        return u[:, 0] - self.y if self.p.loss.regression else u[:, 0]

    def _values(self, u: Array) -> Array:
        return np.add.reduceat(self.weights * self.p.loss.value(u, self.y), self.p.starts) + self.shift

    def _penalty(self, z: Array) -> float:
        return 0.5 * float(self.penalty @ z**2)

    def _barrier(self, z: Array) -> tuple[float, Array, Array]:
        """Return the barrier of radius and box, its gradient and its Hessian, in units of its smoothing."""
        p, w = self.p, z * self.to_coef
        value, gradient, hessian = 0.0, np.zeros_like(z), np.zeros((len(z), len(z)))
        if np.isfinite(p.radius):
            a = w / p.radius
            room = 1.0 - float(a @ a)
            if room <= 0:
                return np.inf, gradient, hessian
            g = 2 * a * self.to_coef / p.radius
            value, gradient = -np.log(room), g / room
            hessian = np.outer(gradient, gradient) + np.diag(2 * (self.to_coef / p.radius) ** 2 / room)
        if np.isfinite(p.box):
            low, high = 1 + w / p.box, 1 - w / p.box
            if low.min() <= 0 or high.min() <= 0:
                return np.inf, gradient, hessian
            unit = self.to_coef / p.box
            value -= float(np.log(low).sum() + np.log(high).sum())
            gradient = gradient + unit * (1 / high - 1 / low)
            hessian = hessian + np.diag(unit**2 * (1 / high**2 + 1 / low**2))
        return value, gradient, hessian

    def _smooth(self, z: Array, u: Array, mu: float) -> float:
        values = self._values(u)
        top = values.max()
        barrier = mu * self._barrier(z)[0] if self.barred else 0.0
        smoothed = top + mu * np.log(np.exp((values - top) / mu).sum()) if self.p.m > 1 else top
        return float(self.p.blend(values, smoothed)) + self._penalty(z) + barrier

    def _step(self, z: Array, u: Array, mu: float) -> tuple[Array, Array, float, bool]:
        """Return where a Newton step leads, and the decrease it promised."""
        p = self.p
        values = self._values(u)
        q = np.exp((values - values.max()) / mu)
        q /= q.sum()
        slope, bend = p.loss.slopes(u, self.y)
        share = (1.0 - self.robustness) * self.base + self.robustness * q
        rows = self.weights * np.repeat(share, p.sizes)
        G = self._group_gradients(slope)
        worst, g = q @ G, share @ G
        here = self._smooth(z, u, mu)
        for attempt in range(2):
            H = self._hessian(rows, bend if attempt == 0 else p.loss.majorant(u, self.y))
            if p.m > 1:
                H = H + self.robustness * ((G.T * q) @ G - np.outer(worst, worst)) / mu
            H[np.diag_indices_from(H)] += self.penalty
            gradient = g + self.penalty * z
            if self.barred:
                _, slope_of_barrier, curve = self._barrier(z)
                gradient, H = gradient + mu * slope_of_barrier, H + mu * curve
            step = _solve(H, gradient)
            if p.K > 1 and not p.alpha and not self.barred:  # a constant of all classes changes nothing
                step = (step.reshape(self.width, p.K) - step.reshape(self.width, p.K).mean(axis=1)[:, None]).ravel()
            decrease = float(gradient @ step)
            if not np.isfinite(decrease) or decrease <= 0:
                continue
            du = self.A @ step.reshape(self.width, p.K)
            du = du if p.K > 1 else du[:, 0]
            t, self.moved = 1.0, float((np.abs(du) / (1 + np.abs(u))).max())
            for _ in range(25 if attempt else 12):
                there = self._smooth(z - t * step, u - t * du, mu)
                if there <= here - 0.1 * t * decrease or (there <= here and decrease < 1e-13 * abs(here)):
                    z = z - t * step
                    return z, self._outputs(z), decrease / 2, there < here
                t *= 0.3
        return z, u, max(decrease / 2, 0.0) if np.isfinite(decrease) else np.inf, False

    def _group_gradients(self, slope: Array) -> Array:
        weighted = (self.weights * slope.T).T
        by_row = self.A * weighted[:, None] if self.p.K == 1 else self.A[:, :, None] * weighted[:, None, :]
        return np.add.reduceat(by_row, self.p.starts, axis=0).reshape(self.p.m, -1)

    def _hessian(self, rows: Array, bend: Array) -> Array:
        A, K = self.A, self.p.K
        if K == 1:
            return (A * (rows * bend)[:, None]).T @ A
        H = np.zeros((self.width, K, self.width, K))
        for a in range(K):
            for b in range(a + 1):
                block = (A * (rows * bend[:, a] * ((a == b) - bend[:, b]))[:, None]).T @ A
                H[:, a, :, b] = H[:, b, :, a] = block
        return H.reshape(self.size, self.size)


def _solve(H: Array, gradient: Array) -> Array:
    """Solve for a step in units in which the diagonal is one, with a little added to it."""
    diagonal = np.diag(H)
    unit = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    scaled = H * np.outer(unit, unit)
    if not np.isfinite(scaled).all():
        return np.full_like(gradient, np.nan)
    for ridge in (1e-14, 1e-11, 1e-8):
        try:
            return unit * cho_solve(cho_factor(scaled + ridge * np.eye(len(H))), unit * gradient)
        except np.linalg.LinAlgError:
            continue
    return unit * (np.linalg.pinv(scaled, rcond=1e-12, hermitian=True) @ (unit * gradient))


def separates(posed: Posed) -> bool | None:
    """Return whether a direction exists along which no row's loss rises and some fall without end; None if unclear.

    True only with a direction whose margins were verified on all rows in extended precision; False only where the loss
    of all rows together was seen to have a minimiser, which such a direction rules out.
    """
    if not isinstance(posed.loss, LogisticLoss | SoftmaxLoss):
        return False
    margins = _margins(posed)
    size = np.sqrt((margins**2).mean(axis=0))
    size = np.where(size > 0, size, 1)
    scaled = margins / size
    scaled = scaled / np.maximum(np.abs(scaled).max(axis=1), np.finfo(float).tiny)[:, None]
    for strict in (True, False):  # all margins positive; or none negative and some positive
        direction = _linear_program(scaled.astype(float), strict=strict)
        if direction is None:
            continue
        direction = direction.astype(Long) / size
        along = margins @ direction
        rounding = 64 * np.finfo(Long).eps * (np.abs(margins) @ np.abs(direction))
        if (along >= -rounding).all() and (along > 1e6 * rounding).any():
            return True
    found = posed.part().search(steps=100)
    # Where the loss only nears its infimum, Newton steps do not shorten.
    value = posed.part().objective(found.model)
    return False if found.promise < 1e-12 and found.moved < 1e-3 and value > 1e-6 else None


def _linear_program(rows: Array, *, strict: bool) -> Array | None:
    """Return a direction with the largest least margin, or with the largest mean of margins that are not negative."""
    n, width = rows.shape
    if strict:
        cost, sides = np.append(np.zeros(width), -1.0), np.column_stack([-rows, np.ones(n)])
    else:
        cost, sides = -rows.mean(axis=0), -rows
    with np.errstate(all="ignore"):
        found = linprog(cost, A_ub=sides, b_ub=np.zeros(n), bounds=(-1, 1), method="highs")
    if found.status != 0:
        return None
    return found.x[:width] if strict else np.where(np.abs(found.x) > 1e-9, found.x, 0)


def _margins(posed: Posed) -> Array:
    """Return the rows that take a direction to margins, one per row or per row and wrong class."""
    # Not centred: a level that none but a few rows have then has exact zeros elsewhere.
    A = np.column_stack([posed.X.astype(Long), np.full(len(posed.y), posed.intercept, Long)])
    if posed.K == 1:
        return A * posed.y[:, None]
    parts = []
    for c in range(posed.K):
        rows = np.flatnonzero(posed.y != c)
        part = np.zeros((len(rows), A.shape[1], posed.K), Long)
        part[np.arange(len(rows)), :, posed.y[rows]] = A[rows]
        part[:, :, c] = -A[rows]
        parts.append(part.reshape(len(rows), -1))
    return np.concatenate(parts)
