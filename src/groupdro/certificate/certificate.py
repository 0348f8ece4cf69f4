"""Certificates: an upper bound, a lower bound that no model can beat, and the gap between them.

Any w gives the upper bound max_i value_i(w) + penalty(w). Any q gives a lower bound on min_w F(w, q), which is at most
the optimum. After a pass over the data, the linearisation at its point gives such a bound at no extra cost. The best w
and the best q may come from different points.
"""

from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize_scalar

from groupdro.certificate.rounding import gradient_error, rounding_slack, support_slack
from groupdro.oracle import Evaluation, Oracle
from groupdro.oracle.duals import DualValue, balanced_slopes, dual_value, followed_slopes
from groupdro.problem import Domain, Problem
from groupdro.problem.linear_model import scale_rows
from groupdro.problem.output_ball import OutputBall
from groupdro.utils.arguments import check_kind
from groupdro.utils.types import Floats

__all__ = [
    "LEAST_GAP",
    "Certificate",
    "Cut",
    "CutAggregate",
    "balance",
    "cut_of_duals",
    "is_inside",
    "linearise",
]


LEAST_GAP = 1e-12  # relative to the upper bound, whose rounding it covers
_OUTSIDE = 1e-9  # relative distance from the domain that is more than rounding
_MUCH_SMALLER = 0.1  # of the last gap: a bound per digit shows progress
_ROUNDED = 1e-14  # deviation of the sum of group weights from 1 that needs no rescaling


@dataclass(frozen=True, eq=False)
class Cut:
    """An affine minorant of F(., q) before minima are subtracted: ``constant + <gradient, coef> + penalty(coef)``.

    It holds for every coef and intercept. The baseline, ``q @ baseline.upper``, is left out, so the cut stays valid
    when the minima are tightened.

    Attributes
    ----------
    constant : float
        Value at the origin without the baseline, minus the slack for rounding at the point of the pass.
    gradient : ndarray, shaped as the coefficients
        Slope.
    q : ndarray of shape (n_groups,)
        The group weights it belongs to.
    error : float
        Bound on the rounding error of the gradient, which depends on how the rows were divided among workers.
    """

    constant: float
    gradient: Floats
    q: Floats
    error: float

    def bound(self, problem: Problem, domain: Domain | OutputBall) -> float:
        """Return the minimum over the domain of the minorant minus the problem's baseline."""
        baseline = self.q * problem.baseline.upper
        slack = rounding_slack(0.0, 0.0, float(np.abs(baseline).sum()))
        return self.mixture(domain) - float(baseline.sum()) - slack

    def mixture(self, domain: Domain | OutputBall) -> float:
        """Return the minorant's minimum over the domain: a bound on the mixture of risks, for any group minima."""
        return self.constant + domain.support(self.gradient) - support_slack(domain, self.gradient, self.error)

    def mix(self, other: "Cut", share: float) -> "Cut":
        """Return (1 - share) * self + share * other, a minorant for the same mixture of both q."""
        keep = 1.0 - share
        return Cut(
            constant=keep * self.constant + share * other.constant,
            gradient=keep * self.gradient + share * other.gradient,
            q=keep * self.q + share * other.q,
            error=keep * self.error + share * other.error,
        )


def linearise(oracle: Oracle, at: Evaluation) -> Cut:
    """Return the linearisation of F(., q) at an evaluation of a problem without a free intercept."""
    check_kind(oracle, "oracle", Oracle, "an Oracle")
    check_kind(at, "at", Evaluation, "an Evaluation")
    problem = oracle.problem
    if problem.fit_intercept:
        raise ValueError("With a free intercept, a linearisation is unbounded below; use balance instead.")
    error = gradient_error(problem, at.mass)
    if at.single is None:
        value = float(at.q @ at.group_risks)
        inner = float(np.vdot(at.gradient, at.w))
        slack = rounding_slack(error, float(np.linalg.norm(at.w)), abs(value) + abs(inner))
    else:  # tangents at the computed outputs are minorants, even if these outputs differ from those at w
        value = float(at.q @ at.single.constants)
        inner = 0.0
        slack = rounding_slack(0.0, 0.0, value * (1.0 + problem.model.n_outputs) + abs(value))
    return Cut(constant=value - inner - slack, gradient=problem.coef(at.gradient), q=at.q, error=error)


