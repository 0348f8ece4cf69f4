"""Fits by the estimators, on drawn and on public tables."""

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

import groupdro as gd
from tests.distributed.thread_comm import run_workers
from tests.house.golden_data import drawn
from tests.house.golden_fit import Fit, keep

__all__ = ["public"]

CLASSIFIER, REGRESSOR = gd.GroupDROClassifier, gd.GroupDRORegressor
NAMES = np.array(["low", "mid", "top"])


def table(kind: type, *, classes: int = 2, change: str = "") -> tuple[Any, Any, dict[str, Any]]:
    """Return X, y and what else `fit` takes of a drawn table, changed in one way."""
    loss = "squared" if kind is REGRESSOR else "logistic" if classes == 2 else "softmax"
    X, y, groups = drawn(loss, "small", with_offsets=True)
    if kind is CLASSIFIER:
        y = NAMES[(y > 0).astype(int) if classes == 2 else y]
    more: dict[str, Any] = {"groups": groups}
    if change == "csr":
        X = sp.csr_array(np.where(np.random.default_rng(7).random(X.shape) < 0.4, X, 0.0))
    elif change == "float32":
        X = X.astype(np.float32)
    elif change == "far columns":
        X = X * 1e3 + 1e6
    elif change == "far targets":
        y = y + 1e6
    elif change == "exact targets":
        y = X @ np.arange(1.0, X.shape[1] + 1.0) + 2.0
    elif change == "separable":
        y = NAMES[(X[:, 0] > X[:, 0].mean()).astype(int)]
    elif change == "weights":
        more["sample_weight"] = np.random.default_rng(7).integers(0, 4, len(y)) + 0.5 * (np.arange(len(y)) < 50)
    elif change == "overlapping groups":
        more["groups"] = np.stack([groups == g for g in range(5)] + [X[:, 0] > X[:, 0].mean()], axis=1)
    elif change == "minima":
        more["group_minima"] = [0.1, 0.2, 0.3, 0.4, 0.5]
    elif change == "start":
        more["coef_init"] = np.cos(np.arange(X.shape[1]))
        more["q_init"] = np.arange(1.0, 6.0)
    return X, y, more


def add(kind: type, *, classes: int = 2, change: str = "", fast: bool = False, way: str = "", **options: Any) -> None:
    """Add a fit: whole, "resumed", "warm" after another one, or on a "store" with one or 2 "workers"."""
    options = {"random_state": 3, "max_passes": 200, **options}

    def run(folder: Path) -> Any:
        X, y, more = table(kind, classes=classes, change=change)
        model = kind(**options)
        if way == "resumed":
            saved = {**options, "checkpoint_dir": folder / "checkpoints"}
            kind(**{**saved, "max_passes": 6}).fit(X, y, **more)
            return kind(**saved).fit(X, y, **more)
        if way == "warm":
            model.fit(X[:300], y[:300], groups=more["groups"][:300])
            more |= {"coef_init": model.coef_, "intercept_init": model.intercept_, "q_init": model.group_weights_}
        if way in ("store", "workers"):
            path = folder / "store"
            gd.GroupedStore.write_arrays(path, X, y, dtype="float64", **more)
            if way == "store":
                return model.fit(gd.GroupedStore.open(path))
            fitted = run_workers(2, lambda comm: kind(**options).fit(gd.GroupedStore.open(path).shard(comm)))
            assert (fitted[0].coef_ == fitted[1].coef_).all()
            return fitted[0]
        return model.fit(X, y, **more)

    told = [f"{name}={value}" for name, value in options.items() if name not in ("random_state", "max_passes")]
    told += [f"{classes} classes"] if classes > 2 else []
    name = "; ".join(filter(None, [kind.__name__, ", ".join(told), change, way]))
    keep(Fit(name, run, fast))


