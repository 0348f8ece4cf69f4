"""The same problems posed to CVXPY, in units of the columns: another way to a witness than the judge's own search."""

import warnings
from typing import Any

import cvxpy as cp
import numpy as np

from tests.campaign.plain_losses import (
    GammaLoss,
    HuberLoss,
    LogisticLoss,
    Pinball,
    PoissonLoss,
    SoftmaxLoss,
    SquaredHingeLoss,
    SquaredLoss,
    TweedieLoss,
)
from tests.campaign.witnesses import Long, Model, Posed

__all__ = ["model_by_cvxpy"]


def model_by_cvxpy(posed: Posed, *, accurate: bool = False) -> Model | None:
    """Return the model that Clarabel finds, or None where it finds none or the loss is not one of the usual.

    With `accurate`, only one that it calls optimal.
    """
    if isinstance(posed.loss, LogisticLoss) and posed.loss != LogisticLoss():
        return None
    A = (posed.centred / posed.scales).astype(float)
    V, c, t = cp.Variable((posed.d, posed.K)), cp.Variable((1, posed.K)), cp.Variable()
    u = A @ V + (np.ones((len(A), 1)) @ c if posed.intercept else 0) + posed.offset.astype(float)[:, None]
    unit = max(float(np.abs(posed.objective(posed.zero())).max()), 1e-300)  # of the loss
    losses = _losses(posed, u)
    if losses is None:
        return None
    ends = posed.starts + posed.sizes
    risks = [
        (posed.weights[a:b].astype(float) / unit) @ losses[a:b] + float(shift) / unit
        for a, b, shift in zip(posed.starts, ends, posed.shift, strict=True)
    ]
    coef = cp.multiply(1.0 / posed.scales[:, None], V)
    limits = [risk <= t for risk in risks]
    if np.isfinite(posed.radius):
        limits.append(cp.norm(cp.vec(coef, order="C") / posed.radius) <= 1)
    if np.isfinite(posed.box):
        limits.append(cp.abs(coef) <= posed.box)
    penalty = 0.5 * cp.sum_squares(np.sqrt(posed.alpha / unit) * coef) if posed.alpha else 0.0
    average = sum(float(share) * risk for share, risk in zip(posed.base, risks, strict=True))
    share = float(posed.robustness)
    problem = cp.Problem(cp.Minimize(share * t + (1.0 - share) * average + penalty), limits)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of accuracy, which is judged here
            problem.solve(solver=cp.CLARABEL)
    except (cp.SolverError, ValueError):
        return None
    if accurate and problem.status != cp.OPTIMAL:
        return None
    if V.value is None or not np.isfinite(V.value).all():
        return None
    constant = c.value[0] if posed.intercept else np.zeros(posed.K)
    model = Model((V.value.astype(Long).T / posed.scales).T, np.asarray(constant, Long))
    outside = 1 + Long(posed.outside(model))
    return Model(model.coef / outside, model.constant)


def _losses(posed: Posed, u: Any) -> Any:
    loss, n = posed.loss, len(posed.y)
    if isinstance(loss, SoftmaxLoss):
        own = np.zeros((n, posed.K))
        own[np.arange(n), posed.y] = 1.0
        return cp.log_sum_exp(u, axis=1) - cp.sum(cp.multiply(own, u), axis=1)
    y, u = posed.y.astype(float), u[:, 0]
    if isinstance(loss, SquaredLoss):
        return 0.5 * loss.factor * cp.square(u - y)
    if isinstance(loss, HuberLoss):
        return 0.5 * cp.huber(u - y, loss.delta)
    if isinstance(loss, LogisticLoss):
        return cp.logistic(-cp.multiply(y, u))
    if isinstance(loss, PoissonLoss):
        return cp.exp(u) - cp.multiply(y, u)
    if isinstance(loss, GammaLoss):
        return cp.multiply(y, cp.exp(-u)) + u
    if isinstance(loss, TweedieLoss):
        p = loss.power
        return cp.exp((2 - p) * u) / (2 - p) + cp.multiply(y, cp.exp((1 - p) * u)) / (p - 1)
    if isinstance(loss, Pinball):
        return cp.maximum((1 - loss.level) * u - (1 - loss.level) * y, loss.level * (y - u))
    return 0.5 * cp.square(cp.pos(1 - cp.multiply(y, u))) if isinstance(loss, SquaredHingeLoss) else None
