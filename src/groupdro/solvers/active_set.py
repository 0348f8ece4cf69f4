"""Active-set steps of SQP, for separate penalties and bounds of each coefficient: elastic net, sign constraints, box.

The model of a step combines the worst of the groups' linear models, a common quadratic, and the penalties:

    minimise over d    max_x x.(values + rows d) + d'Hd / 2 + l1 |w + d|_1,    low <= w + d <= high.

Once it is known which coefficients stay at zero or at a bound, and which signs the others have, this is the model of
SQP in the free coefficients alone. So coefficients that would leave their side are put at its end, those whose slope
points away from their bound are released, and the small model is solved again until both agree. Then it is the minimum.
Along directions in which the losses are flat, all coefficients would leave their side at once. If there is no end to
it, they change one at a time instead.
"""

from dataclasses import dataclass, replace

import numpy as np

from groupdro.oracle import Oracle
from groupdro.oracle.groups import ColumnCurvature
from groupdro.problem import Problem
from groupdro.problem.domains import Separable
from groupdro.run.solver import State
from groupdro.solvers.smoothed_kinks import solve_smoothed
from groupdro.solvers.step_models import LEAST_RIDGE, ExactModel, ProductModel, StepModel
from groupdro.solvers.weight_program import Program
from groupdro.utils.types import Floats, Indices, Mask

__all__ = ["ActiveSetModel", "EntryTerms", "separable_of"]

_ROUNDS = 100  # most times that the small model is solved, and as many if one coefficient changes at a time
_SOON = 10  # rounds after which kinks are smoothed instead, if there are no bounds
_POLISH = 5  # rounds to verify the zeros of the smoothed solution; otherwise it is used as it is
_PATIENCE = 3  # releases of a coefficient after which it is released only if no other has to be
_FEWEST_ENTERING = 100  # features that may enter at once, or as many as there already are
_FORMED_SIZE = 2000  # parameters up to which their Hessian is formed
_ROUNDED = 1e-11  # rounding of a slope relative to the largest and to the penalty


@dataclass(frozen=True, eq=False)
class EntryTerms:
    """The penalty and bounds of every parameter, flattened like w; an intercept has none.

    Attributes
    ----------
    l1, l2, low, high : ndarray of shape (w.size,)
        L1 and L2 penalties, and bounds.
    """

    l1: Floats
    l2: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, problem: Problem) -> "EntryTerms":
        """Return the penalties and bounds of a problem."""
        parts = separable_of(problem)
        n_bound = problem.coef(np.empty(problem.shape)).size
        shape = (problem.data.n_features, *problem.shape[1:])
        low, high = (np.broadcast_to(end, shape).ravel() for end in parts.ends(len(shape)))
        n_free = problem.model.size - n_bound
        each = np.r_[np.ones(n_bound), np.zeros(n_free)]
        ends = (np.r_[end, np.full(n_free, far)] for end, far in ((low, -np.inf), (high, np.inf)))
        return cls(parts.l1 * each, parts.l2 * each, *ends)

    @property
    def has_kinks_only(self) -> bool:
        """Whether there are L1 penalties, and no bounds."""
        return bool((self.l1 > 0).any() and np.isinf(self.low).all() and np.isinf(self.high).all())

    def resting(self, w: Floats) -> Mask:
        """Return which parameters are at a bound, or at zero if that is a kink."""
        return np.asarray(((self.l1 > 0) & (w == 0.0)) | (w <= self.low) | (w >= self.high))

    def force(self, w: Floats, slope: Floats) -> Floats:
        """Return by how much a slope exceeds what holds resting parameters in place; positive values increase them."""
        right = -(slope + np.where(w >= 0.0, self.l1, -self.l1)) * (w < self.high)
        left = -(slope + np.where(w > 0.0, self.l1, -self.l1)) * (w > self.low)
        return np.asarray(np.maximum(right, 0.0) + np.minimum(left, 0.0))

    def side(self, w: Floats, direction: Floats) -> tuple[Floats, Floats, Floats]:
        """Return how far parameters can move in a direction without meeting a kink, and the slope of the penalty."""
        kink = self.l1 > 0
        positive = (w > 0.0) | ((w == 0.0) & (direction > 0.0))
        low = np.where(kink & positive, 0.0, self.low)
        high = np.where(kink & ~positive, 0.0, self.high)
        return low, high, np.where(positive, self.l1, -self.l1)


def separable_of(problem: Problem) -> Separable:
    """Return the penalties and bounds of a problem that the solver supports."""
    assert problem.domain.separable is not None  # the solver requires it
    return problem.domain.separable


