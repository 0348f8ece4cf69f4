"""What pages quote as measured is in a stored file, and what they quote as a setting is in the code."""

import inspect
import json
import re

import pytest

from tests.docs.examples import printed
from tests.docs.pages import DOCS, PAGES, ROOT, without_fences

RESULTS = ROOT / "benchmarks" / "results"


def words(name):
    return " ".join((DOCS / name).read_text().split())


def stored(name):
    return json.loads((RESULTS / name).read_text())


# ---------------------------------------------------------------------- measured


def test_rates_of_formats_are_the_stored_ones():
    record = stored("row_formats.json")
    rows = re.findall(r"^\| (\S[^|]*) \| ([\d.,]+) \| ([\d.,]+) \|$", (DOCS / "decisions.md").read_text(), re.MULTILINE)
    shown = {name.split()[0].lower(): [float(rate.replace(",", "")) for rate in rates] for name, *rates in rows}
    assert shown == {name: list(rates.values()) for name, rates in record["thousand rows per CPU second"].items()}
    assert f"out of {record['rows']:,} of {record['features']} numbers in the system's cache" in words("decisions.md")


def test_the_stream_of_embeddings_is_the_stored_run():
    run = stored("last_layer_stream.json")
    assert run["status"] == "converged"
    assert run["relative_gap"] <= 1e-3
    assert (run["rows"], run["cores"]) == (1_000_000, 2)
    page = words("last_layer.md")
    assert (
        f"a million embeddings of {run['features']:,} float16 numbers ({run['feature_bytes'] / 1e9:.1f} GB) were read, "
        f"stored and fitted to a relative gap of 0.1% by a process limited to {run['limit_bytes'] / 1e9:.0f} GB of "
        f"memory of its own. It used at most {run['peak_own_bytes'] / 1e9:.2f} GB."
    ) in page
    assert (
        f"(a load of {run['load_average']:.0f}), reading took {run['seconds_to_extract']:.0f} s, of which "
        f"{run['seconds_to_draw']:.0f} s were spent generating the embeddings. Choosing the penalty, sorting and "
        f"{run['passes']:.0f} passes took {run['seconds_to_retrain']:.0f} s"
    ) in page


def test_times_of_other_solvers_are_the_stored_ones():
    record = stored("speed.json")
    assert {part["run"]["threads"] for part in record.values()} == {"1"}
    seconds = record["clarabel"]["CPU seconds"]
    page = words("comparison.md")
    assert f"one run of CVXPY with Clarabel took {seconds['Clarabel']} CPU seconds and" in page
    assert f"the best fit of groupdro to 1e-6 took {seconds['groupdro']}, on one thread" in page
    ratio = record["text"]["lbfgs"]["ours over theirs"]
    assert f"took {ratio} times the CPU time of an ordinary fit by scikit-learn's lbfgs" in words("known_limits.md")


def test_hashed_rows_of_many_groups_are_the_stored_runs():
    record = stored("internet_scale.json")
    write = record["write"]
    one, two = (record[f"fit of 40,000,000 rows, auto, {n} workers"] for n in (1, 2))
    page = words("sparse_text.md")
    assert {one["status"], two["status"]} == {"converged"}
    assert {one["solver"], two["solver"]} == {one["solver"]}
    assert one["solver"].startswith("auto: sketched sqp")
    assert one["passes"] == two["passes"]
    assert (
        f"{write['rows']:,} rows with {write['entries']:,} entries became a store in {write['seconds']:.0f} s, beside "
        f"other work, with at most {write['peak_GB']:.1f} GB of memory"
    ) in page
    gap = (two["upper"] - two["lower"]) / two["upper"]
    assert (
        f"limited to {two['memory_limit_GB']:.0f} GB of memory each, fitted the {two['rows']:,} rows with a penalty of "
        f"1e-5 to a certified relative gap of {gap:.1%} in {two['epochs']} epochs, {two['passes']:.0f} passes and "
        f"{two['seconds']:.0f} s: {two['entries_per_second'] / 1e6:.0f} million entries per second"
    ) in page
    assert f"took {one['seconds']:.0f} s, {one['seconds'] / two['seconds']:.2f} times as long" in page
    assert f"Messages took {two['seconds_of_messages']:.0f} s of" in page


