import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from groupdro.kernels import losses as kernels
from groupdro.kernels.losses import curvature
from groupdro.losses import Huber, Logistic, Softmax, Squared, SquaredHinge
from tests.pairs import every_pair

N_CLASSES = 3
SCALAR = [Logistic(), Squared(), Huber(), Huber(delta=0.4), SquaredHinge()]
LOSSES = [*SCALAR, Softmax(N_CLASSES)]
TWO_CLASS = (Logistic, SquaredHinge)

every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
every_scalar_loss = pytest.mark.parametrize("loss", SCALAR, ids=repr)
seeds = st.integers(0, 2**32 - 1)


def random_labels(loss, rng, n):
    if isinstance(loss, Softmax):
        return rng.integers(N_CLASSES, size=n)
    if isinstance(loss, TWO_CLASS):
        return rng.choice([-1.0, 1.0], size=n)
    return rng.normal(scale=2.0, size=n)


def random_outputs(loss, rng, n, scale=2.0):
    return rng.normal(scale=scale, size=(n, N_CLASSES) if isinstance(loss, Softmax) else n)


def random_duals(loss, rng, y):
    n = len(y)
    if isinstance(loss, Softmax):
        p = rng.dirichlet(np.full(N_CLASSES, 0.3), size=n)
        p[0] = np.eye(N_CLASSES)[0]  # a vertex, where x log x needs its limit
        return p - np.eye(N_CLASSES)[y]
    if isinstance(loss, Logistic):
        return -y * np.concatenate([[0.0, 1.0], rng.random(n - 2)])
    if isinstance(loss, SquaredHinge):
        return -y * np.concatenate([[0.0], rng.exponential(3.0, size=n - 1)])
    if isinstance(loss, Huber):
        return loss.delta * np.concatenate([[-1.0, 1.0], rng.uniform(-1.0, 1.0, size=n - 2)])
    return rng.normal(scale=3.0, size=n)


def kink_distance(loss, u, y):
    if isinstance(loss, Huber):
        return np.abs(np.abs(u - y) - loss.delta)
    if isinstance(loss, SquaredHinge):
        return np.abs(1.0 - y * u)
    return np.full(len(y), np.inf)


def inner(a, u):
    return np.einsum("rc,rc->r", a, u) if a.ndim == 2 else a * u


def sizes(slopes):
    return np.linalg.norm(slopes, axis=1) if slopes.ndim == 2 else np.abs(slopes)


def by_row(values, like):
    return values[:, None] if like.ndim == 2 else values


def directions(u):
    if u.ndim == 1:
        yield 0, np.ones_like(u)
        return
    for c in range(u.shape[1]):
        yield c, np.broadcast_to(np.eye(u.shape[1])[c], u.shape)


@every_loss
def test_value_is_the_textbook_formula(loss):
    rng = np.random.default_rng(0)
    y = random_labels(loss, rng, 200)
    u = random_outputs(loss, rng, 200)
    if isinstance(loss, Softmax):
        expected = np.log(np.exp(u).sum(axis=1)) - u[np.arange(200), y]
    elif isinstance(loss, Logistic):
        expected = np.log(1.0 + np.exp(-y * u))
    elif isinstance(loss, SquaredHinge):
        expected = np.where(y * u < 1.0, (1.0 - y * u) ** 2 / 2.0, 0.0)
    elif isinstance(loss, Huber):
        r = np.abs(u - y)
        expected = np.where(r <= loss.delta, r**2 / 2.0, loss.delta * (r - loss.delta / 2.0))
    else:
        expected = (u - y) ** 2 / 2.0
    np.testing.assert_allclose(loss.value(u, y), expected, rtol=1e-12, atol=1e-14)


@every_loss
def test_value_alone_is_the_value_that_comes_with_the_slope(loss):
    rng = np.random.default_rng(1)
    y = random_labels(loss, rng, 100)
    u = random_outputs(loss, rng, 100, scale=20.0)
    np.testing.assert_array_equal(loss.value(u, y), loss.value_and_slope(u, y)[0])


