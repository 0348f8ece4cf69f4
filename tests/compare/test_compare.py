import functools

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
    group_report,
)
from groupdro.compare.comparison import Change
from groupdro.compare.verdict import Choice, recommend, verdict_on
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


# ---------------------------------------------------------------------- the verdict


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_robustness_is_found_to_help_where_a_rare_group_has_a_flipped_feature(seed):
    found = compare(*flipped(seed=seed))
    assert found.worth_it is True
    fall, low, high = found.changes["GDRO"].fall
    assert fall > 0.1
    assert 0.0 < low <= fall <= high
    assert found.recommended != "ERM"
    assert found.verdict.startswith(
        f"Robustness helps: under {found.recommended} the worst held-out group's risk falls"
    )
    assert by_model(found, "worst_group")["ERM"] == "rare"
    assert by_model(found, "worst_risk")["GDRO"] < by_model(found, "worst_risk")["ERM"]
    assert by_model(found, "worst_accuracy")["GDRO"] > by_model(found, "worst_accuracy")["ERM"]
    assert found.left_out == []


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_robustness_is_found_to_buy_nothing_where_groups_are_random_labels(seed):
    found = compare(*unrelated(seed=seed))
    assert found.worth_it is False
    assert found.recommended == "ERM"
    assert found.changes["GDRO"].fall[1] <= 0.0 <= found.changes["GDRO"].fall[2]
    assert found.verdict.startswith("Robustness brings no significant improvement on the held-out rows: under GDRO")
    assert " Prefer ERM." in found.verdict


def test_robustness_is_found_to_harm_where_the_worst_group_of_the_training_rows_misleads():
    X, y, groups = flipped()
    held_out = X, y, np.where(groups == "rare", "west", groups)
    turned = X * np.where(groups == "rare", -1.0, 1.0)[:, None], y, held_out[2]
    found = compare(X, y, groups, held_out=turned)
    assert found.worth_it is False
    assert found.changes["GDRO"].fall[2] < 0.0
    assert found.verdict.startswith("Robustness hurts here: under GDRO the worst held-out group's risk rises from ")


@pytest.mark.parametrize("kind", KINDS)
def test_the_verdict_tells_the_numbers_of_the_table(kind):
    found = compared(kind)
    worst, mean, gain, price = (by_model(found, key) for key in ("worst_risk", "mean_risk", "gain", "price"))
    name = found.recommended
    assert name != "ERM"
    fall, rise = 1.0 - worst[name] / worst["ERM"], mean[name] / mean["ERM"] - 1.0
    change = found.changes[name]
    assert f"falls from {worst['ERM']:.4g} to {worst[name]:.4g}, by {fall:.1%}" in found.verdict
    assert f"(95% confidence interval of the change {-change.fall[2]:+.2g} to {-change.fall[1]:+.2g})" in found.verdict
    moved = "rises" if rise > 0 else "falls"
    assert f"the average {moved} from {mean['ERM']:.4g} to {mean[name]:.4g}, by {abs(rise):.1%}" in found.verdict
    if rise > 0:
        assert f"each unit of gain costs {price[name] / gain[name]:.2g} units of the average." in found.verdict
    chosen = found.models["CV choice"].message_
    assert f"Cross-validation on the training rows: {chosen}" in found.verdict


def change(fall, rise, spread=0.01, worst=2.0, mean=0.5):
    return Change((fall, fall - spread, fall + spread), (rise, rise - 0.001, rise + 0.001), worst, mean)


NONE = change(0.0, 0.0, spread=0.0)
WORDS = {"confidence": 0.95, "choice": None, "better": {}, "left_out": [], "judged": True}


def test_a_gain_within_noise_is_never_said_to_help():
    changes = {"ERM": NONE, "GDRO": change(0.3, 0.0, spread=0.31)}
    assert recommend(changes, None) == "ERM"
    assert "helps" not in verdict_on(changes, "ERM", **WORDS)


def test_a_gain_that_costs_more_than_it_is_worth_is_never_said_to_help():
    # The worst falls by 31%, the average rises by 86%.
    changes = {"ERM": NONE, "GDRO": change(0.62, 0.43)}
    assert recommend(changes, None) == "ERM"
    told = verdict_on(changes, "ERM", **WORDS)
    assert told.startswith("Robustness costs more than it gains here")
    assert "helps" not in told
    assert "falls from 2 to 1.38, by 31.0%" in told
    assert "rises from 0.5 to 0.93, by 86.0%" in told
    assert "each unit of gain costs 0.69 units of the average" in told
    assert told.endswith("Prefer ERM.")