class ActiveSetModel:
    """The model of a step from the current state.

    Parameters
    ----------
    oracle : Oracle
        The oracle of the problem.
    state : State
        The state, with the pass at w.
    margins : ndarray
        Outputs at w.
    hessian : ndarray of shape (w.size, w.size) or None
        The Hessian of the losses; None to form it along the features that may move.
    largest : ndarray of shape (w.size,)
        Upper bounds on the losses' curvature along each parameter.
    damping : float
        Damping added to the curvature, relative to the largest.
    """

    def __init__(
        self, oracle: Oracle, state: State, margins: Floats, hessian: Floats | None, largest: Floats, damping: float
    ):
        at = state.evaluation
        problem = oracle.problem
        self.terms = EntryTerms.of(problem)
        self.w = at.w.ravel()
        self.damping = damping
        self.slope = at.gradient.ravel() + self.terms.l2 * self.w
        self.entries = np.arange(self.w.size)
        self.largest = largest
        self.curvature: _Formed | _Products
        if hessian is not None:
            self.curvature = _Formed(hessian)
            return
        features, self.entries = self._moving_features(problem)
        columns = ColumnCurvature(oracle, margins, at.q, features)
        formed = len(self.entries) <= _FORMED_SIZE
        self.curvature = _Formed(columns.formed()) if formed else _Products(columns, columns.diagonal())

    def _moving_features(self, problem: Problem) -> tuple[Indices, Indices]:
        """Return the features that are nonzero or may become so, and their entries of w with those of the intercept.

        At most as many enter at once as are already active: those that the penalty restrains least.
        """
        n = problem.data.n_features
        n_outputs = problem.model.n_outputs
        force = self.terms.force(self.w, self.slope)
        resting = self.terms.resting(self.w)
        inside = ~resting[: n * n_outputs].reshape(n, n_outputs).all(axis=1)
        force = np.where(resting, np.abs(force), 0.0)[: n * n_outputs].reshape(n, n_outputs).max(axis=1)
        force[inside] = 0.0
        most = max(_FEWEST_ENTERING, int(inside.sum()))
        entering = np.argsort(-force, kind="stable")[: min(most, int((force > 0.0).sum()))]
        features = np.sort(np.r_[np.flatnonzero(inside), entering])
        entries = (features[:, None] * n_outputs + np.arange(n_outputs)).ravel()
        return features, np.r_[entries, np.arange(n * n_outputs, self.w.size)]

    def solve(self, program: Program) -> tuple[Floats, Floats]:
        """Return the step, flattened, and the program's multipliers."""
        e = self.entries
        terms = self.terms
        terms = EntryTerms(terms.l1[e], terms.l2[e], terms.low[e], terms.high[e])
        here = self.w[e]
        rows = program.rows[:, e]
        force = terms.force(here, self.slope[e])
        free = ~terms.resting(here) | (force != 0.0)
        low, high, tilt = terms.side(here, force)
        place = here  # positions of the resting parameters
        releases = np.zeros(len(e), dtype=np.int64)
        at = here
        x = np.empty(0)
        smoothed = None
        for n_rounds in range(_ROUNDS):
            if n_rounds == _SOON and terms.has_kinks_only and isinstance(self.curvature, _Formed):
                smoothed = self._solve_smoothed(program, terms)
                place = smoothed[0]
                free = (terms.l1 == 0) | (smoothed[0] != 0.0)
                releases = np.zeros_like(releases)
                low, high, tilt = terms.side(place, np.zeros(len(e)))
            if smoothed is not None and n_rounds == _SOON + _POLISH:
                (at, x) = smoothed
                break
            d, x = self._solve_free(program, rows, terms.l2, free, place - here, tilt)
            at = np.where(free, here + d, place)
            beyond = (at < low) | (at > high)
            if beyond.any():
                place = np.where(beyond, np.clip(at, low, high), place)
                free = free & ~beyond
                continue
            slope = x @ rows + self.curvature.times(d) + terms.l2 * d
            force = terms.force(at, slope)
            wrong = ~free & (np.abs(force) > _rounding_of(slope, terms))
            if not wrong.any():
                break
            patient = wrong & (releases < _PATIENCE)
            if not patient.any():  # release one at a time of those that come and go
                patient[np.argmax(np.where(wrong, np.abs(force), -1.0))] = True
            sides = terms.side(at, force)
            low, high, tilt = (np.where(patient, new, old) for new, old in zip(sides, (low, high, tilt), strict=True))
            free = free | patient
            releases = releases + patient
        else:
            at, x = self._solve_one_by_one(program, rows, terms)
        step = np.zeros(self.w.size)
        step[e] = np.clip(at, terms.low, terms.high) - here
        return step, x

    def _solve_one_by_one(self, program: Program, rows: Floats, terms: EntryTerms) -> tuple[Floats, Floats]:
        """Return the end of the step and the multipliers; every round decreases the model, also if it is the last."""
        now = here = self.w[self.entries]
        force = terms.force(here, self.slope[self.entries])
        free = ~terms.resting(here) | (force != 0.0)
        low, high, tilt = terms.side(here, force)
        x = np.empty(0)
        for _ in range(_ROUNDS):
            d, x = self._solve_free(program, rows, terms.l2, free, now - here, tilt)
            there = np.where(free, here + d, now)
            beyond = (there < low) | (there > high)
            if beyond.any():
                ends = np.clip(there, low, high)
                shares = np.divide(ends - now, there - now, out=np.full(len(now), np.inf), where=beyond)
                first = shares == shares.min()
                now = np.where(first, ends, np.clip(now + shares.min() * (there - now), low, high))
                free = free & ~first
                continue
            now = there
            slope = x @ rows + self.curvature.times(d) + terms.l2 * d
            force = np.where(free, 0.0, terms.force(now, slope))
            most = int(np.argmax(np.abs(force)))
            if abs(force[most]) <= _rounding_of(slope, terms)[most]:
                break
            sides = terms.side(now, force)
            low[most], high[most], tilt[most] = (new[most] for new in sides)
            free[most] = True
        return now, x

    def _solve_smoothed(self, program: Program, terms: EntryTerms) -> tuple[Floats, Floats]:
        """Return the end of the step, with exact zeros, and the multipliers, if these cannot be guessed."""
        e = self.entries

        def make_model(small: Program, more: Floats) -> StepModel:
            return self.curvature.model(small, np.arange(len(e)), terms.l2 + more, self.largest[e], self.damping)

        return solve_smoothed(
            replace(program, rows=program.rows[:, e]),
            self.w[e],
            terms.l1,
            make_model,
            lambda d: self.curvature.times(d) + terms.l2 * d,
        )

    def _solve_free(
        self, program: Program, rows: Floats, l2: Floats, free: Mask, stay: Floats, tilt: Floats
    ) -> tuple[Floats, Floats]:
        """Solve the model in the free parameters, with the others moved to their final positions."""
        f = np.flatnonzero(free)
        stay = np.where(free, 0.0, stay)
        values = program.values + rows @ stay
        if not f.size:
            return stay, program.solve(np.zeros((len(rows), len(rows))), values)
        common = tilt[f] + (self.curvature.times(stay)[f] if stay.any() else 0.0)
        small = replace(program, rows=rows[:, f] + common, values=values)
        model = self.curvature.model(small, f, l2[f], self.largest[self.entries[f]], self.damping)
        moved, x = model.solve(0.0)
        d = stay.copy()
        d[f] = moved
        return d, x


