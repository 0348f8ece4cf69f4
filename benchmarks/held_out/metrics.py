"""How often the intervals of metrics such as recall or the area under the ROC curve hold for all judged groups."""

from functools import cache as cached
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from benchmarks.held_out.reports import CONFIDENCE, N_GROUPS, PER_CLUSTER, TARGET, normal
from benchmarks.held_out.writing import CACHE, in_parts, markdown, write
from groupdro import group_report

N_SETS = {60: 100, 300: 100}  # data sets by rows per group
N_OTHERS = 100  # of metrics other than the most common ones, with 60 rows per group only
SIZES, N_TRUTH = tuple(N_SETS), 4_000_000
WEIGHTS = ("equal", "lognormal")
METRICS = {
    "classification": (
        "recall", "false_positive_rate", "roc_auc", "average_precision", "balanced_accuracy", "d2",
    ),
    "regression": ("rmse", "median_error", "d2"),
}  # fmt: skip
COMMON = ("recall", "false_positive_rate", "roc_auc", "rmse")
DATA = {
    "classification": ("20% in the second class", "50% in the second class"),
    "regression": ("normal errors", "heavy-tailed errors"),
}
_SPREAD = 1.5  # standard deviation of the log-odds
_POWER = 1.5  # to which the absolute values of normal errors are raised if their tails are heavy

HEADER = f"""\
# Intervals of metrics other than average losses

How often all intervals of a report hold, of {N_SETS[60]:,} simulated data sets per line with 60 rows per group, and of
{N_SETS[300]:,} with 300, with {N_GROUPS} groups each, at a nominal {CONFIDENCE:.0%} with the default settings of
`group_report`. The target is {TARGET:.0%}. A classifier knows each row's true probability of the second class; a
regressor knows the mean of each row. "Not judged" is the share of groups for which the report gives no interval.
Clusters are of {PER_CLUSTER} rows, whose predictions and labels are correlated; with {SIZES[0]} rows per group, there
would be too few of them. In brackets the standard error in percentage points. True values are those of {N_TRUTH:,}
rows. The less common metrics were simulated with {N_OTHERS} data sets of {SIZES[0]} rows per group.

"""


class Setting(NamedTuple):
    """Data sets, for which several metrics are computed."""

    task: str
    data: str
    size: int
    weights: str
    clusters: bool


SETTINGS = [
    Setting(task, data, size, weights, clusters)
    for task, kinds in DATA.items()
    for clusters in (False, True)
    for weights in WEIGHTS
    for size in SIZES
    for data in kinds
    if size > SIZES[0] or not clusters
]


class KnownClassifier(ClassifierMixin, BaseEstimator):
    """A classifier whose only column is the log-odds of the second class."""

    classes_ = np.array([0, 1])

    def predict(self, X: np.ndarray) -> np.ndarray:
        return (X[:, 0] > 0).astype(np.int64)

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return np.column_stack([expit(-X[:, 0]), expit(X[:, 0])])


class KnownRegressor(RegressorMixin, BaseEstimator):
    """A regressor whose only column is the mean of the target."""

    def predict(self, X: np.ndarray) -> np.ndarray:
        return X[:, 0]


_MODELS = {"classification": KnownClassifier(), "regression": KnownRegressor()}
_NODES, _MASS = np.polynomial.hermite_e.hermegauss(200)
_MASS = _MASS / _MASS.sum()


def _centre_of(rate: float) -> float:
    """Return the mean log-odds at which the second class has the given share."""
    return float(brentq(lambda centre: _MASS @ expit(centre + _SPREAD * _NODES) - rate, -20.0, 20.0))


_CENTRES = dict(zip(DATA["classification"], map(_centre_of, (0.2, 0.5)), strict=True))


def draw(setting: Setting, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the column that a model knows, labels and weights."""
    known, noise = (normal(rng, n, clusters=setting.clusters) for _ in range(2))
    if setting.task == "classification":
        known = _CENTRES[setting.data] + _SPREAD * known
        y = (norm.cdf(noise) < expit(known)).astype(np.int64)
    else:
        heavy = setting.data == DATA["regression"][1]
        y = known + (np.sign(noise) * np.abs(noise) ** _POWER if heavy else noise)
    return known, y, np.exp(rng.standard_normal(n)) if setting.weights == "lognormal" else None


@cached
def truth(task: str, data: str, n: int = N_TRUTH) -> dict[str, float]:
    """Return the true values of the metrics. Weights and clusters do not change them."""
    setting = Setting(task, data, n, "equal", clusters=False)
    known, y, _ = draw(setting, np.random.default_rng(99), n)
    report = group_report(_MODELS[task], known[:, None], y, metrics=METRICS[task], n_bootstrap=0)
    return {name: report.overall[name] for name in METRICS[task]}


def simulate(
    setting: Setting, true: dict[str, float], n_sets: int, n_bootstrap: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Return for each metric the share of data sets whose intervals all hold, and of groups that are not judged."""
    rng, n = np.random.default_rng(seed), N_GROUPS * setting.size
    groups = np.repeat(np.arange(N_GROUPS), setting.size)
    cluster = np.arange(n) // PER_CLUSTER if setting.clusters else None
    held, silent = dict.fromkeys(true, 0), dict.fromkeys(true, 0.0)
    for number in range(n_sets):
        known, y, weights = draw(setting, rng, n)
        report = group_report(
            _MODELS[setting.task], known[:, None], y, groups, metrics=list(true), sample_weight=weights,
            cluster=cluster, n_bootstrap=n_bootstrap, confidence=CONFIDENCE, random_state=number,
        )  # fmt: skip
        for name, value in true.items():
            low, high = (np.array(report.columns[f"{name}_{end}"]) for end in ("low", "high"))
            judged = ~np.isnan(low)
            held[name] += bool(((low <= value) & (value <= high))[judged].all())
            silent[name] += 1.0 - float(judged.mean())
    return {name: (held[name] / n_sets, silent[name] / n_sets) for name in true}


def document(found: dict[Setting, dict[str, tuple[float, float]]]) -> str:
    """Return the page, given the shares of each setting and metric."""
    rows = []
    for setting, shares in found.items():
        for name in (name for name in shares if name in COMMON or setting.size == SIZES[0]):
            share, silent = shares[name]
            n_sets = N_SETS[setting.size] if name in COMMON else N_OTHERS
            error = 100 * np.sqrt(share * (1.0 - share) / n_sets)
            rows.append([
                name, setting.data, "yes" if setting.clusters else "no", setting.weights, setting.size,
                f"{share:.1%} ({error:.1f})", f"{silent:.1%}",
            ])  # fmt: skip
    columns = ["metric", "data", "clusters", "weights", "rows per group", "all intervals hold", "not judged"]
    return HEADER + markdown(columns, sorted(rows, key=lambda row: row[0])) + "\n"


def metrics(cache: Path = CACHE) -> None:
    def run(setting: Setting, n_sets: int, seed: int) -> dict[str, tuple[float, float]]:
        true = truth(setting.task, setting.data)
        if seed * n_sets >= N_OTHERS or setting.size > SIZES[0]:
            true = {name: value for name, value in true.items() if name in COMMON}
        return simulate(setting, true, n_sets, seed=seed)

    n_sets = {setting: N_SETS[setting.size] for setting in SETTINGS}
    write("metrics", document(in_parts(cache / "metrics", n_sets, run)))
