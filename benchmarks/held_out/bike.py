"""The verdict of `compare` on the hourly rentals, with the hour among the columns and boosted trees beside."""

import numpy as np

import groupdro as gd
from benchmarks.held_out import problems
from benchmarks.held_out.models import trees
from benchmarks.held_out.splits import parts, split
from benchmarks.held_out.writing import write

_HEADER = """\
# The verdict on the hourly rentals

`compare` on the first split of the bike table, whole days held out, with the hour among the columns and scikit-learn's
HistGradientBoosting beside the linear models. Risk is half the squared error of a target of variance 1. Days are
resampled as a whole.

"""


def bike() -> None:
    table = problems.TABLES["bike"]()
    train, held_out = parts(table, *split(table, 0))
    found = gd.compare(
        train.X,
        train.y,
        train.groups,
        cluster=train.units,
        held_out=(held_out.X, held_out.y, held_out.groups, None, held_out.units),
        models={"boosted trees": trees(train, seed=0)},
    )
    shown = {key: [f"{value:.4g}" if isinstance(value, float) else value for value in values]
             for key, values in found.columns.items() if key not in ("seconds", "gap")}  # fmt: skip
    keys = list(shown)
    lines = [keys, ["---"] * len(keys), *np.array(list(shown.values()), dtype=object).T.tolist()]
    body = "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
    write("bike", f"{_HEADER}{body}\n{found.verdict}\n")