def balance(oracle: Oracle, at: Evaluation) -> Cut | None:
    """Return a minorant of F(., q) that is flat along a free intercept, or None if rounding prevents it.

    Its constant is the sum of the losses' conjugates at balanced duals, that is, slopes whose weighted sum is zero. If
    the pass recorded how the slopes change with the intercept, no further pass is needed. Otherwise the intercept is
    centred for q, the slopes there are corrected to balance exactly, and the rows are combined again: one more pass
    over the data.
    """
    check_kind(oracle, "oracle", Oracle, "an Oracle")
    check_kind(at, "at", Evaluation, "an Evaluation")
    problem = oracle.problem
    row_weights = problem.data.row_weights(at.q)
    followed = followed_slopes(problem, at, row_weights)
    if followed is not None:
        duals, gradient, mass = followed
        dual = dual_value(problem, duals, row_weights)
        if np.isfinite(dual.conjugates):
            return _balanced_cut(problem, at, dual, gradient, mass)
    return cut_of_duals(oracle, at, balanced_slopes(oracle, at, row_weights), row_weights)


def cut_of_duals(oracle: Oracle, at: Evaluation, duals: Floats, row_weights: Floats) -> Cut | None:
    """Return the minorant of duals, whose weighted sum is zero if there is a free intercept, in one pass."""
    problem = oracle.problem
    dual = dual_value(problem, duals, row_weights)
    if not np.isfinite(dual.conjugates):
        return None
    gradient = oracle.combine_rows(scale_rows(duals, row_weights))
    return _balanced_cut(problem, at, dual, gradient, oracle.combined_mass(dual.mass))


def _balanced_cut(problem: Problem, at: Evaluation, dual: DualValue, gradient: Floats, mass: float) -> Cut:
    # The duals' sum is zero up to the rounding of a pairwise sum; the remainder is multiplied by the intercept.
    left = dual.duals * float(np.abs(problem.intercept(at.w)).max(initial=0.0))
    slack = rounding_slack(0.0, 0.0, dual.sizes + left)
    return Cut(constant=-dual.conjugates - slack, gradient=gradient, q=at.q, error=gradient_error(problem, mass))


class CutAggregate:
    """A mixture of all cuts seen, stored as a single cut. Its bound never decreases.

    Slopes at different points cancel in a mixture, so its bound can exceed that of every single cut. Each new cut
    enters with the share that maximises the bound, which is a concave problem in one variable.
    """

    def __init__(self, oracle: Oracle):
        self.oracle = oracle
        self.cut: Cut | None = None
        self.latest: Cut | None = None

    def add(self, at: Evaluation, domain: Domain | OutputBall, upper: float = np.inf) -> float:
        """Mix in the minorant of an evaluation and return the best bound of the mixture.

        A cut that by itself halves the distance to the upper bound replaces the mixture without a search.
        """
        problem = self.oracle.problem
        new = balance(self.oracle, at) if problem.fit_intercept else linearise(self.oracle, at)
        self.latest = new
        if new is None:
            return -np.inf if self.cut is None else self.cut.bound(problem, domain)
        share = 1.0
        if self.cut is not None and not self._replaces(new, self.cut, domain, upper):
            old = self.cut

            def loss_of(share: float) -> float:
                return -old.mix(new, share).bound(problem, domain)

            # A cut whose bound is infinite makes the search subtract infinities.
            with np.errstate(invalid="ignore"):
                inner = minimize_scalar(loss_of, bounds=(0.0, 1.0), method="bounded", options={"xatol": 0.03})
            share = min((float(inner.x), 0.0, 1.0), key=loss_of)
        self.cut = new if share == 1.0 or self.cut is None else self.cut.mix(new, share)
        return self.cut.bound(problem, domain)

    def _replaces(self, new: Cut, old: Cut, domain: Domain | OutputBall, upper: float) -> bool:
        problem = self.oracle.problem
        gap = upper - old.bound(problem, domain)
        return bool(np.isfinite(gap)) and upper - new.bound(problem, domain) <= 0.5 * gap


