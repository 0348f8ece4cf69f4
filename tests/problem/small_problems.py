"""Problems of a few rows with every loss, storage, and kind of groups and weights."""

import numpy as np
import pytest
import scipy.sparse as sp

from groupdro.data import GroupedData
from groupdro.losses import Huber, Logistic, Softmax, Squared, SquaredHinge
from groupdro.problem import L2Domain, Problem

N, D, C = 13, 3, 3
LOSSES = [Logistic(), Squared(), Huber(0.8), SquaredHinge(), Softmax(C)]
INTERCEPT = {"no intercept": False, "intercept": True}
WEIGHTED = {"unweighted": False, "weighted": True}
OVERLAPPING = {"disjoint": False, "overlapping": True}
STORAGES = ["float64", "float32", "csr", "csr float32", "memmap"]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)


def store(X, storage, folder):
    if storage == "memmap":
        X.tofile(folder / "X.bin")
        return np.memmap(folder / "X.bin", dtype=np.float64, mode="r", shape=X.shape)
    X = X.astype(np.float32) if "float32" in storage else X
    return sp.csr_array(X) if "csr" in storage else X


def labels_for(loss, rng, n):
    if isinstance(loss, Softmax):
        return rng.permutation(np.arange(n) % C)
    if isinstance(loss, Logistic | SquaredHinge):
        return rng.permutation(np.where(np.arange(n) % 2, 1.0, -1.0))
    return rng.normal(size=n)


def make_arrays(loss, *, overlapping=False, weighted=False, n=N, n_groups=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)) * (rng.random((n, D)) < 0.8)
    X = X.astype(np.float32).astype(np.float64)  # the same numbers in every storage
    groups = rng.permutation(np.arange(n) % n_groups)
    if overlapping:
        groups = (groups[:, None] == np.arange(n_groups)) | (rng.random((n, n_groups)) < 0.4)
    weights = rng.choice([0.0, 0.3, 1.0, 2.5], size=n) if weighted else None
    return X, labels_for(loss, rng, n), groups, weights


def make_problem(loss, fit_intercept=False, domain=None, **options):
    data = GroupedData.from_arrays(*make_arrays(loss, **options))
    return Problem(data, loss, domain or L2Domain(radius=2.0), fit_intercept=fit_intercept)


def random_point(problem, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=problem.shape), rng.dirichlet(np.ones(problem.n_groups))
