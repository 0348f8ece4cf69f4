"""Last layers without group labels: weights by what the network finds hard."""

import copy

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

import groupdro as gd

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from groupdro.torch import extract_features, retrain_last_layer  # noqa: E402
from groupdro.torch.unlabelled import reported_groups  # noqa: E402


def make_rows(n, seed, *, agreement=0.95, flipped=0.0):
    """Return features of which the first tells the class and the second, more clearly, a shortcut; and the groups."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    shortcut = np.where(rng.random(n) < agreement, y, 1 - y)
    X = rng.normal(size=(n, 10))
    X[:, 0] += 2.5 * y - 1.25
    X[:, 1] += 6.0 * shortcut - 3.0
    y = np.where(rng.random(n) < flipped, 1 - y, y)
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y), torch.tensor(2 * y + shortcut)


def make_network():
    """Return a layer that trusts the shortcut far more than the class's own feature."""
    network = nn.Sequential(nn.Identity(), nn.Linear(10, 2))
    with torch.no_grad():
        network[1].weight.zero_()
        network[1].bias.zero_()
        network[1].weight[1, 0], network[1].weight[1, 1] = 0.5, 2.0
    return network


def without_groups(rows):
    return DataLoader(TensorDataset(*rows[:2]), batch_size=500)


def accuracies(model, rows):
    with torch.no_grad():
        right = (model(rows[0]).argmax(dim=1) == rows[1]).numpy()
    return np.array([right[rows[2].numpy() == group].mean() for group in range(4)]), right.mean()


def test_rows_without_labels_repair_a_shortcut():
    network, rows, test = make_network(), make_rows(3000, 0), make_rows(4000, 1)
    before = accuracies(network, test)[0].min()
    result = retrain_last_layer(network, without_groups(rows))
    after = accuracies(network, test)[0].min()
    assert before < 0.2
    assert after > 0.7
    chosen = result.weighting.chosen
    assert chosen.gamma > 0
    assert chosen.alpha == result.alpha
    assert chosen.value == max(trial.value for trial in result.weighting.trials) > 1.3
    assert not result.is_worse
    assert "No row has a group label" in result.message
    assert "of this weighted problem" in result.message
    assert np.isnan(result.fall).all()
    assert set(result.by_group["group"]) == {"class 0", "class 1", "right before", "wrong before"}


def test_the_layer_is_the_optimum_of_the_weighted_problem():
    """An independent minimiser finds the same layer, and no value below the certified bound."""
    network, (X, y, _) = make_network(), make_rows(600, 2)
    result = retrain_last_layer(
        network, without_groups((X, y)), alpha=0.05, inplace=False, estimator=gd.GroupDROClassifier(tol=1e-8)
    )
    X, y = X.double().numpy(), y.numpy()
    old = (network[1].weight[1] - network[1].weight[0]).detach().double().numpy()
    scores = X @ old
    probabilities = expit(np.where(y == 1, scores, -scores))
    weights = np.exp(-result.weighting.chosen.gamma * probabilities) / np.bincount(y)[y]
    weights /= weights.sum()
    wrong = (scores > 0) != (y == 1)
    assert weights[wrong].sum() == pytest.approx(result.weighting.chosen.share, abs=1e-6)

    def value(w):
        own = scores + X @ w[:-1] + w[-1]
        return weights @ np.logaddexp(0.0, np.where(y == 1, -own, own)) + 0.025 * w[:-1] @ w[:-1]

    best = minimize(value, np.zeros(11), method="BFGS", options={"gtol": 1e-10})
    fitted = result.classifier
    np.testing.assert_allclose(fitted.coef_[0], old + best.x[:-1], atol=1e-4)
    np.testing.assert_allclose(fitted.intercept_[0], best.x[-1], atol=1e-4)
    assert fitted.lower_bound_ <= best.fun + 1e-9 <= fitted.upper_bound_ + 2e-9
    with torch.no_grad():
        difference = result.model(torch.tensor(X, dtype=torch.float32)) @ torch.tensor([-1.0, 1.0])
    np.testing.assert_allclose(difference, fitted.decision_function(X), atol=1e-4)


