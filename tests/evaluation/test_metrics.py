"""Metrics of each group: the values of scikit-learn, by name, as scorers and as functions."""

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    cohen_kappa_score,
    d2_log_loss_score,
    f1_score,
    fbeta_score,
    get_scorer,
    log_loss,
    make_scorer,
    mean_absolute_error,
    mean_pinball_loss,
    median_absolute_error,
    precision_score,
    r2_score,
    recall_score,
    roc_auc_score,
    root_mean_squared_error,
)
from sklearn.svm import LinearSVC

from groupdro import group_report
from groupdro.evaluation.metrics import METRICS, read_metrics
from tests.evaluation.outputs import Given

RNG = np.random.default_rng(0)
N = 300
X = RNG.integers(-2, 3, (N, 2)).astype(float)  # so that scores have ties
GROUPS = RNG.choice(["a", "b", "c"], N, p=[0.3, 0.3, 0.4])
WEIGHTS = {"equal": None, "weighted": RNG.uniform(0.1, 3.0, N), "with zeros": RNG.uniform(-1.0, 3.0, N).clip(0.0)}
TARGET = X @ (1.0, 0.4) + RNG.standard_normal(N)
LABELS = {
    "numbers": (TARGET > 0.5).astype(int),
    "text": np.where(TARGET > 0.5, "yes", "no"),
    "booleans": TARGET > 0.5,
}
CLASSES = np.array(["low", "mid", "top"])[np.digitize(TARGET, [-0.7, 0.7])]

weightings = pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)


def values(model, y, metrics, weight=None, rows=X, **given):
    """Return each metric in each group and over all rows."""
    report = group_report(model, rows, y, GROUPS, metrics=metrics, sample_weight=weight, n_bootstrap=0, **given)
    names = metrics if isinstance(metrics, list) else [metrics]
    names = [name for name in names if isinstance(name, str)] or list(report.metrics)
    return {
        name: {**{group: row[name] for group, row in report.by_group.items()}, "all": report.overall[name]}
        for name in names
    }


def expected(function, weight=None):
    """Return a function of rows and weights for each group and for all rows, without rows of weight zero."""
    found = {}
    for group in ("a", "b", "c", "all"):
        own = (group == GROUPS) | (group == "all")
        own &= np.full(N, True) if weight is None else weight > 0
        found[group] = function(own, {} if weight is None else {"sample_weight": weight[own]})
    return found


def close(found, wanted):
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)


# ---------------------------------------------------------------------- the metrics by name

OF_CLASSES = {  # functions of labels, predictions, probabilities of the second class, that class, and weights
    "accuracy": lambda y, c, p, one, w: accuracy_score(y, c, **w),
    "balanced_accuracy": lambda y, c, p, one, w: balanced_accuracy_score(y, c, **w),
    "recall": lambda y, c, p, one, w: recall_score(y, c, pos_label=one, **w),
    "precision": lambda y, c, p, one, w: precision_score(y, c, pos_label=one, **w),
    "f1": lambda y, c, p, one, w: f1_score(y, c, pos_label=one, **w),
    "selection_rate": lambda y, c, p, one, w: accuracy_score(c == one, np.full(len(c), True), **w),
    "false_positive_rate": lambda y, c, p, one, w: 1 - recall_score(y != one, c != one, **w),
    "false_negative_rate": lambda y, c, p, one, w: 1 - recall_score(y == one, c == one, **w),
    "roc_auc": lambda y, c, p, one, w: roc_auc_score(y == one, p, **w),
    "average_precision": lambda y, c, p, one, w: average_precision_score(y == one, p, **w),
    "brier": lambda y, c, p, one, w: brier_score_loss(y == one, p, **w),
    "log_loss": lambda y, c, p, one, w: log_loss(y == one, p, **w),
    "risk": lambda y, c, p, one, w: log_loss(y == one, p, **w),
    "d2": lambda y, c, p, one, w: d2_log_loss_score(y == one, p, **w),
}
OF_NUMBERS = {
    "rmse": root_mean_squared_error,
    "mae": mean_absolute_error,
    "median_error": median_absolute_error,
    "d2": r2_score,
    "risk": lambda y, predicted, **w: 0.5 * root_mean_squared_error(y, predicted, **w) ** 2,
}


def test_every_name_is_compared_with_scikit_learn_below():
    ranking = {name for name, metric in METRICS.items() if metric.ranks}
    assert ranking == {*OF_CLASSES, *OF_NUMBERS} - {"selection_rate"}


