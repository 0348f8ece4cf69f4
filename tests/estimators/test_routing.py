import copy
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from groupdro import (
    GroupBy,
    GroupDROClassifier,
    GroupDRORegressor,
    GroupStratifiedKFold,
    MissingGroupsWarning,
    worst_group_scorer,
)

RNG = np.random.default_rng(0)
N_ROWS = 240
FEATURES = ["age", "income", "rate"]
REGIONS = ["east", "north", "west"]
RULES = {"east": (1.5, -0.5, 0.0), "north": (1.0, 1.0, 0.5), "west": (-0.3, 1.0, 1.0)}
ALPHAS = [1e-3, 0.1, 3.0]

GROUPS = RNG.choice(REGIONS, N_ROWS, p=[0.2, 0.3, 0.5])
SEX = RNG.choice(["f", "m"], N_ROWS)
JOB = RNG.choice(["clerk", "cook", "smith"], N_ROWS)
X = RNG.standard_normal((N_ROWS, 3))
SCORES = np.array([row @ RULES[name] for row, name in zip(X, GROUPS, strict=True)]) + RNG.standard_normal(N_ROWS)
X = X * (10.0, 1000.0, 0.1) + (40.0, 3000.0, 0.0)
Y = np.where(SCORES > 0, "yes", "no")
WEIGHT = RNG.uniform(0.1, 3.0, N_ROWS)

FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame}
routed = pytest.mark.usefixtures("routing_on")
frames = pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)


@pytest.fixture
def routing_on():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture(params=[False, True], ids=["routing-off", "routing-on"])
def either_routing(request):
    with sklearn.config_context(enable_metadata_routing=request.param):
        yield


def columns(*more):
    everything = {**dict(zip(FEATURES, X.T, strict=True)), "region": GROUPS, "sex": SEX, "job": JOB}
    return {name: everything[name] for name in (*FEATURES, *more)}


def make_pipeline(**params):
    return Pipeline([("scale", StandardScaler()), ("model", GroupDROClassifier(**params))])


def folds():
    return GroupStratifiedKFold(3, random_state=0).split(X, Y, GROUPS)


def scaled(train, test):
    scaler = StandardScaler().fit(X[train])
    return scaler.transform(X[train]), scaler.transform(X[test])


def fit_fold(train, test, **params):
    inside, outside = scaled(train, test)
    return GroupDROClassifier(**params).fit(inside, Y[train], groups=GROUPS[train]), outside


def worst_accuracy(model, rows, y, groups):
    right = model.predict(rows) == y
    return min(right[groups == name].mean() for name in np.unique(groups))


def worst_risk(model, rows, y, groups, weight=None):
    losses = np.logaddexp(0.0, -np.where(y == "yes", 1.0, -1.0) * model.decision_function(rows))
    weight = np.ones(len(y)) if weight is None else weight
    return max(np.average(losses[groups == name], weights=weight[groups == name]) for name in np.unique(groups))


def scores_by_hand(score, **params):
    out = []
    for train, test in folds():
        model, outside = fit_fold(train, test, **params)
        out.append(score(model, outside, Y[test], GROUPS[test]))
    return np.array(out)


def assert_same_model(one, other):
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(one.intercept_, other.intercept_)
    assert one.groups_.tolist() == other.groups_.tolist()


# ---------------------------------------------------------------------- routing on


@routed
def test_a_pipeline_passes_groups_to_the_fit():
    pipeline = make_pipeline().fit(X, Y, groups=GROUPS)
    by_hand, _ = fit_fold(np.arange(N_ROWS), np.arange(N_ROWS))
    assert_same_model(pipeline[-1], by_hand)
    assert pipeline[-1].groups_.tolist() == REGIONS


