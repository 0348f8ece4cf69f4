"""Estimators on stores: the same models as on arrays."""

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.data import BatchPlan
from tests.distributed.thread_comm import run_workers


def _table(n=600, kind="two"):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(n, 6))
    groups = rng.choice(["north", "south", "west"], size=n)
    scores = X[:, 0] + (groups == "west") * X[:, 1] + rng.logistic(size=n)
    if kind == "number":
        return X, scores, groups
    edges = [0.0] if kind == "two" else [-1.0, 1.0]
    return X, np.array(["low", "mid", "top"])[np.digitize(scores, edges)], groups


@pytest.mark.parametrize("kind", ["two", "three", "number"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_store_gives_the_model_of_its_arrays(tmp_path, kind, sparse):
    X, y, groups = _table(kind=kind)
    X = sp.csr_array(X) if sparse else X
    store = gd.GroupedStore.write_arrays(tmp_path / "store", X, y, groups, dtype="float64")
    make = gd.GroupDRORegressor if kind == "number" else gd.GroupDROClassifier
    options = {"alpha": 1e-2, "tol": 1e-7}
    on_arrays = make(**options).fit(X, y, groups=groups)
    on_store = make(**options).fit(store)
    np.testing.assert_allclose(on_store.coef_, on_arrays.coef_, atol=1e-3)
    assert on_store.upper_bound_ == pytest.approx(on_arrays.upper_bound_, rel=1e-6)
    assert list(on_store.groups_) == ["north", "south", "west"]
    assert on_store.worst_group_ == on_arrays.worst_group_
    assert on_store.n_features_in_ == 6
    np.testing.assert_array_equal(np.sort(on_store.predict(store.X)), np.sort(on_store.predict(X)))
    np.testing.assert_array_equal(on_store.predict(store), on_store.predict(store.X))
    if kind != "number":
        np.testing.assert_array_equal(on_store.classes_, on_arrays.classes_)
    assert (on_store.predict(X[:20]) == on_arrays.predict(X[:20])).mean() > 0.9 or kind == "number"


def test_names_of_columns_and_weights_come_from_the_store(tmp_path):
    pa = pytest.importorskip("pyarrow")
    X, y, groups = _table()
    weight = np.random.default_rng(0).random(len(y)) + 0.1
    columns = {f"x{j}": X[:, j] for j in range(6)} | {"label": y, "region": groups, "weight": weight}
    store = gd.GroupedStore.write(
        tmp_path / "store", pa.table(columns), target="label", groups="region", weight="weight", dtype="float64"
    )
    model = gd.GroupDROClassifier(alpha=1e-2, tol=1e-7).fit(store)
    expected = gd.GroupDROClassifier(alpha=1e-2, tol=1e-7).fit(X, y, weight, groups=groups)
    assert list(model.feature_names_in_) == [f"x{j}" for j in range(6)]
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-3)


@pytest.mark.parametrize("objective", ["risk", "excess_risk"])
def test_workers_end_with_the_same_model(tmp_path, objective):
    X, y, groups = _table()
    path = tmp_path / "store"
    gd.GroupedStore.write_arrays(path, X, y, groups)
    options = {"alpha": 1e-2, "tol": 1e-4, "objective": objective, "random_state": 0}

    def fitted(comm):
        return gd.GroupDROClassifier(**options).fit(gd.GroupedStore.open(path).shard(comm))

    models = run_workers(3, fitted)
    alone = gd.GroupDROClassifier(**options).fit(gd.GroupedStore.open(path))
    for model in models:
        np.testing.assert_array_equal(model.coef_, models[0].coef_)
        assert model.status_ == "converged"
        assert model.lower_bound_ <= alone.upper_bound_ + 1e-9
        assert alone.lower_bound_ <= model.upper_bound_ + 1e-9


def test_what_does_not_fit_a_store_is_refused(tmp_path):
    X, y, groups = _table()
    store = gd.GroupedStore.write_arrays(tmp_path / "store", X, y, groups)
    for name, value in {"y": y, "sample_weight": np.ones(len(y)), "groups": groups}.items():
        with pytest.raises(ValueError, match=f"{name} must be None"):
            gd.GroupDROClassifier().fit(store, **{name: value})
    with pytest.raises(ValueError, match="store with class labels"):
        gd.GroupDRORegressor().fit(store)
    with pytest.raises(ValueError, match="cannot be merged: merge them before"):
        gd.GroupDROClassifier(min_group_size=len(y)).fit(store)
    with pytest.raises(ValueError, match="alpha or radius"):
        gd.GroupDROClassifier(alpha=0.0).fit(store)
    numbers = gd.GroupedStore.write_arrays(tmp_path / "numbers", *_table(kind="number"))
    with pytest.raises(ValueError, match="numeric targets"):
        gd.GroupDROClassifier().fit(numbers)


def test_rows_beyond_memory_are_drawn_in_stretches_and_each_as_often(tmp_path, monkeypatch):
    monkeypatch.setattr("groupdro.data.dense_rows.memory_limit", lambda: 1e4)
    X, y, groups = _table(n=3000)
    store = gd.GroupedStore.write_arrays(tmp_path / "store", X, y, groups, dtype="float64")
    data = store.data()
    assert not data.rows.in_memory
    plan = BatchPlan.of(data, 9)
    members = plan.draw(data, 200, np.random.default_rng(0))
    for i in range(3):
        drawn = members[:, plan.groups == i]
        assert ((drawn >= data.offsets[i]) & (drawn < data.offsets[i + 1])).all()
        together = np.diff(np.unique(drawn)) == 1
        assert together.mean() > 0.9
    counts = np.bincount(np.concatenate([plan.draw(data, 200, np.random.default_rng(s)).ravel() for s in range(300)]))
    for i in range(3):
        own = counts[data.offsets[i] : data.offsets[i + 1]]
        assert own.std() < 0.5 * own.mean()
        first, last = own[: len(own) // 2].mean(), own[len(own) // 2 :].mean()
        assert first == pytest.approx(last, rel=0.1)
    model = gd.GroupDROClassifier(alpha=1e-2, tol=1e-4, solver="aleg").fit(store)
    expected = gd.GroupDROClassifier(alpha=1e-2, tol=1e-6).fit(X, y, groups=groups)
    assert model.status_ == "converged"
    assert model.upper_bound_ == pytest.approx(expected.upper_bound_, rel=2e-4)