@weightings
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("name", OF_CLASSES)
def test_a_metric_of_two_classes_is_that_of_scikit_learn_in_every_group(name, labels, weight):
    y = LABELS[labels]
    model = LogisticRegression().fit(X, y)
    chosen, probability, one = model.predict(X), model.predict_proba(X)[:, 1], model.classes_[1]
    assert len(np.unique(probability)) < N / 8
    wanted = expected(lambda own, w: OF_CLASSES[name](y[own], chosen[own], probability[own], one, w), weight)
    close(values(model, y, ["accuracy", name] if name == "selection_rate" else name, weight)[name], wanted)


@weightings
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_metric_of_numbers_is_that_of_scikit_learn_in_every_group(name, weight):
    model = LinearRegression().fit(X[:, :1], TARGET)
    predicted = model.predict(X[:, :1])
    wanted = expected(lambda own, w: OF_NUMBERS[name](TARGET[own], predicted[own], **w), weight)
    close(values(model, TARGET, name, weight, rows=X[:, :1])[name], wanted)


def brier_by_hand(y, probability, classes, weight):
    return np.average(((probability - (y[:, None] == classes)) ** 2).sum(axis=1), weights=weight)


@weightings
@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "brier", "log_loss", "risk", "d2"])
def test_a_metric_of_three_classes_is_that_of_scikit_learn_in_every_group(name, weight):
    model = LogisticRegression().fit(X, CLASSES)
    chosen, probability = model.predict(X), model.predict_proba(X)
    functions = {
        "accuracy": lambda own, w: accuracy_score(CLASSES[own], chosen[own], **w),
        "balanced_accuracy": lambda own, w: balanced_accuracy_score(CLASSES[own], chosen[own], **w),
        "brier": lambda own, w: brier_by_hand(CLASSES[own], probability[own], model.classes_, w.get("sample_weight")),
        "log_loss": lambda own, w: log_loss(CLASSES[own], probability[own], labels=model.classes_, **w),
        "risk": lambda own, w: log_loss(CLASSES[own], probability[own], labels=model.classes_, **w),
        "d2": lambda own, w: d2_log_loss_score(CLASSES[own], probability[own], labels=model.classes_, **w),
    }
    close(values(model, CLASSES, name, weight)[name], expected(functions[name], weight))


def test_scores_come_from_the_decision_function_if_there_are_no_probabilities():
    y = LABELS["text"]
    model = LinearSVC().fit(X, y)
    scores = model.decision_function(X)
    wanted = expected(lambda own, w: roc_auc_score(y[own] == "yes", scores[own]))
    close(values(model, y, "roc_auc")["roc_auc"], wanted)
    wanted = expected(lambda own, w: average_precision_score(y[own] == "yes", scores[own]))
    close(values(model, y, "average_precision")["average_precision"], wanted)


def test_probabilities_of_zero_cost_what_they_do_in_scikit_learn():
    y = LABELS["numbers"]
    model = RandomForestClassifier(3, random_state=0).fit(X[:100], y[:100])
    probability = model.predict_proba(X)[:, 1]
    assert (probability[y == 1] == 0).any()
    wanted = expected(lambda own, w: log_loss(y[own], probability[own]))
    close(values(model, y, "log_loss")["log_loss"], wanted)


@pytest.mark.parametrize("name", ["precision", "f1"])
def test_what_no_row_decides_is_undefined(name):
    y = np.where(GROUPS == "b", 0, LABELS["numbers"])
    chosen = np.where(GROUPS == "b", 0, LABELS["text"] == "yes")
    found = values(Given(), y, name, rows=np.column_stack([1 - chosen, chosen]))[name]
    assert np.isnan(found["b"])
    assert found["a"] == 1.0


@pytest.mark.parametrize("name", ["roc_auc", "balanced_accuracy", "recall", "average_precision", "false_negative_rate"])
def test_what_needs_both_classes_is_undefined_in_a_group_of_one(name):
    y = np.where(GROUPS == "b", 0, LABELS["numbers"])
    report = group_report(LogisticRegression().fit(X, y), X, y, GROUPS, metrics=name, n_bootstrap=50)
    rows = report.by_group
    assert np.isnan([rows["b"][name], rows["b"][f"{name}_low"], rows["b"][f"{name}_high"]]).all()
    assert [rows[group]["note"] for group in "abc"] == ["", "undefined", ""]
    assert report.columns["group"][-1] == "b"
    assert report.worst_group != "b"
    assert np.isfinite([*report.worst_value, report.limit]).all()