@every_loss
def test_slope_is_the_derivative_of_the_value(loss):
    rng = np.random.default_rng(2)
    y = random_labels(loss, rng, 300)
    u = random_outputs(loss, rng, 300)
    slope = loss.value_and_slope(u, y)[1]
    h = 1e-5
    for c, e in directions(u):
        derivative = (loss.value(u + h * e, y) - loss.value(u - h * e, y)) / (2.0 * h)
        np.testing.assert_allclose(slope if slope.ndim == 1 else slope[:, c], derivative, rtol=1e-5, atol=1e-5)


@every_loss
def test_curvature_is_the_derivative_of_the_slope_away_from_kinks(loss):
    rng = np.random.default_rng(3)
    y = random_labels(loss, rng, 300)
    u = random_outputs(loss, rng, 300)
    h = 1e-5
    smooth = kink_distance(loss, u, y) > 2.0 * h
    assert smooth.sum() > 250
    times = loss.curvature_product(u, y)
    for _, e in directions(u):
        derivative = (loss.value_and_slope(u + h * e, y)[1] - loss.value_and_slope(u - h * e, y)[1]) / (2.0 * h)
        column = times(np.broadcast_to(e, u.shape))
        np.testing.assert_allclose(column[smooth], derivative[smooth], rtol=1e-5, atol=1e-8)


@every_scalar_loss
def test_kernels_have_the_same_curvature_also_at_kinks(loss):
    rng = np.random.default_rng(3)
    y = random_labels(loss, rng, 300)
    u = np.concatenate([random_outputs(loss, rng, 100), 1.0 / y[100:200], y[200:] + getattr(loss, "delta", 0.0)])
    found = [curvature(*loss.kernel, *row) for row in zip(u, y, strict=True)]
    np.testing.assert_allclose(found, loss.curvature(u, y), rtol=1e-15)


@every_loss
@settings(max_examples=50)
@given(seed=seeds, scale=st.sampled_from([0.1, 1.0, 30.0, 1e4]))
def test_value_and_conjugate_satisfy_the_fenchel_young_inequality(loss, seed, scale):
    rng = np.random.default_rng(seed)
    y = random_labels(loss, rng, 20)
    u = random_outputs(loss, rng, 20, scale)
    duals = random_duals(loss, rng, y)
    value, conjugate = loss.value(u, y), loss.conjugate(duals, y)
    assert np.isfinite(conjugate).all()
    rounding = 1e-13 * (1.0 + np.abs(value) + np.abs(conjugate) + np.abs(inner(duals, u)))
    assert (value + conjugate - inner(duals, u) >= -rounding).all()


@every_loss
@settings(max_examples=50)
@given(seed=seeds, scale=st.sampled_from([0.1, 1.0, 30.0, 1e4]))
def test_fenchel_young_is_an_equality_at_the_slope(loss, seed, scale):
    rng = np.random.default_rng(seed)
    y = random_labels(loss, rng, 20)
    u = random_outputs(loss, rng, 20, scale)
    value, slope = loss.value_and_slope(u, y)
    conjugate = loss.conjugate(slope, y)
    tolerance = 1e-13 * (1.0 + value + np.abs(conjugate) + np.abs(inner(np.abs(slope), np.abs(u))))
    assert (np.abs(value + conjugate - inner(slope, u)) <= tolerance).all()


