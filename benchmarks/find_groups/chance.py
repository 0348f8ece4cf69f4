"""How often chance is reported, how often planted groups are found, and whether lower bounds hold."""

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

import groupdro as gd
from benchmarks.find_groups.simulated import LOSSES, TAILS, Rows, null, planted
from benchmarks.find_groups.simulated import tails as skewed
from benchmarks.find_groups.writing import markdown, write

_COLUMNS = 5, 20, 60
_ROWS = 1_000, 4_000, 20_000
# Shares of the rows that a group has, as a function of the share that it should have.
PLANTS: dict[str, Any] = {
    "one number": lambda share: [("x0", ">", share)],
    "one category and one number": lambda share: [("c1", "=", "r"), ("x0", ">", 4.0 * share)],
    "two numbers": lambda share: [("x0", ">", np.sqrt(share)), ("x1", "<", np.sqrt(share))],
    "two numbers and one category": lambda share: [
        ("c1", "=", "r"),
        ("x0", ">", 2.0 * np.sqrt(share)),
        ("x1", "<", 2.0 * np.sqrt(share)),
    ],
    "two categories and one number": lambda share: [("c0", "=", "q"), ("c1", "=", "r"), ("x0", ">", 16.0 * share)],
}
# Kinds of losses, how much larger those of the planted group are, and how many times as many data sets: twice as many
# errors where 5% of the rows have one are seldom found.
COVERED = [(kind, 1.2 if kind == "zero-one 80%" else 2.0, 10 if kind == "zero-one 5%" else 1) for kind in LOSSES]
COVERED += [("zero-one 5%", 4.0, 1)]
_FRESH = 200_000


def overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Return intersection over union."""
    return float((first & second).sum() / max((first | second).sum(), 1))


def members(found: gd.FoundGroups, rows: Rows) -> list[np.ndarray]:
    """Return the rows of each group that was found."""
    return [*found.groups(rows.columns).to_numpy().T[: len(found)]]


def nulls(n: int) -> None:
    """Count the data sets without any group on which something is reported."""
    reported: Counter[Any] = Counter()
    tried: Counter[Any] = Counter()
    cells = list(product(LOSSES, _COLUMNS, _ROWS))
    for k in range(n):
        kind, n_columns, n_rows = cells[k % len(cells)]
        rows = null(kind, n_rows, n_columns, seed=k)
        found = gd.find_groups(**rows.arguments, random_state=k)
        for key in (kind, f"{n_columns} columns", f"{n_rows:,} rows", "all"):
            tried[key] += 1
            reported[key] += len(found) > 0
    table = [[key, tried[key], reported[key], f"{reported[key] / tried[key]:.1%}"] for key in tried]
    table.sort(key=lambda row: row[0] == "all")
    write(
        "nulls",
        f"# Data without any group\n\n{n:,} simulated data sets whose losses have nothing to do with the columns. At "
        "most 5% of them may report a group.\n\n"
        + markdown(["data sets", "number", "something reported", "share"], table),
    )


def tails(n: int) -> None:
    """Count the data sets whose losses differ in skewness only on which something is reported."""
    table = []
    for side in TAILS:
        cells = list(product((1_000, 4_000), (0.1, 0.3, 0.5)))
        reported = dict.fromkeys(cells, 0)
        for k in range(n):
            rows = skewed(side, *cells[k % len(cells)], seed=k)
            reported[cells[k % len(cells)]] += len(gd.find_groups(**rows.arguments, random_state=k)) > 0
        total = sum(reported.values())
        each = [f"{count}" for count in reported.values()]
        table.append([side, n, *each, total, f"{total / n:.1%}"])
    names = [f"{size:,} rows, {share:.0%}" for size, share in cells]
    write(
        "tails",
        "# Groups that differ in skewness only\n\nSimulated data sets whose losses have the mean 1 everywhere, and a "
        "lognormal tail to the left or to the right in a share of the rows, which a column describes. At most 5% of "
        "them may report a group.\n\n" + markdown(["tail", "data sets", *names, "something reported", "share"], table),
    )


def miscalibration(n: int) -> None:
    """Count reports on calibrated probabilities, and how often planted miscalibration is found."""
    table = []
    for name, share, shift in (("none", 0.0, 0.0), ("too low", 0.05, 1.5), ("too high", 0.05, -1.5)):
        reported = hits = 0
        for k in range(n if share == 0.0 else n // 10):
            rng = np.random.default_rng([k, 5])
            frame = pd.DataFrame({f"x{j}": rng.normal(size=4_000) for j in range(6)})
            frame["kind"] = rng.choice(["p", "q"], 4_000)
            odds = frame["x1"].to_numpy() + rng.normal(size=4_000) - 0.5
            edge = np.quantile(frame["x0"], 1.0 - 2.0 * share)
            inside = (frame["kind"] == "q").to_numpy() & (frame["x0"] > edge).to_numpy()
            y = (rng.random(4_000) < expit(odds + shift * inside)).astype(int)
            model = gd.Predictions(probability=expit(odds))
            found = gd.find_groups(model, y=y, columns=frame, metrics="miscalibration", random_state=k)
            reported += len(found) > 0
            near = [np.asarray(one, dtype=bool) for one in found.groups(frame).to_numpy().T[: len(found)]]
            hits += any(overlap(one, inside) >= 0.5 for one in near)
        tried = n if share == 0.0 else n // 10
        table.append([name, f"{share:.0%}", tried, reported, "" if share == 0.0 else hits])
    write(
        "miscalibration",
        "# Groups whose probabilities are wrong\n\n4,000 rows, six numbers and a category; probabilities are right but "
        "for log-odds off by 1.5 in a planted group. At most 5% of the data sets without any may report a group. "
        "Found means an overlap (intersection over union) of at least a half.\n\n"
        + markdown(["planted", "share of rows", "data sets", "something reported", "found"], table),
    )


def find_planted(n: int) -> None:
    """Count how often a planted group is found."""
    table = []
    for share, (name, plant) in product((0.05, 0.1), PLANTS.items()):
        if name.startswith("two categories") and share > 1 / 16:
            continue
        hits, best, extra = 0, [], 0
        for k in range(n):
            rows = planted("exponential", 4_000, 8, k, conditions=plant(share), effect=2.0)
            found = gd.find_groups(**rows.arguments, random_state=k)
            overlaps = [overlap(one, rows.inside) for one in members(found, rows)]
            best.append(max(overlaps, default=0.0))
            hits += best[-1] >= 0.7
            extra += len(found)
        table.append([f"{share:.0%}", name, hits, n, f"{np.median(best):.2f}", f"{extra / n:.1f}"])
    write(
        "planted",
        "# Planted groups\n\n4,000 rows, six numbers and two categories, exponential losses, on average twice as large "
        "in the group. Found means that a reported group has an overlap (intersection over union) of at least 0.7 with "
        "it.\n\n" + markdown(["share", "conditions", "found", "of", "median overlap", "groups reported"], table),
    )


def coverage(n: int) -> None:
    """Count how often all reported lower bounds hold on fresh rows."""
    table, everything = [], np.zeros(5, dtype=int)
    for kind, effect, times in COVERED:
        plant = PLANTS["one category and one number"](0.1)
        fresh = [planted(kind, _FRESH, 8, 10**6 + k, conditions=plant, effect=effect) for k in range(10)]
        counts = np.zeros(5, dtype=int)
        for k in range(n * times):
            rows = planted(kind, 4_000, 8, k, conditions=plant, effect=effect)
            found = gd.find_groups(**rows.arguments, random_state=k)
            held = list(_held(found, fresh[k % 10]))
            counts += [1, len(held) > 0, len(held) > 0 and all(held), len(held), sum(held)]
        everything += counts
        table.append([kind, f"{effect:g}", *_shares(counts)])
    table.append(["all", "", *_shares(everything)])
    columns = [
        "losses",
        "times",
        "data sets",
        "with findings",
        "of these, all bounds hold",
        "of all data sets",
        "bounds",
    ]
    write(
        "coverage",
        "# Lower bounds on fresh rows\n\nData sets of 4,000 rows with a planted group of a tenth of the rows, whose "
        "mean loss is larger by a factor. A bound holds if the difference is at least as large on "
        f"{_FRESH:,} new rows. Data sets without a finding count as holding among all data sets.\n\n"
        + markdown([*columns, "of these hold"], table),
    )


def _held(found: gd.FoundGroups, fresh: Rows) -> Iterator[bool]:
    weights = np.ones(len(fresh.losses)) if fresh.weights is None else fresh.weights
    for bound, inside in zip(found.columns["at_least"], members(found, fresh), strict=True):
        means = [np.average(fresh.losses[part], weights=weights[part]) for part in (inside, ~inside)]
        yield bool(means[0] - means[1] >= bound)


def _shares(counts: np.ndarray) -> list[str]:
    sets, findings, held, bounds, each = counts.tolist()
    shares = f"{held / max(findings, 1):.1%}", f"{1.0 - (findings - held) / max(sets, 1):.1%}"
    return [f"{sets}", f"{findings}", *shares, f"{bounds}", f"{each / max(bounds, 1):.1%}"]
