"""The solver, loss, domain and weight set that the pages for developers write, checked against CVXPY with Clarabel."""

import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import groupdro as gd
from groupdro.distributed import shard
from groupdro.kernels import losses as kernels
from groupdro.oracle import Counters
from groupdro.run.solver import SOLVERS
from tests.distributed.processes import run, torchrun
from tests.distributed.thread_comm import run_workers
from tests.docs.pages import DOCS
from tests.pairs import every_pair
from tests.reference.convex import membership_matrix, worst_value
from tests.timing import HUNG

MODULES = ("mirror_prox", "expectile", "one_vs_rest", "l1_ball", "worst_few")


@pytest.fixture(scope="module")
def snippets():
    """The classes of the pages; registered names are removed afterwards."""
    known = dict(SOLVERS)
    sys.path.insert(0, str(DOCS / "snippets"))
    try:
        names = {}
        for module in MODULES:
            names |= vars(importlib.import_module(module))
        yield SimpleNamespace(**names)
    finally:
        sys.path.remove(str(DOCS / "snippets"))
        for module in MODULES:
            sys.modules.pop(module, None)
        SOLVERS.clear()
        SOLVERS.update(known)


def rows(seed=0, n=240, d=5, m=4):
    rng = np.random.default_rng(seed)
    X, groups = rng.normal(size=(n, d)), np.sort(rng.integers(m, size=n))
    signal = X @ rng.normal(size=d) + 0.5 * groups * X[:, 0]
    return X, signal + rng.normal(size=n), groups


def problem(loss, domain, weight_set=None, *, classes=0, sparse=False, intercept=False):
    X, y, groups = rows()
    if classes:
        y = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    X = sp.csr_array(np.where(np.abs(X) > 0.7, X, 0.0)) if sparse else X
    data = gd.GroupedData.from_arrays(X, y, groups)
    return gd.Problem(data, loss, domain, weight_set or gd.weight_sets.Simplex(), fit_intercept=intercept)


def assert_bounds(result, optimum, tol):
    """Assert that both bounds hold, and that they are as close as was asked for."""
    assert result.status is gd.solvers.Status.CONVERGED
    assert result.lower_bound <= optimum + 1e-6
    assert result.upper_bound >= optimum - 1e-6
    assert result.upper_bound - result.lower_bound <= tol * result.upper_bound


def assert_resumes(task, solver, tol, folder):
    """Assert that a run that was cut short goes on from its model, and ends with a certificate."""
    first = gd.solve(task(), solver, tol=tol, max_passes=8, checkpoint_dir=folder)
    assert first.status is gd.solvers.Status.PASS_LIMIT
    resumed, whole = gd.solve(task(), solver, tol=tol, checkpoint_dir=folder), gd.solve(task(), solver, tol=tol)
    assert resumed.converged
    assert resumed.lower_bound <= whole.upper_bound
    assert whole.lower_bound <= resumed.upper_bound


def assert_workers_agree(whole, solver, tol, atol):
    """Assert that two workers, each with a part of the rows, end with the same bits, near those of one."""

    def work(comm):
        part = shard(whole.data, comm)
        assert part.n_rows < whole.n_rows
        own = gd.Problem(part, whole.loss, whole.domain, whole.weight_set, fit_intercept=whole.fit_intercept)
        return gd.solve(own, solver, tol=tol)

    alone, (one, other) = gd.solve(whole, solver, tol=tol), run_workers(2, work)
    assert alone.converged
    assert one.converged
    assert one.w.tobytes() == other.w.tobytes()
    assert max(one.lower_bound, alone.lower_bound) <= min(one.upper_bound, alone.upper_bound) + 1e-12
    np.testing.assert_allclose(one.w, alone.w, atol=atol)


# ---------------------------------------------------------------------- the solver