@pytest.mark.parametrize(
    ("loss", "dual", "y"),
    [
        (Logistic(), 0.01, 1.0),
        (Logistic(), -1.01, 1.0),
        (Logistic(), -0.01, -1.0),
        (Logistic(), 1.01, -1.0),
        (Huber(), 1.3501, 0.7),
        (Huber(), -1.3501, 0.7),
        (Huber(0.4), 0.41, 0.0),
        (SquaredHinge(), 0.01, 1.0),
        (SquaredHinge(), -0.01, -1.0),
        (Softmax(2), [0.1, -0.1], 0),  # p = (1.1, -0.1)
        (Softmax(2), [-0.1, 0.0], 0),  # p sums to 0.9
        (Softmax(2), [0.1, 0.0], 1),  # p sums to 1.1
    ],
)
def test_conjugate_is_infinite_outside_its_domain(loss, dual, y):
    assert loss.conjugate(np.array([dual], dtype=np.float64), np.array([y]))[0] == np.inf


@every_loss
def test_conjugate_is_zero_at_zero_because_the_least_loss_is_zero(loss):
    rng = np.random.default_rng(4)
    y, zeros = random_labels(loss, rng, 30), np.zeros_like(random_outputs(loss, rng, 30))
    np.testing.assert_array_equal(loss.conjugate(zeros, y), np.zeros(30))


@every_pair(loss=SCALAR, size=[1.0, 40.0, 750.0, 1e4, 1e150, 1e300], sign=[-1.0, 1.0], y=[-1.0, 1.0])
def test_large_outputs_give_the_true_value_and_slope(loss, size, sign, y):
    u = sign * size
    with np.errstate(over="ignore"):
        square = np.float64(u - y) ** 2 / 2.0
    if isinstance(loss, Logistic):
        value = max(-y * u, 0.0) + np.log1p(np.exp(-size))
        slope = -y / (1.0 + np.exp(min(y * u, 700.0)))
    elif isinstance(loss, SquaredHinge):
        value, slope = (square, u - y) if y * u < 1.0 else (0.0, 0.0)
    elif isinstance(loss, Huber):
        r = abs(u - y)
        value = loss.delta * (r - loss.delta / 2.0) if r > loss.delta else square
        slope = np.clip(u - y, -loss.delta, loss.delta)
    else:
        value, slope = square, u - y
    found, found_slope = loss.value_and_slope(np.array([u]), np.array([y]))
    np.testing.assert_allclose(found, value, rtol=1e-12)
    np.testing.assert_allclose(found_slope, slope, rtol=1e-12, atol=1e-300)
    if size > 100.0:
        flat = isinstance(loss, Logistic | Huber) or (isinstance(loss, SquaredHinge) and y * u > 1.0)
        curvature = loss.curvature(np.array([u]), np.array([y]))
        np.testing.assert_allclose(curvature, 0.0 if flat else 1.0, atol=1e-40)


