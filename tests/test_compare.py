import functools

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn import config_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from groupdro import GroupBy, GroupDROClassifier, GroupDRORegressor, GroupStratifiedKFold, compare, group_report
from groupdro.evaluation.folds import keep_classes

MODELS = ["ERM", "balanced ERM", "GDRO", "MERO"]
KINDS = ["binary", "multi-class", "regression"]


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
    return compare(*train, held_out=held_out)


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


@pytest.mark.parametrize("seed", range(3))
def test_robustness_is_found_to_help_where_a_rare_group_has_a_flipped_feature(seed):
    found = compare(*flipped(seed=seed))
    assert found.worth_it is True
    assert found.gain[0] > 0.1
    assert 0.0 < found.gain[1] <= found.gain[0] <= found.gain[2]
    assert found.verdict.startswith("Robustness helps: the worst held-out group's risk is ")
    assert by_model(found, "worst_group")["ERM"] == "rare"
    assert by_model(found, "worst_risk")["GDRO"] < by_model(found, "worst_risk")["ERM"]
    assert by_model(found, "worst_accuracy")["GDRO"] > by_model(found, "worst_accuracy")["ERM"]
    assert found.left_out == []


@pytest.mark.parametrize("seed", range(3))
def test_robustness_is_found_to_buy_nothing_where_groups_are_random_labels(seed):
    found = compare(*unrelated(seed=seed))
    assert found.worth_it is False
    assert found.gain[1] <= 0.0 <= found.gain[2]
    assert found.verdict.startswith("Robustness buys nothing here that the held-out rows can show")


def test_robustness_is_found_to_harm_where_the_worst_group_of_the_training_rows_misleads():
    X, y, groups = flipped()
    held_out = X, y, np.where(groups == "rare", "west", groups)
    turned = X * np.where(groups == "rare", -1.0, 1.0)[:, None], y, held_out[2]
    found = compare(X, y, groups, held_out=turned)
    assert found.worth_it is False
    assert found.gain[2] < 0.0
    assert found.verdict.startswith("Robustness harms here: the worst held-out group's risk is ")


