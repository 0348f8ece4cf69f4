"""What a fit of real data claims, held against models that the judge finds itself."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.campaign.plain_losses import HuberLoss, LogisticLoss, SoftmaxLoss, SquaredHingeLoss, SquaredLoss
from tests.campaign.real_data import Case, Table
from tests.campaign.witness_by_cvxpy import model_by_cvxpy
from tests.campaign.witnesses import Long, Model, Posed, separates

__all__ = ["Claim", "Verdict", "hold", "pose"]

RELATIVE = 1e-9  # by which a lower bound may exceed the best objective that was found
LARGE = 20_000  # rows from which one search has to do
SMALL = 700  # rows up to which CVXPY looks for a witness of every eighth problem


@dataclass(frozen=True, eq=False)
class Claim:
    """What a fit says of itself. Coefficients have shape (n_features, n_outputs)."""

    coef: np.ndarray
    intercept: np.ndarray
    lower: float
    upper: float
    status: str
    tol: float
    atol: float = 0.0
    exact_upper: bool = True  # whether the upper bound is the objective of the model, and not only at least that

    @classmethod
    def of_estimator(cls, model: Any) -> "Claim":
        return cls(
            coef=np.atleast_2d(model.coef_).T,
            intercept=np.atleast_1d(model.intercept_),
            lower=model.lower_bound_,
            upper=model.upper_bound_,
            status=model.status_,
            tol=model.tol,
            atol=getattr(model, "atol", None) or 0.0,
            exact_upper=len(np.atleast_1d(model.intercept_)) == 1,  # of several classes a constant is taken off
        )

    @classmethod
    def of_result(cls, result: Any, d: int, tol: float) -> "Claim":
        w = result.w.reshape(len(result.w), -1)
        intercept = w[d] if len(w) > d else np.zeros(w.shape[1])
        return cls(w[:d], intercept, result.lower_bound, result.upper_bound, result.status.name.lower(), tol)


@dataclass
class Verdict:
    """What a fit was found to be."""

    case: Case
    status: str
    minimiser: bool | None = None  # whether the problem has one, as far as the judge can see
    unresolved: bool = False  # whether a claim holds only up to what the data's digits resolve
    by_cvxpy: bool = False  # whether CVXPY looked for a witness too
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


_LOSSES = {
    "squared": SquaredLoss(),
    "huber": HuberLoss(),
    "logistic": LogisticLoss(),
    "softmax": SoftmaxLoss(3),
    "squared_hinge": SquaredHingeLoss(),
}


def pose(case: Case, table: Table, **other: Any) -> Posed:
    """Return the problem of a case by plain formulas."""
    y = 2 * table.y - 1 if case.loss in ("logistic", "squared_hinge") else table.y
    radius = case.parameter("radius")
    given = {
        "loss": _LOSSES[case.loss],
        "alpha": case.parameter("alpha"),
        "radius": np.inf if radius is None else radius,
        "intercept": case.parameter("fit_intercept"),
        **other,
    }
    return Posed(table.dense, y, table.groups, table.weight, **given)


def hold(
    verdict: Verdict,
    posed: Posed,
    claim: Claim,
    *,
    regret: bool = False,
    own_minima: bool = False,
    minimiser: bool | None = None,
) -> Verdict:
    """Look for anything that a claim says wrongly.

    Parameters
    ----------
    verdict : Verdict
        To which the findings are added.
    posed : Posed
        The problem; its `shift` has what is added to the groups' risks.
    claim : Claim
        The claim.
    regret : bool
        Whether the tolerance is that of regrets.
    own_minima : bool
        Whether each group's own minimum is subtracted from its risk.
    minimiser : bool, optional
        Whether the problem has a minimiser, if the caller knows.
    """
    numbers = np.concatenate([claim.coef.ravel(), claim.intercept, [claim.lower, claim.upper]])
    if not np.isfinite(numbers[:-2]).all() or np.isnan(numbers).any():
        verdict.wrong.append(f"{claim!r} has numbers that are not finite")
        return verdict
    returned = posed.model(claim.coef, claim.intercept)
    if posed.outside(returned) > 1e-12:
        verdict.wrong.append(f"the model is outside of its domain by {posed.outside(returned):.2g}")
    low = high = posed.shift
    if own_minima:
        least, most = _minima(posed)
        low, high = posed.shift - most, posed.shift - least
    unbounded = posed.alpha == 0 and np.isinf(posed.radius) and np.isinf(posed.box)
    verdict.minimiser = True if minimiser is None else minimiser
    if minimiser is not None:
        if claim.status == "no_finite_minimiser" and minimiser:
            verdict.wrong.append("'no_finite_minimiser', but there is one")
    elif unbounded and not posed.loss.regression and claim.status != "converged":
        found = separates(posed) if len(posed.y) <= LARGE else None
        verdict.minimiser = None if found is None else not found
        if claim.status == "no_finite_minimiser" and found is False:
            verdict.wrong.append("'no_finite_minimiser', but all rows together have a minimiser")
    elif claim.status == "no_finite_minimiser":
        verdict.wrong.append(f"'no_finite_minimiser' with alpha={posed.alpha}, radius={posed.radius}")
    _hold_upper(verdict, posed, claim, returned, low, regret)
    _hold_lower(verdict, posed, claim, returned, high)
    return verdict


def _hold_upper(verdict: Verdict, posed: Posed, claim: Claim, returned: Model, shift: Any, regret: bool) -> None:
    objective, upper, lower = posed.objective(returned, shift), Long(claim.upper), Long(claim.lower)
    unit = posed.resolution(returned)
    slack = RELATIVE * abs(objective)
    if upper < objective - slack - 8 * unit:
        verdict.wrong.append(f"upper bound {upper:.12g} is below the model's objective {objective:.12g}")
    if claim.exact_upper and not regret and upper > objective + slack + 8 * unit:
        verdict.wrong.append(f"upper bound {upper:.12g} is above the model's objective {objective:.12g}")
    if claim.status != "converged":
        return
    size = max(abs(objective), Long(claim.tol)) if regret else abs(objective)
    allowed = max(claim.tol * size, Long(claim.atol), _all_rounding(posed)) * (1 + 1e-6)
    gap = objective - lower
    if gap > allowed + 2 * unit:
        verdict.wrong.append(f"converged, but {objective:.9g} - {lower:.9g} is more than {allowed:.3g}")
    elif gap > allowed:
        verdict.unresolved = True


def _all_rounding(posed: Posed) -> Any:
    """Return the loss of residuals of a thousand units of rounding: the documented end of a fit without loss."""
    spread = Long(1)
    if posed.loss.regression:
        spread = (posed.weights / posed.m * posed.y**2).sum()
    elif posed.K == 1:  # the curvature of counts grows with them
        spread = np.fmax(spread, (posed.weights / posed.m * np.abs(posed.y)).sum())
    return (1e3 * Long(np.finfo(float).eps)) ** 2 * spread / 2


def _hold_lower(verdict: Verdict, posed: Posed, claim: Claim, returned: Model, shift: Any) -> None:
    if claim.lower == -np.inf:
        return
    kept, posed.shift = posed.shift, shift
    try:
        others = [posed.zero(), returned]
        if verdict.case.seed % 8 == 0 and len(posed.y) <= SMALL:
            others += [model for model in [model_by_cvxpy(posed)] if model is not None]
            verdict.by_cvxpy = len(others) == 3
        best, value = _best_model(posed, returned, others)
    finally:
        posed.shift = kept
    excess = Long(claim.lower) - value - RELATIVE * abs(value)
    if excess > 2 * posed.resolution(best):
        verdict.wrong.append(
            f"lower bound {claim.lower:.12g} is above {value:.12g}, the objective of another model "
            f"(coef {np.asarray(best.coef, float).ravel()[:4]})"
        )
    elif excess > 0:
        verdict.unresolved = True


def _best_model(posed: Posed, returned: Model, others: list[Model]) -> tuple[Model, Any]:
    """Return the feasible model with the least objective that was found, and that."""
    if len(posed.y) > LARGE:
        found = [posed.search(returned, first=1e-3, last=1e-11, steps=40).model]
    else:
        nearby = posed.search(returned)
        found = [nearby.model]
        if not nearby.promise < 1e-10:
            found.append(posed.search().model)
    models = [model for model in (*others, *found) if _counts(posed, model)]
    best = min(models, key=posed.objective)
    value = posed.objective(best)
    if any(abs(posed.objective(model) - value) > 1e-8 * abs(value) for model in found) and len(posed.y) <= LARGE:
        again = posed.search(best, steps=400).model
        if _counts(posed, again) and posed.objective(again) < value:
            return again, posed.objective(again)
    return best, value


def _counts(posed: Posed, model: Model) -> bool:
    return bool(np.isfinite(model.coef).all() and np.isfinite(model.constant).all() and posed.outside(model) <= 1e-12)


def _minima(posed: Posed) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds of each group's own minimum; where none was reached, the loss has a least value."""
    least, most = np.full(posed.m, getattr(posed.loss, "constant", 0), Long), np.zeros(posed.m, Long)
    for i in range(posed.m):
        alone = posed.part(i)
        found = alone.search()
        most[i] = alone.objective(found.model)
        if found.promise < 1e-9:
            least[i] = most[i] * (1 - 1e-9 - 10 * found.promise) - alone.resolution(found.model)
    return least, most
