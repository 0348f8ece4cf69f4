"""What the cross-validated choice costs as a multiple of one fit."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import groupdro as gd
from benchmarks.held_out import problems
from benchmarks.held_out.writing import best_times, markdown, write
from groupdro.estimators.base import GroupDROEstimator

ROUNDS, SECONDS = 5, 300.0
_HEADER = """\
# Cost of the cross-validated choice

`GroupDROClassifierCV` at its defaults, {alphas} penalties x {blends} values of robustness x {folds} folds, on all
{rows:,} rows of Adult, against one `GroupDROClassifier().fit`: the best of several, in turns, on one thread. Passes are
readings of all rows; one over the training part of a fold counts as its share of them.

"""


@contextmanager
def counted_passes(n_rows: int) -> Iterator[list[float]]:
    """Count the solves of estimators, and their passes as readings of all rows."""
    found = [0.0, 0.0]
    solve = GroupDROEstimator._solve

    def counting(self: Any, task: Any, *args: Any, **options: Any) -> Any:
        outcome = solve(self, task, *args, **options)
        found[0] += 1.0
        found[1] += outcome.result.passes * task.data.n_rows / n_rows
        return outcome

    GroupDROEstimator._solve = counting
    try:
        yield found
    finally:
        GroupDROEstimator._solve = solve


def measure(
    table: problems.Table, rounds: int = ROUNDS, seconds: float = SECONDS
) -> tuple[Any, list[list[Any]], float]:
    """Return the fitted search, a line per way with seconds, fits and passes, and the ratio of the times."""
    X = problems.design(table, np.arange(table.n_rows))
    few = np.random.default_rng(0).choice(table.n_rows, min(500, table.n_rows), replace=False)
    search = gd.GroupDROClassifierCV()
    ways = {
        "one fit": lambda: gd.GroupDROClassifier().fit(X, table.y, groups=table.groups),
        "cross-validated": lambda: search.fit(X, table.y, groups=table.groups),
    }
    gd.GroupDROClassifierCV(cv=2).fit(X[few], table.y[few], groups=np.arange(len(few)) % 2)  # compiles
    counts = {}
    for name, way in ways.items():
        with counted_passes(table.n_rows) as found:
            way()
        counts[name] = found
    times = best_times(ways, rounds, seconds)
    rows = [[name, f"{times[name]:.2f}", f"{counts[name][0]:.0f}", f"{counts[name][1]:.0f}"] for name in ways]
    return search, rows, times["cross-validated"] / times["one fit"]


def cv_cost() -> None:
    table = problems.adult()
    search, rows, ratio = measure(table)
    head = _HEADER.format(
        alphas=len(search.alphas), blends=len(search.robustness), folds=search.n_splits_, rows=table.n_rows
    )
    write("cv_cost", f"{head}{markdown(['way', 's', 'fits', 'passes'], rows)}\nTimes one fit: {ratio:.1f}.\n")
