import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from groupdro.data.grouping import read_groups

NAT = np.datetime64("NaT", "ns")
MEMBERSHIP = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1]], dtype=bool)
SPARSE = [sp.csr_array, sp.csr_matrix, sp.csc_array, sp.csc_matrix, sp.coo_array, sp.coo_matrix]


def objects(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


def by_name(grouping):
    spans = zip(grouping.offsets[:-1], grouping.offsets[1:], strict=True)
    rows = [grouping.members[start:stop].tolist() for start, stop in spans]
    return dict(zip(grouping.names, rows, strict=True))


def assert_partition(groups, expected):
    n_rows = sum(map(len, expected.values()))
    grouping = read_groups(groups, n_rows)
    assert list(by_name(grouping).items()) == list(expected.items())  # the order of the groups counts too
    assert not grouping.overlapping
    assert grouping.offsets.dtype == grouping.members.dtype == np.int64
    assert grouping.offsets[0] == 0
    assert grouping.offsets[-1] == n_rows


TEXT = ["b", "a", "b", "c"]


@pytest.mark.parametrize(
    "groups",
    [
        TEXT,
        tuple(TEXT),
        np.array(TEXT),
        np.array(TEXT, dtype=object),
        np.array(TEXT)[:, None],
        pd.Series(TEXT),
        pd.Series(TEXT, index=[9, 9, 0, 1]),
        pd.Series(TEXT, dtype=object),
        pd.Series(TEXT, dtype="string"),
        pd.Index(TEXT),
        pd.Categorical(TEXT),
        pd.Series(pd.Categorical(TEXT, categories=["z", "c", "b", "a"], ordered=True)),
        pd.DataFrame({"label": TEXT}),
        pl.Series(TEXT),
        pl.Series(TEXT, dtype=pl.Categorical),
        pl.Series(TEXT, dtype=pl.Enum(["z", "c", "b", "a"])),
        pl.DataFrame({"label": TEXT}),
        pl.LazyFrame({"label": TEXT}),
    ],
    ids=lambda groups: f"{type(groups).__module__.split('.')[0]}-{type(groups).__name__}",
)
def test_text_labels_of_any_container_are_sorted_groups(groups):
    assert_partition(groups, {"a": [1], "b": [0, 2], "c": [3]})


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([7, -2, 7], {-2: [1], 7: [0, 2]}),
        (np.array([7, 2, 7], np.uint8), {2: [1], 7: [0, 2]}),
        (pd.Series([7, -2, 7], dtype="Int64"), {-2: [1], 7: [0, 2]}),
        (pd.Categorical([7, -2, 7]), {-2: [1], 7: [0, 2]}),
        (pl.Series([7, -2, 7]), {-2: [1], 7: [0, 2]}),
        (np.array([0, 1, 0]), {0: [0, 2], 1: [1]}),
        (np.array([[0], [1], [0]]), {0: [0, 2], 1: [1]}),
        (np.array([0.5, -1.0, 0.5]), {-1.0: [1], 0.5: [0, 2]}),
        (pl.Series([0.5, -1.0, 0.5]), {-1.0: [1], 0.5: [0, 2]}),
        ([True, False, True], {False: [1], True: [0, 2]}),
        (pd.Series([True, False, True], dtype="boolean"), {False: [1], True: [0, 2]}),
        (pl.Series([True, False, True]), {False: [1], True: [0, 2]}),
        (
            pd.Series(pd.to_datetime(["2021-01-01", "2020-01-01", "2021-01-01"])),
            {datetime.datetime(2020, 1, 1): [1], datetime.datetime(2021, 1, 1): [0, 2]},
        ),
        (
            np.array(["2021-01-01", "2020-01-01", "2021-01-01"], "M8[D]"),
            {datetime.date(2020, 1, 1): [1], datetime.date(2021, 1, 1): [0, 2]},
        ),
        (objects(("b", 1), ("a", 2), ("b", 1)), {("a", 2): [1], ("b", 1): [0, 2]}),
        (pd.MultiIndex.from_tuples([("b", 1), ("a", 2), ("b", 1)]), {("a", 2): [1], ("b", 1): [0, 2]}),
    ],
)
def test_labels_of_other_kinds_are_sorted_groups(groups, expected):
    assert_partition(groups, expected)