@pytest.mark.parametrize("kind", KINDS)
def test_the_verdict_tells_the_numbers_of_the_table(kind):
    found = compared(kind)
    measure = "rmse" if kind == "regression" else "accuracy"
    risk, worst, mean = (by_model(found, key) for key in ("worst_risk", f"worst_{measure}", "mean_risk"))
    assert f"{risk['ERM']:.4g} under ERM, {risk['GDRO']:.4g} under GDRO" in found.verdict
    assert f"(95% confidence interval of the improvement {found.gain[1]:.2g} to {found.gain[2]:.2g})" in found.verdict
    shown = f"Worst-group {measure}: {worst['ERM']:.4g} under ERM, {worst['GDRO']:.4g} under GDRO."
    assert shown in found.verdict
    assert f"the average risk changes by {mean['GDRO'] - mean['ERM']:+.2g}" in found.verdict.lower()
    best = min(risk, key=risk.get)
    told = f"{best} has the least worst-group risk, {risk[best]:.4g}."
    assert (told in found.verdict) == (best not in ("ERM", "GDRO"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_gain_is_the_fall_of_the_worst_risk_with_an_interval_of_resampled_rows(kind):
    found = compare(*halves(kind)[0], held_out=halves(kind)[1], confidence=0.8, n_bootstrap=2000)
    X, y, groups = halves(kind)[1]
    before, after = (losses_by_hand(found.models[name], X, y)[0] for name in ("ERM", "GDRO"))
    names, rng = np.unique(groups), np.random.default_rng(7)
    fall = max(before[groups == name].mean() for name in names) - max(after[groups == name].mean() for name in names)
    np.testing.assert_allclose(found.gain[0], fall, rtol=1e-9)
    worst = np.full((2, 2000), -np.inf)
    for name in names:
        own = np.flatnonzero(groups == name)
        for k in range(2000):
            drawn = rng.choice(own, len(own))
            worst[:, k] = np.maximum(worst[:, k], [before[drawn].mean(), after[drawn].mean()])
    falls = worst[0] - worst[1]
    np.testing.assert_allclose(found.gain[1:], np.quantile(falls, [0.1, 0.9]), atol=0.25 * falls.std())


def test_a_higher_confidence_makes_a_wider_interval():
    train, held_out = halves("binary")
    narrow, wide = (compare(*train, held_out=held_out, confidence=level).gain for level in (0.5, 0.99))
    assert wide[1] < narrow[1] < narrow[2] < wide[2]


# ---------------------------------------------------------------------- the table


@pytest.mark.parametrize("kind", KINDS)
def test_each_entry_of_the_table_is_the_one_computed_by_hand(kind):
    found = compared(kind)
    train, (X, y, groups) = halves(kind)
    measure = "rmse" if kind == "regression" else "accuracy"
    assert found.columns["model"] == list(found.models) == list(found.reports) == MODELS
    risks = ["mean_risk", "worst_risk", "worst_group", "worst_regret"]
    assert list(found.columns) == ["model", *risks, measure, f"worst_{measure}", "gap", "seconds"]
    names = np.unique(groups)
    least = {}
    for name in names:
        own = train[2] == name
        kind_of_model = GroupDRORegressor if kind == "regression" else GroupDROClassifier
        alone = kind_of_model(tol=1e-8).fit(train[0][own], train[1][own], groups=np.zeros(own.sum()))
        least[name] = alone.upper_bound_
    for k, model in enumerate(found.models.values()):
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
        assert repr(report) == repr(group_report(found.models[name], X, y, groups))


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
    assert found.gain == expected.gain
    assert found.reports["ERM"].overall["n"] == len(test)


def test_the_seed_decides_what_is_held_out():
    X, y, groups = arrays("binary")
    first, again, other = (compare(X, y, groups, random_state=seed) for seed in (1, 1, 2))
    assert first.gain == again.gain
    assert first.gain != other.gain


@pytest.mark.parametrize("given", [True, False], ids=["held out", "a fold"])
@pytest.mark.parametrize("container", ["list", "pandas", "polars", "csr_array", "csr_matrix"])
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
    np.testing.assert_allclose(found.gain, expected.gain, rtol=1e-2)


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


def test_missing_group_labels_are_a_group_where_the_estimator_takes_them():
    X, y, groups = arrays("binary")
    holes = np.where(groups == "rare", None, groups.astype(object))
    found = compare(X, y, holes, estimator=GroupDROClassifier(missing_group="own"))
    assert by_model(found, "worst_group")["ERM"] == "(missing)"
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
    np.testing.assert_allclose(found.gain, by_hand.gain, rtol=1e-6)
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
    assert found == ("ended" if how == "ctrl-c" else 4)


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
    assert "too few held-out rows to be judged" in found.verdict
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
    assert found.columns["worst_group"] == ["new"] * 4
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
    assert shown.count("<tr>") == 5
    assert "<p>Robustness helps: the worst held-out group&#x27;s risk is " in shown


def test_a_class_of_a_single_row_stays_in_training():
    X, y, groups = flipped()
    y = np.where(y == 1, "yes", "no").astype(object)
    for place in (3, 700, 1500):
        rare = y.copy()
        rare[place] = "maybe"
        found = compare(X[:1600], rare[:1600], groups[:1600], n_bootstrap=10)
        assert list(found.models["ERM"].classes_) == ["maybe", "no", "yes"]


def test_counts_are_numbers():
    X, _, groups = unrelated()
    counts = np.random.default_rng(0).poisson(30, len(X))
    assert isinstance(compare(X, counts, groups, n_bootstrap=10).models["GDRO"], GroupDRORegressor)


def test_sparse_groups_of_any_format_and_references_are_taken():
    X, y, groups = unrelated()
    member = sp.coo_array(np.column_stack([groups == name for name in "abc"]))
    references = {0: 0.5, 1: 0.5, 2: 0.5}
    estimator = GroupDROClassifier("excess_risk", reference_risks=references)
    found = compare(X, y, member, estimator=estimator, n_bootstrap=10)
    assert found.models["ERM"].reference_risks is None
    assert found.models["MERO"].reference_risks_.tolist() == [0.5, 0.5, 0.5]


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
