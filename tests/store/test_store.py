import errno
import gc
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import groupdro.store
from groupdro.data import GroupedData
from groupdro.data.csr_rows import CsrRows
from groupdro.data.dense_rows import DenseRows, MappedRows
from groupdro.store import GroupedStore, StoreError, manifest
from groupdro.store.shuffle import shuffled_places
from tests.store import race

N_ROWS, N_FEATURES = 700, 5
RNG = np.random.default_rng(3)
X = RNG.standard_normal((N_ROWS, N_FEATURES)).astype(np.float16).astype(np.float64)  # exact in every type
X[RNG.random(X.shape) < 0.4] = 0
TARGET = RNG.standard_normal(N_ROWS)
LABEL = RNG.choice(["cat", "dog", "eel"], N_ROWS)
GROUP = RNG.choice(["north", "south", "east", "west"], N_ROWS, p=[0.5, 0.3, 0.19, 0.01])
SITE = RNG.integers(0, 3, N_ROWS)
WEIGHT = RNG.random(N_ROWS)
NAMES = tuple(f"x{j}" for j in range(N_FEATURES))
SMALL_FILES = ("y.npy", "weight.npy", "offset.npy", "indptr.npy")


def content(path):
    """Return all files of a store, as bytes."""
    return {file.name: file.read_bytes() for file in Path(path).iterdir()}


def in_input_order(store, values):
    out = np.empty_like(values)
    out[np.asarray(store.source)] = values
    return out


def dense(X):
    return X.toarray() if sp.issparse(X) else np.asarray(X)


def places(n, seed=0, group=0):
    sizes = np.zeros(group + 1, np.int64)
    sizes[group] = n
    return shuffled_places(np.arange(n), np.full(n, group), sizes, seed)


@pytest.fixture(scope="module")
def pa():
    return pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def table(pa):
    columns = {name: X[:, j] for j, name in enumerate(NAMES)}
    labels = {"target": TARGET, "label": LABEL, "group": GROUP, "site": SITE, "weight": WEIGHT}
    return pa.table(columns | labels)


def write(path, table, target="label", groups="group", features=NAMES, **options):
    return GroupedStore.write(path, table, target=target, groups=groups, features=features, **options)


# ---------------------------------------------------------------------- the shuffle


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_the_shuffle_is_a_permutation_of_every_size(seed):
    for n in range(1, 301):
        assert np.array_equal(np.sort(places(n, seed)), np.arange(n))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(0, 2**64 - 1))
@settings(max_examples=40)
def test_groups_are_shuffled_each_on_its_own_wherever_the_rows_are(sizes, seed):
    sizes = np.array(sizes)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    order = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    mixed = np.random.default_rng(0).permutation(len(groups))
    together = np.empty(len(groups), np.int64)
    together[mixed] = shuffled_places(order[mixed], groups[mixed], sizes, seed)
    for i, n in enumerate(sizes):
        assert np.array_equal(together[groups == i], places(n, seed, group=i))


def places_of_many_groups(n, n_groups):
    groups, order = np.repeat(np.arange(n_groups), n), np.tile(np.arange(n), n_groups)
    return shuffled_places(order, groups, np.full(n_groups, n), 7).reshape(n_groups, n)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 9, 16, 17, 64, 65])
def test_every_row_goes_to_every_place_equally_often(n):
    found = places_of_many_groups(n, 200_000 // n)
    expected = len(found) / n
    counts = np.array([np.bincount(column, minlength=n) for column in found.T])
    # Rows and columns of the table have fixed sums, which leaves so many degrees of freedom.
    chi_square, freedom = ((counts - expected) ** 2 / expected).sum() * (n - 1) / n, (n - 1) ** 2
    assert chi_square < stats.chi2.isf(1e-4, freedom)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_orders_of_a_small_group_are_equally_frequent(n):
    found = places_of_many_groups(n, 40_000)
    _, counts = np.unique(found @ n ** np.arange(n), return_counts=True)
    assert len(counts) == math.factorial(n)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_a_large_shuffle_has_no_trend():
    n = 200_000
    place = places(n, seed=5)
    assert np.array_equal(np.sort(place), np.arange(n))
    assert abs(np.corrcoef(np.arange(n), place)[0, 1]) < 0.01
    assert abs(np.corrcoef(place[1:], place[:-1])[0, 1]) < 0.01
    assert (places(n, seed=6) != place).mean() > 0.999
    assert (places(n, seed=5, group=1) != place).mean() > 0.999


# ---------------------------------------------------------------------- round trips


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("memory", [2**28, 4000])
def test_dense_arrays_come_back(tmp_path, dtype, memory):
    store = GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP, dtype=dtype, memory=memory)
    assert isinstance(store.X, np.memmap)
    assert store.X.dtype == dtype
    assert not store.X.flags.writeable
    assert np.array_equal(in_input_order(store, store.X), X)
    assert np.array_equal(in_input_order(store, store.y), LABEL)
    assert np.array_equal(in_input_order(store, np.repeat(store.names, store.group_sizes)), GROUP)
    assert store.classes.tolist() == ["cat", "dog", "eel"]
    assert store.feature_names is None
    store.verify()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("memory", [2**28, 4000])
def test_sparse_arrays_come_back(tmp_path, dtype, memory):
    store = GroupedStore.write_arrays(tmp_path / "s", sp.csr_array(X), TARGET, GROUP, dtype=dtype, memory=memory)
    assert isinstance(store.X, sp.csr_array)
    assert store.X.dtype == dtype
    assert store.X.indices.dtype == store.X.indptr.dtype == np.int32
    assert np.array_equal(in_input_order(store, store.X.toarray()), X)
    assert np.array_equal(in_input_order(store, store.y), TARGET)
    assert store.classes is None
    assert store.X.nnz == np.count_nonzero(X)
    store.verify()


def of_files(kind, table, folder):
    parquet, feather, csv = (pytest.importorskip(f"pyarrow.{name}") for name in ("parquet", "feather", "csv"))
    if kind == "parquet":
        parquet.write_table(table, folder / "t.parquet", row_group_size=300)
        return folder / "t.parquet"
    if kind == "several parquet":
        for k, start in enumerate((0, 250, 300)):
            stop = (250, 300, N_ROWS)[k]
            parquet.write_table(table.slice(start, stop - start), folder / f"{k}.parquet")
        return [str(folder / f"{k}.parquet") for k in range(3)]
    if kind == "directory":
        (folder / "parts").mkdir()
        for k, start in enumerate((0, 350)):
            parquet.write_table(table.slice(start, 350), folder / "parts" / f"{k}.parquet")
        return folder / "parts"
    if kind == "csv":
        csv.write_csv(table, folder / "t.csv")
        return folder / "t.csv"
    feather.write_feather(table, folder / "t.feather", chunksize=123)
    return folder / "t.feather"


def of_memory(kind, table, folder):
    dataset = pytest.importorskip("pyarrow.dataset")
    if kind == "table":
        return table
    if kind == "dataset":
        return dataset.dataset(of_files("parquet", table, folder))
    return lambda: iter(table.to_batches(max_chunksize=97))


@pytest.mark.parametrize(
    "kind", ["parquet", "several parquet", "directory", "csv", "feather", "table", "dataset", "callable"]
)
@pytest.mark.parametrize("sparse", [False, True])
def test_every_container_gives_the_same_bytes_as_arrays(tmp_path, table, kind, sparse):
    read = of_memory if kind in ("table", "dataset", "callable") else of_files
    options = {"sparse": sparse, "seed": 4}
    store = write(tmp_path / "s", read(kind, table, tmp_path), weight="weight", **options)
    reference = GroupedStore.write_arrays(tmp_path / "r", X, LABEL, GROUP, sample_weight=WEIGHT, **options)
    found, expected = content(store.path), content(reference.path)
    assert found.keys() == expected.keys()
    for name in found.keys() - {"manifest.json"}:  # only tables have names of columns
        assert found[name] == expected[name], name
    assert store.feature_names == NAMES


