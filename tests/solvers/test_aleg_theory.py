import numpy as np
import pytest

import groupdro as gd
from groupdro.data import Draw
from groupdro.geometry import Entropy, Euclidean, softmax
from groupdro.oracle import Oracle
from groupdro.problem import GroupMinima
from groupdro.solvers.step_sizes import saddle_constant
from tests.reference.convex import worst_value
from tests.reference.naive_aleg import naive_aleg


def small_problem(sizes=(3, 5, 2, 4), d=3, seed=0, radius=2.0, permutation=None, loss=None, domain=None):
    rng = np.random.default_rng(seed)
    names = np.arange(len(sizes)) if permutation is None else np.asarray(permutation)
    groups = np.repeat(names, sizes)
    X = rng.normal(size=(len(groups), d))
    y = np.where(rng.random(len(groups)) < 0.5, 1.0, -1.0)
    data = gd.GroupedData.from_arrays(X, y, groups)
    return gd.Problem(data, loss or gd.losses.Logistic(), domain or gd.domains.L2Domain(radius=radius))


def signed_groups(problem):
    data = problem.data
    rows = data.rows.X * data.y[:, None]
    return [rows[data.offsets[i] : data.offsets[i + 1]] for i in range(data.n_groups)]


def draws_of(problem, seed, lengths):
    """The rows that the solver draws, counted within each group."""
    out = []
    for s, K in enumerate(lengths):
        rng = np.random.default_rng([seed, s])
        out.append([Draw.one_per_group(problem.data, rng).members - problem.data.offsets[:-1] for _ in range(K)])
    return out


@pytest.mark.parametrize("shifted", [False, True])
def test_the_readable_step_equals_the_naive_reference_on_the_same_indices(shifted):
    problem = small_problem()
    shift = np.array([0.1, 0.3, 0.0, 0.2]) if shifted else np.zeros(4)
    problem = problem.with_minima(GroupMinima.exact(shift))
    lengths, alphas = [4, 4, 3], [[0.2, 0.25, 0.25, 0.3], [0.3, 0.2, 0.2, 0.25], [1 / 3] * 3]
    etas = [[0.1, 0.2, 0.15, 0.1], [0.3] * 4, [0.05, 0.1, 0.2]]
    solver = gd.solvers.ALEGTheory(lengths, alphas, etas, guarantee=False)
    oracle = Oracle(problem)
    state = solver.init(oracle, problem.centre(), problem.central_weights(), seed=5)
    for s in range(3):
        solver.epoch(oracle, state)
        state.epoch = s + 1
    path, snapshot, average = naive_aleg(
        signed_groups(problem), 2.0, draws_of(problem, 5, lengths), etas, alphas, shift
    )
    ours = (
        (state.w.mirror, softmax(state.q.mirror)),
        (state.evaluation.w, state.evaluation.q),
        solver.average(state),
    )
    for (w, q), (w_naive, q_naive) in zip(ours, (path[-1], snapshot, average), strict=True):
        np.testing.assert_allclose(w, w_naive, rtol=0, atol=1e-12)
        np.testing.assert_allclose(q, q_naive, rtol=0, atol=1e-12)


def test_the_estimator_is_unbiased_over_all_draws():
    problem = small_problem(sizes=(2, 3, 2))
    oracle = Oracle(problem)
    rng = np.random.default_rng(0)
    at = oracle.evaluate(rng.normal(size=3) * 0.3, np.array([0.2, 0.5, 0.3]))
    w, q = rng.normal(size=3), np.array([0.6, 0.1, 0.3])
    there = oracle.evaluate(w, q)
    total_loss, total_gradient, n = np.zeros(3), np.zeros(3), 0
    for a in range(2):
        for b in range(2, 5):
            for c in range(5, 7):
                draw = Draw(np.array([a, b, c]), np.arange(3), np.ones(3))
                loss, gradient = oracle.sampled_difference(draw, at, w, q)
                total_loss, total_gradient, n = total_loss + loss, total_gradient + gradient, n + 1
    np.testing.assert_allclose(at.group_risks + total_loss / n, there.group_risks, atol=1e-12)
    np.testing.assert_allclose(at.gradient + total_gradient / n, there.gradient, atol=1e-12)


def test_one_row_a_group_and_one_step_an_epoch_is_mirror_prox():
    problem = small_problem(sizes=(1, 1, 1, 1, 1), d=4)
    oracle = Oracle(problem)
    eta = 0.07
    solver = gd.solvers.ALEGTheory(1, 1.0, eta, guarantee=False)
    state = solver.init(oracle, problem.centre(), problem.central_weights(), seed=0)
    w_geometry, q_geometry = problem.geometry(), Entropy(5)
    w, theta = np.zeros(4), np.zeros(5)
    for _ in range(20):
        solver.epoch(oracle, state)
        state.epoch += 1
        at = oracle.evaluate(w, softmax(theta))
        w_half = w_geometry.step(w, 4.0 * eta, at.gradient)
        theta_half = q_geometry.step(theta, 2 * np.log(5) * eta, -at.group_risks)
        there = oracle.evaluate(w_half, softmax(theta_half))
        w = w_geometry.step(w, 4.0 * eta, there.gradient)
        theta = q_geometry.step(theta, 2 * np.log(5) * eta, -there.group_risks)
        np.testing.assert_allclose(state.evaluation.w, w, rtol=0, atol=1e-13)
        np.testing.assert_allclose(state.evaluation.q, softmax(theta), rtol=0, atol=1e-13)