def test_names_are_python_values():
    assert [type(name) for name in read_groups(np.array([1, 2], np.int8), 2).names] == [int, int]
    assert [type(name) for name in read_groups(np.array(["a", "b"]), 2).names] == [str, str]


def test_labels_of_mixed_kinds_keep_the_order_of_first_appearance():
    assert_partition(objects("z", 1, "z", (2, 3), 1), {"z": [0, 2], 1: [1, 4], (2, 3): [3]})


def test_a_list_of_mixed_kinds_keeps_the_kinds_apart():
    assert_partition([1, "1", 1], {1: [0, 2], "1": [1]})


@pytest.mark.parametrize(
    "groups",
    [
        np.array([["f", "x"], ["m", "y"], ["f", "x"], ["f", "y"]]),
        np.array([["f", "x"], ["m", "y"], ["f", "x"], ["f", "y"]], dtype=object),
        [["f", "x"], ["m", "y"], ["f", "x"], ["f", "y"]],
        pd.DataFrame({"sex": ["f", "m", "f", "f"], "site": ["x", "y", "x", "y"]}),
        pd.DataFrame([["f", "x"], ["m", "y"], ["f", "x"], ["f", "y"]]),
        pl.DataFrame({"sex": ["f", "m", "f", "f"], "site": ["x", "y", "x", "y"]}),
        pl.LazyFrame({"sex": ["f", "m", "f", "f"], "site": ["x", "y", "x", "y"]}),
    ],
    ids=["ndarray", "objects", "lists", "pandas", "pandas-integer-names", "polars", "polars-lazy"],
)
def test_several_columns_are_the_combinations_that_occur(groups):
    assert_partition(groups, {("f", "x"): [0, 2], ("f", "y"): [3], ("m", "y"): [1]})


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_columns_of_different_kinds_combine(frame):
    groups = frame({"site": ["y", "x", "y"], "year": [2, 1, 2], "old": [True, True, False]})
    assert_partition(groups, {("x", 1, True): [1], ("y", 2, False): [2], ("y", 2, True): [0]})


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_frame_of_zeros_and_ones_means_intersections(frame):
    assert_partition(frame({"a": [1, 0, 1], "b": [1, 1, 0]}), {(0, 1): [1], (1, 0): [2], (1, 1): [0]})


def test_many_columns_of_many_values_do_not_overflow():
    n_rows = 50
    groups = np.tile(np.arange(n_rows), (40, 1)).T.astype(str)  # 50 ** 40 possible combinations
    assert sorted(by_name(read_groups(groups, n_rows)).values()) == [[row] for row in range(n_rows)]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("xyz")), min_size=1, max_size=30))
def test_combinations_agree_with_a_dictionary(pairs):
    expected = {pair: [row for row, other in enumerate(pairs) if other == pair] for pair in sorted(set(pairs))}
    assert_partition(pl.DataFrame(pairs, schema=["a", "b"], orient="row"), expected)
    assert_partition(objects(*pairs), expected)


def test_none_is_one_group_of_all_rows():
    assert_partition(None, {"all": [0, 1, 2]})


def assert_membership(groups, names):
    grouping = read_groups(groups, len(MEMBERSHIP))
    assert list(by_name(grouping).items()) == [
        (name, np.flatnonzero(column).tolist()) for name, column in zip(names, MEMBERSHIP.T, strict=True)
    ]
    assert grouping.overlapping
    assert grouping.offsets.dtype == grouping.members.dtype == np.int64


