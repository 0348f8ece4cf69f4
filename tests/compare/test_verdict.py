"""Which model a comparison recommends, and why."""

import functools
import re
import warnings

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

import groupdro
from groupdro import GroupDROClassifier, GroupDRORegressor, Predictions, UselessModelWarning, group_report
from groupdro.compare.comparison import Change
from groupdro.compare.contenders import IN_WORDS
from groupdro.compare.verdict import Choice, Rule, _instead, recommend
from groupdro.evaluation.metrics import METRICS

LOSS, SCORE = METRICS["risk"], METRICS["accuracy"]
CHOICE = Choice(0.1, "Chose robustness 0.1.")


def compare(*rows, **given):
    """Compare without a choice by cross-validation, which most tests do not look at."""
    return groupdro.compare(*rows, **{"cv": None, "n_bootstrap": 300, **given})


def words(name):
    return IN_WORDS.get(name, name)


def assert_consistent(found):
    """Recommendation, verdict and table agree."""
    assert found.recommended in found.models
    assert found.worth_it == (found.recommended != found.baseline)
    first = found.verdict.partition(":")[0]
    place = found.columns["model"].index(found.recommended)
    change = found.changes[found.recommended]
    if found.worth_it:
        assert first.index(words(found.recommended)) < first.index(words(found.baseline))
        for name in (found.recommended, found.baseline):
            value = found.columns[f"worst_{found.metrics[0]}"][found.columns["model"].index(name)]
            assert f"{value:.3g}" in found.verdict
        assert str(found.columns["worst_group"][place]) in found.verdict
        assert change.better or change.better_on_average or found.recommended == "CV choice"
        assert not change.note
        assert not change.worse
    else:
        assert words(found.baseline) in first or found.baseline in first
        assert change.gain == change.cost == (0.0, 0.0, 0.0)
    for name, other in found.changes.items():
        assert (name in found.evidence) or other.gain == other.cost == (0.0, 0.0, 0.0)


# ---------------------------------------------------------------------- the rule


def change(gain, cost, spread=0.01, harmed=(), note=""):
    """Return changes from a worst value of 2 and an average of 0.5."""
    ends = (gain, gain - spread, gain + spread), (cost, cost - 0.001, cost + 0.001)
    return Change(*ends, gain / 2.0, cost / 0.5, list(harmed), note)


NONE = change(0.0, 0.0, spread=0.0)


def taken(changes, *, metric=LOSS, baseline="ERM", budget=None, floor=None, choice=None, worst=None):
    """Return the recommended model; the worst values are those of the gains."""
    sign = 1.0 if metric.larger_is_better else -1.0
    changes = {baseline: NONE, **changes}
    found = {name: 2.0 + sign * each.gain[0] for name, each in changes.items()}
    return recommend(changes, {**found, **(worst or {})}, Rule(metric, baseline, budget, floor), choice)


def test_a_gain_within_noise_is_not_recommended():
    assert taken({"GDRO": change(0.3, 0.0, spread=0.31)}) == "ERM"
    assert taken({"GDRO": change(0.3, 0.0, spread=0.29)}) == "GDRO"


@pytest.mark.parametrize(
    ("budget", "name"), [(None, "ERM"), (0.0, "ERM"), (0.85, "ERM"), (0.87, "GDRO"), (10.0, "GDRO")]
)
def test_a_gain_may_cost_as_much_as_it_is_worth_or_as_the_budget_allows(budget, name):
    assert taken({"GDRO": change(0.62, 0.43)}, budget=budget) == name  # 31% better, 86% worse


def test_a_budget_of_zero_allows_what_costs_nothing():
    assert taken({"GDRO": change(0.62, -0.01), "MERO": change(0.9, 0.01)}, budget=0.0) == "GDRO"


def test_the_best_trade_is_taken_whoever_made_the_model():
    changes = {"blend 0.5": change(0.4, 0.01), "GDRO": change(0.6, 0.1), "trees": change(0.5, 0.02)}
    assert taken(changes) == "trees"
    assert taken({**changes, "more trees": change(0.5, 0.0)}) == "more trees"


def test_a_better_average_is_taken_if_nobody_is_harmed():
    assert taken({"trees": change(0.0, -0.1)}) == "trees"
    assert taken({"trees": change(-0.005, -0.1)}) == "trees"  # within noise
    assert taken({"trees": change(0.0, -0.1, harmed=["a"])}) == "ERM"
    assert taken({"trees": change(-0.02, -0.1)}) == "ERM"
    assert taken({"trees": change(0.0, -0.0005)}) == "ERM"


def test_a_model_that_cannot_be_judged_is_never_taken():
    note = "cannot be judged"
    assert taken({"trees": change(0.9, -0.1, note=note), "GDRO": change(0.3, 0.0)}) == "GDRO"
    assert taken({"trees": change(0.9, -0.1, note=note)}) == "ERM"
    assert taken({"CV choice": change(0.9, -0.1, note=note)}, choice=CHOICE) == "ERM"


