import itertools
from dataclasses import astuple

import numpy as np
import pytest
import scipy.sparse as sp

from groupdro.data import Draw, GroupedData
from groupdro.datasets import make_gdro
from groupdro.problem import (
    Evaluation,
    GroupRisk,
    Huber,
    L2Domain,
    Logistic,
    References,
    SimplexDomain,
    Softmax,
    Squared,
    SquaredHinge,
)
from groupdro.problem.attainment import unattained

N, D, C = 13, 3, 3
LOSSES = [Logistic(), Squared(), Huber(0.8), SquaredHinge(), Softmax(C)]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
with_or_without_intercept = pytest.mark.parametrize("fit_intercept", [False, True], ids=["no intercept", "intercept"])
weighted_or_not = pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
overlapping_or_not = pytest.mark.parametrize("overlapping", [False, True], ids=["disjoint", "overlapping"])
every_storage = pytest.mark.parametrize("storage", ["float64", "float32", "csr", "csr float32", "memmap"])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("groupdro.data.dense_rows._BLOCK_VALUES", 4 * D)  # several blocks and a shorter last one


def store(X, storage, folder):
    if storage == "memmap":
        X.tofile(folder / "X.bin")
        return np.memmap(folder / "X.bin", dtype=np.float64, mode="r", shape=X.shape)
    X = X.astype(np.float32) if "float32" in storage else X
    return sp.csr_array(X) if "csr" in storage else X


def labels_for(loss, rng, n):
    if isinstance(loss, Softmax):
        return rng.permutation(np.arange(n) % C)
    if isinstance(loss, Logistic | SquaredHinge):
        return rng.permutation(np.where(np.arange(n) % 2, 1.0, -1.0))
    return rng.normal(size=n)


def make_arrays(loss, *, overlapping=False, weighted=False, n=N, n_groups=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)) * (rng.random((n, D)) < 0.8)
    X = X.astype(np.float32).astype(np.float64)  # the same numbers in every storage
    groups = rng.permutation(np.arange(n) % n_groups)
    if overlapping:
        groups = (groups[:, None] == np.arange(n_groups)) | (rng.random((n, n_groups)) < 0.4)
    weights = rng.choice([0.0, 0.3, 1.0, 2.5], size=n) if weighted else None
    return X, labels_for(loss, rng, n), groups, weights


def make_problem(loss, fit_intercept=False, domain=None, **options):
    data = GroupedData.from_arrays(*make_arrays(loss, **options))
    return GroupRisk(data, loss, domain or L2Domain(radius=2.0), fit_intercept=fit_intercept)


def random_point(problem, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=problem.shape), rng.dirichlet(np.ones(problem.n_groups))


def naive_value_and_slope(loss, u, y):
    if isinstance(loss, Logistic):
        return np.logaddexp(0.0, -y * u), -y / (1.0 + np.exp(y * u))
    if isinstance(loss, Squared):
        return (u - y) ** 2 / 2.0, u - y
    if isinstance(loss, Huber):
        r, d = u - y, loss.delta
        return np.where(abs(r) <= d, r**2 / 2.0, d * (abs(r) - d / 2.0)), np.where(abs(r) <= d, r, d * np.sign(r))
    if isinstance(loss, SquaredHinge):
        t = np.where(y * u < 1.0, 1.0 - y * u, 0.0)
        return t**2 / 2.0, -y * t
    p = np.exp(u) / np.exp(u).sum(axis=1, keepdims=True)
    return -np.log(p[np.arange(len(y)), y]), p - np.eye(C)[y]


def naive(loss, arrays, w, fit_intercept):
    X, y, groups, weights = arrays
    if fit_intercept:
        X = np.column_stack([X, np.ones(len(X))])
    membership = groups if groups.ndim == 2 else groups[:, None] == np.unique(groups)
    risks, gradients = [], []
    for inside in membership.T:
        weight = np.ones(inside.sum()) if weights is None else weights[inside]
        value, slope = naive_value_and_slope(loss, X[inside] @ w, y[inside])
        risks.append((weight * value).sum() / weight.sum())
        gradients.append((X[inside].T * weight) @ slope / weight.sum())
    return np.array(risks), np.array(gradients)


