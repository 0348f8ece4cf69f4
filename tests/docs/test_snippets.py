"""The solver and the loss that the pages for developers write, held against CVXPY with Clarabel."""

import importlib
import os
import shutil
import subprocess
import sys

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import groupdro as gd
from groupdro.distributed import shard
from groupdro.kernels import losses as kernels
from groupdro.run.solver import SOLVERS
from tests.distributed.thread_comm import run_workers
from tests.docs.pages import DOCS, ROOT
from tests.reference.convex import membership_matrix, worst_value


@pytest.fixture(scope="module")
def snippets():
    """The modules of the pages; what they register is taken back."""
    known = dict(SOLVERS)
    sys.path.insert(0, str(DOCS / "snippets"))
    try:
        yield importlib.import_module("mirror_prox"), importlib.import_module("expectile")
    finally:
        sys.path.remove(str(DOCS / "snippets"))
        for name in ("mirror_prox", "expectile"):
            sys.modules.pop(name, None)
        SOLVERS.clear()
        SOLVERS.update(known)


def rows(seed=0, n=240, d=5, m=4):
    rng = np.random.default_rng(seed)
    X, groups = rng.normal(size=(n, d)), np.sort(rng.integers(m, size=n))
    signal = X @ rng.normal(size=d) + 0.5 * groups * X[:, 0]
    return X, signal + rng.normal(size=n), groups


def problem(loss, domain, *, classes=0, sparse=False, intercept=False):
    X, y, groups = rows()
    if classes:
        y = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    X = sp.csr_array(np.where(np.abs(X) > 0.7, X, 0.0)) if sparse else X
    return gd.GroupRisk(gd.GroupedData.from_arrays(X, y, groups), loss, domain, fit_intercept=intercept)


PROBLEMS = {
    "ball": lambda: problem(gd.Logistic(), gd.L2Domain(radius=0.8), classes=2),
    "penalty": lambda: problem(gd.Logistic(), gd.L2Domain(penalty=0.01), classes=2, intercept=True),
    "simplex": lambda: problem(gd.Squared(), gd.SimplexDomain()),
    "classes": lambda: problem(gd.Softmax(), gd.L2Domain(penalty=0.02), classes=3, intercept=True),
    "sparse": lambda: problem(gd.Huber(), gd.L2Domain(penalty=0.02, radius=5.0), sparse=True),
}

# ---------------------------------------------------------------------- the solver


@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_solver_of_the_page_certifies_the_optimum(snippets, kind):
    task = PROBLEMS[kind]()
    best = worst_value(task)
    assert best.accurate
    result = gd.solve(task, "mirror_prox", tol=1e-5, max_passes=5000)
    assert result.status is gd.Status.CONVERGED
    assert result.lower_bound <= best.value + 1e-7
    assert result.upper_bound >= best.value - 1e-7
    assert result.upper_bound - result.lower_bound <= 1e-5 * result.upper_bound


def test_the_solver_of_the_page_ends_where_rounding_leaves_nothing(snippets):
    result = gd.solve(PROBLEMS["ball"](), snippets[0].MirrorProx(), tol=0.0, max_passes=4000)
    assert result.status in (gd.Status.STALLED, gd.Status.PASS_LIMIT)
    assert result.gap < 1e-9


def test_the_solver_of_the_page_runs_over_workers_unchanged(snippets):
    whole = PROBLEMS["penalty"]()
    alone = gd.solve(whole, "mirror_prox", tol=1e-4)

    def work(comm):
        part = gd.GroupRisk(shard(whole.data, comm), whole.loss, whole.domain, fit_intercept=True)
        return gd.solve(part, "mirror_prox", tol=1e-4)

    one, other = run_workers(2, work)
    assert one.converged
    np.testing.assert_array_equal(one.w, other.w)
    np.testing.assert_allclose(one.w, alone.w, atol=1e-8)


@pytest.mark.long
def test_the_solver_of_the_page_runs_in_the_benchmark(tmp_path):
    pytest.importorskip("benchopt")
    pd = pytest.importorskip("pandas")
    ignored = shutil.ignore_patterns("outputs", "__cache__", "__pycache__")
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=ignored)
    folder = tmp_path / "benchmarks" / "gdro"
    shutil.copy(DOCS / "snippets" / "benchopt_mirror_prox.py", folder / "solvers" / "mirror_prox.py")
    command = [sys.executable, "-m", "benchopt", "run", str(folder), "-s", "mirror prox", "-s", "ALEG", "-r", "1"]
    command += [
        "-d",
        "synthetic[n_groups=3,n_per_group=40,n_features=6]",
        "-o",
        "worst risk[max_passes=30]",
        "--no-plot",
    ]
    environment = {**os.environ, "PYTHONPATH": str(DOCS / "snippets")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = (folder / "outputs").glob("*.parquet")
    curves = pd.read_parquet(table).groupby("solver_name")
    assert set(curves.groups) == {"mirror prox", "ALEG"}
    assert (curves["objective_certified_gap"].last() < curves["objective_certified_gap"].first()).all()


# ---------------------------------------------------------------------- the loss


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("solver", ["auto", "aleg", "sqp"])
@pytest.mark.parametrize("tau", [0.3, 0.9])
def test_the_loss_of_the_page_is_certified_by_every_solver(snippets, tau, solver, intercept):
    task = problem(snippets[1].Expectile(tau), gd.L2Domain(penalty=0.05, radius=2.0), intercept=intercept)
    X, y, d = task.data.rows.X, task.data.y, task.data.n_features
    w, worst = cp.Variable(task.shape), cp.Variable()
    residuals = X @ w[:d] + (w[d] if intercept else 0) - y
    prices = (tau * cp.square(cp.neg(residuals)) + (1 - tau) * cp.square(cp.pos(residuals))) / 2
    program = cp.Problem(
        cp.Minimize(worst + 0.025 * cp.sum_squares(w[:d])),
        [membership_matrix(task) @ prices <= worst, cp.norm(w[:d]) <= 2.0],
    )
    best = program.solve(solver=cp.CLARABEL)
    result = gd.solve(task, solver, tol=1e-3 if solver == "aleg" else 1e-5)  # the page says that aleg is slow here
    assert result.status is gd.Status.CONVERGED
    assert result.lower_bound <= best + 1e-6
    assert result.upper_bound >= best - 1e-6


def test_a_run_with_the_loss_of_the_page_goes_on_from_its_checkpoint(snippets, tmp_path):
    def task():
        return problem(snippets[1].Expectile(0.6), gd.L2Domain(penalty=0.05))

    first = gd.solve(task(), "aleg", tol=1e-4, max_passes=8, checkpoint_dir=tmp_path)
    assert first.status is gd.Status.PASS_LIMIT
    on = gd.solve(task(), "aleg", tol=1e-4, checkpoint_dir=tmp_path)
    assert on.converged
    assert on.trace[: len(first.trace)] == first.trace


def test_the_estimators_take_no_loss_but_their_own(snippets):
    with pytest.raises(ValueError, match=r"loss must be 'squared' or 'huber'"):
        gd.GroupDRORegressor(loss=snippets[1].Expectile()).fit([[0.0], [1.0]], [0.0, 1.0], groups=[0, 1])


def test_the_last_branch_of_the_kernels_is_the_squared_hinge():
    unknown = max(kernels.LOGISTIC, kernels.SQUARED, kernels.HUBER, kernels.SQUARED_HINGE) + 1
    for function in (kernels.value, kernels.slope, kernels.conjugate):
        assert function(unknown, 0.0, -0.3, 1.0) == function(kernels.SQUARED_HINGE, 0.0, -0.3, 1.0)
