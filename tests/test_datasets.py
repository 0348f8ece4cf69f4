import numpy as np
import pytest

from groupdro.datasets import make_gdro, make_mero


def agreement(X, y, groups):
    """Share of labels that the best linear rule of each group explains, from its least-squares direction."""
    out = []
    for i in np.unique(groups):
        rows, labels = X[groups == i], y[groups == i]
        direction = np.linalg.lstsq(rows, labels, rcond=None)[0]
        out.append(np.mean(np.sign(rows @ direction) == labels))
    return np.array(out)


def test_gdro_labels_follow_their_groups_rule_at_the_given_rate():
    X, y, groups = make_gdro(4, 20_000, 5, seed=0)
    assert X.shape == (80_000, 5)
    assert set(y) == {-1.0, 1.0}
    assert np.bincount(groups).tolist() == [20_000] * 4
    np.testing.assert_allclose(agreement(X, y, groups), 0.9, atol=0.01)
    np.testing.assert_allclose(X.std(), 1.0, atol=0.01)


def test_mero_noise_grows_from_group_to_group_as_in_the_paper():
    X, y, groups = make_mero(25, 8_000, 3, seed=0)
    np.testing.assert_allclose(agreement(X, y, groups), 0.95 - np.arange(25) / 160, atol=0.02)


def test_the_default_sizes_are_the_papers():
    X, _, groups = make_gdro(n_per_group=2)
    assert X.shape[1] == 1024
    assert len(np.unique(groups)) == 25


@pytest.mark.parametrize("make", [make_gdro, make_mero])
def test_a_seed_fixes_the_data(make):
    first, again, other = (make(3, 10, 4, seed=seed) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert a.tobytes() == b.tobytes()
    assert not np.array_equal(first[0], other[0])
