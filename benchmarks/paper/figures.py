"""Figures of the stored curves: readable in one printed column, distinct in grey, nothing beyond the budget.

Solid lines are untuned, dashed ones were tuned; every method has a marker of its own. Lines are geometric
means over the seeds, bands their standard errors. A cross ends a run whose certified gap was met.
"""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.paper.analysis import Panel, has, panel, zero_values
from benchmarks.paper.complexity import AXES, PREDICTED
from benchmarks.paper.contenders import METHODS, own_methods
from benchmarks.paper.runs import BUDGET
from benchmarks.paper.setups import SETUPS
from benchmarks.paper.store import RESULTS

__all__ = ["draw", "draw_zero", "label", "look", "save", "shown_curves", "spread_of"]

plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "groupdro"}  # text as text: small files, the same each time
SIZE = {"font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "legend.fontsize": 8, "xtick.labelsize": 8,
        "ytick.labelsize": 8, "lines.linewidth": 1.1, "lines.markersize": 4, "axes.linewidth": 0.6}  # fmt: skip
WIDTH = 3.5  # inches: one column
MOST_CURVES = 7
#: Colour (dark to light, so that grey tells them apart), marker, dashes of tuned ones.
LOOKS = {
    ("auto", "best"): ("#000000", "o", "-"),
    ("auto, excess risk", "best"): ("#000000", "o", "-"),
    ("group SQP", "best"): ("#000000", "d", (0, (3, 1))),
    ("ALEG", "best"): ("#D55E00", "s", "-"),
    ("ALEM", "best"): ("#D55E00", "s", "-"),
    ("ALEG of the paper", "average"): ("#0072B2", "v", (0, (4, 1.5))),
    ("ALEG of the paper", "snapshot"): ("#0072B2", "^", (0, (1.2, 1))),
    ("ALEM of the paper", "average"): ("#0072B2", "v", (0, (4, 1.5))),
    ("ALEM of the paper", "snapshot"): ("#0072B2", "^", (0, (1.2, 1))),
    ("MPVR", "snapshot"): ("#009E73", "D", (0, (4, 1, 1, 1))),
    ("SMD", "average"): ("#8C8C8C", "X", (0, (2.5, 1))),
    ("SMD", "last"): ("#8C8C8C", "X", (0, (2.5, 1))),
    ("TSA", "average"): ("#8C8C8C", "X", (0, (2.5, 1))),
    ("TSA", "last"): ("#8C8C8C", "X", (0, (2.5, 1))),
    ("ERMEG", "average"): ("#009E73", "D", (0, (4, 1, 1, 1))),
    ("ERMEG", "best"): ("#009E73", "D", (0, (4, 1, 1, 1))),
    ("ERMEG, first-order", "average"): ("#CC79A7", "P", (0, (6, 1, 1, 1, 1, 1))),
    ("ERMEG, first-order", "best"): ("#CC79A7", "P", (0, (6, 1, 1, 1, 1, 1))),
    ("AL-SVRE, KL", "snapshot"): ("#CC79A7", "P", (0, (6, 1, 1, 1, 1, 1))),
    ("AL-SVRE, Euclidean", "snapshot"): ("#CC79A7", "P", (0, (6, 1, 1, 1, 1, 1))),
    ("Sagawa", "average"): ("#56B4E9", "h", (0, (1, 2))),
    ("Sagawa", "last"): ("#56B4E9", "h", (0, (1, 2))),
    ("smoothed L-BFGS", "best"): ("#E69F00", "*", (0, (8, 2))),
    ("MPVR", "average"): ("#009E73", "8", (0, (2, 1))),
    ("ALEG of the paper, alterable", "average"): ("#003B5C", ">", (0, (4, 1.5))),
    ("ALEG of the paper, alterable", "snapshot"): ("#003B5C", "<", (0, (1.2, 1))),
}
#: Looks of methods that a file of one's own adds, in the order of their registration.
SPARE = [(colour, marker, (0, (5, 1))) for colour, marker in
         (("#7F3C8D", ">"), ("#11A579", "<"), ("#E73F74", "p"), ("#80BA5A", "H"))]  # fmt: skip
LABELS = {"auto, excess risk": "auto", "ALEG of the paper": "paper's ALEG", "ALEM of the paper": "paper's ALEM",
          "ALEG of the paper, alterable": "paper's ALEG, alterable", "ERMEG": "ERMEG, our oracle"}  # fmt: skip


def label(curve: tuple[str, str]) -> str:
    """Return how a curve is called in legends and tables."""
    method, output = curve
    name = LABELS.get(method, method)
    if method.startswith("ERMEG"):
        output = {"average": "mean model", "best": "best model"}[output]
    return name if output == "best" else f"{name}, {output}"