def test_messages_by_the_number_of_features_are_the_stored_ones():
    record, page = stored("internet_scale.json"), words("sparse_text.md")
    found = {name: at for name, at in record["messages"].items() if name.endswith("features")}
    assert page.count("`sketched-sqp` |") == 3
    for name, at in found.items():
        solver = "sketched-sqp" if "sketched" in at["solver"] else "sqp"
        row = f"| {name.split()[0]} | `{solver}` | {at['MB_per_epoch']:.0f} | {at['share_of_messages']:.0%} |"
        assert row in page
        assert f"On {at['rows']:,} of these rows" in page
    one, two = (record[f"fit of 4,000,000 rows, auto, {n} workers, 1,048,576 features"] for n in (1, 2))
    assert {one["status"], two["status"]} == {"converged"}
    assert one["epochs"] == two["epochs"]
    assert (
        f"two workers reached a certified gap of 1% in {two['seconds']:.0f} s and one worker in "
        f"{one['seconds']:.0f} s, {one['seconds'] / two['seconds']:.2f} times as long"
    ) in page


def test_fits_to_many_groups_are_the_stored_ones():
    fits = {name: fit for name, fit in stored("internet_scale.json")["groups"].items() if isinstance(fit, dict)}
    page = words("sparse_text.md")
    for name, fit in fits.items():
        other = fit["together"]
        assert (fit["workers"], other["workers"], fit["rows"], fit["features"]) == (1, 2, 10**6, 2**20)
        assert fit["solver"].startswith("auto: dual ascent")
        assert other["solver"].startswith("auto: dual ascent")
        assert abs(other["passes"] - 242) <= 5  # "in as many passes they certify less"
        assert other["lower"] / other["upper"] < fit["lower"] / fit["upper"]
        row = f"| {name.split()[0]} | {fit['median_rows']:.0f} | "
        row += " | ".join(f"{f['seconds']:.0f} | {f['lower']:.3f} to {f['upper']:.3f}" for f in (fit, other))
        assert f"{row} |" in page
    first, *_, last = fits.values()
    gaps = [f"{100 * (1 - fit['lower'] / fit['upper']):.0f}%" for fit in (first, last)]
    words_there = f"to {gaps[0]} for the fewest groups, and to {gaps[1]} for the most after {last['passes']:.0f} passes"
    assert words_there in page
    assert f"up to {list(fits)[-1]}" in page


def test_other_tools_on_hashed_rows_are_the_stored_runs():
    record, page = stored("internet_scale.json"), words("sparse_text.md")
    speeds, race = record["passes"]["entries_per_second"], record["race"]
    assert f"a pass was timed on {record['passes']['rows']:,} of these rows" in page
    assert f"On {race['rows']:,} of them (`race`)" in page
    assert f"as many epochs as fit into {race['seconds']:.0f} s" in page
    for tool, at in race["tools"].items():
        speed = next(value for name, value in speeds.items() if name.startswith(tool))
        row = f"| {tool} | {speed / 1e6:.0f} | {at['epochs']} | {at['worst_value']:.3f} | "
        assert row + f"{at['worst_held_out']:.3f} | {at['average_held_out']:.3f} |" in page
    tools = race["tools"]
    assert min(tools, key=lambda name: tools[name]["worst_held_out"]) == "liblinear"
    assert min(tools, key=lambda name: tools[name]["average_held_out"]) == "scikit-learn, SGDClassifier"


def test_epochs_on_networks_are_the_stored_ones():
    record = stored("network.json")
    found = record["combinations"]
    page = words("scaling.md")
    assert f"on a machine with {record['cores']} cores" in page
    assert f"epochs on {record['rows']:,} rows" in page
    assert f"each of the {len(found)} epochs" in page
    kinds = {"dense": "dense", "hashed": "sparse"}
    cells = r"\| (dense|hashed), (\d+) Gbit/s, (no delay|[\d.]+ ms) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|"
    rows = re.findall(cells, page)
    assert len(rows) == 5
    for kind, rate, delay, *shown in rows:
        network = f"{rate} Gbit/s, {delay.replace('no delay', '0 ms')}"
        at = [found[f"{kinds[kind]}, {workers} workers, {network}"] for workers in (2, 4, 8)]
        assert shown == [f"{each['measured_seconds']:.2f} ({each['modelled_seconds']:.2f})" for each in at]
    sent = found["sparse, 8 workers, 10 Gbit/s, 0 ms"]["measured_bytes"]
    assert f"{sent / 1e6:.1f} MB per epoch of `sketched-sqp` with 8 workers" in page
    bare, relayed = (record["calibration"][f"2 workers, {kind}"]["all-reduces"]["64"] for kind in ("veth", "relay"))
    assert f"takes {1e3 * bare['seconds']:.2f} ms without it, and {1e3 * relayed['seconds']:.2f} ms through it" in page