@every_loss
@with_or_without_intercept
@weighted_or_not
@overlapping_or_not
@every_storage
def test_evaluate_gives_the_naive_risks_and_gradient(loss, fit_intercept, weighted, overlapping, storage, tmp_path):
    X, *rest = arrays = make_arrays(loss, overlapping=overlapping, weighted=weighted)
    data = GroupedData.from_arrays(store(X, storage, tmp_path), *rest)
    problem = GroupRisk(data, loss, L2Domain(radius=2.0), fit_intercept=fit_intercept)
    w, q = random_point(problem)
    before = w.copy(), q.copy()
    found = problem.evaluate(w, q)
    risks, gradients = naive(loss, arrays, w, fit_intercept)
    np.testing.assert_allclose(found.group_risks, risks, rtol=1e-12)
    np.testing.assert_allclose(found.gradient, np.tensordot(q, gradients, 1), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(problem.risks(w), found.group_risks, rtol=1e-14)
    np.testing.assert_array_equal(w, before[0])
    np.testing.assert_array_equal(q, before[1])
    assert found.gradient.shape == problem.shape == w.shape


@every_loss
@with_or_without_intercept
@weighted_or_not
@overlapping_or_not
def test_gradient_is_that_of_the_weighted_risks_by_finite_differences(loss, fit_intercept, weighted, overlapping):
    problem = make_problem(loss, fit_intercept, overlapping=overlapping, weighted=weighted)
    w, q = random_point(problem)
    gradient, h = problem.evaluate(w, q).gradient, 1e-6
    for place in np.ndindex(w.shape):
        e = np.zeros_like(w)
        e[place] = h
        difference = q @ (problem.risks(w + e) - problem.risks(w - e)) / (2.0 * h)
        np.testing.assert_allclose(gradient[place], difference, rtol=1e-6, atol=1e-7)


@every_loss
@with_or_without_intercept
def test_evaluation_keeps_margins_from_which_losses_can_be_had_again(loss, fit_intercept):
    problem = make_problem(loss, fit_intercept, overlapping=True, weighted=True)
    w, q = random_point(problem)
    found = problem.evaluate(w, q)
    X = np.column_stack([problem.data.rows.X, np.ones(problem.n_rows)])[:, : len(w)]
    np.testing.assert_allclose(found.margins, X @ w, rtol=1e-12, atol=1e-14)
    losses, slopes = problem.loss.value_and_slope(found.margins, problem.data.y)
    np.testing.assert_allclose(problem.data.group_means(losses), found.group_risks, rtol=1e-14)
    mass = np.abs(slopes.T * problem.data.row_weights(q) * np.linalg.norm(X, axis=1)).sum()
    np.testing.assert_allclose(found.mass, mass, rtol=1e-12)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(C)], ids=repr)
@with_or_without_intercept
@every_storage
def test_combine_rows_is_the_transposed_product(loss, fit_intercept, storage, tmp_path):
    X, *rest = make_arrays(loss)
    data = GroupedData.from_arrays(store(X, storage, tmp_path), *rest)
    problem = GroupRisk(data, loss, L2Domain(radius=2.0), fit_intercept=fit_intercept)
    by_user_row = np.random.default_rng(2).normal(size=(N, *problem.shape[1:]))
    found = problem.combine_rows(by_user_row[data.source])
    np.testing.assert_allclose(found, X.T @ by_user_row, rtol=1e-12, atol=1e-13)


@every_loss
@overlapping_or_not
def test_integer_weights_stand_for_repeated_rows(loss, overlapping):
    X, y, groups, _ = make_arrays(loss, overlapping=overlapping)
    times = np.arange(N) % 4
    weighted = GroupRisk(GroupedData.from_arrays(X, y, groups, times), loss, L2Domain(2.0), fit_intercept=True)
    repeated_data = GroupedData.from_arrays(*(np.repeat(a, times, axis=0) for a in (X, y, groups)))
    repeated = GroupRisk(repeated_data, loss, L2Domain(2.0), fit_intercept=True)
    w, q = random_point(weighted)
    found, expected = weighted.evaluate(w, q), repeated.evaluate(w, q)
    np.testing.assert_allclose(found.group_risks, expected.group_risks, rtol=1e-12)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-11, atol=1e-13)


