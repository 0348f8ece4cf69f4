"""Passes and times of the solvers, one figure a command.

    python -m benchmarks.speed synthetic      passes of auto and ALEG to a certified 1e-6 on the paper's set-up
    python -m benchmarks.speed budgets        auto and the paper's ALEG, tuned, at equal gradient evaluations
    python -m benchmarks.speed budgets FOLDER the same on CIFAR-100
    python -m benchmarks.speed tabular        passes of ALEG to 1e-3 and 1e-4 on Adult and bank
    python -m benchmarks.speed cifar FOLDER   passes and seconds of auto to 1e-1, 1e-2 and 1e-3 on CIFAR-100
    python -m benchmarks.speed epoch          an epoch on 100,000 x 1,024 beside the two products of BLAS
    python -m benchmarks.speed csr            time of a sparse step at 10^4, 10^5 and 10^6 features
    python -m benchmarks.speed text           sparse rows of 100,000 columns beside scikit-learn's lbfgs and liblinear
    python -m benchmarks.speed groups         10^5 groups of 100 rows, and 20,000 of 20, to a certified relative 1e-2
    python -m benchmarks.speed clarabel       beside CVXPY with Clarabel, with an intercept and a radius of 20
    python -m benchmarks.speed fairlearn      beside fairlearn's ExponentiatedGradient (needs fairlearn)
    python -m benchmarks.speed startup        import and first fit in a new process, cold and warm

Nothing is set but what the command says: solvers run with their defaults. Times are CPU seconds, the best of several in
one run; set the variables OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1. Those that read data need the variable
GROUPDRO_DATA. synthetic, text, groups and clarabel store their figures in results/speed.json.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import groupdro as gd
from benchmarks.real_data import adult, bank, cifar
from groupdro.oracle import Oracle
from groupdro.solvers.steps import make_steps

RECORD = Path(__file__).parent / "results" / "speed.json"


def best_time(run: Callable[[], object], times: int = 5) -> float:
    out = []
    for _ in range(times):
        begun = time.process_time()
        run()
        out.append(time.process_time() - begun)
    return min(out)


def passes_to(result: gd.solvers.Result, gap: float) -> float:
    return next((row.passes for row in result.trace if row.gap <= gap), np.inf)


def synthetic_problems() -> Iterator[tuple[int, float, gd.Problem]]:
    for seed in range(5):
        data = gd.GroupedData.from_arrays(*gd.datasets.make_gdro(25, 1000, 1024, seed=seed))
        for radius in (1.0, 3.0, 10.0):
            yield seed, radius, gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=radius))


def synthetic() -> dict[str, Any]:
    passes: dict[str, list[float]] = {"auto": [], "aleg": []}
    for seed, radius, problem in synthetic_problems():
        for solver, found in passes.items():
            result = gd.solve(problem, solver, tol=0.0, atol=1e-6, max_passes=150, seed=seed)
            found.append(result.passes)
            print(f"seed {seed} radius {radius:4} {solver}: {result.passes:.1f} passes, {result.seconds:.2f} s")
    return {
        f"passes of {solver}": {"mean": round(float(np.mean(found)), 1), "most": round(max(found), 1)}
        for solver, found in passes.items()
    }


BUDGETS = (5, 10, 15, 20, 25, 30)  # multiples of the number of rows


def budgets(folder: str = "") -> None:
    """Print how far above the optimum each is at equal gradient evaluations, as the paper counts them."""
    if folder:
        _compare_at_budgets("CIFAR-100, radius 20", _cifar_problem(folder), tol=1e-5)
        return
    for seed, radius, problem in synthetic_problems():
        if seed:
            break
        _compare_at_budgets(f"synthetic, radius {radius}", problem, tol=1e-9)


def _compare_at_budgets(name: str, problem: gd.Problem, tol: float) -> None:
    best = gd.solve(problem, "auto", tol=tol, max_passes=300).lower_bound
    tuned = [
        gd.solvers.ALEGTheory(multiplier=factor, guarantee=False) for factor in (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
    ]
    above = {"auto": _above(gd.solve(problem, "auto", tol=tol, max_passes=BUDGETS[-1]), best, problem.n_rows)}
    paper = [
        _above(gd.solve(problem, each, tol=0.0, max_passes=2.0 * BUDGETS[-1]), best, problem.n_rows) for each in tuned
    ]
    above["paper's ALEG, tuned"] = [min(at) for at in zip(*paper, strict=True)]
    for label, values in above.items():
        print(
            f"{name:24} {label:20}", *(f"{budget}: {value:.1e}" for budget, value in zip(BUDGETS, values, strict=True))
        )


def _above(result: gd.solvers.Result, best: float, n_rows: int) -> list[float]:
    """Return by how much the best point within each budget exceeds the optimum."""
    rows = [(row.grad_evals_paper / n_rows, row.upper) for row in result.trace]
    return [min((upper for spent, upper in rows if spent <= budget), default=np.inf) - best for budget in BUDGETS]


def tabular() -> None:
    for make in (adult, bank):
        p = make()
        problem = gd.Problem(
            gd.GroupedData.from_arrays(p.X, p.y, p.groups), gd.losses.Logistic(), gd.domains.L2Domain(radius=10.0)
        )
        for seed in range(3):
            result = gd.solve(problem, "aleg", tol=0.0, atol=1e-4, max_passes=200, seed=seed)
            at = [f"{passes_to(result, gap):.1f} to {gap:.0e}" for gap in (1e-2, 1e-3, 1e-4)]
            print(f"{p.name}, seed {seed}: passes {', '.join(at)}; {result.seconds:.2f} s")


def _cifar_problem(folder: str) -> gd.Problem:
    p = cifar(Path(folder))
    return gd.Problem(
        gd.GroupedData.from_arrays(p.X, p.y, p.groups), gd.losses.Softmax(), gd.domains.L2Domain(radius=20.0)
    )


def cifar100(folder: str) -> None:
    problem = _cifar_problem(folder)
    result = gd.solve(problem, tol=1e-3, max_passes=60)
    for gap in (1e-1, 1e-2, 1e-3):
        row = next(row for row in result.trace if row.gap <= gap * row.upper)
        print(f"{gap:.0e}: {row.passes:.1f} passes, {row.seconds:.1f} s, {row.grad_evals_paper / problem.n_rows:.1f} n")
    print(result.solver, result, sep="\n", flush=True)


def epoch() -> None:
    n, d, m = 100_000, 1024, 25
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((n, d)), np.sign(rng.standard_normal(n))
    w, v = rng.standard_normal(d), rng.standard_normal(n)
    problem = gd.Problem(
        gd.GroupedData.from_arrays(X, y, np.repeat(np.arange(m), n // m)),
        gd.losses.Logistic(),
        gd.domains.L2Domain(radius=3.0),
    )
    oracle = Oracle(problem)
    solver = gd.solvers.ALEG()
    state = solver.init(oracle, problem.centre(), problem.central_weights(), 0)
    plan = solver.plan(problem)

    def inner() -> None:
        make_steps(solver.inner_loop(oracle, state, plan), plan, plan.steps, np.random.default_rng(0))

    def everything() -> tuple[float, float, float]:
        return (
            best_time(lambda: (X @ w, v @ X), 10),
            best_time(lambda: oracle.evaluate(state.evaluation.w + 0.01, state.evaluation.q), 10),
            best_time(inner, 10),
        )

    blas, full, steps = (min(times) for times in zip(*(everything() for _ in range(3)), strict=True))
    print(f"X @ w and v @ X {blas:.4f} s; the full pass {full:.4f} s; the {plan.steps} inner steps {steps:.4f} s")
    print(f"ratio of an epoch {(full + steps) / blas:.2f}")


def csr() -> None:
    n, entries, m = 100_000, 100, 20
    rng = np.random.default_rng(0)
    seconds = {}
    for d in (10**4, 10**5, 10**6):
        indices = np.sort(rng.integers(0, d, (n, entries)), axis=1).ravel()
        X = sp.csr_array(
            (rng.standard_normal(n * entries), indices, np.arange(0, n * entries + 1, entries)), shape=(n, d)
        )
        data = gd.GroupedData.from_arrays(X, np.sign(rng.standard_normal(n)), np.arange(n) % m)
        problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=3.0))
        solver = gd.solvers.ALEG()
        oracle = Oracle(problem)
        state = solver.init(oracle, problem.centre(), problem.central_weights(), 0)
        plan = solver.plan(problem)

        def steps(count: int, oracle=oracle, solver=solver, state=state, plan=plan) -> None:
            make_steps(solver.inner_loop(oracle, state, plan), plan, count, np.random.default_rng(0))

        # What an epoch costs beyond its steps (laying out the features, once) drops out of the difference.
        whole, half = (best_time(lambda c=c, steps=steps: steps(c), 5) for c in (plan.steps, plan.steps // 2))
        seconds[d] = (whole - half) / (plan.steps - plan.steps // 2)
        print(f"{d:8} features: {1e6 * seconds[d]:6.1f} us a step of {len(plan.groups)} rows; an epoch's {whole:.3f} s")
    print(f"ratio of 10^6 to 10^4: {seconds[10**6] / seconds[10**4]:.2f}")


def text() -> dict[str, Any]:
    """Fit the worst group to a certified 1e-4, and plain models of scikit-learn to 1e-4 above their optimum.

    The rows are so sparse that scikit-learn's default tolerance on gradients ends far from the optimum, so that each of
    its solvers gets the largest tolerance that reaches 1e-4.
    """
    from sklearn.linear_model import LogisticRegression

    from benchmarks.auto_grid import uniform_sparse

    problem = uniform_sparse()
    X, y, groups = problem.data.rows.X, problem.data.y, np.repeat(np.arange(20), problem.data.all_sizes)
    narrow = sp.csr_array((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), shape=X.shape)  # liblinear's

    def fit() -> gd.solvers.Result:
        data = gd.GroupedData.from_arrays(X, y, groups)
        return gd.solve(gd.Problem(data, gd.losses.Logistic(), problem.domain), tol=1e-4)

    result, ours = fit(), best_time(fit, 3)
    stored: dict[str, Any] = {"passes": round(result.passes, 1), "CPU seconds": round(ours, 2)}
    plain = gd.Problem(gd.GroupedData.from_arrays(X, y, np.zeros(len(y))), gd.losses.Logistic(), problem.domain)
    least = gd.solve(plain, tol=1e-8).lower_bound
    for solver in ("lbfgs", "liblinear"):
        for tol in 10.0 ** -np.arange(4, 10):
            model = LogisticRegression(
                C=1.0 / (1e-4 * len(y)), fit_intercept=False, solver=solver, max_iter=1000, tol=tol, random_state=0
            ).fit(narrow, y)
            w = model.coef_[0]
            above = np.logaddexp(0.0, -y * (X @ w)).mean() + 0.5e-4 * w @ w - least
            if above <= 1e-4 * least:
                break
        theirs = best_time(lambda model=model: model.fit(narrow, y), 3)
        print(f"{solver}, tol {tol:.0e}: {model.n_iter_[0]} iterations, relative {above / least:.1e} above the optimum")
        stored[solver] = {"CPU seconds": round(theirs, 2), "ours over theirs": round(ours / theirs, 1)}
    return stored


def groups() -> dict[str, Any]:
    from benchmarks.auto_grid import group_slopes

    def measured(problem: gd.Problem) -> dict[str, Any]:
        begun = time.process_time()
        result = gd.solve(problem, tol=1e-2, max_passes=120)
        seconds, gap = time.process_time() - begun, result.gap / result.upper_bound
        print(result.solver, flush=True)
        return {"passes": round(result.passes, 1), "CPU seconds": round(seconds, 1), "gap": float(f"{gap:.1e}")}

    stored = {"20,000 groups of 20, d = 50": measured(group_slopes(20_000, 20))}
    m, n_i, d = 100_000, 100, 100
    rng = np.random.default_rng(0)
    X = rng.standard_normal((m * n_i, d), dtype=np.float32)
    shared = rng.standard_normal(d) / 10
    noise = np.repeat(rng.standard_normal(m), n_i) * 0.5
    y = np.sign(X @ shared + noise + rng.standard_normal(len(X)))
    data = gd.GroupedData.from_arrays(X, y, np.repeat(np.arange(m), n_i))
    problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=3.0))
    return {**stored, "100,000 groups of 100, d = 100": measured(problem)}


def clarabel() -> dict[str, Any]:
    import cvxpy as cp

    n, d, m = 30_000, 50, 10
    X, y, group = gd.datasets.make_gdro(m, n // m, d, seed=0)
    w, b, t = cp.Variable(d), cp.Variable(), cp.Variable()
    losses = cp.logistic(-cp.multiply(y, X @ w + b))
    inside = [cp.sum(losses[group == i]) * m / n <= t for i in range(m)]
    program = cp.Problem(cp.Minimize(t), [*inside, cp.norm(w) <= 20.0])
    begun = time.process_time()
    program.solve(solver=cp.CLARABEL)
    theirs = time.process_time() - begun

    def fit() -> gd.solvers.Result:
        data = gd.GroupedData.from_arrays(X, y, group)
        problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=20.0), fit_intercept=True)
        return gd.solve(problem, tol=1e-6)

    result, ours = fit(), best_time(fit, 10)
    found = max(np.logaddexp(0, -(y * (X @ w.value + b.value)))[group == i].mean() for i in range(m))
    print(f"worst risks {found:.9f} ({program.status}) and {result.upper_bound:.9f}, certified gap {result.gap:.1e}")
    return {
        "CPU seconds": {"Clarabel": round(theirs, 1), "groupdro": round(ours, 3)},
        "theirs over ours": round(theirs / ours),
    }


def fairlearn() -> None:
    from fairlearn.reductions import BoundedGroupLoss, ExponentiatedGradient
    from sklearn.linear_model import LogisticRegression

    class Margins(LogisticRegression):
        """Predicts margins, so that the loss of the constraint is the logistic loss of the fit."""

        def predict(self, X: np.ndarray) -> np.ndarray:
            return self.decision_function(X)

    class LogisticLoss:
        """The loss of a margin, as fairlearn calls it."""

        min, max = 0.0, np.inf

        def eval(self, y: np.ndarray, margin: np.ndarray) -> np.ndarray:
            return np.logaddexp(0.0, -np.asarray(y) * np.asarray(margin))

    n, d, m = 5_000, 20, 10
    X, y, group = gd.datasets.make_gdro(m, n // m, d, seed=0)
    reduction = ExponentiatedGradient(
        Margins(C=1e6, fit_intercept=False),
        BoundedGroupLoss(LogisticLoss(), upper_bound=0.0),
        eps=0.01,
        max_iter=50,
        nu=1e-4,
    )
    begun, begun_clock = time.process_time(), time.perf_counter()
    reduction.fit(X, y, sensitive_features=group)
    whole, clock = time.process_time() - begun, time.perf_counter() - begun_clock
    oracle = whole * float(np.sum(reduction.oracle_execution_times_)) / clock  # which it times by the clock
    mixture = sum(
        weight * model.coef_[0] for weight, model in zip(reduction.weights_, reduction.predictors_, strict=True)
    )

    def fit() -> gd.solvers.Result:
        data = gd.GroupedData.from_arrays(X, y, group)
        return gd.solve(gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=100.0)), tol=1e-6)

    result, ours = fit(), best_time(fit, 20)
    risks = np.logaddexp(0.0, -y * (X @ mixture)).reshape(m, -1).mean(axis=1)
    print(f"fairlearn {whole:.2f} s, of which its oracle {oracle:.2f} s; worst risk {risks.max():.6f}")
    print(f"groupdro {ours:.4f} s, worst risk {result.upper_bound:.6f}, certified gap {result.gap:.1e}")
    print(f"ratio to the oracle alone {oracle / ours:.0f}, to the whole {whole / ours:.0f}")


STARTUP = """
import time; begun = time.perf_counter()
import numpy as np
begun_ours = time.perf_counter()
import groupdro as gd
imported = time.perf_counter()
rng = np.random.default_rng(0)
data = gd.GroupedData.from_arrays(rng.normal(size=(1000, 20)), np.sign(rng.normal(size=1000)), np.arange(1000) % 5)
problem = gd.Problem(data, gd.losses.Logistic(), gd.domains.L2Domain(radius=3.0))
for solver in ("auto", "aleg"):
    before = time.perf_counter()
    gd.solve(problem, solver, tol=1e-3)
    print(f"{solver} {time.perf_counter() - before:.2f} s", end=", ")
