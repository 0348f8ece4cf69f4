"""Penalty and robustness chosen on held-out data."""

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, KFold
from sklearn.utils.estimator_checks import parametrize_with_checks

import groupdro as gd
from groupdro import (
    GroupDROClassifier,
    GroupDROClassifierCV,
    GroupDRORegressor,
    GroupDRORegressorCV,
    GroupStratifiedKFold,
)

SMALL = {"alphas": [1e-3, 1e-1], "robustness": [0.0, 0.5, 1.0], "cv": 3, "n_bootstrap": 100}
QUICK = {"alphas": [1e-2], "robustness": [0.0, 1.0], "cv": 2, "n_bootstrap": 20}
SEARCHES = [GroupDROClassifierCV(**SMALL), GroupDRORegressorCV(**SMALL)]


#: Copies of a row fall into several folds, so that a weight of two is not a row that is there twice: scikit-learn's own
#: searches over penalties fail these too.
NOT_FOR_FOLDS = "check_sample_weight_equivalence"


@pytest.mark.filterwarnings("ignore::groupdro.MissingGroupsWarning")
@pytest.mark.parametrize("routing", [False, True])
@parametrize_with_checks([GroupDROClassifierCV(**QUICK), GroupDRORegressorCV(**QUICK)])
def test_scikit_learns_checks(estimator, check, routing):
    if NOT_FOR_FOLDS in str(check):
        pytest.skip("copies of a row fall into several folds")
    with sklearn.config_context(enable_metadata_routing=routing):
        check(estimator)


def two_rules(n=1200, share=0.15, seed=0, regression=False):
    """A small group follows another rule than the rest, so that robustness pays."""
    rng = np.random.default_rng(seed)
    X, rare = rng.normal(size=(n, 3)), rng.random(n) < share
    score = X @ [1.5, 0.5, 0.0] + np.where(rare, -2.5, 0.0) * X[:, 0] + 0.5 * rng.normal(size=n)
    return X, score if regression else np.where(score > 0, "yes", "no"), np.where(rare, "island", "mainland")