def test_columns_may_be_in_the_names_of_directories(tmp_path, pa, table):
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in np.unique(GROUP):
        folder = tmp_path / "parts" / f"group={name}"
        folder.mkdir(parents=True)
        rows = np.flatnonzero(name == GROUP)
        parquet.write_table(table.take(pa.array(rows)).drop_columns(["group"]), folder / "0.parquet")
    store = write(tmp_path / "s", tmp_path / "parts")
    reference = GroupedData.from_arrays(X, np.zeros(N_ROWS), GROUP)
    assert store.names == reference.names
    assert np.array_equal(np.sort(store.X, axis=0), np.sort(X, axis=0))
    assert np.array_equal(store.group_sizes, reference.group_sizes)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_data_is_that_of_arrays_up_to_the_order_within_groups(tmp_path, sparse, weighted):
    weight = WEIGHT if weighted else None
    store = GroupedStore.write_arrays(tmp_path / "s", X, TARGET, GROUP, sample_weight=weight, sparse=sparse)
    data, reference = store.data(), GroupedData.from_arrays(X.astype(np.float32), TARGET, GROUP, weight)
    assert isinstance(data.rows, CsrRows if sparse else DenseRows)
    assert data.names == reference.names
    assert np.array_equal(data.offsets, reference.offsets)
    assert data.members.size == 0
    span = np.repeat(np.arange(data.n_groups), data.group_sizes)
    order = np.lexsort((data.source, span))
    assert np.array_equal(data.source[order], reference.source)
    assert np.array_equal(data.y[order], reference.y)
    assert np.array_equal(dense(data.rows.X)[order], reference.rows.X)
    np.testing.assert_allclose(data.row_norms[order], reference.row_norms, rtol=1e-12)
    np.testing.assert_allclose(data.group_means(data.y), reference.group_means(reference.y), rtol=1e-12)
    if weighted:
        np.testing.assert_allclose(data.weights[order], reference.weights, rtol=1e-12)
        np.testing.assert_allclose(np.add.reduceat(data.weights, data.offsets[:-1]), 1, rtol=1e-12)
    else:
        assert data.weights.size == 0


def test_data_maps_rows_and_copies_no_index(tmp_path):
    rows = GroupedStore.write_arrays(tmp_path / "d", X, TARGET, GROUP).data().rows
    assert isinstance(rows, MappedRows)
    store = GroupedStore.write_arrays(tmp_path / "c", sp.csr_array(X), TARGET, GROUP)
    rows = store.data().rows
    for array in (rows.X.data, rows.X.indices, rows.X.indptr):
        assert not array.flags.writeable  # a copy would be
    flat = rows.flat(TARGET, np.empty(0), (0, 0.0), intercept=False)
    for array, mapped in zip(flat[:3], (store.X.data, store.X.indices, store.X.indptr), strict=True):
        assert np.shares_memory(array, mapped)


def test_indices_of_64_bits_are_mapped_too(tmp_path):
    wide = sp.csr_array((np.ones(3), (np.array([0, 1, 1]), np.array([0, 2**33, 5]))), shape=(2, 2**33 + 1))
    store = GroupedStore.write_arrays(tmp_path / "s", wide, [0.0, 1.0])
    assert store.X.indices.dtype == store.X.indptr.dtype == np.int64
    assert not store.X.indices.flags.writeable
    assert store.X.shape == wide.shape
    assert sorted(zip(store.source[store.X.nonzero()[0]], store.X.indices, strict=True)) == [(0, 0), (1, 5), (1, 2**33)]
    store.verify()


def test_classes_are_codes_unless_labels_are_given(tmp_path):
    store = GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP)
    data = store.data()
    assert data.y.dtype == np.int64
    assert np.array_equal(store.classes[data.y], store.y)
    assert np.array_equal(store.data(labels=[-1, 0.5, 1]).y, np.array([-1, 0.5, 1])[data.y])
    for bad in ([1, 2], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="labels must be 3 numbers"):
            store.data(labels=bad)
    numbers = GroupedStore.write_arrays(tmp_path / "n", X, TARGET, GROUP)
    with pytest.raises(ValueError, match="labels require a store of classes"):
        numbers.data(labels=[-1, 1])


@pytest.mark.parametrize(
    ("y", "task", "classes"),
    [
        (SITE, "auto", [0, 1, 2]),
        (SITE.astype(np.uint8), "auto", [0, 1, 2]),
        (SITE == 1, "auto", [False, True]),
        (SITE / 2, "classes", [0.0, 0.5, 1.0]),
        (LABEL.astype(object), "auto", ["cat", "dog", "eel"]),
        (np.array([f"{s}\0" for s in SITE], object), "auto", ["0\0", "1\0", "2\0"]),
        (SITE, "regression", None),
        (SITE == 1, "regression", None),
        (SITE.astype(np.float32), "auto", None),
        (pd.Series(LABEL, dtype="category"), "auto", ["cat", "dog", "eel"]),
        (pl.Series(SITE), "auto", [0, 1, 2]),
        (SITE.tolist(), "auto", [0, 1, 2]),
    ],
)
def test_targets_keep_their_kind(tmp_path, y, task, classes):
    store = GroupedStore.open(GroupedStore.write_arrays(tmp_path / "s", X, y, GROUP, task=task).path)
    assert (None if store.classes is None else store.classes.tolist()) == classes
    assert in_input_order(store, store.y).tolist() == list(y)


@pytest.mark.parametrize(
    ("column", "task", "classes"),
    [
        ("site", "auto", [0, 1, 2]),
        ("site", "regression", None),
        ("half", "classes", [0.0, 0.5, 1.0]),
        ("half", "auto", None),
        ("flag", "auto", [False, True]),
        ("coded", "auto", ["cat", "dog", "eel"]),
    ],
)
def test_target_columns_keep_their_kind(tmp_path, pa, table, column, task, classes):
    half = pa.array(SITE / 2, pa.float32())
    more = table.append_column("half", half).append_column("flag", pa.array(SITE == 1))
    more = more.append_column("coded", pa.array(LABEL).dictionary_encode())
    store = write(tmp_path / "s", more, target=column, task=task)
    assert (None if store.classes is None else store.classes.tolist()) == classes
    assert in_input_order(store, store.y).tolist() == more[column].to_pylist()


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param(SITE, id="int"),
        pytest.param(SITE == 1, id="bool"),
        pytest.param(SITE / 4, id="float"),
        pytest.param(np.where(SITE > 0, GROUP.astype(object), SITE.astype(object)), id="mixed"),
        pytest.param(pd.DataFrame({"a": GROUP, "b": SITE}), id="two columns"),
        pytest.param(None, id="none"),
    ],
)
def test_groups_of_arrays_are_named_and_sorted_as_everywhere(tmp_path, groups):
    store = GroupedStore.open(GroupedStore.write_arrays(tmp_path / "s", X, TARGET, groups, memory=4000).path)
    reference = GroupedData.from_arrays(X, TARGET, groups)
    assert store.names == reference.names
    assert [type(name) for name in store.names] == [type(name) for name in reference.names]
    assert np.array_equal(store.group_sizes, reference.group_sizes)


@pytest.mark.parametrize("columns", ["site", ["site"], ["group", "site"], ["site", "group"], ["weight", "site"]])
def test_group_columns_are_named_and_sorted_as_everywhere(tmp_path, table, columns):
    batches = table.to_batches(max_chunksize=50)
    store = GroupedStore.open(write(tmp_path / "s", lambda: iter(batches), groups=columns).path)
    frame = table.select([columns] if isinstance(columns, str) else columns).to_pandas()
    reference = GroupedData.from_arrays(X, TARGET, frame)
    assert store.names == reference.names
    assert np.array_equal(store.group_sizes, reference.group_sizes)


def test_all_other_columns_are_the_features(tmp_path, table):
    store = GroupedStore.write(
        tmp_path / "s", table.drop_columns(["label", "site"]), target="target", groups="group", weight="weight"
    )
    assert store.feature_names == NAMES
    with pytest.raises(ValueError, match=r"features has columns that are not numeric: \['label'\]"):
        GroupedStore.write(tmp_path / "t", table, target="target", groups="group")


@pytest.mark.parametrize("kind", ["fixed", "tensor"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_column_of_vectors_is_all_features(tmp_path, pa, table, kind, sparse):
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel(), pa.float32()), N_FEATURES)
    if kind == "tensor":
        vectors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), (N_FEATURES,)), vectors)
    batches = table.append_column("vector", vectors).to_batches(max_chunksize=301)
    store = write(tmp_path / "s", lambda: iter(batches), features=["vector"], sparse=sparse, memory=9000)
    assert store.feature_names is None
    assert np.array_equal(in_input_order(store, dense(store.X)), X)


@pytest.mark.parametrize("kind", ["pairs", "two lists"])
@pytest.mark.parametrize("memory", [2**28, 4000])
def test_lists_of_indices_and_values_are_sparse_rows(tmp_path, pa, table, kind, memory):
    # Backwards, and with every entry in two halves: the writer sorts and adds.
    indices = [[j for j in reversed(range(N_FEATURES)) if row[j] for _ in range(2)] for row in X]
    values = [[row[j] / 2 for j in own] for row, own in zip(X, indices, strict=True)]
    if kind == "pairs":
        pair = pa.struct([("index", pa.int32()), ("value", pa.float64())])
        pairs = [
            [{"index": j, "value": v} for j, v in zip(*own, strict=True)] for own in zip(indices, values, strict=True)
        ]
        more, features = table.append_column("pairs", pa.array(pairs, pa.list_(pair))), ["pairs"]
    else:
        more = table.append_column("i", pa.array(indices, pa.list_(pa.uint16())))
        more = more.append_column("v", pa.array(values, pa.large_list(pa.float32())))
        features = ("i", "v")
    options = {"sparse": True, "n_features": N_FEATURES, "memory": memory}
    store = write(tmp_path / "s", more, features=features, **options)
    reference = GroupedStore.write_arrays(tmp_path / "r", sp.csr_array(X), LABEL, GROUP)
    for name in ("data.npy", "indices.npy", "indptr.npy", "y.npy", "source.npy"):
        assert (store.path / name).read_bytes() == (reference.path / name).read_bytes()


