"""How often the intervals of skewed losses and of a user's own metrics hold for all judged groups."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm, t
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import average_precision_score

from benchmarks.held_out.reports import CONFIDENCE, TARGET
from benchmarks.held_out.writing import CACHE, in_parts, markdown, write
from groupdro import group_report
from groupdro.losses import Quantile

N_SETS = 200  # data sets per line
LEVELS = (0.01, 0.05, 0.5, 0.9, 0.95, 0.98, 0.99)
NOISES = ("normal", "exponential", "lognormal")
SIZES, GROUPS = (60, 100, 300, 1000), (5, 10)
RESAMPLES = 400
OWN_RESAMPLES = 200  # of a user's own metric, as the documentation suggests

HEADER = f"""\
# Intervals of skewed losses and of a user's own metrics

How often all intervals of a report hold, of {N_SETS} simulated data sets per line, at a nominal {CONFIDENCE:.0%} with
{RESAMPLES} resamples ({OWN_RESAMPLES} for a user's own metrics). The target is {TARGET:.0%}.
"All intervals hold" means those of all groups that are judged, and counts data sets with at least one such group.
"Flagged" is the share of groups that are not judged. "If none were flagged" counts the intervals of all groups: where
some are flagged, those of the same loss passed as a function, which the report does not know to be that of a quantile.
"Beyond" is the expected number of rows of a group on the rarer side of the quantile. In brackets the standard error in
percentage points.

"""


class Setting(NamedTuple):
    """One line of a table."""

    metric: str
    noise: str
    size: int
    n_groups: int
    level: float = 0.0


QUANTILES = [
    Setting("pinball", noise, size, m, level)
    for noise in NOISES
    for level in LEVELS
    for size in SIZES
    for m in GROUPS
]  # fmt: skip
OTHERS = [
    Setting(metric, noise, size, 5)
    for metric, noise in (
        ("90% quantile of absolute errors", "t5"),
        ("own mean squared error", "t5"),
        ("Matthews' coefficient", "20% positive"),
        ("rmse", "t3"),
        ("average_precision", "ties"),
    )
    for size in SIZES[:3]
]


class Zero(RegressorMixin, BaseEstimator):
    """Predicts the only column."""

    def predict(self, X: np.ndarray) -> np.ndarray:
        return X[:, 0]


class Scored(ClassifierMixin, BaseEstimator):
    """A classifier whose only column is the probability of the second class."""

    classes_ = np.array([0, 1])

    def predict(self, X: np.ndarray) -> np.ndarray:
        return (X[:, 0] > 0.5).astype(np.int64)

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return np.column_stack([1.0 - X[:, 0], X[:, 0]])


def noise_of(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    if kind.startswith("t"):
        return rng.standard_t(float(kind[1:]), size=n)
    return {"normal": rng.normal, "exponential": rng.exponential, "lognormal": rng.lognormal}[kind](size=n)


def quantile_of(kind: str, level: float) -> float:
    return float(
        {"normal": norm.ppf, "exponential": lambda p: -np.log1p(-p), "lognormal": lambda p: np.exp(norm.ppf(p))}[kind](
            level
        )
    )


def true_pinball(kind: str, level: float) -> float:
    """Return the expected pinball loss of the true quantile."""
    q = quantile_of(kind, level)
    above, mean = {
        "normal": lambda: (norm.pdf(q) - q * norm.sf(q), 0.0),
        "exponential": lambda: (np.exp(-q), 1.0),
        "lognormal": lambda: (np.exp(0.5) * norm.sf(np.log(q) - 1.0) - q * norm.sf(np.log(q)), np.exp(0.5)),
    }[kind]()
    return float(level * above + (1.0 - level) * (above - (mean - q)))


def far_error(y: np.ndarray, predicted: np.ndarray) -> float:
    place = int(0.9 * len(y))
    return -float(np.partition(np.abs(y - predicted), place)[place])


def squares(y: np.ndarray, predicted: np.ndarray) -> float:
    return -float(np.mean((y - predicted) ** 2))


def matthews(y: np.ndarray, predicted: np.ndarray) -> float:
    """Return the correlation of two binary columns; 0 where one of them is constant."""
    share, chosen = y.mean(), predicted.mean()
    variance = share * (1.0 - share) * chosen * (1.0 - chosen)
    return float((np.mean(y * predicted) - share * chosen) / np.sqrt(variance)) if variance > 0 else 0.0


def _scores(kind: str, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities with ties, and labels."""
    if kind == "ties":
        p = rng.choice([0.1, 0.2, 0.35, 0.6, 0.8], size=n, p=[0.4, 0.25, 0.15, 0.1, 0.1])
        return p, (rng.random(n) < p).astype(np.int64)
    y = (rng.random(n) < 0.2).astype(np.int64)
    return np.where(rng.random(n) < np.where(y == 1, 0.6, 0.1), 0.9, 0.1), y


def _large(setting: Setting) -> float:
    """Return the true value of a metric of scores: that of two million rows."""
    p, y = _scores(setting.noise, np.random.default_rng(99), 2_000_000)
    if setting.metric == "average_precision":
        return float(average_precision_score(y, p))
    return float(matthews(y, (p > 0.5).astype(np.int64)))


def _case(setting: Setting) -> tuple[str, Callable[..., Any], float, dict[str, Any]]:
    """Return the column of reports, what draws a data set, the true value, and the arguments of the report."""
    n = setting.size * setting.n_groups
    if setting.metric == "pinball":
        q = quantile_of(setting.noise, setting.level)
        draw = lambda rng: (Zero(), np.full((n, 1), q), noise_of(setting.noise, rng, n))  # noqa: E731
        return (
            "risk",
            draw,
            true_pinball(setting.noise, setting.level),
            {"loss": Quantile(setting.level), "metrics": "risk", "n_bootstrap": RESAMPLES},
        )
    if setting.noise.startswith("t") and setting.noise != "ties":
        degrees = float(setting.noise[1:])
        draw = lambda rng: (Zero(), np.zeros((n, 1)), noise_of(setting.noise, rng, n))  # noqa: E731
        if setting.metric == "rmse":
            return "rmse", draw, float(np.sqrt(t.var(degrees))), {"metrics": "rmse", "n_bootstrap": RESAMPLES}
        own = far_error if "quantile" in setting.metric else squares
        truth = -t.ppf(0.95, degrees) if own is far_error else -t.var(degrees)
        return "own", draw, float(truth), {"metrics": {"own": own}, "n_bootstrap": OWN_RESAMPLES}

    def draw(rng: np.random.Generator) -> tuple[Any, np.ndarray, np.ndarray]:
        p, y = _scores(setting.noise, rng, n)
        return Scored(), p[:, None], y

    if setting.metric == "average_precision":
        return "average_precision", draw, _large(setting), {"metrics": "average_precision", "n_bootstrap": RESAMPLES}
    return "own", draw, _large(setting), {"metrics": {"own": matthews}, "n_bootstrap": OWN_RESAMPLES}


def simulate(setting: Setting, n_sets: int, part: int = 0) -> tuple[float, float, float, float]:
    """Return the shares of data sets with a judged group, with intervals that hold, with all; and of flagged groups."""
    name, draw, truth, arguments = _case(setting)
    groups = np.repeat(np.arange(setting.n_groups), setting.size)
    rng = np.random.default_rng([part, setting.size, setting.n_groups, round(1000 * setting.level)])
    some = held = all_held = flagged = 0.0

    def holds(report: Any, rows: np.ndarray) -> bool:
        low, high = (np.array(report.columns[f"{name}_{end}"]) for end in ("low", "high"))
        return bool(((low <= truth) & (truth <= high))[rows].all())

    for number in range(n_sets):
        model, X, y = draw(rng)
        report = group_report(model, X, y, groups, confidence=CONFIDENCE, random_state=number, **arguments)
        judged = np.array(report.judged)
        flagged += 1.0 - judged.mean()
        some += judged.any()
        ok = holds(report, judged)
        held += ok and judged.any()
        if not judged.all() and setting.metric == "pinball":
            pinball = lambda y, p: np.maximum(setting.level * (y - p), (setting.level - 1.0) * (y - p))  # noqa: E731
            report = group_report(
                model, X, y, groups, confidence=CONFIDENCE, random_state=number, **{**arguments, "loss": pinball}
            )
            known = np.isfinite(report.columns["risk_low"])
            ok = holds(report, known)
        all_held += ok
    return some / n_sets, held / n_sets, all_held / n_sets, flagged / n_sets


def _beyond(setting: Setting) -> float:
    return setting.size * min(setting.level, 1.0 - setting.level)


def _share(share: float, n: float = N_SETS) -> str:
    return f"{share:.1%} ({100 * np.sqrt(share * (1.0 - share) / max(n, 1.0)):.1f})"


def document(found: dict[Setting, Any]) -> str:
    """Return the page, given what `simulate` found in each setting."""
    tables = []
    for chosen in (QUANTILES, OTHERS):
        rows = []
        for setting in chosen:
            some, held, all_held, flagged = found[setting]
            quantile = [f"{setting.level:g}", f"{_beyond(setting):.3g}"]
            rows.append([
                *([] if chosen is QUANTILES else [setting.metric]), setting.noise,
                *(quantile if chosen is QUANTILES else []), setting.size, setting.n_groups,
                _share(held / some, some * N_SETS) if some else "none is judged", f"{flagged:.1%}",
                _share(all_held),
            ])  # fmt: skip
        ends = ["rows per group", "groups", "all intervals hold", "flagged", "if none were flagged"]
        names = ["noise", "level", "beyond"] if chosen is QUANTILES else ["metric", "errors or scores"]
        tables.append(markdown([*names, *ends], rows))
    return f"{HEADER}## The pinball loss of the true quantile\n\n{tables[0]}\n\n## Other metrics\n\n{tables[1]}\n"


def tails(cache: Path = CACHE) -> None:
    n_sets = dict.fromkeys([*OTHERS, *QUANTILES], N_SETS)
    write("tails", document(in_parts(cache / "tails", n_sets, simulate)))
