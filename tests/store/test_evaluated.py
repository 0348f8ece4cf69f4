"""Stores from end to end: split, predicted, reported, compared and searched in parts."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

from groupdro import (
    GroupDROClassifier,
    GroupDROClassifierCV,
    GroupDRORegressor,
    GroupedStore,
    compare,
    group_report,
    regularization_path,
    robustness_frontier,
)
from groupdro.evaluation import models, outputs

N = 3000


def rows(*, sparse=False, weighted=False):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5)) * (rng.random((N, 5)) < (0.4 if sparse else 1.1))
    groups = rng.choice(["a", "b", "c"], N, p=[0.7, 0.25, 0.05])
    y = np.where(X[:, 0] * np.where(groups == "c", -0.3, 1.0) + X[:, 1] + rng.logistic(size=N) > 0, "yes", "no")
    weight = rng.choice([1.0, 2.0], N) if weighted else None
    return (sp.csr_array(X) if sparse else X), y, groups, weight


def stores(folder, *, test_size=0.25, **kind):
    X, y, groups, weight = rows(**kind)
    return GroupedStore.write_arrays(
        folder / "s", X, y, groups, sample_weight=weight, dtype="float64", test_size=test_size
    )


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("memory", [2**10, 2**28])
def test_every_row_is_in_one_of_two_stores(tmp_path, sparse, weighted, memory):
    X, y, groups, weight = rows(sparse=sparse, weighted=weighted)
    train, test = GroupedStore.write_arrays(
        tmp_path / "s", X, y, groups, sample_weight=weight, dtype="float64", test_size=0.25, memory=memory
    )
    assert sorted([*train.source, *test.source]) == list(range(N))
    assert test.path.name == "s-test"
    sizes = np.unique(groups, return_counts=True)[1]
    np.testing.assert_array_equal(test.group_sizes, np.round(0.25 * sizes))
    dense = X.toarray() if sparse else X
    for store in (train, test):
        stored = store.X.toarray() if sparse else np.asarray(store.X)
        np.testing.assert_array_equal(stored, dense[store.source])
        np.testing.assert_array_equal(store.y, y[store.source])
        if weighted:
            np.testing.assert_array_equal(store.weight, weight[store.source])
        store.verify()


def test_a_group_keeps_a_row_for_training_and_may_lack_held_out_ones(tmp_path):
    groups = np.array(["one", "two", "two", *["many"] * 20])
    X, y = np.arange(23.0)[:, None], np.arange(23.0)
    train, test = GroupedStore.write_arrays(tmp_path / "s", X, y, groups, test_size=0.4, dtype="float64")
    assert dict(zip(train.names, train.group_sizes, strict=True)) == {"many": 12, "one": 1, "two": 1}
    assert dict(zip(test.names, test.group_sizes, strict=True)) == {"many": 8, "two": 1}
    with pytest.raises(ValueError, match=r"test_size=0\.01 holds out no rows"):
        GroupedStore.write_arrays(tmp_path / "t", X[:3], y[:3], groups[:3], test_size=0.01)
    assert not list(tmp_path.glob("t*"))
    for bad in (1.0, -0.1, np.nan, "0.2"):
        with pytest.raises((TypeError, ValueError), match="test_size"):
            GroupedStore.write_arrays(tmp_path / "t", X, y, groups, test_size=bad)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_report_on_a_store_is_that_of_its_rows(tmp_path, sparse, weighted):
    X, y, groups, weight = rows(sparse=sparse, weighted=weighted)
    train, test = stores(tmp_path, sparse=sparse, weighted=weighted)
    model = GroupDROClassifier().fit(train)
    at = test.source
    metrics = ["accuracy", "recall", "roc_auc"]
    one = group_report(model, test, metrics=metrics)
    weight = None if weight is None else weight[at]
    other = group_report(model, X[at], y[at], groups[at], sample_weight=weight, metrics=metrics)
    assert one.columns.keys() == other.columns.keys()
    for name, values in one.columns.items():
        if name not in ("group", "note"):
            np.testing.assert_allclose(values, other.columns[name], rtol=1e-12)
    np.testing.assert_array_equal(model.predict_proba(test), model.predict_proba(X[at]))
    assert model.report(train).in_sample
    with pytest.raises(ValueError, match="y must be None if X is a store"):
        group_report(model, test, y[at])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("at_once", [2**10, 2**26])
def test_columns_with_names_are_judged_without_a_warning(tmp_path, sparse, at_once, monkeypatch):
    """Rows of a store come without the names that its table had."""
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(models, "_AT_ONCE", at_once)
    X, y, groups, _ = rows()
    table = pa.table({**{f"x{k}": column for k, column in enumerate(X.T)}, "y": y, "site": groups})
    train, test = GroupedStore.write(
        tmp_path / "s", table, target="y", groups="site", sparse=sparse, dtype="float64", test_size=0.25
    )
    model = GroupDROClassifier().fit(train)
    assert model.feature_names_in_.tolist() == [f"x{k}" for k in range(5)]
    expected = (y[test.source] == model.predict(pd.DataFrame(X[test.source], columns=model.feature_names_in_))).mean()
    assert group_report(model, test, metrics="accuracy").overall["accuracy"] == pytest.approx(expected)
    for given in (test, test.X):
        assert (model.predict(given) == test.y).mean() == pytest.approx(expected)
    found = compare(train, held_out=test, cv=3, metrics="accuracy")
    assert found.recommended in found.models


def test_a_comparison_of_stores_is_that_of_their_rows(tmp_path):
    X, y, groups, _ = rows()
    train, test = stores(tmp_path)
    theirs = LogisticRegression().fit(X[train.source], y[train.source])
    one = compare(train, held_out=test, models={"theirs": theirs}, cv=3)
    parts = ((X[s.source], y[s.source], groups[s.source]) for s in (train, test))
    first, second = parts
    other = compare(*first, held_out=second, models={"theirs": theirs}, cv=3)
    assert one.columns["model"] == other.columns["model"]
    same = [name for name in one.columns["model"] if name != "CV choice"]  # whose folds are others
    for name in ("mean_risk", "worst_risk"):
        np.testing.assert_allclose(one.columns[name][: len(same) - 1], other.columns[name][: len(same) - 1], rtol=1e-4)
    with pytest.raises(ValueError, match="held_out is required"):
        compare(train)
    with pytest.raises(ValueError, match=r"models\['new'\] is not fitted"):
        compare(train, held_out=test, models={"new": LogisticRegression()}, cv=None)


def test_paths_frontiers_and_searches_take_stores(tmp_path):
    X, y, groups, _ = rows()
    store = GroupedStore.write_arrays(tmp_path / "s", X, y, groups, dtype="float64")
    alphas = [1e-1, 1e-3]
    one, other = (
        regularization_path(GroupDROClassifier(tol=1e-8), *given, groups=g, alphas=alphas)
        for given, g in (((store,), None), ((X, y), groups))
    )
    np.testing.assert_allclose(one.upper_bounds, other.upper_bounds, rtol=1e-7)
    frontier = robustness_frontier(store, tol=1e-2)
    assert frontier.converged
    assert frontier.mean.min() == pytest.approx(robustness_frontier(X, y, groups, tol=1e-2).mean.min(), rel=1e-3)
    search = GroupDROClassifierCV(alphas=[1e-3], robustness=[0.0, 1.0], cv=3).fit(store)
    in_memory = GroupDROClassifierCV(alphas=[1e-3], robustness=[0.0, 1.0], cv=3)
    in_memory.fit(np.asarray(store.X), store.y, groups=np.repeat(store.names, store.group_sizes))
    for name in ("mean_test_risk", "worst_test_risk"):  # the same folds, since rows come in the same order
        np.testing.assert_allclose(search.cv_results_[name], in_memory.cv_results_[name], rtol=1e-3)
    assert search.robustness_ == in_memory.robustness_
    assert search.best_estimator_.status_ == "converged"


def test_mapped_rows_are_predicted_in_parts_whatever_the_model(tmp_path, monkeypatch):
    X, y, *_ = rows()
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    model = LogisticRegression().fit(X, y)
    whole = outputs.row_losses(model, X, y)
    monkeypatch.setattr(models, "_AT_ONCE", 10_000)
    seen = []
    original = LogisticRegression.predict_proba
    monkeypatch.setattr(LogisticRegression, "predict_proba", lambda self, Z: seen.append(len(Z)) or original(self, Z))
    np.testing.assert_allclose(outputs.row_losses(model, mapped, y), whole, rtol=1e-12)
    assert len(seen) > 5
    assert sum(seen) == N
    np.testing.assert_array_equal(models.predictions_of(model, "predict", mapped), model.predict(X))


@pytest.mark.parametrize("mapped", [False, True])
def test_half_precision_stays_half_precision(tmp_path, mapped):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4)).astype(np.float16)
    groups = np.arange(N) % 3
    y = X[:, 0].astype(float) + rng.normal(size=N)
    given = X
    if mapped:
        np.save(tmp_path / "X.npy", X)
        given = np.load(tmp_path / "X.npy", mmap_mode="r")
    half = GroupDRORegressor(tol=1e-8).fit(given, y, groups=groups)
    single = GroupDRORegressor(tol=1e-8).fit(X.astype(np.float64), y, groups=groups)
    np.testing.assert_allclose(half.coef_, single.coef_, rtol=1e-5)
    np.testing.assert_allclose(half.predict(given), half.predict(X.astype(np.float64)), rtol=1e-12)
    task, _ = half._read(given, y, None, groups)
    assert task.data.rows.X.dtype == np.float16


def test_stores_with_offsets_are_compared_with_them(tmp_path):
    X, y, groups, _ = rows()
    offset = np.random.default_rng(1).normal(size=N)
    train, test = GroupedStore.write_arrays(
        tmp_path / "s", X, y, groups, offset=offset, dtype="float64", test_size=0.25
    )
    found = compare(train, held_out=test, cv=None, n_bootstrap=20)
    plain = GroupDROClassifier(robustness=0.0, random_state=0).fit(train)
    expected = group_report(plain, test, n_bootstrap=0).overall["risk"]
    assert found.columns["mean_risk"][0] == pytest.approx(expected, rel=1e-9)
