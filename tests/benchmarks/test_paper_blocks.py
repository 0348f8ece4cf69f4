"""Steps made many at a time against the same steps one by one."""

import numpy as np
import pytest
from benchmarks.paper.methods import ALSVRE
from benchmarks.paper.methods.block_kernels import projected_block
from benchmarks.paper.methods.row_blocks import BlockSteps, RowBlocks

import groupdro as gd
from groupdro.data import BatchPlan, Draw
from groupdro.geometry import Euclidean
from groupdro.oracle import Oracle
from groupdro.solvers.steps import InnerLoop
from groupdro.solvers.steps.readable import ReadableSteps
from tests.solvers.test_steps_of_sets import WEIGHT_SETS, assert_same_steps

pytestmark = pytest.mark.long  # compiling their kernels takes longer than all that they do


def _problem(penalty: float, radius: float, dtype=np.float64):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 7)).astype(dtype)
    y = rng.integers(0, 4, size=300)
    data = gd.GroupedData.from_arrays(X, y, rng.integers(0, 5, size=300))
    return gd.Problem(data, gd.losses.Softmax(4), gd.domains.L2Domain(radius=radius, penalty=penalty))


def _loop(problem, n_steps, rng):
    w = problem.domain.feasible(rng.normal(size=problem.shape))
    q = rng.dirichlet(np.ones(problem.n_groups))
    oracle = Oracle(problem)
    at = oracle.evaluate(problem.domain.feasible(rng.normal(size=problem.shape)), q)
    loop = InnerLoop(
        oracle=oracle, at=at,
        geometry=Euclidean(problem.domain.radius, problem.domain.penalty, problem.data.n_features), w_steps=0.05,
        q_step=0.1, alpha=0.02, w=w, w_centre=at.w, logits=np.log(q)[::-1].copy(), logit_centre=np.log(q),
    )  # fmt: skip
    groups = rng.integers(0, problem.n_groups, size=n_steps)
    plan = BatchPlan(n_steps, groups[:, None], np.full((n_steps, 1), float(problem.n_groups)))
    return loop, plan, problem.data.draw_members(groups, 1, rng)[0][:, None]


@pytest.mark.parametrize(("penalty", "radius"), [(0.0, 1e3), (0.3, np.inf), (0.0, 1.0), (0.2, 1.5)])
@pytest.mark.parametrize(("dtype", "places"), [(np.float64, 1e-10), (np.float32, 1e-4)])
def test_blocks_of_steps_are_the_same_steps(penalty, radius, dtype, places):
    problem = _problem(penalty, radius, dtype)
    loops = []
    for form in (ReadableSteps, BlockSteps):
        loop, plan, members = _loop(problem, 333, np.random.default_rng(5))
        before = loop.oracle.counters.row_reads
        assert form.fits(loop)
        steps = form(loop)
        steps.run(plan, members)
        steps.flush()
        assert loop.oracle.counters.row_reads - before == 333
        loops.append(loop)
    readable, blocked = loops
    assert np.abs(readable.w).max() > 0.1
    for name in ("w_total", "q_total", "logit_total"):
        np.testing.assert_allclose(getattr(blocked, name), getattr(readable, name), rtol=places, atol=333 * places)
    np.testing.assert_allclose(blocked.measures.tolist(), readable.measures.tolist(), rtol=places, atol=333 * places)
    np.testing.assert_allclose(blocked.iterate(), readable.iterate(), atol=places)
    np.testing.assert_allclose(blocked.logits, readable.logits, atol=10 * places)


@pytest.mark.parametrize("weight_set", WEIGHT_SETS)
def test_blocks_are_the_readable_steps_under_every_set(weight_set):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(140, 6)) * (rng.random((140, 6)) < 0.6)
    data = gd.GroupedData.from_arrays(X, rng.integers(0, 3, 140), np.repeat(np.arange(4), (40, 25, 60, 15)))
    problem = gd.Problem(
        data, gd.losses.Softmax(3), gd.domains.L2Domain(radius=0.8, penalty=0.05), WEIGHT_SETS[weight_set]
    )
    oracle = Oracle(problem)
    weighting = problem.weight_geometry()
    at = oracle.evaluate(problem.within_domain(rng.normal(size=problem.shape)), weighting.point(rng.normal(size=4)))
    centre = weighting.mirror(at.q)
    logits, geometry = weighting.step(centre, 0.5, rng.normal(size=4)), problem.geometry()
    groups = rng.integers(0, 4, size=150)
    plan = BatchPlan(150, groups[:, None], np.full((150, 1), 4.0))
    loops = {
        kind: InnerLoop(oracle, at, geometry, 0.05, 6.0, 0.1, at.w + 0.01, at.w, logits, centre)
        for kind in (BlockSteps, ReadableSteps)
    }
    assert_same_steps(problem, plan, data.draw_members(groups, 1, rng)[0][:, None], loops)


def test_blocks_go_on_where_the_last_call_stopped():
    problem = _problem(0.1, 1.2)
    whole, plan, members = _loop(problem, 300, np.random.default_rng(8))
    steps = BlockSteps(whole)
    steps.run(plan, members)
    steps.flush()
    pieces, _, _ = _loop(problem, 300, np.random.default_rng(8))
    steps = BlockSteps(pieces)
    for start in (0, 100, 200):
        part = BatchPlan(100, plan.groups[start : start + 100], plan.weights[start : start + 100])
        steps.run(part, members[start : start + 100])
    steps.flush()
    np.testing.assert_allclose(pieces.w, whole.w, atol=1e-11)
    np.testing.assert_allclose(pieces.w_total, whole.w_total, atol=1e-9)


def test_blocks_with_projections_are_the_readable_steps_of_al_svre():
    problem = _problem(0.0, 1.5)
    oracle = Oracle(problem)
    solver = ALSVRE(30.0)
    state = solver.init(oracle, problem.centre(), problem.central_weights(), 0)
    other = solver.init(oracle, problem.centre(), problem.central_weights(), 0)
    state.q, other.q = state.q.copy(), other.q.copy()  # the snapshot's own must stay
    rng = np.random.default_rng(2)
    state.w = other.w = problem.domain.feasible(rng.normal(size=problem.shape))
    groups = rng.integers(0, problem.n_groups, size=200)
    members = problem.data.draw_members(groups, 1, rng)[0]
    geometry, gradient = solver._bent(state)
    values, p = problem.group_values(state.evaluation.group_risks) + state.q_curvature / 5, 0.01
    for member, group in zip(members, groups, strict=True):
        draw = Draw(np.array([member]), np.array([group]), np.array([5.0]))
        solver.step(oracle, state, draw, geometry, gradient, values, p)
    blocks = RowBlocks(oracle, other.evaluation, gradient, other.w)
    at, work = other.evaluation, np.empty((3, 5))
    draw = Draw(members, groups, np.full(200, 5.0))
    blocks.advance(
        draw,
        other.tau,
        geometry.ball,
        lambda block, _: projected_block(block, other.q, at.q, values, other.q_curvature, p, work),
    )
    other.w = blocks.iterate()
    assert np.abs(state.q - state.evaluation.q).max() > 1e-3
    np.testing.assert_allclose(other.w, state.w, atol=1e-11)
    np.testing.assert_allclose(other.q, state.q, atol=1e-11)