@pytest.mark.parametrize("size", [40.0, 750.0, 1e4, 1e300])
@pytest.mark.parametrize("label", [0, 1, 2])
def test_softmax_of_large_outputs_gives_the_true_value_and_slope(size, label):
    u, y = np.array([[size, 0.0, -size]]), np.array([label])
    value, slope = Softmax(3).value_and_slope(u, y)
    np.testing.assert_allclose(value, label * size + np.log1p(np.exp(-size)), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(slope, np.eye(3)[[0]] - np.eye(3)[[label]], atol=1e-15)
    np.testing.assert_allclose(Softmax(3).curvature_product(u, y)(np.ones((1, 3)) * [1.0, 2.0, 3.0]), 0.0, atol=1e-12)


def test_softmax_keeps_the_probability_of_an_unlikely_class():
    slope = Softmax(2).value_and_slope(np.array([[0.0, -300.0]]), np.array([0]))[1]
    np.testing.assert_allclose(slope[0, 1], np.exp(-300.0), rtol=1e-12)


def test_softmax_of_two_classes_is_the_logistic_loss_of_the_difference():
    rng = np.random.default_rng(5)
    u, y = rng.normal(scale=5.0, size=(50, 2)), rng.integers(2, size=50)
    value, slope = Softmax(2).value_and_slope(u, y)
    logistic, logistic_slope = Logistic().value_and_slope(u[:, 1] - u[:, 0], 2.0 * y - 1.0)
    np.testing.assert_allclose(value, logistic, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(slope, np.stack([-logistic_slope, logistic_slope], axis=1), rtol=1e-9, atol=1e-15)


@every_loss
def test_lipschitz_bounds_slopes_within_reach_and_is_nearly_attained(loss):
    rng = np.random.default_rng(6)
    n = 4000
    y = random_labels(loss, rng, n)
    reach = rng.choice([0.1, 1.0, 50.0], size=n)
    u = random_outputs(loss, rng, n)
    u *= by_row(reach / sizes(u) * rng.choice([1.0, 0.5], size=n), u)
    size, bound = sizes(loss.value_and_slope(u, y)[1]), loss.lipschitz(y, reach)
    assert bound.shape == (n,)
    assert (size <= bound * (1.0 + 1e-12)).all()
    wide = reach == 50.0
    assert (size[wide] / bound[wide]).max() > 0.99


@every_loss
def test_smoothness_bounds_slope_differences_and_is_nearly_attained(loss):
    rng = np.random.default_rng(7)
    n = 20000
    y = random_labels(loss, rng, n)
    u = random_outputs(loss, rng, n, scale=1.0)
    step = random_outputs(loss, rng, n, scale=1.0) * by_row(rng.choice([1e-2, 1.0, 5.0], size=n), u)
    v = u + step
    change = sizes(loss.value_and_slope(u, y)[1] - loss.value_and_slope(v, y)[1])
    distance = sizes(u - v)
    assert (change <= loss.smoothness * distance * (1.0 + 1e-9) + 1e-15).all()
    clear = distance > 1e-4
    assert (change[clear] / distance[clear]).max() > 0.95 * loss.smoothness


@every_loss
@settings(max_examples=60)
@given(seed=seeds, n=st.integers(3, 40), decades=st.sampled_from([0.5, 20.0]))
def test_balance_zeroes_the_weighted_sum_inside_the_domain(loss, seed, n, decades):
    rng = np.random.default_rng(seed)
    y = random_labels(loss, rng, n)
    duals = random_duals(loss, rng, y)
    row_weights = 10.0 ** -rng.uniform(0.0, decades, size=n) * rng.choice([0.0, 1.0], p=[0.2, 0.8], size=n)
    row_weights[0] += 0.1
    before = duals.copy()
    balanced = loss.balance(duals, y, row_weights)
    assert balanced.shape == duals.shape
    np.testing.assert_array_equal(duals, before)
    scale = 1.0 + (row_weights @ np.abs(duals)).sum()
    np.testing.assert_allclose(row_weights @ balanced, 0.0, atol=1e-14 * scale)
    assert np.isfinite(loss.conjugate(balanced, y)).all()


@every_loss
def test_balance_moves_duals_by_no_more_than_their_imbalance_calls_for(loss):
    rng = np.random.default_rng(8)
    n = 120
    y = np.tile([0, 1, 2], n // 3) if isinstance(loss, Softmax) else random_labels(loss, rng, n)
    row_weights = rng.dirichlet(np.ones(n))
    balanced = loss.balance(random_duals(loss, rng, y), y, row_weights)
    off = balanced * (1.0 - 1e-6 * by_row(rng.random(n), balanced))
    again = loss.balance(off, y, row_weights)
    assert np.abs(again - off).max() < 1e-4 * (1.0 + np.abs(off).max())


@pytest.mark.parametrize("duals", [[[1e-20, 1e-20], [1e-20, 1e-20]], [[-1e-3, 1e-320], [0.0, 0.0]]])
def test_balancing_what_only_rounding_put_off_balance_gives_numbers(duals):
    """Excesses of one sign, which a sum of exact numbers could not have, and ratios by which a division overflows."""
    balanced = Softmax().balance(np.array(duals), np.array([0, 1]), np.array([0.5, 0.5]))
    assert np.isfinite(balanced).all()


@every_loss
@settings(max_examples=40)
@given(seed=seeds)
def test_balance_leaves_balanced_duals_alone(loss, seed):
    rng = np.random.default_rng(seed)
    n = 24
    y = np.tile([0, 1, 2], n // 3) if isinstance(loss, Softmax) else random_labels(loss, rng, n)
    row_weights = rng.dirichlet(np.ones(n))
    once = loss.balance(random_duals(loss, rng, y), y, row_weights)
    twice = loss.balance(once, y, row_weights)
    np.testing.assert_allclose(twice, once, rtol=1e-11, atol=1e-12)


@every_loss
def test_balance_leaves_exactly_balanced_duals_bitwise_alone(loss):
    if isinstance(loss, Softmax):
        y, duals = np.array([0, 1]), np.array([[-0.25, 0.25, 0.0], [0.25, -0.25, 0.0]])
    else:
        y, duals = np.array([-1.0, 1.0]), np.array([0.25, -0.25])
    np.testing.assert_array_equal(loss.balance(duals, y, np.array([0.5, 0.5])), duals)


@pytest.mark.parametrize("weight", [0.0, 1e-310])  # the least numbers overflow where zero divides
def test_balance_of_a_class_without_weight_gives_the_labels_themselves(weight):
    y = np.array([0, 1, 2])
    duals = np.full((3, 3), 1.0 / 3.0) - np.eye(3)
    balanced = Softmax(3).balance(duals, y, np.array([0.5, 0.5, weight]))
    np.testing.assert_array_equal(balanced, np.zeros((3, 3)))


@pytest.mark.parametrize("loss", [Logistic(), SquaredHinge(), Huber()], ids=repr)
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_balance_of_duals_of_one_sign_gives_zeros(loss, side):
    y = np.full(4, -side)
    balanced = loss.balance(side * np.array([0.1, 0.2, 0.3, 1.0]), y, np.full(4, 0.25))
    np.testing.assert_array_equal(balanced, np.zeros(4))


@settings(max_examples=100)
@given(
    duals=arrays(np.float64, 6, elements=st.floats(-1.0, 1.0, allow_subnormal=False)),
    row_weights=arrays(np.float64, 6, elements=st.floats(0.0, 1.0, allow_subnormal=False)),
)
def test_balance_by_scaling_never_grows_a_dual_or_turns_its_sign(duals, row_weights):
    balanced = Huber(1.0).balance(duals, np.zeros(6), row_weights)
    assert (np.abs(balanced) <= np.abs(duals)).all()
    assert (balanced * duals >= 0.0).all()


@pytest.mark.parametrize("loss", [Logistic(), SquaredHinge()], ids=repr)
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([-1, 1, 1]), [-1, 1, 1]),
        (np.array([0, 1, 1]), [-1, 1, 1]),
        (np.array([False, True, True]), [-1, 1, 1]),
        (np.array([0, 1], np.uint8), [-1, 1]),
        (np.array([0.0, 1.0], np.float32), [-1, 1]),
        (np.array([0, 0]), [-1, -1]),
        (np.array([-1.0, -1.0]), [-1, -1]),
        (np.array([1, 1]), [1, 1]),
    ],
)
def test_two_class_losses_read_both_codings_of_labels(loss, labels, expected):
    encoded = loss.encode(labels)
    assert encoded.dtype == np.float64
    np.testing.assert_array_equal(encoded, expected)
    np.testing.assert_array_equal(loss.encode(encoded), encoded)


@pytest.mark.parametrize("loss", [Logistic(), SquaredHinge()], ids=repr)
@pytest.mark.parametrize("labels", [[1, 2], [-1, 0, 1], [0.5, 1.0], [0, 1, 2], [-1, 2]])
def test_two_class_losses_refuse_other_labels(loss, labels):
    with pytest.raises(ValueError, match=r"^y must be"):
        loss.encode(np.array(labels))


@pytest.mark.parametrize("loss", [Squared(), Huber()], ids=repr)
def test_regression_losses_take_any_numbers_as_float64(loss):
    encoded = loss.encode(np.array([3, -7, 0]))
    assert encoded.dtype == np.float64
    np.testing.assert_array_equal(encoded, [3.0, -7.0, 0.0])


@pytest.mark.parametrize("labels", [[-1, 1], [0.5, 1.0]])
def test_softmax_refuses_labels_that_do_not_count_from_zero(labels):
    with pytest.raises(ValueError, match=r"^y must be"):
        Softmax().encode(np.array(labels))


def test_softmax_refuses_labels_beyond_its_classes():
    with pytest.raises(ValueError, match=r"^y has label 3"):
        Softmax(3).encode(np.array([0, 3]))


@pytest.mark.parametrize(
    ("loss", "labels", "expected"),
    [
        (Softmax(), [0, 2, 1], 3),
        (Softmax(), [0, 0], 2),
        (Softmax(5), [0, 2], 5),
        (Logistic(), [-1, 1], 1),
        (Squared(), [3.0, 4.0], 1),
    ],
)
def test_number_of_outputs(loss, labels, expected):
    assert loss.n_outputs(loss.encode(np.array(labels))) == expected


def test_outputs_of_softmax_once_fixed_do_not_depend_on_labels():
    assert Softmax().with_outputs(4).n_outputs(np.array([0])) == 4


@pytest.mark.parametrize("delta", [0.0, -1.0, np.inf, np.nan])
def test_huber_refuses_a_threshold_that_is_not_positive_and_finite(delta):
    with pytest.raises(ValueError, match=r"^delta"):
        Huber(delta)


@pytest.mark.parametrize("n_classes", [-1, 0, 1, 2.5])
def test_softmax_refuses_a_number_of_classes_that_is_not_a_whole_number_from_two(n_classes):
    with pytest.raises((TypeError, ValueError), match=r"n_classes must be a whole number"):
        Softmax(n_classes)


@pytest.mark.parametrize(
    ("loss", "labels", "reason"),
    [
        (Logistic(), [1.0, 1.0], "all labels are the same"),
        (Logistic(), [-1.0, -1.0], "all labels are the same"),
        (Logistic(), [-1.0, 1.0], None),
        (Softmax(3), [0, 2], "label 1"),
        (Softmax(), [0, 0], "label 1"),
        (Softmax(3), [2, 0, 1], None),
        (SquaredHinge(), [1.0, 1.0], None),  # zero from a finite intercept on
        (Squared(), [1.0, 1.0], None),
        (Huber(), [1.0, 1.0], None),
    ],
)
def test_unattained_names_labels_for_which_the_intercept_runs_away(loss, labels, reason):
    found = loss.unattained(np.array(labels))
    assert found is None if reason is None else reason in found


@every_scalar_loss
def test_arrays_and_loops_over_rows_compute_the_same_loss(loss):
    u = np.concatenate([[0.0], *(sign * np.logspace(-300, 300, 61) for sign in (1.0, -1.0))])
    u = u[np.abs(u) < 1e150]  # squares overflow beyond
    y = np.where(np.arange(len(u)) % 2, 1.0, -1.0)
    losses, slopes = loss.value_and_slope(u, y)
    inside = np.array([kernels.slope(*loss.kernel, *row) for row in zip(u, y, strict=True)])
    duals = np.concatenate([inside, -y, 0.0 * y, -y * (1.0 + 1e-9)])  # also at the ends of the domain, and beyond
    labels = np.tile(y, 4)
    for found, of_row, arguments in (
        (losses, kernels.value, (u, y)),
        (loss.value(u, y), kernels.value, (u, y)),
        (slopes, kernels.slope, (u, y)),
        (loss.curvature(u, y), kernels.curvature, (u, y)),
        (loss.conjugate(duals, labels), kernels.conjugate, (duals, labels)),
    ):
        expected = [of_row(*loss.kernel, *row) for row in zip(*arguments, strict=True)]
        np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-300)
