"""The stored results on held-out rows say what the documents say of them, and their smallest parts give them again."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from benchmarks.held_out import (
    choice,
    constants,
    coverage,
    intervals,
    models,
    problems,
    reports,
    shift,
    splits,
    tables,
)
from benchmarks.held_out import metrics as other_metrics
from benchmarks.held_out import verdicts as advice
from scipy.stats import t as student

from groupdro.data.grouping import read_groups
from groupdro.evaluation.resampling import resample
from tests.benchmarks.stored import RESULTS
from tests.benchmarks.stored import tables as stored_tables
from tests.docs.pages import quoted

needs_data = pytest.mark.skipif("GROUPDRO_DATA" not in os.environ, reason="GROUPDRO_DATA is not set")


def rows_of(name):
    """Return the tables of a file of results, each as a list of its rows by column."""
    return stored_tables((RESULTS / f"held_out_{name}.md").read_text())


@pytest.fixture(scope="module")
def compared():
    return tables.compare(tables.read(tables.STORED), tables.read(tables.SIZES))


def made_up(n=600, *, classes=True, units=None, seed=0):
    """Return a small table of three groups, one of them rare and harder, with a few missing numbers."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(n, 3))
    groups = np.array(["a", "b", "c"])[(rng.random(n)[:, None] > [0.5, 0.85]).sum(axis=1)]
    score = numbers[:, 0] - (groups == "c") * numbers[:, 1]
    y = (rng.random(n) < 1 / (1 + np.exp(-2 * score))).astype(int) if classes else score + rng.normal(size=n)
    numbers[rng.random(n) < 0.1, 2] = np.nan
    codes = (groups[:, None] == ["a", "b", "c"]).astype(float)
    frame = pd.DataFrame(numbers).add_prefix("x").assign(group=groups)
    return problems.Table("made up", numbers, codes, y, groups, classes, frame, units)


# ---------------------------------------------------------------------- splits and columns


def test_a_split_holds_out_its_share_of_every_group_and_label():
    table = made_up(1000)
    train, held_out = splits.split(table, 3)
    assert len(np.union1d(train, held_out)) == len(train) + len(held_out) == 1000
    for group in "abc":
        for label in (0, 1):
            stratum = (table.groups == group) & (table.y == label)
            assert abs(stratum[held_out].sum() - 0.3 * stratum.sum()) <= 1
    assert not np.array_equal(held_out, splits.split(table, 4)[1])


def test_a_split_holds_out_whole_units():
    units = np.arange(600) // 12
    table = made_up(units=units)
    train, held_out = splits.split(table, 0)
    assert not set(units[train]) & set(units[held_out])
    assert len(set(units[held_out])) == 15


