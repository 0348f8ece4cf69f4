"""Fits of counts, amounts and quantiles of ugly sizes, held against models that the judge finds itself.

A failure prints its number, which runs again:

    from tests.campaign.part_means import judge
    judge(17)
"""

import re
import time
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog
from sklearn.exceptions import ConvergenceWarning

import groupdro as gd
from tests.campaign.frame import Check, Tally
from tests.campaign.judging import map_cases
from tests.campaign.plain_losses import GammaLoss, Pinball, PoissonLoss, TweedieLoss
from tests.campaign.real_verdicts import Claim, Verdict, hold
from tests.campaign.witness_by_cvxpy import model_by_cvxpy
from tests.campaign.witnesses import Found, Long, Posed

MAX_TIME = 5.0  # seconds that a fit is given
KINDS = ("poisson", "gamma", "tweedie", "quantile")
WIDTHS = 10.0 ** np.arange(-1.0, -10.0, -1.0)  # of the pinball loss of the judge, relative to the targets


@dataclass(frozen=True, eq=False)
class Drawn:
    """Data of one fit, its parameters, and the loss of the package and of the judge."""

    seed: int
    kind: str
    X: Any
    y: np.ndarray
    groups: np.ndarray
    weight: np.ndarray | None
    offset: np.ndarray | None
    loss: Any
    plain: Any
    parameters: dict[str, Any]

    def __repr__(self) -> str:
        parts = [f"{type(self.X).__name__} {self.X.shape}", repr(self.loss), self.kind]
        parts += [name for name in ("weight", "offset") if getattr(self, name) is not None]
        return f"({', '.join(parts)}, y from {self.y.min():.3g} to {self.y.max():.3g}, {self.parameters})"


def draw(seed: int) -> Drawn:
    """Return the data and parameters of a number."""
    rng = np.random.default_rng([seed, 57])
    m, d = int(rng.integers(2, 8)), int(rng.integers(1, 7))
    sizes = rng.integers(1, 5, m) if rng.random() < 0.2 else rng.integers(1, 60, m)
    groups = rng.permutation(np.repeat(np.arange(m), sizes))
    n = len(groups)
    X = rng.normal(size=(n, d))
    if rng.random() < 0.3:
        X *= 10.0 ** rng.integers(-3, 4, d)
    stored: Any = X
    if rng.random() < 0.3:
        X = X * (rng.random((n, d)) < 0.4)
        stored = sp.csr_array(X)
    elif rng.random() < 0.2:
        stored = X.astype(np.float32)
        X = stored.astype(np.float64)
    spread = np.abs(X).max(axis=0)
    signal = (X / np.where(spread > 0, spread, 1.0)) @ rng.normal(size=d)
    weight = rng.random(n) * (rng.random(n) < 0.8) if rng.random() < 0.3 else None
    if weight is not None:  # some rows weigh nothing, but no whole group does
        weight[np.unique(groups, return_index=True)[1]] += 0.1
    name = str(rng.choice(KINDS))
    offset, exposure = None, np.ones(n)
    if rng.random() < 0.4:
        if name == "quantile":
            offset = rng.normal(size=n) * 10.0 ** rng.uniform(-2, 2)
        else:
            exposure = 10.0 ** rng.uniform(-4, 4, n)
            offset = np.log(exposure)
    kind, y, loss, plain = _draw_labels(name, signal, exposure, rng)
    if name == "poisson" and offset is not None and rng.random() < 0.4:  # rates, whose weights are the exposures
        y, weight, offset = y / exposure, exposure * (1.0 if weight is None else weight), None
        kind += ", rates"
    parameters = {
        "objective": str(rng.choice(["risk", "excess_risk"])),
        "robustness": float(rng.choice([0.0, 0.5, 1.0], p=[0.2, 0.3, 0.5])),
        "alpha": float(rng.choice([0.0, 1e-6, 1e-4, 1e-2, 1.0], p=[0.1, 0.2, 0.3, 0.2, 0.2])),
        "fit_intercept": bool(rng.random() < 0.8),
        "solver": str(rng.choice(["auto", "aleg", "sqp"], p=[0.8, 0.1, 0.1])),
        "tol": float(rng.choice([1e-2, 1e-4, 1e-6])),
    }
    return Drawn(seed, kind, stored, y, groups, weight, offset, loss, plain, parameters)


