import numpy as np
import pytest
import scipy.sparse as sp
from benchmarks.paper.methods import ALSVRE, ERMEG, MPVR, SMD, TSA
from benchmarks.paper.methods.al_svre import euclidean_constant
from benchmarks.paper.methods.mpvr import sampling_constant
from benchmarks.paper.methods.smd import descent_constant
from benchmarks.paper.methods.svre_kernel import project_simplex
from hypothesis import given, settings
from hypothesis import strategies as st

import groupdro as gd
from groupdro.data import Draw
from groupdro.geometry import Euclidean
from groupdro.oracle import Counters, Oracle
from groupdro.problem import GroupMinima
from groupdro.run.solver import SOLVERS
from tests.distributed.thread_comm import run_workers
from tests.pairs import every_pair
from tests.reference.convex import group_minima, worst_value
from tests.reference.naive_mpvr import naive_mpvr
from tests.solvers.test_aleg_theory import signed_groups, small_problem

LOSSES = {
    "logistic": gd.losses.Logistic(),
    "squared": gd.losses.Squared(),
    "huber": gd.losses.Huber(0.5),
    "squared_hinge": gd.losses.SquaredHinge(),
    "softmax": gd.losses.Softmax(3),
}
DOMAINS = {
    "ball": gd.domains.L2Domain(radius=2.0),
    "penalty": gd.domains.L2Domain(penalty=0.1),
    "both": gd.domains.L2Domain(radius=1.0, penalty=0.05),
}


def make_problem(loss="logistic", domain=DOMAINS["ball"], sizes=(30, 12, 18), *, sparse=False, weights=False, seed=0):
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.normal(size=(n, 4)) / 2
    score = (X * rng.normal(size=(len(sizes), 4))[groups]).sum(axis=1) + 0.3 * rng.normal(size=n)
    y = {"softmax": np.digitize(score, [-0.3, 0.3]), "squared": score, "huber": score}.get(loss, np.sign(score))
    X = sp.csr_array(X) if sparse else X
    data = gd.GroupedData.from_arrays(X, y, groups, rng.uniform(0.5, 2.0, n) if weights else None)
    return gd.Problem(data, LOSSES[loss], domain)


RISK = {
    "smd": lambda: SMD(3.0),
    "mpvr": lambda: MPVR(10.0),
    "mpvr-uniform": lambda: MPVR(10.0, sampling="uniform"),
    "al-svre": lambda: ALSVRE(10.0),
    "al-svre-kl": lambda: ALSVRE(10.0, geometry="kl"),
}
REGRET = {
    "tsa": lambda: TSA(3.0),
    "ermeg": lambda: ERMEG(),
}


# ---------------------------------------------------------------------- against the independent solver


def check_the_risk(solver, loss, domain):
    problem = make_problem(loss, DOMAINS[domain])
    optimum = worst_value(problem).value
    start = problem.objective(problem.centre(), Oracle(problem).risks(problem.centre()))
    result = gd.solve(problem, RISK[solver](), tol=1e-3, max_passes=150)
    assert result.lower_bound - 1e-7 <= optimum <= result.upper_bound + 1e-7
    share = 0.5 if solver == "smd" else 0.02
    assert result.converged or result.upper_bound - optimum <= share * (start - optimum)
    assert result.converged == (result.gap <= 1e-3 * abs(result.upper_bound))


def check_the_regret(solver, loss, domain):
    problem = make_problem(loss, DOMAINS[domain])
    oracle = Oracle(problem)
    minima, accurate = group_minima(problem)
    assert accurate
    optimum = worst_value(problem, minima).value
    result = gd.solve(problem, REGRET[solver](), tol=1e-3, max_passes=200)
    assert result.lower_bound - 1e-7 <= optimum <= result.upper_bound + 1e-7
    true = (oracle.risks(result.w) - minima).max() + problem.domain.penalty_at(result.w)
    start = (oracle.risks(problem.centre()) - minima).max()
    assert true <= result.upper_bound + 1e-7
    assert true - optimum <= (0.05 if solver == "ermeg" else 0.3) * (start - optimum)


