"""Every group's own minimum, which turns risks into excess risks: found once, or refined where needed.

Let L_i <= R_i* <= U_i. At a model w with risks R_i and penalty P, and group weights q that prove the lower bound Phi(q)
on min_w sum_i q_i R_i(w) + P(w), the certified gap of the excess risks is

    G = max_i (R_i - L_i) + P - Phi(q) + sum_i q_i U_i.

A solver minimises the excess risks over some centre c, and can bring

    S = max_i (R_i - c_i) + P - Phi(q) + sum_i q_i c_i

to zero. The remainder of G is the price of not knowing the minima better. Only groups whose excess risk may be the
worst contribute: a group's minimum need only be known to within its distance from the worst. Other sets of group
weights have their own maximum in place of max_i.
"""

from dataclasses import KW_ONLY, dataclass, replace

import numpy as np

from groupdro.certificate import Certificate
from groupdro.certificate.certificate import is_inside
from groupdro.problem import Evaluation, GroupRisk, References
from groupdro.run.driver import solve
from groupdro.run.result import Result
from groupdro.run.solver import Solver, State
from groupdro.run.stages import Budget, Preparation, Prepared, Refinement
from groupdro.solvers.aleg import ALEG
from groupdro.solvers.group_minima import GroupMinima, group_sqp
from groupdro.solvers.sqp import GroupSQP
from groupdro.utils.types import Floats

__all__ = ["GroupReferences", "RefinedReferences"]

_FIRST_PASSES = 6.0  # over every group, before anything is known about the excess risks
_FIRST_WIDTH = 0.03  # relative to the risk at zero, at which a group's first passes end
_ROUND_PASSES = 20.0  # over a group, before the excess risks are checked again
_SHARE = 0.5  # of the gap that the tolerance allows, available to the references
_AHEAD = 0.1  # of the saddle point's gap: references need not be finer while it is unclear which groups matter
_KEPT_SLACK = 0.5  # share of a group's distance from the worst that its bounds may use: excess risks still change


@dataclass(frozen=True)
class GroupReferences(Preparation):
    """Bound each group's own minimum by solving it alone; with a penalty, the minimum includes it.

    If the budget runs out, the remaining groups keep rough but valid bounds. The references of a given solver are the
    risks that it reached, as in the paper; those of the default solver are estimates between both bounds.

    Parameters
    ----------
    solver : Solver or None
        Solver for a group's problem; None for SQP, or ALEG if SQP does not support the domain.
    max_passes : float
        Passes over a group's own rows.
    share : float
        Certified gap at which a group's minimum is good enough, relative to the smallest gap that the run may require.
    finest : float
        Smallest such gap.
    absolute : bool
        Whether the run's absolute tolerance is considered too.
    """

    solver: Solver | None = None
    _: KW_ONLY
    max_passes: float = 101.0
    share: float = 0.1
    finest: float = 1e-11  # below which rounding dominates
    absolute: bool = True

    def run(self, problem: GroupRisk, budget: Budget, seed: int) -> Prepared:
        """Solve every group that this worker holds entirely, then together those divided among workers."""
        # The gap of the excess risks is the sum of both stages' errors. The size of the excess risks is not known yet,
        # so this stage uses a small share of the smallest gap that the tolerance may require.
        least = max(budget.tol**2, budget.atol) if self.absolute else budget.tol**2
        atol = max(self.share * least, self.finest)
        solver, start, best = self.solver or self._default(problem), problem.start(), None
        upper = problem.risks(start) + problem.domain.penalty_at(problem.coef(start))
        minima = GroupMinima(problem, solver, upper, max_passes=self.max_passes, seed=seed)
        pooled = self._pooled(problem, minima, budget)
        if pooled is not None:
            best, minima.near = (pooled.w, problem.weight_set.start(problem.n_groups)), pooled.w
            if pooled.interrupted:
                return Prepared(minima.references(), best=best, interrupted=True, rough=True)
        interrupted = minima.tighten(np.full(problem.n_groups, atol), budget)
        found = minima.references()
        if self.solver is not None:
            found = replace(found, centre=None)
        return Prepared(found, best=best, interrupted=interrupted, rough=minima.rough)

    @staticmethod
    def _default(problem: GroupRisk) -> Solver:
        return GroupSQP() if GroupSQP().fits(problem) else ALEG()

    def _pooled(self, problem: GroupRisk, minima: GroupMinima, budget: Budget) -> Result | None:
        """Solve all rows together: most groups' own models are near the pooled one."""
        if not isinstance(minima.solver, GroupSQP) or problem.n_groups == 1 or minima.all_small:
            return None
        most = min(self.max_passes, max(budget.passes_left(), 1e-3))
        seconds = max(budget.seconds_left(), 1e-3)
        return solve(problem.pooled(), minima.solver, tol=1e-2, max_passes=most, max_time=seconds)