def test_the_best_trade_is_taken_where_several_are_worth_it():
    changes = {"ERM": NONE, "blend 0.5": change(0.4, 0.01), "GDRO": change(0.6, 0.1)}
    assert recommend(changes, None) == "blend 0.5"
    told = verdict_on(changes, "blend 0.5", **WORDS)
    assert told.startswith("Robustness helps: under blend 0.5 ")
    assert "GDRO changes the worst risk by -30.0%, the average by +20.0%." in told


@pytest.mark.parametrize(("fall", "taken"), [(0.02, "CV choice"), (-0.02, "ERM")])
def test_what_cross_validation_preferred_is_taken_unless_the_held_out_rows_speak_against_it(fall, taken):
    changes = {"ERM": NONE, "GDRO": change(0.0, 0.2), "CV choice": change(fall, 0.001, spread=0.1)}
    choice = Choice(0.1, "Chose robustness 0.1.")
    assert recommend(changes, choice) == taken
    told = verdict_on(changes, taken, **{**WORDS, "choice": choice})
    assert "helps" not in told
    assert told.startswith("Cross-validation shows a gain" if taken != "ERM" else "Robustness brings no significant")


@pytest.mark.parametrize("kind", KINDS)
def test_the_gain_is_the_fall_of_the_worst_risk_with_an_interval_of_resampled_rows(kind):
    found = compare(*halves(kind)[0], held_out=halves(kind)[1], confidence=0.8, n_bootstrap=2000)
    X, y, groups = halves(kind)[1]
    before, after = (losses_by_hand(found.models[name], X, y)[0] for name in ("ERM", "GDRO"))
    names, rng = np.unique(groups), np.random.default_rng(7)
    fall = max(before[groups == name].mean() for name in names) - max(after[groups == name].mean() for name in names)
    np.testing.assert_allclose(found.changes["GDRO"].fall[0], fall, rtol=1e-9)
    worst = np.full((2, 2000), -np.inf)
    for name in names:
        own = np.flatnonzero(groups == name)
        for k in range(2000):
            drawn = rng.choice(own, len(own))
            worst[:, k] = np.maximum(worst[:, k], [before[drawn].mean(), after[drawn].mean()])
    falls = worst[0] - worst[1]
    # Of paired differences between the groups that may be the worst, so wider than resampled falls, but not by much.
    low, high = found.changes["GDRO"].fall[1:]
    reach = np.array([fall - low, high - fall]) / falls.std()
    assert (reach > 1.28 - 0.25).all()
    assert (reach < 4.0).all()


def test_a_higher_confidence_makes_a_wider_interval():
    train, held_out = halves("binary")
    narrow, wide = (compare(*train, held_out=held_out, confidence=level).changes["GDRO"].fall for level in (0.5, 0.99))
    assert wide[1] < narrow[1] < narrow[2] < wide[2]


# ---------------------------------------------------------------------- the table


@pytest.mark.parametrize("kind", KINDS)
def test_each_entry_of_the_table_is_the_one_computed_by_hand(kind):
    found = compared(kind)
    train, (X, y, groups) = halves(kind)
    measure = "rmse" if kind == "regression" else "accuracy"
    assert found.columns["model"] == list(found.models) == list(found.reports) == MODELS
    risks = ["mean_risk", "worst_risk", "worst_group", "gain", "gain_low", "gain_high", "price", "worst_regret"]
    assert list(found.columns) == ["model", *risks, measure, f"worst_{measure}", "gap", "seconds"]
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
        np.testing.assert_allclose([row[measure], row[f"worst_{measure}"]], [overall, worst], rtol=1e-9)
        assert row["gap"] == model.gap_ / model.upper_bound_
        assert 0.0 <= row["gap"] <= 1e-4 * 1.001 or model.objective == "excess_risk"
        assert row["seconds"] > 0.0


