"""RESULTS.md from its template: every number is computed here from the stored files."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

import groupdro as gd
from benchmarks.paper import complexity, tuned, tuned_tables
from benchmarks.paper.analysis import FEWEST, Panel, has, panel, zero_values
from benchmarks.paper.claims import JUDGED, claims_table, exponent_words, verdicts
from benchmarks.paper.contenders import METHODS, STEP, TOL
from benchmarks.paper.figures import label
from benchmarks.paper.optimum import reference_gap
from benchmarks.paper.runs import BUDGET
from benchmarks.paper.setups import CENSUS_ROWS, KNOWN, N_FEATURES, SETUPS
from benchmarks.paper.store import RESULTS
from benchmarks.paper.tables import (
    best_rival_table,
    complexity_table,
    counts_table,
    default_table,
    has_finer_steps,
    n_tuning_seeds,
    number,
    reach_table,
    rows_of,
    settings_table,
    test_table,
    value_table,
)
from benchmarks.paper.timings import TIMINGS, n_settings
from benchmarks.paper.tuned_tables import root_of_m, stored
from benchmarks.paper.tuning import BETTER, FINALISTS, FINER, UNSTABLE
from groupdro.solvers import sqp

__all__ = ["PAGE", "READERS", "TEMPLATE", "for_readers", "stored_panels", "text", "write"]

PAGE = RESULTS.parent / "RESULTS.md"
TEMPLATE = Path(__file__).with_name("RESULTS.template.md")
READERS = RESULTS.parents[1] / "docs" / "from_the_paper.md"
#: Five claims in a line each: by words, what each part of the line is called, and its claim.
SHORT = {
    "ALEG is ahead of MPVR:": {
        "with constant steps ": "ALEG is ahead of MPVR",
        "with alterable ones ": "ALEG with alterable steps is ahead of MPVR",
    },
    "ALEG is ahead of SMD:": {"": "ALEG is ahead of SMD"},
    "ALEG is ahead of AL-SVRE:": {"": "ALEG is ahead of AL-SVRE"},
    "ALEM is ahead of ERMEG and TSA:": {
        "of ERMEG with our oracle ": "ALEM is ahead of ERMEG with our oracle",
        "of ERMEG with a first-order oracle ": "ALEM is ahead of ERMEG with a first-order oracle",
        "of TSA ": "ALEM is ahead of TSA",
    },
}
VERDICTS = re.compile(r"(<!-- verdicts.*?-->\n).*?(\n<!-- end of verdicts -->)", re.DOTALL)
IN_SHORT = re.compile(r"(<!-- short verdicts -->\n).*?(\n<!-- end of short verdicts -->)", re.DOTALL)
BROO_EPS = 1e-3
FACTS = {
    "gdro_synthetic": "The paper's synthetic rule with {m} groups, {d} columns and logistic loss. The {n} rows per "
    "group and the radius of {radius} are our choice.",
    "mero_synthetic": "The same sizes; labels follow their rule with probabilities from {most_right} to {least_right}. "
    "Values are excess risks over each group's own minimum, certified to {reference_gap}.",
    "gdro_4000": "{m} groups of {n} rows. All methods use the radius {radius}, which has the lowest worst-group risk "
    "on validation rows of another seed: {at_radius}, {gain} below the zero model's {zero}. With {few} rows per group "
    "the best radius is {few_gain} below it.",
    "mero_4000": "{m} groups of {n} rows, with the radius of GDRO, which was not chosen again. The search for the "
    "average of the paper's ALEM was broken off while it still gained a little.",
    "gdro_census": "The census by race and sex: {m} groups, {some_rows} of its rows, of which {rows} for training; "
    "a seed is a new split. {d} columns, logistic loss. The radius of {radius} is our choice.",
    "mero_census": "The same rows and splits, with excess risks.",
    "gdro_cifar": "CIFAR-100 with its {m} classes as groups: {rows} training images, {pixels} pixels, linear softmax "
    "model. The radius of {radius} is our choice. Seeds change the methods' random numbers only.",
    "mero_cifar": "CIFAR-100 with its {m} superclasses as groups: single classes can be fitted perfectly, so that "
    "excess risks would be risks. Each group's own minimum is certified to {reference_gap}. Otherwise as before. A run "
    "takes minutes, so that the search tried both neighbouring multipliers of every setting, but not every neighbour.",
}
MERO_START = ", and those of MERO at the steps that were found for GDRO"


def stored_panels() -> list[Panel]:
    """Return the set-ups that are stored with our default."""
    return [own for own in map(panel, filter(has, SETUPS)) if own.default in own.curves]


def for_readers() -> str:
    """Return the page for readers of the paper, with both lists of verdicts written anew."""
    header = ["claim", *(f"at {budget}" for budget in JUDGED)]
    found = verdicts(stored_panels())
    table = rows_of(header, [[claim, *words] for claim, words in found.items()])
    page = VERDICTS.sub(lambda marks: f"{marks[1]}\n{table}\n{marks[2]}", READERS.read_text())
    return IN_SHORT.sub(lambda marks: f"{marks[1]}\n{_in_short(found)}\n{marks[2]}", page)


def _in_short(found: dict[str, list[str]]) -> str:
    """Return five verdicts in a line each."""
    lines = []
    for words, claims in SHORT.items():
        parts = [f"{name}{_at_budgets(found[f'{claim} on training rows'])}" for name, claim in claims.items()]
        lines.append(f"- **{words}** {'; '.join(parts)}.")
    return "\n".join(
        [*lines, f"- **ALEG needs fewer evaluations than MPVR by the root of m.** {root_of_m(stored()[0])}"]
    )


def _at_budgets(words: list[str]) -> str:
    """Return at which budgets each verdict holds."""
    places: dict[str, list[str]] = {}
    for budget, verdict in zip(JUDGED, words, strict=True):
        places.setdefault(verdict, []).append(str(budget))
    if len(places) == 1:
        return f"{next(iter(places))} at all four budgets"
    return ", ".join(f"{verdict} at {' and '.join(at)}" for verdict, at in places.items())


def text() -> str:
    """Return the page."""
    panels = stored_panels()
    claims, details = claims_table(panels)
    default, on_train = default_table(panels)
    tests, on_test = default_table(panels, "test")
    best, against_best = best_rival_table(panels)
    counts = {
        "suboptimality on training rows, with every tuned rival": _total(on_train),
        "the same, without the census, where `auto` forms Hessians":
            _total({name: count for name, count in on_train.items() if SETUPS[name].of_the_paper}),
        "worst value on test rows, with every tuned rival": _total(on_test),
        "the same, set-ups on which claims on test rows are judged":
            _total({name: count for name, count in on_test.items() if SETUPS[name].tests}),
        "suboptimality on training rows, with the best rival of each budget in evaluations": against_best["multiples"],
        "suboptimality on training rows, with the best rival of each budget in seconds": against_best["seconds"],
    }  # fmt: skip
    in_bold = bool(_total(on_train)["behind"])
    filled = TEMPLATE.read_text().format(
        claims=claims, details=details, default_table=default, test_table=tests, best_table=best,
        counts=counts_table(counts), bold=" Bold: the rival is ahead." * in_bold,
        budget=f"{BUDGET:g}", tol=f"{TOL:g}", bracket=_bracket(), better=f"{1 - BETTER:.0%}", fewest=FEWEST,
        spacing=_spacing(), starts=_starts(), mero_start=MERO_START * has("mero_cifar"),
        others=FEWEST - 1, most_runs=_most_runs(),
        finalists=FINALISTS, unstable=f"{UNSTABLE:g}", finer=f"{STEP['multiplier'] ** FINER:.2g}",
        tuned_words=_tuned_words(panels), alem_words=_alem_words(panels), **_hessian(),
        step_multiplier=f"{STEP['multiplier']:.2g}", step_length=f"{STEP['length']:g}",
        timing_words=_timing_words(panels),
        complexity_table=complexity_table(pd.read_parquet(RESULTS / "paper_complexity.parquet")),
        sections="\n\n".join(_section(own) for own in panels), exponent_words=exponent_words(),
        not_run=_not_run(panels), commands=_commands(panels),
        alterable=_alterable(panels), **_complexity_facts(), **_tuned_facts(), **_broo(),
    )  # fmt: skip
    return re.sub(r"e([+-])0(\d)", r"e\1\2", filled)  # 1e-8, not 1e-08


def _total(counts: dict[str, Counter]) -> Counter:
    return sum(counts.values(), Counter())


def _spacing() -> str:
    """Return the multiples of the rows between stored points, with the set-ups that differ."""
    usual = SETUPS["gdro_synthetic"].spacing
    others = [
        f"{setup.title}: {setup.spacing:g}" for name, setup in SETUPS.items() if has(name) and setup.spacing != usual
    ]
    return f"{usual:g}" + (f" ({'; '.join(others)})" if others else "")


def _most_runs() -> str:
    """Return the limits on the runs of a search, in words."""
    limits = sorted({setup.most_runs for name, setup in SETUPS.items() if has(name)})
    return f"{', '.join(map(str, limits[:-1]))} or {limits[-1]}" if len(limits) > 1 else str(limits[0])


def _starts() -> str:
    """Return the settings at which searches start that do not start at a method's own."""
    known: dict[str, list[str]] = {}
    for name, outputs in ((n, o) for setup, methods in KNOWN.items() if has(setup) for n, o in methods.items()):
        for setting in dict.fromkeys(outputs.values()):
            known.setdefault(METHODS[name].shown(setting), []).append(name)
    words = "; ".join(f"{' and '.join(names)}: {shown}" for shown, names in known.items())
    near = ("Elsewhere they also start at the settings that had been found by then on the two other set-ups of the "
            "same objective")  # fmt: skip
    return f"({words}). {near}"


