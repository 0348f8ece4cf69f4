"""Weights of classes, and scikit-learn's names of losses."""

import re

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from groupdro import GroupDROClassifier, GroupDRORegressor

RNG = np.random.default_rng(0)
N = 400
X = RNG.normal(size=(N, 3))
GROUPS = RNG.choice(["a", "b"], N, p=[0.8, 0.2])
Y = np.where(X[:, 0] + RNG.logistic(size=N) > 1.5, "yes", "no")
WEIGHTS = RNG.uniform(0.5, 2.0, N)


@pytest.mark.parametrize("class_weight", ["balanced", {"no": 1.0, "yes": 4.0}, {"yes": 3.0}], ids=str)
def test_plain_training_has_the_class_weights_of_scikit_learn(class_weight):
    ours = GroupDROClassifier(class_weight=class_weight, robustness=0.0, alpha=1e-2, tol=1e-10)
    ours.fit(X, Y, groups=GROUPS)
    weights = {"no": N / (2 * (Y == "no").sum()), "yes": N / (2 * (Y == "yes").sum())}
    weights = weights if class_weight == "balanced" else {"no": 1.0, **class_weight}
    each = np.array([weights[label] for label in Y])
    theirs = LogisticRegression(C=1 / (1e-2 * each.sum()), tol=1e-10, max_iter=1000).fit(X, Y, each)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4)


@pytest.mark.parametrize("robustness", [1.0, 0.5])
def test_class_weights_multiply_sample_weights(robustness):
    kinds = np.where(Y == "yes", 3.0, 1.0)
    one = GroupDROClassifier(class_weight={"yes": 3.0}, robustness=robustness).fit(X, Y, WEIGHTS, groups=GROUPS)
    other = GroupDROClassifier(robustness=robustness).fit(X, Y, WEIGHTS * kinds, groups=GROUPS)
    np.testing.assert_array_equal(one.coef_, other.coef_)


def test_balanced_classes_have_equal_total_weight():
    totals = [WEIGHTS[label == Y].sum() for label in ("no", "yes")]
    each = np.where(Y == "no", 1 / totals[0], 1 / totals[1]) * WEIGHTS
    one = GroupDROClassifier(class_weight="balanced", tol=1e-8).fit(X, Y, WEIGHTS, groups=GROUPS)
    other = GroupDROClassifier(tol=1e-8).fit(X, Y, each, groups=GROUPS)
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bad", [{"yes": 0.0}, {"yes": -1.0}, {"yes": np.nan}, "even", 3])
def test_weights_that_make_no_sense_are_refused_by_name(bad):
    with pytest.raises(ValueError, match="class_weight"):
        GroupDROClassifier(class_weight=bad).fit(X, Y, groups=GROUPS)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("auto", "such as {'no': 1.0, 'yes': 2.0}, 'balanced' or None, got 'auto'"),
        ([1, 2], "got [1, 2]"),
        ({"no": "a"}, "class_weight['no'] must be a number, got 'a'"),
        ({"maybe": 2.0}, "names 'maybe' and not 'no', but the classes of y are ['no', 'yes']"),
    ],
)
def test_the_refusal_says_what_was_given_and_what_would_do(bad, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        GroupDROClassifier(class_weight=bad).fit(X, Y, groups=GROUPS)


def test_weights_of_classes_that_no_row_has_are_ignored():
    more, usual = (
        GroupDROClassifier(class_weight={"no": 1.0, "yes": 2.0} | extra).fit(X, Y, groups=GROUPS)
        for extra in ({"maybe": 3.0}, {})
    )
    np.testing.assert_array_equal(more.coef_, usual.coef_)


def test_the_squared_loss_has_the_name_of_scikit_learn_too():
    target = X[:, 0] + RNG.normal(size=N)
    fits = [GroupDRORegressor(loss=loss).fit(X, target, groups=GROUPS) for loss in ("squared_error", "squared")]
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