def test_the_reports_are_those_of_the_models_on_the_held_out_rows():
    found, (X, y, groups) = compared("binary"), halves("binary")[1]
    for name, report in found.reports.items():
        assert repr(report) == repr(group_report(found.models[name], X, y, groups, n_bootstrap=500))


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
    for key in ("mean_risk", "worst_risk", "worst_regret", "accuracy", "worst_accuracy"):
        np.testing.assert_allclose(found.columns[key], expected.columns[key], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.changes["GDRO"].fall, expected.changes["GDRO"].fall, rtol=1e-2)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_groups_of_several_columns_are_tuples(frame):
    X, y, groups = arrays("binary")
    found = compare(X, y, frame({"place": groups, "positive": X[:, 2] > 0}))
    assert all(name[0] in {"east", "rare", "west"} for name in found.columns["worst_group"])
    assert found.to_pandas()["worst_group"].to_list() == found.columns["worst_group"]
    assert found.to_polars()["worst_group"].dtype == pl.String
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
    for key in ("mean_risk", "worst_risk", "worst_regret", "accuracy", "worst_accuracy"):
        np.testing.assert_allclose(found.columns[key], by_hand.columns[key], rtol=1e-6)
    np.testing.assert_allclose(found.changes["GDRO"].fall, by_hand.changes["GDRO"].fall, rtol=1e-6)
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
        changed["robustness"] = 0.5 if name == "blend 0.5" else 1.0
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
    assert found == ("ended" if how == "ctrl-c" else 5)


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
    assert ("rmse" in found.columns) == (expected is GroupDRORegressor)


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


def test_groups_with_few_held_out_rows_are_left_out_and_told():
    X, y, groups = with_tiny_group(40)
    found = compare(X, y, groups)
    assert found.left_out == ["tiny"]
    assert "tiny" not in found.columns["worst_group"]
    assert "1 group" in found.verdict
    assert "too few held-out rows, or too few errors, to be judged" in found.verdict
    row = found.reports["ERM"].columns["group"].index("tiny")
    assert found.reports["ERM"].columns["n"][row] == 10
    assert found.reports["ERM"].columns["risk"][row] > by_model(found, "worst_risk")["ERM"]


@pytest.mark.parametrize(("min_rows", "left_out"), [(10, []), (11, ["tiny"])])
def test_min_rows_is_what_a_group_needs_to_be_judged(min_rows, left_out):
    found = compare(*with_tiny_group(40), min_rows=min_rows)
    assert found.left_out == left_out
    assert ("too few held-out rows" in found.verdict) == bool(left_out)


def test_all_groups_are_judged_where_none_has_enough_rows():
    X, y, groups = arrays("binary")
    found = compare(X, y, groups, min_rows=10_000)
    assert found.columns["worst_risk"] == compare(X, y, groups).columns["worst_risk"]


def test_held_out_groups_that_were_not_trained_on_count_but_have_no_regret():
    (X, y, groups), (X_new, y_new, _) = halves("binary")
    found = compare(X, y, groups, held_out=(X_new, y_new, np.full(len(y_new), "new")))
    assert found.columns["worst_group"] == ["new"] * 5
    assert np.isnan(found.columns["worst_regret"]).all()


# ---------------------------------------------------------------------- how it is shown


def test_frames_have_a_row_a_model():
    found = compared("binary")
    for frame in (found.to_pandas(), found.to_polars()):
        assert list(frame.columns) == list(found.columns)
        assert frame["model"].to_list() == MODELS
        assert frame["worst_group"].to_list() == found.columns["worst_group"]
        for key in ("mean_risk", "worst_risk", "worst_regret", "accuracy", "worst_accuracy", "gap", "seconds"):
            assert frame[key].to_list() == found.columns[key]


def test_the_text_is_the_table_and_the_verdict():
    found = compared("binary")
    title, header, *lines, verdict = repr(found).split("\n")
    assert title == "Held-out rows"
    assert header.split() == list(found.columns)
    assert [line.split("  ")[0] for line in lines] == MODELS
    assert f"{found.columns['worst_risk'][0]:.4g}" in lines[0]
    assert verdict == found.verdict


def test_the_html_is_the_table_and_the_verdict_with_hostile_names_escaped():
    X, y, groups = arrays("binary")
    shown = compare(X, y, np.where(groups == "rare", "<script>", groups))._repr_html_()
    assert "<script>" not in shown
    assert "<td>&lt;script&gt;</td>" in shown
    assert shown.count("<tr>") == 6
    assert "the worst held-out group&#x27;s risk falls from " in shown


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


def test_a_model_that_is_better_still_is_told_with_its_numbers():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(4000, 2)), rng.choice(["a", "b"], 4000)
    y = np.where(groups == "a", np.abs(X[:, 0]), X[:, 1]) + 0.1 * rng.normal(size=4000)
    coded = np.column_stack([X, groups == "a"])
    found = compare(coded, y, groups, models={"trees": trees("regression")})
    worst, mean = (by_model(found, key)["trees"] for key in ("worst_risk", "mean_risk"))
    told = f" trees is significantly better on its worst group than {found.recommended}: {worst:.4g}, with an average "
    assert f"{told}of {mean:.4g}." in found.verdict
    assert found.recommended != "trees"


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
    assert by_model(found, "mean_risk")["margin"] == pytest.approx(1.0 - by_model(found, "accuracy")["margin"])