@pytest.mark.parametrize(
    ("solver", "loss", "domain"),
    [
        ("smd", "softmax", "ball"),
        ("mpvr", "squared", "penalty"),
        ("mpvr-uniform", "huber", "both"),
        ("al-svre", "logistic", "both"),
        ("al-svre-kl", "squared_hinge", "penalty"),
        ("tsa", "logistic", "ball"),
        ("tsa", "squared", "penalty"),
        ("ermeg", "softmax", "both"),
    ],
)
def test_it_approaches_the_optimum_and_its_bounds_enclose_it(solver, loss, domain):
    (check_the_risk if solver in RISK else check_the_regret)(solver, loss, domain)


@pytest.mark.long
@every_pair(solver=[*RISK], loss=[*LOSSES], domain=[*DOMAINS])
def test_every_method_approaches_the_optimum_of_every_loss_and_domain(solver, loss, domain):
    check_the_risk(solver, loss, domain)


@pytest.mark.long
@every_pair(solver=[*REGRET], loss=[*LOSSES], domain=[*DOMAINS])
def test_every_method_approaches_the_least_regret_of_every_loss_and_domain(solver, loss, domain):
    check_the_regret(solver, loss, domain)


@pytest.mark.long
@pytest.mark.parametrize("solver", [*RISK, *REGRET])
@pytest.mark.parametrize("kind", [{"sparse": True}, {"weights": True}], ids=["sparse", "weights"])
def test_sparse_rows_and_weights(solver, kind):
    make = {**RISK, **REGRET}[solver]
    problem = make_problem(**kind)
    minima = group_minima(problem)[0] if solver in REGRET else None
    optimum = worst_value(problem, minima).value
    result = gd.solve(problem, make(), tol=1e-3, max_passes=60)
    assert result.lower_bound - 1e-7 <= optimum <= result.upper_bound + 1e-7


def test_the_same_seed_gives_the_same_run_and_another_another():
    for make in {**RISK, **REGRET}.values():
        runs = [gd.solve(make_problem(), make(), tol=0.0, max_passes=20, seed=seed) for seed in (0, 0, 1)]
        np.testing.assert_array_equal(runs[0].w, runs[1].w)
        if make is not REGRET["ermeg"]:  # which draws nothing
            assert (runs[0].w != runs[2].w).any()


# ---------------------------------------------------------------------- counts