def _tuned_words(panels: list[Panel]) -> str:
    """Return which methods were tuned on several seeds, and which on the first one alone."""
    several, first = [], []
    for own in panels:
        tuned = [c for c in own.curves if METHODS[c[0]].tuned]
        seeds = {label(c): n_tuning_seeds(own, c) for c in tuned}
        done = [c for c in tuned if seeds[label(c)] > 1]
        coarse = [label(c) for c in done if not has_finer_steps(own, c)]
        if done:
            only = f", only {'; '.join(map(label, done))}" if len(done) < len(tuned) else ""
            only += f", without finer steps for {'; '.join(coarse)}" if coarse else ""
            several.append(f"{SETUPS[own.setup].title} ({max(seeds.values())} seeds{only})")
        else:
            first.append(SETUPS[own.setup].title)
    words = f"So far this was done for: {'; '.join(several)}." if several else ""
    return words + (f" Not yet, so that seed 0 alone decided: {'; '.join(first)}." if first else "")


def _alterable(panels: list[Panel]) -> str:
    """Return on which set-ups alterable steps were run."""
    method = "ALEG of the paper, alterable"
    return "; ".join(SETUPS[own.setup].title for own in panels if method in {name for name, _ in own.curves})


def _alem_words(panels: list[Panel]) -> str:
    """Return on which set-ups the stored runs of ALEM are older than its first stage."""
    curve = "ALEM of the paper", "average"
    old = [SETUPS[own.setup].title for own in panels if curve in own.curves and n_tuning_seeds(own, curve) < 2]
    text = ("It subtracts the risks of the averages, as published, with epochs of the mean group size. Older runs "
            "subtract the risk of the best snapshot and have epochs as long as the group: ")  # fmt: skip
    return text + f"{'; '.join(old)}." if old else text.split(" Older")[0]


