"""What one function accepts all accept, in any container; a fit that fails or is interrupted leaves no trace."""

import itertools
import os
import signal
import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

import groupdro as gd
from groupdro.oracle import Oracle
from tests.campaign.frame import Check, tally_cases

__all__ = ["CHECKS", "FORMS", "FUNCTIONS", "PAIRS"]

_N = 120
_RNG = np.random.default_rng(7)
# Whole numbers, which every container can hold exactly.
_X = _RNG.integers(-3, 4, size=(_N, 3)).astype(np.float64)
_Y = np.array(["no", "yes"])[(_X @ [1.0, -1.0, 0.5] + 2.0 * _RNG.normal(size=_N) > 0).astype(int)]
_GROUPS = np.array(["a", "b", "c"])[np.arange(_N) % 3]
_WEIGHTS = _RNG.integers(1, 4, size=_N).astype(np.float64)
_NAMES = ["x", "y", "z"]


@cache
def _mapped():
    path = Path(tempfile.mkdtemp(prefix="groupdro-forms-"), "X.npy")
    np.save(path, _X)
    return np.load(path, mmap_mode="r")


def _frozen(values):
    values.setflags(write=False)
    return values


def _arrow_table(X):
    return pa.table({name: X[:, k] for k, name in enumerate(_NAMES)})


#: Containers by argument. The first of each is the plain one that all are compared with.
FORMS = {
    "X": {
        "array": lambda: _X,
        "Fortran order": lambda: np.asfortranarray(_X),
        "every second column": lambda: np.repeat(_X, 2, axis=1)[:, ::2],
        "read-only": lambda: _frozen(_X.copy()),
        "float32": lambda: _X.astype(np.float32),
        "int8": lambda: _X.astype(np.int8),
        "list": lambda: _X.tolist(),
        "memmap": _mapped,
        "pandas": lambda: pd.DataFrame(_X, columns=_NAMES, index=np.arange(_N)[::-1]),
        "polars": lambda: pl.DataFrame(_X, schema=_NAMES),
        "pyarrow": lambda: _arrow_table(_X),
        "csr": lambda: sp.csr_array(_X),
        "csc": lambda: sp.csc_matrix(_X),
        "coo": lambda: sp.coo_array(_X),
        "bsr": lambda: sp.bsr_array(_X),
        "lil": lambda: sp.lil_array(_X),
    },
    "y": {
        "array": lambda: _Y,
        "list": _Y.tolist,
        "objects": lambda: _Y.astype(object),
        "column": lambda: _Y[:, None],
        "Series": lambda: pd.Series(_Y),
        "Index": lambda: pd.Index(_Y),
        "Categorical": lambda: pd.Categorical(_Y),
        "polars": lambda: pl.Series(_Y),
        "pyarrow": lambda: pa.array(_Y.tolist()),
        "frame": lambda: pd.DataFrame({"y": _Y}),
    },
    "groups": {
        "array": lambda: _GROUPS,
        "list": _GROUPS.tolist,
        "tuple": lambda: tuple(_GROUPS.tolist()),
        "objects": lambda: _GROUPS.astype(object),
        "column": lambda: _GROUPS[:, None],
        "Series": lambda: pd.Series(_GROUPS),
        "Index": lambda: pd.Index(_GROUPS),
        "Categorical": lambda: pd.Categorical(_GROUPS),
        "pandas array": lambda: pd.array(_GROUPS),
        "polars": lambda: pl.Series(_GROUPS),
        "polars categorical": lambda: pl.Series(_GROUPS, dtype=pl.Categorical),
        "pyarrow": lambda: pa.chunked_array([_GROUPS.tolist()]),
        "frame": lambda: pd.DataFrame({"region": _GROUPS}),
    },
    "sample_weight": {
        "array": lambda: _WEIGHTS,
        "list": _WEIGHTS.tolist,
        "column": lambda: _WEIGHTS[:, None],
        "int": lambda: _WEIGHTS.astype(np.int64),
        "Series": lambda: pd.Series(_WEIGHTS, index=np.arange(_N)[::-1]),
        "polars": lambda: pl.Series(_WEIGHTS),
        "pyarrow": lambda: pa.array(_WEIGHTS),
    },
}


