"""Estimators between the average and the worst group, against scikit-learn, CVXPY and arithmetic by hand."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold

import groupdro as gd
from groupdro import GroupDROClassifier, GroupDRORegressor
from tests.pairs import every_pair
from tests.reference.blends import Blend

ALPHA = 1e-2
BETWEEN = [0.0, 0.3, 0.8, 1.0]


def make_data(n_classes=2, n=120, m=4, seed=0):
    """Return rows of groups of different sizes, of which the smallest differs."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    groups = rng.permutation(np.arange(n) % (2 * m))
    groups = np.where(groups < m, groups, groups % max(m - 1, 1))  # the last group is half as large as the others
    slopes = rng.normal(size=(m, 3, n_classes))[groups] * 0.7 + rng.normal(size=(3, n_classes))
    scores = np.einsum("nd,ndc->nc", X, slopes) + rng.gumbel(size=(n, n_classes)) * (1 + 0.5 * groups[:, None])
    return X, (scores.argmax(axis=1) if n_classes > 1 else scores[:, 0]), groups


def overlapping(groups, seed=0):
    member = groups[:, None] == np.unique(groups)
    return member | (np.random.default_rng(seed).random(member.shape) < 0.2)


def fit(X, y, groups, weight=None, *, group_minima=None, **params):
    make = GroupDRORegressor if y.dtype.kind == "f" else GroupDROClassifier
    model = make(**{"alpha": ALPHA, "tol": 1e-8, "random_state": 0} | params)
    return model.fit(X, y, weight, groups=groups, group_minima=group_minima)


def hold_against_cvxpy(model, blend, *, level=None):
    """Compare all that a fitted model says of average and worst with what is by hand and by CVXPY.

    `level` is the worst value that the bound of the average holds for, where that is not the model's.
    """
    t, (mean, worst) = model.robustness, blend.profile(model)
    assert (model.mean_risk_, model.worst_risk_) == pytest.approx((mean, worst), rel=1e-9)
    assert model.upper_bound_ == pytest.approx((1 - t) * mean + t * worst, rel=1e-9)
    near, best = 2e-7 * max(1.0, abs(model.upper_bound_)), blend.least_blend(t)
    assert model.lower_bound_ - near <= best <= model.upper_bound_ + near
    assert model.upper_bound_ - model.lower_bound_ <= model.tol * abs(model.upper_bound_)
    assert model.mean_lower_bound_ <= mean
    assert model.worst_lower_bound_ <= worst
    if level is not None:
        # A slack of 1e-9 has a multiplier of thousands, by which the limit's rounding moves CVXPY's answer.
        assert model.mean_lower_bound_ - 10 * near <= blend.least_mean(level)
    if 0 < t < 1:
        # Limits that only the model meets are hard to compute with: a wider one moves a bound by its multiplier.
        mean_room, worst_room = 1e-6 * abs(mean), 1e-6 * abs(worst)
        least_mean = blend.least_mean(worst + worst_room) + t / (1 - t) * worst_room
        least_worst = blend.least_worst(mean + mean_room) + (1 - t) / t * mean_room
        assert model.mean_lower_bound_ - near <= least_mean <= model.mean_lower_bound_ + 1e-4
        assert model.worst_lower_bound_ - near <= least_worst <= model.worst_lower_bound_ + 1e-4


# ---------------------------------------------------------------------- the average alone


@every_pair(groups=["apart", "overlapping"], weighted=[False, True], n_classes=[2, 3])
def test_robustness_0_is_logistic_regression(n_classes, weighted, groups):
    X, y, labels = make_data(n_classes)
    member = labels if groups == "apart" else overlapping(labels)
    weight = np.random.default_rng(1).uniform(0.1, 3.0, len(y)) if weighted else np.ones(len(y))
    ours = fit(X, y, member, weight if weighted else None, robustness=0.0, tol=1e-11)
    theirs = LogisticRegression(C=1 / (ALPHA * weight.sum()), tol=1e-13, max_iter=10000).fit(X, y, weight)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    if n_classes == 2:
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    blend = Blend(X, y, member, alpha=ALPHA, weight=weight)
    assert (ours.mean_risk_, ours.worst_risk_) == pytest.approx(blend.profile(theirs), rel=1e-5)
    assert ours.mean_lower_bound_ == ours.lower_bound_ <= ours.mean_risk_