def _hessian() -> dict[str, str]:
    """Return up to how many parameters SQP forms Hessians, and how many passes one is worth on the census."""
    columns = SETUPS["gdro_census"].shape[2]
    # A triangle of products of columns per row, against a product with w and one with the slopes.
    return {"newton": str(sqp.SETTINGS.newton_size), "hessian": f"{columns * (columns + 1) / 2 / (2 * columns):.0f}"}


def write() -> None:
    """Write the page, and the verdicts on that for readers of the paper."""
    for path, page in ((PAGE, text()), (READERS, for_readers())):
        path.write_text(page)
        print(f"{path.name}: {len(page.splitlines())} lines")


def _section(own: Panel) -> str:
    setup = SETUPS[own.setup]
    parts = [
        f"## {setup.title}",
        f"{_facts(own)} Seeds: {own.seeds}.",
        f"![Suboptimality and test values](results/paper_{own.setup}.svg)",
        "Suboptimality on training rows at budgets in multiples of the rows:",
        value_table(own),
        f"Multiples of the rows{' and seconds' * bool(own.timed)} until the worst value is within a share of the best:",
        reach_table(own),
    ]
    parts += [f"Worst value on test rows. {_zero_words(own)}", test_table(own)]
    parts += ["Settings:", settings_table(own)]
    return "\n\n".join(parts)


def _zero_words(own: Panel) -> str:
    """Return the zero model's value on test rows, how many runs are below it at the end, and the lowest mean."""
    zero = zero_values(own)
    ends = {curve: own.at(curve, BUDGET, "test") for curve in own.curves}
    runs = [value < zero[seed] for values in ends.values() for seed, value in values.items()]
    means = {curve: float(np.mean([*values.values()])) for curve, values in ends.items() if values}
    lowest = min(means, key=lambda curve: means[curve])
    least, most = f"{min(zero.values()):.4f}", f"{max(zero.values()):.4f}"
    shown = least if least == most else f"{least} to {most}, by seed"
    return (f"The zero model has {shown}; at {BUDGET:g} multiples {sum(runs)} of {len(runs)} runs are below it, and "
            f"the lowest mean is {means[lowest]:.4f} ({label(lowest)}).")  # fmt: skip