def full_difference(problem, at, w, q):
    now = problem.evaluate(w, q)
    return now.group_risks - at.group_risks, now.gradient - at.gradient


def every_draw(data):
    spans = [range(data.offsets[i], data.offsets[i + 1]) for i in range(data.n_groups)]
    for members in itertools.product(*spans):
        members = np.array(members)
        chance = data.weights[members] if data.weights.size else 1.0 / data.group_sizes
        yield float(np.prod(chance)), Draw(members, np.arange(data.n_groups), np.ones(data.n_groups))


@pytest.mark.parametrize("loss", [Logistic(), Squared(), Softmax(C)], ids=repr)
@with_or_without_intercept
@weighted_or_not
@overlapping_or_not
@pytest.mark.parametrize("storage", ["float64", "csr"])
def test_sampled_difference_is_the_full_difference_on_average(loss, fit_intercept, weighted, overlapping, storage):
    X, y, groups, weights = make_arrays(loss, overlapping=overlapping, weighted=weighted, n=7, n_groups=2, seed=3)
    data = GroupedData.from_arrays(store(X, storage, None), y, groups, weights)
    problem = GroupRisk(data, loss, L2Domain(radius=2.0), fit_intercept=fit_intercept)
    at = problem.evaluate(*random_point(problem, 4))
    w, q = random_point(problem, 5)
    loss_mean, gradient_mean, total = np.zeros(2), np.zeros(problem.shape), 0.0
    for chance, draw in every_draw(data):
        loss_difference, gradient_difference = problem.sampled_difference(draw, at, w, q)
        loss_mean += chance * loss_difference
        gradient_mean += chance * gradient_difference
        total += chance
    expected_loss, expected_gradient = full_difference(problem, at, w, q)
    np.testing.assert_allclose(total, 1.0, rtol=1e-12)
    np.testing.assert_allclose(loss_mean, expected_loss, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gradient_mean, expected_gradient, rtol=1e-12, atol=1e-12)


@every_loss
@with_or_without_intercept
@weighted_or_not
@overlapping_or_not
def test_a_draw_of_all_members_by_their_weights_gives_the_full_difference(loss, fit_intercept, weighted, overlapping):
    problem = make_problem(loss, fit_intercept, overlapping=overlapping, weighted=weighted)
    data = problem.data
    groups = np.repeat(np.arange(data.n_groups), data.group_sizes)
    weights = data.weights if weighted else 1.0 / data.group_sizes[groups]
    at = problem.evaluate(*random_point(problem, 4))
    w, q = random_point(problem, 5)
    found = problem.sampled_difference(Draw(np.arange(len(groups)), groups, weights), at, w, q)
    for part, expected in zip(found, full_difference(problem, at, w, q), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-11, atol=1e-13)


@every_loss
def test_sampled_difference_is_zero_at_the_snapshot(loss):
    problem = make_problem(loss, fit_intercept=True)
    at = problem.evaluate(*random_point(problem))
    for part in problem.sampled_difference(problem.data.draw(np.random.default_rng(0)), at, at.w, at.q):
        np.testing.assert_allclose(part, 0.0, atol=1e-14)


@every_loss
def test_groups_without_a_drawn_member_do_not_change(loss):
    problem = make_problem(loss)
    at = problem.evaluate(*random_point(problem, 4))
    draw = Draw(np.array([problem.data.offsets[1]]), np.array([1]), np.ones(1))
    loss_difference, _ = problem.sampled_difference(draw, at, *random_point(problem, 5))
    assert loss_difference.shape == (3,)
    np.testing.assert_array_equal(loss_difference != 0.0, [False, True, False])


def counts(problem):
    return astuple(problem.counters)[:3]


def test_counters_grow_by_what_each_call_reads():
    problem = make_problem(Logistic(), overlapping=True)
    m = problem.n_groups
    w, q = random_point(problem)
    assert counts(problem) == (0, 0, 0)
    at = problem.evaluate(w, q)
    assert counts(problem) == (N, N, N)
    problem.sampled_difference(problem.data.draw(np.random.default_rng(0)), at, w, q)
    assert counts(problem) == (N + m, N + 2 * m, N + m)
    problem.risks(w)
    assert counts(problem) == (N + m, N + 2 * m, 2 * N + m)
    problem.combine_rows(np.zeros(N))
    assert counts(problem) == (N + m, N + 2 * m, 3 * N + m)
    assert problem.passes == (3 * N + m) / N