class Certificate:
    """The best pair of bounds seen, and the w and q that prove them.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the problem.

    Attributes
    ----------
    w, upper : ndarray, float
        The best w, and the objective there.
    group_risks : ndarray of shape (n_groups,)
        Average loss of each group at w.
    q, lower : ndarray, float
        The best group weights, and the lower bound that they prove.
    left_out : Evaluation or None
        The last pass, if its lower bound was left out.
    """

    def __init__(self, oracle: Oracle):
        check_kind(oracle, "oracle", Oracle, "an Oracle")
        self.w: Floats | None = None
        self.q: Floats | None = None
        self.group_risks: Floats | None = None
        self.upper = np.inf
        self.lower = oracle.problem.least_value
        self.left_out: Evaluation | None = None
        self._gain = 0.0  # of the intercept, per square of its slopes, at the last bound
        # The gap expected at the last lower bound; the next one is worth its pass if its own is much smaller.
        self._expected = np.inf
        self._aggregate = CutAggregate(oracle)

    @property
    def oracle(self) -> Oracle:
        """The oracle."""
        return self._aggregate.oracle

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.oracle.problem

    @property
    def cut(self) -> Cut | None:
        """The mixture of all cuts so far."""
        return self._aggregate.cut

    def take_over(self, lower: float, q: Floats, cut: Cut | None) -> None:
        """Start from what an earlier run of the same problem proved: a lower bound with its weights, and a cut."""
        self.lower = lower
        self.q = q
        self._aggregate.cut = cut

    @property
    def contradicts_itself(self) -> bool:
        """Whether the lower bound exceeds the upper by more than rounding: neither can then be trusted."""
        if self.group_risks is None:
            return False
        scale = max(abs(self.upper), float(self.group_risks.max()), float(np.abs(self.problem.baseline.upper).max()))
        return self.lower > self.upper + 1e-9 * scale

    @property
    def gap(self) -> float:
        """Upper minus lower bound, at least the rounding error of the upper bound."""
        if self.contradicts_itself:
            return np.inf
        return max(self.upper - self.lower, LEAST_GAP * abs(self.upper))

    def expected_gap(self, at: Evaluation) -> float:
        """Estimate the gap that the lower bound of a pass would leave. This is no proof, but costs no pass.

        Rounding is left out. That the slopes change with a free intercept until they balance is estimated as if all
        rows were the mean of the features; what the intercept still gains, by the square of its slopes, in the
        proportion that the last bound showed.
        """
        problem = self.problem
        risks = at.group_risks
        coef = problem.coef(at.w)
        gradient = problem.coef(at.gradient)
        if at.single is None:
            value = float(at.q @ risks)
        else:
            risks = risks - at.single.allowance
            value = float(at.q @ at.single.constants + np.vdot(at.gradient, at.w))
        gain = 0.0
        if problem.fit_intercept:
            free = problem.intercept(at.gradient)[0]
            gradient = gradient - np.multiply.outer(problem.data.column_means, free)
            gain = self._gain * float(np.square(free).sum())
        lower = value - float(np.vdot(gradient, coef)) - float(at.q @ problem.baseline.upper)
        return min(self.upper, problem.objective(at.w, risks)) - lower - self.domain.support(gradient) + gain

    def observe(self, at: Evaluation, wanted: float = np.inf) -> None:
        """Update both bounds from a pass over the data.

        Parameters
        ----------
        at : Evaluation
            The pass.
        wanted : float
            The gap at which the run may end. A lower bound that takes most of another pass is left out if its gap is
            expected to be larger, and not much smaller than that of the last one.
        """
        self.offer(at.w, at.group_risks)
        if self.q is None:
            self.q = self._q_of_least(at.q)
        self.left_out = None
        spares = np.isfinite(wanted) and self.problem.fit_intercept and at.w.ndim > 1 and at.bend is None
        if spares:
            expected = self.expected_gap(at)
            if np.isinf(self._expected):
                self._expected = expected
            if wanted < expected < np.inf and expected > _MUCH_SMALLER * self._expected:
                self.left_out = at
                return
            self._expected = expected
        total = float(at.q.sum())
        if not (np.isfinite(at.gradient).all() and self.problem.weight_set.contains(at.q)):
            return  # weights outside their set prove nothing
        if abs(total - 1.0) > _ROUNDED:
            bend = None if at.bend is None else at.bend / total
            at = replace(at, q=at.q / total, gradient=at.gradient / total, mass=at.mass / total, bend=bend)
        bound = self._aggregate.add(at, self.domain, self.upper)
        if self._aggregate.cut is not None:
            self.offer_bound(bound, self._aggregate.cut.q)
        slopes = float(np.square(self.problem.intercept(at.gradient)).sum())
        if spares and at.single is None and slopes > 0.0 and np.isfinite(self.gap):  # rounding is no gain
            self._gain = max(self._gain + (self.gap - expected) / slopes, 0.0)

    def tighten(self, oracle: Oracle) -> None:
        """Switch to the same problem with tighter group minima, which improves both bounds without a pass.

        The lower bound is one on a mixture of risks minus ``q @ baseline.upper``, so it rises by as much as the latter
        falls.
        """
        problem = oracle.problem
        old = self.problem.baseline.upper
        new = problem.baseline.upper
        self._aggregate.oracle = oracle
        if self.q is not None:
            scale = float(self.q @ (np.abs(old) + np.abs(new)))
            gain = float(self.q @ (old - new)) - rounding_slack(0.0, 0.0, scale)
            self.lower += max(gain, 0.0)
        if problem.least_value > self.lower:
            self.lower = problem.least_value
            self.q = None if self.q is None else self._q_of_least(self.q)
        if self.w is not None and self.group_risks is not None:
            self.upper = problem.objective(self.w, self.group_risks)

    def lower_against(self, centre: Floats) -> tuple[float, Floats]:
        """Return the best known lower bound on the excess risks over exact group minima, and its weights.

        Parameters
        ----------
        centre : ndarray of shape (n_groups,)
            Values of the minima, such as `GroupMinima.centre`.

        Returns
        -------
        float, ndarray of shape (n_groups,)
            The bound, and the group weights that prove it.
        """
        assert self.q is not None
        baseline = centre - self.problem.offsets
        cuts = (self._aggregate.cut, self._aggregate.latest)
        known = [(self.lower + float(self.q @ (self.problem.baseline.upper - baseline)), self.q)]
        known += [(cut.mixture(self.domain) - float(cut.q @ baseline), cut.q) for cut in cuts if cut is not None]
        return max(known, key=lambda pair: pair[0])

    def offer(self, w: Floats, group_risks: Floats) -> None:
        """Update the upper bound from a point with known risks. A point outside the domain bounds nothing."""
        if not is_inside(self.problem, w):
            return
        upper = self.problem.objective(w, group_risks)
        if upper < self.upper:  # false for NaN
            self.w = w.copy()
            self.group_risks = group_risks.copy()
            self.upper = upper

    def offer_bound(self, lower: float, q: Floats) -> None:
        """Update the lower bound from one that group weights prove."""
        if lower > self.lower:
            self.lower = lower
            self.q = q.copy()
        elif self.q is None:
            self.q = self._q_of_least(q)

    def with_model(self, w: Floats, group_risks: Floats, upper: float) -> "Certificate":
        """Return a certificate of another model in the domain: its upper bound, and the lower bound of this one."""
        other = copy(self)
        other.w, other.group_risks, other.upper = w, group_risks, upper
        return other

    def withdraw(self) -> None:
        """Fall back to the bound that nonnegative losses imply: the domain does not contain the solution."""
        if self.q is not None:
            self.lower = self.problem.least_value
            self.q = self._q_of_least(self.q)

    def _q_of_least(self, q: Floats) -> Floats:
        """Return weights that prove the bound of nonnegative losses: any, such as q, if nothing is subtracted."""
        baseline = self.problem.baseline.upper
        return self.problem.weight_set.maximiser(-baseline) if (baseline != 0).any() else q.copy()

    @property
    def domain(self) -> Domain | OutputBall:
        """The part of the domain that must contain the solution, given the best w so far."""
        return self.problem.solution_set(self.upper)


def is_inside(problem: Problem, w: Floats) -> bool:
    """Return whether w lies in the domain, up to rounding. Elsewhere its risks bound nothing."""
    coef = problem.coef(w)
    outside = float(np.linalg.norm(problem.domain.feasible(coef) - coef))
    return outside <= _OUTSIDE * max(1.0, float(np.linalg.norm(coef)))
