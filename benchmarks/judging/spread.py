"""How often the intervals of `heterogeneity` hold, over simulated groups."""

import csv
import json
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import t

from benchmarks.held_out.writing import CACHE, RESULTS, in_parts, markdown
from groupdro.evaluation.heterogeneity import heterogeneity, to_scale

CONFIDENCE, TARGET = 0.95, 0.93
N_GROUPS = (3, 5, 10, 20, 50)
SPREADS = {"none": 0.0, "small": 0.5, "large": 2.0}  # relative to a typical standard error
VARIATION = 0.5  # standard deviation of the logarithms of standard errors, or of half the logarithms of sizes
ROWS, RATE = 200, 0.1  # of error rates: the typical rows per group, and the median rate
DATA = ("normal", "equal errors", "error rates")
FOLDER = Path(__file__).parent  # of the real tables


class Setting(NamedTuple):
    """One line of the table."""

    data: str
    n_groups: int
    spread: str


class Found(NamedTuple):
    """Shares of the data sets in which an interval holds, or in which something is the case."""

    spread: float
    none: float
    mean: float
    new: float
    student: float
    left_out: float


SETTINGS = [Setting(data, k, spread) for data in DATA for k in N_GROUPS for spread in SPREADS]

HEADER = f"""\
# The spread between groups, and the prediction interval of a new group

How often the intervals of `heterogeneity` hold, of {{n_sets:,}} simulated data sets per line, at a nominal
{CONFIDENCE:.0%}. The target is {TARGET:.0%} less two standard errors, which are {{error:.1f}} percentage points there.
"Normal": estimates of groups whose standard errors are known and differ by a factor of about
{np.exp(VARIATION):.1f}; "equal errors": the same with equal ones; "error rates": shares of errors, a typical
{RATE:.0%} of about {ROWS} rows, on the scale of log-odds with estimated standard errors. A small true spread is
{SPREADS["small"]:g} times a typical standard error, a large one {SPREADS["large"]:g} times. "Empty" is the share of the
data sets whose estimates differ less than chance would make them, for which the interval of the spread is [0, 0]. "t"
is the usual prediction interval, of Student's t with k - 2 degrees of freedom. "Left out" is the share of groups
without errors, whose standard error is unknown.

"""

TABLES = """
# Prediction intervals of real tables

Groups of held-out rows of real tables, with logistic regressions (`python -m benchmarks.judging tables`), on the scale
of log-odds, logarithms or the number itself; and what R's metafor gives (`benchmarks/judging/reference.R`): with
Student's t after Knapp and Hartung's test, and with the normal distribution. tau, its interval and Q agree.

"""


def draw(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float, float, float]:
    """Return estimates, standard errors, the true mean and spread, and the true value of a new group."""
    k = setting.n_groups
    sizes = np.exp(VARIATION * rng.standard_normal(k))  # relative standard errors
    if setting.data == "error rates":
        mean = float(np.log(RATE / (1.0 - RATE)))
        spread = SPREADS[setting.spread] / np.sqrt(ROWS * RATE * (1.0 - RATE))
        *true, new = mean + spread * rng.standard_normal(k + 1)
        rows = np.maximum(np.rint(ROWS / sizes**2), 1).astype(int)
        shares = rng.binomial(rows, 1.0 / (1.0 + np.exp(-np.array(true)))) / rows
        return *to_scale(shares, np.sqrt(shares * (1.0 - shares) / rows), "logit"), mean, spread, float(new)
    spread = SPREADS[setting.spread]
    *true, new = spread * rng.standard_normal(k + 1)
    errors = np.ones(k) if setting.data == "equal errors" else sizes
    return np.array(true) + errors * rng.standard_normal(k), errors, 0.0, spread, float(new)


def simulate(setting: Setting, n_sets: int, seed: int = 0) -> Found:
    """Return how often each interval holds."""
    rng = np.random.default_rng([seed, SETTINGS.index(setting)])
    found = []
    for _ in range(n_sets):
        estimates, errors, mean, spread, new = draw(setting, rng)
        ours = heterogeneity(estimates, errors, confidence=CONFIDENCE)
        if ours.too_few:
            continue
        half = np.hypot(ours.tau, standard_error(ours.tau, errors))
        half *= t.ppf(0.5 + 0.5 * CONFIDENCE, ours.n_groups - 2)
        found.append([
            ours.tau_low <= spread <= ours.tau_high, ours.tau_high == 0, ours.mean_low <= mean <= ours.mean_high,
            ours.new_low <= new <= ours.new_high, abs(new - ours.mean) <= half, ours.n_left_out / setting.n_groups,
        ])  # fmt: skip
    return Found(*np.mean(found, axis=0).tolist())


def standard_error(spread: float, errors: np.ndarray) -> float:
    """Return the standard error of the mean."""
    known = np.isfinite(errors)
    return float(np.sum(1.0 / (errors[known] ** 2 + spread**2)) ** -0.5)


def real_tables() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the estimates and standard errors of the groups of each real table, by its name."""
    with (FOLDER / "spread_tables.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    parts = {name: list(part) for name, part in groupby(rows, lambda row: row["table"])}
    return {
        name: tuple(np.array([float(row[column]) for row in part]) for column in ("estimate", "error"))
        for name, part in parts.items()
    }


def ends(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def intervals_of_tables() -> str:
    """Return the prediction intervals of the real tables with those of metafor."""
    theirs = json.loads((FOLDER / "metafor.json").read_text())["tables"]
    rows = []
    for name, (estimates, errors) in real_tables().items():
        ours, other = heterogeneity(estimates, errors), theirs[name]
        rows.append([
            name, ours.n_groups, f"{ours.tau:.3f} ({ends(ours.tau_low, ours.tau_high)})",
            ends(ours.new_low, ours.new_high), ends(other["new_low"], other["new_high"]),
            ends(other["new_low_normal"], other["new_high_normal"]),
        ])  # fmt: skip
    return markdown(["table, groups", "number of groups", "tau", "ours", "metafor, t", "metafor, normal"], rows)


def document(found: dict[Setting, Found], n_sets: int) -> str:
    """Return the page."""
    error = 100 * np.sqrt(TARGET * (1.0 - TARGET) / n_sets)
    rows = [[*setting, *(f"{share:.1%}" for share in one)] for setting, one in found.items()]
    columns = [
        "data", "groups", "true spread", "interval of the spread", "empty", "interval of the mean",
        "prediction interval", "t", "left out",
    ]  # fmt: skip
    least = min(min(one.spread, one.new) for one in found.values())
    lowest = f"\nThe smallest coverage of the spread or of a new group is {least:.1%}.\n"
    return HEADER.format(n_sets=n_sets, error=error) + markdown(columns, rows) + lowest + TABLES + intervals_of_tables()


def spread(n_sets: int) -> None:
    found = in_parts(CACHE.parent / "judging" / "spread", dict.fromkeys(SETTINGS, n_sets), simulate)
    text = document({setting: Found(*shares) for setting, shares in found.items()}, n_sets)
    (RESULTS / "judging_spread.md").write_text(text)
    print(text)
