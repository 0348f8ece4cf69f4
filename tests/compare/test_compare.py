import functools
import html
import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn import config_context
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import groupdro
from groupdro import (
    GroupBy,
    GroupDROClassifier,
    GroupDROClassifierCV,
    GroupDRORegressor,
    GroupStratifiedKFold,
    Predictions,
    group_report,
)
from groupdro.evaluation.folds import keep_classes

MODELS = ["ERM", "balanced ERM", "blend 0.5", "GDRO", "MERO", "CV choice"]
KINDS = ["binary", "multi-class", "regression"]


def compare(*rows, **given):
    """Compare without a choice by cross-validation, which most tests do not look at."""
    return groupdro.compare(*rows, **{"cv": None, **given})


@functools.cache
def flipped(n=2400, seed=0):
    rng = np.random.default_rng(seed)
    groups = np.where(rng.random(n) < 0.12, "rare", np.where(rng.random(n) < 0.5, "east", "west"))
    y = rng.integers(0, 2, n)
    sign = 2.0 * y - 1.0
    shortcut = np.where(groups == "rare", -1.0, 1.0) * sign * 1.5 + rng.normal(size=n)
    core = sign * 0.8 + rng.normal(size=n)
    return np.column_stack([shortcut, core, rng.normal(size=n)]), y, groups