def test_columns_are_scaled_and_filled_by_the_training_rows_alone():
    table = made_up()
    train, held_out = splits.split(table, 0)
    X = problems.design(table, train)
    assert X.shape == (600, table.n_features)
    known = ~np.isnan(table.numbers[train, 2])
    np.testing.assert_allclose(X[train][:, :2].mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(X[train][known, 2].std(), 1.0)
    np.testing.assert_array_equal(X[:, 3] == 1, np.isnan(table.numbers[:, 2]))
    assert (X[X[:, 3] == 1, 2] == 0).all()
    other = replace(table, numbers=table.numbers.copy())
    other.numbers[held_out] += 5.0
    np.testing.assert_allclose(problems.design(other, train)[train], X[train])


@needs_data
@pytest.mark.parametrize(
    "key",
    ["german", *(pytest.param(name, marks=pytest.mark.long) for name in ("heart", "communities", "wine", "compas"))],
)
def test_the_columns_of_the_groups_are_among_the_features(key):
    table = problems.TABLES[key]()
    X = problems.design(table, np.arange(table.n_rows))
    assert np.isfinite(X).all()
    for group in np.unique(table.groups):
        assert ((table.groups == group)[:, None] == X).all(axis=0).any()


def test_the_judge_leaves_small_groups_out():
    groups = np.repeat(["large", "small"], [30, 29])
    losses = np.repeat([1.0, 2.0], [30, 29])
    assert splits.judge(losses, groups) == (pytest.approx(losses.mean()), 1.0, "large")


# ---------------------------------------------------------------------- intervals


def test_the_interval_allows_for_splits_that_overlap_and_for_several_models():
    differences = np.array([0.1, 0.3, -0.1, 0.2, 0.0, 0.25, 0.15, 0.05, 0.2, 0.1])
    found = intervals.corrected_interval(differences, 700, 300, 6)
    half = student.ppf(1 - 0.025 / 6, 9) * differences.std(ddof=1) * np.sqrt(0.1 + 3 / 7)
    assert found == pytest.approx((differences.mean(), differences.mean() - half, differences.mean() + half))
    assert found.verdict == "open"
    assert intervals.corrected_interval(differences + 1.0, 700, 300).verdict == "above"
    assert intervals.corrected_interval(differences - 1.0, 700, 300).verdict == "below"
    assert intervals.corrected_interval(np.zeros(10), 700, 300) == (0.0, 0.0, 0.0)


# ---------------------------------------------------------------------- models


@pytest.mark.parametrize("classes", [True, False])
def test_balanced_training_gives_groups_equal_weight(classes):
    table = made_up(classes=classes)
    part = models.Part(problems.design(table, np.arange(600)), table.y, table.groups, classes)
    by_weights = models.balanced(part, 1e-2)
    by_average = models.linear(part, 1e-2, robustness=0.0, average="groups")
    np.testing.assert_allclose(by_weights.predict(part.X), by_average.predict(part.X), atol=0.02)


@pytest.mark.long
def test_an_interrupted_run_resumes_and_fits_nothing_twice(tmp_path):
    table = made_up()
    first = splits.run_table("made_up", table, tmp_path, n_splits=1)
    assert set(first[0]["models"]) == set(models.MODELS)
    path = tmp_path / "made_up" / "0.json"
    stored = json.loads(path.read_text())
    assert stored == first[0]
    path.write_text(json.dumps(stored | {"seconds": -1.0}))
    assert splits.run_table("made_up", table, tmp_path, n_splits=1)[0]["seconds"] == -1.0


@pytest.mark.long
@needs_data
def test_a_split_of_a_small_table_gives_what_is_stored():
    found = splits.run_split(problems.heart(), 2)
    stored = {
        row["model"]: row
        for row in tables.read(tables.STORED)
        if row["table"] == "heart: hospital" and row["split"] == "2"
    }
    assert found["plain_alpha"] == float(stored[models.PLAIN]["plain_alpha"])
    for name in (models.PLAIN, models.BALANCED, models.GDRO, models.BLEND):
        for kind in ("mean", "worst"):
            assert found["models"][name][kind] == pytest.approx(float(stored[name][kind]), rel=5e-3)


# ---------------------------------------------------------------------- stored tables


def test_the_document_of_the_tables_is_made_from_the_stored_risks():
    text = tables.document(tables.read(tables.STORED), tables.read(tables.SIZES))
    assert (RESULTS / "held_out_tables.md").read_text() == text


def test_every_table_has_all_splits_and_models(compared):
    assert len(compared) == len(problems.TABLES) == 13
    for one in compared.values():
        assert sum(one.robustness.values()) == 10
        assert int(one.size["rows"]) <= 60_000
        assert int(one.size["judged"]) >= 2
        assert int(one.size["n_held_out"]) == pytest.approx(0.3 * int(one.size["rows"]), rel=0.02)
        for model in models.MODELS:
            mean, worst = (one.risks[model, kind] for kind in ("mean", "worst"))
            assert len(mean) == len(worst) == 10
            assert (worst > mean).all()


def test_the_choice_equals_plain_training_on_splits_where_it_keeps_it():
    rows = tables.read(tables.STORED)
    plain = {(row["table"], row["split"]): row for row in rows if row["model"] == models.PLAIN}
    kept = [row for row in rows if row["model"] == models.CHOSEN and float(row["robustness"]) == 0.0]
    assert kept
    for row in kept:
        assert row["worst"] == plain[row["table"], row["split"]]["worst"]


# ---------------------------------------------------------------------- shift


@needs_data
def test_unseen_groups_are_in_no_training_row():
    for unseen in shift.heart():
        table = unseen.table
        assert not set(table.groups[unseen.train]) & set(table.groups[unseen.held_out])
        assert len(unseen.train) + len(unseen.held_out) == table.n_rows


@pytest.mark.long
def test_a_line_of_the_unseen_groups_has_the_risks_of_all_models():
    line = shift.measure(shift._leave_out(made_up(400), "made up: c", ["c"]))
    (stored,) = rows_of("shift")
    assert len(line) == len(stored[0])
    assert len(stored) == 8
    risks = [float(cell.strip("*")) for cell in line[2:-1]]
    assert all(0 < risk < 10 for risk in risks)


# ---------------------------------------------------------------------- coverage


def shares(cell):
    return float(re.match(r"([\d.]+)%", cell)[1]) / 100


def test_stored_coverage_is_at_least_the_target_with_a_hundred_effective_rows():
    text = (RESULTS / "held_out_coverage.md").read_text()
    assert text.startswith(coverage.HEADER)
    large, small, _ = rows_of("coverage")
    assert [row["setting"] for row in large] == [row["setting"] for row in small]
    assert [row["setting"] for row in large] == [setting.name for setting in coverage.SETTINGS]
    for row in large:
        for column in coverage.COLUMNS[:3]:
            assert shares(row[column]) >= coverage.TARGET
        # What a separate interval per group is worth for all of them.
        assert shares(row["percentile, all"]) < shares(row["all groups"])


@pytest.mark.parametrize("setting", coverage.SETTINGS, ids=lambda setting: setting.name)
def test_simulated_losses_have_the_stated_risks_and_effective_rows(setting):
    rng = np.random.default_rng(0)
    drawn = setting.draw(rng, 400_000)
    mean = coverage.MEANS.get(setting.draw, 1.0)
    assert drawn.mean() == pytest.approx(mean, abs=5 * drawn.std() / np.sqrt(len(drawn)))
    assert coverage.truth(setting).min() == mean
    units = coverage.units_of(setting, 100)
    groups = np.repeat(np.arange(setting.n_groups), units)
    weights = rng.gamma(2.0, 1.0, len(groups)) if setting.weighted else None
    found = resample(
        np.ones((len(groups), 1)), read_groups(groups, len(groups)), n_bootstrap=1, seed=0, weights=weights
    )
    assert found.sizes.min() == pytest.approx(100, rel=0.15)


def test_a_short_simulation_agrees_with_the_stored_coverage():
    large, _, competing = rows_of("coverage")
    n = 60
    *found, width = coverage.simulate(coverage.SETTINGS[0], 100, n_sets=n, n_bootstrap=200, seed=1)
    assert width == pytest.approx(float(large[0]["half width"].strip("%")) / 100, rel=0.2)
    assert len(competing) == len(coverage.COMPETING)
    for row in competing:
        assert shares(row["`falls_of_worst`"]) >= 0.95
    for share, column in zip(found, coverage.COLUMNS[:-1], strict=True):
        expected = shares(large[0][column])
        assert abs(share - expected) <= 4 * np.sqrt(max(expected * (1 - expected), 0.02) / n)


# ---------------------------------------------------------------------- last layer


def numbers(cell):
    return [float(number) for number in re.findall(r"[-+]\d+\.\d+", cell)]


def test_the_choice_leaves_plain_training_on_every_network():
    (rows,) = rows_of("last_layer")
    networks = [row for row in rows if row["data"].startswith("last layer")]
    assert len(networks) == 5
    for row in networks:
        assert float(row["robustness, chosen"]) > 0
        for kind in ("chosen", "for gain", "GDRO"):
            gain, low, high = numbers(row[f"gain, {kind}"])
            assert 0 < low < gain < high
            fall = float(row["worst risk, plain"]) - float(row[f"worst risk, {kind}"])
            assert gain == pytest.approx(fall, abs=0.002)


def test_the_choice_improves_the_worst_job_of_the_bank_table():
    (rows,) = rows_of("last_layer")
    (row,) = [row for row in rows if row["data"].startswith("bank")]
    assert row["robustness, chosen"] == "0.1"
    change, low, high = numbers(row["change, chosen"])
    assert low < change < high < 0
    assert quoted(*(f"{number:+.3f}" for number in (change, low, high)))


# ---------------------------------------------------------------------- the page


def verdicts(compared, model, kind, verdict):
    return tables.names_by_verdict(compared, model, kind, verdict)


def test_the_page_counts_the_verdicts_that_are_stored(compared):
    gdro = verdicts(compared, models.GDRO, "worst", "below")
    chosen = verdicts(compared, models.CHOSEN, "worst", "below")
    assert not verdicts(compared, models.GDRO, "worst", "above")
    assert not verdicts(compared, models.CHOSEN, "worst", "above")
    assert not tables.costly(compared)
    dearer = verdicts(compared, models.GDRO, "mean", "above")
    kept = [name for name, one in compared.items() if one.departures == 0]
    best = [name for name, one in compared.items() if one.least_worst == models.TREES]
    trees = verdicts(compared, models.TREES, "worst", "below")
    assert quoted(*(str(len(names)) for names in (compared, gdro, dearer, chosen, kept, best, trees)))


def test_the_page_quotes_the_stored_risks_of_bike_and_bank(compared):
    bike, bank = compared["bike: hour"], compared["bank: job"]
    falls = [-bike.difference(model, "worst").mean for model in (models.CHOSEN, models.GDRO, models.TREES)]
    price = bike.difference(models.GDRO, "mean").mean / bike.risks[models.PLAIN, "mean"].mean()
    assert quoted(*(f"{fall:.2f}" for fall in falls), f"{bike.mean_change:.1%}", f"{price:.0%}")
    assert bike.difference(models.TREES, "mean").mean < 0
    gain = bank.difference(models.CHOSEN, "worst")
    assert gain.verdict == "open"
    assert quoted(str(bank.departures), f"{-gain.mean:.3f}", f"{bank.mean_change:.1%}")


def test_the_page_quotes_the_stored_accuracies_of_the_networks():
    (rows,) = rows_of("last_layer")
    networks = [row for row in rows if row["data"].startswith("last layer")]
    assert {row["robustness, chosen"] for row in networks} == {"0.1"}
    ends = []
    for kind in ("plain", "chosen", "for gain", "GDRO"):
        found = sorted((row[f"worst accuracy, {kind}"] for row in networks), key=shares)
        ends += [found[0], found[-1]]
    assert quoted(*ends)


def test_robustness_helps_on_unseen_hospitals_and_harms_on_unseen_stations():
    (rows,) = rows_of("shift")

    def compare(row, model):
        """Return -1 or 1 where a risk is significantly below or above plain training's, otherwise 0."""
        cell = row[model]
        risk = float(cell.strip("*"))
        return int(np.sign(risk - float(row["plain"]))) if cell.startswith("**") else 0

    hospitals = [row for row in rows if row["unseen"].startswith("heart")]
    stations = [row for row in rows if row["unseen"].startswith("beijing")]
    assert sorted(compare(row, "GDRO") for row in hospitals) == [-1, -1, 0, 0]
    assert sorted(compare(row, "GDRO") for row in stations) == [0, 0, 1, 1]
    (hungarian,) = [row for row in hospitals if row["unseen"] == "heart: hungarian"]
    assert hungarian["robustness, CV choice"] == "0.1"
    assert compare(hungarian, models.CHOSEN) == 1

    def extreme(row, pick):
        return pick(models.MODELS, key=lambda model: float(row[model].strip("*")))

    assert sum(extreme(row, max) == models.TREES for row in hospitals) == 3
    assert all(extreme(row, min) == models.TREES for row in stations)


def test_the_page_quotes_the_stored_coverage():
    large, small, _ = rows_of("coverage")

    def ends(rows, column):
        found = sorted((row[column].split()[0] for row in rows), key=shares)
        return found[0], found[-1]

    ten = [row for row in large if row["setting"].startswith("10 groups") and "clusters" not in row["setting"]]
    (fifty,) = [row for row in large if row["setting"].startswith("50 groups")]
    together = (*ends(ten, "percentile, all"), fifty["percentile, all"].split()[0])
    assert quoted(*ends(large, "all groups"), *ends(small, "all groups"), *together)


def test_the_page_on_judging_quotes_the_stored_coverage():
    large, small, competing = rows_of("coverage")

    def ends(rows):
        found = sorted(shares(row["all groups"]) for row in rows)
        return f"{100 * found[0]:.1f}%", f"{100 * found[-1]:.1f}%"

    resampled = [row["percentiles of resampled falls"].split()[0] for row in competing[1:]]
    assert quoted(*ends(large), *ends(small))
    assert quoted(*resampled)


# ---------------------------------------------------------------------- what `compare` recommends


def test_the_document_of_the_verdicts_is_made_from_the_stored_splits():
    found = json.loads(advice.STORED.read_text())
    assert list(found) == list(problems.TABLES)
    assert {len(splits) for splits in found.values()} == {advice.N_SPLITS}
    assert advice.document(found) == (RESULTS / "held_out_verdicts.md").read_text()


def test_no_recommendation_is_significantly_worse_over_the_splits_of_a_problem():
    for own in json.loads(advice.STORED.read_text()).values():
        for kind in advice.KINDS:
            assert advice.added(own, "recommended", kind).low <= 0


def test_gains_on_held_out_rows_are_differences_of_risks():
    table = made_up(2000)
    part = models.Part(table.numbers, table.y, table.groups, classes=True)
    losses = np.random.default_rng(0).exponential(size=(2000, 2)) * [1.0, 0.5]
    found = advice.judge(losses, ["ERM", "half"], part, seed=0)
    np.testing.assert_allclose([found[name]["mean"] for name in ("ERM", "half")], losses.mean(axis=0))
    for kind in advice.KINDS:
        gain, low, high = found["half"][f"{kind}_gain"]
        assert gain == pytest.approx(found["ERM"][kind] - found["half"][kind])
        assert 0 < low < gain < high
    assert found["ERM"]["mean_gain"] == found["ERM"]["worst_gain"] == [0.0, 0.0, 0.0]


# ---------------------------------------------------------------------- reports and choices


def upper_end(row):
    """Return the share of data sets whose intervals hold, plus three standard errors of the simulation."""
    share, error = re.fullmatch(r"([\d.]+)% \(([\d.]+)\)", row["all intervals hold"]).groups()
    return (float(share) + 3.0 * float(error)) / 100


def test_stored_intervals_of_reports_hold_with_weights_clusters_and_rare_errors():
    (rows,) = rows_of("reports")
    assert len(rows) == len(reports.SETTINGS)
    found = [shares(row["all intervals hold"]) for row in rows]
    assert min(map(upper_end, rows)) >= reports.TARGET
    judged = [share for share, row in zip(found, rows, strict=True) if row["not judged"] == "0.0%"]
    assert quoted(f"{min(judged):.1%}", f"{max(judged):.1%}")


def test_a_short_simulation_of_reports_agrees_with_the_stored_one():
    (rows,) = rows_of("reports")
    setting = reports.Setting("log", 100, 0.2, "equal", clusters=False)
    row = rows[reports.SETTINGS.index(setting)]
    share, silent = reports.simulate(setting, n_sets=60, seed=1)
    stored = shares(row["all intervals hold"])
    assert abs(share - stored) <= 3.1 * np.sqrt(stored * (1 - stored) / 60) + 0.02
    assert abs(silent - float(row["not judged"].rstrip("%")) / 100) <= 0.05


def test_stored_intervals_of_common_metrics_hold():
    (rows,) = rows_of("metrics")
    found = [row for row in rows if row["metric"] in other_metrics.COMMON]
    assert {row["metric"] for row in found} == set(other_metrics.COMMON)
    assert min(map(upper_end, found)) >= reports.TARGET


def test_stored_choices_are_rarely_worse_and_find_a_neglected_group():
    (rows,) = rows_of("choice")
    assert [(row["groups"], row["task"], int(row["rows per group"])) for row in rows] == [
        (kind, task, size) for kind in choice.KINDS for task in choice.TASKS for size in choice.N_SETS
    ]
    worse = [float(row["truly worse, now"].rstrip("%")) for row in rows]
    assert max(worse) <= 5.0
    bounds = [float(row["bound holds"].split("%")[0]) for row in rows]
    bad = [row[f"left, {when}"] for row in rows if row["groups"] == "one bad group" for when in ("now", "before")]
    assert quoted(f"{max(worse):.1f}%", f"{min(bounds):.1f}%", *bad)


@pytest.mark.long
def test_rules_are_applied_to_the_same_losses():
    losses, risks = choice.simulate("one bad group", "regression", 60, range(3))
    assert losses.shape == (3, 300, len(choice.ROBUSTNESS))
    assert risks.shape == (3, 5, len(choice.ROBUSTNESS))
    found = choice.judge_rules(losses, risks)
    assert set(found) == {"before", "1", "2", "4"}
    assert found["1"].left <= found["2"].left <= found["4"].left


# ---------------------------------------------------------------------- useless contenders


def test_no_constant_was_recommended_by_any_metric():
    stored = rows_of("constants")[0]
    assert {row["first"].split(",")[0] for row in stored} == {*constants.METRICS, "all"}
    assert stored[-1]["comparisons"] == str(constants.N_SETS * len(constants.METRICS))
    assert all(row["a constant"] == "0" for row in stored)


def test_useless_contenders_are_compared_as_is_stored():
    counts = constants.simulate("recall", [505, 506], n_bootstrap=30)
    assert counts["comparisons"] == 2
    assert counts["a constant"] == 0
    page = constants.document({("recall", "floor"): counts, ("risk", ""): counts})
    assert "| recall, floor | 2 | 0 |" in page
    assert "| all | 4 | 0 |" in page