@pytest.mark.parametrize("flipped", [0.0, 0.05, 0.15])
def test_wrong_labels_are_not_chased(flipped):
    """Without a shortcut the network's errors have nothing in common, and the layer stays as good as it was."""
    network = make_network()
    with torch.no_grad():
        network[1].weight[1, 0], network[1].weight[1, 1] = 2.5, 0.0
    rows, test = make_rows(3000, 3, agreement=0.5, flipped=flipped), make_rows(4000, 4, agreement=0.5)
    before = accuracies(network, test)[1]
    result = retrain_last_layer(network, without_groups(rows))
    assert accuracies(network, test)[1] > before - 0.01
    assert result.weighting.chosen.gamma == 0


def test_a_rare_class_does_not_make_the_others_pay():
    """Errors of a rare class are corrected by equal weights per class; more weight would cost the other class."""
    rng = np.random.default_rng(0)
    y = (rng.random(4000) < 0.1).astype(np.int64)
    X = rng.normal(size=(4000, 10))
    X[:, 0] += 2.0 * y
    network = make_network()
    with torch.no_grad():
        network[1].weight[1, 0], network[1].weight[1, 1], network[1].bias[1] = 3.0, 0.0, -6.0
    rows = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
    result = retrain_last_layer(network, without_groups(rows), inplace=False)
    plain = max((t for t in result.weighting.trials if t.gamma == 0), key=lambda trial: trial.worst_class)
    chosen = result.weighting.chosen
    assert chosen == plain
    assert chosen.worst_class > 0.75
    assert result.before.by_group["class 1"]["accuracy"] < 0.6


def test_three_classes_one_output_and_no_bias():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 900)
    X = torch.tensor(rng.normal(size=(900, 6)) + 2 * np.eye(6)[y], dtype=torch.float32)
    network = nn.Sequential(nn.Linear(6, 3, bias=False))
    result = retrain_last_layer(network, [(X, torch.tensor(y))])
    np.testing.assert_allclose(network[0].weight.detach(), result.classifier.coef_, atol=1e-5)
    assert not result.classifier.intercept_.any()
    assert result.after.overall["accuracy"] > result.before.overall["accuracy"]
    one = nn.Sequential(nn.Linear(6, 1))
    before = copy.deepcopy(one)
    result = retrain_last_layer(one, [(X, torch.tensor(y % 2))], alpha=1e-2)
    assert result.alpha == 1e-2
    assert not torch.equal(before[0].weight, one[0].weight)


def test_a_network_without_errors_keeps_its_layer():
    X, y = torch.randn(200, 4), torch.arange(200) % 2
    X[:, 0] = 10.0 * y - 5.0
    network = nn.Sequential(nn.Linear(4, 2))
    with torch.no_grad():
        network[0].weight[:] = torch.tensor([[-1.0, 0, 0, 0], [1.0, 0, 0, 0]])
        network[0].bias.zero_()
    result = retrain_last_layer(network, [(X, y)])
    assert result.weighting.n_wrong == 0
    assert all(trial.gamma == 0 for trial in result.weighting.trials)
    assert result.after.overall["accuracy"] == 1


def test_the_report_is_by_class_and_by_right_and_wrong():
    y, right = np.array([0, 1, 1, 0, 2]), np.array([True, True, False, True, True])
    found = reported_groups(y, right)
    assert found.names == ("class 0", "class 1", "class 2", "right before", "wrong before")
    assert found.overlapping
    assert [found.rows_of(k).tolist() for k in range(5)] == [[0, 3], [1, 2], [4], [0, 1, 3, 4], [2]]


def test_what_requires_groups_is_refused(tmp_path):
    rows = make_rows(300, 5)
    with pytest.raises(ValueError, match="store requires group labels"):
        retrain_last_layer(make_network(), without_groups(rows), store=tmp_path / "store")
    with pytest.raises(ValueError, match="robustness requires group labels"):
        retrain_last_layer(make_network(), without_groups(rows), robustness=0.5)
    features = extract_features(make_network(), without_groups(rows))
    assert features.names == ()
    assert not features.labelled.any()
    with pytest.raises(ValueError, match="300 of 300 rows have no group label"):
        features.groups  # noqa: B018
