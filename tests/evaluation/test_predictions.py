"""Predictions in the place of a model give the same numbers, and are refused where they do not fit."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, Perceptron, QuantileRegressor
from sklearn.svm import LinearSVC

from groupdro import GroupDROClassifier, GroupDRORegressor, Predictions, compare, find_groups, group_report
from groupdro.losses import Poisson, Quantile

RNG = np.random.default_rng(5)
N = 900
X = RNG.normal(size=(N, 3))
GROUPS = RNG.choice(["a", "b", "c"], N)
Y = (X[:, 0] + RNG.logistic(size=N) > 0.4).astype(int)
WORDS = np.array(["no", "yes"])[Y]
THREE = np.digitize(X[:, 0] + RNG.logistic(size=N), [-1.0, 1.0])
AMOUNTS = np.exp(0.3 * X[:, 0] + RNG.normal(size=N))
COUNTS = RNG.poisson(np.exp(0.3 * X[:, 1]))
WEIGHTS = np.where(RNG.random(N) < 0.1, 0.0, RNG.exponential(size=N))
CLUSTERS = RNG.integers(0, 300, N)

OF_CLASSES = ("risk", "accuracy", "recall", "f1")
OF_PROBABILITIES = (*OF_CLASSES, "log_loss", "roc_auc", "average_precision", "brier", "d2")
CASES = {
    "probabilities": (LogisticRegression(), Y, "predict_proba", OF_PROBABILITIES, {}),
    "labels in words": (HistGradientBoostingClassifier(max_iter=5), WORDS, "predict_proba", OF_PROBABILITIES, {}),
    "three classes": (LogisticRegression(), THREE, "predict_proba", ("risk", "accuracy", "balanced_accuracy"), {}),
    "scores": (LinearSVC(), Y, "decision_function", (*OF_CLASSES, "roc_auc"), {}),
    "classes": (Perceptron(), WORDS, "predict", OF_CLASSES, {}),
    "numbers": (LinearRegression(), AMOUNTS, "predict", ("risk", "rmse", "mae", "median_error", "d2"), {}),
    "counts": (
        GroupDRORegressor(loss="poisson"), COUNTS, "predict", ("risk", "d2", "actual_over_expected"),
        {"loss": Poisson()},
    ),
    "quantiles": (
        QuantileRegressor(quantile=0.8, alpha=0.0), AMOUNTS, "predict", ("risk", "share_below", "d2"),
        {"loss": Quantile(0.8)},
    ),
    "ours": (GroupDROClassifier(robustness=0.0), Y, "predict_proba", OF_PROBABILITIES, {"loss": "log"}),
}  # fmt: skip
_KEYWORD = {"predict": "predicted", "predict_proba": "probability", "decision_function": "score"}


def as_predictions(model, response, rows=X, **more):
    given = getattr(model, response)(rows)
    if response == "predict_proba" and given.shape[1] == 2:
        given = given[:, 1]
    return Predictions(**{_KEYWORD[response]: given}, **more)


def assert_same(first, second):
    assert first["group"] == second["group"]
    for name in second.keys() - {"group", "note"}:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-12, atol=1e-12, err_msg=name)
    assert first["note"] == second["note"]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_report_on_predictions_is_that_on_the_model(case, weighted):
    model, y, response, metrics, options = CASES[case]
    model.fit(X, y, **({"groups": GROUPS} if isinstance(model, GroupDROClassifier | GroupDRORegressor) else {}))
    task = {"task": "regression"} if case in ("counts", "quantiles", "numbers") else {}
    options = {**options, "metrics": metrics, "n_bootstrap": 100}
    if weighted:
        options |= {"sample_weight": WEIGHTS, "cluster": CLUSTERS}
    own = group_report(model, X, y, GROUPS, **options)
    given = group_report(as_predictions(model, response, **task), y=y, groups=GROUPS, **options)
    assert_same(own.columns, given.columns)
    assert own.judged == given.judged
    np.testing.assert_allclose(own.worst_value, given.worst_value, rtol=1e-12)


def test_a_comparison_of_predictions_is_that_of_the_models():
    models = {"linear": LogisticRegression().fit(X, Y), "bumps": HistGradientBoostingClassifier(max_iter=5).fit(X, Y)}
    own = compare(X, Y, GROUPS, estimator=None, models=models, n_bootstrap=100)
    known = {name: as_predictions(model, "predict_proba") for name, model in models.items()}
    given = compare(y=Y, groups=GROUPS, models=known, n_bootstrap=100)
    assert own.columns["model"] == given.columns["model"] == ["linear", "bumps"]
    for name in ("mean_risk", "worst_risk", "gain_low", "gain_high", "cost"):
        np.testing.assert_allclose(own.columns[name], given.columns[name], rtol=1e-12)
    assert (own.verdict, own.evidence) == (given.verdict, given.evidence)
    named = compare(y=Y, groups=GROUPS, models={"bumps": known["bumps"]}, baseline=known["linear"], n_bootstrap=100)
    assert named.baseline == "baseline"
    np.testing.assert_allclose(sorted(named.columns["worst_risk"]), sorted(own.columns["worst_risk"]), rtol=1e-12)


def test_groups_are_found_in_predictions():
    wrong = np.where(X[:, 1] > 0.8, 0.5, 0.97)  # the probability of being right
    right = RNG.random(N) < wrong
    columns = pd.DataFrame({"x": X[:, 1], "group": GROUPS})
    model = Predictions(np.where(right, Y, 1 - Y))
    found = find_groups(model, y=Y, columns=columns)
    losses = find_groups(losses=(~right).astype(float), columns=columns)
    assert found.columns["group"] == losses.columns["group"] != []
    assert "x >" in found.columns["group"][0]
    with pytest.raises(ValueError, match="columns"):
        find_groups(model, y=Y)
    with pytest.raises(ValueError, match="cv"):
        find_groups(model, y=Y, columns=columns, cv=3)


def test_models_of_ones_own_are_compared_with_categories_and_missing_values():
    table = pd.DataFrame({"kind": pd.Categorical(GROUPS), "x": np.where(X[:, 0] > 1.5, np.nan, X[:, 0])})
    trees = {
        f"depth {depth}": HistGradientBoostingClassifier(
            max_iter=5, max_depth=depth, categorical_features="from_dtype", random_state=0
        )
        for depth in (1, 4)
    }
    found = compare(table, Y, GROUPS, estimator=None, models=trees, n_bootstrap=50)
    assert found.columns["model"] == ["depth 1", "depth 4"]
    assert found.baseline == "depth 1"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (lambda: Predictions(), "predicted, probability or score"),
        (lambda: Predictions(probability=np.full(N, 1.2)), "between 0 and 1"),
        (lambda: Predictions(probability=np.full(N - 1, 0.2)), "N?rows|shape"),
        (lambda: Predictions(probability=np.full((N, 3), 1 / 3)), "3 classes"),
        (lambda: Predictions(probability=np.where(np.arange(N) == 4, np.nan, 0.5)), "NaN"),
        (lambda: Predictions(probability=np.full(N, 0.5), classes=["no", "yes"]), "knows none"),
        (lambda: Predictions(np.where(Y == 1, "yes", "no")), "knows none"),
        (lambda: Predictions(Y, task="clustering"), "task"),
    ],
)
def test_what_does_not_fit_is_refused(given, match):
    with pytest.raises((TypeError, ValueError), match=match):
        group_report(given(), y=Y, groups=GROUPS)


def test_predictions_need_labels_in_the_same_order_and_no_rows():
    model = Predictions(probability=np.full(N, 0.5))
    with pytest.raises(ValueError, match="X must be None"):
        group_report(model, X, Y, GROUPS)
    with pytest.raises(ValueError, match="y is missing"):
        group_report(model, groups=GROUPS)
    with pytest.raises(ValueError, match="linear"):
        group_report(model, y=Y, groups=GROUPS, linear=True)
    order = RNG.permutation(N)
    y = pd.Series(Y, index=order)
    with pytest.raises(ValueError, match="another order"):
        group_report(Predictions(probability=pd.Series(np.full(N, 0.5))), y=y, groups=GROUPS)
    with pytest.raises(ValueError, match="another order"):
        group_report(model, y=y, groups=pd.Series(GROUPS))
    with pytest.raises(TypeError, match="different rows"):
        compare(y=Y, groups=GROUPS, models={"a": model, "b": LogisticRegression().fit(X, Y)})


def test_whole_numbers_are_classes_only_if_there_are_few():
    assert "accuracy" in group_report(Predictions(Y), y=Y, n_bootstrap=0).columns
    assert "rmse" in group_report(Predictions(COUNTS + 0.5), y=COUNTS, n_bootstrap=0).columns
    assert "rmse" in group_report(Predictions(Y, task="regression"), y=Y, n_bootstrap=0).columns


def cases(seed=0, n=1500):
    rng = np.random.default_rng(seed)
    score = rng.normal(size=n)
    p = 1 / (1 + np.exp(-score))
    return p, (rng.random(n) < p).astype(int), rng.choice(["a", "b", "c"], n)


METRICS_OF_CLASSES = ["log_loss", "brier", "roc_auc", "accuracy"]


def test_classes_may_be_named_in_any_order():
    p, y, groups = cases()
    labels = np.where(y == 1, "bad", "good")  # sorted, the positive class comes first
    ordered = group_report(Predictions(probability=p), y=y, groups=groups, metrics=METRICS_OF_CLASSES)
    named = Predictions(probability=p, classes=["good", "bad"])
    found = group_report(named, y=labels, groups=groups, metrics=METRICS_OF_CLASSES)
    for name in METRICS_OF_CLASSES:
        assert found.overall[name] == pytest.approx(ordered.overall[name], abs=1e-12)
        assert found.columns[name] == pytest.approx(ordered.columns[name], abs=1e-12)


def test_columns_of_three_classes_may_be_in_any_order():
    rng = np.random.default_rng(0)
    P = rng.dirichlet([1.0, 2.0, 3.0], 900)
    y = np.array(["low", "mid", "high"])[[rng.choice(3, p=row) for row in P]]
    groups = np.arange(900) % 3
    values = [
        group_report(
            Predictions(probability=P[:, order], classes=np.array(["low", "mid", "high"])[order]), y=y, groups=groups
        )
        for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0])
    ]
    expected = -np.log(P[np.arange(900), [["low", "mid", "high"].index(label) for label in y]]).mean()
    for report in values:
        assert report.overall["risk"] == pytest.approx(expected, abs=1e-12)


def test_probabilities_that_do_not_add_up_are_refused_or_if_only_rounded_normalised():
    rng = np.random.default_rng(0)
    y, groups = rng.integers(0, 3, 300), np.arange(300) % 3
    with pytest.raises(ValueError, match=r"must add up to 1 in every row, but row 0 adds up to 2\.97"):
        group_report(Predictions(probability=np.full((300, 3), 0.99)), y=y, groups=groups)
    exact = rng.dirichlet([2.0, 2.0, 2.0], 300)
    rounded = exact.round(2) + 1e-4
    report = group_report(Predictions(probability=rounded), y=y, groups=groups)
    normalised = rounded / rounded.sum(axis=1, keepdims=True)
    assert report.overall["risk"] == pytest.approx(-np.log(normalised[np.arange(300), y]).mean(), abs=1e-12)


def test_groups_without_weight_are_named():
    p, y, groups = cases()
    with pytest.warns(UserWarning, match="sample_weight is zero on all of group 'a': left out"):
        report = group_report(
            Predictions(probability=p), y=y, groups=groups, sample_weight=(groups != "a").astype(float)
        )
    assert sorted(report.columns["group"]) == ["b", "c"]


def test_groups_that_cannot_be_judged_count_as_left_out_of_the_heterogeneity():
    p, y, groups = cases()
    groups = np.where(np.arange(len(y)) < 5, "tiny", groups)
    report = group_report(Predictions(probability=p), y=y, groups=groups, metrics=["roc_auc"])
    spread = report.heterogeneity()
    assert (spread.n_groups, spread.n_left_out) == (3, 1)
    assert "1 group left out" in str(spread)
