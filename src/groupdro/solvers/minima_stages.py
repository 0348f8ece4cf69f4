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

from dataclasses import KW_ONLY, dataclass

import numpy as np

from groupdro.certificate import Certificate
from groupdro.certificate.certificate import is_inside
from groupdro.oracle import Evaluation, Oracle
from groupdro.problem import GroupMinima
from groupdro.run.result import Result
from groupdro.run.run import Run
from groupdro.run.solver import Solver, State
from groupdro.run.stages import Budget, Preparation, Prepared, Refinement
from groupdro.solvers.aleg import ALEG
from groupdro.solvers.minima_search import MinimaSearch, group_sqp
from groupdro.solvers.sqp import GroupSQP
from groupdro.utils.types import Floats

__all__ = ["MinimaAsNeeded", "MinimaOnce"]

_FIRST_PASSES = 6.0  # over every group, before anything is known about the excess risks
_FIRST_WIDTH = 0.03  # relative to the risk at zero, at which a group's first passes end
_ROUND_PASSES = 20.0  # over a group, before the excess risks are checked again
_SHARE = 0.5  # of the gap that the tolerance allows, available to the minima's bounds
_AHEAD = 0.1  # of the saddle point's gap: the bounds need not be finer while it is unclear which groups matter
_FINEST = 1e-11  # width of a group's bounds, in the unit of the loss, below which rounding dominates
_KEPT_SLACK = 0.5  # share of a group's distance from the worst that its bounds may use: excess risks still change


@dataclass(frozen=True)
class MinimaOnce(Preparation):
    """Bound each group's own minimum by solving it alone; with a penalty, the minimum includes it.

    Excess risks are over the risks that the solver reached, as in the paper. If the budget runs out, the remaining
    groups keep rough but valid bounds.

    Parameters
    ----------
    solver : Solver
        Solver for a group's problem.
    max_passes : float
        Passes over a group's own rows.
    width : float, optional
        Certified gap at which a group's minimum is good enough; by default a tenth of the smallest gap that the
        tolerance of the run may require.
    """

    solver: Solver
    _: KW_ONLY
    max_passes: float = 101.0
    width: float | None = None

    def run(self, oracle: Oracle, w: Floats, q: Floats, budget: Budget, seed: int) -> Prepared:
        """Solve every group that this worker holds entirely, then together those divided among workers."""
        problem = oracle.problem
        width = self.width
        if width is None:
            # The gap of the excess risks is the sum of both stages' errors, and their size is not known yet.
            unit = problem.unit_of_loss
            width = max(0.1 * max(budget.tol**2 * unit, budget.atol), _FINEST * unit)
        best = None
        upper = oracle.risks(w) + problem.domain.penalty_at(problem.coef(w))
        minima = MinimaSearch(oracle, self.solver, upper, max_passes=self.max_passes, seed=seed)
        pooled = self._pooled(oracle, minima, budget)
        if pooled is not None:
            best = pooled.w, q
            minima.near = pooled.w
            if pooled.interrupted:
                return Prepared(minima.found(), best=best, interrupted=True, rough=True)
        interrupted = minima.tighten(np.full(problem.n_groups, width), budget)
        found = GroupMinima(minima.upper, minima.lower)
        return Prepared(found, best=best, interrupted=interrupted, rough=minima.rough)

    def _pooled(self, oracle: Oracle, minima: MinimaSearch, budget: Budget) -> Result | None:
        """Solve all rows together: most groups' own models are near the pooled one."""
        problem = oracle.problem
        if not isinstance(self.solver, GroupSQP) or problem.n_groups == 1 or minima.all_small:
            return None
        most = min(self.max_passes, max(budget.passes_left(), 1e-3))
        seconds = max(budget.seconds_left(), 1e-3)
        run = Run.of(problem.pooled(), self.solver, tol=1e-2, max_passes=most, max_time=seconds)
        found = run()
        oracle.count_together(found.counters)
        return found