def look(curve: tuple[str, str]) -> tuple:
    """Return colour, marker and dashes of a curve: its own, those of another output, or spare ones."""
    if curve in LOOKS:
        return LOOKS[curve]
    others = [known for (method, _), known in LOOKS.items() if method == curve[0]]
    return others[0] if others else SPARE[own_methods().index(curve[0]) % len(SPARE)]


def shown_curves(own: Panel) -> list[tuple[str, str]]:
    """Return at most seven curves, among them our default, the best rival at the whole budget, and registered methods.

    Of outputs or forms that share a look, it is the one that most seeds have, or the best. Others fill the remaining
    places in the order of `LOOKS`. A method that is our default under another name here is left out.
    """
    rank = {}
    registered = own_methods()
    for curve in (c for c in own.curves if c in LOOKS or c[0] in registered):
        values = list(own.at(curve, BUDGET, "above").values())
        if curve != own.default and values == list(own.at(own.default, BUDGET, "above").values()):
            continue
        rank[curve] = len(values) < len(own.curves[curve]), float(np.exp(np.mean(np.log(values or [np.inf]))))
    by_look: dict[tuple, tuple[str, str]] = {}
    for curve in sorted(rank, key=lambda c: (*rank[c], c)):
        by_look.setdefault(look(curve)[:2], curve)
    order = [*LOOKS, *(curve for curve in own.curves if curve not in LOOKS)]
    best = min((c for c in rank if METHODS[c[0]].tuned), key=lambda c: (*rank[c], c), default=None)
    chosen = sorted(
        by_look.values(), key=lambda c: (c not in (own.default, best) and c[0] not in registered, order.index(c))
    )[:MOST_CURVES]
    return [curve for curve in own.curves if curve in chosen]


def _grid(own: Panel, curve: tuple[str, str], x: str) -> np.ndarray:
    """Return where a curve is drawn: from its first points to the common budget or to its end."""
    runs = own.curves[curve].values()
    points = np.unique(np.concatenate([run[x].to_numpy() for run in runs if len(run)]))
    if x == "multiples":
        points = np.unique(np.r_[points, BUDGET])
        return points[points <= BUDGET]
    inside = [run[run["multiples"] <= BUDGET][x].max() for run in runs]
    return points[points <= max(inside)]


def _draw_curve(ax: plt.Axes, own: Panel, curve: tuple[str, str], x: str, column: str) -> None:
    colour, marker, dashes = look(curve)
    grid, rows = _grid(own, curve, x), []
    for at in grid:
        values = own.at(curve, float(at), column, x)
        whole = len(values) == len(own.curves[curve])
        rows.append((*spread_of(list(values.values()), column),) if whole else (np.nan,) * 3)
    mean, low, high = np.array(rows).T
    solved = own.solved(curve)
    if solved is not None and x == "multiples":
        keep = grid <= max(run["multiples"].max() for run in own.curves[curve].values())
        grid, mean, low, high = grid[keep], mean[keep], low[keep], high[keep]
    every = max(1, len(grid) // 7)
    ax.plot(grid, mean, color=colour, ls=dashes, marker=marker, markevery=every, drawstyle="steps-post",
            label=label(curve), mfc="white", mew=0.8)  # fmt: skip
    ax.fill_between(grid, low, high, color=colour, alpha=0.15, lw=0, step="post")
    if solved is not None and np.isfinite(mean).any():
        last = np.flatnonzero(np.isfinite(mean))[-1]
        ax.plot(grid[last], mean[last], "x", color=colour, ms=6, mew=1.4)


def spread_of(values: list[float], column: str) -> tuple[float, float, float]:
    """Return the mean over the seeds, and it minus and plus its standard error; of logarithms for suboptimalities."""
    found = np.log(values) if column == "above" else np.array(values)
    error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else 0.0
    ends = found.mean() + error * np.array([0.0, -1.0, 1.0])
    mean, low, high = np.exp(ends) if column == "above" else ends
    return float(mean), float(low), float(high)


def draw_setup(name: str) -> None:
    """Draw a set-up: training suboptimality by evaluations, and by seconds if all were timed, and test values."""
    own = panel(name)
    curves = shown_curves(own)
    value = "risk" if own.kind == "gdro" else "excess risk"
    parts = [("multiples", "above", f"worst {value}, training rows, above the best"),
             ("seconds", "above", f"worst {value}, training rows, above the best"),
             ("multiples", "test", f"worst {value}, test rows")]  # fmt: skip
    parts = [part for part in parts if part[0] == "multiples" or own.timed.issuperset(curves)]
    figure, axes = plt.subplots(len(parts), 1, figsize=(WIDTH, 1.0 + 2.2 * len(parts)), layout="constrained")
    for ax, (x, column, title) in zip(axes, parts, strict=True):
        for curve in curves:
            _draw_curve(ax, own, curve, x, column)
        ax.set_title(title, loc="left")
        ax.set_xlabel("gradient evaluations / rows" if x == "multiples" else x)
        if column == "above":
            ax.set_yscale("log")
        if x == "seconds":
            ax.set_xscale("log")
            low, high = ax.get_xlim()
            ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
            ax.xaxis.set_major_formatter("{x:g}")
            ax.xaxis.set_minor_formatter(NullFormatter())
        else:
            ax.set_xlim(0, BUDGET)
        ax.spines[["top", "right"]].set_visible(False)
    if own.default in own.curves or own.kind == "gdro":
        draw_zero(axes[-1], float(np.mean([*zero_values(own).values()])))
    _limit_test(axes[-1], own, curves)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, frameon=False, handlelength=2.2, columnspacing=0.8,
        handletextpad=0.5, fontsize=7,
    )  # fmt: skip
    figure.suptitle(SETUPS[name].title, fontsize=8, x=0.02, ha="left")
    save(figure, RESULTS / f"paper_{name}.svg")