PROBLEMS = {
    "ball": lambda: problem(gd.losses.Logistic(), gd.domains.L2Domain(radius=0.8), classes=2),
    "penalty": lambda: problem(gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.01), classes=2, intercept=True),
    "simplex": lambda: problem(gd.losses.Squared(), gd.domains.SimplexDomain()),
    "box": lambda: problem(gd.losses.Squared(), gd.domains.ElasticNetDomain(low=-0.5, high=0.3)),
    "floor": lambda: problem(
        gd.losses.Logistic(), gd.domains.L2Domain(penalty=0.02), gd.weight_sets.Floor(0.4), classes=2
    ),
    "classes": lambda: problem(gd.losses.Softmax(), gd.domains.L2Domain(penalty=0.02), classes=3, intercept=True),
    "sparse": lambda: problem(gd.losses.Huber(), gd.domains.L2Domain(penalty=0.02, radius=5.0), sparse=True),
}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_solver_certifies_the_optimum(snippets, kind):
    task = PROBLEMS[kind]()
    best = worst_value(task)
    assert best.accurate
    assert_bounds(gd.solve(task, "mirror_prox", tol=1e-5, max_passes=5000), best.value, 1e-5)


def test_the_solver_stops_at_the_limit_of_rounding(snippets):
    result = gd.solve(PROBLEMS["ball"](), snippets.MirrorProx(), tol=0.0, max_passes=4000)
    assert result.status in (gd.solvers.Status.STALLED, gd.solvers.Status.PASS_LIMIT)
    assert result.gap < 1e-9


def test_the_solver_is_a_value(snippets):
    one = snippets.MirrorProx(balance=3.0)
    assert one == snippets.MirrorProx(balance=3.0) != snippets.MirrorProx()
    assert hash(one) == hash(snippets.MirrorProx(balance=3.0))
    assert repr(one) == "MirrorProx(balance=3.0)"


def test_the_estimators_take_the_solver(snippets):
    X, y, groups = rows()
    model = gd.GroupDRORegressor(solver="mirror_prox", alpha=0.02, tol=1e-4).fit(X, y, groups=groups)
    other = gd.GroupDRORegressor(solver="sqp", alpha=0.02, tol=1e-6).fit(X, y, groups=groups)
    assert (model.solver_, model.status_) == ("mirror_prox", "converged")
    assert model.lower_bound_ <= other.upper_bound_ + 1e-9
    assert model.upper_bound_ == pytest.approx(other.upper_bound_, rel=2e-4)


def test_a_run_of_the_solver_resumes(snippets, tmp_path):
    assert_resumes(PROBLEMS["penalty"], snippets.MirrorProx(), 1e-5, tmp_path)


def test_the_solver_runs_over_workers(snippets):
    assert_workers_agree(PROBLEMS["penalty"](), "mirror_prox", 1e-4, atol=1e-8)


def test_a_registered_solver_is_tuned_collected_tabulated_and_drawn(monkeypatch, tmp_path, capsys):
    pytest.importorskip("pandas")
    small = pytest.importorskip("tests.benchmarks.test_paper", reason="needs pandas, pyarrow and matplotlib")
    small.use_small_problem(monkeypatch, tmp_path)
    from benchmarks.paper import again, analysis, collect, contenders, figures, tables, tuning

    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in (again, figures):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    own, stock, setup = "mirror prox", dict(contenders.METHODS), "gdro_synthetic"
    try:
        contenders.register(str(DOCS / "snippets" / "compare_mirror_prox.py"))
        tuning.tune(setup, ["auto", own])
        tuning.repeat(setup, ["auto", own], 2)
        collect.collect()
        analysis.panel.cache_clear()
        panel = analysis.panel(setup)
        assert {(own, "best"), ("auto", "best")} == set(panel.curves)
        assert own in tables.value_table(panel)
        assert "balance" in tables.settings_table(panel)
        assert own in tables.default_table([panel])[0]
        assert (own, "best") in figures.shown_curves(panel)
        figures.draw_setup(setup)
        again.draw_stored()
        for file in ("paper_gdro_synthetic.svg", "paper_figure1.svg", "paper_figure1_with_ours.svg"):
            assert own in (tmp_path / "results" / file).read_text()
    finally:
        for name in contenders.METHODS.keys() - stock.keys():
            del contenders.METHODS[name]
        analysis.panel.cache_clear()
    capsys.readouterr()
    assert set(analysis.Panel(setup).curves) == {("auto", "best")}
    assert own in capsys.readouterr().err
    collect.collect()  # keeps the curves of a method that is known no more
    assert own in set(analysis.pd.read_parquet(tmp_path / "results" / f"paper_{setup}.parquet")["method"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "not a Python file"),
        ("", "adds no method"),
        ("from benchmarks.paper.contenders import METHODS\nMETHODS['MPVR'] = METHODS['SMD']", "replaces MPVR"),
    ],
)
def test_a_file_that_registers_nothing_of_its_own_is_refused(monkeypatch, tmp_path, text, words):
    contenders = pytest.importorskip("benchmarks.paper.contenders", reason="needs pandas")
    monkeypatch.setattr(sys, "path", [*sys.path])
    file, mpvr = tmp_path / "mine.py", contenders.METHODS["MPVR"]
    if text is not None:
        file.write_text(text)
    try:
        with pytest.raises(SystemExit, match=words):
            contenders.register(str(file))
    finally:
        contenders.METHODS["MPVR"] = mpvr


