"""The certified frontier between average and worst: every choice that a linear model has, and none that it has not."""

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from groupdro.certificate import Certificate
from groupdro.estimators.base import GroupDROEstimator
from groupdro.estimators.defaults import estimator_for
from groupdro.estimators.fitting import Task, warn_caller
from groupdro.estimators.frontier_answers import Attainable, FrontierModel
from groupdro.estimators.outcome import Outcome
from groupdro.estimators.sandwich import Sandwich
from groupdro.problem.centring import recentre
from groupdro.run.clock import Clock
from groupdro.run.result import Status, TraceRow, met_tolerance, relative_gap
from groupdro.utils.arguments import check_number, check_whole
from groupdro.utils.text import table_text
from groupdro.utils.types import Floats

__all__ = ["RobustnessFrontier", "robustness_frontier"]

_FINER = 1e-3  # tolerance of the fits, relative to that of the enclosure
_APART = 1e-9  # robustness between two points, below which they are one
_LOOKS = 8  # points in all, for each fit that is allowed
_MIXTURE = "mixture of two models on the frontier"
_GOOD_LOOK = 0.25  # gap of a mixture, relative to the tolerance, up to which it needs no fit


class RobustnessFrontier:
    """What linear models can have on average and on their worst group, certified: made by `robustness_frontier`.

    All values are those of the training rows with the penalty, as `upper_bound_` of an estimator has it.

    Attributes
    ----------
    robustness : ndarray of shape (n_points,)
        Where there are models, rising: fitted ones, and mixtures of two neighbours.
    mean, worst : ndarray of shape (n_points,)
        Average and worst value of each model.
    lower : ndarray of shape (n_points,)
        Every model has ``(1 - robustness) * mean + robustness * worst >= lower``: this is proved.
    average, regret : str, bool
        What counts alike in the average, "rows" or "groups"; and whether values are excess risks.
    enclosure : float
        Largest relative distance between what is attained and what is proved impossible.
    converged : bool
        Whether the enclosure is within the tolerance.
    n_fits : int
        Number of fits.
    n_passes : float
        Passes over the data, of all fits and mixtures.
    """

    def __init__(self, estimator: GroupDROEstimator, task: Task, tol: float):
        self._estimator, self._task, self._tol = estimator, task, tol
        self._outcomes: list[tuple[float, Outcome]] = []
        self._answers: list[FrontierModel] = []  # mixtures that were asked for
        self.average, self.regret = str(estimator.average), estimator.objective == "excess_risk"
        self.n_fits, self.n_passes = 0, 0.0

    # ------------------------------------------------------------------ how it is made

    def _enclose(self, max_fits: int) -> None:
        """Add points and half-planes where the enclosure is widest.

        Between two neighbours, a pass at the mixture of their models and weights most often proves as much as a fit.
        """
        for t in (0.0, 1.0):
            if self._fit(t):
                return
        while self.n_fits < max_fits and len(self._outcomes) < _LOOKS * max_fits:
            t, width = self._sandwich.next_t()
            if width <= self._tol or np.abs(self.robustness - t).min() < _APART:
                return
            try:
                seen = self._look(t).result
            except KeyboardInterrupt:
                return  # what is known so far is worth keeping
            if relative_gap(seen.gap, seen.upper_bound) > _GOOD_LOOK * self._tol and self._fit(t):
                return

    def _fit(self, t: float) -> bool:
        """Fit at one robustness, beginning at the nearest model; return whether that was interrupted."""
        start: tuple[Any, Any] = (None, None)
        if self._outcomes:
            nearest = min(self._outcomes, key=lambda known: abs(known[0] - t))[1].result
            start = nearest.w, nearest.q
        outcome = self._estimator._solve(self._task, float(self._estimator.alpha), start, robustness=t)
        if self.regret and not self._task.between.over_all:
            self._task = replace(self._task, references=outcome.result.references)  # found once
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
        """Return what a pass at the mixture of two models and of their group weights shows and proves."""
        w, q = ((1.0 - share) * a + share * b for a, b in ((one.result.w, other.result.w), (one.q, other.q)))
        problem, _ = self._task.problem(self._estimator._domain(float(self._estimator.alpha)), (w, q), t)
        problem, _ = recentre(problem)
        clock, certificate = Clock(problem), Certificate(problem)
        certificate.observe(problem.evaluate(problem.start(), problem.start_weights()))
        assert certificate.w is not None
        assert certificate.group_risks is not None
        values = certificate.group_risks - problem.baseline.lower
        penalty = problem.domain.penalty_at(problem.coef(certificate.w))
        between, n = self._task.between, self._task.between.n_groups
        upper, lower = certificate.upper, max(certificate.lower, self._sandwich.least_blend(t))
        certificate.lower = lower
        gap = certificate.gap  # infinite where bounds contradict each other
        status = Status.PASS_LIMIT if np.isfinite(gap) else Status.NUMERICAL_FAILURE
        if met_tolerance(gap, upper, self._tol, other.result.atol) is not None:
            status = Status.CONVERGED
        result = replace(
            other.result, w=w, q=q[:n], group_risks=certificate.group_risks[:n], group_values=values[:n],
            upper_bound=upper, lower_bound=lower, gap=gap, tol=self._tol, status=status, message=status.value,
            passes=clock.passes, seconds=clock.seconds, epochs=0, solver=_MIXTURE,
            trace=(TraceRow(0, clock.passes, 0, 0, clock.seconds, upper, lower),),
        )  # fmt: skip
        mean, worst = between.mean(values) + penalty, between.worst(values) + penalty
        return Outcome(result, q, mean, worst, -np.inf, -np.inf)

    @property
    def _sandwich(self) -> Sandwich:
        atol = max((outcome.result.atol for _, outcome in self._outcomes), default=0.0)
        return Sandwich(self.robustness, self.mean, self.worst, self.lower, atol)

    # ------------------------------------------------------------------ what is known

    @property
    def robustness(self) -> Floats:
        """Where there are models."""
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
        """What each blend is at least."""
        return np.array([outcome.result.lower_bound for _, outcome in self._outcomes])

    @property
    def enclosure(self) -> float:
        """Largest relative distance between what is attained and what is proved impossible."""
        return self._sandwich.width()

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
        """Whether values are risks and the penalty, without references or allowances for small groups."""
        return not (self.regret or self._estimator.small_group_adjustment)

    def penalty_of(self, model: Any) -> float | None:
        """Return the penalty of a linear model of this package on the same columns; None of any other.

        Parameters
        ----------
        model : fitted estimator
            Any model.

        Returns
        -------
        float or None
            What the frontier's objective adds to its risks.
        """
        if not isinstance(model, GroupDROEstimator) or model.n_features_in_ != self._estimator.n_features_in_:
            return None
        domain = self._estimator._domain(float(self._estimator.alpha))
        return 0.0 if domain is None else domain.penalty_at(np.asarray(model.coef_))

    @property
    def edge(self) -> list[int]:
        """The models that no mixture of others beats, by rising average."""
        return self._sandwich.hull()

    def worst_limit(self, mean: float) -> float:
        """Return what the worst value of every model with an average of at most `mean` is at least.

        Parameters
        ----------
        mean : float
            The average, with the penalty.

        Returns
        -------
        float
            The bound.
        """
        return self._sandwich.least_worst(mean)

    # ------------------------------------------------------------------ questions

    def least_worst(self, mean_within: float = 0.01) -> FrontierModel:
        """Return the model of least worst value whose average is nearly the best.

        Parameters
        ----------
        mean_within : float
            What the average may cost, relative to the best; of excess risks, which may be near zero, absolute.

        Returns
        -------
        FrontierModel
            The model. Its `worst_lower` is what no model with this average can be below.
        """
        check_number(mean_within, "mean_within")
        found = self._sandwich.mixture(mean=self._budget(float(self.mean.min()), mean_within))
        assert found is not None  # the best itself is within any budget
        return self._mixed(*found)

    def least_mean(self, worst_within: float = 0.01) -> FrontierModel:
        """Return the model of least average whose worst value is nearly the best.

        Parameters
        ----------
        worst_within : float
            What the worst value may cost, relative to the best; of excess risks, which may be near zero, absolute.

        Returns
        -------
        FrontierModel
            The model. Its `mean_lower` is what no model with this worst value can be below.
        """
        check_number(worst_within, "worst_within")
        found = self._sandwich.mixture(worst=self._budget(float(self.worst.min()), worst_within))
        assert found is not None
        return self._mixed(*found)

    def attainable(self, *, mean: float, worst: float) -> Attainable:
        """Say whether any model has at most this average and this worst value.

        Parameters
        ----------
        mean, worst : float
            The wishes, for values on the training rows with the penalty.

        Returns
        -------
        Attainable
            Yes with a model, no with the half-plane that proves it, or open.
        """
        for name, value in (("mean", mean), ("worst", worst)):
            if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not np.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value!r}.")
        sandwich = self._sandwich
        wishes = f"a mean of at most {mean:.6g} and a worst value of at most {worst:.6g}"
        k = sandwich.refutes(mean, worst)
        if k is not None:
            t, least = float(sandwich.t[k]), float(sandwich.lower[k])
            blend = (1.0 - t) * mean + t * worst
            terms = [f"{1 - t:.4g} mean"] * (t < 1) + [f"{t:.4g} worst"] * (t > 0)
            why = f"every model has {' + '.join(terms)} >= {least:.8g}, and the wishes have {blend:.8g}"
            return Attainable("no", None, t, least, f"No model has {wishes}: {why}.")
        for model in self._candidates(mean, worst):
            if model.mean <= mean and model.worst <= worst:
                return Attainable("yes", model, np.nan, np.nan, f"A model has {wishes}: see .model.")
        width = f"the frontier is enclosed to {self.enclosure:.2g}"
        return Attainable("open", None, np.nan, np.nan, f"It is open whether a model has {wishes}: {width}.")

    def _candidates(self, mean: float, worst: float) -> Iterator[FrontierModel]:
        """Yield models that may meet both wishes: earlier answers, and mixtures, which are better than chords."""
        yield from self._answers
        for found in (self._sandwich.mixture(mean=mean), self._sandwich.mixture(worst=worst)):
            if found is not None:
                yield self._mixed(*found)

    def _budget(self, best: float, within: float) -> float:
        return best + (within if self.regret else within * abs(best))

    # ------------------------------------------------------------------ models

    def _mixed(self, a: int, b: int, share: float) -> FrontierModel:
        """Return the mixture of two fits' coefficients, which is no worse than the mixture of their values."""
        (t_a, one), (t_b, other) = self._outcomes[a], self._outcomes[b]
        if share in (0.0, 1.0):
            t, outcome = ((t_a, one), (t_b, other))[int(share)]
            return self._made(outcome, t)
        run, fall = other.mean - one.mean, one.worst - other.worst
        t = float(run / (run + fall))
        self._answers.append(self._made(self._evaluated(one, other, share, t), t))
        return self._answers[-1]

    def _made(self, outcome: Outcome, t: float) -> FrontierModel:
        """Return a fitted estimator with what the whole frontier proves of it."""
        sandwich, result = self._sandwich, outcome.result
        mean_lower = min(max(outcome.mean_lower, sandwich.least_mean(outcome.worst)), outcome.mean)
        worst_lower = min(max(outcome.worst_lower, sandwich.least_worst(outcome.mean)), outcome.worst)
        outcome = replace(outcome, mean_lower=mean_lower, worst_lower=worst_lower)
        model = clone(self._estimator).set_params(robustness=t, tol=result.tol)
        for name, value in vars(self._estimator).items():
            if name not in model.get_params(deep=False):
                setattr(model, name, value)  # what was learned of the data
        model._store(outcome)
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
    y: Any,
    groups: Any,
    *,
    estimator: GroupDROEstimator | None = None,
    sample_weight: Any = None,
    offset: Any = None,
    tol: float = 1e-3,
    max_fits: int = 16,
) -> RobustnessFrontier:
    """Compute everything that linear models can have on average and on their worst group, with a proof.

    Minimising ``(1 - t) * average + t * worst`` for one t gives a model, and a half-plane in which all models lie.
    Fits are made where the distance between what is attained and what is proved impossible is largest, each begun at
    its neighbour's solution, until the frontier is enclosed.

    Parameters
    ----------
    X, y, groups, sample_weight, offset : array-like
        As in `fit`.
    estimator : GroupDROClassifier or GroupDRORegressor, optional
        All parameters but `robustness`; it is not changed. By default a classifier where y is text, truth values or up
        to ten different whole numbers, otherwise a regressor. Fits are at least as fine as its `tol`.
    tol : float
        Relative distance between the attained and the impossible at which to stop.
    max_fits : int
        Most fits.

    Returns
    -------
    RobustnessFrontier
        The frontier, which answers what is possible.
    """
    check_number(tol, "tol", positive=True)
    check_whole(max_fits, "max_fits", least=2)
    estimator = estimator_for(y) if estimator is None else estimator
    if not isinstance(estimator, GroupDROEstimator):
        raise TypeError(f"estimator must be a GroupDROClassifier or GroupDRORegressor, got {type(estimator).__name__}.")
    own = clone(estimator).set_params(tol=min(float(estimator.tol), _FINER * float(tol)), robustness=0.5)
    own._check_parameters()
    task, _, _ = own._read(X, y, sample_weight, groups, offset)
    if task.between.over_all and own.objective == "excess_risk":
        raise ValueError("excess risks of groups that overlap have no average over rows: use average='groups'.")
    frontier = RobustnessFrontier(own, task, float(tol))
    frontier._enclose(max_fits)
    late = [t for t, outcome in frontier._outcomes if outcome.result.status is not Status.CONVERGED]
    if late or not frontier.converged:
        of = f", and {len(late)} of {len(frontier._outcomes)} fits did not converge" if late else ""
        remedy = "Raise max_passes." if late else "Raise max_fits."
        found = f"The frontier is enclosed to {frontier.enclosure:.2g}, not to tol={tol:g}{of}. {remedy}"
        warn_caller(found, ConvergenceWarning)
    return frontier
