"""Figures and tables of the benchopt runs.

    python -m benchmarks.figures collect    keeps what the figures need of the newest runs, in benchmarks/results/
    python -m benchmarks.figures draw       draws every panel from there, and prints who leads at which budget

Of each method the multiplier with the least final worst training value (mean over the repetitions) is shown; the table
of all multipliers is printed too. Lines are means over repetitions, bands their range.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter

plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "groupdro"}  # text as text: small files, the same each time
HERE = Path(__file__).parent
RESULTS = HERE / "results"
KEPT = {
    "solver_name": "solver", "p_solver_multiplier": "multiplier", "dataset_name": "dataset", "idx_rep": "repetition",
    "objective_worst_train": "worst_train", "objective_worst_test": "worst_test",
    "objective_certified_gap": "certified_gap", "objective_grad_evals": "grad_evals",
    "objective_grad_evals_paper": "grad_evals_paper", "objective_passes": "passes",
    "objective_solver_seconds": "solver_seconds", "time": "seconds", "stop_val": "epoch",
}  # fmt: skip
LOOKS = {
    "ALEG": ("#D55E00", "-"), "ALEM": ("#D55E00", "-"), "auto": ("#000000", "-"), "group SQP": ("#8A8A8A", "-"),
    "ALEG of the paper": ("#E69F00", "--"), "ALEM of the paper": ("#E69F00", "--"),
    "SMD": ("#56B4E9", "-."), "MPVR[importance]": ("#0072B2", "-."),
    "AL-SVRE reconstructed[euclidean]": ("#009E73", ":"), "AL-SVRE reconstructed[kl]": ("#00C896", ":"),
    "TSA reconstructed[two-stage]": ("#0072B2", "-."),
    "TSA reconstructed[common-random-numbers]": ("#56B4E9", "-."), "ERMEG": ("#009E73", ":"),
    "L-BFGS on the smoothed maximum": ("#CC79A7", "--"), "Sagawa SGD": ("#F0E442", "-."),
    "CVXPY with Clarabel": ("#555555", "none"), "fairlearn ExponentiatedGradient": ("#AA4499", "none"),
}  # fmt: skip
N_ROWS = {"synthetic": 25_000, "cifar-100": 50_000}
BUDGETS = (5, 10, 20, 25, 30, 40)
LEAST_PASSES = 20  # of a run at full size


def collected(benchmark: str, dataset: str) -> pd.DataFrame:
    """Return the curves of all runs of a data set at full size, the newest of each."""
    found = []
    for path in sorted((HERE / benchmark / "outputs").glob("*.parquet"), key=lambda path: path.stat().st_mtime):
        curves = pd.read_parquet(path)
        full = curves["p_obj_max_passes"].max() >= LEAST_PASSES  # no smoke run
        if not full or curves["dataset_name"].iloc[0].split("[")[0] != dataset:
            continue
        if "p_solver_multiplier" not in curves:
            curves["p_solver_multiplier"] = np.nan
        kept = curves[list(KEPT)].rename(columns=KEPT)
        kept["method"] = [method_of(row) for row in curves.to_dict("records")]
        # A run that asked for few solvers must not mix with an older curve of the same one.
        if found:
            key = ["method", "multiplier", "repetition"]
            new = pd.MultiIndex.from_frame(kept[key].fillna(0.0))
            found = [part[~pd.MultiIndex.from_frame(part[key].fillna(0.0)).isin(new)] for part in found]
        found.append(kept)
    if not found:
        return pd.DataFrame()
    # A pattern may name a solver twice; its runs are then there twice.
    whole = pd.concat(found).drop_duplicates(["method", "multiplier", "repetition", "epoch"])
    return whole.drop(columns=["dataset", "solver"]).astype({"worst_train": "float32", "worst_test": "float32"})


def collect() -> None:
    """Write the newest runs of every data set to small tables."""
    RESULTS.mkdir(exist_ok=True)
    for benchmark in ("gdro", "mero"):
        for dataset in ("synthetic", "cifar-100"):
            curves = collected(benchmark, dataset)
            if len(curves):
                curves.to_parquet(RESULTS / f"{benchmark}_{dataset}.parquet", compression="zstd", index=False)
                print(f"{benchmark} {dataset}: {len(curves)} points of {curves['method'].nunique()} methods")


def stored(benchmark: str, dataset: str) -> pd.DataFrame:
    """Return the stored curves of a data set, with the solver's own clock where it keeps one."""
    curves = pd.read_parquet(RESULTS / f"{benchmark}_{dataset}.parquet")
    curves["seconds"] = curves["solver_seconds"].fillna(curves["seconds"])
    return curves


