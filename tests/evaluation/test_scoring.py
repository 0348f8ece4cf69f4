"""Scores of the worst group."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import sklearn
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from groupdro import GroupBy, GroupDROClassifier, GroupDRORegressor, worst_group_scorer
from groupdro.datasets import make_mero
from groupdro.evaluation.models import final_estimator
from groupdro.losses import Huber

RNG = np.random.default_rng(0)
N_ROWS = 150
X = RNG.standard_normal((N_ROWS, 3)) * (1.0, 5.0, 0.2)
GROUPS = RNG.choice(["a", "b", "c"], N_ROWS, p=[0.2, 0.3, 0.5])
TARGET = X @ (1.0, -0.2, 3.0) + RNG.standard_normal(N_ROWS) + (GROUPS == "a") * X[:, 0]
LABELS = np.where(TARGET > 0, "yes", "no")
CLASSES = np.array(["low", "mid", "top"])[np.digitize(TARGET, [-0.7, 0.7])]
WEIGHT = RNG.uniform(0.1, 3.0, N_ROWS)
SIGNS = np.where(LABELS == "yes", 1.0, -1.0)


def group_means(values, groups=GROUPS, weight=None):
    weight = np.ones(len(values)) if weight is None else weight
    return {name: np.average(values[groups == name], weights=weight[groups == name]) for name in np.unique(groups)}


def logistic_losses(model):
    return np.log(1.0 + np.exp(-SIGNS * model.decision_function(X)))


def softmax_losses(model):
    outputs = model.decision_function(X)
    own = outputs[np.arange(N_ROWS), np.searchsorted(model.classes_, CLASSES)]
    return logsumexp(outputs, axis=1) - own


def hinge_losses(model):
    return 0.5 * np.maximum(0.0, 1.0 - SIGNS * model.decision_function(X)) ** 2


def squared_losses(model):
    return 0.5 * (TARGET - model.predict(X)) ** 2


def huber_losses(model):
    size = np.abs(TARGET - model.predict(X))
    return np.where(size <= 0.5, 0.5 * size**2, 0.5 * size - 0.125)


def own(estimator, y):
    return estimator.fit(X, y, groups=GROUPS)


def own_pipeline(estimator, y):
    return make_pipeline(StandardScaler(), estimator).fit(
        X, y, **{f"{type(estimator).__name__.lower()}__groups": GROUPS}
    )


def foreign(estimator, y):
    return estimator.fit(X, y)


MODELS = {
    "logistic": (own, GroupDROClassifier(), LABELS, logistic_losses),
    "softmax": (own, GroupDROClassifier(), CLASSES, softmax_losses),
    "squared-hinge": (own, GroupDROClassifier(loss="squared_hinge"), LABELS, hinge_losses),
    "squared": (own, GroupDRORegressor(), TARGET, squared_losses),
    "huber": (own, GroupDRORegressor(loss=Huber(0.5)), TARGET, huber_losses),
    "pipeline-logistic": (own_pipeline, GroupDROClassifier(), LABELS, logistic_losses),
    "pipeline-softmax": (own_pipeline, GroupDROClassifier(), CLASSES, softmax_losses),
    "pipeline-squared-hinge": (own_pipeline, GroupDROClassifier(loss="squared_hinge"), LABELS, hinge_losses),
    "pipeline-squared": (own_pipeline, GroupDRORegressor(), TARGET, squared_losses),
    "pipeline-huber": (own_pipeline, GroupDRORegressor(loss=Huber(0.5)), TARGET, huber_losses),
    "LogisticRegression": (foreign, LogisticRegression(), LABELS, logistic_losses),
    "LogisticRegression-softmax": (foreign, LogisticRegression(), CLASSES, softmax_losses),
    "pipeline-LogisticRegression": (
        foreign,
        make_pipeline(StandardScaler(), LogisticRegression()),
        LABELS,
        logistic_losses,
    ),
    "LinearSVC": (foreign, LinearSVC(), LABELS, lambda model: 1.0 * (model.predict(X) != LABELS)),
    "Ridge": (foreign, Ridge(), TARGET, squared_losses),
    "pipeline-Ridge": (foreign, make_pipeline(StandardScaler(), Ridge()), TARGET, squared_losses),
}
CLASSIFIERS = {name: case for name, case in MODELS.items() if case[2] is not TARGET}
models = pytest.mark.parametrize(("fit", "estimator", "y", "losses"), MODELS.values(), ids=MODELS)
classifiers = pytest.mark.parametrize(("fit", "estimator", "y", "losses"), CLASSIFIERS.values(), ids=CLASSIFIERS)


# ---------------------------------------------------------------------- scores


@models
def test_risk_is_minus_the_largest_average_loss_of_a_group(fit, estimator, y, losses):
    model = fit(clone(estimator), y)
    expected = -max(group_means(losses(model)).values())
    assert worst_group_scorer("risk")(model, X, y, groups=GROUPS) == pytest.approx(expected, rel=1e-9)
    assert worst_group_scorer().score(model, X, y, groups=GROUPS) == pytest.approx(expected, rel=1e-9)


@models
def test_regret_is_the_risk_less_the_references_given(fit, estimator, y, losses):
    model = fit(clone(estimator), y)
    references = {"a": 0.5, "b": 0.1, "c": -0.2, "unused": 9.0}
    risks = group_means(losses(model))
    expected = -max(risks[name] - references[name] for name in risks)
    scorer = worst_group_scorer("regret", group_minima=references)
    assert scorer(model, X, y, groups=GROUPS) == pytest.approx(expected, rel=1e-9)


@classifiers
def test_accuracy_is_that_of_the_worst_group(fit, estimator, y, losses):
    model = fit(clone(estimator), y)
    expected = min(group_means(1.0 * (model.predict(X) == y)).values())
    assert worst_group_scorer("accuracy")(model, X, y, groups=GROUPS) == pytest.approx(expected, rel=1e-12)


@models
def test_weights_count_within_a_group(fit, estimator, y, losses):
    model = fit(clone(estimator), y)
    scorer = worst_group_scorer()
    expected = -max(group_means(losses(model), weight=WEIGHT).values())
    assert scorer(model, X, y, WEIGHT, groups=GROUPS) == pytest.approx(expected, rel=1e-9)
    favoured = WEIGHT * np.where(GROUPS == "a", 100.0, 1.0)
    assert scorer(model, X, y, sample_weight=favoured, groups=GROUPS) == pytest.approx(expected, rel=1e-9)


def test_weights_count_in_accuracy_and_regret():
    model = LogisticRegression().fit(X, LABELS)
    right = group_means(1.0 * (model.predict(X) == LABELS), weight=WEIGHT)
    score = worst_group_scorer("accuracy")(model, X, LABELS, WEIGHT, groups=GROUPS)
    assert score == pytest.approx(min(right.values()))
    references = {"a": 0.5, "b": 0.1, "c": -0.2}
    risks = group_means(logistic_losses(model), weight=WEIGHT)
    score = worst_group_scorer("regret", group_minima=references)(model, X, LABELS, WEIGHT, groups=GROUPS)
    assert score == pytest.approx(-max(risks[name] - references[name] for name in risks))


def test_the_training_risk_of_a_fit_is_what_the_scorer_finds():
    model = GroupDROClassifier(alpha=0.0).fit(X, LABELS, groups=GROUPS)
    assert worst_group_scorer()(model, X, LABELS, groups=GROUPS) == pytest.approx(-model.upper_bound_, rel=1e-9)


def test_a_pipeline_of_a_single_step_is_scored_by_its_own_loss():
    model = Pipeline([("model", GroupDROClassifier(loss="squared_hinge"))]).fit(X, LABELS, model__groups=GROUPS)
    expected = -max(group_means(hinge_losses(model)).values())
    assert worst_group_scorer()(model, X, LABELS, groups=GROUPS) == pytest.approx(expected, rel=1e-9)


def test_a_pipeline_whose_steps_pass_rows_through_is_scored_by_its_own_loss():
    model = Pipeline([("scale", "passthrough"), ("model", GroupDROClassifier(loss="squared_hinge"))])
    model.fit(X, LABELS, model__groups=GROUPS)
    expected = -max(group_means(hinge_losses(model)).values())
    assert worst_group_scorer()(model, X, LABELS, groups=GROUPS) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", [pd.Series, pl.Series, list, np.array], ids=["pandas", "polars", "list", "numpy"])
def test_labels_and_groups_of_any_container_are_scored(kind):
    model = LogisticRegression().fit(X, LABELS)
    expected = min(group_means(1.0 * (model.predict(X) == LABELS)).values())
    score = worst_group_scorer("accuracy")(model, X, kind(LABELS.tolist()), groups=kind(GROUPS.tolist()))
    assert score == pytest.approx(expected)


# ---------------------------------------------------------------------- the loss


@pytest.mark.parametrize(
    ("loss", "losses"),
    [
        ("log", lambda model: -np.log(model.predict_proba(X)[np.arange(N_ROWS), (LABELS == "yes").astype(int)])),
        ("zero_one", lambda model: 1.0 * (model.predict(X) != LABELS)),
        (
            lambda y, predicted: 5.0 * (y == "yes") * (predicted == "no"),
            lambda model: 5.0 * (SIGNS > 0) * (model.predict(X) == "no"),
        ),
    ],
    ids=["log", "zero_one", "callable"],
)
@pytest.mark.parametrize("metric", ["risk", "regret"])
@pytest.mark.parametrize(
    ("fit", "estimator"),
    [
        (own, GroupDROClassifier()),
        (foreign, LogisticRegression()),
        (foreign, make_pipeline(StandardScaler(), LogisticRegression())),
    ],
    ids=["own", "foreign", "pipeline"],
)
def test_a_classifier_can_be_judged_by_another_loss(fit, estimator, metric, loss, losses):
    model = fit(clone(estimator), LABELS)
    references = dict.fromkeys("abc", 0.125) if metric == "regret" else None
    scorer = worst_group_scorer(metric, loss=loss, group_minima=references)
    expected = -max(group_means(losses(model)).values()) + (0.125 if metric == "regret" else 0.0)
    assert scorer(model, X, LABELS, groups=GROUPS) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("loss", "losses"),
    [
        ("squared", squared_losses),
        ("absolute", lambda model: np.abs(TARGET - model.predict(X))),
        (lambda y, predicted: np.maximum(0.9 * (y - predicted), 0.1 * (predicted - y)), None),
    ],
    ids=["squared", "absolute", "pinball"],
)
@pytest.mark.parametrize(
    ("fit", "estimator"), [(own, GroupDRORegressor(loss="huber")), (foreign, Ridge())], ids=["own", "foreign"]
)
def test_a_regression_can_be_judged_by_another_loss(fit, estimator, loss, losses):
    model = fit(clone(estimator), TARGET)
    values = loss(TARGET, model.predict(X)) if losses is None else losses(model)
    score = worst_group_scorer(loss=loss)(model, X, TARGET, groups=GROUPS)
    assert score == pytest.approx(-max(group_means(values).values()), rel=1e-9)


def test_the_own_loss_of_a_squared_hinge_differs_from_zero_one():
    model = GroupDROClassifier(loss="squared_hinge").fit(X, LABELS, groups=GROUPS)
    expected = -max(group_means(1.0 * (model.predict(X) != LABELS)).values())
    assert worst_group_scorer(loss="zero_one")(model, X, LABELS, groups=GROUPS) == pytest.approx(expected)


def test_a_class_that_a_foreign_model_does_not_know_costs_a_large_finite_loss():
    known = CLASSES != "top"
    model = LogisticRegression().fit(X[known], CLASSES[known])
    losses = np.full(N_ROWS, -np.log(np.finfo(np.float64).eps))
    probability = model.predict_proba(X[known])
    losses[known] = -np.log(probability[np.arange(known.sum()), (CLASSES[known] == "mid").astype(int)])
    score = worst_group_scorer()(model, X, CLASSES, groups=GROUPS)
    assert score == pytest.approx(-max(group_means(losses).values()), rel=1e-9)


def test_a_class_that_an_own_model_does_not_know_is_named():
    known = CLASSES != "top"
    model = GroupDROClassifier().fit(X[known], CLASSES[known], groups=GROUPS[known])
    with pytest.raises(ValueError, match="'top'"):
        worst_group_scorer()(model, X, CLASSES, groups=GROUPS)


def test_a_callable_must_return_one_number_a_row():
    model = Ridge().fit(X, TARGET)
    with pytest.raises(ValueError, match=r"loss must return one number per row.*\(\)"):
        worst_group_scorer(loss=lambda y, predicted: np.mean(y - predicted))(model, X, TARGET, groups=GROUPS)


def test_a_callable_that_returns_nan_is_blamed():
    model = Ridge().fit(X, TARGET)
    with pytest.raises(ValueError, match="loss"):
        worst_group_scorer(loss=lambda y, predicted: np.full(len(y), np.nan))(model, X, TARGET, groups=GROUPS)


@pytest.mark.parametrize("loss", ["hinge", None, 3])
def test_an_unknown_loss_is_refused(loss):
    model = Ridge().fit(X, TARGET)
    with pytest.raises(ValueError, match=r"loss must be 'auto', 'log'"):
        worst_group_scorer(loss=loss)(model, X, TARGET, groups=GROUPS)


@pytest.mark.parametrize("metric", ["auc", None, "Risk"])
def test_an_unknown_metric_is_refused(metric):
    with pytest.raises((TypeError, ValueError), match=f"^metric.*{metric}"):
        worst_group_scorer(metric)
    scorer = worst_group_scorer().set_params(metric=metric)
    with pytest.raises((TypeError, ValueError), match=f"^metric.*{metric}"):
        scorer(Ridge().fit(X, TARGET), X, TARGET, groups=GROUPS)


# ---------------------------------------------------------------------- scikit-learn's scorers


def test_a_score_that_needs_probabilities_is_that_of_the_worst_group():
    model = GroupDROClassifier().fit(X, LABELS, groups=GROUPS)
    outputs = model.decision_function(X)
    expected = min(roc_auc_score(LABELS[own], outputs[own]) for own in (name == GROUPS for name in "abc"))
    assert worst_group_scorer("roc_auc")(model, X, LABELS, groups=GROUPS) == pytest.approx(expected)
    weighted = min(
        roc_auc_score(LABELS[own], outputs[own], sample_weight=WEIGHT[own])
        for own in (name == GROUPS for name in "abc")
    )
    assert worst_group_scorer("roc_auc")(model, X, LABELS, WEIGHT, groups=GROUPS) == pytest.approx(weighted)


@pytest.mark.parametrize("metric", ["neg_log_loss", "roc_auc", "average_precision", "balanced_accuracy", "f1_macro"])
def test_a_search_by_a_score_of_scikit_learn_has_no_nan(metric):
    frame = pd.DataFrame(X, columns=list("abc")).assign(site=GROUPS)
    codes = (LABELS == "yes").astype(int)
    search = GridSearchCV(
        GroupBy(GroupDROClassifier(), "site"),
        {"estimator__alpha": [1e-3, 1.0]},
        scoring=worst_group_scorer(metric),
        cv=2,
    ).fit(frame, codes)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_a_regression_is_scored_by_names_and_callables():
    model = Ridge().fit(X, TARGET)
    size = group_means(np.abs(model.predict(X) - TARGET))
    for metric in ("neg_mean_absolute_error", lambda y, predicted: -np.abs(predicted - y).mean()):
        assert worst_group_scorer(metric)(model, X, TARGET, groups=GROUPS) == pytest.approx(-max(size.values()))


@pytest.mark.parametrize(("metric", "y"), [("roc_auc", LABELS), ("roc_auc_ovr", CLASSES), ("neg_log_loss", LABELS)])
def test_groups_of_one_class_are_left_out_with_a_warning_that_names_them(metric, y):
    model = LogisticRegression().fit(X, y)
    groups = GROUPS.astype(object)
    groups[np.flatnonzero(y == y[0])[:6]] = "alone"
    scorer = worst_group_scorer(metric)
    with pytest.warns(UndefinedMetricWarning, match="not defined for 1 groups, which are left out: alone"):
        found = scorer(model, X, y, groups=groups)
    others = groups != "alone"
    assert found == scorer(model, X[others], y[others], groups=groups[others])
    with pytest.raises(ValueError, match=r"metric is not defined for any group \(alone\)|cannot be computed"):
        scorer(model, X[~others], y[~others], groups=groups[~others])


def test_a_mistake_of_a_scorer_is_not_taken_for_a_missing_class():
    model = LogisticRegression().fit(X, CLASSES)
    with pytest.raises(ValueError, match="requires two classes"):
        worst_group_scorer("roc_auc")(model, X, CLASSES, groups=GROUPS)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_group_by_is_scored_by_its_own_columns(frame):
    rows = frame({**dict(zip("uvw", X.T, strict=True)), "site": GROUPS})
    search = GridSearchCV(
        GroupBy(GroupDROClassifier(), "site"), {"estimator__alpha": [1e-2, 1.0]}, scoring=worst_group_scorer(), cv=2
    ).fit(rows, LABELS)
    named = clone(search).set_params(scoring=worst_group_scorer(group_by="site")).fit(rows, LABELS)
    np.testing.assert_array_equal(search.cv_results_["mean_test_score"], named.cv_results_["mean_test_score"])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


# ---------------------------------------------------------------------- references


def regret_pipeline():
    return Pipeline([("scale", StandardScaler()), ("model", GroupDROClassifier("excess_risk"))])


def fitted_with_minima(kind):
    if kind == "estimator":
        return GroupDROClassifier("excess_risk").fit(X, LABELS, groups=GROUPS), X
    if kind == "pipeline":
        return regret_pipeline().fit(X, LABELS, model__groups=GROUPS), X
    if kind == "search":
        with sklearn.config_context(enable_metadata_routing=True):
            search = GridSearchCV(regret_pipeline(), {"model__alpha": [1e-3, 1e-2]}, cv=3)
            return search.fit(X, LABELS, groups=GROUPS), X
    rows = pd.DataFrame(X, columns=["u", "v", "w"]).assign(group=GROUPS)
    return GroupBy(regret_pipeline(), group_by="group").fit(rows, LABELS), rows


@pytest.mark.parametrize("kind", ["estimator", "pipeline", "search", "group-by"])
def test_regret_takes_the_references_of_the_fit(kind):
    model, rows = fitted_with_minima(kind)
    inner = {
        "estimator": lambda: model,
        "pipeline": lambda: model[-1],
        "search": lambda: model.best_estimator_[-1],
        "group-by": lambda: model.estimator_[-1],
    }[kind]()
    references = dict(zip(inner.groups_, inner.group_minima_, strict=True))
    losses = -np.log(model.predict_proba(rows)[np.arange(N_ROWS), (LABELS == "yes").astype(int)])
    risks = group_means(losses)
    score = worst_group_scorer("regret")(model, rows, LABELS, groups=GROUPS)
    assert score == pytest.approx(-max(risks[name] - references[name] for name in risks), rel=1e-9)


def test_references_given_go_before_those_of_the_fit():
    model = GroupDROClassifier("excess_risk").fit(X, LABELS, groups=GROUPS)
    scorer = worst_group_scorer("regret", group_minima=dict.fromkeys("abc", 0.0))
    risk = worst_group_scorer("risk")(model, X, LABELS, groups=GROUPS)
    assert scorer(model, X, LABELS, groups=GROUPS) == pytest.approx(risk)


def test_references_of_a_fit_with_groups_of_several_columns_are_found():
    pairs = pd.DataFrame({"group": GROUPS, "side": np.where(X[:, 1] > 0, "left", "right")})
    model = GroupDROClassifier("excess_risk", alpha=0.01).fit(X, LABELS, groups=pairs)
    references = dict(zip(model.groups_, model.group_minima_, strict=True))
    losses, labels = logistic_losses(model), list(pairs.itertuples(index=False, name=None))
    regrets = [
        np.mean([loss for loss, label in zip(losses, labels, strict=True) if label == name]) - reference
        for name, reference in references.items()
    ]
    assert worst_group_scorer("regret")(model, X, LABELS, groups=pairs) == pytest.approx(-max(regrets), rel=1e-9)


@pytest.mark.parametrize(
    ("fit", "estimator"),
    [
        (foreign, LogisticRegression()),
        (own, GroupDROClassifier()),
        (foreign, make_pipeline(StandardScaler(), LogisticRegression())),
    ],
    ids=["foreign", "risk-objective", "pipeline"],
)
def test_regret_of_a_model_without_references_needs_them(fit, estimator):
    model = fit(clone(estimator), LABELS)
    with pytest.raises(ValueError, match="group_minima is required"):
        worst_group_scorer("regret")(model, X, LABELS, groups=GROUPS)


def test_a_group_without_a_reference_is_named():
    model = LogisticRegression().fit(X, LABELS)
    with pytest.raises(ValueError, match=r"group_minima.*'c'"):
        worst_group_scorer("regret", group_minima={"a": 0.0, "b": 0.0})(model, X, LABELS, groups=GROUPS)
    model = GroupDROClassifier("excess_risk").fit(X, LABELS, groups=GROUPS)
    with pytest.raises(ValueError, match=r"group_minima.*'d'"):
        worst_group_scorer("regret")(model, X, LABELS, groups=np.where(GROUPS == "c", "d", GROUPS))


# ---------------------------------------------------------------------- which groups count


def with_a_tiny_group():
    model = LogisticRegression().fit(X, LABELS)
    wrong = np.flatnonzero(model.predict(X) != LABELS)[:4]
    groups = GROUPS.copy().astype(object)
    groups[wrong] = "tiny"
    return model, groups


@pytest.mark.parametrize("least", [1, 4, 5, 30])
def test_groups_below_the_least_size_are_left_out(least):
    model, groups = with_a_tiny_group()
    judged = [name for name in np.unique(groups) if (groups == name).sum() >= least]
    assert ("tiny" in judged) is (least <= 4)
    right = group_means(1.0 * (model.predict(X) == LABELS), groups)
    score = worst_group_scorer("accuracy", min_group_size=least)(model, X, LABELS, groups=groups)
    assert score == pytest.approx(min(right[name] for name in judged))
    risks = group_means(logistic_losses(model), groups)
    score = worst_group_scorer("risk", min_group_size=least)(model, X, LABELS, groups=groups)
    assert score == pytest.approx(-max(risks[name] for name in judged))


def test_groups_left_out_need_no_reference():
    model, groups = with_a_tiny_group()
    references = {"a": 0.5, "b": 0.1, "c": -0.2}
    risks = group_means(logistic_losses(model), groups)
    score = worst_group_scorer("regret", group_minima=references, min_group_size=5)(model, X, LABELS, groups=groups)
    assert score == pytest.approx(-max(risks[name] - references[name] for name in references))


def test_leaving_out_all_groups_is_refused():
    model = LogisticRegression().fit(X, LABELS)
    with pytest.raises(ValueError, match="min_group_size=1000 leaves no group"):
        worst_group_scorer(min_group_size=1000)(model, X, LABELS, groups=GROUPS)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array, sp.csc_matrix], ids=["boolean", "csr", "csc"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_overlapping_groups_count_a_row_in_each(kind, weight):
    member = np.column_stack([np.ones(N_ROWS, bool), GROUPS == "a", X[:, 0] > 0.5])
    model = LogisticRegression().fit(X, LABELS)
    weights = np.ones(N_ROWS) if weight is None else weight
    losses, right = logistic_losses(model), 1.0 * (model.predict(X) == LABELS)
    risks = [np.average(losses[inside], weights=weights[inside]) for inside in member.T]
    rights = [np.average(right[inside], weights=weights[inside]) for inside in member.T]
    groups = kind(member)
    assert worst_group_scorer()(model, X, LABELS, weight, groups=groups) == pytest.approx(-max(risks))
    assert worst_group_scorer("accuracy")(model, X, LABELS, weight, groups=groups) == pytest.approx(min(rights))
    scorer = worst_group_scorer("regret", group_minima={0: 0.2, 1: 0.1, 2: 0.4})
    expected = -max(np.array(risks) - (0.2, 0.1, 0.4))
    assert scorer(model, X, LABELS, weight, groups=groups) == pytest.approx(expected)


@pytest.mark.parametrize(
    "groups",
    [
        np.where(GROUPS == "a", None, GROUPS.astype(object)),
        np.where(GROUPS == "a", np.nan, (GROUPS == "b") + 1.0),
        pd.Series(np.where(GROUPS == "a", None, GROUPS.astype(object))),
        pl.Series([None if name == "a" else name for name in GROUPS.tolist()]),
    ],
    ids=["None", "nan", "pandas", "polars"],
)
def test_rows_without_a_label_are_a_group_of_their_own(groups):
    model = LogisticRegression().fit(X, LABELS)
    for weight in (None, WEIGHT):
        expected = -max(group_means(logistic_losses(model), weight=weight).values())
        assert worst_group_scorer()(model, X, LABELS, weight, groups=groups) == pytest.approx(expected)
    expected = min(group_means(1.0 * (model.predict(X) == LABELS)).values())
    assert worst_group_scorer("accuracy")(model, X, LABELS, groups=groups) == pytest.approx(expected)


def test_rows_without_a_label_have_a_reference_of_their_own():
    model = LogisticRegression().fit(X, LABELS)
    groups = np.where(GROUPS == "a", None, GROUPS.astype(object))
    references = {"(missing)": 0.5, "b": 0.1, "c": -0.2}
    risks = group_means(logistic_losses(model))
    expected = -max(risks["a"] - 0.5, risks["b"] - 0.1, risks["c"] + 0.2)
    score = worst_group_scorer("regret", group_minima=references)(model, X, LABELS, groups=groups)
    assert score == pytest.approx(expected)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_groups_that_are_passed_go_before_the_column(frame):
    rows = frame({"u": X[:, 0], "v": X[:, 1], "w": X[:, 2], "group": GROUPS})
    model = GroupBy(GroupDROClassifier(), group_by="group").fit(rows, LABELS)
    scorer = worst_group_scorer("accuracy", group_by="group")
    right = 1.0 * (model.predict(rows) == LABELS)
    assert scorer(model, rows, LABELS) == pytest.approx(min(group_means(right).values()))
    other = np.where(X[:, 1] > 1, "up", "down")
    assert scorer(model, rows, LABELS, groups=other) == pytest.approx(min(group_means(right, other).values()))


def test_a_column_that_cannot_be_found_is_named():
    model = LogisticRegression().fit(X, LABELS)
    scorer = worst_group_scorer(group_by="group")
    with pytest.raises(TypeError, match=r"group_by='group'.*DataFrame.*ndarray"):
        scorer(model, X, LABELS)
    with pytest.raises(ValueError, match=r"\['group'\]"):
        scorer(model, pd.DataFrame(X, columns=["u", "v", "w"]), LABELS)


def test_groups_of_the_wrong_length_are_refused():
    model = LogisticRegression().fit(X, LABELS)
    with pytest.raises(ValueError, match="groups has 149 rows"):
        worst_group_scorer()(model, X, LABELS, groups=GROUPS[1:])


def test_a_scorer_is_cloned_with_its_parameters():
    scorer = worst_group_scorer(
        "regret", loss="zero_one", group_minima={"a": 1.0}, group_by=["u", "v"], min_group_size=7
    )
    assert clone(scorer).get_params() == {
        "metric": "regret",
        "loss": "zero_one",
        "group_minima": {"a": 1.0},
        "group_by": ["u", "v"],
        "min_group_size": 7,
    }
    assert "regret" in repr(scorer)


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: make_pipeline(StandardScaler(), m)], ids=["bare", "pipeline"])
@pytest.mark.parametrize(
    "model",
    [GroupDRORegressor(loss=Huber(0.5)), GroupDROClassifier(loss="squared_hinge")],
    ids=["huber", "squared hinge"],
)
def test_a_search_is_scored_by_the_loss_of_its_model(model, wrap):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(200, 3)), np.arange(200) % 2
    y = 3.0 * X[:, 0] + rng.standard_t(2, size=200)
    y = y > 0 if isinstance(model, GroupDROClassifier) else y
    place = "" if wrap(model) is model else f"{type(model).__name__.lower()}__"
    with sklearn.config_context(enable_metadata_routing=True):
        search = GridSearchCV(wrap(model), {f"{place}alpha": [1e-3]}, cv=2).fit(X, y, groups=groups)
    score = worst_group_scorer()
    assert score(search, X, y, groups=groups) == score(search.best_estimator_, X, y, groups=groups)
    inner = final_estimator(search)
    assert -score(search, X, y, groups=groups) == pytest.approx(inner.group_risks_.max())


def test_regrets_of_another_loss_than_the_model_s_own_need_references():
    X, y, groups = make_mero(n_groups=2, n_per_group=50, n_features=3)
    model = GroupDROClassifier("excess_risk").fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="group_minima is required for metric 'regret' with a loss other"):
        worst_group_scorer("regret", loss="zero_one")(model, X, y, groups=groups)
    assert "regret" in model.report(X, y, groups).columns
    assert "regret" not in model.report(X, y, groups, loss="zero_one").columns