@pytest.mark.parametrize(
    "kind",
    ["pairs", "both fixed", *(pytest.param(f"{name} fixed", marks=pytest.mark.long) for name in ("indices", "values"))],
)
def test_fixed_size_lists_of_indices_and_values_are_sparse_rows(tmp_path, pa, table, kind):
    indices = pa.array(np.tile(np.arange(N_FEATURES), len(X)))
    values = pa.array(X.ravel())
    fixed = {
        name: pa.FixedSizeListArray.from_arrays(flat, N_FEATURES) for name, flat in (("i", indices), ("v", values))
    }
    listed = {"indices fixed": "v", "values fixed": "i"}.get(kind)
    columns = {name: pa.array(own.to_pylist()) if name == listed else own for name, own in fixed.items()}
    if kind == "pairs":
        pairs = pa.StructArray.from_arrays([indices, values], ["index", "value"])
        columns = {"pairs": pa.FixedSizeListArray.from_arrays(pairs, N_FEATURES)}
    for name, column in columns.items():
        table = table.append_column(name, column)
    batches = table.to_batches(max_chunksize=301)  # slices of one array
    options = {"sparse": True, "n_features": N_FEATURES, "memory": 9000}
    store = write(tmp_path / "s", lambda: iter(batches), features=list(columns), **options)
    assert np.array_equal(in_input_order(store, dense(store.X)), X)


def test_a_sparse_table_without_entries_is_a_store(tmp_path):
    store = GroupedStore.write_arrays(tmp_path / "s", np.zeros((4, 3)), [0, 1, 0, 1], sparse=True)
    assert store.X.nnz == 0
    assert store.data().row_norms.tolist() == [0, 0, 0, 0]
    store.verify()


def test_a_store_says_what_it_is(tmp_path):
    store = GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP)
    assert len(store) == store.n_rows == N_ROWS
    assert (store.n_features, store.n_groups, store.path) == (N_FEATURES, 4, (tmp_path / "s").resolve())
    files = content(store.path)
    arrays = {name for name in files if name.endswith(".npy")}
    assert arrays == files.keys() - {"manifest.json"}
    assert store.nbytes == sum(np.load(store.path / name, mmap_mode="r").nbytes for name in arrays)
    assert all(word in repr(store) for word in ("700 rows", "4 groups", "5 features", "dense", "float32"))


def test_another_process_gets_the_place_of_a_store_not_its_rows(tmp_path):
    store = GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP)
    assert store.X is not None
    function, arguments = store.__reduce__()
    assert function(*arguments).path == store.path
    assert len(repr(arguments)) < 1000


def test_threads_open_a_store_at_once_whenever_garbage_is_collected(tmp_path):
    path = GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP).path
    thresholds = gc.get_threshold()

    def let_others_in(phase, info):
        time.sleep(0)

    gc.callbacks.append(let_others_in)
    gc.set_threshold(10, 1000, 1000)
    try:
        with ThreadPoolExecutor(6) as pool:
            stores = list(pool.map(lambda _: GroupedStore.open(path), range(60)))
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(let_others_in)
    assert {len(store) for store in stores} == {N_ROWS}


# ---------------------------------------------------------------------- order, memory, batches


@pytest.mark.parametrize("sparse", [False, True])
def test_the_bytes_do_not_depend_on_memory_or_batches(tmp_path, table, sparse):
    table, options = table.slice(0, 200), {"weight": "weight", "sparse": sparse, "groups": ["group", "site"]}
    expected = content(write(tmp_path / "s", table, **options).path)
    for k, (memory, rows) in enumerate([(1, 100), (500, 7), (4000, 200), (9000, 64), (2**28, 1)]):
        batches = table.to_batches(max_chunksize=rows)
        path = write(tmp_path / str(k), lambda batches=batches: iter(batches), memory=memory, **options).path
        assert content(path) == expected


def test_ranges_with_many_more_entries_than_others_are_divided(tmp_path):
    full = sp.csr_array(RNG.standard_normal((60, 3000)))
    empty = sp.csr_array((6000, 3000))
    X, groups = sp.vstack([empty, full], format="csr"), np.repeat(["empty", "full"], [6000, 60])
    expected = content(GroupedStore.write_arrays(tmp_path / "a", X, np.zeros(6060), groups).path)
    assert content(GroupedStore.write_arrays(tmp_path / "b", X, np.zeros(6060), groups, memory=50_000).path) == expected


def test_the_seed_is_the_order(tmp_path):
    stores = [GroupedStore.write_arrays(tmp_path / str(k), X, LABEL, GROUP, seed=s) for k, s in enumerate((7, 7, 8))]
    files = [content(store.path) for store in stores]
    assert files[0] == files[1]
    assert files[0]["source.npy"] != files[2]["source.npy"]
    assert stores[0].group_sizes.tolist() == stores[2].group_sizes.tolist()