@dataclass(frozen=True)
class MinimaAsNeeded(Preparation):
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

    def run(self, oracle: Oracle, w: Floats, q: Floats, budget: Budget, seed: int) -> Prepared:
        """Make a few steps in every group."""
        del q
        problem = oracle.problem
        zero = np.zeros(problem.shape)
        if problem.domain.contains(problem.coef(zero)):
            upper = problem.risks_of_constant()
        else:
            upper = oracle.risks(w) + problem.domain.penalty_at(problem.coef(w))
        minima = self._search(oracle, upper, seed)
        interrupted = minima.tighten(_FIRST_WIDTH * upper, budget, passes=_FIRST_PASSES)
        refinement = _Refinement(minima, every_group=self.every_group)
        return Prepared(minima.found(), refinement, interrupted=interrupted)

    def resume(
        self, oracle: Oracle, group_minima: GroupMinima, models: dict[int, Floats], seed: int
    ) -> Refinement | None:
        """Continue from the bounds and models of a checkpoint."""
        minima = self._search(oracle, group_minima.upper, seed)
        minima.lower = group_minima.lower.copy()
        minima.starts = models
        return _Refinement(minima, every_group=self.every_group)

    def _search(self, oracle: Oracle, upper: Floats, seed: int) -> MinimaSearch:
        problem = oracle.problem
        solver = group_sqp(problem) if GroupSQP().fits(problem) else ALEG()
        return MinimaSearch(oracle, solver, upper, max_passes=self.max_passes, keep=True, seed=seed)


class _Refinement(Refinement):
    """Decides when to refine which groups.

    Every pass of the run may improve upper bounds at no extra cost. Once their bounds account for more of the gap
    than the saddle point does, the groups that matter are refined to what the tolerance requires, and the excess risks
    get a new centre. In between, the centre is fixed, because solvers converge poorly towards a moving target.
    """

    def __init__(self, minima: MinimaSearch, *, every_group: bool):
        self.minima = minima
        self.every_group = every_group

    def after_epoch(self, certificate: Certificate, state: State, budget: Budget) -> GroupMinima | None:
        """Refine if it is time, and return the bounds if they improved."""
        minima = self.minima
        problem = certificate.problem
        at = state.evaluation
        known = problem.group_minima
        assert known is not None  # this refines them
        if is_inside(problem, at.w):
            reached = at.group_risks + problem.domain.penalty_at(problem.coef(at.w))
            minima.upper = np.minimum(minima.upper, reached)
        centre = known.centre
        needs = _Needs.of(certificate, at, minima, centre, budget, every_group=self.every_group)
        if needs is not None and needs.price > needs.goal and (state.stalled or needs.price >= needs.saddle):
            if minima.tighten(needs.allowed, budget, passes=_ROUND_PASSES):
                raise KeyboardInterrupt
            centre = minima.centre()
        elif (minima.upper == known.upper).all():
            return None
        return GroupMinima(minima.upper.copy(), minima.lower.copy(), centre)

    def models(self) -> dict[int, Floats]:
        """Return the models that the groups have reached."""
        return self.minima.models()


@dataclass(frozen=True, eq=False)
class _Needs:
    """The parts of a gap, and how wide each group's bounds may be for the gap to meet the tolerance.

    Attributes
    ----------
    saddle, price : float
        The gap with respect to the centre, and the contribution of the minima's bounds; if every group counts, at
        least the width of the widest bounds.
    goal : float
        The part of the tolerance available to these bounds, or more while the saddle point is far.
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
        minima: MinimaSearch,
        centre: Floats,
        budget: Budget,
        *,
        every_group: bool,
    ) -> "_Needs | None":
        """Compute the needs from the bounds so far and from the excess risks at the current or best point."""
        problem = certificate.problem
        if certificate.w is None or certificate.q is None or certificate.group_risks is None:
            return None
        support = problem.weight_set.support
        offsets = problem.offsets

        def worst(point: tuple[Floats, Floats], subtracted: Floats) -> float:
            w, group_risks = point
            return support(group_risks + offsets - subtracted) + problem.domain.penalty_at(problem.coef(w))

        # The saddle point for the centre, and its weights, differ from where the best bounds so far were found.
        points = (certificate.w, certificate.group_risks), (at.w, at.group_risks)
        here = min(points, key=lambda point: worst(point, centre))
        below, q = certificate.lower_against(centre)
        saddle = worst(here, centre) - below
        upper = min(worst(point, minima.lower) for point in points)
        lower = certificate.lower + float(certificate.q @ (problem.baseline.upper + offsets - minima.upper))
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
