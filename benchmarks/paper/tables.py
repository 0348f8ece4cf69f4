"""Tables of the page, as lines of Markdown, from the stored files alone."""

import json
from collections import Counter

import numpy as np
import pandas as pd

from benchmarks.paper.analysis import BUDGETS, FEWEST, Interval, Outcome, Panel, arithmetic, compare, geometric
from benchmarks.paper.complexity import AXES, PREDICTED, exponent
from benchmarks.paper.contenders import METHODS, OURS
from benchmarks.paper.figures import label
from benchmarks.paper.setups import SETUPS
from benchmarks.paper.store import RESULTS
from benchmarks.paper.tuning import is_refined

__all__ = [
    "best_rival_table",
    "complexity_table",
    "counts_table",
    "default_table",
    "has_finer_steps",
    "n_tuning_seeds",
    "rows_of",
    "settings_table",
    "test_table",
    "value_table",
]

LEVELS = (1e-2, 1e-3, 1e-4)  # relative suboptimality


def rows_of(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def number(value: float) -> str:
    """Return two significant digits."""
    if not np.isfinite(value):
        return "never"
    if value == 0:
        return "0"
    if 0.01 <= abs(value) < 1000:
        return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"
    return f"{float(f'{value:.2g}'):,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.1e}"


def spread(found: Interval, digits: str = "") -> str:
    """Return a mean with its 95% interval, or in square brackets with the range of fewer than five seeds."""
    show = (lambda v: format(v, digits)) if digits else number
    if np.isnan(found.low):
        return show(found.mean)
    left, right = "()" if found.n >= FEWEST else "[]"
    return f"{show(found.mean)} {left}{show(found.low)} to {show(found.high)}{right}"


def is_ours(curve: tuple[str, str]) -> bool:
    """Return whether a curve is of this package's untuned solvers."""
    return curve[0].split(",")[0] in OURS


def of_seeds(values: dict[int, float], runs: int) -> str:
    """Return how many seeds have a model, unless all have."""
    return "" if len(values) == runs else f"{len(values)} of {runs} seeds" if values else "no model yet"


def value_table(own: Panel) -> str:
    """Return the suboptimality at each budget."""
    rows = []
    for curve, runs in own.curves.items():
        cells, solved = [], own.solved(curve)
        for budget in BUDGETS:
            values = own.at(curve, budget, "above")
            if solved is not None and budget > max(r["multiples"].max() for r in runs.values()):
                cells.append("solved")
                continue
            most = "≤ " if own.at_floor(curve, budget) else ""
            cells.append(of_seeds(values, len(runs)) or most + spread(geometric(np.array(list(values.values())))))
        cells.append("" if solved is None else spread(solved, ".1f"))
        rows.append([label(curve), str(len(runs)), *cells])
    return rows_of(["method", "seeds", *(f"at {b}" for b in BUDGETS), "solved at"], rows)


def outcome_cell(found: Outcome) -> str:
    """Return a comparison of our default with a rival, bold if the rival is ahead."""
    if found.kind == "neither":
        return "neither has a model"
    if found.found is None:
        return "only auto" if found.kind == "no rival" else "**only the rival**"
    mine, rival, runs = found.seeds
    text = found.sign + spread(found.found)
    if min(mine, rival) < runs:
        text += f"; auto {mine}, rival {rival} of {runs} seeds"
    return f"**{text}**" if found.kind == "behind" else text


def default_table(panels: list[Panel], column: str = "above") -> tuple[str, dict[str, Counter]]:
    """Return every tuned rival against the default at each budget, and counts of the outcomes by set-up.

    On training rows ratios of suboptimalities, on test rows differences; rivals that are ahead most often come first.
    """
    rows: list[tuple[int, list[str]]] = []
    counts: dict[str, Counter] = {own.setup: Counter() for own in panels}
    for own in panels:
        for curve in own.curves:
            if is_ours(curve):
                continue
            found = [compare(own, own.default, curve, budget, column) for budget in BUDGETS]
            counts[own.setup].update(f.kind for f in found)
            cells = [outcome_cell(f) for f in found]
            rows.append((sum(f.kind == "behind" for f in found), [SETUPS[own.setup].title, label(curve), *cells]))
    ordered = [cells for _, cells in sorted(rows, key=lambda row: -row[0])]
    return rows_of(["set-up", "tuned rival", *(f"at {b}" for b in BUDGETS)], ordered), counts


def counts_table(counts: dict[str, Counter]) -> str:
    """Return how often our default is behind, and the other outcomes, by what is compared."""
    kinds = ("behind", "undecided", "ahead", "no rival", "neither")
    header = ["`auto` is compared by", "comparisons", *kinds[:3], "the rival has no model yet", "neither has a model"]
    rows = [[name, str(sum(c.values())), *(str(c[kind]) for kind in kinds)] for name, c in counts.items()]
    return rows_of(header, rows)


def _best_rival(own: Panel, budget: float, x: str) -> tuple[str, str] | None:
    """Return the rival with the lowest mean suboptimality of those that most seeds have a model of."""
    ranked = []
    for curve in own.curves:
        values = own.at(curve, budget, "above", x)
        if values and not is_ours(curve):
            ranked.append(
                (len(values) < len(own.curves[curve]), geometric(np.array(list(values.values()))).mean, curve)
            )
    return min(ranked)[2] if ranked else None


def best_rival_table(panels: list[Panel]) -> tuple[str, dict[str, Counter]]:
    """Return the default against the best rival of each budget, where it is behind first; and the counts by axis."""
    order = ("behind", "undecided", "ahead", "no rival", "neither")
    rows: list[tuple[int, list[str]]] = []
    counts: dict[str, Counter] = {"multiples": Counter(), "seconds": Counter()}
    for own in panels:
        cases = [("multiples", float(b), f"{b} multiples") for b in BUDGETS]
        if own.timed.issuperset(own.curves):  # the best rival may be one that was not timed
            most = own.common_seconds()
            cases += [("seconds", most / k, f"{number(most / k)} s") for k in (8, 4, 2, 1)]
        for x, budget, words in cases:
            rival = _best_rival(own, budget, x)
            mine = own.at(own.default, budget, "above", x)
            if rival is None:
                found = Outcome("no rival" if mine else "neither", None, "", (len(mine), 0, len(mine)))
            else:
                found = compare(own, own.default, rival, budget, x=x)
            value = of_seeds(mine, len(own.curves[own.default])) or number(geometric(np.array([*mine.values()])).mean)
            value = "≤ " * own.at_floor(own.default, budget, x) + value
            counts[x][found.kind] += 1
            word = {"no rival": "no rival has a model", "neither": "neither has a model"}.get(found.kind, found.kind)
            rows.append((order.index(found.kind), [
                SETUPS[own.setup].title, words, value, "" if rival is None else label(rival),
                "" if found.found is None else outcome_cell(found), word,
            ]))  # fmt: skip
    header = ["set-up", "budget", "`auto`, above the best", "best tuned rival", "rival's over `auto`'s", "`auto` is"]
    return rows_of(header, [cells for _, cells in sorted(rows, key=lambda row: row[0])]), counts


def reach_table(own: Panel) -> str:
    """Return evaluations and, if they were measured, seconds until relative suboptimalities."""
    rows, axes = [], ("multiples", "seconds")[: 1 + bool(own.timed)]
    for curve in own.curves:
        cells = []
        for x in axes:
            for level in LEVELS:
                if x == "seconds" and curve not in own.timed:
                    cells.append("not timed")
                    continue
                values = np.array(list(own.reached(curve, level, x).values()))
                there = {k: v for k, v in enumerate(values) if np.isfinite(v)}
                words = "never" if not there else of_seeds(there, len(values))
                cells.append(words or spread(geometric(values)))
        rows.append([label(curve), *cells])
    return rows_of(["method", *(f"{x} to {level:g}" for x in axes for level in LEVELS)], rows)


def test_table(own: Panel) -> str:
    """Return the worst value on test rows at each budget."""
    rows = []
    for curve in own.curves:
        cells = []
        for budget in BUDGETS:
            values = own.at(curve, budget, "test")
            words = of_seeds(values, len(own.curves[curve]))
            cells.append(words or spread(arithmetic(np.array(list(values.values()))), ".4f"))
        rows.append([label(curve), *cells])
    return rows_of(["method", *(f"at {b}" for b in BUDGETS)], rows)


def _tried(own: Panel, curve: tuple[str, str]) -> tuple[tuple[float, ...], dict[tuple[float, ...], set[int]]]:
    """Return a curve's setting, and the seeds on which each setting of it was tried."""
    rows = pd.read_parquet(RESULTS / "paper_tuning.parquet")
    rows = rows[(rows["setup"] == own.setup) & (rows["method"] == curve[0]) & (rows["output"] == curve[1])]
    known: dict[tuple[float, ...], set[int]] = {}
    for row in rows.itertuples():
        known.setdefault(tuple(json.loads(row.setting)), set()).add(int(row.seed))
    return own.setting_of(curve), known


def n_tuning_seeds(own: Panel, curve: tuple[str, str]) -> int:
    """Return on how many seeds the setting of a curve was chosen: those on which another one was tried as well."""
    best, known = _tried(own, curve)
    return max((len(known[best] & seeds) for other, seeds in known.items() if other != best), default=0) or 1


def has_finer_steps(own: Panel, curve: tuple[str, str]) -> bool:
    """Return whether both neighbours of the last search were tried on every tuning seed."""
    return is_refined(own.setup, curve[0], *_tried(own, curve))


def settings_table(own: Panel) -> str:
    """Return the chosen settings, how many were tried, and on how many seeds the last of them."""
    rows = []
    for curve in own.curves:
        if METHODS[curve[0]].tuned:
            seeds, finer = n_tuning_seeds(own, curve), has_finer_steps(own, curve)
            on = f"{seeds}, {'with' if finer else 'without'} finer steps" if seeds > 1 else "seed 0"
            ended = "yes" if finer else "no: kept out of verdicts"
            rows.append([label(curve), own.setting(curve), str(len(_tried(own, curve)[1])), on, ended])
    return rows_of(["method", "setting", "settings tried", "chosen on seeds", "search ended"], rows)


def slopes(rows: pd.DataFrame) -> dict[tuple[str, str, str], tuple[float, float, int, int]]:
    """Return exponents with half-widths, and points reached and tried, by method, constants and axis.

    The exponent is NaN if fewer than three different points were reached.
    """
    found = {}
    for (method, constants, axis), part in rows.groupby(["method", "constants", "axis"]):
        reached = part.dropna(subset=["evaluations"])
        enough = len(reached[["m", "n", "eps"]].drop_duplicates()) >= 3
        slope, half, _ = exponent(part, axis) if enough else (np.nan, np.nan, 0)
        found[method, constants, axis] = (slope, half, len(reached), len(part))
    return found


def exponent_cell(slope: float, half: float, points: int) -> str:
    """Return a slope with its interval, or with the number of points if they are too few for one."""
    if np.isnan(slope):
        return "too few points"
    return f"{slope:.2f} ({points} points)" if np.isnan(half) else f"{slope:.2f} ± {half:.2f}"


def complexity_table(measured: pd.DataFrame) -> str:
    """Return measured and predicted exponents, with published and with tight constants."""
    found, rows = slopes(measured), []
    for method, predicted in PREDICTED.items():
        for axis, exact in zip(AXES, predicted, strict=True):
            cells = []
            for constants in ("paper", "tight"):
                here = found.get((method, constants, axis))
                cells += ["not run", ""] if here is None else [exponent_cell(*here[:3]), f"{here[2]} of {here[3]}"]
            if method == "ERMEG":
                cells[2:] = ["has no constants", ""]
            rows.append([method, axis, f"{exact:g}", *cells])
    return rows_of(["method", "exponent of", "predicted", "published constants", "reached", "tight constants",
                    "reached"], rows)  # fmt: skip