@routed
@pytest.mark.parametrize(
    "rows", [X, pd.DataFrame(columns()), pl.DataFrame(columns())], ids=["numpy", "pandas", "polars"]
)
def test_a_search_passes_groups_to_fit_split_and_score(rows):
    search = GridSearchCV(
        make_pipeline(),
        {"model__alpha": ALPHAS},
        scoring=worst_group_scorer("accuracy"),
        cv=GroupStratifiedKFold(3, random_state=0),
        n_jobs=2,
    ).fit(rows, Y, groups=GROUPS)
    by_hand = np.array([scores_by_hand(worst_accuracy, alpha=alpha) for alpha in ALPHAS])
    found = np.column_stack([search.cv_results_[f"split{k}_test_score"] for k in range(3)])
    np.testing.assert_array_equal(found, by_hand)
    assert search.best_params_ == {"model__alpha": ALPHAS[by_hand.mean(axis=1).argmax()]}
    assert search.best_estimator_[-1].groups_.tolist() == REGIONS
    assert search.score(rows, Y, groups=GROUPS) == worst_accuracy(search, rows, Y, GROUPS)


@routed
@pytest.mark.parametrize("kind", [pd.Series, pl.Series], ids=["pandas", "polars"])
def test_a_search_takes_groups_of_a_series(kind):
    search = GridSearchCV(
        make_pipeline(),
        {"model__alpha": ALPHAS},
        scoring=worst_group_scorer(),
        cv=GroupStratifiedKFold(3, random_state=0),
    ).fit(X, Y, groups=kind(GROUPS.tolist()))
    by_hand = [-scores_by_hand(worst_risk, alpha=alpha).mean() for alpha in ALPHAS]
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], by_hand, rtol=1e-9)


@routed
@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_a_search_takes_groups_of_several_columns(kind):
    search = GridSearchCV(
        make_pipeline(),
        {"model__alpha": ALPHAS},
        scoring=worst_group_scorer("accuracy"),
        cv=GroupStratifiedKFold(3, random_state=0),
    ).fit(X, Y, groups=kind({"region": GROUPS, "sex": SEX}))
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_[-1].groups_.tolist() == [(region, sex) for region in REGIONS for sex in "fm"]


@routed
def test_a_search_takes_overlapping_groups():
    member = np.column_stack([np.ones(N_ROWS, bool), GROUPS == "east", SEX == "f"])
    search = GridSearchCV(
        make_pipeline(),
        {"model__alpha": ALPHAS},
        scoring=worst_group_scorer("accuracy"),
        cv=GroupStratifiedKFold(3, random_state=0),
    ).fit(X, Y, groups=member)
    by_hand = []
    for train, test in GroupStratifiedKFold(3, random_state=0).split(X, Y, member):
        inside, outside = scaled(train, test)
        model = GroupDROClassifier(alpha=ALPHAS[0]).fit(inside, Y[train], groups=member[train])
        right = model.predict(outside) == Y[test]
        by_hand.append(min(right[member[test, i]].mean() for i in range(3)))
    assert search.cv_results_["mean_test_score"][0] == pytest.approx(np.mean(by_hand))
    assert search.best_estimator_[-1].groups_.tolist() == [0, 1, 2]


@routed
def test_two_scorers_score_side_by_side():
    results = cross_validate(
        make_pipeline(),
        X,
        Y,
        params={"groups": GROUPS},
        scoring={"risk": worst_group_scorer("risk"), "accuracy": worst_group_scorer("accuracy")},
        cv=GroupStratifiedKFold(3, random_state=0),
        return_estimator=True,
    )
    np.testing.assert_allclose(results["test_risk"], -scores_by_hand(worst_risk), rtol=1e-9)
    np.testing.assert_array_equal(results["test_accuracy"], scores_by_hand(worst_accuracy))
    assert all(pipeline[-1].groups_.tolist() == REGIONS for pipeline in results["estimator"])