# ---------------------------------------------------------------------- the loss


@every_pair(intercept=[False, True], solver=["auto", "aleg", "sqp"], tau=[0.3, 0.9])
def test_the_loss_is_certified_by_every_solver(snippets, tau, solver, intercept):
    task = problem(snippets.Expectile(tau), gd.domains.L2Domain(penalty=0.05, radius=2.0), intercept=intercept)
    X, y, d = task.data.rows.X, task.data.y, task.data.n_features
    w, worst = cp.Variable(task.shape), cp.Variable()
    residuals = X @ w[:d] + (w[d] if intercept else 0) - y
    prices = (tau * cp.square(cp.neg(residuals)) + (1 - tau) * cp.square(cp.pos(residuals))) / 2
    program = cp.Problem(
        cp.Minimize(worst + 0.025 * cp.sum_squares(w[:d])),
        [membership_matrix(task) @ prices <= worst, cp.norm(w[:d]) <= 2.0],
    )
    optimum = program.solve(solver=cp.CLARABEL)
    tol = 1e-3 if solver == "aleg" else 1e-5  # the page says that aleg is slow here
    assert_bounds(gd.solve(task, solver, tol=tol), optimum, tol)


@pytest.mark.parametrize("intercept", [False, True])
def test_a_run_with_the_loss_resumes(snippets, intercept, tmp_path):
    def task():
        return problem(snippets.Expectile(0.6), gd.domains.L2Domain(penalty=0.05), intercept=intercept)

    assert_resumes(task, "aleg", 1e-4, tmp_path)


@pytest.mark.parametrize("solver", ["aleg", "sqp"])
def test_the_loss_runs_over_workers(snippets, solver):
    task = problem(snippets.Expectile(0.6), gd.domains.L2Domain(penalty=0.05), intercept=True)
    assert_workers_agree(task, solver, 1e-4, atol=3e-2)  # as close as the tolerance makes w


def one_vs_rest_problem(snippets, **options):
    return problem(snippets.OneVsRest(), gd.domains.L2Domain(penalty=0.02), classes=3, **options)


@every_pair(intercept=[False, True], solver=["auto", "aleg", "sqp", "mirror_prox"], sparse=[False, True])
def test_the_loss_of_several_outputs_is_certified(snippets, sparse, solver, intercept):
    task = one_vs_rest_problem(snippets, intercept=intercept, sparse=sparse)
    X, d = np.asarray(task.data.rows.dense(), np.float64), task.data.n_features
    w = cp.Variable(task.shape)
    outputs = X @ w[:d] + (np.ones((len(X), 1)) @ w[d:] if intercept else 0)
    losses = cp.sum(cp.logistic(cp.multiply(1 - 2 * np.eye(3)[task.data.y], outputs)), axis=1)
    program = cp.Problem(cp.Minimize(cp.max(membership_matrix(task) @ losses) + 0.01 * cp.sum_squares(w[:d])))
    assert_bounds(gd.solve(task, solver, tol=1e-4), program.solve(solver=cp.CLARABEL), 1e-4)