def test_what_each_counts():
    N, m = 60, 3
    problem = make_problem()
    result = gd.solve(problem, SMD(), tol=0.0, max_passes=2)
    assert result.counters.grad_evals == result.counters.grad_evals_paper == 2 * (N // m) * m
    problem = make_problem()
    result = gd.solve(problem, MPVR(epoch_length=25), tol=0.0, max_passes=3)
    epochs = result.epochs
    assert result.counters.grad_evals == N + epochs * (N + 25)
    assert result.counters.grad_evals_paper == N + epochs * (N + 2 * 25)
    problem = make_problem()
    result = gd.solve(problem, ALSVRE(inner_passes=2.0), tol=0.0, max_passes=10)
    drawn = result.counters.grad_evals_paper - result.counters.grad_evals
    assert drawn == result.epochs * N
    assert (result.counters.grad_evals - drawn) % N == 0
    problem = make_problem()
    result = gd.solve(problem, TSA(stage_one_passes=5.0), tol=0.0, max_passes=8)
    assert result.counters.grad_evals == 5 * N + N + result.epochs * N


def test_evaluations_for_the_trace_are_neither_counted_nor_timed(monkeypatch):
    problem = make_problem()
    seen = []
    original = Oracle.evaluate

    def evaluate(self, w, q):
        seen.append(self.counters.counting)
        return original(self, w, q)

    monkeypatch.setattr(Oracle, "evaluate", evaluate)
    result = gd.solve(problem, SMD(), tol=0.0, max_passes=3)
    assert seen == [False] * (result.epochs + 1)
    assert result.passes == pytest.approx(3.0)


# ---------------------------------------------------------------------- the operators


@pytest.mark.parametrize("sampling", ["importance", "uniform"])
def test_one_sample_is_unbiased(sampling):
    problem = make_problem(sizes=(3, 5, 2))
    oracle = Oracle(problem)
    rng = np.random.default_rng(1)
    at = oracle.evaluate(0.3 * rng.normal(size=4), np.array([0.2, 0.5, 0.3]))
    w, q = 0.3 * rng.normal(size=4), np.array([0.6, 0.1, 0.3])
    there = oracle.evaluate(w, q)
    losses, gradient = np.zeros(3), np.zeros(4)
    sizes = problem.data.group_sizes
    for member in range(10):
        i = int(np.searchsorted(np.cumsum(sizes), member, side="right"))
        chance = 1 / (3 * sizes[i]) if sampling == "importance" else 1 / 10
        weight = 3.0 if sampling == "importance" else 10 / sizes[i]
        draw = Draw(np.array([member]), np.array([i]), np.array([weight]))
        a, b = oracle.sampled_difference(draw, at, w, q)
        losses += chance * a
        gradient += chance * b
    np.testing.assert_allclose(losses, there.group_risks - at.group_risks, atol=1e-14)
    np.testing.assert_allclose(gradient, there.gradient - at.gradient, atol=1e-14)


@pytest.mark.parametrize("sampling", ["importance", "uniform"])
def test_draws_have_the_weights_of_their_sampling(sampling):
    problem = make_problem(sizes=(30, 10, 20))
    plan, members = MPVR(sampling=sampling).draw(problem, 60_000, np.random.default_rng(0))
    groups = plan.groups[:, 0]
    assert (np.searchsorted(np.cumsum([30, 10, 20]), members[:, 0], side="right") == groups).all()
    share = np.bincount(groups) / 60_000
    np.testing.assert_allclose(share, [1 / 3] * 3 if sampling == "importance" else [1 / 2, 1 / 6, 1 / 3], atol=0.01)
    np.testing.assert_allclose(
        plan.weights[:, 0], 3.0 if sampling == "importance" else 60 / np.array([30, 10, 20])[groups]
    )


def test_a_sample_of_every_group_is_unbiased_for_risks_and_gradient():
    problem = make_problem(sizes=(2, 3, 2))
    oracle = Oracle(problem)
    rng = np.random.default_rng(1)
    w, q = rng.normal(size=4), np.array([0.6, 0.1, 0.3])
    there = oracle.evaluate(w, q)
    risks, gradient, n = np.zeros(3), np.zeros(4), 0
    for a in range(2):
        for b in range(2, 5):
            for c in range(5, 7):
                draw = Draw(np.array([a, b, c]), np.arange(3), np.ones(3))
                one, two = oracle.sampled(draw, w, q)
                risks, gradient, n = risks + one, gradient + two, n + 1
    np.testing.assert_allclose(risks / n, there.group_risks, atol=1e-14)
    np.testing.assert_allclose(gradient / n, there.gradient, atol=1e-14)


@every_pair(geometry=["euclidean", "kl"], loss=["logistic", "squared"], domain=DOMAINS)
def test_fused_steps_of_al_svre_equal_the_readable_ones(loss, domain, geometry, monkeypatch):
    runs = []
    for readable in (False, True):
        problem = make_problem(loss, domain)
        if readable:
            monkeypatch.setattr(type(problem.data), "flat", lambda *_, **__: None)
        runs.append(gd.solve(problem, ALSVRE(5.0, geometry=geometry), tol=0.0, max_passes=8, seed=3))
    np.testing.assert_allclose(runs[0].w, runs[1].w, atol=1e-10)
    np.testing.assert_allclose(runs[0].q, runs[1].q, atol=1e-10)


@pytest.mark.parametrize("geometry", ["euclidean", "kl"])
@pytest.mark.parametrize("loss", ["logistic", pytest.param("softmax", marks=pytest.mark.long)])  # which compiles blocks
def test_shorter_calls_of_al_svre_change_no_bit(loss, geometry, monkeypatch):
    runs = []
    for seconds in (1e9, 1e-6):  # all drawn steps in one call, and one step a call
        monkeypatch.setattr("benchmarks.paper.methods.al_svre._SECONDS_PER_CALL", seconds)
        runs.append(gd.solve(make_problem(loss), ALSVRE(5.0, geometry=geometry), tol=0.0, max_passes=8, seed=3))
    np.testing.assert_array_equal(runs[0].w, runs[1].w)
    assert runs[0].counters == runs[1].counters


@pytest.mark.parametrize("sampling", ["importance", "uniform"])
def test_fused_steps_of_mpvr_equal_the_readable_ones(sampling, monkeypatch):
    runs = []
    for readable in (False, True):
        problem = make_problem()
        if readable:
            monkeypatch.setattr(type(problem.data), "flat", lambda *_, **__: None)
        runs.append(gd.solve(problem, MPVR(5.0, sampling=sampling), tol=0.0, max_passes=8, seed=3))
    np.testing.assert_allclose(runs[0].w, runs[1].w, atol=1e-10)


def test_algorithm_3_is_a_plain_transcription_of_it():
    problem, radius, epochs, K = small_problem(sizes=(3, 5, 2), radius=2.0), 2.0, 4, 6
    solver = MPVR(epoch_length=K, half_steps=True)

    def stop(progress):
        return progress.latest.epoch >= epochs

    draws = []
    for s in range(epochs):
        plan, members = solver.draw(problem, K, np.random.default_rng([5, s]))
        places = members[:, 0] - problem.data.offsets[plan.groups[:, 0]]
        draws.append([*zip(plan.groups[:, 0], places, strict=True)])
    (ws, qs), (w, q) = naive_mpvr(signed_groups(problem), radius, draws)
    states = []
    found = gd.solve(problem, solver, tol=0.0, seed=5, callbacks=[lambda p: states.append(p.state), stop])
    np.testing.assert_allclose(found.average.w, w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.average.q, q, rtol=0, atol=1e-12)
    at = states[-1].evaluation
    np.testing.assert_allclose(np.append(at.w, at.q), np.append(ws, qs), rtol=0, atol=1e-12)
    compiled = gd.solve(problem, MPVR(epoch_length=K), tol=0.0, seed=5, callbacks=[stop])
    assert compiled.trace[-1].gap == pytest.approx(found.trace[-1].gap, rel=1e-9)
    assert np.abs(compiled.average.w - w).max() > 1e-9  # that of the iterates


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
@settings(max_examples=200)
def test_the_projection_on_the_simplex_is_the_nearest_point(values):
    x = np.array(values)
    out = np.empty_like(x)
    project_simplex(x, out)
    assert out.min() >= 0
    assert out.sum() == pytest.approx(1.0, abs=1e-12)
    # Nearest where the residual has no positive product with the way to any vertex.
    assert ((x - out) - (x - out) @ out <= 1e-10).all()


# ---------------------------------------------------------------------- constants and names


def test_the_constants_are_those_of_the_formulas():
    problem = make_problem(sizes=(30, 12, 18))
    geometry = problem.geometry()
    assert isinstance(geometry, Euclidean)
    norms = np.linalg.norm(problem.data.rows.X, axis=1)
    R, G, L, m, log_m = 2.0, norms.max(), norms.max() ** 2 / 4, 3, np.log(3)
    assert descent_constant(problem, geometry) == pytest.approx(np.sqrt(R**2 * G**2 + 2 * (R * G) ** 2 * log_m))
    two_d, d2 = np.sqrt(2) * R, R**2 / 2
    importance = two_d * max(np.sqrt(2 * d2 * L**2 * m + G**2 * m**2 * log_m), G * np.sqrt(2 * m * log_m))
    assert sampling_constant(problem, geometry, "importance") == pytest.approx(importance)
    least, harmonic = 20 / 12, 20 * np.mean([1 / 30, 1 / 12, 1 / 18])
    uniform = two_d * max(
        np.sqrt(2 * d2 * L**2 * m * least + G**2 * m**2 * log_m * harmonic), G * np.sqrt(2 * m * log_m * least)
    )
    assert sampling_constant(problem, geometry, "uniform") == pytest.approx(uniform)
    expected = max(np.sqrt(2 * m * L**2 + m**2 * G**2), G * np.sqrt(2 * m))
    assert euclidean_constant(problem, R) == pytest.approx(expected)


def test_reconstructed_methods_say_so():
    assert "reconstructed" in TSA().describe(None, 1e-4)
    assert "reconstructed" in ALSVRE().describe(None, 1e-4)
    assert {"smd", "mpvr", "al-svre", "tsa", "ermeg"} <= set(SOLVERS)


@pytest.mark.parametrize("make", [SMD, MPVR, ALSVRE, TSA, ERMEG])
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_a_multiplier_must_be_positive(make, bad):
    with pytest.raises(ValueError, match="multiplier"):
        make(bad)


def test_unknown_forms_are_refused_by_name():
    for make, name in ((MPVR, "sampling"), (ALSVRE, "geometry")):
        with pytest.raises(ValueError, match=name):
            make(**{name: "other"})


@pytest.mark.parametrize("solver", ["smd", "mpvr", "al-svre", "tsa"])
def test_a_free_intercept_is_refused(solver):
    data = make_problem().data
    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.1), fit_intercept=True)
    with pytest.raises(ValueError, match="requires a bounded domain"):
        gd.solve(problem, solver)