def test_nothing_is_counted_while_counting_is_suspended():
    problem = make_problem(Logistic())
    w, q = random_point(problem)
    with problem.counters.suspended():
        at = problem.evaluate(w, q)
        with problem.counters.suspended():
            problem.risks(w)
        problem.combine_rows(np.zeros(N))
        problem.sampled_difference(problem.data.draw(np.random.default_rng(0)), at, w, q)
    assert counts(problem) == (0, 0, 0)
    problem.evaluate(w, q)
    assert counts(problem) == (N, N, N)


def test_counting_resumes_after_an_error():
    problem = make_problem(Logistic())
    with pytest.raises(RuntimeError), problem.counters.suspended():
        raise RuntimeError
    problem.risks(problem.start())
    assert problem.counters.row_reads == N


def test_groups_and_regrets_are_counted_with_the_problem_they_come_from():
    problem = make_problem(Logistic())
    alone = problem.group(1)
    regret = problem.with_references(References.none(3))
    assert alone.counters is regret.counters is problem.counters
    with problem.counters.suspended():
        alone.risks(alone.start())
        regret.risks(regret.start())
    assert counts(problem) == (0, 0, 0)
    alone.evaluate(alone.start(), np.ones(1))
    assert counts(problem) == (alone.n_rows,) * 3


@every_loss
@with_or_without_intercept
@weighted_or_not
@overlapping_or_not
@every_storage
def test_the_problem_of_one_group_has_its_risk_and_gradient(
    loss, fit_intercept, weighted, overlapping, storage, tmp_path
):
    X, *rest = make_arrays(loss, overlapping=overlapping, weighted=weighted)
    data = GroupedData.from_arrays(store(X, storage, tmp_path), *rest)
    problem = GroupRisk(data, loss, L2Domain(radius=2.0), fit_intercept=fit_intercept)
    w, _ = random_point(problem)
    for i in range(problem.n_groups):
        alone = problem.group(i)
        found, expected = alone.evaluate(w, np.ones(1)), problem.evaluate(w, np.eye(problem.n_groups)[i])
        assert alone.shape == problem.shape
        assert alone.n_rows == problem.data.group_sizes[i]
        np.testing.assert_allclose(found.group_risks, expected.group_risks[[i]], rtol=1e-12)
        np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-11, atol=1e-13)


def test_a_group_that_lacks_classes_keeps_all_outputs():
    data = GroupedData.from_arrays(np.ones((4, 2)), np.array([0, 1, 2, 0]), np.array([0, 0, 1, 1]))
    problem = GroupRisk(data, Softmax(), L2Domain(radius=1.0))
    assert problem.group(0).shape == problem.shape == (2, 3)


@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [-1, -1, 1, 1]])
def test_a_group_of_one_class_keeps_its_label(labels):
    data = GroupedData.from_arrays(np.ones((4, 1)), np.array(labels), np.array([0, 0, 1, 1]))
    problem = GroupRisk(data, Logistic(), L2Domain(radius=1.0))
    w = np.array([2.0])
    expected = [np.log1p(np.exp(2.0)), np.log1p(np.exp(-2.0))]
    np.testing.assert_allclose(problem.risks(w), expected, rtol=1e-12)
    np.testing.assert_allclose([problem.group(i).risks(w)[0] for i in range(2)], expected, rtol=1e-12)


def test_references_turn_risks_into_regrets_on_the_safe_side():
    plain = make_problem(Logistic(), domain=L2Domain(penalty=0.5))
    regret = plain.with_references(References(upper=np.array([0.3, 0.2, 0.1]), lower=np.array([0.2, 0.1, 0.0])))
    w = np.array([1.0, 2.0, 0.0])
    risks = plain.risks(w)
    np.testing.assert_allclose(regret.risks(w), risks, rtol=1e-14)
    np.testing.assert_allclose(regret.group_values(risks), risks - [0.3, 0.2, 0.1], rtol=1e-14)
    np.testing.assert_allclose(regret.objective(w, risks), (risks - [0.2, 0.1, 0.0]).max() + 1.25, rtol=1e-14)
    np.testing.assert_allclose(plain.group_values(risks), risks, rtol=1e-14)
    np.testing.assert_allclose(plain.objective(w, risks), risks.max() + 1.25, rtol=1e-14)
    assert regret.regret
    assert not plain.regret