def test_the_page_names_every_prediction_that_is_far_off():
    record = stored("network.json")
    ratios = {name: at["modelled_over_measured"] for name, at in record["combinations"].items()}
    outside = {name for name, ratio in ratios.items() if not 0.75 <= ratio <= 1.25}
    late = [f"dense, 8 workers, {rate} Gbit/s, 1 ms" for rate in (10, 1)]
    assert outside == {*late, "dense, 4 workers, 1 Gbit/s, 0 ms"}
    page = words("scaling.md")
    assert (
        f"{len(outside)} of the {len(ratios)} predictions are more than 25% off, all of them too high and for dense "
        f"rows: those of 8 workers with a delay of 1 ms (modelled over measured time {ratios[late[0]]:.2f} and "
        f"{ratios[late[1]]:.2f})"
    ) in page
    assert f"4 workers at 1 Gbit/s without a delay ({ratios['dense, 4 workers, 1 Gbit/s, 0 ms']:.2f})" in page
    within = [ratio for name, ratio in ratios.items() if name not in outside]
    assert f"The other {len(within)} range from {min(within):.2f} to {max(within):.2f}" in page
    again = record["repetition"].values()
    assert f"of {len(again)} epochs of a repetition, whose costs were calibrated anew, " in page
    assert f"{sum(0.75 <= ratio <= 1.25 for ratio in again)} were within 25%" in page
    assert f"the ratios ranged from {min(again):.2f} to {max(again):.2f}" in page


def test_epochs_of_many_workers_are_the_extrapolated_ones():
    epochs = {
        each["workers"]: each
        for each in stored("network.json")["modelled only"]["epochs"]
        if each["gigabits_per_second"] == 10.0
    }
    few, many = epochs[64], epochs[1024]
    assert (
        f"takes {few['modelled_seconds']:.0f} s with 64 workers and {many['modelled_seconds']:.1f} s with 1,024, each "
        f"on a core of its own, at 10 Gbit/s and 0.1 ms. At 1,024 workers, messages take "
        f"{many['modelled_messages'] / many['modelled_seconds']:.0%} of it"
    ) in words("scaling.md")


def test_the_correction_is_that_of_the_example():
    rows = re.findall(r"^(.{14}) average [\d.]+, worst ([\d.]+) \(8\)$", printed("plot_corrected_trees"), re.MULTILINE)
    worst = {name.strip(): float(risk) for name, risk in rows}
    falls = f"risk falls from {worst['the trees']:.2f} to {worst['robustness 0.5']:.2f}"
    assert f"the worst hour's {falls}" in words("corrections.md")


def test_equal_weights_are_nearly_as_good_as_gdro_on_two_tables():
    nearly = []
    for part in (ROOT / "examples" / "price_of_robustness.txt").read_text().strip().split("\n\n"):
        balanced, robust = (
            float(re.search(rf"^{model}\s+\S+\s+(\S+)", part, re.MULTILINE)[1]) for model in ("balanced ERM", "GDRO")
        )
        if balanced < 1.01 * robust:
            nearly.append(part.split(":")[0])
    assert f"on all six, though on {' and '.join(nearly)} by less than 1%" in words("comparison.md")


def test_failures_of_the_last_campaign_are_those_of_its_table():
    [row] = [line for line in (DOCS / "snippets" / "real_data.txt").read_text().splitlines() if "real data" in line]
    assert f"The {row.split('|')[4].strip()} failures were" in words("trust.md")


def test_decisions_name_the_problems_that_were_tried():
    grid = stored("auto_grid.json")["problems"]
    tolerances = {len(problem["auto"]) for problem in grid.values()}
    assert tolerances == {5}
    assert all(cell["converged"] for problem in grid.values() for cell in problem["auto"].values())
    page = words("decisions.md")
    assert f"Of {len(grid)} problems at five tolerances, `auto` certified every one" in page
    assert f"Over {len(grid)} problems and five tolerances" in page
    assert f"On {len(grid)} problems at five tolerances" in words("choosing_a_solver.md")


# ---------------------------------------------------------------------- settings


def test_what_auto_expects_is_what_the_page_says():
    from groupdro.solvers import auto, dual_ascent, sketched_sqp, sqp

    page = words("choosing_a_solver.md")
    for name, (fixed, per_digit) in (("the exact Hessian", auto._NEWTON_EPOCHS), ("L-BFGS", auto._LBFGS_EPOCHS)):
        assert f"**SQP with {name}** is expected to need {fixed:g} epochs, plus {per_digit:g} for each digit" in page
    assert f"that takes over, up to {auto._NEWTON_LIMIT:,} parameters" in page
    assert f"it would need {auto._PATIENCE * auto._HOPELESS:g} passes more" in page
    assert f"exceed {auto.MOST_GRADIENT_VALUES:.0e} numbers".replace("e+0", "e") in page
    assert f"exact Hessian up to {sqp._NEWTON_SIZE} parameters" in page
    assert f"is expected to need {auto._DUAL_PASSES:.0f} passes for each digit" in page
    assert f"It is considered with {auto._DUAL_GROUPS} groups or more" in page
    assert f"dual ascent for more than {sketched_sqp.MOST_APART:,} groups" in page
    assert f"it is made {dual_ascent._RELAXATION} times as long" in words("inside.md")
    assert "times the number of workers" in page


