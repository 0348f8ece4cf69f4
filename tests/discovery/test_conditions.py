import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp

from groupdro.discovery.conditions import Columns, Condition, Rule, encode
from tests.discovery.tables import describing_columns


def encoded_columns(frame, least=20):
    columns = Columns(frame)
    return columns, encode(columns, np.arange(len(frame)), least)


def query(frame, condition):
    """Return what pandas says of a condition."""
    column = frame[condition.column]
    if condition.kind in ("missing", "present"):
        return (column.isna() == (condition.kind == "missing")).to_numpy()
    compared = {"<=": column.le, ">": column.gt, "=": column.eq}[condition.kind](condition.value)
    return (compared & column.notna()).fillna(value=False).to_numpy(dtype=bool)


def test_conditions_hold_where_pandas_says_so_and_where_their_codes_do():
    frame = describing_columns(500, seed=0)
    columns, encoded = encoded_columns(frame)
    kinds = {(condition.column, condition.kind) for condition in encoded.conditions}
    assert kinds >= {("age", "<="), ("age", "missing"), ("visits", ">"), ("region", "="), ("member", "="), ("day", ">")}
    for c, condition in enumerate(encoded.conditions):
        expected = query(frame, condition)
        np.testing.assert_array_equal(condition.holds(columns), expected, err_msg=str(condition))
        np.testing.assert_array_equal(encoded.holds((c,), np.arange(500)), expected, err_msg=str(condition))


def test_a_conjunction_holds_where_all_its_conditions_do():
    frame = describing_columns(500, seed=1)
    columns, encoded = encoded_columns(frame)
    rng = np.random.default_rng(0)
    for _ in range(30):
        numbers = tuple(rng.choice(len(encoded.conditions), 3, replace=False).tolist())
        rule = Rule(tuple(encoded.conditions[c] for c in numbers))
        expected = np.logical_and.reduce([query(frame, condition) for condition in rule.conditions])
        np.testing.assert_array_equal(rule.holds(columns), expected)
        np.testing.assert_array_equal(encoded.holds(numbers, np.arange(500)), expected)


@pytest.mark.parametrize("other", [pl.from_pandas, lambda frame: pl.from_pandas(frame).to_arrow()])
def test_conditions_do_not_depend_on_the_library_of_the_table(other):
    frame = describing_columns(400, seed=2)
    table = other(frame)
    _, encoded = encoded_columns(frame)
    columns, again = encoded_columns(table)
    assert [str(condition) for condition in again.conditions] == [str(condition) for condition in encoded.conditions]
    for condition in encoded.conditions:
        np.testing.assert_array_equal(condition.holds(columns), query(frame, condition), err_msg=str(condition))
    names = list(frame.columns)
    np.testing.assert_array_equal(columns.keys(names), Columns(frame).keys(names))


def test_columns_of_an_array_are_named_by_their_position():
    X = np.random.default_rng(0).normal(size=(200, 2))
    columns, encoded = encoded_columns(X)
    assert columns.names == ["x0", "x1"]
    condition = encoded.conditions[0]
    np.testing.assert_array_equal(condition.holds(columns), X[:, 0] <= condition.value)


def test_cuts_are_written_exactly_and_briefly():
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=5000).astype(np.float32)})
    columns, encoded = encoded_columns(frame)
    for condition in encoded.conditions:
        written = np.float32(str(condition).split()[-1])
        assert len(str(condition.value)) <= 8
        np.testing.assert_array_equal(condition.holds(columns), query(frame, Condition("x", condition.kind, written)))


def test_a_column_says_nothing_if_it_is_constant_empty_or_different_in_every_row():
    n = 300
    frame = pd.DataFrame({"one": np.ones(n), "none": np.full(n, np.nan), "id": [f"row {k}" for k in range(n)]})
    _, encoded = encoded_columns(frame)
    assert encoded.conditions == ()
    assert encoded.codes.shape == (n, 0)


def test_both_bounds_of_a_number_are_written_as_one():
    rule = Rule((Condition("x", "<=", 3), Condition("g", "=", "a"), Condition("x", ">", 1)))
    assert str(rule) == "1 < x <= 3 & g = a"


def test_whole_numbers_between_neighbours_are_written_as_equal():
    assert str(Rule((Condition("hour", "<=", 8), Condition("hour", ">", 7)))) == "hour = 8"
    assert str(Rule((Condition("hour", "<=", 8.0), Condition("hour", ">", 7.0)))) == "7.0 < hour <= 8.0"


def test_numbers_with_two_values_are_compared_for_equality():
    frame = pd.DataFrame({"flag": np.arange(300) % 2})
    columns, encoded = encoded_columns(frame)
    assert [str(condition) for condition in encoded.conditions] == ["flag = 0", "flag = 1"]
    for c, condition in enumerate(encoded.conditions):
        np.testing.assert_array_equal(condition.holds(columns), frame["flag"] == condition.value)
        np.testing.assert_array_equal(encoded.holds((c,), np.arange(300)), frame["flag"] == condition.value)
    assert not Condition("flag", "=", "0").holds(columns).any()


def test_categories_and_missing_columns_of_new_rows():
    rule = Rule((Condition("region", "=", "north"),))
    new = pd.DataFrame({"region": ["west", "north", None]})
    assert rule.holds(Columns(new)).tolist() == [False, True, False]
    with pytest.raises(ValueError, match="X has no column 'region'"):
        rule.holds(Columns(pd.DataFrame({"x": [1.0]}), "X"))
    with pytest.raises(TypeError, match="had numbers"):
        Condition("region", ">", 2.0).holds(Columns(new))


def test_what_is_no_table_is_refused():
    with pytest.raises(TypeError, match="columns must be a DataFrame or an array of columns"):
        Columns([1.0, 2.0])


def test_dates_as_objects_are_dates():
    days = pd.Series(pd.date_range("2020-01-01", periods=400))
    frame = pd.DataFrame({"day": days.dt.date.where(days.index % 7 > 0, None)})
    columns, encoded = encoded_columns(frame)
    _, same = encoded_columns(pd.DataFrame({"day": days.where(days.index % 7 > 0)}))
    assert [str(condition) for condition in encoded.conditions] == [str(condition) for condition in same.conditions]
    assert {condition.kind for condition in encoded.conditions} == {"<=", ">", "missing", "present"}
    np.testing.assert_array_equal(columns["day"].missing, days.index % 7 == 0)


def test_a_matrix_without_names_must_be_dense():
    with pytest.raises(
        TypeError, match=r"X must be a DataFrame or an array .* got csr_matrix of shape \(3, 2\), and col"
    ):
        Columns(sp.csr_matrix((3, 2)), "X")
