"""Average and worst risk of seven models on held-out rows of twelve tables, and what can be said of them."""

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.held_out import problems
from benchmarks.held_out.intervals import CONFIDENCE, Difference, corrected_interval
from benchmarks.held_out.models import CHOSEN, GDRO, MODELS, PLAIN, TREES
from benchmarks.held_out.splits import FEWEST, HELD_OUT, N_SPLITS, run_table
from benchmarks.held_out.writing import CACHE, RESULTS, markdown, several, signed, write

STORED = RESULTS / "held_out_tables.csv"
SIZES = RESULTS / "held_out_sizes.csv"
WITHIN = 0.01  # of plain training's average, within which the choice should stay where it gains nothing
_COLUMNS = ("table", "split", "model", "plain_alpha", "alpha", "robustness", "mean", "worst", "worst_group")
_SIZES = ("table", "rows", "columns", "groups", "judged", "n_train", "n_held_out", "note")
_HEADER = f"""\
# Held-out risks of real tables

Twelve public tables, one of them with two sets of groups: 13 problems. {N_SPLITS} random splits each, {HELD_OUT:.0%}
held out, stratified by group and label. Log loss, or the squared residual of a target of variance 1: the average over
all held-out rows, and the worst of the groups with at least {FEWEST} of them. The columns that define the groups are
features. All linear models have the penalty that cross-validation on the training part finds for plain training; only
the CV choice may take another. Boosted trees are scikit-learn's HistGradientBoosting at its defaults, on the same
columns. Differences are to plain training on the same split, averaged over splits. Their intervals use Nadeau and
Bengio's corrected resampled t, which allows for splits that overlap, with Bonferroni's correction over the
{len(MODELS) - 1} models of a problem: {CONFIDENCE:.0%} for all of them together. **Bold** differences are significant.

"""


def tables(cache: Path = CACHE, only: Sequence[str] = ()) -> None:
    """Run all tables, or some; the documents are written once all are there."""
    rows: list[list[Any]] = []
    sizes: list[list[Any]] = []
    for key, make in problems.TABLES.items():
        if only and key not in only:
            continue
        table = make()
        found = run_table(key, table, cache)
        first = found[0]
        sizes.append([table.name, *(first[name] for name in _SIZES[1:-1]), table.note])
        for one in found:
            for model, values in one["models"].items():
                own = (one["alpha"], one["robustness"]) if model == CHOSEN else ("", "")
                risks = f"{values['mean']:.8g}", f"{values['worst']:.8g}"
                rows.append([table.name, one["split"], model, one["plain_alpha"], *own, *risks, values["worst_group"]])
    if only:
        print(f"Ran {several(only)}; the documents are written by a run of all tables.")
        return
    for path, columns, body in ((STORED, _COLUMNS, rows), (SIZES, _SIZES, sizes)):
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([columns, *body])
    write("tables", document(read(STORED), read(SIZES)))


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Compared:
    """The risks of all models on the splits of one table, and their differences to plain training."""

    def __init__(self, rows: Iterable[dict[str, str]], size: dict[str, str]):
        rows = list(rows)
        self.size = size
        self.risks = {
            (model, kind): np.array([float(row[kind]) for row in rows if row["model"] == model])
            for model in MODELS
            for kind in ("mean", "worst")
        }
        self.robustness = Counter(float(row["robustness"]) for row in rows if row["model"] == CHOSEN)
        self.groups = {model: Counter(row["worst_group"] for row in rows if row["model"] == model) for model in MODELS}

    def difference(self, model: str, kind: str) -> Difference:
        """Return the difference to plain training, with an interval that holds for all models of the table."""
        found = self.risks[model, kind] - self.risks[PLAIN, kind]
        n_train, n_held_out = float(self.size["n_train"]), float(self.size["n_held_out"])
        return corrected_interval(found, n_train, n_held_out, len(MODELS) - 1)

    @property
    def mean_change(self) -> float:
        """The change of the average under the CV choice, relative to plain training's."""
        return float(self.risks[CHOSEN, "mean"].mean() / self.risks[PLAIN, "mean"].mean() - 1.0)

    @property
    def least_worst(self) -> str:
        """The model whose worst risk is least on average."""
        return min(MODELS, key=lambda model: float(self.risks[model, "worst"].mean()))

    @property
    def departures(self) -> int:
        """The number of splits on which the CV choice is not plain training."""
        return sum(count for robustness, count in self.robustness.items() if robustness > 0)


def compare(rows: list[dict[str, str]], sizes: list[dict[str, str]]) -> dict[str, Compared]:
    return {size["table"]: Compared((row for row in rows if row["table"] == size["table"]), size) for size in sizes}


