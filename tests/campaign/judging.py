"""What a run claims, held against what is known of its problem without the package."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.campaign.exact import Long, PlainProblem, group_minima, lower_estimate, solution_of, solve

__all__ = ["Claim", "Truth", "hold_against", "map_cases"]

RELATIVE = 1e-9  # by which a lower bound may exceed the optimum
ROUNDING = 1e-15  # the same relative to the losses at the start: what may be left where the optimum is zero


@dataclass(frozen=True, eq=False)
class Claim:
    """What a fit says of itself; w is shaped as that of the plain problem."""

    w: np.ndarray
    q: np.ndarray
    group_risks: np.ndarray
    lower: float
    upper: float
    gap: float
    converged: bool
    tol: float
    atol: float = 0.0
    group_minima: Any = None  # bounds on the groups' minima where these were found
    exact_upper: bool = True  # whether the upper bound is the objective at w, and not only at least that

    @classmethod
    def of(cls, result: Any, *, tol: float, atol: float = 0.0) -> "Claim":
        """Take what a run says."""
        return cls(
            w=result.w,
            q=result.q,
            group_risks=result.group_risks,
            lower=result.lower_bound,
            upper=result.upper_bound,
            gap=result.gap,
            converged=result.converged,
            tol=tol,
            atol=atol,
            group_minima=result.group_minima,
        )


class Truth:
    """What is known of a problem without the package.

    Parameters
    ----------
    plain : PlainProblem
        The problem of risks, without offsets and group minima.
    regret : bool
        Whether each group's own minimum is subtracted.
    base : ndarray of shape (n_groups,)
        What else is added to the groups' risks: offsets less given minima.
    candidates : iterable of ndarray
        More points that may be better than what is found here.
    known : tuple of (ndarray, ndarray), optional
        Model and group weights that another solver found, where the plain one does not know the set of weights.

    Attributes
    ----------
    low, high : PlainProblem
        The problem with what bounds its objective from below and from above: for regrets the groups' minima are known
        only within bounds.
    best : float
        The least objective that was found; the optimum is at most that.
    least : float
        A lower bound of the optimum by other formulas than the package's.
    scale : float
        Size of the losses at the start.
    minima, models : list or None, list
        Bounds of every group's own minimum, and the models that attain them.
    """

    def __init__(
        self,
        plain: PlainProblem,
        *,
        regret: bool,
        base: Any = 0.0,
        candidates: Iterable[np.ndarray] = (),
        known: tuple[np.ndarray, np.ndarray] | None = None,
    ):
        self.minima, self.models = None, []
        if regret:
            *self.minima, self.models = group_minima(plain)
        base = np.broadcast_to(np.asarray(base, Long), (plain.n_groups,))
        lower, upper = self.minima if self.minima is not None else (Long(0), Long(0))
        self.low, self.high = plain.with_shift(base - upper), plain.with_shift(base - lower)
        found = solve(self.high) if known is None else solution_of(self.high, *known)
        start = np.zeros(plain.shape) + (1.0 / plain.n_features if plain.simplex else 0.0)
        self.scale = float(np.abs(plain.risks(start)).max() + np.abs(base).max())
        self.least, polished = lower_estimate(self.low, found)
        points = [plain.feasible(np.asarray(w)) for w in (found.w, polished, *candidates)]
        self.w = min((w for w in points if np.isfinite(w).all()), key=self.high.objective)
        self.best = self.high.objective(self.w)

    @property
    def sharpness(self) -> float:
        """How far below the best the optimum may be, relative to it, or to a thousandth of the losses at the start."""
        return float((self.best - self.least) / max(abs(self.best), 1e-3 * self.scale, Long(1e-300)))

    def consider(self, w: np.ndarray, q: np.ndarray | None = None) -> None:
        """Take another point where it is better, and what its group weights prove by the formulas of here."""
        w = self.high.feasible(np.asarray(w))
        if not np.isfinite(w).all():
            return
        if q is not None:
            self.least = np.fmax(self.least, lower_estimate(self.low, solution_of(self.low, w, q))[0])
        if self.high.objective(w) < self.best:
            self.w, self.best = w, self.high.objective(w)

    def slack(self, value: Any) -> Any:
        return RELATIVE * abs(value) + ROUNDING * self.scale

    def excess(self, lower: float) -> float:
        """Return by how much a lower bound exceeds the best objective, relative to what makes the slack."""
        return float((lower - self.best) / max(self.slack(self.best) / RELATIVE, Long(1e-300)))


def hold_against(claim: Claim, truth: Truth, *, regret: bool) -> list[str]:
    """Return what a claim says wrongly; `regret` tells what its tolerance is relative to."""
    wrong, slack = [], truth.slack

    def check(holds: Any, sentence: str) -> None:
        if not holds:
            wrong.append(sentence)

    w, q, lower, upper = claim.w, claim.q, Long(claim.lower), Long(claim.upper)
    numbers = np.concatenate([w.ravel(), q, claim.group_risks, [lower, upper]])
    if not np.isfinite(numbers.astype(float)).all():
        return [f"{claim!r} has numbers that are not finite"]
    check(truth.low.excess(w) <= 1e-12, f"w is outside of its domain by {truth.low.excess(w):.2g}")
    check((q >= 0).all() and abs(q.sum() - 1) <= 1e-9, f"q is not in the simplex: {q}")
    outside = 0.0 if truth.low.weight_set is None else truth.low.weight_set.outside(q)
    check(outside <= 1e-11, f"q is outside of its set by {outside:.2g}")

    # 1. The upper bound is the objective at w; for regrets it is at least that.
    least, most, noise = truth.low.objective(w), truth.high.objective(w), truth.low.rounding_at(w)
    check(upper >= least - slack(least) - noise, f"upper bound {upper!r} is below the objective at w, {least!r}")
    if truth.minima is None and claim.exact_upper:
        check(upper <= most + slack(most) + noise, f"upper bound {upper!r} is above the objective at w, {most!r}")
    risks = truth.low.risks(w)
    error = np.abs(claim.group_risks - risks).max()
    check(error <= slack(np.abs(risks).max()) + noise, f"group risks are wrong by {error:.3g}")

    # 2. The lower bound is below every objective, and its own q prove it.
    check(lower <= truth.best + slack(truth.best), f"lower bound {lower!r} is above {truth.best!r} of {truth.w!r}")
    shift = truth.low.shift
    if truth.minima is not None:
        shift = shift + truth.minima[1] - claim.group_minima.upper.astype(Long)
    value = least_of_mixture(_around_solution(truth.low.with_shift(shift), upper), q / q.sum())
    check(lower <= value + slack(value), f"lower bound {lower!r} is above {value!r}, all that its q prove")

    # 3. The bounds on the groups' minima hold.
    if truth.minima is not None:
        low, high = truth.minima
        for name, excess in (("lower", claim.group_minima.lower - high), ("upper", low - claim.group_minima.upper)):
            i = int(np.argmax(excess))
            check(excess[i] <= slack(high[i]), f"{name} minimum of group {i} is wrong by {excess[i]:.3g}")

    # 4. "Converged" is true of the model that is returned.
    if claim.converged:
        size = max(abs(upper), claim.tol) if regret else abs(upper)
        allowed = max(claim.tol * size, claim.atol) * (1 + 1e-9)
        check(upper - lower <= allowed, f"converged with bounds {upper - lower:.3g} apart, allowed {allowed:.3g}")
        distance = least - truth.best
        check(
            distance <= allowed + slack(least) + noise,
            f"converged {distance:.3g} from the optimum {truth.best!r}, allowed {allowed:.3g}",
        )
    check(claim.gap >= (upper - lower) * (1 - 1e-15) - 1e-300, f"gap {claim.gap!r} is less than {upper - lower!r}")
    return wrong


def _around_solution(plain: PlainProblem, upper: Any) -> PlainProblem:
    """Confine w to where the solution must be: with losses of at least 0, an optimum so low bounds its penalty."""
    if plain.simplex or not plain.penalty:
        return plain
    least = float(max(upper - plain.worst_of(np.broadcast_to(plain.shift, (plain.n_groups,))), 0))
    radius = np.sqrt(2.0 * least / plain.penalty) * (1 + 1e-9)
    return PlainProblem(**{**vars(plain), "radius": min(plain.radius, float(radius))}) if radius > 0 else plain


def least_of_mixture(plain: PlainProblem, q: np.ndarray) -> Any:
    """Return the least that was found of sum_i q_i value_i + penalty: what q can prove is at most that."""
    sizes = np.diff(np.r_[plain.starts, len(plain.rows)])
    weights = np.zeros(len(plain.X), Long)
    np.add.at(weights, plain.rows, np.repeat(q.astype(Long), sizes) * plain.weights)
    shift = (q.astype(Long) * np.broadcast_to(plain.shift, q.shape)).sum()
    changed = {"rows": np.arange(len(plain.X)), "starts": np.zeros(1, int), "weights": weights, "shift": shift}
    changed["weight_set"] = None
    mixture = PlainProblem(**{**vars(plain), **changed})
    found = solve(mixture)
    points = [mixture.feasible(w) for w in (found.w, lower_estimate(mixture, found)[1])]
    return min(mixture.objective(w) for w in points if np.isfinite(w).all())


def map_cases(function: Callable[[Any], Any], tasks: Iterable[Any], jobs: int) -> Iterator[Any]:
    """Yield what a function of a module returns for each task, in several processes if asked."""
    if jobs == 1:
        yield from map(function, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=400) as pool:
        yield from pool.imap_unordered(function, list(tasks), chunksize=4)