@pytest.mark.parametrize("groups", ["apart", "overlapping"])
@pytest.mark.parametrize("weighted", [False, True])
def test_robustness_0_is_ridge(weighted, groups):
    X, y, labels = make_data(1)
    member = labels if groups == "apart" else overlapping(labels)
    weight = np.random.default_rng(1).uniform(0.1, 3.0, len(y)) if weighted else np.ones(len(y))
    ours = fit(X, y, member, weight if weighted else None, robustness=0.0, tol=1e-11)
    theirs = Ridge(alpha=ALPHA * weight.sum()).fit(X, y, weight)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-6)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)


@pytest.mark.parametrize("n_classes", [1, 2])
def test_an_average_of_groups_is_plain_training_with_balanced_weights(n_classes):
    X, y, groups = make_data(n_classes)
    balanced = 1.0 / np.bincount(groups)[groups]
    ours = fit(X, y, groups, robustness=0.0, average="groups", tol=1e-11)
    total = balanced.sum()
    theirs = Ridge(alpha=ALPHA * total) if n_classes == 1 else LogisticRegression(C=1 / (ALPHA * total), tol=1e-11)
    theirs.fit(X, y, balanced)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    assert ours.mean_risk_ == pytest.approx(ours.group_risks_.mean() + ALPHA / 2 * np.square(ours.coef_).sum())


@pytest.mark.parametrize("robustness", BETWEEN)
def test_one_group_is_the_same_at_any_robustness(robustness):
    X, y, _ = make_data()
    model = fit(X, y, np.zeros(len(y)), robustness=robustness)
    theirs = LogisticRegression(C=1 / (ALPHA * len(y)), tol=1e-12).fit(X, y)
    np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-3)
    assert model.mean_risk_ == pytest.approx(model.worst_risk_, rel=1e-12)


# ---------------------------------------------------------------------- in between


@every_pair(robustness=[0.0, 0.3, 0.8], average=["rows", "groups"], n_classes=[1, 2, 3])
def test_both_bounds_hold_and_are_tight_in_between(n_classes, average, robustness):
    X, y, groups = make_data(n_classes)
    model = fit(X, y, groups, robustness=robustness, average=average)
    hold_against_cvxpy(model, Blend(X, y, groups, alpha=ALPHA, average=average))
    if robustness == 0:
        assert model.mean_lower_bound_ == model.worst_lower_bound_ == model.lower_bound_


@every_pair(n_classes=[1, 2, 3], groups=["apart", "overlapping"], weighted=[False, True])
def test_at_robustness_1_the_slack_is_spent_on_the_average(n_classes, groups, weighted):
    X, y, labels = make_data(n_classes)
    member = labels if groups == "apart" else overlapping(labels)
    weight = np.random.default_rng(1).uniform(0.1, 3.0, len(y)) if weighted else None
    tol = 1e-2
    model = fit(X, y, member, weight, tol=tol)
    blend = Blend(X, y, member, alpha=ALPHA, weight=weight)
    level = (1 + tol) * model.lower_bound_
    hold_against_cvxpy(model, blend, level=level)
    assert model.worst_risk_ <= level * (1 + 1e-12)
    finest, least = fit(X, y, member, weight, tol=1e-9), blend.least_mean(level)
    assert finest.mean_risk_ > least + 1e-3  # there is something to gain
    assert finest.mean_risk_ - model.mean_risk_ >= 0.9 * (finest.mean_risk_ - least)


@pytest.mark.parametrize("groups", ["apart", "overlapping"])
def test_a_fit_that_breaks_no_ties_ends_where_the_tolerance_is_met(groups):
    X, y, labels = make_data(2)
    member = labels if groups == "apart" else overlapping(labels)
    plain, broken = (fit(X, y, member, tol=1e-2, break_ties=ties) for ties in (False, True))
    assert plain.status_ == broken.status_ == "converged"
    assert plain.n_passes_ < broken.n_passes_
    assert plain.mean_lower_bound_ == -np.inf
    assert plain.upper_bound_ <= (1 + 1e-2) * plain.lower_bound_
    assert broken.mean_risk_ < plain.mean_risk_


@every_pair(
    robustness=BETWEEN,
    average=["rows", "groups"],
    params=[{"worst_share": 0.4}, {"worst_share": 0.5}, {"worst_share": 0.9}],
)
def test_the_worst_may_be_several_groups(params, average, robustness):
    X, y, groups = make_data()
    base = np.bincount(groups) / len(y) if average == "rows" else np.full(4, 0.25)
    caps = np.minimum(base / params["worst_share"], 1.0)
    model = fit(X, y, groups, robustness=robustness, average=average, **params)
    blend = Blend(X, y, groups, alpha=ALPHA, average=average, caps=caps)
    hold_against_cvxpy(model, blend)


