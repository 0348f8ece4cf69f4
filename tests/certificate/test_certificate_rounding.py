"""Bounds where rounding is larger than what they are about."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.certificate.rounding import support_slack
from tests.pairs import every_pair

# Column, target and penalty of two rows in two groups, the second of which has an offset of one: the optimum is one, up
# to 1e-15, and the penalty at the solution is smaller than the rounding of one.
SMALL_PENALTIES = [
    (4126208.742713337, 8.81114468236223, 0.00014471617431385288, np.float64),
    (28563712.81004266, 0.6977017564912855, 0.946259918654195, np.float32),
]


@every_pair(
    case=dict(zip(("float64", "float32"), SMALL_PENALTIES, strict=True)),
    solver=["sketched-sqp", "sqp", "aleg", "auto"],
    store={"dense": np.asarray, "csr": sp.csr_array},
)
def test_the_solution_stays_in_its_set_if_its_penalty_is_below_rounding(case, solver, store):
    column, target, penalty, dtype = case
    X, y = store(np.full((2, 1), column, dtype=dtype)), target * (1.0 + np.array([0.0, 1e-7]))
    data = gd.GroupedData.from_arrays(X, y, [0, 1])
    problem = gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(penalty=penalty), offsets=np.array([0.0, 1.0]))
    result = gd.solve(problem, solver, tol=1e-9, max_passes=60)
    assert result.lower_bound <= 1.0 + 1e-14
    assert result.upper_bound >= 1.0
    assert result.status.name != "NUMERICAL_FAILURE"


@pytest.mark.parametrize(
    "domain",
    [
        gd.domains.L2Domain(penalty=1e-6),
        gd.domains.L2Domain(radius=2.0, penalty=1e-6),
        gd.domains.ElasticNetDomain(l1=1.0, l2=1e-6),
        gd.domains.ElasticNetDomain(l1=1.0, l2=0.0).within(3.0),
        gd.domains.ElasticNetDomain(l1=0.0, l2=0.0, low=-1.0, high=2.0),
    ],
    ids=repr,
)
def test_the_slack_of_a_support_covers_every_error_of_the_gradient(domain):
    rng = np.random.default_rng(0)
    for scale in (0.0, 1e-9, 1.0):
        gradient = scale * rng.normal(size=3) + (1.0 if scale == 1e-9 else 0.0)  # near the L1 penalty
        for error in (1e-15, 1e-9, 1e-5):
            slack = support_slack(domain, gradient, error)
            for _ in range(20):
                direction = rng.normal(size=3)
                exact = gradient + error * direction / np.linalg.norm(direction)
                assert domain.support(exact) >= domain.support(gradient) - slack * (1.0 + 1e-9) - 1e-300


def exact_risk(x, w, target, offset, groups):
    """Return the worst average loss of a model with one coefficient, without rounding."""
    exact = [[Fraction(float(value)) for value in values] for values in (x, target, offset)]
    losses = [(a * Fraction(float(w)) + o - y) ** 2 / 2 for a, y, o in zip(*exact, strict=True)]
    of_groups = {own: [loss for loss, group in zip(losses, groups, strict=True) if group == own] for own in groups}
    return max(sum(own) / len(own) for own in of_groups.values())


@every_pair(
    solver=["auto", "sqp"],
    groups=[[0, 0, 0], [0, 0, 1]],
    x=[[1.0, 1.0, 1.0], [0.1, 0.3, 0.7]],
    offset=[[0.0, 0.0, 0.0], [0.1, 0.05, 0.12]],
)
def test_the_upper_bound_covers_rounding_of_outputs(x, groups, offset, solver):
    # Targets near 1e15 are multiples of 1/8 or more: residuals may be computed as zero although they are not.
    x = np.array(x)
    target = 1.5e15 * x / x[0]
    data = gd.GroupedData.from_arrays(x[:, None], target, groups, offset=offset)
    result = gd.solve(gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(radius=1e17)), solver, tol=1e-6)
    assert result.upper_bound >= exact_risk(x, result.w[0], target, offset, groups)
    assert result.upper_bound <= 100.0
    assert result.lower_bound <= exact_risk(x, target[0] / x[0], target, offset, groups)
    assert result.status is gd.solvers.Status.CONVERGED