@pytest.mark.parametrize("name", ["roc_auc", "recall", "f1", "precision", "average_precision"])
def test_a_metric_of_two_classes_is_refused_for_three(name):
    model = LogisticRegression().fit(X, CLASSES)
    with pytest.raises(ValueError, match=rf"metric '{name}' .*two classes.* 3"):
        group_report(model, X, CLASSES, GROUPS, metrics=name)


@pytest.mark.parametrize(
    ("model", "y", "name"),
    [
        (LogisticRegression(), LABELS["numbers"], "rmse"),
        (LogisticRegression(), LABELS["numbers"], "mae"),
        (LogisticRegression(), LABELS["numbers"], "median_error"),
        (LinearRegression(), TARGET, "accuracy"),
        (LinearRegression(), TARGET, "roc_auc"),
        (LinearRegression(), TARGET, "brier"),
    ],
)
def test_a_metric_of_the_other_task_is_refused(model, y, name):
    with pytest.raises(ValueError, match=rf"metric '{name}' requires (classification|regression)"):
        group_report(model.fit(X, y), X, y, GROUPS, metrics=name)


@pytest.mark.parametrize("name", ["brier", "log_loss", "d2", "neg_log_loss"])
def test_a_metric_that_needs_probabilities_is_refused_without_them(name):
    y = LABELS["numbers"]
    with pytest.raises(TypeError, match=rf"metric '{name}' .*LinearSVC has no predict_proba"):
        group_report(LinearSVC().fit(X, y), X, y, GROUPS, metrics=name)


# ---------------------------------------------------------------------- scorers of scikit-learn

BINARY_SCORERS = {
    "by name": "matthews_corrcoef",
    "a loss by name": "neg_log_loss",
    "larger is worse": make_scorer(log_loss, greater_is_better=False, response_method="predict_proba"),
    "with parameters": make_scorer(fbeta_score, beta=2.0),
    "of scores": make_scorer(roc_auc_score, response_method=("decision_function", "predict_proba"), max_fpr=0.5),
    "of probabilities": make_scorer(roc_auc_score, response_method="predict_proba"),
    "of text and numbers": "f1_macro",
}


@weightings
@pytest.mark.parametrize("scorer", BINARY_SCORERS.values(), ids=BINARY_SCORERS)
def test_a_scorer_gives_its_own_value_in_every_group(scorer, weight):
    y = LABELS["numbers"]
    model = LogisticRegression().fit(X, y)
    function = get_scorer(scorer)
    wanted = expected(lambda own, w: function(model, X[own], y[own], **w), weight)
    (found,) = values(model, y, scorer, weight).values()
    close(found, wanted)
    assert group_report(model, X, y, GROUPS, metrics=scorer, n_bootstrap=0).larger_is_better


@weightings
@pytest.mark.parametrize("name", ["roc_auc_ovr", "roc_auc_ovr_weighted", "f1_macro", "neg_log_loss", "accuracy"])
def test_a_scorer_of_three_classes_gives_its_own_value_in_every_group(name, weight):
    model = LogisticRegression().fit(X, CLASSES)
    wanted = expected(lambda own, w: get_scorer(name)(model, X[own], CLASSES[own], **w), weight)
    close(values(model, CLASSES, name, weight)[name], wanted)


@weightings
@pytest.mark.parametrize(
    "scorer",
    ["neg_mean_absolute_error", "r2", make_scorer(mean_pinball_loss, greater_is_better=False, alpha=0.2)],
    ids=["by name", "r2", "larger is worse"],
)
def test_a_scorer_of_numbers_gives_its_own_value_in_every_group(scorer, weight):
    model = RandomForestRegressor(5, random_state=0).fit(X, TARGET)
    wanted = expected(lambda own, w: get_scorer(scorer)(model, X[own], TARGET[own], **w), weight)
    (found,) = values(model, TARGET, scorer, weight).values()
    close(found, wanted)


def test_a_scorer_has_the_name_of_its_function():
    y = LABELS["numbers"]
    report = group_report(
        LogisticRegression().fit(X, y), X, y, GROUPS, metrics=[make_scorer(fbeta_score, beta=2.0), "f1"], n_bootstrap=0
    )
    assert report.metrics == ("fbeta_score", "f1")


@pytest.mark.parametrize("method", ["predict_proba", "decision_function"])
def test_a_scorer_of_the_other_class_receives_its_scores(method):
    y = LABELS["text"]
    model = LogisticRegression().fit(X, y)
    scorer = make_scorer(average_precision_score, pos_label="no", response_method=method)
    (found,) = values(model, y, scorer).values()
    close(found, expected(lambda own, w: scorer(model, X[own], y[own])))