def test_a_share_that_no_group_exceeds_is_the_worst_group():
    X, y, groups = make_data()
    expected = fit(X, y, groups, robustness=0.5)
    model = fit(X, y, groups, robustness=0.5, worst_share=0.01)
    assert model.upper_bound_ == pytest.approx(expected.upper_bound_, rel=1e-7)
    assert model.worst_risk_ == pytest.approx(expected.worst_risk_, rel=1e-4)


def test_all_groups_or_all_rows_are_the_average():
    X, y, groups = make_data()
    for average in ("rows", "groups"):
        model = fit(X, y, groups, average=average, worst_share=1.0)
        plain = fit(X, y, groups, average=average, robustness=0.0)
        assert model.upper_bound_ == pytest.approx(plain.upper_bound_, rel=1e-7)


@pytest.mark.parametrize("robustness", BETWEEN)
@pytest.mark.parametrize(("average", "n_worst"), [("rows", 1), ("groups", 1), ("groups", 2)])
def test_groups_may_overlap(average, robustness, n_worst):
    X, y, labels = make_data()
    member = overlapping(labels)
    share = None if n_worst == 1 else n_worst / 4
    model = fit(X, y, member, robustness=robustness, average=average, worst_share=share)
    level = (1 + model.tol) * model.lower_bound_ if (robustness, n_worst) == (1.0, 1) else None
    blend = Blend(X, y, member, alpha=ALPHA, average=average, n_worst=n_worst)
    hold_against_cvxpy(model, blend, level=level)
    assert len(model.groups_) == len(model.group_risks_) == len(model.group_weights_) == 4


@pytest.mark.parametrize("robustness", BETWEEN)
def test_excess_risks_are_blended(robustness):
    X, y, groups = make_data()
    own = [fit(X[groups == g], y[groups == g], groups[groups == g], tol=1e-10).upper_bound_ for g in range(4)]
    model = fit(X, y, groups, objective="excess_risk", robustness=robustness, tol=1e-6)
    np.testing.assert_allclose(model.group_minima_, own, atol=1e-5)
    t, (mean, worst) = robustness, Blend(X, y, groups, alpha=ALPHA, references=own).profile(model)
    assert (model.mean_risk_, model.worst_risk_) == pytest.approx((mean, worst), abs=1e-5)
    assert model.upper_bound_ == pytest.approx((1 - t) * model.mean_risk_ + t * model.worst_risk_, rel=1e-9)
    best = Blend(X, y, groups, alpha=ALPHA, references=own).least_blend(t)
    assert model.lower_bound_ - 1e-6 <= best <= model.upper_bound_ + 1e-6


@pytest.mark.parametrize("robustness", BETWEEN)
def test_given_references_are_subtracted(robustness):
    X, y, groups = make_data()
    references = np.array([0.1, 0.6, 0.2, 0.3])
    # A smaller slack would be too little for CVXPY to find a model in it.
    given = {"group_minima": references, "tol": 1e-3 if robustness == 1 else 1e-8}
    model = fit(X, y, groups, objective="excess_risk", robustness=robustness, **given)
    level = model.lower_bound_ + model.tol * abs(model.lower_bound_) if robustness == 1 else None
    hold_against_cvxpy(model, Blend(X, y, groups, alpha=ALPHA, references=references), level=level)


def test_excess_risks_of_groups_that_overlap_have_no_average_at_robustness_1():
    X, y, labels = make_data()
    model = fit(X, y, overlapping(labels), objective="excess_risk", tol=1e-4)
    assert np.isnan(model.mean_risk_)
    assert model.mean_lower_bound_ == -np.inf
    assert model.worst_risk_ == model.upper_bound_


def test_given_references_of_groups_that_overlap_need_an_average_of_groups():
    X, y, labels = make_data()
    params = {"objective": "excess_risk", "group_minima": [0.1, 0.6, 0.2, 0.3], "robustness": 0.5}
    with pytest.raises(ValueError, match=r"^group_minima has no value for all rows.* average='groups'"):
        fit(X, y, overlapping(labels), **params)
    model = fit(X, y, overlapping(labels), average="groups", **params)
    stated = {"average": "groups", "references": params["group_minima"]}
    hold_against_cvxpy(model, Blend(X, y, overlapping(labels), alpha=ALPHA, **stated))


@pytest.mark.parametrize("radius", [0.3, 1.0])
def test_a_radius_bounds_the_blend(radius):
    X, y, groups = make_data()
    model = fit(X, y, groups, robustness=0.5, radius=radius)
    assert np.linalg.norm(model.coef_) <= radius * (1 + 1e-12)
    hold_against_cvxpy(model, Blend(X, y, groups, alpha=ALPHA, radius=radius))


