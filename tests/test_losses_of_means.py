"""Losses of counts, amounts and quantiles."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import xlogy

from groupdro.losses import Gamma, Poisson, Quantile, Tweedie

LOSSES = [
    Poisson(),
    Gamma(),
    Tweedie(1.001),
    Tweedie(1.1),
    Tweedie(1.5),
    Tweedie(1.9),
    Tweedie(1.99999),
    Quantile(0.9),
    Quantile(0.3, width=0.2),
]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)


def drawn(loss, n=200, seed=0):
    """Return labels, some 0 where they may be, and outputs near those that fit them."""
    rng = np.random.default_rng(seed)
    if isinstance(loss, Quantile):
        y = rng.normal(size=n)
        return y, y + rng.normal(size=n)
    y = 10.0 ** rng.uniform(-3, 6, n)
    if not loss.positive:
        y[: n // 4] = 0.0
    return y, np.log(np.maximum(y, 1e-2)) + rng.normal(size=n)


@every_loss
def test_the_value_is_half_the_deviance_or_the_pinball_loss(loss):
    y, u = drawn(loss)
    mean = np.exp(u)
    if isinstance(loss, Poisson):
        expected = xlogy(y, y / mean) - y + mean
    elif isinstance(loss, Gamma):
        expected = y / mean - np.log(y / mean) - 1
    elif isinstance(loss, Tweedie):
        p = loss.power
        expected = mean ** (2 - p) / (2 - p) + y * mean ** (1 - p) / (p - 1) - y ** (2 - p) / ((2 - p) * (p - 1))
    elif loss.width == 0:
        expected = np.maximum((1 - loss.level) * (u - y), loss.level * (y - u))
    else:
        slopes = np.linspace(-loss.level, 1 - loss.level, 20001)[1:-1, None]
        barrier = loss.level * np.log1p(slopes / loss.level)
        barrier += (1 - loss.level) * np.log1p(-slopes / (1 - loss.level))
        expected = (slopes * (u - y) + loss.width * barrier).max(axis=0)
        assert (loss.value(u, y) <= Quantile(loss.level).value(u, y)).all()
    np.testing.assert_allclose(loss.value(u, y), expected, rtol=1e-6, atol=1e-6)


@every_loss
def test_slopes_and_curvatures_are_derivatives(loss):
    y, u = drawn(loss)
    h = 1e-5
    if getattr(loss, "width", 1.0) == 0:
        u = np.where(np.abs(u - y) > 2 * h, u, y + 1.0)
    slopes, curvatures = loss.value_and_slope(u, y)[1], loss.curvature(u, y)
    size = np.maximum(y, 1.0)
    found = (loss.value(u + h, y) - loss.value(u - h, y)) / (2 * h)
    np.testing.assert_allclose(found / size, slopes / size, rtol=1e-5, atol=1e-6)
    found = (loss.value_and_slope(u + h, y)[1] - loss.value_and_slope(u - h, y)[1]) / (2 * h)
    np.testing.assert_allclose(found / size, curvatures / size, rtol=1e-5, atol=1e-6)


@every_loss
def test_the_conjugate_is_the_largest_difference_of_a_line_and_the_loss(loss):
    y, u = drawn(loss, n=40, seed=1)
    duals = loss.value_and_slope(u, y)[1]
    found = loss.conjugate(duals, y)
    for r in range(len(y)):
        best = minimize_scalar(
            lambda v, r=r: float(loss.value(np.array([v]), y[r : r + 1])[0] - duals[r] * v),
            bounds=(u[r] - 3, u[r] + 3),
            method="bounded",
            options={"xatol": 1e-9},
        )
        assert found[r] == pytest.approx(-best.fun, rel=1e-6, abs=1e-6 * max(1.0, y[r]))


@pytest.mark.parametrize(
    ("loss", "y", "inside", "outside"),
    [
        (Poisson(), 3.0, -3.0, -3.1),
        (Poisson(), 0.0, 0.0, -1e-3),
        (Gamma(), 3.0, 1.0, 1.1),
        (Tweedie(1.5), 0.0, 0.0, -1e-3),
        (Quantile(0.9), 3.0, -0.9, -0.91),
        (Quantile(0.9), 3.0, 0.1, 0.11),
    ],
    ids=repr,
)
def test_the_conjugate_is_infinite_outside_its_domain_alone(loss, y, inside, outside):
    ends = loss.conjugate(np.array([inside, outside]), np.array([y, y]))
    assert np.isfinite(ends[0])
    assert ends[1] == np.inf


@every_loss
@pytest.mark.parametrize("spread", [1e-3, 1.0, 3.0])
def test_balanced_duals_sum_to_zero_in_the_domain(loss, spread):
    y, u = drawn(loss, seed=2)
    weights = np.random.default_rng(0).random(len(y))
    duals = loss.balance(loss.value_and_slope(u + spread * np.sin(np.arange(len(y))), y)[1], y, weights)
    assert abs(weights @ duals) <= 1e-12 * (weights @ np.abs(duals))
    assert np.isfinite(loss.conjugate(duals, y)).all()


@pytest.mark.parametrize(
    ("loss", "labels", "row"), [(Poisson(), [1, 0, -1], 2), (Gamma(), [1, 0, 2], 1), (Tweedie(), [-2.5, 1, 0], 0)]
)
def test_labels_that_cannot_have_such_a_mean_are_refused_by_row(loss, labels, row):
    with pytest.raises(ValueError, match=f"{loss.name} loss; got {labels[row]:g} in row {row}"):
        loss.encode(np.array(labels))


@pytest.mark.parametrize("power", [1, 2, 0.5, np.nan])
def test_powers_outside_are_refused(power):
    with pytest.raises(ValueError, match="power"):
        Tweedie(power)


@pytest.mark.parametrize("level", [0, 1, -0.1, 1.5])
def test_levels_outside_are_refused(level):
    with pytest.raises(ValueError, match="level"):
        Quantile(level)
