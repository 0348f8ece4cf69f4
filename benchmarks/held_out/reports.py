"""How often the intervals of `group_report` hold for all judged groups, with weights, clusters and rare errors."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm
from sklearn.base import BaseEstimator, ClassifierMixin

from benchmarks.held_out.writing import CACHE, in_parts, markdown, write
from groupdro import group_report

N_GROUPS, CONFIDENCE, TARGET = 5, 0.95, 0.93
N_SETS = {60: 100, 100: 100, 300: 100, 1000: 100}  # data sets by rows per group
RATES = (0.02, 0.05, 0.2)
WEIGHTS = ("equal", "20% have weight 10", "lognormal")
LOSSES = ("zero_one", "log")
PER_CLUSTER, SHARED = 5, 0.5  # rows per cluster, and the share of a row's variance that they have in common

HEADER = f"""\
# Intervals of group reports with weights, clusters and rare errors

How often all intervals of a report hold, of {N_SETS[60]:,} simulated data sets per line ({N_SETS[1000]} with 1,000
rows per group) with {N_GROUPS} groups each, at a nominal {CONFIDENCE:.0%} with the default settings of `group_report`.
The target is {TARGET:.0%}. "Rate" is the share of the second class. For the zero-one loss, the model always predicts
the first class, so it is the error rate. For the log loss, the model knows each row's true probability. "Not judged" is
the share of groups that the report marks as "small" (fewer than 30 effective rows or clusters) or "few errors", for
which it gives no interval and which cannot be its worst
group. Clusters are of {PER_CLUSTER} rows, whose scores and labels are correlated. In brackets the standard error in
percentage points.

"""


class Setting(NamedTuple):
    """One line of the table."""

    loss: str
    size: int
    rate: float
    weights: str
    clusters: bool


SETTINGS = [
    Setting(loss, size, rate, weights, clusters)
    for loss in LOSSES
    for clusters in (False, True)
    for weights in WEIGHTS
    for size in N_SETS
    for rate in RATES
]


class KnownModel(ClassifierMixin, BaseEstimator):
    """A classifier whose only column is the log-odds of the second class."""

    classes_ = np.array([0, 1])

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X), dtype=np.int64)

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return np.column_stack([expit(-X[:, 0]), expit(X[:, 0])])


_NODES, _MASS = np.polynomial.hermite_e.hermegauss(200)
_MASS = _MASS / _MASS.sum()


def centre_of(rate: float) -> float:
    """Return the mean log-odds, of variance 1, at which the second class has the given share."""
    return float(brentq(lambda centre: _MASS @ expit(centre + _NODES) - rate, -20.0, 20.0))


def risk_of(setting: Setting) -> float:
    """Return the true risk of every group."""
    if setting.loss == "zero_one":
        return setting.rate
    odds = centre_of(setting.rate) + _NODES
    p = expit(odds)
    return float(_MASS @ (p * np.logaddexp(0.0, -odds) + (1.0 - p) * np.logaddexp(0.0, odds)))


def normal(rng: np.random.Generator, n: int, *, clusters: bool) -> np.ndarray:
    if not clusters:
        return rng.standard_normal(n)
    common = np.repeat(rng.standard_normal(n // PER_CLUSTER), PER_CLUSTER)
    return np.sqrt(SHARED) * common + np.sqrt(1.0 - SHARED) * rng.standard_normal(n)


def draw(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return log-odds, labels and weights."""
    n = N_GROUPS * setting.size
    odds = centre_of(setting.rate) + normal(rng, n, clusters=setting.clusters)
    y = (norm.cdf(normal(rng, n, clusters=setting.clusters)) < expit(odds)).astype(np.int64)
    weights = None
    if setting.weights == "lognormal":
        weights = np.exp(rng.standard_normal(n))
    elif setting.weights != "equal":
        weights = np.where(np.arange(n) % 5 == 4, 10.0, 1.0)
    return odds, y, weights


def simulate(setting: Setting, n_sets: int, seed: int = 0) -> tuple[float, float]:
    """Return the share of data sets whose intervals all hold, and the share of groups that are not judged."""
    rng, risk, model = np.random.default_rng(seed), risk_of(setting), KnownModel()
    groups = np.repeat(np.arange(N_GROUPS), setting.size)
    cluster = np.arange(len(groups)) // PER_CLUSTER if setting.clusters else None
    held, silent = 0, 0.0
    for number in range(n_sets):
        odds, y, weights = draw(setting, rng)
        report = group_report(
            model, odds[:, None], y, groups, sample_weight=weights, cluster=cluster, loss=setting.loss,
            confidence=CONFIDENCE, random_state=number,
        )  # fmt: skip
        low, high = (np.array(report.columns[name]) for name in ("risk_low", "risk_high"))
        judged = np.array(report.judged)
        # An interval that is missing although the group is judged does not hold.
        held += bool(((low <= risk) & (risk <= high))[judged].all())
        silent += 1.0 - judged.mean()
    return held / n_sets, silent / n_sets


def document(found: dict[Setting, tuple[float, float]]) -> str:
    """Return the page, given the shares of each setting."""
    rows = []
    for setting, (share, silent) in found.items():
        error = 100 * np.sqrt(share * (1.0 - share) / N_SETS[setting.size])
        rows.append([
            setting.loss, "yes" if setting.clusters else "no", setting.weights, setting.size, f"{setting.rate:.0%}",
            f"{share:.1%} ({error:.1f})", f"{silent:.1%}",
        ])  # fmt: skip
    columns = ["loss", "clusters", "weights", "rows per group", "rate", "all intervals hold", "not judged"]
    return HEADER + markdown(columns, rows) + "\n"


def reports(cache: Path = CACHE) -> None:
    n_sets = {setting: N_SETS[setting.size] for setting in SETTINGS}
    write("reports", document(in_parts(cache / "reports", n_sets, simulate)))