def run(problem, epochs=5, seed=3, **options):
    oracle = Oracle(problem)
    solver = gd.solvers.ALEGTheory(**options)
    state = solver.init(oracle, problem.centre(), problem.central_weights(), seed)
    for _ in range(epochs):
        solver.epoch(oracle, state)
        state.epoch += 1
    return state, solver.average(state)


def test_adding_a_constant_to_all_losses_leaves_the_path():
    plain, shifted = small_problem(), small_problem()
    shifted = shifted.with_minima(GroupMinima.exact(np.full(4, -7.0)))
    (state, average), (other, other_average) = run(plain), run(shifted)
    np.testing.assert_allclose(other.evaluation.w, state.evaluation.w, atol=1e-13)
    np.testing.assert_allclose(other.evaluation.q, state.evaluation.q, atol=1e-13)
    np.testing.assert_allclose(other_average[0], average[0], atol=1e-13)


def test_permuting_groups_permutes_a_deterministic_path():
    # With one row a group nothing is drawn at random, so the paths themselves must agree.
    order = np.array([2, 0, 3, 1, 4])
    plain, permuted = small_problem(sizes=(1,) * 5), small_problem(sizes=(1,) * 5, permutation=order)
    (state, _), (other, _) = run(plain, epoch_length=3), run(permuted, epoch_length=3)
    np.testing.assert_allclose(other.evaluation.w, state.evaluation.w, atol=1e-13)
    np.testing.assert_allclose(other.evaluation.q[order], state.evaluation.q, atol=1e-13)


def test_permuting_or_duplicating_groups_leaves_the_optimum():
    problem = small_problem(sizes=(3, 5, 4))
    data = problem.data
    group = np.repeat(np.arange(3), data.group_sizes)
    twice = np.column_stack([group == i for i in (0, 1, 2, 1)])
    duplicated = gd.Problem(
        gd.GroupedData.from_arrays(data.rows.X, data.y, twice), gd.losses.Logistic(), problem.domain
    )
    permuted = gd.Problem(
        gd.GroupedData.from_arrays(data.rows.X, data.y, 5 - group), gd.losses.Logistic(), problem.domain
    )
    optimum = worst_value(problem).value
    for other in (duplicated, permuted):
        assert worst_value(other).value == pytest.approx(optimum, abs=1e-8)
        result = gd.solve(other, "aleg-theory", tol=1e-3, max_passes=4000)
        assert result.converged
        assert result.lower_bound <= optimum + 1e-9
        assert result.upper_bound >= optimum - 1e-9


@pytest.mark.parametrize(
    ("loss", "domain", "tol"),
    [
        (gd.losses.Logistic(), gd.domains.L2Domain(radius=1.0), 5e-3),
        (gd.losses.Huber(), gd.domains.L2Domain(penalty=0.3), 5e-3),
        (gd.losses.Squared(), gd.domains.SimplexDomain(), 3e-2),
        pytest.param(gd.losses.Squared(), gd.domains.SimplexDomain(), 5e-3, marks=pytest.mark.long),
        (gd.losses.SquaredHinge(), gd.domains.L2Domain(radius=1.0, penalty=0.1), 5e-3),
    ],
)
def test_the_theorems_step_converges_to_the_optimum(loss, domain, tol):
    problem = small_problem(sizes=(6, 9, 5), loss=loss, domain=domain)
    optimum = worst_value(problem).value
    result = gd.solve(problem, "aleg-theory", tol=tol, max_passes=20_000)
    assert result.converged
    assert result.lower_bound - 1e-8 <= optimum <= result.upper_bound + 1e-8
    assert result.gap <= tol * result.upper_bound


def test_softmax_converges_to_the_optimum():
    rng = np.random.default_rng(0)
    data = gd.GroupedData.from_arrays(rng.normal(size=(30, 3)), rng.integers(0, 3, 30), rng.integers(0, 4, 30))
    problem = gd.Problem(data, gd.losses.Softmax(), gd.domains.L2Domain(radius=1.0))
    result = gd.solve(problem, "aleg-theory", tol=5e-3, max_passes=5000)
    assert result.converged
    assert result.lower_bound - 1e-8 <= worst_value(problem).value <= result.upper_bound + 1e-8


def test_one_group_needs_no_weights():
    problem = small_problem(sizes=(12,))
    geometry = problem.geometry()
    constants = problem.constants(2, geometry.radius)
    assert saddle_constant(problem, geometry, "tight") == pytest.approx(4.0 * constants.mean_square_smoothness)
    result = gd.solve(problem, "aleg-theory", tol=1e-3, max_passes=3000)
    assert result.converged
    assert result.q.tolist() == [1.0]
    assert result.lower_bound - 1e-9 <= worst_value(problem).value <= result.upper_bound + 1e-9