def names_by_verdict(found: dict[str, Compared], model: str, kind: str, verdict: str) -> list[str]:
    return [name for name, one in found.items() if one.difference(model, kind).verdict == verdict]


def costly(found: dict[str, Compared]) -> list[str]:
    """Return where the CV choice has no significant gain, and yet changes the average by more than 1%."""
    gains = names_by_verdict(found, CHOSEN, "worst", "below")
    return [name for name, one in found.items() if name not in gains and one.mean_change > WITHIN]


def document(rows: list[dict[str, str]], sizes: list[dict[str, str]]) -> str:
    found = compare(rows, sizes)
    return f"{_HEADER}{_summary(found)}{_verdicts(found)}{_risks(found)}{_sizes(found)}"


def _counted(names: list[str], n: int) -> str:
    return f"{len(names)} of {n}" + (f" ({several(names)})" if names else "")


def _summary(found: dict[str, Compared]) -> str:
    """Count the verdicts, losses first."""
    n, others = len(found), [model for model in MODELS if model not in (PLAIN, CHOSEN)]
    losses = [
        f"- {model}: worst risk significantly above plain training's on "
        f"{_counted(names_by_verdict(found, model, 'worst', 'above'), n)}."
        for model in (CHOSEN, *others)
    ]
    losses.append(f"- {CHOSEN}: average more than {WITHIN:.0%} above without a significant gain on "
                  f"{_counted(costly(found), n)}.")  # fmt: skip
    losses += [
        f"- {model}: average risk significantly above plain training's on "
        f"{_counted(names_by_verdict(found, model, 'mean', 'above'), n)}."
        for model in (CHOSEN, GDRO)
    ]
    best = [name for name, one in found.items() if one.least_worst == TREES]
    losses.append(f"- {TREES}: the least worst risk of all models, on average, on {_counted(best, n)}.")
    gains = [
        f"- {model}: worst risk significantly below plain training's on "
        f"{_counted(names_by_verdict(found, model, 'worst', 'below'), n)}."
        for model in (CHOSEN, *others)
    ]
    kept = [name for name, one in found.items() if one.departures == 0]
    gains.append(f"- {CHOSEN}: plain training kept on all {N_SPLITS} splits of {_counted(kept, n)}.")
    return "\n".join(["## Where it loses\n", *losses, "\n## Where it gains\n", *gains, "\n"])


def _verdicts(found: dict[str, Compared]) -> str:
    rows = []
    for name, one in found.items():
        cells = [
            f"{signed(d.mean)} ({signed(d.low)} to {signed(d.high)}) {d.verdict}"
            for d in (one.difference(model, "worst") for model in (CHOSEN, GDRO))
        ]
        within = "yes" if abs(one.mean_change) <= WITHIN else "no"
        chosen = ", ".join(f"{robustness:g} ({count})" for robustness, count in sorted(one.robustness.items()))
        rows.append([name, *cells, f"{one.mean_change:+.2%}", within, chosen])
    columns = ["table", f"worst risk, {CHOSEN} - plain", f"worst risk, {GDRO} - plain", f"average, {CHOSEN}",
               "within 1%", "robustness chosen (splits)"]  # fmt: skip
    text = '"Above" is significantly worse than plain training, "below" significantly better, "open" neither.'
    return f"## Verdicts\n\n{text}\n\n{markdown(columns, rows)}\n"


def _risks(found: dict[str, Compared]) -> str:
    parts = []
    for kind, title in (("worst", "Worst risk"), ("mean", "Average risk")):
        rows = []
        for name, one in found.items():
            cells = [f"{one.risks[PLAIN, kind].mean():.4f}"]
            for model in MODELS[1:]:
                difference = one.difference(model, kind)
                mark = "" if difference.verdict == "open" else "**"
                cells.append(f"{mark}{signed(difference.mean)}{mark}")
            rows.append([name, *cells])
        parts.append(f"## {title}\n\nOf plain training, and what other models add to it.\n\n")
        parts.append(f"{markdown(['table', *MODELS], rows)}\n")
    return "".join(parts)


def _sizes(found: dict[str, Compared]) -> str:
    rows = [
        [
            name,
            *(f"{int(one.size[key]):,}" for key in ("rows", "columns", "groups", "judged")),
            several(sorted(one.groups[PLAIN], key=lambda group, one=one: -one.groups[PLAIN][group])[:2]),
            one.size["note"],
        ]
        for name, one in found.items()
    ]
    columns = ["table", "rows", "columns", "groups", "judged", "worst groups, plain", "rows used"]
    return f"## Tables\n\n{markdown(columns, rows)}"
