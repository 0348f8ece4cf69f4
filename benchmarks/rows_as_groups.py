"""Fits where every row is a group: certified to 1%, compared with the cost of a plain fit.

    GROUPDRO_DATA=... python -m benchmarks.rows_as_groups

Writes results/rows_as_groups.md. Times are CPU seconds, the least of several runs in turns with the plain fit.
"""

import time
import warnings
from pathlib import Path

import numpy as np

from benchmarks.between.tables import markdown
from benchmarks.held_out import problems
from groupdro import GroupDROClassifier

RECORD = Path(__file__).parent / "results" / "rows_as_groups.md"
SHARES, TOL, REPEATS, GOAL = (0.5, 0.2, 0.1), 1e-2, 3, 10.0

Rows = tuple[np.ndarray, np.ndarray]


def normal_rows() -> Rows:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 10))
    return X, X @ rng.normal(size=10) + rng.logistic(size=len(X)) > 0


def adult() -> Rows:
    table = problems.adult()
    return problems.design(table, np.arange(table.n_rows)), table.y


def timed(model: GroupDROClassifier, X: np.ndarray, y: np.ndarray, groups: np.ndarray) -> float:
    begun = time.process_time()
    model.fit(X, y, groups=groups)
    return time.process_time() - begun


def measure(name: str, rows: Rows) -> list[list[str]]:
    """Return the lines of one data set."""
    X, y = rows
    plain = GroupDROClassifier(robustness=0.0)
    tails = {share: GroupDROClassifier(worst_share=share, tol=TOL) for share in SHARES}
    seconds: dict[float, list[float]] = {1.0: [], **{share: [] for share in SHARES}}
    for repeat in range(REPEATS + 1):
        found = {1.0: timed(plain, X, y, np.zeros(len(y)))}
        found |= {share: timed(model, X, y, np.arange(len(y))) for share, model in tails.items()}
        if repeat:  # the first one compiles
            for share, spent in found.items():
                seconds[share].append(spent)
    base = min(seconds[1.0])
    table = []
    for share, model in tails.items():
        gap = model.gap_ / abs(model.upper_bound_)
        ratio = min(seconds[share]) / base
        table.append([name, f"{share:g}", model.status_, f"{model.upper_bound_:.5f}",
                      f"{model.lower_bound_:.5f}", f"{gap:.2%}", f"{model.n_passes_:.0f}", f"{ratio:.1f}"])  # fmt: skip
        print(table[-1], flush=True)
    return table


def main() -> None:
    table = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, rows in (("normal", normal_rows()), ("Adult", adult())):
            table += measure(f"{name}, {rows[0].shape[0]:,} x {rows[0].shape[1]}", rows)
    columns = [
        "data",
        "worst share",
        "status",
        "upper bound",
        "lower bound",
        "gap",
        "passes",
        "cost of a plain fit",
    ]
    text = f"""\
# Every row a group

`GroupDROClassifier(worst_share=..., tol={TOL:g})` with every row as a group, which minimises the average loss of that
share of the rows: CPU seconds in multiples of a plain fit (`robustness=0`) of the same rows at its default tolerance,
the least of {REPEATS} runs of each in turns. The goal is at most {GOAL:g}. An upper
bound of 0.69315 is the loss of a coin flip: no linear model does better on the worst rows, and the fit warns of it.

{markdown(columns, table)}"""
    RECORD.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
