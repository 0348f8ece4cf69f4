"""The problems of the golden fits: drawn tables, in every storage, as every kind of problem."""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse as sp

import groupdro as gd

__all__ = ["SIZES", "Posed", "drawn", "pose", "start"]

#: Rows, columns and groups.
SIZES = {
    "small": (400, 6, 5),
    "medium": (8000, 64, 8),  # dense passes are made in several pieces
    "wide": (600, 300, 4),  # more columns than ALEG turns to the axes of the curvature
    "many groups": (8000, 8, 500),
    "short groups": (120, 40, 8),  # fewer rows per group than columns
    "one group": (400, 6, 1),
}
LOSSES: dict[str, Any] = {
    "logistic": gd.losses.Logistic,
    "squared": gd.losses.Squared,
    "squared hinge": gd.losses.SquaredHinge,
    "huber": gd.losses.Huber,
    "softmax": lambda: gd.losses.Softmax(3),
}
DOMAINS: dict[str, Any] = {
    "ball": lambda: gd.domains.L2Domain(radius=1.5),
    "penalty": lambda: gd.domains.L2Domain(penalty=0.01),
    "both": lambda: gd.domains.L2Domain(radius=1.0, penalty=0.05),
    "simplex": gd.domains.SimplexDomain,
}


@dataclass(frozen=True)
class Posed:
    """A problem by its properties."""

    loss: str = "logistic"
    domain: str = "ball"
    storage: str = "float64"
    intercept: bool = False
    size: str = "small"
    extra: str = ""
    workers: int = 1

    def __str__(self) -> str:
        """Name the properties, the usual ones left out."""
        parts = [self.loss, self.domain, self.storage, *(["intercept"] if self.intercept else [])]
        parts += [self.size] if self.size != "small" else []
        parts += [self.extra] if self.extra else []
        return ", ".join([*parts, *([f"{self.workers} workers"] if self.workers > 1 else [])])


@functools.cache
def drawn(loss: str, size: str, *, with_offsets: bool = False) -> tuple[Any, Any, Any]:
    """Draw rows, labels and groups; columns differ in scale, and groups in size, slope and noise."""
    n, d, m = SIZES[size]
    rng = np.random.default_rng([n, d, m])
    X = rng.standard_normal((n, d)) * np.geomspace(0.3, 2.0, d)
    many = m > 100  # of which the worst should still be better than a coin
    groups = np.arange(n) % m if many else np.minimum(np.arange(n) % m, rng.integers(0, m, n))
    groups[:m] = np.arange(m)
    groups = groups[rng.permutation(n)]
    slopes = (rng.standard_normal(d) + (0.1 if many else 0.7) * rng.standard_normal((m, d)))[groups] / np.sqrt(d)
    noise = np.linspace(0.1, 0.3, m) if many else np.linspace(0.5, 1.5, m)
    score = (X * slopes).sum(axis=1) + 0.3 + rng.standard_normal(n) * noise[groups]
    if with_offsets:
        X = X + np.linspace(-1.0, 2.0, d)
    if loss == "softmax":
        y: Any = np.digitize(score, [-0.7, 0.7])
    elif loss in ("squared", "huber"):
        y = score + 10.0 * (rng.random(n) < 0.01)
    else:
        y = np.where(score > 0, 1.0, -1.0)
    return X, y, groups


def _stored(posed: Posed, folder: Path, comm: Any) -> gd.GroupedData:
    """Return the rows of a problem in its storage."""
    X, y, groups = drawn(posed.loss, posed.size, with_offsets=posed.intercept)
    rng = np.random.default_rng(7)
    weights = None
    if posed.extra == "weights":
        weights = rng.integers(0, 4, len(y)) + 0.5 * (np.arange(len(y)) < 50)  # some are zero
    if posed.extra == "overlapping groups":
        groups = np.stack([groups == g for g in np.unique(groups)] + [X[:, 0] > X[:, 0].mean()], axis=1)
    storage = posed.storage
    if "csr" in storage:
        X = sp.csr_array(np.where(rng.random(X.shape) < 0.4, X, 0.0))
    dtype = {"float32": "float32", "float16": "float16", "csr float32": "float32", "mapped float32": "float32"}
    X = X.astype(dtype.get(storage, "float64"))
    if storage in ("store", "csr store", "store beyond memory"):
        return _from_store(X, y, groups, weights, storage, folder, comm)
    if storage.startswith("mapped"):
        path = folder / "rows.bin"
        if not path.exists():
            X.tofile(path)
        X = np.memmap(path, X.dtype, "r", shape=X.shape)
    data = gd.GroupedData.from_arrays(X, y, groups, weights)
    return data if comm is None else gd.distributed.shard(data, comm)


def _from_store(X: Any, y: Any, groups: Any, weights: Any, storage: str, folder: Path, comm: Any) -> gd.GroupedData:
    path = folder / "store"
    if comm is None or comm.rank == 0:
        whole = storage != "csr store"
        dtype = "float32" if whole else "float64"
        task = "regression" if len(np.unique(y)) > 3 else "classes"
        options = {"sample_weight": weights, "dtype": dtype, "sparse": not whole, "task": task, "overwrite": True}
        gd.GroupedStore.write_arrays(path, X, y, groups, **options)
    if comm is not None:
        comm.allreduce(np.zeros(1))  # the others wait until it is written
    # Rows count as too many for the memory where the machine says that it has 8 pages.
    pages = 8 if storage == "store beyond memory" else os.sysconf("SC_PHYS_PAGES")
    known = os.sysconf
    with mock.patch("os.sysconf", lambda name: pages if name == "SC_PHYS_PAGES" else known(name)):
        store = gd.GroupedStore.open(path)
        if comm is not None:
            store = store.shard(comm)
        labels = (-1, 1) if store.classes is not None and len(store.classes) == 2 else None
        return store.data(labels)


def pose(posed: Posed, folder: Path, comm: Any = None) -> gd.Problem:
    """Return the problem with these properties.

    Parameters
    ----------
    posed : Posed
        The properties.
    folder : Path
        Where its files are.
    comm : Communicator, optional
        The way to the other workers.

    Returns
    -------
    Problem
        The problem.
    """
    data = _stored(posed, folder, comm)
    loss, domain, more = LOSSES[posed.loss](), DOMAINS[posed.domain](), {}
    if posed.extra == "offsets":
        more["offsets"] = 1.0 / np.sqrt(np.arange(1.0, data.n_groups + 1.0))
    if posed.extra == "group minima":
        plain = gd.Problem(data, loss, domain, fit_intercept=posed.intercept)
        more["group_minima"] = gd.solve(plain, gd.solvers.ALEM(), tol=1e-3, max_passes=200.0).group_minima
    return gd.Problem(data, loss, domain, fit_intercept=posed.intercept, **more)


def start(posed: Posed, problem: gd.Problem) -> dict[str, Any]:
    """Return the w and q to start from, as arguments of `solve`; none if the problem is posed without a start."""
    if posed.extra not in ("start", "far start"):
        return {}
    w = np.cos(np.arange(problem.shape[0]))
    w = w.reshape(-1, *(1 for _ in problem.shape[1:])) * np.ones(problem.shape[1:])
    q = np.arange(1.0, problem.n_groups + 1.0)
    return {"w": w * (1e5 if posed.extra == "far start" else 0.3), "q": q / q.sum()}
