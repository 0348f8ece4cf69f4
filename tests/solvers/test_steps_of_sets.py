"""Compiled steps against readable ones for every set of group weights."""

import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.data import BatchPlan
from groupdro.oracle import Oracle
from groupdro.solvers.steps import InnerLoop
from groupdro.solvers.steps.fused import FusedSteps
from groupdro.solvers.steps.lazy import LazySteps
from groupdro.solvers.steps.readable import ReadableSteps

BASE = (0.4, 0.3, 0.2, 0.1)
WEIGHT_SETS = {
    "floor": gd.weight_sets.Floor(0.4, BASE),
    "plain average": gd.weight_sets.Floor(0.0, BASE),
    "two worst": gd.weight_sets.Cap(0.5),
    "caps": gd.weight_sets.Cap((0.5, 0.4, 0.3, 0.0)),
    "caps without room": gd.weight_sets.Cap(BASE),
    "box": gd.weight_sets.Box((0.1, 0.2, 0.0, 0.05), (0.6, 0.3, 0.3, 0.05)),
}
FORMS = {"dense": FusedSteps, "sparse": LazySteps}


def make_problem(form, weight_set):
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(4), (40, 25, 60, 15))
    X = rng.normal(size=(140, 6)) * (rng.random((140, 6)) < 0.6)
    y = np.sign(X @ rng.normal(size=6) + 2.0 * rng.normal(size=140) + groups - 1)
    data = gd.GroupedData.from_arrays(sp.csr_array(X) if form == "sparse" else X, y, groups)
    return gd.Problem(
        data, gd.losses.Logistic(), gd.domains.L2Domain(radius=0.8, penalty=0.05), weight_set, fit_intercept=True
    )


def make_loop(problem, rng):
    """Begin away from the snapshot, both players inside of their sets; steps of q are long enough to reach caps."""
    oracle = Oracle(problem)
    weighting = problem.weight_geometry()
    at = oracle.evaluate(problem.within_domain(rng.normal(size=problem.shape)), weighting.point(rng.normal(size=4)))
    centre = weighting.mirror(at.q)
    logits = weighting.step(centre, 0.5, rng.normal(size=4))
    w_steps = np.append(np.full(6, 0.05), 0.2)
    return InnerLoop(oracle, at, problem.geometry(), w_steps, 6.0, 0.1, at.w + 0.01, at.w, logits, centre)


def draw_members(problem, rng):
    plan = BatchPlan.of(problem.data, 12)
    return plan, plan.draw(problem.data, 40, rng)


def assert_same_steps(problem, plan, members, loops):
    """Make the same steps by two forms, each on a loop of its own."""
    for kind, loop in loops.items():
        assert kind.fits(loop)
        steps = kind(loop)
        steps.run(plan, members)
        steps.flush()
    compiled, readable = loops.values()
    for name in ("w", "logits", "w_total", "q_total", "logit_total"):
        np.testing.assert_allclose(getattr(compiled, name), getattr(readable, name), rtol=1e-8, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(compiled.measures.tolist(), readable.measures.tolist(), rtol=1e-8, atol=1e-9)
    q = problem.weight_geometry().point(compiled.logits)
    assert problem.weight_set.contains(q)
    assert problem.weight_set.contains(compiled.mean_weights())
    assert problem.weight_set.contains(readable.mean_weights())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weight_set", WEIGHT_SETS)
def test_compiled_steps_are_the_readable_ones_under_every_set(form, weight_set):
    problem = make_problem(form, WEIGHT_SETS[weight_set])
    loops = {kind: make_loop(problem, np.random.default_rng(2)) for kind in (FORMS[form], ReadableSteps)}
    assert_same_steps(problem, *draw_members(problem, np.random.default_rng(1)), loops)


@pytest.mark.parametrize("weight_set", ["two worst", "caps", "box"])
def test_steps_of_this_length_reach_caps_and_leave_them(weight_set):
    """Without this the comparison above would not see them."""
    problem = make_problem("dense", WEIGHT_SETS[weight_set])
    plan, members = draw_members(problem, np.random.default_rng(1))
    loop = make_loop(problem, np.random.default_rng(2))
    steps, weighting = FusedSteps(loop), problem.weight_geometry()
    caps = problem.weight_set.moving(4).caps
    full = []
    for k in range(len(members)):
        steps.run(plan, members[k : k + 1])
        full.append(weighting.moved(weighting.point(loop.logits)) >= (1.0 - 1e-12) * caps)
    full = np.array(full)[:, caps > 0]
    assert full.any()
    assert not full.all()