def test_the_classifier_takes_the_loss_of_several_outputs(snippets):
    X, y, groups = rows()
    labels = np.array(["low", "mid", "top"])[np.digitize(y, [-1.0, 1.0])]
    model = gd.GroupDROClassifier(loss=snippets.OneVsRest(), alpha=0.02).fit(X, labels, groups=groups)
    assert model.status_ == "converged"
    outputs = model.decision_function(X)
    assert outputs.shape == (len(X), 3)
    assert (model.predict(X) == model.classes_[outputs.argmax(axis=1)]).all()
    signs = np.where(labels[:, None] == model.classes_, 1, -1)
    losses = np.logaddexp(0, -signs * outputs).sum(axis=1)
    worst = max(losses[groups == group].mean() for group in np.unique(groups))
    assert model.upper_bound_ == pytest.approx(worst + 0.01 * (model.coef_**2).sum())


def test_a_run_with_the_loss_of_several_outputs_resumes(snippets, tmp_path):
    assert_resumes(lambda: one_vs_rest_problem(snippets, intercept=True), "aleg", 1e-5, tmp_path)


@pytest.mark.parametrize("solver", ["aleg", "sqp"])
def test_the_loss_of_several_outputs_runs_over_workers(snippets, solver):
    assert_workers_agree(one_vs_rest_problem(snippets, intercept=True), solver, 1e-4, atol=3e-2)


def test_the_last_branch_of_the_kernels_is_the_quantile():
    parameters = 0.7, 0.1
    for function in (kernels.value, kernels.slope, kernels.curvature, kernels.conjugate):
        assert function(kernels.N_LOSSES, parameters, -0.3, 1.0) == function(kernels.QUANTILE, parameters, -0.3, 1.0)


# ---------------------------------------------------------------------- the domain


def squared_optimum(task, constraints, objective=cp.max):
    """Return the optimum for the squared loss: constraints as a function of the coefficients, an objective of risks."""
    X, d = np.asarray(task.data.rows.dense(), np.float64), task.data.n_features
    w = cp.Variable(task.shape)
    losses = cp.square(X @ w[:d] + (w[d] if task.fit_intercept else 0) - task.data.y) / 2
    program = cp.Problem(cp.Minimize(objective(membership_matrix(task) @ losses)), constraints(w[:d]))
    program.solve(solver=cp.CLARABEL)
    assert program.status == cp.OPTIMAL
    return float(program.value)


def l1_problem(snippets, **options):
    return problem(gd.losses.Squared(), snippets.L1Ball(0.9), **options)


@every_pair(sparse=[False, True], intercept=[False, True], solver=["auto", "aleg", "mirror_prox"])
def test_the_domain_is_certified(snippets, solver, intercept, sparse):
    task = l1_problem(snippets, intercept=intercept, sparse=sparse)
    optimum = squared_optimum(task, lambda coef: [cp.norm1(coef) <= 0.9])
    result = gd.solve(task, solver, tol=1e-4)
    assert_bounds(result, optimum, 1e-4)
    assert task.domain.contains(task.coef(result.w))
    assert np.abs(task.coef(result.w)).sum() > 0.89  # the ball binds, so that a wrong support would show


def test_bounds_of_another_solver_hold_on_the_domain(snippets):
    task = l1_problem(snippets)
    optimum = squared_optimum(task, lambda coef: [cp.norm1(coef) <= 0.9])
    result = gd.solve(task, "aleg-theory", max_passes=30)
    assert result.lower_bound - 1e-7 <= optimum <= result.upper_bound + 1e-7
    assert result.gap < gd.solve(task, "aleg-theory", max_passes=1).gap


def test_the_domain_takes_several_outputs(snippets):
    task = problem(gd.losses.Softmax(), snippets.L1Ball(1.0), classes=3, intercept=True)
    X, y, d = task.data.rows.X, task.data.y, task.data.n_features
    w = cp.Variable(task.shape)
    outputs = X @ w[:d] + np.ones((len(X), 1)) @ w[d:]
    losses = cp.log_sum_exp(outputs, axis=1) - cp.sum(cp.multiply(np.eye(3)[y], outputs), axis=1)
    ball = cp.sum(cp.abs(w[:d])) <= 1.0
    optimum = cp.Problem(cp.Minimize(cp.max(membership_matrix(task) @ losses)), [ball]).solve(solver=cp.CLARABEL)
    assert_bounds(gd.solve(task, tol=1e-3), optimum, 1e-3)


