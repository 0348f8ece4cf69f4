"""How often intervals for all groups at once hold, over simulated data whose risks are known."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.held_out.writing import markdown, write
from groupdro.data.grouping import Grouping, read_groups
from groupdro.evaluation.inference import falls_of_worst, simultaneous_intervals
from groupdro.evaluation.resampling import resample

CONFIDENCE = 0.95
TARGET = 0.93
N_SETS, N_BOOTSTRAP = 2000, 500
SIZES = (100, 30)  # effective rows per group, of the smallest group
COLUMNS = ("all groups", "most", "least", "percentile, all", "percentile, each", "half width")

Draw = Callable[[np.random.Generator, int], np.ndarray]


def squared_normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.square(rng.standard_normal(n))


def lognormal(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.exp(rng.standard_normal(n) - 0.5)


def log_loss(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return log losses of a calibrated model, whose margins are normal, scaled to a mean of 1."""
    margin = 1.5 * rng.standard_normal(n)
    right = rng.random(n) < 1.0 / (1.0 + np.exp(-margin))
    return np.logaddexp(0.0, np.where(right, -margin, margin)) / _LOG_LOSS


def _mean_log_loss(nodes: int = 200) -> float:
    """Return the mean of those losses by quadrature: the entropy of the probability, averaged over margins."""
    z, weight = np.polynomial.hermite_e.hermegauss(nodes)
    margin = 1.5 * z
    p = 1.0 / (1.0 + np.exp(-margin))
    entropy = p * np.logaddexp(0.0, -margin) + (1.0 - p) * np.logaddexp(0.0, margin)
    return float(weight @ entropy / weight.sum())


_LOG_LOSS = _mean_log_loss()