def _draw_labels(
    name: str, signal: np.ndarray, exposure: np.ndarray, rng: np.random.Generator
) -> tuple[str, np.ndarray, Any, Any]:
    """Return what kind of labels they are, the labels, and both losses."""
    n, shape = len(signal), np.exp(signal)
    if name == "quantile":
        level, size = float(rng.choice([0.5, 0.1, 0.95, 0.01])), 10.0 ** rng.uniform(-6, 9)
        y = size * (signal + rng.standard_t(2, n))
        if rng.random() < 0.3:
            y = np.round(y / size) * size  # ties
        return f"quantile {level:g}", y, gd.losses.Quantile(level), Pinball(level)
    if name == "gamma":
        level = 10.0 ** rng.uniform(-6, 9)
        y = np.clip(level * shape * rng.gamma(rng.choice([0.1, 1.0, 10.0]), size=n) * exposure, 1e-6, 1e9)
        return "gamma", y, gd.losses.Gamma(), GammaLoss()
    kind = str(rng.choice(["ordinary", "large", "zeros", "one large"]))
    level = {"ordinary": 2.0, "large": 10.0 ** rng.uniform(3, 6), "zeros": 0.03, "one large": 2.0}[kind]
    y = rng.poisson(np.minimum(level * shape * exposure, 1e6)).astype(float)
    if kind == "one large":
        y[rng.integers(n)] = 1e5
    if name == "poisson":
        return f"poisson, {kind}", y, gd.losses.Poisson(), PoissonLoss()
    power = float(rng.choice([1.5, rng.uniform(1.05, 1.95)]))
    amounts = y * rng.gamma(1.0, size=n) * 10.0 ** rng.uniform(-3, 3)
    return f"tweedie, {kind}", amounts, gd.losses.Tweedie(power), TweedieLoss(power)


class _PosedMeans(Posed):
    """A problem whose search starts at the mean, and takes the pinball loss to CVXPY."""

    def search(self, start: Any = None, **options: Any) -> Found:
        if isinstance(self.loss, Pinball):
            return self._polyhedral(start)
        if start is None:
            start = self.zero()
            if self.intercept:
                with np.errstate(divide="ignore"):
                    total = (self.weights * self.y).sum()
                    start.constant[:] = np.log(np.maximum(total, 1e-9) / (self.weights * np.exp(self.offset)).sum())
        return super().search(start, **options)

    def _polyhedral(self, start: Any) -> Found:
        """Search by CVXPY, or where Clarabel is not accurate by smooth losses above the pinball loss."""
        model = model_by_cvxpy(self, accurate=True)
        if model is not None:
            return Found(model, 1e-8, 0.0)
        exact, best = self.loss, start
        size = float(np.abs(self.outputs(self.zero())).mean()) or 1.0
        try:
            for width in WIDTHS:
                self.loss = replace(exact, width=width * size)
                best = super().search(best, first=width, last=1e-2 * width, steps=60).model
        finally:
            self.loss = exact
        return Found(best, np.inf, np.inf)  # may be far from the optimum


def has_minimiser(drawn: Drawn) -> bool:
    """Return whether the losses of all rows together do not fall forever in some direction.

    Rows of zeros fall where their outputs do, all others rise in both directions.
    """
    counts = np.ones(len(drawn.y), bool) if drawn.weight is None else drawn.weight > 0
    zero = counts & (drawn.y == 0) & (not isinstance(drawn.plain, Pinball))
    if not zero.any():
        return True
    free = drawn.parameters["alpha"] == 0
    X = drawn.X.toarray() if sp.issparse(drawn.X) else np.asarray(drawn.X, float)
    columns = [X / np.maximum(np.abs(X).max(axis=0), 1e-300)] * free
    A = np.column_stack([*columns, np.ones((len(X), int(drawn.parameters["fit_intercept"])))])
    if not A.shape[1]:
        return True
    rest = counts & ~zero
    found = linprog(
        A[zero].sum(axis=0),
        A_ub=A[zero],
        b_ub=np.zeros(zero.sum()),
        A_eq=A[rest] if rest.any() else None,
        b_eq=np.zeros(rest.sum()) if rest.any() else None,
        bounds=(-1, 1),
    )
    return found.status == 0 and found.fun > -1e-9


