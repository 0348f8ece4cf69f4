"""Traps of everyday use that a user should be told of, or that should just work."""

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from groupdro import (
    GroupBy,
    GroupDROClassifier,
    GroupDROClassifierCV,
    GroupDRORegressor,
    compare,
    group_report,
    robustness_frontier,
    worst_group_scorer,
)
from groupdro.losses import Quantile

RNG = np.random.default_rng(0)
N = 600
X = pd.DataFrame(RNG.normal(size=(N, 3)), columns=list("abc"), index=RNG.permutation(N))
SITE = pd.Series(RNG.choice(["x", "y"], N, p=[0.7, 0.3]), index=X.index)
Y = pd.Series(X["a"] * np.where(SITE == "x", 1.0, -0.2) + RNG.logistic(size=N) > 0.5, index=X.index)
FRAME = X.assign(site=SITE)


@pytest.mark.parametrize("name", ["y", "groups", "sample_weight"])
def test_columns_in_another_order_are_refused_by_name(name):
    given = {"y": Y, "groups": SITE, "sample_weight": pd.Series(1.0, index=X.index)}
    given[name] = given[name].sort_index()
    with pytest.raises(ValueError, match=f"^{name} has the index of X in another order"):
        GroupDROClassifier().fit(X, **given)
    if name != "sample_weight":
        with pytest.raises(ValueError, match=f"^{name} has the index of X in another order"):
            compare(X, given["y"], given["groups"], cv=None)


def test_other_indices_are_positions_as_in_scikit_learn():
    one = GroupDROClassifier().fit(X, Y.reset_index(drop=True).set_axis(range(N, 2 * N)), groups=SITE.to_numpy())
    np.testing.assert_array_equal(one.coef_, GroupDROClassifier().fit(X, Y, groups=SITE).coef_)


def test_a_step_that_names_the_dropped_column_is_explained():
    steps = ColumnTransformer([("all", StandardScaler(), ["a", "b"]), ("site", "drop", ["site"])])
    model = make_pipeline(steps, GroupDROClassifier())
    with pytest.raises(ValueError, match=r"GroupBy removes 'site' from X.*drop=False"):
        GroupBy(model, "site").fit(FRAME, Y)
    GroupBy(model, "site", drop=False).fit(FRAME, Y)


def test_a_calibrated_model_is_reported_by_the_groups_of_its_column():
    model = CalibratedClassifierCV(GroupBy(GroupDROClassifier(), "site"), cv=3).fit(FRAME, Y)
    report = group_report(model, FRAME, Y)
    assert set(report.columns["group"]) == {"x", "y"}
    assert worst_group_scorer("accuracy")(model, FRAME, Y) == pytest.approx(min(report.columns["accuracy"]))


def test_a_threshold_is_tuned_for_the_worst_group():
    import sklearn

    scorer = worst_group_scorer("balanced_accuracy")
    model = GroupBy(GroupDROClassifier(), "site")
    with sklearn.config_context(enable_metadata_routing=True):
        tuned = TunedThresholdClassifierCV(model, scoring=scorer, cv=3).fit(FRAME, Y, groups=SITE)
    plain = GroupBy(GroupDROClassifier(), "site").fit(FRAME, Y)
    assert scorer(tuned, FRAME, Y) >= scorer(plain, FRAME, Y)
    with pytest.raises(ValueError, match=r"labels and predictions.*pass groups to fit"):
        TunedThresholdClassifierCV(model, scoring=worst_group_scorer("accuracy", group_by="site")).fit(FRAME, Y)


def test_the_frontier_says_in_words_why_targets_are_out_of_reach():
    frontier = robustness_frontier(X, Y, SITE, tol=1e-2)
    answer = frontier.attainable(mean=10.0, worst=0.5 * frontier.worst.min())
    assert "the worst value is at least" in answer.message


def test_a_search_reports_its_folds(capsys):
    GroupDROClassifierCV(alphas=[1e-2], robustness=[0.0], cv=2, verbose=10).fit(X, Y, groups=SITE)
    assert "2 out of   2" in "".join(capsys.readouterr())
    compare(X, Y, SITE, cv=None, verbose=True)
    assert "GDRO: fitted in" in capsys.readouterr().out


@pytest.mark.parametrize("loss", ["squared", Quantile(0.8)])
def test_the_unit_of_the_targets_does_not_change_what_converged_means(loss):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(300, 3)), rng.integers(0, 3, 300)
    y = X @ [1.0, 2.0, 3.0] + groups * X[:, 0] + rng.normal(size=300)
    model = GroupDRORegressor("excess_risk", loss=loss, alpha=0, tol=1e-3)
    worst = {}
    for unit in (1.0, 1e-7, 1e7):
        model.fit(X, unit * y, groups=groups)
        assert model.criterion_ == "tol"
        worst[unit] = model.upper_bound_ / (unit**2 if loss == "squared" else unit)
    assert list(worst.values()) == pytest.approx([worst[1.0]] * 3, rel=2e-3)