@functools.cache
def unrelated(n=2400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, (X[:, 0] + rng.logistic(size=n) > 0).astype(int), rng.choice(["a", "b", "c"], n)


@functools.cache
def arrays(kind):
    X, y, groups = flipped()
    rng = np.random.default_rng(1)
    noise = rng.normal(size=len(y)) * np.where(groups == "rare", 2.0, 0.5)
    if kind == "regression":
        return X, X[:, 1] + np.where(groups == "rare", -1.0, 1.0) * X[:, 0] + noise, groups
    return X, y + (X[:, 2] + noise > 0.5) if kind == "multi-class" else y, groups


@functools.cache
def halves(kind):
    X, y, groups = arrays(kind)
    half = len(y) // 2
    return (X[:half], y[:half], groups[:half]), (X[half:], y[half:], groups[half:])


@functools.cache
def compared(kind):
    train, held_out = halves(kind)
    return groupdro.compare(*train, held_out=held_out)


def losses_by_hand(model, X, y):
    outputs = X @ np.atleast_2d(model.coef_).T + model.intercept_
    if isinstance(model, GroupDRORegressor):
        return 0.5 * (outputs[:, 0] - y) ** 2, (outputs[:, 0] - y) ** 2
    if outputs.shape[1] == 1:
        outputs = np.column_stack([np.zeros(len(y)), outputs[:, 0]])
    probability = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    return -np.log(probability[np.arange(len(y)), y]), (outputs.argmax(axis=1) == y).astype(float)


def by_model(comparison, column):
    return dict(zip(comparison.columns["model"], comparison.columns[column], strict=True))


# ---------------------------------------------------------------------- the gain


@pytest.mark.parametrize("kind", KINDS)
def test_the_gain_is_the_fall_of_the_worst_risk_with_an_interval_of_resampled_rows(kind):
    found = compare(*halves(kind)[0], held_out=halves(kind)[1], confidence=0.8, n_bootstrap=2000)
    X, y, groups = halves(kind)[1]
    before, after = (losses_by_hand(found.models[name], X, y)[0] for name in ("ERM", "GDRO"))
    names, rng = np.unique(groups), np.random.default_rng(7)
    fall = max(before[groups == name].mean() for name in names) - max(after[groups == name].mean() for name in names)
    np.testing.assert_allclose(found.changes["GDRO"].gain[0], fall, rtol=1e-9)
    worst = np.full((2, 2000), -np.inf)
    for name in names:
        own = np.flatnonzero(groups == name)
        for k in range(2000):
            drawn = rng.choice(own, len(own))
            worst[:, k] = np.maximum(worst[:, k], [before[drawn].mean(), after[drawn].mean()])
    falls = worst[0] - worst[1]
    # Of paired differences between the groups that may be the worst, so wider than resampled falls, but not by much.
    low, high = found.changes["GDRO"].gain[1:]
    reach = np.array([fall - low, high - fall]) / falls.std()
    assert (reach > 1.28 - 0.25).all()
    assert (reach < 4.0).all()


def test_a_higher_confidence_makes_a_wider_interval():
    train, held_out = halves("binary")
    narrow, wide = (compare(*train, held_out=held_out, confidence=level).changes["GDRO"].gain for level in (0.5, 0.99))
    assert wide[1] < narrow[1] < narrow[2] < wide[2]


# ---------------------------------------------------------------------- the table


@pytest.mark.parametrize("kind", KINDS)
def test_each_entry_of_the_table_is_the_one_computed_by_hand(kind):
    found = compared(kind)
    train, (X, y, groups) = halves(kind)
    measure = "rmse" if kind == "regression" else "accuracy"
    assert found.columns["model"] == list(found.models) == list(found.reports) == MODELS
    metrics = ["mean_risk", "worst_risk", f"mean_{measure}", f"worst_{measure}"]
    changes = ["worst_group", "gain", "gain_low", "gain_high", "cost", "worst_regret"]
    assert list(found.columns) == ["model", *metrics, *changes, "gap", "seconds"]
    erm = {key: values[0] for key, values in found.columns.items()}
    names = np.unique(groups)
    least = {}
    for name in names:
        own = train[2] == name
        kind_of_model = GroupDRORegressor if kind == "regression" else GroupDROClassifier
        alone = kind_of_model(tol=1e-8).fit(train[0][own], train[1][own], groups=np.zeros(own.sum()))
        least[name] = alone.upper_bound_
    for k, given in enumerate(found.models.values()):
        model = getattr(given, "best_estimator_", given)
        row = {key: values[k] for key, values in found.columns.items()}
        losses, scores = losses_by_hand(model, X, y)
        risk = {name: losses[groups == name].mean() for name in names}
        score = np.array([scores[groups == name].mean() for name in names])
        np.testing.assert_allclose(row["mean_risk"], losses.mean(), rtol=1e-9)
        assert row["worst_group"] == max(risk, key=risk.get)
        np.testing.assert_allclose(row["worst_risk"], max(risk.values()), rtol=1e-9)
        np.testing.assert_allclose(row["worst_regret"], max(risk[name] - least[name] for name in names), atol=1e-5)
        overall, worst = scores.mean(), score.min()
        if kind == "regression":
            overall, worst = np.sqrt(overall), np.sqrt(score.max())
        np.testing.assert_allclose([row[f"mean_{measure}"], row[f"worst_{measure}"]], [overall, worst], rtol=1e-9)
        np.testing.assert_allclose(row["gain"], erm["worst_risk"] - row["worst_risk"], atol=1e-12)
        np.testing.assert_allclose(row["cost"], row["mean_risk"] - erm["mean_risk"], atol=1e-12)
        assert row["gap"] == model.gap_ / model.upper_bound_
        assert 0.0 <= row["gap"] <= 1e-4 * 1.001 or model.objective == "excess_risk"
        assert row["seconds"] > 0.0


def test_the_reports_are_those_of_the_models_on_the_held_out_rows():
    found, (X, y, groups) = compared("binary"), halves("binary")[1]
    for name, report in found.reports.items():
        again = group_report(found.models[name], X, y, groups, n_bootstrap=500)
        assert report.summary(details=True) == again.summary(details=True)


@pytest.mark.parametrize("kind", KINDS)
def test_erm_is_the_penalised_model_of_scikit_learn(kind):
    (X, y, groups), held_out = halves(kind)
    alpha, n = 0.01, len(y)
    if kind == "regression":
        model = compare(X, y, groups, held_out=held_out, estimator=GroupDRORegressor(alpha=alpha, tol=1e-9)).models[
            "ERM"
        ]
        plain = Ridge(alpha=alpha * n).fit(X, y)
        np.testing.assert_allclose(model.predict(X), plain.predict(X), atol=1e-4)
        return
    model = compare(X, y, groups, held_out=held_out, estimator=GroupDROClassifier(alpha=alpha, tol=1e-9)).models["ERM"]
    plain = LogisticRegression(C=1.0 / (alpha * n), tol=1e-8, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("kind", ["binary", "multi-class"])
@pytest.mark.parametrize("overlapping", [False, True], ids=["disjoint", "overlapping"])
def test_balanced_erm_is_logistic_regression_with_group_balanced_weights(kind, overlapping):
    (X, y, groups), _ = halves(kind)
    membership = groups[:, None] == np.unique(groups)
    if overlapping:
        membership = np.column_stack([membership, X[:, 2] > 0.5])
    weight = (membership / membership.sum(axis=0)).sum(axis=1)
    given = membership if overlapping else groups
    estimator = GroupDROClassifier(alpha=0.01, tol=1e-9)
    model = compare(X, y, given, held_out=(X, y, given), estimator=estimator).models["balanced ERM"]
    plain = LogisticRegression(C=1.0 / 0.01, tol=1e-8, max_iter=1000)
    plain.fit(X, y, sample_weight=weight / weight.sum())
    np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_robust_models_are_those_that_a_fit_with_groups_gives(kind):
    (X, y, groups), _ = halves(kind)
    found = compared(kind)
    kind_of_model = GroupDRORegressor if kind == "regression" else GroupDROClassifier
    for name, objective in (("GDRO", "risk"), ("MERO", "excess_risk")):
        model = kind_of_model(objective, random_state=0).fit(X, y, groups=groups)
        np.testing.assert_array_equal(found.models[name].coef_, model.coef_)


def test_every_metric_has_its_value_over_all_rows_and_in_its_own_worst_group():
    metrics = {"recall": "recall", "false alarms": "false_positive_rate", "area": "roc_auc", "log": "neg_log_loss"}
    found = compare(*unrelated(), metrics=metrics, n_bootstrap=20)
    assert found.metrics == tuple(metrics)
    assert list(found.columns)[1:9] == [f"{kind}_{name}" for name in metrics for kind in ("mean", "worst")]
    different = set()
    for name, report in found.reports.items():
        for metric in metrics:
            values = {group: row[metric] for group, row in report.by_group.items()}
            worst = (max if metric == "false alarms" else min)(values, key=values.get)
            different.add(worst)
            assert by_model(found, f"mean_{metric}")[name] == report.overall[metric]
            assert by_model(found, f"worst_{metric}")[name] == values[worst]
            if metric == "recall":
                assert by_model(found, "worst_group")[name] == worst
                assert found.changes[name].gain[0] == pytest.approx(
                    values[worst] - by_model(found, "worst_recall")["ERM"]
                )
    assert len(different) > 1


def test_a_metric_of_the_other_task_or_of_two_classes_is_refused_with_its_name():
    with pytest.raises(ValueError, match="'rmse' requires regression"):
        compare(*unrelated(600), metrics="rmse", n_bootstrap=20)
    with pytest.raises(ValueError, match=r"'recall' .* two classes"):
        compare(*halves("multi-class")[0], metrics="recall", n_bootstrap=20)


@pytest.mark.parametrize(
    "metrics",
    [
        "nothing",
        3,
        ["recall", "recall"],
        [],
    ],
)
def test_metrics_that_are_none_are_refused_before_the_first_fit(metrics):
    def fail(progress):
        raise AssertionError("a model was fitted")

    with pytest.raises((TypeError, ValueError), match="metrics"):
        compare(*unrelated(600), metrics=metrics, estimator=GroupDROClassifier(callbacks=[fail]))


def by_name(rows, **more):
    return dict(zip(("X", "y", "groups"), rows, strict=True)) | more


def within(true, predicted):
    return np.mean(true == predicted)


def test_a_function_without_weights_is_refused_if_the_training_rows_have_some():
    X, y, groups = unrelated(600)
    with pytest.raises(ValueError, match="metric 'within' takes no sample_weight"):
        compare(X, y, groups, sample_weight=np.full(len(y), 0.5), metrics=within)


def test_a_function_without_weights_is_refused_if_the_held_out_rows_have_some():
    train, held_out = halves("binary")
    with pytest.raises(ValueError, match="metric 'within' takes no sample_weight"):
        compare(
            *train, held_out=by_name(held_out, sample_weight=np.linspace(0.5, 1.5, len(held_out[1]))), metrics=within
        )


# ---------------------------------------------------------------------- what is given


@pytest.mark.parametrize("n_splits", [2, 5])
def test_one_fold_is_held_out_where_no_rows_are_given(n_splits):
    X, y, groups = arrays("binary")
    found = compare(X, y, groups, n_splits=n_splits, random_state=3)
    train, test = next(GroupStratifiedKFold(n_splits, random_state=3).split(X, y, groups))
    assert abs(len(test) - len(y) / n_splits) <= 1
    held_out = X[test], y[test], groups[test]
    expected = compare(X[train], y[train], groups[train], held_out=held_out, random_state=3)
    for key in found.columns:
        if key != "seconds":
            assert found.columns[key] == expected.columns[key]
    assert found.changes == expected.changes
    assert found.reports["ERM"].overall["n"] == len(test)


def test_the_seed_decides_what_is_held_out():
    X, y, groups = arrays("binary")
    first, again, other = (compare(X, y, groups, random_state=seed) for seed in (1, 1, 2))
    assert first.changes == again.changes
    assert first.changes != other.changes


@pytest.mark.parametrize(
    ("container", "given"),
    [
        ("list", True),
        ("pandas", False),
        ("pandas", True),
        ("polars", False),
        ("csr_array", True),
        ("csr_matrix", False),
    ],
)
def test_rows_come_in_any_container(container, given):
    def wrap(X, y, groups):
        if container == "list":
            return X.tolist(), y.tolist(), groups.tolist()
        if container == "pandas":
            odd = np.arange(len(y))[::-1] * 3
            columns = pd.DataFrame(X, columns=list("abc"), index=odd)
            return columns, pd.Series(y, index=odd), pd.Series(groups, index=odd)
        if container == "polars":
            return pl.DataFrame(X, schema=list("abc")), pl.Series(y), pl.Series(groups)
        return getattr(sp, container)(X), y, groups

    train, held_out = halves("binary")
    found = compare(*wrap(*train), held_out=wrap(*held_out) if given else None)
    expected = compare(*train, held_out=held_out if given else None)
    assert found.columns["worst_group"] == expected.columns["worst_group"]
    for key in ("mean_risk", "worst_risk", "worst_regret", "mean_accuracy", "worst_accuracy"):
        np.testing.assert_allclose(found.columns[key], expected.columns[key], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.changes["GDRO"].gain, expected.changes["GDRO"].gain, rtol=1e-2)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_groups_of_several_columns_are_tuples(frame):
    X, y, groups = arrays("binary")
    found = compare(X, y, frame({"place": groups, "positive": X[:, 2] > 0}))
    assert all(name[0] in {"east", "rare", "west"} for name in found.columns["worst_group"])
    assert found.to_frame()["worst_group"].to_list() == [" & ".join(map(str, g)) for g in found.columns["worst_group"]]
    assert found.columns["worst_group"][0] == ("rare", found.columns["worst_group"][0][1])
    assert f"rare & {found.columns['worst_group'][0][1]}" in repr(found)


@pytest.mark.parametrize("container", [np.asarray, sp.csr_array, sp.csc_matrix])
def test_groups_may_overlap(container):
    X, y, groups = arrays("binary")
    membership = np.column_stack([np.full(len(y), True), groups == "rare", X[:, 2] > 1])
    found = compare(X, y, container(membership))
    assert found.worth_it
    assert by_model(found, "worst_group")["ERM"] == 1


def test_missing_group_labels_are_refused():
    X, y, groups = arrays("binary")
    holes = np.where(groups == "rare", None, groups.astype(object))
    with pytest.raises(ValueError, match="groups has missing values"):
        compare(X, y, holes)


# ---------------------------------------------------------------------- estimators


@pytest.mark.parametrize("routing", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_pipeline_is_fitted_as_a_whole(nested, routing):
    (X, y, groups), held_out = halves("binary")
    scale = np.array([1e3, 1.0, 1e-3])
    inner = make_pipeline(StandardScaler(), GroupDROClassifier())
    pipeline = make_pipeline(StandardScaler(with_std=False), inner) if nested else inner
    with config_context(enable_metadata_routing=routing):
        found = compare(X * scale, y, groups, estimator=pipeline, held_out=(held_out[0] * scale, *held_out[1:]))
    mean, std = X.mean(axis=0), X.std(axis=0)
    by_hand = compare((X - mean) / std, y, groups, held_out=((held_out[0] - mean) / std, *held_out[1:]))
    for key in ("mean_risk", "worst_risk", "worst_regret", "mean_accuracy", "worst_accuracy"):
        np.testing.assert_allclose(found.columns[key], by_hand.columns[key], rtol=1e-6)
    np.testing.assert_allclose(found.changes["GDRO"].gain, by_hand.changes["GDRO"].gain, rtol=1e-6)
    assert not hasattr(inner[-1], "coef_")


def test_the_parameters_of_the_estimator_are_kept_and_it_is_not_fitted():
    train, held_out = halves("binary")
    estimator = GroupDROClassifier(alpha=0.5, fit_intercept=False, tol=1e-6)
    before = estimator.get_params()
    found = compare(*train, estimator=estimator, held_out=held_out, random_state=4)
    assert estimator.get_params() == before
    assert not hasattr(estimator, "coef_")
    for name, model in found.models.items():
        changed = {"objective": "excess_risk" if name == "MERO" else "risk", "random_state": 4}
        blends = {f"blend {t:g}": t for t in (0.1, 0.5, 0.9)}
        changed["robustness"] = {"ERM": 0.0, "balanced ERM": 0.0, **blends}.get(name, 1.0)
        if changed["robustness"] == 0.0:
            changed["average"] = "rows" if name == "ERM" else "groups"
        assert model.get_params() == before | changed


@pytest.mark.parametrize("how", ["ctrl-c", "callback"])
def test_an_interrupt_ends_the_comparison_and_a_callback_only_its_fit(how):
    def callback(progress):
        if how == "ctrl-c":
            raise KeyboardInterrupt
        return True

    train, held_out = halves("binary")
    estimator = GroupDROClassifier(callbacks=[callback], tol=1e-9)

    def compared():
        try:
            return len(compare(*train, estimator=estimator, held_out=held_out).models)
        except KeyboardInterrupt:
            return "ended"

    with pytest.warns(ConvergenceWarning, match="interrupted"):
        found = compared()
    assert found == ("ended" if how == "ctrl-c" else 7)


def test_a_squared_hinge_model_is_judged_by_its_own_loss():
    (X, y, groups), held_out = halves("binary")
    found = compare(X, y, groups, held_out=held_out, estimator=GroupDROClassifier(loss="squared_hinge"))
    outputs = held_out[0] @ found.models["GDRO"].coef_[0] + found.models["GDRO"].intercept_[0]
    losses = 0.5 * np.maximum(0.0, 1.0 - np.where(held_out[1] == 1, outputs, -outputs)) ** 2
    np.testing.assert_allclose(by_model(found, "mean_risk")["GDRO"], losses.mean(), rtol=1e-9)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.arange(200) % 2, GroupDROClassifier),
        (np.array(["no", "yes", "maybe"])[np.arange(200) % 3], GroupDROClassifier),
        (np.arange(200) % 2 == 0, GroupDROClassifier),
        (np.linspace(0.1, 1.7, 200), GroupDRORegressor),
    ],
    ids=["int", "str", "bool", "float"],
)
def test_the_kind_of_labels_decides_between_classifier_and_regressor(y, expected):
    X = np.random.default_rng(0).normal(size=(200, 2))
    found = compare(X, y, np.arange(200) // 2 % 2)
    assert {type(model) for model in found.models.values()} == {expected}
    assert ("mean_rmse" in found.columns) == (expected is GroupDRORegressor)


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(),
        make_pipeline(StandardScaler(), LogisticRegression()),
        GroupBy(LogisticRegression(), "g"),
        GridSearchCV(GroupDROClassifier(), {"alpha": [1.0]}),
        GroupDROClassifier,
        "gdro",
    ],
    ids=["foreign", "pipeline", "group_by", "search", "class", "text"],
)
def test_another_estimator_is_refused_by_name(estimator):
    with pytest.raises(TypeError, match=r"^estimator must be a GroupDROClassifier or GroupDRORegressor"):
        compare(*arrays("binary"), estimator=estimator)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 2.0, -1.0, np.nan])
