"""Sets of group weights that must give the same as others, or as scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import groupdro as gd

ALPHA = 0.1
SIZES = np.array([50, 30, 25, 15])
SHARES = SIZES / SIZES.sum()
SOLVERS = {
    "sqp": gd.solvers.GroupSQP,
    "lbfgs": lambda: gd.solvers.GroupSQP("lbfgs"),
    "auto": gd.solvers.Auto,
}
EXACT = [(loss, name) for loss in ("logistic", "squared") for name in SOLVERS]


def make_arrays(loss):
    rng = np.random.default_rng(7)
    X, groups = rng.normal(size=(120, 4)), np.repeat(np.arange(4), SIZES)
    score = X @ rng.normal(size=4) + (groups - 1.5) * X[:, 0] + rng.logistic(size=120) + 0.3 * groups
    return X, score if loss == "squared" else np.where(score > 0, 1.0, -1.0), groups


def make_problem(loss, weight_set, *, intercept=False):
    data = gd.GroupedData.from_arrays(*make_arrays(loss))
    kind = gd.losses.Squared() if loss == "squared" else gd.losses.Logistic()
    return gd.Problem(data, kind, gd.domains.L2Domain(penalty=ALPHA), weight_set, fit_intercept=intercept)


def solve(loss, weight_set, solver="sqp", **more):
    result = gd.solve(make_problem(loss, weight_set, **more), SOLVERS[solver](), tol=1e-12)
    assert result.gap <= 1e-11 * result.upper_bound
    return result


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("loss", "solver"), EXACT)
def test_a_floor_of_the_whole_average_by_rows_is_plain_training(loss, solver, intercept):
    X, y, _ = make_arrays(loss)
    if loss == "squared":
        reference = Ridge(alpha=ALPHA * len(y), fit_intercept=intercept).fit(X, y)
    else:
        options = {"tol": 1e-12, "max_iter": 10_000, "fit_intercept": intercept}
        reference = LogisticRegression(C=1.0 / (ALPHA * len(y)), **options).fit(X, y)
    result = solve(loss, gd.weight_sets.Floor(0.0, SHARES), solver, intercept=intercept)
    np.testing.assert_allclose(result.w[:4], np.ravel(reference.coef_), atol=1e-6)
    if intercept:
        assert result.w[4] == pytest.approx(float(np.ravel(reference.intercept_)[0]), abs=1e-6)
    np.testing.assert_allclose(result.q, SHARES, atol=1e-15)


LEAST = 0.6 * SHARES
PAIRS = {
    "a floor of nothing is the simplex": (gd.weight_sets.Floor(1.0, SHARES), gd.weight_sets.Simplex()),
    "a cap of all is the simplex": (gd.weight_sets.Cap(1.0), gd.weight_sets.Simplex()),
    "a box of all is the simplex": (gd.weight_sets.Box(0.0, 1.0), gd.weight_sets.Simplex()),
    "caps without room are equal weights": (gd.weight_sets.Cap(0.25), gd.weight_sets.Floor(0.0)),
    "a box of one point is that point": (gd.weight_sets.Box(SHARES, SHARES), gd.weight_sets.Floor(0.0, SHARES)),
    "a box from a floor up is that floor": (gd.weight_sets.Box(LEAST, 1.0), gd.weight_sets.Floor(0.4, SHARES)),
    "a box from zero up to caps is those caps": (
        gd.weight_sets.Box(0.0, (0.3, 0.2, 0.6, 0.4)),
        gd.weight_sets.Cap((0.3, 0.2, 0.6, 0.4)),
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("loss", "solver"), EXACT)
def test_sets_that_coincide_have_the_same_solution(pair, loss, solver):
    one, other = (solve(loss, weight_set, solver) for weight_set in PAIRS[pair])
    assert one.upper_bound == pytest.approx(other.upper_bound, rel=1e-10)
    np.testing.assert_allclose(one.w, other.w, atol=1e-6)
    np.testing.assert_allclose(one.group_risks, other.group_risks, atol=1e-6)


@pytest.mark.parametrize("pair", PAIRS)
def test_aleg_finds_the_same_for_sets_that_coincide(pair):
    one, other = (gd.solve(make_problem("logistic", s), gd.solvers.ALEG(), tol=1e-5, seed=1) for s in PAIRS[pair])
    exact = solve("logistic", PAIRS[pair][0]).upper_bound
    for result in (one, other):
        assert result.converged
        assert result.lower_bound - 1e-9 <= exact <= result.upper_bound + 1e-9
