"""The certified frontier between average and worst: all trade-offs that linear models can attain."""

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from groupdro.certificate import Certificate
from groupdro.estimators.base import GroupDROEstimator
from groupdro.estimators.classifier import GroupDROClassifier
from groupdro.estimators.defaults import estimator_for
from groupdro.estimators.enclosure import Enclosure
from groupdro.estimators.fitting import Task, warn_caller
from groupdro.estimators.frontier_answers import Attainable, FrontierModel
from groupdro.estimators.outcome import Outcome
from groupdro.estimators.regressor import GroupDRORegressor
from groupdro.oracle import Oracle
from groupdro.problem.centring import recentre
from groupdro.run.clock import Clock
from groupdro.run.result import Status, TraceRow, met_tolerance, relative_gap
from groupdro.store import GroupedStore
from groupdro.utils.arguments import check_number, check_whole
from groupdro.utils.text import table_text
from groupdro.utils.types import Floats

__all__ = ["RobustnessFrontier", "robustness_frontier"]

_FINER = 1e-3  # tolerance of the fits relative to that of the enclosure
_APART = 1e-9  # difference in robustness below which two points count as one
_LOOKS = 8  # total points per allowed fit
_MIXTURE = "mixture of two models on the frontier"
_GOOD_LOOK = 0.25  # gap of a mixture, relative to the tolerance, up to which no fit is needed


