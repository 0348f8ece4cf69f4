"""The free intercept of several outputs: its curvature, the bounds it gives, and its cost."""

import numpy as np
import pytest

import groupdro as gd
from groupdro.certificate.certificate import balance, cut_of_duals
from groupdro.data import GroupedData
from groupdro.domains import L2Domain
from groupdro.losses import Loss, Softmax
from groupdro.oracle import Oracle
from groupdro.oracle.intercept import zero_of_slope
from groupdro.problem import Problem


class OwnSoftmax(Loss):
    """A loss of several outputs with nothing but what is required."""

    name = "own"
    smoothness = 0.5

    def __init__(self, n_classes):
        self.base = Softmax(n_classes)

    def n_outputs(self, y):
        return self.base.n_classes

    def encode(self, y):
        return self.base.encode(y)

    def value(self, u, y):
        return self.base.value(u, y)

    def value_and_slope(self, u, y):
        return self.base.value_and_slope(u, y)

    def curvature_product(self, u, y):
        return self.base.curvature_product(u, y)

    def conjugate(self, duals, y):
        return self.base.conjugate(duals, y)

    def balance(self, duals, y, row_weights, total=lambda sums: sums):
        return self.base.balance(duals, y, row_weights, total)

    def lipschitz(self, y, reach):
        return self.base.lipschitz(y, reach)


def make(n_classes, n_groups, weighted=False, penalty=0.01, seed=0, n=400, spread=1.0):
    rng = np.random.default_rng([seed, n_classes, n_groups])
    shares = rng.dirichlet(np.full(n_classes, 0.5))
    y = np.concatenate([np.arange(n_classes), rng.choice(n_classes, n - n_classes, p=shares)])
    X = rng.normal(size=(n, 6)) + spread * rng.normal(size=(n_classes, 6))[y]
    groups = np.arange(n) % n_groups
    return X, y, groups, 10.0 ** rng.uniform(-2, 0, n) if weighted else None, penalty


def pose(X, y, groups, weights, penalty, loss=None):
    domain = L2Domain(penalty=penalty) if penalty else L2Domain(radius=3.0)
    data = GroupedData.from_arrays(X, y, groups, sample_weight=weights)
    return Problem(data, loss or Softmax(y.max() + 1), domain, fit_intercept=True)


def naive_shift(loss, margins, y, weights):
    """Return the best shift by Newton's method to the last digit, with one product of all rows per class."""
    shift = np.zeros(margins.shape[1])
    for _ in range(30):
        slope = weights @ loss.value_and_slope(margins + shift, y)[1]
        times = loss.curvature_product(margins + shift, y)
        hessian = [weights @ times(np.broadcast_to(unit, margins.shape)) for unit in np.eye(len(shift))]
        step = np.linalg.lstsq(np.array(hessian), slope, rcond=1e-12)[0]
        values = [weights @ loss.value(margins + shift - share * step, y) for share in 0.5 ** np.arange(10)]
        shift = shift - 0.5 ** int(np.argmin(values)) * step
    return shift


def test_the_summed_curvature_is_the_derivative_of_the_summed_slopes():
    rng = np.random.default_rng(0)
    u, y, weights = 3.0 * rng.normal(size=(60, 5)), rng.integers(0, 5, 60), rng.random(60)
    loss = Softmax(5)
    found = loss.summed_curvature(u, loss.value_and_slope(u, y)[1], y, weights)
    step = 1e-6
    for c, unit in enumerate(np.eye(5)):
        there, back = (weights @ loss.value_and_slope(u + sign * step * unit, y)[1] for sign in (1, -1))
        np.testing.assert_allclose(found[c], (there - back) / (2 * step), atol=1e-7)
    by_products = Loss.summed_curvature(loss, u, loss.value_and_slope(u, y)[1], y, weights)
    np.testing.assert_allclose(found, by_products, atol=1e-13)


