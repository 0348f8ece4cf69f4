"""Stored results of fits that warn, and of fits with every row a group, say what the documents say of them."""

import pytest
from benchmarks import rows_as_groups, useless_fits

from tests.benchmarks.stored import tables


def test_every_stored_useless_fit_warned():
    (rows,) = tables(useless_fits.RECORD.read_text())
    assert [row["fit"] for row in rows] == list(useless_fits.USELESS)
    assert min(int(row["warnings"]) for row in rows) >= 1


@pytest.mark.parametrize("name", ["two groups with opposite slopes", "alpha=10,000"])
def test_a_useless_fit_warns_again(name):
    assert useless_fits.USELESS[name]().messages


@pytest.mark.parametrize("seed", range(3))
def test_a_random_useful_fit_warns_of_nothing(seed):
    _, model, X, y, groups = useless_fits.draw(seed, 2000, 1)
    assert not useless_fits.fit(model, X, y, groups).messages
    assert useless_fits.gain_on_fresh_rows(model, seed) > useless_fits.LEAST_GAIN


def test_stored_fits_of_rows_as_groups_are_certified_at_the_stated_cost():
    (rows,) = tables(rows_as_groups.RECORD.read_text())
    assert len(rows) == 2 * len(rows_as_groups.SHARES)
    for row in rows:
        assert row["status"] == "converged"
        assert float(row["gap"].rstrip("%")) <= 100 * rows_as_groups.TOL
        assert float(row["cost of a plain fit"]) <= rows_as_groups.GOAL
