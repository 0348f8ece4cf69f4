"""The interior-point method for the worst rows, where every row is a group."""

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.domains import L2Domain
from groupdro.losses import Huber, Logistic, Squared, SquaredHinge
from groupdro.problem import GroupMinima
from groupdro.solvers import GroupSQP, TailNewton, solve
from groupdro.weight_sets import Box, Cap, Simplex
from tests.reference.convex import worst_value

LOSSES = {"logistic": Logistic(), "squared": Squared(), "huber": Huber(0.7), "squared hinge": SquaredHinge()}
N = 60


def make_problem(seed, *, loss="logistic", share=0.3, blend=1.0, sparse=False, offset=False, minima=False, d=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, d))
    scores = X @ rng.normal(size=d) + rng.normal(size=N)
    y = scores if loss in ("squared", "huber") else np.where(scores > 0, 1.0, -1.0)
    X = sp.csr_array(X * (rng.random(X.shape) < 0.5)) if sparse else X
    given = rng.normal(size=N) if offset else None
    data = gd.GroupedData.from_arrays(X, y, rng.permutation(N), offset=given)
    least = tuple(np.full(N, (1.0 - blend) / N))
    caps = np.full(N, 1.0 / (share * N))
    most = tuple(np.array(least) + blend * caps)
    sets = Cap(tuple(caps)) if blend == 1.0 else Box(least, most)
    found = GroupMinima.exact(0.1 * rng.random(N)) if minima else None
    return gd.Problem(data, LOSSES[loss], L2Domain(penalty=0.01), sets, fit_intercept=True, group_minima=found)


def references(problem):
    return None if problem.group_minima is None else problem.group_minima.centre


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "kind",
    [{}, {"share": 0.05}, {"share": 0.9}, {"blend": 0.4}, {"sparse": True}, {"offset": True}, {"minima": True}],
    ids=str,
)
def test_it_finds_the_optimum_and_its_bounds_enclose_it(loss, kind):
    for seed in range(3):
        problem = make_problem(seed, loss=loss, **kind)
        found = solve(problem, TailNewton(), tol=1e-8, max_passes=2000)
        optimum = worst_value(problem, references(problem)).value
        scale = max(1.0, abs(optimum))
        assert found.converged, found.message
        assert found.lower_bound <= optimum + 1e-6 * scale
        assert found.upper_bound >= optimum - 1e-6 * scale
        assert found.gap <= 1e-6 * scale


def test_weights_of_rows_with_different_caps():
    problem = make_problem(0)
    rng = np.random.default_rng(1)
    caps = rng.uniform(0.01, 0.2, N)
    problem = gd.Problem(problem.data, problem.loss, problem.domain, Cap(tuple(caps)), fit_intercept=True)
    one, other = (solve(problem, solver, tol=1e-8, max_passes=2000) for solver in (TailNewton(), GroupSQP()))
    assert one.converged
    assert one.upper_bound == pytest.approx(other.upper_bound, rel=1e-6)


def test_it_starts_at_a_given_model():
    problem = make_problem(3, share=0.8)
    first = solve(problem, TailNewton(), tol=1e-8, max_passes=2000)
    again = solve(problem, TailNewton(), tol=1e-8, max_passes=2000, w=first.w)
    assert again.upper_bound == pytest.approx(first.upper_bound, rel=1e-8)


def test_groups_of_several_rows_and_the_full_simplex_are_refused_by_name():
    problem = make_problem(0)
    several = gd.GroupedData.from_arrays(problem.data.rows.X, problem.data.y, np.arange(N) // 2)
    caps = Cap(tuple(np.full(N // 2, 0.1)))
    with pytest.raises(ValueError, match="every row to be a group"):
        solve(gd.Problem(several, Logistic(), L2Domain(penalty=0.1), caps), TailNewton())
    with pytest.raises(ValueError, match="every row to be a group"):
        solve(gd.Problem(problem.data, Logistic(), L2Domain(penalty=0.1), Simplex()), TailNewton())
    with pytest.raises(ValueError, match="an L2 penalty without a radius"):
        solve(gd.Problem(problem.data, Logistic(), L2Domain(radius=1.0), problem.weight_set), TailNewton())


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_thousands_of_rows_as_groups_take_few_passes(share):
    rng = np.random.default_rng(0)
    n = 5000
    X = rng.normal(size=(n, 5))
    y = X @ rng.normal(size=5) + rng.logistic(size=n) > 0
    model = gd.GroupDROClassifier(worst_share=share, tol=1e-2).fit(X, y, groups=np.arange(n))
    assert model.status_ == "converged"
    assert "interior point" in model.solver_
    assert model.gap_ <= 1e-2 * model.upper_bound_
    assert model.n_passes_ <= 80