@pytest.mark.parametrize("n_groups", [1, 5])
@pytest.mark.parametrize("solver", ["smd", "mpvr", "tsa"])
def test_a_simplex_of_one_model_has_one_point(solver, n_groups):
    X, y = np.linspace(-1.0, 1.0, 15)[:, None], np.linspace(2.0, -1.0, 15) ** 3
    data = gd.GroupedData.from_arrays(X, y, np.arange(15) % n_groups)
    problem = gd.Problem(data, gd.losses.Squared(), gd.domains.SimplexDomain())
    result = gd.solve(problem, {**RISK, **REGRET}[solver](), tol=1e-6, max_passes=20)
    np.testing.assert_allclose(result.w, [1.0], rtol=1e-12)
    if solver.startswith("tsa"):  # a group's own minimum is what the only point gives
        assert result.converged
        np.testing.assert_allclose(result.group_minima.upper, Oracle(problem).risks(np.ones(1)), rtol=1e-12)
        assert result.upper_bound == pytest.approx(0.0, abs=1e-12)


def test_the_groups_own_models_of_tsa_lie_in_the_simplex():
    problem = make_problem("squared", gd.domains.SimplexDomain())
    minima, accurate = group_minima(problem)
    result = gd.solve(problem, TSA(3.0), tol=1e-3, max_passes=100)
    assert accurate
    assert (result.group_minima.lower <= minima + 1e-7).all()
    assert (result.group_minima.upper >= minima - 1e-7).all()
    optimum = worst_value(problem, minima).value
    assert result.lower_bound - 1e-7 <= optimum <= result.upper_bound + 1e-7