class RobustnessFrontier:
    """Certified trade-off of linear models between average and worst group, as returned by `robustness_frontier`.

    All values are on the training data and include the penalty, like `upper_bound_` of an estimator.

    Attributes
    ----------
    robustness : ndarray of shape (n_points,)
        Robustness of the models, ascending: fitted ones, and mixtures of two neighbours.
    mean, worst : ndarray of shape (n_points,)
        Average and worst value of each model.
    lower : ndarray of shape (n_points,)
        Proven lower bounds: every model has ``(1 - robustness) * mean + robustness * worst >= lower``.
    average, regret : str, bool
        Whether "rows" or "groups" have equal weight in the average, and whether values are excess risks.
    enclosure : float
        Largest relative distance between attained values and proven bounds.
    converged : bool
        Whether the enclosure is within the tolerance.
    n_fits : int
        Number of fits.
    n_passes : float
        Passes over the data in all fits and mixtures.
    """

    def __init__(self, estimator: GroupDROEstimator, task: Task, tol: float):
        self._estimator = estimator
        self._task = task
        self._tol = tol
        self._outcomes: list[tuple[float, Outcome]] = []
        self._answers: list[FrontierModel] = []  # mixtures returned to the user
        self.average = str(estimator.average)
        self.regret = estimator.objective == "excess_risk"
        self.n_fits, self.n_passes = 0, 0.0

    # ------------------------------------------------------------------ construction

    def _enclose(self, max_fits: int) -> bool:
        """Add points and half-planes where the enclosure is widest; return whether that was interrupted.

        Between two neighbours, a pass at the mixture of their models and weights usually proves as much as a fit.
        """
        for t in (0.0, 1.0):
            if self._fit(t):
                return True
        while self.n_fits < max_fits and len(self._outcomes) < _LOOKS * max_fits:
            t, width = self._enclosed.next_t()
            if width <= self._tol or np.abs(self.robustness - t).min() < _APART:
                return False
            try:
                seen = self._look(t).result
            except KeyboardInterrupt:
                return True  # keep what is known so far
            if relative_gap(seen.gap, seen.upper_bound) > _GOOD_LOOK * self._tol and self._fit(t):
                return True
        return False

    def _fit(self, t: float) -> bool:
        """Fit at one robustness, starting from the nearest model; return whether it was interrupted."""
        start: tuple[Any, Any] = (None, None)
        if self._outcomes:
            nearest = min(self._outcomes, key=lambda known: abs(known[0] - t))[1].result
            start = nearest.w, nearest.q
        outcome = self._estimator._solve(self._task, float(self._estimator.alpha), start, robustness=t)
        if self.regret and not self._task.blend.over_all:
            self._task = replace(self._task, group_minima=outcome.result.group_minima)  # found once
        self.n_fits += 1
        self._add(t, outcome)
        return outcome.result.interrupted

    def _look(self, t: float) -> Outcome:
        """Evaluate the mixture of the neighbours of t, in w and q."""
        k = int(np.searchsorted(self.robustness, t))
        (t_a, one), (t_b, other) = self._outcomes[k - 1], self._outcomes[k]
        outcome = self._evaluated(one, other, (t - t_a) / (t_b - t_a), t)
        self._add(t, outcome)
        return outcome

    def _add(self, t: float, outcome: Outcome) -> None:
        """Add a point and a half-plane; those of the same robustness are replaced."""
        self.n_passes += outcome.result.passes
        self._outcomes = sorted(
            [*(known for known in self._outcomes if known[0] != t), (t, outcome)], key=itemgetter(0)
        )

    def _evaluated(self, one: Outcome, other: Outcome, share: float, t: float) -> Outcome:
        """Return the outcome of a pass at the mixture of two models and of their group weights."""
        w, q = ((1.0 - share) * a + share * b for a, b in ((one.result.w, other.result.w), (one.q, other.q)))
        posed = self._task.problem(self._estimator._domain(float(self._estimator.alpha)), t)
        problem, centring = recentre(posed.problem)
        oracle = Oracle(problem)
        clock = Clock(oracle)
        certificate = Certificate(oracle)
        at = problem.within_domain(centring.inward(posed.inward(w)))
        certificate.observe(oracle.evaluate(at, posed.weights(q)))
        assert certificate.w is not None
        assert certificate.group_risks is not None
        values = certificate.group_risks - problem.baseline.lower
        penalty = problem.domain.penalty_at(problem.coef(certificate.w))
        blend = self._task.blend
        n = blend.n_groups
        upper, lower = certificate.upper, max(certificate.lower, self._enclosed.least_blend(t))
        certificate.lower = lower
        gap = certificate.gap  # infinite if bounds contradict each other
        status = Status.PASS_LIMIT if np.isfinite(gap) else Status.NUMERICAL_FAILURE
        if met_tolerance(gap, upper, self._tol, other.result.atol) is not None:
            status = Status.CONVERGED
        result = replace(
            other.result,
            w=w,
            q=q[:n],
            group_risks=certificate.group_risks[:n],
            group_values=values[:n],
            upper_bound=upper,
            lower_bound=lower,
            gap=gap,
            tol=self._tol,
            status=status,
            message=status.value,
            passes=clock.passes,
            seconds=clock.seconds,
            epochs=0,
            solver=_MIXTURE,
            trace=(TraceRow(0, clock.passes, 0, 0, clock.seconds, upper, lower),),
        )
        mean, worst = blend.mean(values) + penalty, blend.worst(values) + penalty
        return Outcome(result, q, certificate.group_risks, mean, worst, -np.inf, -np.inf)

    @property
    def _enclosed(self) -> Enclosure:
        atol = max((outcome.result.atol for _, outcome in self._outcomes), default=0.0)
        return Enclosure(self.robustness, self.mean, self.worst, self.lower, atol)

    # ------------------------------------------------------------------ results

    @property
    def robustness(self) -> Floats:
        """Robustness of each model."""
        return np.array([t for t, _ in self._outcomes])

    @property
    def mean(self) -> Floats:
        """Average of each model."""
        return np.array([outcome.mean for _, outcome in self._outcomes])

    @property
    def worst(self) -> Floats:
        """Worst value of each model."""
        return np.array([outcome.worst for _, outcome in self._outcomes])

    @property
    def lower(self) -> Floats:
        """Proven lower bound on each blend."""
        return np.array([outcome.result.lower_bound for _, outcome in self._outcomes])

    @property
    def enclosure(self) -> float:
        """Largest relative distance between attained values and proven bounds."""
        return self._enclosed.width()

    @property
    def converged(self) -> bool:
        """Whether the enclosure is within the tolerance."""
        return self.enclosure <= self._tol

    @property
    def models(self) -> list[FrontierModel]:
        """The models, from plain training to the worst group alone."""
        return [self._made(outcome, t) for t, outcome in self._outcomes]

    @property
    def of_plain_risks(self) -> bool:
        """Whether values are plain risks plus penalty, not excess risks, and without a bonus for small groups."""
        return not (self.regret or self._estimator.small_group_bonus)

    def penalty_of(self, model: Any) -> float | None:
        """Return the penalty of a linear model of this package on the same columns; None for any other model.

        Parameters
        ----------
        model : fitted estimator
            Any model.

        Returns
        -------
        float or None
            The penalty that the frontier's objective adds to its risks.
        """
        if not isinstance(model, GroupDROEstimator) or model.n_features_in_ != self._estimator.n_features_in_:
            return None
        domain = self._estimator._domain(float(self._estimator.alpha))
        if domain is None:
            return 0.0
        coef = np.asarray(model.coef_).reshape(-1, model.n_features_in_).T
        return domain.penalty_at(coef[:, 0] if coef.shape[1] == 1 else coef)

    @property
    def edge(self) -> list[int]:
        """Indices of the models that no mixture of others beats, by ascending average."""
        return self._enclosed.hull()

    def worst_limit(self, mean: float) -> float:
        """Return a lower bound on the worst value of every model whose average is at most `mean`.

        Parameters
        ----------
        mean : float
            The average, including the penalty.

        Returns
        -------
        float
            The bound.
        """
        return self._enclosed.least_worst(mean)

    # ------------------------------------------------------------------ queries

    def least_worst(self, mean_budget: float = 0.01) -> FrontierModel:
        """Return the model with the smallest worst value whose average is nearly optimal.

        Parameters
        ----------
        mean_budget : float
            How far the average may exceed the best one, as in `compare` and `GroupDROClassifierCV`: relative for risks,
            absolute for excess risks, which may be near zero.

        Returns
        -------
        FrontierModel
            The model. No model with this average has a worst value below its `worst_lower`.
        """
        check_number(mean_budget, "mean_budget")
        found = self._enclosed.mixture(mean=self._budget(float(self.mean.min()), mean_budget))
        assert found is not None  # the best model is within any budget
        return self._mixed(*found)

    def least_mean(self, worst_budget: float = 0.01) -> FrontierModel:
        """Return the model with the smallest average whose worst value is nearly optimal.

        Parameters
        ----------
        worst_budget : float
            How far the worst value may exceed the best one: relative for risks, absolute for excess risks, which may be
            near zero.

        Returns
        -------
        FrontierModel
            The model. No model with this worst value has an average below its `mean_lower`.
        """
        check_number(worst_budget, "worst_budget")
        found = self._enclosed.mixture(worst=self._budget(float(self.worst.min()), worst_budget))
        assert found is not None
        return self._mixed(*found)

    def attainable(self, *, mean: float, worst: float) -> Attainable:
        """Return whether any model has at most this average and this worst value.

        Parameters
        ----------
        mean, worst : float
            The targets, for values on the training data including the penalty.

        Returns
        -------
        Attainable
            "yes" with a model, "no" with the half-plane that proves it, or "open".
        """
        for name, value in (("mean", mean), ("worst", worst)):
            if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not np.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value!r}.")
        enclosed = self._enclosed
        targets = f"a mean of at most {mean:.6g} and a worst value of at most {worst:.6g}"
        k = enclosed.refutes(mean, worst)
        if k is not None:
            t = float(enclosed.t[k])
            least = float(enclosed.lower[k])
            blend = (1.0 - t) * mean + t * worst
            what = {0.0: "the mean", 1.0: "the worst value"}.get(t, f"{1 - t:.4g} * mean + {t:.4g} * worst")
            why = f"{what} is at least {least:.8g} for every model, and {blend:.8g} for the targets"
            return Attainable("no", None, t, least, f"No model has {targets}: {why}.")
        for model in self._candidates(mean, worst):
            if model.mean <= mean and model.worst <= worst:
                return Attainable("yes", model, np.nan, np.nan, f"A model has {targets}: see .model.")
        width = f"the frontier is enclosed to {self.enclosure:.2g}"
        return Attainable("open", None, np.nan, np.nan, f"It is unknown whether a model has {targets}: {width}.")

    def _candidates(self, mean: float, worst: float) -> Iterator[FrontierModel]:
        """Yield models that may meet both targets: earlier answers, and mixtures, which lie below the chords."""
        yield from self._answers
        for found in (self._enclosed.mixture(mean=mean), self._enclosed.mixture(worst=worst)):
            if found is not None:
                yield self._mixed(*found)

    def _budget(self, best: float, within: float) -> float:
        return best + (within if self.regret else within * abs(best))

    # ------------------------------------------------------------------ models

    def _mixed(self, a: int, b: int, share: float) -> FrontierModel:
        """Return the mixture of two fits' coefficients. By convexity its values are at most the mixture of theirs."""
        (t_a, one), (t_b, other) = self._outcomes[a], self._outcomes[b]
        if share in (0.0, 1.0):
            t, outcome = ((t_a, one), (t_b, other))[int(share)]
            return self._made(outcome, t)
        run, fall = other.mean - one.mean, one.worst - other.worst
        t = float(run / (run + fall))
        self._answers.append(self._made(self._evaluated(one, other, share, t), t))
        return self._answers[-1]

    def _made(self, outcome: Outcome, t: float) -> FrontierModel:
        """Return a fitted estimator with the bounds that the whole frontier proves for it."""
        enclosed = self._enclosed
        mean_lower = min(max(outcome.mean_lower, enclosed.least_mean(outcome.worst)), outcome.mean)
        worst_lower = min(max(outcome.worst_lower, enclosed.least_worst(outcome.mean)), outcome.worst)
        outcome = replace(outcome, mean_lower=mean_lower, worst_lower=worst_lower)
        model = self._estimator._with_outcome(outcome, robustness=t, tol=outcome.result.tol)
        return FrontierModel(model, outcome.mean, outcome.worst, mean_lower, worst_lower, t)

    def __repr__(self) -> str:
        columns: dict[str, list[Any]] = {
            "robustness": self.robustness.tolist(),
            "mean": self.mean.tolist(),
            "worst": self.worst.tolist(),
            "least blend": self.lower.tolist(),
        }
        return table_text(f"Frontier of average and worst, enclosed to {self.enclosure:.2g}", columns)