def test_rows_are_shuffled_within_their_group(tmp_path):
    n = 20_000
    store = GroupedStore.write_arrays(tmp_path / "s", np.zeros((n, 1)), np.zeros(n), np.arange(n) % 2)
    for half in (store.source[: n // 2], store.source[n // 2 :]):
        assert abs(np.corrcoef(half, np.arange(n // 2))[0, 1]) < 0.05
        first = half[:1000]  # a fair sample of the group: its mean is within five standard errors
        assert abs(first.mean() - n / 2) < 5 * n / np.sqrt(12 * 1000)


def test_nothing_is_spilled_where_all_fits(tmp_path, monkeypatch):
    def fail(*_):
        raise AssertionError("spilled")

    monkeypatch.setattr(groupdro.store.sorting.Sorter, "_spill", fail)
    GroupedStore.write_arrays(tmp_path / "d", X, LABEL, GROUP)
    GroupedStore.write_arrays(tmp_path / "c", X, LABEL, GROUP, sparse=True)
    with pytest.raises(AssertionError, match="spilled"):
        GroupedStore.write_arrays(tmp_path / "e", X, LABEL, GROUP, memory=4000)


MEMORY_SCRIPT = """
import sys
import pyarrow.dataset, pyarrow.parquet
from groupdro.store import GroupedStore

def peak():  # of this program alone: ru_maxrss begins at that of the process that started it
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

before = peak()
store = GroupedStore.write(sys.argv[2], sys.argv[1], target="y", groups="g", memory=32 * 2**20)
print(store.nbytes >> 20, (peak() - before) >> 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak in units of Linux")
@pytest.mark.parametrize(
    ("repeats", "least", "most"), [(10, 190, 130), pytest.param(20, 390, 130, marks=pytest.mark.long)]
)
def test_writing_takes_about_the_memory_it_was_given(tmp_path, pa, repeats, least, most):
    n = 50_000
    values = RNG.standard_normal((100, n)).astype(np.float32)
    part = pa.table({f"x{j}": column for j, column in enumerate(values)} | {"y": values[0], "g": np.arange(n) % 7})
    # One row group, which a reader that is not careful holds in memory.
    pytest.importorskip("pyarrow.parquet").write_table(
        pa.concat_tables([part] * repeats), tmp_path / "t.parquet", row_group_size=n * repeats, use_dictionary=False
    )
    arguments = [sys.executable, "-c", MEMORY_SCRIPT, str(tmp_path / "t.parquet"), str(tmp_path / "s")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    size, peak = map(int, done.stdout.split())
    assert size > least
    assert peak < most


# ---------------------------------------------------------------------- whole or not at all


def failing_batches(table, error, fail_in_pass=2):
    """Return a source that breaks in the middle of a pass."""
    calls = []

    def batches():
        calls.append(1)
        for k, batch in enumerate(table.to_batches(max_chunksize=100)):
            if len(calls) == fail_in_pass and k == 4:
                raise error
            yield batch

    return batches


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), OSError(errno.ENOSPC, "no space")])
@pytest.mark.parametrize("fail_in_pass", [1, 2])
def test_an_error_leaves_nothing(tmp_path, table, error, fail_in_pass):
    with pytest.raises(type(error)):
        write(tmp_path / "s", failing_batches(table, error, fail_in_pass), memory=4000)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path):
    resource = pytest.importorskip("resource")
    big = np.ones((20_000, 10))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"\.partial/.*\.npy") as whole:
            GroupedStore.write_arrays(tmp_path / "s", big, np.zeros(20_000))
        with pytest.raises(OSError, match=r"rows\.tmp") as spilled:
            GroupedStore.write_arrays(tmp_path / "s", big, np.zeros(20_000), memory=400_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert whole.value.errno == spilled.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


KILLED_SCRIPT = """
import sys, time
import pyarrow as pa
from groupdro.store import GroupedStore

calls = []

def batches():
    calls.append(1)
    for k in range(50):
        if len(calls) == 2 and k == 40:
            print("half way", flush=True)
            time.sleep(900)
        yield pa.record_batch({"x": [float(k)] * 100, "y": [0.5] * 100, "g": ["a"] * 100})

GroupedStore.write(sys.argv[1], batches, target="y", groups="g", memory=20_000)
"""


@pytest.mark.skipif(os.name == "nt", reason="without locks nobody can tell a leftover")
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path, pa):
    (tmp_path / ".s.0123456789abcdef.other").mkdir()
    (tmp_path / ".other.0123456789abcdef.partial").mkdir()
    process = subprocess.Popen([sys.executable, "-c", KILLED_SCRIPT, str(tmp_path / "s")], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"half way\n"
        kept = {".s.0123456789abcdef.other", ".other.0123456789abcdef.partial"}
        partial = {path.name for path in tmp_path.iterdir()} - kept
        assert len(partial) == 1
        # Another writer of the same place leaves work under way alone.
        GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP)
        assert {path.name for path in tmp_path.iterdir()} == {"s", *kept, *partial}
        shutil.rmtree(tmp_path / "s")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert {path.name for path in tmp_path.iterdir()} == {*kept, *partial}
    GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP).verify()
    assert {path.name for path in tmp_path.iterdir()} == {"s", *kept}


KILLED_WHILE_REPLACING = """
import os, signal, shutil, sys
import numpy as np
from groupdro.store import GroupedStore

rename = os.rename

def kill(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

def rename_or_kill(old, new):
    if str(new).endswith(".old"):
        if sys.argv[2] == "between":
            rename(old, new)
        kill()
    rename(old, new)

if sys.argv[2] != "after":
    os.rename = rename_or_kill
else:
    shutil.rmtree = kill
GroupedStore.write_arrays(sys.argv[1], np.ones((50, 2)), np.zeros(50), overwrite=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="without locks nobody can tell a leftover")
@pytest.mark.parametrize("moment", ["between", *(pytest.param(m, marks=pytest.mark.long) for m in ("before", "after"))])
def test_a_writer_killed_while_it_replaces_a_store_leaves_the_old_or_the_new_one(tmp_path, moment, monkeypatch):
    monkeypatch.setattr("groupdro.store.reader._PATIENCE", 0.1)
    path = GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP).path
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_REPLACING, str(path), moment], check=False)
    assert done.returncode == -signal.SIGKILL
    if moment == "between":
        with pytest.raises(FileNotFoundError, match="next writer"):
            GroupedStore.open(path)
    else:
        assert GroupedStore.open(path, verify="full").n_rows == (len(X) if moment == "before" else 50)
    with pytest.raises(FileExistsError):
        GroupedStore.write_arrays(path, X, TARGET, GROUP)
    if moment == "between":  # the writer that was refused has moved the old store back
        assert GroupedStore.open(path, verify="full").n_rows == len(X)
    GroupedStore.write_arrays(path, X, TARGET, GROUP, overwrite=True).verify()
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "no space")])
@pytest.mark.parametrize("moment", ["write", "rename"])
def test_an_error_at_the_last_moment_keeps_the_old_store(tmp_path, monkeypatch, error, moment):
    expected = content(GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP).path)
    rename = os.rename

    def fail(*args):
        raise error

    def fail_to_publish(old, new):
        if str(old).endswith(".partial"):
            raise error
        rename(old, new)

    with monkeypatch.context() as patch:
        if moment == "write":
            patch.setattr(os, "replace", fail)  # of the manifest
        else:
            patch.setattr(os, "rename", fail_to_publish)
        with pytest.raises(type(error)):
            GroupedStore.write_arrays(tmp_path / "s", X, TARGET, GROUP, overwrite=True)
    assert content(tmp_path / "s") == expected
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_the_same_rows_have_the_same_bytes_when_they_replace_others(tmp_path):
    contents = []
    for name in ("s", "t"):
        GroupedStore.write_arrays(tmp_path / name, X, TARGET, GROUP)
        GroupedStore.write_arrays(tmp_path / name, X, LABEL, GROUP, overwrite=True)
        contents.append(content(tmp_path / name))
    assert contents[0] == contents[1]
    assert len(contents[0]) == 4
    # Rows that replace themselves are written again: the old ones may be damaged.
    file = tmp_path / "s" / "X.npy"
    file.write_bytes(bytes(file.stat().st_size))
    GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP, overwrite=True).verify()


@pytest.mark.long  # the gate kills a writer at the worst moment, and has another one write meanwhile
@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize("opens", [80, 200])
def test_two_writers_and_a_reader_never_meet_half_a_store(tmp_path, opens, locks):
    seen, codes = race.race(tmp_path / "s", opens=opens, locks=locks)
    assert codes == [0, 0]
    assert set(seen) <= {"whole", "replaced meanwhile"}
    assert seen["whole"] > opens // 2
    GroupedStore.open(tmp_path / "s", verify="full")
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_store_is_replaced_only_if_asked(tmp_path):
    store = GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP)
    old_rows, expected = store.X, np.array(store.X)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        GroupedStore.write_arrays(tmp_path / "s", X, TARGET, GROUP)
    assert GroupedStore.open(tmp_path / "s").classes is not None
    assert GroupedStore.write_arrays(tmp_path / "s", X, TARGET, GROUP, seed=9, overwrite=True).classes is None
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert np.array_equal(old_rows, expected)  # the files that were open live on


