"""RESULTS.md from its template: every number is computed here from the stored files."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

import groupdro as gd
from benchmarks.paper import complexity
from benchmarks.paper.analysis import Panel, has, panel
from benchmarks.paper.claims import claims_table
from benchmarks.paper.methods import METHODS, STEP, TOL
from benchmarks.paper.optimum import REFERENCE_GAP
from benchmarks.paper.runs import BUDGET
from benchmarks.paper.setups import CENSUS_ROWS, N_FEATURES, SETUPS
from benchmarks.paper.store import RESULTS
from benchmarks.paper.tables import (
    complexity_table,
    default_table,
    leader_table,
    number,
    reach_table,
    settings_table,
    test_table,
    value_table,
)
from benchmarks.paper.tuning import BETTER

__all__ = ["PAGE", "TEMPLATE", "text", "write"]

PAGE = RESULTS.parent / "RESULTS.md"
TEMPLATE = Path(__file__).with_name("RESULTS.template.md")
BROO_EPS = 1e-3
FACTS = {
    "gdro_synthetic": "The paper's synthetic set-up: {m} groups of {n} rows, {d} columns, radius {radius}, logistic "
    "loss.",
    "mero_synthetic": "The same sizes; labels follow their rule with probabilities from {most_right} to {least_right}. "
    "Values are excess risks over each group's own minimum, certified to {reference_gap}.",
    "gdro_4000": "{m} groups of {n} rows, so that test rows can show something. The radius, {radius}, has the least "
    "worst risk on as many validation rows of another seed ({at_radius}; the zero model has {zero}), and all methods "
    "use it. With {few} rows per group no radius is below {few_best}.",
    "mero_4000": "{m} groups of {n} rows, with the radius of GDRO.",
    "gdro_census": "The census by race and sex: {m} groups, {some_rows} of its rows, of which {rows} for training; "
    "a seed is a new split. {d} columns, radius {radius}, logistic loss.",
    "mero_census": "The same rows and splits, with excess risks.",
    "gdro_cifar": "CIFAR-100 with its {m} classes as groups: {rows} training images, {pixels} pixels, linear softmax "
    "model, radius {radius}. Seeds change the methods' random numbers only.",
    "mero_cifar": "CIFAR-100 with its {m} superclasses as groups: single classes can be fitted perfectly, so that "
    "excess risks would be risks. Otherwise as before.",
}


def text() -> str:
    """Return the page."""
    panels = [panel(name) for name in SETUPS if has(name)]
    claims, details = claims_table(panels)
    default, counts = default_table(panels)
    leaders, led_behind, led_ahead = leader_table(panels)
    filled = TEMPLATE.read_text().format(
        claims=claims, details=details, default_table=default, leader_table=leaders, lead_behind=led_behind,
        lead_ahead=led_ahead, **{f"default_{kind}": count for kind, count in counts.items()},
        lead_cells=led_behind + led_ahead, budget=f"{BUDGET:g}", tol=f"{TOL:g}", bracket=_bracket(),
        better=f"{1 - BETTER:.0%}",
        step_multiplier=f"{STEP['multiplier']:.2g}", step_length=f"{STEP['length']:g}",
 timing_words=_timing_words(),
        sections="\n\n".join(_section(own) for own in panels), complexity_table=complexity_table(),
        not_run=_not_run(panels), **_complexity_facts(), **_broo(),
    )  # fmt: skip
    return re.sub(r"e([+-])0(\d)", r"e\1\2", filled)  # 1e-8, not 1e-08


def write() -> None:
    """Write the page."""
    PAGE.write_text(text())
    print(f"{PAGE.name}: {len(text().splitlines())} lines")


def _section(own: Panel) -> str:
    setup = SETUPS[own.setup]
    parts = [
        f"## {setup.title}",
        f"{_facts(own)} {own.seeds} seeds.",
        f"![Suboptimality by evaluations and CPU seconds, and test values](results/paper_{own.setup}.svg)",
        "Suboptimality on training rows at budgets in multiples of the rows:",
        value_table(own),
        "Multiples of the rows and CPU seconds until the worst value is within a share of the best:",
        reach_table(own),
    ]
    if setup.tests:
        parts += ["Worst value on test rows:", test_table(own)]
    else:
        zero = np.log(2.0)
        least = min(v for c in own.curves for v in own.at(c, BUDGET, "test").values())
        words = f"the zero model has a risk of {zero:.3f} in every group" if own.kind == "gdro" else "regrets rise too"
        parts.append(
            f"Test rows show nothing here: with about as many columns as rows per group every method overfits ({words};"
            f" the least worst value of any run at the whole budget is {least:.3f})."
        )
    parts += ["Settings, tuned on seed 0:", settings_table(own)]
    return "\n\n".join(parts)


def _facts(own: Panel) -> str:
    setup = SETUPS[own.setup]
    m, rows, d = setup.shape
    fields = {"m": m, "n": f"{rows // m:,}", "rows": f"{rows:,}", "d": f"{d:,}", "pixels": f"{d - 1:,}",
              "radius": f"{setup.radius:g}", "reference_gap": f"{REFERENCE_GAP:g}", "zero": f"{np.log(2.0):.4f}",
              "some_rows": f"{CENSUS_ROWS:,}", "most_right": "0.95", "least_right": "0.80"}  # fmt: skip
    path = RESULTS / "paper_radius.parquet"
    if path.exists():
        radii = pd.read_parquet(path)
        few = radii[radii["n"] < rows // m]
        here = radii[(radii["n"] == rows // m) & (radii["radius"] == setup.radius)]
        if len(here) and len(few):
            fields |= {"at_radius": f"{here['validation'].iloc[0]:.4f}", "few": f"{few['n'].iloc[0]:,}",
                       "few_best": f"{few['validation'].min():.4f}"}  # fmt: skip
    return FACTS[own.setup].format(**fields)


def _bracket() -> str:
    best = pd.read_parquet(RESULTS / "paper_best.parquet")
    return number(float(((best["upper"] - best["lower"]) / best["upper"].abs()).max())) + " relative"


def _loads() -> pd.DataFrame:
    parts = [pd.read_parquet(RESULTS / f"paper_{name}.parquet", columns=["load_start", "load_end"])
             for name in SETUPS if has(name)]  # fmt: skip
    return pd.concat(parts)


def _timing_words() -> str:
    loads = _loads().to_numpy()
    words = (
        "Runs were made on one thread of a shared machine with two cores, whose load average was between "
        f"{loads.min():.1f} and {loads.max():.1f} when runs began and ended. Wall-clock times say nothing under such "
        "loads, so seconds here are CPU seconds of the process, without the evaluations for the curves; caches were "
        "shared with other work."
    )
    path = RESULTS / "paper_timings.parquet"
    if path.exists():
        timed = pd.read_parquet(path)
        quiet = int(timed["quiet"].sum())
        words += (
            " `python -m benchmarks.paper timings` repeats one run of every chosen setting alone and marks it quiet if "
            f"no other work raised the load: {quiet} of {len(timed)} were."
        )
    return words


def _not_run(panels: list[Panel]) -> str:
    done = {own.setup: own for own in panels}
    lines = []
    for name, setup in SETUPS.items():
        if name not in done:
            lines.append(f"- {setup.title}: not run.")
            continue
        own = done[name]
        missing = [m for m, method in METHODS.items() if method.fits(setup) and m not in {c[0] for c in own.curves}]
        few = [f"{c[0]} {len(runs)}" for c, runs in own.curves.items()
               if len(runs) < setup.seeds and (METHODS[c[0]].random or setup.new_data)]  # fmt: skip
        if missing:
            lines.append(f"- {setup.title}: no runs of {', '.join(missing)}.")
        if few:
            lines.append(
                f"- {setup.title}: fewer than the planned {setup.seeds} seeds ({', '.join(dict.fromkeys(few))})."
            )
    return "\n".join(lines) or "Everything that was planned was run."


def _complexity_facts() -> dict[str, str]:
    rows = pd.read_parquet(RESULTS / "paper_complexity.parquet")
    mero = rows["method"].isin(["ALEM", "TSA", "ERMEG"])
    return {
        "c_m": str(complexity.M), "c_n": str(complexity.N), "c_eps": f"{complexity.EPS:g}",
        "c_coarse": f"{complexity.COARSER['TSA'] * complexity.EPS:g}", "c_seconds": f"{complexity.MOST_SECONDS:g}",
        "c_seeds": str(rows[~mero]["seed"].nunique()), "c_seeds_mero": str(rows[mero]["seed"].nunique()),
    }  # fmt: skip


def _broo() -> dict[str, str]:
    """Return what BROO-KX would need on the first synthetic problem."""
    X, _, _ = gd.datasets.make_gdro(n_groups=25, n_per_group=1000, n_features=N_FEATURES, seed=0)
    G, R = float(np.sqrt((X**2).sum(axis=1).max())), SETUPS["gdro_synthetic"].radius
    r = BROO_EPS / (2 * G * np.log(25))
    steps = (R / r) ** (2 / 3)
    return {"broo_G": f"{G:.1f}", "broo_R": f"{R:g}", "broo_eps": f"{BROO_EPS:g}", "broo_r": f"{r:.1e}",
            "broo_steps": f"{steps:,.0f}", "broo_times": f"{steps / BUDGET:.0f}"}  # fmt: skip