def test_plain_training_of_groups_that_overlap_proves_nothing_of_the_worst():
    """Rows with large losses are in one group each, the others in both: the average is above every group's."""
    rng = np.random.default_rng(0)
    X, kind = rng.normal(size=(120, 2)), np.arange(120) % 3
    y = X[:, 0] + np.where(kind == 0, 0.1, 3.0) * rng.normal(size=120) + np.where(kind == 1, 2.0, 0.0)
    member = np.column_stack([kind != 1, kind != 2])
    loose = fit(X, y, member, robustness=0.0, tol=3e-2, solver="aleg")
    blend = Blend(X, y, member, alpha=ALPHA)
    assert loose.mean_risk_ > loose.worst_risk_
    assert loose.worst_lower_bound_ <= blend.least_worst(loose.mean_risk_) + 1e-7


# ---------------------------------------------------------------------- stores


@pytest.mark.parametrize("robustness", BETWEEN)
@pytest.mark.parametrize("average", ["rows", "groups"])
def test_a_store_gives_the_blend_of_its_arrays(tmp_path, average, robustness):
    X, y, groups = make_data()
    store = gd.GroupedStore.write_arrays(tmp_path / "store", X, y, groups, dtype="float64")
    params = {"alpha": ALPHA, "tol": 1e-8, "robustness": robustness, "average": average}
    model = GroupDROClassifier(**params).fit(store)
    expected = fit(X, y, groups, **params)
    for name in ("mean_risk_", "worst_risk_", "upper_bound_"):
        assert getattr(model, name) == pytest.approx(getattr(expected, name), rel=1e-5)
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-3)


@pytest.mark.parametrize(
    "params",
    [{"robustness": 0.5}, {"robustness": 0.0}, {"worst_share": 0.5}, {}],
    ids=repr,
)
def test_a_store_with_weights_gives_the_blend_of_its_arrays(tmp_path, params):
    X, y, groups = make_data()
    weight = np.random.default_rng(0).random(len(y)) + 0.1 + 3.0 * (np.asarray(groups) == groups[0])
    store = gd.GroupedStore.write_arrays(tmp_path / "store", X, y, groups, sample_weight=weight, dtype="float64")
    model = GroupDROClassifier(alpha=ALPHA, tol=1e-8, **params).fit(store)
    expected = fit(X, y, groups, weight, alpha=ALPHA, tol=1e-8, **params)
    for name in ("mean_risk_", "worst_risk_", "upper_bound_"):
        assert getattr(model, name) == pytest.approx(getattr(expected, name), rel=1e-5)


@pytest.mark.parametrize("average", ["rows", "groups"])
def test_a_blend_on_a_store_with_weights_is_that_of_cvxpy(tmp_path, average):
    X, y, groups = make_data()
    weight = np.random.default_rng(0).random(len(y)) + 0.1
    store = gd.GroupedStore.write_arrays(tmp_path / "store", X, y, groups, sample_weight=weight, dtype="float64")
    blended = GroupDROClassifier(alpha=ALPHA, tol=1e-8, robustness=0.5, average=average).fit(store)
    hold_against_cvxpy(blended, Blend(X, y, groups, alpha=ALPHA, weight=weight, average=average))


# ---------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("params", "error", "said"),
    [
        ({"robustness": 1.1}, ValueError, r"^robustness must be at most 1, got 1\.1"),
        ({"robustness": -0.1}, ValueError, r"^robustness "),
        ({"robustness": float("nan")}, ValueError, r"^robustness "),
        ({"robustness": "a"}, (TypeError, ValueError), r"^robustness "),
        ({"robustness": None}, (TypeError, ValueError), r"^robustness "),
        ({"worst_share": 0.0}, ValueError, r"^worst_share "),
        ({"worst_share": 1.5}, ValueError, r"^worst_share must be at most 1"),
        ({"average": "x"}, ValueError, r"^average "),
        ({"average": None}, (TypeError, ValueError), r"^average "),
    ],
    ids=str,
)
@pytest.mark.parametrize("n_classes", [1, 2])
def test_values_that_no_fit_can_use_are_refused_by_name(n_classes, params, error, said):
    X, y, groups = make_data(n_classes)
    with pytest.raises(error, match=said):
        fit(X, y, groups, **params)


def test_a_share_of_rows_is_refused_where_groups_overlap():
    X, y, labels = make_data()
    with pytest.raises(ValueError, match=r"^worst_share requires .* overlap"):
        fit(X, y, overlapping(labels), worst_share=0.5)
    model = fit(X, y, overlapping(labels), worst_share=0.5, average="groups")
    hold_against_cvxpy(model, Blend(X, y, overlapping(labels), alpha=ALPHA, average="groups", n_worst=2))