def _rounding_of(slope: Floats, terms: EntryTerms) -> Floats:
    return np.asarray(_ROUNDED * (terms.l1 + float(np.abs(slope).max(initial=0.0))))


@dataclass(frozen=True, eq=False)
class _Formed:
    """Curvature of the losses as an explicit matrix."""

    hessian: Floats

    def times(self, d: Floats) -> Floats:
        return np.asarray(self.hessian @ d)

    def model(self, program: Program, f: Indices, l2: Floats, largest: Floats, damping: float) -> StepModel:
        none = np.zeros(len(f))
        return ExactModel(program, none, self.hessian[np.ix_(f, f)], l2, none, largest, damping)


@dataclass(frozen=True, eq=False)
class _Products:
    """Curvature of the losses known only through products."""

    columns: ColumnCurvature
    diagonal: Floats

    def times(self, d: Floats) -> Floats:
        return self.columns.times(d[None])[0]

    def model(self, program: Program, f: Indices, l2: Floats, largest: Floats, damping: float) -> StepModel:
        more = l2 + damping * largest + LEAST_RIDGE * (self.diagonal[f] + l2)
        more += np.where(self.diagonal[f] + more > 0.0, 0.0, largest)  # a gradient step if everything is flat

        def times(directions: Floats) -> Floats:
            whole = np.zeros((len(directions), len(self.diagonal)))
            whole[:, f] = directions
            return self.columns.times(whole)[:, f] + more * directions

        return ProductModel(program, times, self.diagonal[f] + more)
