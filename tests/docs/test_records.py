"""Numbers that pages quote as measured are those of a stored file, and numbers of settings those of the code."""

import inspect
import json
import re

import numpy as np
import pytest

from tests.docs.examples import printed
from tests.docs.pages import DOCS, PAGES, ROOT, without_fences

RESULTS = ROOT / "benchmarks" / "results"
NUMBER = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?")
#: Times, sizes in memory and ratios of times.
QUANTITY = re.compile(r"(?<![\w.])\d[\d.,]* (?:[mun]?s|(?:CPU )?seconds?|minutes?|[kMG]i?B|times)\b")


def stored(name):
    return json.loads((RESULTS / name).read_text())


def section(name, heading):
    """Return the text of a page below a heading, up to the next one of the same or a higher level."""
    text = (DOCS / name).read_text()
    begin = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert begin, f"{name} has no heading {heading!r}"
    rest = text[begin.end() :]
    end = re.search(rf"^#{{1,{len(begin[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def assert_quotes(name, heading, *expected):
    """Assert that a section has the expected numbers, written like this."""
    found = {number.rstrip(",.") for number in NUMBER.findall(section(name, heading))}
    missing = [number for number in expected if number not in found]
    assert not missing, f"{name}, {heading}: {missing} are not quoted"


def rows_of(text):
    """Return the cells of the lines of all tables."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def quantities(text):
    return QUANTITY.findall(" ".join(re.sub(r"`[^`]*`", "", without_fences(text)).split()))


# ---------------------------------------------------------------------- times, sizes and ratios of times


def of_inside():
    from groupdro.solvers.steps import table
    from groupdro.store import manifest

    ours = {(row[0], row[1].split(",")[0]): row[3:] for row in products() if row[0] == "1"}
    outputs = stored("several_outputs.json")
    return [
        f"{1e3 * table._SECONDS_PER_PIECE:g} ms",
        f"{manifest.BLOCK // 2**20} MiB",
        f"{ours['1', 'random'][0]} ms",
        *(f"{ratio} times" for ratio in ours["1", "random"][1:3]),
        f"{outputs['ratio of a full pass']:.2f} times",
    ]


def of_benchmarks():
    hashed = stored("internet_scale.json")
    write, race = hashed["write"], hashed["race"]
    found = [f"{write['seconds']:.0f} s", f"{write['peak_GB']:.1f} GB", f"{race['seconds']:.0f} s"]
    for rows in ("40,000,000 rows, auto, {} workers", "4,000,000 rows, auto, {} workers, 1,048,576 features"):
        one, two = (hashed["fit of " + rows.format(n)] for n in (1, 2))
        assert {one["status"], two["status"]} == {"converged"}
        assert one["epochs"] == two["epochs"]
        found += [f"{fit['seconds']:.0f} s" for fit in (one, two)]
        found.append(f"{one['seconds'] / two['seconds']:.2f} times")
    two = hashed["fit of 40,000,000 rows, auto, 2 workers"]
    return [*found, f"{two['memory_limit_GB']:.0f} GB", f"{two['seconds_of_messages']:.0f} s"]


def of_last_layer():
    run = stored("last_layer_stream.json")
    seconds = [run[f"seconds_to_{what}"] for what in ("extract", "draw", "retrain")]
    sizes = f"{run['feature_bytes'] / 1e9:.1f}", f"{run['limit_bytes'] / 1e9:.0f}", f"{run['peak_own_bytes'] / 1e9:.2f}"
    return [*(f"{size} GB" for size in sizes), *(f"{each:.0f} s" for each in seconds)]


def of_known_limits():
    from groupdro.problem import separation

    ratio = stored("speed.json")["text"]["lbfgs"]["ours over theirs"]
    return [f"{separation._SECONDS:g} seconds", f"{ratio} times"]


def of_scaling():
    from benchmarks.scale import make

    from groupdro.store import manifest

    run = stored("small_memory.json")["store"]
    assert run["fit"]["status"] == "converged"
    own = max(step["peak_GB"] for step in run.values() if isinstance(step, dict))
    sizes = [f"{run['GB']:g} GB", f"{run['limit_GB']:g} GB", f"{own:.2f} GB"]
    rows, features = (inspect.signature(make).parameters[name].default for name in ("n_rows", "n_features"))
    return [f"{manifest.BLOCK // 2**20} MiB", f"{4 * rows * features / 1e9:.0f} GB", *sizes]


def of_algorithms():
    from groupdro.solvers import dual_ascent

    return [f"{dual_ascent._RELAXATION} times"]


def of_from_the_paper():
    from benchmarks.paper import tuned, tuned_tables

    ratios = tuned.against(tuned_tables.stored()[0], "MPVR")
    return [f"{ratios[ratios['n'] == tuned.N]['ratio'].max():.2f} times"]


def of_metrics():
    found = stored("judging_metric_frame.json")
    times = [fit["seconds"] for kind in ("classes", "probabilities") for fit in found[kind].values()]
    memory = found["classes"]["MetricFrame, 2 resamples"]["megabytes"]
    return [*(f"{seconds:.1f} s" for seconds in times), f"{memory} MB"]


#: What each page quotes; all other pages quote nothing.
QUOTED = {
    "algorithms.md": of_algorithms,
    "benchmarks.md": of_benchmarks,
    "comparison.md": lambda: [f"{stored('speed.json')['clarabel']['CPU seconds']['Clarabel']} CPU seconds"],
    "from_the_paper.md": of_from_the_paper,
    "inside.md": of_inside,
    "known_limits.md": of_known_limits,
    "last_layer.md": of_last_layer,
    "metrics.md": of_metrics,
    "scaling.md": of_scaling,
}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "README.md"], ids=lambda page: page.name)
def test_measured_quantities_are_the_stored_ones(page):
    expected = QUOTED[page.name]() if page.parent == DOCS and page.name in QUOTED else []
    assert sorted(quantities(page.read_text())) == sorted(expected), "store the run that gave it, and add it to QUOTED"


def test_quantities_are_found():
    text = "It took 1.5 ms, 2 GB and 30 CPU seconds,\n5 times as long; see `sleep 5 s`.\n```text\n7 s\n```\n3 groups"
    assert quantities(text) == ["1.5 ms", "2 GB", "30 CPU seconds", "5 times"]


# ---------------------------------------------------------------------- other measured numbers


def products():
    lines = [line for line in (RESULTS / "products.md").read_text().splitlines() if "gram" in line]
    return [re.split(r" *\| *", line)[1:-1] for line in lines]


def test_repeated_epochs_of_killed_fits_are_the_stored_ones():
    found = {row[0]: row for row in rows_of((RESULTS / "kills.md").read_text())}
    assert found["all"][1] == found["all"][2] == found["all"][3]
    assert found["all"][4] == "0"
    medians = [found[name][5] for name in ("alem", "dual-ascent", "aleg", "sqp")]
    assert_quotes("scaling.md", "Restarts and failures", found["all"][1], *medians, found["aleg"][6])


def test_numbers_of_the_decisions_are_the_stored_ones():
    from groupdro.distributed.exchange import PeerCommunicator

    ours = {(row[0], row[1].split(",")[0]): row[3:] for row in products()}
    regrets = stored("excess_risk.json")["this version"]["synthetic"]
    ways = [f"{way}, {tol}" for tol in ("1e-02", "1e-03") for way in ("default", "every minimum first")]
    assert_quotes(
        "inside.md", "Design decisions",
        ours["1", "text-like"][1], f"{PeerCommunicator.doubling_limit:,}",
        *(str(regrets[way]["mean"]) for way in ways),
    )  # fmt: skip


def test_the_stream_of_embeddings_is_the_stored_run():
    run = stored("last_layer_stream.json")
    assert run["status"] == "converged"
    assert run["relative_gap"] <= 1e-3
    assert (run["rows"], run["cores"]) == (1_000_000, 2)
    assert_quotes(
        "last_layer.md", "More features than memory",
        f"{run['features']:,}", "0.1%", f"{run['load_average']:.0f}", f"{run['passes']:.0f}",
    )  # fmt: skip


def test_times_of_other_solvers_are_the_stored_ones():
    record = stored("speed.json")
    assert {part["run"]["threads"] for part in record.values()} == {"1"}
    assert_quotes("comparison.md", "Run times", str(record["clarabel"]["CPU seconds"]["groupdro"]))


HASHED = "Sparse rows with millions of features"


def test_fits_of_hashed_rows_are_the_stored_runs():
    record = stored("internet_scale.json")
    write = record["write"]
    one, two = (record[f"fit of 40,000,000 rows, auto, {n} workers"] for n in (1, 2))
    assert one["solver"] == two["solver"]
    assert one["passes"] == two["passes"]
    gap = (two["upper"] - two["lower"]) / two["upper"]
    assert_quotes(
        "benchmarks.md", HASHED,
        f"{write['rows']:,}", f"{write['entries']:,}", f"{gap:.1%}", str(two["epochs"]), f"{two['passes']:.0f}",
        f"{two['entries_per_second'] / 1e6:.0f}",
    )  # fmt: skip


def test_messages_by_the_number_of_features_are_the_stored_ones():
    found = {name: at for name, at in stored("internet_scale.json")["messages"].items() if name.endswith("features")}
    rows = rows_of(section("benchmarks.md", HASHED))
    for name, at in found.items():
        solver = "`sketched-sqp`" if "sketched" in at["solver"] else "`sqp`"
        assert [name.split()[0], solver, f"{at['MB_per_epoch']:.0f}", f"{at['share_of_messages']:.0%}"] in rows
        assert_quotes("benchmarks.md", HASHED, f"{at['rows']:,}")


def test_fits_to_many_groups_are_the_stored_ones():
    fits = {name: fit for name, fit in stored("internet_scale.json")["groups"].items() if isinstance(fit, dict)}
    rows = rows_of(section("benchmarks.md", HASHED))
    for name, fit in fits.items():
        other = fit["together"]
        assert (fit["workers"], other["workers"], fit["rows"], fit["features"]) == (1, 2, 10**6, 2**20)
        assert other["lower"] / other["upper"] < fit["lower"] / fit["upper"]
        cells = [[f"{f['seconds']:.0f}", f"{f['lower']:.3f} to {f['upper']:.3f}"] for f in (fit, other)]
        assert [name.split()[0], f"{fit['median_rows']:.0f}", *cells[0], *cells[1]] in rows
    first, *_, last = fits.values()
    gaps = [f"{100 * (1 - fit['lower'] / fit['upper']):.0f}%" for fit in (first, last)]
    assert_quotes("benchmarks.md", HASHED, *gaps, f"{last['passes']:.0f}", list(fits)[-1].split()[0])


def test_other_tools_on_hashed_rows_are_the_stored_runs():
    record, rows = stored("internet_scale.json"), rows_of(section("benchmarks.md", HASHED))
    speeds, race = record["passes"]["entries_per_second"], record["race"]
    assert_quotes("benchmarks.md", HASHED, f"{record['passes']['rows']:,}", f"{race['rows']:,}")
    for tool, at in race["tools"].items():
        speed = next(value for name, value in speeds.items() if name.startswith(tool))
        risks = [f"{at[name]:.3f}" for name in ("worst_value", "worst_held_out", "average_held_out")]
        assert [tool, f"{speed / 1e6:.0f}", str(at["epochs"]), *risks] in rows


def test_the_correction_is_that_of_the_example():
    rows = re.findall(r"^(.{14}) average [\d.]+, worst ([\d.]+) \(8\)$", printed("plot_corrected_trees"), re.MULTILINE)
    worst = {name.strip(): f"{float(risk):.2f}" for name, risk in rows}
    assert_quotes("boosted_trees.md", "Correcting an existing model", worst["the trees"], worst["robustness 0.5"])


def test_equal_weights_are_nearly_as_good_as_gdro_on_two_tables():
    parts = (ROOT / "examples" / "price_of_robustness.txt").read_text().strip().split("\n\n")
    ratios = [
        float(re.search(r"^balanced ERM\s+\S+\s+(\S+)", part, re.MULTILINE)[1])
        / float(re.search(r"^GDRO\s+\S+\s+(\S+)", part, re.MULTILINE)[1])
        for part in parts
    ]
    assert len(ratios) == 6
    assert all(ratio > 1.0 for ratio in ratios)
    assert sum(ratio < 1.01 for ratio in ratios) == 2


def test_the_price_and_the_gain_of_breaking_ties_are_the_stored_ones():
    text = (RESULTS / "slack.md").read_text()
    falls = {
        tol: max(1.0 - float(r[4]) / float(r[3]) for r in rows_of(text) if r[1] == tol) for tol in ("0.01", "0.0001")
    }
    median, most = re.findall(r"CPU: median ([\d.]+), largest ([\d.]+\d)", text)[0]
    expected = [f"{float(ratio) - 1.0:.0%}" for ratio in (median, most)] + [f"{fall:.1%}" for fall in falls.values()]
    assert_quotes("robustness.md", "Ties at robustness 1", *expected)


def test_the_coverage_of_the_spread_between_groups_is_the_stored_one():
    cells = [row for row in rows_of((RESULTS / "judging_spread.md").read_text()) if len(row) == 9 and "%" in row[3]]
    both = [float(row[column].rstrip("%")) for row in cells for column in (3, 6)]
    heading = "How much groups differ, and what to expect of a new one"
    assert_quotes("judging_predictions.md", heading, f"{min(both):.1f}%", f"{max(both):.1f}%")


def test_the_coverage_of_differences_between_groups_is_the_stored_one():
    text = (RESULTS / "judging_differences.md").read_text()
    shares = [float(cell.rstrip("%")) for row in rows_of(text) if len(row) == 13 for cell in row[3:] if "%" in cell]
    error = re.search(r"standard error is ([\d.]+) percentage", text)[1]
    assert_quotes("methods.md", "Differences between groups", f"{min(shares):.1f}%", f"{max(shares):.1f}%", error)


def test_the_time_of_a_report_and_of_metric_frame_is_the_stored_one():
    found = json.loads((RESULTS / "judging_metric_frame.json").read_text())
    ours, theirs = (found["classes"][name] for name in ("ours, 20 resamples", "MetricFrame, 2 resamples"))
    numbers = f"{found['rows']:,}", str(found["groups"]), *(f"{run['seconds']:.1f}" for run in (ours, theirs))
    others = (f"{run['seconds']:.1f}" for run in found["probabilities"].values())
    memory = (str(run["megabytes"]) for run in (ours, theirs))
    assert_quotes("metrics.md", "To fairlearn and back", *numbers, *memory, *others)


def test_the_last_campaign_is_that_of_its_table():
    [row] = [line for line in (DOCS / "snippets" / "real_data.txt").read_text().splitlines() if "real data" in line]
    converged, minimisers = re.search(r"([\d,]+) of ([\d,]+) that have a minimiser converged", row).groups()
    assert_quotes("developers.md", "Stress tests", converged, minimisers, row.split("|")[4].strip())


# ---------------------------------------------------------------------- settings


def test_what_auto_expects_is_what_the_page_says():
    from groupdro.solvers import auto, sketched_sqp, sqp

    expected = [f"{number:g}" for number in (*auto._NEWTON_EPOCHS, *auto._LBFGS_EPOCHS, auto._DUAL_PASSES)]
    expected += [f"{auto._NEWTON_LIMIT:,}", f"{auto._PATIENCE * auto._HOPELESS:g}", str(auto._DUAL_GROUPS)]
    expected += [f"{auto.MOST_GRADIENT_VALUES:.0e}".replace("e+0", "e"), f"{sketched_sqp.MOST_APART:,}"]
    expected += [f"{sketched_sqp._MOST_CAPPED:,}", str(len(stored("auto_grid.json")["problems"]))]
    assert_quotes("choosing_a_solver.md", "What auto does", *expected)
    assert_quotes(
        "choosing_a_solver.md", "The solvers", str(sqp.SETTINGS.newton_size), f"{sketched_sqp._MOST_CAPPED:,}"
    )


def test_settings_of_the_algorithms_are_those_of_the_code():
    from groupdro.oracle import dual_sweep
    from groupdro.solvers import aleg, sketched_sqp, slack

    assert_quotes("algorithms.md", "ALEG", f"{aleg._TARGET:g}", f"{aleg._RISE - 1:.0%}", str(aleg._ROTATED_FEATURES))
    sketches = f"{sketched_sqp._MOST_BUCKETS:,}", f"{sketched_sqp.MOST_APART:,}"
    assert_quotes("algorithms.md", "Sketched SQP", *sketches)
    assert_quotes("algorithms.md", "Dual ascent", str(dual_sweep._ROUNDS))
    assert_quotes("inside.md", "The slack of the tolerance", f"{slack.SETTINGS.gap_share:.0%}")


def test_other_settings_are_those_of_the_code():
    from groupdro.data import cuts
    from groupdro.distributed import cost
    from groupdro.problem import separation

    assert_quotes("known_limits.md", "Scale", f"{100 * cuts._MOVED:.0f}%")
    assert_quotes("known_limits.md", "The certificate", f"{separation._MOST_ENTRIES / 1e6:g}")
    assert_quotes("scaling.md", "Cost", f"{cost.SHARE:.0%}")


def test_what_helps_tables_without_labels_is_what_was_stored():
    worst = {row[1]: row for row in rows_of((RESULTS / "rows_as_groups.md").read_text()) if row[0].startswith("Adult")}
    assert worst["0.2"][3] == worst["0.1"][3]
    assert_quotes("no_group_labels.md", "Tables without group labels", worst["0.2"][3], f"{float(worst['0.5'][3]):.3f}")
    repairs = (RESULTS / "find_groups" / "shortcuts.md").read_text()
    assert "In 0 of 10 runs, another model than plain training is recommended" in repairs
    planted = {"adult": [], "bank": []}
    for row in rows_of(repairs):
        if row[0].split(",")[0] in planted and len(row) == 10:
            planted[row[0].split(",")[0]].append(row[5] != "plain training" and float(row[6].split()[0]) < 0)
    assert all(planted["adult"])
    assert len(planted["adult"]) == len(planted["bank"]) == 4
    assert sum(planted["bank"]) == 2


def test_what_last_layers_gain_without_labels_is_what_was_stored():
    page = (RESULTS / "no_labels.md").read_text()
    clean, *_, flipped, _ = page.split("\n## ")[1:]
    problems = rows_of(clean)[0][1:]
    tint, patch, rare, phrase, docstrings = (
        problems.index(name)
        for name in (
            "CIFAR-100, tint 95%",
            "Fashion-MNIST, patch 95%",
            "Fashion-MNIST, patch 99%",
            "sentences, phrase 95%",
            "sentences, classes",
        )
    )

    def cells(text):
        found = {
            row[0]: [cell.strip(")").split(" (") for cell in row[1:]] for row in rows_of(text.split("<!-- diff")[0])
        }
        return {name: [(f"{worst}%", f"{average}%") for worst, average in row] for name, row in list(found.items())[2:]}

    worst = {name: [cell[0] for cell in row] for name, row in cells(clean).items()}
    some = [worst[name] for name in ("5 per group, proposed", "60 per group, random", "all labels")]
    ours, plain = worst["no labels"], worst["plain refit"]
    averages = [cells(clean)[name][docstrings][1] for name in ("plain refit", "no labels")]
    noisy = {name: row[phrase][0] for name, row in cells(flipped).items()}
    assert_quotes(
        "no_group_labels.md",
        "What was measured",
        *(row[problem] for row in some for problem in (tint, patch, rare)),
        *(row[problem] for row in (plain, ours) for problem in (tint, patch, rare, phrase, docstrings)),
        *averages,
        *(worst["no labels, chosen by the worst class"][problem] for problem in (patch, rare)),
        noisy["AFR, as for CelebA"],
        noisy["no labels"],
    )
    # no worst group is significantly below that of the plain refit; all rows are, for docstrings only
    lines = [row for row in rows_of(page) if row[0] == "no labels, less plain refit"]
    assert len(lines) == 6
    for _, where, *changes in lines:
        for k, change in enumerate(changes):
            high = float(re.search(r"to ([-+][\d.]+)\)", change)[1])
            assert high > 0 or (where == "all rows" and k == docstrings)
    # one difference to AFR is significant
    lines = [row for row in rows_of(page) if row[0].startswith("no labels, less AFR") and row[1] == "worst group"]
    highs = [float(re.search(r"to ([-+][\d.]+)\)", change)[1]) for row in lines for change in row[2:]]
    assert sum(high < 0 for high in highs) == 1
    # on sentences, most proposed labels are not spread well; on images, most are
    runs = [run for run in stored("no_labels.json")["runs"] if not run["flipped"]]
    warned: dict[bool, list[bool]] = {True: [], False: []}
    for run in runs:
        spread = [numbers["agreement"] for name, numbers in run["methods"].items() if name.endswith("proposed")]
        warned["sentences" in run["problem"]] += [agreement < 0.85 for agreement in spread]
    assert np.mean(warned[True]) > 0.8
    assert np.mean(warned[False]) < 0.1


def test_the_recipe_of_probes_quotes_the_stored_measurements():
    sweep = stored("probe_sweep.json")
    rows = stored("probes.json")
    assert max(sweep["largest gap"], 0.0) <= sweep["tol"]
    assert_quotes("recipes/probe.md", "What the certificate costs", f"{sweep['ratio']:.2f}")
    fits = [row[name] for row in rows for name in ("one group", "classes, robustness .5", "classes, robustness 1")]
    assert all(fit["status"] == "converged" and fit["gap"] <= 1e-3 for fit in fits)
    assert max(fit["ratio"] for fit in fits) <= 3.0