def _drawn_tables() -> None:
    for objective in ("risk", "excess_risk"):
        for kind in (CLASSIFIER, REGRESSOR):
            add(kind, objective=objective, fast=True)
            add(kind, objective=objective, solver="aleg" if objective == "risk" else "alem", tol=1e-2)
            add(kind, objective=objective, way="store")
            add(kind, objective=objective, way="workers", fast=kind is CLASSIFIER)
            add(kind, objective=objective, way="resumed")
            for change in ("csr", "float32", "weights", "overlapping groups", "start"):
                add(kind, objective=objective, change=change, alpha=1e-2)
        add(CLASSIFIER, objective=objective, classes=3, fast=objective == "risk")
        add(CLASSIFIER, objective=objective, loss="squared_hinge", radius=0.5)
        add(REGRESSOR, objective=objective, loss="huber")
        add(CLASSIFIER, objective=objective, alpha=0.0)
        add(CLASSIFIER, objective=objective, alpha=0.0, change="separable")
        add(REGRESSOR, objective=objective, alpha=0.0, fit_intercept=False)
        add(REGRESSOR, objective=objective, change="far targets", fast=True)
    for kind in (CLASSIFIER, REGRESSOR):
        add(kind, change="far columns", alpha=1e-2)
        add(kind, small_group_bonus=1.0)
        add(kind, way="warm")
        add(kind, max_passes=4, tol=1e-9)
    add(REGRESSOR, change="exact targets", alpha=0.0)
    add(CLASSIFIER, objective="excess_risk", change="minima")
    add(CLASSIFIER, min_group_size=60)
    keep(Fit("regularization_path; classifier", lambda folder: path(CLASSIFIER), fast=True))
    keep(Fit("regularization_path; regressor", lambda folder: path(REGRESSOR)))


def path(kind: type) -> Any:
    """Return what a path of penalties found, its numbers added up, as if it was one fit."""
    X, y, more = table(kind)
    found = gd.regularization_path(kind(random_state=3), X, y, alphas=[1.0, 0.1, 0.01, 1e-3], **more)
    return SimpleNamespace(
        status_=", ".join(found.statuses),
        criterion_=None,
        upper_bound_=found.upper_bounds.sum(),
        lower_bound_=found.lower_bounds.sum(),
        n_passes_=found.n_passes.sum(),
        trace_=[SimpleNamespace(passes=passes) for passes in found.n_passes.cumsum()],
        solver_="",
        coef_=found.coefs,
        intercept_=found.intercepts,
    )


# ---------------------------------------------------------------------- public tables

TABLES = {  # target, columns of the groups, and columns that give the target away
    "adult": ("income", ["sex", "race"], ["split", "education"]),
    "bike_sharing": ("cnt", ["hr"], ["instant", "dteday", "casual", "registered"]),
    "wine_quality": ("quality", ["colour"], []),
    "bank_marketing": ("y", ["job"], []),
}


@functools.cache
def public(name: str) -> tuple[Any, Any, Any]:
    """Return standardised numbers and common values of texts as columns, the target and the groups of a table."""
    import pandas as pd

    target, by, dropped = TABLES[name]
    read = pd.read_csv(Path(os.environ["GROUPDRO_DATA"], "tabular", f"{name}.csv.gz"), low_memory=False)
    columns = []
    for column in read.columns.difference([target, *by, *dropped]):
        values = read[column].to_numpy()
        if values.dtype.kind in "iuf":
            columns.append((values - values.mean()) / values.std())
        else:
            levels, counts = np.unique(values.astype(str), return_counts=True)
            columns += [(values.astype(str) == level).astype(float) for level in levels[counts >= 20]]
    groups = read[by].astype(str).agg(" ".join, axis=1).to_numpy()
    y = read[target].to_numpy()
    if name == "wine_quality":
        y = NAMES[np.digitize(y, [5.5, 6.5])]
    elif name == "bike_sharing":
        y = y / 100.0
    return np.column_stack(columns), y.astype(str) if y.dtype == object else y, groups


def add_public(name: str, kind: type, *, dtype: str = "float64", **options: Any) -> None:
    options = {"random_state": 3, "max_passes": 60, **options}

    def run(folder: Path) -> Any:
        X, y, groups = public(name)
        X = sp.csr_array(X) if dtype == "csr" else X.astype(dtype)
        return kind(**options).fit(X, y, groups=groups)

    told = ", ".join(f"{key}={value}" for key, value in options.items() if key not in ("random_state", "max_passes"))
    keep(Fit("; ".join([name, kind.__name__, dtype, told]), run, table=name))


def _public_tables() -> None:
    for objective in ("risk", "excess_risk"):
        add_public("adult", CLASSIFIER, objective=objective)
        add_public("bike_sharing", REGRESSOR, objective=objective)
        add_public("wine_quality", CLASSIFIER, objective=objective)
    add_public("adult", CLASSIFIER, dtype="float32", solver="aleg", tol=1e-2)
    add_public("adult", CLASSIFIER, dtype="csr", tol=1e-2)
    add_public("adult", CLASSIFIER, alpha=0.0)
    add_public("bike_sharing", REGRESSOR, loss="huber", alpha=1e-2)
    add_public("bike_sharing", REGRESSOR, dtype="float32", alpha=0.0)
    add_public("bank_marketing", CLASSIFIER, loss="squared_hinge", dtype="csr")
    add_public("bank_marketing", CLASSIFIER, objective="excess_risk", solver="alem", alpha=1e-2, tol=1e-3)


_drawn_tables()
_public_tables()
