from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from groupdro.discovery.bounds import Sampling
from groupdro.discovery.conditions import Columns, encode
from groupdro.discovery.search import search, unexplained_by
from tests.discovery.tables import describing_columns, overlap, planted_losses

OPTIONS = {"least": 50, "depth": 3, "n_groups": 5}


def problem(n_rows=600, seed=0):
    frame = describing_columns(n_rows, seed)
    inside = ((frame["region"] == "north") & (frame["visits"] > 2)).to_numpy()
    frame = frame[["visits", "region", "member"]]
    return encode(Columns(frame), np.arange(n_rows), 20), inside, planted_losses(inside, seed)


def score(losses, weights, inside):
    """Return the studentised difference of two means, the variances as the search stabilises them."""
    effective = weights.sum() ** 2 / np.square(weights).sum() / weights.sum()
    overall = np.average((losses - np.average(losses, weights=weights)) ** 2, weights=weights)
    means, squared = [], 0.0
    for part in (inside, ~inside):
        mean = np.average(losses[part], weights=weights[part])
        n = weights[part].sum() * effective
        spread = np.average((losses[part] - mean) ** 2, weights=weights[part])
        squared += (n * spread + 10.0 * overall) / (n + 10.0) / n
        means.append(mean)
    return (means[0] - means[1]) / np.sqrt(squared)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("binary", [False, True])
def test_the_best_conjunction_of_two_is_that_of_brute_force(weighted, binary):
    encoded, _, losses = problem()
    losses = (losses > 2.0).astype(float) if binary else losses
    rows = np.arange(len(losses))
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(losses)) if weighted else None
    mass = np.ones(len(losses)) if weights is None else weights
    found = search(encoded, rows, losses, Sampling(None, weights), least=30, depth=2, n_groups=5)
    clipped = losses if binary else np.minimum(losses, np.quantile(losses, 0.99))
    effective = mass * mass.sum() / np.square(mass).sum()
    best = -np.inf
    for numbers in [*combinations(range(len(encoded.conditions)), 2), *((c,) for c in range(len(encoded.conditions)))]:
        inside = encoded.holds(numbers, rows)
        if effective[inside].sum() >= 30 and mass[inside].mean() * inside.mean() <= 0.5 * mass.mean():
            best = max(best, score(clipped, mass, inside))
    first = found[0]
    np.testing.assert_array_equal(rows[encoded.holds(first.rule, rows)], first.rows)
    assert first.score == pytest.approx(score(clipped, mass, encoded.holds(first.rule, rows)))
    assert first.score == pytest.approx(best)


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_of_clusters_use_their_sums(weighted):
    encoded, _, losses = problem()
    n = len(losses)
    rng = np.random.default_rng(2)
    clusters = rng.integers(0, 200, n)
    losses = losses + 2.0 * rng.exponential(size=200)[clusters]
    weights = rng.uniform(0.5, 2.0, n) if weighted else None
    mass = np.ones(n) if weights is None else weights
    found = search(encoded, np.arange(n), losses, Sampling(clusters, weights), least=30, depth=2, n_groups=5)
    clipped = np.minimum(losses, np.quantile(losses, 0.99))
    for one in found:
        inside = encoded.holds(one.rule, np.arange(n))
        influence, means = np.zeros(n), []
        for part in (inside, ~inside):
            means.append(np.average(clipped[part], weights=mass[part]))
            influence[part] = mass[part] * (clipped[part] - means[-1]) / mass[part].sum() * (-1.0) ** len(means)
        error = np.sqrt(np.square(np.bincount(clusters, weights=influence)).sum())
        assert one.score == pytest.approx((means[0] - means[1]) / error)
        units = np.bincount(clusters[inside], weights=mass[inside])
        assert units.sum() ** 2 / np.square(units).sum() >= 30
    assert found == sorted(found, key=lambda one: -one.score)
    assert search(encoded, np.arange(n), losses, Sampling(clusters // 20, weights), least=30, depth=2, n_groups=5) == []


def test_only_the_rows_to_search_are_looked_at():
    encoded, _, losses = problem()
    rows = np.arange(0, len(losses), 2)
    changed = losses.copy()
    changed[1::2] = 1e6
    first, second = (
        search(encoded, rows, each, Sampling(), least=20, depth=3, n_groups=5) for each in (losses, changed)
    )
    assert [one.rule for one in first] == [one.rule for one in second]


def test_candidates_differ_and_are_no_shadows_of_each_other():
    encoded, inside, losses = problem(4000)
    found = search(encoded, np.arange(4000), losses, Sampling(), least=50, depth=3, n_groups=5)
    masks = [encoded.holds(one.rule, np.arange(4000)) for one in found]
    assert overlap(masks[0], inside) > 0.9
    assert all(overlap(a, b) <= 0.5 for a, b in combinations(masks, 2))
    assert all(one.score < found[0].score / 2 for one in found[1:])  # without the planted group there is only noise
    assert all(len(one.rule) <= 3 for one in found)


def test_a_group_inside_a_larger_one_is_found_too():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"large": rng.random(6000) < 0.4, "small": rng.random(6000) < 0.1, "noise": rng.random(6000)})
    large, inside = frame["large"].to_numpy(), (frame["large"] & frame["small"]).to_numpy()
    losses = rng.exponential(size=6000) * np.where(inside, 12.0, np.where(large, 3.0, 1.0))
    found = search(encode(Columns(frame), np.arange(6000), 50), np.arange(6000), losses, Sampling(), **OPTIONS)
    masks = [np.isin(np.arange(6000), one.rows) for one in found]
    assert overlap(masks[0], large) == 1.0
    assert overlap(masks[1], inside) == 1.0
    assert all(one.score < 6.0 for one in found[2:])  # only noise is left


@pytest.mark.parametrize("weighted", [False, True])
def test_what_groups_explain_is_the_mean_of_the_rows_that_are_in_the_same_ones(weighted):
    rng = np.random.default_rng(0)
    losses, masks = rng.exponential(size=400), [rng.random(400) < 0.3, rng.random(400) < 0.5]
    mass = rng.uniform(0.5, 2.0, 400) if weighted else np.ones(400)
    cells = pd.Series(masks[0] * 2 + masks[1])
    sums = pd.DataFrame({"mass": mass, "sum": mass * losses}).groupby(cells).transform("sum")
    expected = losses - (sums["sum"] / sums["mass"]).to_numpy()
    np.testing.assert_allclose(unexplained_by(masks, losses, mass), expected, atol=1e-12)