def test_a_step_of_the_domain_is_exact(snippets):
    domain, rng = snippets.L1Ball(0.9), np.random.default_rng(0)
    geometry = domain.geometry(5)
    for scale in (0.01, 0.3, 3.0, 30.0):
        centre, gradient = np.append(domain.feasible(rng.normal(size=5)), 0.4), scale * rng.normal(size=6)
        z = cp.Variable(6)
        program = cp.Problem(cp.Minimize(0.7 * gradient @ z + cp.sum_squares(z - centre) / 2), [cp.norm1(z[:5]) <= 0.9])
        program.solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(geometry.step(centre, 0.7, gradient), z.value, atol=1e-5)
        least = cp.Problem(cp.Minimize(gradient[:5] @ z[:5]), [cp.norm1(z[:5]) <= 0.9]).solve(solver=cp.CLARABEL)
        assert domain.support(gradient[:5]) == pytest.approx(least, abs=1e-6)


def test_a_run_on_the_domain_resumes(snippets, tmp_path):
    assert_resumes(lambda: l1_problem(snippets, intercept=True), "auto", 1e-5, tmp_path)


def test_the_domain_runs_over_workers(snippets):
    assert_workers_agree(l1_problem(snippets, intercept=True), "auto", 1e-4, atol=3e-2)


def test_a_ball_that_holds_the_solution_gives_the_model_of_the_estimator(snippets):
    X, y, groups = rows()
    model = gd.GroupDRORegressor(alpha=0.0, radius=50.0, tol=1e-6).fit(X, y, groups=groups)
    result = gd.solve(problem(gd.losses.Squared(), snippets.L1Ball(50.0), intercept=True), tol=1e-3, max_passes=5000)
    assert result.converged
    assert result.lower_bound <= model.upper_bound_ <= result.upper_bound * (1 + 1e-6)


# ---------------------------------------------------------------------- the weight set


def few_problem(snippets, count, **options):
    return problem(gd.losses.Squared(), gd.domains.L2Domain(radius=1.5), snippets.WorstFew(count), **options)


@every_pair(count=[1, 2, 2.5, 4], intercept=[False, True], solver=["auto", "aleg", "mirror_prox"])
def test_the_weight_set_is_certified(snippets, solver, intercept, count):
    task = few_problem(snippets, count, intercept=intercept)

    def average_of_worst(risks):
        # The sum of the k largest, where a fraction counts the next one in part.
        low, part = int(count), count - int(count)
        worst = cp.sum_largest(risks, low)
        return ((1 - part) * worst + part * cp.sum_largest(risks, low + 1)) / count if part else worst / count

    optimum = squared_optimum(task, lambda coef: [cp.norm(coef) <= 1.5], average_of_worst)
    result = gd.solve(task, solver, tol=1e-4)
    assert_bounds(result, optimum, 1e-4)
    assert task.weight_set.contains(result.q)


def test_bounds_of_another_solver_hold_for_the_weight_set(snippets):
    task = few_problem(snippets, 2)
    optimum = squared_optimum(task, lambda coef: [cp.norm(coef) <= 1.5], lambda risks: cp.sum_largest(risks, 2) / 2)
    result = gd.solve(task, "aleg-theory", max_passes=30)
    assert result.lower_bound - 1e-7 <= optimum <= result.upper_bound + 1e-7
    assert result.gap < gd.solve(task, "aleg-theory", max_passes=1).gap


@pytest.mark.parametrize("count", [1, 1.5, 2, 3.7, 5])
def test_a_step_of_the_weight_set_is_exact(snippets, count):
    weight_set, rng = snippets.WorstFew(count), np.random.default_rng(0)
    geometry, q = weight_set.geometry(5), cp.Variable(5)
    members = [cp.sum(q) == 1, q >= 0, q <= 1 / count]
    for scale in (0.1, 1.0, 10.0):
        gradient, centre = scale * rng.normal(size=5), geometry.point(rng.normal(size=5))
        np.testing.assert_allclose(geometry.point(geometry.mirror(centre)), centre, atol=1e-14)
        moved = geometry.point(geometry.step(geometry.mirror(centre), 0.7, gradient))
        assert weight_set.contains(centre)
        assert weight_set.contains(moved)
        cp.Problem(cp.Minimize(0.7 * gradient @ q + cp.sum(cp.kl_div(q, centre))), members).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(moved, q.value, atol=1e-4)
        most = cp.Problem(cp.Maximize(gradient @ q), members).solve(solver=cp.CLARABEL)
        assert weight_set.support(gradient) == pytest.approx(most, abs=1e-6 * scale)
        # Solvers average mirror coordinates: their point must be a member too.
        both = 0.5 * (geometry.mirror(centre) + geometry.step(geometry.mirror(centre), 0.7, gradient))
        assert weight_set.contains(geometry.point(both))