print(f"import {imported - begun:.2f} s, import and both fits {time.perf_counter() - begun:.2f} s")
"""


def startup() -> None:
    with tempfile.TemporaryDirectory() as cache:
        for kind in ("cold", "warm", "warm"):
            env = {**os.environ, "NUMBA_CACHE_DIR": cache}
            done = subprocess.run([sys.executable, "-c", STARTUP], env=env, capture_output=True, text=True, check=True)
            print(f"{kind} cache: {done.stdout.strip()}", flush=True)


COMMANDS: dict[str, Callable[..., dict[str, Any] | None]] = {
    "synthetic": synthetic, "budgets": budgets, "tabular": tabular, "cifar": cifar100, "epoch": epoch, "csr": csr,
    "text": text, "groups": groups, "clarabel": clarabel, "fairlearn": fairlearn, "startup": startup,
}  # fmt: skip

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        raise SystemExit(__doc__)
    figures = COMMANDS[sys.argv[1]](*sys.argv[2:])
    if figures is not None:
        kept = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        figures["run"] = {"threads": os.environ.get("OMP_NUM_THREADS"), "load average": round(os.getloadavg()[0], 1)}
        RECORD.write_text(json.dumps({**kept, sys.argv[1]: figures}, indent=1) + "\n")
        print(json.dumps(figures, indent=1))
