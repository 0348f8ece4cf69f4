"""How much the true values of groups differ beyond chance, and what to expect of a new group.

The model is the random-effects model of meta-analysis. Group i has an estimate y_i with the known standard error s_i,

    y_i ~ N(m_i, s_i^2),    m_i ~ N(mean, tau^2),

and tau is the spread of the true values m_i. With w_i = 1 / (s_i^2 + tau^2), the generalised Q statistic

    Q(tau^2) = sum_i w_i (y_i - ybar)^2,    ybar = sum_i w_i y_i / sum_i w_i,

decreases in tau^2. At the true tau^2, whatever that is, its distribution is chi-squared with k - 1 degrees of freedom.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import chi2, norm, t

from groupdro.utils.text import percent
from groupdro.utils.types import Floats

__all__ = ["FEWEST_GROUPS", "Heterogeneity", "Scale", "heterogeneity", "to_scale"]

Scale = Literal["plain", "logit", "log"]

# Fewer groups than this say nothing of a new one (benchmarks/results/judging_spread.md has the coverage).
FEWEST_GROUPS = 3
_NO_ERROR = 1e-12  # standard error relative to the estimate below which a group shows no uncertainty
_LARGEST = 1e100  # number relative to the smallest standard error, so that no square overflows
_STEPS = 200  # of an iteration, which takes about ten
_ACCURACY = 1e-12  # at which it ends, relative to tau^2 and the smallest variance
_NODES = 400  # quantiles that stand for the distribution of tau^2; ends move by 0.1% of the width from 100 to 20,000
_AT_ONCE = 1 << 18  # squared deviations computed at a time


@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """What the true values of groups differ by beyond chance.

    The mean and the prediction interval are in the units of the metric, `tau` and its interval on the scale.

    Attributes
    ----------
    n_groups : int
        Number of groups that count.
    n_left_out : int
        Number of groups left out, because they cannot be judged, their estimate is not finite or their standard error
        is not positive: the rows of such a group do not show how uncertain it is.
    scale : {"plain", "logit", "log"}
        Whether true values are normal themselves, on the scale of log-odds, or on that of logarithms.
    confidence : float
        Confidence level of all intervals.
    tau, tau_low, tau_high : float
        Standard deviation of the true values between groups by restricted maximum likelihood, with its Q-profile
        interval (Viechtbauer, 2007). Both ends are 0 if estimates differ less than chance alone would make them.
    method : {"REML", "Paule-Mandel"}
        How `tau` was estimated; "Paule-Mandel" if the iteration of REML did not converge.
    Q : float
        Cochran's statistic, about ``n_groups - 1`` if there are no differences beyond chance.
    I2 : float
        Share of the variance between estimates that is not chance, relative to a typical standard error.
    mean, mean_low, mean_high : float
        Mean of the true values over groups, each of which counts the same, with its Hartung-Knapp interval, or that of
        equal true values if it is wider (Wiksten, Ruecker and Schwarzer, 2016). With "logit" and "log" it is the value
        of the median group.
    new_low, new_high : float
        Prediction interval of the true value of a new group.
    """

    n_groups: int
    n_left_out: int
    scale: Scale
    confidence: float
    tau: float = np.nan
    tau_low: float = np.nan
    tau_high: float = np.nan
    method: str = "REML"
    Q: float = np.nan
    I2: float = np.nan
    mean: float = np.nan
    mean_low: float = np.nan
    mean_high: float = np.nan
    new_low: float = np.nan
    new_high: float = np.nan

    @property
    def too_few(self) -> bool:
        """Whether there are too few groups to say anything; all numbers are then NaN."""
        return self.n_groups < FEWEST_GROUPS

    def __str__(self) -> str:
        without = {0: "", 1: " (1 group left out)"}.get(self.n_left_out, f" ({self.n_left_out} groups left out)")
        if self.too_few:
            return (
                f"Too few groups to say how much their true values differ: {self.n_groups}{without}, and at least "
                f"{FEWEST_GROUPS} are needed."
            )
        units = {"plain": "", "logit": " in log-odds", "log": " in logarithms"}[self.scale]
        chance = "" if self.tau_low > 0 else ", so they may all be equal"
        return (
            f"The true values of {self.n_groups} groups{without} have a mean of {self.mean:.3g} ({self.mean_low:.3g} "
            f"to {self.mean_high:.3g}) and a standard deviation of {self.tau:.3g}{units} ({self.tau_low:.3g} to "
            f"{self.tau_high:.3g}){chance}. The true value of a new group is expected between {self.new_low:.3g} and "
            f"{self.new_high:.3g}; all intervals have {percent(self.confidence)} confidence."
        )


def to_scale(values: Floats, errors: Floats, scale: Scale) -> tuple[Floats, Floats]:
    """Return estimates and standard errors on a scale, by the delta method; NaN where a value is not inside of it.

    Parameters
    ----------
    values, errors : ndarray of shape (n_groups,)
        Estimates in the units of the metric, and their standard errors.
    scale : {"plain", "logit", "log"}
        The scale: "logit" for proportions and areas under the ROC curve, "log" for ratios and positive losses.

    Returns
    -------
    estimates, errors : ndarray of shape (n_groups,)
        What `heterogeneity` takes.
    """
    if scale == "plain":
        return values, errors
    inside = (values > 0) & ((values < 1) | (scale == "log"))
    values = np.where(inside, values, np.nan)
    if scale == "log":
        return np.log(values), errors / values
    return np.log(values) - np.log1p(-values), errors / (values * (1.0 - values))


def heterogeneity(
    estimates: Floats, errors: Floats, *, scale: Scale = "plain", confidence: float = 0.95
) -> Heterogeneity:
    """Return what the true values of groups differ by beyond chance.

    The prediction interval is that of a confidence distribution (Nagashima, Noma and Furukawa, 2019): tau^2 has the
    distribution of the solutions of Q(tau^2) = X with X chi-squared; given tau^2, the true mean is normal around ybar
    with variance 1 / sum_i w_i; given both, the new group's value is normal with variance tau^2. Instead of random
    draws of X, equally likely quantiles are taken, and the other two are integrated exactly.

    Parameters
    ----------
    estimates, errors : ndarray of shape (n_groups,)
        An estimate per group on the scale (`to_scale`), and its standard error.
    scale : {"plain", "logit", "log"}
        The scale of the estimates, from which the mean and the prediction interval are transformed back.
    confidence : float
        Confidence level.

    Returns
    -------
    Heterogeneity
        The spread, the mean and the prediction interval.
    """
    known = np.isfinite(estimates) & np.isfinite(errors)
    known &= np.where(known, errors, 0.0) > _NO_ERROR * np.where(known, np.abs(estimates), 0.0)
    k = int(known.sum())
    if k < FEWEST_GROUPS:
        return Heterogeneity(k, len(known) - k, scale, confidence)
    # Relative to the best-known group, which may have almost all of the weight: sums over the others keep their digits.
    best = int(np.argmin(np.where(known, errors, np.inf)))
    centre, unit = float(estimates[best]), float(errors[best])
    deviations = np.clip((estimates[known] - centre) / unit, -_LARGEST, _LARGEST)
    groups = _Groups(deviations, np.square(np.minimum(errors[known] / unit, _LARGEST)))
    tail = 0.5 * (1.0 - confidence)
    paule_mandel, low, high = groups.spread_at(np.array([k - 1.0, *chi2.ppf([1.0 - tail, tail], k - 1)]))
    reml = groups.reml(float(paule_mandel))
    spread = float(paule_mandel) if reml is None else reml
    at = groups.at(np.array([0.0, spread]))
    mean, Q = float(at.mean[1]), at.Q.tolist()
    hartung_knapp = t.ppf(1.0 - tail, k - 1) * np.sqrt(Q[1] / ((k - 1) * at.total[1]))
    half = max(hartung_knapp, norm.ppf(1.0 - tail) / np.sqrt(at.total[0]))
    ends = np.array([mean, mean - half, mean + half, *groups.new(confidence)])
    with np.errstate(over="ignore"):  # of a wide interval of ratios
        ends = _BACK[scale](centre + unit * ends)
    tau, tau_low, tau_high = (unit * np.sqrt([spread, low, high])).tolist()
    return Heterogeneity(
        k,
        len(known) - k,
        scale,
        confidence,
        tau,
        tau_low,
        tau_high,
        "Paule-Mandel" if reml is None else "REML",
        Q[0],
        spread / (spread + groups.typical_variance),
        *ends.tolist(),
    )


_BACK = {"plain": lambda values: values, "logit": expit, "log": np.exp}


class _AtSpread(NamedTuple):
    """Sums over groups at several values of tau^2, each of shape (n_values,)."""

    total: Floats  # of the weights
    mean: Floats
    Q: Floats
    falling: Floats  # minus the derivative of Q


@dataclass(frozen=True, eq=False)
class _Groups:
    """Estimates of groups and their variances."""

    estimates: Floats
    variances: Floats

    def at(self, spreads: Floats) -> _AtSpread:
        """Return weighted sums at several values of tau^2."""
        at_once = max(1, _AT_ONCE // len(self.estimates))
        if len(spreads) > at_once:
            parts = [self.at(spreads[start : start + at_once]) for start in range(0, len(spreads), at_once)]
            return _AtSpread(*map(np.concatenate, zip(*parts, strict=True)))
        weights = 1.0 / (self.variances + spreads[:, None])
        total = weights.sum(axis=1)
        mean = weights @ self.estimates / total
        squares = weights * np.square(self.estimates - mean[:, None])
        return _AtSpread(total, mean, squares.sum(axis=1), (weights * squares).sum(axis=1))

    def spread_at(self, wanted: Floats) -> Floats:
        """Return the values of tau^2 at which Q has the given values; 0 where it is smaller without any spread.

        Q is convex in the variances and homogeneous of degree -1, so 1 / Q is concave in tau^2: Newton's iteration for
        it increases from zero to the solution.
        """
        # The solution of the largest value is below all others.
        start = self.spread_at(wanted.max(keepdims=True))[0] if len(wanted) > 1 else 0.0
        spreads = np.full_like(wanted, start)
        left = np.flatnonzero(wanted < self.at(spreads[:1]).Q)
        for _ in range(_STEPS):
            if not len(left):
                break
            found = self.at(spreads[left])
            step = found.Q * (found.Q / wanted[left] - 1.0) / found.falling
            spreads[left] += step
            left = left[step > _ACCURACY * (spreads[left] + 1.0)]
        return spreads

    def reml(self, start: float) -> float | None:
        """Return the tau^2 of restricted maximum likelihood by Fisher scoring; None if it does not converge."""
        spread, likelihood = start, self._restricted_likelihood(start)
        for _ in range(_STEPS):
            weights = 1.0 / (self.variances + spread)
            total = weights.sum()
            # The trace of the projection P = diag(w) - w w' / sum(w), and of its square.
            trace = np.sum(weights * _others(weights)) / total
            squares = np.square(weights)
            information = np.sum(squares * (np.square(_others(weights)) + _others(squares))) / total**2
            step = float((self.at(np.array([spread])).falling[0] - trace) / information)
            while True:
                further = max(spread + step, 0.0)
                change = abs(further - spread)
                again = self._restricted_likelihood(further)
                if again >= likelihood or change <= _ACCURACY * (spread + 1.0):
                    break
                step *= 0.5
            spread, likelihood = further, again
            if change <= _ACCURACY * (spread + 1.0):
                return spread
        return None

    def _restricted_likelihood(self, spread: float) -> float:
        """Return the logarithm of the restricted likelihood, up to a constant."""
        found = self.at(np.array([spread]))
        return float(-0.5 * (np.log(self.variances + spread).sum() + np.log(found.total[0]) + found.Q[0]))

    @property
    def typical_variance(self) -> float:
        """The typical variance of Higgins and Thompson (2002)."""
        weights = 1.0 / self.variances
        return float((len(weights) - 1) * weights.sum() / np.sum(weights * _others(weights)))

    def new(self, confidence: float) -> list[float]:
        """Return both ends of the prediction interval."""
        shares = (np.arange(_NODES) + 0.5) / _NODES
        spreads = self.spread_at(chi2.ppf(shares, len(self.estimates) - 1))
        found = self.at(spreads)
        errors = np.sqrt(spreads + 1.0 / found.total)

        def quantile(share: float) -> float:
            """Return a quantile of the mixture, which lies between those of its parts."""
            parts = found.mean + norm.ppf(share) * errors
            low, high = float(parts.min()), float(parts.max())
            if not low < high:
                return low
            return float(brentq(lambda value: norm.cdf((value - found.mean) / errors).mean() - share, low, high))

        tail = 0.5 * (1.0 - confidence)
        return [quantile(tail), quantile(1.0 - tail)]


def _others(values: Floats) -> Floats:
    """Return for each of several positive numbers the sum of the others, without cancellation."""
    largest = int(values.argmax())
    sums = values.sum() - values
    sums[largest] = values[:largest].sum() + values[largest + 1 :].sum()
    return sums
