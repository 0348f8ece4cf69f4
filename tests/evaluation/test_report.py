import datetime
import functools
import html
import pickle
import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from scipy.stats import binomtest
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, QuantileRegressor
from sklearn.metrics import log_loss, mean_pinball_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from groupdro import (
    GroupBy,
    GroupDROClassifier,
    GroupDRORegressor,
    Predictions,
    SmallGroupWarning,
    compare,
    find_groups,
    group_report,
    headroom,
    worst_group_scorer,
)
from groupdro.data.training_digest import rows_digest
from groupdro.evaluation.report import GroupReport
from groupdro.losses import Huber, Quantile

SIZES = {"east": 90, "north": 60, "south": 45, "west": 20}
N = sum(SIZES.values())
KINDS = ["binary", "text labels", "multi-class", "squared_hinge", "squared", "huber", "pipeline", "foreign", "svc"]


def objects(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


@functools.cache
def arrays(n_classes=2):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3)) * [1.0, 5.0, 0.2] + [0.0, 2.0, 0.0]
    groups = rng.permutation(np.repeat(list(SIZES), list(SIZES.values())))
    signal = X @ [1.0, 0.2, -2.0] + np.where(groups == "south", -1.5, 0.0) + rng.logistic(size=N)
    if not n_classes:
        return X, signal, groups
    return X, np.searchsorted(np.quantile(signal, np.arange(1, n_classes) / n_classes), signal), groups


@functools.cache
def fitted(kind):
    X, y, groups = arrays({"multi-class": 3, "squared": 0, "huber": 0}.get(kind, 2))
    if kind == "text labels":
        y = np.where(y == 1, "yes", "no")
    if kind == "pipeline":
        model = make_pipeline(StandardScaler(), GroupDROClassifier()).fit(X, y, groupdroclassifier__groups=groups)
    elif kind == "foreign":
        model = LogisticRegression().fit(X, y)
    elif kind == "svc":
        model = LinearSVC().fit(X, y)
    elif kind in ("squared", "huber"):
        model = GroupDRORegressor(loss=Huber(0.7) if kind == "huber" else kind).fit(X, y, groups=groups)
    else:
        loss = "squared_hinge" if kind == "squared_hinge" else "logistic"
        model = GroupDROClassifier(loss=loss).fit(X, y, groups=groups)
    return model, X, y, groups


def rows_by_hand(kind):
    model, X, y, _ = fitted(kind)
    inner = model[-1] if kind == "pipeline" else model
    if kind == "pipeline":
        X = (X - X.mean(axis=0)) / X.std(axis=0)
    outputs = X @ np.atleast_2d(inner.coef_).T + inner.intercept_
    if kind in ("squared", "huber"):
        r = outputs[:, 0] - y
        loss = 0.5 * r**2 if kind == "squared" else np.where(abs(r) <= 0.7, 0.5 * r**2, 0.7 * (abs(r) - 0.35))
        return {"loss": loss, "residual": r}
    if outputs.shape[1] == 1:
        outputs = np.column_stack([np.zeros(N), outputs[:, 0]])
    codes = np.array([list(inner.classes_).index(label) for label in y])
    chosen = (outputs == outputs.max(axis=1, keepdims=True)).argmax(axis=1)
    right = (chosen == codes).astype(float)
    if kind == "svc":
        return {"loss": 1.0 - right, "right": right}
    if kind == "squared_hinge":
        margin = np.where(codes == 1, outputs[:, 1], -outputs[:, 1])
        return {"loss": 0.5 * np.maximum(0.0, 1.0 - margin) ** 2, "right": right}
    probability = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    return {"loss": -np.log(probability[np.arange(N), codes]), "right": right, "sure": probability.max(axis=1)}


def calibration_error(sure, right):
    edges = np.linspace(0.0, 1.0, 11)
    total = 0.0
    for k in range(10):
        inside = (sure >= edges[k]) & ((sure < edges[k + 1]) | (k == 9))
        if inside.any():
            total += inside.mean() * abs(sure[inside].mean() - right[inside].mean())
    return total


def summary_by_hand(rows, inside):
    rows = {name: values[inside] for name, values in rows.items()}
    found = {"n": int(inside.sum()), "risk": rows["loss"].mean()}
    if "residual" in rows:
        return found | {"rmse": np.sqrt((rows["residual"] ** 2).mean()), "bias": rows["residual"].mean()}
    found["accuracy"] = rows["right"].mean()
    if "sure" in rows:
        found["overconfidence"] = rows["sure"].mean() - rows["right"].mean()
        found["ece"] = calibration_error(rows["sure"], rows["right"])
    return found


