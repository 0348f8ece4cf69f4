"""Rows to label, and groups predicted from a few labels."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from groupdro.torch import extract_features, retrain_last_layer, rows_to_label  # noqa: E402
from groupdro.torch.few_labels import propose, spread_labels  # noqa: E402
from groupdro.torch.layers import layer_coefficients  # noqa: E402
from tests.torch.test_unlabelled import accuracies, make_network, make_rows, without_groups  # noqa: E402


def only(groups, rows):
    """Return the groups of some rows, and None for all others."""
    return [int(group) if k in set(rows.tolist()) else None for k, group in enumerate(groups)]


def test_proposed_labels_repair_what_as_many_random_ones_do_not():
    rows, test = make_rows(3000, 0, agreement=0.98), make_rows(4000, 1)
    proposed = rows_to_label(make_network(), without_groups(rows), 40)
    at_random = np.random.default_rng(0).permutation(3000)[:40]
    worst = {}
    for name, some in (("proposed", proposed), ("random", at_random), ("all", np.arange(3000))):
        network = make_network()
        result = retrain_last_layer(network, without_groups(rows), groups=only(rows[2], some), alpha=1e-2)
        worst[name] = accuracies(network, test)[0].min()
        if name == "proposed":
            assert result.spread.n_labelled == 40
            assert result.spread.n_predicted == 2960
            assert result.spread.agreement > result.spread.by_class + 0.2
            assert "predicted from the labels of 40" in result.message
            assert sum(result.by_group["n"]) == 3000
        if name == "all":
            assert result.spread is None
    assert worst["proposed"] > worst["all"] - 0.05
    assert worst["random"] < worst["proposed"] - 0.2


def test_proposals_take_turns():
    y = np.repeat([0, 1], 50)
    probabilities = np.full(100, 0.95)
    probabilities[[3, 60, 61]] = 0.01
    probabilities[[10, 11, 12, 13, 70]] = 0.5
    found = propose(probabilities, y, 14, 0)
    assert len(set(found.tolist())) == 14
    assert {3, 60, 61, 70} <= set(found.tolist())
    first = found[:6]
    assert sorted(zip(y[first], probabilities[first], strict=True)) == [
        (c, p) for c in (0, 1) for p in (0.01, 0.5, 0.95)
    ]
    np.testing.assert_array_equal(propose(probabilities, y, 6, 0), first)
    assert sorted(propose(probabilities, y, 100, 0)) == list(range(100))


def test_labelled_rows_keep_their_groups_and_others_get_those_of_their_class():
    rows = make_rows(1000, 2)
    proposed = rows_to_label(make_network(), without_groups(rows), 150)
    features = extract_features(make_network(), without_groups(rows), groups=only(rows[2], proposed))
    complete, spread = spread_labels(features, layer_coefficients(make_network()[1])[0], 0)
    truth = rows[2].numpy()
    found = np.array(complete.names)[complete.group_codes]
    np.testing.assert_array_equal(found[proposed], truth[proposed])
    np.testing.assert_array_equal(found // 2, rows[1])  # groups of the row's own class
    for group in range(4):
        assert np.mean(found[truth == group] == group) > 0.7
    assert spread.n_labelled == 150
    assert spread.agreement > spread.by_class + 0.1


def test_a_class_without_labels_takes_the_groups_of_the_others():
    x, y, _ = make_rows(400, 3)
    sites = torch.where(x[:, 1] > 0, 1, 0)  # a group that has nothing to do with the class
    partly = [
        int(site) if k % 4 == 0 and label == 0 else None for k, (site, label) in enumerate(zip(sites, y, strict=True))
    ]
    features = extract_features(make_network(), [(x, y, partly)])
    complete, spread = spread_labels(features, layer_coefficients(make_network()[1])[0], 0)
    assert np.mean(complete.group_codes[y == 1] == sites[y == 1].numpy()) > 0.8
    assert spread.n_labelled == sum(site is not None for site in partly)


def test_a_store_takes_few_labels(tmp_path):
    rows = make_rows(2000, 4)
    loader = without_groups(rows)
    groups = only(rows[2], rows_to_label(make_network(), loader, 100))
    in_memory = retrain_last_layer(make_network(), loader, groups=groups, alpha=1e-2)
    stored = retrain_last_layer(make_network(), loader, groups=groups, alpha=1e-2, store=tmp_path / "store", refit=True)
    assert stored.spread == in_memory.spread
    np.testing.assert_allclose(stored.classifier.coef_, in_memory.classifier.coef_, atol=2e-2)


def test_what_cannot_be_proposed_is_refused():
    rows = make_rows(50, 5)
    with pytest.raises(ValueError, match="which shuffles"):
        rows_to_label(make_network(), DataLoader(TensorDataset(*rows[:2]), shuffle=True), 5)
    with pytest.raises(ValueError, match="exceeds the 50 rows without a group label"):
        rows_to_label(make_network(), without_groups(rows), 51)
    some = only(rows[2], np.arange(30))
    assert set(rows_to_label(make_network(), without_groups(rows), 20, groups=some)) == set(range(30, 50))


def test_groups_that_the_features_do_not_show_are_warned_of():
    x, y, _ = make_rows(400, 6)
    by_chance = torch.tensor(np.random.default_rng(0).integers(0, 2, 400))
    partly = [int(group) if k < 60 else None for k, group in enumerate(by_chance)]
    with pytest.warns(UserWarning, match="hardly show the groups"):
        result = retrain_last_layer(make_network(), without_groups((x, y)), groups=partly, alpha=1e-1)
    assert not result.spread.is_reliable
    assert "hardly show the groups" in result.message


def test_minus_one_is_a_group_and_a_warning_says_so():
    rows = make_rows(600, 0, agreement=0.9)
    groups = [int(group) if k % 3 else -1 for k, group in enumerate(rows[2])]
    with pytest.warns(UserWarning, match="groups has -1, which counts as a group"):
        retrain_last_layer(make_network(), without_groups(rows), groups=groups, alpha=1e-2)