def test_the_objective_does_not_charge_the_intercept():
    problem = make_problem(Softmax(C), fit_intercept=True, domain=L2Domain(penalty=0.5))
    w = np.zeros(problem.shape)
    w[-1] = 100.0
    assert problem.objective(w, np.array([1.0, 2.0, 3.0])) == 3.0
    np.testing.assert_array_equal(problem.intercept(w), np.full((1, C), 100.0))
    np.testing.assert_array_equal(problem.coef(w), np.zeros((D, C)))


@pytest.mark.parametrize("loss", [Logistic(), Softmax(C)], ids=repr)
@with_or_without_intercept
def test_solvers_start_at_the_centre_of_the_ball(loss, fit_intercept):
    problem = make_problem(loss, fit_intercept)
    np.testing.assert_array_equal(problem.start(), np.zeros(problem.shape))
    assert problem.shape[0] == D + fit_intercept


def test_solvers_start_at_equal_weights_on_the_simplex():
    np.testing.assert_allclose(make_problem(Squared(), domain=SimplexDomain()).start(), np.full(D, 1.0 / D))


def test_only_an_intercept_can_be_without_a_best_value():
    data = GroupedData.from_arrays(np.ones((3, 1)), np.ones(3))
    assert unattained(GroupRisk(data, Logistic(), L2Domain(radius=1.0))) is None
    assert "labels" in unattained(GroupRisk(data, Logistic(), L2Domain(radius=1.0), fit_intercept=True))


def row_gradient(problem, row, w, minus=None):
    nothing = np.zeros(problem.n_groups)
    only = np.eye(problem.n_groups)[0]
    other = w if minus is None else minus
    margins = np.zeros((problem.n_rows, *problem.shape[1:]))
    X = np.column_stack([problem.data.rows.X, np.ones(problem.n_rows)])[:, : len(w)]
    margins[row] = X[row] @ other
    at = Evaluation(other, nothing if minus is None else only, margins, nothing, np.zeros_like(w), 0.0)
    draw = Draw(np.array([row]), np.array([0]), np.ones(1))
    return problem.sampled_difference(draw, at, w, only)


@every_loss
@with_or_without_intercept
@pytest.mark.parametrize("radius", [0.3, 4.0])
def test_constants_bound_sampled_gradients_and_their_differences_in_the_ball(loss, fit_intercept, radius):
    problem = make_problem(loss, fit_intercept)
    constants = problem.constants(2, radius)
    rng = np.random.default_rng(6)
    groups = np.repeat(np.arange(3), problem.data.group_sizes)
    steepest = 0.0
    for _ in range(30):
        w, v = rng.normal(size=(2, *problem.shape))
        w *= radius / np.linalg.norm(w)
        v *= radius * rng.random() / np.linalg.norm(v)
        distance = np.linalg.norm(w - v)
        squares = np.zeros(3)
        for row, i in enumerate(groups):
            size = np.linalg.norm(row_gradient(problem, row, w)[1])
            loss_change, change = row_gradient(problem, row, w, minus=v)
            steepest = max(steepest, size)
            assert size <= constants.lipschitz * (1.0 + 1e-12)
            assert np.abs(loss_change).max() <= constants.lipschitz * distance * (1.0 + 1e-12)
            assert np.linalg.norm(change) <= constants.smoothness * distance * (1.0 + 1e-12)
            squares[i] += np.linalg.norm(change) ** 2 / problem.data.group_sizes[i]
        assert np.sqrt(squares.max()) <= constants.mean_square_smoothness * distance * (1.0 + 1e-12)
    assert steepest > 0.25 * constants.lipschitz  # bounds, but not idle ones