def by_group(report):
    rows = zip(*report.columns.values(), strict=True)
    return {row[0]: dict(zip(report.columns, row, strict=True)) for row in rows}


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_is_the_one_computed_by_hand(kind):
    model, X, y, groups = fitted(kind)
    report = group_report(model, X, y, groups, n_bootstrap=0)
    rows, found = rows_by_hand(kind), by_group(report)
    assert set(found) == set(SIZES)
    inner = model[-1] if kind == "pipeline" else model
    for name, row in found.items():
        expected = summary_by_hand(rows, groups == name)
        second = "rmse" if "rmse" in expected else "accuracy"
        ends = {f"{metric}_{end}" for metric in ("risk", second) for end in ("low", "high")}
        knows_groups = kind not in ("foreign", "svc")
        assert set(row) == {"group", *expected, *ends, *(["weight"] if knows_groups else []), "note"}
        for key, value in expected.items():
            np.testing.assert_allclose(row[key], value, rtol=1e-9, atol=1e-12, err_msg=f"{name} {key}")
        # The largest squared residuals carry the loss of the groups with fewer than 90 rows.
        few = kind == "squared" and name in ("north", "south")
        assert row["note"] == ("small" if name == "west" else "few errors" if few else "")
        if knows_groups:
            assert row["weight"] == inner.group_weights_[inner.groups_.tolist().index(name)]
    for key, value in summary_by_hand(rows, np.full(N, True)).items():
        np.testing.assert_allclose(report.overall[key], value, rtol=1e-9, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_ordered_from_the_largest_risk_to_the_smallest(kind):
    report = group_report(*fitted(kind), n_bootstrap=0)
    for kind in (True, False):  # judged groups first
        risks = [risk for risk, judged in zip(report.columns["risk"], report.judged, strict=True) if judged == kind]
        assert risks == sorted(risks, reverse=True)
    judged = [name for name, note in zip(report.columns["group"], report.columns["note"], strict=True) if not note]
    assert report.judged == [name in judged for name in report.columns["group"]]
    assert "west" not in judged
    assert report.worst_group == judged[0]


@pytest.mark.parametrize("confidence", [0.5, 0.9])
@pytest.mark.parametrize("kind", ["binary", "huber"])
def test_intervals_are_those_of_the_largest_studentised_deviation(kind, confidence):
    report = group_report(*fitted(kind), n_bootstrap=4000, confidence=confidence)
    losses, groups = rows_by_hand(kind)["loss"], fitted(kind)[3]
    assert report.confidence == confidence
    judged = [name for name in SIZES if SIZES[name] >= 30]
    rng, highest, lowest = np.random.default_rng(1), np.full(4000, -np.inf), np.full(4000, np.inf)
    for name in judged:
        own = losses[groups == name]
        drawn = own[rng.integers(0, len(own), (4000, len(own)))]
        error = np.maximum(drawn.std(axis=1), 0.25 * own.std()) / np.sqrt(len(own))
        deviation = (drawn.mean(axis=1) - own.mean()) / error
        highest, lowest = np.maximum(highest, deviation), np.minimum(lowest, deviation)
    tail = 0.5 * (1.0 - confidence)
    below, above = np.quantile(highest, 1.0 - tail), -np.quantile(lowest, tail)
    ends = []
    for name, row in by_group(report).items():
        if name not in judged:
            assert np.isnan([row["risk_low"], row["risk_high"]]).all()
            continue
        own = losses[groups == name]
        error = own.std() / np.sqrt(len(own))
        ends.append((row["risk_low"], row["risk_high"]))
        reach = np.array([-below, above])
        np.testing.assert_allclose((ends[-1] - own.mean()) / error, reach, rtol=0.15, atol=0.2)
    risks = [row["risk"] for name, row in by_group(report).items() if name in judged]
    assert report.worst_value == (max(risks), max(low for low, _ in ends), max(high for _, high in ends))
    assert report.worst_value[0] < report.limit < report.worst_value[2]


def test_the_sentence_has_the_worst_judged_group_and_the_limit():
    model, X, y, groups = fitted("binary")
    report = group_report(model, X[::2], y[::2], groups[::2], min_rows=15)
    notes = {note for note in report.columns["note"] if note}
    assert notes == {"few errors", "small"}
    row = report.worst_row
    assert row["group"] == report.worst_group
    assert row["note"] == ""
    stated = {"worst": row["risk"], "overall": report.overall["risk"], "limit": report.limit}
    assert all(f"{value:.3g}" in report.message for value in stated.values())
    assert report.worst_group in report.message
    for shown in (repr(report), report._repr_html_()):
        assert report.message in html.unescape(shown)
    trained = group_report(model, X, y, groups)
    assert f"{trained.limit:.3g}" not in trained.message  # which would be a promise for new rows
    none = group_report(model, X[1:], y[1:], groups[1:], min_rows=1000)
    assert none.worst_group is None
    assert not any(none.judged)
    assert np.isnan([*none.worst_value, none.limit]).all()
    assert not re.search(r"\d", none.message)
    alone = group_report(model, X[1:], y[1:])
    assert f"{alone.limit:.3g}" in alone.message


def test_weights_count_as_copies_do_but_no_rows_are_added():
    model, X, y, groups = fitted("binary")
    copies = np.random.default_rng(2).integers(0, 4, N)
    weighted = group_report(model, X, y, groups, sample_weight=copies, n_bootstrap=0)
    again = np.repeat(np.arange(N), copies)
    copied = group_report(model, X[again], y[again], groups[again], n_bootstrap=0)
    for name, row in by_group(weighted).items():
        own = copies[groups == name]
        assert row["n"] == (own > 0).sum()
        assert row["effective_n"] == pytest.approx(own.sum() ** 2 / (own**2).sum())
        for key in ("risk", "accuracy", "overconfidence", "ece"):
            np.testing.assert_allclose(row[key], by_group(copied)[name][key], rtol=1e-9, atol=1e-12)
    for key in ("risk", "accuracy", "overconfidence", "ece"):
        np.testing.assert_allclose(weighted.overall[key], copied.overall[key], rtol=1e-9, atol=1e-12)


def test_equal_weights_change_nothing_but_a_column():
    model, X, y, groups = fitted("squared")
    plain, weighted = (
        group_report(model, X, y, groups),
        group_report(model, X, y, groups, sample_weight=np.full(N, 0.3)),
    )
    assert weighted.columns.pop("effective_n") == pytest.approx(plain.columns["n"])
    for key, values in plain.columns.items():
        expected = values if key in ("group", "note") else pytest.approx(values, nan_ok=True)
        assert weighted.columns[key] == expected, key


def test_rows_of_one_cluster_say_less_than_rows_of_many():
    model, X, y, groups = fitted("binary")
    again = np.repeat(np.arange(N), 5)
    alone = by_group(group_report(model, X, y, groups))
    blind = by_group(group_report(model, X[again], y[again], groups[again]))
    found = by_group(group_report(model, X[again], y[again], groups[again], cluster=again))
    for name in ("north", "south"):
        width = {key: part[name]["risk_high"] - part[name]["risk_low"] for key, part in
                 {"alone": alone, "blind": blind, "found": found}.items()}  # fmt: skip
        assert width["found"] == pytest.approx(width["alone"], rel=0.15)
        assert width["blind"] < 0.6 * width["alone"]
        assert found[name]["effective_n"] == pytest.approx(alone[name]["n"])
    assert found["west"]["note"] == "small"
    assert blind["west"]["note"] == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sample_weight": np.ones(N - 1)}, "sample_weight must have one value per row"),
        ({"sample_weight": -np.ones(N)}, "sample_weight has negative values"),
        ({"sample_weight": np.zeros(N)}, "sample_weight is zero on all rows"),
        ({"sample_weight": np.full(N, np.nan)}, "sample_weight has NaN"),
        ({"cluster": np.ones(3)}, "cluster has 3 rows but X has"),
        ({"cluster": np.full(N, np.nan)}, "cluster has missing values"),
        ({"cluster": np.where(np.arange(N) < 9, None, "p")}, "cluster has missing values"),
        ({"cluster": pd.array(["p"] * (N - 1) + [pd.NA], dtype="string")}, "cluster has missing values"),
        ({"n_bootstrap": 19}, "n_bootstrap=19 is too small for a confidence of 0.95: use at least 20"),
        ({"confidence": 0.9999}, "use at least 10000"),
    ],
)
def test_weights_and_clusters_that_make_no_sense_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        group_report(*fitted("binary"), **given)


def test_the_seed_alone_decides_the_intervals():
    first, again, other = (group_report(*fitted("binary"), random_state=seed) for seed in (3, 3, 4))
    assert first.to_frame().equals(again.to_frame())
    for end in ("risk_low", "risk_high"):
        assert first.by_group["east"][end] != other.by_group["east"][end]
    assert first.columns["risk"] == other.columns["risk"]


def test_the_intervals_of_a_report_cover_all_true_risks_together_about_as_often_as_they_say():
    rng, covered, n = np.random.default_rng(6), 0, 200
    groups = np.repeat(np.arange(20), 100)
    model = DummyRegressor(strategy="constant", constant=0.0).fit(np.zeros((2, 1)), np.zeros(2))
    for _ in range(n):
        y = rng.normal(size=len(groups))
        columns = group_report(model, np.zeros((len(y), 1)), y, groups, n_bootstrap=300, confidence=0.9).columns
        low, high = np.array(columns["risk_low"]), np.array(columns["risk_high"])
        covered += bool(((low <= 0.5) & (high >= 0.5)).all())
    assert 0.9 - 3.1 * np.sqrt(0.09 / n) - 0.02 <= covered / n <= 0.99


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_nothing_is_said_of_fewer_than_ten_rows(rows):
    model, X, y, groups = fitted("binary")
    groups = np.where(np.arange(N) < rows, "few", groups)
    row = by_group(group_report(model, X, y, groups, min_rows=0))["few"]
    assert np.isnan([row["risk_low"], row["risk_high"]]).all()


def losses_as_they_are(y, predicted):
    return y + 0.0 * predicted


def reported(losses, groups, **given):
    model = DummyRegressor().fit(np.zeros((2, 1)), np.zeros(2))
    return group_report(model, np.zeros((len(losses), 1)), losses, groups, loss=losses_as_they_are, **given)


