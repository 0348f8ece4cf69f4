"""Average and worst value of linear models from arrays alone: by hand for a model, and by CVXPY for the best of all."""

from typing import Any

import cvxpy as cp
import numpy as np
from scipy.special import logsumexp

from tests.reference.convex import solve_convex


class Blend:
    """What linear models of some rows can have on average and on their worst groups, with the penalty.

    Parameters
    ----------
    X, y : ndarray
        Rows, and labels (whole numbers from 0) or targets (floats).
    groups : ndarray
        One label per row, or a boolean matrix of shape (n_rows, n_groups).
    alpha : float
        Weight of the penalty.
    weight : ndarray or None
        Weights of the rows.
    average : {"rows", "groups"}
        What counts alike.
    n_worst : int
        Number of groups whose average is the worst.
    caps : ndarray or None
        Most that each group weighs in the worst, in place of `n_worst`.
    references : ndarray or None
        What is subtracted from the groups' risks.
    intercept : bool
        Whether there is one.
    radius : float or None
        Largest norm of the coefficients.
    offset : ndarray or None
        What is added to the outputs.
    """

    def __init__(
        self, X, y, groups, *, alpha, weight=None, average="rows", n_worst=1, caps=None, references=None,
        intercept=True, radius=None, offset=None,
    ):  # fmt: skip
        self.X, self.y, self.alpha, self.radius = np.asarray(X, dtype=float), np.asarray(y), alpha, radius
        self.average, self.n_worst, self.caps, self.intercept = average, n_worst, caps, intercept
        self.kind = "squared" if self.y.dtype.kind == "f" else "logistic" if self.y.max() == 1 else "softmax"
        self.offset = np.zeros((len(self.X), 1)) if offset is None else np.asarray(offset).reshape(len(self.X), -1)
        groups = np.asarray(groups)
        member = groups if groups.ndim == 2 else groups[:, None] == np.unique(groups)
        rows = np.ones(len(self.X)) if weight is None else np.asarray(weight, dtype=float)
        totals = member.T @ rows
        self.shares = (member * rows[:, None]).T / totals[:, None]  # of the rows in each group
        self.sizes, self.rows, self.overlapping = totals / rows.sum(), rows / rows.sum(), (member.sum(axis=1) > 1).any()
        self.references = np.zeros(len(totals)) if references is None else np.asarray(references)

    # ------------------------------------------------------------------ by hand

    def losses(self, coef, intercept):
        """Return the loss of each row."""
        u = self.offset + self.X @ np.atleast_2d(coef).T + intercept
        if self.kind == "softmax":
            return logsumexp(u, axis=1) - u[np.arange(len(u)), self.y]
        u = u[:, 0]
        return (u - self.y) ** 2 / 2 if self.kind == "squared" else np.logaddexp(0.0, np.where(self.y > 0, -u, u))

    def profile(self, model):
        """Return a fitted model's average and worst value."""
        losses, penalty = self.losses(model.coef_, model.intercept_), self.alpha / 2 * np.square(model.coef_).sum()
        values = self.shares @ losses - self.references
        mean = values.mean() if self.average == "groups" else self.rows @ losses - self._row_reference()
        if self.caps is None:
            return mean + penalty, np.sort(values)[-self.n_worst :].mean() + penalty
        worst, left = 0.0, 1.0
        for i in np.argsort(-values):
            worst += min(self.caps[i], left) * values[i]
            left -= min(self.caps[i], left)
        return mean + penalty, worst + penalty

    def _row_reference(self):
        assert not (self.overlapping and self.references.any())
        return self.sizes @ self.references if self.references.any() else 0.0

    # ------------------------------------------------------------------ by CVXPY

    def _stated(self) -> tuple[Any, Any, list[Any]]:
        n, d = self.X.shape
        k = int(self.y.max()) + 1 if self.kind == "softmax" else 1
        coef, intercept = cp.Variable((d, k)), cp.Variable((1, k))
        offset = np.broadcast_to(self.offset, (n, k))
        u = offset + self.X @ coef + (np.ones((n, 1)) @ intercept if self.intercept else 0)
        if self.kind == "softmax":
            losses = cp.log_sum_exp(u, axis=1) - cp.sum(cp.multiply(np.eye(k)[self.y], u), axis=1)
        elif self.kind == "logistic":
            losses = cp.logistic(cp.multiply(np.where(self.y > 0, -1.0, 1.0), u[:, 0]))
        else:
            losses = cp.square(u[:, 0] - self.y) / 2
        penalty, values = self.alpha / 2 * cp.sum_squares(coef), self.shares @ losses - self.references
        mean = cp.sum(values) / len(self.sizes)
        if self.average == "rows":
            mean = self.rows @ losses - self._row_reference()
        worst = cp.max(values) if self.n_worst == 1 else cp.sum_largest(values, self.n_worst) / self.n_worst
        if self.caps is not None:
            level = cp.Variable()
            worst = level + self.caps @ cp.pos(values - level)
        ball = [] if self.radius is None else [cp.norm(cp.vec(coef, order="F")) <= self.radius]
        return mean + penalty, worst + penalty, ball

    @staticmethod
    def _least(objective, constraints) -> float:
        program = cp.Problem(cp.Minimize(objective), constraints)
        assert solve_convex(program)
        return float(program.value)

    def least_blend(self, t: float) -> float:
        """Return the least (1 - t) * mean + t * worst."""
        mean, worst, ball = self._stated()
        return self._least((1.0 - t) * mean + t * worst, ball)

    def least_mean(self, worst_within: float) -> float:
        """Return the least average of models within a worst value."""
        mean, worst, ball = self._stated()
        return self._least(mean, [worst <= worst_within, *ball])

    def least_worst(self, mean_within: float) -> float:
        """Return the least worst value of models within an average."""
        mean, worst, ball = self._stated()
        return self._least(worst, [mean <= mean_within, *ball])
