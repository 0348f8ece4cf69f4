"""What the texts say of the benchmarks is what the stored runs show."""

import importlib
import json
import re

import numpy as np
import pandas as pd
import pytest

from tests.docs.examples import prose
from tests.docs.pages import ROOT
from tests.docs.test_records import assert_quotes

page = pytest.importorskip("benchmarks.paper.page", reason="needs pandas, pyarrow and matplotlib")
analysis = pytest.importorskip("benchmarks.paper.analysis")
optimum, tuning = (importlib.import_module(f"benchmarks.paper.{name}") for name in ("optimum", "tuning"))

RESULTS = ROOT / "benchmarks" / "results"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
#: Names that contain digits, and the level of all intervals.
NAMES = (
    "CIFAR-100",
    "95%",
    "above 1",
    "above 0",
    "eps / (2 ln m)",
    "eps / (2 G ln m)",
    "(R / r)^(2/3)",
    "seed 0",
    "Figure 1",
    "Figure 2",
    "Figures 1 and 2",
    "figure1",
    "figure2",
)


@pytest.mark.long
def test_every_line_of_the_page_is_computed_from_the_stored_files():
    assert page.PAGE.read_text().splitlines() == page.text().splitlines()


def test_the_tables_of_a_set_up_are_computed_from_its_stored_files():
    section = re.sub(r"e([+-])0(\d)", r"e\1\2", page._section(analysis.panel("gdro_synthetic")))
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 20
    assert set(rows) <= set(page.PAGE.read_text().splitlines())


def test_both_neighbouring_multipliers_of_the_superclasses_were_tried():
    curves, tried = (pd.read_parquet(RESULTS / f"paper_{name}.parquet") for name in ("mero_cifar", "tuning"))
    tried = tried[tried["setup"] == "mero_cifar"]
    known = {(row.method, *json.loads(row.setting)) for row in tried.itertuples()}
    chosen = {(row.method, *json.loads(row.setting)) for row in curves.itertuples() if row.setting != "[]"}
    assert len(chosen) >= 4
    for method, multiplier, *others in chosen:
        assert {(method, multiplier + step, *others) for step in (-1, 1)} <= known


def test_no_setting_that_was_tried_on_the_same_seeds_is_better_than_the_chosen_one():
    tried, best = (pd.read_parquet(RESULTS / f"paper_{name}.parquet") for name in ("tuning", "best"))
    bounds = {(row.setup, row.seed): optimum.Optimum(row.lower, row.upper) for row in best.itertuples()}
    n_compared = 0
    for name in filter(analysis.has, page.SETUPS):
        own = analysis.panel(name)
        for method, output in own.curves:
            rows = tried[(tried["setup"] == name) & (tried["method"] == method) & (tried["output"] == output)]
            costs = {}
            for row in rows.itertuples():
                at = bounds.get((name, row.seed), bounds[name, 0])
                costs.setdefault(row.setting, {})[row.seed] = tuning.suboptimality(row.train, at)
            chosen = next(iter(own.curves[method, output].values()))["setting"].iloc[0]
            seeds = page.n_tuning_seeds(own, (method, output)) if page.METHODS[method].tuned else 0
            for setting, values in costs.items():
                if setting != chosen and len(values) >= seeds > 1:
                    n_compared += 1
                    assert tuning.over_seeds([*values.values()]) >= tuning.over_seeds([*costs[chosen].values()])
    assert n_compared > 20


def test_the_zero_models_values_are_those_of_its_risks():
    for name in filter(analysis.has, page.SETUPS):
        own = analysis.panel(name)
        zero = page.zero_values(own)
        risk = np.log(100.0 if name.endswith("cifar") else 2.0)
        assert all(value <= risk + 1e-6 for value in zero.values())
        largest = pd.read_parquet(RESULTS / "paper_best.parquet").set_index(["setup", "seed"])["largest_reference"]
        # The group with the least minimum has the largest excess risk.
        assert all(value >= risk - largest[name, seed if (name, seed) in largest.index else 0] - 1e-6
                   for seed, value in zero.items())  # fmt: skip


def test_no_number_is_written_in_the_template_itself():
    """Every number of the page is a field, so that none is held against itself."""
    for text in (page.TEMPLATE.read_text(), *page.FACTS.values()):
        bare = re.sub(r"\{\w+\}", "", text)
        for name in NAMES:
            bare = bare.replace(name, "")
        assert NUMBER.findall(bare) == []


def test_the_page_for_readers_of_the_paper_has_the_verdicts_of_the_stored_runs():
    assert page.READERS.read_text().splitlines() == page.for_readers().splitlines()


def test_the_radius_is_the_best_on_validation_rows():
    pd = pytest.importorskip("pandas")
    radii = pd.read_parquet(RESULTS / "paper_radius.parquet")
    large = radii[radii["n"] == radii["n"].max()]
    best = large.loc[large["validation"].idxmin(), "radius"]
    assert {page.SETUPS[name].radius for name in ("gdro_4000", "mero_4000")} == {best}
    assert large["radius"].min() < best < large["radius"].max()


#: A curve, the multiples of the rows at which its suboptimality is quoted, and where.
QUOTED = (
    (("Sagawa", "average"), 40.0, "comparison.md", "Run times"),
    (("auto", "best"), 10.0, "comparison.md", "Run times"),
    (("ALEG of the paper", "snapshot"), 40.0, "inside.md", "Design decisions"),
    (("SMD", "average"), 40.0, "inside.md", "Design decisions"),
)


@pytest.mark.parametrize(("curve", "multiples", "name", "heading"), QUOTED)
def test_other_pages_quote_the_stored_curves(curve, multiples, name, heading):
    values = list(analysis.panel("gdro_synthetic").at(curve, multiples, "above").values())
    assert_quotes(name, heading, f"{analysis.geometric(np.array(values)).mean:.1e}", f"{multiples:g}")


def test_the_last_layer_example_quotes_what_the_benchmark_printed():
    printed = (RESULTS / "last_layer.md").read_text()
    rows = {line.split("|")[1].strip(): line.split("|") for line in printed.splitlines() if line.startswith("| ")}
    worst, seconds = ({name: cells[k].strip() for name, cells in rows.items()} for k in (-4, -2))
    text = prose((ROOT / "examples" / "plot_last_layer.py").read_text())
    longer = "deep feature reweighting, C up to 100"
    methods = "groupdro, defaults", "deep feature reweighting", longer, "groupdro, small_group_bonus=1"
    expected = {f"{worst[name]}%" for name in methods} | {f"{seconds[name]} s" for name in methods[:3]}
    assert not {number for number in expected if number not in text}
    gain, error = re.search(rf"{longer}: .* has \+([\d.]+) points on it \(standard error ([\d.]+)\)", printed).groups()
    assert float(gain) < 2 * float(error)