def test_constant_predictions_are_the_reason_if_no_group_can_be_judged():
    y, groups = np.tile([0, 1], 150), np.repeat(["a", "b", "c"], 100)
    message = group_report(Predictions(probability=np.full(300, 0.5)), y=y, groups=groups).message
    assert "of all rows is equal" in message
    assert "too few" not in message
    assert "predicts the same for every row" in message
    number = group_report(Predictions(np.full(300, 0.5)), y=np.arange(300.0), groups=groups)
    assert number.judged == [True] * 3
    assert "predicts the same for every row" in number.message
    varied = group_report(Predictions(np.arange(300.0)), y=np.arange(300.0) ** 1.1, groups=groups)
    assert "for every row" not in varied.message


def test_a_metric_that_is_undefined_is_the_reason_if_no_group_can_be_judged():
    y, groups = np.repeat([0, 1, 0], 100), np.repeat(["a", "b", "c"], 100)
    chances = np.random.default_rng(0).random(300)
    message = group_report(Predictions(probability=chances), y=y, groups=groups, metrics="roc_auc").message
    assert "is undefined in all of them" in message


@pytest.mark.parametrize("constant", [0.0, 0.1, np.log(2.0), 7.0])
def test_nothing_is_said_of_rows_that_are_all_alike(constant):
    rng = np.random.default_rng(0)
    report = reported(np.r_[np.full(50, constant), rng.exponential(size=50)], np.repeat(["alike", "mixed"], 50))
    found = by_group(report)
    assert np.isnan([found["alike"]["risk_low"], found["alike"]["risk_high"]]).all()
    assert found["mixed"]["risk_low"] < found["mixed"]["risk"] < found["mixed"]["risk_high"]
    assert (found["alike"]["note"], found["mixed"]["note"]) == ("equal values", "")
    assert report.worst_group == "mixed"
    assert report.worst_value[0] == found["mixed"]["risk"]


def test_few_errors_have_the_intervals_of_the_binomial_distribution():
    wrong = np.r_[np.ones(30), np.zeros(270), np.ones(1), np.zeros(299), np.zeros(100)]
    groups = np.repeat(["some", "one", "none"], [300, 300, 100])
    found = by_group(report := reported(wrong, groups))
    for name, errors, n in (("some", 30, 300), ("one", 1, 300), ("none", 0, 100)):
        exact = binomtest(errors, n).proportion_ci(1.0 - 0.05 / 3, method="exact")
        np.testing.assert_allclose([found[name]["risk_low"], found[name]["risk_high"]], exact, rtol=1e-6, atol=1e-9)
    assert 0.1 < report.limit <= report.worst_value[2] < 0.16
    # Copies of a row are no further rows, and neither weights nor their scale make any.
    doubled = reported(np.repeat(wrong, 2), np.repeat(groups, 2), cluster=np.repeat(np.arange(700), 2))
    np.testing.assert_allclose(doubled.worst_value, report.worst_value, rtol=1e-6)
    weighed = reported(wrong, groups, sample_weight=np.full(700, 1e-300))
    np.testing.assert_allclose(weighed.worst_value, report.worst_value, rtol=1e-6)


def test_nothing_is_said_where_all_losses_are_zero():
    report = reported(np.zeros(100), np.repeat(["a", "b"], 50))
    assert report.worst_group is None
    assert np.isnan([*report.columns["risk_low"], report.limit]).all()


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_rare_losses_of_a_group_do_not_widen_the_intervals_of_others_beyond_use(share):
    rng = np.random.default_rng(0)
    rare = np.where(rng.random(100) < share, rng.exponential(size=100), 0.0)
    common = rng.exponential(size=2000)
    found = by_group(reported(np.r_[rare, common], np.repeat(["rare", "common"], [100, 2000])))["common"]
    assert found["risk_high"] - found["risk"] < 12 * common.std() / np.sqrt(2000)


def test_the_interval_of_a_group_of_one_row_is_nan():
    model, X, y, groups = fitted("binary")
    groups = np.where(np.arange(N) == 7, "alone", groups)
    row = by_group(group_report(model, X, y, groups))["alone"]
    assert row["n"] == 1
    assert np.isfinite(row["risk"])
    assert np.isnan([row["risk_low"], row["risk_high"]]).all()
    assert row["note"] == "small, unseen"


@pytest.mark.parametrize(
    ("min_rows", "small"), [(0, set()), (21, {"west"}), (46, {"west", "south"}), (1000, set(SIZES))]
)
def test_groups_of_fewer_rows_than_min_rows_are_noted_as_small(min_rows, small):
    report = group_report(*fitted("binary"), min_rows=min_rows, n_bootstrap=0)
    assert {name for name, row in by_group(report).items() if row["note"] == "small"} == small


def by_hand(columns, judged, overall=None, **given):
    """Return a report of the risk alone."""
    n = len(columns["group"])
    columns = {"group": columns["group"], "n": [40] * n, **columns}
    fixed = {"metrics": ("risk",), "larger_is_better": False, "confidence": 0.95, "title": "title"}
    return GroupReport(columns, overall or {}, judged=judged, **{**fixed, **given})


def test_the_worst_group_is_the_first_that_is_judged():
    columns = {"group": ["a", "b", "c", "d"], "risk": [3.0, 2.0, 1.0, np.nan]}
    columns["note"] = ["small", "small, unseen", "unseen", "absent"]
    report = by_hand(columns, [False, False, True, False])
    assert report.worst_group == "c"
    assert report.worst_row == {"group": "c", "n": 40, "risk": 1.0, "note": "unseen"}
    report = by_hand({**columns, "note": ["small"] * 3 + ["absent"]}, [False] * 4)
    assert report.worst_group is None
    assert report.worst_row == {"group": "a", "n": 40, "risk": 3.0, "note": "small"}
    assert report.by_group["b"]["risk"] == 2.0


def test_groups_that_are_judged_come_first_and_the_worst_of_them_is_the_first_row():
    X, y, groups = arrays()
    model = fitted("foreign")[0]
    rare = np.where(np.arange(N) < 6, "few", np.where(np.arange(N) < 9, "fewer", groups))
    for metrics in ("accuracy", "recall", "risk"):
        report = group_report(model, X, y, rare, metrics=metrics, min_rows=30)
        assert report.judged == sorted(report.judged, reverse=True)
        assert not all(report.judged)
        assert report.worst_group == report.columns["group"][0] == report.to_frame()["group"][0]
        sign = 1.0 if report.larger_is_better else -1.0
        for kind in (True, False):
            values = [v for v, judged in zip(report.columns[metrics], report.judged, strict=True) if judged == kind]
            values = [sign * value for value in values if not np.isnan(value)]
            assert values == sorted(values)


# ---------------------------------------------------------------------- denominators and remarks


def test_denominators_are_counted_for_metrics_of_some_rows():
    X, y, groups = arrays()
    model = fitted("foreign")[0]
    names = ["recall", "precision", "false_positive_rate", "roc_auc", "accuracy"]
    report = group_report(model, X, y, groups, metrics=names, n_bootstrap=0)
    chosen = model.predict(X) == 1
    for group, row in [*report.by_group.items(), ("all", report.overall)]:
        own = (groups == group) | (group == "all")
        positive, negative = int((y[own] == 1).sum()), int((y[own] == 0).sum())
        assert row["n_recall"] == positive
        assert row["n_precision"] == int(chosen[own].sum())
        assert row["n_false_positive_rate"] == negative
        assert row["n_roc_auc"] == min(positive, negative)
        assert "n_accuracy" not in row


