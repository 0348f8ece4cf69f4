"""Statistics of weighted rows: their values, and the influence of each row."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from groupdro.evaluation.metrics import METRICS
from groupdro.evaluation.outputs import Outputs
from groupdro.evaluation.statistics import AnyFunction, AreaUnderROC, Average, AveragePrecision, Median
from tests.evaluation.outputs import Given, GivenNumbers

CLASSES = {"binary": ["no", "yes"], "three classes": ["low", "mid", "top"]}
BINARY_ONLY = {
    "actual_over_expected",
    "calibration_intercept",
    "calibration_slope",
    "recall",
    "precision",
    "f1",
    "selection_rate",
    "false_positive_rate",
    "false_negative_rate",
    "roc_auc",
    "average_precision",
}


def outputs_of(kind, n=60, seed=0):
    """Return predictions with ties, and labels that they agree with more often than not."""
    rng = np.random.default_rng(seed)
    if kind == "regression":
        y = np.round(rng.normal(size=n), 1)
        return Outputs.of_model(GivenNumbers(), np.round(y + rng.normal(size=n), 1)[:, None], y)
    if kind == "amounts":
        y = np.round(rng.exponential(size=n), 1)
        return Outputs.of_model(GivenNumbers(), np.round(y * rng.uniform(0.5, 1.5, n), 1)[:, None], y)
    classes = CLASSES[kind]
    codes = np.arange(n) % len(classes)
    scores = np.eye(len(classes))[codes] + rng.normal(size=(n, len(classes)))
    probability = np.exp(np.round(scores))
    probability /= probability.sum(axis=1, keepdims=True)
    return Outputs.of_model(Given(classes), probability, np.array(classes)[codes])


def kinds_of(name):
    task = METRICS[name].task
    found = ["amounts" if name == "actual_over_expected" else "regression"] if task != "classification" else []
    return found + ([] if task == "regression" else ["binary"] if name in BINARY_ONLY else list(CLASSES))


CASES = [(name, kind) for name in METRICS for kind in kinds_of(name)]
every_statistic = pytest.mark.parametrize(("name", "kind"), CASES, ids=[f"{name}, {kind}" for name, kind in CASES])


def some_rows(seed=1, n=60, n_chosen=45):
    rng = np.random.default_rng(seed)
    return rng.permutation(n)[:n_chosen], rng.uniform(0.2, 2.0, (3, n_chosen))


# ---------------------------------------------------------------------- weights


@every_statistic
def test_several_weightings_at_once_give_what_each_gives_alone(name, kind):
    statistic = METRICS[name].of(outputs_of(kind))
    rows, weights = some_rows()
    values, influence = statistic(rows, weights)
    assert name == "median_error" or len(set(values.tolist())) == 3
    for k, some in enumerate(weights):
        value, own = statistic(rows, some[None])
        np.testing.assert_allclose(value, values[[k]], rtol=1e-12)
        if influence is not None:
            np.testing.assert_allclose(own, influence[[k]], rtol=1e-9, atol=1e-15)


@every_statistic
def test_whole_weights_count_as_copies_of_the_row(name, kind):
    statistic = METRICS[name].of(outputs_of(kind))
    rows, _ = some_rows()
    copies = np.random.default_rng(2).integers(0, 4, len(rows))
    value, _ = statistic(rows, copies[None].astype(float))
    expected, _ = statistic(np.repeat(rows, copies), np.ones((1, copies.sum())))
    np.testing.assert_allclose(value, expected, rtol=1e-10)


@every_statistic
def test_neither_the_scale_of_weights_nor_the_order_of_rows_matters(name, kind):
    statistic = METRICS[name].of(outputs_of(kind))
    rows, weights = some_rows()
    values, influence = statistic(rows, weights)
    other = np.random.default_rng(3).permutation(len(rows))
    again, influence_again = statistic(rows[other], 7.0 * weights[:, other])
    np.testing.assert_allclose(again, values, rtol=1e-12)
    if influence is not None:
        np.testing.assert_allclose(influence_again, influence[:, other], rtol=1e-9, atol=1e-12)


@every_statistic
def test_the_influence_of_a_row_is_the_derivative_in_the_logarithm_of_its_weight(name, kind):
    statistic = METRICS[name].of(outputs_of(kind))
    rows, weights = some_rows()
    weights, step = weights[0], 1e-5
    _, influence = statistic(rows, weights[None])
    if name == "median_error":
        assert influence is None  # a step function of the weights
        return
    around = np.concatenate([np.diag(np.full(len(rows), sign * step)) for sign in (1.0, -1.0)])
    ahead, behind = np.split(statistic(rows, weights * np.exp(around))[0], 2)
    derivative = (ahead - behind) / (2 * step)
    assert np.abs(derivative).max() > 1e-3
    np.testing.assert_allclose(influence[0], derivative, rtol=1e-5, atol=1e-9)


@every_statistic
def test_influences_cancel(name, kind):
    statistic = METRICS[name].of(outputs_of(kind))
    _, influence = statistic(*some_rows())
    if influence is not None:
        assert np.abs(influence).sum() > 0.1
        np.testing.assert_allclose(influence.sum(axis=1), 0.0, atol=1e-12)


# ---------------------------------------------------------------------- ranks


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("statistic", "function"),
    [(AreaUnderROC, roc_auc_score), (AveragePrecision, average_precision_score)],
    ids=["roc_auc", "average_precision"],
)
def test_areas_with_ties_are_those_of_scikit_learn(statistic, function, seed):
    rng = np.random.default_rng(seed)
    scores, positive = rng.integers(0, 5, 80) / 3.0, rng.random(80) < 0.4
    rows, weights = np.arange(0, 80, 2), rng.uniform(0.0, 2.0, (1, 40))
    values, _ = statistic(positive, scores)(rows, weights)
    expected = function(positive[rows], scores[rows], sample_weight=weights[0])
    assert values[0] == pytest.approx(expected, rel=1e-12)


def test_scores_that_are_all_equal_have_an_area_of_one_half_and_the_precision_of_chance():
    positive = np.arange(50) % 5 == 0
    rows, weights = np.arange(50), np.ones((1, 50))
    assert AreaUnderROC(positive, np.zeros(50))(rows, weights)[0] == pytest.approx(0.5)
    assert AveragePrecision(positive, np.zeros(50))(rows, weights)[0] == pytest.approx(0.2)


@pytest.mark.parametrize("kind", ["positive", "negative"])
def test_an_area_under_the_curve_of_one_class_is_undefined(kind):
    positive = np.full(6, kind == "positive")
    (value,), _ = AreaUnderROC(positive, np.arange(6.0))(np.arange(6), np.ones((1, 6)))
    assert np.isnan(value)


def test_an_average_precision_without_positive_rows_is_undefined():
    (value,), _ = AveragePrecision(np.zeros(6, dtype=bool), np.arange(6.0))(np.arange(6), np.ones((1, 6)))
    assert np.isnan(value)


def test_a_resample_without_a_row_that_counts_is_undefined_and_others_are_not():
    counted = np.array([True, True, False, False])
    weights = np.array([[0.0, 0.0, 1.0, 2.0], [1.0, 3.0, 5.0, 5.0]])
    values, influence = Average(np.array([1.0, 5.0, 9.0, 9.0]), counted)(np.arange(4), weights)
    assert np.isnan(values[0])
    assert values[1] == pytest.approx(4.0)
    np.testing.assert_allclose(influence[1], [-0.75, 0.75, 0.0, 0.0])


@pytest.mark.parametrize("kind", ["binary", "three classes", "regression"])
def test_an_explained_share_of_nothing_is_undefined(kind):
    outputs = outputs_of(kind)
    same = np.flatnonzero(outputs.y == outputs.y[0])
    (value,), _ = METRICS["d2"].of(outputs)(same, np.ones((1, len(same))))
    assert np.isnan(value)


# ---------------------------------------------------------------------- medians


@pytest.mark.parametrize("n", [1, 2, 9, 10])
def test_the_median_of_equal_weights_is_that_of_numpy(n):
    values = np.random.default_rng(n).integers(0, 6, n).astype(float)
    for weight in (1.0, 3.0):
        found, _ = Median(values)(np.arange(n), np.full((1, n), weight))
        assert found[0] == np.median(values)


def test_the_scale_of_weights_does_not_change_a_median():
    values = np.random.default_rng(0).normal(size=150)
    for scale in (0.1, 1 / 3, 1e-3, 1e-9):
        found, _ = Median(values)(np.arange(150), np.full((1, 150), scale))
        assert found[0] == pytest.approx(np.median(values))


def test_quantiles_have_at_most_their_share_of_weight_on_either_side():
    rng = np.random.default_rng(0)
    values, weights, shares = rng.normal(size=30), rng.uniform(0.1, 3.0, 30), np.array([0.0, 0.1, 0.37, 0.9, 1.0])
    found = Median(values).quantiles(np.arange(30), np.tile(weights, (5, 1)), shares)
    for share, quantile in zip(shares, found, strict=True):
        assert weights[values < quantile].sum() <= share * weights.sum() + 1e-12
        assert weights[values > quantile].sum() <= (1.0 - share) * weights.sum() + 1e-12


# ---------------------------------------------------------------------- functions


def test_a_function_without_weights_is_called_with_copies_of_rows_and_one_with_weights_with_them():
    y, predicted = np.array([1.0, 2.0, 4.0]), np.array([1.0, 1.0, 1.0])
    seen = []

    def plain(true, given):
        seen.append(true.tolist())
        return np.mean(true - given)

    def weighted(true, given, sample_weight):
        seen.append((true.tolist(), sample_weight.tolist()))
        return np.average(true - given, weights=sample_weight)

    weights = np.array([[2.0, 0.0, 1.0]])
    values = [AnyFunction(function, y, predicted, function is weighted)(np.arange(3), weights)[0]
              for function in (plain, weighted)]  # fmt: skip
    np.testing.assert_allclose(values, 1.0)
    assert seen == [[1.0, 1.0, 4.0], ([1.0, 4.0], [2.0, 1.0])]


def test_a_function_that_raises_a_value_error_is_undefined_there():
    def function(true, given):
        if true.max() > 2:
            raise ValueError("too large")
        return 1.0

    statistic = AnyFunction(function, np.arange(5.0), np.zeros(5), weighted=False)
    values, influence = statistic(np.arange(5), np.array([[1.0, 1, 1, 0, 0], [1, 1, 1, 1, 0]]))
    np.testing.assert_array_equal(values, [1.0, np.nan])
    assert influence is None
