"""Other searches on the same rows: SliceLine, pysubgroup, and the worst leaf of a shallow tree."""

import time
from collections.abc import Callable

import numpy as np
import pandas as pd
from sklearn.tree import DecisionTreeRegressor

import groupdro as gd
from benchmarks.find_groups.chance import PLANTS, members, overlap
from benchmarks.find_groups.simulated import Rows, null, planted
from benchmarks.find_groups.writing import markdown, write

_LEAST = 0.02  # share of the rows that a group of the rivals needs
_BINS = 16  # of numbers, as quantiles
_BINS_SLICELINE = 5
_ALPHA = (
    0.99  # weight that SliceLine gives to a slice's loss; with 0.95, twice the loss does not make up for 5% of rows
)


def ours(rows: Rows, seed: int) -> list[np.ndarray]:
    return members(gd.find_groups(**rows.arguments, random_state=seed), rows)


def tree(rows: Rows, seed: int) -> list[np.ndarray]:
    """Return the leaf with the largest mean loss."""
    X = pd.get_dummies(rows.columns)
    fitted = DecisionTreeRegressor(max_depth=3, min_samples_leaf=_LEAST, random_state=seed).fit(X, rows.losses)
    leaves = fitted.predict(X)
    return [leaves == leaves.max()] if leaves.max() > leaves.min() else []


def sliceline(rows: Rows, seed: int) -> list[np.ndarray]:
    """Return the best slice of SliceLine, with numbers in bins: it takes categories only."""
    from sliceline import Slicefinder

    del seed
    codes = [
        pd.qcut(column, _BINS_SLICELINE, labels=False)
        if pd.api.types.is_numeric_dtype(column)
        else pd.factorize(column)[0]
        for _, column in rows.columns.items()
    ]
    values = np.column_stack(codes) + 1
    finder = Slicefinder(alpha=_ALPHA, k=1, max_l=3, min_sup=int(_LEAST * len(values)), verbose=False)
    finder.fit(values, rows.losses)
    if not len(finder.top_slices_):
        return []
    inside = np.ones(len(values), dtype=bool)
    for j, value in enumerate(finder.top_slices_[0]):
        inside &= value is None or values[:, j] == value
    return [inside]


def subgroups(rows: Rows, seed: int) -> list[np.ndarray]:
    """Return the best subgroup of pysubgroup's beam search."""
    import pysubgroup as ps

    del seed
    frame = rows.columns.assign(loss=rows.losses)
    space = ps.create_selectors(frame, nbins=_BINS, intervals_only=False, ignore=["loss"])
    task = ps.SubgroupDiscoveryTask(
        frame, ps.NumericTarget("loss"), space, result_set_size=1, depth=3, qf=ps.StandardQFNumeric(0.5)
    )
    found = ps.BeamSearch(beam_width=20).execute(task).to_descriptions()
    return [np.asarray(rule.covers(frame)) for _, rule, *_ in found]


SEARCHES: dict[str, Callable[[Rows, int], list[np.ndarray]]] = {
    "find_groups": ours,
    "SliceLine": sliceline,
    "pysubgroup": subgroups,
    "worst leaf of a tree": tree,
}


def rivals(n: int) -> None:
    """Compare the searches on planted groups and on rows without any."""
    table = []
    for name, search in SEARCHES.items():
        cells: list[str] = []
        begun = time.process_time()
        for share, plant in (
            (0.05, "one category and one number"),
            (0.05, "two numbers and one category"),
            (0.1, "one number"),
        ):
            overlaps = []
            for k in range(n):
                rows = planted("exponential", 4_000, 8, k, conditions=PLANTS[plant](share), effect=2.0)
                overlaps.append(max((overlap(one, rows.inside) for one in search(rows, k)), default=0.0))
            cells.append(f"{np.mean(np.array(overlaps) >= 0.7):.0%} ({np.median(overlaps):.2f})")
        seconds = (time.process_time() - begun) / (3 * n)
        reports = sum(len(search(null("skewed", 4_000, 8, k), k)) > 0 for k in range(n))
        table.append([name, *cells, f"{reports / n:.0%}", f"{seconds:.2f}"])
    columns = ["search", "5%, two conditions", "5%, three conditions", "10%, one condition", "reports without a group"]
    write(
        "rivals",
        f"# Searches on the same rows\n\n{n} data sets of 4,000 rows, six numbers and two categories: share of data "
        "sets on which a reported group has an overlap of at least 0.7 with the planted one (and the median overlap); "
        "share of data sets without any group on which something is reported; and CPU seconds per search. The rivals "
        f"return their best group of at least {_LEAST:.0%} of the rows, and do not say whether it is chance. They get "
        f"{_BINS - 1} cuts of each number; SliceLine, which takes categories only, gets {_BINS_SLICELINE} bins, "
        "because with a column per cut it took minutes.\n\n" + markdown([*columns, "CPU seconds"], table),
    )
