from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from groupdro.data import Draw, GroupedData
from groupdro.datasets import make_gdro
from groupdro.losses import Logistic, Softmax, Squared
from groupdro.oracle import Evaluation, Oracle
from groupdro.problem import GroupMinima, L2Domain, Problem, SimplexDomain
from groupdro.problem.attainment import unattained
from tests.pairs import every_pair
from tests.problem.small_problems import (
    INTERCEPT,
    LOSSES,
    STORAGES,
    C,
    D,
    N,
    make_arrays,
    make_problem,
    store,
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("groupdro.data.dense_rows._BLOCK_VALUES", 4 * D)  # several blocks and a shorter last one


def test_a_group_that_lacks_classes_keeps_all_outputs():
    data = GroupedData.from_arrays(np.ones((4, 2)), np.array([0, 1, 2, 0]), np.array([0, 0, 1, 1]))
    problem = Problem(data, Softmax(), L2Domain(radius=1.0))
    assert problem.group(0).shape == problem.shape == (2, 3)


def test_a_problem_never_changes():
    problem = make_problem(Logistic())
    with pytest.raises(FrozenInstanceError):
        problem.fit_intercept = True


def test_a_problem_cannot_be_extended():
    with pytest.raises(TypeError, match="Problem cannot be extended"):

        class Another(Problem):
            pass


def test_group_minima_turn_risks_into_excess_risks_on_the_safe_side():
    plain = make_problem(Logistic(), domain=L2Domain(penalty=0.5))
    upper, lower = np.array([0.3, 0.2, 0.1]), np.array([0.2, 0.1, 0.0])
    regret = plain.with_minima(GroupMinima(upper, lower, centre=upper))
    w = np.array([1.0, 2.0, 0.0])
    risks = Oracle(plain).risks(w)
    np.testing.assert_allclose(Oracle(regret).risks(w), risks, rtol=1e-14)
    np.testing.assert_allclose(regret.group_values(risks), risks - [0.3, 0.2, 0.1], rtol=1e-14)
    np.testing.assert_allclose(regret.objective(w, risks), (risks - [0.2, 0.1, 0.0]).max() + 1.25, rtol=1e-14)
    np.testing.assert_allclose(plain.group_values(risks), risks, rtol=1e-14)
    np.testing.assert_allclose(plain.objective(w, risks), risks.max() + 1.25, rtol=1e-14)
    assert regret.group_minima is not None
    assert plain.group_minima is None


def test_the_objective_does_not_charge_the_intercept():
    problem = make_problem(Softmax(C), fit_intercept=True, domain=L2Domain(penalty=0.5))
    w = np.zeros(problem.shape)
    w[-1] = 100.0
    assert problem.objective(w, np.array([1.0, 2.0, 3.0])) == 3.0
    np.testing.assert_array_equal(problem.intercept(w), np.full((1, C), 100.0))
    np.testing.assert_array_equal(problem.coef(w), np.zeros((D, C)))


@every_pair(loss=[Logistic(), Softmax(C)], fit_intercept=INTERCEPT)
def test_solvers_start_at_the_centre_of_the_ball(loss, fit_intercept):
    problem = make_problem(loss, fit_intercept)
    np.testing.assert_array_equal(problem.centre(), np.zeros(problem.shape))
    assert problem.shape[0] == D + fit_intercept


def test_solvers_start_at_equal_weights_on_the_simplex():
    np.testing.assert_allclose(make_problem(Squared(), domain=SimplexDomain()).centre(), np.full(D, 1.0 / D))


def test_only_an_intercept_can_be_without_a_best_value():
    data = GroupedData.from_arrays(np.ones((3, 1)), np.ones(3))
    assert unattained(Problem(data, Logistic(), L2Domain(radius=1.0))) is None
    assert "labels" in unattained(Problem(data, Logistic(), L2Domain(radius=1.0), fit_intercept=True))


def row_gradient(problem, row, w, minus=None):
    nothing = np.zeros(problem.n_groups)
    only = np.eye(problem.n_groups)[0]
    other = w if minus is None else minus
    margins = np.zeros((problem.n_rows, *problem.shape[1:]))
    X = np.column_stack([problem.data.rows.X, np.ones(problem.n_rows)])[:, : len(w)]
    margins[row] = X[row] @ other
    at = Evaluation(other, nothing if minus is None else only, margins, nothing, np.zeros_like(w), 0.0)
    draw = Draw(np.array([row]), np.array([0]), np.ones(1))
    return Oracle(problem).sampled_difference(draw, at, w, only)


@every_pair(loss=LOSSES, fit_intercept=INTERCEPT, radius=[0.3, 4.0])
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


@pytest.mark.parametrize("storage", STORAGES)
def test_constants_of_the_logistic_loss_come_from_row_norms(storage, tmp_path):
    X, *rest = make_arrays(Logistic(), weighted=True, overlapping=True)
    data = GroupedData.from_arrays(store(X, storage, tmp_path), *rest)
    norms = np.sqrt((X**2).sum(axis=1) + 1.0)
    problem = Problem(data, Logistic(), L2Domain(radius=2.0), fit_intercept=True)
    found = problem.constants(2, 2.0)
    _, membership, weights = rest
    largest = norms[weights > 0].max()
    np.testing.assert_allclose(found.lipschitz, largest, rtol=1e-12)
    np.testing.assert_allclose(found.smoothness, largest**2 / 4.0, rtol=1e-12)
    mean_squares = [np.average((norms[inside] ** 2 / 4.0) ** 2, weights=weights[inside]) for inside in membership.T]
    np.testing.assert_allclose(found.mean_square_smoothness, np.sqrt(max(mean_squares)), rtol=1e-12)
    largest = np.abs(X[weights > 0]).max()
    no_intercept = Problem(data, Logistic(), SimplexDomain()).constants(np.inf, 1.0)
    np.testing.assert_allclose(no_intercept.lipschitz, largest, rtol=1e-12)
    np.testing.assert_allclose(no_intercept.smoothness, largest**2 / 4.0, rtol=1e-12)


def test_constants_without_a_radius_do_not_trip_over_a_row_of_zeros():
    X = np.array([[0.0, 0.0], [3.0, 4.0]])
    problem = Problem(GroupedData.from_arrays(X, np.array([-1, 1])), Logistic(), L2Domain(penalty=1.0))
    found = problem.constants(2, np.inf)
    assert (found.lipschitz, found.smoothness) == (5.0, 6.25)


def test_constants_of_the_papers_synthetic_problem(monkeypatch):
    monkeypatch.undo()  # blocks of the usual size
    X, y, groups = make_gdro(25, 400, 1024)
    largest = np.linalg.norm(X, axis=1).max()
    problem = Problem(GroupedData.from_arrays(X, y, groups), Logistic(), L2Domain(radius=1.0))
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
        Problem(data, Logistic(), L2Domain(radius=1.0))