def test_constants_of_the_papers_own_set_up():
    X, y, groups = gd.datasets.make_gdro(25, 400, 1024, seed=0)
    problem = gd.Problem(
        gd.GroupedData.from_arrays(X, y, groups), gd.losses.Logistic(), gd.domains.L2Domain(radius=1.0)
    )
    geometry = Euclidean(1.0, 0.0, 1024)
    paper, tight = (saddle_constant(problem, geometry, form) for form in ("paper", "tight"))
    G = problem.constants(2, 1.0).lipschitz
    assert pytest.approx(34.9, abs=0.3) == G
    assert paper == pytest.approx(np.sqrt(2) * np.sqrt((G**2 / 4) ** 2 + G**2 * np.log(25)))
    assert paper == pytest.approx(439, rel=0.02)
    assert tight < paper


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"epoch_length": [3, 4]}, "epoch_length may not grow"),
        ({"epoch_length": lambda s: 3 + s}, "epoch_length may not grow"),
        ({"epoch_length": 3, "alpha": [0.3, 0.2]}, "it may not decrease"),
        ({"epoch_length": 3, "alpha": [0.2, 0.3]}, "the sum may not grow"),
        ({"epoch_length": 3, "alpha": [[0.3, 0.2, 0.1]]}, "alpha decreases within epoch 0"),
        ({"epoch_length": 3, "step": 1e3}, "step must lie in"),
        ({"epoch_length": 3, "step": 1e-9}, "step must lie in"),
        ({"epoch_length": 0}, "epoch_length must be a whole number"),
        ({"epoch_length": 2.5}, "epoch_length must be a whole number"),
        ({"epoch_length": 3, "alpha": 1.5}, "alpha must be at most 1"),
        ({"epoch_length": 3, "alpha": -0.1}, "alpha must be positive"),
        ({"epoch_length": 3, "step": np.nan}, "step must be positive"),
        ({"epoch_length": 3, "step": [[0.1, 0.1]]}, "one number or 3 numbers"),
        ({"constant": "loose"}, "constant must be"),
    ],
)
def test_schedules_outside_the_proof_are_refused_with_the_reason(options, reason):
    with pytest.raises(ValueError, match=reason):
        gd.solve(small_problem(), gd.solvers.ALEGTheory(**options), max_passes=10, tol=0.0)


def test_schedules_inside_the_proof_are_taken():
    problem = small_problem()
    L_z = saddle_constant(problem, problem.geometry(), "tight")
    top = 1 / (L_z * np.sqrt(5 * 8))
    solver = gd.solvers.ALEGTheory([8, 4, 2], step=lambda s: top, constant="tight")
    result = gd.solve(problem, solver, max_passes=30, tol=0.0)
    assert result.epochs >= 5
    varied = gd.solvers.ALEGTheory(4, alpha=[[0.1, 0.2, 0.3, 0.4], [0.4] + [0.2] * 3], guarantee=False)
    assert np.isfinite(gd.solve(problem, varied, max_passes=30, tol=0.0).gap)


def test_a_free_intercept_is_refused_by_the_theorem_and_named():
    problem = small_problem()
    free = gd.Problem(problem.data, gd.losses.Logistic(), problem.domain, fit_intercept=True)
    with pytest.raises(ValueError, match="'aleg-theory' requires a bounded domain: append a column of ones"):
        gd.solve(free, "aleg-theory")
    assert np.isfinite(gd.solve(free, gd.solvers.ALEGTheory(guarantee=False), max_passes=20).gap)


def theorem_problem():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 4))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    data = gd.GroupedData.from_arrays(X, np.sign(rng.normal(size=60)), np.repeat(np.arange(4), 15))
    return gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=2.0))


@pytest.mark.parametrize("constant", [pytest.param(name, marks=pytest.mark.long) for name in ("tight", "paper")])
def test_the_mean_gap_of_the_average_stays_below_the_theorems_bound_and_falls_with_epochs(constant):
    problem, K = theorem_problem(), 15
    oracle = Oracle(problem)
    L_z = saddle_constant(problem, problem.geometry(), constant)
    epochs = (16, 32, 64, 128, 256)
    gaps = {S: [] for S in epochs}
    for seed in range(20):
        solver = gd.solvers.ALEGTheory(constant=constant)
        state = solver.init(oracle, problem.centre(), problem.central_weights(), seed)
        for S in range(1, epochs[-1] + 1):
            solver.epoch(oracle, state)
            state.epoch = S
            if S in gaps:
                certificate = gd.certificate.Certificate(oracle)
                certificate.observe(oracle.evaluate(*solver.average(state)))
                gaps[S].append(certificate.gap)
    means = np.array([np.mean(gaps[S]) for S in epochs])
    assert (means <= 3 * np.sqrt(5) * L_z / (np.array(epochs) * np.sqrt(K))).all()
    slope = np.polyfit(np.log(epochs[2:]), np.log(means[2:]), 1)[0]
    assert slope <= -0.9, means
    print(f"L_z {L_z:.2f}", *(f"S={S}: {gap:.4f}" for S, gap in zip(epochs, means, strict=True)), f"slope {slope:.2f}")
