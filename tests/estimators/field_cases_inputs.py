"""Intervals, choices, weights and inputs that a field test found wrong; see `tests.estimators.field_cases`."""

import contextlib
import os
import signal
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

import groupdro as gd
from groupdro import GroupDROClassifier, GroupDROClassifierCV, GroupDRORegressor, GroupDRORegressorCV
from groupdro.domains import ElasticNetDomain
from groupdro.losses import Huber
from tests.estimators.field_cases import CASES, LONG, case, fit

_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=(300, 3))
_Y = (_X @ [1.0, -1.0, 0.5] + _RNG.normal(size=300) > 0).astype(int)
_G = np.arange(300) % 3

__all__ = ["CASES"]


@contextlib.contextmanager
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@case("A1: errors on light rows do not narrow an interval")
def _light_errors() -> str:
    n = 300
    y = np.zeros(n, int)
    y[:2] = 1
    weights = np.where(np.arange(n) % 5 == 4, 10.0, 1.0)
    rows = np.zeros((n, 1))
    model = DummyClassifier(strategy="constant", constant=0).fit(rows, y)
    weighted, plain = (
        gd.group_report(model, rows, y, np.zeros(n), sample_weight=some, loss="zero_one") for some in (weights, None)
    )
    high, unweighted = weighted.columns["risk_high"][0], plain.columns["risk_high"][0]
    assert high >= unweighted, f"upper end {high:.4f} with weights, {unweighted:.4f} without"
    return f"upper end {high:.4f} with weights, {unweighted:.4f} without"


@case("A1: a group with one error is not judged")
def _few_positives() -> str:
    y = np.zeros(300, int)
    y[:60:3], y[60] = 1, 1
    groups = np.repeat(["many", "one"], [60, 240])
    model = LogisticRegression().fit(_X, y)  # which never predicts the rare class
    report = gd.group_report(model, _X, y, groups)
    notes = dict(zip(report.columns["group"], report.columns["note"], strict=True))
    assert notes == {"many": "", "one": "few errors"}, notes
    assert np.isnan(report.by_group["one"]["risk_high"])
    assert report.worst_group == "many"
    return f"notes {notes}"


@case("A2: cross-validation keeps plain training in all but a few of many samples where groups tie", LONG)
def _many_ties() -> str:
    return _ties(n_samples=40, most=3)


@case("A2: cross-validation keeps plain training where groups tie")
def _ties(n_samples: int = 8, most: int = 1) -> str:
    left = worse = 0
    angles = 2 * np.pi * np.arange(3) / 3
    slopes = np.column_stack([np.cos(angles), np.sin(angles)])
    for seed in range(n_samples):
        rng = np.random.default_rng(seed)
        groups = np.repeat([0, 1, 2], 60)
        X = rng.normal(size=(180, 2))
        y = (X * slopes[groups]).sum(axis=1) + rng.normal(size=180)
        search = GroupDRORegressorCV(alphas=[1e-3], random_state=seed).fit(X, y, groups=groups)
        plain = GroupDRORegressor(alpha=1e-3, robustness=0.0).fit(X, y, groups=groups)
        risks = [(np.square(slopes - m.coef_).sum(axis=1) + m.intercept_**2).max() for m in (search, plain)]
        left += search.robustness_ > 0
        worse += search.robustness_ > 0 and risks[0] > risks[1]
    found = f"left plain training {left} times of {n_samples}, for a truly worse model {worse} times"
    assert worse <= most, found
    return found


@case("A3: the bonus of small groups does not depend on the storage")
def _storage() -> str:
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(400, 3)), np.repeat(["a", "b"], 200)
    y = X @ [1.0, 0.5, -1.0] + rng.normal(size=400)
    weights = np.ones(400)
    weights[205:] = 0.0
    found = {}
    with tempfile.TemporaryDirectory() as folder, quiet():
        np.save(Path(folder, "X.npy"), X)
        mapped = np.load(Path(folder, "X.npy"), mmap_mode="r")
        for name, rows in (("memory", X), ("memmap", mapped)):
            model = GroupDRORegressor(small_group_bonus=1.0, tol=1e-8)
            found[name] = fit(model, rows, y, weights, groups=groups)
    (_, one), (_, other) = found.items()
    said = ", ".join(f"{name}: {m.worst_group_} at {m.upper_bound_:.6f}" for name, m in found.items())
    assert one.worst_group_ == other.worst_group_, said
    assert np.isclose(one.upper_bound_, other.upper_bound_, rtol=1e-7), said
    return said


@case("A4: groups of 64-bit hashes stay themselves")
def _hashes() -> str:
    keys = pl.Series(["n", "s", "e"] * 100).hash(seed=1)
    model = GroupDROClassifier().fit(_X, _Y, groups=keys)
    notes = model.report(_X, _Y, keys).columns["note"]
    assert notes == ["", "", ""], f"notes {notes}"
    assert set(model.groups_.tolist()) == set(keys.to_list())
    return f"three groups known, dtype {model.groups_.dtype}"


@case("A5: Ctrl-C ends a search instead of choosing among half-fitted models")
def _interrupted_search() -> str:
    if threading.current_thread() is not threading.main_thread():
        return "needs the main thread"
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20000, 40))
    y = X @ rng.normal(size=40) + rng.normal(size=20000) > 0
    search = GroupDROClassifierCV(alphas=[1e-4, 1e-5, 1e-6])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest's workers ignore it
    threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        search.fit(X, y, groups=np.arange(20000) % 5)
    except KeyboardInterrupt:
        assert not hasattr(search, "cv_results_")
        return "KeyboardInterrupt, nothing fitted"
    finally:
        signal.signal(signal.SIGINT, before)
    raise AssertionError("the search went on")