def test_how_workers_ascend_is_what_the_page_says():
    from groupdro.data import cuts
    from groupdro.oracle import dual_sweep

    assert f"if that is at most {100 * cuts._MOVED:.0f}% of a worker's rows away" in words("known_limits.md")
    assert f"A sweep has {dual_sweep._ROUNDS} rounds" in words("inside.md")


def test_sizes_of_sketches_are_those_of_the_code():
    from groupdro.solvers import sketched_sqp

    buckets = sketched_sqp._MOST_BUCKETS
    assert f"**sketch**: {buckets:,} sums of columns" in words("inside.md")
    assert f"Of more than {sketched_sqp.MOST_APART:,} groups" in words("inside.md")
    page = words("choosing_a_solver.md")
    assert page.count(f"up to {sketched_sqp._MOST_CAPPED:,} groups if") == page.count("4,096") == 2


def test_settings_of_several_workers_are_those_of_the_code():
    from groupdro.distributed import cost
    from groupdro.distributed.exchange import PeerCommunicator
    from groupdro.store import manifest

    assert f"to keep communication at {cost.SHARE:.0%} of the time" in words("scaling.md")
    assert f"above about {PeerCommunicator.doubling_limit:,} numbers, halving-doubling" in words("decisions.md")
    assert f"the checksum of every {manifest.BLOCK // 2**20} MiB" in words("decisions.md")


def test_the_large_store_has_the_size_that_the_page_says():
    from benchmarks.scale import make

    rows, features = (inspect.signature(make).parameters[name].default for name in ("n_rows", "n_features"))
    assert f"a store of {4 * rows * features / 1e9:.0f} GB" in words("scaling.md")


def test_limits_in_seconds_are_those_of_the_code():
    from groupdro.problem import separation
    from groupdro.solvers.steps import table

    limits = f"{separation._MOST_ENTRIES / 1e6:g} million entries and {separation._SECONDS:g} seconds"
    assert limits in words("known_limits.md")
    assert f"in pieces of about {1e3 * table._SECONDS_PER_PIECE:g} ms" in words("inside.md")


# ---------------------------------------------------------------------- nothing else

#: Times, sizes in memory and ratios of times.
QUANTITY = re.compile(r"(?<![\w.])\d[\d.,]* (?:[mun]?s|(?:CPU )?seconds?|minutes?|[kMG]i?B|times)\b")
#: Those of each page. Tests above and in test_developer_pages.py compare each with a stored file or with the code.
HELD = {
    "comparison.md": ["27.1 CPU seconds"],
    "decisions.md": ["87.4 ms", "3.14 times", "5.40 times", "64 MiB", "1.00 times", "1.29 times"],
    "inside.md": ["1.7 times", "50 ms"],
    "known_limits.md": ["10 seconds", "4.0 times"],
    "last_layer.md": ["4.1 GB", "2 GB", "0.83 GB", "129 s", "54 s", "905 s"],
    "scaling.md": [
        "20 GB",
        "0.1 ms",
        "1 ms",
        "1 ms",
        "0.13 ms",
        "1.15 ms",
        "0.3 ms",
        "0.1 ms",
        "1 ms",
        "55.5 MB",
        "64 MiB",
        "93 s",
        "6.2 s",
        "0.1 ms",
    ],
    "sparse_text.md": [
        "577 s",
        "1.2 GB",
        "6 GB",
        "830 s",
        "1457 s",
        "1.75 times",
        "58 s",
        "123 s",
        "229 s",
        "1.87 times",
        "60 s",
    ],
}


def quantities(text):
    return QUANTITY.findall(" ".join(re.sub(r"`[^`]*`", "", without_fences(text)).split()))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "benchmarks" / "README.md"], ids=lambda page: page.name)
def test_no_page_has_a_measured_quantity_without_a_record(page):
    found = quantities(page.read_text())
    expected = HELD.get(page.name, []) if page.parent == DOCS else []
    assert sorted(found) == sorted(expected), "store the run that gave it, compare it above, and add it to HELD"


def test_quantities_are_found():
    text = "It took 1.5 ms, 2 GB and 30 CPU seconds,\n5 times as long; see `sleep 5 s`.\n```text\n7 s\n```\n3 groups"
    assert quantities(text) == ["1.5 ms", "2 GB", "30 CPU seconds", "5 times"]
