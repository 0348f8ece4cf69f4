"""From columns to features and back from JSON."""

import json

import numpy as np
import pytest

from groupdro.tables.encoder import Category, Number, TableEncoder
from groupdro.tables.files import read_table
from groupdro.utils.bundle import BundleError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_numbers_are_standardised_with_the_median_for_what_is_missing():
    column = pa.chunked_array([[1, None, 3], [8]])
    number = Number.learn(column, "x")
    assert (number.median, number.mean) == (3.0, 3.75)
    out = np.empty((4, 1))
    number.encode(column, out)
    filled = np.array([1.0, 3.0, 3.0, 8.0])
    np.testing.assert_allclose(out[:, 0], (filled - filled.mean()) / filled.std())


@pytest.mark.parametrize("values", [[5.0, 5.0, 5.0], [0.1 + 0.2, 0.3, 0.3]])
def test_a_constant_column_gives_zeros_and_no_division_by_zero(values):
    table = pa.table({"x": values})
    np.testing.assert_allclose(TableEncoder.learn(table, ["x"]).encode(table), 0.0, atol=1e-12)


def test_labels_are_features_and_new_ones_are_zeros():
    category = Category.learn(pa.chunked_array([["b", "a", None, "b"]]), "c")
    assert category.features == ["c=a", "c=b", "c=(missing)"]
    out = np.empty((4, 3))
    category.encode(pa.chunked_array([["b", None, "new", "a"]]), out)
    assert out.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0]]
    complete = Category.learn(pa.chunked_array([["a", "b"]]), "c")
    out = np.empty((1, 2))
    complete.encode(pa.chunked_array([[None]], pa.null()), out)
    assert out.tolist() == [[0, 0]]


@pytest.mark.parametrize("later", [pa.array([2, 10]), pa.array([2.0, 10.0]), pa.array(["2", "10"])])
def test_numbers_that_are_labels_are_the_same_in_any_type(later):
    encoder = TableEncoder.learn(pa.table({"month": [1, 2, 10]}), ["month"], ["month"])
    assert encoder.feature_names == ["month=1", "month=10", "month=2"]
    assert encoder.encode(pa.table({"month": later})).tolist() == [[0, 0, 1], [0, 1, 0]]


def test_dictionaries_and_truth_values_are_taken(tmp_path):
    table = pa.table({"c": pa.array(["u", "v", "u"]).dictionary_encode(), "t": [True, False, None]})
    pq.write_table(table, tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    encoder = TableEncoder.learn(table, ["c", "t"])
    assert encoder.feature_names == ["c=u", "c=v", "t"]
    assert encoder.encode(table)[:, :2].tolist() == [[1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_delimiter_is_told_from_the_header(tmp_path, mark):
    rows = [["a, b", "c"], ["1", "NA"], ["2", ""], ["3", "x"]]
    text = "\n".join(mark.join(f'"{cell}"' if "," in cell else cell for cell in row) for row in rows)
    (tmp_path / "t.csv").write_text("\ufeff" + text, encoding="utf-8")  # as spreadsheets write it
    table = read_table(tmp_path / "t.csv")
    assert table.column_names == ["a, b", "c"]
    assert table.column("c").to_pylist() == [None, None, "x"]


def test_json_gives_the_same_encoder():
    table = pa.table({"x": [0.1, None, 1 / 3], "c": ["a", None, "b"]})
    encoder = TableEncoder.learn(table, ["x", "c"])
    again = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again == encoder
    assert again.encode(table).tobytes() == encoder.encode(table).tobytes()


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        [1],
        [{"number": "x", "median": 0.0, "mean": 0.0}],
        [{"number": "x", "median": 0.0, "mean": 0.0, "scale": 0.0}],
        [{"number": "x", "median": 0.0, "mean": float("nan"), "scale": 1.0}],
        [{"number": "x", "median": 0.0, "mean": "0", "scale": 1.0}],
        [{"number": 1, "median": 0.0, "mean": 0.0, "scale": 1.0}],
        [{"category": "c", "labels": ["a", "a"]}],
        [{"category": "c", "labels": [None, "a"]}],
        [{"category": "c", "labels": "ab"}],
        [{"category": "c", "labels": ["a"], "code": "x"}],
        [{"category": "c", "labels": ["a"]}, {"category": "c", "labels": ["b"]}],
    ],
)
def test_what_is_not_known_is_refused(document):
    with pytest.raises(BundleError):
        TableEncoder.from_json(document)
