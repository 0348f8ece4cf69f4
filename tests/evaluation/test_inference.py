"""Intervals that hold for all groups at once."""

import numpy as np
import pytest

from groupdro.data.given import read_clusters
from groupdro.data.grouping import read_groups
from groupdro.evaluation.inference import falls_of_worst, has_few, resample, simultaneous_intervals


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


def test_groups_with_fewer_than_three_effective_errors_are_found():
    wrong = np.zeros(400, dtype=bool)
    wrong[:2] = True  # group a: two of a hundred rows
    wrong[100:103] = True  # group b: three
    wrong[200:230] = True  # group c: thirty
    grouping = read_groups(np.repeat(["a", "b", "c", "d"], 100), 400)  # group d: none
    np.testing.assert_array_equal(has_few(wrong, grouping), [True, False, False, True])
    weights = np.ones(400)
    weights[240:250] = 1000.0  # ten rows of group c count for all, and a third of its rows are wrong
    np.testing.assert_array_equal(has_few(wrong, grouping, weights=weights), [True, False, False, True])
    weights[240:245] = 1.0
    np.testing.assert_array_equal(has_few(wrong, grouping, weights=weights), [True, False, True, True])
    clusters = np.arange(400)
    clusters[100:103] = 100  # the three of group b are the same patient
    np.testing.assert_array_equal(has_few(wrong, grouping, clusters=clusters), [True, True, False, True])


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