def test_a_run_with_the_weight_set_resumes(snippets, tmp_path):
    assert_resumes(lambda: few_problem(snippets, 2, intercept=True), "auto", 1e-5, tmp_path)


def test_the_weight_set_runs_over_workers(snippets):
    assert_workers_agree(few_problem(snippets, 2, intercept=True), "auto", 1e-4, atol=3e-2)


def test_the_worst_one_gives_the_objective_of_the_estimator(snippets):
    X, y, groups = rows()
    model = gd.GroupDRORegressor(alpha=0.02, tol=1e-6).fit(X, y, groups=groups)
    task = problem(gd.losses.Squared(), gd.domains.L2Domain(penalty=0.02), snippets.WorstFew(1), intercept=True)
    result = gd.solve(task, tol=1e-4)
    assert result.converged
    assert result.lower_bound <= model.upper_bound_ <= result.upper_bound * (1 + 1e-6)


# ---------------------------------------------------------------------- all of them


def run_outside(folder, workers, max_passes):
    """Return what the program of four parts from outside wrote."""
    program = [str(Path(__file__).with_name("outside.py")), str(folder), str(max_passes)]
    command = [sys.executable, *program] if workers == 1 else torchrun(workers, *program)
    code, output = run(command, HUNG)
    assert code == 0, output
    facts = json.loads((folder / "result.json").read_text())
    assert facts["workers"] == workers
    return SimpleNamespace(**facts)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_all_four_run_over_processes_and_resume_with_fewer(tmp_path):
    (tmp_path / "whole").mkdir()
    whole, first = run_outside(tmp_path / "whole", 1, 2000), run_outside(tmp_path, 2, 20)
    resumed = run_outside(tmp_path, 1, 2000)
    assert (whole.status, first.status, resumed.status) == ("CONVERGED", "PASS_LIMIT", "CONVERGED")
    assert max(whole.lower, first.lower, resumed.lower) <= min(whole.upper, first.upper, resumed.upper)


def test_the_estimators_take_a_solver_a_loss_and_a_domain_together(snippets, tmp_path):
    X, y, groups = rows()
    parts = {"solver": snippets.MirrorProx(), "loss": snippets.OneVsRest(), "domain": snippets.L1Ball(2.0)}
    labels = np.digitize(y, [-1.0, 1.0])

    def fit(**options):
        return gd.GroupDROClassifier(**parts, tol=1e-3, **options).fit(X, labels, groups=groups)

    with pytest.warns(ConvergenceWarning):
        first = fit(checkpoint_dir=tmp_path, max_passes=20)
    resumed, other = fit(checkpoint_dir=tmp_path), fit()
    assert (first.status_, resumed.status_, other.status_) == ("pass_limit", "converged", "converged")
    assert max(resumed.lower_bound_, other.lower_bound_) <= min(resumed.upper_bound_, other.upper_bound_)
    assert np.abs(resumed.coef_).sum() <= 2.0 + 1e-9


# ---------------------------------------------------------------------- what is refused


def test_solvers_that_cannot_handle_the_sets_refuse_them_by_name(snippets, monkeypatch):
    monkeypatch.setattr(Counters, "add", lambda *_, **__: pytest.fail("a row was read"))
    for task, name in ((l1_problem(snippets), "L1Ball"), (few_problem(snippets, 2), "WorstFew")):
        with pytest.raises(ValueError, match=f"solver 'sqp' requires .*{name}"):
            gd.solve(task, "sqp")


def test_parameters_that_are_impossible_are_refused(snippets):
    for radius in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="radius"):
            snippets.L1Ball(radius)
    for count in (0.5, np.nan, np.inf):
        with pytest.raises(ValueError, match="count"):
            snippets.WorstFew(count)