@pytest.mark.parametrize(("gain", "name"), [(0.02, "CV choice"), (-0.02, "ERM")])
def test_what_cross_validation_preferred_is_taken_unless_the_held_out_rows_contradict_it(gain, name):
    changes = {"GDRO": change(0.0, 0.2), "CV choice": change(gain, 0.001, spread=0.1)}
    assert taken(changes, choice=CHOICE) == name


def test_the_choice_is_not_taken_if_it_harms_if_it_is_plain_training_or_for_another_baseline():
    harmful = change(-0.02, -0.4, spread=0.01, harmed=["a"])  # however much the average falls
    assert harmful.net > 0
    assert harmful.worse
    assert taken({"CV choice": harmful}, choice=CHOICE) == "ERM"
    within = {"CV choice": change(0.02, 0.001, spread=0.1)}
    assert taken(within, choice=Choice(0.0, "Chose robustness 0.")) == "ERM"
    assert taken({**within, "ERM": change(0.0, 0.2)}, baseline="GDRO", choice=CHOICE) == "GDRO"


@pytest.mark.parametrize("metric", [LOSS, SCORE], ids=["smaller", "larger"])
def test_models_whose_worst_group_reaches_the_floor_come_first(metric):
    changes = {"blend": change(0.4, 0.0), "GDRO": change(0.6, 0.2)}
    sign = 1.0 if metric.larger_is_better else -1.0
    assert taken(changes, metric=metric) == "blend"
    assert taken(changes, metric=metric, floor=2.0 + sign * 0.3) == "blend"
    affordable = {"metric": metric, "budget": 1.0}
    assert taken(changes, floor=2.0 + sign * 0.5, **affordable) == "GDRO"
    assert (
        taken(changes, floor=2.0 + sign * 0.9, **affordable) == "GDRO"
    )  # none reaches it, so the most within the budget
    # The baseline alone reaches it.
    other = dict.fromkeys(changes, 2.0 - sign * 0.2)
    assert taken(changes, floor=2.0 - sign * 0.1, worst=other, **affordable) == "ERM"


def test_relative_changes_count_for_losses_and_absolute_ones_for_scores():
    assert change(0.4, 0.05).net == pytest.approx(0.4 / 2.0 - 0.05 / 0.5)


# ---------------------------------------------------------------------- data of a known kind


class Absolute(RegressorMixin, BaseEstimator):
    """The absolute value of the first column, plus a shift where the last column is 1; the baseline cannot learn it."""

    def __init__(self, shift=0.0):
        self.shift = shift

    def fit(self, X, y):
        self.fitted_ = True
        return self

    def predict(self, X):
        X = np.asarray(X)
        return np.abs(X[:, 0]) + self.shift * (X[:, -1] == 1)


@functools.cache
def bent(n=1200, seed=0):
    """Return regression rows of three groups, which no linear model of them explains."""
    rng = np.random.default_rng(seed)
    groups = rng.choice(["a", "b", "c"], n, p=[0.2, 0.4, 0.4])
    X = np.column_stack([rng.normal(size=(n, 2)), groups == "a"]).astype(float)
    return X, np.abs(X[:, 0]) + 0.3 * X[:, 1] * (groups == "b") + 0.4 * rng.normal(size=n), groups


class Bumps(ClassifierMixin, BaseEstimator):
    """Known probabilities of the second class by the absolute value of the first column; wrong in some rows."""

    def __init__(self, flipped=False, cut=np.inf, sharpness=1.0, centre=0.7):
        self.flipped = flipped
        self.cut = cut
        self.sharpness = sharpness
        self.centre = centre

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        X = np.asarray(X)
        p = 1.0 / (1.0 + np.exp(-3.0 * self.sharpness * (np.abs(X[:, 0]) - self.centre)))
        p = np.where(self.flipped & (X[:, -1] == 1), 1.0 - p, p)
        p = np.where(X[:, 1] > self.cut, 0.0, p)
        return np.column_stack([1.0 - p, p])

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


@functools.cache
def bumpy(n=2400, seed=0, sharpness=1.0):
    """Return classification rows of three groups, with labels drawn from the probabilities of `Bumps`."""
    rng = np.random.default_rng(seed)
    groups = rng.choice(["a", "b", "c"], n, p=[0.2, 0.4, 0.4])
    X = np.column_stack([rng.normal(size=(n, 2)), groups == "a"]).astype(float)
    odds = 3.0 * sharpness * (np.abs(X[:, 0]) - 0.7)
    return X, (odds + rng.logistic(size=n) > 0).astype(int), groups