@pytest.mark.parametrize("loss", LOSSES[:-1], ids=repr)
def test_constants_bound_sampled_gradients_on_the_simplex_in_the_dual_norm(loss):
    problem = make_problem(loss, domain=SimplexDomain())
    constants = problem.constants(np.inf, 1.0)
    rng = np.random.default_rng(7)
    for _ in range(30):
        w, v = rng.dirichlet(np.full(D, 0.5), size=2)
        distance = np.abs(w - v).sum()
        for row in range(N):
            assert np.abs(row_gradient(problem, row, w)[1]).max() <= constants.lipschitz * (1.0 + 1e-12)
            change = row_gradient(problem, row, w, minus=v)[1]
            assert np.abs(change).max() <= constants.smoothness * distance * (1.0 + 1e-12) + 1e-15


@every_storage
def test_constants_of_the_logistic_loss_come_from_row_norms(storage, tmp_path):
    X, *rest = make_arrays(Logistic(), weighted=True, overlapping=True)
    data = GroupedData.from_arrays(store(X, storage, tmp_path), *rest)
    norms = np.sqrt((X**2).sum(axis=1) + 1.0)
    problem = GroupRisk(data, Logistic(), L2Domain(radius=2.0), fit_intercept=True)
    found = problem.constants(2, 2.0)
    _, membership, weights = rest
    largest = norms[weights > 0].max()
    np.testing.assert_allclose(found.lipschitz, largest, rtol=1e-12)
    np.testing.assert_allclose(found.smoothness, largest**2 / 4.0, rtol=1e-12)
    mean_squares = [np.average((norms[inside] ** 2 / 4.0) ** 2, weights=weights[inside]) for inside in membership.T]
    np.testing.assert_allclose(found.mean_square_smoothness, np.sqrt(max(mean_squares)), rtol=1e-12)
    largest = np.abs(X[weights > 0]).max()
    no_intercept = GroupRisk(data, Logistic(), SimplexDomain()).constants(np.inf, 1.0)
    np.testing.assert_allclose(no_intercept.lipschitz, largest, rtol=1e-12)
    np.testing.assert_allclose(no_intercept.smoothness, largest**2 / 4.0, rtol=1e-12)


def test_constants_without_a_radius_do_not_trip_over_a_row_of_zeros():
    X = np.array([[0.0, 0.0], [3.0, 4.0]])
    problem = GroupRisk(GroupedData.from_arrays(X, np.array([-1, 1])), Logistic(), L2Domain(penalty=1.0))
    found = problem.constants(2, np.inf)
    assert (found.lipschitz, found.smoothness) == (5.0, 6.25)


def test_constants_of_the_papers_synthetic_problem(monkeypatch):
    monkeypatch.undo()  # blocks of the usual size
    X, y, groups = make_gdro(25, 400, 1024)
    largest = np.linalg.norm(X, axis=1).max()
    problem = GroupRisk(GroupedData.from_arrays(X, y, groups), Logistic(), L2Domain(radius=1.0))
    found = problem.constants(2, 1.0)
    np.testing.assert_allclose(found.lipschitz, largest, rtol=1e-12)
    np.testing.assert_allclose(found.smoothness, largest**2 / 4.0, rtol=1e-12)
    assert 32.0 < found.lipschitz < 40.0  # rows are N(0, I) in 1024 dimensions


def test_the_simplex_refuses_a_loss_of_several_outputs():
    with pytest.raises(ValueError, match="softmax"):
        make_problem(Softmax(C), domain=SimplexDomain())


def test_the_simplex_refuses_an_intercept():
    with pytest.raises(ValueError, match=r"^fit_intercept"):
        make_problem(Logistic(), fit_intercept=True, domain=SimplexDomain())


def test_labels_that_the_loss_cannot_read_are_refused():
    data = GroupedData.from_arrays(np.ones((2, 1)), np.array([1, 2]))
    with pytest.raises(ValueError, match=r"^y must be"):
        GroupRisk(data, Logistic(), L2Domain(radius=1.0))


def test_the_pooled_problem_is_the_mean_of_the_groups():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), np.sign(rng.normal(size=30))
    member = rng.random((30, 4)) < 0.5
    member[:, 0] = True
    problem = GroupRisk(GroupedData.from_arrays(X, y, member, rng.random(30) + 0.1), Logistic(), L2Domain(radius=1.0))
    w = rng.normal(size=3)
    assert problem.pooled().risks(w) == pytest.approx([problem.risks(w).mean()])
