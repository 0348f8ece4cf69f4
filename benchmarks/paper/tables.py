"""Tables of the page, as lines of Markdown, from the stored files alone."""

import json

import numpy as np
import pandas as pd

from benchmarks.paper.analysis import BUDGETS, Interval, Panel, arithmetic, geometric, ratio
from benchmarks.paper.complexity import AXES, PREDICTED, exponent
from benchmarks.paper.figures import label
from benchmarks.paper.methods import METHODS, OURS
from benchmarks.paper.setups import SETUPS
from benchmarks.paper.store import RESULTS

__all__ = [
    "complexity_table",
    "default_table",
    "leader_table",
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
    """Return a mean with its interval, if there is one."""
    show = (lambda v: format(v, digits)) if digits else number
    return show(found.mean) if np.isnan(found.low) else f"{show(found.mean)} ({show(found.low)} to {show(found.high)})"


def is_ours(curve: tuple[str, str]) -> bool:
    """Return whether a curve is of this package's untuned solvers."""
    return curve[0].split(",")[0] in OURS


def value_table(own: Panel) -> str:
    """Return the suboptimality at each budget."""
    rows = []
    for curve in own.curves:
        cells = []
        for budget in BUDGETS:
            values = own.at(curve, budget, "above")
            if len(values) < len(own.curves[curve]):
                cells.append("no model yet")
                continue
            solved = own.solved(curve)
            over = solved is not None and budget > max(r["multiples"].max() for r in own.curves[curve].values())
            cells.append("solved" if over else spread(geometric(np.array(list(values.values())))))
        solved = own.solved(curve)
        cells.append("" if solved is None else spread(solved, ".1f"))
        rows.append([label(curve), str(len(own.curves[curve])), *cells])
    return rows_of(["method", "seeds", *(f"at {b}" for b in BUDGETS), "solved at"], rows)


def _lead(own: Panel, budget: float, x: str) -> tuple[bool, list[str]] | None:
    """Return whether the leader is ours, and the cells: leader, its value, the next, by what factor it is behind."""
    ranked = own.leaders(budget, x)
    if len(ranked) < 2:
        return None
    (first, value), ours = ranked[0], is_ours(ranked[0][0])
    # The nearest curve of the other side: the best rival of ours, or ours behind a rival.
    other = next(((curve, found) for curve, found in ranked if is_ours(curve) != ours), None)
    if other is None:
        return ours, [label(first), number(value.mean), "no other method has a model yet", ""]
    behind = ratio(own.at(other[0], budget, "above", x), own.at(first, budget, "above", x))
    assert behind is not None
    return ours, [label(first), number(value.mean), label(other[0]), spread(behind)]


def leader_table(panels: list[Panel]) -> tuple[str, int, int]:
    """Return who leads where, those cases first in which we do not; and the numbers of both kinds."""
    rows: list[tuple[bool, list[str]]] = []
    for own in panels:
        most = own.common_seconds()
        cases = [("multiples", float(b), f"{b} multiples") for b in BUDGETS]
        cases += [("cpu", most / k, f"{number(most / k)} CPU s") for k in (8, 4, 2, 1)]
        for x, budget, words in cases:
            found = _lead(own, budget, x)
            if found is not None:
                rows.append((found[0], [SETUPS[own.setup].title, words, *found[1]]))
    behind = [cells for ours, cells in rows if not ours]
    ahead = [cells for ours, cells in rows if ours]
    header = [
        "set-up",
        "budget",
        "leads",
        "above the best",
        "best of the other side",
        "which is above it by a factor of",
    ]
    return rows_of(header, behind + ahead), len(behind), len(ahead)


def default_table(panels: list[Panel]) -> tuple[str, dict[str, int]]:
    """Return every tuned rival's suboptimality over the default's at each budget, and counts of the comparisons.

    The default is ahead if the whole interval is above 1, or if only it has a model; behind if the mean is below 1.
    """
    rows, counts = [], {"ahead": 0, "undecided": 0, "behind": 0, "neither": 0}
    for own in panels:
        for curve in own.curves:
            if is_ours(curve):
                continue
            cells = []
            for budget in BUDGETS:
                rival, mine = own.at(curve, budget, "above"), own.at(own.default, budget, "above")
                found = ratio(rival, mine)
                if found is None:
                    kind = "ahead" if mine else "behind" if rival else "neither"
                    words = {"ahead": "only auto", "behind": "**only the rival**", "neither": "neither has a model"}
                    cells.append(words[kind])
                else:
                    kind = "behind" if found.mean < 1 else "ahead" if found.low > 1 else "undecided"
                    cells.append(f"**{spread(found)}**" if kind == "behind" else spread(found))
                counts[kind] += 1
            rows.append([SETUPS[own.setup].title, label(curve), *cells])
    return rows_of(["set-up", "tuned rival", *(f"at {b}" for b in BUDGETS)], rows), counts


def reach_table(own: Panel) -> str:
    """Return evaluations and CPU seconds until relative suboptimalities."""
    rows = []
    for curve in own.curves:
        cells = []
        for x in ("multiples", "cpu"):
            for level in LEVELS:
                values = np.array(list(own.reached(curve, level, x).values()))
                cells.append(spread(geometric(values)) if np.isfinite(values).all() else "never")
        rows.append([label(curve), *cells])
    header = [f"multiples to {level:g}" for level in LEVELS] + [f"CPU s to {level:g}" for level in LEVELS]
    return rows_of(["method", *header], rows)


def test_table(own: Panel) -> str:
    """Return the worst value on test rows at each budget."""
    rows = []
    for curve in own.curves:
        cells = []
        for budget in BUDGETS:
            values = own.at(curve, budget, "test")
            whole = len(values) == len(own.curves[curve])
            cells.append(spread(arithmetic(np.array(list(values.values()))), ".4f") if whole else "no model yet")
        rows.append([label(curve), *cells])
    return rows_of(["method", *(f"at {b}" for b in BUDGETS)], rows)


def settings_table(own: Panel) -> str:
    """Return the chosen settings, how many were tried, and whether every neighbour was."""
    tried = pd.read_parquet(RESULTS / "paper_tuning.parquet")
    tried = tried[tried["setup"] == own.setup]
    rows = []
    for curve, runs in own.curves.items():
        if not METHODS[curve[0]].tuned:
            continue
        best = tuple(json.loads(next(iter(runs.values()))["setting"].iloc[0]))
        part = tried[(tried["method"] == curve[0]) & (tried["output"] == curve[1])]
        known = {tuple(json.loads(s)) for s in part["setting"]}
        neighbours = [(*best[:k], best[k] + d, *best[k + 1 :]) for k in range(len(best)) for d in (1, -1)]
        missing = sum(n not in known for n in neighbours)
        inside = "all" if not missing else f"{len(neighbours) - missing} of {len(neighbours)}"
        rows.append([label(curve), own.setting(curve), str(len(known)), inside])
    return rows_of(["method", "factors of the theory's values", "settings tried", "neighbours tried"], rows)


def slopes() -> dict[tuple[str, str, str], tuple[float, float, int, int]]:
    """Return exponents with half-widths, and points reached and tried, by method, constants and axis."""
    rows, found = pd.read_parquet(RESULTS / "paper_complexity.parquet"), {}
    for (method, constants, axis), part in rows.groupby(["method", "constants", "axis"]):
        reached = int(part["evaluations"].notna().sum())
        if part.dropna(subset=["evaluations"])[["m", "n", "eps"]].drop_duplicates().shape[0] >= 3:
            found[method, constants, axis] = (*exponent(part, axis), reached, len(part))
    return found


def complexity_table() -> str:
    """Return measured and predicted exponents, with published and with tight constants."""
    found, rows = slopes(), []
    for method, predicted in PREDICTED.items():
        for axis, exact in zip(AXES, predicted, strict=True):
            cells = []
            for constants in ("paper", "tight"):
                here = found.get((method, constants, axis))
                cells += ["not reached", ""] if here is None else [f"{here[0]:.2f} ± {here[1]:.2f}",
                                                                   f"{here[2]} of {here[3]}"]  # fmt: skip
            if method == "ERMEG":
                cells[2:] = ["has no constants", ""]
            rows.append([method, axis, f"{exact:g}", *cells])
    return rows_of(["method", "exponent of", "predicted", "published constants", "reached", "tight constants",
                    "reached"], rows)  # fmt: skip