def _facts(own: Panel) -> str:
    setup = SETUPS[own.setup]
    m, rows, d = setup.shape
    fields = {"m": m, "n": f"{rows // m:,}", "rows": f"{rows:,}", "d": f"{d:,}", "pixels": f"{d - 1:,}",
              "radius": f"{setup.radius:g}", "reference_gap": f"{reference_gap(own.setup):g}",
              "zero": f"{np.log(2.0):.4f}", "some_rows": f"{CENSUS_ROWS:,}",
              "most_right": "0.95", "least_right": "0.80"}  # fmt: skip
    path = RESULTS / "paper_radius.parquet"
    if path.exists():
        radii = pd.read_parquet(path)
        few = radii[radii["n"] < rows // m]
        here = radii[(radii["n"] == rows // m) & (radii["radius"] == setup.radius)]
        if len(here) and len(few):
            at_radius, zero = float(here["validation"].iloc[0]), float(np.log(2.0))
            few_gain = zero - float(few["validation"].min())
            fields |= {"at_radius": f"{at_radius:.4f}", "gain": number(zero - at_radius),
                       "few": f"{few['n'].iloc[0]:,}", "few_gain": number(few_gain)}  # fmt: skip
    return FACTS[own.setup].format(**fields)


def _bracket() -> str:
    best = pd.read_parquet(RESULTS / "paper_best.parquet")
    return number(float(((best["upper"] - best["lower"]) / best["upper"].abs()).max())) + " relative"


def _timing_words(panels: list[Panel]) -> str:
    """Return how seconds were measured."""
    loads = pd.concat([pd.read_parquet(RESULTS / f"paper_{own.setup}.parquet", columns=["load_start", "load_end"])
                       for own in panels]).to_numpy()  # fmt: skip
    words = (
        "The runs of all seeds were made on one thread of a shared machine with two cores, whose load average was "
        f"between {loads.min():.1f} and {loads.max():.1f} when they began and ended."
    )
    if any(own.timed for own in panels):
        keys = ["setup", "method", "setting"]
        stored = [pd.read_parquet(RESULTS / f"paper_{own.setup}.parquet", columns=keys[1:]).assign(setup=own.setup)
                  for own in panels]  # fmt: skip
        table = pd.read_parquet(RESULTS / TIMINGS).merge(pd.concat(stored).drop_duplicates(), on=keys)
        words += (
            f" Seconds are those of an idle machine: {n_settings(table)} runs, one of each setting on seed 0, "
            "were made again, one at a time, while other processes kept at most "
            f"{table['others'].max():.2f} cores busy (the load average, which remembers earlier minutes, was "
            f"{table['load_start'].min():.1f} to {table['load_end'].max():.1f}); the other seeds take their clock from "
            "them, by the multiples that they have spent, so that intervals of seconds show how these vary, and not "
            "how a timing does. The evaluations for the curves are not counted."
        )
    missing = []
    for own in panels:
        names = dict.fromkeys(curve[0] for curve in own.curves if curve not in own.timed)
        if names:
            missing.append(f"{SETUPS[own.setup].title} ({'; '.join(names)})")
    if missing:
        words += f" Not timed yet: {', '.join(missing)}. Figures and counts by seconds need all methods of a set-up."
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
        few = [f"{c[0]} {own.repeated[c]}" for c, runs in own.curves.items()
               if own.repeated[c] < setup.seeds and (METHODS[c[0]].random or setup.new_data)
               and (len(runs) > 1 or own.repeated[c] == 1)]  # fmt: skip
        if missing:
            lines.append(f"- {setup.title}: no runs of {'; '.join(missing)}.")
        if few:
            lines.append(
                f"- {setup.title}: fewer than the planned {setup.seeds} seeds ({'; '.join(dict.fromkeys(few))})."
            )
    lines += _complexity_not_run()
    return "\n".join(lines) or "Everything that was planned was run."


def _commands(panels: list[Panel]) -> str:
    """Return the commands that run the stored set-ups, methods and seeds."""
    lines = []
    for own in panels:
        run = list(dict.fromkeys(method for method, _ in own.curves))
        fitting = [m for m, method in METHODS.items() if method.fits(SETUPS[own.setup])]
        seeds = max(own.repeated.values())
        line = f"python -m benchmarks.paper runs {own.setup}" + f" --seeds {seeds}" * (seeds < SETUPS[own.setup].seeds)
        names = " ".join(f'"{m}"' if " " in m else m for m in run)
        lines.append(line + f" --methods {names}" * (len(run) < len(fitting)))
    seeds = pd.read_parquet(RESULTS / "paper_complexity.parquet")["seed"].nunique()
    lines.append("python -m benchmarks.paper complexity" + f" --seeds {seeds}" * (seeds < complexity.SEEDS))
    lines.append("python -m benchmarks.paper tuned")
    timed = [own.setup for own in panels if own.timed]
    lines += [f"python -m benchmarks.paper timings {' '.join(timed)}"] if timed else []
    return "\n".join(["python -m benchmarks.paper radius", *lines])


def _complexity_not_run() -> list[str]:
    rows = pd.read_parquet(RESULTS / "paper_complexity.parquet")
    done = set(zip(rows["method"], rows["constants"], rows["axis"], strict=True))
    missing: dict[str, list[str]] = {}
    for method in complexity.PREDICTED:
        for constants in ("paper",) if method == "ERMEG" else ("paper", "tight"):
            axes = [axis for axis in complexity.AXES if (method, constants, axis) not in done]
            if axes:
                words = "published" if constants == "paper" else "tight"
                missing.setdefault(method, []).append(f"{words} constants: {', '.join(axes)}")
    lines = [f"- Complexity table, {method}: not run ({'; '.join(parts)})." for method, parts in missing.items()]
    if rows["seed"].nunique() < complexity.SEEDS:
        lines.append(f"- Complexity table: fewer than the planned {complexity.SEEDS} seeds ({rows['seed'].nunique()}).")
    return lines


def _complexity_facts() -> dict[str, str]:
    rows = pd.read_parquet(RESULTS / "paper_complexity.parquet")
    coarse = f" ({complexity.COARSER['TSA'] * complexity.EPS:g} for TSA)" if (rows["method"] == "TSA").any() else ""
    return {
        "c_m": str(complexity.M), "c_n": str(complexity.N), "c_eps": f"{complexity.EPS:g}",
        "c_coarse": coarse, "c_seconds": f"{complexity.MOST_SECONDS:g}",
        "c_seeds": str(rows["seed"].nunique()), "c_log": f"{_log_slope():.2f}",
        "c_first": f"{complexity.TSA_STEPS:g} / eps^2",
    }  # fmt: skip


def _tuned_facts() -> dict[str, str]:
    """Return the tables of tuned steps, and how they were measured."""
    found, untuned = tuned_tables.stored()
    lengths = {name: f"{v:g}" for name, v in (("t_seeds", tuned.SEEDS), ("t_passes", tuned.MOST_PASSES),
                                              ("t_m", tuned.M), ("t_n", tuned.N))}  # fmt: skip
    return lengths | {
        "t_ratio": tuned_tables.ratio_table(found),
        "t_factors": tuned_tables.factor_table(found),
        "t_crossing": tuned_tables.crossing_table(found),
        "t_untuned": tuned_tables.untuned_table(untuned),
        "t_local": tuned_tables.local_table(found, pd.read_parquet(RESULTS / "paper_complexity.parquet")),
        "t_words": tuned_tables.root_of_m(found),
    }


def _log_slope() -> float:
    """Return what the root of ln m adds to a slope over the measured m."""
    x = np.log(complexity.GROUPS)
    return float(np.polyfit(x, 0.5 * np.log(x), 1)[0])


def _broo() -> dict[str, str]:
    """Return what BROO-KX would need on the first synthetic problem."""
    X, _, _ = gd.datasets.make_gdro(n_groups=25, n_per_group=1000, n_features=N_FEATURES, seed=0)
    G, R = float(np.sqrt((X**2).sum(axis=1).max())), SETUPS["gdro_synthetic"].radius
    r = BROO_EPS / (2 * G * np.log(25))
    steps = (R / r) ** (2 / 3)
    return {"broo_G": f"{G:.1f}", "broo_R": f"{R:g}", "broo_eps": f"{BROO_EPS:g}", "broo_r": f"{r:.1e}",
            "broo_steps": f"{steps:,.0f}", "broo_times": f"{steps / BUDGET:.0f}"}  # fmt: skip
