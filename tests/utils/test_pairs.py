"""The combinations that tests are parametrized by have every pair of values."""

import itertools

import pytest

from tests.pairs import covering, every_pair


@pytest.mark.parametrize("sizes", [(3,), (2, 2), (5, 2, 2, 2, 5), (4, 3, 2, 3), (1, 4, 1)])
def test_any_two_columns_have_every_pair(sizes):
    rows = covering(sizes)
    for i, j in itertools.combinations(range(len(sizes)), 2):
        assert {(row[i], row[j]) for row in rows} == set(itertools.product(range(sizes[i]), range(sizes[j])))
    assert {row[0] for row in rows} == set(range(sizes[0]))
    largest, next_one = sorted([1, *sizes])[-1:-3:-1]
    assert largest * next_one <= len(rows) <= largest * next_one + 3
    assert len(set(rows)) == len(rows)


def test_pairs_that_need_an_impossible_row_are_left_out():
    rows = covering((2, 2, 3), lambda row: row[0] <= row[1])
    assert {row[:2] for row in rows} == {(0, 0), (0, 1), (1, 1)}
    assert {row[1:] for row in rows} == set(itertools.product(range(2), range(3)))


def test_a_test_gets_the_values_and_a_name_that_tells_them():
    mark = every_pair(loss={"one": 1.5, "two": 2.5}, kind=[int, None], unless=lambda loss, kind: loss < 2 and not kind)
    assert mark.mark.args == (("loss", "kind"), [(1.5, int), (2.5, int), (2.5, None)])
    assert mark.mark.kwargs["ids"] == ["one-int", "two-int", "two-None"]


def test_a_value_that_is_never_possible_is_refused():
    with pytest.raises(AssertionError, match="value of b"):
        every_pair(a=[1, 2], b=[3, 4], unless=lambda a, b: b == 3)
