"""Folds that spread groups and classes evenly."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from groupdro import GroupStratifiedKFold

RNG = np.random.default_rng(0)
N_ROWS = 150
X = RNG.standard_normal((N_ROWS, 3)) * (1.0, 5.0, 0.2)
GROUPS = RNG.choice(["a", "b", "c"], N_ROWS, p=[0.2, 0.3, 0.5])
TARGET = X @ (1.0, -0.2, 3.0) + RNG.standard_normal(N_ROWS) + (GROUPS == "a") * X[:, 0]
LABELS = np.where(TARGET > 0, "yes", "no")


def fold_of_each_row(splitter, n_rows, y, groups, rows=None):
    rows = np.zeros((n_rows, 1)) if rows is None else rows
    fold = np.full(n_rows, -1)
    seen = 0
    for k, (train, test) in enumerate(splitter.split(rows, y, groups)):
        assert (fold[test] == -1).all()
        fold[test] = k
        assert sorted([*train, *test]) == list(range(n_rows))
        seen += 1
    assert (fold >= 0).all()
    assert seen == splitter.get_n_splits() == splitter.n_splits
    return fold


def assert_evenly_dealt(fold, n_splits, strata):
    for stratum in set(strata):
        own = np.array([label == stratum for label in strata])
        counts = np.bincount(fold[own], minlength=n_splits)
        assert np.ptp(counts) <= 1, (stratum, counts)


@given(data=st.data())
@settings(max_examples=150)
def test_every_stratum_is_spread_evenly_over_folds_of_even_size(data):
    n_splits = data.draw(st.integers(2, 6), label="n_splits")
    n_rows = data.draw(st.integers(n_splits, 60), label="n_rows")
    column = st.lists(st.integers(0, 4), min_size=n_rows, max_size=n_rows)
    groups, y = np.array(data.draw(column, label="groups")), np.array(data.draw(column, label="y"))
    shuffle, seed = data.draw(st.booleans(), label="shuffle"), data.draw(st.integers(0, 9), label="seed")
    fold = fold_of_each_row(GroupStratifiedKFold(n_splits, shuffle=shuffle, random_state=seed), n_rows, y, groups)
    assert np.ptp(np.bincount(fold, minlength=n_splits)) <= 1
    assert_evenly_dealt(fold, n_splits, list(zip(groups.tolist(), y.tolist(), strict=True)))
    assert_evenly_dealt(fold, n_splits, groups.tolist())


@given(data=st.data())
@settings(max_examples=100)
def test_rows_of_the_same_overlapping_groups_and_class_are_spread_evenly(data):
    n_splits = data.draw(st.integers(2, 5), label="n_splits")
    n_rows = data.draw(st.integers(max(n_splits, 3), 60), label="n_rows")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16), label="seed"))
    n_groups = data.draw(st.integers(1, 5), label="n_groups")
    member = rng.random((n_rows, n_groups)) < 0.5
    member[0], member[:, 0] = True, True
    y = rng.integers(0, 3, n_rows)
    fold = fold_of_each_row(GroupStratifiedKFold(n_splits, random_state=0), n_rows, y, member)
    assert np.ptp(np.bincount(fold, minlength=n_splits)) <= 1
    assert_evenly_dealt(fold, n_splits, list(zip(map(tuple, member.tolist()), y.tolist(), strict=True)))


@pytest.mark.parametrize(
    "y",
    [TARGET, np.round(TARGET * 1e3).astype(int), np.arange(N_ROWS), None, np.column_stack([TARGET, -TARGET])],
    ids=["real", "whole", "distinct", "none", "two-targets"],
)
def test_regression_targets_are_spread_by_group_alone(y):
    fold = fold_of_each_row(GroupStratifiedKFold(4, random_state=0), N_ROWS, y, GROUPS)
    assert np.ptp(np.bincount(fold)) <= 1
    assert_evenly_dealt(fold, 4, GROUPS.tolist())


@pytest.mark.parametrize("kind", [pd.Series, pl.Series, list], ids=["pandas", "polars", "list"])
def test_labels_and_groups_of_any_container_are_split_alike(kind):
    splitter = GroupStratifiedKFold(4, random_state=0)
    expected = fold_of_each_row(splitter, N_ROWS, LABELS, GROUPS)
    found = fold_of_each_row(splitter, N_ROWS, kind(LABELS.tolist()), kind(GROUPS.tolist()))
    np.testing.assert_array_equal(found, expected)


def test_sparse_membership_is_split_as_boolean_membership():
    member = np.column_stack([np.ones(N_ROWS, bool), GROUPS == "a", X[:, 0] > 0.5])
    splitter = GroupStratifiedKFold(4, random_state=0)
    expected = fold_of_each_row(splitter, N_ROWS, LABELS, member)
    np.testing.assert_array_equal(fold_of_each_row(splitter, N_ROWS, LABELS, sp.csr_array(member)), expected)


def test_a_stratum_smaller_than_the_folds_is_spread_over_as_many_folds_as_it_has_rows():
    groups = np.array(["large"] * 47 + ["small"] * 3)
    y = np.array([0, 1] * 23 + [0] + [1] * 3)
    for seed in range(10):
        fold = fold_of_each_row(GroupStratifiedKFold(5, random_state=seed), 50, y, groups)
        assert len(set(fold[groups == "small"])) == 3
        assert_evenly_dealt(fold, 5, list(zip(groups, y, strict=True)))


def test_rows_without_a_label_are_a_stratum_of_their_own():
    groups = np.where(GROUPS == "a", None, GROUPS.astype(object))
    fold = fold_of_each_row(GroupStratifiedKFold(4, random_state=0), N_ROWS, LABELS, groups)
    assert_evenly_dealt(fold, 4, list(zip(GROUPS.tolist(), LABELS.tolist(), strict=True)))


def test_a_seed_decides_the_folds():
    def fold(seed, **options):
        return fold_of_each_row(GroupStratifiedKFold(4, random_state=seed, **options), N_ROWS, LABELS, GROUPS)

    np.testing.assert_array_equal(fold(1), fold(1))
    assert (fold(1) != fold(2)).any()
    np.testing.assert_array_equal(fold(1, shuffle=False), fold(2, shuffle=False))
    splitter = GroupStratifiedKFold(4, random_state=3)
    np.testing.assert_array_equal(
        fold_of_each_row(splitter, N_ROWS, LABELS, GROUPS), fold_of_each_row(splitter, N_ROWS, LABELS, GROUPS)
    )
    np.testing.assert_array_equal(fold(np.random.RandomState(5)), fold(np.random.RandomState(5)))


def test_without_shuffling_the_rows_of_a_stratum_are_dealt_in_turn():
    fold = fold_of_each_row(GroupStratifiedKFold(2, shuffle=False), 6, [0, 0, 0, 0, 1, 1], ["a"] * 6)
    assert fold.tolist() == [0, 1, 0, 1, 0, 1]


def test_without_a_seed_the_folds_change_from_call_to_call():
    splitter = GroupStratifiedKFold(4)
    folds = [tuple(fold_of_each_row(splitter, N_ROWS, LABELS, GROUPS)) for _ in range(3)]
    assert len(set(folds)) > 1


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_groups_come_from_columns_where_none_are_passed(frame):
    side = np.where(X[:, 1] > 0, "left", "right")
    rows = frame({"u": X[:, 0], "group": GROUPS, "side": side})

    def fold(groups=None, **options):
        return fold_of_each_row(GroupStratifiedKFold(4, random_state=0, **options), N_ROWS, LABELS, groups, rows)

    np.testing.assert_array_equal(fold(group_by="group"), fold(GROUPS))
    np.testing.assert_array_equal(fold(group_by=["group", "side"]), fold(np.column_stack([GROUPS, side])))
    np.testing.assert_array_equal(fold(side, group_by="group"), fold(side))


@pytest.mark.parametrize("n_splits", [1, 0, -3, 2.0, "3", None, True])
def test_a_number_of_folds_that_makes_no_sense_is_refused(n_splits):
    with pytest.raises((TypeError, ValueError), match="n_splits must be a whole number"):
        GroupStratifiedKFold(n_splits)


def test_splitting_needs_groups():
    with pytest.raises(ValueError, match=r"groups must be given, or group_by"):
        next(GroupStratifiedKFold(3).split(X, LABELS))


def test_more_folds_than_rows_are_refused():
    with pytest.raises(ValueError, match="n_splits=5 is larger than the number of rows, 4"):
        next(GroupStratifiedKFold(5).split(X[:4], LABELS[:4], GROUPS[:4]))


def test_columns_that_the_splitter_cannot_find_are_named():
    splitter = GroupStratifiedKFold(3, group_by="group")
    with pytest.raises(TypeError, match=r"group_by='group'.*DataFrame.*ndarray"):
        next(splitter.split(X, LABELS))
    with pytest.raises(ValueError, match=r"\['group'\]"):
        next(splitter.split(pd.DataFrame(X, columns=["u", "v", "w"]), LABELS))


def test_groups_and_rows_of_different_lengths_are_not_split():
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples|groups has"):
        next(GroupStratifiedKFold(3).split(X, LABELS, GROUPS[1:]))


def test_a_splitter_shows_its_parameters():
    text = repr(GroupStratifiedKFold(3, random_state=7, group_by="group"))
    assert "n_splits=3" in text
    assert "random_state=7" in text
    assert "group" in text


@pytest.mark.parametrize(
    ("y", "groups"),
    [(np.arange(60), np.repeat([0, 1], 30)), (None, np.arange(60))],
    ids=["a class a row", "a group a row"],
)
def test_strata_of_single_rows_are_dealt_by_the_seed(y, groups):
    X = np.zeros((60, 1))
    tests = [next(GroupStratifiedKFold(3, random_state=seed).split(X, y, groups))[1].tolist() for seed in (0, 0, 1)]
    assert tests[0] == tests[1] != tests[2]