@routed
def test_setting_the_request_of_a_scorer_leaves_others_alone():
    before, changed = worst_group_scorer(), worst_group_scorer()
    changed.set_score_request(sample_weight=True, groups=False)
    assert changed.get_metadata_routing().score.requests == {"sample_weight": True, "groups": False, "offset": True}
    for other in (before, worst_group_scorer(), worst_group_scorer("accuracy")):
        assert other.get_metadata_routing().score.requests == {"sample_weight": None, "groups": True, "offset": True}


@routed
def test_one_of_two_scorers_takes_weights():
    results = cross_validate(
        make_pipeline().set_params(
            scale=StandardScaler().set_fit_request(sample_weight=False),
            model=GroupDROClassifier().set_fit_request(sample_weight=False),
        ),
        X,
        Y,
        params={"groups": GROUPS, "sample_weight": WEIGHT},
        scoring={
            "weighted": worst_group_scorer().set_score_request(sample_weight=True),
            "plain": worst_group_scorer().set_score_request(sample_weight=False),
        },
        cv=GroupStratifiedKFold(3, random_state=0),
    )
    weighted = []
    for train, test in folds():
        model, outside = fit_fold(train, test)
        weighted.append(-worst_risk(model, outside, Y[test], GROUPS[test], WEIGHT[test]))
    np.testing.assert_allclose(results["test_weighted"], weighted, rtol=1e-9)
    np.testing.assert_allclose(results["test_plain"], -scores_by_hand(worst_risk), rtol=1e-9)


@routed
def test_weights_reach_the_fit_where_they_are_requested():
    pipeline = Pipeline(
        [
            ("scale", StandardScaler().set_fit_request(sample_weight=False)),
            ("model", GroupDROClassifier().set_fit_request(sample_weight=True)),
        ]
    ).fit(X, Y, sample_weight=WEIGHT, groups=GROUPS)
    rows = StandardScaler().fit_transform(X)
    assert_same_model(pipeline[-1], GroupDROClassifier().fit(rows, Y, WEIGHT, groups=GROUPS))
    plain = GroupDROClassifier().fit(rows, Y, groups=GROUPS)
    assert not np.allclose(pipeline[-1].coef_, plain.coef_, rtol=1e-2)


@routed
def test_a_model_that_requests_weights_still_requests_groups():
    requests = GroupDROClassifier().set_fit_request(sample_weight=True).get_metadata_routing().fit.requests
    assert requests["groups"] is True
    assert requests["sample_weight"] is True


@routed
def test_calibration_passes_groups_to_the_models_inside():
    calibrated = CalibratedClassifierCV(GroupDROClassifier(), cv=3).fit(X, Y, groups=GROUPS)
    assert len(calibrated.calibrated_classifiers_) == 3
    for inner in calibrated.calibrated_classifiers_:
        assert inner.estimator.groups_.tolist() == REGIONS
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(axis=1), 1.0)


@routed
def test_a_regression_is_searched_by_its_worst_group():
    search = GridSearchCV(
        Pipeline([("scale", StandardScaler()), ("model", GroupDRORegressor())]),
        {"model__alpha": ALPHAS},
        scoring=worst_group_scorer(),
        cv=GroupStratifiedKFold(3, random_state=0),
    ).fit(X, SCORES, groups=GROUPS)
    for k, alpha in enumerate(ALPHAS):
        risks = []
        for train, test in GroupStratifiedKFold(3, random_state=0).split(X, SCORES, GROUPS):
            inside, outside = scaled(train, test)
            model = GroupDRORegressor(alpha=alpha).fit(inside, SCORES[train], groups=GROUPS[train])
            halves = 0.5 * (model.predict(outside) - SCORES[test]) ** 2
            risks.append(max(halves[GROUPS[test] == name].mean() for name in REGIONS))
        assert search.cv_results_["mean_test_score"][k] == pytest.approx(-np.mean(risks), rel=1e-9)
    assert search.best_estimator_[-1].groups_.tolist() == REGIONS


# ---------------------------------------------------------------------- routing off


