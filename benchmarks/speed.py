"""Times of fits beside other packages, and of an epoch beside its products.

    python -m benchmarks.speed epoch          an epoch on 100,000 x 1,024 beside the two products of BLAS
    python -m benchmarks.speed text           sparse rows of 100,000 columns beside scikit-learn's lbfgs and liblinear
    python -m benchmarks.speed clarabel       beside CVXPY with Clarabel, with an intercept and a radius of 20
    python -m benchmarks.speed fairlearn      beside fairlearn's ExponentiatedGradient (needs fairlearn)

Solvers run with their defaults. Times are CPU seconds, the best of several in one run; set the variables
OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1. text and clarabel store their figures in results/speed.json.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import groupdro as gd
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


COMMANDS: dict[str, Callable[[], dict[str, Any] | None]] = {
    "epoch": epoch,
    "text": text,
    "clarabel": clarabel,
    "fairlearn": fairlearn,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        raise SystemExit(__doc__)
    figures = COMMANDS[sys.argv[1]]()
    if figures is not None:
        kept = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        figures["run"] = {"threads": os.environ.get("OMP_NUM_THREADS"), "load average": round(os.getloadavg()[0], 1)}
        RECORD.write_text(json.dumps({**kept, sys.argv[1]: figures}, indent=1) + "\n")
        print(json.dumps(figures, indent=1))
