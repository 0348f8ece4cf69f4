"""Simultaneous confidence intervals of metrics in all groups."""

import functools

import numpy as np
import pytest
from benchmarks.held_out import metrics as simulated
from scipy.stats import binomtest

from groupdro import group_report
from groupdro.evaluation.metrics import METRICS
from tests.evaluation.outputs import Given, GivenNumbers

OF_CLASSES = [name for name, metric in METRICS.items() if metric.task != "regression"]
OF_NUMBERS = [name for name, metric in METRICS.items() if metric.task != "classification" and metric.ranks]
PROPORTIONS = ("accuracy", "recall", "precision", "selection_rate", "false_positive_rate", "false_negative_rate")


@functools.cache
def classified(n=150, n_groups=3, seed=0, sharpness=1.0):
    """Return probabilities of two classes, labels and groups of n rows each."""
    rng = np.random.default_rng(seed)
    odds = sharpness * 1.5 * rng.normal(size=n * n_groups)
    y = (rng.logistic(size=len(odds)) < odds).astype(int)
    p = 1.0 / (1.0 + np.exp(-odds))
    return np.column_stack([1.0 - p, p]), y, np.repeat(np.arange(n_groups), n)


@functools.cache
def predicted(n=150, n_groups=3, seed=0):
    """Return predictions, targets and groups of n rows each."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n * n_groups)
    return x[:, None], x + rng.normal(size=len(x)), np.repeat(np.arange(n_groups), n)


def reported(name, *, classes=True, rows=None, **given):
    """Return the report of one metric."""
    X, y, groups = rows or (classified() if classes else predicted())
    return group_report(
        Given() if classes else GivenNumbers(), X, y, given.pop("groups", groups), metrics=after_a_loss(name), **given
    )


def after_a_loss(name):
    """Return a metric, after the risk if it must not come first."""
    return ["risk", name] if isinstance(name, str) and not METRICS[name].ranks else name


def intervals(report):
    name = report.metrics[-1]
    rows = report.by_group
    return {group: (row[f"{name}_low"], row[name], row[f"{name}_high"]) for group, row in rows.items()}


CASES = [(name, True) for name in OF_CLASSES] + [(name, False) for name in OF_NUMBERS]
every_metric = pytest.mark.parametrize(
    ("name", "classes"), CASES, ids=[f"{n}, {'classes' if c else 'numbers'}" for n, c in CASES]
)


# ---------------------------------------------------------------------- what every interval does


@every_metric
def test_an_interval_holds_its_value_and_widens_with_the_confidence(name, classes):
    ends = {level: intervals(reported(name, classes=classes, confidence=level)) for level in (0.5, 0.95)}
    for group in range(3):
        (low, value, high), (lower, same, higher) = (ends[level][group] for level in (0.5, 0.95))
        assert value == same
        assert lower < low < value < high < higher


@every_metric
def test_the_interval_of_a_group_widens_with_the_number_of_groups(name, classes):
    X, y, groups = classified() if classes else predicted()
    first = groups == 0
    (alone,) = intervals(reported(name, classes=classes, rows=(X[first], y[first], groups[first]))).values()
    among = intervals(reported(name, classes=classes))[0]
    assert among[1] == pytest.approx(alone[1])
    assert 1.05 < (among[2] - among[0]) / (alone[2] - alone[0]) < 1.6


@every_metric
def test_rows_that_are_copied_within_their_cluster_leave_the_intervals_as_they_are(name, classes):
    X, y, groups = classified() if classes else predicted()
    copied = np.repeat(np.arange(len(y)), 3)
    alone = intervals(reported(name, classes=classes))
    rows = X[copied], y[copied], groups[copied]
    together = intervals(reported(name, classes=classes, rows=rows, cluster=copied))
    blind = intervals(reported(name, classes=classes, rows=rows))
    for group, (low, value, high) in alone.items():
        np.testing.assert_allclose(together[group], (low, value, high), rtol=1e-6)
        assert (high - low) / (blind[group][2] - blind[group][0]) == pytest.approx(np.sqrt(3.0), rel=0.25)


@every_metric
def test_equal_weights_of_any_scale_leave_the_intervals_as_they_are(name, classes):
    plain, scaled = (
        intervals(reported(name, classes=classes, sample_weight=weight)) for weight in (None, np.full(450, 2.0**-30))
    )
    for group, ends in plain.items():
        np.testing.assert_allclose(scaled[group], ends, rtol=1e-6)


@every_metric
def test_weights_that_differ_make_intervals_wider(name, classes):
    weight = np.where(np.arange(450) % 5 == 0, 10.0, 1.0)
    plain, weighted = (intervals(reported(name, classes=classes, sample_weight=some)) for some in (None, weight))
    for group in plain:
        (low, _, high), (lower, _, higher) = plain[group], weighted[group]
        assert (higher - lower) > 1.1 * (high - low)


@every_metric
def test_a_group_that_is_given_twice_has_the_same_value_twice_and_no_narrower_interval(name, classes):
    first, second = (np.arange(450) // 150 == k for k in (0, 1))
    alone, twice = (
        intervals(reported(name, classes=classes, groups=np.column_stack([np.full(450, True), second, *firsts])))
        for firsts in ([first], [first, first])
    )
    assert twice[2] == twice[3]
    assert twice[2][1] == alone[2][1]
    if name in (*PROPORTIONS, "median_error"):  # corrected by the number of groups
        assert twice[2][0] < alone[2][0] < alone[2][2] < twice[2][2]
    else:  # the largest deviation of all groups is the same
        np.testing.assert_allclose(twice[2], alone[2], rtol=1e-9)


@every_metric
def test_overlapping_groups_have_the_values_of_their_own_rows(name, classes):
    X, y, groups = classified() if classes else predicted()
    members = np.column_stack([groups < 2, groups > 0, np.arange(len(y)) % 2 == 0])
    found = intervals(reported(name, classes=classes, groups=members))
    for k, own in enumerate(members.T):
        alone = reported(name, classes=classes, rows=(X[own], y[own], None), groups=None, n_bootstrap=0)
        assert found[k][1] == pytest.approx(alone.overall[name])
        assert found[k][0] < found[k][1] < found[k][2]


# ---------------------------------------------------------------------- possible values


@pytest.mark.parametrize("name", OF_CLASSES)
@pytest.mark.parametrize("seed", range(3))
def test_no_interval_of_a_nearly_perfect_classifier_leaves_the_possible_values(name, seed):
    report = reported(
        name, rows=classified(60, 4, seed, sharpness=8.0), confidence=0.999, n_bootstrap=2000, min_rows=10
    )
    rows = [row for row in report.by_group.values() if not np.isnan(row[f"{name}_low"])]
    lows, highs = (np.array([row[f"{name}_{end}"] for row in rows]) for end in ("low", "high"))
    ends = [*lows, *highs, *([] if np.isnan(report.limit) else [report.limit])]
    least = -np.inf if name in ("d2", "calibration_intercept", "calibration_slope") else 0.0
    unbounded = "risk", "log_loss", "actual_over_expected", "calibration_intercept", "calibration_slope"
    most = np.inf if name in unbounded else 1.0
    assert all(least <= end <= most for end in ends)


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_no_interval_of_an_error_is_negative(name):
    rng = np.random.default_rng(0)
    error = np.where(rng.random(400) < 0.1, rng.exponential(size=400), 1e-3 * rng.exponential(size=400))
    rows = np.zeros((400, 1)), error * rng.choice([-1.0, 1.0], 400), np.arange(400) % 2
    report = reported(name, classes=False, rows=rows, confidence=0.999, n_bootstrap=2000)
    ends = [end for ends in intervals(report).values() for end in ends if not np.isnan(end)]
    assert len(ends) >= 2
    assert all(end <= 1.0 if name == "d2" else end >= 0.0 for end in ends)


# ---------------------------------------------------------------------- proportions and medians


@pytest.mark.parametrize("name", PROPORTIONS)
def test_a_proportion_has_the_interval_of_the_binomial_distribution_with_bonferroni_correction(name):
    X, y, groups = classified()
    chosen = (X[:, 1] > 0.5).astype(int)
    hits, counted = {
        "accuracy": (chosen == y, y >= 0),
        "recall": (chosen == 1, y == 1),
        "precision": (y == 1, chosen == 1),
        "selection_rate": (chosen == 1, y >= 0),
        "false_positive_rate": (chosen == 1, y == 0),
        "false_negative_rate": (chosen == 0, y == 1),
    }[name]
    for group, (low, value, high) in intervals(reported(name, confidence=0.9)).items():
        own = counted & (groups == group)
        exact = binomtest(int(hits[own].sum()), int(own.sum())).proportion_ci(1.0 - 0.1 / 3, method="exact")
        np.testing.assert_allclose([low, value, high], [exact.low, hits[own].mean(), exact.high], rtol=1e-9)


def test_a_proportion_of_zero_or_one_has_an_interval():
    y = np.repeat([1, 0], 50)
    right = np.column_stack([1.0 - y, y])
    ends = intervals(reported("recall", rows=(right, y, np.zeros(100))))[0]
    exact = binomtest(50, 50).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(ends, [exact.low, 1.0, 1.0])
    ends = intervals(reported("false_positive_rate", rows=(right, y, np.zeros(100))))[0]
    np.testing.assert_allclose(ends, [0.0, 0.0, 1.0 - exact.low])


@pytest.mark.parametrize("n", [101, 400])
def test_a_median_has_order_statistics_as_ends(n):
    errors = np.random.default_rng(n).exponential(size=n)
    low, value, high = intervals(reported("median_error", classes=False, rows=(np.zeros((n, 1)), errors, np.zeros(n))))[
        0
    ]
    assert value == np.median(errors)
    ranks = [int((errors <= end).sum()) for end in (low, high)]
    exact = binomtest(n // 2, n).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(ranks, [n * exact.low, n * exact.high], atol=2.0)


def test_errors_of_zero_and_one_have_intervals_around_their_root():
    error = (np.arange(200) % 5 == 0).astype(float)
    low, value, high = intervals(reported("rmse", classes=False, rows=(np.zeros((200, 1)), error, np.zeros(200))))[0]
    assert value == pytest.approx(np.sqrt(0.2))
    assert low < value < high


def test_errors_of_zero_say_nothing_of_their_size():
    report = reported("mae", classes=False, rows=(np.zeros((100, 1)), np.zeros(100), np.zeros(100)))
    assert np.isnan(report.limit)


# ---------------------------------------------------------------------- groups that are not judged


@pytest.mark.parametrize(("n_positive", "note"), [(9, "few rows"), (10, "")])
@pytest.mark.parametrize("name", ["recall", "roc_auc", "balanced_accuracy", "average_precision", "false_negative_rate"])
def test_a_group_needs_ten_rows_of_the_kind_that_a_metric_requires(name, n_positive, note):
    rng = np.random.default_rng(0)
    y = np.r_[np.arange(100) < n_positive, np.arange(100) < 50].astype(int)
    p = np.where(y == 1, rng.beta(3, 2, 200), rng.beta(2, 3, 200))
    report = reported(name, rows=(np.column_stack([1 - p, p]), y, np.repeat(["rare", "common"], 100)))
    rare = report.by_group["rare"]
    assert rare["note"] == note
    assert np.isfinite(rare[name])
    assert np.isnan(rare[f"{name}_low"]) == (note != "")
    assert report.by_group["common"]["note"] == ""
    clustered = reported(
        name,
        rows=(np.column_stack([1 - p, p]), y, np.repeat(["rare", "common"], 100)),
        cluster=np.where(np.arange(200) < 2, 0, np.arange(200)),
    )
    assert clustered.by_group["rare"]["note"] == "few rows"  # two of its positive rows are of one patient


def test_the_note_is_about_the_first_metric_and_others_are_judged_for_themselves():
    y = np.r_[np.arange(100) < 5, np.arange(100) < 50].astype(int)
    p = np.where(y == 1, 0.6, 0.4) + np.random.default_rng(0).uniform(-0.3, 0.3, 200)
    rows = np.column_stack([1 - p, p]), y, np.repeat(["rare", "common"], 100)
    first, second = (reported(names, rows=rows) for names in (["recall", "accuracy"], ["accuracy", "recall"]))
    assert (first.by_group["rare"]["note"], second.by_group["rare"]["note"]) == ("few rows", "")
    for report in (first, second):
        rare = report.by_group["rare"]
        assert np.isnan(rare["recall_low"])
        assert rare["accuracy_low"] < rare["accuracy"] < rare["accuracy_high"]


@pytest.mark.parametrize("name", ["roc_auc", "average_precision", "d2", "balanced_accuracy", "f1"])
def test_a_group_without_any_mistake_has_equal_values_and_no_interval(name):
    X, y, groups = (part.copy() for part in classified(60))
    sure = groups == 0
    X[sure, 1] = np.where(y[sure] == 1, 1.0, 0.0)
    X[:, 0] = 1.0 - X[:, 1]
    report = reported(name, rows=(X, y, groups))
    row = report.by_group[0]
    assert row[name] == 1.0
    assert row["note"] in ("equal values", "few errors")
    assert np.isnan([row[f"{name}_low"], row[f"{name}_high"]]).all()
    assert report.worst_group in (1, 2)


def test_without_resamples_there_are_values_and_no_intervals():
    report = reported(["recall", "roc_auc"], n_bootstrap=0)
    assert not report.resampled
    assert np.isfinite(report.columns["recall"]).all()
    assert np.isnan([*report.columns["recall_low"], *report.columns["roc_auc_high"], report.limit]).all()


# ---------------------------------------------------------------------- coverage


def least(n):
    """Return the smallest number of n tries that a coverage of 93% makes plausible, at one in a thousand."""
    return 0.93 * n - 3.1 * np.sqrt(0.93 * 0.07 * n)


@pytest.mark.parametrize(
    ("task", "data", "weights", "names", "most_silent"),
    [
        ("classification", "50% in the second class", "equal", ("recall", "roc_auc", "false_positive_rate"), 0.01),
        ("classification", "50% in the second class", "lognormal", ("recall", "roc_auc", "false_positive_rate"), 0.15),
        ("regression", "normal errors", "lognormal", ("rmse",), 0.2),
        ("regression", "heavy-tailed errors", "equal", ("rmse",), 0.01),
    ],
)
def test_intervals_hold_for_all_groups_together_about_as_often_as_they_say(task, data, weights, names, most_silent):
    n = 150
    setting = simulated.Setting(task, data, 100, weights, clusters=False)
    true = simulated.truth(task, data, 400_000)
    found = simulated.simulate(setting, {name: true[name] for name in names}, n, n_bootstrap=300)
    for name, (share, silent) in found.items():
        assert share >= least(n) / n, name
        assert silent <= most_silent, name


@pytest.mark.long
@pytest.mark.parametrize("setting", simulated.SETTINGS, ids=[", ".join(map(str, some)) for some in simulated.SETTINGS])
def test_intervals_of_all_metrics_hold_for_all_groups_together(setting):
    n = 400
    true = simulated.truth(setting.task, setting.data, 1_000_000)
    for name, (share, _) in simulated.simulate(setting, true, n, n_bootstrap=500, seed=1).items():
        assert share >= least(n) / n, name
