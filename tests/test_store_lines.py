"""Stores of text files with one sparse row per line."""

import gzip

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file
from sklearn.feature_extraction import FeatureHasher

import groupdro as gd
from groupdro.store import lines


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(lines, "_LEAST_BYTES", 200)


@pytest.mark.parametrize("zero_based", [False, True])
def test_svmlight_files_are_read_in_blocks(tmp_path, small_blocks, zero_based):
    rng = np.random.default_rng(0)
    X = sp.csr_array(np.where(rng.random((300, 20)) < 0.3, rng.normal(size=(300, 20)).round(3), 0.0))
    y, groups = rng.choice([-1, 1], 300), rng.integers(5, 9, 300)
    files = []
    for k, rows in enumerate((slice(0, 120), slice(120, 300))):
        files.append(tmp_path / f"{k}.svm")
        dump_svmlight_file(X[rows], y[rows], str(files[-1]), zero_based=zero_based, query_id=groups[rows])
    store = gd.GroupedStore.write_lines(
        tmp_path / "s", files, form="svmlight", n_features=20, zero_based=zero_based, memory=1000, dtype="float64"
    )
    assert store.names == (5, 6, 7, 8)
    np.testing.assert_array_equal(store.X.toarray(), X.toarray()[store.source])
    np.testing.assert_array_equal(store.y, y[store.source])
    np.testing.assert_array_equal(np.repeat(store.names, store.group_sizes), groups[store.source])
    with pytest.raises(ValueError, match="qid"):
        gd.GroupedStore.write_lines(tmp_path / "t", files, form="svmlight", n_features=20, groups="site")


def test_lines_longer_than_a_block_are_read_once(tmp_path, small_blocks):
    long = " ".join(f"{column}:1" for column in range(1, 301))
    (tmp_path / "rows").write_text(f"1 qid:1 {long}\n-1 qid:1 2:1\n1 qid:2 3:1")
    store = gd.GroupedStore.write_lines(tmp_path / "s", tmp_path / "rows", form="svmlight", n_features=300, memory=1000)
    assert store.group_sizes.tolist() == [2, 1]
    assert store.X.sum(axis=1)[np.argsort(store.source)].tolist() == [300, 1, 1]