def test_a_confidence_outside_of_zero_to_one_is_refused_by_name(confidence):
    with pytest.raises(ValueError, match=r"^confidence\b"):
        compare(*arrays("binary"), confidence=confidence)


@pytest.mark.parametrize("n_bootstrap", [0, -1, 2.5])
def test_a_wrong_number_of_resamples_is_refused_by_name(n_bootstrap):
    with pytest.raises((TypeError, ValueError), match="n_bootstrap"):
        compare(*arrays("binary"), n_bootstrap=n_bootstrap)


def test_a_wrong_number_of_splits_is_refused_by_name():
    with pytest.raises(ValueError, match=r"^n_splits must be"):
        compare(*arrays("binary"), n_splits=1)


def test_held_out_rows_without_groups_are_refused_by_name():
    train, held_out = halves("binary")
    with pytest.raises((TypeError, ValueError), match="held_out"):
        compare(*train, held_out=held_out[:2])


# ---------------------------------------------------------------------- small groups


def with_tiny_group(n):
    X, y, groups = arrays("binary")
    groups = groups.astype(object)
    groups[:n] = "tiny"
    y = np.where(np.arange(len(y)) < n, (X[:, 0] < 0).astype(int), y)
    return X, y, groups.astype(str)


def test_groups_with_few_held_out_rows_are_left_out_and_stated():
    X, y, groups = with_tiny_group(40)
    found = compare(X, y, groups)
    assert found.left_out == ["tiny"]
    assert "tiny" not in found.columns["worst_group"]
    assert "tiny" not in found.differences["group"]
    row = found.reports["ERM"].by_group["tiny"]
    assert row["n"] == 10
    assert row["risk"] > by_model(found, "worst_risk")["ERM"]
    assert re.search(r"\b1 group\b", found.evidence)


