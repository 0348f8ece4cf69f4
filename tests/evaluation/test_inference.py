"""Intervals that hold for all groups at once."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from groupdro.data.given import read_clusters
from groupdro.data.grouping import read_groups
from groupdro.evaluation.enough import few_carry, has_enough
from groupdro.evaluation.inference import falls_of_worst, simultaneous_intervals
from groupdro.evaluation.resampling import effective_sizes, resample
from groupdro.evaluation.statistics import AnyFunction, AreaUnderROC, Average, FunctionOfMeans, Median


def drawn(rng, n_groups, size, kind):
    losses = rng.gamma(0.5, 2.0, n_groups * size) if kind == "skewed" else rng.normal(1.0, 1.0, n_groups * size)
    return losses, np.repeat(np.arange(n_groups), size)


@pytest.mark.parametrize("kind", ["normal", "skewed"])
def test_the_intervals_cover_all_means_together(kind):
    rng, covered, once, n = np.random.default_rng(0), 0, 0, 150
    for seed in range(n):
        losses, groups = drawn(rng, 8, 100, kind)
        found = resample(losses[:, None], read_groups(groups, len(groups)), n_bootstrap=300, seed=seed)
        both = simultaneous_intervals(found, 0.9)
        covered += bool(((both.low <= 1.0) & (both.high >= 1.0)).all())
        once += both.least <= 1.0 <= both.most
    # Nominal 90%; beyond what chance allows in one of a thousand such tests.
    assert covered >= 0.9 * n - 3.1 * np.sqrt(0.09 * n)
    assert once >= 0.9 * n - 3.1 * np.sqrt(0.09 * n)


def test_means_errors_and_sizes_are_those_of_arithmetic():
    rng = np.random.default_rng(1)
    losses, groups, weights = rng.normal(size=(60, 2)), np.repeat([0, 1], [20, 40]), rng.uniform(0.5, 2.0, 60)
    found = resample(losses, read_groups(groups, 60), n_bootstrap=4000, seed=0, weights=weights)
    for i in (0, 1):
        w, own = weights[groups == i], losses[groups == i]
        mean = w @ own / w.sum()
        np.testing.assert_allclose(found.means[i], mean)
        size = w.sum() ** 2 / (w**2).sum()
        assert found.sizes[i] == pytest.approx(size)
        assert found.rows[i] == pytest.approx(size)
        error = np.sqrt((w**2) @ (own - mean) ** 2) / w.sum()
        np.testing.assert_allclose(found.errors[i], error)
        np.testing.assert_allclose(found.least_errors[i], own.std(axis=0) / np.sqrt(size))
        np.testing.assert_allclose(found.resampled_means[:, i].std(axis=0), error, rtol=0.1)
    np.testing.assert_allclose(found.resampled_means.mean(axis=0), found.means, atol=0.02)


def test_copies_of_rows_in_one_cluster_add_nothing():
    rng = np.random.default_rng(2)
    losses, groups = rng.normal(size=(50, 1)), np.repeat([0, 1], 25)
    alone = resample(losses, read_groups(groups, 50), n_bootstrap=200, seed=3)
    copied = np.repeat(np.arange(50), 4)
    found = resample(
        losses[copied], read_groups(groups[copied], 200), n_bootstrap=200, seed=3, clusters=read_clusters(copied, 200)
    )
    np.testing.assert_allclose(found.means, alone.means)
    np.testing.assert_allclose(found.errors, alone.errors)
    np.testing.assert_allclose(found.resampled_means, alone.resampled_means)


def test_differences_are_paired():
    rng = np.random.default_rng(3)
    hard, groups = rng.gamma(0.5, 4.0, 400), np.repeat([0, 1], 200)
    losses = np.column_stack([hard, hard + 0.01 * rng.normal(size=400) + 0.005])
    found = resample(losses, read_groups(groups, 400), n_bootstrap=500, seed=0)
    apart = simultaneous_intervals(found, 0.95)
    paired = simultaneous_intervals(found, 0.95, kind=1, against=0)
    assert (paired.high - paired.low).max() < 0.05 * (apart.high - apart.low).min()
    assert (paired.low > 0).all()


def test_groups_that_do_not_count_have_no_interval():
    losses, groups = np.arange(20.0)[:, None], np.repeat([0, 1], 10)
    found = resample(losses, read_groups(groups, 20), n_bootstrap=50, seed=0)
    shown = simultaneous_intervals(found, 0.9, groups=[True, False])
    assert np.isnan(shown.high[1])
    assert shown.most < 15.0


def test_clusters_of_another_length_are_refused():
    with pytest.raises(ValueError, match="cluster"):
        read_clusters(np.zeros(3), 4)


@pytest.mark.parametrize(
    ("plain", "other"),
    [
        ([1.0, 0.8, 0.8, 0.8], [0.85, 0.85, 0.85, 0.85]),
        ([0.9, 0.9, 0.9, 0.9], [1.0, 0.7, 0.7, 0.7]),
        ([1.0, 0.98, 0.7, 0.5], [0.9, 0.95, 0.7, 0.5]),
    ],
    ids=["ties after", "ties before", "another worst"],
)
def test_the_fall_of_the_worst_is_covered_where_groups_compete_for_it(plain, other):
    rng, covered, n = np.random.default_rng(0), 0, 100
    groups = np.repeat(np.arange(4), 100)
    grouping, scales = read_groups(groups, 400), np.array([plain, other])[:, groups]
    for seed in range(n):
        base = rng.exponential(size=400)
        mixed = np.where(rng.random(400) < 0.9, base, rng.exponential(size=400))
        found = resample(np.column_stack([scales[0] * base, scales[1] * mixed]), grouping, n_bootstrap=300, seed=seed)
        falls = falls_of_worst(found, 0.95, against=0, groups=np.ones(4, dtype=bool))
        covered += falls.low[1] <= max(plain) - max(other) <= falls.high[1]
        assert falls.low[0] == falls.estimates[0] == falls.high[0] == 0.0
    assert covered >= 93


def test_the_fall_of_a_clear_worst_group_is_the_paired_difference_in_it():
    rng = np.random.default_rng(1)
    groups = np.repeat([0, 1], 500)
    base = rng.exponential(size=1000) * np.where(groups == 0, 3.0, 1.0)
    found = resample(np.column_stack([base, 0.9 * base]), read_groups(groups, 1000), n_bootstrap=1000, seed=0)
    falls = falls_of_worst(found, 0.95, against=0, groups=np.ones(2, dtype=bool))
    own = 0.1 * base[groups == 0]
    assert falls.estimates[1] == pytest.approx(own.mean())
    error = own.std() / np.sqrt(500)
    np.testing.assert_allclose([own.mean() - falls.low[1], falls.high[1] - own.mean()], 2.05 * error, rtol=0.2)


def test_errors_on_light_rows_do_not_make_an_interval_narrower_than_without_weights():
    losses = np.zeros((300, 1))
    losses[:2] = 1.0
    weights = np.where(np.arange(300) % 5 == 4, 10.0, 1.0)
    one = read_groups(np.zeros(300), 300)
    light, plain = (
        simultaneous_intervals(resample(losses, one, n_bootstrap=200, seed=0, weights=some), 0.95).high[0]
        for some in (weights, None)
    )
    assert light >= plain


# ---------------------------------------------------------------------- groups with too few rows


def test_groups_with_fewer_than_three_effective_errors_are_found():
    wrong = np.zeros(400, dtype=bool)
    wrong[:2] = True  # group a: two of a hundred rows
    wrong[100:103] = True  # group b: three
    wrong[200:230] = True  # group c: thirty
    losses, grouping = np.ones(400), read_groups(np.repeat(["a", "b", "c", "d"], 100), 400)  # group d: none

    def few(**given):
        return few_carry(losses, grouping, errors=wrong, **given).tolist()

    assert few() == [True, False, False, True]
    weights = np.ones(400)
    weights[240:250] = 1000.0  # ten rows of group c count for all, and a third of its rows are wrong
    assert few(weights=weights) == [True, False, False, True]
    weights[240:245] = 1.0
    assert few(weights=weights) == [True, False, True, True]
    clusters = np.arange(400)
    clusters[100:103] = 100  # the three of group b are the same patient
    assert few(clusters=clusters) == [True, True, False, True]


@pytest.mark.parametrize(
    ("given", "least"),
    [({}, 10), ({"classes": True, "errors": np.ones(200, dtype=bool)}, 5)],
    ids=["numbers", "classes"],
)
def test_a_loss_that_few_rows_carry_is_found_in_all_groups_together(given, least):
    grouping = read_groups(np.repeat(["a", "b"], 100), 200)
    for n_carrying, expected in ((least - 1, True), (least, False)):
        losses = (np.arange(200) % 100 < n_carrying).astype(float)  # the same number of rows in both groups
        np.testing.assert_array_equal(few_carry(losses, grouping, **given), [expected] * 2)
        np.testing.assert_array_equal(few_carry(7.0 * losses, grouping, **given), [expected] * 2)
    # Where one group shows that few rows can have most of a loss, the others may just not have met such rows.
    losses = np.ones(200)
    losses[0] = 1e4
    assert few_carry(losses, grouping, **given).all()
    assert not few_carry(np.ones(200), grouping, **given).any()


def test_weights_and_clusters_count_in_what_carries_a_loss():
    grouping, losses = read_groups(np.zeros(100), 100), (np.arange(100) < 20).astype(float)
    assert not few_carry(losses, grouping).any()
    heavy = np.where(np.arange(100) == 0, 1000.0, 1.0)
    assert few_carry(losses, grouping, weights=heavy).all()
    assert few_carry(losses, grouping, clusters=np.arange(100) // 5).all()  # of four patients
    assert not few_carry(np.zeros(100), grouping).any()


def test_a_statistic_needs_ten_effective_rows_of_every_kind():
    positive = np.r_[np.arange(50) < 9, np.arange(50) < 10, np.arange(50) < 41]
    statistic, grouping = AreaUnderROC(positive, np.zeros(150)), read_groups(np.repeat(["a", "b", "c"], 50), 150)
    assert has_enough(statistic, grouping).tolist() == [False, True, False]  # group c has nine negative rows
    weights = np.where(np.arange(150) == 50, 3.0, 1.0)
    assert has_enough(statistic, grouping, weights=weights).tolist() == [False, False, False]
    clusters = np.arange(150)
    clusters[51] = 50
    assert has_enough(statistic, grouping, clusters=clusters).tolist() == [False, False, False]
    counted = Average(np.ones(150), positive)
    assert has_enough(counted, grouping).tolist() == [False, True, True]


def test_effective_sizes_are_those_of_the_rows_that_count():
    grouping, weights = read_groups(np.repeat([0, 1], 4), 8), np.array([1.0, 1, 1, 5, 2, 2, 2, 2])
    np.testing.assert_allclose(effective_sizes(grouping, weights=weights), [64 / 28, 4.0])
    counted = np.array([1, 1, 1, 0, 0, 0, 0, 0], dtype=bool)
    np.testing.assert_allclose(effective_sizes(grouping, weights=weights, counted=counted), [3.0, 0.0])
    clusters = np.array([0, 0, 1, 1, 2, 2, 2, 2])
    np.testing.assert_allclose(effective_sizes(grouping, clusters, weights), [64 / 40, 1.0])


# ---------------------------------------------------------------------- statistics other than means


def test_resampled_statistics_of_means_are_the_resampled_means():
    rng = np.random.default_rng(4)
    losses, weights, clusters = rng.gamma(1.0, size=120), rng.uniform(0.5, 2.0, 120), np.arange(120) // 2
    grouping, counted = read_groups(np.arange(120) % 3, 120), np.ones(120, dtype=bool)
    for given in ({}, {"weights": weights}, {"clusters": clusters}, {"weights": weights, "clusters": clusters}):
        options = {"n_bootstrap": 50, "seed": 5, **given}
        means = resample(losses[:, None], grouping, **options)
        found = resample([Average(losses, counted)], grouping, **options)
        for name in ("means", "errors", "resampled_means", "resampled_errors", "sizes", "rows"):
            np.testing.assert_allclose(getattr(found, name), getattr(means, name), rtol=1e-9, err_msg=name)


def test_the_standard_error_of_a_statistic_is_its_spread_over_resamples():
    rng = np.random.default_rng(5)
    y = rng.random(600) < 0.5
    scores = rng.normal(size=600) + y
    clusters, grouping = np.arange(600) // 2, read_groups(np.arange(600) // 300, 600)
    found = resample([AreaUnderROC(y, scores), Median(scores)], grouping, n_bootstrap=2000, seed=0, clusters=clusters)
    np.testing.assert_allclose(found.resampled_means.std(axis=0), found.errors, rtol=0.1)
    assert found.resampled_errors[:, :, 0].std() > 0


def test_the_standard_errors_of_a_skewed_function_grow_with_its_value():
    rng = np.random.default_rng(0)
    squares = np.square(rng.standard_t(5, size=500))
    grouping = read_groups(np.arange(500) // 100, 500)
    own = AnyFunction(lambda y, _: np.mean(y), squares, squares, weighted=False)
    known = Average(squares, np.ones(500, dtype=bool))
    found = resample([own, known], grouping, n_bootstrap=2000, seed=0)
    np.testing.assert_allclose(found.means[:, 0], found.means[:, 1])
    np.testing.assert_allclose(found.errors[:, 0], found.errors[:, 1], rtol=0.1)
    slopes = [
        np.polyfit(
            ((found.resampled_means[:, :, k] - found.means[:, k]) / found.errors[:, k]).ravel(),
            (found.resampled_errors[:, :, k] / found.errors[:, k]).ravel(),
            1,
        )[0]
        for k in (0, 1)
    ]  # predicted, and exact
    assert slopes[0] == pytest.approx(slopes[1], rel=0.3)
    own, exact = (simultaneous_intervals(found, 0.95, kind=k) for k in (0, 1))
    np.testing.assert_allclose(own.high - own.estimates, exact.high - exact.estimates, rtol=0.35)
    plain = resample(
        [AnyFunction(lambda y, _: np.mean(y), squares, squares, weighted=False)],
        grouping,
        n_bootstrap=2000,
        seed=0,
        studentised=False,
    )
    assert (plain.resampled_errors[:, :, 0] == plain.errors[:, 0]).all()


def test_a_resample_in_which_a_statistic_is_undefined_counts_as_the_sample():
    positive = np.arange(40) < 2
    grouping = read_groups(np.zeros(40), 40)
    statistic = AreaUnderROC(positive, np.random.default_rng(0).normal(size=40))
    found = resample([statistic], grouping, n_bootstrap=300, seed=0)
    assert np.isfinite(found.resampled_means).all()
    assert np.isfinite(found.resampled_errors).all()
    missed = found.resampled_means[:, 0, 0] == found.means[0, 0]
    assert 0.05 < missed.mean() < 0.3  # exp(-2) of the resamples have no positive row


@pytest.mark.parametrize(("scale", "back"), [("logit", lambda x: 1 / (1 + np.exp(-x))), ("square root", np.sqrt)])
def test_intervals_on_another_scale_are_narrower_on_the_side_of_its_end(scale, back):
    rng = np.random.default_rng(6)
    values = rng.beta(1.0, 9.0, 200)
    found = resample(values[:, None], read_groups(np.zeros(200), 200), n_bootstrap=2000, seed=0)
    plain, other = (simultaneous_intervals(found, 0.95, scale=name) for name in ("plain", scale))
    mean, error = values.mean(), values.std() / np.sqrt(200)
    np.testing.assert_allclose([mean - plain.low[0], plain.high[0] - mean], 1.96 * error, rtol=0.15)
    if scale == "square root":
        ends = np.exp(np.log(mean) + np.array([-1.96, 0.0, 1.96]) * error / mean)
    else:
        ends = np.log(mean / (1 - mean)) + np.array([-1.96, 0.0, 1.96]) * error / (mean * (1 - mean))
    wanted = back(ends)
    np.testing.assert_allclose([other.low[0], other.estimates[0], other.high[0]], wanted, rtol=0.02)
    assert other.estimates[0] - other.low[0] < other.high[0] - other.estimates[0]
    assert other.none_below == other.least <= other.estimates[0] <= other.most <= other.high[0]


def test_a_ratio_of_means_has_the_standard_error_of_the_delta_method():
    rng = np.random.default_rng(7)
    columns = np.column_stack([rng.gamma(2.0, size=400), rng.gamma(3.0, size=400)])

    def ratio(means):
        top, bottom = means.T
        return top / bottom, np.column_stack([1.0 / bottom, -top / bottom**2])

    statistic = FunctionOfMeans(columns, ratio, np.ones((400, 1), dtype=bool))
    found = resample([statistic], read_groups(np.zeros(400), 400), n_bootstrap=2000, seed=0)
    mean = columns.mean(axis=0)
    along = (columns[:, 0] - mean[0] / mean[1] * columns[:, 1]) / mean[1]
    assert found.means[0, 0] == pytest.approx(mean[0] / mean[1])
    assert found.errors[0, 0] == pytest.approx(along.std() / 20.0)
    assert found.resampled_means.std() == pytest.approx(along.std() / 20.0, rel=0.1)


def test_the_gain_of_the_worst_area_is_covered_where_groups_compete_for_it():
    rng, covered, n = np.random.default_rng(0), 0, 100
    groups, shifts = np.repeat(np.arange(3), 120), np.array([[0.8, 0.8, 1.0], [1.3, 1.0, 1.0]])
    areas = norm.cdf(shifts / np.sqrt(2.0))
    for seed in range(n):
        y = rng.random(360) < 0.4
        noise = rng.normal(size=360)
        scores = [noise + np.where(y, shift[groups], 0.0) for shift in shifts]
        found = resample(
            [AreaUnderROC(y, some) for some in scores], read_groups(groups, 360), n_bootstrap=200, seed=seed
        )
        losses = replace(found, means=-found.means, resampled_means=-found.resampled_means)
        gains = falls_of_worst(losses, 0.95, against=0, groups=np.ones(3, dtype=bool))
        covered += gains.low[1] <= areas[1].min() - areas[0].min() <= gains.high[1]
        assert gains.low[1] <= gains.estimates[1] <= gains.high[1]
    assert covered >= 93


# ---------------------------------------------------------------------- errors of classifiers


def test_errors_in_one_cluster_do_not_narrow_an_interval():
    one, clusters = read_groups(np.zeros(300), 300), np.arange(300) // 10
    highs = []
    for n_wrong in (1, 3, 10):
        losses = np.zeros((300, 1))
        losses[:n_wrong] = 1.0  # all in the first of thirty clusters
        found = resample(losses, one, n_bootstrap=0, seed=0, clusters=clusters)
        highs.append(float(simultaneous_intervals(found, 0.95).high[0]))
    nothing = 1.0 - 0.025 ** (1 / 30)  # of thirty clusters without an error
    assert nothing <= highs[0] <= highs[1] <= highs[2]
