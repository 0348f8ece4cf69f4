"""The stored results on boosted trees agree with each other, and the documentation says what they say."""

import csv
import re

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier, StackingClassifier

from groupdro import GroupDROClassifier, datasets
from tests.benchmarks.stored import RESULTS, tables
from tests.docs.pages import DOCS, quoted

pd = pytest.importorskip("pandas")
boosted_trees = pytest.importorskip("benchmarks.boosted_trees", reason="needs the folders of the repository")

PAGE = (DOCS / "boosted_trees.md").read_text()
LARGE = {
    "income, sex x race": "adult: sex x race",
    "bicycles, hour": "bike: hour",
    "bicycles, hour x working day as columns": "bike: hour x working day",
    "bank, job": "bank: job",
    "readmission, age": "diabetes: age",
}
FEW = {"heart disease, hospital": "heart: hospital", "credit, sex": "german: sex"}
LINEAR = ("linear 0", "linear 0.5", "linear 1")


RISKS, CHANGES, BOUNDS, SMALL = tables((RESULTS / "boosted_trees.md").read_text())
WORST = {(row["problem"], row["model"]): float(row["worst"]) for row in (*RISKS, *SMALL)}
CHANGE = {(row["problem"], row["model"], row["against"]): row for row in CHANGES}
#: The bound of the default norm, then that of ten times the norm.
BOUND = {name: [row for row in BOUNDS if row["problem"] == name] for name in LARGE.values()}


def ends(cell):
    """Return the estimate and both ends of an interval."""
    return [float(number) for number in re.findall(r"[-+]\d+\.\d+", cell)]


def rounds(shown, value):
    return abs(float(shown) - value) <= 0.6 * 10.0 ** -len(shown.partition(".")[2])


# ---------------------------------------------------------------------- the results


def test_average_and_worst_are_those_of_the_groups():
    with (RESULTS / "boosted_trees.csv").open(newline="") as file:
        groups = list(csv.DictReader(file))
    assert len(RISKS) == 7 * len(LARGE)
    for row in RISKS:
        own = [group for group in groups if group["problem"] == row["problem"]]
        risks, sizes = (np.array([float(group[key]) for group in own]) for key in (row["model"], "rows"))
        assert float(row["average"]) == pytest.approx(sizes @ risks / sizes.sum(), abs=6e-5)
        assert float(row["worst"]) == pytest.approx(risks.max(), abs=6e-5)
        assert own[int(risks.argmax())]["group"] == row["worst group"]


def test_changes_are_those_of_the_risks_and_lie_within_their_intervals():
    average = {(row["problem"], row["model"]): float(row["average"]) for row in RISKS}
    assert len(CHANGES) == len(boosted_trees.PAIRS) * len(LARGE)
    for row in CHANGES:
        for cell in (row["change there"], row["change over all rows"]):
            estimate, low, high = ends(cell)
            assert low < estimate < high
        over_all = average[row["problem"], row["model"]] - average[row["problem"], row["against"]]
        assert ends(row["change over all rows"])[0] == pytest.approx(over_all, abs=1.6e-4)
        assert int(row["better"]) + int(row["worse"]) <= int(row["groups"])


def test_no_linear_model_was_below_the_bound_for_all_of_them():
    for name, (bound, wider) in BOUND.items():
        assert bound["converged"] == wider["converged"] == "yes"
        least = float(bound["no linear model below"])
        assert least <= min(WORST[name, model] for model in LINEAR)
        assert float(wider["no linear model below"]) <= least
        assert float(wider["radius"]) == pytest.approx(10 * float(bound["radius"]), rel=0.01)
        assert float(bound["trees"]) == WORST[name, "trees"]


# ---------------------------------------------------------------------- the page


def page_tables():
    found = tables(PAGE)
    assert len(found) == 3
    return found


def test_the_page_shows_the_stored_bounds_and_worst_risks():
    rows = page_tables()[0]
    assert [row["data, groups"] for row in rows] == list(LARGE)
    for row in rows:
        name = LARGE[row["data, groups"]]
        assert rounds(row["plain linear"], WORST[name, "linear 0"])
        assert rounds(row["robust linear"], WORST[name, "linear 1"])
        assert rounds(row["trees"], WORST[name, "trees"])
        assert rounds(row["no linear model below"], float(BOUND[name][0]["no linear model below"]))


def test_what_the_page_concludes_from_the_bounds_holds():
    least = {name: [float(row["no linear model below"]) for row in rows] for name, rows in BOUND.items()}
    for name in ("adult: sex x race", "bike: hour", "bike: hour x working day", "bank: job"):
        assert WORST[name, "trees"] < least[name][1]
        for against in ("linear 0", "linear 1"):
            assert ends(CHANGE[name, "trees", against]["change there"])[2] < 0
    assert all(wider >= 0.998 * bound for bound, wider in least.values())
    assert (
        ends(CHANGE["diabetes: age", "trees", "linear 0"]["change there"])[2]
        < 0
        < ends(CHANGE["diabetes: age", "trees", "linear 1"]["change there"])[2]
    )
    assert WORST["diabetes: age", "trees"] == pytest.approx(least["diabetes: age"][0], rel=3e-3)
    assert WORST["bike: hour x working day", "linear 0"] < WORST["bike: hour", "linear 1"]
    assert least["bike: hour x working day"][0] < 0.6 * least["bike: hour"][0]