def one_rule(n=1200, seed=0, regression=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    score = X @ [1.0, -0.5, 0.0] + rng.normal(size=n)
    return X, score if regression else (score > 0).astype(int), rng.choice(list("abcd"), size=n)


@pytest.mark.parametrize("search", SEARCHES, ids=["classifier", "regressor"])
def test_it_leaves_plain_training_where_that_pays(search):
    X, y, groups = two_rules(regression=isinstance(search, GroupDRORegressorCV))
    found = clone(search).set_params(mean_budget=10.0).fit(X, y, groups=groups)
    assert found.robustness_ > 0
    results, k = found.cv_results_, found.best_index_
    assert results["significant"][k]
    assert results["gain_low"][k] > 0
    assert results["worst_group"][k] in ("island", "mainland")
    assert "falls from" in found.message_
    # Of what is significant, the least robustness.
    assert found.robustness_ == results["param_robustness"][results["significant"]].min()
    model = found.best_estimator_
    assert (model.alpha, model.robustness) == (found.alpha_, found.robustness_)
    np.testing.assert_array_equal(found.predict(X), model.predict(X))


@pytest.mark.parametrize("search", SEARCHES, ids=["classifier", "regressor"])
def test_it_keeps_plain_training_where_nothing_can_be_gained(search):
    kept = 0
    for seed in range(10):
        X, y, groups = one_rule(400, seed, regression=isinstance(search, GroupDRORegressorCV))
        found = clone(search).fit(X, y, groups=groups)
        kept += found.robustness_ == 0.0
        if found.robustness_ == 0.0:
            assert found.alpha_ == found.plain_alpha_
            assert found.message_.startswith("Kept plain training")
    assert kept >= 9  # it may err in one of twenty


def test_the_held_out_losses_are_those_of_fits_on_the_other_folds():
    X, y, groups = two_rules(600)
    folds = KFold(3, shuffle=True, random_state=1)
    found = GroupDROClassifierCV(alphas=[1e-2], robustness=[0.5], cv=folds, n_bootstrap=50).fit(X, y, groups=groups)
    losses = np.empty((600, 2))
    for train, test in folds.split(X):
        for k, t in enumerate((0.0, 0.5)):
            model = GroupDROClassifier(alpha=1e-2, robustness=t, tol=1e-3).fit(X[train], y[train], groups=groups[train])
            own = model.predict_proba(X[test])[np.arange(len(test)), (y[test] == "yes").astype(int)]
            losses[test, k] = -np.log(own)
    np.testing.assert_allclose(found.cv_results_["mean_test_risk"], losses.mean(axis=0), rtol=2e-3)
    worst = [max(column[groups == g].mean() for g in ("island", "mainland")) for column in losses.T]
    np.testing.assert_allclose(found.cv_results_["worst_test_risk"], worst, rtol=5e-3)


def test_the_least_average_loss_chooses_the_penalty_of_plain_training():
    X, y, groups = one_rule()
    found = GroupDROClassifierCV(alphas=[1e-3, 1e-2, 10.0], robustness=[0.0], n_bootstrap=50).fit(X, y, groups=groups)
    results = found.cv_results_
    assert found.alpha_ == results["param_alpha"][np.argmin(results["mean_test_risk"])] < 10.0


def test_a_hopeless_penalty_is_discarded_early():
    X, y, groups = two_rules()
    found = GroupDROClassifierCV(alphas=[1e-4, 1e-3, 1e-2, 1e3], n_bootstrap=50, cv=3).fit(X, y, groups=groups)
    results = found.cv_results_
    late = (results["param_alpha"] == 1e3) & (results["param_robustness"] > 0)
    assert np.isnan(results["worst_test_risk"][late]).all()
    assert not np.isnan(results["mean_test_risk"][(results["param_alpha"] == 1e3) & ~late]).any()


def test_a_budget_of_the_mean_is_kept():
    X, y, groups = two_rules()
    free = GroupDROClassifierCV(**SMALL).fit(X, y, groups=groups)
    bound = GroupDROClassifierCV(**SMALL, mean_budget=0.0).fit(X, y, groups=groups)
    assert free.robustness_ > 0
    assert bound.robustness_ == 0.0


def test_clusters_stay_in_one_fold_and_make_the_comparison_more_careful():
    X, y, groups = two_rules(300)
    copies = np.repeat(np.arange(300), 4)
    plain = GroupDROClassifierCV(**SMALL).fit(X[copies], y[copies], groups=groups[copies])
    kept = GroupDROClassifierCV(**SMALL).fit(X[copies], y[copies], groups=groups[copies], cluster=copies)
    assert kept.cv_results_["gain_low"].max() < plain.cv_results_["gain_low"].max()


def test_splitters_weights_tables_and_jobs_are_taken():
    X, y, groups = two_rules(600)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 600)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    options = {**SMALL, "cv": GroupKFold(3), "n_jobs": 2}
    with joblib.parallel_config("threading"):
        found = GroupDROClassifierCV(**options).fit(frame, y, weights, groups=groups, cluster=np.arange(600) // 2)
    assert found.feature_names_in_.tolist() == ["a", "b", "c"]
    assert found.n_splits_ == 3
    member = np.column_stack([groups == "island", np.ones(600, dtype=bool)])
    assert GroupDROClassifierCV(**SMALL).fit(X, y, groups=member).alpha_ in (1e-3, 1e-1)


def test_without_refit_there_is_no_model():
    X, y, groups = two_rules(300)
    found = GroupDROClassifierCV(**SMALL, refit=False).fit(X, y, groups=groups)
    assert found.alpha_ in (1e-3, 1e-1)
    with pytest.raises(sklearn.exceptions.NotFittedError):
        found.predict(X)


@pytest.mark.parametrize(
    ("params", "pattern"),
    [
        ({"alphas": []}, "alphas"),
        ({"alphas": [-1.0]}, "alphas"),
        ({"robustness": [1.5]}, "robustness"),
        ({"mean_budget": -1}, "mean_budget"),
        ({"confidence": 1.5}, "confidence"),
        ({"estimator": GroupDRORegressor()}, "estimator must be a GroupDROClassifier"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(params, pattern):
    X, y, groups = two_rules(60)
    with pytest.raises((ValueError, TypeError), match=pattern):
        GroupDROClassifierCV(**params).fit(X, y, groups=groups)


def test_reports_know_the_model_inside():
    X, y, groups = two_rules(600)
    found = GroupDROClassifierCV(**SMALL).fit(X, y, groups=groups)
    report = gd.group_report(found, X, y, groups)
    assert "GroupDROClassifier" in report.title
    assert report.columns["risk"] == found.report(X, y, groups).columns["risk"]


def test_a_gain_is_left_where_the_average_pays_a_larger_share():
    X, y, groups = two_rules(regression=True)
    found = clone(SEARCHES[1]).fit(X, y, groups=groups)
    results = found.cv_results_
    rise = results["mean_test_risk"] / results["mean_test_risk"][found.best_index_] - 1.0
    fall = results["gain"] / results["worst_test_risk"][found.best_index_]
    np.testing.assert_array_equal(results["affordable"], rise <= fall)
    assert found.robustness_ == 0.0
    n = int(results["significant"].sum())
    assert n > 0
    assert not (results["significant"] & results["affordable"]).any()
    told = f"{n} robust models are significantly better on the worst held-out group, but the average rises by a larger"
    assert f"{told} share than the worst falls." in found.message_


def test_the_message_says_what_kept_plain_training():
    X, y, groups = two_rules(regression=False)
    few = clone(SEARCHES[0]).set_params(min_rows=10**6).fit(X, y, groups=groups)
    assert few.message_.startswith("Kept plain training (alpha 0.001): no group could be judged")
    alone = clone(SEARCHES[0]).fit(X, y, groups=np.zeros(len(y)))
    assert alone.message_.endswith("there is only one group.")
    dear = clone(SEARCHES[0]).set_params(mean_budget=1e-9).fit(X, y, groups=groups)
    assert "but the average rises by a larger share than 1e-09." in dear.message_


def test_splits_may_be_given_as_they_are():
    X, y, groups = two_rules(regression=False)
    splits = list(GroupStratifiedKFold(3, random_state=5).split(X, y, groups))
    given = clone(SEARCHES[0]).set_params(cv=splits).fit(X, y, groups=groups)
    splitter = clone(SEARCHES[0]).set_params(cv=GroupStratifiedKFold(3, random_state=5)).fit(X, y, groups=groups)
    np.testing.assert_array_equal(given.cv_results_["worst_test_risk"], splitter.cv_results_["worst_test_risk"])
    assert given.n_splits_ == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cv": "five"}, "cv"),
        ({"cv": 1}, "cv"),
        ({"scoring": "accuracy"}, "scoring must be"),
        ({"scoring": "squared"}, "scoring must be"),
    ],
)
def test_what_makes_no_search_is_refused_by_name(given, message):
    X, y, groups = two_rules(regression=False)
    with pytest.raises((ValueError, TypeError), match=message):
        clone(SEARCHES[0]).set_params(**given).fit(X, y, groups=groups)


def test_too_few_clusters_are_told():
    X, y, groups = two_rules(regression=False)
    with pytest.raises(ValueError, match="cluster has 2 distinct labels, fewer than the 3 folds"):
        clone(SEARCHES[0]).fit(X, y, groups=groups, cluster=np.arange(len(y)) % 2)


def test_a_gain_may_be_preferred_to_caution():
    X, y, groups = two_rules(regression=False)
    careful = clone(SEARCHES[0]).set_params(mean_budget=10.0).fit(X, y, groups=groups)
    bold = clone(SEARCHES[0]).set_params(mean_budget=10.0, prefer="gain").fit(X, y, groups=groups)
    results = bold.cv_results_
    able = results["significant"] & results["affordable"]
    assert results["worst_test_risk"][bold.best_index_] == results["worst_test_risk"][able].min()
    assert bold.robustness_ >= careful.robustness_
    with pytest.raises(ValueError, match="prefer must be"):
        clone(SEARCHES[0]).set_params(prefer="hope").fit(X, y, groups=groups)


def test_splits_in_any_order_give_the_same_losses():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(120, 3)), np.arange(120) % 3
    y = X[:, 0] * (groups - 1) + rng.normal(size=120)
    rows = rng.permutation(120)
    mixed = [(rows[40:], rows[:40]), (rows[:40], rows[40:])]
    ordered = [(np.sort(train), np.sort(test)) for train, test in mixed]
    one, other = (
        GroupDRORegressorCV(alphas=[0.1], robustness=[1.0], cv=cv)
        .fit(X, y, groups=groups)
        .cv_results_["worst_test_risk"]
        for cv in (mixed, ordered)
    )
    np.testing.assert_array_equal(one, other)
