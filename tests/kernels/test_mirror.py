"""The softmax below caps, held against a reference that sorts, in logarithms."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import logsumexp

from groupdro.kernels.mirror import capped_softmax, settle_logits


def capped(logits, caps):
    weights = np.full(len(logits), np.nan)
    level = capped_softmax(np.array(logits, dtype=float), np.array(caps, dtype=float), weights)
    return weights, level


def sorted_reference(logits, caps):
    """Hold the k entries that reach their caps first at them, for the k at which no other would reach its own.

    All is in logarithms, so that no difference between logits is too large.
    """
    with np.errstate(divide="ignore"):
        log_caps = np.log(caps)
    reached = np.argsort(log_caps - logits, kind="stable")
    for k in range(len(logits)):
        held, free = reached[:k], reached[k:]
        left = 1.0 - caps[held].sum()
        if left <= 0.0:
            break
        log_weights = logits[free] - logsumexp(logits[free]) + np.log(left)
        if (log_weights <= log_caps[free] + 1e-15).all():
            weights = caps.copy()
            weights[free] = np.exp(log_weights)
            return weights
    weights = np.zeros(len(logits))
    weights[reached[:k]] = caps[reached[:k]]
    return caps if left > 0.0 else weights


@st.composite
def logits_and_caps(draw):
    m = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    logits = draw(st.sampled_from((0.1, 1.0, 30.0, 500.0, 1e4))) * rng.normal(size=m)
    if draw(st.booleans()):
        logits = np.round(logits)  # ties
    caps = rng.random(m) + 0.02
    if draw(st.booleans()):
        caps[rng.random(m) < 0.3] = 0.0
        caps[0] += 0.02
    room = draw(st.sampled_from((1.0, 1.001, 1.5, 4.0)))
    return logits, caps * (room / caps.sum())


@given(logits_and_caps())
@example((np.array([0.0, -700.0, -800.0]), np.array([0.5, 1.0, 1.0])))
@example((np.array([1e4, 0.0, -1e4]), np.array([0.3, 0.3, 1.0])))
@example((np.zeros(4), np.full(4, 0.25)))
@example((np.array([3.0]), np.array([1.0])))
@example((np.array([0.0, 5.0, 5.0]), np.array([1.0, 0.0, 0.0])))
def test_the_softmax_below_caps_is_the_nearest_point_in_relative_entropy(drawn):
    logits, caps = drawn
    caps = caps / min(1.0, caps.sum())
    weights, _ = capped(logits, caps)
    assert (weights >= 0).all()
    assert (weights <= caps).all()
    assert weights.sum() == pytest.approx(1.0, abs=1e-13)
    np.testing.assert_allclose(weights, sorted_reference(logits, caps), rtol=1e-9, atol=1e-12)


@given(logits_and_caps())
def test_settled_logits_stand_for_the_same_point(drawn):
    logits, caps = drawn
    caps = caps / min(1.0, caps.sum())
    weights, level = capped(logits, caps)
    settled = logits.copy()
    settle_logits(settled, caps, weights, level)
    again, _ = capped(settled, caps)
    np.testing.assert_allclose(again, weights, rtol=1e-9, atol=1e-12)
    # Only what lies beyond a cap is taken off, and then a plain softmax gives the same weights.
    assert (settled <= logits + 1e-12 * np.abs(logits).max())[caps > 0].all()
    np.testing.assert_allclose(np.exp(settled - logsumexp(settled)), weights, rtol=1e-9, atol=1e-12)


def test_without_caps_that_bind_it_is_the_plain_softmax():
    logits = np.random.default_rng(0).normal(size=7)
    weights, level = capped(logits, np.ones(7))
    np.testing.assert_allclose(weights, np.exp(logits - logsumexp(logits)), rtol=1e-14)
    assert level == pytest.approx(logsumexp(logits), rel=1e-14)
