"""Probes of many classes: certified fits beside scikit-learn's LogisticRegression on the same float32 features.

    python -m benchmarks.probes [SHAPE ...]        shapes as 20000x256x50; default: those in the stored table
    python -m benchmarks.probes sweep [SHAPE]      45 penalties, C from 1e-6 to 1e5, default 10000x128x20

Set OMP_NUM_THREADS, OPENBLAS_NUM_THREADS and NUMBA_NUM_THREADS to 1.

Features are normal with a mean per class and columns of falling size. For every penalty: LogisticRegression by lbfgs
with tol=1e-4 and enough iterations, and its true suboptimality, which it cannot know; then GroupDROClassifier to a
certified gap of 1e-3 of the value, of all rows as one group, and of the classes as groups at robustness .5 and 1. CPU
seconds on one thread, the best of two runs each that take turns; kernels are compiled before. "pairs" counts how many
times X W and X' V could have been multiplied in float32 in that time. Results go to results/probes.json and probes.md,
row by row; a row that is there already is replaced.

The sweep compares `regularization_path`, certified to 1e-2 at every penalty, with 45 fits of
LogisticRegression(tol=1e-4, max_iter=1000), by CPU seconds of one run each, and goes to results/probe_sweep.json.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

import groupdro as gd

RESULTS = Path(__file__).parent / "results"
SHAPES = {
    "20000x256x50": (1e-1, 1e-2, 1e-3, 1e-4, 1e-5),
    "200000x512x10": (1e-1, 1e-3, 1e-4),
}
TOL = 1e-3
SWEEP_TOL = 1e-2
FITS = {"one group": (False, 0.0), "classes, robustness .5": (True, 0.5), "classes, robustness 1": (True, 1.0)}
ROUNDS = 2
_LONGEST = 300.0  # seconds of a fit


def features(n: int, d: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, n)
    X = rng.normal(size=(n, d)).astype(np.float32)
    X += (0.25 * rng.normal(size=(n_classes, d))).astype(np.float32)[y]
    X *= (4.0 / np.sqrt(np.arange(1, d + 1))).astype(np.float32)
    return X, y


def cpu(run: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.process_time()
    return run(), time.process_time() - begun


def value_of(model: LogisticRegression, X: np.ndarray, y: np.ndarray, alpha: float) -> float:
    """Return the average loss plus the penalty, summed in float64."""
    u = X.astype(np.float64) @ model.coef_.T + model.intercept_
    u -= u.max(axis=1, keepdims=True)
    losses = np.log(np.exp(u).sum(axis=1)) - u[np.arange(len(y)), y]
    return float(losses.mean() + 0.5 * alpha * np.square(model.coef_, dtype=np.float64).sum())


def fit(X: np.ndarray, y: np.ndarray, alpha: float, name: str, tol: float = TOL) -> gd.GroupDROClassifier:
    by_class, robustness = FITS[name]
    groups = y if by_class else np.zeros(len(y), np.int64)
    model = gd.GroupDROClassifier(robustness=robustness, alpha=alpha, tol=tol, break_ties=False, max_time=_LONGEST)
    return model.fit(X, y, groups=groups)


def measure(shape: str) -> Iterator[dict[str, Any]]:
    n, d, n_classes = map(int, shape.split("x"))
    X, y = features(n, d, n_classes)
    for name in FITS:
        fit(X, y, 1.0, name, tol=0.5)
    W, V = np.zeros((d, n_classes), np.float32), np.zeros((n, n_classes), np.float32)
    pair = min(cpu(lambda: (X @ W, X.T @ V))[1] for _ in range(5))
    for alpha in SHAPES.get(shape, (1e-1, 1e-3)):
        plain = LogisticRegression(C=1.0 / (alpha * n), tol=1e-4, max_iter=10_000)
        times: dict[str, list[float]] = {name: [] for name in ("lbfgs", *FITS)}
        fitted: dict[str, Any] = {}
        for _ in range(ROUNDS):
            times["lbfgs"].append(cpu(partial(plain.fit, X, y))[1])
            for name in FITS:
                fitted[name], seconds = cpu(partial(fit, X, y, alpha, name))
                times[name].append(seconds)
        best = {name: min(found) for name, found in times.items()}
        lower = fitted["one group"].lower_bound_
        row: dict[str, Any] = {"shape": shape, "alpha": alpha, "pair": pair, "lbfgs": best["lbfgs"]}
        row["iterations"] = int(plain.n_iter_.max())
        row["lbfgs above the lower bound"] = (value_of(plain, X, y, alpha) - lower) / lower
        for name, model in fitted.items():
            row[name] = {
                "ratio": best[name] / best["lbfgs"],
                "passes": model.n_passes_,
                "pairs": best[name] / pair,
                "gap": model.gap_ / model.upper_bound_,
                "status": str(model.status_),
            }
        print(json.dumps(row), flush=True)
        yield row


def table(rows: list[dict[str, Any]]) -> str:
    """Return the page."""
    head = "| shape | alpha | lbfgs, s (iterations) | above our bound |"
    lines = [
        head + "".join(f" {name}: ratio (passes, pairs) |" for name in FITS),
        "|---|---|---|---|" + "---|" * len(FITS),
    ]
    for row in rows:
        line = f"| {row['shape']} | {row['alpha']:g} | {row['lbfgs']:.2f} ({row['iterations']}) | "
        line += f"{row['lbfgs above the lower bound']:.1e} |"
        for name in FITS:
            found = row[name]
            late = "" if found["status"] == "converged" else f", {found['status']}"
            line += f" {found['ratio']:.2f} ({found['passes']:.0f}, {found['pairs']:.0f}{late}) |"
        lines.append(line)
    summary = []
    for name in FITS:
        ratios = [row[name]["ratio"] for row in rows]
        summary.append(f"{name}: median {np.median(ratios):.2f}, largest {max(ratios):.2f}")
    return "\n".join([*lines, "", "CPU over that of lbfgs. " + "; ".join(summary) + ".", ""])


def sweep(shape: str) -> None:
    n, d, n_classes = map(int, shape.split("x"))
    X, y = features(n, d, n_classes)
    everyone = np.zeros(n, np.int64)
    fit(X, y, 1.0, "one group", tol=0.5)
    values = np.logspace(-6, 5, 45)
    estimator = gd.GroupDROClassifier(robustness=0.0, tol=SWEEP_TOL, max_time=_LONGEST)
    path, ours = cpu(partial(gd.regularization_path, estimator, X, y, groups=everyone, alphas=1.0 / (values * n)))
    plain = [cpu(partial(LogisticRegression(C=C, tol=1e-4, max_iter=1000).fit, X, y))[1] for C in values]
    found = {
        "shape": shape,
        "tol": SWEEP_TOL,
        "seconds": ours,
        "passes": path.n_passes.tolist(),
        "largest gap": float((path.gaps / path.upper_bounds).max()),
        "scikit-learn's seconds": sum(plain),
        "ratio": ours / sum(plain),
    }
    (RESULTS / "probe_sweep.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


def main(shapes: list[str]) -> None:
    warnings.simplefilter("ignore")
    if shapes[:1] == ["sweep"]:
        sweep(shapes[1] if shapes[1:] else "10000x128x20")
        return
    path = RESULTS / "probes.json"
    for shape in shapes or SHAPES:
        for new in measure(shape):
            rows = json.loads(path.read_text()) if path.exists() else []
            rows = [row for row in rows if (row["shape"], row["alpha"]) != (shape, new["alpha"])] + [new]
            path.write_text(json.dumps(rows, indent=1) + "\n")
            (RESULTS / "probes.md").write_text(table(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