@pytest.mark.long
def test_a_single_row_of_several_outputs_is_solved_by_snapshots_alone():
    data = gd.GroupedData.from_arrays(np.ones((1, 2)), np.array([1]))
    problem = gd.Problem(data, gd.losses.Softmax(3), gd.domains.L2Domain(radius=0.5))
    for solver in (ALSVRE(100.0), MPVR(100.0)):
        result = gd.solve(problem, solver, tol=1e-2, max_passes=300)
        assert result.converged, solver


def test_an_epoch_of_one_step_on_several_outputs_moves():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    data = gd.GroupedData.from_arrays(X, y, np.repeat([0, 1], 30))
    problem = gd.Problem(data, gd.losses.Softmax(3), gd.domains.L2Domain(radius=5.0, penalty=1e-2))
    result = gd.solve(problem, MPVR(epoch_length=1), tol=1e-3, max_passes=200)
    first = result.trace[0].upper
    assert result.status in (gd.solvers.Status.PASS_LIMIT, gd.solvers.Status.CONVERGED)
    assert result.upper_bound < first - 1e-4


# ---------------------------------------------------------------------- under the contract of a solver


@pytest.mark.long
@pytest.mark.parametrize("name", [*RISK, *REGRET])
def test_a_run_that_was_broken_off_goes_on_from_its_best_model(name, tmp_path):
    make, options = {**RISK, **REGRET}[name], {"tol": 1e-9, "max_passes": 60.0, "seed": 5}
    whole = gd.solve(make_problem(), make(), **options)
    for epochs in (1, 3):
        stop = [lambda progress, epochs=epochs: progress.latest.epoch >= epochs]
        gd.solve(make_problem(), make(), **options, callbacks=stop, checkpoint_dir=tmp_path)
    resumed = gd.solve(make_problem(), make(), **options, checkpoint_dir=tmp_path)
    assert resumed.lower_bound <= whole.upper_bound
    assert whole.lower_bound <= resumed.upper_bound


