"""Calibration per group in reports and searches, and the spread between groups of a report."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from groupdro import Predictions, find_groups, group_report
from groupdro.evaluation.heterogeneity import heterogeneity

RNG = np.random.default_rng(2)
N = 3000
Z = RNG.normal(size=N) - 1.0
GROUPS = np.append(RNG.choice(["a", "b", "c", "d"], N - 20), ["few"] * 20)
Y = (RNG.random(N) < expit(Z + 0.8 * (GROUPS == "b"))).astype(int)
P = expit(Z)
CALIBRATION = ["actual_over_expected", "calibration_intercept", "calibration_slope"]


def report(**options):
    return group_report(
        Predictions(probability=P), y=Y, groups=GROUPS, metrics=["log_loss", *CALIBRATION], n_bootstrap=200, **options
    )


def test_calibration_per_group_is_that_of_a_logistic_regression():
    found = report()
    for group in "abcd":
        own, row = group == GROUPS, found.by_group[group]
        assert row["actual_over_expected"] == pytest.approx(Y[own].sum() / P[own].sum())
        assert (row["actual"], row["expected"]) == (pytest.approx(Y[own].sum()), pytest.approx(P[own].sum()))
        fit = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(logit(P[own])[:, None], Y[own])
        assert row["calibration_slope"] == pytest.approx(fit.coef_[0, 0], rel=1e-4)
        a = row["calibration_intercept"]
        assert expit(a + logit(P[own])).sum() == pytest.approx(Y[own].sum(), rel=1e-6)
        for name in CALIBRATION:
            assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]
    shifted = found.by_group["b"]
    assert shifted["actual_over_expected_low"] > 1
    assert shifted["calibration_intercept_low"] < 0.8 < shifted["calibration_intercept_high"]
    assert shifted["calibration_slope_low"] < 1 < shifted["calibration_slope_high"]


def test_groups_of_few_expected_events_have_no_interval():
    row = report(min_rows=10).by_group["few"]
    for name in CALIBRATION:
        assert np.isnan(row[f"{name}_low"])


@pytest.mark.filterwarnings("error")
def test_sums_that_are_negative_or_cancel_have_no_ratio():
    rng = np.random.default_rng(0)
    score, groups = rng.normal(size=N), rng.choice(["a", "b", "c"], N)
    y = score + rng.normal(size=N)
    both_signs = group_report(Predictions(score), y=y, groups=groups, metrics=["rmse", "actual_over_expected"])
    for row in (*both_signs.by_group.values(), both_signs.overall):
        assert np.isnan(row["actual_over_expected"])
        assert np.isfinite(row["actual"] + row["expected"])
    for group in "abc":
        assert np.isnan(both_signs.by_group[group]["actual_over_expected_high"])
    assert "inf" not in both_signs.summary(details=True)
    assert both_signs.heterogeneity("actual_over_expected").too_few


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", ["negative target", "negative prediction", "nothing expected", "nothing happened"])
def test_a_group_without_a_ratio_leaves_those_of_the_others_as_they_are(case):
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat(["a", "b", "c", "d"], N // 4))
    predicted, y = 2.0 + rng.random(N), rng.poisson(2.5, N).astype(float)
    own, metrics = np.flatnonzero(groups == "a"), ["rmse", "actual_over_expected"]
    whole = group_report(Predictions(predicted, task="regression"), y=y, groups=groups, metrics=metrics)
    if case.startswith("negative"):
        (y if case == "negative target" else predicted)[own[0]] = -0.1
    else:
        (predicted if case == "nothing expected" else y)[own] = 0.0
    found = group_report(Predictions(predicted, task="regression"), y=y, groups=groups, metrics=metrics)
    assert np.isnan(found.by_group["a"]["actual_over_expected_low"])
    assert np.isfinite(whole.by_group["a"]["actual_over_expected_low"])
    assert np.isnan(found.by_group["a"]["actual_over_expected"]) == (case != "nothing happened")
    for group in "bcd":
        row = found.by_group[group]
        assert row["actual_over_expected"] == whole.by_group[group]["actual_over_expected"]
        assert row["actual_over_expected_low"] < row["actual_over_expected"] < row["actual_over_expected_high"]
    spread = found.heterogeneity("actual_over_expected")
    assert (spread.n_groups, whole.heterogeneity("actual_over_expected").n_groups) == (3, 4)
    ratios = found.differences("actual_over_expected", ratio=True)
    assert {*ratios.columns["group"], *ratios.columns["against"]} == {*"bcd"}
    assert ratios.left_out == ["a"]
    assert np.isfinite(ratios.columns["high"]).all()


def test_groups_are_found_by_miscalibration_in_both_directions():
    columns = pd.DataFrame({"x": RNG.normal(size=N), "kind": RNG.choice(["p", "q"], N)})
    inside = (columns["kind"] == "q").to_numpy() & (columns["x"].to_numpy() > 0.3)
    for shift, name in ((1.5, "predicted too low"), (-1.5, "predicted too high")):
        y = (np.random.default_rng(0).random(N) < expit(Z + shift * inside)).astype(int)
        found = find_groups(Predictions(probability=P), y=y, columns=columns, metrics="miscalibration")
        assert found.columns["metric"] == [name]
        assert "kind = q" in found.columns["group"][0]
        assert found.columns["at_least"][0] > 0
    by_cv = find_groups(LogisticRegression(), Z[:, None], y, columns=columns, metrics=["miscalibration", "brier"], cv=3)
    assert "predicted too high" in by_cv.columns["metric"]


@pytest.mark.parametrize(("metric", "scale"), [("log_loss", "log"), ("calibration_slope", "plain")])
def test_the_spread_of_a_report_is_that_of_its_judged_groups(metric, scale):
    found = report()
    rows = [found.by_group[group] for group in "abcd"]
    values = np.array([row[metric] for row in rows])
    spread = found.heterogeneity(metric)
    assert (spread.n_groups, spread.scale) == (4, scale)
    assert spread.mean_low < spread.mean < spread.mean_high
    assert spread.new_low <= spread.mean_low
    assert values.min() < spread.mean < values.max()
    equal = heterogeneity(np.full(4, 0.3), np.full(4, 0.1))
    assert equal.tau == 0
    assert "4 groups" in str(spread)
    with pytest.raises(ValueError, match="metric"):
        found.heterogeneity("nothing")


def test_the_spread_of_groups_that_differ_is_beyond_chance():
    assert report().heterogeneity("calibration_intercept").tau_low > 0
    assert np.isnan(group_report(Predictions(probability=P), y=Y, n_bootstrap=100).heterogeneity().tau)