def test_without_routing_a_search_warns_that_groups_did_not_arrive():
    search = GridSearchCV(GroupDROClassifier(), {"alpha": ALPHAS}, cv=GroupStratifiedKFold(3, random_state=0))
    with pytest.warns(MissingGroupsWarning, match="enable_metadata_routing=True"):
        search.fit(X, Y, groups=GROUPS)
    assert search.best_estimator_.groups_.tolist() == ["all"]


def test_a_fit_without_groups_warns_where_the_user_called_it():
    with pytest.warns(MissingGroupsWarning, match="GroupBy") as caught:
        GroupDROClassifier().fit(X, Y)
    assert [warning.filename for warning in caught] == [__file__]


def test_without_routing_a_pipeline_takes_groups_by_the_name_of_the_step():
    pipeline = make_pipeline().fit(X, Y, model__groups=GROUPS)
    by_hand, _ = fit_fold(np.arange(N_ROWS), np.arange(N_ROWS))
    assert_same_model(pipeline[-1], by_hand)


def test_without_routing_a_search_divides_groups_given_by_the_name_of_the_step():
    search = GridSearchCV(
        make_pipeline(), {"model__alpha": ALPHAS}, scoring="accuracy", cv=list(folds()), error_score="raise"
    ).fit(X, Y, model__groups=GROUPS)
    by_hand = [
        scores_by_hand(lambda model, rows, y, _: (model.predict(rows) == y).mean(), alpha=alpha).mean()
        for alpha in ALPHAS
    ]
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], by_hand)
    assert search.best_estimator_[-1].groups_.tolist() == REGIONS


@pytest.mark.usefixtures("either_routing")
@pytest.mark.parametrize("metric", ["risk", "accuracy", "regret"])
def test_a_scorer_without_groups_says_what_to_do(metric):
    model = GroupDROClassifier().fit(X, Y, groups=GROUPS)
    with pytest.raises(ValueError, match=r"groups.*enable_metadata_routing=True.*group_by"):
        worst_group_scorer(metric)(model, X, Y)


def test_without_routing_a_scorer_inside_a_search_says_what_to_do():
    search = GridSearchCV(
        make_pipeline(),
        {"model__alpha": ALPHAS},
        scoring=worst_group_scorer(),
        cv=GroupStratifiedKFold(3, random_state=0),
        error_score="raise",
    )
    with (
        pytest.warns(MissingGroupsWarning),
        pytest.raises(ValueError, match=r"enable_metadata_routing=True.*group_by"),
    ):
        search.fit(X, Y, groups=GROUPS)


# ---------------------------------------------------------------------- GroupBy, with routing off and on