@dataclass(frozen=True)
class RefinedReferences(Preparation):
    """Bound each group's own minimum roughly, and refine the bounds during the run where excess risks need it.

    Parameters
    ----------
    max_passes : float
        Passes over a group's own rows.
    every_group : bool
        Whether to find the minima of groups far from the worst to the tolerance too.
    """

    _: KW_ONLY
    max_passes: float = 1000.0
    every_group: bool = False

    def run(self, problem: GroupRisk, budget: Budget, seed: int) -> Prepared:
        """Make a few steps in every group."""
        zero = np.zeros(problem.shape)
        if problem.domain.contains(problem.coef(zero)):
            upper = problem.risks_at_zero()
        else:
            start = problem.start()
            upper = problem.risks(start) + problem.domain.penalty_at(problem.coef(start))
        minima = self._minima(problem, upper, seed)
        interrupted = minima.tighten(_FIRST_WIDTH * upper, budget, passes=_FIRST_PASSES)
        refinement = _Refinement(minima, every_group=self.every_group)
        return Prepared(minima.references(), refinement, interrupted=interrupted)

    def resume(
        self, problem: GroupRisk, references: References, models: dict[int, Floats], seed: int
    ) -> Refinement | None:
        """Continue from the bounds and models of a checkpoint."""
        minima = self._minima(problem, references.upper, seed)
        minima.lower = references.lower.copy()
        minima.starts = models
        return _Refinement(minima, every_group=self.every_group)

    def _minima(self, problem: GroupRisk, upper: Floats, seed: int) -> GroupMinima:
        solver = group_sqp(problem) if GroupSQP().fits(problem) else ALEG()
        return GroupMinima(problem, solver, upper, max_passes=self.max_passes, keep=True, seed=seed)


class _Refinement(Refinement):
    """Decides when to refine which groups.

    Every pass of the run may improve upper bounds at no extra cost. Once the references account for more of the gap
    than the saddle point does, the groups that matter are refined to what the tolerance requires, and the excess risks
    get a new centre. In between, the centre is fixed, because solvers converge poorly towards a moving target.
    """

    def __init__(self, minima: GroupMinima, *, every_group: bool):
        self.minima, self.every_group = minima, every_group

    def after_epoch(self, certificate: Certificate, state: State, budget: Budget) -> References | None:
        """Refine if it is time, and return the bounds if they improved."""
        minima, problem, at = self.minima, certificate.problem, state.evaluation
        known = problem.references
        if is_inside(problem, at.w):
            reached = at.group_risks + problem.domain.penalty_at(problem.coef(at.w))
            minima.upper = np.minimum(minima.upper, reached)
        centre = known.upper if known.centre is None else known.centre
        needs = _Needs.of(certificate, at, minima, centre, budget, every_group=self.every_group)
        if needs is not None and needs.price > needs.goal and (state.stalled or needs.price >= needs.saddle):
            if minima.tighten(needs.allowed, budget, passes=_ROUND_PASSES):
                raise KeyboardInterrupt
            centre = minima.centre()
        elif (minima.upper == known.upper).all():
            return None
        return References(minima.upper.copy(), minima.lower.copy(), centre=centre)

    def models(self) -> dict[int, Floats]:
        """Return the models that the groups have reached."""
        return self.minima.models()


@dataclass(frozen=True, eq=False)
class _Needs:
    """The parts of a gap, and how wide each group's bounds may be for the gap to meet the tolerance.

    Attributes
    ----------
    saddle, price : float
        The gap with respect to the centre, and the contribution of the references; if every group counts, at least the
        width of the widest bounds.
    goal : float
        The part of the tolerance available to the references, or more while the saddle point is far.
    allowed : ndarray of shape (n_groups,)
        Width of every group's bounds that meets the goal.
    """

    saddle: float
    price: float
    goal: float
    allowed: Floats

    @classmethod
    def of(
        cls,
        certificate: Certificate,
        at: Evaluation,
        minima: GroupMinima,
        centre: Floats,
        budget: Budget,
        *,
        every_group: bool,
    ) -> "_Needs | None":
        """Compute the needs from the bounds so far and from the excess risks at the current or best point."""
        problem = certificate.problem
        if certificate.w is None or certificate.q is None or certificate.group_risks is None:
            return None
        support, offsets = problem.weight_set.support, problem.offsets

        def worst(point: tuple[Floats, Floats], references: Floats) -> float:
            w, group_risks = point
            return support(group_risks + offsets - references) + problem.domain.penalty_at(problem.coef(w))

        # The saddle point for the centre, and its weights, differ from where the best bounds so far were found.
        points = (certificate.w, certificate.group_risks), (at.w, at.group_risks)
        here = min(points, key=lambda point: worst(point, centre))
        below, q = certificate.lower_against(centre)
        saddle = worst(here, centre) - below
        upper = min(worst(point, minima.lower) for point in points)
        lower = certificate.lower + float(certificate.q @ (problem.references.upper - minima.upper))
        # The optimum is not known yet, but is rarely far below the upper bound.
        tolerance = max(budget.tol * max(lower, 0.25 * upper), budget.atol)
        goal = max(_SHARE * tolerance, _AHEAD * saddle)
        # Half of the goal is for the worst excess risk: a group without weight may be worse than it seems, until it
        # reaches the smallest of those with weight. The other half is for the mixture, where widths count by their
        # weights.
        regrets = here[1] + offsets - centre
        slack = np.maximum(regrets[problem.weight_set.maximiser(regrets) > 0].min() - regrets, 0.0)
        slack *= not every_group
        above = minima.upper - centre
        heavy = (q * above > 0.25 * goal / len(q)) & (above > 0.25 * goal)
        deep = centre - minima.lower > 0.5 * goal + slack
        wanted = np.where(heavy, 0.25 * goal, 0.5 * goal + _KEPT_SLACK * slack)
        allowed = np.where(heavy | deep, wanted, np.inf)
        widest = float(minima.width[~minima.closed].max(initial=0.0)) if every_group else 0.0
        return cls(saddle, max(upper - lower - saddle, widest), goal, allowed)