def _fit(X, y, groups, sample_weight):
    model = gd.GroupDROClassifier(alpha=1e-2, tol=1e-6).fit(X, y, sample_weight, groups=groups)
    return np.append(model.coef_.ravel(), model.intercept_)


def _search(X, y, groups, sample_weight):
    search = gd.GroupDROClassifierCV(alphas=[1e-2], robustness=[1.0], cv=2, n_bootstrap=20)
    search.fit(X, y, sample_weight, groups=groups)
    return np.append(search.coef_.ravel(), search.cv_results_["worst_test_risk"])


def _compare(X, y, groups, sample_weight):
    found = gd.compare(
        X, y, groups, sample_weight=sample_weight, estimator=gd.GroupDROClassifier(alpha=1e-2), cv=None, n_bootstrap=20
    )
    return np.array([found.columns["mean_risk"], found.columns["worst_risk"]]).ravel()


def _report(X, y, groups, sample_weight):
    report = gd.group_report(_reference_model(), X, y, groups, sample_weight=sample_weight, n_bootstrap=20)
    return np.array(report.columns["risk"])


def _headroom(X, y, groups, sample_weight):
    return np.array([gd.headroom(_reference_model(), X, y, groups, sample_weight=sample_weight).least])


def _frontier(X, y, groups, sample_weight):
    found = gd.robustness_frontier(
        X, y, groups, estimator=gd.GroupDROClassifier(alpha=1e-2), sample_weight=sample_weight, tol=0.1, max_fits=2
    )
    return np.append(found.mean, found.worst)


def _path(X, y, groups, sample_weight):
    model = gd.GroupDROClassifier()
    found = gd.regularization_path(model, X, y, groups=groups, alphas=[1e-1, 1e-2], sample_weight=sample_weight)
    return found.coefs.ravel()


FUNCTIONS = {
    "fit": _fit,
    "CV": _search,
    "compare": _compare,
    "report": _report,
    "headroom": _headroom,
    "frontier": _frontier,
    "path": _path,
}
#: All pairs of containers of two arguments; the others are plain.
PAIRS = [
    ((first, one), (second, other))
    for first, second in itertools.combinations(FORMS, 2)
    for one in FORMS[first]
    for other in FORMS[second]
]
_CALLS = list(itertools.product(FUNCTIONS, PAIRS))


@cache
def _reference_model():
    return gd.GroupDROClassifier(alpha=1e-2, tol=1e-6).fit(_X, _Y, groups=_GROUPS)


@cache
def _expected(function, in_order):
    """Return the answer for plain arrays, or for a memory map, whose rows are not sorted by group."""
    plain = {name: next(iter(forms.values()))() for name, forms in FORMS.items()}
    return FUNCTIONS[function](**plain if in_order else {**plain, "X": _mapped()})


def _form(number):
    function, pair = _CALLS[number % len(_CALLS)]
    arguments = {name: next(iter(forms.values()))() for name, forms in FORMS.items()}
    arguments.update({name: FORMS[name][form]() for name, form in pair})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = FUNCTIONS[function](**arguments)
        expected = _expected(function, ("X", "memmap") not in pair)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12, err_msg=f"{function} of {pair}")


# ---------------------------------------------------------------------- fits that fail, or are interrupted


class _CallbackError(Exception):
    pass


def _failing_callback(seed):
    """A fit whose callback raises changes nothing, whatever it was fitted on before."""
    rng = np.random.default_rng(seed)
    options = {"objective": str(rng.choice(["risk", "excess_risk"])), "robustness": float(rng.choice([0.0, 0.5, 1.0]))}
    model = gd.GroupDROClassifier(**options, tol=1e-8)
    X, y, groups = rng.normal(size=(150, 4)), rng.integers(0, 3, 150), rng.integers(0, 3, 150)
    before = None
    if seed % 3:
        model.fit(X, y, groups=groups)
        before = {name: value for name, value in vars(model).items() if name.endswith("_")}
    left = [int(rng.integers(0, 4))]

    def fails(progress):
        left[0] -= 1
        if left[0] < 0:
            raise _CallbackError

    model.set_params(callbacks=[fails])
    labels = np.array(["cat", "dog"])[rng.integers(0, 2, 100)]
    try:
        model.fit(rng.normal(size=(100, 6)), labels, groups=np.arange(100) % 4)
    except _CallbackError:
        pass
    else:
        return  # the fit needed fewer epochs
    if before is None:
        try:
            model.predict(X)
        except NotFittedError:
            return
        raise AssertionError("a model that was never fitted predicts")
    after = {name: value for name, value in vars(model).items() if name.endswith("_")}
    assert after.keys() == before.keys(), after.keys() ^ before.keys()
    assert all(after[name] is before[name] for name in before)
    model.predict(X)


