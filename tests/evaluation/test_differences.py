"""Differences and ratios between groups against other ways to compute them, and what cannot be compared."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta, t

from groupdro import Predictions, group_report

RNG = np.random.default_rng(3)
N = 2400
SITE = RNG.choice(["a", "b", "c"], N, p=[0.5, 0.3, 0.2])
SCORE = RNG.normal(size=N)
P = 1 / (1 + np.exp(-SCORE))
Y = (RNG.random(N) < np.where(SITE == "b", P**2, P)).astype(int)
METRICS = ["log_loss", "accuracy", "roc_auc", "selection_rate", "actual_over_expected"]


def report(groups=SITE, **options):
    return group_report(Predictions(probability=P), y=Y, groups=groups, metrics=METRICS, **options)


@pytest.fixture(scope="module")
def whole():
    return report()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("ratio", [False, True])
def test_values_are_those_of_the_report(whole, metric, ratio):
    found = whole.differences(metric, ratio=ratio)
    rows = whole.by_group
    assert len(found.columns["group"]) == 3
    for k, (one, other) in enumerate(zip(found.columns["group"], found.columns["against"], strict=True)):
        first, second = rows[one][metric], rows[other][metric]
        value = found.columns[found.kind][k]
        assert value == pytest.approx(first / second if ratio else first - second, rel=1e-9)
        assert found.columns["low"][k] < value < found.columns["high"][k]


def test_an_interval_of_two_means_is_that_of_welch():
    y = RNG.normal(size=4000)
    groups = np.where(np.arange(4000) < 2500, "a", "b")
    predicted = np.where(groups == "a", 0.0, 0.5)
    found = group_report(Predictions(predicted), y=y, groups=groups, metrics="mae", n_bootstrap=4000).differences(
        "mae", against="a"
    )
    losses = np.abs(y - predicted)
    one, other = losses[groups == "b"], losses[groups == "a"]
    error = np.hypot(one.std() / np.sqrt(len(one)), other.std() / np.sqrt(len(other)))
    half = t.ppf(0.975, 3998) * error
    assert found.columns["high"][0] - found.columns["low"][0] == pytest.approx(2 * half, rel=0.06)


def test_intervals_of_shares_are_combined_from_those_of_both(whole):
    found = whole.differences("accuracy", against="a")
    ratios = whole.differences("accuracy", against="a", ratio=True)
    right = (P > 0.5) == (Y == 1)
    tail = 0.5 * 0.05 / 2  # two differences

    def ends(site):
        k, n = int(right[site == SITE].sum()), int((site == SITE).sum())
        return k / n, beta.ppf(tail, k, n - k + 1), beta.ppf(1 - tail, k + 1, n - k)

    for k, site in enumerate(found.columns["group"]):
        (p, low, high), (q, least, most) = ends(site), ends("a")
        assert found.columns["low"][k] == pytest.approx(p - q - np.hypot(p - low, most - q), rel=1e-9)
        assert found.columns["high"][k] == pytest.approx(p - q + np.hypot(high - p, q - least), rel=1e-9)
        below, above = np.hypot(np.log(p / low), np.log(most / q)), np.hypot(np.log(high / p), np.log(q / least))
        assert ratios.columns["low"][k] == pytest.approx(p / q * np.exp(-below), rel=1e-9)
        assert ratios.columns["high"][k] == pytest.approx(p / q * np.exp(above), rel=1e-9)


def test_a_reference_that_is_named_beforehand_gives_narrower_intervals(whole):
    for metric in ("log_loss", "accuracy"):
        pairs, one = whole.differences(metric), whole.differences(metric, against="a")

        def width(found, group):
            k = [{*both} for both in zip(found.columns["group"], found.columns["against"], strict=True)].index(
                {group, "a"}
            )
            return found.columns["high"][k] - found.columns["low"][k]

        for group in "bc":
            assert width(one, group) < width(pairs, group)


def test_a_difference_is_found_and_said(whole):
    found = whole.differences("actual_over_expected", against="a", ratio=True)
    k = found.columns["group"].index("b")
    assert found.columns["high"][k] < 1
    assert "The clearest: b against a" in found.message
    assert found.message in repr(found)
    assert found.to_frame()["ratio"].tolist() == found.columns["ratio"]


def test_shares_of_zero_and_one_have_intervals():
    y = np.r_[np.zeros(200, int), RNG.integers(0, 2, 200)]
    groups = np.repeat(["never", "often"], 200)
    found = group_report(
        Predictions(y), y=np.r_[np.zeros(200, int), 1 - y[200:]], groups=groups,
        metrics=["accuracy", "selection_rate"], n_bootstrap=50,
    )  # fmt: skip
    table = found.differences("selection_rate", ratio=True).columns
    assert all(0 <= low <= high for low, high in zip(table["low"], table["high"], strict=True))
    table = found.differences("selection_rate").columns
    assert all(-1 <= low < high <= 1 for low, high in zip(table["low"], table["high"], strict=True))


def test_groups_that_cannot_be_judged_are_left_out():
    groups = SITE.astype(object)
    groups[:5] = "rare"
    found = report(groups, n_bootstrap=50).differences()
    assert found.left_out == ["rare"]
    assert "rare" not in [*found.columns["group"], *found.columns["against"]]
    assert "1 group cannot be judged" in found.message


def test_what_cannot_be_compared_is_refused(whole):
    with pytest.raises(ValueError, match="metric must be one of"):
        whole.differences("recall")
    with pytest.raises(ValueError, match="against must be a group that can be judged"):
        whole.differences(against="d")
    with pytest.raises(ValueError, match="nothing to compare"):
        report(None, n_bootstrap=50).differences()
    with pytest.raises(ValueError, match="n_bootstrap must not be 0"):
        report(n_bootstrap=0).differences()
    with pytest.raises(ValueError, match="ratios of it mean nothing"):
        group_report(Predictions(probability=P), y=Y, groups=SITE, metrics=["d2"], n_bootstrap=50).differences(
            ratio=True
        )


def test_a_saved_report_keeps_its_numbers_and_no_rows(whole):
    again = pickle.loads(pickle.dumps(whole))
    assert again.columns == whole.columns
    with pytest.raises(ValueError, match="no resamples left"):
        again.differences()


def test_groups_of_several_columns_are_the_index_of_the_frame():
    groups = pd.DataFrame({"site": SITE, "old": RNG.random(N) < 0.5})
    found = report(groups, n_bootstrap=50)
    frame = found.to_frame()
    assert frame.index.names == ["site", "old"]
    assert found.group_columns == ("site", "old")
    for group, row in found.by_group.items():
        assert frame.loc[group, "log_loss"] == row["log_loss"]
    assert frame.loc["a"]["n"].sum() == (SITE == "a").sum()
    assert set(frame["group"]) == {f"{site} & {old}" for site in "abc" for old in (False, True)}
    table = found.differences(against=("a", True)).to_frame()
    assert set(table["against"]) == {"a & True"}