@pytest.mark.parametrize("groups", [MEMBERSHIP, np.asfortranarray(MEMBERSHIP), MEMBERSHIP.tolist()])
def test_a_boolean_matrix_is_membership(groups):
    assert_membership(groups, range(3))


@pytest.mark.parametrize(
    "groups",
    [
        pd.DataFrame(MEMBERSHIP, columns=["young", "old", "rare"]),
        pd.DataFrame(MEMBERSHIP, columns=["young", "old", "rare"], dtype="boolean"),
        pl.DataFrame(MEMBERSHIP, schema=["young", "old", "rare"]),
        pl.LazyFrame(MEMBERSHIP, schema=["young", "old", "rare"]),
    ],
    ids=["pandas", "pandas-nullable", "polars", "polars-lazy"],
)
def test_a_boolean_frame_is_membership_with_names(groups):
    assert_membership(groups, ["young", "old", "rare"])


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("container", SPARSE)
def test_a_sparse_matrix_is_membership(container, dtype):
    assert_membership(container(MEMBERSHIP.astype(dtype)), range(3))


@pytest.mark.parametrize("times", [2, 256])
@pytest.mark.parametrize("dtype", [bool, np.int64])
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_an_entry_stored_twice_is_one_membership(form, dtype, times):
    row, column = (np.tile(index, times) for index in np.nonzero(MEMBERSHIP))
    data = np.ones(len(row), dtype)
    if form == "coo":
        matrix = sp.coo_array((data, (row, column)), MEMBERSHIP.shape)
    else:
        major, minor = (row, column) if form == "csr" else (column, row)
        order = np.argsort(major, kind="stable")
        starts = np.searchsorted(major[order], np.arange(MEMBERSHIP.shape[form == "csc"] + 1))
        matrix = getattr(sp, f"{form}_array")((data, minor[order], starts), MEMBERSHIP.shape)
    assert matrix.nnz == times * MEMBERSHIP.sum()
    assert_membership(matrix, range(3))


def test_stored_zeros_are_no_membership_and_the_matrix_is_unchanged():
    data, indices, starts = np.array([1, 0, 1, 1], np.int8), np.array([2, 1, 0, 1]), np.array([0, 3, 4])
    matrix = sp.csc_array((data.copy(), indices.copy(), starts.copy()), (3, 2))
    assert by_name(read_groups(matrix, 3)) == {0: [0, 2], 1: [1]}
    np.testing.assert_array_equal(matrix.data, data)
    np.testing.assert_array_equal(matrix.indices, indices)
    np.testing.assert_array_equal(matrix.indptr, starts)


@pytest.mark.parametrize("missing", [None, np.nan, NAT, pd.NA, pd.NaT], ids=str)
@pytest.mark.parametrize(
    "container",
    [
        lambda missing: ["a", missing, "b"],
        lambda missing: objects("a", missing, "b"),
        lambda missing: objects("a", missing, "b", 1),
        lambda missing: pd.Series(["a", missing, "b"], dtype=object),
        lambda missing: np.array([["a", "x"], ["b", missing], ["b", "x"]], dtype=object),
        lambda missing: pd.DataFrame({"u": ["a", "a", "b"], "v": objects("a", missing, "b")}),
    ],
    ids=["list", "objects", "mixed-objects", "pandas-objects", "object-columns", "pandas-frame"],
)
def test_missing_labels_among_objects_are_refused(container, missing):
    groups = container(missing)
    with pytest.raises(ValueError, match="groups has missing values"):
        read_groups(groups, len(groups))