@pytest.mark.parametrize("make", [GroupDROClassifier, GroupDRORegressor])
def test_parameters_are_kept_and_cloned(make):
    given = {"robustness": 0.25, "average": "groups", "worst_share": 0.5}
    for model in (make(**given), clone(make(**given)), make().set_params(**given)):
        assert {name: model.get_params()[name] for name in given} == given
    assert [make().get_params()[name] for name in given] == [1.0, "rows", None]


# ---------------------------------------------------------------------- files and starts


@pytest.mark.parametrize(
    "params",
    [
        {"robustness": 0.0},
        {"robustness": 0.4, "average": "groups"},
        {"robustness": 0.4, "worst_share": 0.4},
        {"worst_share": 0.5},
        {"tol": 1e-2},
        {"robustness": 0.6, "objective": "excess_risk", "tol": 1e-4},
    ],
    ids=str,
)
@pytest.mark.parametrize("groups", ["apart", "overlapping"])
def test_a_file_keeps_average_and_worst(params, groups):
    X, y, labels = make_data()
    if groups == "overlapping" and "worst_share" in params:
        params = {**params, "average": "groups"}
    model = fit(X, y, labels if groups == "apart" else overlapping(labels), **params)
    loaded = pickle.loads(pickle.dumps(model))
    for name in ("mean_risk_", "worst_risk_", "mean_lower_bound_", "worst_lower_bound_", "upper_bound_"):
        assert getattr(loaded, name) == getattr(model, name)
    for name in ("robustness", "average", "worst_share"):
        assert getattr(loaded, name) == getattr(model, name)
    np.testing.assert_array_equal(loaded.group_weights_, model.group_weights_)


@pytest.mark.parametrize("groups", ["apart", "overlapping"])
@pytest.mark.parametrize(("before", "after"), [(0.0, 1.0), (1.0, 0.2), (0.7, 0.0), (0.3, 0.31)])
def test_a_fit_may_begin_at_that_of_another_robustness(before, after, groups):
    X, y, labels = make_data()
    member = labels if groups == "apart" else overlapping(labels)
    expected = fit(X, y, member, robustness=after)
    model = fit(X, y, member, robustness=before)
    weights = model.group_weights_
    start = {"coef_init": model.coef_, "intercept_init": model.intercept_, "q_init": weights if weights.any() else None}
    model.set_params(robustness=after).fit(X, y, groups=member, **start)
    assert model.upper_bound_ == pytest.approx(expected.upper_bound_, rel=2e-8)
    assert model.n_passes_ <= expected.n_passes_ + 10
    if not weights.any():  # where rows are averaged, groups that overlap have none
        return
    given = GroupDROClassifier(alpha=ALPHA, tol=1e-8, robustness=after).fit(X, y, groups=member, q_init=weights)
    assert given.upper_bound_ == pytest.approx(expected.upper_bound_, rel=2e-8)


# ---------------------------------------------------------------------- nothing is left to chance


def test_solvers_seeds_and_orders_end_at_the_same_predictions():
    """With a tolerance of 1%, many models have the best worst value; of these there is one of least average."""
    X, y, groups = make_data(n=240, m=5)
    ends = []
    for k, solver in enumerate(("auto", gd.solvers.GroupSQP("newton"), gd.solvers.GroupSQP("lbfgs"), "aleg")):
        for seed in range(3):
            order = np.random.default_rng(10 * k + seed).permutation(len(y))
            model = fit(X[order], y[order], groups[order], tol=1e-2, solver=solver, random_state=seed)
            ends.append(model.predict_proba(X)[:, 1])
    assert np.ptp(ends, axis=0).max() < 1e-3


def test_a_grid_search_takes_robustness():
    X, y, groups = make_data(n=240)
    with sklearn.config_context(enable_metadata_routing=True):
        grid = {"robustness": [0.0, 0.5, 1.0]}
        search = GridSearchCV(GroupDROClassifier(alpha=ALPHA), grid, cv=KFold(3), error_score="raise")
        search.fit(X, y, groups=groups)
    assert search.best_params_["robustness"] in grid["robustness"]
    assert search.best_estimator_.groups_.tolist() == [0, 1, 2, 3]
    expected = [
        np.mean(
            [
                GroupDROClassifier(alpha=ALPHA, robustness=t).fit(X[a], y[a], groups=groups[a]).score(X[b], y[b])
                for a, b in KFold(3).split(X)
            ]
        )
        for t in grid["robustness"]
    ]
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], expected, atol=1e-12)
