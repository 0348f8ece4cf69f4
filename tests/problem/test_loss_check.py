"""A loss of one's own whose parts contradict each other is refused before anything is proved with it."""

import numpy as np
import pytest

import groupdro as gd
from groupdro.losses import Logistic, Loss, ScalarLoss, Softmax, Squared
from tests.estimators.field_cases import Smoothed

RNG = np.random.default_rng(0)
DATA = gd.GroupedData.from_arrays(RNG.normal(size=(40, 2)), RNG.normal(size=40), np.arange(40) % 2)


def pose(loss, data=DATA, *, fit_intercept=True):
    return gd.Problem(data, loss, gd.domains.L2Domain(penalty=1.0), fit_intercept=fit_intercept)


class WrongSlope(Smoothed):
    def value_and_slope(self, u, y):
        value, slope = super().value_and_slope(u, y)
        return value, 1.2 * slope


class WrongConjugate(Smoothed):
    def conjugate(self, duals, y):
        return super().conjugate(duals, y) - 0.1


class TwoValues(Smoothed):
    def value_and_slope(self, u, y):
        value, slope = super().value_and_slope(u, y)
        return value - 0.1, slope

    def value(self, u, y):
        return super().value(u, y) + 0.1


class Negative(Smoothed):
    def value(self, u, y):
        return super().value(u, y) - 1.0

    def conjugate(self, duals, y):
        return super().conjugate(duals, y) + 1.0


class NotFinite(Smoothed):
    def value(self, u, y):
        return super().value(u, y) + np.where(u > 0, np.inf, 0.0)


class Unbalanced(Smoothed):
    def balance(self, duals, y, row_weights, total=lambda sums: sums):
        return duals


class Concave(Smoothed):
    def value(self, u, y):
        return 10.0 - super().value(u, y)

    def value_and_slope(self, u, y):
        return self.value(u, y), -super().value_and_slope(u, y)[1]


class WrongCurvature(Smoothed):
    def curvature(self, u, y):
        return 1.3 * super().curvature(u, y)


class SmoothedKernel(Logistic):
    def value_and_slope(self, u, y):
        return Smoothed().value_and_slope(u, y)


class UnknownCode(ScalarLoss):
    name, code, smoothness = "unknown", 17, 1.0
    encode, curvature, lipschitz = Squared.encode, Squared.curvature, Squared.lipschitz


class Renamed(Squared):
    name = "renamed"


class MoreClasses(Softmax):
    pass


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (WrongSlope, "slope is not the derivative"),
        (WrongConjugate, "conjugate"),
        (TwoValues, "value and value_and_slope give different losses|conjugate"),
        (Negative, "may be negative"),
        (NotFinite, "not finite"),
        (Unbalanced, "do not sum to zero"),
        (Concave, "conjugate"),
        (WrongCurvature, "curvature is not the derivative"),
        (UnknownCode, "compiled code computes something else"),
    ],
)
def test_it_is_refused_by_name(loss, words):
    with pytest.raises(ValueError, match=f"loss {loss.__name__}.*{words}"):
        pose(loss())


def test_a_changed_loss_of_the_package_is_refused_by_name():
    data = gd.GroupedData.from_arrays(DATA.rows.X, DATA.y > 0, np.arange(40) % 2)
    with pytest.raises(ValueError, match=r"loss SmoothedKernel.*compiled code computes something else"):
        pose(SmoothedKernel(), data)


def test_an_extended_softmax_is_refused_by_name():
    data = gd.GroupedData.from_arrays(np.ones((6, 1)), np.arange(6) % 3)
    with pytest.raises(ValueError, match="MoreClasses extends Softmax"):
        pose(MoreClasses(3), data)


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e12])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("loss", [Smoothed(), Renamed()])
def test_a_sound_loss_is_taken_whatever_the_labels(loss, scale, offset):
    y = offset + scale * RNG.normal(size=40)
    pose(loss, gd.GroupedData.from_arrays(DATA.rows.X, y, np.arange(40) % 2))


def test_without_an_intercept_duals_need_not_balance():
    pose(Unbalanced(), fit_intercept=False)


def test_a_loss_says_itself_that_equal_labels_bring_it_to_zero():
    y = np.ones(3)
    assert not Smoothed().vanishes(y)
    assert gd.losses.Logistic().vanishes(y)
    assert gd.losses.Squared().vanishes(y)
    assert not gd.losses.Squared().vanishes(np.arange(3.0))


class Distance(Loss):
    """The squared distance from two targets that are equal, with a matrix as curvature."""

    name, smoothness = "distance", 2.5
    encode = Squared.encode
    mixing = np.array([[2.0, 0.5], [0.5, 1.0]])

    def n_outputs(self, y):
        return 2

    def value_and_slope(self, u, y):
        slope = (u - y[:, None]) @ self.mixing
        return 0.5 * ((u - y[:, None]) * slope).sum(axis=1), slope

    def value(self, u, y):
        return self.value_and_slope(u, y)[0]

    def conjugate(self, duals, y):
        return 0.5 * (duals * (duals @ np.linalg.inv(self.mixing))).sum(axis=1) + duals.sum(axis=1) * y

    def balance(self, duals, y, row_weights, total=lambda sums: sums):
        return duals - total(row_weights @ duals) / total(np.array([row_weights.sum()]))

    def typical_outputs(self, y, n_outputs):
        return np.repeat(y[:, None], n_outputs, axis=1)

    def curvature_product(self, u, y):
        return lambda along: along @ self.mixing

    def lipschitz(self, y, reach):
        return 2.5 * (reach + 2.0 * np.abs(y))


class SoftmaxCurvature(Distance):
    def curvature_product(self, u, y):
        return Softmax(2).curvature_product(u, np.zeros(len(u), dtype=int))


def test_a_loss_with_several_outputs_must_have_its_own_curvature():
    with pytest.raises(ValueError, match="curvature is not the derivative"):
        pose(SoftmaxCurvature())


@pytest.mark.parametrize("hessian", ["newton", "lbfgs"])
def test_second_order_steps_take_the_curvature_of_a_loss_with_several_outputs(hessian):
    result = gd.solve(pose(Distance()), gd.solvers.GroupSQP(hessian), tol=1e-8)
    assert result.converged
    assert result.passes <= 30


class Poisson(Smoothed):
    """exp(u) - y u plus a constant that makes its least value zero, for counts of any size."""

    smoothness = 1e6

    def encode(self, y):
        return y.astype(np.float64)

    def typical_outputs(self, y, n_outputs):
        return np.log(y + 1.0)

    def _least(self, y):
        return y - np.where(y > 0, y * np.log(np.maximum(y, 1.0)), 0.0)

    def value(self, u, y):
        return np.exp(u) - y * u - self._least(y)

    def value_and_slope(self, u, y):
        return self.value(u, y), np.exp(u) - y

    def curvature(self, u, y):
        return np.exp(u)

    def conjugate(self, duals, y):
        mean = np.maximum(duals + y, 1e-300)
        return mean * np.log(mean) - mean + self._least(y)


def test_large_counts_are_checked_near_their_logarithms():
    counts = np.round(np.exp(7.0 + RNG.normal(size=40)))
    data = gd.GroupedData.from_arrays(DATA.rows.X, counts, np.arange(40) % 2)
    pose(Poisson(), data, fit_intercept=False)