def judge(seed: int) -> Verdict:
    """Fit a case and look for anything that it says wrongly."""
    drawn = draw(seed)
    verdict, begun = Verdict(drawn, "raised"), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (gd.UselessModelWarning, gd.SmallGroupWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", kind)
        try:
            _judge(drawn, verdict)
        except Exception as error:
            verdict.wrong.append(f"{type(error).__name__}: {error}")
    verdict.seconds = time.process_time() - begun
    return verdict


def _judge(drawn: Drawn, verdict: Verdict) -> None:
    p = drawn.parameters
    model = gd.GroupDRORegressor(loss=drawn.loss, random_state=0, max_time=MAX_TIME, **p)
    try:
        model.fit(drawn.X, drawn.y, drawn.weight, groups=drawn.groups, offset=drawn.offset)
    except ValueError as error:
        if not re.search(r"\b(X|y|offset)\b", str(error)):
            raise
        verdict.status = "refused"
        return
    verdict.status = model.status_
    posed = _PosedMeans(
        drawn.X.toarray() if sp.issparse(drawn.X) else drawn.X,
        drawn.y,
        drawn.groups,
        drawn.weight,
        drawn.plain,
        alpha=p["alpha"],
        intercept=p["fit_intercept"],
        offset=drawn.offset,
        robustness=p["robustness"],
    )
    regret = p["objective"] == "excess_risk"
    claim = Claim.of_estimator(model)
    hold(verdict, posed, claim, regret=regret, own_minima=regret, minimiser=has_minimiser(drawn))
    # Group risks and predictions, by other formulas.
    returned = posed.model(claim.coef, claim.intercept)
    risks = posed.risks(returned)
    shown = np.asarray(model.group_risks_, Long)
    if not (np.abs(shown - risks) <= 1e-9 * np.abs(risks) + 8 * posed.resolution(returned)).all():
        verdict.wrong.append(f"group risks {shown} are {risks}")


def tally(verdicts: Any) -> Tally:
    """Count verdicts."""
    out, statuses, by_kind = Tally(), Counter(), defaultdict(Counter)
    solvable = converged = by_cvxpy = unresolved = 0
    slowest = 0.0
    for verdict in verdicts:
        out.tried += 1
        statuses[verdict.status] += 1
        solvable += verdict.minimiser is True
        converged += verdict.minimiser is True and verdict.status == "converged"
        if verdict.minimiser:
            by_kind[verdict.case.kind][verdict.status] += 1
        by_cvxpy += verdict.by_cvxpy
        unresolved += verdict.unresolved
        slowest = max(slowest, verdict.seconds)
        out.failures += [f"judge({verdict.case.seed}): {sentence} {verdict.case!r}" for sentence in verdict.wrong]
    out.figures = [
        ", ".join(f"{count:,} {status}" for status, count in statuses.most_common()),
        f"{converged:,} of {solvable:,} that have a minimiser converged ({converged / max(solvable, 1):.1%})",
        f"{unresolved} held only up to what the data's digits resolve",
        f"{by_cvxpy:,} searched by CVXPY too",
        f"slowest {slowest:.1f} s of CPU",
        *(
            f"{kind}: " + ", ".join(f"{n} {s}" for s, n in found.most_common())
            for kind, found in sorted(by_kind.items())
        ),
    ]
    return out


def run(count: int, seed: int, jobs: int) -> Tally:
    return tally(map_cases(judge, range(1_000_000 * seed, 1_000_000 * seed + count), jobs))


CHECKS = [
    Check(
        name="counts and amounts",
        promise="counts, amounts and quantiles of ugly sizes: no bound above another model, no false converged",
        run=run,
        full=3_000,
        ci=40,
    )
]