@pytest.mark.long
@pytest.mark.parametrize("name", [*RISK, "ermeg"])
def test_workers_together_end_with_the_same_bits(name):
    data, make = make_problem().data, {**RISK, **REGRET}[name]

    def solved(part):
        problem = gd.Problem(part, gd.losses.Logistic(), gd.domains.L2Domain(radius=2.0))
        return gd.solve(problem, make(), tol=1e-3, max_passes=60.0, seed=3)

    alone = solved(data)
    parts = run_workers(2, lambda comm: solved(gd.distributed.shard(data, comm)))
    for part in parts:
        assert part.status is alone.status
        assert part.lower_bound <= alone.upper_bound + 1e-9
        assert alone.lower_bound <= part.upper_bound + 1e-9
        for field in ("w", "q", "upper_bound", "lower_bound", "passes", "group_risks"):
            np.testing.assert_array_equal(getattr(part, field), getattr(parts[0], field))


def test_tsa_refuses_a_part_of_the_rows():
    data = make_problem().data

    def solved(comm):
        return gd.solve(
            gd.Problem(gd.distributed.shard(data, comm), gd.losses.Logistic(), gd.domains.L2Domain(radius=2.0)), TSA()
        )

    with pytest.raises(ValueError, match="'tsa' requires all rows in one process"):
        run_workers(2, solved)


@pytest.mark.parametrize(
    ("solver", "domain", "weight_set", "name"),
    [
        *(
            (make(), gd.domains.ElasticNetDomain(low=-0.3, high=0.2), gd.weight_sets.Simplex(), "Domain")
            for make in (ALSVRE, ERMEG)
        ),
        *((make(), gd.domains.L2Domain(radius=1.0), gd.weight_sets.Floor(0.5), "Floor") for make in (ALSVRE, ERMEG)),
    ],
)
def test_a_set_that_a_method_cannot_handle_is_refused_by_name(monkeypatch, solver, domain, weight_set, name):
    monkeypatch.setattr(Counters, "add", lambda *_, **__: pytest.fail("a row was read"))
    problem = gd.Problem(make_problem().data, gd.losses.Logistic(), domain, weight_set)
    with pytest.raises(ValueError, match=f"{solver.name!r} requires .*{name}"):
        gd.solve(problem, solver)


