"""Runs under every set of weights: interrupted, and with two workers."""

import numpy as np
import pytest

import groupdro as gd
from tests.distributed.thread_comm import run_workers
from tests.reference.convex import worst_value

WEIGHT_SETS = {
    "caps": gd.weight_sets.Cap((0.7, 0.4, 0.2)),
    "box": gd.weight_sets.Box((0.1, 0.2, 0.05), (0.5, 0.6, 0.3)),
}
SOLVERS = {"aleg": gd.solvers.ALEG, "sqp": gd.solvers.GroupSQP, "lbfgs": lambda: gd.solvers.GroupSQP("lbfgs")}


def make_data(seed=0):
    rng = np.random.default_rng(seed)
    X, groups = rng.normal(size=(120, 4)), np.repeat(np.arange(3), (60, 36, 24))
    score = X @ rng.normal(size=4) + (groups - 1) * X[:, 0] + rng.logistic(size=120)
    return gd.GroupedData.from_arrays(X, np.where(score > 0, 1.0, -1.0), groups)


def make_problem(weight_set, data=None):
    return gd.Problem(
        data or make_data(), gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.02), WEIGHT_SETS[weight_set]
    )


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("weight_set", WEIGHT_SETS)
def test_an_interrupted_run_resumes(weight_set, solver, tmp_path):
    def stop(progress):
        return progress.latest.epoch >= 2

    problem, options = make_problem(weight_set), {"tol": 1e-10, "max_passes": 60}
    broken = gd.solve(problem, SOLVERS[solver](), **options, callbacks=[stop], checkpoint_dir=tmp_path)
    resumed = gd.solve(problem, SOLVERS[solver](), **options, checkpoint_dir=tmp_path)
    whole = gd.solve(problem, SOLVERS[solver](), **options)
    assert broken.epochs < resumed.epochs
    assert resumed.lower_bound <= whole.upper_bound
    assert whole.lower_bound <= resumed.upper_bound
    assert resumed.gap <= 5.0 * whole.gap + 1e-10 * whole.upper_bound
    other = gd.Problem(
        make_data(), gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.02), gd.weight_sets.Cap((0.7, 0.4, 0.3))
    )
    assert "resumed" not in gd.solve(other, SOLVERS[solver](), **options, checkpoint_dir=tmp_path).solver


@pytest.mark.parametrize("solver", ["aleg", "sqp"])
@pytest.mark.parametrize("weight_set", WEIGHT_SETS)
def test_two_workers_find_what_one_finds(weight_set, solver):
    data, tol = make_data(), 1e-3 if solver == "aleg" else 1e-9

    def solved(comm):
        return gd.solve(make_problem(weight_set, gd.distributed.shard(data, comm)), SOLVERS[solver](), tol=tol)

    optimum = worst_value(make_problem(weight_set)).value
    results = run_workers(2, solved)
    for result in results:
        assert result.converged
        assert result.lower_bound - 1e-7 <= optimum <= result.upper_bound + 1e-7
        assert result.gap <= tol * result.upper_bound
    assert results[0].w.tobytes() == results[1].w.tobytes()
    assert results[0].q.tobytes() == results[1].q.tobytes()