def test_the_page_shows_the_stored_risks_on_top_of_the_trees():
    rows = page_tables()[1]
    assert [LARGE[row["data, groups"]] for row in rows] == [name for name in BOUND if " x working day" not in name]
    for row in rows:
        name = LARGE[row["data, groups"]]
        for column, model in {
            "trees": "trees",
            "robustness 0": "stacked 0",
            "0.5": "stacked 0.5",
            "1": "stacked 1",
        }.items():
            assert float(row[column]) == WORST[name, model]
        assert row["change from 0 to 0.5"] == CHANGE[name, "stacked 0.5", "stacked 0"]["change there"]


def test_what_the_page_concludes_about_robustness_on_top_holds():
    names = [LARGE[row["data, groups"]] for row in page_tables()[1]]
    for name in names:
        _, low, high = ends(CHANGE[name, "stacked 0", "trees"]["change there"])
        assert low < 0 < high
        for model in ("stacked 0.5", "stacked 1"):
            assert (ends(CHANGE[name, model, "stacked 0"]["change there"])[2] < 0) == (name == "diabetes: age")
            assert ends(CHANGE[name, model, "stacked 0"]["change over all rows"])[1] > 0
    readmission = CHANGE["diabetes: age", "stacked 0.5", "stacked 0"]
    assert quoted(f"{-ends(readmission['change there'])[0] / WORST['diabetes: age', 'stacked 0']:.1%}")
    assert readmission["worse"] == "6"


def test_the_page_shows_the_stored_risks_of_few_rows_and_concludes_from_them():
    models = {"plain linear": "linear 0", "robust linear": "linear 1", "trees": "trees", "tuned trees": "tuned trees"}
    name, stored = None, {(row["problem"], row["model"]): row for row in SMALL}
    for row in page_tables()[2]:
        name = FEW.get(row["data, groups"], name)
        own = stored[name, models[row["model"]]]
        assert rounds(row["worst risk"], float(own["worst"]))
        assert row["change"] == own["change of the worst"]
    assert quoted(str(boosted_trees.REPEATS * boosted_trees.FOLDS))
    for name in FEW.values():
        assert ends(stored[name, "trees"]["change of the worst"])[1] > 0
        _, low, high = ends(stored[name, "tuned trees"]["change of the worst"])
        assert low < 0 < high
        assert WORST[name, "linear 1"] > WORST[name, "linear 0"]


def test_the_example_concludes_what_all_folds_show():
    for model in ("stacked 0.5", "stacked 1"):
        assert ends(CHANGE["adult: sex x race", model, "trees"]["change there"])[0] > 0


def test_trees_refuse_sparse_rows_and_stacking_hands_no_groups_on_as_the_page_says():
    X, y, groups = datasets.make_mero(3, 40, 4)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        HistGradientBoostingClassifier().fit(sp.csr_array(X), y)
    both = StackingClassifier([("trees", HistGradientBoostingClassifier(max_iter=2))], GroupDROClassifier(), cv=2)
    for routing in (False, True):
        with (
            sklearn.config_context(enable_metadata_routing=routing),
            pytest.raises((TypeError, ValueError), match="groups"),
        ):
            both.fit(X, y, groups=groups)


# ---------------------------------------------------------------------- the program


@pytest.fixture
def days():
    """A table of days with six hours each, in which the hour interacts with a column."""
    rng = np.random.default_rng(0)
    day, hour = np.divmod(np.arange(600), 6)
    frame = pd.DataFrame({"warm": rng.normal(size=600), "wet": rng.normal(size=600)})
    y = pd.Series(frame["warm"] * (hour - 2.5) + 0.1 * rng.normal(size=600))
    hour = pd.Series(hour)
    return boosted_trees.Task("days", frame, frame.assign(hour=hour), y, hour, pd.Series(day))


def test_folds_keep_days_together_and_hold_every_row_out_once(days):
    held_out = []
    for train, test in days.folds(0):
        assert not set(days.together[train]) & set(days.together[test])
        held_out += test.tolist()
        for inner, left_out in days.folds(1, train):
            assert not set(days.together.iloc[train[inner]]) & set(days.together.iloc[train[left_out]])
    assert sorted(held_out) == list(range(600))


@pytest.mark.long
def test_trees_on_an_interaction_are_below_the_bound_for_linear_models(days):
    losses, predicted = boosted_trees.held_out(days)
    assert losses.shape == (600, 7)
    np.testing.assert_allclose(losses["trees"], 0.5 * (predicted - days.y) ** 2)
    worst = losses.groupby(days.groups).mean().max()
    (_, trees, least, *_), _ = boosted_trees.bounds(days, predicted)
    assert float(trees) == pytest.approx(worst["trees"], abs=6e-5)
    assert worst["stacked 0"] < float(least) <= worst[list(LINEAR)].min()
    first = next(iter(boosted_trees.changes(days, losses)))
    assert first[:3] == ["days", "trees", "linear 0"]
    assert ends(first[4])[0] == pytest.approx(
        (losses["trees"] - losses["linear 0"])[days.groups == first[3]].mean(), abs=6e-5
    )
    assert first[6:] == [6, 0, 6]


def test_intervals_over_splits_allow_for_shared_rows():
    differences = np.array([0.1, 0.3, 0.2, 0.4, 0.0])
    half = stats.t.ppf(0.975, 4) * np.sqrt((1 / 5 + 1 / 4) * 0.025)  # 4 of 5 folds train, so that a quarter is tested
    assert boosted_trees._corrected(differences) == f"+0.2000 ({0.2 - half:+.4f} to {0.2 + half:+.4f})"
