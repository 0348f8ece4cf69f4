"""A model that is no better than a constant is not fitted in silence."""

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from groupdro import GroupDROClassifier, GroupDRORegressor, SmallGroupWarning, UselessModelWarning
from groupdro.data import GroupedData
from groupdro.estimators.usefulness import least_of_constants
from groupdro.losses import Huber, Logistic, Softmax, Squared

RNG = np.random.default_rng(0)
N = 600
X = RNG.normal(size=(N, 3))
SCORES = X @ [1.0, -1.0, 0.5]
NOISE = RNG.logistic(size=N)


def useless(model, X, y, groups):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y, groups=groups)
    return [str(w.message) for w in caught if w.category is UselessModelWarning]


@pytest.mark.parametrize("robustness", [1.0, 0.5])
def test_row_numbers_as_groups_are_warned_of(robustness):
    (message,) = useless(GroupDROClassifier(robustness=robustness), X, SCORES + NOISE > 0, np.arange(N))
    assert f"of {N} groups" in message
    assert "min_group_size" in message


def test_groups_that_contradict_each_other_are_warned_of():
    groups = np.arange(N) % 2
    assert useless(GroupDROClassifier(), X, (SCORES > 0) ^ groups, groups)
    assert useless(GroupDRORegressor(), X, SCORES * (1 - 2 * groups), groups)


def test_a_penalty_that_leaves_nothing_is_warned_of():
    (message,) = useless(GroupDROClassifier(alpha=1e4, robustness=0.0), X, SCORES > 0, np.arange(N) % 3)
    assert "Decrease alpha" in message


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("excess", [False, True])
def test_useful_models_are_not_warned_of(seed, excess):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, rng.integers(2, 12), N)
    slopes = [1.0, -1.0, 0.5] + 0.3 * rng.normal(size=(12, 3))
    scores = (X * slopes[groups]).sum(axis=1)
    objective = "excess_risk" if excess else "risk"
    assert not useless(GroupDROClassifier(objective=objective), X, scores + NOISE > 0, groups)
    assert not useless(GroupDRORegressor(objective=objective), X, scores + NOISE, groups)


@pytest.mark.parametrize("robustness", [0.0, 0.1, 0.5])
def test_the_average_over_rows_of_overlapping_groups_counts_too(robustness):
    rng = np.random.default_rng(0)
    odd, old = rng.random(N) < 0.12, X[:, 1] > 0
    y = np.where(odd, rng.random(N) < 0.5, SCORES + NOISE > 0)
    member = np.c_[odd, old, ~(odd | old)]
    assert not useless(GroupDROClassifier(robustness=robustness, alpha=1e-3), X, y, member)
    if robustness:
        assert useless(GroupDROClassifier(robustness=robustness, alpha=1e-3), X, rng.random(N) < 0.5, member)


@pytest.mark.parametrize("loss", [Logistic(), Squared(), Huber(0.5)])
@pytest.mark.parametrize("offsets", [False, True])
def test_the_best_constant_is_that_of_a_search(loss, offsets):
    y = np.sign(SCORES) if isinstance(loss, Logistic) else SCORES
    groups = np.arange(N) % 3
    offset = RNG.normal(size=N) if offsets else None
    data = GroupedData.from_arrays(X, y, groups, offset=offset)
    q = np.array([0.5, 0.5, 0.0])
    weights = data.row_weights(q)
    fixed = data.row_offsets if offsets else np.zeros(N)

    def value(constant):
        return float(weights @ loss.value(fixed + constant, loss.encode(data.y)))

    found = least_of_constants(data, loss, q, free=True)
    assert found == pytest.approx(minimize_scalar(value).fun, rel=1e-6)
    assert least_of_constants(data, loss, q, free=False) == pytest.approx(value(0.0), rel=1e-12)


def test_the_best_constant_of_several_classes_has_their_shares():
    y = np.digitize(SCORES, [-1.0, 1.0])
    data = GroupedData.from_arrays(X, y, np.zeros(N))
    shares = np.bincount(y) / N
    found = least_of_constants(data, Softmax(3), np.ones(1), free=True)
    assert found == pytest.approx(-(shares * np.log(shares)).sum(), rel=1e-6)


def test_a_fit_that_fewer_rows_than_parameters_decide_warns():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 20))
    with pytest.warns(SmallGroupWarning, match="determined by about 1. of 500 rows"):
        GroupDRORegressor().fit(X, X[:, 0] + rng.normal(size=500), groups=np.arange(500))