def errors(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return zero-one losses of a model that is wrong on a fifth of the rows."""
    return (rng.random(n) < 0.2).astype(np.float64)


def rare_errors(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return zero-one losses of a model that is wrong on 3% of the rows."""
    return (rng.random(n) < 0.03).astype(np.float64)


MEANS = {errors: 0.2, rare_errors: 0.03}  # all others have a mean of 1


class Setting(NamedTuple):
    """Groups of independent units."""

    name: str
    n_groups: int
    draw: Draw
    rows_per_unit: int = 1
    weighted: bool = False
    unequal: bool = False


SETTINGS = (
    Setting("3 groups, squared normal", 3, squared_normal),
    Setting("10 groups, squared normal", 10, squared_normal),
    Setting("50 groups, squared normal", 50, squared_normal),
    Setting("10 groups, log loss", 10, log_loss),
    Setting("10 groups, zero-one loss", 10, errors),
    Setting("10 groups, zero-one loss, few errors", 10, rare_errors),
    Setting("10 groups, lognormal", 10, lognormal),
    Setting("10 groups, squared normal, the smallest twice as hard", 10, squared_normal, unequal=True),
    Setting("10 groups, squared normal, clusters of 4 rows", 10, squared_normal, rows_per_unit=4),
    Setting("10 groups, squared normal, weights", 10, squared_normal, weighted=True),
)
_SHAPE = 2.0  # of the gamma weights: 1.5 rows are worth one

HEADER = f"""\
# Coverage of simultaneous intervals

How often the intervals hold, of {N_SETS:,} simulated data sets per line, at a nominal {CONFIDENCE:.0%} with
{N_BOOTSTRAP} resamples. "All groups": `simultaneous_intervals` cover the risks of all groups. "Most": no group's risk
exceeds `most`. "Least": the largest risk is at least `least`. For comparison, percentile intervals of a separate
bootstrap per group: how often they cover all groups together, and each of them. They know neither of clusters nor of
weights. In brackets the standard error in percentage points (at most that, for "each"). "Half width": of the
simultaneous intervals, as a share of the group's risk, on average.

All groups have the same risk and the same number of effective rows, but in the setting whose smallest group has twice
the risk of the others, which have up to four times its rows. Rows of a cluster share a factor. With {SIZES[0]}
effective rows the target is {TARGET:.0%} for each of the first three columns; with {SIZES[1]} there is none.

"""


FALL_COLUMNS = ("`falls_of_worst`", "percentiles of resampled falls")
COMPETING = (
    ("one is clearly the worst", (1.0, 0.5, 0.5, 0.5), (0.9, 0.5, 0.5, 0.5)),
    ("all tie after", (1.0, 0.8, 0.8, 0.8), (0.85, 0.85, 0.85, 0.85)),
    ("all tie before", (0.9, 0.9, 0.9, 0.9), (1.0, 0.7, 0.7, 0.7)),
    ("another is the worst after", (1.0, 0.98, 0.7, 0.5), (0.9, 0.95, 0.7, 0.5)),
)
FALLS = f"""\
## Falls of the worst risk

How often the interval of the fall of the worst of four groups' risks, from one model to another, holds: {N_SETS:,} data
sets with 100 rows a group. Beside it the percentiles of resampled falls, which go wrong where groups compete for the
worst.

"""


def truth(setting: Setting) -> np.ndarray:
    """Return the risk of each group."""
    return MEANS.get(setting.draw, 1.0) * _scales(setting)


def _scales(setting: Setting) -> np.ndarray:
    scales = np.ones(setting.n_groups)
    if setting.unequal:
        scales[-1] = 2.0
    return scales


def units_of(setting: Setting, size: int) -> np.ndarray:
    """Return the number of independent units of each group."""
    each = round(size * (1.0 + 1.0 / _SHAPE)) if setting.weighted else size
    factors = np.linspace(4.0, 1.0, setting.n_groups) if setting.unequal else np.ones(setting.n_groups)
    return np.round(each * factors).astype(np.int64)


def simulate(
    setting: Setting, size: int, n_sets: int = N_SETS, n_bootstrap: int = N_BOOTSTRAP, seed: int = 0
) -> np.ndarray:
    """Return the shares of data sets in which the intervals hold, in the order of COLUMNS."""
    risks, units = truth(setting), units_of(setting, size)
    n_units, k = int(units.sum()), setting.rows_per_unit
    groups = np.repeat(np.arange(setting.n_groups), units * k)
    grouping = read_groups(groups, len(groups))
    clusters = None if k == 1 else np.arange(len(groups)) // k
    rng = np.random.default_rng([seed, size])
    held = np.zeros(len(COLUMNS))
    for number in range(n_sets):
        losses = setting.draw(rng, n_units) if k == 1 else np.repeat(setting.draw(rng, n_units), k)
        if k > 1:
            losses *= rng.gamma(1.0, 1.0, len(losses))
        losses *= _scales(setting)[groups]
        weights = rng.gamma(_SHAPE, 1.0, len(losses)) if setting.weighted else None
        held += _held(losses, grouping, risks, clusters, weights, n_bootstrap, number, rng)
    return held / n_sets


def percentile_interval(values: np.ndarray, n_bootstrap: int, rng: np.random.Generator) -> np.ndarray:
    """Return the percentile interval of a mean, by resampling the rows."""
    n = len(values)
    means = values[rng.integers(0, n, size=(n_bootstrap, n))].mean(axis=1)
    return np.quantile(means, [0.5 * (1.0 - CONFIDENCE), 0.5 * (1.0 + CONFIDENCE)])


def _held(
    losses: np.ndarray,
    grouping: Grouping,
    risks: np.ndarray,
    clusters: Any,
    weights: Any,
    n_bootstrap: int,
    seed: int,
    rng: np.random.Generator,
) -> np.ndarray:
    found = resample(losses[:, None], grouping, n_bootstrap=n_bootstrap, seed=seed, clusters=clusters, weights=weights)
    together = simultaneous_intervals(found, CONFIDENCE)
    each = np.array([percentile_interval(losses[grouping.rows_of(i)], n_bootstrap, rng) for i in range(len(risks))])
    covered = (each[:, 0] <= risks) & (risks <= each[:, 1])
    return np.array([
        ((together.low <= risks) & (risks <= together.high)).all(),
        risks.max() <= together.most,
        risks.max() >= together.least,
        covered.all(),
        covered.mean(),
        np.mean(0.5 * (together.high - together.low) / risks),
    ], dtype=np.float64)  # fmt: skip


def falls(before: Sequence[float], after: Sequence[float], n_sets: int = N_SETS, size: int = 100) -> np.ndarray:
    """Return how often the fall of the worst risk is covered, by `falls_of_worst` and by percentiles of resamples.

    Losses are exponential with the given means in each group, and for nine rows in ten the same draw under both models.
    """
    groups = np.repeat(np.arange(len(before)), size)
    grouping, scales = read_groups(groups, len(groups)), np.array([before, after])[:, groups]
    rng, held, fall = np.random.default_rng(0), np.zeros(2), max(before) - max(after)
    for number in range(n_sets):
        first, other = rng.exponential(size=(2, len(groups)))
        both = scales * np.array([first, np.where(rng.random(len(groups)) < 0.9, first, other)])
        found = resample(both.T, grouping, n_bootstrap=N_BOOTSTRAP, seed=number)
        ends = falls_of_worst(found, CONFIDENCE, against=0, groups=np.ones(len(before), dtype=bool))
        worst = found.resampled_means.max(axis=1)
        low, high = np.quantile(worst[:, 0] - worst[:, 1], [0.5 * (1.0 - CONFIDENCE), 0.5 * (1.0 + CONFIDENCE)])
        held += [ends.low[1] <= fall <= ends.high[1], low <= fall <= high]
    return held / n_sets


def _share(share: float) -> str:
    return f"{share:.1%} ({100 * np.sqrt(share * (1.0 - share) / N_SETS):.1f})"


def coverage() -> None:
    text = HEADER
    for size in SIZES:
        rows = []
        for setting in SETTINGS:
            begun = time.perf_counter()
            shares = simulate(setting, size)
            *shares, width = shares
            rows.append([setting.name, *map(_share, shares), f"{width:.0%}"])
            print(size, rows[-1], f"{time.perf_counter() - begun:.0f} s", flush=True)
        text += f"## {size} effective rows\n\n{markdown(['setting', *COLUMNS], rows)}\n"
    text += FALLS
    rows = [[name, *map(_share, falls(before, after))] for name, before, after in COMPETING]
    text += f"{markdown(['groups', *FALL_COLUMNS], rows)}\n"
    write("coverage", text.rstrip() + "\n")