@pytest.mark.parametrize("make", [SMD, MPVR])
def test_bounds_hold_in_a_box_under_a_floor(make):
    domain, weight_set = gd.domains.ElasticNetDomain(low=-0.3, high=0.2), gd.weight_sets.Floor(0.3, (0.5, 0.3, 0.2))
    problem = gd.Problem(make_problem().data, gd.losses.Logistic(), domain, weight_set)
    result, optimum = gd.solve(problem, make(), max_passes=60), worst_value(problem).value
    assert result.lower_bound - 1e-7 <= optimum <= result.upper_bound + 1e-7
    assert result.gap < gd.solve(problem, make(), max_passes=1).gap


@pytest.mark.parametrize("solver", [SMD(3.0), MPVR(10.0), ALSVRE(10.0)], ids=lambda solver: solver.name)
def test_the_estimators_take_a_method_of_risks(solver):
    X, y, groups = gd.datasets.make_gdro(n_groups=3, n_per_group=60, n_features=4)
    given = {"radius": 1.0, "alpha": 0.0, "fit_intercept": False, "random_state": 0}
    model = gd.GroupDROClassifier(solver=solver, tol=0.1, max_passes=60, **given).fit(X, y, groups=groups)
    other = gd.GroupDROClassifier(tol=1e-6, **given).fit(X, y, groups=groups)
    assert model.solver_.startswith(solver.name)
    assert model.lower_bound_ <= other.upper_bound_
    assert other.lower_bound_ <= model.upper_bound_


@pytest.mark.parametrize("solver", [ERMEG(), TSA()], ids=lambda solver: solver.name)
def test_a_method_of_regrets_does_not_answer_for_risks(solver):
    X, y, groups = gd.datasets.make_mero(n_groups=3, n_per_group=60, n_features=4)
    with pytest.raises(ValueError, match="minimises excess risks and requires objective='excess_risk'"):
        gd.GroupDROClassifier(solver=solver).fit(X, y, groups=groups)


def test_given_minima_are_used_by_ermeg_and_refused_by_tsa():
    X, y, groups = gd.datasets.make_mero(n_groups=3, n_per_group=60, n_features=4)
    given = np.array([0.1, 0.2, 0.3])
    options = {"tol": 1e-2, "alpha": 0.1, "random_state": 0}
    model = gd.GroupDROClassifier("excess_risk", solver=ERMEG(), **options)
    model.fit(X, y, groups=groups, group_minima=given)
    assert model.status_ == "converged"
    penalty = 0.05 * (model.coef_**2).sum()
    assert model.upper_bound_ == pytest.approx((model.group_risks_ - given).max() + penalty, rel=1e-9)
    with pytest.raises(ValueError, match=r"'tsa' requires .*group minima"):
        gd.GroupDROClassifier("excess_risk", solver=TSA(), fit_intercept=False, **options).fit(
            X, y, groups=groups, group_minima=given
        )


def test_an_interrupt_of_the_oracle_ends_the_run(monkeypatch):
    epochs, whole = 0, gd.solvers.GroupSQP.epoch

    def interrupted(self, oracle, state):
        nonlocal epochs
        epochs += 1
        if epochs == 40:
            raise KeyboardInterrupt
        whole(self, oracle, state)

    problem = make_problem()
    minima = GroupMinima.exact(group_minima(problem)[0])
    monkeypatch.setattr(gd.solvers.GroupSQP, "epoch", interrupted)
    result = gd.solve(problem.with_minima(minima), ERMEG(), tol=0.0, max_passes=1e4)
    assert result.status is gd.solvers.Status.INTERRUPTED
    assert epochs == 40
