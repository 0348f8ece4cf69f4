"""Calibration of probabilities: the values of R, weights, influence and edges."""

import csv
import json

import numpy as np
import pytest
from benchmarks.judging.tables import FOLDER

from groupdro.data.grouping import read_groups
from groupdro.evaluation.enough import has_enough
from groupdro.evaluation.inference import simultaneous_intervals
from groupdro.evaluation.recalibration import (
    CLIP,
    CalibrationInTheLarge,
    CalibrationSlope,
    ObservedOverExpected,
    expected_events,
    log_odds,
    recalibrate,
)
from groupdro.evaluation.resampling import resample

KINDS = (ObservedOverExpected, CalibrationInTheLarge, CalibrationSlope)
every_kind = pytest.mark.parametrize("kind", KINDS)
REFERENCE = json.loads((FOLDER / "glm.json").read_text())["tables"]
with (FOLDER / "calibration_tables.csv").open(newline="") as file:
    ROWS = list(csv.DictReader(file))


def real_rows(name):
    """Return labels, probabilities and weights of a real table."""
    rows = [row for row in ROWS if row["table"] == name]
    positive, *others = (np.array([float(row[key]) for row in rows]) for key in ("positive", "probability", "weight"))
    return positive == 1, *others


def some_rows(n=80, seed=0):
    """Return labels and probabilities with ties."""
    rng = np.random.default_rng(seed)
    odds = np.round(rng.normal(-0.5, 1.0, n), 1)
    return rng.random(n) < 1 / (1 + np.exp(-0.7 * odds)), 1 / (1 + np.exp(-odds))


def one(statistic, weights=None):
    """Return the value of all rows and the influence of each."""
    n = len(statistic.positive)
    values, influence = statistic(np.arange(n), (np.ones(n) if weights is None else weights)[None])
    return values[0], influence[0]


def coefficient_of(name, positive, odds):
    return recalibrate(positive, odds, np.ones((1, len(odds))), coefficient=name)[0][0]


# ---------------------------------------------------------------------- R


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("kind", ["plain", "weighted"])
def test_values_and_standard_errors_are_those_of_glm_and_its_sandwich(name, kind):
    positive, probabilities, weights = real_rows(name)
    weights = weights if kind == "weighted" else np.ones(len(weights))
    intercept, _ = recalibrate(positive, log_odds(probabilities), weights[None], coefficient="intercept")
    ratio, large, slope = (one(of(positive, probabilities), weights) for of in KINDS)
    found = {
        "intercept": intercept[0],
        "slope": slope[0],
        "in_the_large": large[0],
        "slope_error": np.sqrt(np.sum(slope[1] ** 2)),
        "in_the_large_error": np.sqrt(np.sum(large[1] ** 2)),
        "observed_over_expected": ratio[0],
    }
    assert found == pytest.approx(REFERENCE[name][kind], rel=1e-6)


