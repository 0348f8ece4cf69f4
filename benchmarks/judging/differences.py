"""How often all intervals of differences and ratios between groups hold at once, over simulated data."""

from functools import cache
from typing import NamedTuple

import numpy as np

from benchmarks.held_out.writing import CACHE, RESULTS, in_parts, markdown
from groupdro import Predictions, group_report

CONFIDENCE, N_BOOTSTRAP = 0.95, 500
VARIATION = 0.4  # standard deviation of the logarithms of group sizes
SHIFT = 0.5  # standard deviation of the groups' log-odds around what is predicted
LARGE = 400_000  # rows of a group from which its true values are computed
METRICS = ("log_loss", "accuracy", "recall", "roc_auc", "brier", "selection_rate", "actual_over_expected")
RATIOS = ("log_loss", "selection_rate", "actual_over_expected")


class Setting(NamedTuple):
    """One line of the table."""

    n_groups: int
    rows: int
    against: str


SETTINGS = [
    Setting(k, rows, against) for k in (3, 10) for rows in (100, 400) for against in ("every pair", "the largest")
]

HEADER = f"""\
# Differences and ratios between groups

How often all intervals of `GroupReport.differences` hold at once, of {{n_sets:,}} simulated data sets per line, at a
nominal {CONFIDENCE:.0%}. Groups have {{rows}} rows on average, and differ in size. The model's probabilities are right
for a typical group; those of each group are off by log-odds with a standard deviation of {SHIFT:g}. Differences are of
the groups that can be judged, if there are at least two. One standard error is {{error:.1f}} percentage points at 95%.

"""


def draw(shift: float, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and probabilities of a group."""
    score = rng.normal(-0.5, 1.0, n)
    return (rng.random(n) < 1.0 / (1.0 + np.exp(-score - shift))).astype(int), 1.0 / (1.0 + np.exp(-score))


@cache
def truth(n_groups: int) -> tuple[tuple[float, ...], dict[str, list[float]]]:
    """Return the shifts of the groups, and their true values of each metric."""
    rng = np.random.default_rng(n_groups)
    shifts = tuple(SHIFT * rng.standard_normal(n_groups))
    parts = [draw(shift, LARGE, rng) for shift in shifts]
    y, p = (np.concatenate(each) for each in zip(*parts, strict=True))
    groups = np.repeat(np.arange(n_groups), LARGE)
    report = group_report(Predictions(probability=p), y=y, groups=groups, metrics=METRICS, n_bootstrap=0)
    order = np.argsort(report.columns["group"])
    return shifts, {name: [report.columns[name][k] for k in order] for name in METRICS}


def simulate(setting: Setting, n_sets: int, seed: int = 0) -> dict[str, list[float]]:
    """Return for each metric how often all intervals hold, and the mean width of one."""
    shifts, true = truth(setting.n_groups)
    rng = np.random.default_rng([seed, SETTINGS.index(setting)])
    found: dict[str, list[list[float]]] = {}
    for _ in range(n_sets):
        sizes = np.rint(setting.rows * np.exp(VARIATION * rng.standard_normal(setting.n_groups))).astype(int)
        parts = [draw(shift, max(n, 30), rng) for shift, n in zip(shifts, sizes, strict=True)]
        y, p = (np.concatenate(each) for each in zip(*parts, strict=True))
        groups = np.repeat(np.arange(setting.n_groups), np.maximum(sizes, 30))
        report = group_report(
            Predictions(probability=p), y=y, groups=groups, metrics=METRICS, n_bootstrap=N_BOOTSTRAP,
            confidence=CONFIDENCE,
        )  # fmt: skip
        against = None if setting.against == "every pair" else int(sizes.argmax())
        for name, ratio in [*((name, False) for name in METRICS), *((name, True) for name in RATIOS)]:
            try:
                table = report.differences(name, against=against, ratio=ratio).columns
            except ValueError:  # the largest cannot be judged, or fewer than two
                continue
            both = zip(table["group"], table["against"], strict=True)
            values = [(true[name][i], true[name][j]) for i, j in both]
            right = np.array([a / b if ratio else a - b for a, b in values])
            low, high = np.array(table["low"]), np.array(table["high"])
            holds = bool(((low <= right) & (right <= high)).all())
            found.setdefault(name + (", ratio" if ratio else ""), []).append([holds, float(np.mean(high - low))])
    return {key: np.mean(values, axis=0).tolist() for key, values in found.items()}


def document(found: dict[Setting, dict[str, list[float]]], n_sets: int) -> str:
    """Return the page."""
    names = [*METRICS, *(f"{name}, ratio" for name in RATIOS)]
    rows = [[*setting, *(f"{one[name][0]:.1%}" for name in names)] for setting, one in found.items()]
    error = 100.0 * np.sqrt(CONFIDENCE * (1.0 - CONFIDENCE) / n_sets)
    kinds = " or ".join(map(str, sorted({setting.rows for setting in SETTINGS})))
    return HEADER.format(n_sets=n_sets, rows=kinds, error=error) + markdown(
        ["groups", "rows", "compared", *names], rows
    )


def differences(n_sets: int) -> None:
    found = in_parts(CACHE.parent / "judging" / "differences", dict.fromkeys(SETTINGS, n_sets), simulate)
    text = document(found, n_sets)
    (RESULTS / "judging_differences.md").write_text(text)
    print(text)