def test_a_scorer_that_refuses_weights_is_called_without():
    model = LogisticRegression().fit(X, CLASSES)
    wanted = expected(lambda own, w: get_scorer("roc_auc_ovo")(model, X[own], CLASSES[own]))
    close(values(model, CLASSES, "roc_auc_ovo")["roc_auc_ovo"], wanted)


def test_a_mistake_of_a_scorer_is_raised():
    y = LABELS["text"]
    model = LogisticRegression().fit(X, y)
    with pytest.raises(ValueError, match="pos_label"):
        group_report(model, X, y, GROUPS, metrics=make_scorer(f1_score), n_bootstrap=0)


def test_a_scorer_that_is_undefined_in_a_group_is_so_without_a_warning():
    y = np.where(GROUPS == "b", 0, LABELS["numbers"])
    found = values(LogisticRegression().fit(X, y), y, "roc_auc_ovr")["roc_auc_ovr"]
    assert np.isnan(found["b"])
    assert np.isfinite([found["a"], found["c"]]).all()


# ---------------------------------------------------------------------- functions


def kappa(true, predicted):
    return cohen_kappa_score(true, predicted)


@pytest.mark.parametrize("labels", LABELS)
def test_a_function_is_called_with_the_labels_and_predictions_of_each_group(labels):
    y = LABELS[labels]
    model = LogisticRegression().fit(X, y)
    wanted = expected(lambda own, w: cohen_kappa_score(y[own], model.predict(X[own])))
    close(values(model, y, kappa)["kappa"], wanted)


@weightings
def test_a_function_with_weights_receives_them(weight):
    y = LABELS["text"]
    model = LogisticRegression().fit(X, y)
    wanted = expected(lambda own, w: cohen_kappa_score(y[own], model.predict(X[own]), **w), weight)
    close(values(model, y, cohen_kappa_score, weight)["cohen_kappa_score"], wanted)


@pytest.mark.parametrize("metric", [kappa, {"own": kappa}], ids=["function", "named"])
def test_a_function_without_weights_is_refused_if_rows_have_some(metric):
    y = LABELS["numbers"]
    model = LogisticRegression().fit(X, y)
    name = "own" if isinstance(metric, dict) else "kappa"
    with pytest.raises(ValueError, match=f"metric '{name}' takes no sample_weight"):
        group_report(model, X, y, GROUPS, metrics=metric, sample_weight=WEIGHTS["weighted"])


def test_a_function_receives_arrays_of_labels_and_predictions():
    y = LABELS["numbers"]
    seen = []

    def metric(true, predicted):
        seen.append((type(true), type(predicted), true.shape == predicted.shape))
        return 1.0

    group_report(LogisticRegression().fit(X, y), X, y, GROUPS, metrics=metric, n_bootstrap=20)
    assert set(seen) == {(np.ndarray, np.ndarray, True)}


def test_a_mapping_names_its_metrics():
    y = LABELS["numbers"]
    model = LogisticRegression().fit(X, y)
    named = {"kappa": cohen_kappa_score, "sensitivity": "recall", "log": "neg_log_loss"}
    named["F2"] = BINARY_SCORERS["with parameters"]
    report = group_report(model, X, y, GROUPS, metrics=named, n_bootstrap=0)
    plain = group_report(model, X, y, GROUPS, metrics=list(named.values()), n_bootstrap=0)
    assert report.metrics == tuple(named)
    for old, new in zip(plain.metrics, report.metrics, strict=True):
        assert report.overall[new] == plain.overall[old]
        assert {group: row[new] for group, row in report.by_group.items()} == {
            group: row[old] for group, row in plain.by_group.items()
        }


# ---------------------------------------------------------------------- what the report does with them


def test_the_columns_follow_the_order_of_the_metrics_and_the_risk_is_added():
    y = LABELS["numbers"]
    model = LogisticRegression().fit(X, y)
    columns = list(group_report(model, X, y, GROUPS, metrics=["recall", "roc_auc"], n_bootstrap=0).columns)
    assert columns[:5] == ["group", "n", "recall", "recall_low", "recall_high"]
    assert columns[5:8] == ["roc_auc", "roc_auc_low", "roc_auc_high"]
    assert columns[8:11] == ["risk", "risk_low", "risk_high"]
    assert columns[11:] == ["n_recall", "n_roc_auc", "overconfidence", "ece", "note"]
    columns = list(group_report(model, X, y, GROUPS, metrics=["risk", "recall"], n_bootstrap=0).columns)
    assert columns[2::3][:2] == ["risk", "recall"]
    assert columns.count("risk") == 1