@pytest.mark.usefixtures("either_routing")
class TestGroupBy:
    @frames
    def test_the_column_is_the_groups_and_no_feature(self, frame):
        model = GroupBy(GroupDROClassifier(alpha=0.1), group_by="region").fit(frame(columns("region")), Y)
        assert_same_model(model.estimator_, GroupDROClassifier(alpha=0.1).fit(X, Y, groups=GROUPS))
        assert model.estimator_.feature_names_in_.tolist() == FEATURES
        assert model.n_features_in_ == 3
        assert model.classes_.tolist() == ["no", "yes"]

    @frames
    def test_predictions_need_no_column_and_ignore_it(self, frame):
        model = GroupBy(make_pipeline(), group_by="region").fit(frame(columns("region")), Y)
        with sklearn.config_context(enable_metadata_routing=True):
            plain = make_pipeline().fit(frame(columns()), Y, groups=GROUPS)
        elsewhere = frame({**columns(), "region": GROUPS[::-1]})
        for method in ("predict", "predict_proba", "decision_function"):
            expected = getattr(plain, method)(frame(columns()))
            for rows in (frame(columns()), frame(columns("region")), elsewhere):
                np.testing.assert_array_equal(getattr(model, method)(rows), expected)
        for rows in (frame(columns()), elsewhere):
            assert model.score(rows, Y) == (model.predict(rows) == Y).mean()

    def test_predictions_of_arrays_without_the_column_work(self):
        model = GroupBy(GroupDROClassifier(), group_by="region")
        model.fit(pd.DataFrame(columns("region")), Y)
        with pytest.warns(UserWarning, match="feature names"):
            predicted = model.predict(X)
        np.testing.assert_array_equal(predicted, model.predict(pd.DataFrame(columns())))

    @frames
    def test_several_columns_are_groups_by_their_combinations(self, frame):
        model = GroupBy(GroupDROClassifier(), group_by=["region", "sex"]).fit(frame(columns("region", "sex")), Y)
        pairs = pd.DataFrame({"region": GROUPS, "sex": SEX})
        assert_same_model(model.estimator_, GroupDROClassifier().fit(X, Y, groups=pairs))
        assert model.estimator_.groups_.tolist() == [(region, sex) for region in REGIONS for sex in "fm"]
        expected = model.predict(frame(columns()))
        for some in (["sex"], ["region"], ["region", "sex"]):
            np.testing.assert_array_equal(model.predict(frame(columns(*some))), expected)

    @frames
    def test_several_columns_of_truth_values_are_groups_by_their_combinations(self, frame):
        rows = frame({**columns(), "east": GROUPS == "east", "female": SEX == "f"})
        model = GroupBy(GroupDROClassifier(), group_by=["east", "female"]).fit(rows, Y)
        expected = [(False, False), (False, True), (True, False), (True, True)]
        assert model.estimator_.groups_.tolist() == expected

    @frames
    def test_a_column_of_truth_values_is_two_groups(self, frame):
        rows = frame({**columns(), "east": GROUPS == "east"})
        assert GroupBy(GroupDROClassifier(), "east").fit(rows, Y).estimator_.groups_.tolist() == [False, True]

    @frames
    def test_a_search_needs_no_groups_argument(self, frame):
        search = GridSearchCV(
            GroupBy(make_pipeline(), group_by="region"),
            {"estimator__model__alpha": ALPHAS},
            scoring=worst_group_scorer("risk", group_by="region"),
            cv=GroupStratifiedKFold(3, group_by="region", random_state=0),
            n_jobs=2,
        ).fit(frame(columns("region")), Y)
        by_hand = np.array([-scores_by_hand(worst_risk, alpha=alpha) for alpha in ALPHAS])
        found = np.column_stack([search.cv_results_[f"split{k}_test_score"] for k in range(3)])
        np.testing.assert_allclose(found, by_hand, rtol=1e-9)
        assert search.best_params_ == {"estimator__model__alpha": ALPHAS[by_hand.mean(axis=1).argmax()]}
        assert search.best_estimator_.estimator_[-1].groups_.tolist() == REGIONS
        np.testing.assert_array_equal(search.predict(frame(columns())), search.predict(frame(columns("region"))))

    @frames
    def test_two_scorers_take_the_groups_from_the_column(self, frame):
        results = cross_validate(
            GroupBy(make_pipeline(), group_by="region"),
            frame(columns("region")),
            Y,
            scoring={
                "risk": worst_group_scorer("risk", group_by="region"),
                "accuracy": worst_group_scorer("accuracy", group_by="region"),
            },
            cv=GroupStratifiedKFold(3, group_by="region", random_state=0),
        )
        np.testing.assert_allclose(results["test_risk"], -scores_by_hand(worst_risk), rtol=1e-9)
        np.testing.assert_array_equal(results["test_accuracy"], scores_by_hand(worst_accuracy))

    @frames
    def test_several_columns_serve_fit_split_and_score(self, frame):
        both = ["region", "sex"]
        scores = cross_val_score(
            GroupBy(make_pipeline(), group_by=both),
            frame(columns(*both)),
            Y,
            scoring=worst_group_scorer("accuracy", group_by=both),
            cv=GroupStratifiedKFold(3, group_by=both, random_state=0),
        )
        pairs = np.column_stack([GROUPS, SEX])
        labels = np.char.add(GROUPS, SEX)
        for score, (train, test) in zip(
            scores, GroupStratifiedKFold(3, random_state=0).split(X, Y, pairs), strict=True
        ):
            inside, outside = scaled(train, test)
            model = GroupDROClassifier().fit(inside, Y[train], groups=pairs[train])
            assert score == worst_accuracy(model, outside, Y[test], labels[test])

    @frames
    def test_a_pipeline_with_a_column_transformer_fits_inside(self, frame):
        encode = ColumnTransformer([("numbers", StandardScaler(), FEATURES), ("job", OneHotEncoder(), ["job"])])
        inner = Pipeline([("encode", encode), ("model", GroupDROClassifier())])
        model = GroupBy(inner, group_by="region").fit(frame(columns("region", "job")), Y)
        rows = np.hstack([StandardScaler().fit_transform(X), JOB[:, None] == np.array(["clerk", "cook", "smith"])])
        by_hand = GroupDROClassifier().fit(rows, Y, groups=GROUPS)
        np.testing.assert_allclose(model.estimator_[-1].coef_, by_hand.coef_, rtol=1e-6)
        assert model.estimator_[-1].groups_.tolist() == REGIONS
        np.testing.assert_array_equal(model.predict(frame(columns("job"))), by_hand.predict(rows))
        np.testing.assert_array_equal(model.predict(frame(columns("region", "job"))), by_hand.predict(rows))

    def test_the_number_of_features_is_that_of_x_without_the_group_columns(self):
        encode = ColumnTransformer([("numbers", StandardScaler(), FEATURES), ("job", OneHotEncoder(), ["job"])])
        inner = Pipeline([("encode", encode), ("model", GroupDROClassifier())])
        model = GroupBy(inner, group_by="region").fit(pd.DataFrame(columns("region", "job")), Y)
        assert model.n_features_in_ == 4

    @frames
    def test_calibration_sees_the_groups(self, frame):
        calibrated = CalibratedClassifierCV(GroupBy(make_pipeline(), group_by="region"), cv=3)
        calibrated.fit(frame(columns("region")), Y)
        for inner in calibrated.calibrated_classifiers_:
            assert inner.estimator.estimator_[-1].groups_.tolist() == REGIONS
        np.testing.assert_array_equal(
            calibrated.predict_proba(frame(columns())), calibrated.predict_proba(frame(columns("region")))
        )

    def test_weights_reach_the_fit(self):
        rows = pd.DataFrame(columns("region"))
        model = GroupBy(GroupDROClassifier(), group_by="region").fit(rows, Y, sample_weight=WEIGHT)
        assert_same_model(model.estimator_, GroupDROClassifier().fit(X, Y, WEIGHT, groups=GROUPS))

    @frames
    def test_a_column_that_is_not_dropped_stays_a_feature(self, frame):
        rows = frame({**columns(), "code": np.searchsorted(REGIONS, GROUPS)})
        model = GroupBy(GroupDROClassifier(), group_by="code", drop=False).fit(rows, Y)
        assert model.estimator_.feature_names_in_.tolist() == [*FEATURES, "code"]
        assert model.estimator_.groups_.tolist() == [0, 1, 2]
        assert model.n_features_in_ == 4
        with_code = np.column_stack([X, np.searchsorted(REGIONS, GROUPS)])
        by_hand = GroupDROClassifier().fit(with_code, Y, groups=GROUPS)
        np.testing.assert_array_equal(model.predict(rows), by_hand.predict(with_code))
        with pytest.raises(ValueError, match="code"):
            model.predict(frame(columns()))

    @frames
    def test_a_text_column_that_is_not_dropped_can_be_encoded(self, frame):
        encode = ColumnTransformer([("numbers", StandardScaler(), FEATURES), ("region", OneHotEncoder(), ["region"])])
        inner = Pipeline([("encode", encode), ("model", GroupDROClassifier())])
        model = GroupBy(inner, group_by="region", drop=False).fit(frame(columns("region")), Y)
        assert model.estimator_[-1].n_features_in_ == 6
        assert model.estimator_[-1].groups_.tolist() == REGIONS

    def test_the_estimator_given_is_left_unfitted(self):
        inner = GroupDROClassifier()
        model = GroupBy(inner, group_by="region").fit(pd.DataFrame(columns("region")), Y)
        assert not hasattr(inner, "coef_")
        assert model.estimator is inner

    def test_a_clone_has_the_same_parameters_and_no_fit(self):
        model = GroupBy(GroupDROClassifier(alpha=0.3), group_by=["region", "sex"], drop=False)
        copy = clone(model.fit(pd.DataFrame({**columns(), "region": X[:, 0] > 40, "sex": SEX == "f"}).astype(int), Y))
        assert copy.group_by == ["region", "sex"]
        assert copy.drop is False
        assert copy.estimator.alpha == 0.3
        assert copy.estimator is not model.estimator
        assert not hasattr(copy, "estimator_")

    def test_nested_parameters_can_be_set(self):
        model = GroupBy(make_pipeline(), group_by="region").set_params(estimator__model__alpha=0.7, group_by="sex")
        assert model.estimator[-1].alpha == 0.7
        assert model.group_by == "sex"

    @pytest.mark.parametrize(
        ("inner", "classifies"),
        [
            (GroupDROClassifier(), True),
            (make_pipeline(), True),
            (GroupDRORegressor(), False),
            (Pipeline([("scale", StandardScaler()), ("model", GroupDRORegressor())]), False),
        ],
        ids=["classifier", "classifiers-pipeline", "regressor", "regressors-pipeline"],
    )
    def test_the_kind_is_that_of_the_estimator_inside(self, inner, classifies):
        model = GroupBy(inner, group_by="region")
        assert is_classifier(model) is classifies
        assert is_regressor(model) is not classifies
        assert hasattr(model, "predict_proba") is classifies

    def test_probabilities_are_there_only_where_the_estimator_has_them(self):
        model = GroupBy(GroupDROClassifier(loss="squared_hinge"), group_by="region")
        assert not hasattr(model, "predict_proba")
        assert hasattr(model, "decision_function")
        assert not hasattr(GroupBy(GroupDRORegressor(), group_by="region"), "decision_function")

    @frames
    def test_a_regression_is_searched_by_its_worst_group(self, frame):
        search = GridSearchCV(
            GroupBy(GroupDRORegressor(), group_by="region"),
            {"estimator__alpha": ALPHAS},
            scoring=worst_group_scorer(group_by="region"),
            cv=GroupStratifiedKFold(3, group_by="region", random_state=0),
        ).fit(frame(columns("region")), SCORES)
        risks = []
        for train, test in GroupStratifiedKFold(3, random_state=0).split(X, SCORES, GROUPS):
            model = GroupDRORegressor(alpha=ALPHAS[0]).fit(X[train], SCORES[train], groups=GROUPS[train])
            halves = 0.5 * (model.predict(X[test]) - SCORES[test]) ** 2
            risks.append(max(halves[GROUPS[test] == name].mean() for name in REGIONS))
        assert search.cv_results_["mean_test_score"][0] == pytest.approx(-np.mean(risks), rel=1e-9)
        assert search.best_estimator_.estimator_.groups_.tolist() == REGIONS

    @pytest.mark.parametrize(
        "rows", [X, X.tolist(), pl.LazyFrame(columns("region"))], ids=["numpy", "list", "polars-lazy"]
    )
    def test_rows_without_column_names_are_refused(self, rows):
        with pytest.raises(TypeError, match=r"group_by='region'.*DataFrame.*(ndarray|list|LazyFrame)"):
            GroupBy(GroupDROClassifier(), group_by="region").fit(rows, Y)

    @frames
    def test_columns_that_are_not_there_are_named(self, frame):
        with pytest.raises(ValueError, match=r"group_by.*\['district'\]"):
            GroupBy(GroupDROClassifier(), group_by="district").fit(frame(columns("region")), Y)
        with pytest.raises(ValueError, match=r"group_by.*\['district'\]"):
            GroupBy(GroupDROClassifier(), group_by=["region", "district"]).fit(frame(columns("region")), Y)

    def test_predicting_before_the_fit_says_so(self):
        model = GroupBy(GroupDROClassifier(), group_by="region")
        with pytest.raises(NotFittedError):
            model.predict(pd.DataFrame(columns()))

    @frames
    def test_a_report_takes_the_groups_from_the_column(self, frame):
        rows = frame(columns("region"))
        report = GroupBy(GroupDROClassifier(), group_by="region").fit(rows, Y).report(rows, Y, n_bootstrap=0)
        assert sorted(report.columns["group"]) == REGIONS

    @pytest.mark.parametrize("inner", [GroupDROClassifier(), make_pipeline()], ids=["alone", "pipeline"])
    def test_what_the_estimator_learned_is_an_attribute(self, inner):
        model = GroupBy(inner, group_by="region")
        assert not hasattr(model, "gap_")
        model.fit(pd.DataFrame(columns("region")), Y)
        learned = model.estimator_ if isinstance(inner, GroupDROClassifier) else model.estimator_[-1]
        for name in ("gap_", "worst_group_", "lower_bound_", "upper_bound_", "status_", "message_", "solver_"):
            assert getattr(model, name) == getattr(learned, name)
        for name in ("coef_", "intercept_", "group_weights_", "group_risks_", "groups_"):
            np.testing.assert_array_equal(getattr(model, name), getattr(learned, name))
        for name in ("nothing_", "alpha", "_codes", "__array__"):
            with pytest.raises(AttributeError, match=f"'GroupBy' object has no attribute '{name}'"):
                getattr(model, name)
        assert pickle.loads(pickle.dumps(model)).gap_ == copy.deepcopy(model).gap_ == model.gap_

    @pytest.mark.parametrize("by", ["region", ["region", "sex"]])
    @pytest.mark.parametrize("drop", [True, False])
    def test_a_file_keeps_the_model_and_its_columns(self, by, drop):
        rows = pd.DataFrame({**columns(), "region": np.searchsorted(REGIONS, GROUPS), "sex": (SEX == "f") + 0})
        model = GroupBy(GroupDROClassifier(alpha=0.1), by, drop=drop).fit(rows, Y)
        again = pickle.loads(pickle.dumps(model))
        assert again.get_params()["group_by"] == by
        assert (again.drop, again.estimator.alpha) == (drop, 0.1)
        assert repr(again.report(rows, Y)) == repr(model.report(rows, Y))
        np.testing.assert_array_equal(again.predict_proba(rows), model.predict_proba(rows))


@pytest.mark.parametrize(
    "estimator",
    [LogisticRegression(), Pipeline([("model", LogisticRegression())])],
    ids=["alone", "pipeline"],
)
def test_an_estimator_that_takes_no_groups_is_named(estimator):
    frame = pd.DataFrame({"x": np.arange(8.0), "site": list("aabbaabb")})
    with pytest.raises(TypeError, match="estimator must accept groups in fit"):
        GroupBy(estimator, "site").fit(frame, [0, 1] * 4)


def test_groups_by_column_tell_the_names_of_the_features_and_logarithms_of_probabilities():
    frame = pd.DataFrame({"x": np.arange(8.0), "site": list("aabbaabb")})
    model = GroupBy(GroupDROClassifier(alpha=0.1), "site").fit(frame, [0, 1] * 4)
    assert model.feature_names_in_.tolist() == ["x"]
    np.testing.assert_allclose(np.exp(model.predict_log_proba(frame)), model.predict_proba(frame))