def method_of(row: dict) -> str:
    """Return a solver's name with its form, but without its multiplier."""
    form = [row.get(f"p_solver_{key}") for key in ("sampling", "geometry", "form")]
    form = [value for value in form if isinstance(value, str)]
    return row["solver_name"].split("[")[0] + (f"[{form[0]}]" if form else "")


def tuned(curves: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the curves of each method's best multiplier, and the table of all multipliers' final values."""
    curves = curves.assign(multiplier=curves["multiplier"].fillna(0.0))
    ends = curves.sort_values("epoch").groupby(["method", "multiplier", "repetition"])["worst_train"].last()
    table = ends.groupby(["method", "multiplier"]).mean().unstack()
    best = table.idxmin(axis=1)
    return curves[curves["multiplier"] == curves["method"].map(best)], table


def on_grid(curves: pd.DataFrame, x: str, y: str, grid: np.ndarray) -> np.ndarray:
    """Return each repetition's value at the points of a grid: the latest by then, and NaN outside of the run.

    Nothing is carried beyond the end of a run, where the method might have done better.
    """
    out = []
    for _, run in curves.groupby("repetition"):
        run = run.sort_values(x)
        place = np.searchsorted(run[x].to_numpy(), grid, side="right") - 1
        values = run[y].to_numpy(dtype=float)
        inside = (place >= 0) & (grid <= run[x].max())
        out.append(np.where(inside, values[np.maximum(place, 0)], np.nan))
    return np.array(out)


def panel(ax: plt.Axes, shown: pd.DataFrame, x: str, y: str) -> None:
    """Draw every method."""
    top = shown[x].quantile(0.999) if x == "seconds" else shown[x].max()
    for method, curves in shown.groupby("method"):
        colour, style = LOOKS.get(method, ("#999999", "-"))
        ends = curves[curves["epoch"] == curves.groupby("repetition")["epoch"].transform("max")]
        if style == "none":
            if x == "seconds" and y != "certified_gap":
                ax.plot(ends[x].mean(), ends[y].mean(), "x", color=colour, label=method)
            continue
        if y == "certified_gap" and curves[y].isna().all():
            continue
        grid = np.linspace(0.0, min(top, curves[x].max()), 150)
        values = on_grid(curves, x, y, grid)
        inside = np.isfinite(values).all(axis=0)  # of every repetition
        grid, values = grid[inside], values[:, inside]
        ax.plot(grid, values.mean(axis=0), color=colour, ls=style, lw=1.6, label=method)
        ax.fill_between(grid, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, lw=0)
    ax.set_xlabel({"grad_evals_paper": "gradient evaluations, as the paper counts", "seconds": "seconds"}[x])
    ax.spines[["top", "right"]].set_visible(False)


def draw() -> None:
    """Draw the panels of every stored table, and say who leads."""
    lines = []
    for path in sorted(RESULTS.glob("*.parquet")):
        benchmark, dataset = path.stem.split("_", 1)
        shown, table = tuned(stored(benchmark, dataset))
        what = "worst risk" if benchmark == "gdro" else "worst excess risk"
        figure, axes = plt.subplots(2, 3, figsize=(15, 8), layout="constrained")
        plots = (("worst_train", f"{what}, training rows"), ("worst_test", f"{what}, test rows"),
                 ("certified_gap", "certified gap"))  # fmt: skip
        for row, x in enumerate(("grad_evals_paper", "seconds")):
            for column, (y, title) in enumerate(plots):
                ax = axes[row, column]
                panel(ax, shown, x, y)
                ax.set_title(title, fontsize="medium", loc="left")
                if y == "certified_gap":
                    ax.set_yscale("log")
                else:
                    values = shown.loc[shown["epoch"] > 0, y]
                    low, high = float(values.min()), float(np.quantile(values, 0.97))
                    ax.set_ylim(low - 0.05 * (high - low), high)
                if x == "seconds":
                    ax.set_xscale("log")
                    low, high = ax.get_xlim()
                    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
                    ax.xaxis.set_major_formatter("{x:g}")
                    ax.xaxis.set_minor_formatter(NullFormatter())
        handles, labels = axes[1, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(f"{benchmark.upper()} on {dataset}", x=0.01, ha="left")
        for kind in ("png", "svg"):
            # Without the date, the same curves give the same file.
            figure.savefig(RESULTS / f"{path.stem}.{kind}", dpi=100, metadata={"Date": None} if kind == "svg" else None)
        plt.close(figure)
        lines += report(benchmark, dataset, shown, table)
    (RESULTS / "tables.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def report(benchmark: str, dataset: str, shown: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Return the tables of a data set: values at budgets in passes of the paper's count, and of all multipliers."""
    n_rows = N_ROWS[dataset]
    lines = [f"\n## {benchmark.upper()} on {dataset}\n", "Worst training value by gradient evaluations (multiples of "
             f"the {n_rows} rows), what it took to come within 1e-3 of the least value seen, and the end of the run; "
             "means over repetitions. Nothing is carried beyond the end of a run.\n"]  # fmt: skip
    least = float(shown["worst_train"].min())
    columns = ["method", "multiplier", *map(str, BUDGETS), "evaluations to 1e-3", "seconds to 1e-3",
               "evaluations at the end", "certified gap at the end", "seconds"]  # fmt: skip
    lines += [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for method, curves in shown.groupby("method"):
        values = on_grid(curves, "grad_evals_paper", "worst_train", np.array(BUDGETS) * n_rows)
        ends = curves[curves["epoch"] == curves.groupby("repetition")["epoch"].transform("max")]
        one_point = LOOKS.get(method, ("", "-"))[1] == "none"
        begun = curves["grad_evals_paper"].min()
        cells = [
            f"{ends['worst_train'].mean():.5f}" if one_point else _shown(value, budget * n_rows < begun)
            for budget, value in zip(BUDGETS, values.mean(axis=0), strict=True)
        ]
        gap = ends["certified_gap"].mean()
        chosen = curves["multiplier"].iloc[0]
        lines.append(
            f"| {method} | {f'{chosen:g}' if chosen else ''} | " + " | ".join(cells)
            + f" | {until(curves, 'grad_evals_paper', least + 1e-3, 1.0 / n_rows)}"
            + f" | {until(curves, 'seconds', least + 1e-3)} | {ends['grad_evals_paper'].mean() / n_rows:.1f}"
            + f" | {'' if np.isnan(gap) else f'{gap:.1e}'}"
            + f" | {ends['seconds'].mean():.2f} |"
        )  # fmt: skip
    lines += ["\nFinal worst training value of every multiplier that was tried, mean over repetitions.\n"]
    tried = table.drop(columns=[0.0], errors="ignore").dropna(how="all")
    lines += ["| method | " + " | ".join(f"{c:g}" for c in tried.columns) + " |", "|---|" + "---|" * len(tried.columns)]
    for method, values in tried.iterrows():
        lines.append(f"| {method} | " + " | ".join("" if np.isnan(v) else f"{v:.4f}" for v in values) + " |")
    return lines


def _shown(value: float, before: bool) -> str:
    """Return a value, or whether the run was still in its first stage or over."""
    return f"{value:.5f}" if np.isfinite(value) else "stage one" if before else "ended"


def until(curves: pd.DataFrame, x: str, value: float, scale: float = 1.0) -> str:
    """Return where the worst training value first came down to a value, mean over repetitions, or nothing."""
    found = [run.loc[run["worst_train"] <= value, x].min() for _, run in curves.groupby("repetition")]
    return f"{scale * np.mean(found):.2g}" if np.isfinite(found).all() else "never"


if __name__ == "__main__":
    {"collect": collect, "draw": draw}[sys.argv[1]]()
