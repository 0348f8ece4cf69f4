"""Products of our rows beside those of tabmat and of SciPy, as ratios taken in one run.

    python -m benchmarks.products           measures with one and two threads, into benchmarks/results/products.md
    python -m benchmarks.products measure   prints the rows of the table for the threads that the environment sets

tabmat is optional: its column is empty where it is not installed. Adult comes from the folder GROUPDRO_DATA.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy.linalg.blas import dsyrk

from benchmarks import real_data
from groupdro.data.read_rows import read_rows

try:
    import tabmat
except ImportError:
    tabmat = None

TABLE = Path(__file__).parent / "results" / "products.md"
HEADER = """\
Time of a product in ms, and that of the alternatives as a multiple of it: above 1, ours is faster. The best of several,
taken in turns in one run: of the processor's time with one thread, of the clock with two, which are rougher because
other work on the machine counts.

"SciPy" is `X.T @ (diag(w) @ X)`, "scaled" is `S.T @ S` with `S = diag(sqrt(w)) @ X`, "blocks" fills in the zeros of
blocks of rows for BLAS. The last two need weights that are not negative.

| threads | rows | product | ours, ms | tabmat | SciPy | scaled | blocks |
|---|---|---|---|---|---|---|---|
"""
SECONDS = 1.5  # at least, for the rounds of one product
Product = Callable[[], Any]


def cases() -> dict[str, tuple[Any, Any]]:
    """Return matrices in our form and in tabmat's, None where it is not installed."""
    rng = np.random.default_rng(0)
    found: dict[str, tuple[Any, Any]] = {}
    for name, n, d, density in (("random", 100_000, 500, 0.05), ("text-like", 20_000, 5_000, 0.01)):
        X = sp.random(n, d, density, "csr", random_state=rng)
        found[f"{name}, {n:,} x {d:,}, {density:.0%}"] = X, tabmat and tabmat.SparseMatrix(X.tocsc())
    with contextlib.suppress(SystemExit, OSError):
        table = real_data.read_table("adult").drop(columns=["income", "split"])
        numbers = table.select_dtypes("number").astype(np.float64)
        text = table.drop(columns=numbers.columns).astype(str).astype("category")
        numbers = (numbers - numbers.mean()) / numbers.std()
        hot = pd.get_dummies(text).to_numpy(np.float64)
        for name, dense, frame in (
            ("Adult", np.hstack([numbers.to_numpy(), hot]), pd.concat([numbers, text], axis=1)),
            ("Adult's text", hot, text),
        ):
            place = f"{name}, {dense.shape[0]:,} x {dense.shape[1]}"
            found[place] = sp.csr_array(dense), tabmat and tabmat.from_df(frame, cat_threshold=0)
    X = rng.normal(size=(50_000, 200))
    found["dense, 50,000 x 200"] = X, tabmat and tabmat.DenseMatrix(X)
    return found


def scaled(X: Any, weights: np.ndarray) -> np.ndarray:
    """Return the Gram matrix as the square of one sparse matrix."""
    S = sp.diags_array(np.sqrt(weights)) @ X
    return np.asarray((S.T @ S).toarray())


def blocks(X: Any, weights: np.ndarray) -> np.ndarray:
    """Return the Gram matrix as a sum of BLAS products of blocks."""
    upper = np.zeros((X.shape[1], X.shape[1]), order="F")
    step = max(256, (1 << 20) // X.shape[1])
    for start in range(0, X.shape[0], step):
        block = X[start : start + step].toarray() * np.sqrt(weights[start : start + step, None])
        dsyrk(1.0, block.T, 1.0, upper, overwrite_c=True)
    return np.asarray(upper + np.triu(upper, 1).T)


def products(X: Any, theirs: Any) -> dict[str, dict[str, Product]]:
    """Return what is compared, product by product, ours first."""
    rng = np.random.default_rng(1)
    w, v, weights = rng.normal(size=X.shape[1]), rng.normal(size=X.shape[0]), rng.random(X.shape[0])
    rows = read_rows(X)[0]
    found: dict[str, dict[str, Product]] = {
        "gram": {"ours": lambda: rows.gram(weights)},
        "matvec": {"ours": lambda: rows.matvec(w)},
        "rmatvec": {"ours": lambda: rows.rmatvec(v)},
    }
    if theirs is not None:
        found["gram"]["tabmat"] = lambda: theirs.sandwich(weights)
        found["matvec"]["tabmat"] = lambda: theirs.matvec(w)
        found["rmatvec"]["tabmat"] = lambda: theirs.transpose_matvec(v)
    if sp.issparse(X):
        found["gram"]["SciPy"] = lambda: (X.T @ (sp.diags_array(weights) @ X)).toarray()
        found["gram"]["scaled"] = lambda: scaled(X, weights)
        if X.shape[1] <= 1000:  # beyond, it takes too long to wait for
            found["gram"]["blocks"] = lambda: blocks(X, weights)
    return found


def best_times(ways: dict[str, Product], clock: Callable[[], float]) -> dict[str, float]:
    """Return the best time of each, in turns; all must agree on the result."""
    expected = ways["ours"]()
    for way in ways.values():  # also compiles, and lets tabmat keep what it keeps
        np.testing.assert_allclose(way(), expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())
    times = dict.fromkeys(ways, np.inf)
    begun, rounds = time.perf_counter(), 0
    while rounds < 4 or time.perf_counter() - begun < SECONDS:
        for name, way in ways.items():
            start = clock()
            way()
            times[name] = min(times[name], clock() - start)
        rounds += 1
    return times


def measure() -> None:
    """Print the rows of the table for this process's threads."""
    threads = os.environ["OMP_NUM_THREADS"]
    clock = time.process_time if threads == "1" else time.perf_counter
    for case, (X, theirs) in cases().items():
        for product, ways in products(X, theirs).items():
            times = best_times(ways, clock)
            ratios = [
                f"{times[name] / times['ours']:.2f}" if name in times else ""
                for name in ("tabmat", "SciPy", "scaled", "blocks")
            ]
            cells = [threads, case, product, f"{1e3 * times['ours']:.3g}", *ratios]
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Measure with one thread and with two, each in a process of its own, and write the table."""
    lines = ""
    for threads in "12":
        env = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        command = [sys.executable, "-m", "benchmarks.products", "measure"]
        lines += subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    TABLE.write_text(HEADER + lines)
    print(HEADER + lines)


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else main()