def test_a_note_of_few_rows_shows_how_many_they_are():
    X, y, groups = arrays()
    for n, note in ((4, "few rows"), (0, "undefined")):
        kept = (groups != "east") | (y == 0) | (np.cumsum((groups == "east") & (y == 1)) <= n)
        report = group_report(fitted("foreign")[0], X[kept], y[kept], groups[kept], metrics="recall")
        assert report.by_group["east"]["note"] == note
        assert report.main_columns["n_recall"][report.columns["group"].index("east")] == n
    assert "n_recall" not in group_report(*fitted("foreign")[:3], groups, metrics="accuracy").main_columns


def test_actual_and_expected_are_weighted_sums():
    model, X, y, groups = fitted("squared")
    amounts, expected = np.exp(0.3 * y), np.exp(0.3 * model.predict(X))
    weight = np.random.default_rng(0).uniform(0.5, 2.0, N)
    names = ["mae", "actual_over_expected"]
    report = group_report(
        Predictions(expected), y=amounts, groups=groups, metrics=names, sample_weight=weight, n_bootstrap=0
    )
    for group, row in [*report.by_group.items(), ("all", report.overall)]:
        own = (groups == group) | (group == "all")
        assert row["actual"] == pytest.approx((weight * amounts)[own].sum())
        assert row["expected"] == pytest.approx((weight * expected)[own].sum())
        assert row["actual_over_expected"] == pytest.approx(row["actual"] / row["expected"])


@pytest.mark.parametrize("kind", ["classes", "numbers"])
@pytest.mark.parametrize("metrics", ["risk", None])
def test_a_model_without_errors_is_suspected_of_a_leak(kind, metrics):
    X, y, groups = arrays(2 if kind == "classes" else 0)
    leak = np.column_stack([X, y])
    half = np.arange(N) < N // 2
    model = (DecisionTreeClassifier() if kind == "classes" else LinearRegression()).fit(leak[half], y[half])
    assert "leak" in group_report(model, leak[~half], y[~half], groups[~half], metrics=metrics).message
    assert "leak" not in group_report(fitted("foreign")[0], X, arrays()[1], groups).message


def test_a_comparison_without_errors_names_the_leak_too():
    X, y, groups = arrays()
    leak = np.column_stack([X, 100.0 * y])
    half = np.arange(N) < N // 2
    held_out = leak[~half], y[~half], groups[~half]
    assert "leak" in compare(leak[half], y[half], groups[half], held_out=held_out, cv=None).verdict


def test_a_comparison_says_if_the_held_out_rows_are_the_training_rows():
    X, y, groups = arrays()
    assert "training rows" in compare(X, y, groups, held_out=(X, y, groups), cv=None).verdict
    assert "training rows" not in compare(X, y, groups, held_out=(X[1:], y[1:], groups[1:]), cv=None).verdict


@pytest.mark.parametrize("n_classes", [2, 3])
def test_groups_that_are_made_from_the_labels_are_noted(n_classes):
    X, y, groups = arrays(n_classes)
    model = LogisticRegression().fit(X, y)
    assert "one class only" in group_report(model, X, y, y, metrics="accuracy").message
    assert "one class only" in group_report(model, X, y, np.where(y > 0, groups, "none")).message or n_classes == 3
    assert "one class only" not in group_report(model, X, y, groups).message
    assert "one class only" not in group_report(model, X, y).message


QUANTILES = [
    QuantileRegressor(quantile=0.8, alpha=0.0),
    GradientBoostingRegressor(loss="quantile", alpha=0.8, n_estimators=10),
    HistGradientBoostingRegressor(loss="quantile", quantile=0.8, max_iter=10),
    make_pipeline(StandardScaler(), QuantileRegressor(quantile=0.8, alpha=0.0)),
    GroupDRORegressor(loss=Quantile(0.8)),
]


@pytest.mark.parametrize("model", QUANTILES, ids=lambda model: type(model).__name__)
def test_quantile_models_have_the_pinball_loss_and_its_share(model):
    X, y, groups = arrays(0)
    model = clone(model).fit(X, y, **({"groups": groups} if isinstance(model, GroupDRORegressor) else {}))
    predicted = model.predict(X)
    report = group_report(model, X, y, groups, metrics=["risk", "d2"])
    foreign = not isinstance(model, GroupDRORegressor)
    assert ("pinball" in report.title) == foreign
    for group, row in report.by_group.items():
        own = groups == group
        wanted = mean_pinball_loss(y[own], predicted[own], alpha=0.8)
        assert row["risk"] == pytest.approx(wanted)
        # The best constant is found exactly, and not interpolated.
        best = min(mean_pinball_loss(y[own], np.full(own.sum(), each), alpha=0.8) for each in y[own])
        assert row["d2"] == pytest.approx(1.0 - wanted / best)
        assert row["d2_low"] < row["d2"] < row["d2_high"] or row["note"]
    weight = np.random.default_rng(0).integers(1, 4, N).astype(float)
    found = group_report(model, X, y, groups, metrics="d2", sample_weight=weight, n_bootstrap=0)
    copied = np.repeat(np.arange(N), weight.astype(int))
    other = group_report(model, X[copied], y[copied], groups[copied], metrics="d2", n_bootstrap=0)
    assert found.overall["d2"] == pytest.approx(other.overall["d2"])
    if not foreign:
        assert found.overall["d2"] == pytest.approx(model.score(X, y, weight), abs=1e-3)