def draw_zero(ax: plt.Axes, value: float) -> None:
    """Draw the value of the zero model, which every model has to beat, across a panel."""
    ax.axhline(value, color="#555555", lw=0.8, ls=":", label="zero model")
    ax.annotate("zero model", (0.99, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7)


def _limit_test(ax: plt.Axes, own: Panel, curves: list[tuple[str, str]]) -> None:
    """Cut off the first steps, which would hide what differs later, but not the zero model."""
    values = [v for curve in curves for b in range(5, 41, 5) for v in own.at(curve, b, "test").values()]
    lines = [float(line.get_ydata()[0]) for line in ax.lines if line.get_label() == "zero model"]
    if values:
        low, high = min(values + lines), max(float(np.quantile(values, 0.98)), *lines, min(values))
        ax.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))


COMPLEXITY_LOOKS = {
    "ALEG": ("#0072B2", "v", "-"), "MPVR": ("#009E73", "D", "--"), "AL-SVRE": ("#CC79A7", "P", "-."),
    "SMD": ("#8C8C8C", "X", ":"), "ALEM": ("#D55E00", "s", (0, (5, 1))), "TSA": ("#8C8C8C", "o", (0, (1, 1))),
    "ERMEG": ("#000000", "^", (0, (3, 1, 1, 1))),
}  # fmt: skip


def draw_complexity(constants: str, name: str) -> None:
    """Draw evaluations until a gap on logarithmic axes, each with its predicted slope through the middle."""
    rows = pd.read_parquet(RESULTS / "paper_complexity.parquet")
    rows = rows[(rows["constants"] == constants) | (rows["method"] == "ERMEG")].dropna(subset=["evaluations"])
    figure, axes = plt.subplots(3, 1, figsize=(WIDTH, 7.6), layout="constrained")
    for row, (ax, axis) in enumerate(zip(axes, AXES, strict=True)):
        for method, predicted in PREDICTED.items():
            part = rows[(rows["method"] == method) & (rows["axis"] == axis)]
            means = np.exp(
                np.log(part["evaluations"]).groupby(1 / part["eps"] if axis == "1/eps" else part[axis]).mean()
            )
            if not len(means):
                continue
            colour, marker, style = COMPLEXITY_LOOKS[method]
            x, y = means.index.to_numpy(float), means.to_numpy()
            middle = float(np.exp(np.mean(np.log(y) - predicted[row] * np.log(x))))
            ax.plot(x, y, marker, color=colour, mfc="white", mew=0.9)
            ax.plot(x, middle * x ** predicted[row], color=colour, ls=style, lw=0.9)
        ax.set(xscale="log", yscale="log", ylabel="gradient evaluations")
        ax.set_xlabel({"m": "groups m", "n": "rows per group n", "1/eps": "1 / certified gap"}[axis])
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_title(
        f"{'published' if constants == 'paper' else 'tight'} constants; lines: predicted slopes", loc="left"
    )
    looks = [(method, *look) for method, look in COMPLEXITY_LOOKS.items() if (rows["method"] == method).any()]
    handles = [Line2D([], [], color=c, marker=m, ls=s, mfc="white", lw=0.9, label=method) for method, c, m, s in looks]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, handlelength=2.4)
    save(figure, RESULTS / f"{name}.svg")


def save(figure: plt.Figure, path: Path) -> None:
    """Save and close a figure; without the date, the same curves give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def draw() -> None:
    """Draw everything that is stored."""
    with plt.rc_context(SIZE):
        for name in SETUPS:
            if has(name):
                draw_setup(name)
        if (RESULTS / "paper_complexity.parquet").exists():
            draw_complexity("paper", "paper_complexity")
            draw_complexity("tight", "paper_complexity_tight")