@functools.cache
def unrelated(n=2400, seed=0):
    """Return rows whose groups are drawn at random."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, (X[:, 0] + rng.logistic(size=n) > 0).astype(int), rng.choice(["a", "b", "c"], n)


@functools.cache
def flipped(n=2400, seed=0):
    """Return rows of which a rare group has a feature of the opposite meaning."""
    rng = np.random.default_rng(seed)
    groups = np.where(rng.random(n) < 0.12, "rare", np.where(rng.random(n) < 0.5, "east", "west"))
    y = rng.integers(0, 2, n)
    sign = 2.0 * y - 1.0
    shortcut = np.where(groups == "rare", -1.0, 1.0) * sign * 1.5 + rng.normal(size=n)
    return np.column_stack([shortcut, sign * 0.8 + rng.normal(size=n), rng.normal(size=n)]), y, groups


def halves(rows):
    half = len(rows[1]) // 2
    return tuple(part[:half] for part in rows), tuple(part[half:] for part in rows)


# ---------------------------------------------------------------------- models of the user


def test_trees_that_are_better_everywhere_are_recommended_and_named():
    trees = HistGradientBoostingClassifier(max_iter=40, random_state=0)
    found = compare(*bumpy(), models={"boosted trees": trees})
    assert found.recommended == "boosted trees"
    assert found.worth_it
    assert "boosted trees" in found.verdict
    assert "trees" not in found.verdict.replace("boosted trees", "")
    assert found.changes["boosted trees"].better
    assert found.changes["boosted trees"].better_on_average
    assert_consistent(found)


OF_CLASSES = [name for name, metric in METRICS.items() if metric.task != "regression" and metric.ranks]
ONE_SIDED = ["recall", "precision", "false_positive_rate", "false_negative_rate"]
OF_NUMBERS = [name for name, metric in METRICS.items() if metric.task != "classification" and metric.ranks]


@pytest.mark.parametrize("name", [name for name in OF_CLASSES if name not in ONE_SIDED])
def test_a_better_classifier_is_recommended_by_every_metric(name):
    found = compare(*bumpy(), models={"bumps": Bumps()}, metrics=name)
    assert found.recommended == "bumps"
    assert_consistent(found)
    gain, low, high = found.changes["bumps"].gain
    worst, mean = (dict(zip(found.columns["model"], found.columns[f"{kind}_{name}"], strict=True))
                   for kind in ("worst", "mean"))  # fmt: skip
    sign = 1.0 if METRICS[name].larger_is_better else -1.0
    assert gain == pytest.approx(sign * (worst["bumps"] - worst["ERM"]))
    assert found.changes["bumps"].cost[0] == pytest.approx(sign * (mean["ERM"] - mean["bumps"]))
    assert max(0.0, low) < gain < high


@pytest.mark.parametrize("name", [*OF_NUMBERS, "neg_mean_absolute_error", "r2"])
def test_a_better_regressor_is_recommended_by_every_metric(name):
    n_bootstrap = 300 if name in METRICS else 40  # functions are called once per resample
    found = compare(*bent(), models={"absolute": Absolute()}, metrics=name, n_bootstrap=n_bootstrap)
    assert found.recommended == "absolute"
    assert found.metrics == (name,)
    assert found.changes["absolute"].better_on_average
    assert_consistent(found)


def test_a_function_of_the_user_decides():
    def within(true, predicted):
        return np.mean(np.abs(true - predicted) < 0.5)

    found = compare(*bent(600), models={"absolute": Absolute()}, metrics=[within, "rmse"], n_bootstrap=100)
    assert found.recommended == "absolute"
    assert found.metrics == ("within", "rmse")
    assert_consistent(found)


@functools.cache
def sharpened(n=6000, seed=3):
    """Return labels, groups and the scores of two models, of which the second one is too sure in the rare group."""
    rng = np.random.default_rng(seed)
    score = rng.normal(size=n)
    groups = np.where(rng.random(n) < 0.97, "big", "small")
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-score * np.where(groups == "big", 1.3, 0.4)))).astype(int)
    return y, groups, {"old": 0.85 * score, "new": 0.95 * score}


def of_scores(scores):
    return Predictions(probability=1.0 / (1.0 + np.exp(-scores)))


def test_a_worst_group_that_gets_worse_is_not_called_improved():
    y, groups, scores = sharpened()
    models = {name: of_scores(score) for name, score in scores.items()}
    found = compare(y=y, groups=groups, models=models, n_bootstrap=200)
    assert found.recommended == "new"
    assert found.changes["new"].gain[0] < 0
    assert "the worst group gets worse, but not significantly" in found.verdict
    assert "that of the worst group" not in found.verdict


def test_a_worst_group_without_any_change_is_not_called_improved():
    y, groups, scores = sharpened()
    better = np.where(groups == "big", scores["new"], scores["old"])
    models = {"old": of_scores(scores["old"]), "new": of_scores(better)}
    found = compare(y=y, groups=groups, models=models, n_bootstrap=200)
    assert found.recommended == "new"
    assert found.changes["new"].gain[0] == 0
    assert "the worst group is as before" in found.verdict


def test_the_verdict_has_as_many_digits_as_show_the_change():
    rng = np.random.default_rng(0)
    y, groups = 10.0 + rng.normal(size=6000), rng.choice(["a", "b"], 6000)
    models = {"old": Predictions(0.0 * y), "new": Predictions(1e-4 * y)}
    found = compare(y=y, groups=groups, models=models, metrics="mae")
    assert found.recommended == "new"
    number = r"(\d+\.\d+)"
    printed = re.findall(f"{number} instead of {number}", found.verdict)
    assert len(printed) == 2
    for (new, old), key in zip(printed, ("worst_mae", "mean_mae"), strict=True):
        values = found.columns[key]
        assert f"{values[0]:.3g}" == f"{values[1]:.3g}"
        assert (float(old), float(new)) == pytest.approx(values, rel=1e-3)
        assert float(new) < float(old)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (0.638, 0.634, "0.634 instead of 0.638"),
        (0.58741, 0.58699, "0.5870 instead of 0.5874"),
        (1000.2, 999.8, "999.8 instead of 1000"),
        (1000.4, 1000.2, "1000.2 instead of 1000.4"),
        (0.5, 0.5, "0.5 as before"),
        (0.1 + 0.2, 0.3, "0.3 as before"),
        (np.nan, 0.5, "0.5 instead of nan"),
    ],
)
def test_digits_are_added_until_two_values_differ(before, after, text):
    assert _instead(before, after) == text


@pytest.mark.parametrize(("shift", "harmed"), [(0.0, []), (2.0, ["a"])])
def test_a_model_that_is_worse_in_a_group_beyond_chance_is_not_recommended(shift, harmed):
    found = compare(*bent(), models={"absolute": Absolute(shift)}, estimator=GroupDRORegressor())
    assert found.changes["absolute"].harmed == harmed
    assert (found.recommended == "absolute") == (harmed == [])
    assert_consistent(found)


def test_a_better_average_does_not_pay_for_a_harmed_group():
    found = compare(*bumpy(), models={"bumps": Bumps(flipped=True)}, metrics="accuracy")
    own = found.changes["bumps"]
    assert own.better_on_average
    assert own.harmed == ["a"]
    assert found.recommended != "bumps"
    assert_consistent(found)


def test_the_verdict_names_a_model_whose_better_average_harms_a_group():
    found = compare(*bumpy(), models={"bumps": Bumps(flipped=True)}, metrics="accuracy")
    assert not found.worth_it
    assert "bumps" in found.verdict


def test_the_differences_are_those_of_each_group_in_the_metric_itself():
    found = compare(*bumpy(), models={"bumps": Bumps(flipped=True)}, metrics="accuracy")
    table = [row for row in zip(*found.differences.values(), strict=True) if row[0] == "bumps"]
    reports = {name: found.reports[name].by_group for name in ("ERM", "bumps")}
    for _, group, difference, low, high in table:
        assert difference == pytest.approx(reports["bumps"][group]["accuracy"] - reports["ERM"][group]["accuracy"])
        assert low < difference < high
        assert (high < 0) == (group in found.changes["bumps"].harmed)


# ---------------------------------------------------------------------- the baseline


def test_the_model_in_production_is_what_others_must_beat():
    train, held_out = halves(bumpy())
    ours = compare(*train, held_out=held_out, models={"bumps": Bumps()})
    assert (ours.baseline, ours.recommended) == ("ERM", "bumps")
    named = compare(*train, held_out=held_out, models={"bumps": Bumps()}, baseline="bumps")
    assert (named.baseline, named.recommended, named.worth_it) == ("bumps", "bumps", False)
    given = compare(*train, held_out=held_out, baseline=Bumps())
    assert (given.baseline, given.recommended, given.worth_it) == ("baseline", "baseline", False)
    fitted = compare(*train, held_out=held_out, baseline=Bumps().fit(*train[:2]))
    for found, name in ((ours, "bumps"), (named, "bumps"), (given, "baseline"), (fitted, "baseline")):
        assert_consistent(found)
        assert found.columns["model"][-1] == name
        # The same two models, seen from either side.
        gain, other = ours.changes["bumps"].gain, found.changes["ERM" if found is not ours else "bumps"].gain
        assert abs(gain[0]) == pytest.approx(abs(other[0]))
        assert (gain[0] < 0) == (other[0] < 0 and found is ours)
    assert given.changes["ERM"].gain == fitted.changes["ERM"].gain
    assert given.changes["ERM"].harmed == ["a", "b", "c"]


def test_an_own_model_can_be_the_baseline():
    rows = flipped()
    plain, robust = (compare(*rows, baseline=name) for name in ("ERM", "GDRO"))
    assert plain.worth_it
    assert robust.baseline == "GDRO"
    assert robust.changes["GDRO"].gain == (0.0, 0.0, 0.0)
    assert robust.changes["ERM"].gain[0] == pytest.approx(-plain.changes["GDRO"].gain[0])
    assert robust.recommended != "ERM"
    for found in (plain, robust):
        assert_consistent(found)


@pytest.mark.parametrize(
    ("baseline", "error"), [("trees", ValueError), (LogisticRegression, TypeError), (3, TypeError)]
)
def test_a_baseline_that_is_no_model_is_refused_by_name(baseline, error):
    with pytest.raises(error, match="baseline"):
        compare(*unrelated(600), baseline=baseline)


def test_a_model_of_the_user_that_is_called_baseline_is_not_replaced_by_the_baseline():
    with pytest.raises(ValueError, match="baseline"):
        compare(*bent(600), models={"baseline": Absolute(1.0)}, baseline=Absolute())


# ---------------------------------------------------------------------- budget and floor


def test_a_budget_decides_how_much_the_average_may_lose():
    rows = flipped()
    found = {budget: compare(*rows, mean_budget=budget) for budget in (None, 0.0, 0.05, 5.0)}
    costs = {}
    for budget, one in found.items():
        assert_consistent(one)
        own = one.changes[one.recommended]
        costs[budget] = own.relative_cost
        if budget is not None:
            assert own.relative_cost <= budget
    assert found[5.0].changes == found[0.0].changes
    assert costs[0.0] <= 0.0 < costs[5.0]
    # Within the budget, the worst group decides.
    affordable = [change for change in found[5.0].changes.values() if change.better and change.relative_cost <= 5.0]
    assert found[5.0].changes[found[5.0].recommended] == max(affordable, key=lambda change: change.gain[0])
    # Without one, what the average loses counts as well.
    assert found[None].changes[found[None].recommended] == max(found[None].changes.values(), key=lambda one: one.net)


def test_a_floor_is_reached_by_the_recommended_model_if_by_any():
    rows = flipped()
    plain = compare(*rows, metrics="accuracy", mean_budget=1.0)
    worst = dict(zip(plain.columns["model"], plain.columns["worst_accuracy"], strict=True))
    best = max(worst, key=worst.get)
    assert worst["ERM"] < worst["balanced ERM"] < worst[best]
    floors = {"low": 0.01, "needed": worst[best] - 1e-9, "out of reach": 0.99}
    found = {key: compare(*rows, metrics="accuracy", mean_budget=1.0, floor=floor) for key, floor in floors.items()}
    assert found["low"].recommended == found["out of reach"].recommended == plain.recommended
    assert worst[found["needed"].recommended] == worst[best]
    assert "0.99" in found["out of reach"].verdict
    assert "0.01" not in found["low"].verdict
    for one in found.values():
        assert_consistent(one)


def test_a_floor_of_a_loss_is_a_ceiling():
    rows = flipped()
    plain = compare(*rows, mean_budget=1.0)
    worst = dict(zip(plain.columns["model"], plain.columns["worst_risk"], strict=True))
    best = min(worst, key=worst.get)
    found = compare(*rows, mean_budget=1.0, floor=worst[best] + 1e-9)
    assert worst[found.recommended] == worst[best]
    assert_consistent(found)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"mean_budget": -0.1}, ValueError),
        ({"mean_budget": np.nan}, ValueError),
        ({"mean_budget": "small"}, TypeError),
        ({"floor": np.inf}, ValueError),
        ({"floor": "high"}, TypeError),
        ({"floor": {"recall": "high"}}, TypeError),
        ({"floor": {"no metric": 0.5}}, ValueError),
        ({"floor": {"selection_rate": 0.5}}, ValueError),
        ({"floor": {1: 0.5}}, TypeError),
        ({"verbose": 2}, (TypeError, ValueError)),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(given, error):
    (name,) = given
    with pytest.raises(error, match=name):
        compare(*unrelated(600), **given)


def test_a_floor_below_zero_is_taken():
    found = compare(*bent(600), metrics="d2", floor=-0.5)
    assert not found.worth_it
    assert_consistent(found)


# ---------------------------------------------------------------------- one-sided rates, constants


CONSTANTS = {
    "yes": DummyClassifier(strategy="constant", constant=1),
    "no": DummyClassifier(strategy="constant", constant=0),
    "prior": DummyClassifier(strategy="prior"),
}


@pytest.mark.parametrize("name", ONE_SIDED)
@pytest.mark.parametrize("more", [{}, {"mean_budget": 10.0}, {"floor": 0.5}])
def test_a_one_sided_rate_alone_recommends_nothing_and_says_why(name, more):
    found = compare(*bumpy(1200), models={"bumps": Bumps(), **CONSTANTS}, metrics=[name], **more)
    assert not found.worth_it
    assert "floor" in found.verdict
    assert name.replace("_", " ") in found.verdict
    assert_consistent(found)


@pytest.mark.parametrize(
    ("name", "other", "ranks"),
    [
        ("false_positive_rate", "recall", True),
        ("recall", "false_negative_rate", False),
        ("false_positive_rate", "precision", False),
        ("precision", "recall", True),
    ],
)
def test_a_floor_guards_a_one_sided_rate_only_if_the_same_model_does_not_win_both(name, other, ranks):
    floor = {other: 0.6 if METRICS[other].larger_is_better else 0.4}
    found = compare(*bumpy(), models={"bumps": Bumps(), **CONSTANTS}, metrics=name, floor=floor)
    assert found.recommended == ("bumps" if ranks else "ERM")
    assert other in found.metrics
    assert_consistent(found)


@pytest.mark.parametrize("other", ["risk", "log_loss"])
def test_a_one_sided_rate_ranks_models_that_are_not_worse_by_a_metric_after_it(other):
    timid = Bumps(centre=2.0)  # hardly ever predicts the positive class
    found = compare(*bumpy(), models={"bumps": Bumps(), "timid": timid}, metrics=["false_positive_rate", other])
    assert found.changes["timid"].gain[1] > found.changes["bumps"].gain[1] > 0
    assert other.replace("_", " ") in found.changes["timid"].objection
    assert found.recommended == "bumps"
    assert f"Its {other.replace('_', ' ') if other != 'risk' else 'log loss'}" in found.verdict
    assert_consistent(found)


def test_models_that_miss_the_floor_of_another_metric_are_not_recommended():
    free, strict = (
        compare(*bumpy(), models={"bumps": Bumps()}, metrics="accuracy", floor={"recall": floor})
        for floor in (0.1, 0.99)
    )
    assert free.recommended == "bumps"
    assert not strict.worth_it
    assert "0.99" in strict.verdict
    assert strict.metrics == ("accuracy", "recall")
    assert_consistent(strict)


def test_a_floor_of_the_first_metric_may_be_given_by_name():
    rows = flipped()
    one, other = (
        compare(*rows, metrics="accuracy", mean_budget=1.0, floor=floor) for floor in (0.99, {"accuracy": 0.99})
    )
    assert one.verdict == other.verdict
    assert "0.99" in one.verdict


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("metrics", [*OF_CLASSES, ["recall", "log_loss"], ["false_positive_rate", "accuracy"]])
def test_a_constant_is_never_recommended(metrics, seed):
    rng = np.random.default_rng(seed)
    X, y, groups = flipped(800, seed)
    y = np.where(groups == "rare", rng.random(len(y)) < 0.3, y).astype(int)
    noise = DummyClassifier(strategy="stratified", random_state=seed)
    found = compare(X, y, groups, models={**CONSTANTS, "noise": noise}, metrics=metrics, n_bootstrap=100)
    assert found.recommended not in CONSTANTS
    assert_consistent(found)


def test_a_classifier_of_one_class_is_not_recommended_by_a_metric_of_classes_whatever_its_scores():
    rows = bumpy(1200)
    found = compare(*rows, models={"never": Never()}, metrics=["false_positive_rate", "roc_auc"])
    assert "the same class for every row" in found.changes["never"].objection
    assert found.recommended != "never"


def test_regressors_that_predict_almost_the_same_for_every_row_are_not_recommended():
    rng = np.random.default_rng(0)
    score = rng.normal(size=3000)
    y, groups = np.exp(1.5 * score), rng.choice(["a", "b", "c"], 3000)
    poor = Predictions(np.exp(1.5 * score + rng.normal(size=3000)))
    for spread, same in ((0.0, "the same"), (1e-4, "almost the same")):
        constant = Predictions(1.0 + spread * rng.normal(size=3000))
        for metric in ("mae", "rmse", "risk"):
            found = compare(y=y, groups=groups, models={"poor": poor, "constant": constant}, metrics=metric)
            assert found.changes["constant"].better or found.changes["constant"].better_on_average
            assert not found.worth_it
            assert f"predicts {same} for every row" in found.verdict


def test_classifiers_that_predict_almost_the_same_for_every_row_are_not_recommended():
    y, groups, scores = sharpened()
    rng = np.random.default_rng(0)
    almost = 0.5 + 1e-4 * rng.normal(size=len(y))
    for constant in (Predictions(probability=almost), Predictions(probability=np.column_stack([1.0 - almost, almost]))):
        found = compare(y=y, groups=groups, models={"opposite": of_scores(-scores["old"]), "constant": constant})
        assert found.changes["constant"].better
        assert not found.worth_it
        assert "predicts almost the same for every row" in found.verdict


def test_a_good_model_is_recommended_however_far_its_predictions_are_from_zero_or_how_rare_the_class():
    rng = np.random.default_rng(0)
    score, groups = rng.normal(size=6000), rng.choice(["a", "b"], 6000)
    year = 2010.0 + 0.5 * score
    years = {"before": Predictions(np.full(6000, 2010.5)), "good": Predictions(year)}
    assert compare(y=year + 0.1 * rng.normal(size=6000), groups=groups, models=years).recommended == "good"
    chance = 0.01 * np.exp(score - 0.5)
    y = (rng.random(6000) < chance).astype(int)
    rare = {"before": Predictions(probability=np.full(6000, 0.1)), "good": Predictions(probability=chance.clip(0, 1))}
    assert compare(y=y, groups=groups, models=rare).recommended == "good"


def test_the_verdict_states_what_every_metric_pays():
    found = compare(*bumpy(), models={"bumps": Bumps()}, metrics=["accuracy", "recall", "selection_rate"])
    assert found.recommended == "bumps"
    place = found.columns["model"].index("bumps")
    for name in ("recall", "selection_rate"):
        assert f"Its {name.replace('_', ' ')}" in found.verdict
        assert f"{found.columns[f'mean_{name}'][place]:.3g} over all rows" in found.verdict


@pytest.mark.parametrize("metrics", [["log_loss", "recall"], ["recall", "log_loss"]])
def test_the_worst_group_of_each_metric_is_one_that_can_be_judged_by_it(metrics):
    X, y, groups = bumpy()
    train, (X, y, groups) = halves((X, y, groups))
    kept = (groups != "a") | (y == 0) | (np.cumsum((groups == "a") & (y == 1)) <= 3)  # three positive rows in a
    held_out = X[kept], y[kept], groups[kept]
    found = compare(*train, held_out=held_out, metrics=metrics)
    for name, model in found.models.items():
        report = group_report(model, *held_out, metrics="recall")
        place = found.columns["model"].index(name)
        assert found.columns["worst_recall"][place] == report.worst_value[0]
        assert report.by_group["a"]["note"]


# ---------------------------------------------------------------------- nothing to recommend


@pytest.mark.parametrize("seed", range(3))
def test_robustness_is_found_to_help_where_a_rare_group_has_a_flipped_feature(seed):
    found = compare(*flipped(seed=seed))
    assert found.worth_it
    gain, low, high = found.changes["GDRO"].gain
    assert gain > 0.1
    assert 0.0 < low <= gain <= high
    assert dict(zip(found.columns["model"], found.columns["worst_group"], strict=True))["ERM"] == "rare"
    assert found.left_out == []
    assert_consistent(found)


@pytest.mark.parametrize("seed", range(3))
def test_plain_training_is_kept_where_groups_are_random_labels(seed):
    found = compare(*unrelated(seed=seed))
    assert not found.worth_it
    assert found.recommended == "ERM"
    assert found.changes["GDRO"].gain[1] <= 0.0 <= found.changes["GDRO"].gain[2]
    assert_consistent(found)


def test_plain_training_is_kept_where_the_worst_group_of_the_training_rows_misleads():
    X, y, groups = flipped()
    turned = X * np.where(groups == "rare", -1.0, 1.0)[:, None], y, np.where(groups == "rare", "west", groups)
    found = compare(X, y, groups, held_out=turned)
    assert not found.worth_it
    assert found.changes["GDRO"].worse
    assert_consistent(found)


def test_nothing_is_recommended_where_no_group_can_be_judged():
    for baseline in (None, "GDRO", Bumps()):
        found = compare(*bumpy(), models={"bumps": Bumps()}, min_rows=10**6, baseline=baseline)
        assert found.recommended == found.baseline
        assert words(found.baseline) in found.verdict
        assert not found.worth_it
        assert found.headroom is None
        assert sorted(found.left_out) == ["a", "b", "c"]
        others = [change for name, change in found.changes.items() if name != found.baseline]
        assert np.isnan([change.gain[1:] for change in others]).all()
        assert all(len(text) > 0 for text in (repr(found), found.summary(details=True), found._repr_html_()))


def test_groups_in_which_the_metric_is_undefined_are_left_out():
    X, y, groups = unrelated()
    train, (X, y, groups) = halves((X, y, groups))
    kept = (groups != "a") | (y == 1)
    found = compare(*train, held_out=(X[kept], y[kept], groups[kept]), metrics="roc_auc")
    assert found.left_out == ["a"]
    assert set(found.differences["group"]) == {"b", "c"}
    assert np.isfinite([change.gain for change in found.changes.values()]).all()
    assert_consistent(found)


def test_nothing_is_recommended_where_the_metric_is_undefined_in_all_groups():
    X, y, groups = unrelated()
    found = compare(X, y, groups, held_out=(X[y == 1], y[y == 1], groups[y == 1]), metrics="roc_auc")
    assert not found.worth_it
    assert sorted(found.left_out) == ["a", "b", "c"]
    assert_consistent(found)


class Never(Bumps):
    """A model that never predicts the second class."""

    def predict(self, X):
        return np.zeros(len(X), dtype=int)


def test_a_metric_that_one_model_leaves_undefined_is_judged_for_the_others():
    alone, found = (
        compare(*bumpy(), models={"bumps": Bumps(), **more}, metrics="precision", floor={"recall": 0.1})
        for more in ({}, {"never": Never()})
    )
    assert found.changes["never"].note
    assert found.recommended == alone.recommended == "bumps"
    assert np.isfinite(found.changes["bumps"].gain).all()
    assert_consistent(found)


# ---------------------------------------------------------------------- losses that few rows carry


def test_a_model_whose_loss_a_few_rows_carry_is_noted_and_not_recommended_without_a_warning():
    train, held_out = halves(bumpy(2400, sharpness=12.0))
    cut = np.sort(held_out[0][held_out[1] == 1, 1])[-6]  # five rows get a probability of zero for their own class
    models = {"sure": Bumps(cut=cut, sharpness=12.0), "bumps": Bumps(centre=0.9)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UselessModelWarning)  # of the linear models
        found = compare(*train, held_out=held_out, models=models)
    sure, bumps = (found.changes[name] for name in ("sure", "bumps"))
    assert sure.note
    assert bumps.note == ""
    assert sure.cost[0] < bumps.cost[0]  # it looks better, and would harm nobody
    assert sure.better_on_average
    assert not sure.harmed
    assert found.recommended == "bumps"
    assert sure.note in found.evidence
    assert_consistent(found)
    # By a proportion it can be judged.
    found = compare(*train, held_out=held_out, models=models, metrics="accuracy")
    assert found.changes["sure"].note == ""
    assert found.changes["sure"].better


# ---------------------------------------------------------------------- consistency


@pytest.mark.parametrize("seed", range(30))
def test_recommendation_verdict_and_table_agree_on_random_problems(seed):
    rng = np.random.default_rng(seed)
    n, n_groups, classes = int(rng.integers(500, 1000)), int(rng.integers(2, 5)), seed % 2 == 0
    X, groups = rng.normal(size=(n, 3)), rng.integers(0, n_groups, n)
    slopes = rng.normal(size=(n_groups, 3)) * rng.uniform(0.0, 1.5)
    signal = (X * (1.0 + slopes[groups])).sum(axis=1) + rng.uniform(0.0, 2.0) * np.abs(X[:, 0])
    y = (signal + rng.logistic(size=n) > 0).astype(int) if classes else signal + rng.normal(size=n)
    metrics = (("risk", "accuracy", "roc_auc", "brier") if classes else ("risk", "rmse", "mae", "d2"))[seed // 2 % 4]
    given = {"models": {"bumps": Bumps()} if classes else {"absolute": Absolute()}, "metrics": metrics}
    if seed % 3 == 0:
        given["baseline"] = ("GDRO", "balanced ERM", "bumps" if classes else "absolute")[seed // 3 % 3]
    if seed % 5 == 0:
        given |= {"mean_budget": 0.02, "floor": 0.6}
    if seed % 7 == 0:
        given |= {"cv": 2, "estimator": GroupDROClassifier() if classes else GroupDRORegressor()}
    found = compare(X, y, groups, random_state=seed, n_bootstrap=100, **given)
    assert_consistent(found)
    again = compare(X, y, groups, random_state=seed, n_bootstrap=100, **given)
    assert (again.recommended, again.verdict, again.evidence) == (found.recommended, found.verdict, found.evidence)


def test_plain_training_is_rarely_left_where_nothing_can_be_gained():
    left = 0
    for seed in range(30):
        X, y, groups = unrelated(800, 100 + seed)
        left += compare(X, y, groups, random_state=seed, n_bootstrap=100).worth_it
    assert left <= 5  # nominally 5% of 30; more than five in one of two hundred such tests


def test_a_classifier_that_guesses_is_not_recommended_by_a_metric_of_classes():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(2000, 3)), rng.choice(["a", "b"], 2000)
    y = (X[:, 0] + rng.logistic(size=2000) > 1.5).astype(int)
    models = {"coin": DummyClassifier(strategy="uniform", random_state=0)}
    found = groupdro.compare(
        X, y, groups, models=models, metrics="recall", floor={"precision": 0.1}, cv=None, n_bootstrap=100
    )
    assert found.changes["coin"].gain[0] > 0
    assert "guesses" in found.changes["coin"].objection
    assert found.recommended != "coin"
