import itertools
from dataclasses import astuple

import numpy as np
import pytest

from groupdro.data import Draw, GroupedData
from groupdro.losses import Huber, Logistic, Softmax, Squared, SquaredHinge
from groupdro.oracle import Oracle
from groupdro.problem import GroupMinima, L2Domain, Problem
from tests.pairs import every_pair
from tests.problem.small_problems import (
    INTERCEPT,
    LOSSES,
    OVERLAPPING,
    STORAGES,
    WEIGHTED,
    C,
    D,
    N,
    every_loss,
    make_arrays,
    make_problem,
    random_point,
    store,
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("groupdro.data.dense_rows._BLOCK_VALUES", 4 * D)  # several blocks and a shorter last one


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


@every_pair(loss=LOSSES, fit_intercept=INTERCEPT, weighted=WEIGHTED, overlapping=OVERLAPPING, storage=STORAGES)
def test_evaluate_gives_the_naive_risks_and_gradient(loss, fit_intercept, weighted, overlapping, storage, tmp_path):
    X, *rest = arrays = make_arrays(loss, overlapping=overlapping, weighted=weighted)
    data = GroupedData.from_arrays(store(X, storage, tmp_path), *rest)
    problem = Problem(data, loss, L2Domain(radius=2.0), fit_intercept=fit_intercept)
    oracle = Oracle(problem)
    w, q = random_point(problem)
    before = w.copy(), q.copy()
    found = oracle.evaluate(w, q)
    risks, gradients = naive(loss, arrays, w, fit_intercept)
    np.testing.assert_allclose(found.group_risks, risks, rtol=1e-12)
    np.testing.assert_allclose(found.gradient, np.tensordot(q, gradients, 1), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(oracle.risks(w), found.group_risks, rtol=1e-14)
    np.testing.assert_array_equal(w, before[0])
    np.testing.assert_array_equal(q, before[1])
    assert found.gradient.shape == problem.shape == w.shape


@every_pair(loss=LOSSES, fit_intercept=INTERCEPT, weighted=WEIGHTED, overlapping=OVERLAPPING)
def test_gradient_is_that_of_the_weighted_risks_by_finite_differences(loss, fit_intercept, weighted, overlapping):
    problem = make_problem(loss, fit_intercept, overlapping=overlapping, weighted=weighted)
    oracle = Oracle(problem)
    w, q = random_point(problem)
    gradient, h = oracle.evaluate(w, q).gradient, 1e-6
    for place in np.ndindex(w.shape):
        e = np.zeros_like(w)
        e[place] = h
        difference = q @ (oracle.risks(w + e) - oracle.risks(w - e)) / (2.0 * h)
        np.testing.assert_allclose(gradient[place], difference, rtol=1e-6, atol=1e-7)


@every_pair(loss=LOSSES, fit_intercept=INTERCEPT)
def test_evaluation_keeps_margins_from_which_losses_can_be_had_again(loss, fit_intercept):
    problem = make_problem(loss, fit_intercept, overlapping=True, weighted=True)
    w, q = random_point(problem)
    found = Oracle(problem).evaluate(w, q)
    X = np.column_stack([problem.data.rows.X, np.ones(problem.n_rows)])[:, : len(w)]
    np.testing.assert_allclose(found.margins, X @ w, rtol=1e-12, atol=1e-14)
    losses, slopes = problem.loss.value_and_slope(found.margins, problem.data.y)
    np.testing.assert_allclose(problem.data.group_means(losses), found.group_risks, rtol=1e-14)
    mass = np.abs(slopes.T * problem.data.row_weights(q) * np.linalg.norm(X, axis=1)).sum()
    np.testing.assert_allclose(found.mass, mass, rtol=1e-12)


@every_pair(loss=[Logistic(), Softmax(C)], fit_intercept=INTERCEPT, storage=STORAGES)
def test_combine_rows_is_the_transposed_product(loss, fit_intercept, storage, tmp_path):
    X, *rest = make_arrays(loss)
    data = GroupedData.from_arrays(store(X, storage, tmp_path), *rest)
    problem = Problem(data, loss, L2Domain(radius=2.0), fit_intercept=fit_intercept)
    by_user_row = np.random.default_rng(2).normal(size=(N, *problem.shape[1:]))
    found = Oracle(problem).combine_rows(by_user_row[data.source])
    np.testing.assert_allclose(found, X.T @ by_user_row, rtol=1e-12, atol=1e-13)


@every_pair(loss=LOSSES, overlapping=OVERLAPPING)
def test_integer_weights_stand_for_repeated_rows(loss, overlapping):
    X, y, groups, _ = make_arrays(loss, overlapping=overlapping)
    times = np.arange(N) % 4
    weighted = Problem(GroupedData.from_arrays(X, y, groups, times), loss, L2Domain(2.0), fit_intercept=True)
    repeated_data = GroupedData.from_arrays(*(np.repeat(a, times, axis=0) for a in (X, y, groups)))
    repeated = Problem(repeated_data, loss, L2Domain(2.0), fit_intercept=True)
    w, q = random_point(weighted)
    found, expected = Oracle(weighted).evaluate(w, q), Oracle(repeated).evaluate(w, q)
    np.testing.assert_allclose(found.group_risks, expected.group_risks, rtol=1e-12)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-11, atol=1e-13)


def full_difference(problem, at, w, q):
    now = Oracle(problem).evaluate(w, q)
    return now.group_risks - at.group_risks, now.gradient - at.gradient


def every_draw(data):
    spans = [range(data.offsets[i], data.offsets[i + 1]) for i in range(data.n_groups)]
    for members in itertools.product(*spans):
        members = np.array(members)
        chance = data.weights[members] if data.weights.size else 1.0 / data.group_sizes
        yield float(np.prod(chance)), Draw(members, np.arange(data.n_groups), np.ones(data.n_groups))


@every_pair(
    loss=[Logistic(), Squared(), Softmax(C)],
    fit_intercept=INTERCEPT,
    weighted=WEIGHTED,
    overlapping=OVERLAPPING,
    storage=["float64", "csr"],
)
def test_sampled_difference_is_the_full_difference_on_average(loss, fit_intercept, weighted, overlapping, storage):
    X, y, groups, weights = make_arrays(loss, overlapping=overlapping, weighted=weighted, n=7, n_groups=2, seed=3)
    data = GroupedData.from_arrays(store(X, storage, None), y, groups, weights)
    problem = Problem(data, loss, L2Domain(radius=2.0), fit_intercept=fit_intercept)
    oracle = Oracle(problem)
    at = oracle.evaluate(*random_point(problem, 4))
    w, q = random_point(problem, 5)
    loss_mean, gradient_mean, total = np.zeros(2), np.zeros(problem.shape), 0.0
    for chance, draw in every_draw(data):
        loss_difference, gradient_difference = oracle.sampled_difference(draw, at, w, q)
        loss_mean += chance * loss_difference
        gradient_mean += chance * gradient_difference
        total += chance
    expected_loss, expected_gradient = full_difference(problem, at, w, q)
    np.testing.assert_allclose(total, 1.0, rtol=1e-12)
    np.testing.assert_allclose(loss_mean, expected_loss, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gradient_mean, expected_gradient, rtol=1e-12, atol=1e-12)


@every_pair(loss=LOSSES, fit_intercept=INTERCEPT, weighted=WEIGHTED, overlapping=OVERLAPPING)
def test_a_draw_of_all_members_by_their_weights_gives_the_full_difference(loss, fit_intercept, weighted, overlapping):
    problem = make_problem(loss, fit_intercept, overlapping=overlapping, weighted=weighted)
    oracle = Oracle(problem)
    data = problem.data
    groups = np.repeat(np.arange(data.n_groups), data.group_sizes)
    weights = data.weights if weighted else 1.0 / data.group_sizes[groups]
    at = oracle.evaluate(*random_point(problem, 4))
    w, q = random_point(problem, 5)
    found = oracle.sampled_difference(Draw(np.arange(len(groups)), groups, weights), at, w, q)
    for part, expected in zip(found, full_difference(problem, at, w, q), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-11, atol=1e-13)


@every_loss
def test_sampled_difference_is_zero_at_the_snapshot(loss):
    problem = make_problem(loss, fit_intercept=True)
    oracle = Oracle(problem)
    at = oracle.evaluate(*random_point(problem))
    for part in oracle.sampled_difference(Draw.one_per_group(problem.data, np.random.default_rng(0)), at, at.w, at.q):
        np.testing.assert_allclose(part, 0.0, atol=1e-14)


@every_loss
def test_groups_without_a_drawn_member_do_not_change(loss):
    problem = make_problem(loss)
    oracle = Oracle(problem)
    at = oracle.evaluate(*random_point(problem, 4))
    draw = Draw(np.array([problem.data.offsets[1]]), np.array([1]), np.ones(1))
    loss_difference, _ = oracle.sampled_difference(draw, at, *random_point(problem, 5))
    assert loss_difference.shape == (3,)
    np.testing.assert_array_equal(loss_difference != 0.0, [False, True, False])


def counts(oracle):
    return astuple(oracle.counters)[:3]


def test_counters_grow_by_what_each_call_reads():
    problem = make_problem(Logistic(), overlapping=True)
    oracle = Oracle(problem)
    m = problem.n_groups
    w, q = random_point(problem)
    assert counts(oracle) == (0, 0, 0)
    at = oracle.evaluate(w, q)
    assert counts(oracle) == (N, N, N)
    oracle.sampled_difference(Draw.one_per_group(problem.data, np.random.default_rng(0)), at, w, q)
    assert counts(oracle) == (N + m, N + 2 * m, N + m)
    oracle.risks(w)
    assert counts(oracle) == (N + m, N + 2 * m, 2 * N + m)
    oracle.combine_rows(np.zeros(N))
    assert counts(oracle) == (N + m, N + 2 * m, 3 * N + m)
    assert oracle.passes == (3 * N + m) / N


def test_nothing_is_counted_while_counting_is_suspended():
    problem = make_problem(Logistic())
    oracle = Oracle(problem)
    w, q = random_point(problem)
    with oracle.counters.suspended():
        at = oracle.evaluate(w, q)
        with oracle.counters.suspended():
            oracle.risks(w)
        oracle.combine_rows(np.zeros(N))
        oracle.sampled_difference(Draw.one_per_group(problem.data, np.random.default_rng(0)), at, w, q)
    assert counts(oracle) == (0, 0, 0)
    oracle.evaluate(w, q)
    assert counts(oracle) == (N, N, N)


def test_counting_resumes_after_an_error():
    problem = make_problem(Logistic())
    oracle = Oracle(problem)
    with pytest.raises(RuntimeError), oracle.counters.suspended():
        raise RuntimeError
    oracle.risks(problem.centre())
    assert oracle.counters.row_reads == N


def test_an_oracle_of_a_related_problem_shares_the_counters():
    problem = make_problem(Logistic())
    oracle = Oracle(problem)
    alone = oracle.on(problem.group(1))
    excess = oracle.on(problem.with_minima(GroupMinima.exact(np.zeros(3))))
    assert alone.counters is excess.counters is oracle.counters
    with oracle.counters.suspended():
        alone.risks(problem.centre())
        excess.risks(problem.centre())
    assert counts(oracle) == (0, 0, 0)
    alone.evaluate(problem.centre(), np.ones(1))
    assert counts(oracle) == (alone.problem.n_rows,) * 3


def test_another_oracle_of_the_same_problem_counts_for_itself():
    problem = make_problem(Logistic())
    one, other = Oracle(problem), Oracle(problem)
    one.evaluate(*random_point(problem))
    assert counts(one) == (N, N, N)
    assert counts(other) == (0, 0, 0)


@every_pair(loss=LOSSES, fit_intercept=INTERCEPT, weighted=WEIGHTED, overlapping=OVERLAPPING, storage=STORAGES)
def test_the_problem_of_one_group_has_its_risk_and_gradient(
    loss, fit_intercept, weighted, overlapping, storage, tmp_path
):
    X, *rest = make_arrays(loss, overlapping=overlapping, weighted=weighted)
    data = GroupedData.from_arrays(store(X, storage, tmp_path), *rest)
    problem = Problem(data, loss, L2Domain(radius=2.0), fit_intercept=fit_intercept)
    w, _ = random_point(problem)
    for i in range(problem.n_groups):
        alone = problem.group(i)
        found, expected = (
            Oracle(alone).evaluate(w, np.ones(1)),
            Oracle(problem).evaluate(w, np.eye(problem.n_groups)[i]),
        )
        assert alone.shape == problem.shape
        assert alone.n_rows == problem.data.group_sizes[i]
        np.testing.assert_allclose(found.group_risks, expected.group_risks[[i]], rtol=1e-12)
        np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [-1, -1, 1, 1]])
def test_a_group_of_one_class_keeps_its_label(labels):
    data = GroupedData.from_arrays(np.ones((4, 1)), np.array(labels), np.array([0, 0, 1, 1]))
    problem = Problem(data, Logistic(), L2Domain(radius=1.0))
    w = np.array([2.0])
    expected = [np.log1p(np.exp(2.0)), np.log1p(np.exp(-2.0))]
    np.testing.assert_allclose(Oracle(problem).risks(w), expected, rtol=1e-12)
    np.testing.assert_allclose([Oracle(problem.group(i)).risks(w)[0] for i in range(2)], expected, rtol=1e-12)


def test_the_pooled_problem_is_the_mean_of_the_groups():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), np.sign(rng.normal(size=30))
    member = rng.random((30, 4)) < 0.5
    member[:, 0] = True
    problem = Problem(GroupedData.from_arrays(X, y, member, rng.random(30) + 0.1), Logistic(), L2Domain(radius=1.0))
    w = rng.normal(size=3)
    assert Oracle(problem.pooled()).risks(w) == pytest.approx([Oracle(problem).risks(w).mean()])