# ---------------------------------------------------------------------- weights, clusters and the choice


def test_weights_count_in_training_and_in_judging():
    (X, y, groups), (X_new, y_new, groups_new) = halves("binary")
    rng = np.random.default_rng(0)
    copies, copies_new = rng.integers(0, 3, len(y)), rng.integers(0, 3, len(y_new))
    found = compare(X, y, groups, sample_weight=copies, held_out=(X_new, y_new, groups_new, copies_new))
    again, new = np.repeat(np.arange(len(y)), copies), np.repeat(np.arange(len(y_new)), copies_new)
    expected = compare(X[again], y[again], groups[again], held_out=(X_new[new], y_new[new], groups_new[new]))
    for key in ("mean_risk", "worst_risk", "gain", "price", "accuracy"):
        np.testing.assert_allclose(found.columns[key], expected.columns[key], rtol=2e-3, atol=1e-4)
    # Copies are no further rows: what weights leave uncertain is more than copies pretend.
    width, pretended = (np.diff(part.changes["GDRO"].rise[1:])[0] for part in (found, expected))
    assert width > 1.1 * pretended


def test_clusters_are_resampled_whole():
    train, (X, y, groups) = halves("binary")
    again = np.repeat(np.arange(len(y)), 3)
    rows = X[again], y[again], groups[again]
    found, blind = (compare(*train, held_out=(*rows, None, cluster)) for cluster in (again, None))
    width, pretended = (np.diff(part.changes["GDRO"].rise[1:])[0] for part in (found, blind))
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
    assert compared("binary").recommended == "CV choice"


def test_the_choice_is_made_inside_pipelines_and_wrappers():
    (X, y, groups), (X_new, y_new, groups_new) = halves("binary")
    frame, new = (
        pd.DataFrame(part, columns=list("abc")).assign(site=site) for part, site in ((X, groups), (X_new, groups_new))
    )
    inner = make_pipeline(StandardScaler(), GroupDROClassifier())
    found = groupdro.compare(frame, y, estimator=GroupBy(inner, "site"), held_out=(new, y_new, None), cv=2)
    chosen = found.models["CV choice"]
    assert isinstance(chosen, GroupBy)
    assert chosen.estimator_[-1].message_ in found.verdict
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
    names = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert names[0] == "groups balanced (ERM)"
    assert names[1:] == ["blend 0.5", "worst risk (GDRO)", "worst excess risk (MERO)", "chosen by cross-validation"]
    falls = [found.changes[name].fall[0] for name in MODELS[1:]]
    np.testing.assert_allclose(display.worst_points_.get_xdata(), [-fall for fall in falls])
    np.testing.assert_allclose(display.mean_points_.get_xdata(), [found.changes[name].rise[0] for name in MODELS[1:]])
    assert display.ax_.get_xlabel().startswith("change from plain training (ERM), with")
    assert display.worst_points_.get_marker() != display.mean_points_.get_marker()
    plt.close(display.figure_)


@pytest.mark.parametrize("given", [{"cv": 1}, {"cv": 2.5}, {"cv": "five"}])
def test_a_number_of_folds_that_makes_none_is_refused(given):
    with pytest.raises((ValueError, TypeError), match="cv"):
        compare(*unrelated(), **given)


def test_a_choice_that_harms_the_worst_group_beyond_chance_is_never_taken():
    harmful = change(-0.02, -0.4, spread=0.01)  # however much the average falls
    changes = {"ERM": NONE, "GDRO": change(0.0, 0.2), "CV choice": harmful}
    assert harmful.net > 0
    assert harmful.worse
    assert recommend(changes, Choice(0.1, "Chose robustness 0.1.")) == "ERM"


def test_nothing_is_said_of_the_worst_where_no_group_can_be_judged():
    X, y, groups = flipped()
    found = compare(X, y, groups, min_rows=10**6)
    assert found.verdict.startswith("No group has enough held-out rows to be judged")
    assert (found.worth_it, found.recommended, found.headroom) == (False, "ERM", None)
    assert sorted(found.left_out) == ["east", "rare", "west"]
    assert np.isnan(found.changes["GDRO"].fall[1:]).all()


def test_a_headroom_is_only_that_of_the_loss_that_is_compared():
    found = compare(*flipped(), loss="zero_one")
    assert np.isnan(found.columns["worst_regret"]).all()  # whose references are of the logarithmic loss
    assert found.headroom is None
    assert "headroom" not in found.verdict