def test_of_many_groups_the_worst_that_can_be_judged_are_printed():
    n = 2000
    columns = {"group": list(range(n)), "risk": [1.0 - k / n for k in range(n)], "note": ["small", ""] * (n // 2)}
    report = by_hand(columns, [False, True] * (n // 2), {"risk": 0.5})
    for shown in (repr(report), report.summary(details=True)):
        lines = [line.split() for line in shown.split("\n\n")[0].splitlines()]
        assert [int(line[0]) for line in lines if line[0].isdigit() and line[1] == "40"] == list(range(1, 100, 2))
    assert f"50 of {n} groups" in repr(report)
    assert report._repr_html_().count("<tr>") == 2 * (50 + 2)
    assert len(report.to_frame()) == n
    none = by_hand({**columns, "note": ["small"] * n}, [False] * n, {"risk": 0.5})
    numbers = [line.split()[0] for line in repr(none).splitlines() if " 40 " in line]
    assert numbers == [str(k) for k in range(50)]


def test_groups_that_are_not_judged_do_not_change_the_intervals_of_the_others():
    """A thousand groups of three rows are summarised, and not resampled."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(4000, 3)), rng.integers(0, 2, 4000)
    model = LogisticRegression().fit(X, y)
    groups = np.where(np.arange(4000) < 1000, np.arange(4000) % 2, 10 + np.arange(4000) // 3)
    found, few = (by_group(group_report(model, X, y, g)) for g in (groups, np.minimum(groups, 2)))
    assert len(found) > 1000
    for name in (0, 1):
        assert found[name]["risk"] == pytest.approx(few[name]["risk"])
    loss = -np.log(model.predict_proba(X)[np.arange(4000), y])
    for name in (0, 1, 400, 1200):
        assert found[name]["risk"] == pytest.approx(loss[groups == name].mean())
        right = (model.predict(X) == y)[groups == name]
        assert found[name]["accuracy"] == pytest.approx(right.mean())
    assert np.isnan([row["risk_low"] for name, row in found.items() if name > 1]).all()
    assert found[0]["risk_low"] < found[0]["risk"] < found[0]["risk_high"]


def test_groups_that_the_fit_did_not_know_are_noted_and_have_no_weight():
    model, X, y, groups = fitted("binary")
    found = by_group(group_report(model, X, y, np.where(groups == "east", "new", groups)))
    assert found["new"]["note"] == "unseen"
    assert np.isnan(found["new"]["weight"])
    np.testing.assert_allclose(found["new"]["risk"], rows_by_hand("binary")["loss"][groups == "east"].mean())


def test_groups_without_a_row_are_listed_last_with_their_weight():
    model, X, y, groups = fitted("binary")
    inside = (groups == "north") | (groups == "west")
    report = group_report(model, X[inside], y[inside], groups[inside])
    assert set(report.columns["group"][:2]) == {"north", "west"}
    assert report.columns["group"][2:] == ["east", "south"]
    assert report.columns["note"][2:] == ["absent", "absent"]
    assert report.columns["n"][2:] == [0, 0]
    weights = dict(zip(model.groups_.tolist(), model.group_weights_, strict=True))
    assert report.columns["weight"][2:] == [weights["east"], weights["south"]]
    for key in ("risk", "risk_low", "risk_high", "accuracy", "overconfidence", "ece"):
        assert np.isnan(report.columns[key][2:]).all()


def test_groups_that_were_merged_at_fit_are_noted():
    _, X, y, groups = fitted("binary")
    with pytest.warns(SmallGroupWarning, match="2 groups of fewer than"):
        model = GroupDROClassifier(min_group_size=50).fit(X, y, groups=groups)
    found = by_group(group_report(model, X, y, groups))
    assert set(found) == set(SIZES)
    assert {name: row["note"] for name, row in found.items()} == {
        "east": "",
        "north": "",
        "south": "merged",
        "west": "small, merged",
    }
    assert np.isnan([found["south"]["weight"], found["west"]["weight"]]).all()


def test_missing_labels_are_a_row():
    model, X, y, groups = fitted("binary")
    holes = np.where(np.arange(N) % 3 == 0, None, groups.astype(object))
    found = by_group(group_report(model, X, y, holes))
    inside = np.arange(N) % 3 == 0
    assert found["(missing)"]["n"] == inside.sum()
    assert found["(missing)"]["note"] == "unseen"
    np.testing.assert_allclose(found["(missing)"]["risk"], rows_by_hand("binary")["loss"][inside].mean())


@pytest.mark.parametrize("container", ["bool", "sparse", "pandas", "polars"])
def test_a_row_counts_in_each_of_its_overlapping_groups(container):
    _, X, y, groups = fitted("binary")
    membership = np.column_stack([np.full(N, True), groups == "south", X[:, 0] > 0])
    names = ["all of them", "south", "positive"]
    given, expected = {
        "bool": (membership, [0, 1, 2]),
        "sparse": (sp.csr_array(membership), [0, 1, 2]),
        "pandas": (pd.DataFrame(membership, columns=names), names),
        "polars": (pl.DataFrame(membership, schema=names), names),
    }[container]
    overlapping = GroupDROClassifier().fit(X, y, groups=given)
    found = by_group(group_report(overlapping, X, y, given))
    assert set(found) == set(expected)
    outputs = X @ overlapping.coef_[0] + overlapping.intercept_[0]
    losses = np.logaddexp(0.0, np.where(y == 1, -outputs, outputs))
    for name, inside in zip(expected, membership.T, strict=True):
        assert found[name]["n"] == inside.sum()
        np.testing.assert_allclose(found[name]["risk"], losses[inside].mean(), rtol=1e-9)
        assert found[name]["weight"] == overlapping.group_weights_[expected.index(name)]


def test_without_groups_all_rows_are_one_row_without_weight():
    model, X, y, _ = fitted("binary")
    report = group_report(model, X, y)
    assert report.columns["group"] == ["all"]
    assert report.columns["n"] == [N]
    assert report.columns["note"] == [""]
    assert "weight" not in report.columns
    assert report.columns["risk"] == [report.overall["risk"]]


def test_regrets_are_risks_less_the_references_of_the_fit():
    _, X, y, groups = fitted("binary")
    model = GroupDROClassifier("excess_risk").fit(X, y, groups=groups)
    given = np.where((groups == "west") & (X[:, 0] > 0), "new", groups)
    found = by_group(group_report(model, X, y, given))
    for name, reference in zip(model.groups_.tolist(), model.group_minima_, strict=True):
        assert found[name]["regret"] == found[name]["risk"] - reference
    assert np.isnan(found["new"]["regret"])
    keys = list(group_report(model, X, y, given).columns)
    assert keys[2:9] == ["risk", "risk_low", "risk_high", "accuracy", "accuracy_low", "accuracy_high", "regret"]


@pytest.mark.parametrize(
    ("loss", "by_hand"),
    [
        ("log", lambda model, X, y: -model.predict_log_proba(X)[np.arange(N), y]),
        ("zero_one", lambda model, X, y: model.predict(X) != y),
        ("squared", lambda model, X, y: 0.5 * (model.predict(X) - y) ** 2),
        ("absolute", lambda model, X, y: abs(model.predict(X) - y)),
        (lambda y, predicted: 3.0 * (y > predicted), lambda model, X, y: 3.0 * (y > model.predict(X))),
    ],
    ids=["log", "zero_one", "squared", "absolute", "callable"],
)
def test_the_risk_is_of_the_loss_that_is_asked_for(loss, by_hand):
    model, X, y, groups = fitted("binary")
    losses = by_hand(model, X, y)
    for name, row in by_group(group_report(model, X, y, groups, loss=loss, n_bootstrap=0)).items():
        np.testing.assert_allclose(row["risk"], losses[groups == name].mean(), rtol=1e-9)


@pytest.mark.parametrize("container", [list, pd.Series, pl.Series, pd.Categorical])
def test_labels_and_groups_come_in_any_container(container):
    model, X, y, groups = fitted("text labels")
    expected = group_report(model, X, y, groups)
    found = group_report(model, X, container(y.tolist()), container(groups.tolist()))
    assert repr(found) == repr(expected)


def test_reports_of_an_estimator_are_those_of_the_function():
    model, X, y, groups = fitted("binary")
    options = {"n_bootstrap": 50, "confidence": 0.8, "min_rows": 50, "random_state": 2}
    assert repr(model.report(X, y, groups, **options)) == repr(group_report(model, X, y, groups, **options))


# ---------------------------------------------------------------------- frames


def assert_frame_holds(report, groups):
    frame = report.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == list(report.columns)
    assert frame.shape == (len(groups), len(report.columns))
    assert frame["group"].to_list() == groups
    for key in set(report.columns) - {"group"}:
        np.testing.assert_array_equal(frame[key].to_numpy(), report.columns[key])
    return frame


@pytest.mark.parametrize("kind", ["binary", "squared_hinge", "squared", "foreign"])
def test_a_frame_holds_the_table_with_a_type_per_column(kind):
    report = group_report(*fitted(kind))
    frame = assert_frame_holds(report, report.columns["group"])
    assert frame["n"].dtype == np.int64
    assert pd.api.types.is_string_dtype(frame["group"])
    for key in set(report.columns) - {"group", "n", "note"}:
        assert frame[key].dtype == np.float64


@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        ([3, 1, 2], "int64"),
        ([0.25, 1.5, 1e-9], "float64"),
        ([True, False], "bool"),
        ([datetime.date(2020, 1, 2), datetime.date(2021, 3, 4)], "object"),
        (["b", "a"], pd.Series(["b", "a"]).dtype),
    ],
    ids=["int", "float", "bool", "date", "str"],
)
def test_group_names_of_one_kind_keep_their_kind_in_frames(names, dtype):
    model, X, y, _ = fitted("foreign")
    groups = objects(*(names[k % len(names)] for k in range(N)))
    report = group_report(model, X, y, groups)
    frame = assert_frame_holds(report, report.columns["group"])
    assert set(report.columns["group"]) == set(names)
    assert frame["group"].dtype == dtype


def test_groups_of_several_columns_are_text_in_frames():
    model, X, y, groups = fitted("foreign")
    pairs = pd.DataFrame({"place": groups, "old": X[:, 0] > 0})
    report = group_report(model, X, y, pairs)
    assert all(isinstance(name, tuple) for name in report.columns["group"])
    assert_frame_holds(report, [f"{place} & {old}" for place, old in report.columns["group"]])


def test_group_names_of_mixed_kinds_are_text_in_frames():
    model, X, y, _ = fitted("foreign")
    report = group_report(model, X, y, objects(*([1, "one", (1, "x"), 2.5][k % 4] for k in range(N))))
    text = {1: "1", "one": "one", (1, "x"): "1 & x", 2.5: "2.5"}
    assert_frame_holds(report, [text[name] for name in report.columns["group"]])


def test_group_names_of_mixed_kinds_stay_apart_in_frames():
    model, X, y, _ = fitted("foreign")
    report = group_report(model, X, y, objects(*([10115.0, 10119.0, "unknown"][k % 3] for k in range(N))))
    assert report.to_frame()["group"].nunique() == 3


def test_frames_take_absent_groups_of_another_kind():
    model, X, y, _ = fitted("binary")
    report = group_report(model, X, y, np.arange(N) % 2)
    frame = assert_frame_holds(report, [*map(str, report.columns["group"][:2]), *SIZES])
    assert frame["n"].to_list()[2:] == [0, 0, 0, 0]
    assert np.isnan(frame["risk"].to_numpy()[2:]).all()


# ---------------------------------------------------------------------- text and HTML


def printed_rows(text, names):
    """Return the cells of a printed table by group, and its header."""
    lines = [line.split() for line in text.splitlines()]
    header = next(line for line in lines if line and line[0] == "group")
    return header, {line[0]: line[1:] for line in lines if line and line[0] in names}


def test_the_text_is_the_sentence_and_a_table_of_the_metrics():
    report = group_report(*fitted("squared_hinge"))
    assert repr(report) == report.summary()
    assert repr(report).startswith(report.message)
    header, rows = printed_rows(repr(report), SIZES)
    assert header == ["group", "n", "risk", "accuracy", "note"]
    assert list(rows) == report.columns["group"]
    for name, cells in rows.items():
        row = report.by_group[name]
        assert cells == [str(row["n"]), *(f"{row[key]:.4g}" for key in ("risk", "accuracy")), *row["note"].split()]
    total = [f"{report.overall[key]:.4g}" for key in ("risk", "accuracy")]
    assert repr(report).splitlines()[-1].split() == ["(all", "rows)", str(N), *total]


def test_the_details_have_every_other_column():
    report = group_report(*fitted("binary"), linear=True)
    text = report.summary(details=True)
    assert text.startswith(report.summary())
    header, rows = printed_rows(text.removeprefix(report.summary()), SIZES)
    shown = {"n", "risk", "accuracy", "note"}
    assert header == [key for key in report.columns if key not in shown]
    for name, cells in rows.items():
        values = [report.by_group[name][key] for key in header[1:]]
        assert cells == [f"{value:.4g}" for value in values if not np.isnan(value)]
    assert report.headroom.message in text
    assert report.headroom.message not in report.summary()


def test_notes_are_printed_only_if_there_are_any():
    model, X, y, groups = fitted("foreign")
    header, _ = printed_rows(repr(group_report(model, X, y, groups)), SIZES)
    assert header == ["group", "n", "risk", "accuracy", "note"]
    header, _ = printed_rows(repr(group_report(model, X, y, X[:, 0] > 0)), {"True", "False"})
    assert header == ["group", "n", "risk", "accuracy"]


def test_the_columns_of_the_text_are_aligned():
    report = group_report(*fitted("binary"))
    lines = repr(report).splitlines()
    first = next(k for k, line in enumerate(lines) if line.split()[:2] == ["group", "n"])
    end = lines[first].index("risk") + len("risk")
    for line, risk in zip(lines[first + 1 :], report.columns["risk"], strict=False):
        assert line[:end].endswith(f" {risk:.4g}")


def test_group_names_of_several_columns_are_joined_in_the_text():
    model, X, y, groups = fitted("foreign")
    text = repr(group_report(model, X, y, pd.DataFrame({"place": groups, "year": np.arange(N) % 2})))
    lines = [line.strip() for line in text.splitlines()]
    assert any(line.startswith("east & 0 ") for line in lines)
    assert any(line.startswith("west & 1 ") for line in lines)


@pytest.mark.parametrize("names", [[10115.0, 10119.0], [0.12345, 0.12346]])
@pytest.mark.parametrize("show", [repr, GroupReport._repr_html_], ids=["text", "html"])
def test_groups_named_by_numbers_stay_apart_where_they_are_shown(names, show):
    model, X, y, _ = fitted("foreign")
    shown = show(group_report(model, X, y, np.array(names)[np.arange(N) % 2]))
    for name in names:
        assert str(name) in shown or f"{name:g}" in shown


def test_the_html_has_the_cells_of_the_text_and_folds_the_details():
    report = group_report(*fitted("binary"))
    shown = report._repr_html_()
    main, _, details = shown.partition("<details>")
    assert details.endswith("</details>")
    for part in (main, details):
        assert part.count("<tr>") == part.count("</tr>") == 6
        assert part.count("<table>") == part.count("</table>") == 1
    n_main = len(["group", "n", "risk", "accuracy", "note"])
    assert main.count("<td>") == 5 * n_main
    assert details.count("<td>") == 5 * (len(report.columns) - n_main + 1)
    assert all(f"<th>{key}</th>" in shown for key in report.columns)
    for name, row in report.by_group.items():
        assert f"<td>{name}</td><td>{row['n']}</td><td>{row['risk']:.4g}</td>" in main
        assert (
            f"<td>{name}</td><td>{'' if np.isnan(row['risk_low']) else format(row['risk_low'], '.4g')}</td>" in details
        )
    assert f"<td>(all rows)</td><td>{N}</td>" in main


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert('x')</script>",
        '"><img src=x onerror=alert(1)>',
        "a & b",
        "</td></tr></table>",
        ("<b>", "&lt;"),
    ],
    ids=["script", "attribute", "ampersand", "closing tags", "tuple"],
)
def test_the_html_escapes_hostile_group_names(name):
    model, X, y, _ = fitted("foreign")
    shown = group_report(model, X, y, objects(*([name] * N)))._repr_html_()
    plain = group_report(model, X, y, np.full(N, "plain"))._repr_html_()
    assert shown.count("<") == plain.count("<")
    assert shown.count(">") == plain.count(">")
    assert shown.count('"') == plain.count('"') == 0
    text = " & ".join(name) if isinstance(name, tuple) else name
    assert html.escape(text) in shown


def test_the_html_escapes_a_hostile_title_and_note():
    columns = {"group": ["a"], "risk": [1.0], "<i>": [1.0], "note": ["<u>"]}
    shown = by_hand(columns, [True], {"n": 1, "risk": 1.0}, title="<script>")._repr_html_()
    assert not any(tag in shown for tag in ("<i>", "<u>", "<script>"))


# ---------------------------------------------------------------------- wrappers


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_group_by_reports_the_groups_of_its_column(frame, loss):
    _, X, y, groups = fitted("binary")
    table = frame({"a": X[:, 0], "place": groups, "b": X[:, 1], "c": X[:, 2]})
    model = GroupBy(GroupDROClassifier(loss=loss), group_by="place").fit(table, y)
    features = frame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})
    report = model.report(table, y, n_bootstrap=50, confidence=0.8)
    assert repr(report) == repr(group_report(model.estimator_, features, y, groups, n_bootstrap=50, confidence=0.8))
    assert report.confidence == 0.8
    assert [note for note in report.columns["note"] if "unseen" in note] == []
    assert sum(report.columns["weight"]) == pytest.approx(1.0)


def test_group_by_of_several_columns_reports_their_combinations():
    _, X, y, groups = fitted("binary")
    table = pd.DataFrame({"a": X[:, 0], "place": groups, "old": X[:, 1] > 2})
    report = GroupBy(GroupDROClassifier(), group_by=["place", "old"]).fit(table, y).report(table, y)
    assert set(report.columns["group"]) == {(place, old) for place in SIZES for old in (False, True)}


def test_group_by_around_a_regressor_reports_residuals():
    _, X, y, groups = fitted("squared")
    table = pd.DataFrame({"a": X[:, 0], "place": groups})
    model = GroupBy(make_pipeline(StandardScaler(), GroupDRORegressor()), group_by="place").fit(table, y)
    found = by_group(model.report(table, y))
    residual = model.predict(table) - y
    for name, row in found.items():
        np.testing.assert_allclose(row["bias"], residual[groups == name].mean(), rtol=1e-9)
        np.testing.assert_allclose(row["risk"], (residual[groups == name] ** 2).mean() / 2.0, rtol=1e-9)


def test_a_report_without_the_group_column_names_it():
    _, X, y, groups = fitted("binary")
    table = pd.DataFrame({"a": X[:, 0], "place": groups})
    model = GroupBy(GroupDROClassifier(), group_by="place").fit(table, y)
    with pytest.raises(ValueError, match="place"):
        model.report(table[["a"]], y)


def test_the_model_inside_a_search_is_found():
    _, X, y, groups = fitted("binary")
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 2], "place": groups})
    search = GridSearchCV(GroupBy(GroupDROClassifier(), "place"), {"estimator__alpha": [1e-3, 1e-2]}, cv=2)
    found = by_group(group_report(search.fit(table, y), table, y, groups))
    inner = search.best_estimator_.estimator_
    assert {name: row["weight"] for name, row in found.items()} == dict(
        zip(inner.groups_.tolist(), inner.group_weights_, strict=True)
    )


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 2.0, np.nan])
def test_a_confidence_outside_of_zero_to_one_is_refused_by_name(confidence):
    with pytest.raises(ValueError, match=r"^confidence\b"):
        group_report(*fitted("binary"), confidence=confidence)


@pytest.mark.parametrize("n_bootstrap", [-1, 2.5, "many"])
def test_a_wrong_number_of_resamples_is_refused_by_name(n_bootstrap):
    with pytest.raises((TypeError, ValueError), match="n_bootstrap"):
        group_report(*fitted("binary"), n_bootstrap=n_bootstrap)


def test_an_unknown_loss_is_refused_by_name():
    with pytest.raises(ValueError, match=r"^loss must be 'auto', .* got 'hinge'"):
        group_report(*fitted("binary"), loss="hinge")


def test_a_loss_that_is_not_one_number_a_row_is_refused_by_name():
    with pytest.raises(ValueError, match=r"^loss must return one number per row, got shape \(\)"):
        group_report(*fitted("binary"), loss=lambda y, predicted: 1.0)


def test_groups_of_another_length_are_refused_by_name():
    model, X, y, groups = fitted("binary")
    with pytest.raises(ValueError, match=f"groups has {N - 1} rows but X has {N}"):
        group_report(model, X, y, groups[1:])


@pytest.mark.parametrize("kind", ["binary", "multi-class", "squared", "foreign"])
@pytest.mark.parametrize("n_labels", [1, N - 1, N + 1])
def test_labels_of_another_length_than_the_rows_are_refused_by_name(kind, n_labels):
    model, X, y, _ = fitted(kind)
    with pytest.raises(ValueError, match=r"\by\b|inconsistent numbers of samples"):
        group_report(model, X, np.resize(y, n_labels), np.full(n_labels, "a"))


def test_a_class_that_the_fit_did_not_know_is_refused_by_name():
    model, X, y, groups = fitted("binary")
    with pytest.raises(ValueError, match=r"^y has the class .*7.*, which was not seen in fit"):
        group_report(model, X, np.where(np.arange(N) == 3, 7, y), groups)


OTHER_CODES = {
    "bool": (lambda y: y == 1, lambda y: np.where(y == 1, "yes", "no")),
    "number": (lambda y: y, lambda y: y.astype(str)),
    "text": (lambda y: y.astype(str), lambda y: y),
    "shifted": (lambda y: y, lambda y: y + 2),
}


@pytest.mark.parametrize("kind", OTHER_CODES)
@pytest.mark.parametrize("model", [GroupDROClassifier(), LogisticRegression()])
def test_labels_that_a_model_does_not_know_are_refused_wherever_it_is_judged(kind, model):
    X, y, groups = arrays()
    fitted, given = (code(y) for code in OTHER_CODES[kind])
    model = clone(model).fit(X, fitted, **({"groups": groups} if isinstance(model, GroupDROClassifier) else {}))
    judged = [
        lambda: group_report(model, X, given, groups),
        lambda: find_groups(model, X, given),
        lambda: find_groups(model, X, given, metrics="accuracy"),
        lambda: headroom(model, X, given, groups),
        lambda: worst_group_scorer("accuracy")(model, X, given, groups=groups),
        lambda: compare(X, fitted, groups, models={"m": model}, held_out=(X, given, groups), cv=None),
        *([lambda: model.score(X, given)] if isinstance(model, GroupDROClassifier) else []),
    ]
    for judge in judged:
        with pytest.raises(ValueError, match="knows none of them") as error:
            judge()
        for name in (*np.unique(given).tolist(), *np.unique(fitted).tolist()):
            assert repr(name) in str(error.value)


def test_booleans_and_the_numbers_0_and_1_are_the_same_labels():
    X, y, groups = arrays()
    model = LogisticRegression().fit(X, y == 1)
    given, other = (group_report(model, X, labels, groups).to_frame() for labels in (y, y == 1))
    assert given.equals(other)


def test_the_report_names_labels_of_a_class_that_training_never_saw():
    X, y, groups = arrays(3)
    model = LogisticRegression().fit(X[y < 2], y[y < 2])
    found = group_report(model, X, y, groups)
    assert "does not know the labels [2]" in found.message
    assert "labels" not in group_report(model, X[y < 2], y[y < 2], groups[y < 2]).message


@pytest.mark.parametrize("kind", ["series", "array", "objects", "list"])
def test_missing_labels_of_pandas_are_named(kind):
    X, y, groups = arrays()
    labels = pd.Series(y == 1).astype("boolean")
    labels[3] = pd.NA
    given = {"series": labels, "array": labels.array, "objects": labels.to_numpy(), "list": list(labels)}[kind]
    own = fitted("binary")[0]
    for judge in (
        lambda: group_report(own, X, given, groups),
        lambda: own.score(X, given),
        lambda: GroupDROClassifier().fit(X, given, groups=groups),
        lambda: GroupDRORegressor().fit(X, given, groups=groups),
    ):
        with pytest.raises(ValueError, match="y has missing"):
            judge()


def test_a_model_that_is_not_fitted_is_refused():
    _, X, y, groups = fitted("binary")
    with pytest.raises(NotFittedError):
        group_report(GroupDROClassifier(), X, y, groups)


@pytest.mark.parametrize("kind", ["binary", "multi-class", "squared", "foreign"])
def test_labels_in_a_column_are_read_as_they_are_or_refused_by_name(kind):
    model, X, y, groups = fitted(kind)
    try:
        found = repr(group_report(model, X, y[:, None], groups))
    except ValueError as error:
        found = str(error)
    assert found == repr(group_report(model, X, y, groups)) or re.search(r"\by\b", found)


def test_probabilities_of_zero_cost_what_they_do_in_scikit_learn():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 2)), rng.integers(0, 2, 200)
    forest = RandomForestClassifier(5, random_state=0).fit(X[:100], y[:100])
    told = group_report(forest, X[100:], y[100:], n_bootstrap=0)
    assert told.overall["risk"] == pytest.approx(log_loss(y[100:], forest.predict_proba(X[100:])))
    assert told.title == "RandomForestClassifier on 100 rows"


# ---------------------------------------------------------------------- in-sample or not


@pytest.mark.parametrize("kind", ["binary", "text labels", "multi-class", "squared_hinge", "squared", "pipeline"])
def test_a_report_on_the_training_rows_is_marked_as_in_sample(kind):
    model, X, y, groups = fitted(kind)
    report = group_report(model, X, y, groups, n_bootstrap=0)
    assert report.in_sample is True
    changed = X.copy()
    changed[7, 1] += 1e-9
    other = np.array(y)
    other[[0, 1]] = y[y != y[0]][0], y[0]
    for rows, labels in ((X[1:], y[1:]), (changed, y), (X, other), (X[::-1], y[::-1])):
        report = group_report(model, rows, labels, groups[-len(labels) :], n_bootstrap=0)
        assert report.in_sample is False
        assert str(len(labels)) in report.title


def test_whether_rows_are_in_sample_is_not_known_for_foreign_models():
    assert group_report(*fitted("foreign"), n_bootstrap=0).in_sample is None


def test_training_rows_are_recognised_in_searches_sparse_matrices_and_files(tmp_path):
    _, X, y, groups = fitted("binary")
    frame = pd.DataFrame(X, columns=list("abc")).assign(site=groups)
    search = GridSearchCV(GroupBy(GroupDROClassifier(), "site"), {"estimator__alpha": [0.1]}, cv=2).fit(frame, y)
    assert group_report(search, frame, y).in_sample is True
    assert group_report(search, frame[:-1], y[:-1]).in_sample is False

    sparse = sp.csr_array(np.where(X > 0, X, 0.0))
    model = GroupDROClassifier().fit(sparse, y, groups=groups)
    again = pickle.loads(pickle.dumps(model))
    assert again.training_digest_ == model.training_digest_
    assert again.report(sparse, y, groups).in_sample is True
    assert again.report(sparse * 2.0, y, groups).in_sample is False


def test_the_digest_of_a_large_table_reads_a_sample_of_its_rows():
    class Counted(np.ndarray):
        read = 0

        def __getitem__(self, key):
            out = super().__getitem__(key)
            Counted.read += out.size
            return out

    X, y = np.ones((3000, 1000)), np.zeros(3000)
    digest = rows_digest(X.view(Counted), y)
    assert 1e5 < Counted.read < 1e6
    X[0, 0] = 2.0
    assert rows_digest(X, y) != digest


# ---------------------------------------------------------------------- the groups of a GroupBy


def test_a_report_takes_the_groups_from_the_columns_of_a_group_by():
    _, X, y, groups = fitted("binary")
    frame = pd.DataFrame(X, columns=list("abc")).assign(site=groups)
    model = GroupBy(GroupDROClassifier(), "site").fit(frame, y)
    table = group_report(model, frame, y, n_bootstrap=0).to_frame()
    assert sorted(table["group"]) == sorted(SIZES)
    assert table.equals(group_report(model, frame, y, groups, n_bootstrap=0).to_frame())
    in_pipeline = make_pipeline(FunctionTransformer(), model)
    assert table.equals(group_report(in_pipeline, frame, y, n_bootstrap=0).to_frame())
    assert set(model.report(frame, y, np.arange(N) % 2, n_bootstrap=0).columns["group"][:2]) == {0, 1}
    with pytest.raises(ValueError, match="group_by names columns that X does not have"):
        group_report(model, frame.drop(columns="site"), y)


def test_groups_with_few_rows_expected_beyond_a_quantile_are_not_judged_by_its_loss():
    rng = np.random.default_rng(0)
    y = rng.exponential(size=900)
    groups = np.repeat(["large", "small"], [600, 300])
    model = DummyRegressor(strategy="constant", constant=-np.log(0.04)).fit(y[:, None], y)
    metrics = ["risk", "d2", "share_below"]
    report = group_report(model, y[:, None], y, groups, loss=Quantile(0.96), metrics=metrics)
    rows = report.by_group
    assert (rows["large"]["note"], rows["small"]["note"]) == ("", "few beyond")  # 24 and 12 rows
    assert np.isnan([rows["small"]["risk_low"], rows["small"]["d2_low"]]).all()
    assert rows["small"]["share_below_low"] < 0.96 < rows["small"]["share_below_high"]
    assert "share below" in report.message
    few = group_report(model, y[:, None], y, groups, loss=Quantile(0.96), cluster=np.arange(900) // 2)
    assert few.judged == [False, False]  # 300 clusters say no more than 300 rows


def test_a_page_can_be_handed_on(tmp_path):
    rng = np.random.default_rng(0)
    n = 400
    X, groups = rng.normal(size=(n, 2)), rng.choice(["a<b", "c"], n, p=[0.6, 0.4])
    groups[:5] = "rare"
    y = (X[:, 0] + rng.logistic(size=n) > 0).astype(int)
    model = LogisticRegression().fit(X, y)
    report = group_report(model, X, y, groups, metrics=["recall", "brier"], n_bootstrap=100)
    path = report.to_html(tmp_path / "page.html", title="Who & what", about="A test.")
    text = path.read_text()
    assert "<script" not in text
    assert "Who &amp; what" in text
    assert "a&lt;b" in text
    assert "a<b" not in text
    assert "<svg" in text
    row = report.by_group["c"]
    assert f"of {row['n_recall']} rows" in text
    assert f"{row['recall_low']:.3g} to {row['recall_high']:.3g}" in text
    assert f"{report.overall['brier']:.3g}" in text
    for note in {part for cell in report.columns["note"] for part in cell.split(", ") if part}:
        assert f"<dt>{note}</dt>" in text
    plt.close(report.plot(metric="brier").figure_)
