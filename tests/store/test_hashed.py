"""Hashed columns, and stores of ones, which have no values."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction import FeatureHasher

import groupdro as gd

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def make_table(n=500, seed=0):
    rng = np.random.default_rng(seed)
    words = np.array(["", "é", "DE", "a longer word", "Zürich"])
    return pa.table(
        {
            "y": rng.integers(0, 2, n),
            "site": rng.integers(0, 3, n),
            "city": words[rng.integers(0, 5, n)],
            "code": rng.integers(-5, 300, n).astype(np.int32),
            "seen": rng.random(n) < 0.5,
            "price": rng.normal(size=n).astype(np.float32),
            "pair": pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(0, 9, 2 * n)), 2),
            "words": [[str(word) for word in words[rng.integers(0, 5, rng.integers(0, 4))]] for _ in range(n)],
        }
    )


def expected_rows(table, columns, n_features, **options):
    def entries(row):
        for name in columns:
            value = row[name]
            if isinstance(value, float):
                yield name, value
                continue
            for item in value if isinstance(value, list) else [value]:
                yield f"{name}={item}", 1.0

    hasher = FeatureHasher(n_features, input_type="pair", **options)
    return hasher.transform(list(entries(row)) for row in table.to_pylist())


@pytest.mark.parametrize(
    ("columns", "n_features"),
    [
        (["city"], 7),
        (["code", "seen"], 2**18),
        (["price"], 7),
        (["words"], 7),
        (["pair"], 7),
        (["city", "code", "price", "words"], 7),
        (["city", "code", "price", "words"], 2**18),
    ],
)
def test_features_are_those_of_scikit_learn(tmp_path, columns, n_features):
    table = make_table()
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    store = gd.GroupedStore.write(
        tmp_path / "store", tmp_path / "rows.parquet", target="y", groups="site", features=columns, dtype="float64",
        sparse=True, hashed=True, n_features=n_features, memory=20_000,
    )  # fmt: skip
    expected = expected_rows(table, columns, n_features)[store.source]
    assert store.X.shape == expected.shape
    if "price" not in columns:
        assert (expected != store.X).nnz == 0
    assert (abs(store.X - expected) - 1e-6 * abs(expected)).max() <= 0.0
    if "code" in columns:
        assert store.X.min() < 0 < store.X.max()


def test_rows_of_text_and_numbers_are_hashed_like_dictionaries(tmp_path):
    columns = {"city": ["Zürich", "", "\U0001f600", "a" * 5000], "price": [0.5, -2.0, 0.0, 3.0], "k": list("abab")}
    table = pa.table(columns | {"y": [0, 1, 0, 1], "site": [0, 0, 0, 0]})
    store = gd.GroupedStore.write(
        tmp_path / "s", table, target="y", groups="site", features=list(columns), dtype="float64", sparse=True,
        hashed=True, n_features=1000,
    )  # fmt: skip
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    expected = FeatureHasher(1000).transform(rows)[store.source]
    assert (expected != store.X).nnz == 0


def test_ones_have_the_columns_of_scikit_learn_without_signs(tmp_path):
    table = make_table()
    store = gd.GroupedStore.write(
        tmp_path / "s", table, target="y", groups="site", features=["city", "words"], dtype="bool", sparse=True,
        hashed=True, n_features=64,
    )  # fmt: skip
    expected = expected_rows(table, ["city", "words"], 64, alternate_sign=False)[store.source]
    np.testing.assert_array_equal(store.X.toarray(), expected.toarray() != 0)


def test_ones_are_stored_without_values_and_fitted_alike(tmp_path):
    table = make_table()
    options = {"target": "y", "groups": "site", "features": ["city", "code", "words"], "n_features": 64}
    options |= {"sparse": True, "hashed": True}
    ones = gd.GroupedStore.write(tmp_path / "ones", table, dtype="bool", **options)
    assert not (tmp_path / "ones" / "data.npy").exists()
    again = gd.GroupedStore.write_arrays(
        tmp_path / "again", sp.csr_array(ones.X.toarray()), ones.y, np.repeat([0, 1, 2], ones.group_sizes)
    )
    models = [gd.GroupDROClassifier(alpha=0.1).fit(store) for store in (ones, again)]
    assert models[0].status_ == "converged"
    assert models[0].upper_bound_ == pytest.approx(models[1].upper_bound_, rel=1e-3)
    gd.GroupedStore.open(tmp_path / "ones", verify="full")
    file = tmp_path / "ones" / "indices.npy"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(gd.store.StoreError):
        gd.GroupedStore.open(tmp_path / "ones", verify="full")


def test_column_numbers_of_ones_are_narrow_whatever_their_number(tmp_path):
    store = gd.GroupedStore.write_arrays(tmp_path / "s", sp.csr_array(np.eye(3)), [0, 1, 0], [0, 0, 1], dtype="bool")
    assert store.X.indices.dtype == np.int32


def test_values_other_than_ones_are_refused(tmp_path):
    X = sp.csr_array(np.array([[1.0, 0.0], [0.0, 2.5]]))
    with pytest.raises(ValueError, match=r'column 1, has the value 2.5, first in row 1, but dtype="bool"'):
        gd.GroupedStore.write_arrays(tmp_path / "s", X, [0, 1], [0, 1], dtype="bool")
    with pytest.raises(ValueError, match="dtype must be one of"):
        gd.GroupedStore.write_arrays(tmp_path / "s", X.toarray(), [0, 1], [0, 1], dtype="bool")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_features": None}, "requires sparse=True and n_features"),
        ({"sparse": False, "dtype": "float32"}, "requires sparse=True and n_features"),
        ({"features": ["dates"]}, "'dates' has type"),
        ({"features": ["holes"]}, "'holes' has a missing item, first in row 1"),
    ],
)
def test_what_cannot_be_hashed_is_refused(tmp_path, options, message):
    table = make_table(2).append_column("dates", pa.array([0, 1], pa.date32()))
    table = table.append_column("holes", pa.array([["a"], [None]]))
    options = {"features": ["city"], "n_features": 8, "sparse": True, "dtype": "bool"} | options
    with pytest.raises(ValueError, match=message):
        gd.GroupedStore.write(tmp_path / "s", table, target="y", groups="site", hashed=True, **options)


def test_a_store_of_ones_refuses_other_values(tmp_path):
    table = make_table()
    with pytest.raises(
        ValueError, match=r"features column 'price' has a value that dtype=\"bool\" would replace by one"
    ):
        gd.GroupedStore.write(
            tmp_path / "s", table, target="y", groups="site", features=["city", "price"], hashed=True, sparse=True,
            dtype="bool", n_features=64,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([5, 6], [5.0, 6.0]),
        ([5.0, 6.0], [5, 6]),
        ([True, False], [1, 0]),
        ([[5], [6]], [[5.0], [6.0]]),
        ([5, 6], pa.array([5, 6], pa.timestamp("s"))),
    ],
)
def test_a_column_that_changes_its_type_is_refused(tmp_path, first, second):
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    for file, column in zip(files, (first, second), strict=True):
        pq.write_table(pa.table({"y": [0, 1], "site": [0, 1], "code": column}), file)
    with pytest.raises(ValueError, match="features column 'code' changes its type from row 2 on"):
        gd.GroupedStore.write(tmp_path / "s", files, target="y", groups="site", hashed=True, sparse=True, n_features=64)


def test_a_column_that_single_precision_would_empty_is_refused(tmp_path):
    table = pa.table({"y": [0, 1], "site": [0, 1], "tiny": [0.0, 1e-50], "mixed": [1e-50, 1.0]})
    options = {"target": "y", "groups": "site", "sparse": True}
    with pytest.raises(ValueError, match="column 'tiny' has only values too small for float32, first in row 1"):
        gd.GroupedStore.write(tmp_path / "s", table, **options)
    assert gd.GroupedStore.write(tmp_path / "s", table, dtype="float64", **options).X.nnz == 3
    assert gd.GroupedStore.write(tmp_path / "t", table, features=["mixed"], **options).X.nnz == 1
