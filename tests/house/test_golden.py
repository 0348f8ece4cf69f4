"""Fits end as they did when the record was made, up to what other versions of the libraries round differently."""

import math

import pytest

from tests.house.golden import FITS, compare, differences, load, reason_for

LOOSE = 1e-6
RECORDED = load()


def unexplained(names):
    return {name: found for name, found in compare(names, RECORDED, LOOSE).items() if reason_for(name) is None}


def test_every_fit_is_recorded_once():
    assert set(RECORDED) == set(FITS)
    assert len(FITS) >= 100


def test_fits_end_as_recorded():
    fast = [name for name, fit in FITS.items() if fit.fast]
    assert len(fast) >= 40
    assert not unexplained(fast)


@pytest.mark.long
def test_all_fits_end_as_recorded():
    assert not unexplained(FITS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "stalled"),
        ("criterion", "atol"),
        ("upper", 0.5 + 1e-8),
        ("lower", 0.4 - 1e-8),
        ("lower", -math.inf),
        ("upper", math.nan),
        ("passes", 12.5),
        ("epochs", 8),
        ("solver", "sqp"),
        ("w_dot", 1.1),
    ],
)
def test_a_difference_is_found(field, value):
    recorded = dict(
        zip(
            [
                "status",
                "criterion",
                "upper",
                "lower",
                "passes",
                "epochs",
                "passes_per_epoch",
                "solver",
                "w_norm",
                "w_dot",
            ],
            ["converged", "tol", 0.5, 0.4, 12.0, 6, 2.0, "aleg", 2.0, 1.0],
            strict=True,
        )
    )
    assert [found[0] for found in differences(recorded, {**recorded, field: value})] == [field]


def test_rounding_and_one_epoch_are_no_difference():
    recorded = RECORDED["aleg; logistic, ball, float64; stopped"]
    near = {**recorded, "upper": recorded["upper"] * (1 + 1e-10), "epochs": recorded["epochs"] + 1}
    near["passes"] += recorded["passes_per_epoch"]
    assert differences(recorded, near) == []
    assert [found[0] for found in differences(recorded, {**near, "passes": near["passes"] + 0.1})] == ["passes"]
    nothing = {**recorded, "upper": math.nan, "lower": -math.inf}
    assert differences(nothing, dict(nothing)) == []
