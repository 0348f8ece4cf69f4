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
    n = 1200
    losses = rng.exponential(size=n)
    insides = [rng.random(n) < share for share in (0.1, 0.2, 0.3)]
    clusters = rng.integers(0, 400, n) if clustered else np.arange(n)
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


def test_groups_of_few_rows_have_no_bound():
    rng = np.random.default_rng(0)
    inside = np.arange(400) < 50
    losses = (rng.random(400) < 0.2).astype(float)
    assert judged(losses, [inside], least=50).enough.tolist() == [True]
    few = judged(losses, [inside], least=51)
    assert few.enough.tolist() == [False]
    assert few.low.tolist() == [-np.inf]
    # Fifty rows of five clusters say as much as five rows.
    assert not judged(losses, [inside], clusters=np.arange(400) // 10, least=20).enough.any()


def test_bounds_are_further_away_where_few_rows_carry_the_variance_that_could_mislead():
    rng = np.random.default_rng(0)
    n = 4000
    insides = [np.arange(n) < 100, (np.arange(n) >= 100) & (np.arange(n) < 500)]

    def distances(losses):
        found = judged(losses, insides)
        errors = [cluster_error(losses, inside, np.arange(n), np.ones(n)) for inside in insides]
        return np.round((found.inside - found.outside - found.low) / found.critical / errors, 1).tolist()

    errors = (np.arange(n) % 20 > 0).astype(float)  # all but 5 and 20 rows inside, and 175 outside
    assert distances(errors) == [1.5, 1.0]
    assert distances(1.0 - errors) == [1.0, 1.0]
    tails = np.where(rng.random(n) < 0.1, rng.lognormal(-0.5, 1.0, n), 1.0 + 0.1 * rng.normal(size=n))
    assert distances(2.0 - tails) == [1.5, 1.5]


def test_only_counted_rows_matter():
    rng = np.random.default_rng(0)
    losses, inside, counted = rng.exponential(size=400), rng.random(400) < 0.4, rng.random(400) < 0.5
    other = np.where(counted, losses, 1e3)
    first, second = (judged(each, [inside], counted=counted) for each in (losses, other))
    np.testing.assert_array_equal(first.low, second.low)


def test_a_group_without_rows_has_no_bound():
    found = judged(np.random.default_rng(0).normal(size=300), [np.zeros(300, bool), np.arange(300) < 90])
    assert found.enough.tolist() == [False, True]
    assert np.isfinite(found.low).tolist() == [False, True]


def test_a_draw_may_miss_all_rows_of_a_group():
    losses = np.arange(100) % 2.0
    # 23 rows in two clusters: of a tenth of the draws neither is among them.
    clusters = np.where(np.arange(100) < 23, np.arange(100) % 2, np.arange(100))
    inside = np.isin(clusters, (0, 1))
    found = judged(losses, [inside], clusters=None, least=2)
    assert np.isfinite(found.low).all()


def test_equal_losses_say_nothing():
    assert not judged(np.ones(200), [np.arange(200) < 100]).enough.any()