@case("A6: excess risks with a small Huber delta converge")
def _small_delta() -> str:
    stuck = []
    for seed in (13, 27, 30, 49, 56):
        rng = np.random.default_rng(seed)
        n, m, d = rng.integers(40, 150), rng.integers(2, 6), rng.integers(2, 8)
        X, groups = rng.normal(size=(n, d)), np.arange(n) % m
        y = (X * rng.normal(size=(m, d))[groups]).sum(axis=1) + rng.standard_t(3, size=n)
        alpha = float(10 ** rng.uniform(-6, -2))
        model = GroupDRORegressor("excess_risk", loss=Huber(0.1 * y.std()), alpha=alpha)
        if fit(model, X, y, groups=groups).status_ != "converged":
            stuck.append(f"{seed}: {model.status_} at {model.gap_ / model.upper_bound_:.1e}")
    assert not stuck, "; ".join(stuck)
    return "5 of 5 converged"


@case("A8: compare takes what fit takes")
def _forms() -> str:
    text = pd.Index(np.array(["no", "yes"])[_Y])
    groups = pd.array(np.array(["a", "b", "c"])[_G])
    forms = {
        "y as a column": (_X, _Y[:, None], _G, None),
        "weights as a column": (_X, _Y, _G, np.ones((300, 1))),
        "groups as an index": (_X, _Y, pd.Index(_G), None),
        "text y as an index, groups as an array": (_X, text, groups, None),
    }
    with quiet():
        forms |= {f"X as {form}": (sp.csr_array(_X).asformat(form), _Y, _G, None) for form in ("coo", "dia", "bsr")}
        mean = gd.compare(_X, _Y, _G, cv=None).columns["mean_risk"]
        for name, (X, y, g, w) in forms.items():
            try:
                found = gd.compare(X, y, g, sample_weight=w, cv=None).columns["mean_risk"]
            except Exception as error:
                raise AssertionError(f"{name}: {type(error).__name__}: {str(error)[:80]}") from None
            np.testing.assert_allclose(found, mean, rtol=1e-9, err_msg=name)
    return f"{len(forms)} forms"


@case("A9: rows without weight are left out before splits and bounds")
def _weightless() -> str:
    weights, groups = np.ones(300), np.repeat([0, 1], [150, 150])
    weights[151:] = 0.0
    with quiet():
        GroupDROClassifierCV(alphas=[1e-3], robustness=[1.0]).fit(_X, _Y, weights, groups=groups)
        gd.compare(_X, _Y, groups, sample_weight=weights, cv=None)
        none = np.ones(300)
        none[150:] = 0.0
        model = GroupDROClassifier().fit(_X, _Y, groups=groups)
        report = gd.group_report(model, _X, _Y, groups, sample_weight=none, linear=True)
    assert report.headroom is not None
    return "a group with one weighted row is split, and one without any is left out of headroom"


@case("A10: a fit that fails changes nothing")
def _failed_fit() -> str:
    def fails(progress):
        raise RuntimeError("the callback failed")

    model = GroupDROClassifier().fit(_X, np.array(["ham", "spam"])[_Y], groups=_G)
    before = model.predict(_X)
    with contextlib.suppress(RuntimeError):
        model.set_params(callbacks=[fails]).fit(_X, np.array(["cat", "dog"])[_Y], groups=_G)
    assert (model.predict(_X) == before).all(), set(model.predict(_X).tolist())
    fresh = GroupDROClassifier(callbacks=[fails])
    with contextlib.suppress(RuntimeError):
        fresh.fit(_X, _Y, groups=_G)
    try:
        fresh.predict(_X)
    except NotFittedError:
        return "the old model predicts; a first fit that failed is not fitted"
    except AttributeError as error:
        raise AssertionError(f"AttributeError: {error}") from None
    raise AssertionError("it predicts")


@case("A12: a column of denormal numbers is refused by name")
def _denormal() -> str:
    X = _X.copy()
    X[:, 0] *= 1e-310
    said = []
    for model in (GroupDROClassifier(alpha=0), GroupDRORegressor(alpha=0)):
        with pytest.raises(ValueError, match="column 0") as caught:
            fit(model, X, _Y, groups=_G)
        said.append(str(caught.value))
    return said[0]


@case("A13: a column of scale 1e16 does not inflate the upper bound")
def _large_column() -> str:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = X @ [1.0, -2.0, 0.5] + 2.5 * rng.normal(size=300)
    X[:, 0] *= 1e16
    model = fit(GroupDRORegressor(alpha=1e-4), X, y, groups=_G)
    outputs = X.astype(np.longdouble) @ model.coef_.astype(np.longdouble) + model.intercept_
    losses = 0.5 * np.square(outputs - y)
    true = float(max(losses[g == _G].mean() for g in range(3)) + 0.5e-4 * np.square(model.coef_).sum())
    found = f"upper bound {model.upper_bound_:.6g}, value {true:.6g}"
    assert true <= model.upper_bound_ * (1 + 1e-12), found
    assert model.upper_bound_ <= true * (1 + 1e-3), found
    return found


@case("A14: large bounds and duplicate columns are refused by name")
def _refused() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="low has finite values beyond"):
            ElasticNetDomain(low=-1e300, high=1e300)
        with pytest.raises(ValueError, match=r"\bX\b"):
            GroupDROClassifier().fit(pd.DataFrame(_X, columns=["a", "b", "a"]), _Y, groups=_G)
    return "both"
