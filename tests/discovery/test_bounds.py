import numpy as np
import pytest

from groupdro.discovery.bounds import Group, Quantity, Sampling, judge


def judged(losses, insides, *, clusters=None, weights=None, least=20, counted=None, **more):
    counted = np.ones(len(losses), dtype=bool) if counted is None else counted
    options = {"least": least, "level": 0.95, "n_bootstrap": 400, "seed": 0, **more}
    quantity = Quantity("loss", losses, counted)
    return judge([Group(quantity, inside) for inside in insides], Sampling(clusters, weights), **options)


def cluster_error(losses, inside, clusters, weights):
    """Return the standard error of the difference of two weighted means over clusters."""
    influence = np.zeros(len(losses))
    for part, sign in ((inside, 1.0), (~inside, -1.0)):
        mean = np.average(losses[part], weights=weights[part])
        influence[part] = sign * weights[part] * (losses[part] - mean) / weights[part].sum()
    return np.sqrt(np.square(np.bincount(clusters, weights=influence)).sum())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("clustered", [False, True])
def test_bounds_are_below_differences_by_the_same_number_of_standard_errors(weighted, clustered):
    rng = np.random.default_rng(0)
    n = 600
    losses = rng.exponential(size=n)
    insides = [rng.random(n) < share for share in (0.1, 0.2, 0.3)]
    clusters = rng.integers(0, 150, n) if clustered else np.arange(n)
    weights = rng.uniform(0.5, 2.0, n) if weighted else np.ones(n)
    found = judged(
        losses, insides, clusters=clusters if clustered else None, weights=weights if weighted else None, least=10
    )
    for k, inside in enumerate(insides):
        means = [np.average(losses[part], weights=weights[part]) for part in (inside, ~inside)]
        assert found.inside[k] == pytest.approx(means[0])
        assert found.outside[k] == pytest.approx(means[1])
        units = np.bincount(clusters[inside], weights=weights[inside])
        size = units.sum() ** 2 / np.square(units).sum()
        error = cluster_error(losses, inside, clusters, weights) * np.sqrt(size / (size - 1.0))
        assert found.low[k] == pytest.approx(means[0] - means[1] - found.critical * error)
    assert 1.6 < found.critical < 3.5


def test_every_resample_is_studentised_by_its_own_error():
    rng = np.random.default_rng(1)
    n, n_bootstrap = 300, 2000
    losses, inside = rng.exponential(size=n), rng.random(n) < 0.3
    found = judged(losses, [inside], n_bootstrap=n_bootstrap)
    draws = np.random.default_rng(2).poisson(1.0, (n_bootstrap, n))
    difference = losses[inside].mean() - losses[~inside].mean()
    values = []
    for drawn in draws:
        means = [np.average(losses[part], weights=drawn[part]) for part in (inside, ~inside)]
        error = cluster_error(
            np.repeat(losses, drawn), np.repeat(inside, drawn), np.arange(drawn.sum()), np.ones(drawn.sum())
        )
        values.append((means[0] - means[1] - difference) / error)
    assert found.critical == pytest.approx(np.quantile(values, 0.95), abs=0.15)


def test_more_groups_make_bounds_lower():
    rng = np.random.default_rng(0)
    losses, insides = rng.exponential(size=500), [rng.random(500) < 0.3 for _ in range(5)]
    one, five = judged(losses, insides[:1]), judged(losses, insides)
    assert five.critical > one.critical
    assert five.low[0] < one.low[0]


def test_groups_of_few_rows_have_no_bound_and_errors_that_are_the_rule_need_twice_as_many():
    rng = np.random.default_rng(0)
    inside = np.arange(400) < 50
    rare, common = ((rng.random(400) < share).astype(float) for share in (0.2, 0.8))
    assert judged(rare, [inside], least=50).enough.tolist() == [True]
    assert judged(rare, [inside], least=51).enough.tolist() == [False]
    assert judged(common, [inside], least=50).enough.tolist() == [False]
    assert judged(common, [inside], least=25).enough.tolist() == [True]
    few = judged(rare, [inside], least=51)
    assert few.low.tolist() == [-np.inf]
    # Fifty rows of five clusters say as much as five rows.
    assert not judged(rare, [inside], clusters=np.arange(400) // 10, least=20).enough.any()


def test_only_counted_rows_matter():
    rng = np.random.default_rng(0)
    losses, inside, counted = rng.exponential(size=400), rng.random(400) < 0.4, rng.random(400) < 0.5
    other = np.where(counted, losses, 1e3)
    first, second = (judged(each, [inside], counted=counted) for each in (losses, other))
    np.testing.assert_array_equal(first.low, second.low)


def test_a_group_without_rows_has_no_bound():
    found = judged(np.random.default_rng(0).exponential(size=100), [np.zeros(100, bool), np.arange(100) < 30])
    assert found.enough.tolist() == [False, True]
    assert np.isfinite(found.low).tolist() == [False, True]


def test_a_draw_may_miss_all_rows_of_a_group():
    losses = np.random.default_rng(0).exponential(size=40)
    assert np.isfinite(judged(losses, [np.arange(40) < 2], least=2).low).all()


def test_equal_losses_say_nothing():
    assert not judged(np.ones(200), [np.arange(200) < 100]).enough.any()