@pytest.mark.parametrize(("min_rows", "left_out"), [(10, []), (11, ["tiny"])])
def test_min_rows_is_what_a_group_needs_to_be_judged(min_rows, left_out):
    assert compare(*with_tiny_group(40), min_rows=min_rows, loss="zero_one").left_out == left_out


def test_all_groups_are_judged_where_none_has_enough_rows():
    X, y, groups = arrays("binary")
    found = compare(X, y, groups, min_rows=10_000)
    assert found.columns["worst_risk"] == compare(X, y, groups).columns["worst_risk"]


def test_held_out_groups_that_were_not_trained_on_count_but_have_no_regret():
    (X, y, groups), (X_new, y_new, _) = halves("binary")
    found = compare(X, y, groups, held_out=(X_new, y_new, np.full(len(y_new), "new")))
    assert found.columns["worst_group"] == ["new"] * 7
    assert np.isnan(found.columns["worst_regret"]).all()


# ---------------------------------------------------------------------- how it is shown


def test_a_frame_has_a_row_per_model():
    found = compared("binary")
    frame = found.to_frame()
    assert list(frame.columns) == list(found.columns)
    for key, values in found.columns.items():
        assert frame[key].to_list() == pytest.approx(values, nan_ok=True)


def cells(text):
    """Return the header and the rows of a printed table."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    start = next(k for k, line in enumerate(lines) if line[0] == "model")
    return lines[start], {line[0]: line[1:] for line in lines[start + 1 : start + 1 + len(MODELS)]}


def test_the_text_is_the_verdict_and_a_table_of_the_metrics():
    found = compared("binary")
    assert repr(found) == found.summary()
    assert repr(found).startswith(found.verdict)
    header, rows = cells(repr(found))
    assert header == ["model", "mean_risk", "worst_risk", "mean_accuracy", "worst_accuracy", "worst_group"]
    assert list(rows) == MODELS
    for k, row in enumerate(rows.values()):
        assert row == [*(f"{found.columns[key][k]:.4g}" for key in header[1:-1]), found.columns["worst_group"][k]]
    assert found.evidence not in repr(found)


def test_the_details_add_the_other_columns_and_the_evidence():
    found = compared("binary")
    text = found.summary(details=True)
    assert text.startswith(found.summary())
    assert text.endswith(found.evidence)
    header, rows = cells(text.removeprefix(found.summary()))
    assert header == ["model", "gain", "gain_low", "gain_high", "cost", "worst_regret", "gap", "seconds"]
    assert list(rows) == MODELS
    for k, row in enumerate(rows.values()):
        assert row == [f"{found.columns[key][k]:.4g}" for key in header[1:]]


def test_the_html_is_the_verdict_and_the_tables_with_hostile_names_escaped():
    X, y, groups = arrays("binary")
    found = compare(X, y, np.where(groups == "rare", "<script>", groups))
    shown = found._repr_html_()
    main, _, details = shown.partition("<details>")
    assert "<script>" not in shown
    assert "<td>&lt;script&gt;</td>" in main
    assert main.count("<tr>") == details.count("<tr>") == 8
    assert html.escape(found.verdict) in main
    assert html.escape(found.evidence) in details


def test_a_class_of_a_single_row_stays_in_training():
    X, y, groups = flipped()
    y = np.where(y == 1, "yes", "no").astype(object)
    for place in (3, 700, 1500):
        rare = y.copy()
        rare[place] = "maybe"
        found = compare(X[:1600], rare[:1600], groups[:1600], n_bootstrap=20)
        assert list(found.models["ERM"].classes_) == ["maybe", "no", "yes"]


def test_counts_are_numbers():
    X, _, groups = unrelated()
    counts = np.random.default_rng(0).poisson(30, len(X))
    assert isinstance(compare(X, counts, groups, n_bootstrap=20).models["GDRO"], GroupDRORegressor)


def test_sparse_groups_of_any_format_are_taken():
    X, y, groups = unrelated()
    member = sp.coo_array(np.column_stack([groups == name for name in "abc"]))
    found = compare(X, y, member, n_bootstrap=20)
    assert found.models["MERO"].groups_.tolist() == [0, 1, 2]


@pytest.mark.parametrize("given", [False, True], ids=["split", "held-out"])
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_group_by_brings_its_groups_and_its_models_take_the_same_columns(frame, given):
    (X, y, groups), (X_new, y_new, groups_new) = halves("binary")
    rows, new = (
        frame({**dict(zip("abc", part.T, strict=True)), "site": site})
        for part, site in ((X, groups), (X_new, groups_new))
    )
    estimator = GroupBy(GroupDROClassifier(alpha=1e-3), "site")
    held_out, plain = (None, None) if not given else ((new, y_new, None), (X_new, y_new, groups_new))
    found = compare(rows, y, estimator=estimator, held_out=held_out)
    expected = compare(X, y, groups, estimator=GroupDROClassifier(alpha=1e-3), held_out=plain)
    for columns in (found.columns, expected.columns):
        del columns["seconds"]
    for key, values in expected.columns.items():
        text = key in ("model", "worst_group")
        assert found.columns[key] == (values if text else pytest.approx(values, rel=1e-9))
    model = found.models["GDRO"]
    assert isinstance(model, GroupBy)
    assert model.gap_ == expected.models["GDRO"].gap_
    np.testing.assert_array_equal(model.predict(new), expected.models["GDRO"].predict(X_new))
    assert not hasattr(estimator, "estimator_")


def test_groups_are_needed_without_a_group_by():
    X, y, groups = unrelated()
    with pytest.raises(ValueError, match=r"^groups must have the groups of the rows"):
        compare(X, y)
    with pytest.raises(ValueError, match=r"^held_out must have the groups of the rows"):
        compare(X, y, groups, held_out=(X, y, None))


def test_text_labels_are_not_compared_pair_by_pair():
    class Label(str):
        compared = 0

        def __eq__(self, other):
            Label.compared += 1
            return str.__eq__(self, other)

        def __lt__(self, other):
            Label.compared += 1
            return str.__lt__(self, other)

        __hash__ = str.__hash__

    n = 2000
    y = np.empty(n, dtype=object)
    y[:] = [Label("yes" if k % 3 else "no") for k in range(n)]
    y[5] = Label("rare")
    train, test = keep_classes(np.arange(1000, n), np.arange(1000), y)
    assert 5 in train
    assert len(test) == 999
    assert Label.compared < 40 * n  # the pairs of a training and a test row are 500 n


# ---------------------------------------------------------------------- the user's own models


def trees(kind):
    return (HistGradientBoostingRegressor if kind == "regression" else HistGradientBoostingClassifier)(
        random_state=0, max_iter=30
    )


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_any_kind_are_fitted_and_judged_by_the_same_loss(kind):
    (X, y, groups), held_out = halves(kind)
    models = {"trees": trees(kind), "scaled trees": make_pipeline(StandardScaler(), trees(kind))}
    found = compare(X, y, groups, held_out=held_out, models=models)
    assert not hasattr(models["trees"], "n_iter_")
    fitted = trees(kind).fit(X, y)
    expected = group_report(fitted, *held_out, n_bootstrap=0)
    worst = by_model(found, "worst_risk")
    assert worst["trees"] == pytest.approx(max(expected.columns["risk"]))
    assert by_model(found, "mean_risk")["trees"] == pytest.approx(expected.overall["risk"])
    assert by_model(found, "gain")["trees"] == pytest.approx(worst["ERM"] - worst["trees"])
    assert np.isnan(by_model(found, "gap")["trees"])
    again = compare(X, y, groups, held_out=held_out, models={"trees": fitted})
    assert by_model(again, "worst_risk")["trees"] == worst["trees"]
    assert again.models["trees"] is fitted
    assert np.isnan(by_model(again, "seconds")["trees"])


def test_lightgbm_and_wrappers_and_searches_are_taken():
    lightgbm = pytest.importorskip("lightgbm")
    X, y, groups = arrays("binary")
    frame = pd.DataFrame(X, columns=list("abc")).assign(site=pd.Categorical(groups))
    models = {
        "LightGBM": lightgbm.LGBMClassifier(n_estimators=30, verbose=-1),
        "by site": GroupBy(GroupDROClassifier(alpha=0.1), "site"),
    }
    found = compare(frame, y, estimator=GroupBy(GroupDROClassifier(), "site"), models=models)
    assert found.columns["model"][-2:] == ["LightGBM", "by site"]
    assert by_model(found, "gap")["by site"] <= 1e-4 * 1.001
    assert by_model(found, "worst_risk")["by site"] != by_model(found, "worst_risk")["GDRO"]
    search = GroupDROClassifierCV(alphas=[1e-2], robustness=[0.0, 1.0], cv=2)
    found = compare(X, y, groups, models={"search": make_pipeline(StandardScaler(), search)})
    assert found.models["search"][-1].robustness_ in (0.0, 1.0)


@pytest.mark.parametrize(
    ("models", "error", "message"),
    [
        ([LogisticRegression()], TypeError, "models must be a dict from names to estimators"),
        ({"forest": LogisticRegression}, TypeError, r"models\['forest'\] must be a fitted estimator"),
        ({"ERM": LogisticRegression()}, ValueError, r"models\['ERM'\] has the name of a model that is fitted here"),
        ({"margin": LinearSVC()}, ValueError, r"models\['margin'\] has no predict_proba"),
    ],
)
def test_models_that_cannot_be_compared_are_refused(models, error, message):
    with pytest.raises(error, match=message):
        compare(*unrelated(), models=models)


@pytest.mark.parametrize("estimator", ["auto", None])
@pytest.mark.parametrize(
    "wrong", [[LogisticRegression()], LogisticRegression(), [Predictions([0, 1])], {1: LinearSVC()}]
)
def test_models_without_names_are_refused_whatever_they_are_compared_with(wrong, estimator):
    with pytest.raises(TypeError, match="models must be a dict from names to estimators or Predictions"):
        compare(*unrelated(), models=wrong, estimator=estimator)
    with pytest.raises(TypeError, match="models must be a dict from names to estimators or Predictions"):
        compare(*unrelated(), models=wrong, estimator=estimator, baseline=LogisticRegression())


def test_a_fitted_model_needs_rows_that_it_has_not_seen():
    X, y, groups = unrelated()
    with pytest.raises(
        ValueError, match=r"models\['plain'\] is already fitted, possibly on rows that would be held out here"
    ):
        compare(X, y, groups, models={"plain": LogisticRegression().fit(X, y)})


def test_other_losses_must_be_named_where_other_models_have_none_such():
    X, y, groups = unrelated()
    given = {"estimator": GroupDROClassifier(loss="squared_hinge"), "models": {"margin": LinearSVC()}}
    with pytest.raises(ValueError, match="cannot be evaluated by the loss 'squared_hinge'"):
        compare(X, y, groups, **given)
    found = compare(X, y, groups, loss="zero_one", **given)
    assert by_model(found, "mean_risk")["margin"] == pytest.approx(1.0 - by_model(found, "mean_accuracy")["margin"])


# ---------------------------------------------------------------------- weights, clusters and the choice


def test_weights_count_in_training_and_in_judging():
    (X, y, groups), (X_new, y_new, groups_new) = halves("binary")
    rng = np.random.default_rng(0)
    copies, copies_new = rng.integers(0, 3, len(y)), rng.integers(0, 3, len(y_new))
    found = compare(
        X, y, groups, sample_weight=copies, held_out=by_name((X_new, y_new, groups_new), sample_weight=copies_new)
    )
    again, new = np.repeat(np.arange(len(y)), copies), np.repeat(np.arange(len(y_new)), copies_new)
    expected = compare(X[again], y[again], groups[again], held_out=(X_new[new], y_new[new], groups_new[new]))
    for key in ("mean_risk", "worst_risk", "gain", "cost", "mean_accuracy"):
        np.testing.assert_allclose(found.columns[key], expected.columns[key], rtol=2e-3, atol=1e-4)
    # Copies are no further rows: what weights leave uncertain is more than copies pretend.
    width, pretended = (np.diff(part.changes["GDRO"].cost[1:])[0] for part in (found, expected))
    assert width > 1.1 * pretended


def test_clusters_are_resampled_whole():
    train, (X, y, groups) = halves("binary")
    again = np.repeat(np.arange(len(y)), 3)
    rows = X[again], y[again], groups[again]
    found, blind = (compare(*train, held_out=by_name(rows, cluster=cluster)) for cluster in (again, None))
    width, pretended = (np.diff(part.changes["GDRO"].cost[1:])[0] for part in (found, blind))
    assert width == pytest.approx(np.sqrt(3.0) * pretended, rel=0.2)
    columns = found.reports["ERM"].columns
    np.testing.assert_allclose(columns["effective_n"], np.array(columns["n"]) / 3)


def test_clusters_stay_whole_in_every_split():
    X, y, groups = arrays("binary")
    cluster = np.arange(len(y)) // 4
    seen = {}

    class Recorder(LogisticRegression):
        def fit(self, X, y, sample_weight=None, cluster=None):
            seen["train"] = set(cluster.tolist())
            return super().fit(X, y, sample_weight)

    found = groupdro.compare(X, y, groups, cluster=cluster, cv=2, models={"recorder": Recorder()})
    held_out = found.reports["ERM"].overall["n"]
    assert held_out == len(y) - 4 * len(seen["train"])  # no cluster is in both
    assert abs(held_out - len(y) / 4) <= 4 * 4


def test_the_choice_is_that_of_the_cross_validated_estimator_at_the_same_penalty():
    (X, y, groups), _ = halves("binary")
    chosen = compared("binary").models["CV choice"]
    assert isinstance(chosen, GroupDROClassifierCV)
    search = GroupDROClassifierCV(GroupDROClassifier(random_state=0), alphas=[1e-4], cv=5).fit(X, y, groups=groups)
    assert chosen.robustness_ == search.robustness_ > 0.0
    np.testing.assert_array_equal(chosen.coef_, search.coef_)


def test_the_choice_is_made_inside_pipelines_and_wrappers():
    (X, y, groups), (X_new, y_new, groups_new) = halves("binary")
    frame, new = (
        pd.DataFrame(part, columns=list("abc")).assign(site=site) for part, site in ((X, groups), (X_new, groups_new))
    )
    inner = make_pipeline(StandardScaler(), GroupDROClassifier())
    found = groupdro.compare(frame, y, estimator=GroupBy(inner, "site"), held_out=(new, y_new, None), cv=2)
    chosen = found.models["CV choice"]
    assert isinstance(chosen, GroupBy)
    assert chosen.estimator_[-1].message_ in found.evidence
    assert not isinstance(inner[-1], GroupDROClassifierCV)


def test_differences_are_those_of_each_group_with_intervals_for_all_of_them():
    found = compared("binary")
    _, (X, y, groups) = halves("binary")
    table = found.differences
    assert len(table["model"]) == 5 * 3
    losses = {name: losses_by_hand(getattr(model, "best_estimator_", model), X, y)[0]
              for name, model in found.models.items()}  # fmt: skip
    for name, group, difference, low, high in zip(*table.values(), strict=True):
        own = groups == group
        assert difference == pytest.approx(losses[name][own].mean() - losses["ERM"][own].mean(), abs=1e-12)
        assert low <= difference <= high
        error = (losses[name] - losses["ERM"])[own].std() / np.sqrt(own.sum())
        assert high - low == pytest.approx(2 * 2.39 * error, rel=0.25)  # of three independent groups


def test_the_plot_has_what_each_model_changes():
    found = compared("binary")
    display = found.plot()
    assert [label.get_text() for label in display.ax_.get_yticklabels()] == MODELS[1:]
    gains, costs = ([getattr(found.changes[name], kind)[0] for name in MODELS[1:]] for kind in ("gain", "cost"))
    np.testing.assert_array_equal(display.worst_points_.get_xdata(), gains)
    np.testing.assert_array_equal(display.mean_points_.get_xdata(), np.negative(costs))
    assert display.worst_points_.get_marker() != display.mean_points_.get_marker()
    plt.close(display.figure_)


def test_every_model_is_printed_as_it_is_fitted(capsys):
    rows = unrelated(600)
    found = compare(*rows, models={"plain": LogisticRegression()}, verbose=True, n_bootstrap=20)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == found.columns["model"]
    compare(*rows, n_bootstrap=20)
    assert capsys.readouterr().out == ""


def test_the_number_of_jobs_reaches_the_cross_validation():
    found = groupdro.compare(*unrelated(600), cv=2, n_jobs=1, n_bootstrap=20)
    assert found.models["CV choice"].n_jobs == 1


@pytest.mark.parametrize("given", [{"cv": 1}, {"cv": 2.5}, {"cv": "five"}])
def test_a_number_of_folds_that_makes_none_is_refused(given):
    with pytest.raises((ValueError, TypeError), match="cv"):
        compare(*unrelated(), **given)


def test_nothing_is_said_of_the_worst_where_no_group_can_be_judged():
    X, y, groups = flipped()
    found = compare(X, y, groups, min_rows=10**6)
    assert (found.worth_it, found.recommended, found.headroom) == (False, "ERM", None)
    assert sorted(found.left_out) == ["east", "rare", "west"]
    assert np.isnan(found.changes["GDRO"].gain[1:]).all()


def test_a_headroom_is_only_that_of_the_loss_that_is_compared():
    found = compare(*flipped(), loss="zero_one")
    assert np.isnan(found.columns["worst_regret"]).all()  # whose references are of the logarithmic loss
    assert found.headroom is None
    assert "eadroom" not in found.evidence