def robustness_frontier(
    X: Any,
    y: Any = None,
    groups: Any = None,
    *,
    estimator: GroupDROEstimator | None = None,
    sample_weight: Any = None,
    offset: Any = None,
    group_minima: Any = None,
    tol: float = 1e-3,
    max_fits: int = 16,
) -> RobustnessFrontier:
    """Compute the certified trade-off of linear models between the average and the worst group.

    Minimising ``(1 - t) * average + t * worst`` for one t gives a model, and a half-plane that contains all models.
    Fits are added where the distance between attained values and proven bounds is largest, each starting from its
    neighbour's solution, until the frontier is enclosed to the tolerance.

    Parameters
    ----------
    X, y, groups, sample_weight, offset, group_minima : array-like, or a GroupedStore as X
        As in `fit`.
    estimator : GroupDROClassifier or GroupDRORegressor, optional
        Estimator that provides all parameters except `robustness`; it is not modified. The default is a classifier if y
        is text, boolean or has at most ten distinct integers, and a regressor otherwise. Fits are at least as accurate
        as its `tol`.
    tol : float
        Relative distance between attained values and proven bounds at which to stop.
    max_fits : int
        Largest number of fits.

    Returns
    -------
    RobustnessFrontier
        The frontier, with methods to query which trade-offs are possible.
    """
    check_number(tol, "tol", positive=True)
    check_whole(max_fits, "max_fits", least=2)
    if estimator is None:
        if isinstance(X, GroupedStore):
            estimator = GroupDRORegressor() if X.classes is None else GroupDROClassifier()
        else:
            estimator = estimator_for(y)
    if not isinstance(estimator, GroupDROEstimator):
        raise TypeError(f"estimator must be a GroupDROClassifier or GroupDRORegressor, got {type(estimator).__name__}.")
    estimator._check_parameters()
    own = clone(estimator).set_params(tol=min(float(estimator.tol), _FINER * float(tol)), robustness=0.5)
    task, _ = own._read(X, y, sample_weight, groups, offset)
    task = own._with_minima(task, group_minima)
    if task.blend.over_all and own.objective == "excess_risk":
        raise ValueError("excess risks of overlapping groups have no average over rows: use average='groups'.")
    frontier = RobustnessFrontier(own, task, float(tol))
    interrupted = frontier._enclose(max_fits)
    late = [t for t, outcome in frontier._outcomes if outcome.result.status is not Status.CONVERGED]
    if late or not frontier.converged:
        of = f", and {len(late)} of {len(frontier._outcomes)} fits did not converge" if late else ""
        remedy = "Increase max_passes." if late else "Increase max_fits."
        remedy = "It was interrupted." if interrupted else remedy
        found = f"The frontier is enclosed to {frontier.enclosure:.2g}, not to tol={tol:g}{of}. {remedy}"
        warn_caller(found, ConvergenceWarning)
    return frontier