def test_a_row_without_a_query_is_refused(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:2\n-1 2:3\n")
    with pytest.raises(ValueError, match="has rows without a qid"):
        gd.GroupedStore.write_lines(tmp_path / "s", tmp_path / "a.svm", form="svmlight", n_features=5)


LINES = """1 2.0 'first|country DE |page url_7 price:2.5 | plain
-1 |country FR|page:3 url_8

1 0.5 |country DE |page url_7:-1
-1 1 0 |country FR | plain:4 other plain:-1.5 |page:2 price
"""


def test_lines_of_vowpal_wabbit(tmp_path, small_blocks):
    (tmp_path / "rows.vw").write_text(LINES)
    store = gd.GroupedStore.write_lines(
        tmp_path / "s", tmp_path / "rows.vw", form="vw", n_features=2**16, groups="country", dtype="float64"
    )
    pairs = [
        [("page=url_7", 1.0), ("page=price", 2.5), ("plain", 1.0)],
        [("page=url_8", 3.0)],
        [("page=url_7", -1.0)],
        [("plain", 2.5), ("other", 1.0), ("page=price", 2.0)],
    ]
    hasher = FeatureHasher(2**16, input_type="pair", alternate_sign=False)
    np.testing.assert_allclose(store.X.toarray(), hasher.transform(pairs).toarray()[store.source])
    assert store.names == ("DE", "FR")
    assert store.y.tolist() == np.array([1, -1, 1, -1])[store.source].tolist()
    np.testing.assert_allclose(store.data().weights[np.argsort(store.source)], [0.8, 0.5, 0.2, 0.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("|country DE |page a\n", "rows.vw', line 1: has no label"),
        ("'tag |country DE |page a\n", "line 1: has no label"),
        ("1 |country DE\n\nx |country DE\n", "line 3: 'x' is not a number"),
        ("1 |page a\n", "line 1: namespace 'country' must have one feature, .* it has none"),
        ("1 |country DE FR\n", "must have one feature, .* it has 'DE', 'FR'"),
        ("1 |country DE\n1 |country DE:2\n", "line 2: .* without a value; it has 'DE:2'"),
        ("1 |country:2 DE\n", "line 1: .* without a value; it has 'DE' and a value itself"),
        ("1 |country DE |page a:b\n", "'b' is not a number"),
        ("1 |country DE |page a: b\n", "'' is not a number"),
        ("1 |country DE | :1 :2\n", "':1' has no name"),
        ("1 |country DE |page a:inf\n", "line 1: 'inf' is NaN or infinite"),
        ("1 -2 |country DE |page a\n", "line 1: the importance weight -2 is negative"),
        ("1 1 0.5 |country DE |page a\n", "line 1: .* does not hold initial predictions"),
        ("nan |country DE |page a\n", "line 1: 'nan' is NaN or infinite"),
    ],
)
def test_lines_that_cannot_be_read_are_refused(tmp_path, text, message):
    (tmp_path / "rows.vw").write_text(text)
    with pytest.raises(ValueError, match=message):
        gd.GroupedStore.write_lines(tmp_path / "s", tmp_path / "rows.vw", form="vw", n_features=8, groups="country")
    assert not (tmp_path / "s").exists()


def test_arguments_are_checked(tmp_path):
    options = {"n_features": 8, "groups": "country"}
    for wrong, message in (
        ({"form": "csv"}, "form must be"),
        ({"form": "vw", "groups": None}, "groups must be the name of a namespace"),
        ({"form": "vw", "n_features": 0}, "n_features"),
        ({"form": "vw", "task": "auto"}, "task"),
        ({"form": "vw", "source": []}, "source has no file"),
    ):
        given = options | {"source": "rows.vw"} | wrong
        with pytest.raises(ValueError, match=message):
            gd.GroupedStore.write_lines(tmp_path / "s", **given)


@pytest.mark.parametrize(("form", "line"), [("svmlight", "1 qid:1 1:0.25\n"), ("vw", "1 |g a |n x:0.25\n")])
def test_a_store_of_ones_refuses_other_values(tmp_path, form, line):
    (tmp_path / "rows").write_text(line)
    groups = {"groups": "g"} if form == "vw" else {}
    with pytest.raises(ValueError, match='dtype="bool" stores only zeros and ones'):
        gd.GroupedStore.write_lines(tmp_path / "s", tmp_path / "rows", form=form, n_features=8, dtype="bool", **groups)


@pytest.mark.parametrize("form", ["svmlight", "vw"])
def test_compressed_files_are_refused(tmp_path, form):
    with gzip.open(tmp_path / "rows.gz", "wt") as file:
        file.write("1 qid:1 1:1\n")
    groups = {"groups": "g"} if form == "vw" else {}
    with pytest.raises(ValueError, match="is compressed; decompress it first"):
        gd.GroupedStore.write_lines(tmp_path / "s", tmp_path / "rows.gz", form=form, n_features=8, **groups)


@pytest.mark.parametrize(("form", "text"), [("svmlight", "1 qid:1 1:1\n-1 qid:1 2:1\n"), ("vw", "1 |g a |n x\n")])
def test_a_byte_order_mark_is_skipped(tmp_path, form, text):
    groups = {"groups": "g"} if form == "vw" else {}
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / encoding).write_text(text, encoding=encoding)
    stores = [
        gd.GroupedStore.write_lines(tmp_path / f"{name} store", tmp_path / name, form=form, n_features=8, **groups)
        for name in ("utf-8", "utf-8-sig")
    ]
    np.testing.assert_array_equal(stores[0].X.toarray(), stores[1].X.toarray())
    assert stores[0].y.tolist() == stores[1].y.tolist()
    for encoding in ("utf-16", "utf-32"):
        (tmp_path / encoding).write_text(text, encoding=encoding)
        with pytest.raises(ValueError, match=f"{encoding}' is text in UTF-16 or UTF-32; convert it to UTF-8 first"):
            gd.GroupedStore.write_lines(tmp_path / "s", tmp_path / encoding, form=form, n_features=8, **groups)


@pytest.mark.parametrize("line", ["1 qid:1 0:1\n", "1 qid:1 9:1\n", "1 qid:1 99999999999:1\n", "1 qid:1 x\n"])
def test_lines_of_svmlight_that_cannot_be_read_name_file_and_lines(tmp_path, line):
    (tmp_path / "rows").write_text("1 qid:1 1:1\n" + line)
    with pytest.raises(ValueError, match=r"rows', lines 1 to 2: .* with columns from 1 to 8"):
        gd.GroupedStore.write_lines(tmp_path / "s", tmp_path / "rows", form="svmlight", n_features=8)


def test_a_word_that_touches_the_bar_is_a_tag(tmp_path):
    (tmp_path / "rows").write_text("1 tag|g a |n x\n-1 2 'other |g b |n x\n1 7|g a |n x\n-1|g b |n x\n")
    store = gd.GroupedStore.write_lines(tmp_path / "s", tmp_path / "rows", form="vw", n_features=8, groups="g")
    assert store.y[np.argsort(store.source)].tolist() == [1, -1, 1, -1]
    np.testing.assert_allclose(store.data().weights[np.argsort(store.source)], [1 / 2, 2 / 3, 1 / 2, 1 / 3])


def test_a_feature_that_occurs_twice_counts_once_in_a_store_of_ones(tmp_path):
    (tmp_path / "rows").write_text("1 |g a | x x y\n")
    options = {"form": "vw", "n_features": 2**10, "groups": "g"}
    ones = gd.GroupedStore.write_lines(tmp_path / "s", tmp_path / "rows", dtype="bool", **options)
    sums = gd.GroupedStore.write_lines(tmp_path / "t", tmp_path / "rows", **options)
    assert sorted(ones.X.data) == [1, 1]
    assert sorted(sums.X.data) == [1, 2]
