"""What is timed, in a process of its own per source tree.

    python -m tests.house.speed_items ITEM FOLDER

reads the item's data from a folder, runs it once without timing, which compiles, and then once for each line that it
reads. It prints CPU seconds, seconds by the clock and a number that the work came to.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import groupdro as gd

__all__ = ["DATA", "ITEMS"]

Timed = tuple[float, float, float]  # CPU seconds, seconds by the clock, what the work came to

_EPOCHS = 2
_FITS = 150


def _clock() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def _labels(score: Any, rng: np.random.Generator) -> Any:
    return np.where(score + rng.standard_normal(len(score)) * score.std() > 0, 1.0, -1.0)


# ---------------------------------------------------------------------- data, made once for both trees


def make_dense(folder: Path) -> None:
    """Write 100,000 rows of 1,024 columns in 10 groups, 400 MB."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100_000, 1024), dtype=np.float32)
    y = _labels(X @ rng.standard_normal(1024, dtype=np.float32), rng)
    _save(folder, X=X, y=y, groups=np.sort(rng.integers(0, 10, len(y))))


def make_sparse(folder: Path) -> None:
    """Write 100,000 rows of 50,000 columns with 50 entries each, most in few columns as in text."""
    rng = np.random.default_rng(0)
    n, d, per_row = 100_000, 50_000, 50
    columns = (d * rng.random((n, per_row)) ** 3).astype(np.int32)
    X = sp.csr_array(
        (np.ones(n * per_row, np.float32), columns.ravel(), np.arange(0, n * per_row + 1, per_row)), (n, d)
    )
    X.sum_duplicates()
    y = _labels(X @ rng.standard_normal(d), rng)
    _save(folder, data=X.data, indices=X.indices, indptr=X.indptr, y=y, groups=np.sort(rng.integers(0, 10, n)))


def make_outputs(folder: Path) -> None:
    """Write 20,000 rows of 512 columns and 10 classes in 10 groups."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 512), dtype=np.float32)
    scores = X @ rng.standard_normal((512, 10), dtype=np.float32)
    y = np.argmax(scores + 20.0 * rng.standard_normal(scores.shape), axis=1)
    _save(folder, X=X, y=y, groups=np.sort(rng.integers(0, 10, len(y))))


def make_adult(folder: Path) -> None:
    """Write the public table Adult as numbers."""
    from tests.house.golden_estimators import public

    X, y, groups = public("adult")
    _save(folder, X=X, y=np.unique(y, return_inverse=True)[1], groups=np.unique(groups, return_inverse=True)[1])


def make_small(folder: Path) -> None:
    """Write 1,000 rows of 10 columns in 5 groups."""
    X, y, groups = gd.datasets.make_mero(n_groups=5, n_per_group=200, n_features=10)
    _save(folder, X=X, y=y, groups=groups)


def _save(folder: Path, **arrays: Any) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def _load(folder: Path) -> dict[str, Any]:
    found = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    if "indptr" in found:
        shape = len(found["y"]), 50_000
        found["X"] = sp.csr_array((found.pop("data"), found.pop("indices"), found.pop("indptr")), shape)
    return found


# ---------------------------------------------------------------------- work


def epochs(folder: Path) -> Callable[[], Timed]:
    """Return what times two epochs of ALEG after the start."""
    table = _load(folder)
    loss = gd.losses.Softmax(10) if table["y"].dtype.kind == "i" else gd.losses.Logistic()
    data = gd.GroupedData.from_arrays(table["X"], table["y"], table["groups"])
    problem = gd.Problem(data, loss, gd.domains.L2Domain(penalty=1e-3), fit_intercept=True)

    def work() -> Timed:
        marks: list[tuple[float, float]] = []

        def note(progress: Any) -> bool:
            marks.append(_clock())
            return len(marks) > _EPOCHS

        found = gd.solve(problem, gd.solvers.ALEG(), tol=1e-12, max_passes=100.0, callbacks=[note])
        return marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1], found.upper_bound

    return work


def fits(folder: Path, times: int, **options: Any) -> Callable[[], Timed]:
    """Return what times fits of a classifier, as their mean."""
    table = _load(folder)

    def work() -> Timed:
        begun, model = _clock(), None
        for _ in range(times):
            model = gd.GroupDROClassifier(random_state=0, **options).fit(table["X"], table["y"], groups=table["groups"])
        cpu, wall = ((now - before) / times for now, before in zip(_clock(), begun, strict=True))
        assert model is not None
        return cpu, wall, model.upper_bound_

    return work


DATA: dict[str, Callable[[Path], None]] = {
    "dense": make_dense,
    "sparse": make_sparse,
    "outputs": make_outputs,
    "adult": make_adult,
    "small": make_small,
}
ITEMS: dict[str, Callable[[Path], Callable[[], Timed]]] = {
    "dense": epochs,
    "sparse": epochs,
    "outputs": epochs,
    "adult": lambda folder: fits(folder, 1, solver="sqp"),
    "small": lambda folder: fits(folder, _FITS),
}


def main(item: str, folder: str) -> None:
    """Work once for every line of the input, after a first time that compiles."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    work = ITEMS[item](Path(folder))
    work()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(work()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