@pytest.mark.parametrize("name", REFERENCE)
def test_intercept_and_slope_are_those_of_rms(name):
    positive, probabilities, _ = real_rows(name)
    found = [coefficient_of(name, positive, log_odds(probabilities)) for name in ("intercept", "slope")]
    theirs = REFERENCE[name]["val_prob"]
    # val.prob ends its iteration earlier.
    np.testing.assert_allclose(found, [theirs["intercept"], theirs["slope"]], rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------- weights and influence


@every_kind
def test_several_weightings_at_once_give_what_each_gives_alone(kind):
    statistic = kind(*some_rows(n=3000))  # several blocks
    weights = np.random.default_rng(1).uniform(0.2, 2.0, (50, 2000))
    rows = np.random.default_rng(2).permutation(3000)[:2000]
    values, influence = statistic(rows, weights)
    for k in (0, 20, 49):
        value, own = statistic(rows, weights[[k]])
        np.testing.assert_allclose(value, values[[k]], rtol=1e-9)
        np.testing.assert_allclose(own, influence[[k]], rtol=1e-6, atol=1e-12)


@every_kind
def test_whole_weights_count_as_copies_of_the_row(kind):
    statistic = kind(*some_rows())
    copies = np.random.default_rng(2).integers(0, 4, 80)
    value, _ = statistic(np.arange(80), copies[None].astype(float))
    expected, _ = statistic(np.repeat(np.arange(80), copies), np.ones((1, copies.sum())))
    np.testing.assert_allclose(value, expected, rtol=1e-9)


@every_kind
def test_the_scale_of_weights_does_not_matter(kind):
    statistic = kind(*some_rows())
    weights = np.random.default_rng(3).uniform(0.2, 2.0, 80)
    value, influence = one(statistic, weights)
    for scale in (1e-200, 1e200):
        again, own = one(statistic, scale * weights)
        assert again == pytest.approx(value, rel=1e-9)
        np.testing.assert_allclose(own, influence, rtol=1e-6)


@every_kind
def test_the_influence_is_the_derivative_by_the_weights(kind):
    statistic = kind(*some_rows())
    weights = np.random.default_rng(4).uniform(0.2, 2.0, 80)
    influence = one(statistic, weights)[1]
    assert influence.sum() == pytest.approx(0.0, abs=1e-9)
    step = 1e-4
    up, down = (statistic(np.arange(80), weights + sign * step * np.eye(80) * weights[:, None])[0] for sign in (1, -1))
    np.testing.assert_allclose(influence, (up - down) / (2 * step), rtol=1e-5, atol=1e-8)


def test_calibrated_probabilities_have_the_values_of_calibrated_ones():
    probabilities = 1 / (1 + np.exp(-np.random.default_rng(0).normal(-1, 1, 200_000)))
    positive = np.random.default_rng(1).random(200_000) < probabilities
    for kind, truth in zip(KINDS, (1.0, 0.0, 1.0), strict=True):
        value, influence = one(kind(positive, probabilities))
        assert abs(value - truth) < 3 * np.sqrt(np.sum(influence**2)) < 0.03


# ---------------------------------------------------------------------- edges


@pytest.mark.parametrize(
    "positive",
    [
        [False] * 6,
        [True] * 6,
        [False] * 3 + [True] * 3,
        [True] * 3 + [False] * 3,
        [False, False, False, True] + [True] * 2,
    ],
)
def test_separated_classes_have_no_slope(positive):
    probabilities = np.array([0.1, 0.2, 0.3, 0.3, 0.4, 0.5])
    value, influence = one(CalibrationSlope(np.array(positive) == 1, probabilities))
    assert np.isnan(value)
    assert np.isnan(influence).all()
    large, _ = one(CalibrationInTheLarge(np.array(positive) == 1, probabilities))
    assert np.isnan(large) == (len(set(positive)) == 1)


def test_one_weighting_without_a_slope_leaves_the_others_alone():
    statistic = CalibrationSlope(*some_rows())
    weights = np.ones((4, 80))
    weights[1, statistic.positive] = 0.0
    weights[2] = 0.0
    values, influence = statistic(np.arange(80), weights)
    expected, of_each = one(statistic)
    np.testing.assert_allclose(values, [expected, np.nan, np.nan, expected])
    np.testing.assert_allclose(influence[[0, 3]], [of_each, of_each])
    assert np.isnan(influence[1:3]).all()


def test_equal_probabilities_have_no_slope():
    positive = np.arange(10) < 4
    assert np.isnan(one(CalibrationSlope(positive, np.full(10, 0.3)))[0])
    assert one(CalibrationInTheLarge(positive, np.full(10, 0.4)))[0] == pytest.approx(0.0, abs=1e-12)
    assert one(ObservedOverExpected(positive, np.full(10, 0.2)))[0] == pytest.approx(2.0)


def test_probabilities_of_zero_and_one_are_clipped():
    assert log_odds(np.array([0.0, 1.0])) == pytest.approx(np.array([-1, 1]) * np.log((1 - CLIP) / CLIP))
    positive, probabilities = some_rows()
    extreme = np.where(probabilities > 0.6, 1.0, np.where(probabilities < 0.3, 0.0, probabilities))
    for kind in KINDS:
        assert np.isfinite(one(kind(positive, extreme))[0])
    # The ratio takes them as they are.
    ratio = one(ObservedOverExpected(positive, extreme))[0]
    assert ratio == pytest.approx(positive.sum() / extreme.sum())
    assert np.isnan(one(ObservedOverExpected(positive, np.zeros(80)))[0])


@pytest.mark.parametrize("steepness", [1e-3, 0.1, 1.0, 10.0])
def test_the_iteration_converges_from_far_away(steepness):
    odds = np.linspace(-12, 12, 400)
    positive = np.random.default_rng(0).random(400) < 1 / (1 + np.exp(-steepness * odds))
    intercept, slope = (coefficient_of(name, positive, odds) for name in ("intercept", "slope"))
    fitted = 1 / (1 + np.exp(-intercept - slope * odds))
    np.testing.assert_allclose([np.sum(fitted - positive), odds @ (fitted - positive)], 0.0, atol=1e-6)


def test_no_rows_have_no_value():
    statistic = CalibrationSlope(*some_rows())
    values, influence = statistic(np.array([], dtype=np.int64), np.ones((3, 0)))
    assert np.isnan(values).all()
    assert influence.shape == (3, 0)


# ---------------------------------------------------------------------- expected events


def test_expected_events_are_the_sum_of_probabilities_of_the_rarer_class():
    probabilities = np.array([0.1, 0.2, 0.2, 0.9, 0.8, 0.8])
    group = np.array([0, 0, 0, 1, 1, 1])
    np.testing.assert_allclose(expected_events(probabilities, group, 3), [0.5, 0.5, 0.0])
    weighted = expected_events(probabilities, group, 3, weights=np.full(6, 1e200))
    np.testing.assert_allclose(weighted, [0.5, 0.5, 0.0])


def test_rows_of_small_weight_bring_few_events():
    weights = np.append(np.ones(50), np.full(50, 1e-9))
    found = expected_events(np.full(100, 0.2), np.zeros(100, dtype=int), 1, weights=weights)
    np.testing.assert_allclose(found, 10.0)


def test_events_of_a_cluster_that_are_sure_to_come_together_count_once():
    probabilities = np.append(np.ones(20), np.full(20, 0.5))
    units = np.repeat(np.arange(8), 5)
    found = expected_events(probabilities, np.zeros(40, dtype=int), 1, units=units)
    rows = expected_events(probabilities, np.zeros(40, dtype=int), 1)
    assert found < rows
    sure = expected_events(np.tile([1.0, 0.5], 20), np.arange(40) % 2, 2, units=np.arange(40) // 10)
    positives, halves = 4.0, (4 * 2.5) ** 2 / (4 * (2.5**2 + 5 * 0.25))
    np.testing.assert_allclose(sure, [0.0, min(positives * 10, halves)])


# ---------------------------------------------------------------------- the bootstrap of the package


@every_kind
def test_the_bootstrap_resamples_them(kind):
    rng = np.random.default_rng(0)
    odds = rng.normal(-1, 1, 900)
    positive = rng.random(900) < 1 / (1 + np.exp(-odds))
    statistic = kind(positive, 1 / (1 + np.exp(-odds)))
    grouping = read_groups(np.arange(900) % 3, 900)
    assert has_enough(statistic, grouping).all()
    found = resample([statistic], grouping, n_bootstrap=200, seed=0, clusters=np.arange(900) // 3)
    spread = found.resampled_means[:, :, 0].std(axis=0)
    np.testing.assert_allclose(found.errors[:, 0], spread, rtol=0.2)
    intervals = simultaneous_intervals(found, 0.95)
    assert (intervals.low < intervals.estimates).all()
    assert (intervals.estimates < intervals.high).all()