def test_a_failed_replacement_keeps_the_old_store(tmp_path, table):
    expected = content(GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP).path)
    with pytest.raises(RuntimeError):
        write(tmp_path / "s", failing_batches(table, RuntimeError()), overwrite=True)
    assert content(tmp_path / "s") == expected
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("what", ["file", "empty", "other files", "other manifest", "store with more"])
def test_nothing_but_a_store_is_overwritten(tmp_path, what):
    path = tmp_path / "s"
    if what == "file":
        path.write_text("mine")
    elif what == "store with more":
        GroupedStore.write_arrays(path, X, LABEL, GROUP)
        (path / "notes.txt").write_text("mine")
    else:
        path.mkdir()
        if what == "other files":
            (path / "notes.txt").write_text("mine")
        elif what == "other manifest":
            (path / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(FileExistsError, match="refusing to overwrite"):
        GroupedStore.write_arrays(path, X, LABEL, GROUP, overwrite=True)
    assert path.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_link_to_a_store_stays_a_link(tmp_path):
    GroupedStore.write_arrays(tmp_path / "real", X, LABEL, GROUP)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    GroupedStore.write_arrays(tmp_path / "link", X, TARGET, GROUP, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert GroupedStore.open(tmp_path / "real").classes is None


def test_two_writers_of_one_place_do_not_mix(tmp_path, table):
    calls = []

    def batches():
        calls.append(1)
        if len(calls) == 2:
            GroupedStore.write_arrays(tmp_path / "s", X, TARGET, GROUP)
        return iter(table.to_batches())

    with pytest.raises(FileExistsError):
        write(tmp_path / "s", batches)
    assert GroupedStore.open(tmp_path / "s", verify="full").classes is None
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


# ---------------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    for sparse in (False, True):
        path = folder / ("csr" if sparse else "dense")
        GroupedStore.write_arrays(
            path,
            pd.DataFrame(X, columns=NAMES),
            LABEL,
            GROUP,
            sample_weight=WEIGHT,
            offset=np.column_stack([TARGET, -TARGET, WEIGHT]),
            sparse=sparse,
        )
    return folder


def copy_of(originals, kind, folder):
    return Path(shutil.copytree(originals / kind, folder / kind))


CASES = [("dense", "X.npy"), ("csr", "data.npy"), ("csr", "indices.npy"), ("csr", "indptr.npy")]
CASES += [("dense", name) for name in ("y.npy", "weight.npy", "offset.npy", "source.npy", "manifest.json")]


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("where", [0.0, 0.5, 0.999])
def test_a_flipped_bit_is_found(originals, tmp_path, kind, name, where):
    path = copy_of(originals, kind, tmp_path)
    store = GroupedStore.open(path)
    damaged = bytearray((path / name).read_bytes())
    damaged[int(where * len(damaged))] ^= 1
    (path / name).write_bytes(damaged)
    with pytest.raises(StoreError, match=name.removesuffix(".json")):
        GroupedStore.open(path, verify="full")
    with pytest.raises(StoreError, match=name.removesuffix(".json")):
        store.verify()
    if name in (*SMALL_FILES, "manifest.json") or where == 0.0:  # where the header is
        with pytest.raises(StoreError, match=name.removesuffix(".json")):
            GroupedStore.open(path)
    else:
        GroupedStore.open(path)


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("change", ["cut", "longer", "missing", "directory", "link"])
def test_files_of_other_sizes_and_kinds_are_refused(originals, tmp_path, kind, name, change):
    path = copy_of(originals, kind, tmp_path)
    file = path / name
    if change == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif change == "longer":
        file.write_bytes(file.read_bytes() + b"\0")
    else:
        file.rename(tmp_path / "moved")
        if change == "directory":
            file.mkdir()
        elif change == "link":
            file.symlink_to(tmp_path / "moved")
    with pytest.raises(StoreError, match=name.removesuffix(".json")):
        GroupedStore.open(path)


def test_the_block_is_named(tmp_path, monkeypatch):
    for module in (manifest, groupdro.store.files, groupdro.store.reader):
        monkeypatch.setattr(module, "BLOCK", 1000)
    path = GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP).path
    GroupedStore.open(path, verify="full")
    with (path / "X.npy").open("r+b") as file:
        file.seek(3500)
        file.write(b"\xff\xff\xff\xff")
    with pytest.raises(StoreError, match=r"X\.npy is damaged in block 3, which begins at byte 3000"):
        GroupedStore.open(path, verify="full")


def sign(document):
    """Return a manifest with the checksum that fits it."""
    document = {key: value for key, value in document.items() if key != "crc32"}
    body = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(document | {"crc32": zlib.crc32(body)}).encode()


def edit(path, *keys, value):
    """Change one entry of a manifest and sign it; the value `del` removes it."""
    document = json.loads((path / "manifest.json").read_bytes())
    inner = document
    for key in keys[:-1]:
        inner = inner[key]
    if value == "del":
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    (path / "manifest.json").write_bytes(sign(document))


def replace_file(path, name, blob):
    """Change a file and state its new size and checksum."""
    (path / name).write_bytes(blob)
    crc32 = [zlib.crc32(blob)] if blob else []
    edit(path, "files", name.removesuffix(".npy"), value={"size": len(blob), "crc32": crc32})


def replace_array(path, name, array):
    """Change an array and state its new size and checksum."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    replace_file(path, name, buffer.getvalue())


HOSTILE = [
    (("format",), "other"), (("format",), None), (("format",), ["groupdro-store"]),
    (("version",), 2), (("version",), 0), (("version",), "1"), (("version",), True), (("version",), 1.0),
    (("n_features",), -5), (("n_features",), 0), (("n_features",), 2**47), (("n_features",), 6), (("n_features",), {}),
    (("n_features",), 5.0), (("n_features",), "5"), (("n_features",), True), (("n_features",), 10**30),
    (("classes",), None), (("classes",), []), (("classes",), "abc"), (("classes",), ["dog", "cat", "eel"]),
    (("classes",), ["cat", "cat", "dog"]), (("classes",), ["cat", 1, "dog"]), (("classes",), [["cat"], ["dog"]]),
    (("classes",), [1, 2, 2**70]), (("classes",), ["cat", "dog"]), (("classes",), {"cat": 0}), (("classes",), [None]),
    (("target",), 5), (("target",), ["y"]),
    (("group_columns",), []), (("group_columns",), "group"), (("group_columns",), [1]),
    (("group_columns",), ["a", "b"]),
    (("feature_names",), ["a"]), (("feature_names",), [1, 2, 3, 4, 5]), (("feature_names",), "abcde"),
    (("group_sizes",), []), (("group_sizes",), None), (("group_sizes",), [700]), (("group_sizes",), [1, 1, 1, 697.0]),
    (("group_sizes",), [0, 1, 1, 698]), (("group_sizes",), [-1, 1, 1, 699]), (("group_sizes",), [1, 1, 1, 10**30]),
    (("group_sizes",), [2**60] * 4), (("group_sizes",), [1, 1, 1, 698]), (("group_sizes",), [1, 1, True, 697]),
    (("group_sizes",), {"a": 1}), (("group_sizes",), [1, 1, 1, [697]]), (("group_sizes",), "abcd"),
    (("group_names",), []), (("group_names",), None), (("group_names",), ["a", "a", "b", "c"]),
    (("group_names",), ["a", ["b", ["c"]], "d", "e"]), (("group_names",), ["a", [], "d", "e"]),
    (("group_names",), ["a", None, "d", "e"]), (("group_names",), ["a", {"b": 1}, "d", "e"]),
    (("group_names",), {"a": 1, "b": 2, "c": 3, "d": 4}), (("group_names",), ["a", "b", "c"]),
    (("group_names",), "abcd"),
    (("files",), None), (("files",), []), (("files",), {}),
    (("files", "../X"), {"size": 1, "crc32": [0]}), (("files", "/etc/passwd"), {"size": 1, "crc32": [0]}),
    (("files", "data"), {"size": 1, "crc32": [0]}), (("files", "X"), "del"), (("files", "y"), "del"),
    (("files", "X"), None), (("files", "X"), []), (("files", "X", "size"), -1), (("files", "X", "size"), 0),
    (("files", "X", "size"), 14128.0), (("files", "X", "size"), 2**63), (("files", "X", "crc32"), []),
    (("files", "X", "crc32"), [1, 2]), (("files", "X", "crc32"), [-1]), (("files", "X", "crc32"), ["0"]),
    (("files", "X", "crc32"), 7), (("files", "y", "crc32"), [0]), (("files", "X", "crc32"), None),
    (("files", "X", "path"), "../../X.npy"), (("extra",), 1), (("target",), "del"), (("files",), "del"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "value"), HOSTILE, ids=[f"{'.'.join(k)}-{str(v)[:20]}" for k, v in HOSTILE])
def test_hostile_manifests_are_refused(originals, tmp_path, keys, value):
    path = copy_of(originals, "dense", tmp_path)
    edit(path, *keys, value=value)
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match="cannot be read as a store"):
            GroupedStore.open(path)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["indices", "indptr", "y", "source"])
def test_a_sparse_store_that_lacks_an_array_is_refused(originals, tmp_path, name):
    path = copy_of(originals, "csr", tmp_path)
    edit(path, "files", name, value="del")
    with pytest.raises(StoreError, match="its arrays are"):
        GroupedStore.open(path)


HOSTILE_BYTES = {
    "empty": lambda text: b"",
    "no JSON": lambda text: b"\x80\x04K\x01.",
    "cut": lambda text: text[:-5],
    "list": lambda text: b"[" + text + b"]",
    "number": lambda text: b"7",
    "null": lambda text: b"null",
    "nested": lambda text: b"[" * 200_000,
    "NaN": lambda text: text.replace(b'"n_features":5', b'"n_features":NaN'),
    "infinity": lambda text: text.replace(b'"n_features":5', b'"n_features":-Infinity'),
    "overflow": lambda text: text.replace(b'"n_features":5', b'"n_features":1e999'),
    "long number": lambda text: text.replace(b'"n_features":5', b'"n_features":1' + b"0" * 5000),
    "repeated key": lambda text: text.replace(b'"n_features":5', b'"n_features":5,"n_features":6'),
    "not signed": lambda text: text.replace(b'"n_features":5', b'"n_features":6'),
    "not ASCII": lambda text: text.replace(b"cat", b"c\xc3\xa4t"),
    "not text": lambda text: text.replace(b"cat", b"c\xfft"),
    "nested value": lambda text: text.replace(b'"n_features":5', b'"n_features":' + b"[" * 900 + b"]" * 900),
}


@pytest.mark.parametrize("change", HOSTILE_BYTES.values(), ids=HOSTILE_BYTES)
def test_manifests_that_are_no_manifest_are_refused(originals, tmp_path, change):
    path = copy_of(originals, "dense", tmp_path)
    text = (path / "manifest.json").read_bytes()
    changed = change(text)
    assert changed != text
    (path / "manifest.json").write_bytes(changed)
    with pytest.raises(StoreError, match="cannot be read as a store"):
        GroupedStore.open(path)


SIGNED = [
    ("dense", "y.npy", lambda a: np.array([3] + [0] * (N_ROWS - 1))),
    ("dense", "y.npy", lambda a: np.array([-1] + [0] * (N_ROWS - 1))),
    ("dense", "y.npy", lambda a: a.astype(float)),
    ("dense", "y.npy", lambda a: a.astype(">i8")),
    ("dense", "y.npy", lambda a: a[:-1]),
    ("dense", "y.npy", lambda a: a[:, None]),
    ("dense", "weight.npy", lambda a: a * np.nan),
    ("dense", "weight.npy", lambda a: -a),
    ("dense", "weight.npy", lambda a: a.astype(np.float32)),
    ("dense", "weight.npy", lambda a: a * 0.0),
    ("dense", "offset.npy", lambda a: a * np.inf),
    ("dense", "offset.npy", lambda a: a + 1e200),
    ("dense", "offset.npy", lambda a: a[:, :, None]),
    ("dense", "offset.npy", lambda a: a[1:]),
    ("dense", "X.npy", lambda a: a[:, 1:]),
    ("dense", "X.npy", lambda a: np.asfortranarray(a)),
    ("dense", "X.npy", lambda a: a.astype(np.complex64)),
    ("dense", "X.npy", lambda a: a.astype(np.int32)),
    ("dense", "X.npy", lambda a: a.astype("V4")),
    ("csr", "indptr.npy", lambda a: a[::-1]),
    ("csr", "indptr.npy", lambda a: a + 1),
    ("csr", "indptr.npy", lambda a: np.array([0] * N_ROWS + [2**31 - 1], np.int32)),
    ("csr", "indices.npy", lambda a: a[:-1]),
    ("csr", "indices.npy", lambda a: a.astype(np.uint32)),
    ("csr", "data.npy", lambda a: a.astype(np.float16)),
    ("csr", "data.npy", lambda a: a[:-1]),
]


@pytest.mark.parametrize(("kind", "name", "change"), SIGNED)
def test_wrong_arrays_are_refused_even_with_a_checksum_that_fits(originals, tmp_path, kind, name, change):
    path = copy_of(originals, kind, tmp_path)
    replace_array(path, name, change(np.load(path / name)))
    with pytest.raises(StoreError, match="cannot be read as a store"):
        GroupedStore.open(path)


def test_objects_are_never_unpickled(originals, tmp_path):
    path = copy_of(originals, "dense", tmp_path)
    replace_array(path, "X.npy", np.array([[print] * N_FEATURES] * N_ROWS, dtype=object))
    with pytest.raises(StoreError, match=r"X\.npy cannot be read"):
        GroupedStore.open(path)


HEADERS = [
    "", "{}", "__import__('os')", "(" * 3000, "{'descr': '<f4', 'fortran_order': False, 'shape': (700, -5), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (10**9, 10**9), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 5), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (700, 4), }", "{'descr': '<f4', 'shape': (700, 5), }",
    "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (700, 5), }",
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
def test_forged_headers_are_refused(originals, tmp_path, header):
    path = copy_of(originals, "dense", tmp_path)
    blob = (path / "X.npy").read_bytes()
    text = header.encode().ljust(-(-(len(header) + 1) // 64) * 64 + 53) + b"\n"
    replace_file(path, "X.npy", blob[:8] + len(text).to_bytes(2, "little") + text + blob[128:])
    with pytest.raises(StoreError, match=r"X\.npy"):
        GroupedStore.open(path)


@pytest.mark.parametrize(
    ("kind", "name", "index"),
    [
        ("csr", "indices.npy", -1),
        ("csr", "indices.npy", 10**6),
        ("dense", "source.npy", -1),
        ("dense", "source.npy", 2**50),
    ],
)
def test_a_full_check_finds_indices_that_point_outside(originals, tmp_path, kind, name, index):
    path = copy_of(originals, kind, tmp_path)
    values = np.load(path / name)
    values[-1] = index
    replace_array(path, name, values)
    with pytest.raises(StoreError, match=name):
        GroupedStore.open(path, verify="full")


def test_a_group_without_weight_is_refused(originals, tmp_path):
    path = copy_of(originals, "dense", tmp_path)
    weights, sizes = np.load(path / "weight.npy"), GroupedStore.open(path).group_sizes
    weights[sizes[:2].sum() : sizes[:3].sum()] = 0.0
    replace_array(path, "weight.npy", weights)
    with pytest.raises(StoreError, match=r"weight\.npy is zero on all of group 2"):
        GroupedStore.open(path)


def test_weights_of_any_size_are_shares_of_their_group(tmp_path):
    store = GroupedStore.write_arrays(tmp_path / "s", X, TARGET, GROUP, sample_weight=WEIGHT * 1.7e308)
    assert np.array_equal(store.weight, (WEIGHT * 1.7e308)[store.source])
    data = store.data()
    np.testing.assert_allclose(np.add.reduceat(data.weights, data.offsets[:-1]), 1.0, rtol=1e-12)
    totals = np.array([WEIGHT[name == GROUP].sum() for name in store.names])
    np.testing.assert_allclose(store.group_shares, totals / totals.sum(), rtol=1e-12)


@pytest.mark.parametrize("change", ["a column twice", "columns that fall"])
@pytest.mark.parametrize("piece", [2**20, 3])
def test_a_full_check_finds_rows_whose_columns_do_not_rise(originals, tmp_path, monkeypatch, change, piece):
    monkeypatch.setattr("groupdro.store.reader._PIECE", piece)
    path = copy_of(originals, "csr", tmp_path)
    GroupedStore.open(path, verify="full")
    indices, indptr = np.load(path / "indices.npy"), np.load(path / "indptr.npy")
    start = int(indptr[np.flatnonzero(np.diff(indptr) > 1)[-1]])
    indices[start : start + 2] = indices[start] if change == "a column twice" else indices[start : start + 2][::-1]
    replace_array(path, "indices.npy", indices)
    with pytest.raises(StoreError, match="unsorted columns"):
        GroupedStore.open(path, verify="full")
    with pytest.raises(StoreError, match="unsorted columns"):
        GroupedStore.open(path).verify()


def test_files_of_holes_are_not_read_into_memory(originals, tmp_path):
    path = copy_of(originals, "dense", tmp_path)
    n_rows = 2**28
    shapes = {"X": (n_rows, N_FEATURES), "offset": (n_rows, 3)}
    for name in ("X", "y", "weight", "offset", "source"):
        dtype = np.load(path / f"{name}.npy").dtype
        array = np.lib.format.open_memmap(path / f"{name}.npy", "w+", dtype, shapes.get(name, (n_rows,)))
        size = array.offset + array.nbytes
        edit(path, "files", name, value={"size": size, "crc32": [0] * -(-size // manifest.BLOCK)})
    edit(path, "group_sizes", value=[n_rows - 3, 1, 1, 1])
    tracemalloc.start()
    try:
        store = GroupedStore.open(path)
        assert store.n_rows == n_rows
        with pytest.raises(StoreError, match="is damaged"):
            store.verify()
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_what_is_no_directory_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        GroupedStore.open(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"no manifest\.json"):
        GroupedStore.open(tmp_path)
    with pytest.raises(ValueError, match="verify must be"):
        GroupedStore.open(tmp_path, verify="none")


# ---------------------------------------------------------------------- refusals


def with_value(table, pa, column, row, value):
    values = table[column].to_pylist()
    values[row] = value
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values, table[column].type))


@pytest.mark.parametrize(
    ("column", "value", "options", "message"),
    [
        ("label", None, {}, "target column 'label' has a missing value, first in row 612"),
        ("target", float("nan"), {"target": "target"}, "target column 'target' has .*NaN.* first in row 612"),
        ("target", float("inf"), {"target": "target"}, "target column 'target' has .*infinite, first in row 612"),
        ("group", None, {}, "groups column 'group' has a missing value, first in row 612"),
        ("weight", float("nan"), {"groups": ["site", "weight"]}, "groups column 'weight' has .*NaN.* in row 612"),
        ("weight", -1.0, {"weight": "weight"}, "weight column 'weight' has .*negative, first in row 612"),
        ("weight", None, {"weight": "weight"}, "weight column 'weight' has a missing value, first in row 612"),
        ("x2", None, {}, "features column 'x2' has a missing value, first in row 612"),
        ("x2", float("nan"), {}, "features column 'x2' has .*NaN.* first in row 612"),
        ("x2", float("-inf"), {"sparse": True}, "features column 'x2' has .*infinite.* first in row 612"),
        ("x2", 1e39, {}, "features column 'x2' has .*too large for float32, first in row 612"),
        ("x2", 1e5, {"dtype": "float16"}, "features column 'x2' has .*too large for float16, first in row 612"),
        ("x2", 1e39, {"sparse": True}, "features column 'x2' has .*too large for float32, first in row 612"),
    ],
)
def test_bad_values_are_refused_with_their_column_and_row(tmp_path, pa, table, column, value, options, message):
    batches = with_value(table, pa, column, 612, value).to_batches(max_chunksize=100)
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "s", lambda: iter(batches), **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "nope"}, "target names the column 'nope', which is not in source"),
        ({"groups": "nope"}, "groups names the column 'nope'"),
        ({"groups": ["group", "nope"]}, "groups names the column 'nope'"),
        ({"groups": []}, "groups has no column"),
        ({"groups": 3}, "groups must be the name of a column"),
        ({"features": ["x0", "nope"]}, "features names the column 'nope'"),
        ({"features": []}, "features has no column"),
        ({"features": ["x0", "x0"]}, "features names a column twice"),
        ({"features": ["x0", "label"]}, "features has the target column 'label'"),
        ({"features": ["x0", "group"]}, r"features has columns that are not numeric: \['group'\]"),
        ({"weight": "nope"}, "weight names the column 'nope'"),
        ({"weight": "group"}, "weight column 'group' has type .*string"),
        ({"dtype": "int32"}, "dtype must be one of"),
        ({"dtype": "nonsense"}, "dtype must be one of"),
        ({"dtype": None}, "dtype must be one of"),
        ({"dtype": "float16", "sparse": True}, "dtype must be one of .* if rows are sparse"),
        ({"task": "ranking"}, "task must be"),
        ({"task": "regression"}, "target column 'label' is text"),
        ({"seed": -1}, "seed must be"),
        ({"seed": 2**64}, "seed must be"),
        ({"memory": 0}, "memory must be"),
        ({"n_features": 7}, "n_features is 7, but features have 5"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, table, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        write(tmp_path / "s", table, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ([], ValueError, "source is an empty list"),
        (7, ValueError, "source must be a path"),
        ("missing.parquet", FileNotFoundError, "missing.parquet"),
        (__file__, ValueError, "files of one format"),
        (lambda: iter([]), ValueError, "source has no rows"),
        (lambda: iter([3]), ValueError, "record batches"),
    ],
)
def test_bad_sources_are_refused(tmp_path, pa, source, error, message):
    with pytest.raises(error, match=message):
        write(tmp_path / "s", source)
    assert list(tmp_path.iterdir()) == []


def test_a_source_without_rows_is_refused(tmp_path, table):
    with pytest.raises(ValueError, match="source has no rows"):
        write(tmp_path / "s", table.slice(0, 0))
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="no Parquet files"):
        write(tmp_path / "s", tmp_path / "folder")


def test_a_source_that_changes_between_passes_is_refused(tmp_path, table):
    batches = table.to_batches(max_chunksize=100)
    fewer, renamed = batches[:-1], table.set_column(7, "group", table["label"]).to_batches()
    for second in (fewer, [*batches, batches[0]], renamed):
        passes = iter([batches, second])
        with pytest.raises(ValueError, match="source returned different rows when it was read again"):
            write(tmp_path / "s", lambda passes=passes: iter(next(passes)))
        assert list(tmp_path.iterdir()) == []


def test_a_column_that_changes_its_type_is_refused(tmp_path, pa):
    kinds = [{"target": [1, 2]}, {"target": [1.0, 2.5]}]
    batches = [pa.record_batch({"x0": [1.0, 2.0], "group": ["a", "b"]} | kind) for kind in kinds]
    with pytest.raises(ValueError, match="target column 'target' changes its type from row 2 on"):
        write(tmp_path / "s", lambda: iter(batches), target="target", features=["x0"])


def test_dates_are_no_labels(tmp_path, pa, table):
    dated = table.append_column("day", pa.array(SITE, pa.int32()).cast(pa.date32()))
    with pytest.raises(ValueError, match="groups column 'day' has type date32"):
        write(tmp_path / "s", dated, groups="day")


@pytest.mark.parametrize(
    ("indices", "values", "options", "message"),
    [
        ([0, 5], [1.0, 2.0], {}, "an index outside 0 to n_features - 1 = 4, first in row 1"),
        ([0, -1], [1.0, 2.0], {}, "an index outside"),
        ([0, 1], [1.0], {}, "lists of different lengths, first in row 1"),
        ([0, None], [1.0, 2.0], {}, "a missing entry, first in row 1"),
        ([0, 1], [1.0, float("nan")], {}, "column 'v', feature 1, has .*NaN.* first in row 1"),
        ([0, 1], [1.0, 2.0], {"n_features": None}, "n_features must be given"),
        ([0, 1], [1.0, 2.0], {"n_features": 0}, "n_features must be a whole number from 1"),
        ([0, 1], [1.0, 2.0], {"sparse": False}, "dense store must be .*; got 'i' of type list"),
        ([0, 1], [1.0, 2.0], {"features": ["v", "i"]}, "features of a sparse store must be"),
        ([0, 1], [1.0, 2.0], {"features": ["i"]}, "features of a sparse store must be .*; got 'i' of type list"),
    ],
)
def test_bad_lists_are_refused(tmp_path, pa, indices, values, options, message):
    lists = {
        "i": pa.array([[0], indices], pa.list_(pa.int64())),
        "v": pa.array([[1.0], values], pa.list_(pa.float64())),
    }
    source = pa.table(lists | {"label": ["a", "b"], "group": ["a", "b"]})
    options = {"features": ("i", "v"), "sparse": True, "n_features": 5} | options
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "s", source, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.full((3, 2), np.nan)}, "X, column 0, has .*NaN.* first in row 0"),
        ({"X": pd.DataFrame({"a": [1, 2, 3], "b": [1, np.inf, 3]})}, "X, column 'b', has .*infinite.* first in row 1"),
        ({"X": sp.csr_array([[0, 0], [0, np.inf], [1, 0]])}, "X, column 1, has .*infinite.* first in row 1"),
        ({"X": np.zeros((0, 2)), "y": [], "groups": []}, "have no rows"),
        ({"X": np.zeros((3, 0))}, "X has no columns"),
        ({"y": [0, 1]}, "y must have one value per row"),
        ({"y": [0, np.nan, 1]}, "y has missing labels"),
        ({"y": [0, np.inf, 1]}, "y contains infinity"),
        ({"y": ["a", None, "b"]}, "y has missing labels"),
        ({"y": pd.Series([1, None, 2], dtype="Int64")}, "y has missing labels"),
        ({"y": np.array(["a", 1, "b"], object)}, "y has labels that are text and others"),
        ({"y": np.array(["2020", "2021", "2022"], "M8[Y]")}, "target has a label that cannot be stored"),
        ({"y": np.array([1, 2, 2**64 - 1], np.uint64)}, "more than 64 bits"),
        ({"groups": ["a", None, "b"]}, "groups has missing values"),
        ({"groups": np.eye(3, dtype=bool)}, "groups is a membership matrix"),
        ({"groups": np.array(["2020", "2021", "2022"], "M8[D]")}, "groups has a label that cannot be stored"),
        ({"sample_weight": [1, -1, 1]}, "sample_weight has negative"),
        ({"sample_weight": ["a", "b", "c"]}, "sample_weight must be numeric"),
        ({"sample_weight": [1, 0, 1]}, "weight is zero on all of group 'b'"),
        ({"dtype": "float16", "X": sp.csr_array(np.eye(3))}, "dtype must be one of"),
    ],
)
def test_bad_arrays_are_refused(tmp_path, change, message):
    arguments = {"X": np.ones((3, 2)), "y": [0, 1, 0], "groups": ["a", "b", "c"]} | change
    with pytest.raises((ValueError, TypeError), match=message):
        GroupedStore.write_arrays(tmp_path / "s", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_too_many_classes_are_refused(tmp_path):
    with pytest.raises(ValueError, match='pass task="regression"'):
        GroupedStore.write_arrays(tmp_path / "s", np.zeros((70_000, 1)), np.arange(70_000))
    store = GroupedStore.write_arrays(tmp_path / "s", np.zeros((70_000, 1)), np.arange(70_000), task="regression")
    assert np.array_equal(store.y, store.source)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'pip install "groupdro\[store\]"'):
        GroupedStore.write(tmp_path / "s", "t.parquet", target="y", groups="g")
    GroupedStore.write_arrays(tmp_path / "s", X, LABEL, GROUP).verify()


# ---------------------------------------------------------------------- what a user may do meanwhile


def _arrays(seed=0, n=60):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.integers(0, 2, size=n), rng.integers(0, 3, size=n)


@pytest.mark.parametrize("replaced_before", [False, True])
def test_an_open_store_stays_what_it_was_when_it_is_replaced(tmp_path, replaced_before):
    path = tmp_path / "s"
    store = GroupedStore.write_arrays(path, *_arrays())
    if replaced_before:
        store = GroupedStore.write_arrays(path, *_arrays(), overwrite=True)
    GroupedStore.write_arrays(path, *_arrays(1), overwrite=True)
    data = store.data()
    np.testing.assert_array_equal(store.X, np.float32(_arrays()[0])[store.source])
    np.testing.assert_array_equal(data.y, _arrays()[1][store.source])
    with pytest.raises(StoreError, match="was replaced since it was opened"):
        data.key_check()
    with pytest.raises(StoreError, match="was replaced since it was opened"):
        store.verify()
    new = GroupedStore.open(path, verify="full")
    np.testing.assert_array_equal(new.X, np.float32(_arrays(1)[0])[new.source])


def test_the_key_of_rows_is_that_of_their_content(tmp_path):
    store = GroupedStore.write_arrays(tmp_path / "s", *_arrays())
    GroupedStore.write_arrays(tmp_path / "t", *_arrays(1))
    again = GroupedStore.write_arrays(tmp_path / "t", *_arrays(), overwrite=True)
    assert store.data().digest == again.data().digest
    for data in (store.data(), again.data()):
        data.key_check()
    file = tmp_path / "t" / "X.npy"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(StoreError, match=r"X\.npy does not match"):
        again.data().key_check()


@pytest.mark.parametrize(
    ("first", "second"),
    [([True, False], [2, 3]), ([1, 2], [True, False]), ([1, 2], ["1", "01"]), (["a", "b"], [True, False])],
    ids=["numbers after truth", "truth after numbers", "text after numbers", "truth after text"],
)
@pytest.mark.parametrize("column", ["y", "g"])
def test_labels_of_another_kind_in_a_later_file_are_not_made_equal(tmp_path, pa, first, second, column):
    pq = pytest.importorskip("pyarrow.parquet")
    for place, labels in enumerate((first, second)):
        columns = {"x": [0.5, 1.5], "y": ["u", "v"], "g": ["c", "d"]} | {column: labels}
        pq.write_table(pa.table(columns), tmp_path / f"{place}.parquet")
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    with pytest.raises(ValueError, match=f"column '{column}' changes its type from row 2 on"):
        GroupedStore.write(tmp_path / "s", files, target="y", groups="g")


def test_cells_of_text_without_text_are_missing(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "t.csv").write_text("x,y,g\n1.5,u,a\n2.5,v,\n")
    with pytest.raises(ValueError, match="groups column 'g' has a missing value, first in row 1"):
        GroupedStore.write(tmp_path / "s", tmp_path / "t.csv", target="y", groups="g")


def test_an_index_of_pandas_is_no_feature(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"x": [0.5, 1.5, 2.5], "y": list("uvu"), "g": list("aab")}, index=[7, 3, 9])
    frame.to_parquet(tmp_path / "t.parquet")
    store = GroupedStore.write(tmp_path / "s", tmp_path / "t.parquet", target="y", groups="g")
    assert store.feature_names == ("x",)


def test_names_that_could_not_be_read_again_are_not_written(tmp_path):
    X, y, _ = _arrays(n=4)
    with pytest.raises(ValueError, match=r"two groups|twice|same"):
        GroupedStore.write_arrays(tmp_path / "s", X, y, np.array(["\ud83d\ude00", "\U0001f600"] * 2, dtype=object))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["M8[ns]", "m8[ns]", "M8[D]"])
def test_times_are_no_names_of_groups(tmp_path, kind):
    X, y, _ = _arrays(n=4)
    with pytest.raises(ValueError, match="cannot be stored"):
        GroupedStore.write_arrays(tmp_path / "s", X, y, np.array([1, 2, 1, 2], dtype=kind))


# ---------------------------------------------------------------------- what the type of a store does to numbers


SECONDS = 1_700_000_000 + np.arange(300)


def _frame(**columns):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"x": rng.normal(size=300), **columns})


def _written(tmp_path, frame, how, **options):
    """Write a table to a store by one of its ways in."""
    y, groups = np.arange(300) % 2, np.repeat(["a", "b", "c"], 100)
    if how == "frame":
        return GroupedStore.write_arrays(tmp_path / "s", frame, y, groups, **options)
    if how == "sparse":
        options = {key: value for key, value in options.items() if key != "sparse"}
        return GroupedStore.write_arrays(tmp_path / "s", sp.csr_array(frame.to_numpy(float)), y, groups, **options)
    pytest.importorskip("pyarrow")
    frame.assign(y=y, g=groups).to_parquet(tmp_path / "t.parquet")
    return GroupedStore.write(tmp_path / "s", tmp_path / "t.parquet", target="y", groups="g", **options)


@pytest.mark.parametrize("how", ["frame", "sparse", "arrow"])
@pytest.mark.parametrize("kind", ["int64", "float64"])
def test_whole_numbers_that_would_be_merged_are_refused(tmp_path, how, kind):
    frame = _frame(time=SECONDS.astype(kind))
    assert len(np.unique(SECONDS.astype(np.float32))) == 3
    name = "column 1" if how == "sparse" else "column 'time'"
    told = (
        f"{name}.* has integers that float32 cannot represent, first 1700000001 in row 1, which would become 1700000000"
    )
    with pytest.raises(ValueError, match=f'{told}: pass dtype="float64", or subtract an offset'):
        _written(tmp_path, frame, how)
    assert not list(tmp_path.glob("*s"))
    store = _written(tmp_path, frame, how, dtype="float64")
    column = store.X[:, [1]].toarray() if how == "sparse" else np.asarray(store.X[:, [1]])
    assert len(np.unique(column)) == 300


def test_an_offset_makes_whole_numbers_fit(tmp_path):
    store = _written(tmp_path, _frame(time=SECONDS - SECONDS[0]), "frame")
    assert len(np.unique(store.X[:, 1])) == 300


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (2**24 - np.arange(300), "float32"),
        (2**30 + 2**10 * np.arange(300), "float32"),  # beyond 2^24, but exact
        (-(2**24) + np.arange(300), "float32"),
        (2**11 - np.arange(300), "float16"),
        (SECONDS, "float64"),
        (np.arange(300) % 2 == 0, "float32"),
        (1e20 * np.random.default_rng(1).normal(size=300), "float32"),  # whole as all large numbers are
        (np.random.default_rng(1).normal(size=300) * 1e9, "float32"),
        (np.random.default_rng(1).lognormal(0, 3, size=300), "float32"),
        (np.random.default_rng(1).normal(size=300), "float16"),
        (np.full(300, 0.1), "float32"),
        (np.float32(1e9) + np.arange(300, dtype=np.float32), "float32"),  # given as float32: nothing is rounded here
    ],
)
@pytest.mark.parametrize("how", ["frame", "arrow"])
def test_numbers_that_keep_their_differences_are_stored_in_silence(tmp_path, values, dtype, how):
    _written(tmp_path, _frame(v=values), how, dtype=dtype)


@pytest.mark.parametrize("how", ["frame", "sparse", "arrow"])
def test_half_precision_refuses_whole_numbers_from_two_thousand_on(tmp_path, how):
    dtype = "float32" if how == "sparse" else "float16"
    limit = 24 if how == "sparse" else 11
    with pytest.raises(ValueError, match=f"has integers that {dtype} cannot represent, first {2**limit + 1} in row 1,"):
        _written(tmp_path, _frame(v=2**limit + np.arange(300)), how, dtype=dtype)


@pytest.mark.parametrize("how", ["frame", "arrow"])
@pytest.mark.parametrize("memory", [2**20, 20_000])
def test_a_column_whose_spread_is_lost_to_rounding_is_named(tmp_path, how, memory):
    rng = np.random.default_rng(0)
    frame = _frame(level=1e6 + rng.normal(size=300), far=1e5 + rng.normal(size=300), z=rng.normal(size=300))
    with pytest.warns(
        UserWarning, match=r"float32 rounds away .* 0\.02 standard deviations.*'level'; .*'far'\."
    ) as told:
        _written(tmp_path, frame, how, memory=memory)
    assert len(told) == 1
    assert told[0].filename == __file__


def test_a_few_rows_of_a_wide_column_are_not_taken_for_its_spread(tmp_path):
    values = np.sort(np.random.default_rng(0).normal(size=300) * 1e3) + 0.125  # each block has a narrow range
    _written(tmp_path, _frame(v=values), "frame", memory=2000)


def test_the_command_line_says_which_column_is_rounded(tmp_path):
    testing = pytest.importorskip("click.testing")
    from groupdro import cli

    frame = _frame(level=1e6 + np.random.default_rng(0).normal(size=300)).assign(
        y=np.arange(300) % 2, g=list("ab") * 150
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    given = ["convert", str(tmp_path / "t.csv"), str(tmp_path / "s"), "--target", "y", "--group", "g"]
    result = testing.CliRunner().invoke(cli._commands, given)
    assert result.exit_code == 0, result.output
    assert "Warning: float32 rounds away" in result.output
    assert "'level'" in result.output
    frame.assign(level=SECONDS).to_csv(tmp_path / "t.csv", index=False)
    result = testing.CliRunner().invoke(cli._commands, [*given, "--force"])
    assert result.exit_code == 1
    assert "column 'level' has integers that float32 cannot represent" in result.output