@pytest.mark.parametrize("name", [name for name in OF_CLASSES if name not in ("risk", "selection_rate")])
def test_the_first_metric_decides_which_group_is_the_worst(name):
    y = LABELS["numbers"]
    report = group_report(LogisticRegression().fit(X, y), X, y, GROUPS, metrics=[name, "risk"])
    sign = 1.0 if report.larger_is_better else -1.0
    assert report.larger_is_better == (name not in ("brier", "log_loss", "false_positive_rate", "false_negative_rate"))
    found = [sign * value for value in report.columns[name]]
    assert found == sorted(found)
    assert report.worst_group == report.columns["group"][0]
    value, low, high = report.worst_value
    lows, highs = (np.array(report.columns[f"{name}_{end}"]) for end in ("low", "high"))
    pick = np.min if report.larger_is_better else np.max
    assert (value, low, high) == (report.columns[name][0], pick(lows), pick(highs))
    # One-sided, so closer than the end of the two-sided interval.
    assert low <= report.limit <= value if report.larger_is_better else value <= report.limit <= high


def test_a_single_metric_and_a_list_of_one_are_the_same():
    y = LABELS["numbers"]
    model = LogisticRegression().fit(X, y)
    found = [
        group_report(model, X, y, GROUPS, metrics=given).to_frame() for given in ("recall", ["recall"], ("recall",))
    ]
    assert found[0].equals(found[1])
    assert found[0].equals(found[2])


@pytest.mark.parametrize(
    ("metrics", "error", "message"),
    [
        ("nothing", ValueError, "metrics has 'nothing', which is not a function"),
        (["recall", "nothing"], ValueError, "metrics has 'nothing'"),
        ({"own": "nothing"}, ValueError, "metrics has 'nothing'"),
        (["recall", 3], ValueError, "metrics has 3"),
        (3, TypeError, "metrics must be names or functions, got 3"),
        (["recall", "recall"], ValueError, "metrics has the same name twice"),
        ([lambda y, p: 1.0, lambda y, p: 2.0], ValueError, "Pass a mapping from names to functions"),
        ([], ValueError, "metrics"),
    ],
)
def test_metrics_that_are_none_are_refused(metrics, error, message):
    with pytest.raises(error, match=message):
        read_metrics(metrics)
    y = LABELS["numbers"]
    with pytest.raises(error, match=message):
        group_report(LogisticRegression().fit(X, y), X, y, GROUPS, metrics=metrics)


def test_infinite_values_of_a_function_are_refused_or_undefined_in_a_group():
    y = LABELS["numbers"]
    model = LogisticRegression().fit(X, y)
    with pytest.raises(ValueError, match="infinite"):
        group_report(model, X, y, GROUPS, metrics={"own": lambda true, given: np.inf})
    n = len(y)
    found = group_report(model, X, y, GROUPS, metrics={"own": lambda true, given: np.inf if len(true) < n else 1.0})
    assert set(found.columns["note"]) == {"undefined"}


def test_a_loss_of_the_user_is_the_risk_and_no_other_metric():
    y = LABELS["numbers"]
    model = LogisticRegression().fit(X, y)
    found = values(model, y, ["risk", "accuracy", "log_loss"], loss=lambda true, given: 5.0 * (true != given))
    assert found["risk"]["a"] == pytest.approx(5.0 * (1.0 - found["accuracy"]["a"]))
    close(found["log_loss"], values(model, y, "log_loss")["log_loss"])


def test_another_metric_must_not_be_called_risk():
    for given in ({"risk": "accuracy"}, {"risk": lambda true, predicted: 1.0}):
        with pytest.raises(ValueError, match="'risk'"):
            read_metrics(given)
    assert read_metrics({"risk": "risk"})[0].name == "risk"


def test_negative_zero_is_not_printed():
    y = LABELS["numbers"]
    scorer = make_scorer(lambda true, given, sample_weight=None: 0.0, greater_is_better=False)
    report = group_report(LogisticRegression().fit(X, y), X, y, GROUPS, metrics={"cost": scorer})
    assert "-0 " not in report.summary(details=True)


@pytest.mark.parametrize("name", ["n", "weight", "note", "ece", "risk_low"])
def test_a_metric_with_the_name_of_another_column_is_refused(name):
    y = LABELS["numbers"]
    with pytest.raises(ValueError, match=name):
        group_report(LogisticRegression().fit(X, y), X, y, GROUPS, metrics={name: "recall"})
