"""Margins of boosted trees as offsets, by the libraries themselves."""

import numpy as np
import pytest
from scipy.special import expit, log_softmax
from sklearn.model_selection import cross_val_predict

from groupdro import GroupDROClassifier, GroupDRORegressor, GroupStratifiedKFold, group_report


def rows(n=3000, seed=0):
    """Return X, margins and groups: an interaction that trees find, and a slope that only the smallest group has."""
    rng = np.random.default_rng(seed)
    X, site = rng.normal(size=(n, 4)), rng.choice(["north", "south", "island"], n, p=[0.6, 0.3, 0.1])
    return X, 2.0 * X[:, 0] * X[:, 1] + np.where(site == "island", 3.0 * X[:, 3], 0.0), site, rng


def correction_columns(X, site):
    """Return the columns of the smallest group alone."""
    island = (site == "island").astype(float)
    return np.column_stack([island, X * island[:, None]])


def check_correction(out_of_fold, held_out, y, X, site, train, test):
    """Correct margins of training rows, and return the report on held-out ones, of which the margins alone are worse.

    The certificate holds for the margins alone too, which are the correction that is zero.
    """
    model = GroupDROClassifier(alpha=1e-3).fit(
        correction_columns(X, site)[train], y[train], groups=site[train], offset=out_of_fold
    )
    assert model.status_ == "converged"
    before = np.logaddexp(0.0, np.where(y[train] == 1, -out_of_fold, out_of_fold))
    worst = max(before[site[train] == name].mean() for name in np.unique(site))
    assert model.lower_bound_ <= model.upper_bound_ <= worst
    report = group_report(model, correction_columns(X, site)[test], y[test], site[test], offset=held_out)
    before = np.logaddexp(0.0, np.where(y[test] == 1, -held_out, held_out))
    assert report.by_group["island"]["risk"] < before[site[test] == "island"].mean()
    return model


def test_margins_of_lightgbm_are_corrected():
    lightgbm = pytest.importorskip("lightgbm")
    X, margin, site, rng = rows()
    y = (rng.random(len(X)) < expit(margin)).astype(int)
    train, test = next(GroupStratifiedKFold(4, random_state=0).split(X, y, site))
    trees = lightgbm.LGBMClassifier(n_estimators=40, num_leaves=8, verbose=-1, n_jobs=1, random_state=0)
    folds = GroupStratifiedKFold(3, random_state=0)
    out_of_fold = np.empty(len(train))
    for fit, left in folds.split(X[train], y[train], site[train]):
        trees.fit(X[train][fit], y[train][fit])
        out_of_fold[left] = trees.predict(X[train][left], raw_score=True)
    trees.fit(X[train], y[train])
    held_out = trees.predict(X[test], raw_score=True)
    model = check_correction(out_of_fold, held_out, y, X, site, train, test)
    # Where the correction is zero, the probabilities are the trees' own.
    elsewhere = test[site[test] != "island"]
    raw = trees.predict(X[elsewhere], raw_score=True)
    found = model.predict_proba(correction_columns(X, site)[elsewhere], offset=raw - model.intercept_)
    np.testing.assert_allclose(found, trees.predict_proba(X[elsewhere]), atol=1e-12)


def test_margins_of_lightgbm_for_several_classes_are_corrected():
    lightgbm = pytest.importorskip("lightgbm")
    X, margin, site, rng = rows()
    y = (np.outer(margin, [1.0, 0.0, -1.0]) + rng.gumbel(size=(len(X), 3))).argmax(axis=1)
    trees = lightgbm.LGBMClassifier(n_estimators=20, num_leaves=8, verbose=-1, n_jobs=1, random_state=0).fit(X, y)
    raw = trees.predict(X, raw_score=True)
    model = GroupDROClassifier(alpha=1e-2).fit(correction_columns(X, site), y, groups=site, offset=raw)
    alone = -log_softmax(raw, axis=1)[np.arange(len(y)), y]
    worst = max(alone[site == name].mean() for name in np.unique(site))
    assert model.status_ == "converged"
    assert model.upper_bound_ < worst
    assert model.predict_proba(correction_columns(X, site), offset=raw).shape == (len(X), 3)


def test_predictions_of_lightgbm_are_corrected():
    lightgbm = pytest.importorskip("lightgbm")
    X, margin, site, rng = rows()
    y = margin + rng.normal(size=len(X))
    trees = lightgbm.LGBMRegressor(n_estimators=40, num_leaves=8, verbose=-1, n_jobs=1, random_state=0)
    out_of_fold = cross_val_predict(trees, X, y, cv=3)
    model = GroupDRORegressor(alpha=1e-3).fit(correction_columns(X, site), y, groups=site, offset=out_of_fold)
    worst = max((0.5 * (y - out_of_fold) ** 2)[site == name].mean() for name in np.unique(site))
    assert model.status_ == "converged"
    assert model.upper_bound_ < worst


def test_margins_of_xgboost_are_corrected():
    xgboost = pytest.importorskip("xgboost")
    X, margin, site, rng = rows()
    y = (rng.random(len(X)) < expit(margin)).astype(int)
    train, test = next(GroupStratifiedKFold(4, random_state=0).split(X, y, site))
    trees = xgboost.XGBClassifier(n_estimators=40, max_depth=3, n_jobs=1, random_state=0)
    out_of_fold = np.empty(len(train))
    for fit, left in GroupStratifiedKFold(3, random_state=0).split(X[train], y[train], site[train]):
        trees.fit(X[train][fit], y[train][fit])
        out_of_fold[left] = trees.predict(X[train][left], output_margin=True)
    trees.fit(X[train], y[train])
    held_out = trees.predict(X[test], output_margin=True)
    assert held_out.dtype == np.float32
    check_correction(out_of_fold, held_out, y, X, site, train, test)