@pytest.mark.parametrize(
    ("n_classes", "n_groups", "weighted", "penalty", "spread"),
    [(3, 1, False, 0.01, 1.0), (3, 4, True, 0.0, 5.0), (10, 1, True, 1e-4, 3.0), (50, 5, False, 0.1, 1.0)],
)
def test_the_bound_is_that_of_the_best_intercept(n_classes, n_groups, weighted, penalty, spread):
    problem = pose(*make(n_classes, n_groups, weighted, penalty, spread=spread))
    oracle = Oracle(problem)
    rng = np.random.default_rng(1)
    y = problem.data.y
    for scale in (0.01, 0.3):
        at = oracle.evaluate(scale * rng.normal(size=problem.shape), rng.dirichlet(np.ones(problem.n_groups)))
        weights = problem.data.row_weights(at.q)

        slopes = problem.loss.value_and_slope(at.margins + naive_shift(problem.loss, at.margins, y, weights), y)[1]
        assert np.abs(weights @ slopes).max() <= 1e-12
        other = cut_of_duals(oracle, at, problem.loss.balance(slopes, y, weights), weights)
        bounds = [cut.bound(problem, problem.domain) for cut in (balance(oracle, at), other)]
        assert bounds[0] >= bounds[1] - 1e-6 * abs(bounds[1])


def test_a_loss_of_ones_own_gives_the_same_bound_from_products_alone():
    given = make(4, 3, True)
    cuts = []
    for loss in (Softmax(4), OwnSoftmax(4)):
        problem = pose(*given, loss=loss)
        oracle = Oracle(problem)
        at = oracle.evaluate(np.linspace(-1, 1, problem.model.size).reshape(problem.shape), np.full(3, 1 / 3))
        cuts.append(balance(oracle, at).bound(problem, problem.domain))
        assert oracle.counters.shift_evals > 0
    np.testing.assert_allclose(*cuts, rtol=1e-12)


def test_evaluations_at_shifted_intercepts_are_counted_apart_from_passes():
    problem = pose(*make(5, 3))
    result = gd.solve(problem, gd.solvers.GroupSQP("lbfgs"), tol=1e-6)
    counters = result.counters
    assert counters.row_reads == round(result.passes * problem.n_rows)
    assert counters.shift_evals % problem.n_rows == 0
    # About four steps from zero per bound: Newton's method squares the error, and the rest is balanced. Bounds that
    # cannot end the run are left out.
    n_bounds = len({row.lower for row in result.trace} - {0.0})
    assert 1 <= counters.shift_evals / problem.n_rows / n_bounds <= 6
    without = Problem(problem.data, problem.loss, problem.domain)
    assert gd.solve(without, tol=1e-4).counters.shift_evals == 0


def test_rows_without_weight_are_left_out():
    rng = np.random.default_rng(2)
    y = np.concatenate([rng.integers(0, 3, 2000), np.full(50, 2), np.full(50, 1), np.full(50, 0)])
    X = rng.normal(size=(len(y), 2))
    problem = pose(X, y, np.repeat([0, 1], [2000, 150]), None, 0.1)
    alone = pose(X[2000:], y[2000:], np.zeros(150, int), None, 0.1)
    w = rng.normal(size=problem.shape)
    bounds = []
    for each, q in ((problem, np.array([0.0, 1.0])), (alone, np.ones(1))):
        oracle = Oracle(each)
        bounds.append(balance(oracle, oracle.evaluate(w, q)).bound(each, each.domain))
    np.testing.assert_allclose(*bounds, rtol=1e-9)


@pytest.mark.parametrize("zero", [-3e5, -0.7, 0.0, 2.5, 1e4])
@pytest.mark.parametrize(
    "slope",
    [
        lambda t: (2.0 * t, 2.0),
        lambda t: (np.tanh(t), 1.0 / np.cosh(min(abs(t), 300.0)) ** 2),  # nearly flat far away
        lambda t: (np.sign(t) * min(abs(t), 1e-3), float(abs(t) < 1e-3)),
        lambda t: (np.sign(t) + 0.5, 0.0),  # jumps
    ],
    ids=["line", "tails", "flat", "jump"],
)
def test_the_zero_of_a_slope_is_found_wherever_it_is(slope, zero):
    seen = []

    def derivatives(shift):
        seen.append(shift)
        return *slope(shift - zero), 1e-13

    found, n_evals = zero_of_slope(derivatives)
    assert found == seen[-1]
    assert n_evals == len(seen) <= 60
    assert found == pytest.approx(zero, rel=1e-9, abs=1e-6)


def test_the_zero_of_a_slope_is_not_searched_further_than_asked():
    found, n_evals = zero_of_slope(lambda shift: (-1.0, 0.0, 0.0), stride=2.0, most=4)
    assert (found, n_evals) == (2.0 + 4.0 + 8.0, 4)
    assert zero_of_slope(lambda shift: (shift - 100.0, 1.0, 0.0), stride=1e3) == (100.0, 2)