@pytest.mark.parametrize(
    "groups",
    [
        np.array([1.0, np.nan]),
        np.array([1.0, np.nan], np.float16),
        np.array([1j, np.nan]),
        np.array(["2020-01-01", "NaT"], "M8[D]"),
        np.array([1, "NaT"], "m8[D]"),
        np.array([[1.0, 2.0], [np.nan, 2.0]]),
        np.array([[0.0, 1.0], [np.nan, 1.0]]),
        pd.Series(["a", None]),
        pd.Series(["a", None], dtype="string"),
        pd.Series([1.0, np.nan]),
        pd.Series([1, None], dtype="Int64"),
        pd.Series([True, None], dtype="boolean"),
        pd.Series(pd.to_datetime(["2020-01-01", None])),
        pd.Categorical(["a", None]),
        pd.Series(pd.Categorical(["a", None])),
        pd.Series(pd.Categorical([1, None])),
        pd.Index(["a", None]),
        pd.DataFrame({"u": [1, 2], "v": [1.0, np.nan]}),
        pd.DataFrame({"u": [True, True], "v": [True, None]}),
        pd.DataFrame({"u": [True, True], "v": [True, None]}, dtype="boolean"),
        pl.Series(["a", None]),
        pl.Series([1, None]),
        pl.Series([1.0, float("nan")]),
        pl.Series([True, None]),
        pl.Series(["a", None], dtype=pl.Categorical),
        pl.Series(["a", None], dtype=pl.Enum(["a"])),
        pl.Series([datetime.date(2020, 1, 1), None]),
        pl.DataFrame({"u": [1, 2], "v": ["a", None]}),
        pl.DataFrame({"u": [1, 2], "v": [1.0, float("nan")]}),
        pl.DataFrame({"u": [True, True], "v": [True, None]}),
    ],
    ids=lambda groups: f"{type(groups).__module__.split('.')[0]}-{type(groups).__name__}",
)
def test_missing_labels_in_typed_containers_are_refused(groups):
    with pytest.raises(ValueError, match="groups has missing values"):
        read_groups(groups, 2)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_the_error_names_the_column_with_missing_values(frame):
    with pytest.raises(ValueError, match="column 'site'"):
        read_groups(frame({"sex": ["f", "m"], "site": ["x", None]}), 2)


@pytest.mark.parametrize(
    "groups",
    [
        TEXT,
        np.array(TEXT),
        np.array([TEXT, TEXT]).T,
        pd.Series(TEXT),
        pl.Series(TEXT),
        pd.DataFrame({"a": TEXT, "b": TEXT}),
        pl.DataFrame({"a": TEXT, "b": TEXT}),
        np.ones((4, 2), bool),
        pd.DataFrame(np.ones((4, 2), bool)),
        sp.csr_array(np.ones((4, 2), bool)),
    ],
    ids=lambda groups: f"{type(groups).__module__.split('.')[0]}-{type(groups).__name__}",
)
def test_a_wrong_length_is_refused(groups):
    with pytest.raises(ValueError, match="groups has 4 rows but X has 5"):
        read_groups(groups, 5)


@pytest.mark.parametrize("groups", [np.zeros((2, 2, 2)), np.zeros((2, 2, 2), bool), np.array("a")])
def test_other_than_one_or_two_dimensions_are_refused(groups):
    with pytest.raises(ValueError, match="groups must have one or two dimensions"):
        read_groups(groups, 2)


def test_a_one_dimensional_sparse_array_is_refused():
    with pytest.raises(ValueError, match=r"groups must have|groups has 1 row"):  # older SciPy: a matrix of one row
        read_groups(sp.coo_array(np.ones(3)), 3)


@pytest.mark.parametrize(
    "groups",
    [
        np.zeros((2, 0)),
        np.zeros((2, 0), bool),
        np.zeros((2, 0), str),
        pd.DataFrame(index=range(2)),
        sp.csr_array((2, 0), dtype=bool),
    ],
)
def test_no_columns_are_refused(groups):
    with pytest.raises(ValueError, match="groups has no column"):
        read_groups(groups, 2)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float64])
def test_a_matrix_of_zeros_and_ones_is_refused_as_ambiguous(dtype):
    with pytest.raises(ValueError, match=r"(?s)groups.*astype\(bool\).*astype\(str\)"):
        read_groups(MEMBERSHIP.astype(dtype), len(MEMBERSHIP))


