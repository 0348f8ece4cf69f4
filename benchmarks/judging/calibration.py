"""How often simultaneous intervals of the calibration of groups hold, over simulated groups."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm

from benchmarks.held_out.writing import CACHE, RESULTS, in_parts, markdown
from groupdro.data.grouping import read_groups
from groupdro.evaluation.enough import has_enough
from groupdro.evaluation.inference import simultaneous_intervals
from groupdro.evaluation.recalibration import (
    FEWEST_EXPECTED,
    CalibrationInTheLarge,
    CalibrationSlope,
    ObservedOverExpected,
    expected_events,
)
from groupdro.evaluation.resampling import effective_sizes, resample

CONFIDENCE, TARGET, N_GROUPS, N_BOOTSTRAP = 0.95, 0.93, 5, 400
SIZES = (60, 100, 300, 1000)  # rows per group
RATES = {"rare": 0.05, "common": 0.4}
ROWS = ("plain", "weights", "clusters")
PER_CLUSTER, SHARED = 5, 0.5  # rows per cluster, and the share of a row's variance that they have in common
TRUTH = {"observed over expected": 0.0, "in the large": 0.0, "slope": 1.0}  # the first as a logarithm
FEWEST_UNITS = 30  # effective rows or clusters of a judged group
# Fewest expected events of a judged group, which also has ten observed ones of either class.
RULES = (0, 10, 15, 20, 30)

HEADER = f"""\
# Calibration of groups

How often all intervals hold that `simultaneous_intervals` gives for the calibration of the judged groups, of
{{n_sets:,}} simulated data sets per line with {N_GROUPS} groups each, at a nominal {CONFIDENCE:.0%}, with {N_BOOTSTRAP}
resamples. The target is {TARGET:.0%} less two standard errors, which are {{error:.1f}} percentage points there.
Probabilities are the true ones, whose log-odds have a standard deviation of 1. Rare events are {RATES["rare"]:.0%} of
the rows, common ones {RATES["common"]:.0%}. "Weights" are lognormal; clusters are of {PER_CLUSTER} rows, whose
probabilities and labels are correlated. Intervals of observed over expected are computed for its logarithm.

Judged groups have {FEWEST_UNITS} effective rows or clusters. In the first three columns of coverage they also have ten
effective events, and ten effective rows without one; in the last three, also {FEWEST_EXPECTED} expected ones of either
kind (`expected_events`). "Not judged" is the share of the other groups. Numbers in brackets are the data sets with
judged groups, if not all have some; a cell is empty if none has.

"""


class Setting(NamedTuple):
    """Data sets, for which all statistics are computed."""

    rows: str
    events: str
    size: int


@dataclass(frozen=True)
class Logarithm:
    """The logarithm of a positive statistic, on whose scale its intervals are computed."""

    statistic: ObservedOverExpected

    def __getattr__(self, name: str) -> Any:
        return getattr(self.statistic, name)

    def __call__(self, rows: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, influence = self.statistic(rows, weights)
        values = np.where(values > 0, values, np.nan)
        return np.log(values), influence / values[:, None]


KINDS = (ObservedOverExpected, CalibrationInTheLarge, CalibrationSlope)
SETTINGS = [Setting(rows, events, size) for size in SIZES for rows in ROWS for events in RATES]
_NODES, _MASS = np.polynomial.hermite_e.hermegauss(200)


def centre_of(rate: float) -> float:
    """Return the mean log-odds, of variance 1, at which the positive class has the given share."""
    return float(brentq(lambda centre: _MASS @ expit(centre + _NODES) / _MASS.sum() - rate, -20.0, 20.0))


def normal(rng: np.random.Generator, n: int, *, clusters: bool) -> np.ndarray:
    if not clusters:
        return rng.standard_normal(n)
    common = np.repeat(rng.standard_normal(n // PER_CLUSTER), PER_CLUSTER)
    return np.sqrt(SHARED) * common + np.sqrt(1.0 - SHARED) * rng.standard_normal(n)


def draw(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return true probabilities, labels and weights."""
    n, clusters = N_GROUPS * setting.size, setting.rows == "clusters"
    probabilities = expit(centre_of(RATES[setting.events]) + normal(rng, n, clusters=clusters))
    positive = norm.cdf(normal(rng, n, clusters=clusters)) < probabilities
    return probabilities, positive, np.exp(rng.standard_normal(n)) if setting.rows == "weights" else None


def simulate(setting: Setting, n_sets: int, seed: int = 0) -> dict[str, list[float]]:
    """Return for each statistic and rule what happens to judged groups.

    These are the shares of data sets with judged groups whose intervals all hold, and of data sets with judged groups;
    and the share of groups that are not judged.
    """
    rng = np.random.default_rng([seed, SETTINGS.index(setting)])
    n = N_GROUPS * setting.size
    group = np.repeat(np.arange(N_GROUPS), setting.size)
    grouping = read_groups(group, n)
    clusters = np.arange(n) // PER_CLUSTER if setting.rows == "clusters" else None
    found: dict[str, list[Any]] = {}
    for number in range(n_sets):
        probabilities, positive, weights = draw(setting, rng)
        statistics = [kind(positive, probabilities) for kind in KINDS]
        statistics[0] = Logarithm(statistics[0])
        enough = effective_sizes(grouping, clusters, weights) >= FEWEST_UNITS - 1e-9
        enough &= has_enough(statistics[2], grouping, clusters, weights)
        expected = expected_events(probabilities, group, N_GROUPS, units=clusters, weights=weights)
        n_bootstrap = N_BOOTSTRAP if enough.any() else 0
        resampled = resample(
            statistics, grouping, n_bootstrap=n_bootstrap, seed=number, clusters=clusters, weights=weights
        )
        for rule in RULES:
            judged = enough & (expected >= rule)
            for k, (name, truth) in enumerate(TRUTH.items()):
                one = False, False, 1.0
                if judged.any():
                    intervals = simultaneous_intervals(resampled, CONFIDENCE, kind=k, groups=judged)
                    holds = (intervals.low <= truth) & (truth <= intervals.high)  # not where there is none
                    one = holds[judged].all(), True, 1.0 - judged.mean()
                found.setdefault(f"{name}, {rule}", []).append(one)
    return {key: np.mean(each, axis=0).tolist() for key, each in found.items()}


def coverage(shares: list[float], n_sets: int) -> str:
    """Return the coverage, with the number of data sets that have judged groups, if not all have."""
    holds, some, _ = shares
    number = round(n_sets * some)
    return "" if not number else f"{holds / some:.1%}" + ("" if number == n_sets else f" ({number})")


def document(found: dict[Setting, dict[str, list[float]]], n_sets: int) -> str:
    """Return the page."""
    rows = []
    for setting, one in found.items():
        rows.append([*setting])
        for rule in (0, FEWEST_EXPECTED):
            parts = [one[f"{name}, {rule}"] for name in TRUTH]
            rows[-1] += [*(coverage(part, n_sets) for part in parts), f"{parts[0][2]:.1%}"]
    columns = ["data", "events", "rows per group", *2 * (*TRUTH, "not judged")]
    return HEADER.format(n_sets=n_sets, error=100 * np.sqrt(TARGET * (1.0 - TARGET) / n_sets)) + markdown(columns, rows)


def calibration(n_sets: int) -> None:
    found = in_parts(CACHE.parent / "judging" / "calibration", dict.fromkeys(SETTINGS, n_sets), simulate)
    text = document(found, n_sets)
    (RESULTS / "judging_calibration.md").write_text(text)
    print(text)
