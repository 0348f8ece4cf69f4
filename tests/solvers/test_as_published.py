"""Algorithms 1 and 2 of the paper, against a plain transcription with its constants."""

import numpy as np
import pytest

import groupdro as gd
from tests.reference.naive_aleg import phi, published_aleg, published_alem
from tests.solvers.test_aleg_theory import draws_of, signed_groups, small_problem

EPOCHS, RADIUS, SEED = 3, 2.0, 5


def pair(result):
    return np.append(result.average.w, result.average.q)


def stop_after(progress):
    return progress.latest.epoch >= EPOCHS


def drawn(problem, K):
    return draws_of(problem, SEED, [K] * EPOCHS)


@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 5, 2, 4, 6)])
def test_algorithm_1_with_the_theorems_parameters(sizes):
    problem, K = small_problem(sizes=sizes, radius=RADIUS), round(np.mean(sizes))
    found = gd.solve(problem, gd.solvers.ALEGTheory(), tol=0.0, seed=SEED, callbacks=[stop_after])
    w, q = published_aleg(signed_groups(problem), RADIUS, drawn(problem, K))
    np.testing.assert_allclose(pair(found), np.append(w, q), rtol=0, atol=1e-12)


@pytest.mark.parametrize("reading", ["group", "theorem"])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 5, 2, 4, 6)])
def test_algorithm_2_with_the_theorems_parameters(sizes, reading):
    problem, K, m = small_problem(sizes=sizes, radius=RADIUS), round(np.mean(sizes)), len(sizes)
    paper = gd.solvers.ALEGTheory()
    alem = gd.solvers.ALEM(paper, paper, stage_one_epochs=EPOCHS, stage_one_step=reading)
    found = gd.solve(problem, alem, tol=0.0, atol=0.0, seed=SEED, callbacks=[stop_after])
    alone = [drawn(problem.group(i), K) for i in range(m)]
    models, risks, (w, q) = published_alem(signed_groups(problem), RADIUS, drawn(problem, K), alone, reading)
    np.testing.assert_allclose(found.group_minima.models, models, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.group_minima.upper, risks, rtol=0, atol=1e-12)
    np.testing.assert_allclose(pair(found), np.append(w, q), rtol=0, atol=1e-12)
    # Every epoch takes a pass and two gradients per step in the paper's count; the averages take a pass without.
    n = problem.n_rows
    assert found.counters.grad_evals_paper == (n + EPOCHS * (n + 2 * K * m)) * 2
    assert found.counters.row_reads == (n + EPOCHS * (n + K * m)) * 2 + n


def test_the_two_readings_of_the_first_stages_step_differ():
    problem, paper = small_problem(sizes=(30, 40, 20), radius=RADIUS), gd.solvers.ALEGTheory()
    first, second = (
        gd.solve(problem, gd.solvers.ALEM(paper, paper, stage_one_epochs=5, stage_one_step=reading), tol=0.0,
                 atol=0.0, max_passes=15).group_minima
        for reading in ("group", "theorem")
    )  # fmt: skip
    assert np.abs(first.models - second.models).max() > 1e-3


def test_a_first_stages_step_that_cannot_be_taken_is_refused():
    paper = gd.solvers.ALEGTheory()
    with pytest.raises(ValueError, match="needs ALEGTheory"):
        gd.solvers.ALEM(gd.solvers.GroupSQP(), stage_one_epochs=2, stage_one_step="theorem")
    with pytest.raises(ValueError, match="'group'"):
        gd.solvers.ALEM(paper, paper, stage_one_epochs=2, stage_one_step="mean")
    problem = small_problem(sizes=(4, 4, 4), radius=RADIUS)
    penalised = gd.Problem(problem.data, problem.loss, gd.domains.L2Domain(penalty=0.1))
    alem = gd.solvers.ALEM(paper, paper, stage_one_epochs=2, stage_one_step="theorem")
    with pytest.raises(ValueError, match="needs a ball"):
        gd.solve(penalised, alem)


def test_a_lipschitz_constant_of_ones_own_scales_the_step_and_is_refused_if_too_small():
    problem = small_problem(sizes=(4, 4, 4), radius=RADIUS)

    def stop(progress):
        return progress.latest.epoch >= 2

    def average(**given):
        return gd.solve(problem, gd.solvers.ALEGTheory(**given), tol=0.0, callbacks=[stop]).average.w

    np.testing.assert_allclose(
        average(lipschitz=1e4), average(lipschitz=2e4, multiplier=2, guarantee=False), rtol=1e-12
    )
    with pytest.raises(ValueError, match="lipschitz must be at least"):
        average(lipschitz=1e-6)
    average(lipschitz=1e-6, guarantee=False)


def test_the_first_stage_subtracts_the_risk_of_the_average_or_of_the_best_model():
    problem, paper = small_problem(sizes=(30, 40, 20), radius=RADIUS), gd.solvers.ALEGTheory()
    made = [gd.solvers.ALEM(paper, paper, **k) for k in ({"stage_one_epochs": 5}, {"stage_one_passes": 11})]
    averages, best = (gd.solve(problem, alem, tol=0.0, atol=0.0, max_passes=40).group_minima for alem in made)
    at_averages = [np.mean([phi(x @ w) for x in group])
                   for group, w in zip(signed_groups(problem), averages.models, strict=True)]  # fmt: skip
    np.testing.assert_allclose(averages.upper, at_averages, rtol=1e-12)
    assert (best.upper <= averages.upper).all()
    assert (best.upper < averages.upper - 1e-6).any()
    assert (averages.lower <= best.upper).all()


def test_the_groups_models_are_in_the_units_of_the_data():
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1], 30)
    X = rng.normal(size=(60, 2)) + 1e4  # columns that the run centres
    y = X @ [1.0, -1.0] + groups + 0.1 * rng.normal(size=60)
    data = gd.GroupedData.from_arrays(X, y, groups)
    problem = gd.Problem(data, gd.losses.Squared(), gd.domains.L2Domain(penalty=0.1), fit_intercept=True)
    alem = gd.solvers.ALEM(gd.solvers.GroupSQP(), stage_one_epochs=20)
    minima = gd.solve(problem, alem, max_passes=300).group_minima
    for i, w in enumerate(minima.models):
        rows = groups == i
        value = 0.5 * np.mean((X[rows] @ w[:2] + w[2] - y[rows]) ** 2) + 0.05 * w[:2] @ w[:2]
        assert value == pytest.approx(minima.upper[i], rel=1e-6)


def test_epochs_of_the_first_stage_need_a_solver_and_no_limit_on_passes():
    for given in ({}, {"stage_one": gd.solvers.ALEGTheory(), "stage_one_passes": 3}):
        with pytest.raises(ValueError, match="stage_one_epochs needs a stage_one"):
            gd.solvers.ALEM(stage_one_epochs=2, **given)


def test_a_budget_that_ends_within_the_first_stage_leaves_valid_bounds():
    problem, paper = small_problem(sizes=(30, 40, 20), radius=RADIUS), gd.solvers.ALEGTheory()
    optimum = gd.solve(problem, gd.solvers.ALEM(), tol=0.0, atol=1e-6)
    brief = gd.solve(problem, gd.solvers.ALEM(paper, paper, stage_one_epochs=50), tol=0.0, atol=0.0, max_passes=20)
    assert brief.passes < 30
    assert brief.lower_bound <= optimum.upper_bound
    assert optimum.lower_bound <= brief.upper_bound
    assert (brief.group_minima.lower <= optimum.group_minima.upper + 1e-9).all()
    assert (optimum.group_minima.lower <= brief.group_minima.upper + 1e-9).all()