@pytest.mark.parametrize(
    ("groups", "name"),
    [
        (np.array([[1, 0], [1, 0]], bool), "1"),
        (sp.csr_array(np.array([[0, 1], [0, 1]])), "0"),
        (pd.DataFrame({"some": [True, True], "none": [False, False]}), "'none'"),
        (pl.DataFrame({"none": [False, False], "some": [True, True]}), "'none'"),
    ],
)
def test_an_empty_group_is_refused_by_name(groups, name):
    with pytest.raises(ValueError, match=f"groups has a group without a row: {name}"):
        read_groups(groups, 2)


@pytest.mark.parametrize("container", [np.array, pd.DataFrame, pl.DataFrame, *SPARSE])
def test_rows_in_no_group_are_refused(container):
    with pytest.raises(ValueError, match="groups leaves 2 rows in no group"):
        read_groups(container(np.array([[1, 0], [0, 0], [0, 1], [0, 0]], bool)), 4)


@pytest.mark.parametrize("container", SPARSE)
@pytest.mark.parametrize("entry", [2.0, -1.0, 0.5, np.nan])
def test_sparse_entries_other_than_zero_and_one_are_refused(container, entry):
    with pytest.raises(ValueError, match="groups is a membership matrix with entries other than 0 and 1"):
        read_groups(container(np.array([[entry, 0.0], [0.0, 1.0]])), 2)


def test_labels_without_a_hash_are_refused():
    with pytest.raises(ValueError, match="groups has labels that cannot be compared"):
        read_groups(objects({}, {}), 2)


def test_masked_labels_are_missing_and_refused():
    with pytest.raises(ValueError, match="groups has missing values"):
        read_groups(np.ma.array([1, 2, 3], mask=[False, True, False]), 3)


def test_the_name_of_a_column_is_told_from_its_labels():
    with pytest.raises(TypeError, match=r"one label per row, such as X\['region'\]; .*GroupBy"):
        read_groups("region", 6)


@pytest.mark.parametrize(
    "dummies",
    [
        pd.get_dummies(pd.Series(TEXT), dtype=int),
        pd.get_dummies(pd.Series(TEXT), dtype=float),
        pd.get_dummies(pd.Series(TEXT), dtype="Int64"),
        pd.get_dummies(pd.DataFrame({"a": TEXT, "b": list("xxyy")}), dtype=int),
        pl.DataFrame({"a": TEXT}).to_dummies(),
    ],
    ids=["int", "float", "nullable", "two columns", "polars"],
)
def test_a_frame_of_dummies_is_refused_as_ambiguous(dummies):
    with pytest.raises(ValueError, match=r"as from get_dummies.*groups\.astype\(bool\)"):
        read_groups(dummies, 4)


def test_the_remedies_for_a_frame_of_dummies_work():
    dummies = pd.get_dummies(pd.Series(TEXT), dtype=int)
    assert by_name(read_groups(dummies.astype(bool), 4)) == {"a": [1], "b": [0, 2], "c": [3]}
    assert by_name(read_groups(pl.DataFrame(dummies.to_dict("list")).cast(pl.Boolean), 4)) == {
        "a": [1],
        "b": [0, 2],
        "c": [3],
    }
    assert list(by_name(read_groups(dummies.astype(str), 4)).values()) == [[3], [0, 2], [1]]


@pytest.mark.parametrize(
    "frame", [{"a": [0, 1, 0, 1], "b": [0, 1, 1, 1]}, {"a": [1, 1, 1], "b": [0, 0, 0]}, {"a": [0, 0], "b": [0, 0]}]
)
def test_two_valued_columns_are_not_taken_for_dummies(frame):
    n = len(frame["a"])
    assert set(read_groups(pd.DataFrame(frame), n).names) == set(zip(frame["a"], frame["b"], strict=True))