def _interrupted_pass(seed):
    """SIGINT in any pass of any stage ends a fit with a certified model or none, and everything else with none."""
    rng = np.random.default_rng(seed)
    kind = ("fit", "CV", "compare", "path", "frontier")[seed % 5]
    X, groups = rng.normal(size=(200, 5)), rng.integers(0, 4, 200)
    y = (X @ rng.normal(size=5) + rng.normal(size=200) > 0).astype(int)
    # At robustness 1 the slack of the tolerance is used in a stage of its own.
    model = gd.GroupDROClassifier(str(rng.choice(["risk", "excess_risk"])), robustness=0.5, tol=1e-7)
    at, evaluate = int(rng.integers(1, 40)), Oracle.evaluate

    def interrupting(self, *arguments, **options):
        nonlocal at
        at -= 1
        if at == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(self, *arguments, **options)

    Oracle.evaluate = interrupting
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    search = gd.GroupDROClassifierCV(model, alphas=[1e-3], robustness=[1.0], cv=3, n_bootstrap=20, refit=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind == "fit":
                model.fit(X, y, groups=groups)
                assert at > 0 or model.status_ in ("interrupted", "converged"), model.status_
            elif kind == "CV":
                search.fit(X, y, groups=groups)
                assert at > 0, "an interrupted search went on"
            elif kind == "compare":
                gd.compare(X, y, groups, estimator=model, cv=None, n_bootstrap=20)
                assert at > 0, "an interrupted comparison went on"
            elif kind == "path":
                found = gd.regularization_path(model, X, y, groups=groups, alphas=[1e-1, 1e-2, 1e-3])
                assert at > 0 or len(found.statuses) <= 3
            else:
                found = gd.robustness_frontier(X, y, groups, estimator=gd.GroupDROClassifier(), tol=1e-4)
                assert found.n_fits >= 1
    except KeyboardInterrupt:
        assert at <= 0, "KeyboardInterrupt without a signal"
        assert not hasattr(search, "cv_results_")
        assert not hasattr(model, "coef_")
    finally:
        signal.signal(signal.SIGINT, before)
        Oracle.evaluate = evaluate


def _in_processes(case, count, seed, jobs):
    return tally_cases(case, range(seed * 1_000_000, seed * 1_000_000 + count), jobs)


def _forms(count, seed, jobs):
    # A part of the table takes calls from all over it.
    chosen = np.random.default_rng(seed).permutation(len(_CALLS))[:count]
    tally = tally_cases(_form, chosen.tolist(), jobs)
    sizes = ", ".join(f"{len(forms)} of {name}" for name, forms in FORMS.items())
    tally.figures.append(f"{sizes}, {len(PAIRS)} pairs, {len(FUNCTIONS)} functions")
    return tally


def _failing(count, seed, jobs):
    return _in_processes(_failing_callback, count, seed, jobs)


def _interrupted(count, seed, jobs):
    return _in_processes(_interrupted_pass, count, seed, jobs)


CHECKS = [
    Check(
        "input forms",
        "every function takes every container of every argument, and answers the same to 1e-12",
        _forms,
        full=len(_CALLS),
        ci=30,
    ),
    Check("failing callbacks", "a fit that fails leaves the estimator as it was", _failing, full=300, ci=12),
    Check(
        "interrupted passes",
        "SIGINT in any pass of any stage: a certified model or none, never a choice among half-fitted ones",
        _interrupted,
        full=500,
        ci=20,
    ),
]
